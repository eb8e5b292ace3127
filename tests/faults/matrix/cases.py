"""The fault matrix: what goes wrong × when × in which processes × how many ranks, and what is
promised of each.

Faults of processes (signals, exits, exceptions) strike at a phase, wherever that is in our code;
`phases` says how it is hit. Troubles are what a script does wrong, or what its machine lacks; they
are in `troubles`, and `table` has both.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

RankSet = tuple[int, ...]

TIMEOUT = 0.4  # of the worlds where something is stopped
START_SECONDS = 0.7  # in place of two minutes, where a rank never starts
CLOSE_SECONDS = 2.0  # what ranks are given to end by themselves
HINT = "All ranks have been terminated"

# How a process ends by itself, and the words for it.
ENDS = {
    "SIGKILL": "SIGKILL",
    "SIGSEGV": "SIGSEGV",
    "SIGABRT": "SIGABRT",
    "os._exit(0)": "exited with code 0",
    "os._exit(3)": "exited with code 3",
}
SIGNALS = tuple(name for name in ENDS if name.startswith("SIG"))


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that happens in some processes at some moment.

    Attributes:
        what: a key of `phases.ACTS`.
        phase: a key of `phases.PHASES`.
        ranks: where; empty for the coordinator.
    """

    what: str
    phase: str
    ranks: RankSet = ()

    @property
    def where(self) -> str:
        return "coordinator" if not self.ranks else f"rank {', '.join(map(str, self.ranks))}"


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the matrix.

    Attributes:
        fault: what happens; for a trouble, its name, and no phase.
        world_size: number of ranks.
        error: the name of the class of what the script gets; "" for nothing, "ended" where the
            script itself ends.
        words: what the message contains, each a regular expression; for "ended" the exit status.
        stays_open: whether the world is as good as before.
        second: another fault, which is due when the first has struck.
        within: seconds that may pass until the script is told.
        small_shm: whether it is for a `/dev/shm` of a few MiB.
    """

    fault: Fault
    world_size: int
    error: str
    words: tuple[str, ...] = ()
    stays_open: bool = False
    second: Fault | None = None
    within: float = 1.0
    small_shm: bool = False

    @property
    def id(self) -> str:
        parts = [self.fault.what, self.fault.phase, self.fault.where]
        if self.second is not None:
            parts += ["then", self.second.what, self.second.phase, self.second.where]
        return "-".join(part.replace(" ", "_") for part in (*parts, f"W{self.world_size}") if part)


# ---- ranks that end, or stop ---------------------------------------------------------------------

# Which ranks, of how many: one, the last, several, all.
PLACES: tuple[tuple[int, RankSet], ...] = ((1, (0,)), (2, (1,)), (3, (0, 2)), (2, (0, 1)))
FEW_PLACES = PLACES[1:3]

# Phases of a rank in which it can do something to itself. In compiled code it cannot: it is done to
# it from outside.
RANK_PHASES = (
    "idle",
    "reading a message",
    "mapping a segment",
    "taking in a program",
    "in a Python function",
    "packing a result",
    "arriving",
    "sending news",
    "before its part of a collective",
    "after its part of a collective",
    "combining results",
)
COMPILED_PHASES = ("in a kernel",)
# One rank has no part in them.
ALONE_IS_DIRECT = (
    "before its part of a collective",
    "after its part of a collective",
    "combining results",
)


def _one_of(ranks: RankSet) -> str:
    return f"rank ({'|'.join(map(str, ranks))}) "


def _ended_ranks() -> Iterator[Case]:
    for phase, (what, words) in itertools.product(RANK_PHASES, ENDS.items()):
        if phase == "idle" and what not in SIGNALS:
            continue  # to a rank that sleeps only others can do something
        places = PLACES if what in {"SIGKILL", "SIGSEGV"} else FEW_PLACES
        for world_size, ranks in places:
            if not (world_size == 1 and phase in ALONE_IS_DIRECT):
                yield Case(
                    Fault(what, phase, ranks), world_size, "RankDied", (_one_of(ranks), words, HINT)
                )
    for phase, what, (world_size, ranks) in itertools.product(COMPILED_PHASES, SIGNALS, PLACES):
        yield Case(
            Fault(what, phase, ranks), world_size, "RankDied", (_one_of(ranks), ENDS[what], "burn")
        )


def _stopped_ranks() -> Iterator[Case]:
    for phase, (world_size, ranks) in itertools.product(
        (*RANK_PHASES, *COMPILED_PHASES), FEW_PLACES
    ):
        # A kernel has no end on any rank; and which has not sent its news is not told.
        at_work = range(world_size) if phase in {*COMPILED_PHASES, "sending news"} else ranks
        words = (rf"timeout={TIMEOUT}", f"rank {', '.join(map(str, at_work))}")
        yield Case(
            Fault("SIGSTOP", phase, ranks), world_size, "CallTimeout", words, within=TIMEOUT + 1.0
        )


def _raising_ranks() -> Iterator[Case]:
    inside = (
        "mapping a segment",
        "taking in a program",
        "in a Python function",
        "packing a result",
    )
    for phase, (what, name), (world_size, ranks) in itertools.product(
        inside,
        {
            "ValueError": "ValueError",
            "sys.exit": "SystemExit",
            "KeyboardInterrupt": "KeyboardInterrupt",
        }.items(),
        PLACES,
    ):
        yield Case(
            Fault(what, phase, ranks),
            world_size,
            "RankError",
            (name, ", ".join(map(str, ranks))),
            stays_open=True,
        )
    # In our own loop there is nobody to tell it: the rank ends.
    for world_size, ranks in FEW_PLACES:
        words = (_one_of(ranks), "exited with code 1")
        yield Case(Fault("ValueError", "arriving", ranks), world_size, "RankDied", words)


def _during_fork_and_close() -> Iterator[Case]:
    for (what, words), (world_size, ranks) in itertools.product(ENDS.items(), PLACES):
        yield Case(
            Fault(what, "opening its device", ranks),
            world_size,
            "RankDied",
            (_one_of(ranks), words, "starting"),
        )
        yield Case(Fault(what, "closing", ranks), world_size, "")
    for world_size, ranks in PLACES:
        yield Case(
            Fault("ValueError", "opening its device", ranks),
            world_size,
            "DeviceError",
            (_one_of(ranks), "ValueError"),
        )
        yield Case(
            Fault("SIGSTOP", "opening its device", ranks),
            world_size,
            "WorldError",
            ("did not start",),
            within=START_SECONDS + 1.0,
        )
        yield Case(Fault("ValueError", "closing", ranks), world_size, "")
    for world_size, ranks in FEW_PLACES:
        yield Case(Fault("SIGSTOP", "closing", ranks), world_size, "", within=CLOSE_SECONDS + 1.0)


# ---- the coordinator -----------------------------------------------------------------------------

# How the script ends, and its exit status: minus the signal where one ended it.
SCRIPT_ENDS = {
    "SIGKILL": -9,
    "SIGSEGV": -11,
    "SIGABRT": -6,
    "SIGTERM": -15,
    "os._exit(0)": 0,
    "os._exit(3)": 3,
    "sys.exit": 3,
}
COORDINATOR_PHASES = (
    "between two forks",
    "awaiting the ranks",
    "idle",
    "before the doorbell",
    "after the doorbell",
    "sending a message",
    "waiting",
    "reading news",
    "putting results together",
    "dropping data",
    "closing",
)
RAISED = {
    "ValueError": "ValueError",
    "SIGINT": "KeyboardInterrupt",
    "SIGINT twice in 0.1 ms": "KeyboardInterrupt",
    "SIGINT twice in 2 ms": "KeyboardInterrupt",
    "SIGINT twice in 0.1 ms, by another thread": "KeyboardInterrupt",
}


def _coordinator() -> Iterator[Case]:
    for phase, (what, status) in itertools.product(COORDINATOR_PHASES, SCRIPT_ENDS.items()):
        for world_size in (1, 2) if what == "SIGKILL" else (2,):
            yield Case(Fault(what, phase), world_size, "ended", (str(status),))
    for phase, (what, error), world_size in itertools.product(
        COORDINATOR_PHASES, RAISED.items(), (1, 3)
    ):
        if phase == "dropping data" and (world_size == 3 or "twice" in what):
            continue
        opened = phase in {"idle", "dropping data", "putting results together"}
        yield Case(Fault(what, phase), world_size, error, stays_open=opened)
    for phase in COORDINATOR_PHASES:
        yield Case(Fault("stopped for a while", phase), 2, "", stays_open=phase != "closing")


# ---- a second fault while the first is dealt with ------------------------------------------------


def _second_faults() -> Iterator[Case]:
    first = Fault("SIGKILL", "in a Python function", (1,))
    for what, status in SCRIPT_ENDS.items():
        if what != "sys.exit":
            yield Case(first, 2, "ended", (str(status),), second=Fault(what, "ending the ranks"))
    for what, error in RAISED.items():
        if what == "ValueError":
            continue  # signals are held there, and nothing else raises
        yield Case(first, 3, error, second=Fault(what, "ending the ranks"))
        yield Case(
            Fault("SIGINT", "after the doorbell"), 2, error, second=Fault(what, "ending the ranks")
        )
        yield Case(
            Fault("SIGINT", "awaiting the ranks"), 2, error, second=Fault(what, "ending the ranks")
        )
    for world_size, ranks in ((2, (0,)), (3, (0, 2))):
        words = ("rank . ", "SIGKILL")
        yield Case(
            first,
            world_size,
            "RankDied",
            words,
            second=Fault("SIGKILL to ranks", "ending the ranks", ranks),
        )
        yield Case(
            first,
            world_size,
            "RankDied",
            (_one_of(ranks), "SIGSEGV", "starting"),
            second=Fault("SIGSEGV", "forking again", ranks),
        )
    stopped = Fault("SIGSTOP", "in a Python function", (1,))
    yield Case(
        stopped,
        2,
        "RankDied",
        ("rank 0 ", "SIGKILL"),
        second=Fault("SIGKILL to ranks", "waiting", (0,)),
    )
    yield Case(stopped, 2, "KeyboardInterrupt", second=Fault("SIGINT", "waiting"))
    yield Case(stopped, 2, "ended", ("-9",), second=Fault("SIGKILL", "waiting"))


def process_faults() -> Iterator[Case]:
    """All of them."""
    yield from _ended_ranks()
    yield from _stopped_ranks()
    yield from _raising_ranks()
    yield from _during_fork_and_close()
    yield from _coordinator()
    yield from _second_faults()
