"""`synknumba check --ranks 1,2,3`: a script once on each number of ranks, with the results of
its calls compared.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import synknumba
from synknumba._call.compared_ranks import Comparison, Store, Summary, compared, summaries
from synknumba._call.function import Function
from synknumba._commands.terminal import FAILED, FOUND, CommandError, coloured, tell
from synknumba._learning.training import TrainFunction
from synknumba._machines import launch
from synknumba._rowwise.expectation import Expectation
from synknumba._rowwise.map import Vectorized
from synknumba._sequence.sequence import Sequence
from synknumba._types import count_text
from synknumba._variables.variable import Variable
from synknumba._world import machines

_COLLECTIVES = (
    "broadcast",
    "scatter",
    "gather",
    "all_gather",
    "reduce",
    "all_reduce",
    "reduce_scatter",
    "exchange",
)
# The calls that are compared; those that they make in turn are part of them.
_CALLS_OF: dict[Any, tuple[str, ...]] = {
    Function: ("__call__", "submit", "as_serial"),
    Sequence: ("__call__", "submit"),
    Vectorized: ("__call__", "submit", "as_serial", "reduce"),
    Expectation: ("__call__", "submit", "as_serial"),
    TrainFunction: ("__call__", "submit"),
    synknumba: (*_COLLECTIVES, "set_value"),
    Variable: ("set_value",),
}
CALLS = [(owner, name) for owner, names in _CALLS_OF.items() for name in names]


def compare(args: argparse.Namespace) -> int:
    """Runs a script once on each number of ranks; returns the exit status."""
    if args.run_in is not None:
        return _run_here(args)
    first, *summaries_of_rest = args.ranks
    codes = {}
    signal.signal(signal.SIGTERM, _end)  # else the script would run on, and the folder stay
    with tempfile.TemporaryDirectory(prefix="synknumba-check-") as folder:

        def run(ranks: int, mode: str) -> str:
            code, errors = _run(args, folder, ranks, mode)
            if mode != "mark":
                codes[ranks] = code
            return errors

        runs = []
        for ranks, (summary, errors) in zip(
            summaries_of_rest, summaries(Store(Path(folder)), args.ranks, run), strict=True
        ):
            sizes = count_text(first, "rank"), count_text(ranks, "rank")
            if not summary.problem and codes[ranks] != codes[first]:
                tell(errors)
                summary.problem = (
                    f"the script ends with status {codes[first]} on {sizes[0]}, "
                    f"and {codes[ranks]} on {sizes[1]}"
                )
            if summary.problem:
                head = coloured(f"{' and '.join(sizes)} differ", "problem", sys.stderr)
                tell(
                    f"synknumba check: {head}: {summary.finding}\n"
                    "synknumba check: races, indices and a grid that does not fit the kernel are "
                    "found without --ranks; look at these first\n"
                )
                return FOUND
            runs.append(summary)
    return _conclude(args.ranks, runs, codes[first])


def _end(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def _conclude(sizes: list[int], runs: list[Summary], code: int) -> int:
    agree = min(summary.counted for summary in runs)
    numbers = f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]} ranks"
    verb = "agrees" if agree == 1 else "agree"
    outcome = f"{count_text(agree, 'call')} {verb} on {numbers}"
    most = max(runs, key=lambda summary: summary.skipped)
    if not agree and not most.skipped:
        outcome = "the script has made no call to compare"
    tell(f"synknumba check: {outcome}\n")
    if most.skipped:
        tell(
            f"synknumba check: {most.skipped:,} not compared, as they or their inputs differ "
            "between the runs, though no call before does: they depend on the number of ranks, or "
            f"are random and need a seed. The first is {most.reason}\n"
        )
    if code == 0 and not agree:
        return FAILED
    return code


def _run(args: argparse.Namespace, folder: str, ranks: int, mode: str) -> tuple[int, str]:
    """Runs the script in a process of its own; returns the exit status, and standard error where
    that is not shown.
    """
    options = [
        "--device",
        args.device,
        "--ranks",
        str(ranks),
        "--run-in",
        f"{mode}:{args.ranks[0]}:{folder}",
    ]
    script = [args.script, *args.arguments]
    if args.is_module:
        script.insert(0, "-m")
    warnings = [f"-W{option}" for option in sys.warnoptions]
    command = [sys.executable, *warnings, "-m", "synknumba", "check", *options, *script]
    # The order of sets of strings, and with it that of calls, must not differ between the runs.
    environment = dict(os.environ)
    if environment.get("PYTHONHASHSEED", "random") == "random":
        environment["PYTHONHASHSEED"] = "0"
    if mode == "first":
        return subprocess.run(command, env=environment, check=False).returncode, ""  # noqa: S603  # the user's own script
    done = subprocess.run(  # noqa: S603  # as above
        command,
        env=environment,
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    return done.returncode, done.stderr


def _run_here(args: argparse.Namespace) -> int:
    """Runs the script in this process, on one number of ranks."""
    mode, first, folder = args.run_in.split(":", 2)
    ranks = args.ranks[0]
    if args.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    machines.ranks_compared[:] = [(ranks, args.device)]
    comparison = Comparison(Store(Path(folder)), (int(first), ranks), mode)
    with compared(comparison, CALLS):
        code = launch.run(args.script, args.arguments, None, is_module=args.is_module)
    if not comparison.summary.problem:
        comparison.finish()
    return code


def check_options(args: argparse.Namespace) -> None:
    """Raises CommandError for options that go with the checker of races and bounds only, or with
    the comparison only.
    """
    if len(args.ranks) > 1:
        for name in ("rows", "calls", "html"):
            if getattr(args, name) is not None:
                raise CommandError(
                    f"--{name} is for the checker of races and bounds; leave it out, or "
                    f"name one number of ranks"
                )
    elif args.device != "cpu" and args.run_in is None:
        raise CommandError(
            "--device is for the comparison, with several numbers in --ranks, as "
            "--ranks 1,2,3; leave it out"
        )
