"""Gravity between n bodies by direct summation: pairs a second, in float32 and float64.

    python benchmarks/nbody.py
    python benchmarks/nbody.py --device cuda --ranks 1 2 --json benchmarks/results/h200x2-nbody.json

`synknumba.kernels.nbody.accelerations` of bodies in frozen `Data`, with the accelerations back in
the script. Peers: on GPUs a RawKernel of CuPy with the same algorithm, one process on all GPUs; on
cores a loop of `@njit(parallel=True, fastmath=True)` with as many threads as there are ranks, over
an array for each coordinate, in which a compiler finds vectors more easily than in rows of three.

"share": pairs a second over what float32 units could start at the highest clock, 12 instructions a
pair, which CuPy's process asks of the card; of cores it is not known, for their clocks differ.
"ratio": the median over that of synknumba in float32.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numba
import numpy as np
from _common import Timing, arguments, print_table, save, time_calls
from _gpu_call_peers import Row, Settings, peer_rows
from _nbody import SOFTENING, bodies_of, check
from numba import njit, prange

import synknumba as synk
from synknumba.kernels import nbody

BODIES = {"cpu": (16_384,), "cuda": (65_536, 262_144)}
AT_LEAST = 5
OWN = ("synknumba", "float32")


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; times in microseconds."""

    library: str
    what: str
    bodies: int
    ranks: int
    timing: Timing
    pairs_per_s: float
    share: float | None = None
    ratio: float | None = None


def of_row(row: Row) -> Result:
    pairs = row.rows**2 / (row.timing.median * 1e-6)
    return Result(row.library, row.what, row.rows, row.ranks, row.timing, pairs)


def measure(
    device: str, worlds: Sequence[int], sizes: Sequence[int], seconds: float
) -> Iterator[Result]:
    """This library's, in both precisions."""
    for ranks in worlds:
        with synk.fork(ranks, device=device):
            for count in sizes:
                for dtype in ("float32", "float64"):
                    arrays = [synk.data(array) for array in bodies_of(count, dtype)]
                    for array in arrays:
                        array.freeze()
                    places, masses = arrays

                    def call(places: synk.Data = places, masses: synk.Data = masses) -> np.ndarray:
                        return nbody.accelerations(places, places, masses, SOFTENING)

                    for _ in range(3):  # compiles, and records a graph
                        check(f"synknumba, {dtype}", call(), places.data, masses.data)
                    timing = time_calls(call, seconds, at_least=AT_LEAST)
                    yield of_row(Row("synknumba", dtype, ranks, count, timing))


@njit(parallel=True, fastmath=True)
def on_threads(x, y, z, masses, softening, out):
    """Accelerations of bodies whose coordinates have an array each; float32."""
    soft = np.float32(softening * softening)
    for i in prange(x.shape[0]):
        ax = ay = az = np.float32(0)
        for j in range(x.shape[0]):
            dx, dy, dz = x[j] - x[i], y[j] - y[i], z[j] - z[i]
            root = np.float32(1) / math.sqrt(dx * dx + dy * dy + dz * dz + soft)
            factor = masses[j] * root * root * root
            ax += factor * dx
            ay += factor * dy
            az += factor * dz
        out[i, 0], out[i, 1], out[i, 2] = ax, ay, az


def measure_threads(
    worlds: Sequence[int], sizes: Sequence[int], seconds: float
) -> Iterator[Result]:
    """Numba's. After the last fork, for threads would be in its way."""
    for threads in worlds:
        if threads > numba.config.NUMBA_NUM_THREADS:
            print(f"{threads} threads of numba left out: too few cores", file=sys.stderr)
            continue
        numba.set_num_threads(threads)
        for count in sizes:
            places, masses = bodies_of(count, "float32")
            columns = np.ascontiguousarray(places.T)
            out = np.empty((count, 3), np.float32)

            def call(columns=columns, masses=masses, out=out) -> None:
                on_threads(*columns, masses, SOFTENING, out)

            call()
            check("numba", out, places, masses)
            timing = time_calls(call, seconds, at_least=AT_LEAST)
            what = "njit(parallel=True, fastmath=True), float32"
            yield of_row(Row("numba: prange", what, threads, count, timing))


def compared(results: Sequence[Result]) -> list[Result]:
    """With shares of the limit, and ratios."""
    limits = {(row.bodies, row.ranks): row for row in results if row.library == "limit"}
    own = {(row.bodies, row.ranks): row for row in results if (row.library, row.what) == OWN}

    def compare(row: Result) -> Result:
        limit = limits.get((row.bodies, row.ranks))
        base = own.get((row.bodies, row.ranks))
        return replace(
            row,
            share=None if limit is None else row.pairs_per_s / limit.pairs_per_s,
            ratio=None if base is None else row.timing.median / base.timing.median,
        )

    return [compare(row) for row in results]


def cells(row: Result) -> list[str]:
    numbers = (f"{row.timing.median / 1e3:,.3f}", f"{row.timing.minimum / 1e3:,.3f}")
    shares = ("" if number is None else f"{number:.2f}" for number in (row.share, row.ratio))
    who = f"{row.library}: {row.what}"
    return [who, f"{row.bodies:,}", str(row.ranks), *numbers, f"{row.pairs_per_s:.3g}", *shares]


def main() -> None:
    """Measures, prints, and saves where asked to."""
    parser = arguments(__doc__)
    parser.add_argument("--bodies", type=int, nargs="+", help="default: 2¹⁴; on GPUs 2¹⁶ and 2¹⁸")
    parser.add_argument("--no-peers", action="store_true", help="measure this library only")
    args = parser.parse_args()
    worlds = args.ranks or ([1, 2] if args.device == "cpu" else [1])
    sizes = args.bodies or BODIES[args.device]

    results = list(measure(args.device, worlds, sizes, args.seconds))
    if not args.no_peers and args.device == "cpu":
        results += measure_threads(worlds, sizes, args.seconds)
    elif not args.no_peers:
        settings = Settings("nbody", args.device, tuple(worlds), tuple(sizes), args.seconds)
        results += map(of_row, peer_rows("cupy", settings))
    results = sorted(compared(results), key=lambda row: (row.bodies, row.ranks))
    print(f"n-body, {args.device}, milliseconds; share of the card's limit; ratio: to float32 here")
    head = ["", "bodies", "ranks", "median", "minimum", "pairs/s", "share", "ratio"]
    print_table(head, [cells(row) for row in results])
    save(args.json, "nbody", results, {"device": args.device, "seconds": args.seconds})


if __name__ == "__main__":
    main()
