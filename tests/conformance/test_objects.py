"""Objects as arguments, tuples and values per rank that only look alike, callables of every
kind, and `output_subset`.
"""

import functools
import math
import os
import threading
import time
from enum import Enum, IntEnum
from typing import NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from tests.conformance import expected, kernels


@pytest.fixture(autouse=True)
def _still_usable(world):
    """After each test, a call that is right is right."""
    yield
    assert not world.closed
    x = np.arange(30.0)
    assert_array_equal(kernels.axpy(2.0, x, x), 3 * x)
    assert kernels.total_of(x) == x.sum()


class Settings:
    """A plain class, whose objects are mutable and compare by identity."""

    def __init__(self, factor):
        self.factor = factor
        self.table = [1.0, 2.0]


class Alike(Settings):
    """Objects that are equal whatever they hold, and so have no hash."""

    __hash__ = None

    def __eq__(self, other):
        return isinstance(other, Alike)


class Mode(Enum):
    FAST = "fast"
    EXACT = "exact"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: object
    y: object


@synk.function(outputs=None)
def settings_of(settings):
    return settings.factor, settings.table[0]


@synk.function(outputs=None)
def types_of(values):
    return [
        type(one).__name__
        for one in (values if isinstance(values, tuple | list) else values["values"])
    ]


# ---- objects -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Settings, Alike])
def test_an_object_that_was_changed_arrives_as_it_is_now(world, kind):
    size = world.world_size
    settings = kind(1.0)
    assert settings_of(settings) == ([1.0] * size, [1.0] * size)
    settings.factor = 2.0
    assert settings_of(settings) == ([2.0] * size, [1.0] * size)
    settings.table[0] = 5.0
    assert settings_of(settings) == ([2.0] * size, [5.0] * size)
    assert settings_of(kind(3.0)) == ([3.0] * size, [1.0] * size)
    assert settings_of(settings) == ([2.0] * size, [5.0] * size)


@synk.function(outputs=None)
def count_up(settings, nested):
    settings.table[0] += 1
    nested["settings"].factor += 1
    return settings.table[0], nested["settings"].factor


@synk.function(outputs="sum")
def drawn(x, rng):
    return rng.random(2)


def test_what_a_function_changes_is_its_own(world):
    """Each call gets what the script passes, also where an equal object was passed before."""
    size = world.world_size
    for factor in (1.0, 2.0, 1.0, 1.0):
        assert count_up(Settings(factor), {"settings": Settings(factor)}) == (
            [2.0] * size,
            [factor + 1] * size,
        )


@pytest.mark.parametrize("num_slices", [1, 3])
def test_a_generator_is_that_of_the_script(world, num_slices):
    x = np.arange(30.0)
    for seed in (1, 2, 1, 2):
        rng, draws = np.random.default_rng(seed), np.zeros(2)
        for _ in range(num_slices):
            draws += rng.random(2)
        assert_allclose(
            drawn(x, np.random.default_rng(seed), num_slices=num_slices),
            world.world_size * draws,
            rtol=1e-12,
        )


def test_a_changed_object_inside_a_nested_argument(world):
    @synk.function(outputs="sum")
    def scaled(tree):
        return tree["x"].sum() * tree["settings"][0].factor

    x, settings = np.arange(10.0), Settings(1.0)
    for factor in (1.0, 3.0, 2.0, 3.0):
        settings.factor = factor
        assert scaled({"x": x, "settings": [settings]}) == 45 * factor


def test_what_a_rank_does_to_an_object_stays_there(world):
    @synk.function(outputs=None)
    def spoil(settings):
        settings.factor += 1
        return settings.factor

    settings = Settings(1.0)
    spoil(settings)
    assert settings.factor == 1.0


def test_members_of_enums_and_named_tuples_keep_their_class(world):
    @synk.function(outputs=None)
    def is_what(mode, level, point):
        return (
            [
                mode is Mode.EXACT,
                mode == Mode.EXACT,
                isinstance(level, Level),
                level is Level.HIGH,
                level == 2,
            ],
            isinstance(point, Point) and point.x < point.y,
        )

    told, is_point = is_what(Mode.EXACT, Level.HIGH, Point(1, 2.5))
    assert told == [[True] * world.world_size] * 5
    assert is_point == [True] * world.world_size
    told, is_point = is_what(Mode.FAST, Level.LOW, Point(2.5, 1))
    assert told == [[one] * world.world_size for one in (False, False, True, False, False)]
    assert is_point == [False] * world.world_size


