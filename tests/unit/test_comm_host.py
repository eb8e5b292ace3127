"""The host transport: what participants do one after the other is what NumPy does, and nothing
else is written.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from synknumba import _comm
from synknumba._comm import Communicator, Exchange, prepare
from synknumba._comm.host import SCRATCH_BYTES, STREAM_BYTES, HostCommunicator, share
from synknumba._ops.halo import Copy
from synknumba._types import Transport
from tests import quick
from tests.conformance.collectives.cases import complex_product
from tests.quick import each_value_once, examples, whole

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "float32", "float64", "longdouble", ">f4"]
COMPLEX = ["complex64", "complex128", "clongdouble"]
DTYPES = ["bool", *INTEGERS, *FLOATS, *COMPLEX]
OPS = {  # op: its dtypes and its ufunc; "avg" is divided afterwards
    "sum": ([*INTEGERS, *FLOATS, *COMPLEX], np.add),
    "prod": ([*INTEGERS, *FLOATS, *COMPLEX], np.multiply),
    "min": (["bool", *INTEGERS, *FLOATS], np.minimum),
    "max": (["bool", *INTEGERS, *FLOATS], np.maximum),
    "avg": ([*FLOATS, *COMPLEX], np.add),
}
OPS_AND_DTYPES = [(op, dtype) for op, (dtypes, _) in OPS.items() for dtype in dtypes]
# each compiles a function for most of a second; conformance/collectives has all of them
if quick.asked:
    OPS_AND_DTYPES = each_value_once({pair: set(pair) for pair in OPS_AND_DTYPES})
CANARY = 0xA5
MARGIN = 192  # bytes of canaries on both sides of an array

world_sizes = st.integers(1, 5)
lengths = st.integers(0, 40) | st.integers(0, 5000)
participants = st.integers(1, 4)
seeds = st.integers(0, 2**32 - 1)


class Guarded:
    """An array with canaries around it, which begins somewhere in a cache line."""

    def __init__(self, values: Any, offset: int) -> None:
        self._memory = np.full(values.nbytes + 2 * MARGIN + offset, CANARY, np.uint8)
        self._begin = MARGIN + offset
        self._end = self._begin + values.nbytes
        self.array = self._memory[self._begin : self._end].view(values.dtype)
        self.array[:] = values

    def is_intact(self) -> bool:
        return bool(
            (self._memory[: self._begin] == CANARY).all()
            and (self._memory[self._end :] == CANARY).all()
        )


@dataclass(frozen=True)
class World:
    """The arrays of all ranks, and everybody's communicator."""

    parts: int
    offset: int
    guards: list[Guarded]

    def array(self, values: Any) -> Any:
        self.guards.append(Guarded(values, self.offset * values.dtype.alignment))
        return self.guards[-1].array

    def blank(self, length: int, dtype: Any) -> Any:
        return self.array(np.ones(length, dtype))

    def run(self, make: Callable[[Communicator], Callable[[], object]]) -> None:
        for part in range(self.parts):
            make(HostCommunicator(part, self.parts))()
        assert all(guard.is_intact() for guard in self.guards)


worlds = st.builds(World, participants, st.integers(0, 5), st.builds(list))


