"""The measurements of `synknumba bench`, by the public interface of synknumba.

Each world has some measurements. They are made in turns, in several rounds, so that whatever else
the machine does is in all of them; a result is the median of the rounds' medians, with the least
and the greatest.
"""

import datetime
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

import synknumba as synk
from synknumba._commands.bench_results import SCALING, Report, Result
from synknumba._commands.gpu_checks import visible_gpus
from synknumba._commands.terminal import CommandError
from synknumba._device import usable_cores
from synknumba._host import memory
from synknumba._host.gpu_packages import version_of

ROUNDS = 5
LEAST_CALLS = 3  # of a round
PACKAGES = ("synknumba", "numba", "numpy", "numba-cuda", "cupy-cuda12x", "cupy-cuda13x")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is computed and moved, and for how long.

    Attributes:
        seconds: for all measurements together, without compilation and starts of worlds.
        nbytes: of the rows of one array, on cores and on GPUs.
        reduced: bytes of arrays that are reduced.
        steps: of the integral, on cores and on GPUs.
    """

    seconds: float
    nbytes: dict[str, int]
    reduced: tuple[int, ...]
    steps: dict[str, int]


FULL = Sizes(
    40.0,
    {"cpu": 256 << 20, "cuda": 1 << 30},
    (1 << 10, 1 << 16, 1 << 20, 16 << 20),
    {"cpu": 50_000_000, "cuda": 4_000_000_000},
)
QUICK = Sizes(
    5.0,
    {"cpu": 32 << 20, "cuda": 256 << 20},
    (1 << 10, 1 << 20),
    {"cpu": 10_000_000, "cuda": 1_000_000_000},
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One thing to time.

    Attributes:
        name, ranks, size, unit: as in `Result`.
        call: makes it once.
        moved: bytes that a call moves, for GB/s; 0 for a time.
    """

    name: str
    ranks: int
    size: int
    call: Callable[[], object]
    moved: int = 0

    @property
    def unit(self) -> Literal["us", "GB/s"]:
        return "GB/s" if self.moved else "us"

    def _value(self, seconds: float) -> float:
        return self.moved / seconds / 1e9 if self.moved else seconds * 1e6

    def result(self, rounds: list[list[float]]) -> Result:
        """Returns what the times of calls, in seconds, give."""
        values = [self._value(statistics.median(times)) for times in rounds]
        calls = sum(map(len, rounds))
        return Result(
            self.name,
            self.ranks,
            self.size,
            self.unit,
            statistics.median(values),
            min(values),
            max(values),
            calls,
        )


def measure(device: str, most: int | None, sizes: Sizes, progress: Callable[[str], None]) -> Report:
    """Makes all measurements.

    Args:
        device: "auto", "cuda" or "cpu".
        most: the largest number of ranks; None for one for each device.
        sizes: of the measurements.
        progress: gets what is being measured.
    """
    began, machine = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), _machine()
    progress("starting the ranks")
    with synk.fork(most, device=device) as world:
        kind, most = world.device, world.world_size
        worlds = world_sizes(most)
        # of each measurement
        share = sizes.seconds / (_COUNT + len(sizes.reduced) + 3 * (len(worlds) - 1))
        measurements = [
            *_calls(most),
            *_scaling(most, sizes.steps[kind]),
            *_bandwidth(most, kind, sizes),
            *_reduced(most, sizes),
        ]
        results = list(_timed(measurements, share, progress))
    for ranks in worlds[:-1]:
        progress(f"starting {ranks} ranks")
        with synk.fork(ranks, device=kind):
            results += _timed(
                [*_calls(ranks), *_scaling(ranks, sizes.steps[kind])], share, progress
            )
    return Report(began, machine, _versions(), kind, tuple(results))


_COUNT = 7  # measurements of the largest world, without those of all_reduce


def world_sizes(most: int) -> list[int]:
    """Returns the powers of two up to the largest number of ranks, and that.

    >>> world_sizes(6)
    [1, 2, 4, 6]
    """
    return sorted({*(2**k for k in range(most.bit_length())), most})


