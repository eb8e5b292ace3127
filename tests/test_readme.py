"""The complete programs in the README run, and print what it says that they print."""

import re
import subprocess
import sys

import pytest

from tests.environment import ROOT, environment

BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
PROGRAMS = [block for block in BLOCKS if "import synknumba as synk" in block]
PRINTED = re.compile(r"print\(.*# .*?(\[.*\])$", re.MULTILINE)


def test_programs_were_found():
    assert len(PROGRAMS) >= 2
    assert any(PRINTED.search(program) for program in PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS, ids=[re.search(r"def (\w+)", program).group(1) for program in PROGRAMS])
def test_program(program, tmp_path):
    script = tmp_path / "program.py"  # a kernel needs its source
    script.write_text(program.replace("10_000_000", "100_000"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    for told in PRINTED.findall(program):
        assert told in done.stdout
