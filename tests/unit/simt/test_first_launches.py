"""What first launches leave out, and what other block sizes share."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cuda, float64, int64, types
from numba.core import ssa
from numba.core.compiler import run_frontend
from numba.core.registry import cpu_target
from numba.core.typed_passes import NopythonRewrites, PreLowerStripPhis

from synknumba import simt
from synknumba.simt._machine import cache
from synknumba.simt._numba import calls, single_assignment
from tests.unit.simt.written import defined, program_text

THREADS = 64


def reverses(x):
    s = cuda.shared.array(THREADS, float64)
    t = cuda.threadIdx.x
    n = cuda.blockDim.x
    i = t + n * cuda.blockIdx.x
    s[t] = x[i]
    cuda.syncthreads()
    x[i] = s[n - 1 - t]


def scans(x):
    """Reads an array that all threads of the block then write, which takes two arrays where it
    is as long as the block.
    """
    s = cuda.shared.array(32, int64)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    before = s[t - 1] if t > 0 else 0
    cuda.syncthreads()
    s[t] = s[t] + before
    cuda.syncthreads()
    x[t] = s[t]


def powers(x, n, out):
    i = cuda.grid(1)
    if i < x.size:
        acc = 1.0
        for k in range(n[i]):
            acc *= x[i] + k
        out[i] = acc


def bodies(kernel: simt.Kernel) -> int:
    """How many functions hold a body that launches with several blocks share."""
    return len({id(dispatcher) for dispatcher, _ in kernel._entries.program._bodies.values()})


def test_blocks_share_what_is_emitted_alike() -> None:
    kernel = simt.jit(reverses, cache=False)
    for block, shared in ((32, 1), (48, 1), (THREADS, 1), (8, 1)):
        x = np.arange(4.0 * block)
        kernel[4, block](x)
        assert np.array_equal(x, np.arange(4.0 * block).reshape(4, block)[:, ::-1].ravel())
        assert bodies(kernel) == shared
    assert len({*kernel._entries._by_block.values()}) == 4
    assert f"_k_Bx = {THREADS}" not in kernel.source
    assert "_k_Bx = 8" in kernel.source


@pytest.mark.whole  # a further mode of sharing
def test_a_block_for_which_arrays_are_swapped_has_its_own_code() -> None:
    kernel = simt.jit(scans, cache=False)
    for block, made in ((16, 1), (32, 2), (24, 2)):
        x = np.arange(float(block)).astype(np.int64)
        kernel[1, block](x)
        assert np.array_equal(x, np.arange(block) + np.maximum(np.arange(block) - 1, 0))
        assert bodies(kernel) == made


def test_one_code_for_all_blocks_where_only_the_place_in_the_grid_counts() -> None:
    kernel = simt.jit(powers, cache=False)
    x, factors = np.linspace(0, 1, 100), np.full(100, 3)
    for block in (32, 64, 128, 50, 25, 20):
        out = np.zeros(100)
        kernel[-(-100 // block), block](x, factors, out)
        np.testing.assert_allclose(out, x * (x + 1) * (x + 2), rtol=1e-15)
    assert len({*kernel._entries._by_block.values()}) == 1
    kernel[100, 1](x, factors, np.zeros(100))  # loops over few threads are emitted in another way
    assert len({*kernel._entries._by_block.values()}) == 2


@pytest.mark.whole  # a further mode of sharing
def test_shared_code_is_loaded_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNKNUMBA_CACHE_DIR", str(tmp_path))
    for function, launches in ((reverses, 2), (powers, 1)):
        args = (
            (np.ones(128),)
            if function is reverses
            else (np.ones(128), np.full(128, 2), np.zeros(128))
        )
        for compiled in (launches, 0):
            cache._loaded.clear()
            kernel = simt.jit(function)
            for block in (32, 64):
                kernel[2, block](*args)
            assert kernel.cache_info == cache.CacheInfo(launches - compiled, compiled, None)


VIEWS = """
def kernel(a, b):
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.add(a.real, i, a[i].imag)
        a.imag[i] = a.real[i] + b.real[i]
"""


def test_parts_of_complex_arrays_are_taken_once() -> None:
    kinds = types.complex128[:], types.float64[:]
    text = program_text(defined(VIEWS), *kinds)
    assert text.count("a.real") == text.count("a.imag") == 1
    assert "b.real" in text
    a = np.arange(4) + 2j
    simt.jit(defined(VIEWS), cache=False)[1, 4](a, np.ones(4))
    assert np.array_equal(a, np.arange(4) + 2 + 1j * (np.arange(4) + 3))


EXPRESSIONS = """
def kernel(x, y, out):
    out[:] = x * 2.0 + np.sqrt(y) - x
