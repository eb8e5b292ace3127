"""What the CPU cannot run is refused when the kernel is translated, in words that lead to the
place and the way out.
"""

import functools
import inspect
import linecache
import math
import operator
import pickle
import random
import re
import subprocess
import sys
from typing import Any, ClassVar

import numba.cuda as nc
import numpy as np
import pytest
from numba import cuda, extending, njit
from numba.core import errors, types
from numba.core.typing import templates
from numba.cuda import syncthreads as barrier
from numba.cuda.random import xoroshiro128p_uniform_float32

import synknumba as synk
from synknumba import simt
from synknumba._errors import ArgumentError, KernelError, LaunchError
from tests.environment import environment


def module_as_value(x):
    c = (cuda, 1)
    x[0] = c[0].grid(1)


def index_as_value(x):
    t = cuda.threadIdx if x.size > 1 else cuda.blockIdx
    x[0] = t.x


def host_function(x):
    cuda.synchronize()


in_cuda_c = cuda.declare_device("in_cuda_c", "float64(float64)")


def function_of_cuda_c(x):
    x[0] = in_cuda_c(x[0])


def odd_grid(x):
    x[0] = cuda.grid(4)


def huge_local(x):
    c = cuda.local.array(65_537, np.float64)
    x[0] = c[0]


def huge_shared(x):
    s = cuda.shared.array((6145, 1), np.float64)
    x[0] = s[0, 0]


def local_of_variable_size(x):
    c = cuda.local.array(x.size, np.float64)
    x[0] = c[0]


def local_without_dtype(x):
    c = cuda.local.array(4)
    x[0] = c[0]


def returns_value(x):
    return x[0]


def match_of_sequences(x):
    match x[0], x[1]:
        case 1, y:
            x[0] = y


def star_args(**x):
    pass


def keyword_only(x, *, y):
    x[0] = y


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


def a_list(x):
    y = [1, 2]
    x[0] = y[0]


@cuda.jit(device=True)
def scaled(a, b, c=1):
    return a * b


@cuda.jit(device=True)
def summed(s):
    cuda.syncthreads()
    return s[0]


def unknown_argument(x):
    x[0] = scaled(x[0], 2, d=3)


def argument_missing(x):
    x[0] = scaled(x[0])


def argument_twice(x):
    x[0] = scaled(x[0], 2, a=3)


def arguments_left(x):
    x[0] = scaled(1, 2, 3, 4)


def arguments_of_a_shuffle(x):
    x[0] = cuda.shfl_sync(-1, x[0])


def argument_unknown_to_a_shuffle(x):
    x[0] = cuda.shfl_sync(-1, x[0], lane=1)


def comparison_that_may_not_come(x):
    x[0] = x[1] < x[2] < summed(x)


def message_that_may_not_come(x):
    assert x[0] > 1, cuda.any_sync(-1, x[1])


def several_targets(x):
    x[0], x[summed(x)] = 1, 2


def barrier_in_a_loop_over_elements(x):
    c = cuda.local.array(2, np.int64)
    for e in c:
        cuda.syncthreads()
        x[0] = e


def barrier_in_a_loop_over_a_tuple(x):
    for e in (cuda.threadIdx.x, 1):
        nc.syncthreads()
        x[0] = e


def barrier_in_a_loop_over_pairs(x):
    for k, e in enumerate(x):
        barrier()
        x[k] = e


@cuda.jit(device=True)
def calls_itself(s, n):
    if n > 0:
        cuda.syncthreads()
        calls_itself(s, n - 1)


def recursion_with_barrier(x):
    calls_itself(x, 3)


@njit
def njit_of_variable_size(n):
    s = nc.shared.array(n, np.float64)
    return s[0]


def calls_njit_of_variable_size(x):
    x[0] = njit_of_variable_size(x.size)


def blocks_as_groups(x):
    cuda.cg.this_block().sync()


def shared_of_variable_size(x):
    s = cuda.shared.array(x.size, np.float64)
    s[0] = x[0]


def shared_of_no_size(x):
    s = cuda.shared.array((4, 0), np.float64)
    s[0] = x[0]