def values(rng: np.random.Generator, dtype: str, length: int) -> Any:
    """All that the dtype has: wrapping integers, NaN, infinities and both zeros."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.random(length) < 0.5
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, length, kind, endpoint=True)
    if kind.kind == "c":
        real = np.dtype(f"f{kind.itemsize // 2}").str
        return values(rng, real, 2 * length).view(kind)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 6e4], kind)
    numbers = rng.standard_normal(length).astype(kind)
    return np.where(rng.random(length) < 0.3, rng.choice(special, length), numbers).astype(kind)


def expected(op: str, sources: Sequence[Any]) -> Any:
    """NumPy's, in rank order; complex numbers are multiplied and divided part by part."""
    dtype = sources[0].dtype
    with np.errstate(all="ignore"):
        combine = complex_product if (op, dtype.kind) == ("prod", "c") else OPS[op][1]
        total = reduce(combine, [source.copy() for source in sources]).astype(dtype)
        if op != "avg" or len(sources) == 1:
            return total
        real = total.view(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else total
        return (real / real.dtype.type(len(sources))).astype(real.dtype).view(dtype)


def assert_same(got: Any, want: Any) -> None:
    """To the bit, but for which NaN it is, and for which zero is the lesser."""
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def assert_same_zeros(got: Any, want: Any) -> None:
    if got.dtype.kind == "f":
        zeros = want == 0
        np.testing.assert_array_equal(np.signbit(got)[zeros], np.signbit(want)[zeros])


def ranges(counts: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(accumulate(counts, initial=0)))


# ---- reductions


@settings(max_examples=examples(400, quick=20))
@given(
    what=st.sampled_from(OPS_AND_DTYPES),
    length=lengths,
    world=worlds,
    # of each rank; sources are combined four at a time
    in_place=st.lists(st.booleans(), min_size=1, max_size=9),
    seed=seeds,
)
@example(
    what=("avg", "float32"),
    length=SCRATCH_BYTES,
    world=World(3, 1, []),
    in_place=[True] * 11,
    seed=0,
)
@example(
    what=("sum", "float32"),
    length=SCRATCH_BYTES,
    world=World(2, 1, []),
    in_place=[True, True],
    seed=0,
)
@example(what=("prod", "int32"), length=100, world=World(1, 0, []), in_place=[True, False], seed=0)
@example(what=("prod", "int32"), length=100, world=World(1, 0, []), in_place=[False, True], seed=0)
@example(
    what=("avg", "complex64"),
    length=SCRATCH_BYTES,
    world=World(2, 0, []),
    in_place=[False] * 3,
    seed=0,
)
@example(
    what=("max", "float16"), length=50_000, world=World(3, 0, []), in_place=[True, True], seed=0
)
def test_all_reduce(
    what: tuple[Any, str], length: int, world: World, in_place: list[bool], seed: int
) -> None:
    op, dtype = what
    ranks = len(in_place)
    rng = np.random.default_rng(seed)
    sources = tuple(world.array(values(rng, dtype, length)) for _ in in_place)
    originals = [source.copy() for source in sources]
    targets = tuple(
        source if same else world.blank(length, dtype)
        for source, same in zip(sources, in_place, strict=True)
    )
    exchange = Exchange(np.dtype(dtype), sources, targets, (length,) * ranks, (length,) * ranks)
    world.run(lambda communicator: communicator.all_reduce([exchange], op))
    want = expected(op, originals)
    for target in targets:
        assert_same(target, want)
        if op in {"sum", "prod", "avg"}:
            assert_same_zeros(target, want)
    for source, original, same in zip(sources, originals, in_place, strict=True):
        assert same or source.tobytes() == original.tobytes()


@settings(max_examples=examples(100, quick=15))
@given(
    what=st.sampled_from(OPS_AND_DTYPES),
    world_size=world_sizes,
    length=lengths,
    root=st.integers(0, 4),
    world=worlds,
    in_place=st.booleans(),
    seed=seeds,
)
def test_reduce(
    what: tuple[Any, str],
    world_size: int,
    length: int,
    root: int,
    world: World,
    in_place: bool,
    seed: int,
) -> None:
    op, dtype = what
    root %= world_size
    rng = np.random.default_rng(seed)
    sources = tuple(world.array(values(rng, dtype, length)) for _ in range(world_size))
    originals = [source.copy() for source in sources]
    targets = sources if in_place else tuple(world.blank(length, dtype) for _ in range(world_size))
    before = [target.copy() for target in targets]
    exchange = Exchange(
        np.dtype(dtype), sources, targets, (length,) * world_size, (length,) * world_size
    )
    world.run(lambda communicator: communicator.reduce([exchange], op, root))
    assert_same(targets[root], expected(op, originals))
    for rank in set(range(world_size)) - {root}:
        assert targets[rank].tobytes() == before[rank].tobytes()


@settings(max_examples=examples(100, quick=15))
@given(
    what=st.sampled_from(OPS_AND_DTYPES),
    counts=st.lists(lengths, min_size=1, max_size=5),
    world=worlds,
    in_place=st.booleans(),
    seed=seeds,
)
def test_reduce_scatter(
    what: tuple[Any, str], counts: list[int], world: World, in_place: bool, seed: int
) -> None:
    op, dtype = what
    world_size, length = len(counts), sum(counts)
    rng = np.random.default_rng(seed)
    sources = tuple(world.array(values(rng, dtype, length)) for _ in counts)
    want = expected(op, [source.copy() for source in sources])
    own = ranges(counts)
    targets = tuple(
        sources[rank][begin:end] if in_place else world.blank(end - begin, dtype)
        for rank, (begin, end) in enumerate(own)
    )
    exchange = Exchange(np.dtype(dtype), sources, targets, (length,) * world_size, tuple(counts))
    world.run(lambda communicator: communicator.reduce_scatter([exchange], op))
    for target, (begin, end) in zip(targets, own, strict=True):
        assert_same(target, want[begin:end])


@pytest.mark.parametrize(("op", "dtype"), OPS_AND_DTYPES)
@pytest.mark.parametrize("world_size", [3, *whole(2)])
def test_every_op_and_dtype_in_two_parts(op: Any, dtype: str, world_size: int) -> None:
    rng = np.random.default_rng(world_size)
    arrays = tuple(values(rng, dtype, 999) for _ in range(world_size))
    want = expected(op, arrays)
    exchange = Exchange(np.dtype(dtype), arrays, arrays, (999,) * world_size, (999,) * world_size)
    World(2, 0, []).run(lambda communicator: communicator.all_reduce([exchange], op))
    for array in arrays:
        assert_same(array, want)


@pytest.mark.whole
def test_products_of_complex_numbers_do_not_depend_on_what_was_compiled_before(
    tmp_path: Path,
) -> None:
    """A kernel's are contracted, and Numba would use for both what it has compiled first."""
    script = """
import numpy as np
from numba import cuda
from synknumba import simt
from tests.unit.test_comm_host import test_every_op_and_dtype_in_two_parts

@simt.jit
def multiply(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i] * y[i]

multiply[1, 32](np.ones(32, complex), np.ones(32, complex))
test_every_op_and_dtype_in_two_parts("prod", "complex128", 2)
test_every_op_and_dtype_in_two_parts("prod", "complex64", 3)
"""
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(tmp_path),
        "SYNKNUMBA_CACHE_DIR": str(tmp_path),
    }
    path = tmp_path / "script.py"
    path.write_text(script)
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, str(path)],
        check=True,
        env=environment | {"PYTHONPATH": str(root)},
        timeout=100,
    )


