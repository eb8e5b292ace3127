"""A kernel of a real program on all ranks: the quenching of ionisation in liquid argon, on records
of tracks.

    python benchmarks/ports.py
    python benchmarks/ports.py --ranks 1 2 4 --rows 1e7 --json benchmarks/results/h200x2-ports.json

Detector simulations of liquid-argon chambers, such as larnd-sim, compute for each segment of a
track how many electrons do not recombine, from the energy that it has lost (Birks' law as measured
by Amoruso et al. 2004, the box model modified by Acciarri et al. 2013). A thread takes one record,
as there. The records are in the script's memory, which GPUs read and write through their bus, or
stay on the ranks, as a variable. Results are compared with NumPy's; its time, and that of a loop
compiled by Numba for all cores, are beside ours.

"ratio": to one rank.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numba
import numpy as np
from _common import arguments, print_table, save, time_calls
from numba import cuda

import synknumba as synk

TRACK = np.dtype(
    [
        (name, "f4")
        for name in (
            "x_start",
            "y_start",
            "z_start",
            "x_end",
            "y_end",
            "z_end",
            "dx",
            "dE",
            "dEdx",
            "n_electrons",
        )
    ]
)
FIELD, DENSITY = 0.50, 1.38  # kV/cm, g/cm³
BIRKS_A, BIRKS_K = 0.800, 0.0486  # k in (kV/cm) (g/cm²) / MeV
BOX_ALPHA, BOX_BETA = 0.93, 0.207  # β in (kV/cm) (g/cm²) / MeV
PAIR = 23.6e-6  # MeV for an electron
BIRKS, BOX = 1, 2


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table, in milliseconds."""

    library: str
    what: str
    ranks: int
    median: float
    ratio: float


@cuda.jit(device=True)
def left(loss, model):
    """The fraction of electrons that do not recombine, for an energy loss in MeV/cm."""
    if model == BIRKS:
        return BIRKS_A / (1.0 + BIRKS_K * loss / (FIELD * DENSITY))
    xi = BOX_BETA * loss / (FIELD * DENSITY)
    return max(0.0, math.log(BOX_ALPHA + xi) / xi)


@synk.parallel(inout=("tracks",))
@cuda.jit
def quench(tracks, model):
    """Stores the number of electrons that each segment leaves."""
    i = cuda.grid(1)
    if i < tracks.shape[0]:
        tracks[i]["n_electrons"] = left(tracks[i]["dEdx"], model) * tracks[i]["dE"] / PAIR


@synk.parallel(rows=("tracks",), inout=("tracks",))
@cuda.jit
def quench_held(tracks, model):
    """The same for rows that ranks hold."""
    i = cuda.grid(1)
    if i < tracks.shape[0]:
        tracks[i]["n_electrons"] = left(tracks[i]["dEdx"], model) * tracks[i]["dE"] / PAIR


def by_numpy(tracks: np.ndarray, model: int) -> np.ndarray:
    """The numbers of electrons, by NumPy in float64."""
    loss = tracks["dEdx"].astype(float)
    if model == BIRKS:
        fraction = BIRKS_A / (1.0 + BIRKS_K * loss / (FIELD * DENSITY))
    else:
        xi = BOX_BETA * loss / (FIELD * DENSITY)
        fraction = np.maximum(0.0, np.log(BOX_ALPHA + xi) / xi)
    return fraction * tracks["dE"] / PAIR


@numba.njit(parallel=True)
def by_numba(tracks, model):
    """The loop that one would write by hand for all cores."""
    for i in numba.prange(tracks.shape[0]):
        loss = tracks[i]["dEdx"]
        if model == BIRKS:
            fraction = BIRKS_A / (1.0 + BIRKS_K * loss / (FIELD * DENSITY))
        else:
            xi = BOX_BETA * loss / (FIELD * DENSITY)
            fraction = max(0.0, math.log(BOX_ALPHA + xi) / xi)
        tracks[i]["n_electrons"] = fraction * tracks[i]["dE"] / PAIR


def make(rows: int) -> np.ndarray:
    """Segments of tracks, of which the faster lose less energy."""
    rng = np.random.default_rng(0)
    tracks = np.zeros(rows, TRACK)
    tracks["dx"] = rng.uniform(0.01, 0.5, rows)
    tracks["dEdx"] = 1.7 + rng.exponential(3.0, rows)
    tracks["dE"] = tracks["dx"] * tracks["dEdx"]
    return tracks


def check(found: np.ndarray, tracks: np.ndarray, model: int) -> None:
    """Compares with NumPy, by the rounding of float32."""
    np.testing.assert_allclose(found["n_electrons"], by_numpy(tracks, model), rtol=2e-5)


def timed(ranks: int, given: Any, tracks: synk.Data, model: int) -> list[tuple[str, float]]:
    """Medians in milliseconds: rows in the script's memory, and rows on the ranks."""
    with synk.fork(ranks, device=given.device) as world:
        quench(tracks, model)
        check(tracks.data, tracks.data, model)
        there = time_calls(lambda: quench(tracks, model), given.seconds, at_least=5).median / 1e3
        held = synk.scatter(synk.variable(np.zeros(1, TRACK)), tracks.data)
        quench_held(held, model)
        check(synk.gather(held, nd_up=0), tracks.data, model)
        here = time_calls(lambda: quench_held(held, model), given.seconds, at_least=5).median / 1e3
        return [
            (f"{world.device}, the script's records", there),
            (f"{world.device}, records on the ranks", here),
        ]


def main() -> None:
    """Measures and prints."""
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=float, default=1e6, help="segments (default: 1e6)")
    given = parser.parse_args()
    source = make(int(given.rows))
    tracks = synk.data(source)
    results: list[Result] = []
    for name, model in (("Birks", BIRKS), ("box", BOX)):
        first: dict[str, float] = {}
        for ranks in given.ranks or [1, 2]:
            for what, median in timed(ranks, given, tracks, model):
                first.setdefault(what, median)
                results.append(
                    Result("synknumba", f"{name}, {what}", ranks, median, median / first[what])
                )
        mine = source.copy()
        peers = {
            "numba: njit, all cores": partial(by_numba, mine, model),
            "numpy": partial(by_numpy, source, model),
        }
        for library, call in peers.items():
            median = time_calls(call, given.seconds, at_least=3).median / 1e3
            results.append(
                Result(
                    library, f"{name}, {library}", 1, median, median / next(iter(first.values()))
                )
            )
        check(mine, source, model)
    rows = [(one.what, str(one.ranks), f"{one.median:,.3f}", f"{one.ratio:.2f}") for one in results]
    print_table(("", "ranks", "ms", "ratio"), rows)
    save(given.json, "ports", results, {"seconds": given.seconds, "rows": int(given.rows)})


if __name__ == "__main__":
    main()
