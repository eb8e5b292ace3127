"""What the first launch of a kernel on a core costs, and the first with another block.

    python benchmarks/first_launches.py
    python benchmarks/first_launches.py --kernels cubic_current --json results.json

The kernels are long ones, as simulation, speech and vision programs have
(`tests/conformance/simt/programs.py`), and the short ones of `simt.py`. Each is launched in a new
process, without a cache on disk, after a small njit function has been compiled, which loads the
compiler; then with another block. "ratio" is the second over the first. The last row is the loop
that one would write by hand for `cubic_current`, compiled by njit: it tells how fast the machine
compiles. Seconds are processor time, the least of `--repeats`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from _common import ROOT, arguments, print_table, save
from _simt_kernels import CASES
from numba import njit

from synknumba import simt

sys.path.insert(0, str(ROOT))

from tests.conformance.simt import programs
from tests.conformance.simt.cases import CASES as PROGRAMS

LOOP = "cubic_current as a loop"

# Programs, with the sizes of two blocks; the block need not suit the work, as nothing looks at the
# results.
BLOCKS = {
    "cubic_charge": (256, 128),
    "cubic_current": (256, 128),
    "alphas": (64, 128),
    "rotated_overlaps": (16, 32),
    "covered_boxes": (16, 32),
    "block_matching": (32, 16),
}
NAMES = [*BLOCKS, *(case.name for case in CASES), LOOP]


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of a kernel's first launch, and of the first one with another block; None where
    that shares all code.
    """

    kernel: str
    first: float
    other_block: float | None = None


def seconds_of(call: Callable[[], object]) -> float:
    """In processor time, which leaves out what other programs use."""
    start = time.process_time()
    call()
    return time.process_time() - start


def launches(name: str) -> tuple[Callable[..., None], Any, tuple[Any, Any], tuple[Any, ...]]:
    """The kernel, its grid, two blocks, and arguments."""
    if name in BLOCKS:
        return PROGRAMS[name].kernel, 1, BLOCKS[name], PROGRAMS[name].make()
    case = next(case for case in CASES if case.name == name)
    grid, block, args = case.make(True)
    half = (*block[:-1], block[-1] // 2) if isinstance(block, tuple) else block // 2
    return case.kernel, grid, (block, half), args


def measure_here(name: str) -> Result:
    """Measures one kernel in this process, which has compiled none before."""
    njit(lambda x: x + 1.0)(1.0)
    if name == LOOP:
        loop = njit(error_model="numpy", fastmath={"contract"})(
            programs.deposition(*programs.CURRENT, as_loop=True)
        )
        args = programs.current_arguments()
        return Result(name, seconds_of(lambda: loop(*args)))
    function, grid, (block, other), args = launches(name)
    kernel = simt.jit(function, cache=False)
    return Result(
        name, *(seconds_of(lambda size=size: kernel[grid, size](*args)) for size in (block, other))
    )


def measure(name: str, repeats: int) -> Result:
    """Measures one kernel in new processes."""
    command = [sys.executable, "-W", "ignore", __file__, "--part", name]
    found: list[Result] = []
    for _ in range(repeats):
        done = subprocess.run(
            command, env={**os.environ}, capture_output=True, text=True, check=True
        )
        found.append(Result(**json.loads(done.stdout.splitlines()[-1])))
    others = [result.other_block for result in found if result.other_block is not None]
    return Result(name, min(result.first for result in found), min(others, default=None))


def row(result: Result) -> list[str]:
    if result.other_block is None:
        return [result.kernel, f"{result.first:.2f}", "", ""]
    return [
        result.kernel,
        f"{result.first:.2f}",
        f"{result.other_block:.2f}",
        f"{result.other_block / result.first:.2f}",
    ]


def main() -> None:
    """Measures, prints, and saves where asked to."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--kernels", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=", ".join(NAMES)
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="processes for each kernel (default: 3)"
    )
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        result = measure_here(args.part)
        return print(
            json.dumps(
                {"kernel": result.kernel, "first": result.first, "other_block": result.other_block}
            )
        )
    results = []
    for name in args.kernels:
        results.append(measure(name, args.repeats))
        print(*row(results[-1]), sep="  ", flush=True)
    print("\nseconds of processor time, the least of several processes")
    print_table(["kernel", "first", "other block", "ratio"], [row(result) for result in results])
    return save(args.json, "first_launches", results, {"repeats": args.repeats})


if __name__ == "__main__":
    main()
