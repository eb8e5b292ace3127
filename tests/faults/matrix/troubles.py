"""What a script does wrong, or what its machine lacks: each in an open world, with the error that it is told.

A trouble is a function of the calls and of the ranks that have it; `on` is such a set as a number that a function on a rank
can look at.
"""

import os
import resource
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import cuda

import synknumba as synk
from synknumba import _rank_state
from tests.faults.matrix.cases import FEW_PLACES, PLACES, RankSet
from tests.faults.matrix.phases import BOARD, LARGE, Calls, total

FAR = 10**13  # elements behind an array: no page is there
MIB = 1 << 20
ALL_RANKS = ((1, ()), (3, ()))


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that goes wrong.

    Attributes:
        act: makes it go wrong.
        error: the name of the class of what the script is told.
        words: in the message, as regular expressions; {ranks} stands for the ranks that have it.
        places: world sizes, and the ranks that have it, empty where it is the coordinator or all.
        stays_open: whether the world is as good as before.
        small_shm: whether `/dev/shm` has few bytes, in a mount namespace of the server's own.
        timeout: of the world.
        within: seconds that may pass until the script is told.
    """

    act: Callable[[Calls, RankSet], object]
    error: str
    words: tuple[str, ...] = ()
    places: tuple[tuple[int, RankSet], ...] = ALL_RANKS
    stays_open: bool = True
    small_shm: bool = False
    timeout: float | None = None
    within: float = 1.0


TROUBLES: dict[str, Trouble] = {}


def trouble(name: str, error: str, *words: str, **options: object) -> Callable[[Callable[[Calls, RankSet], object]], object]:
    """Adds a function to the table."""

    def add(act: Callable[[Calls, RankSet], object]) -> object:
        TROUBLES[name] = Trouble(act, error, words, **options)
        return act

    return add


def _mask(ranks: RankSet) -> int:
    return sum(1 << rank for rank in ranks)


def here(on: int, rank: int) -> bool:
    """Whether this rank is one of those."""
    return bool(on >> rank & 1)


# ---- arguments: refused in the coordinator, nothing is sent --------------------------------------------------------------


@trouble("an unknown argument", "ArgumentError", "no parameter 'y'")
def _(calls, ranks):
    total(calls.numbers, y=1)


@trouble("an argument that cannot be sent", "ArgumentError", "lock", "pickle")
def _(calls, ranks):
    total(threading.Lock())


@trouble("a batch out of range", "BatchError", "5000", "1001")
def _(calls, ranks):
    total(calls.numbers, batch=5000)


@synk.function(outputs="sum")
def dot(x, y):
    return x @ y


@trouble("lengths that differ", "PartitionError", "20000 rows", "1001")
def _(calls, ranks):
    dot(calls.numbers, calls.large)


@trouble("a frozen array is written", "DataError", "frozen")
def _(calls, ranks):
    calls.large.freeze()
    try:
        calls.large.set_value(LARGE)
    finally:
        calls.large.thaw()


@synk.parallel(outputs={"found": synk.output("sum", shape=())}, grid=lambda _: 0)
def nowhere(x, found):
    found[0] = x[0]


@trouble("a grid of no blocks", "LaunchError", r"grid\(1001\)")
def _(calls, ranks):
    nowhere(calls.numbers)


# ---- kernels -------------------------------------------------------------------------------------------------------------


@synk.parallel(outputs={"found": synk.output("sum", shape=())})
def untypable(x, found):
    i = cuda.grid(1)
    if i < x.shape[0]:
        found[0] = x[i] + "text"


@trouble("a kernel that does not compile", "RankError", "TypingError", "untypable", within=20.0)
def _(calls, ranks):
    untypable(calls.numbers)


@synk.parallel(outputs={"found": synk.output("sum", shape=())})
def unsupported(x, found):
    with open("file") as file:
        found[0] = len(file.read())


@trouble("a kernel that is refused", "KernelError", "with is not supported", "troubles.py", within=20.0)
def _(calls, ranks):
    unsupported(calls.numbers)


@synk.parallel(outputs={"found": synk.output("sum", shape=())})
def raising(x, on, rank, found):
    if on >> rank & 1:
        raise ValueError("in a kernel")


@trouble("an exception in a kernel", "RankError", "ValueError: in a kernel", "on rank {ranks}:", places=PLACES, within=20.0)
def _(calls, ranks):
    raising(calls.numbers, _mask(ranks), synk.RANK)


@synk.parallel(inout=("y",))
def wild(y, on, rank, far):
    i = cuda.grid(1)
    if on >> rank & 1 and i < y.shape[0]:
        y[i + far] = 1.0


@trouble("a kernel stores outside", "RankDied", "SIGSEGV", "wild", places=PLACES, stays_open=False)
def _(calls, ranks):
    BOARD.strike()
    wild(calls.large, _mask(ranks), synk.RANK, FAR)


# ---- results and reductions ----------------------------------------------------------------------------------------------


@synk.function(outputs="sum")
def part_of(x):
    return x


@trouble("results of different shapes", "ReductionError", "different shapes", places=((3, ()),))
def _(calls, ranks):
    part_of(calls.large)


@synk.function(outputs="sum")
def odd_structure(on, rank):
    return (1.0, 2.0) if here(on, rank) else {"a": 1.0}


@trouble("results of different structure", "ReductionError", "structure", places=FEW_PLACES)
def _(calls, ranks):
    odd_structure(_mask(ranks), synk.RANK)


@synk.function(outputs="sum")
def an_object(x):
    return object()


@trouble("a result that is an object", "ReductionError", "object")
def _(calls, ranks):
    an_object(calls.numbers)


class Key:
    """A key of a result's dict, which is told with the structure: it pickles, or is read, with trouble."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __hash__(self) -> int:
        return hash(self.how)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.how == self.how

    def __reduce__(self) -> tuple[object, ...]:
        if self.how == "does not pickle":
            raise ValueError("this key stays here")
        if self.how == "kills when pickled":
            os._exit(3)
        return _read_key, (self.how,)