@pytest.mark.parametrize(
    ("op", "dtype", "given_by_ranks", "result"),
    [
        ("sum", "int8", [100, 100], -56),
        ("prod", "int16", [300, 300], 90000 - 65536),
        ("sum", "uint8", [200, 100, 3], 47),
        ("sum", "float32", [1e8, 1.0, -1e8], 0.0),  # in rank order; as float64 it would be 1
        # two replicas in place, which have a loop of their own
        (
            "avg",
            "float32",
            [1.0, 2.0],
            1.5,
        ),
        ("avg", "float32", [1.0, 0.0, 0.0], np.float32(1) / np.float32(3)),
        (
            "avg",
            "complex64",
            [1 + 2j, 0j, 0j],
            np.complex64(complex(np.float32(1) / np.float32(3), np.float32(2) / np.float32(3))),
        ),
        ("sum", "float64", [-0.0, -0.0], -0.0),
        ("prod", "float64", [-0.0, 0.0], -0.0),
        ("min", "float32", [np.nan, 1.0, 2.0], np.nan),
        ("min", "float32", [1.0, 2.0, np.nan], np.nan),
        ("max", "float64", [1.0, np.nan, 2.0], np.nan),
        ("max", "float16", [1.0, np.nan, 2.0], np.nan),
        ("min", "bool", [True, False], False),
        ("max", "bool", [True, False], True),
        ("max", "uint64", [2**63, 1], 2**63),
        ("min", "int64", [-(2**63), 2**63 - 1], -(2**63)),
        ("prod", "complex128", [1j, 1j], -1 + 0j),
    ],
)
def test_known_values(op: Any, dtype: str, given_by_ranks: list[Any], result: Any) -> None:
    arrays = tuple(np.full(70, value, dtype) for value in given_by_ranks)
    ranks = len(arrays)
    exchange = Exchange(np.dtype(dtype), arrays, arrays, (70,) * ranks, (70,) * ranks)
    HostCommunicator(0, 1).all_reduce([exchange], op)()
    for array in arrays:
        np.testing.assert_array_equal(array, np.full(70, result, dtype))
        if array.dtype.kind == "f":
            assert (np.signbit(array) == np.signbit(result)).all() or np.isnan(result)


