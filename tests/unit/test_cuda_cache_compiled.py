"""What numba-cuda compiles is kept whole, down to machine code. Needs no GPU, only NVIDIA's
compilers: `make ptx`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba import cuda, njit, types

from synknumba._device.compilers import base
from synknumba._device.compilers.numba_cuda_cache import CudaCache, attach
from tests.unit.without_gpu import WITHOUT_GPU, compiling_without_gpu

MATRIX = (types.Array(types.float64, 2, "C"), types.Array(types.float64, 1, "C"))
TABLE = np.arange(4.0)


@cuda.jit(device=True)
def twice(x: Any) -> Any:
    return 2 * x


@njit
def thrice(x: Any) -> Any:
    return 3 * x


def plain(x: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i, 0]


def all_kinds_of_memory(x: Any, out: Any) -> None:
    static = cuda.shared.array(32, numba.float64)
    dynamic = cuda.shared.array(0, numba.float64)
    mine = cuda.local.array(4, numba.float32)
    table = cuda.const.array_like(TABLE)
    i = cuda.grid(1)
    if i < out.size:
        static[i % 32] = x[i, 0]
        dynamic[i] = table[i % 4]
        mine[i % 4] = x[i, 1]
        out[i] = static[(i + 1) % 32] + dynamic[i] + mine[0]


def calling(x: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = twice(x[i, 0]) + thrice(x[i, 1])


def raising(x: Any, out: Any) -> None:
    i = cuda.grid(1)
    if x[i, 0] < 0:
        raise ValueError("below zero")
    out[i] = x[i, 0] // out[i]


def grid_wide(x: Any, out: Any) -> None:
    cuda.cg.this_grid().sync()
    out[0] = x[0, 0]


def reshaping(x: Any, out: Any) -> None:
    out[0] = x.reshape(x.size)[1]


KERNELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (plain, {}),
    "memory": (all_kinds_of_memory, {}),
    "calls": (calling, {}),
    "registers": (calling, {"max_registers": 24, "launch_bounds": 128}),
    "fast": (calling, {"fastmath": True}),
    "lines": (calling, {"lineinfo": True}),
    "carveout": (plain, {"shared_memory_carveout": "maxshared"}),
    "without link-time optimization": (calling, {"lto": False}),
    "debug": (raising, {"debug": True, "opt": False}),
    "cooperative": (grid_wide, {}),
}


@pytest.fixture(autouse=True)
def without_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if getattr(cuda, "implementation", None) != "NVIDIA":
        pytest.skip("numba-cuda is not installed; make ptx installs it beside the other packages")
    monkeypatch.setenv("SYNKNUMBA_CACHE_DIR", str(tmp_path / "cache"))
    base._store.cache_clear()
    with compiling_without_gpu():
        try:
            cuda.jit(plain).compile(MATRIX)
        except Exception as error:
            pytest.skip(f"NVIDIA's compilers are not installed ({error}); make ptx installs them")
        yield
    base._store.cache_clear()


def compiled(function: Any, **options: Any) -> tuple[Any, CudaCache]:
    dispatcher = cuda.jit(**options)(function)
    kept = attach(dispatcher)
    assert kept
    kernel = dispatcher._compile_for_args(np.zeros((2, 2)), np.zeros(2))  # as a launch does
    assert list(dispatcher.overloads.values()) == [kernel]
    return kernel, kept


def machine_code(kernel: Any) -> bytes:
    (cubin,) = kernel._codelibrary._cubin_cache.values()
    return getattr(cubin, "code", cubin)


@pytest.mark.parametrize("name", KERNELS)
def test_the_same_machine_code(name: str) -> None:
    function, options = KERNELS[name]
    first, kept = compiled(function, **options)
    assert (kept.info.hits, kept.info.misses, kept.info.not_kept) == (0, 1, None)
    second, kept = compiled(function, **options)
    assert (kept.info.hits, kept.info.misses) == (1, 0)
    assert second is not first
    assert machine_code(second).startswith(b"\x7fELF")
    assert machine_code(second) == machine_code(first)
    same = (
        "entry_name",
        "argument_types",
        "cooperative",
        "debug",
        "lineinfo",
        "extensions",
        "shared_memory_carveout",
    )
    for attribute in same:
        assert getattr(second, attribute) == getattr(first, attribute), attribute
    assert second.cooperative == (name == "cooperative")
    assert second.inspect_asm((9, 0, "a")) == first.inspect_asm((9, 0, "a"))


def test_what_a_debugged_kernel_raises_is_known() -> None:
    options = {"debug": True, "opt": False}
    helpers = [compiled(raising, **options)[0].call_helper for _ in range(2)]
    raised = [helper.get_exception(1) for helper in helpers]
    assert raised[0] == raised[1]
    assert raised[1][:2] == (ValueError, ("below zero",))


@pytest.mark.parametrize("decorate", [njit, cuda.jit(device=True)])
def test_device_functions_that_somebody_else_has_compiled_are_known(decorate: Any) -> None:
    @decorate
    def plus(x: Any) -> Any:
        return x + 1

    def kernel(x: Any, out: Any) -> None:
        out[0] = plus(x[0, 0])

    def another(x: Any, out: Any) -> None:
        out[1] = plus(x[0, 0])

    cuda.jit(kernel).compile(MATRIX)
    assert "was compiled before it was inspected" in str(compiled(another)[1].info.not_kept)


def test_what_is_linked_with_a_source_file_is_not_kept() -> None:
    for _ in range(2):
        kept = compiled(reshaping)[1]
        assert kept.info.misses == 1
        assert "with linking files" in str(kept.info.not_kept)


def test_options_make_other_kernels() -> None:
    codes = {
        machine_code(compiled(calling, **options)[0])
        for options in ({}, {"lineinfo": True}, {"debug": True, "opt": False})
    }
    assert len(codes) == 3


SCRIPT = """
import json, sys, time
from pathlib import Path
from numba import cuda, float64
from synknumba._device.compilers import numba_cuda_cache
from tests.unit.without_gpu import compiling_without_gpu

SCALE = float(sys.argv[3])

@cuda.jit(device=True)
def scaled(x):
    return x * SCALE

def kernel(x):
    x[0] = scaled(x[1])

mine, theirs = Path(sys.argv[1]), Path(sys.argv[2])
mine.touch()
while not theirs.exists():
    time.sleep(0.001)
with compiling_without_gpu():
    dispatcher = cuda.jit(kernel)
    kept = numba_cuda_cache.attach(dispatcher)
    made = dispatcher.compile((float64[::1],))
print(json.dumps([kept.info.hits, kept.info.misses, kept.info.not_kept, made.inspect_asm((9, 0, "a"))]))
"""  # noqa: E501


def test_processes(tmp_path: Path) -> None:
    """Two processes at once compile a kernel once, a third finds it, and one with another global
    does not.
    """
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    a, b = str(tmp_path / "a"), str(tmp_path / "b")

    def started(mine: str, theirs: str, scale: str) -> subprocess.Popen[str]:
        paths = os.pathsep.join([str(WITHOUT_GPU.parents[2]), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, str(script), mine, theirs, scale]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
        )

    def result(process: subprocess.Popen[str]) -> Any:
        output, _ = process.communicate(timeout=100)
        assert process.returncode == 0
        return json.loads(output)

    both = sorted(result(process) for process in [started(a, b, "2"), started(b, a, "2")])
    assert [one[:3] for one in both] == [[0, 1, None], [1, 0, None]]
    assert both[0][3] == both[1][3]
    assert result(started(a, a, "2")) == both[1]
    assert result(started(a, a, "3"))[:3] == [0, 1, None]