"""


def test_array_expressions_are_still_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten: list[str] = []
    run_pass = NopythonRewrites.run_pass
    monkeypatch.setattr(
        NopythonRewrites,
        "run_pass",
        lambda self, state: rewritten.append(state.func_id.func_name) or run_pass(self, state),
    )
    x, y, out = np.arange(5.0), np.arange(5.0) ** 2, np.zeros(5)
    simt.jit(defined(EXPRESSIONS), cache=False)[1, 1](x, y, out)
    assert np.array_equal(out, 2 * x)
    assert "kernel" in rewritten
    rewritten.clear()
    simt.jit(powers, cache=False)[1, 5](x, np.full(5, 2), out)
    assert "powers" not in rewritten


@cuda.jit(device=True)
def checked(v):
    if v < 0:
        raise ValueError("negative", v)
    return v


def raises(x):
    x[0] = checked(x[1])


def test_a_device_function_raises_with_values() -> None:
    kernel = simt.jit(raises, cache=False)
    kernel[1, 1](np.ones(2))
    for _ in range(2):
        with pytest.raises(ValueError, match="negative") as caught:
            kernel[1, 1](-np.ones(2))
        assert caught.value.args == ("negative", -1.0)


def misspelt(x):
    x[0] = x.no_such_attribute


@pytest.mark.parametrize("function", [powers, misspelt])
def test_the_state_of_numba_comes_back(function: Callable[..., None]) -> None:
    args = (np.ones(2), np.full(2, 2), np.ones(2)) if function is powers else (np.ones(2),)
    asked = types.Function.get_call_type
    gc.disable()
    try:
        for on in (False, True):
            if on:
                gc.enable()
            kernel = simt.jit(function, cache=False)
            if function is misspelt:
                with pytest.raises(Exception, match="no_such_attribute"):
                    kernel[1, 2](*args)
            else:
                kernel[1, 2](*args)
            assert gc.isenabled() is on
            assert "resolve_function_type" not in vars(cpu_target.typing_context)
            assert types.Function.get_call_type is asked
    finally:
        gc.enable()


def meets(x, n):
    """Variables that meet behind branches and in loops, in swaps, and where one may be
    unassigned.
    """
    total = 0
    for i in range(n):
        if x[i] > 0:
            total = total + x[i]
            least = min(total, 3)
        else:
            least = total
        least = least - 1
        while least > 2:
            least = least - total
            if least == 7:
                break
            kept = least
        x[i] = kept + least
    one = other = total
    for _ in range(n):
        one, other = other, one + least
    return one - other


def test_single_assignment_is_that_of_numba() -> None:
    def lines(function: Any) -> list[str]:
        return [
            f"{label}: {statement}"
            for label, block in function.blocks.items()
            for statement in block.body
        ]

    for function in (meets, powers, reverses):
        expected, found = run_frontend(function), run_frontend(function)
        ssa.reconstruct_ssa(expected)
        found.blocks = single_assignment.with_own_variables(found.blocks)
        assert lines(found) == lines(expected)
        assert function is reverses or any("phi(" in line for line in lines(found))
        PreLowerStripPhis()._strip_phi_nodes(expected)
        single_assignment.NoPhiNodes()._strip_phi_nodes(found)
        assert lines(found) == lines(expected)


@cuda.jit(device=True)
def turned(z):
    return z * (1.0 - 2.0j)


@cuda.jit(device=True)
def turned_or_refused(z):
    return turned(turned(z)) if checked(z.real) else z


CALLS = """
def kernel(z, total):
    i = cuda.grid(1)
    if i < z.size:
        z[i] = called(z[i])
        cuda.atomic.add(total, (0, i % 2), z[i].real)
"""


@pytest.mark.parametrize(("called", "may_raise"), [(turned, False), (turned_or_refused, True)])
def test_calls_are_checked_where_the_function_may_raise(
    called: Any, may_raise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    unchecked: set[str] = set()  # names in LLVM code
    never_raises = calls.never_raises
    monkeypatch.setattr(
        calls,
        "never_raises",
        lambda library, name: never_raises(library, name) and not unchecked.add(name),
    )
    kernel = simt.jit(defined(CALLS, called=called), cache=False)
    z, total = np.arange(1, 6) + 0.5j, np.zeros((1, 2))
    expected = z * (1 - 2j) if called is turned else z * (1 - 2j) ** 2
    kernel[1, 5](z, total)
    np.testing.assert_allclose(z, expected, rtol=1e-15)
    np.testing.assert_allclose(
        total, [[expected.real[::2].sum(), expected.real[1::2].sum()]], rtol=1e-15
    )
    if may_raise:
        with pytest.raises(ValueError, match="negative"):
            kernel[1, 5](-np.ones(5) + 0j, total)
    assert any("turned" in name and "refused" not in name for name in unchecked)
    assert not any("refused" in name for name in unchecked)
