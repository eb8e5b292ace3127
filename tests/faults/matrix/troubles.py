"""What a script does wrong, or what its machine lacks: each in an open world, with the error that
it gets.

Data alone, for the test as for the processes; `acts`, `meddling` and `shortages` make it happen, by
these names.
"""

from dataclasses import dataclass

from tests.faults.matrix.cases import FEW_PLACES, PLACES, RankSet

ALL_RANKS = ((1, ()), (3, ()))


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that goes wrong.

    Attributes:
        error: the name of the class of the script's error.
        words: in the message, as regular expressions; {ranks} stands for the ranks that have it.
        places: world sizes, and the ranks that have it, empty where it is the coordinator or all.
        stays_open: whether the world is as good as before.
        small_shm: whether `/dev/shm` has few bytes, in a mount namespace of the server's own.
        timeout: of the world.
        within: seconds that may pass until the script has its error.
    """

    error: str
    words: tuple[str, ...] = ()
    places: tuple[tuple[int, RankSet], ...] = ALL_RANKS
    stays_open: bool = True
    small_shm: bool = False
    timeout: float | None = None
    within: float = 1.0


TROUBLES = {
    # arguments: refused in the coordinator, nothing is sent
    "an unknown argument": Trouble("ArgumentError", ("no parameter 'y'",)),
    "an argument that cannot be sent": Trouble("ArgumentError", ("lock", "pickle")),
    "a batch out of range": Trouble("BatchError", ("5000", "1001")),
    "lengths that differ": Trouble("PartitionError", ("20000 rows", "1001")),
    "a frozen array is written": Trouble("DataError", ("frozen",)),
    "a grid of no blocks": Trouble("LaunchError", (r"grid\(\d+\)",)),
    # kernels
    "a kernel that does not compile": Trouble(
        "KernelError", ("Numba has no operator", "untypable"), within=20.0
    ),
    "a kernel that is refused": Trouble(
        "KernelError", ("with is not supported", "acts.py"), within=20.0
    ),
    "an exception in a kernel": Trouble(
        "RankError", ("ValueError: in a kernel", "on rank {ranks}:"), places=PLACES, within=20.0
    ),
    "a kernel stores outside": Trouble(
        "RankDied", ("SIGSEGV", "wild"), places=PLACES, stays_open=False
    ),
    # results and reductions
    "results of different shapes": Trouble(
        "ReductionError", ("different shapes",), places=((3, ()),)
    ),
    "results of different structure": Trouble("ReductionError", ("structure",), places=FEW_PLACES),
    "a result that is an object": Trouble("ReductionError", ("object",)),
    "a result that does not pickle": Trouble(
        "RankError", ("this key stays here", "{ranks}"), places=PLACES
    ),
    "a result that does not unpickle": Trouble(
        "RankError", ("this key is not read", "{ranks}"), places=PLACES
    ),
    "a result that ends its rank when pickled": Trouble(
        "RankDied", ("code 3", "keyed"), places=PLACES, stays_open=False
    ),
    # exceptions
    "an exception that does not pickle": Trouble(
        "RankError", ("OddError", "{ranks}"), places=PLACES
    ),
    "an exception that does not unpickle": Trouble(
        "RankError", ("OddError", "{ranks}"), places=PLACES
    ),
    "an exception that does not print": Trouble(
        "RankError", ("OddError", "{ranks}"), places=PLACES
    ),
    "an exception that ends its rank when pickled": Trouble(
        "RankDied", ("code 3", "odd_error"), places=PLACES, stays_open=False
    ),
    # unpickling on a rank
    "an argument that does not unpickle": Trouble(
        "RankError", ("this parcel is not opened", "on rank {ranks}:"), places=PLACES
    ),
    "an argument that ends its rank when unpickled": Trouble(
        "RankDied", ("code 3",), places=PLACES, stays_open=False
    ),
    "a function that does not unpickle": Trouble(
        "RankError", ("this parcel is not opened", "on rank {ranks}:"), places=PLACES
    ),
    # calls within calls
    "a call within a call": Trouble("WorldError", ("only the coordinator makes calls",)),
    "a fork within a call": Trouble("WorldError", ("only the coordinator forks",)),
    # other threads, handlers, and the process that carries what ranks print
    "another thread makes a call": Trouble(
        "WorldError", ("another call is in progress, in another thread",)
    ),
    "another thread closes the world": Trouble(
        "WorldError", ("was closed during endless",), stays_open=False, within=3.0
    ),
    "a handler closes the world": Trouble(
        "WorldError", ("was closed during slow_total",), stays_open=False
    ),
    "the scribe is killed": Trouble("", within=2.0),  # another takes over
    # time
    "a function without end": Trouble(
        "CallTimeout",
        ("timeout=0.4", "rank {ranks}"),
        places=PLACES,
        stays_open=False,
        timeout=0.4,
        within=1.4,
    ),
    "a kernel without end": Trouble(
        "CallTimeout",
        ("timeout=0.4", "rank {ranks}"),
        places=FEW_PLACES,
        stays_open=False,
        timeout=0.4,
        within=1.4,
    ),
    # memory, descriptors, processes
    "a rank has no memory": Trouble(
        "RankError", ("MemoryError", "on rank {ranks}:"), places=PLACES
    ),
    "a rank may not make shared memory": Trouble(
        "SharedMemoryError", ("cannot allocate",), places=PLACES
    ),
    "a rank has few descriptors": Trouble("", places=PLACES),  # it takes what it may have
    "the script may not make shared memory": Trouble("SharedMemoryError", ("cannot allocate",)),
    "the script may not enlarge shared memory": Trouble("SharedMemoryError", ("cannot allocate",)),
    "the script has no descriptors": Trouble("SharedMemoryError", ("file descriptor", "ulimit")),
    "the script has no address space": Trouble("SharedMemoryError", ("cannot allocate",)),
    "no process can be made": Trouble(
        "BlockingIOError", ("temporarily",), places=((1, ()), (2, ()), (3, ())), stays_open=False
    ),
    # a full /dev/shm, of a few MiB
    "/dev/shm is full: data": Trouble("SharedMemoryError", ("/dev/shm", "remount"), small_shm=True),
    "/dev/shm is full: growth": Trouble(
        "SharedMemoryError", ("/dev/shm", "remount"), small_shm=True
    ),
    "/dev/shm is full: an argument": Trouble(
        "SharedMemoryError", ("/dev/shm", "remount"), small_shm=True
    ),
    "/dev/shm is full: a rank's result": Trouble(
        "SharedMemoryError", ("/dev/shm", "remount"), small_shm=True
    ),
    "/dev/shm is full: a variable": Trouble(
        "SharedMemoryError", ("/dev/shm", "remount"), small_shm=True
    ),
    "/dev/shm is full: a kernel's output": Trouble(
        "SharedMemoryError", ("/dev/shm", "remount"), small_shm=True
    ),
    "/dev/shm is full: another world": Trouble(
        "SharedMemoryError", ("/dev/shm", "remount"), small_shm=True, stays_open=False
    ),
}
