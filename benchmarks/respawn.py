"""After a rank's death in `fork(respawn=True)`: how long until the call raises RankDied, and then
until the next good result.

    python benchmarks/respawn.py
    python benchmarks/respawn.py --device cuda --ranks 1 2 4 --json
    benchmarks/results/h200x4-respawn.json

A rank gets SIGKILL between two calls of a function bound to a variable. "error": from the signal
until the next call raises; "next call": the call after it, which starts the ranks, puts the
snapshot of the variable back, sends the function and runs it; "usual call": one after that;
"ratio": error and next call together, over those in the first row; "snapshot": `world.snapshot()`
of a variable that was written to. Every result is checked. --repeats says how often; --seconds
nothing.
"""

import argparse
import os
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from _common import arguments, print_table, save

import synknumba as synk


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table: medians, in seconds."""

    device: str
    ranks: int
    nbytes: int
    snapshot: float
    error: float
    next_call: float
    usual_call: float


def measure(device: str, ranks: int, nbytes: int, repeats: int) -> Result:
    """Kills one rank after the other."""
    w = synk.variable(np.zeros(max(nbytes // 8, 1)), "w")

    @synk.function(givens={"w": w})
    def add(amount: float, w: np.ndarray) -> None:
        w += amount

    times: list[tuple[float, ...]] = []
    with synk.fork(ranks, device=device, respawn=True) as world:
        for repeat in range(repeats):
            add(1.0)
            start = time.perf_counter()
            world.snapshot()
            kept = time.perf_counter()
            add(1.0)
            killed = time.perf_counter()
            os.kill(world.pids[repeat % ranks], signal.SIGKILL)
            try:
                add(1.0)
            except synk.RankDied:
                raised = time.perf_counter()
            add(0.0)
            good = time.perf_counter()
            add(0.0)
            usual = time.perf_counter()
            np.testing.assert_array_equal(
                w.get_value(rank=ranks - 1), np.full(w.shape, repeat + 1.0)
            )
            times.append((kept - start, raised - killed, good - raised, usual - good))
    return Result(device, ranks, nbytes, *map(statistics.median, zip(*times, strict=True)))


def results(
    device: str, worlds: Sequence[int], sizes: Sequence[int], repeats: int
) -> Iterator[Result]:
    """All rows of the table."""
    for ranks in worlds:
        for nbytes in sizes:
            yield measure(device, ranks, nbytes, repeats)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--repeats", type=int, default=7, help="deaths for each row of the table (default: 7)"
    )
    parser.add_argument(
        "--bytes",
        type=float,
        nargs="+",
        default=[1e3, 1e8],
        help="of the variable (default: 1e3 1e8)",
    )
    return parser.parse_args()


def main() -> None:
    """Measures, prints, and saves where asked to."""
    args = parsed()
    rows = list(
        results(
            args.device, args.ranks or [1, 2], [int(nbytes) for nbytes in args.bytes], args.repeats
        )
    )

    def cells(row: Result) -> list[str]:
        times = (row.snapshot, row.error, row.next_call, row.usual_call)
        ratio = (row.error + row.next_call) / (rows[0].error + rows[0].next_call)
        return [
            str(row.ranks),
            f"{row.nbytes:,}",
            *(f"{seconds * 1e3:,.2f}" for seconds in times),
            f"{ratio:.2f}",
        ]

    print(f"after a rank's death, {args.device}, milliseconds, medians")
    print_table(
        ["ranks", "bytes", "snapshot", "error", "next call", "usual call", "ratio"],
        [cells(row) for row in rows],
    )
    save(args.json, "respawn", rows, {"device": args.device, "repeats": args.repeats})


if __name__ == "__main__":
    main()
