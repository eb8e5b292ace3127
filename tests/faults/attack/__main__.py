"""Draws cases and runs them until the time is over; prints what it found, and how each can be seen
again.

    python -m tests.faults.attack --minutes 10 --seed 1 [--device cuda]
    python -m tests.faults.attack --replay 1:57 [--times 20] [--folder FOLDER]

Cases depend on moments: a finding may need some replays. The exit status is 1 if there was any.
"""

import argparse
import itertools
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from tests.faults.attack.arena import Arena, findings
from tests.faults.attack.cases import FAULTS, PHASES, Case, draw


def drawn(seed: int, minutes: float, device: str) -> Iterator[Case]:
    """Cases of a seed until the time is over."""
    end = time.monotonic() + 60.0 * minutes
    numbers = itertools.takewhile(lambda _: time.monotonic() < end, itertools.count())
    return (draw(seed, number, device) for number in numbers)


def attack(
    cases: Iterable[Case], arena: Arena
) -> tuple[Counter[tuple[str, str]], Counter[str], list[str]]:
    """Runs cases, and prints what is found.

    Returns how many of each fault and phase, how many of each fault had no effect, and a line for
    each finding.
    """
    counts: Counter[tuple[str, str]] = Counter()
    missed: Counter[str] = Counter()
    lines = []
    for case in cases:
        seen = arena.run(case)
        counts[case.fault, case.phase] += 1
        missed[case.fault] += not seen.struck
        found = findings(case, seen)
        if not found:
            shutil.rmtree(arena.place(case), ignore_errors=True)
            continue
        lines.append(f"{case.name}: {case.fault}, {case.phase}: {found[0].splitlines()[0][:150]}")
        again = (
            f"python -m tests.faults.attack --replay {case.name} --device {case.device} --times 20"
        )
        print(
            f"\n== {case}\n   {again}\n   {arena.place(case)} has the script and all that it wrote",
            *found,
            sep="\n   - ",
        )
        print("   log:", *seen.log[-12:], sep="\n      ", flush=True)
    return counts, missed, lines


def summary(counts: Counter[tuple[str, str]]) -> str:
    """The table of cases: faults by phases."""
    lines = [f"{'':38}" + "".join(f"{phase:>11}" for phase in PHASES)]
    lines += [
        f"{fault:38}" + "".join(f"{counts[fault, phase]:11}" for phase in PHASES)
        for fault in FAULTS
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--replay", metavar="CASE", help="seed:number of one case")
    parser.add_argument("--times", type=int, default=1, help="how often it is replayed")
    parser.add_argument("--folder", type=Path, help="where scripts and what they write go")
    options = parser.parse_args()
    cases: Iterable[Case] = drawn(options.seed, options.minutes, options.device)
    if options.replay:
        seed, number = map(int, options.replay.split(":"))
        cases = itertools.repeat(draw(seed, number, options.device), options.times)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="synknumba-attack-"))
    began = time.monotonic()
    with closing(Arena(folder)) as arena:
        counts, missed, found = attack(cases, arena)
    print(
        f"\n{summary(counts)}\n\n{counts.total()} cases, {len(found)} with findings, "
        f"{time.monotonic() - began:.0f} s"
    )
    print(f"{missed.total()} struck nobody:", dict(+missed))
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