def test_a_function_as_an_argument(world):
    @synk.function(outputs="sum")
    def apply(transform, x):
        return transform(x).sum()

    x = np.arange(10.0)
    for k in (1.0, 2.0, 1.0):
        assert apply(lambda x, k=k: k * x, x) == 45 * k
        assert apply(lambda x: k * x + 1, x) == 45 * k + 10  # noqa: B023  # called before k changes
    assert apply(abs, -x) == 45


@pytest.mark.parametrize("what", ["file", "lock", "nested", "lambda"])
def test_an_argument_that_cannot_be_pickled(world, what, tmp_path):
    @synk.function(outputs=None)
    def ignore(x, thing):
        return x.shape[0]

    lock = threading.Lock()
    with (tmp_path / "open").open("w") as file:
        thing = {"file": file, "lock": lock, "nested": {"a": [lock]}, "lambda": lambda: lock}[what]
        for call in (ignore, ignore.as_serial):
            with pytest.raises(
                synk.ArgumentError, match=r"thing.*ignore.*cannot be sent to the ranks"
            ):
                call(np.ones(5), thing)
    assert sum(ignore(np.ones(5), None)) == 5


def test_a_structure_that_cannot_be_pickled_is_not_a_result(world):
    @synk.function(outputs=None)
    def odd(x):
        return {threading.Lock(): x.shape[0]}

    with pytest.raises(synk.SynkError, match=r"odd"):
        odd(np.ones(3))


def test_an_exception_that_cannot_be_printed(world):
    @synk.function(outputs="sum")
    def wrong(x):
        class MuteError(Exception):
            def __str__(self):
                raise RuntimeError

        raise MuteError

    with pytest.raises(synk.RankError, match="MuteError") as caught:
        wrong(np.ones(10))
    assert [failure.rank for failure in caught.value.failures] == list(range(world.world_size))


# ---- equal, but not the same ---------------------------------------------------------------------


def test_values_per_rank_keep_their_type_from_call_to_call(world):
    @synk.function(outputs="sum")
    def add_up(own):
        return own

    own = range(1, world.world_size + 1)
    for kind, dtype in (
        (int, "int64"),
        (float, "float64"),
        (np.float32, "float32"),
        (int, "int64"),
    ):
        values = [kind(one) for one in own]
        assert set(kernels.type_of(synk.per_rank(values))) == {kind.__name__}
        got = np.asarray(add_up(synk.per_rank(values)))
        assert got.dtype == dtype
        assert got == sum(own)


def test_signed_zeros_per_rank(world):
    for zero in (0.0, -0.0, 0.0):
        got = kernels.value_of(synk.per_rank([zero] * world.world_size))
        assert [math.copysign(1.0, one) for one in got] == [
            math.copysign(1.0, zero)
        ] * world.world_size


def test_tuples_of_a_kernel_keep_their_signs_and_types(world):
    @synk.parallel(
        outputs={"sign": synk.output(None, shape=(2,), dtype="float64")}, block=1, grid=1
    )
    def look_at(pair, sign):
        sign[0] = math.copysign(1.0, pair[0] * 1.0)
        sign[1] = pair[0] * pair[0]

    def looked(*pair):
        got = np.array(look_at(pair))
        assert_array_equal(got, got[:1].repeat(world.world_size, axis=0))
        return tuple(got[0])

    for _ in range(2):
        assert looked(0.0) == (1.0, 0.0)
        assert looked(-0.0) == (-1.0, 0.0)
        assert looked(2.0**32) == (1.0, 2.0**64)
        assert looked(2**32) == (1.0, 0.0), "64-bit integers wrap"
        assert looked(1) == looked(1.0) == looked(True) == (1.0, 1.0)


@pytest.mark.parametrize(
    "make", [tuple, list, lambda one: {"values": one}], ids=["tuple", "list", "dict"]
)
def test_numbers_inside_containers_keep_their_types(world, make):
    for _ in range(2):
        for one in (1, 1.0, True, np.float32(1), np.int8(1)):
            assert types_of(make((one,))) == [[type(one).__name__] * world.world_size]


def test_texts_and_bytes_are_not_each_other(world):
    for one in ("1", b"1", 1, None, "None", frozenset({1}), frozenset({True}), 1 + 0j):
        assert set(kernels.type_of(one)) == {type(one).__name__}


