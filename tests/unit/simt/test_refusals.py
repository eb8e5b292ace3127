"""What the CPU cannot run is refused when the kernel is translated, in words that lead to the place and the way out."""

import inspect
import math
from typing import Any

import numba.cuda as nc
import numpy as np
import pytest
from numba import cuda, njit
from numba.cuda import syncthreads as barrier

from synknumba import simt
from synknumba._errors import KernelError


def sync_block(x):
    x[0] = 1
    cuda.syncthreads()


def sync_by_other_name(x):
    x[0] = 1
    barrier()


def sync_by_module(x):
    x[0] = 1
    nc.syncthreads()


def sync_count(x):
    x[0] = cuda.syncthreads_count(x[0] > 1)


def shared_array(x):
    s = cuda.shared.array(4, nc.types.float64)
    s[0] = x[0]


def sync_warp(x):
    x[0] = 1
    cuda.syncwarp()


def shuffle(x):
    x[0] = cuda.shfl_down_sync(-1, x[0], 1)


def ballot(x):
    x[0] = cuda.ballot_sync(-1, x[0] > 0)


def match_any(x):
    x[0] = cuda.match_any_sync(-1, 1)


def active_mask(x):
    x[0] = cuda.activemask()


def whole_grid(x):
    grid = cuda.cg.this_grid()
    grid.sync()


def half_precision(x):
    x[0] = cuda.fp16.hadd(x[0], x[0])


def module_as_value(x):
    c = cuda
    x[0] = c.grid(1)


def index_as_value(x):
    t = cuda.threadIdx
    x[0] = t.x


def host_function(x):
    cuda.synchronize()


def odd_grid(x):
    x[0] = cuda.grid(4)


def local_in_expression(x):
    x[0] = cuda.local.array(3, nc.types.float64)[0]


def local_of_variable_size(x):
    c = cuda.local.array(x.size, nc.types.float64)
    x[0] = c[0]


def local_without_dtype(x):
    c = cuda.local.array(4)
    x[0] = c[0]


def returns_value(x):
    return x[0]


def star_args(*x):
    pass


def keyword_only(x, *, y):
    x[0] = y


def default(x, y=1):
    x[0] = y


def for_else(x):
    for i in range(3):
        x[i] = 0
    else:  # noqa: PLW0120
        x[0] = 1


def while_else(x):
    while x[0] > 0:
        x[0] -= 1
    else:  # noqa: PLW0120
        x[0] = 1


def with_statement(x):
    with x:
        pass


def try_statement(x):
    try:
        x[0] = 1
    except Exception:
        x[0] = 2


def comprehension(x):
    x[0] = sum([i for i in range(3)])  # noqa: C416


def inner_function(x):
    x[0] = (lambda v: v)(1)


def walrus(x):
    x[0] = (y := 1) + y


def a_list(x):
    y = [1, 2]
    x[0] = y[0]


def reserved_name(x):
    _k_tx = 1
    x[0] = _k_tx


def reserved_suffix(x):
    n__u = 1
    x[0] = n__u


@cuda.jit(device=True)
def device_that_syncs(x):
    cuda.syncthreads()
    return x


def calls_device_that_syncs(x):
    x[0] = device_that_syncs(x[0])


@njit
def njit_that_syncs(x):
    nc.syncthreads()
    return x


@njit
def njit_that_calls(x):
    return njit_that_syncs(x)


def calls_njit_that_syncs(x):
    x[0] = njit_that_calls(x[0])


@cuda.jit(device=True)
def endless(n):
    return endless(n - 1) if n > 0 else 0


def recursion(x):
    x[0] = endless(3)


@cuda.jit(device=True)
def scaled(a, b):
    return a * b


def keyword_argument(x):
    x[0] = scaled(a=x[0], b=2)


