"""Kernels of every kind, run by simt on one core, beside the serial `@njit` loop that one would
write instead.

    python benchmarks/simt.py
    python benchmarks/simt.py --kernels saxpy "n-body" --seconds 3
    python benchmarks/simt.py --cpu avx2 --json benchmarks/results/cpu-2core-simt-avx2.json

Kernel and loop are called in turns, so that whatever else the machine does is in both, and their
answers are compared before. Both run on one core, and all times are processor times, which leave
out what other programs use. "ratio" is the kernel's least time over the loop's least: below 1 the
kernel is faster. The CUDA simulator runs a small case (40 to 1,000 elements) in a process of its
own; "sim" is its time over the kernel's for that case. "first" and "cached" are the seconds of the
first launch in a new process, the second time with what the first left on disk, after a small njit
function has been compiled, which loads the compiler; "njit first" is the first call of the loop.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from _common import Timing, arguments, print_table, save, summarise
from _simt_kernels import CASES, Case
from numba import cuda, njit

from synknumba import KernelError, simt

CALLS = (21, 5000)  # at least and at most of each kernel

# Overrides of the processor that Numba compiles for; both variables are needed, as one alone
# leaves the other as it is.
PROCESSORS = {
    "avx2": {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+avx2,+fma,+bmi,+bmi2,+f16c,+lzcnt,+popcnt",
    }
}


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; `refused` says why there are no times. Starts in seconds, the
    simulator's times in milliseconds.
    """

    kernel: str
    refused: str = ""
    simt: Timing | None = None
    njit: Timing | None = None
    ratio: float | None = None
    ratio_of_medians: float | None = None
    target: float = 1.2
    first_launch: float | None = None
    cached_launch: float | None = None
    njit_first_call: float | None = None
    simulator: float | None = None
    simulator_factor: float | None = None


def copies(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args)


def check_equal(case: Case, kernel: simt.Kernel) -> None:
    """Compares kernel and loop on the small and on the large case."""
    for small in (True, False):
        grid, block, args = case.make(small)
        ours, theirs = copies(args), copies(args)
        kernel[grid, block](*ours)
        case.loop(*theirs)
        for got, expected in zip(ours, theirs, strict=True):
            if not isinstance(got, np.ndarray):
                continue
            if got.dtype.names or got.dtype.kind in "iu":
                np.testing.assert_array_equal(got, expected, err_msg=case.name)
            else:
                np.testing.assert_allclose(
                    got, expected, rtol=case.tolerance, atol=case.tolerance, err_msg=case.name
                )


def time_in_turns(
    first: Callable[[], object], second: Callable[[], object], seconds: float
) -> tuple[Timing, Timing]:
    """Times two calls alternately for about that many seconds, in processor time: others use the
    machine too.
    """
    clock = time.thread_time_ns
    times: tuple[list[int], list[int]] = ([], [])
    end = time.monotonic() + seconds
    while len(times[0]) < CALLS[0] or (time.monotonic() < end and len(times[0]) < CALLS[1]):
        for call, taken in ((first, times[0]), (second, times[1])):
            start = clock()
            call()
            taken.append(clock() - start)
    return summarise(times[0]), summarise(times[1])


def measure(case: Case, args: argparse.Namespace) -> Result:
    kernel = simt.jit(case.kernel)
    try:
        check_equal(case, kernel)
    except KernelError as error:
        return Result(case.name, refused=str(error).splitlines()[0])
    grid, block, given = case.make(False)
    ours, theirs, launch = copies(given), copies(given), kernel[grid, block]
    kernel_times, loop_times = time_in_turns(
        lambda: launch(*ours), lambda: case.loop(*theirs), args.seconds
    )
    starts = first_launches(case) if args.starts else {}
    simulated = simulator_time(case) if args.simulator else None
    return Result(
        case.name,
        "",
        kernel_times,
        loop_times,
        kernel_times.minimum / loop_times.minimum,
        kernel_times.median / loop_times.median,
        case.target,
        **starts,
        simulator=simulated,
        simulator_factor=None if simulated is None else simulated / small_time(case, kernel),
    )


def small_time(case: Case, kernel: simt.Kernel) -> float:
    """Milliseconds of the case that the simulator is given."""
    grid, block, args = case.make(True)
    launch = kernel[grid, block]
    return min(seconds_of(lambda: launch(*args)) for _ in range(50)) * 1e3


