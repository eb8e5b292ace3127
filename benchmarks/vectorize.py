"""Functions of numbers, element by element: `synk.vectorize` beside Numba's ufuncs and NumPy, and
on GPUs beside CuPy.

    python benchmarks/vectorize.py --json benchmarks/results/cpu-2core-vectorize.json
    python benchmarks/vectorize.py --device cuda --ranks 1 2 4 --json
    benchmarks/results/h200x2-vectorize.json

a x + y is bound by memory, exp(−x²/2)·cos(3x) computes, and x + y is what rows are reduced with.
All in float64.

"out=": into `Data`, or an array, that is there already. "gathered": into a new array. "on devices":
of variables, which lie on the GPUs, beside arrays of CuPy's and Numba's that lie on one. Otherwise
rows are `Data`, and on GPUs are copied there and back.

On CPUs those of one kind are timed in turns: NumPy and `numba.vectorize` for one core, which is
`target="cpu"`. With `target="parallel"`, and with loops of prange for reductions, it is timed when
the ranks have ended, since those that wait spin, with as many threads as there are ranks. On GPUs
peers run in a process of their own, on one GPU.

"limit: copies" is the time in which all ranks copy as many bytes as the function reads and writes,
by their speed in the same run, where those do not fit the caches.

"GB/s": bytes that the function reads and writes, by the median. "ratio": that row's median over
that of synknumba of the same kind, on as many ranks where it was measured there; above 1, synknumba
is faster.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np
from _common import Timing, arguments, gpus, print_table, save, time_calls, time_in_turns
from _copies import COPY_BYTES, copies, limit
from _gpu_call_peers import Peer, Settings, peer_rows
from _vectorize import BYTES, FACTOR, FORMULAS, How, Work, check, exact, rows_of

import synknumba as synk

ROWS = {"cpu": (10_000, 1_000_000, 10_000_000), "cuda": (1_000_000, 100_000_000)}
OWN = "synknumba"
SIGNATURE = ["float64(float64, float64)"]


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; times in microseconds."""

    library: str
    how: How
    work: Work
    device: str
    rows: int
    ranks: int  # that it is compared with
    workers: int
    timing: Timing
    gb_per_s: float
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is timed; `result` tells what it has made."""

    library: str
    how: How
    workers: int
    call: Callable[[], Any]
    result: Callable[[Any], Any] = np.asarray


# ---- the functions -------------------------------------------------------------------------------


def linear(x, y):
    return FACTOR * x + y


def wave(x, y):
    return math.exp(-0.5 * x * x) * math.cos(3.0 * x)


def add(x, y):
    return x + y


FUNCTIONS: dict[Work, Callable[..., float]] = {"linear": linear, "wave": wave, "sum of rows": add}


def numpy_into(work: Work, x: Any, y: Any, out: Any, spare: Any) -> Any:
    """As few passes over memory as NumPy allows."""
    if work == "linear":
        np.multiply(x, FACTOR, out=out)
        return np.add(out, y, out=out)
    np.multiply(x, x, out=out)
    out *= -0.5
    np.exp(out, out=out)
    np.multiply(x, 3.0, out=spare)
    np.cos(spare, out=spare)
    return np.multiply(out, spare, out=out)


def gathered(variable: Any) -> Any:
    """The rows of all ranks, one after another."""
    return synk.gather(variable, nd_up=0)


# ---- candidates ----------------------------------------------------------------------------------


def own(work: Work, hosts: Sequence[Any], ranks: int, device: str) -> Iterator[Candidate]:
    """This library's."""
    function = synk.vectorize(FUNCTIONS[work], rows=("x", "y"))
    x, y, out = (synk.data(array) for array in (*hosts, np.zeros_like(hosts[0])))
    if work == "sum of rows":
        yield Candidate(OWN, "reduce", ranks, lambda: function.reduce(x))
    else:
        yield Candidate(OWN, "out=", ranks, lambda: function(x, y, out=out))
        yield Candidate(OWN, "gathered", ranks, lambda: function(x, y))
    if device == "cpu":
        return
    held = [synk.variable(array) for array in (*hosts, np.zeros_like(hosts[0]))]
    synk.scatter(held)
    if work == "sum of rows":
        yield Candidate(OWN, "on devices, reduce", ranks, lambda: function.reduce(held[0]))
    else:
        yield Candidate(
            OWN, "on devices, out=", ranks, lambda: function(*held[:2], out=held[2]), gathered
        )


