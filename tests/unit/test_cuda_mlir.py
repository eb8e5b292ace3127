"""Kernels of numba-cuda-mlir for GPUs: who compiles them, and how they are launched. Needs no
GPU; `make test-mlir` for all.
"""

import importlib.util
import json
import math
import mmap
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest
from numba import cuda, float64, njit, types
from numba.cuda.random import xoroshiro128p_normal_float64 as normal
from numba.np.numpy_support import from_dtype

import synknumba as synk
from synknumba import ArgumentError, DeviceError
from synknumba._device import DeviceReport, compilers
from synknumba._device.compilers import Compilers, plain_kernel
from synknumba._rank import loop
from synknumba._wire import function_pickling
from synknumba._world import fork as fork_module
from synknumba._world import placement

HERE = Path(__file__).parent
HAS_PACKAGE = importlib.util.find_spec("numba_cuda_mlir") is not None
needs_package = pytest.mark.skipif(not HAS_PACKAGE, reason="needs numba-cuda-mlir: make test-mlir")


OF_NUMBA, OF_MLIR = {"compiler": "numba.cuda"}, {"compiler": "numba-cuda-mlir"}
RECORD = np.dtype([("a", "f8"), ("b", "i4")])


def kernel(x: Any) -> None:
    x[0] = 1


@cuda.jit(device=True)
def twice(x: Any) -> Any:
    return 2 * x


