"""What docs/diagnosis.md shows of a rank that died is what its script prints."""

import re
import subprocess
import sys

import pytest

from tests.environment import ROOT, environment

PAGE = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")


def plain(text):
    """Without line breaks, process ids and folders, and in which code a rank waits for others."""
    text = " ".join(text.split()).replace("runs compiled code, or waits", "waits")
    return re.sub(r'(File "|\()/[^"()]*/', r"\1", re.sub(r"pid \d+", "pid N", text))


def test_the_error_of_a_rank_that_died(tmp_path, run_program):
    program, shown = re.search(
        r"```python\n(import ctypes.*?)```\s+```\n(.*?)```", PAGE, re.DOTALL
    ).groups()
    assert "RankDied" in shown
    done = run_program(program, tmp_path / "fault.py")
    assert done.returncode == 1
    assert plain(shown) in plain(done.stderr)
    assert done.stderr.startswith("free(): invalid pointer\n")


@pytest.mark.whole
def test_the_error_of_a_sequence_that_hangs(tmp_path, run_program):
    program, shown = re.search(
        r"### In a sequence.*?```python\n(.*?)```\s+```\n(.*?)```", PAGE, re.DOTALL
    ).groups()
    assert "iteration 3 of 5 of doubled" in shown
    for seconds in (1, 5, 25):  # on a busy machine ranks may not hang there within one
        limit = f"timeout={seconds}"
        longer = program.replace("timeout=1", limit)
        done = run_program(longer, tmp_path / "hang.py")
        wanted = plain(shown.replace("timeout=1", limit))
        if wanted in plain(done.stderr):
            break
    assert wanted in plain(done.stderr)


PRINTING = re.search(
    r"```python\n(import os, sys\n.*?BrokenPipeError.*?)```", PAGE, re.DOTALL
).group(1)


def run_with_a_reader_of_one_line(program, script):
    """What the program writes to stderr, and its exit status, if the reader of its stdout closes
    after one line.
    """
    script.write_text(program, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(script)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        assert "rows 50" in process.stdout.readline()
        process.stdout.close()
        told = process.stderr.read()
    return told, process.returncode


@pytest.mark.whole
def test_a_closed_reader_that_the_script_takes_for_its_end(tmp_path):
    assert run_with_a_reader_of_one_line(PRINTING, tmp_path / "printing.py") == ("", 0)


def test_a_closed_reader_is_an_error_of_each_call_that_prints(tmp_path):
    program = """
import sys
import numpy as np
import synknumba as synk

@synk.function(outputs="sum")
def total(x, prints):
    if prints:
        print("rows", len(x))
    return x.sum()

with synk.fork(2, device="cpu"):
    errors = []
    while len(errors) < 2:
        try:
            total(np.arange(1001.0), True)
        except synk.RankError as error:
            errors.append(error)
    print([type(error.__cause__).__name__ for error in errors], total(np.arange(1001.0), False), file=sys.stderr)
    raise errors[0]
"""  # noqa: E501
    told, status = run_with_a_reader_of_one_line(program, tmp_path / "caught.py")
    assert told.startswith("['BrokenPipeError', 'BrokenPipeError'] 500500.0\n"), told
    assert re.search(r"RankError: total\(.*\) raised on rank [01].*: BrokenPipeError", told)
    assert status == 1


@pytest.mark.whole
def test_a_closed_reader_of_output_with_prefixes_is_no_error(tmp_path):
    program = PRINTING.replace('device="cpu"', 'device="cpu", prefix_output=True')
    assert program != PRINTING
    told, status = run_with_a_reader_of_one_line(
        f"{program}\nprint('done', file=sys.stderr)\n", tmp_path / "prefixed.py"
    )
    assert (told, status) == ("done\n", 0)
