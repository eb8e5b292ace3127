"""The picture of how fast calls are beside their peers, drawn from `benchmarks/results`."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from docs._site.drawing import Drawing

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
LABELS, BARS, TIMES = 180, 470, 110  # widths
BAR, GAP, TITLE = 18, 4, 30  # heights


class Bar(NamedTuple):
    """One bar: its name, and what its result has."""

    name: str
    library: str
    what: str = ""


class Group(NamedTuple):
    """Bars of one run: a file of results, what all of them have, and the first bar that is ours."""

    title: str
    file: str
    common: dict[str, Any]
    bars: Sequence[Bar]


GROUPS = (
    Group(
        "a kernel and the sum of its results, two H200",
        "h200x2-call_overhead",
        {"workers": 2},
        (
            Bar("synknumba", "synknumba", "kernel, sum"),
            Bar(
                "torch, CUDA graph",
                "torch",
                "sum and all_reduce in a CUDA graph, item on every rank",
            ),
            Bar("torch, NCCL", "torch", "sum, all_reduce, item on rank 0"),
            Bar("JAX", "JAX", "jit of shard_map with psum, float"),
        ),
    ),
    Group(
        "mean of y·exp(−x²) over 2³⁰ pairs of float32, four H200",
        "h200x4-expectation",
        {"rows": 2**30, "ranks": 4},
        (
            Bar("synknumba", "synknumba", "frozen Data"),
            Bar("torch.compile", "torch", "torch.compile, all_reduce, item"),
            Bar("JAX", "JAX", "jit of a mean over sharded arrays, float"),
            Bar("torch", "torch", "eager, all_reduce, item"),
        ),
    ),
    Group(
        "a step of Jacobi's method on 1024² float32, two H100",
        "h100x2-gpu_sequences",
        {"ranks": 2, "what": "Jacobi 1024²"},
        (
            Bar("synknumba", "synknumba: sequence"),
            Bar("CuPy, NCCL, CUDA graph", "CuPy and NCCL, graph"),
            Bar("JAX", "JAX"),
        ),
    ),
    Group(
        "a step of adam for 784-512-512-10, 4,096 rows, two H100",
        "h100x2-training",
        {"ranks": 2, "what": "MLP 784-512-512-10, adam"},
        (
            Bar("synknumba", "synknumba"),
            Bar("torch, CUDA graph", "torch, CUDA graph"),
            Bar("JAX", "JAX"),
            Bar("torch DDP", "torch DDP"),
        ),
    ),
    Group(
        "price of an option from 10⁷ normal numbers, two cores",
        "cpu-2core-montecarlo",
        {"ranks": 2, "work": "option", "samples": 10_000_000},
        (
            Bar("synknumba", "synknumba", "expectation"),
            Bar("numba, prange", "numba", "prange, threads"),
            Bar("numba, njit", "numba", "njit loop"),
        ),
    ),
    Group(
        "all_reduce of 10⁷ float32, two cores",
        "cpu-2core-collectives",
        {"ranks": 2, "collective": "all_reduce", "size": 40_000_000},
        (Bar("synknumba", "synknumba"), Bar("mpi4py", "mpi4py"), Bar("torch, gloo", "torch gloo")),
    ),
)


@cache
def _results(file: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        (RESULTS / f"{file}.json").read_text(encoding="utf-8")
    )["results"]
    return found


def median_of(group: Group, bar: Bar) -> float:
    """Returns the median of a bar's result, in microseconds."""
    wanted = {**group.common, "library": bar.library, **({"what": bar.what} if bar.what else {})}
    (found,) = [
        one
        for one in _results(group.file)
        if all(one.get(key) == value for key, value in wanted.items())
    ]
    median: float = found["timing"]["median"]
    return median


def shown(microseconds: float) -> str:
    """Returns a time with two significant digits or more.

    >>> [shown(time) for time in (8.694, 230.4, 1114.3, 29590.0)]
    ['8.7 µs', '230 µs', '1.1 ms', '30 ms']
    """
    value, unit = (microseconds, "µs") if microseconds < 1000 else (microseconds / 1000, "ms")
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


def speed() -> Drawing:
    """Bars of times, in groups of one task each; the longest of a group takes the whole width."""
    height = sum(TITLE + len(group.bars) * (BAR + GAP) + 10 for group in GROUPS)
    d = Drawing(
        LABELS + BARS + TIMES,
        height,
        "Medians of times of synknumba and its peers in the same run; shorter is better",
    )
    y = 0.0
    for group in GROUPS:
        d.text(10, y + 20, group.title, "", "start")
        y += TITLE
        times = [median_of(group, bar) for bar in group.bars]
        for place, (bar, time) in enumerate(zip(group.bars, times, strict=True)):
            d.text(LABELS - 10, y + 13, bar.name, "" if place == 0 else "soft", "end")
            d.box(
                LABELS,
                y,
                max(2.0, round(BARS * time / max(times), 1)),
                BAR,
                "c0" if place == 0 else "peer",
            )
            d.text(
                LABELS + BARS * time / max(times) + 8,
                y + 13,
                shown(time),
                "" if place == 0 else "soft",
                "start",
            )
            y += BAR + GAP
        y += 10
    return d
