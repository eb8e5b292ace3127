"""The field's own benchmarks, beside the figures that others have published.

    python benchmarks/headline.py --quick
    python benchmarks/headline.py --device cuda --ranks 1 2 --json benchmarks/results/NAME.json

Lattice Boltzmann is the example's, D3Q19 in float32. Heat, sound, and Stokes' equations by the
pseudo-transient method of the example, are in three dimensions and float64, GB/s of effective
memory throughput as ParallelStencil defines it: twice the fields that change, once those that do
not, over the time of a step. Nobody has published it for the last two; of Stokes' equations L. Räss
et al., Geoscientific Model Development 15 (2022), have a scaling of more than 0.96. Flips of
the Ising model are attempts, of spins at a temperature of 1.5 that were random at first, as in the
published runs, which count the time of their kernels only. n-body: pairs of bodies, in float32.
Each is checked on a small problem first, against NumPy, Onsager's energy, or the decay of vortices.

Problems grow with the number of ranks, but for n-body. "share": of the limit, which is a copy of as
many bytes by all ranks at once; of n-body, 12 instructions a pair. Of the Ising model it is small:
random numbers take longer. A published share is that of T_peak on that card. "scaling": the rate of
a rank over that with the fewest. "ratio": the rate of a rank over that of a published GPU, in a run
on as many GPUs where there is one.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import _ising_bits
import _nbody
import _stencils
import numpy as np
from _common import ROOT, Timing, arguments, print_table, save, time_calls
from _copies import copies

import synknumba as synk
from synknumba.kernels import nbody

sys.path.append(str(ROOT))
flow = importlib.import_module("examples.lattice_boltzmann")
stokes = importlib.import_module("examples.stokes")

TEMPERATURE = 1.5  # of the published runs of the Ising model
AT_LEAST = 5  # calls that are timed


@dataclass(frozen=True, slots=True)
class Published:
    """A figure of others, of all GPUs together; `peak` is the T_peak of one, in GB/s."""

    what: str
    code: str
    hardware: str
    gpus: int
    rate: float
    source: str
    peak: float | None = None


FLUIDX3D = "github.com/ProjectPhysX/FluidX3D, README.md, 14 July 2026: FP32/FP32"
JULIA = "github.com/luraess/JuliaGPUPerf, README.md, 27 April 2022: diffusion 2D, triad2D, Float64"
STENCIL = "github.com/omlins/ParallelStencil.jl, docs/images/perf_ps2.png"
# the code of J. Romero, M. Bisson, M. Fatica and M. Bernaschi, "High performance implementations of
# the 2D Ising model on GPUs", Computer Physics Communications 256 (2020), arXiv:1906.06297
ROMERO = "github.com/NVIDIA/ising-gpu, optimized/README.md, 22 November 2023"
NYLAND = "L. Nyland, M. Harris, J. Prins, GPU Gems 3 (2007), chapter 31: more than 10 billion"
SAMPLE = "CUDA 5.5, readme of the sample nbody: over 1.8 TFLOP/s, of 20 a pair"

PUBLISHED = (
    Published("lattice Boltzmann", "FluidX3D", "H200 SXM5", 1, 23_056, FLUIDX3D),
    Published("lattice Boltzmann", "FluidX3D", "H200 SXM5", 2, 36_711, FLUIDX3D),
    Published("lattice Boltzmann", "FluidX3D", "H200 SXM5", 4, 57_310, FLUIDX3D),
    Published("lattice Boltzmann", "FluidX3D", "H200 SXM5", 8, 92_008, FLUIDX3D),
    Published("heat", "CUDA.jl, 2-D", "A100 SXM4 40GB", 1, 1362.5, JULIA, 1358.0),
    Published("heat", "ParallelStencil, 2-D ice", "P100", 1, 397, STENCIL, 550),
    Published("Ising", "Romero et al.", "V100-DGXS-16GB", 2, 766.26, ROMERO),
    Published("Ising", "Romero et al.", "A100-SXM4-80GB", 2, 1041.37, ROMERO),
    Published("Ising", "Romero et al.", "A100-SXM4-80GB", 8, 4135.96, ROMERO),
    Published("Ising", "Romero et al.", "H100 80GB HBM3", 2, 1800.81, ROMERO),
    Published("Ising", "Romero et al.", "H100 80GB HBM3", 8, 7141.97, ROMERO),
    Published("n-body", "CUDA sample", "K20c", 1, 90, SAMPLE),
    Published("n-body", "Nyland et al.", "GeForce 8800 GTX", 1, 10, NYLAND),
)


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; times in microseconds. A published figure has the ranks of our row."""

    library: str
    what: str
    ranks: int
    rate: float
    unit: str
    hardware: str
    timing: Timing | None = None
    share: float | None = None
    scaling: float | None = None
    ratio: float | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is measured.

    Attributes:
        what: its name.
        unit: of the rate.
        size: of the unit, in what `prepare` counts.
        nbytes: that the memory moves for each; 0 where something else is the limit.
        check: compares a small problem with what is right.
        prepare: makes a call, and says how much it does; of a side and a number of ranks.
        sides: of the problem on a GPU, on a core, and for tests.
    """

    what: str
    unit: str
    size: float
    nbytes: float
    check: Callable[[int], None]
    prepare: Callable[[int, int, int], tuple[Callable[[], object], float]]
    sides: tuple[int, int, int]


def check_flow(ranks: int) -> None:
    """Halves vortices."""
    flow.check_decay(48 * ranks, 16)


def prepare_flow(n: int, ranks: int, steps: int) -> tuple[Callable[[], object], float]:
    """Time steps of a random flow; counts cells."""
    rng = np.random.default_rng(0)
    fields = flow.place(0.1 * rng.random((n * ranks, n, 2)))
    return partial(flow.step, *fields, 0.1, 0.0, 0.0, times=steps), n**3 * ranks * steps


def check_stencils(_ranks: int) -> None:
    _stencils.check()


def prepare_heat(n: int, ranks: int, steps: int) -> tuple[Callable[[], object], float]:
    """Time steps of a random temperature; counts bytes of T_eff."""
    rng = np.random.default_rng(0)
    u, new = _stencils.divided(rng.random((n * ranks, n, n)), 2)
    (capacity,) = _stencils.divided(rng.random((n * ranks, n, n)), 1)
    call = partial(_stencils.heat, u, capacity, new, 0.12, times=steps)
    return call, (2 * 1 + 1) * 8 * n**3 * ranks * steps


def prepare_sound(n: int, ranks: int, steps: int) -> tuple[Callable[[], object], float]:
    """Time steps of a random pressure; counts bytes of T_eff."""
    pressure = np.random.default_rng(0).random((n * ranks, n, n))
    u, new = _stencils.divided(pressure, 2)
    v = _stencils.divided(np.zeros_like(pressure), 6)
    call = partial(_stencils.sound, u, *v[:3], new, *v[3:], 0.16, times=steps)
    return call, 2 * 4 * 8 * n**3 * ranks * steps


def check_settled(_ranks: int) -> None:
    """Lets a small ball rise, until its flow is steady and conserves volume."""
    (_, _, _, vz), _ = stokes.solve(*stokes.ball(16), 1e-8)
    assert abs(vz.sum((0, 1))).max() < 1e-4 * abs(vz).sum((0, 1)).max()


def prepare_settling(n: int, ranks: int, steps: int) -> tuple[Callable[[], object], float]:
    """Pseudo-transient iterations of a ball in a box n cells wide; counts bytes of T_eff."""
    mu, b = (np.tile(field, (ranks, 1, 1)) for field in stokes.ball(n - 2))
    fields = [synk.scatter(synk.variable(start), halo=1) for start in (mu, b, *11 * [0 * mu])]
    call = partial(
        stokes.relax_twice, fields[2:6], fields[6:10], fields[10:], *fields[:2], times=steps // 2
    )
    return call, 2 * 4 * 8 * n**3 * ranks * (steps // 2 * 2)


def check_ising(_ranks: int) -> None:
    _ising_bits.check()
    _ising_bits.check_energy()


def prepare_ising(n: int, ranks: int, steps: int) -> tuple[Callable[[], object], float]:
    """Sweeps over a lattice with n rows a rank; counts flips."""
    rows, words = n * ranks, n // (2 * _ising_bits.WORD)
    rng = np.random.default_rng(0)
    spins = _ising_bits.start(rng.integers(0, 2**64, (2, rows, words), np.uint64))
    numbers = _ising_bits.thresholds(1 / TEMPERATURE)
    return partial(_ising_bits.sweeps, *spins, rows, *numbers, 1, times=steps), rows * n * steps


def accelerations(count: int) -> Callable[[], np.ndarray]:
    """A call of frozen bodies."""
    places, masses = (synk.data(array) for array in _nbody.bodies_of(count, "float32"))
    places.freeze()
    masses.freeze()
    return partial(nbody.accelerations, places, places, masses, _nbody.SOFTENING)


def check_bodies(_ranks: int) -> None:
    places, masses = _nbody.bodies_of(1000, "float32")
    _nbody.check("n-body", accelerations(1000)(), places, masses)


def prepare_bodies(n: int, _ranks: int, _steps: int) -> tuple[Callable[[], object], float]:
    """The accelerations of n bodies; counts pairs."""
    return accelerations(n), n * n


WORD_BYTES = 3 * 8 / 64  # a spin's own word, read and written, and one of the other colour
PROBLEMS = (
    Problem("lattice Boltzmann", "MLUP/s", 1e6, 152, check_flow, prepare_flow, (256, 64, 16)),
    Problem("heat", "GB/s", 1e9, 1, check_stencils, prepare_heat, (384, 128, 16)),
    Problem("sound", "GB/s", 1e9, 1, check_stencils, prepare_sound, (384, 128, 16)),
    Problem("Stokes", "GB/s", 1e9, 1, check_settled, prepare_settling, (256, 64, 16)),
    Problem("Ising", "flips/ns", 1e9, WORD_BYTES, check_ising, prepare_ising, (65_536, 4096, 256)),
    Problem("n-body", "pairs/ns", 1e9, 0, check_bodies, prepare_bodies, (262_144, 8192, 512)),
)
STEPS = (100, 10, 4)  # of a call, likewise


@synk.function(outputs=None)
def limits_of_pairs(device):
    """Pairs a second that each rank's card could start; 0 of a core, whose clock is not known."""
    return _nbody.pairs_a_second() if device == "cuda" else 0.0