def on_cores(work: Work, hosts: Sequence[Any]) -> Iterator[Candidate]:
    """NumPy, and Numba's ufuncs, on one core."""
    x, y = hosts
    single = numba.vectorize(SIGNATURE)(FUNCTIONS[work])
    if work == "sum of rows":
        yield Candidate("numpy", "reduce", 1, lambda: np.add.reduce(x))
        yield Candidate("numba: vectorize", "reduce", 1, lambda: single.reduce(x))
        return
    out, spare = np.zeros_like(x), np.empty_like(x)
    yield Candidate("numpy", "out=", 1, lambda: numpy_into(work, x, y, out, spare))
    yield Candidate("numpy", "gathered", 1, lambda: exact(work, x, y))
    yield Candidate("numba: vectorize", "out=", 1, lambda: single(x, y, out=out))
    yield Candidate("numba: vectorize", "gathered", 1, lambda: single(x, y))


@numba.njit(parallel=True, fastmath=True)
def sum_on_threads(x):
    total = 0.0
    for i in numba.prange(x.shape[0]):
        total += x[i]
    return total


def on_threads(work: Work, hosts: Sequence[Any], threads: int) -> Iterator[Candidate]:
    """Numba's threads."""
    x, y = hosts
    if work == "sum of rows":
        yield Candidate("numba: prange", "reduce", threads, lambda: sum_on_threads(x))
        return
    out = np.zeros_like(x)
    parallel = numba.vectorize(SIGNATURE, target="parallel")(FUNCTIONS[work])
    library = "numba: vectorize, parallel"
    yield Candidate(library, "out=", threads, lambda: parallel(x, y, out=out))
    yield Candidate(library, "gathered", threads, lambda: parallel(x, y))


# ---- measuring -----------------------------------------------------------------------------------


def measure(
    device: str, worlds: Sequence[int], sizes: Sequence[int], seconds: float, *, peers: bool
) -> Iterator[Result]:
    """Every world, beside what runs on one core."""
    for ranks in worlds:
        with synk.fork(ranks, device=device):
            _, bandwidth = copies(device)
            for work in FUNCTIONS:
                for rows in sizes:
                    yield from limits(work, device, rows, ranks, bandwidth)
                    hosts = rows_of(rows)
                    candidates = list(own(work, hosts, ranks, device))
                    if peers and device == "cpu":
                        candidates += on_cores(work, hosts)
                    yield from compare((work, device, rows, ranks), hosts, candidates, seconds)


def limits(work: Work, device: str, rows: int, ranks: int, gb_per_s: float) -> Iterator[Result]:
    """What copies of as many bytes on all ranks take, where the bytes are not in the caches."""
    nbytes = BYTES[work] * rows / ranks
    how: How = "reduce" if work == "sum of rows" else "out="
    if device == "cuda":
        how = "on devices, reduce" if how == "reduce" else "on devices, out="
    if nbytes >= COPY_BYTES["cpu"]:
        timing = limit(nbytes, gb_per_s)
        yield result("limit: copies", how, work, device, rows, (ranks, ranks), timing)


def measure_threads(
    worlds: Sequence[int], sizes: Sequence[int], seconds: float
) -> Iterator[Result]:
    """Numba's threads. After the last fork: they would be in its way."""
    for threads in worlds:
        if threads > numba.config.NUMBA_NUM_THREADS:
            continue
        numba.set_num_threads(threads)
        for work in FUNCTIONS:
            for rows in sizes:
                hosts = rows_of(rows)
                candidates = list(on_threads(work, hosts, threads))
                yield from compare((work, "cpu", rows, threads), hosts, candidates, seconds)


