"""What the benchmarks share: timing, the machine and the versions, a table, a file of results."""

import argparse
import contextlib
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "synknumba",
    "numpy",
    "numba",
    "numba-cuda",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "joblib",
    "mpi4py",
    "mpich",
    "jax",
    "torch",
)
MAX_LOAD = 1.5  # processes a core: a call's script and ranks are at most that many
LOAD_BEFORE = os.getloadavg()[0]  # before the benchmark's own processes


@dataclass(frozen=True, slots=True)
class Timing:
    """Wall times of one call, in microseconds."""

    median: float
    p99: float
    minimum: float
    calls: int


def summarise(nanoseconds: Sequence[int]) -> Timing:
    """Median, 99th percentile, minimum."""
    times = np.array(nanoseconds, np.float64) / 1e3
    return Timing(
        float(np.median(times)), float(np.percentile(times, 99)), float(times.min()), len(times)
    )


def time_calls(
    call: Callable[[], object], seconds: float, *, at_least: int = 20, pause: float = 0.0
) -> Timing:
    """Times single calls for that many seconds, after a tenth of it that does not count.
    `pause`: sleep before each, in s.
    """
    clock = time.perf_counter_ns
    call()
    warm = time.monotonic() + seconds / 10
    while time.monotonic() < warm:
        call()
    times: list[int] = []
    end = time.monotonic() + seconds
    while len(times) < at_least or time.monotonic() < end:
        if pause:
            time.sleep(pause)
        start = clock()
        call()
        times.append(clock() - start)
    return summarise(times)


def time_in_turns(
    calls: Sequence[Callable[[], object]], seconds: float, *, at_least: int = 7, at_most: int = 2000
) -> list[Timing]:
    """Times calls alternately for about that many seconds in all, so that whatever else the
    machine does is in all of them.
    """
    clock = time.perf_counter_ns
    times: list[list[int]] = [[] for _ in calls]
    for call in calls:
        call()
    end = time.monotonic() + seconds
    while len(times[0]) < at_least or (time.monotonic() < end and len(times[0]) < at_most):
        for call, taken in zip(calls, times, strict=True):
            call()  # so that each finds its own state warm: awake ranks, caches
            start = clock()
            call()
            taken.append(clock() - start)
    return [summarise(taken) for taken in times]


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", "--gpus", type=int, nargs="+", help="world sizes")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="how long each row is measured (default: 1)"
    )
    parser.add_argument(
        "--json",
        "--out",
        type=Path,
        metavar="FILE",
        help="write the results there, with the machine and the versions",
    )
    return parser


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Left-aligned first column, the others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def print_timing(form: str, what: str, timing: Timing) -> None:
    """Tells the script what a peer in a process of its own has measured, as soon as it has.

    Args:
        form: which of several programs of the library, or "".
        what: it computed.
        timing: of one call.
    """
    print(json.dumps({"form": form, "what": what, "timing": asdict(timing)}), flush=True)


def print_forms_of_torch(what: str, forms: Mapping[str, Callable[[], Timing]], rank: int) -> None:
    """Times forms of a program of torch on one of its ranks, and ends the process; rank 0 prints.

    Args:
        what: it computes.
        forms: by name, what times one; it raises where a form is not possible here.
        rank: of the process.
    """
    for form, measure in forms.items():
        try:
            timing = measure()
        except Exception as error:  # noqa: BLE001  # of many kinds: no compiler, no Triton
            print(f"torch, {form} left out: {error!r:.300}", file=sys.stderr)
            continue
        if rank == 0:
            print_timing(form, what, timing)
    sys.stderr.flush()
    os._exit(0)  # a captured graph may keep NCCL from ending


def save(
    path: Path | None, benchmark: str, results: Sequence[Any], settings: dict[str, Any]
) -> None:
    """Writes the results as JSON, if a file was named."""
    if path is None:
        return
    here = machine()
    reason = void(here)
    if reason:
        print(f"void: {reason}", file=sys.stderr)
    report = {
        "benchmark": benchmark,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "void": reason,
        "machine": here,
        "versions": versions(),
        "settings": settings,
        "results": [asdict(result) for result in results],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """The hardware, and how busy it was."""
    models = {
        line.partition(":")[2].strip()
        for line in _lines("/proc/cpuinfo")
        if line.startswith("model name")
    }
    memory = next(
        (line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "0"
    )
    return {
        "cpu": ", ".join(sorted(models)) or platform.processor(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory) / 2**20, 1),
        "kernel": platform.release(),
        "load_before": LOAD_BEFORE,
        "load_average": os.getloadavg()[0],
        "gpus": gpus(),
    }


def load_of(there: dict[str, Any]) -> float:
    """The load of a core of a machine, before a run or at its end, whichever was greater."""
    load: float = max(there["load_average"], there.get("load_before", 0.0))
    return load / there["usable_cores"]


def void(there: dict[str, Any]) -> str:
    """Why figures of a run must not be quoted; empty if they may."""
    load = load_of(there)
    return f"a load of {load:.2f} a core, where {MAX_LOAD} is the limit" if load > MAX_LOAD else ""


def gpus() -> list[str]:
    """Their names, asked of nvidia-smi: this process must not touch CUDA before it forks."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def versions() -> dict[str, str]:
    """Of Python and of the packages that are installed."""
    found = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    if (ROOT / ".git").exists() and shutil.which("git"):
        done = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
        )
        found["commit"] = done.stdout.strip()
    return found


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