def shared_of_bad_constant(x):
    s = cuda.shared.array(1 // 0, np.float64)
    s[0] = x[0]


def shared_of_bad_dtype(x):
    s = cuda.shared.array(4, "number")
    s[0] = x[0]


def barrier_as_value(x):
    x[0] = cuda.syncthreads()


def fence_as_value(x):
    x[0] = cuda.threadfence()


def barrier_as_function(x):
    wait = (cuda.syncthreads, 1)
    wait[0]()


def vote_as_function(x):
    vote = cuda.any_sync if x.size > 1 else cuda.all_sync
    x[0] = vote(-1, 1)


def shuffle_intrinsic(x):
    x[0] = cuda.shfl_sync_intrinsic(-1, 0, x[0], 1, 31)


def vote_intrinsic(x):
    x[0] = cuda.vote_sync_intrinsic(-1, 0, 1)


def index_called(x):
    x[0] = cuda.threadIdx.x()


def module_of_shared_memory(x):
    s = (cuda.shared, 1)
    x[0] = s[0].array(3, np.float64)[0]


def glued_f_string(x):
    print(f"x={x[0]}")


def formatted_f_string(x):
    print(f"x {x[0]:.3f}")


def f_string_elsewhere(x):
    text = f"{x[0]}"
    print(text)


def random_of_numpy(x):
    x[0] = np.random.rand()  # noqa: NPY002


def seed_of_numpy(x):
    np.random.seed(1)  # noqa: NPY002


def random_of_python(x):
    x[0] = random.gauss(0.0, 1.0)


def dot_of_numpy(x):
    x[0] = np.dot(x, x)


def norm_of_numpy(x):
    x[0] = np.linalg.norm(x)


# kernel, line of the construct below the def, words of the message
REFUSED: list[tuple[Any, int, tuple[str, ...]]] = [
    (module_as_value, 1, ("numba.cuda",)),
    (index_as_value, 1, ("cuda.threadIdx", ".x")),
    (host_function, 1, ("cuda.", "synchronize")),
    (function_of_cuda_c, 1, ("in_cuda_c()", "cuda.declare_device", "device='cuda'")),
    (odd_grid, 1, ("cuda.grid()", "1, 2 or 3")),
    (local_of_variable_size, 1, ("shape", "constants")),
    (local_without_dtype, 1, ("cuda.local.array()", "dtype")),
    (returns_value, 1, ("returns a value", "write it to an array")),
    (match_of_sequences, 1, ("match",)),
    (star_args, 0, ("**kwargs",)),
    (keyword_only, 0, ("keyword-only",)),
    (with_statement, 1, ("with",)),
    (try_statement, 1, ("try",)),
    (comprehension, 1, ("comprehension", "write a loop")),
    (a_list, 1, ("a list", "use a tuple, or cuda.local.array")),
    (glued_f_string, 1, ("an f-string", 'print("x=", x[0])')),
    (formatted_f_string, 1, ("an f-string", 'print("x ", x[0])')),
    (random_of_numpy, 1, ("np.random.rand()", "simt.random_states(n, seed)")),
    (seed_of_numpy, 1, ("np.random.seed()", "simt.random_states(n, seed)")),
    (random_of_python, 1, ("random.gauss()", "simt.random_states(n, seed)")),
    (dot_of_numpy, 1, ("np.dot()", "loops")),
    (norm_of_numpy, 1, ("np.linalg.norm()", "loops")),
    (f_string_elsewhere, 1, ("an f-string", "print(text, value)")),
    (unknown_argument, 1, ("scaled(a, b, c)", "['d'] by name", "one argument")),
    (argument_missing, 1, ("scaled(a, b, c)", "1 by position")),
    (argument_twice, 1, ("scaled(a, b, c)", "['a'] by name")),
    (arguments_left, 1, ("scaled(a, b, c)", "4 by position")),
    (arguments_of_a_shuffle, 1, ("cuda.shfl_sync()", "mask, value, src_lane")),
    (argument_unknown_to_a_shuffle, 1, ("cuda.shfl_sync()", "mask, value, src_lane")),
    (
        comparison_that_may_not_come,
        1,
        ("a conditionally evaluated part", "assign its value to a variable"),
    ),
    (
        message_that_may_not_come,
        1,
        ("a conditionally evaluated part", "assign its value to a variable"),
    ),
    (several_targets, 1, ("several targets", "assign its value to a variable")),
    (
        barrier_in_a_loop_over_elements,
        2,
        ("a barrier in a for", "may differ between threads", "a for over a range"),
    ),
    (
        barrier_in_a_loop_over_a_tuple,
        1,
        ("a barrier in a for", "may differ between threads", "a for over a range"),
    ),
    (
        barrier_in_a_loop_over_pairs,
        1,
        ("a barrier in a for", "may differ between threads", "a for over a range"),
    ),
    (blocks_as_groups, 1, ("cuda.cg.this_block", "this_grid().sync()")),
    (shared_of_variable_size, 1, ("shape", "positive integer constants", "dynamic shared array")),
    (huge_local, 1, ("a local array of 524296 bytes", "524288", "one row per thread")),
    (huge_shared, 1, ("a static shared array of 49160 bytes", "49152", "of shape 0")),
    (shared_of_no_size, 1, ("shape", "positive integer constants")),
    (shared_of_bad_constant, 1, ("ZeroDivisionError", "plain number")),
    (shared_of_bad_dtype, 1, ("dtype", "'number'", "a type of numba or NumPy")),
    (barrier_as_value, 1, ("cuda.syncthreads()", "a statement of its own")),
    (fence_as_value, 1, ("cuda.threadfence()", "a statement of its own")),
    (barrier_as_function, 1, ("cuda.syncthreads", "device='cuda'")),
    (vote_as_function, 1, ("cuda.any_sync", "device='cuda'")),
    (shuffle_intrinsic, 1, ("cuda.shfl_sync_intrinsic", "cuda.shfl_sync, ")),
    (vote_intrinsic, 1, ("cuda.vote_sync_intrinsic", "cuda.all_sync, ")),
    (index_called, 1, ("cuda.threadIdx.x()", "a value")),
    (module_of_shared_memory, 1, ("cuda.shared", "use array()")),
]


# What numba.cuda does not compile either.
ON_NO_DEVICE = {
    *(
        returns_value,
        match_of_sequences,
        star_args,
        keyword_only,
        with_statement,
        try_statement,
        comprehension,
        a_list,
    ),
    *(random_of_numpy, seed_of_numpy, random_of_python, dot_of_numpy, norm_of_numpy),
    *(glued_f_string, formatted_f_string, f_string_elsewhere),
    *(local_of_variable_size, shared_of_variable_size, shared_of_no_size),
}


@pytest.mark.parametrize(
    ("function", "line", "words"), REFUSED, ids=[row[0].__name__ for row in REFUSED]
)
def test_message_names_the_place(function: Any, line: int, words: tuple[str, ...]) -> None:
    kernel = simt.jit(function)
    with pytest.raises(KernelError) as caught:
        kernel.source  # noqa: B018  # reading it translates
    message = str(caught.value)
    lines, first = inspect.getsourcelines(function)
    assert message.startswith(f"{function.__name__} ({__file__}:{first + line}): ")
    assert message.endswith("\n    " + lines[line].strip())
    assert re.search(r"is not supported (on the CPU|in kernels); ", message)
    assert ("on the CPU" not in message) == (function in ON_NO_DEVICE)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    "function", [random_of_numpy, seed_of_numpy, random_of_python, dot_of_numpy, norm_of_numpy]
)
def test_numba_cuda_does_not_compile_it(function: Any) -> None:
    """Numba's target for GPUs refuses the types, or asks for a GPU to compile a part: it never
    comes to an end.
    """
    from numba.cuda.compiler import compile_cuda

    more = (
        {"inline": "never"} if "forceinline" in inspect.signature(compile_cuda).parameters else {}
    )
    with pytest.raises((errors.TypingError, cuda.CudaSupportError)):
        compile_cuda(function, types.void, (types.float64[::1],), cc=(7, 5), **more)


