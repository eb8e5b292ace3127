"""Numba's threads on cores: the work of many_ranks.py, expectation.py and minibatch.py as loops of
`prange`, and the copy that limits an all_reduce. Prints JSON; imports nothing of synknumba.

python benchmarks/_prange.py THREADS SECONDS SAMPLES,… ROWS,… ELEMENTS,… TABLE_ROWS BATCH COLUMNS

SAMPLES are added up, of ROWS the mean and its standard error are taken, and ELEMENTS float32 are
copied by every thread.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import numba
import numpy as np
from _common import Timing, time_calls
from numba import njit, prange
from numpy.typing import NDArray

AT_LEAST = 5
BLOCK = 1 << 20  # random numbers, which take longer to draw than to copy
LARGE = 1 << 18  # elements, from which on a copy takes longer than starting the threads


@njit(parallel=True, fastmath=True, cache=True)
def sum_of_waves(x, beta):
    """Σ exp(−β x²) cos x."""
    total = 0.0
    for i in prange(x.shape[0]):
        total += math.exp(-beta * x[i] * x[i]) * math.cos(x[i])
    return total


@njit(parallel=True, fastmath=True, cache=True)
def mean_of_waves(x, beta):
    """The mean of the same, and its standard error."""
    total = 0.0
    squares = 0.0
    for i in prange(x.shape[0]):
        wave = math.exp(-beta * x[i] * x[i]) * math.cos(x[i])
        total += wave
        squares += wave * wave
    mean = total / x.shape[0]
    return mean, math.sqrt(max(0.0, squares / x.shape[0] - mean * mean) / x.shape[0])


@njit(parallel=True, fastmath=True, cache=True)
def energy(x, beta):
    """Σ exp(−β x²)."""
    total = 0.0
    for i in prange(x.shape[0]):
        total += math.exp(-beta * x[i] * x[i])
    return total


@njit(parallel=True, fastmath=True, cache=True)
def sum_of_rows(table, numbers, threads):
    """The sums of columns, of the rows with these numbers; each thread has sums of its own."""
    partial = np.zeros((threads, table.shape[1]))
    for thread in prange(threads):
        begin = thread * numbers.shape[0] // threads
        end = (thread + 1) * numbers.shape[0] // threads
        for k in range(begin, end):
            row = table[numbers[k]]
            for column in range(row.shape[0]):
                partial[thread, column] += row[column]
    return partial.sum(axis=0)


def waves(count: int) -> NDArray[np.float64]:
    """Rows for `sum_of_waves`: a block of random numbers again and again."""
    return np.resize(np.random.default_rng(0).random(min(count, BLOCK)), count)


def exact_sum(count: int) -> float:
    """What `sum_of_waves` must give for β = 0.5, by NumPy."""
    x = waves(min(count, BLOCK))
    terms = np.exp(-0.5 * x * x) * np.cos(x)
    repeats, rest = divmod(count, len(x))
    return float(repeats * terms.sum() + terms[:rest].sum())


def table_of(rows: int, columns: int) -> NDArray[np.float32]:
    """Whole numbers, whose sums are exact in any order."""
    return np.random.default_rng(1).integers(0, 16, (rows, columns)).astype(np.float32)


def lists_of(rows: int, batch: int) -> list[NDArray[np.int64]]:
    """Numbers of random rows, for several steps."""
    rng = np.random.default_rng(2)
    return [rng.integers(0, rows, batch) for _ in range(8)]


def copies(threads: int, elements: int) -> Callable[[], object]:
    """Has every thread copy an array of its own, as NumPy does."""
    sources, targets = (np.ones((threads, elements), np.float32) for _ in range(2))
    pool = ThreadPoolExecutor(threads)

    def copy(thread: int) -> None:
        np.copyto(targets[thread], sources[thread])

    return lambda: list(pool.map(copy, range(threads)))


def measure(arguments: list[str]) -> Iterator[tuple[str, Timing]]:
    threads, seconds = int(arguments[0]), float(arguments[1])
    sums, means, sizes = ([int(size) for size in text.split(",")] for text in arguments[2:5])
    rows, batch, columns = map(int, arguments[5:])
    numba.set_num_threads(threads)

    def timed(call: Callable[[], object]) -> Timing:
        return time_calls(call, seconds, at_least=AT_LEAST)

    for count in sums:
        x = waves(count)
        np.testing.assert_allclose(sum_of_waves(x, 0.5), exact_sum(count), rtol=1e-9)
        yield f"kernel and sum, {count}", timed(lambda x=x: sum_of_waves(x, 0.5))
    for count in means:
        x = waves(count)
        yield f"expectation, {count}", timed(lambda x=x: mean_of_waves(x, 0.5))
    table, lists = table_of(rows, columns), lists_of(rows, batch)
    np.testing.assert_array_equal(
        sum_of_rows(table, lists[0], threads), table[lists[0]].sum(axis=0, dtype=np.float64)
    )
    turns = cycle(lists)
    yield f"random rows, {batch}", timed(lambda: sum_of_rows(table, next(turns), threads))
    for count in sizes if threads > 1 else ():
        if count < LARGE:
            continue
        yield f"all_reduce, {count}", timed(copies(threads, count))


def main() -> None:
    found = {what: dataclasses.asdict(timing) for what, timing in measure(sys.argv[1:])}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
