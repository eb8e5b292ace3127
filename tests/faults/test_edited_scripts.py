"""Scripts and modules that are edited while they run: what runs is the text that the process has
read, or nothing.
"""

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
        [sys.executable, str(path)],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        timeout=100,
        cwd=tmp_path,
    )


@pytest.mark.parametrize(
    ("edit", "early"),
    [
        ("other numbers", True),
        pytest.param("other numbers", False, marks=pytest.mark.whole),
        pytest.param("lines above", True, marks=pytest.mark.whole),
        pytest.param("lines above", False, marks=pytest.mark.whole),
        pytest.param("half of it", False, marks=pytest.mark.whole),
        pytest.param("nothing", True, marks=pytest.mark.whole),
    ],
)
def test_runs_as_it_was_started(edit, early, tmp_path):
    done = run(tmp_path, SCRIPT.format(edit=EDITS[edit], early=early))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["45.0", "22.5", "90.0"]


@pytest.mark.whole
def test_edited_before_the_package_was_imported(tmp_path):
    """As where a user saves while a script still imports."""
    done = run(
        tmp_path,
        """
import pathlib
path = pathlib.Path(__file__)
path.write_text(path.read_text().replace("x[i] *" + " 1.0", "x[i] * 7.0"))
import numpy as np, synknumba as synk
from numba import cuda

@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def energy(x, total):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(total, 0, x[i] * 1.0)

with synk.fork(2, device="cpu"):
    print(energy(np.ones(4)))
""",
    )
    assert "KernelError: energy" in done.stderr
    assert "edited since this process read it" in done.stderr
    assert not done.stdout


@pytest.mark.parametrize("removed", [False, pytest.param(True, marks=pytest.mark.whole)])
def test_an_old_kernel_after_its_module_was_loaded_again(removed, tmp_path):
    """Never the new text: neither on a rank that has compiled it, nor on one that loads it from
    the cache.
    """
    done = run(
        tmp_path,
        f"""
import importlib, pathlib, sys
sys.dont_write_bytecode = True
path = pathlib.Path("kernels_of_a_user.py")
TEXT = '''
import synknumba as synk
from numba import cuda

@synk.parallel(outputs={{"total": synk.output("sum", shape=(), dtype="float64")}})
@cuda.jit
def energy(x, total):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(total, 0, x[i] * 2.0)
'''
path.write_text(TEXT)
sys.path.insert(0, ".")
import kernels_of_a_user as module
import numpy as np, synknumba as synk
old = module.energy
with synk.fork(2, device="cpu"):
    assert old(np.ones(8)) == 16.0
    path.write_text(TEXT.replace("2.0", "3.0 "))
    importlib.reload(module)
    assert module.energy(np.ones(8)) == 24.0
    if {removed}:
        path.unlink()
    for dtype in ("f4", "i4", "i8"):
        try:
            print(old(np.ones(8, dtype)))
        except synk.SynkError as error:
            print("refused" if "edited since" in str(error) else error)
""",
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"16.0", "refused"}
    assert len(done.stdout.split()) == 3
