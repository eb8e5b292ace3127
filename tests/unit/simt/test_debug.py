"""`simt.debug`: results, errors with the thread's place, and a debugger in a kernel."""

import enum
import io
import linecache
import os
import pdb
import pickle
import subprocess
import sys
import traceback
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest
from numba import cuda, float32, float64, int32, njit
from numba import cuda as gpu
from numba.cuda import blockDim, blockIdx, laneid, threadIdx
from numba.cuda import grid as my_grid
from numba.extending import intrinsic, overload, register_jitable

import synknumba as synk
from synknumba import ArgumentError, KernelError, LaunchError, SynkError, simt
from synknumba.simt import BoundsError, DivergenceError

HERE = __file__
FULL = 0xFFFFFFFF
TABLE = np.array([1.0, 2.0, 4.0])
scale = 2.0
Box = namedtuple("Box", ["low", "values"])


class Kind(enum.IntEnum):
    ODD = 1
    EVEN = 2


def line_of(text: str) -> int:
    """The only line of this file that ends in a mark."""
    found = [
        number
        for number, line in enumerate(linecache.getlines(HERE), 1)
        if line.rstrip().endswith(f"# {text}")
    ]
    assert len(found) == 1
    return found[0]


# ---- results


def doubled(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * 2


DECORATED = {
    "function": doubled,
    "cuda.jit": cuda.jit(doubled),
    "simt.jit": simt.jit(doubled),
    "parallel": synk.parallel(outputs={"out": synk.output("gather", shape=(), dtype="float64")})(
        doubled
    ),
}


@pytest.mark.parametrize("made", DECORATED.values(), ids=DECORATED)
def test_takes_every_form_of_kernel(made: Any) -> None:
    x, out = np.arange(10.0), np.zeros(10)
    simt.debug(made)[2, 8](x, out)
    np.testing.assert_array_equal(out, 2 * x)
    assert repr(simt.debug(made)).startswith("<simt.debug of doubled (")


def test_forall_runs_at_least_that_many_threads() -> None:
    x, out = np.arange(300.0), np.zeros(300)
    simt.debug(doubled).forall(300)(x, out)
    simt.debug(doubled).forall(300, tpb=7)(out, out)
    np.testing.assert_array_equal(out, 4 * x)


def test_writes_to_arguments_of_every_layout() -> None:
    base = np.arange(24.0).reshape(4, 6)
    for view in (base[::2, 1::2], base.T, base[::-1, ::-1]):
        before = view.copy()

        def add(a):
            i, j = cuda.grid(2)
            if i < a.shape[0] and j < a.shape[1]:
                a[i, j] += 100

        simt.debug(add)[(1, 1), (8, 8)](view)
        np.testing.assert_array_equal(view, before + 100)

    zero, record = np.array(3.0), np.zeros(1, [("a", "f8"), ("n", "i4", (3,))])[0]

    def into(z, r):
        z[()] += 1
        r.a = z[()] * 2
        r["n"][cuda.threadIdx.x] = cuda.threadIdx.x + 1

    simt.debug(into)[1, 3](zero, record)
    assert zero[()] == 6.0
    assert record["a"] == 12.0
    np.testing.assert_array_equal(record["n"], [1, 2, 3])


def test_views_write_to_the_array_they_show() -> None:
    def through_views(a, out):
        i = cuda.grid(1)
        row = a[i]
        row[1:][0] = i + 10
        a.T[2, i] = row[1] * 2
        out[i] = len(row) + a.reshape(a.size)[i * 3]
        for v in row:
            out[i] += v

    a, out = np.zeros((4, 3)), np.zeros(4)
    simt.debug(through_views)[1, 4](a, out)
    np.testing.assert_array_equal(a, [[0, i + 10, 2 * (i + 10)] for i in range(4)])
    np.testing.assert_array_equal(out, 3 + a.sum(1))


@cuda.jit(device=True)
def power(base, exponent=2, *, negate=False):
    value = base
    for _ in range(exponent - 1):
        value *= base
    return -value if negate else value


@cuda.jit(device=True)
def factorial(n):
    return 1 if n <= 1 else n * factorial(n - 1)


@cuda.jit(device=True)
def block_sum(memory, value):
    memory[cuda.threadIdx.x] = value
    cuda.syncthreads()
    total = 0.0
    for k in range(cuda.blockDim.x):
        total += memory[k]
    cuda.syncthreads()
    return total


@njit
def half(x):
    return x / 2


def test_calls_functions_of_all_forms() -> None:
    shift = 0.25

    @cuda.jit
    def calls(out, n=4):
        i = my_grid(1)
        memory = gpu.shared.array(shape=8, dtype=float32)
        total = block_sum(memory, float(i))
        out[i, 0] = power(i + 1) + power(base=2, exponent=3, negate=True)
        out[i, 1] = factorial(n + 1)
        out[i, 2] = block_sum(memory, value=total) + half(3) + shift * scale
        out[i, 3] = numba.cuda.threadIdx.x + TABLE[i % 3] + gpu.const.array_like(TABLE)[1]
        out[i, 4] = Kind.EVEN + (Kind.ODD if i else 0)

    out = np.zeros((8, 5))
    simt.debug(calls)[2, 4](out)
    i = np.arange(8.0)
    np.testing.assert_array_equal(out[:, 0], (i + 1) ** 2 - 8)
    np.testing.assert_array_equal(out[:, 1], 120)
    np.testing.assert_array_equal(out[:, 2], np.repeat([6 * 4, 22 * 4], 4) + 1.5 + 0.5)
    np.testing.assert_array_equal(out[:, 3], i % 4 + TABLE[np.arange(8) % 3] + 2)
    np.testing.assert_array_equal(out[:, 4], 2 + (i > 0))


@njit("float32(int32, float64)")
def declared(a, b):
    return a + b


@simt.jit("void(float32, int32)", device=True)
def declared_and_waits(memory_size, i):
    cuda.syncthreads()
    return memory_size, i


def test_numbers_are_converted_to_declared_types() -> None:
    def calls(out):
        out[0] = declared(2.9, b=0.1)
        a, i = declared_and_waits(0.1, i=3.7)
        out[1] = a
        out[2] = i

    out = np.zeros(3)
    simt.debug(calls)[1, 1](out)
    np.testing.assert_array_equal(out, [np.float32(2.1), np.float32(0.1), 3])


def only_in_numba(a):
    raise NotImplementedError


@overload(only_in_numba)
def _only_in_numba(a):
    return lambda a: a * 3


@register_jitable
def both_ways(a):
    return a + 1


@intrinsic
def seven(_context):
    return int32(), lambda context, builder, signature, args: context.get_constant(int32, 7)


def test_functions_that_only_numba_knows_are_compiled() -> None:
    def calls(out):
        out[0] = only_in_numba(2.0) + both_ways(1) + seven()

    def with_array(out):
        out[0] = only_in_numba(out)

    out = np.zeros(1)
    simt.debug(calls)[1, 1](out)
    assert out[0] == 15
    with pytest.raises(KernelError, match="indices cannot be checked"):
        simt.debug(with_array)[1, 1](out)


def test_random_numbers_are_those_of_python_and_compile_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def draws(out):
        i = cuda.grid(1)
        out[i] = synk.random.uniform(7, index=i, draw=1) + synk.random.randint(7, i, 0, -5, 9)

    compiled, python = np.zeros(4), np.zeros(4)
    simt.jit(draws)[1, 4](compiled)
    monkeypatch.setattr("numba.core.dispatcher.Dispatcher._compile_for_args", None)
    simt.debug(draws)[1, 4](python)
    np.testing.assert_array_equal(python, compiled)


def test_what_is_registered_after_the_last_compilation() -> None:
    """As `synk.random` is in a script whose kernels the ranks alone compile."""

    def late(a):
        raise NotImplementedError

    overload(late)(lambda a: lambda a: a * 5)

    def calls(out):
        out[0] = late(2.0)

    out = np.zeros(1)
    simt.debug(calls)[1, 1](out)
    assert out[0] == 10


def test_reads_globals_anew_at_each_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(out):
        out[cuda.grid(1)] = scale

    out, kernel = np.zeros(2), simt.debug(scaled)
    kernel[1, 2](out)
    assert out[0] == 2.0
    monkeypatch.setitem(globals(), "scale", 5.0)
    kernel[1, 2](out)
    assert out[0] == 5.0


def test_tuples_of_arrays_and_scalars() -> None:
    def boxed(box, pair):
        i = cuda.grid(1)
        box.values[i] = box.low + pair[1][i]

    values = np.zeros(4)
    simt.debug(boxed)[1, 4](Box(0.5, values), (1, np.arange(4.0)))
    np.testing.assert_array_equal(values, np.arange(4) + 0.5)


def test_arithmetic_has_the_types_of_a_kernel() -> None:
    def mixed(bytes_, singles, out, wide):
        i = cuda.grid(1)
        out[i, 0] = bytes_[i] + bytes_[i]
        out[i, 1] = singles[i] * singles[i]
        out[i, 2] = -bytes_[i] if bytes_[i] else 0.0
        wide[i] = (1 << 62) * 2 + i
        bytes_[i] += 300

    args = (
        np.full(3, 200, np.uint8),
        np.full(3, 1.1, np.float32),
        np.zeros((3, 3)),
        np.zeros(3, np.int64),
    )
    compiled = tuple(arg.copy() for arg in args)
    simt.debug(mixed)[1, 3](*args)
    simt.jit(mixed)[1, 3](*compiled)
    for mine, theirs in zip(args, compiled, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert args[2][0, 0] == 400
    assert args[2][0, 1] == np.float32(1.1) * np.float32(1.1)


def test_dynamic_shared_memory_is_one_buffer() -> None:
    def carved(out):
        t = cuda.threadIdx.x
        floats = cuda.shared.array(0, float32)
        ints = cuda.shared.array(0, int32)[4:]
        floats[t] = t + 0.5
        ints[t] = t * 10
        cuda.syncthreads()
        out[t] = floats[3 - t] + ints[3 - t] + 1000 * cuda.shared.array(0, float32).size

    out = np.zeros(4)
    simt.debug(carved)[1, 4, 0, 32](out)
    np.testing.assert_array_equal(out, [8033.5, 8022.5, 8011.5, 8000.5])


def test_new_memory_is_poisoned() -> None:
    def reads(out, n):
        out[0] = cuda.shared.array(3, float64)[1]
        out[1] = cuda.local.array(3, float32)[2]
        n[0] = cuda.local.array(2, int32)[0]

    out, n = np.zeros(2), np.zeros(1, np.uint32)
    simt.debug(reads)[1, 1](out, n)
    assert np.isnan(out).all()
    assert n[0] == 0xCDCDCDCD


def test_warps_meet_by_their_masks() -> None:
    def halves(out):
        lane = cuda.laneid
        if lane < 16:
            v = cuda.shfl_xor_sync(0xFFFF, lane, 1)
        else:
            v = cuda.shfl_sync(0xFFFF0000, lane, 16)
            cuda.syncwarp(0xFFFF0000)
        out[cuda.grid(1), 0] = v
        out[cuda.grid(1), 1] = cuda.ballot_sync(mask=FULL, predicate=lane % 2)
        out[cuda.grid(1), 2] = cuda.popc(cuda.lanemask_lt())
        if lane % 4 == 0:
            out[cuda.grid(1), 3] = cuda.activemask()

    out = np.zeros((64, 4), np.uint32)
    simt.debug(halves)[1, 64](out)
    lane = np.arange(64) % 32
    np.testing.assert_array_equal(out[:, 0], np.where(lane < 16, lane ^ 1, 16))
    np.testing.assert_array_equal(out[:, 1], 0xAAAAAAAA)
    np.testing.assert_array_equal(out[:, 2], lane)
    np.testing.assert_array_equal(out[:, 3], np.where(lane % 4 == 0, 0x11111111, 0))


def test_words_imported_by_themselves_answer_for_each_thread() -> None:
    def places(out):
        i = my_grid(1)
        out[i, 0] = threadIdx.x
        out[i, 1] = blockIdx.x * blockDim.x
        out[i, 2] = laneid
        cuda.syncthreads()
        out[i, 3] = threadIdx.x + blockIdx.x

    out = np.zeros((80, 4))
    simt.debug(places)[2, 40](out)
    i = np.arange(80)
    np.testing.assert_array_equal(
        out, np.stack([i % 40, i // 40 * 40, i % 40 % 32, i % 40 + i // 40], 1)
    )


def test_blocks_wait_for_the_grid() -> None:
    def phases(x, out):
        i = cuda.grid(1)
        whole = cuda.cg.this_grid()
        cuda.atomic.add(x, 0, i)
        whole.sync()
        out[i] = x[0]

    out = np.zeros(12, np.int64)
    simt.debug(phases)[3, 4](np.zeros(1, np.int64), out)
    np.testing.assert_array_equal(out, 66)


# ---- errors


def test_an_index_outside_names_thread_array_and_line() -> None:
    def shifted(x, out):
        i = cuda.grid(1)
        out[i] = x[i + 2]  # line outside

    with pytest.raises(BoundsError) as caught:
        simt.debug(shifted)[2, 4](np.zeros(7), np.zeros(8))
    (finding,) = caught.value.findings
    (access,) = finding.accesses
    assert (finding.array, finding.index) == ("x", (7,))
    assert (access.what, access.thread, access.block) == ("read", (1, 0, 0), (1, 0, 0))
    assert (access.filename, access.line, access.function) == (
        HERE,
        line_of("line outside"),
        "shifted",
    )
    text = str(caught.value)
    for part in (
        "shifted",
        "[7]",
        "(7,)",
        "threadIdx=(1, 0, 0)",
        "blockIdx=(1, 0, 0)",
        f"{HERE}:{access.line}",
        "x[i + 2]",
    ):
        assert part in text
    assert isinstance(caught.value, (IndexError, SynkError))
    innermost = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (innermost.filename, innermost.lineno) == (HERE, access.line)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == text
    assert again.findings == caught.value.findings


@pytest.mark.parametrize(
    ("index", "what"),
    [
        ((0, 5), "read"),
        ((-4, 0), "read"),
        ((3, 0), "write"),
        ((0, -6), "write"),
        ((3, 4), "atomic"),
    ],
)
def test_every_access_has_its_bounds(index: tuple[int, int], what: str) -> None:
    def access(a, i, j, what):
        if what == 0:
            a[0, 0] = a[i, j]
        elif what == 1:
            a[i, j] = 1
        else:
            cuda.atomic.add(a, (i, j), 1)

    number = ["read", "write", "atomic"].index(what)
    with pytest.raises(BoundsError) as caught:
        simt.debug(access)[1, 1](np.zeros((3, 5)), *index, number)
    assert (caught.value.findings[0].index, caught.value.findings[0].accesses[0].what) == (
        index,
        what,
    )
    for near in ((0, 4), (-3, 0), (2, -5)):
        simt.debug(access)[1, 1](np.zeros((3, 5)), *near, number)


def test_bounds_of_views_shared_and_local_arrays() -> None:
    def views(a, which):
        shared = cuda.shared.array((2, 3), float64)
        local = cuda.local.array(4, int32)
        if which == 0:
            a[1][3] = 0
        elif which == 1:
            shared[1, 3] = 0
        elif which == 2:
            local[4] = 0
        elif which == 3:
            a[0, 1:][2] = 0
        elif which == 4:
            a[2, :] = 0

    seen = []
    for which in range(5):
        with pytest.raises(BoundsError) as caught:
            simt.debug(views)[1, 1](np.zeros((2, 3)), which)
        seen.append((caught.value.findings[0].array, caught.value.findings[0].index))
        assert ("part of shape" in str(caught.value)) == (which in {0, 3})
    assert seen == [("a", (3,)), ("shared", (1, 3)), ("local", (4,)), ("a", (2,)), ("a", (2,))]


def test_what_the_kernel_raises_names_the_thread() -> None:
    def refuses(x):
        i = cuda.grid(1)
        if x[i] < 0:
            raise ValueError("negative")
        assert x[i] < 5, "too large"

    for values, kind in (([1.0, 2.0, -1.0], ValueError), ([1.0, 2.0, 7.0], AssertionError)):
        with pytest.raises(
            kind, match=rf"refuses \({HERE}:\d+\), threadIdx=\(0, 0, 0\) blockIdx=\(2, 0, 0\)"
        ) as caught:
            simt.debug(refuses)[3, 1](np.array(values))
        assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "refuses"


def test_an_integer_divided_by_zero_names_the_thread() -> None:
    def divides(x, out):
        i = cuda.grid(1)
        out[i] = 7 // x[i]

    with pytest.raises(ZeroDivisionError, match=r"threadIdx=\(2, 0, 0\)"):
        simt.debug(divides)[1, 4](np.array([1, 2, 0, 3]), np.zeros(4))


def test_threads_that_can_never_meet() -> None:
    def two_barriers(x):
        if cuda.threadIdx.x < 3:
            cuda.syncthreads()  # first barrier
        else:
            x[0] = 1
            cuda.syncthreads()  # second barrier

    def warp_and_barrier():
        if cuda.threadIdx.x == 5:
            cuda.syncthreads()
        else:
            cuda.syncwarp()

    def wrong_mask(x):
        x[cuda.threadIdx.x] = cuda.shfl_sync(0b11, 1.0, 0)

    def some_blocks():
        if cuda.blockIdx.x:
            cuda.cg.this_grid().sync()

    with pytest.raises(DivergenceError) as caught:
        simt.debug(two_barriers)[1, 8](np.zeros(1))
    accesses = caught.value.findings[0].accesses
    assert [access.thread for access in accesses] == [(0, 0, 0), (3, 0, 0)]
    assert [access.line for access in accesses] == [
        line_of("first barrier"),
        line_of("second barrier"),
    ]
    with pytest.raises(DivergenceError, match=r"cuda.syncwarp\(\)"):
        simt.debug(warp_and_barrier)[1, 8]()
    with pytest.raises(DivergenceError, match="does not include lane 2"):
        simt.debug(wrong_mask)[1, 4](np.zeros(4))
    with pytest.raises(
        DivergenceError, match="wait at cuda.cg.this_grid.*other blocks ended without"
    ):
        simt.debug(some_blocks)[2, 4]()


def test_threads_that_have_returned_are_not_waited_for() -> None:
    def leaves(x, out):
        t = cuda.threadIdx.x
        if t >= x.size:
            return
        shared = cuda.shared.array(8, float64)
        shared[t] = x[t]
        cuda.syncthreads()
        out[t] = shared[x.size - 1 - t]

    out = np.zeros(5)
    simt.debug(leaves)[1, 8](np.arange(5.0), out)
    np.testing.assert_array_equal(out, np.arange(5.0)[::-1])


def plain(x):
    return x + 1


def test_refuses_what_a_gpu_refuses() -> None:
    def calls_plain(out):
        out[0] = plain(1)

    def unknown(out):
        out[0] = cuda.detect()

    def waits_inside(out):
        f = lambda: cuda.syncthreads()  # noqa: E731, PLW0108
        f()

    def as_value(out):
        f = block_sum
        out[0] = f(out, 1.0)

    def through_a_variable(out):
        f = (cuda.syncthreads, 1)
        f[0]()

    def generator(out):
        yield out

    for kernel, said in (
        (calls_plain, r"plain Python function plain\(\).*cuda.jit\(device=True\)"),
        (unknown, "cuda.detect"),
        (waits_inside, "function inside a kernel"),
        (as_value, "block_sum as a value"),
        (through_a_variable, "called by its name"),
        (generator, "yield"),
    ):
        with pytest.raises(KernelError, match=said):
            simt.debug(kernel)[1, 1](np.zeros(1))


def test_refuses_launches_that_make_no_sense() -> None:
    kernel = simt.debug(doubled)
    with pytest.raises(ArgumentError, match="takes 2 arguments, got 1"):
        kernel[1, 1](np.zeros(1))
    with pytest.raises(ArgumentError, match="simt.debug takes a kernel"):
        simt.debug(3)
    for wrong in ([1.0, 2.0], {1: 2}, SimpleNamespace(__cuda_array_interface__={})):
        with pytest.raises(ArgumentError, match="x is a"):
            kernel[1, 1](wrong, np.zeros(1))
    for config in (1, (1,), (1, 2, 3, 4, 5), (0, 1), (1, 2000), (1.5, 1), ((1, 1, 1, 1), 1)):
        with pytest.raises(LaunchError):
            kernel[config]
    with pytest.raises(LaunchError, match=r"simt.debug\(kernel\)\[grid, block\]"):
        kernel(np.zeros(1), np.zeros(1))


# ---- a debugger


def debugged(commands: str, launch: Any, *, at: int, condition: str) -> str:
    """What pdb says to commands at a breakpoint."""
    out = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO(commands), stdout=out, nosigint=True, readrc=False)
    debugger.use_rawinput = False
    assert debugger.set_break(HERE, at, cond=condition) is None
    old = sys.gettrace()
    try:
        debugger.runcall(launch)
    finally:
        sys.settrace(old)
        debugger.clear_all_breaks()
    return out.getvalue()


def stepped(x, out):
    mine = x[cuda.grid(1)] * 10
    total = cuda.syncthreads_count(mine > 15)  # line of the breakpoint
    out[cuda.grid(1)] = total


def test_a_debugger_stops_on_the_users_lines() -> None:
    out = np.zeros(4)
    commands = (
        "c\np 'mine is', float(mine)\np x\np cuda.threadIdx.x, cuda.blockIdx, "
        "cuda.grid(1)\nn\np 'total', total\nc\n"
    )
    launch = lambda: simt.debug(stepped)[2, 2](np.arange(4.0), out)  # noqa: E731
    said = debugged(
        commands, launch, at=line_of("line of the breakpoint"), condition="cuda.grid(1) == 3"
    )
    assert "('mine is', 30.0)" in said
    assert "Array([0., 1., 2., 3.])" in said
    assert "(1, Dim3(x=1, y=0, z=0), 3)" in said
    assert "('total', 2)" in said  # after the barrier, in the same thread
    assert "def stepped" not in said
    np.testing.assert_array_equal(out, [0, 0, 2, 2])


@cuda.jit(device=True)
def names_no_index(memory, t):
    mine = memory[t]  # line in a device function
    cuda.syncthreads()
    return mine


def test_a_debugger_stops_in_device_functions() -> None:
    def calls(out):
        memory = cuda.shared.array(4, float64)
        memory[cuda.threadIdx.x] = cuda.grid(1)
        out[cuda.grid(1)] = names_no_index(memory, cuda.threadIdx.x)

    out = np.zeros(8)
    launch = lambda: simt.debug(calls)[2, 4](out)  # noqa: E731
    line = line_of("line in a device function")
    behind = f"tbreak {HERE}:{line + 2}, cuda.grid(1) == 6\nc\n"
    commands = (
        f"c\np 'at', cuda.grid(1), cuda.laneid\n{behind}p 'mine', float(mine)\nup\np memory\nc\n"
    )
    said = debugged(commands, launch, at=line, condition="cuda.grid(1) == 6")
    assert said.count("('at', 6, 2)") == 1
    assert "('mine', 6.0)" in said
    assert "Array([4., 5., 6., 7.])" in said  # the caller's array, after the barrier
    np.testing.assert_array_equal(out, np.arange(8))


def test_breakpoint_in_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: seen.append(dict(sys._getframe(1).f_locals)))

    def stops(x):
        i = cuda.grid(1)
        v = x[i] + 1
        if i == 2:
            breakpoint()
        x[i] = v

    simt.debug(stops)[1, 4](np.arange(4.0))
    assert len(seen) == 1
    assert (seen[0]["i"], seen[0]["v"]) == (2, 3.0)
    np.testing.assert_array_equal(seen[0]["x"], [1, 2, 3, 4])


def test_after_an_error_a_debugger_stands_in_the_thread() -> None:
    def fails(x):
        mine = cuda.grid(1) * 3
        x[mine] = 1

    with pytest.raises(BoundsError) as caught:
        simt.debug(fails)[1, 4](np.zeros(5))
    trace = caught.value.__traceback__
    while trace.tb_next:
        trace = trace.tb_next
    assert trace.tb_frame.f_locals["mine"] == 6
    assert eval("cuda.threadIdx.x", trace.tb_frame.f_globals) == 2


@pytest.mark.whole
def test_runs_under_the_simulator_too() -> None:
    program = (
        f"import runpy; runpy.run_path({str(Path(HERE).with_name('debug_in_simulator.py'))!r}, "
        "run_name='__main__')"
    )
    env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    run = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["[6.", "6.", "6.", "6.]", "BoundsError"]
