"""Kernels whose files change while the process runs."""

import importlib.util
import linecache
import os
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from synknumba import KernelError, simt

PLAIN = """
from numba import cuda

def write(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = {}
"""
DECORATED = PLAIN.replace("def write", "from synknumba import simt\n\n@simt.jit\ndef write")


def load(path: Path, text: str) -> ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


def written(kernel: Any) -> float:
    out = np.zeros(2)
    kernel[1, 2](out)
    return float(out[1])


def test_a_kernel_keeps_its_text(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    kernel = load(path, DECORATED.format("1.0")).write
    path.write_text("# above\n" + DECORATED.format("2.0"))
    assert written(kernel) == 1.0
    assert linecache.getline(str(path), 10).strip() == "out[i] = 1.0"  # also in tracebacks
    path.unlink()
    assert written(simt.jit(kernel.py_func, debug=True)) == 1.0


def test_a_module_that_is_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    first = load(path, DECORATED.format("1.0")).write
    second = load(path, DECORATED.format("2.0 + 0.0")).write
    assert written(second) == 2.0
    with pytest.raises(
        KernelError,
        match=r"write .*module\.py:6\): the file has been edited since this process read it",
    ):
        written(first)
    assert written(load(path, DECORATED.format("3.0")).write) == 3.0


def test_a_function_without_a_decorator(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    function = load(path, PLAIN.format("1.0")).write
    path.write_text(PLAIN.format("2.0"))
    with pytest.raises(
        KernelError, match="edited since this process read it.*start the script again"
    ):
        written(simt.jit(function))
    path.write_text("def (")
    with pytest.raises(KernelError, match="edited"):
        written(simt.jit(function, debug=True))


def test_a_file_that_is_touched_only(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    function = load(path, PLAIN.format("1.0")).write
    path.write_text(PLAIN.format("1.0") + "\nlater = 1\n")
    os.utime(path, (0, 0))
    assert written(simt.jit(function)) == 1.0


def test_lambdas_methods_and_functions_in_functions(tmp_path: Path) -> None:
    text = """
from numba import cuda
class Owner:
    @staticmethod
    def write(out):
        __one = 1.0
        out[cuda.grid(1)] = __one
def make(value):
    def write(out):
        out[cuda.grid(1)] = value
    return write
shorter = lambda out: helper(out)
"""
    module = load(tmp_path / "module.py", text)
    assert written(simt.jit(module.Owner.write)) == 1.0
    assert written(simt.jit(module.make(3.0))) == 3.0
    (tmp_path / "module.py").write_text(text.replace("= value", "= 2 * value"))
    assert written(simt.jit(module.make(5.0))) == 5.0


def test_a_link_that_leads_to_other_files(tmp_path: Path) -> None:
    """The files are older than the process, and were never edited."""
    for name, value in (("first", 1.0), ("second", 2.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "module.py").write_text(PLAIN.format(value))
    link = tmp_path / "current"
    link.symlink_to("first")
    function = load(link / "module.py", PLAIN.format(1.0)).write
    link.unlink()
    link.symlink_to("second")
    with pytest.raises(KernelError, match="edited since"):
        written(simt.jit(function))


def test_an_archive_that_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def archive(value: float) -> Path:
        path = tmp_path / f"{value}.zip"
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("zipped_kernels.py", DECORATED.format(value))
        return path

    path = archive(1.0)
    monkeypatch.syspath_prepend(str(path))
    kernel = importlib.import_module("zipped_kernels").write
    archive(2.0).replace(path)
    assert written(kernel) == 1.0
    path.unlink()
    assert written(simt.jit(kernel.py_func, debug=True)) == 1.0


def test_an_old_function_of_a_module_that_was_loaded_again_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    first = load(path, DECORATED.format("1.0")).write
    second = load(path, DECORATED.format("2.0 + 0.0")).write
    path.unlink()
    assert written(second) == 2.0
    with pytest.raises(KernelError, match="edited since"):
        written(first)
