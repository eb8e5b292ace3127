"""Expectation value of exp(−β·x²) over many rows: with serial NumPy, on one rank, and on all ranks.

    python examples/energy.py                      ten million random rows, one rank per GPU or else per CPU core
    python examples/energy.py --rows 50000000 --ranks 4
    python examples/energy.py samples.npy          your own numbers, read from the file straight into shared memory

The script stays serial. `energy` is an ordinary Numba CUDA kernel. `energy(x, beta)` gives every
rank its rows of `x`, launches the kernel on all ranks at once, and sums their results. The same
kernel runs on GPUs and, compiled, on CPU cores.

For each method the script prints the result and the median wall time of several calls. A first
call, which compiles the kernel and touches the memory for the first time, is not timed.
"""  # noqa: E501

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numba import cuda

import synknumba as synk

BUSY = 1.5  # load of a core, before the ranks are there, above which times are not to be trusted


# 1024 blocks stride over any number of rows: one atomic addition per thread, not per row.
@synk.parallel(grid=1024, outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def energy(x, beta, total):
    """Sums exp(−beta·x²) over this rank's rows of x: float, shape (n,)."""
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        acc += math.exp(-beta * x[i] * x[i])
    cuda.atomic.add(total, 0, acc)


def serial(x: np.ndarray, beta: float) -> float:
    """Returns the mean computed with NumPy in this process."""
    return float(np.exp(-np.float64(beta) * x * x).mean())


def load(path: Path | None, rows: int) -> tuple[synk.Data, str]:
    """Returns the rows in shared memory and a description of their origin."""
    if path is None:
        return synk.data(np.random.default_rng(0).random(rows)), "random numbers in [0, 1)"
    # maps without reading: the only copy is into shared memory
    mapped = np.load(path, mmap_mode="r")
    return synk.data(mapped.reshape(-1)), str(path)


def timed(compute: Callable[[], float], repeats: int) -> tuple[float, float]:
    """Returns the computed value and the median wall time in seconds."""
    value = compute()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        compute()
        times.append(time.perf_counter() - start)
    return value, statistics.median(times)


def main() -> None:
    """Runs all three methods and compares their results."""
    parser = argparse.ArgumentParser(description="An expectation value, serial and on all ranks.")
    parser.add_argument(
        "file", nargs="?", type=Path, help="a .npy file of numbers; default: random rows"
    )
    parser.add_argument(
        "--rows", type=int, default=10_000_000, help="random rows (default: 10,000,000)"
    )
    parser.add_argument("--beta", type=float, default=0.5, help="the constant β (default: 0.5)")
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--repeats", type=int, default=7, help="calls that are timed (default: 7)")
    args = parser.parse_args()

    x, source = load(args.file, args.rows)
    beta = args.beta
    print(f"mean of exp(-{beta:g} x²) over {len(x):,} rows of {x.dtype}: {source}\n")
    processes, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    print(f"{'':16}{'result':>22}{'time per call':>17}{'rows per second':>18}")

    def show(name: str, value: float, seconds: float, note: str = "") -> None:
        print(
            f"{name:16}{value:22.16f}{seconds * 1e3:14.2f} ms{len(x) / seconds:18.2e}   "
            f"{note}".rstrip()
        )

    expected, numpy_seconds = timed(lambda: serial(x.data, beta), args.repeats)
    show("NumPy, serial", expected, numpy_seconds)

    one_seconds = None
    for ranks in (1, args.ranks):
        with synk.fork(ranks, device=args.device) as world:
            if world.world_size == 1 and one_seconds is not None:
                continue  # only one device
            value, seconds = timed(lambda: energy(x, beta) / len(x), args.repeats)
            plural = "" if world.world_size == 1 else "s"
            name = f"{world.world_size} {world.device} rank{plural}"
            # float64 sums in a different order
            np.testing.assert_allclose(value, expected, rtol=1e-10)
            note = f"{numpy_seconds / seconds:.2f} x NumPy"
            if one_seconds is None:
                one_seconds = seconds
            else:
                note += f", {one_seconds / seconds:.2f} x one rank"
            show(name, float(value), seconds, note)

    if processes > BUSY * cores:
        print(f"\nthe machine is busy, and times are too long: load {processes:.1f}, {cores} cores")
    print("\nall results agree")


if __name__ == "__main__":
    main()
