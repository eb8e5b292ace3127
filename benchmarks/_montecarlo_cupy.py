"""CuPy: arrays of random numbers, each of which one reduction kernel reads. Started by
`_gpu_call_peers`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cupy
from _gpu_call_peers import Row, Settings, print_rows, time_steps
from _montecarlo import DISCOUNT, DRIFT, SPOT, SPREAD, STRIKE, affordable, check

# samples in an array: of those that fit the cache, and of many; the faster one counts
CHUNKS = (
    1 << 22,
    1 << 26,
)

# Points are complex numbers: CuPy reduces several inputs in one block, a single one in many.
INSIDE = cupy.ReductionKernel(
    "T z", "float64 sum", "norm(z) < 1 ? 4.0 : 0.0", "a + b", "sum = a", "0", "inside"
)
COMPLEX = {"float64": "complex128", "float32": "complex64"}
PAYOFFS = cupy.ReductionKernel(
    "T z",
    "float64 sum",
    f"max((T){SPOT} * exp((T){DRIFT!r} + (T){SPREAD!r} * z) - (T){STRIKE}, (T)0)",
    "a + b",
    "sum = a",
    "0",
    "payoffs",
)


def sum_inside(size: int, dtype: str) -> Any:
    """Of four times the points in the circle."""
    return INSIDE(cupy.random.random_sample(2 * size, dtype).view(COMPLEX[dtype]))


def sum_payoffs(size: int, dtype: str) -> Any:
    """Of the discounted payments."""
    return DISCOUNT * PAYOFFS(cupy.random.standard_normal(size, dtype))


def mean_of(
    add_up: Callable[[int, str], Any], chunk: int, dtype: str, ranks: int, samples: int
) -> float:
    """Of so many samples on all devices together; a multiple of the chunks."""
    devices = [cupy.cuda.Device(rank) for rank in range(ranks)]
    totals = []
    for device in devices:
        with device:
            totals.append(cupy.zeros((), "float64"))
    for _ in range(samples // (chunk * ranks)):
        for k, device in enumerate(devices):
            with device:
                totals[k] += add_up(chunk, dtype)
    return sum(map(float, totals)) / samples


def cupy_rows(settings: Settings) -> Iterator[Row]:
    """One process, which launches on every GPU, then waits for all."""
    add_up = sum_inside if settings.work == "pi" else sum_payoffs
    for ranks in settings.ranks:
        most = max(settings.rows)
        for dtype in ("float64", "float32"):
            found = []
            for chunk in {max(1, min(chunk, most // ranks)) for chunk in CHUNKS}:
                mean = partial(mean_of, add_up, chunk, dtype, ranks)
                samples = affordable(mean, chunk * ranks, most, settings.seconds)

                def step(mean: Callable[[int], float] = mean, samples: int = samples) -> None:
                    check(settings.work, mean(samples), samples)

                row = Row(
                    "CuPy",
                    f"random arrays in chunks, ReductionKernel, {dtype}",
                    ranks,
                    samples,
                    time_steps(step, settings),
                )
                found.append(row)
            yield min(found, key=lambda row: row.timing.median / row.rows)


if __name__ == "__main__":
    print_rows(cupy_rows)
