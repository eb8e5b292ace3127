"""Every collective by NCCL against NumPy, a process on each GPU, by either bindings; and what NCCL
is not needed for, on one.

All numbers are such that sums and products are exact in every order, so results are compared bit by
bit.
"""

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from synknumba._comm.base import Exchange
from synknumba._device import probe
from synknumba._host.gpu_packages import version_of
from synknumba._host.nccl_bindings import SWITCH
from synknumba._ops.halo import Copy

REAL = (
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
)
COMPLEX = ("complex64", "complex128")
FLOATS = ("float16", "float32", "float64", *COMPLEX)
DTYPES_OF_OP = {
    "sum": (*REAL, *COMPLEX),
    "prod": (*REAL, *COMPLEX),
    "min": ("bool", *REAL),
    "max": ("bool", *REAL),
    "avg": FLOATS,
}
UFUNCS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "avg": np.add}

MOVES = ("broadcast", "all_gather", "exchange")  # which copy bytes, whatever numbers they are
# the last is long enough to be combined by parts, and divisible by nothing
EQUAL = (
    0,
    1,
    1000,
    140_003,
)


def untouched(dtype: str) -> np.generic:
    """What a target holds before."""
    return np.dtype(dtype).type(77)


@dataclass(frozen=True)
class Case:
    """A collective over several arrays.

    Attributes:
        counts: for each array by rank: what each gives (all_gather), gets (reduce_scatter), or the
            length of all.
        in_place: sources and targets are the same memory, or lie where the collective would put
            them.
        staging: bytes of a step for the pieces of others; None as it is.
        captured: run as a CUDA graph.
        mail: whether what is small may go by the package's own kernels.
    """

    collective: str
    dtype: str
    counts: tuple[tuple[int, ...], ...]
    op: str | None = None
    root: int = 0
    in_place: bool = False
    staging: int | None = None
    captured: bool = False
    mail: bool = True

    def source_counts(self, array: int) -> tuple[int, ...]:
        counts = self.counts[array]
        return (sum(counts),) * len(counts) if self.collective == "reduce_scatter" else counts

    def target_counts(self, array: int) -> tuple[int, ...]:
        counts = self.counts[array]
        return (sum(counts),) * len(counts) if self.collective == "all_gather" else counts

    def place(self, array: int, rank: int) -> slice:
        """Where a rank's own part is."""
        start = sum(self.counts[array][:rank])
        return slice(start, start + self.counts[array][rank])


