"""Scripts and modules that are edited while they run: what runs is the text that the process has read, or nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2]

HELPER = """
from numba import cuda

@cuda.jit(device=True)
def weight(v):
    return 2.0 * v
"""

SCRIPT = """
import pathlib, sys, time
import numpy as np
from numba import cuda
import synknumba as synk
import helper
EARLY = synk.fork(2, device="cpu") if {early} else None

@synk.parallel(outputs={{"total": synk.output("sum", shape=(), dtype="float64")}})
@cuda.jit
def energy(x, total):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(total, 0, 1.0 * x[i])

@synk.vectorize
def halved(v):
    return v / 2.0

@synk.parallel(outputs={{"total": synk.output("sum", shape=(), dtype="float64")}})
@cuda.jit
def weighted(x, total):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(total, 0, helper.weight(x[i]))

def edit(path, change):
    path = pathlib.Path(path)
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text))

edit(__file__, lambda text: {edit})
edit(helper.__file__, lambda text: text.replace("2.0", "3.0"))
x = np.arange(10.0)
with EARLY or synk.fork(2, device="cpu"):
    print(energy(x), halved(x).sum(), weighted(x))
"""

EDITS = {
    "other numbers": 'text.replace("1.0", "2.0").replace("/ 2.0", "/ 4.0")',
    "lines above": '"# a remark\\nimport os\\n\\n" + text',
    "half of it": "text[: len(text) // 3]",
    "nothing": '"x"',
}


def run(tmp_path, script, **variables):
    (tmp_path / "helper.py").write_text(HELPER)
    path = tmp_path / "script.py"
    path.write_text(script)
    environment = os.environ | {"PYTHONPATH": str(PACKAGE)} | variables
    return subprocess.run(
        [sys.executable, str(path)], check=False, capture_output=True, text=True, env=environment, timeout=100, cwd=tmp_path
    )


@pytest.mark.parametrize(
    ("edit", "early"),
    [
        ("other numbers", True),
        ("other numbers", False),
        pytest.param("lines above", True, marks=pytest.mark.whole),
        ("lines above", False),
        pytest.param("half of it", False, marks=pytest.mark.whole),
        pytest.param("nothing", True, marks=pytest.mark.whole),
    ],
)
def test_runs_as_it_was_started(edit, early, tmp_path):
    done = run(tmp_path, SCRIPT.format(edit=EDITS[edit], early=early))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["45.0", "22.5", "90.0"]
