"""Samples a second of two simulations, π and the price of an option: on 1, 2, … ranks, and beside
what else draws them.

    python benchmarks/montecarlo.py --json benchmarks/results/cpu-2core-montecarlo.json
    python benchmarks/montecarlo.py --device cuda --ranks 1 2 4 --json
    benchmarks/results/h200x4-montecarlo.json
    python benchmarks/montecarlo.py --device cuda --ranks 1 2 4 --samples 1e11 --no-peers        # scaling
    python benchmarks/montecarlo.py --device cuda --peer-python ~/jax/bin/python

pi: two uniform numbers a sample. option: a European call by Black and Scholes, one normal number a
sample. What is measured of this library are `synk.expectation` of a function of the index, which
also finds the standard error, and the hand-written kernels of kernels/montecarlo.py. Both draw with
ten rounds of Philox; other expectations take all numbers of a block, and 7 rounds: a row of theirs
is the mean of one or two pairs for π, of two paths in float64 or of four in float32. Everything
else is in float64 but where a row says float32. Every call has random numbers of its own, and its
mean must be within five standard errors of the closed form.

On CPUs: beside loops that one would write with @njit and the same generator, for one core and with
prange for threads, and NumPy with its own Philox, in arrays that fit the cache. All are timed in
turns.

On GPUs: beside CuPy, JAX, and numba-cuda with its own generator, in processes of their own. They
take as many samples in a call as they can in about a tenth of a second, but no more than asked for
here; their rates no longer depend on it.

"each": samples a second of a rank, device or thread. "scaling": that over the same on the smallest
world. "ratio": the time that a row takes for a sample on each of its workers, over that of the
expectation on the ranks beside it, for as many samples where it has them; above 1, the expectation
is faster. An njit loop at 0.91 is 10 % faster on its core.
"""  # noqa: E501

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numba
import numpy as np
from _common import Timing, arguments, gpus, print_table, save, time_calls, time_in_turns
from _gpu_call_peers import Peer, Settings, peer_rows
from _montecarlo import (
    DISCOUNT,
    DRIFT,
    EXACT,
    RATE,
    SPOT,
    SPREAD,
    STRIKE,
    VOLATILITY,
    YEARS,
    Work,
    check,
)
from numba import njit, prange

import synknumba as synk
from synknumba.kernels import montecarlo

SAMPLES = {"cpu": (10_000_000,), "cuda": (1_000_000_000, 10_000_000_000)}
CHUNK = 1 << 14  # samples that NumPy draws at once: 128 KiB an array, for caches of 1 MiB
MOST_NUMPY = 1 << 20  # samples of a call of NumPy's: the loop around it costs nothing any more
AT_LEAST = 3  # calls on GPUs
OPTION = (SPOT, STRIKE, RATE, VOLATILITY, YEARS)

ROUNDS = (10, 7)
F4 = np.float32

uniform2, uniform4 = synk.random.uniform2, synk.random.uniform4
normal, normal2, normal4 = synk.random.normal, synk.random.normal2, synk.random.normal4


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; times in microseconds, `each` in samples a second."""

    library: str
    what: str
    work: str
    device: str
    samples: int
    ranks: int  # that it is compared with
    workers: int
    timing: Timing
    each: float
    scaling: float | None = None
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is timed: `mean` gets a number that no other call has had."""

    library: str
    what: str
    samples: int
    workers: int
    mean: Callable[[int], float]


# ---- this library --------------------------------------------------------------------------------


@synk.expectation()
def point(i, seed):
    """Four times the share of the unit circle in the unit square."""
    x, y = uniform2(seed, i, 0)
    return 4.0 if x * x + y * y < 1.0 else 0.0


@synk.expectation()
def payoff(i, seed):
    """What a European call pays, discounted."""
    return DISCOUNT * max(SPOT * math.exp(DRIFT + SPREAD * normal(seed, i, 0)) - STRIKE, 0.0)


def pair_of(rounds):
    """A pair of float64."""

    @synk.expectation()
    def pair(i, seed):
        x, y = uniform2(seed, i, 0, rounds)
        return 4.0 if x * x + y * y < 1.0 else 0.0

    return pair


