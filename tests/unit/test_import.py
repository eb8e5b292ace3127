"""What importing and asking for information loads and needs."""

import subprocess
import sys
from pathlib import Path

import pytest

from synknumba._cli import main
from tests.environment import environment

GPU_LIBRARIES = (
    "cupy",
    "numba.cuda",
    "numba_cuda",
    "cuda",
    "nccl",
    "mpi4py",
    "synknumba._comm.nccl",
    "synknumba._device.cuda",
)
NOT_NEEDED = (*GPU_LIBRARIES, "matplotlib", "IPython", "safetensors")


@pytest.mark.parametrize(
    "code",
    ["import synknumba", "from synknumba._cli import main; main(['doctor', '--no-world'])"],
    ids=["import", "doctor"],
)
def test_no_gpu_library_or_optional_package_is_loaded(code: str) -> None:
    check = f"{code}; import sys; print('LOADED', [m for m in {NOT_NEEDED!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.endswith("LOADED []\n")


def test_no_functions_of_kernels_are_made() -> None:
    """There are hundreds, and those of bfloat16 need numba-cuda's type: a table that is made before
    `numba.cuda` is imported has none.
    """
    check = """
import synknumba.simt._source.scope
from synknumba.simt._maths import bfloat16, float16, libdevice
libraries = bfloat16.BF16, float16.FP16, libdevice.LIBDEVICE
print(["_entries" in vars(library) for library in libraries])
"""
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "[False, False, False]\n"


REGISTRIES = """
import sys
import numpy as np
import synknumba as synk
from numba import cuda

@synk.parallel(inout=("x",))
@cuda.jit
def double(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2

@synk.function(outputs="gather")
def loaded(rows):
    return np.array(["numba.np.arraymath" in sys.modules])

x = np.ones(10)
with synk.fork(2, device="cpu"):
    double(x)
    print(x.sum(), any(loaded(x)), "numba.np.arraymath" in sys.modules)
"""


@pytest.mark.whole
def test_what_only_compilers_need_is_not_loaded(tmp_path: Path) -> None:
    """Kernels and the package's own functions are found in the store."""
    script = tmp_path / "script.py"
    script.write_text(REGISTRIES)
    env = environment()
    _, second = (
        subprocess.run(
            [sys.executable, script], env=env, capture_output=True, text=True, check=True
        )
        for _ in range(2)
    )
    assert second.stdout == "20.0 False False\n"


def test_no_subcommand_is_an_error_with_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "usage: python -m synknumba" in capsys.readouterr().err


@pytest.mark.whole
def test_a_reader_of_the_information_may_stop_early() -> None:
    command = [sys.executable, "-m", "synknumba", "doctor", "--no-world"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