# ---- nested arguments ----------------------------------------------------------------------------


def test_index_ranges_inside_a_nested_argument(world):
    @synk.function(outputs="sum")
    def lengths(spans):
        return [span.stop - span.start for span in spans]

    assert lengths([synk.arange(10), synk.arange(10)]) == [10, 10]
    with pytest.raises(synk.PartitionError, match=r"spans\[1\] has 7 rows but spans\[0\] has 10"):
        lengths([synk.arange(10), synk.arange(7)])
    with pytest.raises(synk.PartitionError, match="7 rows|10 rows"):
        kernels.constants(synk.arange(10), {"a": synk.arange(7)}, 0, 0, 0)
    assert lengths((synk.arange(5), synk.arange(5), synk.arange(5))) == [5, 5, 5]


def test_values_per_rank_inside_a_nested_argument(world):
    size = world.world_size

    @synk.function(outputs=None)
    def own(tree):
        return tree["own"][0]

    assert own({"own": [synk.per_rank(range(size))]}) == list(range(size))
    with pytest.raises(synk.ArgumentError, match=rf"tree.*{size + 1} values for {size} rank"):
        own({"own": [synk.per_rank(range(size + 1))]})
    assert own({"own": [synk.per_rank(range(1, size + 1))]}) == list(range(1, size + 1))


# ---- rows written back ---------------------------------------------------------------------------


@synk.function(inout=("x", "y"))
def add_to_both(x, y):
    x += 1
    y += 10


def test_arrays_that_overlap_are_not_both_written(world):
    a = np.zeros(10)
    for x, y in ((a, a), (a[:6], a[4:]), (a, a[::-1]), (a[::2], a[:5]), (a.reshape(5, 2), a[::2])):
        with pytest.raises(synk.ArgumentError, match=r"(?s)y.*x.*overlap"):
            add_to_both(x, y)
        assert_array_equal(a, np.zeros(10))


def test_views_that_do_not_overlap_may_both_be_written(world):
    a = np.zeros(10)
    add_to_both(a[::2], a[1::2])
    assert_array_equal(a, [1.0, 10.0] * 5)
    add_to_both(a[:5], a[5:])
    assert_array_equal(a, [2.0, 11.0, 2.0, 11.0, 2.0, 20.0, 11.0, 20.0, 11.0, 20.0])
    table = np.zeros((6, 4))
    add_to_both(table[:, 0], table[:, 1])
    assert_array_equal(table, np.tile([1.0, 10.0, 0.0, 0.0], (6, 1)))


def test_a_minibatch_is_written_by_position_so_a_row_may_repeat(world):
    @synk.function(inout=("m",))
    def add_rows(x, m):
        m += x

    x = synk.data(np.arange(20.0))
    m = synk.data(np.arange(0.0, 800.0, 100.0), minibatch=True)
    want = m.data.copy()
    for batch in ([2, 2, 5], [7, 1, 7, -1, 7, 7], slice(3, 10), [0] * 8):
        chosen = expected.selection(batch)
        add_rows(x, m, batch=batch)
        want[: len(x.data[chosen])] += x.data[chosen]
        assert_array_equal(m.data, want)
    assert_array_equal(x.data, np.arange(20.0))


def test_a_function_inside_a_function_may_write_to_its_own_parameter(world):
    @synk.function(outputs="gather")
    def doubled(x):
        def double(x):
            x[:] = 2 * x
            return x

        return double(x.copy())

    x = np.arange(10.0)
    assert_array_equal(doubled(x), 2 * np.arange(10.0))
    assert_array_equal(x, np.arange(10.0))

    @synk.function(outputs="gather")
    def lost(x):
        x[:] = 2 * x
        return x

    with pytest.raises(synk.ArgumentError, match=r"(?s)lost.*x.*inout="):
        lost(x)


# ---- plan() --------------------------------------------------------------------------------------


