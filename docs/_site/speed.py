"""The picture of how fast calls are beside their peers, drawn from `benchmarks/results`."""

from typing import NamedTuple

from docs._site.drawing import Drawing
from docs._site.figures import UNITS, figure_of

LABELS, BARS, TIMES = 180, 470, 110  # widths
BAR, GAP, TITLE = 15, 3, 27  # heights
OWN = "synknumba"


class Task(NamedTuple):
    """What is timed, the file of one run, and for each bar its name and source in that file."""

    title: str
    file: str
    bars: dict[str, str]

    def sources(self) -> list[str]:
        """Returns the source of each bar."""
        return [f"{self.file} {words}" for words in self.bars.values()]


# Tasks in which a peer is ahead are here as others are; each peer in the fastest form of the file.
TASKS = (
    Task(
        "a kernel and the sum of its results, two H200",
        "h200x2-call_overhead",
        {
            OWN: 'synknumba "kernel, sum" 2',
            "torch, CUDA graph": "torch graph 2",
            "JAX": "JAX 2",
        },
    ),
    Task(
        "a kernel and the sum of its results, two cores",
        "cpu-2core-call_overhead",
        {
            OWN: 'synknumba "kernel, sum"',
            "numba, prange": "numba prange",
            "mpi4py, Bcast + Reduce": 'mpi4py "Bcast + Reduce, root works too"',
            "multiprocessing": "multiprocessing sum",
        },
    ),
    Task(
        "mean of y·exp(−x²) over 2³⁰ pairs of float32, four H200",
        "h200x4-expectation",
        {
            OWN: 'synknumba "frozen Data" 2^30 4',
            "torch.compile": "torch torch.compile 2^30 4",
            "JAX": "JAX 2^30 4",
        },
    ),
    Task(
        "price of an option from 10¹⁰ normal numbers, one H200",
        "h200-montecarlo",
        {
            OWN: 'synknumba "expectation, normal2, 10 rounds" 1e10',
            "numba-cuda, float64": "numba-cuda option float64 * 1e10 / .samples",
            "JAX, float64": "JAX option threefry2x32 float64 * 1e10 / .samples",
        },
    ),
    Task(
        "price of an option from 10⁷ normal numbers, two cores",
        "cpu-2core-montecarlo",
        {
            OWN: "synknumba expectation option ranks=2",
            "NumPy, one core": "numpy option ranks=2 * 1e7 / .samples",
            "numba, prange": "numba prange option",
        },
    ),
    Task(
        "sum of 10⁸ float64 on one H200",
        "h200x2-vectorize",
        {OWN: 'synknumba "on devices, reduce" 1e8 ranks=1', "CuPy": '"CuPy: sum" 1e8'},
    ),
    Task(
        "8 GiB of float32 rows back from four H200",
        "h200x4-scatter",
        {OWN: "synknumba gather 2^33", "page-locked copies": "cupy down 2^33"},
    ),
    Task(
        "all_reduce of 10⁷ float32, two cores",
        "cpu-2core-collectives",
        {
            OWN: "synknumba all_reduce 4e7",
            "mpi4py": "mpi4py all_reduce 4e7",
            "torch, gloo": '"torch gloo" all_reduce 4e7',
        },
    ),
    Task(
        "a step of Jacobi's method on 1024² float32, two H200",
        "h200x2-gpu_sequences",
        {
            OWN: '"synknumba: sequence" "Jacobi 1024²" ranks=2',
            "CuPy, NCCL, CUDA graph": 'CuPy "Jacobi 1024²" ranks=2',
            "JAX": '"JAX, rows with halos in place" "Jacobi 1024²" ranks=2',
        },
    ),
    Task(
        "the same on one H200",
        "h200x2-gpu_sequences",
        {
            OWN: '"synknumba: sequence" "Jacobi 1024²" ranks=1',
            "CuPy, CUDA graph": 'CuPy "Jacobi 1024²" ranks=1',
            "JAX": '"JAX, rows with halos in place" "Jacobi 1024²" ranks=1',
        },
    ),
    Task(
        "a step of softmax regression, 4,096 × 784, two H200",
        "h200x2-gpu_sequences",
        {
            OWN: '"synknumba: sequence" softmax ranks=2',
            "torch.compile, CUDA graph": (
                '"torch, one all_reduce, torch.compile, CUDA graph" softmax ranks=2'
            ),
            "JAX": "JAX softmax ranks=2",
        },
    ),
    Task(
        "a step of adam for 784-512-512-10, 4,096 rows, two H200",
        "h200x2-training",
        {
            OWN: "synknumba MLP 2",
            "torch, CUDA graph": '"torch, flat gradients, CUDA graph" MLP 2',
            "JAX": "JAX MLP 2",
        },
    ),
)
SOURCES = [source for task in TASKS for source in task.sources()]


def microseconds(source: str) -> float:
    """Returns the time of a source."""
    figure = figure_of(source)
    return figure.value * UNITS[figure.unit][1] / UNITS["µs"][1]


def shown(time: float) -> str:
    """Returns a time in µs with two significant digits or more.

    >>> [shown(time) for time in (8.694, 230.4, 1114.3, 29590.0)]
    ['8.7 µs', '230 µs', '1.1 ms', '30 ms']
    """
    value, unit = (time, "µs") if time < 1000 else (time / 1000, "ms")
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


def speed() -> Drawing:
    """Bars of times, in groups of one task each, the fastest first; the longest of a group takes
    the whole width.
    """
    height = sum(TITLE + len(task.bars) * (BAR + GAP) + 10 for task in TASKS)
    d = Drawing(
        LABELS + BARS + TIMES,
        height,
        "Medians of times of synknumba and its peers in the same run; shorter is better",
    )
    y = 0.0
    for task in TASKS:
        d.text(10, y + 20, task.title, "", "start")
        y += TITLE
        times = dict(zip(task.bars, map(microseconds, task.sources()), strict=True))
        longest = max(times.values())
        for name, time in sorted(times.items(), key=lambda bar: bar[1]):
            kind = "" if name == OWN else "soft"
            width = BARS * time / longest
            d.text(LABELS - 10, y + 12, name, kind, "end")
            d.box(LABELS, y, max(2.0, round(width, 1)), BAR, "c0" if name == OWN else "peer")
            d.text(LABELS + width + 8, y + 12, shown(time), kind, "start")
            y += BAR + GAP
        y += 10
    return d