def _read_key(how: str) -> Key:
    if how == "does not unpickle" and _rank_state.current_rank() is None:
        raise ValueError("this key is not read")
    return Key(how)


@synk.function(outputs="sum")
def keyed(on, rank, how):
    return {Key(how) if here(on, rank) else "plain": 1.0}


@trouble("a result that does not pickle", "RankError", "this key stays here", "{ranks}", places=PLACES)
def _(calls, ranks):
    keyed(_mask(ranks), synk.RANK, "does not pickle")


@trouble("a result that does not unpickle", "RankError", "this key is not read", "{ranks}", places=PLACES)
def _(calls, ranks):
    keyed(_mask(ranks), synk.RANK, "does not unpickle")


@trouble("a result that ends its rank when pickled", "RankDied", "code 3", "keyed", places=PLACES, stays_open=False)
def _(calls, ranks):
    BOARD.strike()
    keyed(_mask(ranks), synk.RANK, "kills when pickled")


# ---- exceptions ----------------------------------------------------------------------------------------------------------


class OddError(Exception):
    """An exception that pickles, is read, or prints with trouble."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how

    def __str__(self) -> str:
        if self.how == "does not print":
            raise ZeroDivisionError
        return self.how

    def __reduce__(self) -> tuple[object, ...]:
        if self.how == "does not pickle":
            raise ValueError("this error stays here")
        if self.how == "kills when pickled":
            os._exit(3)
        return _read_error, (self.how,)


def _read_error(how: str) -> "OddError":
    if how == "does not unpickle" and _rank_state.current_rank() is None:
        raise ValueError("this error is not read")
    return OddError(how)


@synk.function(outputs="sum")
def odd_error(on, rank, how):
    if here(on, rank):
        raise OddError(how)
    return 1.0


def _add_odd_errors() -> None:
    for how in ("does not pickle", "does not unpickle", "does not print"):

        @trouble(f"an exception that {how}", "RankError", "OddError", "{ranks}", places=PLACES)
        def _(calls, ranks, how=how):
            odd_error(_mask(ranks), synk.RANK, how)

    @trouble("an exception that ends its rank when pickled", "RankDied", "code 3", "odd_error", places=PLACES, stays_open=False)
    def _(calls, ranks):
        BOARD.strike()
        odd_error(_mask(ranks), synk.RANK, "kills when pickled")


_add_odd_errors()


# ---- unpickling on a rank ------------------------------------------------------------------------------------------------


class Parcel:
    """An argument that does something where it is unpickled."""

    def __init__(self, on: int, how: str) -> None:
        self.on, self.how = on, how

    def __reduce__(self) -> tuple[object, ...]:
        return _open_parcel, (self.on, self.how)


def _open_parcel(on: int, how: str) -> Parcel:
    rank = _rank_state.current_rank()
    if rank is not None and here(on, rank):
        if how == "raises":
            raise ValueError("this parcel is not opened")
        os._exit(3)
    return Parcel(on, how)


@synk.function(outputs="sum")
def unpack(parcel):
    return 1.0


@trouble("an argument that does not unpickle", "RankError", "this parcel is not opened", "on rank {ranks}:", places=PLACES)
def _(calls, ranks):
    unpack(Parcel(_mask(ranks), "raises"))


@trouble("an argument that ends its rank when unpickled", "RankDied", "code 3", places=PLACES, stays_open=False)
def _(calls, ranks):
    BOARD.strike()
    unpack(Parcel(_mask(ranks), "ends"))


@trouble("a function that does not unpickle", "RankError", "this parcel is not opened", "on rank {ranks}:", places=PLACES)
def _(calls, ranks):
    parcel = Parcel(_mask(ranks), "raises")
    synk.function(outputs="sum")(lambda x: x.sum() if parcel else 0.0)(calls.numbers)


# ---- calls within calls --------------------------------------------------------------------------------------------------


@synk.function(outputs="sum")
def call_within(x):
    return total(x)


@trouble("a call within a call", "WorldError", "only the coordinator makes calls")
def _(calls, ranks):
    call_within(calls.numbers)


@synk.function(outputs="sum")
def fork_within(x):
    synk.fork(2, device="cpu")


@trouble("a fork within a call", "WorldError", "only the coordinator forks")
def _(calls, ranks):
    fork_within(calls.numbers)


# ---- time ----------------------------------------------------------------------------------------------------------------


@synk.function(outputs="sum")
def endless(on, rank):
    while here(on, rank):
        pass
    return 1.0


@trouble(
    "a function without end",
    "CallTimeout",
    "timeout=0.4",
    "rank {ranks}",
    places=PLACES,
    stays_open=False,
    timeout=0.4,
    within=1.4,
)
def _(calls, ranks):
    BOARD.strike()
    endless(_mask(ranks), synk.RANK)


@synk.parallel(outputs={"found": synk.output("sum", shape=(), dtype="int64")})
def endless_kernel(x, on, rank, rounds, found):
    state = 1
    if on >> rank & 1:
        for _ in range(rounds):
            state = (state * 1103515245 + 12345) & 0x7FFFFFFF
    cuda.atomic.add(found, 0, state)


@trouble(
    "a kernel without end",
    "CallTimeout",
    "timeout=1.5",
    "rank {ranks}",
    places=FEW_PLACES,
    stays_open=False,
    timeout=1.5,
    within=2.5,
)
def _(calls, ranks):
    endless_kernel(calls.numbers, 0, synk.RANK, 1)  # compiled
    BOARD.strike()
    endless_kernel(calls.numbers, _mask(ranks), synk.RANK, 10**15)


# ---- memory and descriptors ----------------------------------------------------------------------------------------------


@synk.function(outputs="sum")
def greedy(on, rank):
    if here(on, rank):
        limits = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + 64 * MIB, limits[1]))
        try:
            return np.ones(1 << 27).sum()
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
    return 1.0


@trouble("a rank has no memory", "RankError", "MemoryError", "on rank {ranks}:", places=PLACES)
def _(calls, ranks):
    greedy(_mask(ranks), synk.RANK)


def _limited(what: int, value: int, hard: int | None = None) -> tuple[int, int]:
    limits = resource.getrlimit(what)
    resource.setrlimit(what, (value, limits[1] if hard is None else hard))
    return limits


@synk.function(outputs="gather")
def large_file_limit(x, on, rank):
    """A result that needs a segment of its own, where no file may be so large."""
    if here(on, rank):
        _limited(resource.RLIMIT_FSIZE, 4096)
    return np.ones(20_000)


@synk.function(outputs=None)
def lift_limits(x):
    for what in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
        resource.setrlimit(what, (resource.getrlimit(what)[1],) * 2)


@trouble("a rank may not make shared memory", "SharedMemoryError", "could not be had", places=PLACES)
def _(calls, ranks):
    try:
        large_file_limit(calls.numbers, _mask(ranks), synk.RANK)
    finally:
        lift_limits(calls.numbers)


@synk.function(outputs="gather")
def few_descriptors(x, on, rank):
    """A result that needs a segment of its own, where another file may be opened only after the limit is raised."""
    if here(on, rank):
        _limited(resource.RLIMIT_NOFILE, len(os.listdir("/proc/self/fd")) - 1)
    return np.ones(20_000)


@trouble("a rank has few descriptors", "", places=PLACES)  # it takes what it may have
def _(calls, ranks):
    assert few_descriptors(calls.numbers, _mask(ranks), synk.RANK).sum() >= 20_000


@trouble("the script may not make shared memory", "SharedMemoryError", "could not be had")
def _(calls, ranks):
    limits = _limited(resource.RLIMIT_FSIZE, 4096)
    try:
        synk.data(LARGE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@trouble("the script may not enlarge shared memory", "SharedMemoryError", "could not be had")
def _(calls, ranks):
    limits = _limited(resource.RLIMIT_FSIZE, calls.large.nbytes)
    try:
        calls.large.set_length(10 * len(LARGE))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert np.array_equal(calls.large, LARGE)


@trouble("the script has no descriptors", "SharedMemoryError", "file descriptor", "ulimit")
def _(calls, ranks):
    most = len(os.listdir("/proc/self/fd")) + 60
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        pass
    try:
        synk.data(LARGE)
    finally:
        for fd in taken:
            os.close(fd)


@trouble("the script has no address space", "SharedMemoryError", "could not be had")
def _(calls, ranks):
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    limits = _limited(resource.RLIMIT_AS, now + 16 * MIB)
    try:
        synk.data(shape=(1 << 24,), dtype="float64")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


# ---- a full /dev/shm, of a few MiB --------------------------------------------------------


def _filled(bytes_left: int) -> synk.Data:
    status = os.statvfs("/dev/shm")
    return synk.data(shape=(status.f_bavail * status.f_frsize - bytes_left,), dtype="u1")


@trouble("/dev/shm is full: data", "SharedMemoryError", "/dev/shm", "remount", small_shm=True)
def _(calls, ranks):
    synk.data(shape=(64 * MIB,), dtype="u1")


@trouble("/dev/shm is full: growth", "SharedMemoryError", "/dev/shm", "remount", small_shm=True)
def _(calls, ranks):
    try:
        calls.large.set_length(10_000_000)
    finally:
        assert np.array_equal(calls.large, LARGE)


@trouble("/dev/shm is full: an argument", "SharedMemoryError", "/dev/shm", "remount", small_shm=True)
def _(calls, ranks):
    total(np.ones(8 * MIB))


@synk.function(outputs="gather")
def large_result(x):
    return np.ones(20_000)


@trouble("/dev/shm is full: a rank's result", "SharedMemoryError", "/dev/shm", "remount", small_shm=True)
def _(calls, ranks):
    filling = _filled(64 * 1024)
    try:
        large_result(calls.numbers)
    finally:
        filling.free_memory()


@trouble("/dev/shm is full: a variable", "SharedMemoryError", "/dev/shm", "remount", small_shm=True)
def _(calls, ranks):
    synk.all_reduce(synk.variable(np.ones(8 * MIB)))


@trouble("/dev/shm is full: a kernel's output", "SharedMemoryError", "/dev/shm", "remount", small_shm=True)
def _(calls, ranks):
    filling = _filled(64 * 1024)
    try:
        calls.combination()
    finally:
        filling.free_memory()


@trouble("/dev/shm is full: another world", "SharedMemoryError", "/dev/shm", "remount", small_shm=True, stays_open=False)
def _(calls, ranks):
    synk.close()
    filling = _filled(8 * 1024)
    try:
        synk.fork(calls.world_size, device="cpu")
    finally:
        filling.free_memory()


@trouble("no process can be made", "BlockingIOError", "temporarily", places=((1, ()), (2, ()), (3, ())), stays_open=False)
def _(calls, ranks):
    synk.close()
    real_fork, left = os.fork, [calls.world_size - 1]

    def fork() -> int:
        if not left[0]:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        left[0] -= 1
        return real_fork()

    os.fork = fork
    try:
        synk.fork(calls.world_size, device="cpu")
    finally:
        os.fork = real_fork
