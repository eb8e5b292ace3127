"""Peers of several benchmarks in processes of their own: how they start, and what they share.

    script ──start, SETTINGS──> _gpu_call_torch.py × W, _gpu_call_jax.py, _montecarlo_jax.py, … ──rows of JSON──> script

Rows are printed as soon as they are measured, so that a process that has to be killed has not run
for nothing. synknumba is not imported, nor is Numba but by its own peer: torch and JAX may be in
another environment.

Works. "sum": the sum of a few float64 numbers that lie on the devices. "pairs": the mean of
y·exp(−x²) over float32 arrays that lie on the devices. "pi" and "option": see `_montecarlo`;
"nbody": see `_nbody`; the others: see `_vectorize`. What is made is there at the end of each step, and right.
"""  # noqa: E501

import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from _common import Timing, time_calls

Peer: TypeAlias = Literal["torch", "jax", "loop", "cupy", "numba"]
Step: TypeAlias = Callable[[], Any]

AT_LEAST = 7  # steps of whatever takes longer than it may
# steps, so that fast ones do not take all the time that there is
AT_MOST = {
    "sum": 30_000,
    "pairs": 2000,
    "pi": 2000,
    "option": 2000,
    "linear": 2000,
    "wave": 2000,
    "sum of rows": 2000,
    "nbody": 2000,
}
FAMILIES = {  # of scripts, but for "sum" and "pairs"
    "pi": "_montecarlo",
    "option": "_montecarlo",
    "linear": "_vectorize",
    "wave": "_vectorize",
    "sum of rows": "_vectorize",
    "nbody": "_nbody",
}
TOLERANCE = {"sum": 1e-12, "pairs": 1e-3}  # float32 sums of many terms differ in the fourth digit
# random pairs, which are repeated to make more: random numbers take longer than copies
BLOCK = 1 << 20
LINE = 8  # words of a cache line
PAGE_BYTES = 1 << 16
LOOKS = 10  # at a word before the core is offered to others: a microsecond
LEFT_OUT = "left out: "  # begins a line in which a peer says what it could not do
START_SECONDS = (
    90.0  # that processes may take beside what they measure: imports, contexts, NCCL, compiling
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured, for each number of ranks and each number of rows."""

    work: Literal["sum", "pairs", "pi", "option", "linear", "wave", "sum of rows", "nbody"]
    device: Literal["cpu", "cuda"]
    ranks: tuple[int, ...]
    rows: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """How long one step took."""

    library: str
    what: str
    ranks: int
    rows: int
    timing: Timing


# ---- on the side of the script -------------------------------------------------------------------


def peer_rows(peer: Peer, settings: Settings, python: str = sys.executable) -> list[Row]:
    """Starts a peer, waits for it, and ends it if it takes too long; what it could not measure
    is named.
    """
    # A few variants each; of the numbers of rows, only the largest take all of their time.
    limit = START_SECONDS + 4 * settings.seconds * (len(settings.ranks) + len(settings.rows))
    with tempfile.TemporaryDirectory() as folder:
        processes = _start(peer, settings, python, Path(folder))
        try:
            problem = _wait(processes, time.monotonic() + limit, Path(folder))
        finally:
            for process in processes:
                _end(process)
        output = (Path(folder) / "0.out").read_text()
        said = (Path(folder) / "0.err").read_text().splitlines()
        for line in dict.fromkeys(line for line in said if line.startswith(LEFT_OUT)):
            print(f"{peer}: {line}", file=sys.stderr)
        if problem is not None:
            print(
                f"{peer} left out after {len(output.splitlines())} rows: {problem}", file=sys.stderr
            )
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [Row(**{**fields, "timing": Timing(**fields["timing"])}) for fields in rows]


def _start(
    peer: Peer, settings: Settings, python: str, folder: Path
) -> list[subprocess.Popen[bytes]]:
    most = max(settings.ranks)
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "WORLD_SIZE": str(most),
        "MEETING_FILE": str(folder / "meeting"),
        "MEETING_PAGE": str(folder / "page"),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        # two small kernels are compiled before other processes have started
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    environment.setdefault("NCCL_SOCKET_IFNAME", "lo")
    if settings.device == "cpu":
        environment["JAX_PLATFORMS"] = "cpu"
        environment["XLA_FLAGS"] = (
            f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={most}"
        )
    (folder / "page").write_bytes(bytes(PAGE_BYTES))
    family = FAMILIES.get(settings.work, "_gpu_call")
    command = [
        python,
        str(Path(__file__).with_name(f"{family}_{peer}.py")),
        json.dumps(asdict(settings)),
    ]
    processes = []
    for rank in range(most if peer == "torch" else 1):
        with (folder / f"{rank}.out").open("w") as out, (folder / f"{rank}.err").open("w") as err:
            environment["RANK"] = str(rank)
            # A session of its own, so that what it starts can be ended with it.
            processes.append(
                subprocess.Popen(
                    command, env=environment, stdout=out, stderr=err, start_new_session=True
                )
            )
    return processes


def _wait(processes: list[subprocess.Popen[bytes]], deadline: float, folder: Path) -> str | None:
    """Until all have ended, one has failed, or the time is over; what went wrong."""
    while True:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code:
                last = (folder / f"{rank}.err").read_text().strip().splitlines()[-1:]
                return f"process {rank} ended with {code}: {' '.join(last)}"
        if None not in codes:
            return None
        if time.monotonic() > deadline:
            return "it took too long, and was ended"
        time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and those that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# ---- on the side of the peers --------------------------------------------------------------------


def print_rows(measure: Callable[[Settings], Iterator[Row]]) -> None:
    """What a peer does when it is started."""
    for row in measure(Settings(**json.loads(sys.argv[1]))):
        print(json.dumps(asdict(row)), flush=True)
    sys.stdout.flush()
    sys.stderr.flush()
    # taking NCCL and CUDA graphs down can wait for ever, and there is nothing left to do
    os._exit(0)


def pairs() -> tuple[Any, Any]:
    """A block of x and y, float32 in [0, 1); more rows are this block again and again."""
    x, y = np.random.default_rng(0).random((2, BLOCK), np.float32)
    return x, y


def sum_of_pairs(rows: int) -> float:
    """The sum of y·exp(−x²) over that many rows, by NumPy in float64."""
    x, y = (array.astype(np.float64) for array in pairs())
    terms = y * np.exp(-x * x)
    repeats, rest = divmod(rows, BLOCK)
    return float(repeats * terms.sum() + terms[:rest].sum())


def rows_of(rank: int, ranks: int, rows: int) -> slice:
    """One rank's, as synknumba divides them."""
    return slice(rank * rows // ranks, (rank + 1) * rows // ranks)


def check(what: str, got: float, expected: float, settings: Settings) -> None:
    """Ends the peer where a result is wrong."""
    assert np.isclose(got, expected, rtol=TOLERANCE[settings.work]), (
        f"{what}: {got} instead of {expected}"
    )


def time_steps(step: Step, settings: Settings) -> Timing:
    """Times steps that nobody else has to make too."""
    start = time.perf_counter()
    for _ in range(AT_LEAST):
        step()
    once = (time.perf_counter() - start) / AT_LEAST
    return time_calls(step, min(settings.seconds, once * AT_MOST[settings.work]), at_least=AT_LEAST)


class Page:
    """Memory that processes share: a line of words for each of them, and one for whoever leads.

    Args:
        memory: shared; zeros at first.
        rank: of this process.
        ranks: how many meet here.
        first: line of it, where several groups share the memory.

    Attributes:
        values: the words, as float64.
    """

    def __init__(self, memory: mmap.mmap, rank: int, ranks: int, first: int = 0) -> None:
        self.rank, self.ranks = rank, ranks
        self._words = memoryview(memory).cast("q")
        self.values = memoryview(memory).cast("d")
        self._first = first
        self._met = 0

    def word(self, line: int) -> int:
        """Where a line starts. Its words: the number of a round, the round's value, meetings,
        and what is said.
        """
        return (self._first + line) * LINE

    def put(self, line: int, number: int, value: float | None = None) -> None:
        """Says that a round is done, with its value. x86 keeps the order of stores."""
        word = self.word(line)
        if value is not None:
            self.values[word + 1] = value
        self._words[word] = number

    def is_done(self, line: int, number: int) -> bool:
        return self._words[self.word(line)] >= number

    def take(self, line: int, number: int) -> float:
        """Spins until that round is done; its value."""
        word = self.word(line)
        looks = 0
        while self._words[word] < number:
            looks += 1
            if looks > LOOKS:
                os.sched_yield()
        return self.values[word + 1]

    def say(self, line: int, number: int) -> None:
        """A number beside the round and its value."""
        self._words[self.word(line) + 3] = number

    def said(self, line: int) -> int:
        return self._words[self.word(line) + 3]

    def meet(self) -> None:
        """Waits for everybody, without burning a core."""
        self._met += 1
        self._words[self.word(self.rank) + 2] = self._met
        while any(self._words[self.word(rank) + 2] < self._met for rank in range(self.ranks)):
            time.sleep(1e-4)

    def agree(self, number: int) -> int:
        """The smallest number that anybody says."""
        self.say(self.rank, number)
        self.meet()
        smallest = min(self.said(rank) for rank in range(self.ranks))
        self.meet()
        return smallest

    @property
    def leader(self) -> int:
        """The line beside those of the ranks."""
        return self.ranks
