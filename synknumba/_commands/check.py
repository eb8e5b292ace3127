"""`synknumba check`: a script with every launch of a kernel under `simt.check`, before it is
made as usual.
"""

import argparse
import os
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from synknumba import simt
from synknumba._commands import compare_ranks
from synknumba._commands.run import add_script, script_file
from synknumba._commands.terminal import (
    FOUND,
    Subparsers,
    add_command,
    check_writable,
    coloured,
    has_colours,
    positive,
    tell,
    write,
)
from synknumba._errors import DeviceError, Finding
from synknumba._machines import launch
from synknumba._ops.agreement import rank_numbers
from synknumba._sequence.checked_script import SLOW_SECONDS, Checks, checking
from synknumba._types import count_text
from synknumba.simt.internals import as_cuda_reported

DESCRIPTION = """\
Runs a script on CPU cores, with each call of a kernel checked before it is made: indices
out of bounds, also past the rows of a rank; races; barriers that not all threads reach;
reads of memory that nobody has written. The script is not changed, and may be one for
numba.cuda alone: device arrays, streams and the like have stand-ins.

Checks of more than half a second are compiled, and make some ten million accesses to elements
a second; what cannot be compiled is checked in Python, a hundred times slower. Use small
data, or check the first rows and calls only. Findings go to standard error, at last with the
source of the kernels.

With several numbers of ranks, as --ranks 1,2,3, the script runs once on each, without the
checker, and the first call whose results differ is named."""


def add(commands: Subparsers) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "check",
        _run,
        "run a script with every kernel under the checker of races and bounds",
        DESCRIPTION,
        (
            "check script.py --its-option 3",
            "check --ranks 1,2,3 script.py",
            "check --rows 1000 --calls 2 script.py",
            "check -m package.module",
        ),
    )
    parser.add_argument(
        "--rows",
        type=positive,
        metavar="K",
        help="check the first K rows of each call; default: all",
    )
    parser.add_argument(
        "--calls",
        type=positive,
        metavar="N",
        help="check the first N calls of each kernel; default: all",
    )
    parser.add_argument(
        "--ranks",
        type=rank_numbers,
        default=(),
        metavar="N",
        help="ranks of `synk.fork()` where the script names no number; or several to compare "
        "its results on, as 1,2,3",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="of the comparison; ranks share GPUs where there are too few",
    )
    # a run of the comparison, by this command
    parser.add_argument("--run-in", help=argparse.SUPPRESS)
    parser.add_argument(
        "--html", metavar="FILE", help="write the kernels' source with the findings to a page"
    )
    add_script(parser)


def _run(args: argparse.Namespace) -> int:
    script_file(args)
    compare_ranks.check_options(args)
    if args.html is not None:
        check_writable(args.html)
    if args.run_in is not None or len(args.ranks) > 1:
        return compare_ranks.compare(args)
    ranks = next(iter(args.ranks), None)
    # `fork()` takes cores: the checker looks at kernels in this process
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    findings: list[Finding] = []
    errors = 0

    def report(name: str, place: str, finding: Finding | str, _times: int) -> None:
        nonlocal errors
        kind, colour = "error of a thread", "problem"
        if isinstance(finding, Finding):
            findings.append(finding)
            kind = finding.error.__name__
            if finding.is_warning:
                colour = "warning"
        errors += colour == "problem"
        _report(coloured(f"{kind} in {name}", colour, sys.stderr), place, finding)

    checks = Checks(report, _slow, args.rows, args.calls)
    began = time.perf_counter()
    with ExitStack() as inside:
        # of a simulator, or a broken numba.cuda, which the script may do without
        with suppress(DeviceError):
            inside.enter_context(as_cuda_reported())
        inside.enter_context(checking(checks))
        code = launch.run(args.script, args.arguments, ranks, is_module=args.is_module)
    seconds = time.perf_counter() - began
    _show(findings, args.html)
    _conclude(checks, seconds)
    return FOUND if errors else code


def _report(head: str, place: str, finding: Finding | str) -> None:
    """Prints a finding as soon as it is made, since what it does to the script may end it."""
    if sys.stdout is not None:  # as by `>&-`
        sys.stdout.flush()
    tell(f"synknumba check: {head}, called at {place}\n  {finding}\n")


def _show(findings: list[Finding], page: str | None) -> None:
    """Shows the source of the kernels with the findings at their lines, and writes it to a page."""
    annotated = simt.annotate(findings)
    if findings:
        tell(f"\n{annotated.text(colour=has_colours(sys.stderr))}\n\n")
    if page is not None:
        write(page, lambda: Path(page).write_text(annotated.page(), encoding="utf-8"))


def _slow(name: str, place: str, before: int) -> None:
    """Says why nothing happens."""
    tell(
        f"synknumba check: the checks of {name} have taken {SLOW_SECONDS:g} s, and go on; call "
        f"{before + 1}, at {place}, is being checked. Pass fewer rows, or --rows K or --calls N\n"
    )


def _conclude(checks: Checks, seconds: float) -> None:
    calls, kernels, sites = sum(checks.calls.values()), len(checks.calls), len(checks.times)
    lines = []
    if sites:
        times = count_text(sum(checks.times.values()), "time")
        lines.append(f"{count_text(sites, 'finding')}, {times} in all")
    if not calls and not checks.left_out:
        lines.append(
            "the script has called no kernel that is checked; of expectations and Python "
            "functions, --ranks 1,2 compares the results"
        )
    else:
        checked = f"{count_text(calls, 'call')} of {count_text(kernels, 'kernel')} checked"
        if calls and not sites:
            checked += ": nothing found"
            if checks.has_halos:
                checked += "; --ranks 1,2 finds a forgotten exchange"
        lines.append(checked)
    for (name, reason), skipped in checks.left_out.items():
        lines.append(f"{count_text(skipped, 'call')} of {name} not checked: {reason}")
    alone = max(seconds - checks.seconds, 1e-9)
    lines.append(
        f"{seconds:.1f} s, of which {checks.seconds:.1f} s checking: {seconds / alone:.1f} "
        f"times as long as without"
    )
    tell("".join(f"synknumba check: {line}\n" for line in lines))