def pairs_of(rounds):
    """Two pairs of float32."""
    unit = F4(1.0)

    @synk.expectation()
    def pairs(i, seed):
        x, y, u, v = uniform4(seed, i, 0, rounds)
        first = 2.0 if x * x + y * y < unit else 0.0
        second = 2.0 if u * u + v * v < unit else 0.0
        return first + second

    return pairs


def two_paths_of(rounds):
    """Two paths in float64."""

    @synk.expectation()
    def two_paths(i, seed):
        y, z = normal2(seed, i, 0, rounds)
        first = max(SPOT * math.exp(DRIFT + SPREAD * y) - STRIKE, 0.0)
        second = max(SPOT * math.exp(DRIFT + SPREAD * z) - STRIKE, 0.0)
        return 0.5 * DISCOUNT * (first + second)

    return two_paths


def four_paths_of(rounds):
    """Four paths in float32."""
    spot, strike, drift, spread = F4(SPOT), F4(STRIKE), F4(DRIFT), F4(SPREAD)
    nothing, share = F4(0.0), F4(0.25 * DISCOUNT)

    @synk.expectation()
    def four_paths(i, seed):
        w, x, y, z = normal4(seed, i, 0, rounds)
        first = max(spot * math.exp(drift + spread * w) - strike, nothing)
        second = max(spot * math.exp(drift + spread * x) - strike, nothing)
        third = max(spot * math.exp(drift + spread * y) - strike, nothing)
        fourth = max(spot * math.exp(drift + spread * z) - strike, nothing)
        return share * ((first + second) + (third + fourth))

    return four_paths


# For each function that draws: samples of a row, and the expectation.
BLOCKS: Mapping[Work, Mapping[str, tuple[int, Callable[[int], Any]]]] = {
    "pi": {"uniform2": (1, pair_of), "uniform4, float32": (2, pairs_of)},
    "option": {"normal2": (2, two_paths_of), "normal4, float32": (4, four_paths_of)},
}


