"""`simt.check` of kernels that take Python seconds: the first check in a new process, and checks
after it.

    python benchmarks/check.py
    python benchmarks/check.py --json benchmarks/results/cpu-2core-check.json

"first" is the check of a new process with nothing on disk, after a small njit function has been
compiled, which loads the compiler; "cached" that of a process which finds what the first left;
"again" the least of five more checks in it; "Python" a check with `compiled=False`, and "ratio"
that over the first. In processor seconds of the process, which leave out what other programs use.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

from _check_kernels import CASES, Case
from _common import arguments, print_table, save
from numba import njit

from synknumba import simt

AGAIN = 5


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table, in processor seconds."""

    kernel: str
    first: float
    cached: float
    again: float
    python: float | None = None

    @property
    def ratio(self) -> float | None:
        return None if self.python is None else self.python / self.first


def seconds_of(case: Case, *, small: bool, compiled: bool | None) -> float:
    grid, block, args = case.make(small)
    start = time.process_time()
    simt.check(case.kernel, compiled=compiled)[grid, block](*args)
    return time.process_time() - start


def part(case: Case, args: argparse.Namespace) -> None:
    """Prints the times of a first check and of further ones as JSON."""
    njit(lambda x: x + 1)(1)
    print(json.dumps([seconds_of(case, small=args.small, compiled=None) for _ in range(1 + AGAIN)]))


def in_a_process(case: Case, args: argparse.Namespace, folder: str) -> list[float]:
    command = [sys.executable, __file__, "--part", case.name, *(["--small"] if args.small else [])]
    environment = {**os.environ, "SYNKNUMBA_CACHE_DIR": folder}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    times: list[float] = json.loads(done.stdout.splitlines()[-1])
    return times


def measure(case: Case, args: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        first, *_ = in_a_process(case, args, folder)
        cached, *again = in_a_process(case, args, folder)
    python = seconds_of(case, small=args.small, compiled=False) if args.python else None
    return Result(case.name, first, cached, min(again), python)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--kernels", nargs="+", choices=[*CASES], default=[*CASES])
    parser.add_argument("--small", action="store_true", help="small cases, which Python checks")
    parser.add_argument(
        "--no-python",
        dest="python",
        action="store_false",
        help="leave out the check in Python, of a minute",
    )
    parser.add_argument("--part", choices=[*CASES], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        part(CASES[args.part], args)
        return
    results = [measure(CASES[name], args) for name in args.kernels]
    shown = [
        [
            r.kernel,
            *(
                "" if s is None else f"{s:.3f}"
                for s in (r.first, r.cached, r.again, r.python, r.ratio)
            ),
        ]
        for r in results
    ]
    print_table(["check, s", "first", "cached", "again", "Python", "ratio"], shown)
    save(args.json, "check", results, {"kernels": args.kernels, "small": args.small})


if __name__ == "__main__":
    main()