# kernel, line of the construct below the def, words of the message
REFUSED: list[tuple[Any, int, tuple[str, ...]]] = [
    (sync_block, 2, ("cuda.syncthreads", "device='cuda'")),
    (sync_by_other_name, 2, ("cuda.syncthreads", "barrier()")),
    (sync_by_module, 2, ("cuda.syncthreads", "nc.syncthreads()")),
    (sync_count, 1, ("cuda.syncthreads_count",)),
    (shared_array, 1, ("cuda.shared.array",)),
    (sync_warp, 2, ("cuda.syncwarp", "warp")),
    (shuffle, 1, ("cuda.shfl_down_sync", "warp")),
    (ballot, 1, ("cuda.ballot_sync",)),
    (match_any, 1, ("cuda.match_any_sync",)),
    (active_mask, 1, ("cuda.activemask",)),
    (whole_grid, 1, ("cuda.cg.this_grid", "two launches")),
    (half_precision, 1, ("cuda.fp16.hadd", "float32")),
    (module_as_value, 1, ("numba.cuda",)),
    (index_as_value, 1, ("cuda.threadIdx", ".x")),
    (host_function, 1, ("cuda.", "synchronize")),
    (odd_grid, 1, ("cuda.grid()", "1, 2 or 3")),
    (local_in_expression, 1, ("cuda.local.array()", "variable")),
    (local_of_variable_size, 1, ("shape", "constants")),
    (local_without_dtype, 1, ("cuda.local.array()", "dtype")),
    (returns_value, 1, ("returns a value",)),
    (star_args, 0, ("*args",)),
    (keyword_only, 0, ("keyword-only",)),
    (default, 0, ("default",)),
    (for_else, 1, ("for/else",)),
    (while_else, 1, ("while/else",)),
    (with_statement, 1, ("with",)),
    (try_statement, 1, ("try",)),
    (comprehension, 1, ("comprehension",)),
    (inner_function, 1, ("lambda",)),
    (walrus, 1, (":=",)),
    (a_list, 1, ("a list",)),
    (reserved_name, 1, ("_k_tx", "rename")),
    (reserved_suffix, 1, ("n__u", "rename")),
    (keyword_argument, 1, ("keyword argument", "scaled")),
]


@pytest.mark.parametrize(("function", "line", "words"), REFUSED, ids=[row[0].__name__ for row in REFUSED])
def test_message_names_the_place(function: Any, line: int, words: tuple[str, ...]) -> None:
    kernel = simt.jit(function)
    with pytest.raises(KernelError) as caught:
        kernel.check()
    message = str(caught.value)
    lines, first = inspect.getsourcelines(function)
    assert message.startswith(f"{function.__name__} ({__file__}:{first + line}): ")
    assert message.endswith("\n    " + lines[line].strip())
    assert "is not supported on the CPU; " in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("function", "where"),
    [
        (calls_device_that_syncs, device_that_syncs.py_func),
        (calls_njit_that_syncs, njit_that_syncs.py_func),
        (recursion, endless.py_func),
    ],
)
def test_message_names_the_device_function(function: Any, where: Any) -> None:
    with pytest.raises(KernelError, match=f"^{where.__name__} "):
        simt.jit(function).check()


def test_a_launch_refuses_too() -> None:
    x = np.zeros(1)
    kernel = simt.jit(sync_block)
    for use in (lambda: kernel[1, 1](x), lambda: kernel.prepare((1, 1, 1), (1, 1, 1), (x,)), lambda: kernel.source):
        with pytest.raises(KernelError, match="syncthreads"):
            use()
    assert x[0] == 0


def test_no_source() -> None:
    scope = {"cuda": cuda}
    exec("def k(x):\n    x[cuda.grid(1)] = 1", scope)
    with pytest.raises(KernelError, match=r"^k \(<string>:1\): the Python source of the kernel cannot be found"):
        simt.jit(scope["k"]).check()


def test_a_lambda_is_no_kernel() -> None:
    with pytest.raises(KernelError, match="must be a def|as a def"):
        simt.jit(lambda x: math.sin(x[0])).check()
