"""Runs the suite and writes what passed, by file and device, with the machine and the versions.

    python -m tests.report FILE [pytest arguments]

is how the results of the GPU tests under benchmarks/results/ are made:
`python -m tests.report FILE -m "gpu or multi_gpu"`.
"""

import datetime
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _common

ROOT = Path(__file__).resolve().parents[1]
DEVICE = re.compile(r"\[((?:cpu|cuda)\w*)")


class Collected:
    """Counts the outcome of each test, as pytest reports it."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.failures: list[str] = []
        self.faults: list[Any] = []
        self.seconds = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds += report.duration
        if report.when != "call" and report.outcome == "passed":
            return
        device = DEVICE.search(report.nodeid)
        self.counts[report.nodeid.split("::")[0], device[1] if device else "-", report.outcome] += 1
        if report.failed:
            self.failures.append(report.nodeid)
        self.faults += [
            told
            for name, told in report.user_properties
            if name == "fault" and report.when == "call"
        ]


def main() -> int:
    target, *arguments = sys.argv[1:]
    collected = Collected()
    paths = (
        [] if any((ROOT / argument).exists() for argument in arguments) else [str(ROOT / "tests")]
    )
    code = pytest.main([*paths, "-q", "-p", "no:cacheprovider", *arguments], plugins=[collected])
    rows = [
        {"file": file, "device": device, "outcome": outcome, "tests": tests}
        for (file, device, outcome), tests in sorted(collected.counts.items())
    ]
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": _common.machine(),
        "versions": _common.versions(),
        "arguments": arguments,
        "seconds": round(collected.seconds, 1),
        "results": rows,
        "failures": collected.failures,
        **({"faults": collected.faults} if collected.faults else {}),
    }
    Path(target).write_text(json.dumps(report, indent=1) + "\n")
    return int(code)


if __name__ == "__main__":
    raise SystemExit(main())
