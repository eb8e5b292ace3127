"""Scalars of a recorded launch are replaced by others, whatever their types; where that cannot
be done, `renew` says so.
"""

import random
import struct
from itertools import accumulate

import numpy as np
import pytest

from synknumba._wire import doorbell
from synknumba._wire.relaunch import Again, ScalarPacking, Table
from tests.unit.cuda.numba_kernels import Dispatcher, Driver

GRID, BLOCK = (1, 1, 1), (1, 1, 1)


@pytest.fixture(params=[False, True], ids=["function", "library"])
def driver(request, bench, monkeypatch):
    made = Driver(bench.machine, by_library=request.param)
    monkeypatch.setattr(bench.gpu.nodes, "_driver", lambda: made)
    return made


def launching(bench, args, changing, *, launches=1, **kind):
    """A recording of launches that note what they get; their arguments and what is noted."""
    seen = []
    dispatcher = Dispatcher(bench.machine, lambda *values: seen.append(values), **kind)
    kernel = bench.kernel(dispatcher)
    lists = [list(args) for _ in range(launches)]
    steps = [kernel.bind(GRID, BLOCK, 0, one, changing) for one in lists]
    recording = bench.record(steps)
    assert recording is not None
    assert not seen
    return recording, lists, seen


def check(seen, expected):
    assert len(seen) == len(expected)
    for got, wanted in zip(seen, expected, strict=True):
        for one, other in zip(got, wanted, strict=True):
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
            assert np.asarray(one).dtype == np.asarray(other).dtype
    seen.clear()


VALUES = [
    (int, (3, 1, 2, 0, -(2**63), 2**63 - 1)),
    (float, (1.5, float("nan"), 1.0, 2.0, 0.0, -0.0, float("inf"))),
    (bool, (True, False, False, True)),
    (complex, (1 + 2j, 3 + 4j, 1 + 4j, 0j, -0.0 + 1j)),
    *(
        (np.dtype(name).type, (1, 2, 3, 0, 100))
        for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32")
    ),
    (np.int64, (1, -(2**63), 2)),
    (np.uint64, (2**64 - 1, 0, 1, 2**63)),
    (np.float32, (1, float("nan"), 0.1, -2.5)),
    (np.float64, (2, 0.1, -2.5)),
    (np.float16, (2, 0.1, -2.5)),
    (np.bool_, (False, True)),
    (np.complex64, (1 + 2j, 0.1j, 3 + 4j)),
    (np.complex128, (1 + 2j, 0.1j, 3 + 4j)),
]


CASES = [(of, values, False) for of, values in VALUES]
CASES += [
    (of, values, True) for of, values in VALUES if issubclass(of, complex | np.complexfloating)
]


@pytest.mark.parametrize(
    ("of", "values", "together"),
    CASES,
    ids=[f"{of.__module__}.{of.__name__}{'-as-one' * one}" for of, _, one in CASES],
)
def test_all_types(bench, driver, of, values, together):
    first, *others = map(of, values)
    recording, (args,), seen = launching(bench, [7, first, 2.5], (1,), together=together)
    recording.launch()
    check(seen, [(7, first, 2.5)])
    for value in others:
        args[1] = value
        assert recording.renew()
        recording.launch()
        check(seen, [(7, value, 2.5)])
    recording.close()


def test_a_number_in_a_kernels_code_is_not_replaced(bench, driver):
    recording, (args,), _ = launching(bench, [7, 3, 2.5], (1,), baked=1)
    args[1] = 4
    assert not recording.renew()
    recording.close()


FORMATS = {"b": "?", "i": "q", "u": "Q", "f": "d", "c": "dd"}  # as scalars come, by their kind


