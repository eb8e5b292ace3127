"""Draws cases and runs them until the time is over; prints what it found, and how each can be seen again.

    python -m tests.faults.attack --minutes 10 --seed 1 [--device cuda]
    python -m tests.faults.attack --replay 1:57 [--times 20] [--folder FOLDER]

Cases depend on moments: a finding may need some replays. The exit status is 1 if there was any.
"""

import argparse
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from tests.faults.attack.arena import Arena, Seen
from tests.faults.attack.cases import FAULTS, PHASES, Case, draw
from tests.faults.attack.judge import findings


def drawn(seed: int, minutes: float, device: str) -> Iterator[Case]:
    """Cases of a seed until the time is over."""
    end = time.monotonic() + 60.0 * minutes
    for number in itertools.count():
        if time.monotonic() > end:
            return
        yield draw(seed, number, device)


def report(case: Case, seen: Seen, found: list[str], arena: Arena) -> None:
    """Prints a finding."""
    device = f" --device {case.device}" if case.device != "cpu" else ""
    print(f"\n== {case}\n   python -m tests.faults.attack --replay {case.name}{device} --times 20")
    print(f"   {arena.place(case)} has the script and all that it wrote")
    print(*(f"   - {one}" for one in found), sep="\n")
    print("   log:", *seen.log[-12:], sep="\n      ", flush=True)


def attack(cases: Iterable[Case], arena: Arena) -> tuple[Counter[tuple[str, str]], list[tuple[Case, list[str]]]]:
    """Runs cases. Returns how many of each fault and phase, and what was found."""
    counts: Counter[tuple[str, str]] = Counter()
    all_found = []
    for case in cases:
        seen = arena.run(case)
        counts[case.fault, case.phase] += 1
        if found := findings(case, seen):
            all_found.append((case, found))
            report(case, seen, found, arena)
        else:
            arena.forget(case)
    return counts, all_found


def summary(counts: Counter[tuple[str, str]]) -> str:
    """The table of cases: faults by phases."""
    lines = [f"{'':38}" + "".join(f"{phase:>11}" for phase in PHASES)]
    lines += [f"{fault:38}" + "".join(f"{counts[fault, phase]:11}" for phase in PHASES) for fault in FAULTS]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        counts, found = attack(cases, arena)
    print(f"\n{summary(counts)}\n\n{counts.total()} cases, {len(found)} with findings, {time.monotonic() - began:.0f} s")
    for case, what in found:
        print(f"{case.name}: {case.fault}, {case.phase}: {what[0].splitlines()[0][:150]}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
