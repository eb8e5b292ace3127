"""Carries out the fault matrix and writes the table of docs/reliability.md.

    python -m tests.faults.report [docs/reliability.md] [--only PATTERN] [--times N]

Without a file it prints what is not as promised. What was seen on GPUs is kept in benchmarks/results/*faults*.json, written
there by `python -m tests.report FILE -m "gpu or multi_gpu" tests/faults`, and what long runs have seen in *soak*.json, by
`python -m tests.faults.soak --json FILE`.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import _common
from tests.faults.matrix.client import run_wanted
from tests.faults.matrix.table import CASES, Outcome, problems, representative
from tests.faults.scripts import ROOT

HEAD = """# What happens when something goes wrong

Written by `python -m tests.faults.report docs/reliability.md`, which makes each of these things happen in real processes, and
looks at what the script is told and at what is left: processes, children, descriptors, mappings and names of shared memory, and
the contents of `Data`. Then it calls `fork()` again and checks the next calls against NumPy.

{total} cases on CPU cores, of 1, 2 and 3 ranks, where one, several or all ranks have the fault, {times}; {bad} were not as
promised. A row is a fault at a phase. Its seconds are the longest from the fault until the script was told or, where the script
itself ends, until the last process was gone. A rank that is stopped is told of after the call's `timeout`, 0.4 s here.

{machine}

| fault | in | phase | cases | the script gets | seconds | leaks | next call |
|---|---|---|---|---|---|---|---|
"""

SOAK_HEAD = """
`python -m tests.faults.soak` mixes calls at random over functions, shapes, batches, slices, collectives, worlds of 1 to 3
ranks, and faults: ranks that raise or are killed, and Ctrl-C at random moments. Every result is compared with NumPy's. What the
script holds, when it has let go of everything, after the first tenth of the calls and at the end:

| calls | on | worlds | seconds | memory, MB | free on a GPU, MB | descriptors | mappings | children | names in /dev/shm | |
|---|---|---|---|---|---|---|---|---|---|---|
"""
GPU_WORDS = "The tests there fail where anything is left or the next call is wrong."
GPU_HEAD = """| fault | the script gets | seconds | leaks | next call |
|---|---|---|---|---|
"""


def table(runs: Sequence[dict[str, Outcome]]) -> str:
    """The rows, one for each fault at each phase, of all runs."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in runs[0]:
        case = CASES[name]
        what = case.fault.what
        if case.second is not None:
            what += f", then {case.second.what} {case.second.phase}"
        where = "ranks" if case.fault.ranks else "script"
        groups.setdefault((what, where, case.fault.phase or "–", _told(name)), []).append(name)
    return "".join(_row(*key, [[seen[name] for name in names] for seen in runs]) for key, names in groups.items())


def _told(name: str) -> str:
    case = CASES[name]
    if case.error == "ended":
        return f"ends, status {case.words[0]}"
    told = f"`{case.error}`" if case.error else "nothing"
    return told + ("; the world stays open" if case.stays_open else "")


def _row(what: str, where: str, phase: str, told: str, runs: list[list[Outcome]]) -> str:
    outcomes = [outcome for run in runs for outcome in run]
    seconds = max(outcome.get("seconds", 0.0) for outcome in outcomes)
    leaks = sum(bool(outcome.get("leaks") or outcome.get("left")) for outcome in outcomes)
    right = sum(outcome.get("next") == "right" for outcome in outcomes)
    next_call = "right" if right == len(outcomes) else f"right in {right} of {len(outcomes)}"
    return f"| {what} | {where} | {phase} | {len(runs[0])} | {told} | {seconds:.2f} | {leaks or 'none'} | {next_call} |\n"


def gpu_rows() -> str:
    """What the last run on GPUs has seen; its tests assert that nothing leaks and that the next call is right."""
    lines = []
    for path in sorted((ROOT / "benchmarks" / "results").glob("*faults*.json")):
        report = json.loads(path.read_text())
        gpus = ", ".join(report["machine"]["gpus"])
        lines.append(f"\n{gpus}; benchmarks/results/{path.name}, {report['date']}. {GPU_WORDS}\n\n{GPU_HEAD}")
        for row in report["faults"]:
            seconds = "" if row["seconds"] is None else f"{row['seconds']:.2f}"
            lines.append(f"| {row['fault']} | {row['error']} | {seconds} | none | right |\n")
        lines += [f"\nFailed: {failure}\n" for failure in report["failures"]]
    return "".join(lines) or "\nNo run on GPUs is kept yet.\n"


def soak_rows() -> str:
    """What the last long runs have seen."""
    rows = []
    for path in sorted((ROOT / "benchmarks" / "results").glob("*soak*.json")):
        report = json.loads(path.read_text())
        for run in report["results"]:
            first, last = run["first"], run["last"]
            resident, free = (
                " → ".join(f"{one[what] / 1e6:,.1f}" for one in (first, last) if what in one)
                for what in ("resident", "device free")
            )
            device = "GPUs" if free else "cores"
            cells = [f"{run['calls']:,}", device, f"{run['worlds']:,}", f"{run['seconds']:.0f}", resident, free]
            cells += [f"{first[what]} → {last[what]}" for what in ("descriptors", "segments", "children", "names")]
            cells.append(f"benchmarks/results/{path.name}, {report['date']}")
            rows.append(f"| {' | '.join(cells)} |\n")
    return f"{SOAK_HEAD}{''.join(rows)}"


def kept() -> str:
    """The sections that are of other runs."""
    return f"\n## Calls at random\n{soak_rows()}\n## On GPUs\n{gpu_rows()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--only", default="", help="a regular expression for the names of cases")
    parser.add_argument("--representative", action="store_true", help="only those that the tests always run")
    parser.add_argument(
        "--kept-only", action="store_true", help="write the sections of other runs anew, and leave the table as it is"
    )
    parser.add_argument("--times", type=int, default=1, help="how often all are run, one time after the other")
    options = parser.parse_args()
    if options.kept_only:
        own = re.split(r"\n## ", options.file.read_text())[0]
        options.file.write_text(own + kept())
        return 0
    always = representative()
    names = [name for name in CASES if re.search(options.only, name) and (name in always or not options.representative)]
    bad: set[str] = set()
    runs: list[dict[str, Outcome]] = []
    for _ in range(options.times):
        began = time.monotonic()
        runs.append(run_wanted(names))
        found = {name: wrong for name, outcome in runs[-1].items() if (wrong := problems(CASES[name], outcome))}
        for name, wrong in found.items():
            print(name, *wrong, sep="\n    ")
        print(f"{len(runs[-1])} cases, {len(found)} not as promised, {time.monotonic() - began:.0f} s", flush=True)
        bad |= {*found}
    if options.file is not None:
        times = "once" if options.times == 1 else f"{options.times} times in a row"
        machine = f"Machine: `{json.dumps(_common.machine())}`"
        head = HEAD.format(total=len(runs[0]), bad=len(bad), times=times, machine=machine)
        options.file.write_text(f"{head}{table(runs)}{kept()}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