# ---- parts that run in processes of their own


def in_a_process(part: str, case: Case, environment: dict[str, str]) -> Any:
    """What this script, told to do one part for one kernel, prints as JSON; None if it says that
    it cannot.
    """
    command = [sys.executable, "-W", "ignore", __file__, "--part", part, "--kernels", case.name]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def first_launches(case: Case) -> dict[str, float]:
    """Of the kernel, without and with what an earlier process left on disk, and of the loop; in
    seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        cache = {"NUMBA_CACHE_DIR": folder, "XDG_CACHE_HOME": folder}
        return {
            "first_launch": in_a_process("first-launch", case, cache),
            "cached_launch": in_a_process("first-launch", case, cache),
            "njit_first_call": in_a_process("first-call", case, cache),
        }


def simulator_time(case: Case) -> float | None:
    """Milliseconds of the small case; None where the simulator cannot run the kernel."""
    return in_a_process("simulator", case, {"NUMBA_ENABLE_CUDASIM": "1"})


def run_part(part: str, case: Case) -> float | None:
    njit(lambda x: x + 1.0)(1.0)
    grid, block, args = case.make(part == "simulator")
    if part == "first-call":
        return seconds_of(lambda: case.loop(*args))
    if part == "first-launch":
        return seconds_of(lambda: simt.jit(case.kernel, cache=True)[grid, block](*args))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kernel = cuda.jit(case.kernel)[grid, block]
            kernel(*args)
            return seconds_of(lambda: kernel(*args)) * 1e3
        except AttributeError:  # the simulator has no warp operations
            return None


def seconds_of(call: Callable[[], object]) -> float:
    """In processor time, of all threads: the simulator has one for each CUDA thread."""
    start = time.process_time()
    call()
    return time.process_time() - start


# ---- the table


def rows(results: list[Result]) -> Iterator[list[str]]:
    for result in results:
        if result.simt is None or result.njit is None:
            yield [result.kernel, "refused", *[""] * 7]
            continue
        times = [f"{timing.minimum / 1e3:.3f}" for timing in (result.simt, result.njit)]
        starts = [result.first_launch, result.cached_launch, result.njit_first_call]
        yield [
            result.kernel,
            *times,
            f"{result.ratio:.2f}" + ("" if (result.ratio or 0) <= result.target else " !"),
            f"{result.ratio_of_medians:.2f}",
            *("" if start is None else f"{start:.2f}" for start in starts),
            "" if result.simulator_factor is None else f"{result.simulator_factor:,.0f}",
        ]


def main() -> None:
    """Measures, prints, and saves where asked to."""
    parser = arguments(__doc__)
    names = [case.name for case in CASES]
    parser.add_argument(
        "--kernels", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names)
    )
    parser.add_argument(
        "--cpu",
        choices=PROCESSORS,
        help="have Numba make code for this processor instead of the machine's own",
    )
    parser.add_argument(
        "--no-simulator", dest="simulator", action="store_false", help="leave the simulator out"
    )
    parser.add_argument(
        "--no-starts", dest="starts", action="store_false", help="leave the first launches out"
    )
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    cases = [case for case in CASES if case.name in args.kernels]
    if args.part:
        return print(json.dumps(run_part(args.part, cases[0])))
    if args.cpu and any(
        os.environ.get(name) != value for name, value in PROCESSORS[args.cpu].items()
    ):
        os.execve(
            sys.executable, [sys.executable, *sys.argv], {**os.environ, **PROCESSORS[args.cpu]}
        )
    results = []
    for case in cases:
        results.append(measure(case, args))
        print(*next(rows(results[-1:])), sep="  ", flush=True)
    print(
        "\nmilliseconds, minimum; ratio: simt / njit, '!' above target; starts in seconds; sim: "
        "simulator / simt, small case"
    )
    print_table(
        ["kernel", "simt", "njit", "ratio", "of medians", "first", "cached", "njit first", "sim"],
        list(rows(results)),
    )
    ratios = [result.ratio for result in results if result.ratio is not None]
    if ratios:
        print(f"geometric mean of {len(ratios)} ratios: {statistics.geometric_mean(ratios):.2f}")
    settings = {
        "seconds": args.seconds,
        "cpu": args.cpu,
        "processor": {name: os.environ.get(name) for name in PROCESSORS["avx2"]},
    }
    return save(args.json, "simt", results, settings)


if __name__ == "__main__":
    main()
