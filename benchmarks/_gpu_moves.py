"""What scatter.py, minibatch.py and stream.py share with their peers: rows, the host's array,
timing, how to ask a peer.

The host's array is memory that the script fills once and passes on as a descriptor, so that no peer
has to fill its own.
"""

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from _common import Timing, summarise
from numpy.typing import NDArray

What: TypeAlias = Literal["scatter", "minibatch"]
Kind: TypeAlias = Literal["up", "down", "both", "sum"]

PEERS = Path(__file__).with_name("_gpu_moves_peers.py")
AT_LEAST = 3  # rounds that count, unless they take longer than PATIENCE together
PATIENCE = 3.0  # seconds
LISTS = 16  # of random rows, drawn beforehand and used in turns
PATTERN = 1_000_003  # values that repeat: no part begins where another does
# the values are whole numbers up to this, so that float32 and float64 sums are exact in any order
HIGHEST = 15
ON_DEVICES = "table on the devices: "  # begins the names of rows without copies of rows
THREADS = 8  # that fill memory: its first touch takes longer than the copy


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured.

    Attributes:
        device: of the run.
        ranks: devices, and processes where there is one for each.
        seconds: that each row is measured.
        memory: descriptor of the host's float32 array, which has `items`.
        sizes: bytes to scatter; of minibatches, rows of a step.
        columns: of the table that minibatches are rows of.
    """

    device: Literal["cpu", "cuda"]
    ranks: int
    seconds: float
    memory: int
    items: int
    sizes: tuple[int, ...]
    columns: int = 1

    def values(self) -> NDArray[np.float32]:
        """The host's array, flat."""
        return mapped(self.memory, self.items)

    def table(self) -> NDArray[np.float32]:
        """The host's array as rows."""
        return self.values().reshape(-1, self.columns)


@dataclass(frozen=True, slots=True)
class Row:
    """How long one scatter or one step took; "both": up to the devices and down again."""

    library: str
    what: str
    kind: Kind
    size: int
    timing: Timing


def time_rounds(
    call: Callable[[], object], seconds: float, go_on: Callable[[bool], bool] = bool
) -> Timing:
    """Times single calls for about that many seconds, after one that does not count.

    Args:
        call: to be timed.
        seconds: after which there are no more calls, if there were enough.
        go_on: makes one decision of those of several processes.
    """
    clock = time.perf_counter_ns
    call()
    times: list[int] = []
    start = time.monotonic()
    while go_on(_wanted(len(times), time.monotonic() - start, seconds)):
        before = clock()
        call()
        times.append(clock() - before)
    return summarise(times)


def _wanted(calls: int, passed: float, seconds: float) -> bool:
    return passed < seconds or calls < 1 or (calls < AT_LEAST and passed < PATIENCE)


def part(n: int, ranks: int, rank: int) -> slice:
    """One rank's of n."""
    return slice(n * rank // ranks, n * (rank + 1) // ranks)


def make_memory(items: int) -> int:
    """Memory for so many float32, filled with whole numbers from 0 to HIGHEST; the descriptor
    can be passed on.
    """
    descriptor = os.memfd_create("rows")
    os.ftruncate(descriptor, 4 * items)
    values = mapped(descriptor, items)
    pattern = np.random.default_rng(0).integers(0, HIGHEST + 1, PATTERN).astype(np.float32)

    def repeat(start: int) -> None:
        piece = values[start : start + PATTERN]
        piece[:] = pattern[: len(piece)]

    _in_threads(repeat, range(0, items, PATTERN))
    return descriptor


def mapped(descriptor: int, items: int) -> NDArray[np.float32]:
    """The memory as an array."""
    return np.frombuffer(mmap.mmap(descriptor, 4 * items), np.float32)


def fill(target: NDArray[np.float32], source: NDArray[np.float32]) -> None:
    """Copies a flat array, in threads, which are gone afterwards."""

    def copy(start: int) -> None:
        target[start : start + PATTERN] = source[start : start + PATTERN]

    _in_threads(copy, range(0, len(source), PATTERN))


def _in_threads(do: Callable[[int], None], starts: Iterable[int]) -> None:
    with ThreadPoolExecutor(min(THREADS, len(os.sched_getaffinity(0)))) as pool:
        for _ in pool.map(do, starts):
            pass


def index_lists(rows: int, size: int) -> NDArray[np.int64]:
    """Lists of random rows, shape (LISTS, size)."""
    return np.random.default_rng(size).integers(0, rows, (LISTS, size))


def ask(what: What, who: str, settings: Settings, python: str, timeout: float) -> list[Row]:
    """Has a peer measure; one that cannot, or that takes too long, is left out and named."""
    command = [python, str(PEERS), what, who, json.dumps(asdict(settings))]
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if settings.device == "cpu":
        environment |= {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={settings.ranks}",
        }
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=(settings.memory,),
        start_new_session=True,  # so that its own processes end with it
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        print(f"{who} left out: it took longer than {timeout:g} s", file=sys.stderr)
        return []
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode != 0:
        print(f"{who} left out: {' '.join(err.strip().splitlines()[-1:])}", file=sys.stderr)
        return []
    rows = json.loads(out.strip().splitlines()[-1])
    return [Row(**{**row, "timing": Timing(**row["timing"])}) for row in rows]
