"""Runs the conformance suite with numba-cuda-mlir, on GPUs or cores:
`python -m tests.with_mlir -m gpu tests/conformance`.

Arguments are pytest's. The tests are copied to build/with_mlir with the imports of Numba's `cuda`
and types replaced, kernels/ too, and there `synk.fork` has compiler="numba-cuda-mlir". With
`--alone` they stay as they are, and the process has no numba-cuda, as in an environment with the
extra `mlir` alone: numba's `cuda.jit` decorates, and numba-cuda-mlir compiles.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import synknumba as synk

ROOT = Path(__file__).parents[1]
COPY = ROOT / "build" / "with_mlir"
REPLACED = ("tests/conformance", "tests/gpu", "kernels")  # folders in which imports are replaced
# of Numba, which numba-cuda-mlir does not have, or kernels do not need
KEPT = {
    "njit",
    "jit",
    "prange",
    "vectorize",
    "typeof",
}

_ALONE = "WITH_MLIR_ALONE"  # environment variable

# Run at the start of every Python: `numba.cuda` is Numba's own, without NVIDIA's package.
ALONE = """
import sys
sys.meta_path[:] = [one for one in sys.meta_path if type(one).__name__ != "NumbaCudaFinder"]
sys.modules["numba_cuda"] = None
"""


def replaced(text: str) -> str:
    """Returns a module's text with Numba's `cuda` and types imported from numba-cuda-mlir.

    >>> print(replaced("    from numba import cuda, float64 as f8, njit"))
        from numba_cuda_mlir import cuda
        from numba_cuda_mlir.types import float64 as f8
        from numba import njit
    >>> replaced("from numba.cuda.random import xoroshiro128p_dtype")
    'from numba_cuda_mlir.cuda.random import xoroshiro128p_dtype'
    """
    text = re.sub(r"^( *)from numba import (\w.*)$", _line, text, flags=re.MULTILINE)
    return re.sub(
        r"^( *(?:from|import)) numba\.cuda(?=[. ]((?!simulator|dispatcher).)*$)",
        r"\1 numba_cuda_mlir.cuda",
        text,
        flags=re.MULTILINE,
    )


def _line(match: re.Match[str]) -> str:
    homes: dict[str, list[str]] = {}
    for one in map(str.strip, match[2].split(",")):
        name = one.split()[0]
        home = (
            "numba"
            if name in KEPT
            else "numba_cuda_mlir"
            if name in {"cuda", "types"}
            else "numba_cuda_mlir.types"
        )
        homes.setdefault(home, []).append(one)
    return "\n".join(
        f"{match[1]}from {home} import {', '.join(names)}" for home, names in homes.items()
    )


def main(arguments: list[str]) -> int:
    """Runs pytest, in a process of its own; returns its exit status."""
    alone = "--alone" in arguments
    environment = dict(os.environ)
    shutil.rmtree(COPY, ignore_errors=True)
    COPY.mkdir(parents=True)
    if alone:
        arguments.remove("--alone")
        folder = ROOT
        (COPY / "sitecustomize.py").write_text(ALONE)
        environment[_ALONE] = "1"
    else:
        folder = COPY
        for name in ("tests", "kernels"):
            shutil.copytree(ROOT / name, COPY / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("synknumba", "examples", "pyproject.toml", "docs", "benchmarks"):
            (COPY / name).symlink_to(ROOT / name)
        for file in (file for name in REPLACED for file in (COPY / name).rglob("*.py")):
            file.write_text(replaced(file.read_text()))
    arguments = ["-p", "tests.with_mlir", *arguments]
    paths = [str(COPY), str(folder), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    said = "from numba import cuda; print('numba.cuda can be used:', cuda.is_available())"
    subprocess.run([sys.executable, "-c", said], cwd=folder, env=environment, check=False)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=folder, env=environment, check=False
    ).returncode


def pytest_configure() -> None:
    """Has worlds of the copied tests compile for GPUs by numba-cuda-mlir; with `--alone` nothing
    else can.
    """
    if os.environ.get(_ALONE):
        from numba import cuda

        # ranks are forked from this process; Numba's own may find NVIDIA's libraries
        cuda.is_available = lambda: False
        return
    fork = synk.fork

    @functools.wraps(fork)
    def fork_with_mlir(*args: Any, **options: Any) -> Any:
        return fork(*args, **{"compiler": "numba-cuda-mlir", **options})

    synk.fork = fork_with_mlir


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