def copies(case: Case, array: int) -> tuple[Copy, ...]:
    """What an exchange copies: from both neighbours in a ring to both ends of a rank, and within
    a rank, out of its middle.
    """
    if case.collective != "exchange":
        return ()
    counts, found = case.counts[array], []
    for rank, count in enumerate(counts):
        below, above = (rank - 1) % len(counts), (rank + 1) % len(counts)
        low, high, own = (min(count, counts[other]) // 8 for other in (below, above, rank))
        found.append(Copy(below, counts[below] // 2, rank, 0, low))
        found.append(Copy(above, counts[above] // 4, rank, count - high, high))
        found.append(Copy(rank, count // 4, rank, count // 8, own))
    return tuple(one for one in found if one.count)


def exchanged(
    case: Case, array: int, sources: list[np.ndarray], kept: list[np.ndarray]
) -> list[np.ndarray]:
    """What each rank has after an exchange, given what it had in its target before."""
    results = [one.copy() for one in kept]
    for one in copies(case, array):
        part = sources[one.source][one.source_start : one.source_start + one.count]
        into = results[one.target][one.target_start : one.target_start + one.count]
        into[:] = part if case.op is None else into + part
    return results


def given(case: Case, array: int, rank: int, run: int = 0) -> np.ndarray:
    """What a rank gives."""
    rng = np.random.default_rng([array, rank, run])
    dtype, count = np.dtype(case.dtype), case.source_counts(array)[rank]
    if case.collective in MOVES and case.op is None:
        return rng.integers(
            0, 2 if dtype.kind == "b" else 256, count * dtype.itemsize, np.uint8
        ).view(dtype)[:count]
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(dtype)
    if dtype.kind in "iu":  # also the largest, which wrap
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, count, dtype, endpoint=True)
    if case.op in ("min", "max"):
        numbers = rng.standard_normal(count).astype(dtype)
        return np.where(
            rng.random(count) < 0.3,
            rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, -np.nan], count),
            numbers,
        ).astype(dtype)
    numbers = (
        rng.choice([-2.0, -1.0, -0.5, 1.0, 2.0], count)
        if case.op == "prod"
        else rng.integers(-60, 60, count)
    )
    if dtype.kind == "c":
        numbers = numbers + 1j * rng.choice([-1.0, 0.0, 1.0, 2.0], count)
    return numbers.astype(dtype)


def expected(case: Case, array: int, sources: list[np.ndarray]) -> list[np.ndarray | None]:
    """What each rank has afterwards; None where nothing is written."""
    ranks = range(len(sources))
    if case.collective == "broadcast":
        return [sources[case.root] for _ in ranks]
    if case.collective == "all_gather":
        return [np.concatenate(sources) for _ in ranks]
    whole = sources[0]
    for source in sources[1:]:
        whole = UFUNCS[case.op](whole, source)
    if case.op == "avg":
        # NumPy divides complex numbers by multiplying with the reciprocal
        reals = whole.view(whole.real.dtype)
        whole = np.true_divide(reals, reals.dtype.type(len(sources))).view(whole.dtype)
    if case.collective == "reduce":
        return [whole if rank == case.root else None for rank in ranks]
    if case.collective == "reduce_scatter":
        return [whole[case.place(array, rank)] for rank in ranks]
    return [whole for _ in ranks]


class Rank:
    """The process of one GPU."""

    def __init__(self, world_size: int, rank: int, package: str, pipe: Connection) -> None:
        import cupy

        os.environ[SWITCH] = package
        from synknumba._comm import nccl

        cupy.cuda.Device(rank).use()
        self.cupy, self.driver = cupy, nccl
        self.world_size, self.rank = world_size, rank
        self.stream = cupy.cuda.Stream(non_blocking=True)
        if world_size == 1:
            nccl.nccl_bindings = None  # so that any use of it fails
            unique_id = b""
        else:
            if rank == 0:
                pipe.send(nccl.make_unique_id())
            unique_id = pipe.recv()
        self.communicator = nccl.NcclCommunicator(world_size, rank, unique_id, self.stream)
        assert world_size == 1 or self.communicator._bindings.name == package

    def step(self, case: Case, exchanges: list[Exchange]) -> Callable[[], object]:
        make = getattr(self.communicator, case.collective)
        op = () if case.op is None else (case.op,)
        root = (case.root,) if case.collective in ("broadcast", "reduce") else ()
        kept, mail = self.driver._STAGING_BYTES, self.communicator.mail
        try:
            if not case.mail:
                self.communicator.mail = None
            if case.staging is not None:
                self.driver._STAGING_BYTES = case.staging
            return make(exchanges, *op, *root)
        finally:
            self.driver._STAGING_BYTES, self.communicator.mail = kept, mail

    def arrays(self, case: Case, array: int) -> tuple[Any, Any]:
        """Source and target on the GPU, not filled."""
        source_count, target_count = (
            case.source_counts(array)[self.rank],
            case.target_counts(array)[self.rank],
        )
        longer = self.cupy.empty(max(source_count, target_count), case.dtype)
        if not case.in_place:
            return longer[:source_count], self.cupy.empty(target_count, case.dtype)
        if case.collective == "all_gather":
            return longer[case.place(array, self.rank)], longer
        if case.collective == "reduce_scatter":
            return longer, longer[case.place(array, self.rank)]
        return longer, longer

    def exchange(self, case: Case, array: int, source: Any, target: Any) -> Exchange:
        sources, targets = (
            tuple(one if rank == self.rank else None for rank in range(self.world_size))
            for one in (source, target)
        )
        counts = case.source_counts(array), case.target_counts(array)
        return Exchange(np.dtype(case.dtype), sources, targets, *counts, copies(case, array))

    def play(self, case: Case) -> list[list[np.ndarray]]:
        """The targets after the first run, and after a second one of the same step with other
        numbers.
        """
        pairs = [self.arrays(case, array) for array in range(len(case.counts))]
        exchanges = [self.exchange(case, array, *pair) for array, pair in enumerate(pairs)]
        step = self.step(case, exchanges)
        first = self.run(case, step, pairs, 0)
        if case.captured:
            with self.stream:
                self.stream.begin_capture()
                step()
                step = self.stream.end_capture().launch
        return [first, self.run(case, step, pairs, 1)]

    def run(
        self, case: Case, step: Callable[[], object], pairs: list[tuple[Any, Any]], run: int
    ) -> list[np.ndarray]:
        with self.stream:
            for array, (source, target) in enumerate(pairs):
                target.fill(untouched(case.dtype))
                source.set(given(case, array, self.rank, run))
            step()
            results = [target.get() for _, target in pairs]
            if not case.in_place:
                for array, (source, _) in enumerate(pairs):
                    assert source.get().tobytes() == given(case, array, self.rank, run).tobytes(), (
                        "a source was written to"
                    )
        return results

    def fail_in_a_group(self) -> int:
        """A group that fails midway must still end; what comes after it is run."""

        def fail() -> None:
            raise ZeroDivisionError

        try:
            self.driver._group(self.communicator._bindings, [fail])
        except ZeroDivisionError:
            counts = ((3,) * self.world_size,)
            return int(self.play(Case("all_reduce", "int32", counts, "sum"))[0][0].size)
        return -1

    def fail_in_nccl(self) -> tuple[str, int]:
        """The error of a root that does not exist, which NCCL notices before it waits for
        anybody; and a sum after it.
        """
        told = ""
        try:
            self.communicator._run(
                [self.communicator._call("broadcast", 0, 0, 1, 1, self.world_size)], ()
            )
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
        counts = ((3,) * self.world_size,)
        return told, int(self.play(Case("all_reduce", "int32", counts, "sum"))[0][0].size)

    def averages(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The sum and the average of the same random numbers."""
        results = []
        for op in ("sum", "avg"):
            case = Case("all_reduce", "float32", ((count,) * self.world_size,), op)
            source, target = self.arrays(case, 0)
            with self.stream:
                source.set(np.random.default_rng(self.rank).random(count, np.float32))
                self.step(case, [self.exchange(case, 0, source, target)])()
                results.append(target.get())
        return results[0], results[1]

    def allocations_of_a_step(self, case: Case) -> int:
        """How often a step asks CuPy for memory when it is run again."""
        step = self.step(case, [self.exchange(case, 0, *self.arrays(case, 0))])
        step()
        asked = 0

        def count(size: int) -> Any:
            nonlocal asked
            asked += 1
            return self.cupy.get_default_memory_pool().malloc(size)

        with self.cupy.cuda.using_allocator(count):
            step()
        self.stream.synchronize()
        return asked

    def rounds(self, sizes: list[tuple[int, int]]) -> list[np.ndarray]:
        """Sums and exchanges with the other ranks in turns, of so many numbers, all in one
        stretch of the stream.
        """
        most = max(max(pair) for pair in sizes)
        with self.stream:
            x = self.cupy.asarray(np.random.default_rng(self.rank).integers(-9, 9, most))
            inbox = self.cupy.zeros(most * self.world_size, np.int64)
        steps, others = {}, list(range(self.world_size))
        for pair in set(sizes):
            summed, sent = pair
            case = Case("all_reduce", "int64", ((summed,) * self.world_size,), "sum")
            reduce = self.step(case, [self.exchange(case, 0, x[:summed], x[:summed])])
            counts = (most,) * self.world_size, (most * self.world_size,) * self.world_size
            sides = ((one if rank == self.rank else None for rank in others) for one in (x, inbox))
            to_all = tuple(Copy(a, 0, b, a * most, sent) for a in others for b in others if sent)
            given, got = map(tuple, sides)
            steps[pair] = (
                reduce,
                self.communicator.exchange(
                    [Exchange(np.dtype("int64"), given, got, *counts, to_all)]
                ),
            )
        if self.communicator.mail is None:
            return []
        for pair in sizes:
            for step in steps[pair]:
                step()
            with self.stream:
                x += inbox.reshape(self.world_size, most).sum(0) // 3 + self.rank
        with self.stream:
            return [x.get(), inbox.get()]

    def times(self, op: str, nbytes: int, mail: bool) -> float:
        """Microseconds of a captured collective."""
        counts = ((nbytes // 4,) * self.world_size,)
        case = Case("all_reduce" if op else "exchange", "float32", counts, op or None, mail=mail)
        pair = self.arrays(case, 0)
        step = self.step(case, [self.exchange(case, 0, *pair)])
        step()
        with self.stream:
            self.stream.begin_capture()
            for _ in range(100):
                step()
            graph = self.stream.end_capture()
            graph.launch()
            events = [self.cupy.cuda.Event() for _ in range(2)]
            self.stream.synchronize()
            events[0].record()
            for _ in range(10):
                graph.launch()
            events[1].record()
            self.stream.synchronize()
        return self.cupy.cuda.get_elapsed_time(*events)

    def close(self) -> bool:
        self.communicator.close()
        self.communicator.close()
        return True


def live(world_size: int, rank: int, package: str, pipe: Connection) -> None:
    """Answers requests until there are no more."""
    try:
        served = Rank(world_size, rank, package, pipe)
        pipe.send("ready")
        while (request := pipe.recv()) is not None:
            name, *args = request
            pipe.send(getattr(served, name)(*args))
    except BaseException:
        pipe.send(RuntimeError(f"rank {rank}:\n{traceback.format_exc()}"))


class Ranks:
    """A process for each rank, fresh ones: this process keeps clear of CUDA. They call NCCL by
    one package.
    """

    def __init__(self, world_size: int, package: str) -> None:
        self.world_size = world_size
        context = multiprocessing.get_context("spawn")
        ends = [context.Pipe() for _ in range(world_size)]
        self.pipes = [mine for mine, _ in ends]
        self.processes = [
            context.Process(target=live, args=(world_size, rank, package, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(ends)
        ]
        for process in self.processes:
            process.start()
        if world_size > 1:
            unique_id = self.answer(0)
            for pipe in self.pipes:
                pipe.send(unique_id)
        assert [self.answer(rank) for rank in range(world_size)] == ["ready"] * world_size

    def answer(self, rank: int) -> Any:
        if not self.pipes[rank].poll(60):
            self.end()
            pytest.fail(f"rank {rank} does not answer")
        answer = self.pipes[rank].recv()
        if isinstance(answer, BaseException):
            self.end()
            raise answer
        return answer

    def ask(self, name: str, *args: Any) -> list[Any]:
        """What all ranks answer."""
        for pipe in self.pipes:
            pipe.send((name, *args))
        return [self.answer(rank) for rank in range(self.world_size)]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def check(self, case: Case) -> None:
        """Plays a case, and compares."""
        results = self.ask("play", case)
        for run in range(2):
            for array in range(len(case.counts)):
                sources = [given(case, array, rank, run) for rank in range(self.world_size)]
                values: list[np.ndarray | None]
                if case.collective == "exchange":
                    kept = [
                        self.kept(case, array, rank, sources) for rank in range(self.world_size)
                    ]
                    values = [*exchanged(case, array, sources, kept)]
                else:
                    values = expected(case, array, sources)
                for rank, value in enumerate(values):
                    wanted = self.kept(case, array, rank, sources) if value is None else value
                    got = results[rank][run][array]
                    assert got.dtype == wanted.dtype
                    if (
                        case.collective in MOVES and case.op is None
                    ):  # bytes, whatever numbers they are
                        got, wanted = got.view(np.uint8), wanted.view(np.uint8)
                    assert_array_equal(
                        got, wanted, f"{case}, array {array}, run {run}, rank {rank}"
                    )

    def kept(self, case: Case, array: int, rank: int, sources: list[np.ndarray]) -> np.ndarray:
        """What a target had before that is not written."""
        if case.in_place:
            return sources[rank]
        return np.full(case.target_counts(array)[rank], untouched(case.dtype))


def _kept(world_size: int, package: str) -> Iterator[Ranks]:
    ranks = Ranks(world_size, package)
    yield ranks
    ranks.end()


@pytest.fixture(scope="module")
def _cupy() -> Iterator[Ranks]:
    yield from _kept(probe().count, "cupy")


@pytest.fixture(scope="module")
def _nccl4py() -> Iterator[Ranks]:
    yield from _kept(probe().count, "nccl4py")


@pytest.fixture(scope="module")
def _one() -> Iterator[Ranks]:
    yield from _kept(1, "cupy")


_by_nccl4py = (
    pytest.mark.multi_gpu,
    pytest.mark.skipif(version_of("nccl4py") is None, reason="nccl4py is not installed"),
)
PACKAGES = (
    pytest.param("_cupy", marks=pytest.mark.multi_gpu, id="cupy"),
    pytest.param("_nccl4py", marks=_by_nccl4py, id="nccl4py"),
)


@pytest.fixture(params=[*PACKAGES, pytest.param("_one", marks=pytest.mark.gpu, id="one")])
def ranks(request: pytest.FixtureRequest) -> Ranks:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=PACKAGES)
def many(request: pytest.FixtureRequest) -> Ranks:
    return request.getfixturevalue(request.param)


def equal_counts(world_size: int) -> tuple[tuple[int, ...], ...]:
    return tuple((count,) * world_size for count in EQUAL)


def unequal_counts(world_size: int) -> tuple[tuple[int, ...], ...]:
    """Also ranks with nothing: the first, the last, all but one."""
    rising = tuple(range(world_size))
    return (
        rising,
        tuple(40_001 * rank + 3 for rank in reversed(rising)),
        tuple(1000 if rank == world_size - 1 else 0 for rank in rising),
        (0,) * world_size,
        tuple(0 if rank == world_size - 1 else 70_000 for rank in rising),
    )


OPS = [(op, dtype) for op, dtypes in DTYPES_OF_OP.items() for dtype in dtypes]
every_op = pytest.mark.parametrize(("op", "dtype"), OPS)
every_dtype = pytest.mark.parametrize("dtype", ["bool", *REAL, *COMPLEX])
in_place_or_not = pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in-place"])


@in_place_or_not
@every_dtype
def test_broadcast(ranks: Ranks, dtype: str, in_place: bool) -> None:
    for root in {0, ranks.world_size - 1}:
        ranks.check(
            Case("broadcast", dtype, equal_counts(ranks.world_size), root=root, in_place=in_place)
        )


@in_place_or_not
@every_dtype
def test_all_gather(ranks: Ranks, dtype: str, in_place: bool) -> None:
    for counts in (equal_counts(ranks.world_size), unequal_counts(ranks.world_size)):
        ranks.check(Case("all_gather", dtype, counts, in_place=in_place))


@pytest.mark.multi_gpu
def test_mail_in_turns(many: Ranks) -> None:
    """Letters of all lengths follow each other without a wait of the host; each is read before
    it is overwritten.
    """
    rng = np.random.default_rng(5)
    kinds = [
        (int(a), int(b))
        for a, b in zip(rng.integers(0, 8192, 20), rng.integers(0, 32_768, 20), strict=True)
    ]
    sizes = [kinds[i] for i in rng.integers(0, len(kinds), 400)]
    found = many.ask("rounds", sizes)
    assert all(found), "the GPUs do not write to each other's memory"
    world_size, most = many.world_size, max(max(pair) for pair in sizes)
    x = np.array([np.random.default_rng(rank).integers(-9, 9, most) for rank in range(world_size)])
    inbox = np.zeros((world_size, most), np.int64)
    for summed, sent in sizes:
        x[:, :summed] = x[:, :summed].sum(0)
        inbox[:, :sent] = x[:, :sent]
        x += inbox.sum(0) // 3 + np.arange(world_size)[:, None]
    for rank in range(world_size):
        assert_array_equal(found[rank][0], x[rank])
        assert_array_equal(found[rank][1].reshape(world_size, most), inbox)


@pytest.mark.multi_gpu
@pytest.mark.parametrize("collective", ["all_reduce", "exchange"])
def test_without_mail(many: Ranks, collective: str) -> None:
    """NCCL does what mail does, where GPUs cannot write to each other's memory."""
    for dtype in ("int8", "float32", "complex128"):
        for op in ("sum",) if collective == "all_reduce" else (None, "sum"):
            many.check(Case(collective, dtype, equal_counts(many.world_size), op, mail=False))


@in_place_or_not
@every_dtype
def test_exchange(ranks: Ranks, dtype: str, in_place: bool) -> None:
    for counts in (equal_counts(ranks.world_size), unequal_counts(ranks.world_size)):
        ranks.check(Case("exchange", dtype, counts, in_place=in_place))
        if dtype != "bool":
            ranks.check(Case("exchange", dtype, counts, "sum"))


@in_place_or_not
@every_op
def test_reduce(ranks: Ranks, op: str, dtype: str, in_place: bool) -> None:
    for root in {0, ranks.world_size - 1}:
        ranks.check(Case("reduce", dtype, equal_counts(ranks.world_size), op, root, in_place))


@in_place_or_not
@every_op
def test_all_reduce(ranks: Ranks, op: str, dtype: str, in_place: bool) -> None:
    ranks.check(Case("all_reduce", dtype, equal_counts(ranks.world_size), op, in_place=in_place))


@in_place_or_not
@every_op
def test_reduce_scatter(ranks: Ranks, op: str, dtype: str, in_place: bool) -> None:
    for counts in (equal_counts(ranks.world_size), unequal_counts(ranks.world_size)):
        ranks.check(Case("reduce_scatter", dtype, counts, op, in_place=in_place))


@in_place_or_not
@pytest.mark.parametrize("collective", ["reduce", "all_reduce", "reduce_scatter"])
@pytest.mark.parametrize("staging", [1, 100_000])
@pytest.mark.multi_gpu
def test_piece_by_piece(many: Ranks, collective: str, staging: int, in_place: bool) -> None:
    """What NCCL does not reduce, in many rounds."""
    for op, dtype in (("max", "float32"), ("sum", "int16"), ("prod", "complex64")):
        lengths = [0, 300, 5_001] if collective == "reduce_scatter" else [0, 3_000, 50_001]
        counts = tuple((length,) * many.world_size for length in lengths)
        if collective == "reduce_scatter":
            counts += (tuple(1_111 * rank for rank in range(many.world_size)),)
        many.check(Case(collective, dtype, counts, op, many.world_size - 1, in_place, staging))


@pytest.mark.multi_gpu
@pytest.mark.parametrize("in_place", [False, True])
def test_captured_into_a_graph(many: Ranks, in_place: bool) -> None:
    for collective in ("reduce", "all_reduce", "reduce_scatter"):
        for op, dtype in (
            ("sum", "float32"),
            ("avg", "complex64"),
            ("min", "float64"),
            ("prod", "int16"),
        ):
            case = Case(
                collective,
                dtype,
                equal_counts(many.world_size),
                op,
                in_place=in_place,
                captured=True,
            )
            many.check(case)
            if collective == "reduce_scatter":
                many.check(replace(case, counts=unequal_counts(many.world_size)))
    for collective in MOVES:
        many.check(
            Case(
                collective,
                "float32",
                equal_counts(many.world_size),
                in_place=in_place,
                captured=True,
            )
        )
    for collective in ("all_gather", "exchange"):
        many.check(
            Case(
                collective,
                "int16",
                unequal_counts(many.world_size),
                in_place=in_place,
                captured=True,
            )
        )


@in_place_or_not
@pytest.mark.parametrize("collective", ["reduce", "all_reduce", "reduce_scatter"])
@pytest.mark.parametrize(
    ("op", "dtype"),
    [("sum", "float32"), ("avg", "float16"), ("min", "float64"), ("prod", "complex64")],
)
@pytest.mark.multi_gpu
def test_a_step_allocates_nothing(
    many: Ranks, collective: str, op: str, dtype: str, in_place: bool
) -> None:
    for count in (1000, 140_003):
        case = Case(
            collective, dtype, ((count,) * many.world_size,), op, many.world_size - 1, in_place
        )
        assert many.ask("allocations_of_a_step", case) == [0] * many.world_size


@pytest.mark.multi_gpu
def test_an_average_is_the_sum_divided(many: Ranks) -> None:
    for sums, means in many.ask("averages", 140_003):
        assert_array_equal(means, sums / np.float32(many.world_size))


@pytest.mark.multi_gpu
def test_a_group_that_fails_ends(many: Ranks) -> None:
    assert many.ask("fail_in_a_group") == [3] * many.world_size


@pytest.mark.multi_gpu
def test_an_error_of_nccl_is_ours(many: Ranks) -> None:
    told = "NcclError: invalid argument (run with NCCL_DEBUG=WARN for details); NCCL's error 4"
    assert many.ask("fail_in_nccl") == [(told, 3)] * many.world_size


@pytest.mark.parametrize(
    ("world_size", "package"),
    [
        pytest.param(1, "cupy", marks=pytest.mark.gpu),
        pytest.param(2, "cupy", marks=pytest.mark.multi_gpu),
        pytest.param(2, "nccl4py", marks=_by_nccl4py),
    ],
)
def test_closing_waits_for_nobody(world_size: int, package: str) -> None:
    ranks = Ranks(world_size, package)
    try:
        ranks.check(
            Case("all_reduce", "float32", equal_counts(world_size), "min", captured=world_size > 1)
        )
        ranks.processes[-1].kill() if world_size > 1 else None  # the others close without it
        ranks.pipes[0].send(("close",))
        assert ranks.answer(0)
        ranks.pipes[0].send(None)
        ranks.processes[0].join(30)  # ends in the ordinary way, everything collected
        assert ranks.processes[0].exitcode == 0
    finally:
        ranks.end()
