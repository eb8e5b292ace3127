"""From fork() to the first results: how long it takes on 1, 2, … ranks, with and without kernels
that were compiled before.

    python benchmarks/startup.py
    python benchmarks/startup.py --device cuda --ranks 1 2 4 --json
    benchmarks/results/h200x4-startup.json

Every measurement has a process of its own. "fork": synk.fork(W); "call": the first call of a kernel
after it, whose rows are in Data already; "collective": a variable and its all_reduce after that,
which on GPUs are NCCL's first. "cold": the folders where synknumba, CuPy and the driver keep what
they have compiled are empty; "warm": as the cold run has left them. "ratio": fork and call
together, over those on the smallest world; in brackets with the collective. --repeats says how
often; --seconds nothing.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from _common import arguments, print_table, save
from numba import cuda

import synknumba as synk

Cache: TypeAlias = Literal["cold", "warm"]

ROWS = 100_000
BETA = 0.5
FOLDERS = ("SYNKNUMBA_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH")
LONGEST = 120.0  # seconds that one process may take


@dataclass(frozen=True, slots=True)
class Run:
    """One process, in seconds; `process`: all of it, with the interpreter's start, the imports
    and the end.
    """

    fork: float
    call: float
    collective: float
    process: float


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table: medians, in seconds."""

    device: str
    ranks: int
    cache: Cache
    fork: float
    call: float
    fork_and_call: float
    with_collective: float
    process: float
    runs: tuple[Run, ...]
    ratio: float
    ratio_with_collective: float


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
def energy(x, beta, total):
    """Adds up exp(−beta·x²); x: float64, shape (n,)."""
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        acc += math.exp(-beta * x[i] * x[i])
    cuda.atomic.add(total, 0, acc)


def measure_here(device: str, ranks: int) -> dict[str, float]:
    """What one of the processes does."""
    values = np.random.default_rng(0).random(ROWS)
    x = synk.data(values)
    start = time.perf_counter()
    world = synk.fork(ranks, device=device)
    forked = time.perf_counter()
    total = energy(x, BETA)
    called = time.perf_counter()
    variable = synk.variable(np.ones(ROWS))
    synk.all_reduce(variable, "sum")
    reduced = time.perf_counter()
    np.testing.assert_allclose(total, np.exp(-BETA * values**2).sum(), rtol=1e-9)
    np.testing.assert_array_equal(synk.get_value(0, variable), np.full(ROWS, float(ranks)))
    world.close()
    return {"fork": forked - start, "call": called - forked, "collective": reduced - called}


def measure_process(device: str, ranks: int, cache: str) -> Run:
    """Starts one of the processes, with what is kept in a folder."""
    environment = {**os.environ, **{name: str(Path(cache) / name) for name in FOLDERS}}
    command = [sys.executable, __file__, "--device", device, "--one", str(ranks)]
    start = time.perf_counter()
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    process = time.perf_counter() - start
    if done.returncode != 0:
        raise RuntimeError(
            f"a process with {ranks} ranks ended with {done.returncode}: {done.stderr}"
        )
    return Run(**json.loads(done.stdout.splitlines()[-1]), process=process)


def measure(device: str, worlds: Sequence[int], repeats: int) -> Iterator[Result]:
    """All worlds in turns, so that whatever else the machine does is in all of them."""
    with tempfile.TemporaryDirectory() as folder:
        measure_process(device, max(worlds), folder)  # reads libraries from disk for the first time
    runs: dict[tuple[int, Cache], list[Run]] = {
        (ranks, cache): [] for cache in ("cold", "warm") for ranks in worlds
    }
    for _ in range(repeats):
        for ranks in worlds:
            with tempfile.TemporaryDirectory() as folder:
                runs[ranks, "cold"].append(measure_process(device, ranks, folder))
                runs[ranks, "warm"].append(measure_process(device, ranks, folder))
    for (ranks, cache), own in runs.items():
        base = runs[min(worlds), cache]
        yield Result(
            device,
            ranks,
            cache,
            statistics.median(run.fork for run in own),
            statistics.median(run.call for run in own),
            fork_and_call(own),
            with_collective(own),
            statistics.median(run.process for run in own),
            tuple(own),
            fork_and_call(own) / fork_and_call(base),
            with_collective(own) / with_collective(base),
        )


def fork_and_call(runs: Sequence[Run]) -> float:
    """Median of both together."""
    return statistics.median(run.fork + run.call for run in runs)


def with_collective(runs: Sequence[Run]) -> float:
    """Median of all three together."""
    return statistics.median(run.fork + run.call + run.collective for run in runs)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--repeats", type=int, default=2, help="processes for each row of the table (default: 2)"
    )
    # this is one of the processes
    parser.add_argument("--one", type=int, metavar="RANKS", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measures, prints, and saves where asked to."""
    args = parsed()
    if args.one is not None:
        print(json.dumps(measure_here(args.device, args.one)))
        return
    results = list(measure(args.device, args.ranks or [1, 2], args.repeats))

    def cells(result: Result) -> list[str]:
        times = (
            result.fork,
            result.call,
            result.fork_and_call,
            result.with_collective,
            result.process,
        )
        ratios = f"{result.ratio:.2f} ({result.ratio_with_collective:.2f})"
        return [
            result.cache,
            str(result.ranks),
            *(f"{seconds * 1e3:,.0f}" for seconds in times),
            ratios,
        ]

    print(f"from fork() to the first results, {args.device}, milliseconds, medians")
    print_table(
        ["cache", "ranks", "fork", "call", "both", "and collective", "process", "ratio"],
        [cells(row) for row in results],
    )
    save(
        args.json,
        "startup",
        results,
        {"device": args.device, "repeats": args.repeats, "rows": ROWS},
    )


if __name__ == "__main__":
    main()
