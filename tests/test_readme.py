"""The README is short, and its programs and those of the pages print what is said behind each
`print`.
"""

import re

import pytest

from tests.environment import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
VARIABLES = (ROOT / "docs" / "variables.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAMS = [*BLOCK.findall(README), *BLOCK.findall(VARIABLES)]
PRINTED = re.compile(r"print\(.*#(?: .*:)? +(\[.*\]|[\d.()]+)$", re.MULTILINE)


def test_it_is_short():
    assert len(README.splitlines()) <= 120


def test_programs_were_found():
    assert len(PROGRAMS) >= 3


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_program(program, tmp_path, run_program):
    done = run_program(program, tmp_path / "program.py")
    assert done.returncode == 0, done.stdout + done.stderr
    told = PRINTED.findall(program)
    assert told
    assert done.stdout.splitlines() == told
