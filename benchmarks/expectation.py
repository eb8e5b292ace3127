"""An expectation value over more and more rows: on 1, 2, … ranks, and beside what else computes it.

    python benchmarks/expectation.py
    python benchmarks/expectation.py --ranks 1 2 4 8 --rows 1000000 100000000
    python benchmarks/expectation.py --device cuda --ranks 1 2 4 --json
    benchmarks/results/h200x4-expectation.json python benchmarks/expectation.py --pairs
    --peer-python ~/torch/bin/python

On CPUs: the mean of exp(−0.5·x²) over float64 rows that are read where they lie in memory, beside a
plain @njit loop. The call and the loop are timed in turns, so that whatever else the machine does
is in both. "prange" has as many threads as there are ranks, and is timed when the ranks have ended,
for those that wait spin. "ratio" is the median of the loop over that of the call, "to prange" that
of the threads.

On GPUs, and with --pairs: the mean of y·exp(−x²) over float32 pairs that lie on the ranks already,
as frozen Data or scattered variables, beside JAX and torch in processes of their own. "GB/s each":
what each rank reads; "of copy": over the bandwidth of copies on as many devices at once, read and
written; "scaling": the time on the smallest world over this one; "ratio": the median over that of
the call with frozen Data, for as many rows and ranks.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import _pairs
import numba
import numpy as np
from _common import Timing, arguments, print_table, save, time_calls, time_in_turns
from _gpu_call_peers import Settings, peer_rows
from _prange import energy as energy_threads
from numba import cuda, njit

import synknumba as synk

ROWS = (10_000, 100_000, 1_000_000, 10_000_000, 50_000_000)
BETA = 0.5


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; times in microseconds."""

    rows: int
    ranks: int
    device: str
    call: Timing
    njit: Timing
    ratio: float
    prange: Timing | None = None
    to_prange: float | None = None


def blocks(rows):
    """Blocks of 256 threads: one thread a row as long as there are few, then strides, to spare a
    GPU atomic additions.
    """
    return min(1024, -(-rows // 256))


@synk.parallel(grid=blocks, outputs={"total": synk.output("sum", shape=(), dtype="float64")})
def energy(x, beta, total):
    """Adds up exp(−beta·x²); x: float64, shape (n,)."""
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        acc += math.exp(-beta * x[i] * x[i])
    cuda.atomic.add(total, 0, acc)


@njit
def energy_loop(x, beta):
    """The same, as one would write it for one core."""
    acc = 0.0
    for i in range(x.shape[0]):
        acc += math.exp(-beta * x[i] * x[i])
    return acc


def measure(args: argparse.Namespace) -> Iterator[Result]:
    """Every number of ranks with every number of rows."""
    for ranks in args.ranks or [1, 2]:
        with synk.fork(ranks, device=args.device):
            for rows in args.rows:
                values = np.random.default_rng(0).random(rows)
                x = synk.data(values)
                np.testing.assert_allclose(energy(x, BETA), energy_loop(values, BETA), rtol=1e-9)
                calls = (lambda x=x: energy(x, BETA), lambda v=values: energy_loop(v, BETA))
                call, loop = time_in_turns(calls, args.seconds)
                yield Result(rows, ranks, args.device, call, loop, loop.median / call.median)


def beside_threads(results: Sequence[Result], seconds: float) -> Iterator[Result]:
    """With the times of Numba's threads. After the last fork: they would be in its way."""
    for result in results:
        if result.ranks > numba.config.NUMBA_NUM_THREADS:
            yield result
            continue
        numba.set_num_threads(result.ranks)
        values = np.random.default_rng(0).random(result.rows)
        np.testing.assert_allclose(
            energy_threads(values, BETA), energy_loop(values, BETA), rtol=1e-9
        )
        timing = time_calls(lambda values=values: energy_threads(values, BETA), seconds, at_least=7)
        yield replace(result, prange=timing, to_prange=timing.median / result.call.median)


def measure_pairs(args: argparse.Namespace) -> list[_pairs.Result]:
    """The same for pairs, and then the peers."""
    worlds, rows = args.ranks or [1, 2], args.rows or _pairs.ROWS[args.device]
    results = list(_pairs.measure(args.device, worlds, rows, args.seconds))
    if not args.no_peers:
        settings = Settings("pairs", args.device, tuple(worlds), tuple(rows), args.seconds)
        for peer in ("torch", "jax"):
            results += [
                _pairs.of_row(row, args.device)
                for row in peer_rows(peer, settings, args.peer_python)
            ]
    return sorted(
        _pairs.compared(results),
        key=lambda result: (result.what != "copy", result.rows, result.ranks),
    )


def main() -> None:
    """Measures, prints, and saves where asked to."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--rows",
        type=int,
        nargs="+",
        help="default: 10⁴ … 5·10⁷; pairs: 2¹² … 2³⁰ on GPUs, 2²¹ on CPUs",
    )
    parser.add_argument("--pairs", action="store_true", help="float32 pairs on CPUs too")
    parser.add_argument("--no-peers", action="store_true", help="measure this library only")
    parser.add_argument(
        "--peer-python",
        metavar="PATH",
        default=sys.executable,
        help="a Python that has torch and JAX",
    )
    args = parser.parse_args()
    if args.pairs or args.device == "cuda":
        pairs = measure_pairs(args)
        print(f"mean of y·exp(-x²) over float32 pairs on the ranks, {args.device}")
        print_table(_pairs.HEAD, [_pairs.cells(result) for result in pairs])
        save(
            args.json,
            "expectation",
            pairs,
            {"device": args.device, "seconds": args.seconds, "dtype": "float32"},
        )
        return
    args.rows = args.rows or ROWS
    results = list(measure(args))
    if not args.no_peers:
        results = list(beside_threads(results, args.seconds))

    def cells(result: Result) -> list[str]:
        timings = (result.call, result.njit, result.prange)
        times = ["" if timing is None else f"{timing.median / 1e3:.3f}" for timing in timings]
        ratios = [
            "" if ratio is None else f"{ratio:.2f}" for ratio in (result.ratio, result.to_prange)
        ]
        return [f"{result.rows:,}", str(result.ranks), *times, *ratios]

    print(f"mean of exp(-{BETA} x²), {args.device}, milliseconds, medians; ratio: njit loop / call")
    head = ["rows", "ranks", "call", "njit loop", "prange", "ratio", "to prange"]
    print_table(head, [cells(result) for result in results])
    save(
        args.json,
        "expectation",
        results,
        {"device": args.device, "seconds": args.seconds, "beta": BETA},
    )


if __name__ == "__main__":
    main()