def with_blocks(work: Work, samples: int, ranks: int) -> Iterator[Candidate]:
    """Expectations that take all numbers of a block, for each number of rounds."""
    for name, (each, make) in BLOCKS[work].items():
        rows = synk.arange(samples // each)
        for rounds in ROUNDS:
            mean = make(rounds)
            yield Candidate(
                "synknumba",
                f"expectation, {name}, {rounds} rounds",
                samples,
                ranks,
                lambda seed, mean=mean, rows=rows: mean(rows, seed).mean,
            )


def own(work: Work, samples: int, ranks: int) -> list[Candidate]:
    """The expectation, the kernel from the library of kernels, and the faster expectations."""
    rows = synk.arange(samples)
    if work == "pi":
        calls: list[Callable[[int], float]] = [
            lambda seed: point(rows, seed).mean,
            lambda seed: 4.0 * montecarlo.count_inside(rows, seed) / samples,
        ]
    else:
        calls = [
            lambda seed: payoff(rows, seed).mean,
            lambda seed: montecarlo.european_payoffs(rows, seed, *OPTION)[0] / samples,
        ]
    plain = [
        Candidate("synknumba", what, samples, ranks, call)
        for what, call in zip(("expectation", "kernel"), calls, strict=True)
    ]
    return [*plain, *with_blocks(work, samples, ranks)]


# ---- peers on CPUs -------------------------------------------------------------------------------


@njit
def point_loop(n, seed):
    """As one would write it for one core."""
    hits = 0
    for i in range(n):
        x, y = uniform2(seed, i, 0)
        if x * x + y * y < 1.0:
            hits += 1
    return 4.0 * hits / n


@njit(parallel=True)
def point_threads(n, seed):
    """And for several."""
    hits = 0
    for i in prange(n):
        x, y = uniform2(seed, i, 0)
        if x * x + y * y < 1.0:
            hits += 1
    return 4.0 * hits / n


@njit
def payoff_loop(n, seed):
    total = 0.0
    for i in range(n):
        total += max(SPOT * math.exp(DRIFT + SPREAD * normal(seed, i, 0)) - STRIKE, 0.0)
    return DISCOUNT * total / n


@njit(parallel=True)
def payoff_threads(n, seed):
    total = 0.0
    for i in prange(n):
        total += max(SPOT * math.exp(DRIFT + SPREAD * normal(seed, i, 0)) - STRIKE, 0.0)
    return DISCOUNT * total / n


def point_numpy(n: int, seed: int) -> float:
    """In arrays that are made once."""
    generator = np.random.Generator(np.random.Philox(seed))
    x, y = np.empty((2, min(n, CHUNK)))
    hits = 0
    for start in range(0, n, CHUNK):
        u, v = x[: n - start], y[: n - start]
        for array in (u, v):
            generator.random(out=array)
            np.square(array, out=array)
        u += v
        hits += np.count_nonzero(u < 1.0)
    return 4.0 * hits / n


def payoff_numpy(n: int, seed: int) -> float:
    generator = np.random.Generator(np.random.Philox(seed))
    z = np.empty(min(n, CHUNK))
    total = 0.0
    for start in range(0, n, CHUNK):
        price = z[: n - start]
        generator.standard_normal(out=price)
        price *= SPREAD
        price += DRIFT
        np.exp(price, out=price)
        price *= SPOT
        price -= STRIKE
        total += np.maximum(price, 0.0, out=price).sum()
    return DISCOUNT * total / n


LOOPS: Mapping[Work, Sequence[Callable[[int, int], float]]] = {
    "pi": (point_loop, point_numpy, point_threads),
    "option": (payoff_loop, payoff_numpy, payoff_threads),
}


def on_cores(work: Work, samples: int, threads: int) -> list[Candidate]:
    """The loop, NumPy, and the loop on threads, if there are to be any."""
    loop, with_numpy, with_threads = LOOPS[work]
    few = min(samples, MOST_NUMPY)
    found = [
        Candidate("numba", "njit loop", samples, 1, lambda seed: loop(samples, seed)),
        Candidate("numpy", "Generator(Philox)", few, 1, lambda seed: with_numpy(few, seed)),
    ]
    if threads > 1:
        numba.set_num_threads(threads)
        found.append(
            Candidate(
                "numba",
                "prange, threads",
                samples,
                threads,
                lambda seed: with_threads(samples, seed),
            )
        )
    return found


# ---- measuring -----------------------------------------------------------------------------------


def checked(candidate: Candidate, work: Work) -> Callable[[], None]:
    """A call with the next seed, whose result is looked at."""
    seeds = count()

    def call() -> None:
        check(work, candidate.mean(next(seeds)), candidate.samples)

    return call


def measure_cpu(
    worlds: Sequence[int], sizes: Sequence[int], seconds: float, *, peers: bool
) -> Iterator[Result]:
    """Every world beside the loops, in turns. Threads come in the last one: they would be in the
    way of a fork.
    """
    threads = min(worlds[-1], numba.config.NUMBA_NUM_THREADS)
    for ranks in worlds:
        with synk.fork(ranks, device="cpu"):
            for work in EXACT:
                for samples in sizes:
                    candidates = own(work, samples, ranks)
                    if peers:
                        candidates += on_cores(work, samples, threads if ranks == worlds[-1] else 1)
                    calls = [checked(candidate, work) for candidate in candidates]
                    timings = time_in_turns(calls, seconds * len(calls))
                    for candidate, timing in zip(candidates, timings, strict=True):
                        yield _result(candidate, work, "cpu", ranks, timing)


def measure_gpu(worlds: Sequence[int], sizes: Sequence[int], seconds: float) -> Iterator[Result]:
    """This library's."""
    for ranks in worlds:
        with synk.fork(ranks, device="cuda"):
            for work in EXACT:
                for samples in sizes:
                    for candidate in own(work, samples, ranks):
                        call = checked(candidate, work)
                        call()  # compiles, and the next one records a graph
                        timing = time_calls(call, seconds, at_least=AT_LEAST)
                        yield _result(candidate, work, "cuda", ranks, timing)


def measure_peers(
    worlds: Sequence[int], sizes: Sequence[int], seconds: float, python: str
) -> Iterator[Result]:
    """Those on GPUs; what is missing is left out."""
    interpreters: dict[Peer, str] = {"cupy": sys.executable, "numba": sys.executable, "jax": python}
    for peer, interpreter in interpreters.items():
        for work in EXACT:
            for row in peer_rows(
                peer, Settings(work, "cuda", tuple(worlds), tuple(sizes), seconds), interpreter
            ):
                candidate = Candidate(
                    row.library, row.what, row.rows, row.ranks, lambda _: math.nan
                )
                yield _result(candidate, work, "cuda", row.ranks, row.timing)


def _result(candidate: Candidate, work: Work, device: str, ranks: int, timing: Timing) -> Result:
    samples, workers = candidate.samples, candidate.workers
    each = samples / workers / (timing.median * 1e-6)
    return Result(
        candidate.library, candidate.what, work, device, samples, ranks, workers, timing, each
    )


def compared(results: Sequence[Result]) -> list[Result]:
    """Every row beside itself on the smallest world, and beside the expectation."""
    smallest = min(row.ranks for row in results)
    alone = {_same(row): row.each for row in results if row.ranks == smallest}

    def compare(row: Result) -> Result:
        base = alone.get(_same(row)) if row.workers == row.ranks else None
        return replace(
            row,
            scaling=None if base is None else row.each / base,
            ratio=_beside(row, results) / row.each,
        )

    return [compare(row) for row in results]


def _same(row: Result) -> tuple[str, str, str, int | None]:
    """What does not change with the ranks. Peers on GPUs take as many samples as they can."""
    return (
        row.library,
        row.what,
        row.work,
        row.samples if row.library == "synknumba" or row.device == "cpu" else None,
    )


def _beside(row: Result, results: Sequence[Result]) -> float:
    """The rate of the expectation that is most like this row: in its ranks, then in its samples,
    else with the most.
    """
    expectations = [own for own in results if own.what == "expectation" and own.work == row.work]
    return max(
        expectations,
        key=lambda own: (own.ranks == row.ranks, own.samples == row.samples, own.samples),
    ).each


# ---- all of it -----------------------------------------------------------------------------------


def size(text: str) -> int:
    """A whole number, also as 1e9."""
    number = float(text)
    if not (number.is_integer() and number >= 1):
        raise argparse.ArgumentTypeError(f"{text} is not a number of samples")
    return int(number)


def report(results: Sequence[Result], device: str) -> None:
    def cells(row: Result) -> list[Any]:
        ratios = ["" if number is None else f"{number:.3f}" for number in (row.scaling, row.ratio)]
        times = [f"{number / 1e3:,.2f}" for number in (row.timing.median, row.timing.minimum)]
        name = f"{row.library}: {row.what}"
        return [
            name,
            row.work,
            f"{row.samples:,}",
            str(row.ranks),
            str(row.workers),
            *times,
            f"{row.each:.3e}",
            *ratios,
        ]

    print(
        f"simulations, {device}; median and minimum of a call in milliseconds, "
        f"samples a second of each worker"
    )
    head = ["", "", "samples", "ranks", "workers", "median", "minimum", "each", "scaling", "ratio"]
    print_table(head, [cells(row) for row in results])


def main() -> None:
    """Measures, prints, and saves where asked to."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--samples",
        type=size,
        nargs="+",
        help="such as 1e9 (default: 1e7 on CPUs, 1e9 and 1e10 on GPUs)",
    )
    parser.add_argument("--no-peers", action="store_true", help="measure this library only")
    parser.add_argument(
        "--peer-python", metavar="PATH", default=sys.executable, help="a Python that has JAX"
    )
    args = parser.parse_args()
    worlds = sorted(args.ranks or ([1, 2] if args.device == "cpu" else [max(1, len(gpus()))]))
    sizes = args.samples or SAMPLES[args.device]

    if args.device == "cpu":
        results = list(measure_cpu(worlds, sizes, args.seconds, peers=not args.no_peers))
    else:
        results = list(measure_gpu(worlds, sizes, args.seconds))
        if not args.no_peers:
            results += measure_peers(worlds, sizes, args.seconds, args.peer_python)
    results = sorted(compared(results), key=lambda row: (row.work != "pi", row.ranks))
    report(results, args.device)
    save(
        args.json,
        "montecarlo",
        results,
        {"device": args.device, "seconds": args.seconds, "samples": list(sizes)},
    )


if __name__ == "__main__":
    main()