@njit
def thrice(x: Any) -> Any:
    return twice(x) + x if x else thrice(1)


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
        assert plain_kernel(SimpleNamespace(py_func=kernel, targetoptions={"debug": True})) == (
            kernel,
            {"debug": True},
        )
        numbas = plain_kernel(cuda.jit(kernel))
        assert numbas is not None
        assert numbas[1]["compiler"] == "numba.cuda"

    @pytest.mark.parametrize(("level", "opt"), [(0, False), (2, True)])
    def test_a_level_of_optimisation_is_kept(self, level: int, opt: bool) -> None:
        plain = plain_kernel(MLIRDispatcher(opt=None, opt_level=level))
        assert plain is not None
        assert plain[1]["opt"] is opt

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """What compilers are asked, which have the names in `usable`."""
        asked: list[Any] = []

        def compiler(name: str) -> Any:
            def made(index: int) -> Any:
                asked.append((name, index))
                return SimpleNamespace(
                    stream=lambda address: (name, address),
                    kernel=lambda function, options, stream: (function, options, stream),
                    to_host=lambda array: (name, array),
                )

            made.problem = lambda: None if name in self.usable else (f"{name} is not there")  # type: ignore[attr-defined]
            return made

        monkeypatch.setattr(compilers, "find_compiler", compiler)
        monkeypatch.setattr(compilers.importlib.util, "find_spec", lambda _: True)
        self.usable = {"numba.cuda", "numba-cuda-mlir"}
        return asked

    def test_each_is_made_once_and_only_where_it_is_needed(self, asked: list[Any]) -> None:
        made: Any = Compilers(3, 77)
        assert not asked
        assert made.kernel(kernel, {"debug": True}) == (kernel, {"debug": True}, ("numba.cuda", 77))
        assert made.kernel(kernel, OF_MLIR) == (kernel, {}, ("numba-cuda-mlir", 77))
        assert made.kernel(kernel, {}) == (kernel, {}, ("numba.cuda", 77))
        assert asked == [("numba.cuda", 3), ("numba-cuda-mlir", 3)]
        assert compilers.problem() is None

    @pytest.mark.parametrize(
        ("usable", "default", "plain", "numbas"),
        [
            ("both", None, "numba.cuda", "numba.cuda"),
            ("both", "numba.cuda", "numba.cuda", "numba.cuda"),
            ("both", "numba-cuda-mlir", "numba-cuda-mlir", "numba.cuda"),
            ("mlir", None, "numba-cuda-mlir", "numba-cuda-mlir"),
            ("mlir", "numba.cuda", None, None),
            ("mlir", "numba-cuda-mlir", "numba-cuda-mlir", "numba-cuda-mlir"),
            ("numba", None, "numba.cuda", "numba.cuda"),
            ("numba", "numba-cuda-mlir", None, "numba.cuda"),
            ("none", None, None, None),
        ],
    )
    def test_who_compiles(
        self, asked: list[Any], usable: str, default: Any, plain: str | None, numbas: str | None
    ) -> None:
        """Plain functions, and those of numba's `cuda.jit`; None where none can."""
        names = {
            "both": {"numba.cuda", "numba-cuda-mlir"},
            "mlir": {"numba-cuda-mlir"},
            "numba": {"numba.cuda"},
            "none": set(),
        }
        self.usable = names[usable]
        made: Any = Compilers(0, 77, default)
        for options, expected in (({}, plain), (OF_NUMBA, numbas)):
            if expected is None:
                refused = default or "numba.cuda"
                with pytest.raises(
                    DeviceError,
                    match=f"^kernel is a kernel of {refused}, which cannot be used here: {refused} ",  # noqa: E501
                ):
                    made.kernel(kernel, options)
            else:
                assert made.kernel(kernel, options)[2] == (expected, 77)
        refused = default if plain is None else None
        assert (compilers.problem(default) is None) == (plain is not None)
        assert refused is None or compilers.problem(default) == f"{refused} is not there"

    def test_results_are_fetched_by_whichever_is_there(self, asked: list[Any]) -> None:
        self.usable = {"numba-cuda-mlir"}
        made: Any = Compilers(0, 77)
        assert made.to_host(1) == ("numba-cuda-mlir", 1)

    def test_what_refers_to_the_package_is_its_own(
        self, asked: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        package, helpers = ModuleType("numba_cuda_mlir.cuda"), ModuleType("helpers")
        monkeypatch.setitem(sys.modules, "numba_cuda_mlir", ModuleType("numba_cuda_mlir"))
        monkeypatch.setitem(sys.modules, "numba_cuda_mlir.cuda", package)
        monkeypatch.setitem(sys.modules, "numba_cuda_mlir.numba_cuda", package)
        made: Any = Compilers(0, 77)

        def plain(x: Any) -> None:
            x[package.grid(1)] = 1

        called = cuda.jit(device=True)(plain)
        helpers.plain, helpers.other = called, kernel  # type: ignore[attr-defined]

        def calling(x: Any) -> None:
            called(x)

        def of_a_module(x: Any) -> None:
            helpers.plain(x)

        def of_another_member(x: Any) -> None:
            helpers.other(x)

        def within(x: Any) -> Any:
            return [plain(y) for y in x]

        for function in (plain, calling, of_a_module, within):
            assert made.kernel(function, {})[2][0] == "numba-cuda-mlir", function.__name__
        for function in (kernel, of_another_member):
            assert made.kernel(function, {})[2][0] == "numba.cuda"


class TestFork:
    """`fork(compiler=)`."""

    @pytest.mark.parametrize("bad", ["mlir", "", 3, True, ["numba.cuda"]])
    def test_bad_values(self, bad: Any) -> None:
        with pytest.raises(
            ArgumentError,
            match=r'compiler must be "numba\.cuda" or "numba-cuda-mlir", or None .*, got ',
        ):
            synk.fork(1, device="cpu", compiler=bad)

    @pytest.mark.parametrize("compiler", ["numba.cuda", "numba-cuda-mlir", None])
    def test_it_reaches_the_ranks(
        self, compiler: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # which ranks inherit, unlike descriptors
        opened, told = (
            loop.open_device,
            mmap.mmap(-1, 64),
        )

        def open_device(kind: Any, index: int, name: Any) -> Any:
            told.write(repr(name).encode())
            return opened(kind, index, name)

        monkeypatch.setattr(loop, "open_device", open_device)
        with synk.fork(1, device="cpu", compiler=compiler):
            assert told.read().rstrip(b"\0").decode() == repr(compiler)

    def test_a_package_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(placement, "probed", lambda: nullcontext(DeviceReport(1)))
        monkeypatch.setattr(fork_module.importlib.util, "find_spec", lambda _: None)
        with pytest.raises(
            DeviceError,
            match=r"compiler=\"numba-cuda-mlir\" needs that package, .* pip "
            r"install 'synknumba\[mlir\]'",
        ):
            synk.fork(1, device="cuda", compiler="numba-cuda-mlir")


@needs_package
class TestDialect:
    """Functions written for `numba.cuda`."""

    def test_names(self) -> None:
        from numba_cuda_mlir import cuda as mlirs
        from numba_cuda_mlir import types as mlir_types
        from numba_cuda_mlir.numba_cuda.np.numpy_support import as_dtype

        from synknumba._device.compilers.numba_cuda_mlir_dialect import in_dialect

        grid, add, double, kinds = cuda.grid, cuda.atomic, float64, (types.int32, types.boolean)
        record, number, scale = from_dtype(RECORD), 3, np.float32(2)

        def read(x: int) -> Any:
            return (
                cuda,
                grid,
                add,
                double,
                kinds,
                record,
                number,
                scale,
                np,
                math,
                numba.float32,
                normal,
                twice,
                thrice,
            )

        made = in_dialect(read)
        assert not made.__annotations__
        (
            module,
            *members,
            kind,
            two,
            row,
            three,
            factor,
            numpy,
            mathematics,
            single,
            random,
            doubled,
            tripled,
        ) = made(1)
        assert module is mlirs
        assert members == [mlirs.grid, mlirs.atomic]
        assert (kind, single) == (mlir_types.float64, mlir_types.float32)
        assert two == (mlir_types.int32, mlir_types.boolean)
        assert as_dtype(row) == RECORD
        assert (three, factor, numpy, mathematics) == (3, scale, np, math)
        assert random is mlirs.random.xoroshiro128p_normal_float64
        assert type(doubled).__name__ == type(tripled).__name__ == "MLIRDispatcher"
        assert (doubled.py_func(3), tripled.py_func.__globals__["twice"]) == (6, doubled)
        assert tripled.py_func.__globals__["thrice"] is tripled

    def test_its_own_names_stay(self) -> None:
        from numba_cuda_mlir import cuda as mlirs
        from numba_cuda_mlir.cuda import random

        from synknumba._device.compilers.numba_cuda_mlir_dialect import in_dialect

        def read() -> Any:
            return (
                mlirs,
                random,
                mlirs.random,
                synk.random.uniform,
                mlirs.float32,
                mlirs.uint64,
                mlirs.math,
            )

        assert in_dialect(read).__closure__ is not None
        assert {cell.cell_contents for cell in in_dialect(read).__closure__ or ()} == {
            mlirs,
            random,
        }


@needs_package
def test_device_functions_are_sent_to_ranks() -> None:
    from numba_cuda_mlir import cuda

    space: dict[str, Any] = {"cuda": cuda, "grid": cuda.grid, "__name__": "__main__"}
    exec("def twice(x): return 2 * x", space)
    space["twice"] = cuda.jit(device=True)(space["twice"])
    exec("def sent(x): x[grid(1)] = twice(x[0])", space)
    function, options = pickle.loads(
        function_pickling.dump((space["sent"], {"compiler": "numba-cuda-mlir"}))
    )
    assert function.__globals__["grid"] is cuda.grid
    assert type(function.__globals__["twice"]).__name__ == "MLIRDispatcher"
    assert function.__globals__["twice"].py_func(3) == 6
    assert options == {"compiler": "numba-cuda-mlir"}


@needs_package
def test_the_package_reads_its_settings_again_on_ranks() -> None:
    """As it does for each kernel that it compiles; ranks have fewer threads than the script that
    imported it.
    """
    from synknumba._device.compilers.numba_cuda_mlir import config, read_threads

    @synk.function(outputs="gather")
    def threads() -> Any:
        read_threads()
        config.reload_config()
        return np.array([config.NUMBA_NUM_THREADS, numba.config.NUMBA_NUM_THREADS])

    with synk.fork(2, device="cpu"):
        own, numbas = threads().reshape(2, 2).T
    assert np.array_equal(own, numbas)


@needs_package
def test_launches(tmp_path: Path) -> None:
    """Numbers come to kernels compiled for their types, and the second process compiles nothing."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler, for a driver without a GPU")
    library = tmp_path / "libcuda.so.1"
    subprocess.run(
        [
            compiler,
            "-shared",
            "-fPIC",
            "-o",
            library,
            HERE / "fake_cuda.c",
            "-ldl",
            "-Wl,-soname,libcuda.so.1",
        ],
        check=True,
    )
    paths = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "LD_LIBRARY_PATH": str(tmp_path)}
    environment["SYNKNUMBA_CACHE_DIR"] = str(tmp_path / "cache")
    environment["TMPDIR"] = str(tmp_path)  # where the package writes reports of what it refuses

    def run() -> Any:
        command = [sys.executable, "-m", "tests.unit.mlir_launches"]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=100, check=False
        )
        if "DynamicLibNotFoundError" in done.stderr:
            pytest.skip("needs NVIDIA's compilers: make test-mlir")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    first = run()
    half = len(first["told"]) // 2
    bits = [int(word) for word, _, _ in first["told"]]
    packed = [
        ("<f", 1.5), ("<d", 1.5), ("<e", 1.5), ("<q", 3), ("<i", 3),
        ("<B", 3), ("<?", True), ("<Q", 2**63), ("<d", 1.0)
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
    assert first["fences"][:6] == ["st", "membar.cta", "st", "membar.gl", "st", "membar.sys"]
    assert first["fences"][6:8] == ["shfl", "shfl"]
    assert {"setp.eq", "setp.neu"} & {*first["fences"]}  # `setp.ne` is false for NaN
    integers = {*first["integers"]}
    assert integers >= {
        "max.u32",
        "min.u64",
        "max.u16",
        "atom.global.max.u64",
        "atom.global.min.u32",
        "cvt.rn.f64.u64",
    }
    assert not integers & {"max.s32", "min.s64", "max.s16", "ld.global.s8", "cvt.rn.f64.s64"}
    assert {"add.f16", "mul.f16"} <= {*first["halves"]}
    assert not {"add.f32", "mul.f32"} & {*first["halves"]}
    assert "cvt.rn.f16.f32" in first["halves"]  # of the quotient
    assert re.match(
        r"refused \(\S+mlir_launches\.py:\d+\): numba-cuda-mlir \S+ cannot "
        r"compile this: .*lanemask_lt",
        first["refused"],
    )
    assert "    x[1] = numba_cuda.lanemask_lt()" in first["refused"]
    assert {tuple(one) for one in first["cache"]} == {(0, 1, None)}
    second = run()
    assert {tuple(one) for one in second["cache"]} == {(1, 0, None)}
    assert {**second, "cache": None} == {**first, "cache": None}