@pytest.mark.parametrize(
    ("function", "where"),
    [
        (recursion_with_barrier, calls_itself.py_func),
        (calls_njit_of_variable_size, njit_of_variable_size.py_func),
    ],
)
def test_message_names_the_device_function(function: Any, where: Any) -> None:
    with pytest.raises(KernelError, match=f"^{where.__name__} "):
        simt.jit(function).check()


def misspelt_grid(x):
    x[cuda.gird(1)] = 1


def misspelt_index(x):
    x[cuda.threadidx.x] = 1


def misspelt_atomic(x):
    cuda.atomic.ad(x, 0, 1)


def atomic_with_underscore(x):
    cuda.atomic_add(x, 0, 1)


def unlike_any_name(x):
    cuda.qqqqqqqq(x)


def barrier_without_call(x):
    cuda.syncthreads  # noqa: B018
    x[0] = 1


def atomic_without_index(x):
    cuda.atomic.add(x, 1)


def swap_without_old(x):
    cuda.atomic.cas(x, 0, 1)


def grid_without_call(x):
    x[cuda.grid] = 1


def gridsize_as_variable(x):
    n = cuda.gridsize
    x[0] = n


def read_after_del(x):
    y = x[0]
    del y
    x[1] = y  # noqa: F821


MISTAKES = [  # kernel, text under the marks, words of the message
    (misspelt_grid, "cuda.gird", "numba.cuda has no gird; did you mean cuda.grid?"),
    (
        misspelt_index,
        "cuda.threadidx.x",
        "numba.cuda has no threadidx; did you mean cuda.threadIdx?",
    ),
    (
        misspelt_atomic,
        "cuda.atomic.ad",
        "numba.cuda.atomic has no ad; did you mean cuda.atomic.add?",
    ),
    (
        atomic_with_underscore,
        "cuda.atomic_add",
        "numba.cuda has no atomic_add; did you mean cuda.atomic.add?",
    ),
    (unlike_any_name, "cuda.qqqqqqqq", "numba.cuda has no qqqqqqqq"),
    (barrier_without_call, "cuda.syncthreads", "call it: cuda.syncthreads()"),
    (grid_without_call, "cuda.grid", "call it: cuda.grid(1)"),
    (gridsize_as_variable, "n", "call it: cuda.gridsize(1)"),
    (read_after_del, "y", "y is read after del y"),
    (
        atomic_without_index,
        "cuda.atomic.add(x, 1)",
        "cuda.atomic.add takes array, index, value; got 2 arguments",
    ),
    (
        swap_without_old,
        "cuda.atomic.cas(x, 0, 1)",
        "cuda.atomic.cas takes array, index, old, value; got 3 arguments",
    ),
]


@pytest.mark.parametrize(
    ("function", "under", "words"), MISTAKES, ids=[row[0].__name__ for row in MISTAKES]
)
def test_a_mistake_on_every_device(function: Any, under: str, words: str) -> None:
    with pytest.raises(KernelError) as caught:
        simt.jit(function).check()
    first, line, marks = str(caught.value).splitlines()
    assert first.startswith(f"{function.__name__} ({__file__}:")
    assert words in first
    assert "on the CPU" not in first
    assert line[marks.index("^") : len(marks)] == under


def test_f_strings_that_print_writes(capfd: pytest.CaptureFixture[str]) -> None:
    @simt.jit
    def kernel(x):
        i = cuda.grid(1)
        print(f"thread {i} has {x[0]}", f"a {i}  {i} b", f"{i}", f"c", f" {x[0]} ", f"")  # noqa: F541

    def in_python(i, x):
        print(f"thread {i} has {x[0]}", f"a {i}  {i} b", f"{i}", f"c", f" {x[0]} ", f"")  # noqa: F541

    kernel[1, 1](np.full(1, 2.5))
    in_kernel = capfd.readouterr().out
    in_python(0, np.full(1, 2.5))
    assert in_kernel == capfd.readouterr().out


def test_del_of_variables() -> None:
    @simt.jit
    def kernel(x, out):
        for i in range(x.size):
            y, z = x[i], i
            out[i] = y * z
            del y, z
        y = 3.0
        out[0] = y
        del y, x

    x, out = np.arange(4.0), np.empty(4)
    kernel[1, 1](x, out)
    np.testing.assert_array_equal(out, [3, 1, 4, 9])


def test_a_misspelt_name_under_the_checker() -> None:
    with pytest.raises(KernelError, match=r"numba\.cuda has no gird; did you mean cuda\.grid\?"):
        simt.check(misspelt_grid)[1, 1](np.zeros(1))


def of_dynamic_shared_memory(x):
    part = cuda.shared.array(0, np.float64)
    part[cuda.threadIdx.x] = x[0]
    x[0] = part[cuda.threadIdx.x]


