"""What is drawn of a case, and what a script may be told under each fault."""

import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any

CALLS = (
    "compile",
    "calls",
    "results",
    "submit",
    "collective",
    "scatter",
    "halo",
    "sequence",
    "data",
)
PHASES = ("fork", *CALLS, "idle", "close", "exit")


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault."""

    act: str  # what the attacker or the script does: see `arena.Attack` and `victim.ON_RANKS`
    told: tuple[str, ...] = ()  # errors that the script may get
    ends: tuple[int, ...] = ()  # exit statuses that it may have, besides 0
    noise: str = ""  # pattern of lines of stderr that may be there though they look like a defect
    weight: int = 2  # how often it is drawn
    timeout: float | None = None  # seconds that the calls of the world may take
    harms: bool = False  # whether it takes something from the script that no leak can be told by


# Python ends by SIGINT after a KeyboardInterrupt that is not caught, and ignores one in a
# finalizer. So it does of a file or a directory that one leaves open.
_NOISE = "Traceback|Exception ignored|ResourceWarning: unclosed"
_INTERRUPTED: dict[str, Any] = {"told": ("KeyboardInterrupt",), "ends": (-2, 1), "noise": _NOISE}
_SPOILT: dict[str, Any] = {
    "told": ("SynkError", "OSError", "ValueError", "EOFError"),
    "ends": (-7, -11),
    "noise": "Traceback|Exception ignored|Fatal Python",
    "harms": True,
    "weight": 1,
}

FAULTS = {
    "nothing": Fault("nothing"),
    "SIGKILL, rank": Fault("signal rank 9", ("RankDied",), weight=4),
    "SIGSEGV, rank": Fault("signal rank 11", ("RankDied",)),
    "SIGTERM, rank": Fault("signal rank 15", weight=1),
    "SIGUSR1, rank": Fault("signal rank 10", weight=1),
    "SIGINT, rank": Fault("signal rank 2", weight=1),
    "SIGKILL, all ranks": Fault("signal ranks 9", ("RankDied",)),
    "SIGKILL, output process": Fault("signal scribe 9"),
    "stopped and continued, rank": Fault("pause rank"),
    "stopped, rank": Fault("signal rank 19", ("CallTimeout", "WorldError"), timeout=3.0),
    "stopped and continued, output process": Fault("pause scribe", weight=1),
    "stopped and continued, script": Fault("pause script"),
    "suspended machine": Fault("pause group", timeout=20.0),
    "SIGINT, script": Fault("signal script 2", **_INTERRUPTED, weight=6),
    "Ctrl-C": Fault("signal group 2", **_INTERRUPTED, weight=8),
    "SIGTERM, script": Fault("signal script 15", ends=(-15,)),
    "SIGTERM, group": Fault("signal group 15", ends=(-15,)),
    "SIGKILL, script": Fault("signal script 9", ends=(-9,)),
    "SIGKILL, group": Fault("signal group 9", ends=(-9,)),
    "SIGSEGV, script": Fault("signal script 11", ends=(-11,), noise="Fatal Python"),
    "ValueError, rank": Fault("on rank ValueError", ("RankError",)),
    "sys.exit, rank": Fault("on rank exit", ("RankError",)),
    "os._exit, rank": Fault("on rank os._exit", ("RankDied",)),
    "abort, rank": Fault("on rank abort", ("RankDied",), noise="Fatal Python"),
    "endless, rank": Fault("on rank endless", ("CallTimeout",), timeout=3.0),
    "descriptor closed": Fault("close descriptor", **_SPOILT),
    "memory file truncated": Fault("truncate", **_SPOILT),
    "cache removed": Fault("remove cache"),
}

INTERPRETERS: dict[str, dict[str, str]] = {
    "plain": {},
    "development mode": {"PYTHONDEVMODE": "1"},
    "one thread of Numba's, hash seed 0": {"NUMBA_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
    "LANG=C, no UTF-8": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "layered allocator off": {"PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": "171"},
}
CACHES = (
    "good",
    "good",
    "good",
    "none",
    "off",
    "damaged",
    "truncated",
    "FIFOs",
    "directories",
    "a file",
    "nowhere",
)
COMPANIONS = ("makes calls", "makes data", "drops data", "forks", "collects", "looks")

# What a shortage may be told as: documented errors, and Python's own of the system's refusal.
SHORT_OF = {
    "descriptors": (
        "SharedMemoryError",
        "OSError",
        "RankError",
        "WorldError",
        "RankDied",
        "PartitionError",
        "DeviceError",
    ),
    "file size": ("SharedMemoryError", "OSError", "RankError"),
    "memory": (
        "MemoryError",
        "OSError",
        "RankError",
        "RankDied",
        "KernelError",
        "DeviceError",
        "RuntimeError",
    ),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One attack."""

    name: str  # `seed:number`, from which it can be drawn again
    fault: str = "nothing"
    phase: str = "calls"  # what the script does again and again until the fault has struck
    delay: float = 0.0  # seconds from the beginning of the phase to the fault
    # how often it strikes, and the seconds between two strikes
    strikes: tuple[int, float] = (
        1,
        0.0,
    )
    which: int = 0  # chooses the rank, the descriptor or the file, and what is passed to calls
    seconds: float = 0.0  # how long a stopped process stays so
    world_size: int = 2
    respawn: bool = False
    cold: bool = False  # whether the script has made no call before
    in_thread: bool = False  # whether a thread of the script makes the calls
    companions: tuple[str, ...] = ()  # what other threads of the script do meanwhile
    interpreter: str = "plain"
    limits: dict[str, int] = field(default_factory=dict)  # what is short, and by how much
    # umask, TMPDIR, cache, closed streams, how segments are made
    surroundings: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"

    def as_dict(self) -> dict[str, Any]:
        """Everything that the script needs, for JSON."""
        fault = FAULTS[self.fault]
        return asdict(self) | {"act": fault.act, "timeout": fault.timeout, "harms": fault.harms}

    @property
    def told(self) -> set[str]:
        """Names of the errors that the script may get."""
        return set(FAULTS[self.fault].told).union(*(SHORT_OF[what] for what in self.limits))


