"""Kernels of numba-cuda-mlir for GPUs: who compiles them, and how they are launched. Needs no GPU; `make test-mlir` for all."""

import importlib.util
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from synknumba import DeviceError
from synknumba._device import compilers
from synknumba._device.compilers import Compilers, plain_kernel
from synknumba._wire import function_pickling

HERE = Path(__file__).parent
HAS_PACKAGE = importlib.util.find_spec("numba_cuda_mlir") is not None
needs_package = pytest.mark.skipif(not HAS_PACKAGE, reason="needs numba-cuda-mlir: make test-mlir")


def kernel(x: Any) -> None:
    x[0] = 1


class MLIRDispatcher:
    """As much of one as is looked at."""

    def __init__(self, **options: Any) -> None:
        self.py_func, self.targetoptions = kernel, options


class TestChoice:
    def test_the_type_of_a_kernel_decides(self) -> None:
        assert plain_kernel(MLIRDispatcher(opt=True, fastmath=True, opt_level=3)) == (
            kernel,
            {"fastmath": True, "opt": True, "compiler": "numba-cuda-mlir"},
        )
        assert plain_kernel(kernel) == (kernel, {})
        assert plain_kernel(SimpleNamespace(py_func=kernel, targetoptions={"debug": True})) == (kernel, {"debug": True})

    @pytest.mark.parametrize(("level", "opt"), [(0, False), (2, True)])
    def test_a_level_of_optimisation_is_kept(self, level: int, opt: bool) -> None:
        plain = plain_kernel(MLIRDispatcher(opt=None, opt_level=level))
        assert plain is not None
        assert plain[1]["opt"] is opt

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """What compilers are asked, which have the names in `usable`."""
        asked: list[Any] = []

        def compiler(name: str = "numba.cuda") -> Any:
            def made(index: int) -> Any:
                asked.append((name, index))
                return SimpleNamespace(
                    stream=lambda address: (name, address),
                    kernel=lambda function, options, stream: (function, options, stream),
                    to_host=lambda array: (name, array),
                )

            made.problem = lambda: None if name in self.usable else f"{name} is not there"  # type: ignore[attr-defined]
            return made

        monkeypatch.setattr(compilers, "find_compiler", compiler)
        monkeypatch.setattr(compilers.importlib.util, "find_spec", lambda _: True)
        self.usable = {"numba.cuda", "numba-cuda-mlir"}
        return asked

    def test_each_is_made_once_and_only_where_it_is_needed(self, asked: list[Any]) -> None:
        made: Any = Compilers(3, 77)
        assert not asked
        assert made.kernel(kernel, {"debug": True}) == (kernel, {"debug": True}, ("numba.cuda", 77))
        assert made.kernel(kernel, {"compiler": "numba-cuda-mlir"}) == (kernel, {}, ("numba-cuda-mlir", 77))
        assert made.kernel(kernel, {}) == (kernel, {}, ("numba.cuda", 77))
        assert asked == [("numba.cuda", 3), ("numba-cuda-mlir", 3)]
        assert compilers.problem() is None

    def test_one_that_is_not_there_is_refused_by_its_name(self, asked: list[Any]) -> None:
        self.usable = {"numba-cuda-mlir"}
        made: Any = Compilers(0, 77)
        with pytest.raises(
            DeviceError, match=r"^kernel is a kernel of numba\.cuda, which cannot be used here: numba\.cuda is not"
        ):
            made.kernel(kernel, {})
        assert made.kernel(kernel, {"compiler": "numba-cuda-mlir"})
        assert made.to_host(1) == ("numba-cuda-mlir", 1)
        assert compilers.problem() is None
        self.usable = set()
        assert compilers.problem() == "numba.cuda is not there"


@needs_package
def test_device_functions_are_sent_to_ranks() -> None:
    from numba_cuda_mlir import cuda

    space: dict[str, Any] = {"cuda": cuda, "grid": cuda.grid, "__name__": "__main__"}
    exec("def twice(x): return 2 * x", space)
    space["twice"] = cuda.jit(device=True)(space["twice"])
    exec("def sent(x): x[grid(1)] = twice(x[0])", space)
    function, options = pickle.loads(function_pickling.dump((space["sent"], {"compiler": "numba-cuda-mlir"})))
    assert function.__globals__["grid"] is cuda.grid
    assert type(function.__globals__["twice"]).__name__ == "MLIRDispatcher"
    assert function.__globals__["twice"].py_func(3) == 6
    assert options == {"compiler": "numba-cuda-mlir"}


@needs_package
def test_launches(tmp_path: Path) -> None:
    """Numbers come to kernels compiled for their types, and the second process compiles nothing."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler, for a driver without a GPU")
    library = tmp_path / "libcuda.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, HERE / "fake_cuda.c", "-ldl", "-Wl,-soname,libcuda.so.1"], check=True
    )
    paths = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "LD_LIBRARY_PATH": str(tmp_path)}
    environment["SYNKNUMBA_CACHE_DIR"] = str(tmp_path / "cache")

    def run() -> Any:
        command = [sys.executable, "-m", "tests.unit.mlir_launches"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)
        if "DynamicLibNotFoundError" in done.stderr:
            pytest.skip("needs NVIDIA's compilers: make test-mlir")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    first = run()
    half = len(first["told"]) // 2
    bits = [int(word) for word, _, _ in first["told"]]
    packed = [
        ("<f", 1.5), ("<d", 1.5), ("<e", 1.5), ("<q", 3), ("<i", 3), ("<B", 3), ("<?", True), ("<Q", 2**63), ("<d", 1.0)
    ]  # fmt: skip
    for (letter, value), word in zip(packed, bits, strict=False):
        expected = struct.pack(letter, value)
        assert struct.pack("<Q", word)[: len(expected)] == expected
    assert struct.pack("<Q", bits[half - 1]) == struct.pack("<ff", 1, 2)
    assert len({one for _, one, _ in first["told"][:half]}) == half
    assert first["told"][:half] == first["told"][half:]
    assert {stream for _, _, stream in first["told"]} == {0x77}
    assert len(set(first["layouts"])) == 2
    assert first["capturable"] == [True, False, False]
    assert first["prints"] == [False, True]
    assert {tuple(one) for one in first["cache"]} == {(0, 1, None)}
    second = run()
    assert {tuple(one) for one in second["cache"]} == {(1, 0, None)}
    assert {**second, "cache": None} == {**first, "cache": None}