def _timed(
    measurements: list[Measurement], seconds: float, progress: Callable[[str], None]
) -> Iterator[Result]:
    """Yields the result of each, after all have been timed in turns."""
    times: list[list[list[float]]] = [[] for _ in measurements]
    for measurement in measurements:
        progress(f"compiling: {measurement.name} on {measurement.ranks} ranks")
        for _ in range(2):  # GPUs record the second call
            measurement.call()
    for number in range(ROUNDS):
        for measurement, rounds in zip(measurements, times, strict=True):
            progress(
                f"round {number + 1} of {ROUNDS}: {measurement.name} on {measurement.ranks} ranks"
            )
            measurement.call()  # so that each finds its own state warm: awake ranks, caches
            rounds.append(_round(measurement.call, seconds / ROUNDS))
    for measurement, rounds in zip(measurements, times, strict=True):
        yield measurement.result(rounds)


def _round(call: Callable[[], object], seconds: float) -> list[float]:
    clock, times = time.perf_counter, list[float]()
    end = clock() + seconds
    while len(times) < LEAST_CALLS or clock() < end:
        start = clock()
        call()
        times.append(clock() - start)
    return times


def _calls(ranks: int) -> Iterator[Measurement]:
    from synknumba._commands.kernels import energy, nothing

    rows = 1000 * ranks
    x = synk.data(np.linspace(0.0, 1.0, rows))
    yield Measurement("call", ranks, 0, nothing)
    yield Measurement("kernel_sum", ranks, rows, lambda: energy(x, 0.5))


def _scaling(ranks: int, steps: int) -> Iterator[Measurement]:
    """An integral in so many steps, which needs no memory: the limit is the ranks' arithmetic.
    Checked: it is π.
    """
    from synknumba._commands.kernels import integral

    span = synk.arange(steps)
    estimate = integral(span, 1.0 / steps) / steps
    if not math.isclose(estimate, math.pi, rel_tol=1e-9):
        raise CommandError(
            f"the integral on {ranks} ranks is {estimate} and not π; report "
            f"this, with `synknumba doctor`"
        )
    yield Measurement(SCALING, ranks, steps, lambda: integral(span, 1.0 / steps))


def _bandwidth(ranks: int, device: str, sizes: Sizes) -> Iterator[Measurement]:
    from synknumba._commands.kernels import copy, look, scale

    # five arrays at a time, some of them twice
    nbytes = min(sizes.nbytes[device], memory.available().nbytes // 16) // 8 * 8
    host, target = np.ones(nbytes // 8), np.ones(nbytes // 8)
    x, y = (synk.scatter(synk.variable(array)) for array in (host, target))
    scale(x, y, 3.0)
    for rank in range(ranks):
        if not np.all(np.asarray(synk.get_value(y, rank)) == 3.0):
            raise CommandError(
                "a kernel that triples rows has written something else; report "
                "this, with `synknumba doctor`"
            )
    moved = 2 * nbytes  # read and written
    yield Measurement("kernel_rows", ranks, nbytes, lambda: scale(x, y, 3.0), moved)
    yield Measurement("function_copy", ranks, nbytes, lambda: copy(x, y), moved)
    yield Measurement("numpy_copy", 0, nbytes, lambda: np.copyto(target, host), moved)
    if device == "cuda":
        rows = synk.data(host)
        yield Measurement("rows_sent", ranks, nbytes, lambda: look(rows), nbytes)
    else:
        yield Measurement("rows_copied", ranks, nbytes, lambda: look(host), nbytes)


def _reduced(ranks: int, sizes: Sizes) -> Iterator[Measurement]:
    if ranks == 1:  # there is nothing to reduce
        return
    for nbytes in sizes.reduced:
        array = synk.variable(np.zeros(nbytes // 4, np.float32))
        yield Measurement("all_reduce", ranks, nbytes, partial(synk.all_reduce, array, "sum"))


def _machine() -> dict[str, Any]:
    models: set[str] = set()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        models = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    return {
        "cpu": ", ".join(sorted(models)) or platform.processor() or platform.machine(),
        "usable_cores": usable_cores(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "gpus": [gpu["name"] for gpu in visible_gpus()],
        "load": os.getloadavg()[0],
    }


def _versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        version = version_of(name)
        if version is not None:
            versions[name] = version
    return versions