def measure(device: str, ranks: int, seconds: float, kind: int) -> Iterator[Result]:
    """Ours, in a world."""
    hardware = "GPU" if device == "cuda" else "core"
    with synk.fork(ranks, device=device):
        _, gb_per_s = copies(device)
        pairs = sum(limits_of_pairs(device))
        for problem in PROBLEMS:
            problem.check(ranks)
            call, amount = problem.prepare(problem.sides[kind], ranks, STEPS[kind])
            timing = time_calls(call, seconds, at_least=AT_LEAST)
            rate = amount / (timing.median * 1e-6)
            limit = ranks * gb_per_s * 1e9 / problem.nbytes if problem.nbytes else pairs
            yield Result(
                "synknumba",
                problem.what,
                ranks,
                rate / problem.size,
                problem.unit,
                hardware,
                timing,
                share=rate / limit if limit else None,
            )
            del call


def published_beside(ours: Result) -> Iterator[Result]:
    """Figures of others for our row: of as many GPUs, where a code has been run on them."""
    same = [figure for figure in PUBLISHED if figure.what == ours.what]
    sizes = {(figure.code, figure.hardware, figure.gpus) for figure in same}
    for figure in same:
        has_ours = (figure.code, figure.hardware, ours.ranks) in sizes
        if has_ours and figure.gpus != ours.ranks:
            continue
        each = figure.rate / figure.gpus
        yield Result(
            figure.code,
            figure.what,
            ours.ranks,
            figure.rate,
            ours.unit,
            f"{figure.gpus} × {figure.hardware}",
            share=None if figure.peak is None else figure.rate / figure.peak,
            ratio=ours.rate / ours.ranks / each,
            source=figure.source,
        )