# ---- moves


@settings(max_examples=examples(100, quick=15))
@given(
    dtype=st.sampled_from(DTYPES),
    counts=st.lists(lengths, min_size=1, max_size=5),
    world=worlds,
    in_place=st.lists(st.booleans(), min_size=5, max_size=5),
    seed=seeds,
)
@example(
    dtype="complex128", counts=[9000, 0, 9000], world=World(2, 0, []), in_place=[False] * 5, seed=0
)
def test_all_gather(
    dtype: str, counts: list[int], world: World, in_place: list[bool], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    world_size, length = len(counts), sum(counts)
    given_by_ranks = [values(rng, dtype, count) for count in counts]
    targets = tuple(world.blank(length, dtype) for _ in counts)
    sources = []
    for rank, (begin, end) in enumerate(ranges(counts)):
        source = targets[rank][begin:end] if in_place[rank] else world.array(given_by_ranks[rank])
        source[:] = given_by_ranks[rank]
        sources.append(source)
    exchange = Exchange(
        np.dtype(dtype), tuple(sources), targets, tuple(counts), (length,) * world_size
    )
    # bits, so also which NaN and which zero
    want = b"".join(source.tobytes() for source in sources)
    world.run(lambda communicator: communicator.all_gather([exchange]))
    for target in targets:
        assert target.tobytes() == want


@settings(max_examples=examples(100, quick=15))
@given(
    dtype=st.sampled_from(DTYPES),
    world_size=world_sizes,
    length=lengths,
    root=st.integers(0, 4),
    world=worlds,
    in_place=st.booleans(),
    seed=seeds,
)
@example(
    dtype="float64",
    world_size=4,
    length=30_000,
    root=1,
    world=World(2, 0, []),
    in_place=True,
    seed=0,
)
def test_broadcast(
    dtype: str, world_size: int, length: int, root: int, world: World, in_place: bool, seed: int
) -> None:
    root %= world_size
    rng = np.random.default_rng(seed)
    sources = tuple(world.array(values(rng, dtype, length)) for _ in range(world_size))
    want = sources[root].tobytes()
    targets = sources if in_place else tuple(world.blank(length, dtype) for _ in range(world_size))
    exchange = Exchange(
        np.dtype(dtype), sources, targets, (length,) * world_size, (length,) * world_size
    )
    world.run(lambda communicator: communicator.broadcast([exchange], root))
    assert [target.tobytes() for target in targets] == [want] * world_size


@st.composite
def copies(draw: st.DrawFn, counts: list[int]) -> list[Copy]:
    """Copies between arrays of these lengths, which read the middle of each and write before and
    after it.
    """
    found = []
    for target, count in enumerate(counts):
        for side in range(2):
            source = draw(st.integers(0, len(counts) - 1))
            length = draw(st.integers(0, min(count, counts[source]) // 4))
            start = counts[source] // 4 + draw(st.integers(0, counts[source] // 4))
            found.append(Copy(source, start, target, (count - length) * side, length))
    return draw(st.permutations(found))


@settings(max_examples=examples(100, quick=15))
@given(
    dtype=st.sampled_from(DTYPES),
    counts=st.lists(lengths, min_size=1, max_size=5),
    world=worlds,
    in_place=st.booleans(),
    seed=seeds,
    data=st.data(),
)
def test_exchange(
    dtype: str, counts: list[int], world: World, in_place: bool, seed: int, data: st.DataObject
) -> None:
    rng, moved = np.random.default_rng(seed), data.draw(copies(counts))
    sources = tuple(world.array(values(rng, dtype, count)) for count in counts)
    targets = sources if in_place else tuple(world.blank(count, dtype) for count in counts)
    given_by_ranks, wants = (
        [source.copy() for source in sources],
        [target.copy() for target in targets],
    )
    for one in moved:
        part = given_by_ranks[one.source][one.source_start : one.source_start + one.count]
        wants[one.target][one.target_start : one.target_start + one.count] = part
    exchange = Exchange(
        np.dtype(dtype), sources, targets, tuple(counts), tuple(counts), tuple(moved)
    )
    world.run(lambda communicator: communicator.exchange([exchange]))
    assert [target.tobytes() for target in targets] == [want.tobytes() for want in wants]


@settings(max_examples=examples(100, quick=15))
@given(
    dtype=st.sampled_from(["int8", "uint32", "int64", "float16", "float64", "complex64"]),
    counts=st.lists(lengths, min_size=1, max_size=5),
    world=worlds,
    seed=seeds,
    data=st.data(),
)
def test_exchange_that_adds(
    dtype: str, counts: list[int], world: World, seed: int, data: st.DataObject
) -> None:
    """An element may get several, which are added in the order of the copies."""
    rng = np.random.default_rng(seed)
    moved = [*data.draw(copies(counts)), *data.draw(copies(counts))]
    sources = tuple(world.array(values(rng, dtype, count)) for count in counts)
    targets = tuple(world.array(values(rng, dtype, count)) for count in counts)
    wants = [target.copy() for target in targets]
    with np.errstate(all="ignore"):
        for one in moved:
            part = sources[one.source][one.source_start : one.source_start + one.count]
            wants[one.target][one.target_start : one.target_start + one.count] += part
    exchange = Exchange(
        np.dtype(dtype), sources, targets, tuple(counts), tuple(counts), tuple(moved)
    )
    world.run(lambda communicator: communicator.exchange([exchange], "sum"))
    for target, want in zip(targets, wants, strict=True):
        np.testing.assert_array_equal(target, want, strict=True)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("offset", [0, 3, 64, 100])
def test_long_copies_pass_by_the_caches(parts: int, offset: int) -> None:
    length = STREAM_BYTES // 3 + 77
    world = World(parts, offset, [])
    sources = tuple(world.array(np.full(length, rank, np.uint8)) for rank in range(3))
    sources[1][:] = np.random.default_rng(0).integers(0, 255, length, np.uint8)
    want = sources[1].copy()
    exchange = Exchange(np.dtype(np.uint8), sources, sources, (length,) * 3, (length,) * 3)
    world.run(lambda communicator: communicator.broadcast([exchange], 1))
    for source in sources:
        np.testing.assert_array_equal(source, want)


# ---- several arrays, and steps


def test_one_step_about_many_arrays_of_several_dtypes() -> None:
    rng = np.random.default_rng(1)
    dtypes = ["float32", "int8", "float32", "float16", "complex64", "int8", "float64", "float32"]
    lengths = [5, 1000, 0, 77, 12, 3, 1, 4096]
    arrays = [
        tuple(values(rng, dtype, n) for _ in range(2))
        for dtype, n in zip(dtypes, lengths, strict=True)
    ]
    wants = [expected("sum", pair) for pair in arrays]
    exchanges = [
        Exchange(pair[0].dtype, pair, pair, (len(pair[0]),) * 2, (len(pair[0]),) * 2)
        for pair in arrays
    ]
    World(2, 0, []).run(lambda communicator: communicator.all_reduce(exchanges, "sum"))
    for pair, want in zip(arrays, wants, strict=True):
        for array in pair:
            assert_same(array, want)


def test_a_step_is_run_again_on_new_values_and_keeps_its_arrays() -> None:
    arrays = (np.ones(100), np.ones(100))
    views = tuple(array[:] for array in arrays)
    step = HostCommunicator(0, 1).all_reduce(
        [Exchange(np.dtype(float), views, views, (100,) * 2, (100,) * 2)], "sum"
    )
    del views
    for power in range(1, 5):
        step()
        assert (arrays[0] == 2.0**power).all()
        assert (arrays[1] == 2.0**power).all()


def test_steps_about_nothing_do_nothing() -> None:
    communicator = HostCommunicator(0, 1)
    empty = (np.empty(0), np.empty(0))
    nothing = Exchange(np.dtype(float), empty, empty, (0, 0), (0, 0))
    for exchanges in ([], [nothing], [nothing, nothing]):
        communicator.all_reduce(exchanges, "sum")()
        communicator.all_gather(exchanges)()
        communicator.broadcast(exchanges, 1)()
        communicator.reduce(exchanges, "max", 0)()
        communicator.reduce_scatter(exchanges, "prod")()
        communicator.exchange(exchanges)()
    communicator.close()
    communicator.close()


def test_unaligned_arrays() -> None:
    memory = [np.zeros(8 * 100 + 1, np.uint8) for _ in range(3)]
    arrays = tuple(bytes_[1:].view(np.float64) for bytes_ in memory)
    for rank, array in enumerate(arrays):
        array[:] = rank + 1
    assert not arrays[0].flags.aligned
    exchange = Exchange(np.dtype(float), arrays, arrays, (100,) * 3, (100,) * 3)
    World(2, 0, []).run(lambda communicator: communicator.all_reduce([exchange], "prod"))
    assert all((array == 6).all() for array in arrays)


def test_averages_of_integers_are_refused_not_rounded() -> None:
    arrays = (np.ones(3, np.int32), np.ones(3, np.int32))
    exchange = Exchange(np.dtype(np.int32), arrays, arrays, (3, 3), (3, 3))
    with pytest.raises(TypeError, match="divide"):
        HostCommunicator(0, 1).all_reduce([exchange], "avg")()


# ---- parts


@given(
    count=st.integers(0, 5000),
    itemsize=st.sampled_from([1, 2, 4, 8, 16, 32]),
    address=st.integers(0, 300),
    parts=st.integers(1, 9),
)
def test_parts_are_the_whole_and_share_no_cache_line(
    count: int, itemsize: int, address: int, parts: int
) -> None:
    address *= itemsize
    shares = [share(count, itemsize, address, part, parts) for part in range(parts)]
    assert [element for begin, end in shares for element in range(begin, end)] == list(range(count))
    lines = [{(address + i * itemsize) // 64 for i in range(begin, end)} for begin, end in shares]
    assert sum(map(len, lines)) == len(set().union(*lines))
    assert all(
        abs((end - begin) - count / parts) * itemsize <= 64 + itemsize for begin, end in shares
    )


@given(
    count=st.integers(0, 500),
    itemsize=st.sampled_from([3, 4, 24]),
    address=st.integers(0, 300),
    parts=st.integers(1, 9),
)
def test_parts_are_the_whole_wherever_the_array_begins(
    count: int, itemsize: int, address: int, parts: int
) -> None:
    shares = [share(count, itemsize, address, part, parts) for part in range(parts)]
    assert [element for begin, end in shares for element in range(begin, end)] == list(range(count))


# ---- compiling


@pytest.mark.parametrize(("op", "dtype"), [*((None, dtype) for dtype in DTYPES), *OPS_AND_DTYPES])
def test_prepare_takes_all_that_steps_take(op: Any, dtype: str) -> None:
    prepare(op, dtype)


def test_nothing_is_compiled_before_it_is_needed() -> None:
    code = (
        "import numpy as np\n"
        "from synknumba._comm import host, prepare\n"
        "sizes = lambda: (host._mover.cache_info().currsize, "
        "host._combiner.cache_info().currsize)\n"
        "assert sizes() == (0, 0)\n"
        "prepare('sum', np.int32)\n"
        "assert sizes() == (1, 1)\n"
        "prepare('sum', np.uint32)  # the same bits\n"
        "assert sizes() == (1, 1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_communicator_is_what_comm_gives() -> None:
    assert isinstance(_comm.host_communicator(0, 1), HostCommunicator)
    assert isinstance(_comm.DRIVERS["host"].open(0, 1, b"", None), HostCommunicator)


def test_every_transport_has_a_driver() -> None:
    assert set(_comm.DRIVERS) == set(get_args(Transport))
    assert _comm.DRIVERS["host"].problem() is None
