"""The outcomes of numba-cuda's tests as a page: what passed by file, and why the others did not."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

STATUSES = ("passed", "failed", "refused", "not applicable")

HEAD = """# numba-cuda's own tests on the CPU

Made by `python -m tests.peers.numba_cuda_suite --env DIR --json FILE --markdown FILE` from {source}, without
a GPU: `cuda.jit` is `simt.jit`, device arrays are NumPy arrays. A test is *not applicable* where it makes no kernel or
looks at what exists on a GPU only; `tests/peers/` says how that is decided, and never from a failure. *Refused*: simt
says that it cannot run the kernel.

"""


class Outcome(Protocol):
    """What the runner knows of one test."""

    file: str
    test: str
    status: str
    reason: str


def page(outcomes: Sequence[Outcome], source: str) -> str:
    """The whole page."""
    parts = [HEAD.format(source=source), _by_file(outcomes)]
    for status in ("failed", "refused"):
        chosen = [outcome for outcome in outcomes if outcome.status == status]
        parts += [f"\n## {status.capitalize()}: {len(chosen)}\n\n", _by_reason(chosen, named=True)]
    left_out = [outcome for outcome in outcomes if outcome.status == "not applicable"]
    parts += [f"\n## Not applicable: {len(left_out)}\n\n", _by_reason(left_out, named=False)]
    return "".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


def _by_file(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for file in dict.fromkeys(outcome.file for outcome in outcomes):
        counts = Counter(outcome.status for outcome in outcomes if outcome.file == file)
        rows.append([file, *(str(counts[status] or "") for status in STATUSES)])
    counts = Counter(outcome.status for outcome in outcomes)
    rows.append(["**all**", *(f"**{counts[status]}**" for status in STATUSES)])
    return _table(["file", *STATUSES], rows)


def _by_reason(outcomes: Sequence[Outcome], *, named: bool) -> str:
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[shortened(outcome.reason)].append(outcome)
    rows = []
    for reason, group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        files = Counter(outcome.file.rpartition("/")[2] for outcome in group)
        if named:
            where = ", ".join(f"{outcome.file.rpartition('/')[2]}.{outcome.test.rpartition('.')[2]}" for outcome in group)
        else:
            where = ", ".join(f"{file} {count}" for file, count in files.items())
        rows.append([str(len(group)), reason, where])
    return _table(["tests", "reason", "where"], rows)


def shortened(reason: str) -> str:
    """A reason without the kernel's name, its place and what follows from the environment."""
    reason = re.sub(r"^\S+ \([^()]*:\d+\): ", "", reason)
    reason = re.sub(r"Failed in nopython mode pipeline \(step: [a-z ]+\)( \/ | \| )?", "", reason)
    reason = re.sub(r"(\.\.)?/\S*/", "", reason)
    return reason[:220].strip()