class Known:
    """A call with scalars that change, as compiled code knows it.

    Args:
        recording: of its launches.
        scalars: by their positions among the arguments, in the order in which they come.
    """

    NUMBER = 5

    def __init__(self, recording, scalars, *, has_places=True):
        formats = [FORMATS[np.asarray(value).dtype.kind] for value in scalars.values()]
        self.layout = struct.Struct("<" + "".join(formats))
        first = dict(zip(scalars, accumulate(map(len, formats), initial=0), strict=False))
        # and a value that selects rows
        self.packing = ScalarPacking("".join(formats) + "q", self.layout.size, first)
        self.values, self.recording, self.changed = np.zeros(256, np.uint8), recording, []
        self.put(scalars)
        packed = bytes(self.values[: self.layout.size + 8])
        address = recording.relaunch
        self.again = Again(
            self.NUMBER,
            self.values,
            packed,
            self.packing,
            address,
            recording.wait,
            lambda: self.changed.append(1),
        )
        self.again.know(packed, recording.scalars() if has_places else None)
        self.table = Table()
        self.table.add(self.again)

    def put(self, scalars):
        parts = []
        for value in scalars.values():
            number = np.asarray(value)[()].item()
            parts += [number.real, number.imag] if isinstance(number, complex) else [number]
        self.layout.pack_into(self.values, 0, *parts)

    def call(self, scalars):
        """One round; whether compiled code has done it, and whether it has changed scalars."""
        self.put(scalars)
        said = doorbell.repeat(self.table.address, self.NUMBER)
        self.table.catch_up()
        if said == doorbell.UNDER_WAY:
            self.table.late.finish()
        return said != 0, bool(self.changed and self.changed.pop())


@pytest.mark.parametrize(
    ("of", "values"), VALUES, ids=[f"{of.__module__}.{of.__name__}" for of, _ in VALUES]
)
def test_compiled_code_replaces_all_types(bench, driver, of, values):
    first, *others = map(of, values)
    recording, _, seen = launching(bench, [7, first, 2.5], (1,))
    assert recording.renew()
    known = Known(recording, {1: first})
    if of is np.float16:  # left to Python
        assert known.call({1: others[0]}) == (False, False)
    else:
        for value in (*others, first):
            for again in (False, True):
                before = bytes(known.values)
                done, changed = known.call({1: value})
                assert done
                assert changed == (bytes(known.values) != before)
                assert not (again and changed)
                check(seen, [(7, value, 2.5)])
    recording.close()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("launches", [1, 3])
def test_compiled_code_replaces_any_scalars(bench, driver, seed, launches):
    """Several, which come in another order than they go to, with numbers of one byte between
    them; Python has its turns.
    """
    rng = random.Random(seed)
    kinds = [
        rng.choice([one for one in VALUES if one[0] is not np.float16])
        for _ in range(rng.randint(1, 9))
    ]

    def chosen():
        return [of(rng.choice(values)) for of, values in kinds]

    now = chosen()
    positions = list(range(1, len(kinds) + 1))
    recording, lists, seen = launching(bench, [7, *now, 2.5], positions, launches=launches)
    order = rng.sample(positions, len(positions))
    assert recording.renew()
    known = Known(recording, {position: now[position - 1] for position in order})
    for _ in range(15):
        before, now = bytes(known.values), rng.choice([now, chosen()])
        done, changed = known.call({position: now[position - 1] for position in order})
        assert done
        assert changed == (bytes(known.values) != before)
        check(seen, [(7, *now, 2.5)] * launches)
        if rng.random() < 0.2:
            now = chosen()
            for args in lists:
                args[1:-1] = now
            known.again.forget()
            assert recording.renew()
            known.put({position: now[position - 1] for position in order})
            known.again.know(bytes(known.values[: known.layout.size]), recording.scalars())
            recording.launch()
            check(seen, [(7, *now, 2.5)] * launches)
    recording.close()


def test_a_driver_that_refuses_compiled_code(bench, driver):
    """Then it is Python's, and stays so until that has made everything right."""
    recording, (args,), seen = launching(bench, [7, 1], (1,))
    assert recording.renew()
    known = Known(recording, {1: 1})
    assert known.call({1: 2}) == (True, True)
    driver.refuses = True
    assert known.call({1: 3}) == (False, True)
    driver.refuses = False
    assert known.call({1: 3}) == (False, False)
    args[1] = 3
    assert recording.renew()
    known.again.know(known.layout.pack(3), recording.scalars())
    assert known.call({1: 3}) == (True, False)
    assert known.call({1: 4}) == (True, True)
    check(seen, [(7, 2), (7, 3), (7, 4)])


def test_before_it_is_known_where_scalars_are(bench, driver):
    recording, _, seen = launching(bench, [7, 1], (1,))
    known = Known(recording, {1: 1}, has_places=False)
    assert known.call({1: 1}) == (True, False)  # what it knows
    assert known.call({1: 2}) == (False, False)
    check(seen, [(7, 1)])