def test_plan_beside_a_call_in_another_thread(world, tmp_path):
    @synk.function(outputs="sum")
    def waits(x, folder, rank):
        import pathlib
        import time

        folder = pathlib.Path(folder)
        (folder / str(rank)).touch()
        deadline = time.monotonic() + 30
        while not (folder / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        return x.sum()

    x = np.arange(10.0 * world.world_size)
    got = []
    thread = threading.Thread(target=lambda: got.append(waits(x, str(tmp_path), synk.RANK)))
    thread.start()
    deadline = time.monotonic() + 30
    while (
        not all((tmp_path / str(r)).exists() for r in range(world.world_size))
        and time.monotonic() < deadline
    ):
        time.sleep(0.001)
    report = waits.plan(np.zeros(10 * world.world_size), str(tmp_path), synk.RANK)
    (tmp_path / "go").touch()
    thread.join()
    assert report.rows == 10 * world.world_size
    assert got == [x.sum()]


def test_plan_between_calls_changes_nothing(world):
    x = np.arange(10.0)
    for _ in range(2):
        assert kernels.total_of(x) == 45
        assert kernels.total_of.plan(np.zeros(10)).rows == 10
        assert kernels.total_of.plan(np.zeros((4, 3), "int8")).rows == 4
        assert kernels.total_of.plan(synk.data(np.zeros(7))).rows == 7
    y = np.arange(6.0)
    kernels.scale.plan(y, 2.0)
    kernels.scale(y, 2.0)
    kernels.scale.plan(np.zeros(6), 2.0)
    assert_array_equal(y, 2 * np.arange(6.0))


# ---- slices --------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [None, "sum", "max", "mean"], ids=str)
def test_shapes_that_differ_between_slices(world, op):
    @synk.function(outputs=op)
    def grows(x):
        return x

    with pytest.raises(synk.ReductionError, match=r"different shapes.*slices.*num_slices=1"):
        grows(np.ones(3 * world.world_size), num_slices=2)


def test_as_serial_in_slices_equals_the_call(world):
    x, y = expected.values(101), expected.values(101, seed=1)
    for num_slices in (1, 2, 7, 200):
        assert_array_equal(kernels.axpy.as_serial(2.0, x, y, num_slices=num_slices), 2 * x + y)
        for op, function in kernels.BY_OP.items():
            if op is not None:
                assert_allclose(function.as_serial(x, num_slices=num_slices), function(x))
        assert kernels.count_of.as_serial(x, num_slices=num_slices) == [101]
        a, b = (
            kernels.nested.as_serial({"a": x, "b": [y]}, 2.0, num_slices=num_slices),
            kernels.nested({"a": x, "b": [y]}, 2.0),
        )
        assert_allclose(a["sum"], b["sum"])
        assert_array_equal(a["rows"][0], b["rows"][0])


# ---- callables of every kind ---------------------------------------------------------------------


def test_a_partial_function(world):
    def power_sum(x, power, scale):
        return scale * (x**power).sum()

    x = np.arange(5.0)
    by_name = synk.function(outputs="sum")(functools.partial(power_sum, power=2, scale=3.0))
    assert by_name(x) == 90
    assert by_name(x, scale=1.0) == 30
    assert by_name(x, num_slices=2) == 90

    def weighted(weight, x):
        return weight * x.sum()

    by_place = synk.function(outputs="sum")(functools.partial(weighted, 2.0))
    assert by_place(x) == 20
    assert by_place(x=synk.data(x)) == 20


class Scaler:
    """A callable object, and one with a decorated method."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return float(self.factor) * x.sum()  # a NumPy array on the ranks, also where x is CuPy's

    @synk.function(outputs="sum")
    def scaled(self, x, shift=0.0):
        return self.factor * (x + shift).sum()


def test_a_callable_object(world):
    x = np.arange(5.0)
    function = synk.function(outputs="sum")(Scaler(3.0))
    assert function.name == "Scaler"
    for _ in range(2):
        assert function(x) == 30
        assert function(synk.data(x)) == 30
    assert function(x, num_slices=2) == 30
    assert "Scaler" in repr(function)


@pytest.mark.parametrize(
    "take", [lambda scaler: scaler, lambda scaler: scaler.__call__], ids=["object", "method"]
)
def test_an_object_or_its_method_is_as_it_is_at_each_call(world, take):
    x, scaler = np.arange(5.0), Scaler(np.array(3.0))
    function = synk.function(outputs="sum")(take(scaler))

    @synk.sequence
    def body(y):
        return function(y)

    for factor in (2.0, 2.0, 3.0, 2.0):
        scaler.factor = factor
        assert function(x) == 10 * factor
        assert function(x=synk.data(x)) == 10 * factor
        assert function.submit(x).result() == 10 * factor
        assert function.as_serial(x) == 10 * factor
        assert body(x) == 10 * factor
    scaler.factor = np.array(5.0)
    assert function(x) == 50
    scaler.factor[()] = 6.0
    assert function(x) == 60
    assert body(x) == 60


def test_a_decorated_method(world):
    x = np.arange(5.0)
    double, triple = Scaler(2.0), Scaler(3.0)
    for _ in range(2):
        assert double.scaled(x) == 20
        assert triple.scaled(x, 1.0) == 45
        assert triple.scaled(x, shift=1.0, num_slices=2) == 45
        assert Scaler.scaled(double, x) == 20
    assert double.scaled.submit(x, 1.0).result() == 30
    assert double.scaled.as_serial(x) == 20
    assert "rows" in str(double.scaled.plan(x, num_slices=2))
    with pytest.raises(AttributeError, match="nothing"):
        double.scaled.nothing  # noqa: B018
    double.factor = 5.0
    assert double.scaled(x) == 50


# ---- output_subset -------------------------------------------------------------------------------


def test_one_output_comes_alone(world):
    x = np.arange(1.0, 11.0)
    for num_slices in (1, 2):
        for one in ("low", ("low",), ["low"], 0, (0,)):
            assert kernels.mixed(x, x, output_subset=one, num_slices=num_slices) == 1.0
        for one in ("high", ("high",), ["high"]):
            assert kernels.three_named(x, output_subset=one, num_slices=num_slices) == 10.0
        for one in (1, (1,), [1]):
            assert kernels.three(x, output_subset=one, num_slices=num_slices) == 10.0
        assert_array_equal(kernels.three(x, output_subset=(2,), num_slices=num_slices), 2 * x)
        assert_array_equal(
            kernels.mixed(x, x, output_subset=("out",), num_slices=num_slices), x * x
        )


def test_several_outputs_come_in_the_order_asked_for(world):
    x = np.arange(1.0, 11.0)
    assert kernels.three_named(x, output_subset=("high", "total")) == (10.0, 55.0)
    assert kernels.three(x, output_subset=(1, 0)) == (10.0, 55.0)
    low, out = kernels.mixed(x, x, output_subset=("low", "out"))
    assert low == 1.0
    assert_array_equal(out, x * x)


def test_an_output_is_not_asked_for_twice_nor_by_a_bool(world):
    x = np.arange(1.0, 11.0)
    cases = (
        (kernels.mixed, (x, x), "low", 0),
        (kernels.three_named, (x,), "high", None),
        (kernels.three, (x,), 1, 1),
    )
    for function, args, name, place in cases:
        for doubled in (
            (name, name),
            [name, name],
            *([(name, place)] if place is not None else []),
        ):
            with pytest.raises(synk.ReductionError, match=r"output_subset names .* twice"):
                function(*args, output_subset=doubled)
        for bad in (True, False, (True,), (name, False), [True, False]):
            with pytest.raises(
                synk.ReductionError,
                match=rf"output_subset must list outputs of {function.name}.*(True|False)",
            ):
                function(*args, output_subset=bad)


class Unreadable:
    """Pickles, but does not unpickle in the coordinator."""

    def __init__(self, coordinator):
        self.coordinator = coordinator

    def __hash__(self):
        return 0

    def __eq__(self, other):
        return self is other

    def __reduce__(self):
        return check_process, (self.coordinator,)


def check_process(coordinator):
    if os.getpid() == coordinator:
        raise ArithmeticError
    return Unreadable(coordinator)


def test_a_result_that_does_not_unpickle_in_the_script_is_an_error_of_the_call(world):
    @synk.function(outputs="sum")
    def opaque(coordinator):
        return {Unreadable(coordinator): 1.0}

    @synk.function(outputs="sum")
    def count():
        return 1

    with pytest.raises(synk.RankError, match="cannot be unpickled in the script"):
        opaque(os.getpid())
    assert count() == world.world_size


def test_keys_of_a_nested_argument_keep_their_types(world):
    @synk.function(outputs=None)
    def types_of_keys(table):
        return [{"int": 0, "float": 1, "bool": 2}[type(key).__name__] for key in table]

    seen = [types_of_keys(table)[0] for table in ({1: 0}, {1.0: 0}, {True: 0}, {1: 0})]
    assert [values[0] for values in seen] == [0, 1, 2, 0]