def test_dynamic_shared_memory_without_bytes() -> None:
    kernel, x = simt.jit(of_dynamic_shared_memory), np.ones(1)
    for launch in (
        lambda: kernel[1, 1](x),
        lambda: kernel[1, 1, 0, 0](x),
        lambda: kernel.forall(1)(x),
        lambda: kernel.prepare((1, 1, 1), (1, 1, 1), (x,)),
    ):
        with pytest.raises(
            LaunchError,
            match=r"of_dynamic_shared_memory uses dynamic shared memory \(.*smem_bytes=",
        ):
            launch()
    kernel[1, 1, 0, 8](x)
    assert x[0] == 1


KERNEL_WITHOUT_A_FILE = """
import numpy as np
from numba import cuda
from synknumba import simt

@simt.jit
def kernel(x):
    x[cuda.grid(1)] = 1

kernel[1, 1](np.zeros(1))
"""


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="keeps the source")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-"], "was read from standard input"),
        (["-c"], "was given to python -c"),
        (["/dev/stdin"], "was read from a pipe"),
    ],
)
def test_a_script_without_a_file(arguments: list[str], says: str) -> None:
    text = KERNEL_WITHOUT_A_FILE
    command = [sys.executable, *arguments, *([text] if arguments == ["-c"] else [])]
    run = subprocess.run(
        command,
        input=text,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert says in run.stderr.splitlines()[-1]


def test_source_made_by_exec_under_the_name_of_a_file() -> None:
    scope = {"cuda": cuda, "__loader__": inspect.__loader__}
    exec(compile("def k(x):\n    x[cuda.grid(1)] = 1", inspect.__file__, "exec"), scope)
    with pytest.raises(
        KernelError, match=r"inspect\.py:1\): the kernel was not compiled from this file"
    ):
        simt.jit(scope["k"]).check()


def test_the_largest_arrays_that_cuda_allows() -> None:
    @simt.jit
    def kernel(x):
        c = cuda.local.array(65_536, np.float64)
        s = cuda.shared.array(6144, np.float64)
        c[65_535] = x[0]
        s[6143] = c[65_535] + 1
        x[0] = s[6143]

    x = np.ones(1)
    kernel[1, 1](x)
    assert x[0] == 2


def test_a_launch_refuses_too() -> None:
    x = np.zeros(1)
    kernel = simt.jit(barrier_as_value)
    for use in (
        lambda: kernel[1, 1](x),
        lambda: kernel.prepare((1, 1, 1), (1, 1, 1), (x,)),
        lambda: kernel.source,
    ):
        with pytest.raises(KernelError, match="syncthreads"):
            use()
    assert x[0] == 0


def several_types(x):
    for k in range(x.size):
        v = x[cuda.threadIdx.x]
        cuda.syncthreads()
        x[k] = v
        v = x[k:]
        cuda.syncthreads()
        v[0] = 3


def test_a_variable_of_several_types_that_lives_across_a_barrier() -> None:
    first = inspect.getsourcelines(several_types)[1]
    with pytest.raises(KernelError) as caught:
        simt.jit(several_types)[1, 4](np.zeros(4))
    where = f"several_types ({__file__}:{first + 2})"
    assert str(caught.value).startswith(f"{where}: the variable 'v', which has several types")
    assert "use a variable for each type" in str(caught.value)


def test_no_source() -> None:
    scope = {"cuda": cuda}
    exec("def k(x):\n    x[cuda.grid(1)] = 1", scope)
    with pytest.raises(
        KernelError, match=r"^k \(<string>:1\): the Python source of the kernel cannot be found"
    ):
        simt.jit(scope["k"]).check()


def test_source_made_by_exec_is_entered_as_the_error_says(monkeypatch: pytest.MonkeyPatch) -> None:
    scope, text, name = {"cuda": cuda}, "def k(x):\n    x[cuda.grid(1)] = 1\n", "<made of text>"
    exec(compile(text, name, "exec"), scope)
    with pytest.raises(
        KernelError,
        match=r"linecache.cache\[name\] = \(len\(text\), None, text.splitlines\(True\), name\)",
    ):
        simt.jit(scope["k"]).check()
    monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(True), name))
    x = np.zeros(2)
    simt.jit(scope["k"])[1, 2](x)
    assert x.all()


def adds_to_total(total, x):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(total, 0, x[i])


def stores_old(total, x):
    i = cuda.grid(1)
    x[i] = cuda.atomic.max(total, i, x[i])


@pytest.mark.parametrize(("function", "name"), [(adds_to_total, "add"), (stores_old, "max")])
def test_a_complex_number_for_an_atomic(function: Any, name: str) -> None:
    with pytest.raises(KernelError) as caught:
        simt.jit(function, cache=False)[1, 4](np.zeros(4), np.zeros(4, complex))
    message = str(caught.value)
    assert (
        f"cuda.atomic.{name} gets a value of complex128 for an array of float64; "
        f"pass its real or imaginary" in message
    )
    assert "%" not in message
    with pytest.raises(KernelError, match="array") as caught:
        simt.jit(function, cache=False)[1, 4](np.zeros(4, complex), np.zeros(4, complex))
    assert "dimension" not in str(caught.value)


@cuda.jit(device=True)
def store(array, i):
    array[i] = 3


def writes_elsewhere(first, second, states):
    store(second, cuda.grid(1))


def draws(first, second, states):
    second[cuda.grid(1)] = xoroshiro128p_uniform_float32(states, cuda.grid(1))


@pytest.mark.parametrize(
    ("function", "written"),
    [(writes_elsewhere, "second"), (draws, "states")],
    ids=["array", "records"],
)
def test_a_read_only_array_is_named_by_its_type(function: Any, written: str) -> None:
    arrays = {
        "first": np.zeros(2, np.int32),
        "second": np.zeros(2),
        "states": simt.random_states(2, seed=1),
    }
    for name, array in arrays.items():
        array.flags.writeable = function is draws and name == "second"
    with pytest.raises(ArgumentError, match=f": {written} is read-only; pass a copy") as caught:
        simt.jit(function, cache=False)[1, 2](*arrays.values())
    assert "{" not in str(caught.value)