@pytest.mark.parametrize("first", [1 + 4j, 5 + 2j, 3 + 2j, 1 + 2j, 3 + 4j, 5 + 6j])
def test_both_parts_of_a_complex_number_are_found(bench, driver, first):
    """Also where one of them is that of the number by which they are looked for."""
    recording, (args,), seen = launching(bench, [first], (0,))
    assert recording.renew()
    args[0] = 7 - 8j
    assert recording.renew()
    recording.launch()
    check(seen, [(7 - 8j,)])


def test_several_scalars_of_several_launches(bench, driver):
    array = bench.array(2)
    recording, lists, seen = launching(bench, [1, array, 1, 1.0, 1j], (0, 2, 4), launches=3)
    for k in range(3):
        for i, args in enumerate(lists):
            args[0], args[2], args[4] = 10 * i + k, -k, complex(k, i)
        assert recording.renew()
        recording.launch()
        assert [(one[0], one[2], one[3], one[4]) for one in seen] == [
            (10 * i + k, -k, 1.0, complex(k, i)) for i in range(3)
        ]
        assert all(one[1] is array for one in seen)
        seen.clear()


@pytest.mark.parametrize(
    ("value", "other"),
    [(1, 2**63), (np.uint8(1), 256), (1, "text"), (1.0, None), (np.float16(1), 1e6)],
)
def test_values_that_do_not_fit(bench, driver, value, other):
    recording, (args,), seen = launching(bench, [value], (0,))
    assert recording.renew()
    args[0] = other
    assert not recording.renew()
    args[0] = value
    assert recording.renew()
    recording.launch()
    check(seen, [(value,)])


def test_a_parameter_that_is_not_where_it_was_looked_for(bench, driver):
    recording, _, seen = launching(bench, [1, 2], (0,), twice=True)
    assert not recording.renew()
    recording.launch()
    check(seen, [(1, 2)])


def test_a_driver_that_refuses(bench, driver):
    recording, (args,), _ = launching(bench, [1], (0,))
    driver.refuses, args[0] = True, 2
    assert not recording.renew()


@pytest.mark.parametrize(
    "name", ["cuFuncGetParamInfo", "cuGraphKernelNodeGetParams_v2", "cuStreamGetCaptureInfo_v2"]
)
def test_an_older_driver(bench, monkeypatch, name):
    class Older(Driver):
        def __getattribute__(self, asked):
            if asked == name:
                raise AttributeError(asked)
            return super().__getattribute__(asked)

    made = Older(bench.machine)
    monkeypatch.setattr(bench.gpu.nodes, "_driver", lambda: made)
    recording, (args,), seen = launching(bench, [1], (0,))
    args[0] = 2
    assert not recording.renew()
    recording.launch()
    check(seen, [(1,)])
    assert not bench.machine.captures


def test_looking_for_scalars_leaves_nothing_behind(bench, driver):
    recording, _, seen = launching(bench, [1, 2.0], (0, 1))
    graphs = set(bench.machine.graphs)
    assert recording.renew()
    assert set(bench.machine.graphs) == graphs
    assert not seen


def queued(bench, count):
    """A recording of launches that are queued, each recorded with its own number, by one step."""
    seen, args = [], [0]
    dispatcher = Dispatcher(bench.machine, seen.append)
    step = bench.kernel(dispatcher).bind(GRID, BLOCK, 0, args, (0,))

    def steps():
        for args[0] in range(count):
            yield step

    return bench.gpu.graph.record_queued(steps(), bench.stream), args, seen


def test_queued_launches_get_scalars_one_by_one(bench, driver):
    recording, args, seen = queued(bench, 3)
    recording.queue()
    recording.wait()
    args[0] = 7
    assert recording.renew(1, 2)
    recording.queue()
    assert len(recording.scalars(1, 3).places) == 2
    recording.wait()
    assert seen == [0, 1, 2, 0, 7, 2]
    recording.close()
    recording.close()
    assert not bench.machine.graphs


def test_a_launch_whose_node_is_unknown_gets_no_scalars(bench, monkeypatch):
    """Rather than keep the number with which it was recorded."""
    driver = Driver(bench.machine)
    monkeypatch.setattr(bench.gpu.nodes, "_driver", lambda: driver)
    monkeypatch.setattr(driver, "cuStreamGetCaptureInfo_v2", lambda *args: 1, raising=False)
    recording, args, _ = queued(bench, 2)
    args[0] = 7
    assert not recording.renew(0, 1)
    assert recording.scalars(0, 1) is None
