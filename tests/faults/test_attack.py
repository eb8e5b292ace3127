"""A few cases of the random attack, and defects planted in its script, which it must find."""

import re
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.attack import arena
from tests.faults.attack.arena import VICTIM, Arena, findings
from tests.faults.attack.cases import FAULTS, PHASES, Case, draw
from tests.faults.nursery import Nursery
from tests.quick import whole

CASES = (
    Case("a", "SIGKILL, rank", "calls", cold=True, companions=("makes data",)),
    Case("b", "Ctrl-C", "data", delay=0.01, strikes=(2, 3e-3), surroundings={"closed": [0]}),
    Case(
        "c",
        "ValueError, rank",
        "scatter",
        in_thread=True,
        respawn=True,
        surroundings={"cache": "truncated"},
    ),
    Case("d", "SIGTERM, script", "exit", companions=("forks",), limits={"descriptors": 40}),
    Case("e", "suspended machine", "collective", seconds=0.1, interpreter="development mode"),
    Case("f", "os._exit, rank", "sequence", world_size=3),
)

IDLE = "time.sleep(0.005)"
PLANTS = {  # what the script does in the place of idling, and what must be found, and nothing else
    "several": (
        "[os.dup(2) for _ in range(12)]\n        assert self.errors % 2\n        1 / 0",
        ("left descriptor", "wrong: assert self.errors", "told ZeroDivisionError"),
    ),
    "a process is left": ("os.fork() or time.sleep(60)", ("left child", "left behind: process")),
    "a hang": ("time.sleep(60)", ("(?s)the script hangs.*in idle",)),
    "an early end": ("os._exit(0)", ("the script ended early",)),
    "a message of Python's": (
        "os.write(2, b'Exception ignored in: x')",
        ("it wrote: Exception ignored",),
    ),
}


@pytest.mark.whole
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.fault)
def test_a_case(nursery: Nursery | None, tmp_path: Path, case: Case) -> None:
    with closing(Arena(tmp_path, plain=nursery)) as ring:
        seen = ring.run(case)
    assert seen.struck
    assert findings(case, seen) == []


@pytest.mark.parametrize("plant", ["several", *whole(*list(PLANTS)[1:])])
def test_a_planted_defect_is_found(
    nursery: Nursery | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: str
) -> None:
    monkeypatch.setattr(arena, "LEFT_SECONDS", 0.5)
    monkeypatch.setattr(arena, "DUMP_SECONDS", 0.5)
    text, expected = PLANTS[plant]
    original = VICTIM.read_text()
    assert original.count(IDLE) == 1
    victim = tmp_path / "victim.py"
    victim.write_text(original.replace(IDLE, text))
    case = Case(
        "planted",
        "SIGKILL, rank" if plant == "several" else "nothing",
        "idle",
        cold=True,
        world_size=1,
    )
    with closing(Arena(tmp_path, 10.0 if plant == "a hang" else 60.0, victim, nursery)) as ring:
        seen = ring.run(case)
    found = findings(case, seen)
    assert all(any(re.search(one, line) for line in found) for one in expected), found
    assert all(any(re.search(one, line) for one in expected) for line in found), found


def test_cases_are_drawn_again_from_their_names() -> None:
    cases = [draw(3, number) for number in range(1500)]
    assert cases[7] == draw(3, 7)
    assert cases[7] != draw(4, 7)
    assert {case.fault for case in cases} == set(FAULTS)
    assert {case.phase for case in cases} == set(PHASES)
