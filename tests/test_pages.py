"""Every block of Python in the README and in the pages can be pasted alone into a file, and runs."""

import re
import subprocess
import sys

import pytest

from tests.environment import ROOT, run_program

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = "_k_tx"  # what the compiler writes, which is shown and not meant to be run
FAILING = {"RankDied": "ctypes.CDLL(None).free", "CallTimeout": "wait_for_file", "BoundsError": "simt.debug(shift)"}


def blocks():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            if GENERATED not in found[1]:
                yield pytest.param(found[1], id=f"{page.stem}:{text[: found.start()].count(chr(10)) + 2}")


BLOCKS = list(blocks())


def test_blocks_were_found():
    assert len(BLOCKS) > 12


@pytest.mark.parametrize("block", BLOCKS)
def test_every_name_is_defined(block):
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--quiet", "--select", "F821", "-"]
    done = subprocess.run(command, input=block, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.whole
@pytest.mark.parametrize("block", BLOCKS)
def test_block_runs(block, tmp_path):
    done = run_program(block.replace("10_000_000", "100_000"), tmp_path / "block.py")
    expected = next((error for error, mark in FAILING.items() if mark in block), None)
    assert (done.returncode != 0) == (expected is not None), done.stdout + done.stderr
    assert expected is None or expected in done.stderr
