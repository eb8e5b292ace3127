"""What docs/diagnosis.md shows of a rank that died is what its script prints."""

import re

from tests.environment import ROOT, run_program

PAGE = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")


def plain(text):
    """Without line breaks, process ids and folders."""
    return re.sub(r'File "[^"]*/', 'File "', re.sub(r"pid \d+", "pid N", " ".join(text.split())))


def test_the_error_of_a_rank_that_died(tmp_path):
    program, shown = re.search(r"```python\n(import ctypes.*?)```\s+```\n(.*?)```", PAGE, re.DOTALL).groups()
    assert "RankDied" in shown
    done = run_program(program, tmp_path / "fault.py")
    assert done.returncode == 1
    assert plain(shown) in plain(done.stderr)
    assert done.stderr.startswith("free(): invalid pointer\n")