def compare(
    case: tuple[Work, str, int, int],
    hosts: Sequence[Any],
    candidates: Sequence[Candidate],
    seconds: float,
) -> Iterator[Result]:
    """Checks and times what computes the same; case: function, device, rows, ranks."""
    work, device, rows, ranks = case
    wanted = exact(work, *hosts)
    for candidate in candidates:
        for _ in range(3):  # compiles, and records a graph
            check(candidate.library, candidate.result(candidate.call()), wanted)
    timings = timed(candidates, device, seconds)
    for candidate, timing in zip(candidates, timings, strict=True):
        workers = ranks, candidate.workers
        yield result(candidate.library, candidate.how, work, device, rows, workers, timing)


def timed(candidates: Sequence[Candidate], device: str, seconds: float) -> list[Timing]:
    """On cores those of one kind in turns; on a GPU there is nobody else."""
    if device == "cuda":
        return [time_calls(one.call, seconds, at_least=5) for one in candidates]
    timings: dict[int, Timing] = {}
    for how in dict.fromkeys(one.how for one in candidates):
        chosen = [k for k, one in enumerate(candidates) if one.how == how]
        timings |= zip(
            chosen,
            time_in_turns([candidates[k].call for k in chosen], seconds * len(chosen)),
            strict=True,
        )
    return [timings[k] for k in range(len(candidates))]


def measure_peers(sizes: Sequence[int], seconds: float) -> Iterator[Result]:
    """Those on GPUs; what is missing is left out."""
    peers: tuple[Peer, ...] = ("cupy", "numba")
    for peer in peers:
        for work in FUNCTIONS:
            for row in peer_rows(peer, Settings(work, "cuda", (1,), tuple(sizes), seconds)):
                yield result(row.library, row.what, work, "cuda", row.rows, (1, 1), row.timing)


def result(
    library: str,
    how: Any,
    work: Work,
    device: str,
    rows: int,
    workers: tuple[int, int],
    timing: Timing,
) -> Result:
    return Result(
        library, how, work, device, rows, *workers, timing, BYTES[work] * rows / timing.median / 1e3
    )


def compared(results: Sequence[Result]) -> list[Result]:
    """With their ratios."""
    ours = [row for row in results if row.library == OWN]

    def ratio(row: Result) -> float | None:
        alike = [
            one for one in ours if (one.how, one.work, one.rows) == (row.how, row.work, row.rows)
        ]
        if not alike:
            return None
        return row.timing.median / max(alike, key=lambda one: one.ranks == row.ranks).timing.median

    return [replace(row, ratio=ratio(row)) for row in results]


def report(results: Sequence[Result], device: str) -> None:
    def cells(row: Result) -> list[str]:
        times = [f"{number:,.1f}" for number in (row.timing.median, row.timing.minimum)]
        last = "" if row.ratio is None else f"{row.ratio:.2f}"
        who = [row.library, str(row.ranks), str(row.workers)]
        return [
            FORMULAS[row.work],
            row.how,
            f"{row.rows:,}",
            *who,
            *times,
            f"{row.gb_per_s:.1f}",
            last,
        ]

    print(f"functions of numbers, float64, {device}; median and minimum of a call in microseconds")
    print_table(
        ["", "", "rows", "", "ranks", "workers", "median", "minimum", "GB/s", "ratio"],
        [cells(row) for row in results],
    )


def main() -> None:
    """Measures, prints, and saves where asked to."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--rows", type=int, nargs="+", help="default: 1e4, 1e6 and 1e7 on CPUs, 1e6 and 1e8 on GPUs"
    )
    parser.add_argument("--no-peers", action="store_true", help="measure this library only")
    args = parser.parse_args()
    worlds = sorted(args.ranks or ([1, 2] if args.device == "cpu" else [max(1, len(gpus()))]))
    sizes = args.rows or ROWS[args.device]

    results = list(measure(args.device, worlds, sizes, args.seconds, peers=not args.no_peers))
    if args.device == "cuda" and not args.no_peers:
        results += measure_peers(sizes, args.seconds)
    elif not args.no_peers:
        results += measure_threads(worlds, sizes, args.seconds)
    order = list(FUNCTIONS)
    results = sorted(
        compared(results), key=lambda row: (order.index(row.work), row.rows, row.how, row.ranks)
    )
    report(results, args.device)
    save(
        args.json,
        "vectorize",
        results,
        {"device": args.device, "seconds": args.seconds, "rows": list(sizes)},
    )


if __name__ == "__main__":
    main()
