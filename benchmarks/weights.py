"""Ranks of unequal speed: a call with equal shares and with measured ones, while one of them is
slowed.

    python benchmarks/weights.py
    python benchmarks/weights.py --ranks 2 4 --json benchmarks/results/cores2-weights.json

The last rank works a third of the time: another process stops it for six milliseconds of nine. With
W ranks that leaves W − 2/3 of W, so the ideal call takes W / (W − 2/3) times as long as with all at
full speed. Calls should take some tens of milliseconds, so that a rank is stopped several times in
each: see --turns.

"ratio": to the ideal.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _common import arguments, print_table, save, time_calls
from numba import cuda

import synknumba as synk

ROWS = 200_000
PERIOD, WORKS = 0.009, 1 / 3  # seconds, and part of them


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table, in milliseconds."""

    library: str
    what: str
    ranks: int
    shares: tuple[float, ...]
    median: float
    ideal: float
    ratio: float


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def iterate(x, turns, total):
    """Iterates a logistic map for each row, and adds up where it ends."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        value = x[i]
        for _ in range(turns):
            value = 3.9 * value * (1.0 - value)
        cuda.atomic.add(total, 0, value)


def ranks_of(script: int) -> list[int]:
    """The processes of the ranks: the children of the script with its name, but this one."""
    name = Path(f"/proc/{script}/comm").read_text()
    children = Path(f"/proc/{script}/task/{script}/children").read_text().split()
    return sorted(
        int(pid)
        for pid in children
        if Path(f"/proc/{pid}/comm").read_text() == name and int(pid) != os.getpid()
    )


def slow_down(script: int, ranks: int) -> None:
    """Stops the last rank again and again, from its start to its end."""
    found: list[int] = []
    print("ready", flush=True)
    while len(found) < ranks:
        time.sleep(0.001)
        with contextlib.suppress(OSError):
            found = ranks_of(script)
    with contextlib.suppress(ProcessLookupError):
        while True:
            time.sleep(WORKS * PERIOD)
            os.kill(found[-1], signal.SIGSTOP)
            time.sleep((1 - WORKS) * PERIOD)
            os.kill(found[-1], signal.SIGCONT)


@contextlib.contextmanager
def slowed(ranks: int) -> Iterator[None]:
    """Slows the last rank of the worlds that are opened meanwhile."""
    command = [sys.executable, __file__, "--slow", str(os.getpid()), str(ranks)]
    slower = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert slower.stdout is not None
    slower.stdout.readline()  # it is ready
    try:
        yield
    finally:
        slower.kill()
        slower.wait()


def timed(
    ranks: int, turns: int, seconds: float, weights: str | None
) -> tuple[tuple[float, ...], float]:
    """The shares of the ranks, and the median of a call in milliseconds."""
    x = synk.data(np.random.default_rng(0).random(ROWS))
    with synk.fork(ranks, device="cpu", weights=weights) as world:
        return world.weights, time_calls(
            lambda: iterate(x, turns), seconds, at_least=5
        ).median / 1e3


def main() -> None:
    """Measures and prints."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--turns", type=int, default=6000, help="iterations for each row (default: 6000)"
    )
    parser.add_argument("--slow", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.slow:
        slow_down(*given.slow)
        return
    results = []
    for ranks in given.ranks or [2]:
        even, at_best = timed(ranks, given.turns, given.seconds, None)
        ideal = at_best * ranks / (ranks - 1 + WORKS)
        rows = [("all ranks at full speed", even, at_best)]
        for name, weights in (
            ("one slowed, equal shares", None),
            ("one slowed, measured shares", "measured"),
        ):
            with slowed(ranks):
                rows.append((name, *timed(ranks, given.turns, given.seconds, weights)))
        results += [
            Result("synknumba", name, ranks, shares, median, ideal, median / ideal)
            for name, shares, median in rows
        ]
    table = [
        (
            one.what,
            str(one.ranks),
            " ".join(f"{share:.3f}" for share in one.shares),
            f"{one.median:.2f}",
            f"{one.ratio:.2f}",
        )
        for one in results
    ]
    print_table(("", "ranks", "shares", "ms", "ratio"), table)
    save(
        given.json,
        "weights",
        results,
        {"seconds": given.seconds, "turns": given.turns, "rows": ROWS},
    )


if __name__ == "__main__":
    main()