def compared(results: Sequence[Result]) -> Iterator[Result]:
    """Our rows with how they scale, each followed by the published figures."""
    fewest = {row.what: row for row in sorted(results, key=lambda row: -row.ranks)}
    for row in sorted(
        results, key=lambda row: [figure.what for figure in PROBLEMS].index(row.what)
    ):
        base = fewest[row.what]
        yield replace(row, scaling=row.rate / row.ranks / (base.rate / base.ranks))
        yield from published_beside(row)


def cells(row: Result) -> list[str]:
    """A row of the table."""
    hardware = f"{row.ranks} × {row.hardware}" if row.timing else row.hardware
    numbers = (row.share, row.scaling, row.ratio)
    columns = ("" if number is None else f"{number:.2f}" for number in numbers)
    return [f"{row.what}: {row.library}", hardware, f"{row.rate:,.1f}", row.unit, *columns]


def main() -> None:
    """Measures, prints, and saves where asked to."""
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="small problems, for tests")
    args = parser.parse_args()
    kind = 2 if args.quick else ("cuda", "cpu").index(args.device)
    worlds = args.ranks or ([1, 2] if args.device == "cpu" else [1])
    ours: list[Result] = []
    for ranks in worlds:
        ours += measure(args.device, ranks, args.seconds, kind)
    results = list(compared(ours))
    print_table(
        ["", "hardware", "rate", "unit", "share", "scaling", "ratio"],
        [cells(row) for row in results],
    )
    for source in dict.fromkeys(f"{row.library}: {row.source}" for row in results if row.source):
        print(source)
    sides = {problem.what: problem.sides[kind] for problem in PROBLEMS}
    settings = {"device": args.device, "seconds": args.seconds, "sides": sides}
    save(args.json, "headline", results, {**settings, "steps": STEPS[kind]})


if __name__ == "__main__":
    main()