def test_a_lambda_returns_a_value() -> None:
    with pytest.raises(KernelError, match="a kernel that returns a value"):
        simt.jit(lambda x: math.sin(x[0])).check()


def test_arguments_of_jit_and_launches() -> None:
    for order in ("backward", None, 1):
        with pytest.raises(
            ArgumentError, match=f"thread_order must be 'forward' or 'reverse', got {order!r}"
        ):
            simt.jit(returns_value, thread_order=order)
    for smem in (-1, 1.5, "8"):
        with pytest.raises(
            LaunchError,
            match=f"dynamic shared memory must be a non-negative integer \\(bytes\\), got {smem!r}",
        ):
            simt.jit(returns_value)[1, 1, 0, smem]


# ---- arguments


def doubles(x, n=1):
    x[0] = 2 * n


class WithDevice:
    """An array of another library, in what `__dlpack_device__` returns."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def __dlpack_device__(self) -> Any:
        return self.device


class WithInterface:
    def __init__(self, interface: Any) -> None:
        self.__array_interface__ = interface


ARGUMENTS: list[tuple[Any, str]] = [
    ([1.0, 2.0], "x is a list, which no kernel takes"),
    (memoryview(np.ones(3)), "x is a memoryview, which no kernel takes"),
    (bytearray(3), "x is a bytearray, which no kernel takes"),
    (b"abc", "x is a bytes object, which no kernel takes"),
    ({1, 2}, "x is a set, which no kernel takes"),
    ((1, [2.0]), "x is a tuple with a list, which no kernel takes"),
    (np.array([1, "a"], object), "x is an array of Python objects, which no kernel takes"),
    (
        np.ones(3).astype(">f8"),
        'byte order is not the machine\'s; pass x.astype(x.dtype.newbyteorder("="))',
    ),
    (np.ones(3, np.longdouble), "pass x.astype(np.float64)"),
    (np.ones(3, np.clongdouble), "pass x.astype(np.complex128)"),
    (
        np.ma.masked_array(np.ones(3), [1, 0, 0]),
        "x is a MaskedArray (masked), whose mask no kernel sees; pass x.filled(...)",
    ),
    (WithDevice(None), "x is a tests.WithDevice whose __dlpack_device__() gives None"),
    (WithDevice((1,)), "x is a tests.WithDevice whose __dlpack_device__() gives (1,)"),
    (WithDevice("x"), "x is a tests.WithDevice whose __dlpack_device__() gives 'x'"),
    (
        WithDevice((99, 0)),
        "x is a tests.WithDevice in memory of an unknown kind (DLPack device 99)",
    ),
    (WithDevice((2, 0)), "x is a tests.WithDevice in a GPU's memory (DLPack device 2)"),
    (WithInterface(5), "x is a tests.WithInterface whose __array_interface__ NumPy cannot read"),
    (WithInterface({}), "x is a tests.WithInterface whose __array_interface__ NumPy cannot read"),
]


@pytest.mark.parametrize(("value", "says"), ARGUMENTS, ids=map(str, range(len(ARGUMENTS))))
def test_arguments_that_no_kernel_takes(value: Any, says: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        simt.jit(doubles)[1, 1](value)
    assert str(caught.value).startswith("doubles(): ")
    assert says in str(caught.value)


# What numba.cuda says of each, from its rules for overloads: whether the arguments fit the
# signatures.
FLOATS = np.ones((2, 3), np.float32)
DECLARED: list[tuple[Any, tuple[Any, ...], bool]] = [
    ("void(float32[:], int64)", (FLOATS[0], 1), True),
    # numbers are converted, and A takes every layout
    (
        "void(float32[:], int64)",
        (FLOATS[:, 0], 2.5),
        True,
    ),
    ("void(float32[:], int64)", (FLOATS[0].astype(np.float64), 1), False),
    ("void(float32[:], int64)", (FLOATS[0].astype(np.int32), 1), False),
    ("void(float32[:], int64)", (FLOATS, 1), False),
    ("void(float32[:], int64)", (1.0, 1), False),
    ("void(float32[:], int64)", (FLOATS[0], FLOATS[0]), False),
    ("void(float32[::1], int64)", (FLOATS[0], 1), True),
    ("void(float32[::1], int64)", (FLOATS[:, 0], 1), False),
    (["void(float32[::1], int64)", "void(int32[::1], int64)"], (np.ones(2, np.int32), 1), True),
    (["void(float32[::1], int64)", "void(int32[::1], int64)"], (np.ones(2), 1), False),
]


@pytest.mark.parametrize(("declared", "args", "fits"), DECLARED, ids=map(str, range(len(DECLARED))))
def test_arrays_of_declared_signatures(declared: Any, args: tuple[Any, ...], fits: bool) -> None:
    kernel = simt.jit(declared)(doubles)
    if fits:
        kernel[1, 1](*args)
        assert args[0][0] == 2 * int(args[1])
        return
    with pytest.raises(TypeError, match="No matching definition for argument type") as caught:
        kernel[1, 1](*args)
    message = str(caught.value)
    assert message.startswith(f"doubles ({__file__}:")
    assert "declared: (array(float32, 1d, " in message


def test_a_read_only_array_of_a_declared_signature() -> None:
    x = np.ones(2)
    x.flags.writeable = False
    out = np.zeros(1)
    for declared in (
        "void(float64[:], float64[:])",
        ["void(float64[:], float64[:])", "void(int64[:], float64[:])"],
    ):
        simt.jit(declared)(copies_first)[1, 1](x, out)
        assert out[0] == 1


def copies_first(x, out):
    out[0] = x[0]


TAKES = [
    (5, "got 5"),
    (len, "got the built-in function len"),
    (WithDevice, "got the class WithDevice"),
    (functools.partial(doubles, n=2), "got a functools.partial of doubles: write a def"),
    ("void(float32[:)", "got 'void(float32[:)'"),
    ("float64", "got 'float64'"),
]


@pytest.mark.parametrize(("given", "got"), TAKES, ids=[row[1] for row in TAKES])
def test_what_jit_takes(given: Any, got: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(got)) as caught:
        simt.jit(given)
    assert "simt.jit takes a function defined by def or lambda" in str(caught.value)
    if callable(given):
        with pytest.raises(ArgumentError, match=re.escape(got)):
            simt.jit(device=True)(given)


def test_unknown_options_of_jit() -> None:
    with pytest.raises(
        ArgumentError, match=r"simt.jit has no option fasmath=; it has .*Did you mean fastmath="
    ):
        simt.jit(fasmath=True)
    with pytest.raises(ArgumentError, match=r"simt.jit has no option blah=; it has "):
        simt.jit(doubles, blah=3)
    simt.jit(doubles, opt=True, lineinfo=True, max_registers=32, inline="never", link=[])


def test_a_device_function_called_on_the_host() -> None:
    device = simt.jit(device=True)(doubles)
    with pytest.raises(
        LaunchError,
        match=r"doubles is a device function.*call its Python function, doubles\.py_func\(\.\.\.\)",
    ):
        device(3.0)


# ---- names outside the kernel


class Settings:
    scale, offset, flag = 2.5, np.float32(1.5), True

    class Inner:
        n = 3


def reads_a_class(x):
    s = cuda.local.array(Settings.Inner.n, np.float64)
    s[0] = Settings.scale * x[0] + Settings.offset
    x[0] = s[0] + Settings.Inner.n if Settings.flag else 0


def test_numbers_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    for scale in (2.5, 4.0):  # the second: another kernel, in the cache too
        monkeypatch.setattr(Settings, "scale", scale)
        kernel, x = simt.jit(reads_a_class), np.array([2.0])
        kernel[1, 1](x)
        assert x[0] == 2 * scale + 1.5 + 3
        assert kernel.cache_info.not_kept in {None, "the cache is switched off"}


add_outside, array_outside, local_outside = cuda.atomic.add, cuda.shared.array, cuda.local.array


def test_members_of_cuda_under_other_names() -> None:
    largest = cuda.atomic.max

    @simt.jit
    def kernel(x, n):
        s, c = array_outside(2, np.float64), local_outside(2, np.float64)
        c[1] = s[1] = 1
        add_outside(n, 0, c[1] + s[1])
        largest(n, 1, x[cuda.threadIdx.x])

    n = np.zeros(2)
    kernel[1, 4](np.arange(4.0), n)
    np.testing.assert_array_equal(n, [8, 3])


def undecorated(v):
    return v + 1


class Plain:
    n = 3


SETTINGS, PLAIN = {1: 2}, Plain()


@simt.jit
def another_kernel(x):
    x[0] = 1


@cuda.jit
def another_cuda_kernel(x):
    x[0] = 1


@cuda.jit(device=True)
def undefined_on_a_device(v):
    return v + nowhere  # noqa: F821


def calls_undecorated(x):
    x[0] = undecorated(x[0])


def makes_an_object(x):
    x[0] = Plain().n


def reads_a_dict(x):
    x[0] = SETTINGS[1]


def reads_an_object(x):
    x[0] = PLAIN.n


def reads_undefined(x):
    x[0] = nowhere  # noqa: F821


def calls_reading_undefined(x):
    x[0] = undefined_on_a_device(x[0])


def indexes_by_a_float(x):
    i = x[0]
    x[i] = 2


def launches_a_kernel(x):
    another_kernel[1, 1](x)


def launches_a_cuda_kernel(x):
    another_cuda_kernel[1, 1](x)


def misspelt_of_numpy(x):
    x[0] = np.sqroot(x[0])


UNTYPED = [  # kernel, text under the marks, words of the message
    (calls_undecorated, "undecorated", "is a plain Python function"),
    (makes_an_object, "Plain", "Plain is a class, which Numba cannot use"),
    (reads_a_dict, "SETTINGS", "SETTINGS is a dict, which Numba cannot use"),
    (reads_an_object, "PLAIN", "PLAIN is a Plain, which Numba cannot use"),
    (reads_undefined, "nowhere", "name 'nowhere' is not defined"),
    (calls_reading_undefined, "nowhere", "name 'nowhere' is not defined"),
    (indexes_by_a_float, "x[i]", "an index is a float64"),
    (launches_a_kernel, "another_kernel[1, 1]", "another_kernel is launched inside a kernel"),
    (
        launches_a_cuda_kernel,
        "another_cuda_kernel[1, 1]",
        "another_cuda_kernel is launched inside a kernel",
    ),
    (misspelt_of_numpy, "np.sqroot", "Did you mean np.sqrt?"),
]


@pytest.mark.parametrize(
    ("function", "under", "words"), UNTYPED, ids=[row[0].__name__ for row in UNTYPED]
)
def test_what_numba_cannot_type_is_placed(function: Any, under: str, words: str) -> None:
    with pytest.raises(KernelError) as caught:
        simt.jit(function)[1, 1](np.ones(3))
    error, message = caught.value, str(caught.value)
    first, line, marks, _ = message.splitlines()
    assert re.match(
        rf"(undefined_on_a_device|{function.__name__}) \({re.escape(__file__)}:\d+\): ", first
    )
    assert words in message
    assert line[marks.index("^") : len(marks)] == under
    assert error.__cause__ is None
    assert error.__suppress_context__
    if function is not misspelt_of_numpy:  # which Python refuses
        assert isinstance(error, errors.TypingError)
        assert str(pickle.loads(pickle.dumps(error))) == message


@extending.intrinsic
def without_a_value(_context, x):
    return types.int32(types.int64), lambda _context, _builder, _signature, _args: None


def is_not_lowered(x):
    without_a_value(1)


def prints_with_a_keyword(x):
    print(x[0], sep="-")


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        (is_not_lowered, errors.LoweringError, "non-void function returns None"),
        (prints_with_a_keyword, errors.UnsupportedError, "does not support keyword arguments"),
        (reads_undefined, errors.TypingError, "name 'nowhere' is not defined"),
    ],
)
def test_an_error_is_also_the_one_of_numba(
    function: Any, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words) as of_numba:
        njit(function)(np.ones(3))
    with pytest.raises(KernelError, match=words) as ours:
        simt.jit(function)[1, 1](np.ones(3))
    assert isinstance(ours.value, kind)
    assert set(vars(of_numba.value)) <= {*vars(ours.value), "_contexts"}  # such as msg
    again = pickle.loads(pickle.dumps(ours.value))
    assert (type(again), str(again)) == (type(ours.value), str(ours.value))


# ---- what a program registers for CUDA only


class Span:
    """Its type is known to Numba, its constructor and its memory are known to CUDA only."""


class SpanType(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Span")


class Pair:
    """Overloaded for CUDA only."""


def declared_for_cuda(x):
    pass


def lowered_for_cuda(x):
    pass


def overloaded_inside(x):
    pass


@njit
def calls_overloaded_inside(x):
    return overloaded_inside(x)


@extending.intrinsic(target="cuda")
def intrinsic_of_cuda(_context, x):
    return x(x), lambda _context, _builder, _signature, args: args[0]


@pytest.fixture(scope="module")
def registered_for_cuda() -> None:
    from numba.cuda.cudadecl import registry
    from numba.cuda.cudaimpl import lower

    class Declared(templates.ConcreteTemplate):
        cases: ClassVar = [templates.signature(types.float64, types.float64)]

    class Made(templates.ConcreteTemplate):
        cases: ClassVar = [templates.signature(SpanType(), types.float64)]

    registry.register_global(declared_for_cuda)(Declared)
    registry.register_global(Span)(Made)
    templates.infer_global(lowered_for_cuda)(type("Everywhere", (Declared,), {}))
    lower(lowered_for_cuda, types.float64)(lambda _context, _builder, _signature, args: args[0])
    extending.typeof_impl.register(Span)(lambda _value, _context: SpanType())
    extending.overload(overloaded_inside, target="cuda")(lambda x: lambda x: x)
    extending.overload(Pair, target="cuda")(lambda x: lambda x: x)
    extending.overload_method(types.Array, "first_twice", target="cuda")(
        lambda x: lambda x: 2 * x[0]
    )
    extending.overload_attribute(types.Array, "first_one", target="cuda")(lambda x: lambda x: x[0])
    extending.overload(operator.add, target="cuda")(_adds_text)
    registry.register_global(operator.matmul)(
        type("OfPairs", (templates.ConcreteTemplate,), {"cases": []})
    )


def _adds_text(x, y):
    if isinstance(x, types.Array) and isinstance(y, types.UnicodeType):
        return lambda x, y: x[0]
    return None


def calls_declared(x):
    x[0] = declared_for_cuda(x[0])


def calls_lowered(x):
    x[0] = lowered_for_cuda(x[0])


def calls_njit(x):
    x[0] = calls_overloaded_inside(x[0])


def calls_intrinsic(x):
    x[0] = intrinsic_of_cuda(x[0])


def makes_span(x):
    span = Span(x[0])
    x[0] = span is not None


def makes_pair(x):
    x[0] = Pair(x[0])


def calls_method(x):
    x[0] = x.first_twice()


def reads_attribute(x):
    x[0] = x.first_one


def adds_text(x):
    x[0] = x + "a"


@pytest.mark.usefixtures("registered_for_cuda")
@pytest.mark.parametrize(
    ("function", "word"),
    [
        (calls_declared, "declared_for_cuda, without an implementation for the CPU,"),
        (makes_span, "Span, without an implementation for the CPU,"),
    ],
)
def test_what_is_registered_for_cuda_only_is_named(function: Any, word: str) -> None:
    with pytest.raises(KernelError) as caught:
        simt.jit(function, cache=False)[1, 1](np.ones(3))
    message = str(caught.value)
    assert message.startswith(f"{function.__name__} ({__file__}:")
    assert f"{word} is not supported on the CPU; register it for every target" in message


def scales_in_place(x, dt):
    x[0] *= dt


def scales(x, dt):
    x[0] = dt * x[0]


@pytest.mark.parametrize("function", [scales_in_place, scales])
def test_a_parameter_that_is_none_is_named(function: Any) -> None:
    way_out = f"\ndt of {function.__name__} is None here: pass a number as dt. "
    with pytest.raises(KernelError, match=way_out):
        simt.jit(function, cache=False)[1, 1](np.ones(3), None)


def adds_tuple(x):
    pair = x[0], None
    x[0] = (x + pair)[0]


@pytest.mark.usefixtures("registered_for_cuda")
@pytest.mark.parametrize(
    ("function", "other"), [(adds_text, "a"), (adds_tuple, "Tuple(float64, none)")]
)
def test_an_operator_that_is_overloaded_for_cuda_only_is_explained_as_others_are(
    function: Any, other: str
) -> None:
    with pytest.raises(KernelError) as caught:
        simt.jit(function, cache=False)[1, 1](np.ones(3))
    message = str(caught.value)
    assert f"Numba has no operator + for array(float64, 1d, C) and {other}\n" in message
    assert (
        "\nThe program's add for the target 'cuda' is none of the CPU's: if it is "
        "meant, register it for every" in message
    )


def multiplies_tuple(x):
    pair = x[0], x[1]
    x[0] = (pair @ pair)[0]


@pytest.mark.usefixtures("registered_for_cuda")
def test_an_operator_of_the_registry_of_cuda_is_named() -> None:
    with pytest.raises(
        KernelError,
        match=r"has no operator @ .*\n.*\n.*\nThe program's matmul for the target 'cuda' is none",
    ):
        simt.jit(multiplies_tuple, cache=False)[1, 1](np.ones(3))


@pytest.mark.usefixtures("registered_for_cuda")
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        *(
            (function, 3)
            for function in (
                calls_lowered,
                calls_njit,
                calls_intrinsic,
                makes_pair,
                reads_attribute,
            )
        ),
        (calls_method, 6),
    ],
)
def test_what_is_registered_for_cuda_with_an_implementation_runs(
    function: Any, expected: float
) -> None:
    x = np.full(2, 3.0)
    simt.jit(function)[1, 1](x)
    assert x[0] == expected


@pytest.mark.usefixtures("registered_for_cuda")
def test_an_argument_of_a_type_for_cuda_only_is_named() -> None:
    def takes(x, span):
        x[0] = 1

    with pytest.raises(
        KernelError,
        match="the argument 'span' of the type Span, which Numba cannot pass to code for the CPU",
    ):
        simt.jit(takes)[1, 1](np.ones(3), Span())


def raises_for_numbers(x, y):
    raise errors.NumbaTypeError(f"nothing is known of {x}")


def differs(x, y, z=None):
    return lambda x, y, z=3: x


@pytest.mark.parametrize("targets", [{}, {"target": "cuda"}])
@pytest.mark.parametrize(
    ("overload", "words"),
    [
        (raises_for_numbers, r"has no looked_up\(float64, 1\): nothing is known of float64"),
        (lambda x: None, "too many positional arguments"),
        (
            differs,
            r"has no looked_up\(float64, 1\): Typing and implementation arguments differ in "
            r"keyword argument default",
        ),
    ],
)
def test_the_error_of_an_overload_is_told(targets: Any, overload: Any, words: str) -> None:
    def looked_up(x, y, z=None):
        pass

    def calls(x):
        looked_up(x[0], 1)

    extending.overload(looked_up, **targets)(overload)
    with pytest.raises(KernelError, match=words):
        simt.jit(calls, cache=False)[1, 1](np.ones(3))


@pytest.mark.usefixtures("registered_for_cuda")
@pytest.mark.parametrize("runs", [simt.debug, simt.check])
def test_what_is_registered_for_cuda_only_is_refused_in_python_too(runs: Any) -> None:
    with pytest.raises(KernelError, match=r"intrinsic_of_cuda\(\) cannot be compiled for the CPU"):
        runs(calls_intrinsic)[1, 1](np.ones(3))


@pytest.mark.usefixtures("registered_for_cuda")
def test_other_errors_of_types_stay_numbas() -> None:
    def unknown(x):
        x[0] = x.no_such_attribute

    with pytest.raises(errors.TypingError, match="no_such_attribute"):
        simt.jit(unknown)[1, 1](np.ones(3))


def group_as_a_number(x):
    x[0] = cuda.cg.this_grid()


def group_times_a_number(x):
    group = cuda.cg.this_grid()
    x[0] = scaled(group, 1)


def sync_of_an_array(x):
    x.sync()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (group_as_a_number, "Group"),
        (group_times_a_number, "Group"),
        (sync_of_an_array, "no group of cuda.cg.this_grid"),
    ],
)
def test_a_group_is_no_number(function: Any, words: str) -> None:
    with pytest.raises(errors.TypingError, match=words):
        simt.jit(function)[1, 1](np.zeros(1))


@njit
def numpys_random_number() -> float:
    return np.random.random()  # noqa: NPY002


def test_random_numbers_without_a_seed_in_functions_of_rows() -> None:
    def noisy(x):
        return x + np.random.normal()  # noqa: NPY002

    def noisy_within(x):
        return x + numpys_random_number()

    def pythons(x):
        return x + random.random()

    with synk.fork(1, device="cpu"):
        for function in (noisy, noisy_within, pythons):
            for made in (synk.vectorize(function), synk.expectation(function)):
                with pytest.raises(
                    (ArgumentError, KernelError),
                    match=r"random\.\w+\(\) is not supported in kernels; use synk.random",
                ):
                    made(synk.arange(4))


def test_random_numbers_without_a_seed_in_a_function_of_a_kernel() -> None:
    def kernel(x):
        x[0] = numpys_random_number()

    with pytest.raises(
        KernelError, match=r"np.random.random\(\) is not supported in kernels; use synk.random"
    ):
        simt.jit(kernel)[1, 1](np.zeros(1))


def without_draw(x):
    x[0] = synk.random.uniform(3, 5)


def with_unknown_argument(x):
    x[0] = synk.random.normal(3, 5, draws=1)


def with_a_float_as_seed(x):
    x[0] = synk.random.uniform(x[0], 5, 0)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            without_draw,
            r"missing a required argument: 'draw'; write synk.random.uniform\(seed, index, draw\)",
        ),
        (with_unknown_argument, r"'draws?'.*; write synk.random.normal\(seed, index, draw\)"),
        (
            with_a_float_as_seed,
            r"seed, index, draw and bounds must be integers, but one is "
            r"float64. Convert it with int\(\)",
        ),
    ],
)
def test_arguments_of_random_numbers(function: Any, words: str) -> None:
    with pytest.raises(KernelError, match=words):
        simt.jit(function)[1, 1](np.zeros(1))