def draw(seed: int, number: int, device: str = "cpu") -> Case:
    """Returns case `number` of a seed; always the same."""
    rng = random.Random(f"{seed}:{number}")
    fault = rng.choices(list(FAULTS), [one.weight for one in FAULTS.values()])[0]
    repeated = "signal" in FAULTS[fault].act and rng.random() < 0.4
    case = Case(
        name=f"{seed}:{number}",
        fault=fault,
        phase=rng.choice(PHASES[:-1] if FAULTS[fault].act.startswith("on rank") else PHASES),
        delay=rng.choice(
            (0.0, rng.uniform(0.0, 0.01), rng.uniform(0.0, 0.1), rng.uniform(0.0, 0.4))
        ),
        strikes=(rng.randint(2, 6), rng.choice((0.0, 1e-4, 3e-3, 0.05))) if repeated else (1, 0.0),
        which=rng.randrange(1000),
        seconds=rng.choice((0.01, 0.1, 1.2)),
        world_size=rng.choice((1, 2, 2, 3)),
        respawn=rng.random() < 0.3,
        cold=rng.random() < 0.2,
        in_thread=rng.random() < 0.25,
        companions=tuple(rng.sample(COMPANIONS, rng.choice((0, 0, 0, 1, 1, 2)))),
        interpreter=rng.choices(list(INTERPRETERS), [5, 1, 1, 1, 1])[0],
        limits=_limits(rng),
        surroundings={
            "umask": rng.choice((0o022, 0o022, 0, 0o777, 0o077)),
            "TMPDIR": rng.choice(("", "", "/nonexistent", "odd name é\n", "/dev/null")),
            "cache": rng.choice(CACHES),
            "closed": rng.choice(([], [], [], [0], [1], [0, 1], [0, 1, 2])),
            "maker": rng.choice(("", "", "posix", "memfd")),
        },
        device=device,
    )
    # CPython's printer of stacks, which a signal runs, may read code that is being freed.
    if "looks" in case.companions and "MALLOC_PERTURB_" in INTERPRETERS[case.interpreter]:
        return replace(case, interpreter="plain")
    return case


def _limits(rng: random.Random) -> dict[str, int]:
    what = rng.choice(("", "", "", "", "", "descriptors", "descriptors", "file size", "memory"))
    if what == "descriptors":
        return {what: rng.choice((0, 1, 3, 5, 8, 12, 20, 40))}
    if what == "file size":
        return {what: rng.choice((1 << 14, 1 << 16, 1 << 20))}
    return {what: rng.choice((1 << 20, 1 << 24, 1 << 27, 1 << 29))} if what else {}
