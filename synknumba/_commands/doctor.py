"""`synknumba doctor`: whether this machine is as synknumba needs it, and what to do where it is
not.
"""

import argparse
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

from synknumba._commands import gpu_checks, machine_checks
from synknumba._commands.findings import Finding, run_checks
from synknumba._commands.proof import prove
from synknumba._commands.terminal import (
    FOUND,
    SUCCESS,
    Subparsers,
    add_command,
    coloured,
    positive,
    print_json,
)
from synknumba._types import count_text

ALIASES = ("info",)
SCHEMA = 1  # of the JSON; raised when a key changes its meaning or goes
WIDTH = 110  # columns of text
MARGIN = 24  # columns before what a check found
# what the last line says to do
START = "`synknumba new ising` (or expectation, pde, training) writes a program to start from"
FIX = "do what stands behind each PROBLEM's arrow (→), and run `synknumba doctor` again"
_SIGNS = {"ok": "ok", "warning": "warning", "problem": "PROBLEM", "skipped": "-"}

DESCRIPTION = """\
Shows versions, for a bug report too, and checks this machine: limits, shared memory,
cores, the cache, the driver, CUDA's packages, NCCL and access between GPUs. At the end it
forks a world, and runs a kernel and an all_reduce on all ranks. Each warning and problem
comes with the way out."""


def add(commands: Subparsers) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "doctor",
        _run,
        "check this machine, and say what to do about what is wrong; also for a bug report",
        DESCRIPTION,
        (
            "doctor",
            "doctor --device cpu --ranks 4",
            "doctor --json | jq '.findings[] | select(.level != \"ok\")'",
        ),
        ALIASES,
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, whose keys stay"
    )
    parser.add_argument("--no-world", action="store_true", help="leave out the world at the end")
    parser.add_argument(
        "--ranks",
        type=positive,
        metavar="N",
        help="ranks of that world; default: one for each device",
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="of that world; default: auto",
    )


def findings(
    *, world: bool = True, ranks: int | None = None, device: str = "auto"
) -> Iterator[Finding]:
    """Returns what all checks find, those of the world last, if that is wanted."""
    checks = dict((*machine_checks.CHECKS, *gpu_checks.CHECKS))
    checks["room for ranks"] = partial(machine_checks.room, ranks)
    if world:
        checks["world"] = partial(prove, ranks, device)
    return run_checks(checks.items())


def _run(args: argparse.Namespace) -> int:
    reported = []
    for finding in findings(world=not args.no_world, ranks=args.ranks, device=args.device):
        reported.append(finding)
        if not args.json:
            _show(finding)
    counts = Counter(finding.level for finding in reported)
    if args.json:
        worst = [level for level in ("problem", "warning") if counts[level]]
        status, *_ = *worst, "ok"
        listed = [asdict(finding) for finding in reported]
        versions = machine_checks.versions()
        print_json({"schema": SCHEMA, "status": status, "versions": versions, "findings": listed})
    else:
        problems = _counted(counts["problem"], "problem")
        warnings = _counted(counts["warning"], "warning")
        print(f"\n{problems}, {warnings}, {counts['ok']} ok, {counts['skipped']} not checked")
        print(f"next: {FIX if counts['problem'] else START}")
    return FOUND if counts["problem"] else SUCCESS


def _counted(number: int, name: str) -> str:
    return count_text(number, name) if number else f"no {name}s"


def _show(finding: Finding) -> None:
    sign = coloured(f"{_SIGNS[finding.level]:<8}", finding.level)
    print(f"{sign}{finding.check:<16}{_filled(finding.text, MARGIN)}", flush=True)
    if finding.remedy:
        print(f"{' ' * MARGIN}→ {_filled(finding.remedy, MARGIN + 2)}", flush=True)


def _filled(text: str, margin: int) -> str:
    """Returns a text in lines that begin at a column, the first of them without its margin."""
    indent = " " * margin
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, initial_indent=indent, break_on_hyphens=False
    ).lstrip()
