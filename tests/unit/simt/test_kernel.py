"""The object that is launched: its options, its errors, its other ways to launch."""

import gc
import math
import pickle
import subprocess
import sys
import weakref
from collections import namedtuple
from typing import Any

import cloudpickle
import numba
import numpy as np
import pytest
from numba import cuda, njit
from numba.core.errors import TypingError
from numba.cuda import atomic, blockDim, blockIdx, grid, gridsize, threadIdx
from numba.cuda import grid as place_in_grid

from synknumba import simt
from synknumba._errors import ArgumentError, DeviceError, LaunchError

SCALE = 3.0
Pair = namedtuple("Pair", ["a", "b"])


@simt.jit
def saxpy(a, x, y, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i] = a * x[i] + y[i]


def fill(out, value):
    i = numba.cuda.grid(1)
    if i < out.size:
        out[i] = value


class TestLaunch:
    def test_grid_and_block(self) -> None:
        x, out = np.arange(10.0), np.zeros(10)
        for config in (
            (2, 5),
            ((2,), (5,)),
            ([1, 1], (10, 1, 1)),
            (np.int32(1), 10),
            (3, 4, 0, 128),
        ):
            out[:] = 0
            saxpy[config](2.0, x, x, out)
            assert (out == 3 * x).all()

    def test_too_few_threads_leave_the_rest(self) -> None:
        out = np.zeros(10)
        simt.jit(fill)[1, 4](out, 1.0)
        assert (out == [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]).all()

    def test_forall(self) -> None:
        out = np.zeros(1000)
        simt.jit(fill).forall(1000)(out, 1.0)
        assert out.all()
        simt.jit(fill).forall(0)(out[:0], 1.0)
        simt.jit(fill).forall(10, tpb=5)(out, 2.0)
        assert out.sum() == 1010

    @pytest.mark.parametrize("tool", [simt.jit, simt.debug, simt.check])
    def test_forall_of_no_tasks_runs_no_thread(self, tool: Any) -> None:
        out = np.zeros(4)
        tool(fill).forall(0)(out, 1.0)
        assert not out.any()

    @pytest.mark.parametrize(
        "config",
        [
            (0, 1),
            (1, 0),
            (1, 1025),
            (1, (1, 1, 65)),
            (1, (32, 33)),
            (1.0, 1),
            ((1, 1, 1, 1), 1),
            (1, "a"),
        ],
    )
    def test_bad_sizes(self, config: Any) -> None:
        with pytest.raises(LaunchError, match="grid|block"):
            saxpy[config]

    def test_missing_sizes(self) -> None:
        with pytest.raises(LaunchError, match=r"saxpy: launch as kernel\[grid, block\]"):
            saxpy[5]
        with pytest.raises(LaunchError, match=r"saxpy\[grid, block\]"):
            saxpy(1, 2, 3, 4)

    def test_prepare_runs_with_the_same_objects(self) -> None:
        x, out = np.arange(10.0), np.zeros(10)
        launch = saxpy.prepare((1, 1, 1), (10, 1, 1), (2.0, x, x, out))
        launch()
        assert (out == 3 * x).all()
        x += 1
        launch()
        assert (out == 3 * x).all()

    def test_prepare_keeps_its_arguments_alive(self) -> None:
        x, out = np.arange(10.0), np.zeros(10)
        launch = saxpy.prepare((1, 1, 1), (10, 1, 1), (2.0, np.ones(10), x, out))
        gc.collect()
        launch()
        assert (out == 2 + x).all()

    def test_launches_leak_no_arguments(self) -> None:
        out = np.zeros(10)
        ref = weakref.ref(out)
        simt.jit(fill)[1, 10](out, 1.0)
        del out
        gc.collect()
        assert ref() is None

    def test_bind_takes_arguments(self) -> None:
        x, out = np.arange(10.0), np.zeros(10)
        launch = saxpy.bind((1, 1, 1), (10, 1, 1), (2.0, x, x, out))
        launch(5.0, x, x, out)
        assert (out == 6 * x).all()

    def test_types_are_told_apart(self) -> None:
        kernel = simt.jit(fill)
        for dtype in (np.float32, np.int8, np.complex128, np.bool_):
            out = np.zeros(12, dtype)[::2]
            kernel[1, 16](out, dtype(1))
            assert (out == 1).all()
        big = np.zeros(3, np.uint64)
        kernel[1, 4](big, 1 << 63)
        assert (big == 1 << 63).all()
        kernel[1, 4](big, 5)
        assert (big == 5).all()

    def test_wrong_number_of_arguments(self) -> None:
        with pytest.raises(ArgumentError, match=r"saxpy\(\) takes 4 arguments, got 1"):
            saxpy[1, 1](1)

    def test_a_kernel_as_a_method(self) -> None:
        @simt.jit
        def step(self: Any) -> None:
            pass

        with pytest.raises(
            ArgumentError,
            match=r"takes 1 argument, got 0; a kernel cannot be a method: write @staticmethod",
        ):
            step[1, 1]()

    def test_argument_that_numba_does_not_know(self) -> None:
        class Series:
            def to_numpy(self) -> Any: ...

        with pytest.raises(
            ArgumentError, match=r"fill.*out is an object.*DLPack or __array_interface__"
        ):
            simt.jit(fill)[1, 1](object(), 1)
        with pytest.raises(ArgumentError, match=r"out is a .*Series.*; pass out\.to_numpy\(\)"):
            simt.jit(fill)[1, 1](Series(), 1)

    @pytest.mark.parametrize("blocks", [1.5, np.ceil(1.5), (1, 2.0)])
    def test_fractions_of_blocks(self, blocks: Any) -> None:
        with pytest.raises(LaunchError, match=r"got .*; divide by //, or round by math\.ceil"):
            saxpy[blocks, 1]


def readonly(n: int) -> Any:
    x = np.zeros(n)
    x.flags.writeable = False
    return x


def adds(total, x):
    cuda.atomic.add(total, 0, x[0])


@cuda.jit(device=True)
def put(x):
    x[0] = 1


def through_device(x, y):
    put(y)


class TestReadonly:
    @pytest.mark.parametrize(
        ("kernel", "args", "name"),
        [(fill, (readonly(3), 1.0), "out"), (adds, (readonly(1), np.ones(1)), "total")],
    )
    def test_names_the_input(self, kernel: Any, args: Any, name: str) -> None:
        with pytest.raises(
            ArgumentError,
            match=rf"{kernel.__name__} \(.*test_kernel.py:\d+\): {name} is "
            rf"read-only; .*inout=\('{name}',\)",
        ):
            simt.jit(kernel)[1, 4](*args)

    def test_through_a_device_function(self) -> None:
        with pytest.raises(ArgumentError, match="through_device .* one of x, y;"):
            simt.jit(through_device)[1, 1](readonly(1), readonly(1))

    def test_reading_is_fine(self) -> None:
        out = np.zeros(4)
        saxpy[1, 4](2.0, readonly(4), readonly(4), out)


class TestDecorator:
    def test_forms(self) -> None:
        x = np.zeros(3)
        for made in (
            simt.jit(fill),
            simt.jit()(fill),
            simt.jit(fastmath=True)(fill),
            simt.jit(cuda.jit(fill)),
            simt.jit(simt.jit(fill)),
        ):
            made[1, 4](x, 1.0)
            assert made.py_func is fill
            assert made.__name__ == "fill"

    def test_signature_converts_scalars(self) -> None:
        @simt.jit("void(f8[:], i4)")
        def scaled(out, n):
            out[cuda.grid(1)] = n * 0.5

        out = np.zeros(2)
        scaled[1, 2](out, 3.7)
        assert (out == 1.5).all()
        scaled.prepare((1, 1, 1), (2, 1, 1), (out, 4.9))()
        assert (out == 2.0).all()

    def test_other_signatures_are_taken(self) -> None:
        for signature in (
            ["void(f8[:], f8)"],
            ["void(f8[:], f8)", "void(f4[:], f4)"],
            numba.void(numba.f8[:], numba.f8),
            (numba.f8[:], numba.f8),
        ):
            out = np.zeros(3)
            simt.jit(signature)(fill)[1, 3](out, 2)
            assert (out == 2).all()

    def test_fastmath_of_cuda_jit_counts(self) -> None:
        assert simt.jit(cuda.jit(fastmath=True)(fill))._options.fastmath is True
        assert simt.jit(fill)._options.fastmath == {"contract"}

    def test_pickles(self) -> None:
        out = np.zeros(3)
        for kernel in (saxpy, simt.jit(fill, fastmath=True)):
            copied = pickle.loads(pickle.dumps(kernel))
            assert copied._options == kernel._options
        copied[1, 3](out, 2.0)
        assert (out == 2).all()
        assert pickle.loads(pickle.dumps(saxpy)) is saxpy

    def test_pickles_by_value(self) -> None:
        factor = 3.0

        @simt.jit
        def local(out):
            out[cuda.grid(1)] = factor

        out = np.zeros(3)
        copied = pickle.loads(cloudpickle.dumps(local))
        copied[1, 3](out)
        assert (out == 3).all()

    def test_repr(self) -> None:
        assert repr(saxpy).startswith("<simt kernel saxpy (")

    def test_source_before_and_after_compiling(self) -> None:
        kernel = simt.jit(fill)
        assert "range(" in kernel.source
        kernel[1, 1](np.zeros(1), 1.0)
        assert kernel.source.startswith("def fill(")
        assert kernel.source.count("range(") == 3


@njit
def njit_place():
    return cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x


@njit
def njit_nested(v):
    return v * njit_place()


@simt.jit(device=True)
def simt_device(v):
    return v + blockIdx.x


class TestNames:
    """What the simulator cannot run: names imported from numba.cuda, and njit functions that use
    them.
    """

    def test_imported_names(self) -> None:
        def kernel(x, out, total):
            i = place_in_grid(1)
            if i < x.size:
                out[i] = x[i] + threadIdx.x + blockDim.x * 100 + gridsize(1) * 10000
                atomic.add(total, 0, numba.int64(grid(1)))

        x, out, total = np.arange(10.0), np.zeros(10), np.zeros(1)
        simt.jit(kernel)[3, 4](x, out, total)
        assert (out == x + np.arange(10) % 4 + 400 + 120000).all()
        assert total[0] == 45

    def test_njit_functions_that_use_cuda(self) -> None:
        def kernel(out):
            i = cuda.grid(1)
            out[i] = njit_nested(2.0) + simt_device(1)

        out = np.zeros(12)
        simt.jit(kernel)[3, 4](out)
        assert (out == np.arange(12) * 2 + np.arange(12) // 4 + 1).all()

    def test_variables_named_like_builtins(self) -> None:
        def kernel(range, x, out):
            min = cuda.grid(1)
            if min < x.size:
                max = x[min]
                for len in (1, 2):
                    max += len
                out[min] = max + range

        out = np.zeros(10)
        simt.jit(kernel)[3, 4](1.0, np.arange(10.0), out)
        assert (out == np.arange(10) + 4).all()

    def test_globals_are_frozen_when_compiled(self) -> None:
        factor = 2.0

        def kernel(out):
            out[cuda.grid(1)] = factor * SCALE

        compiled, out = simt.jit(kernel), np.zeros(2)
        compiled[1, 2](out)
        factor = 5.0
        compiled[1, 2](out)
        assert (out == 6.0).all()

    def test_names_of_a_tuple(self) -> None:
        def kernel(p, out):
            for i in range(cuda.grid(1), p.b, cuda.gridsize(1)):
                out[i] = p.a

        out = np.zeros(10)
        simt.jit(kernel)[2, 3](Pair(2.5, 8), out)
        assert (out == [2.5] * 8 + [0, 0]).all()

    def test_a_record_field_is_not_a_constant(self) -> None:
        def kernel(r, out):
            i = cuda.grid(1)
            n = r.n
            out[i] = n
            r.n = n + 1

        r = np.zeros(1, [("n", np.int64)])
        out = np.zeros(6)
        simt.jit(kernel)[2, 3](r[0], out)
        assert (out == np.arange(6)).all()

    def test_shape_of_another_length(self) -> None:
        def kernel(x):
            height, width = x.shape
            x[0, 0, 0] = height * width

        with pytest.raises(TypingError):
            simt.jit(kernel)[1, 1](np.zeros((2, 2, 2)))

    def test_atomic_on_a_type_that_has_none(self) -> None:
        def kernel(x):
            cuda.atomic.add(x, 0, 1)

        with pytest.raises(
            TypingError, match="need an array of integers or floats, not array.complex128"
        ):
            simt.jit(kernel)[1, 1](np.zeros(1, complex))

    def test_broken_cuda_installation(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(numba, "cuda")
        monkeypatch.setitem(sys.modules, "numba.cuda", None)
        with pytest.raises(
            DeviceError, match=r"numba.cuda cannot be imported .* pip uninstall numba-cuda"
        ):
            simt.jit(fill).check()

    def test_importing_simt_leaves_numba_cuda_alone(self) -> None:
        code = (
            "import sys; from synknumba.simt import jit; jit(lambda x: x); assert "
            "'numba.cuda' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_nothing_to_do(self) -> None:
        def kernel(x):
            cuda.threadfence()

        simt.jit(kernel)[2, 3](np.zeros(1))

    def test_exceptions_come_through(self) -> None:
        def kernel(x):
            if x[cuda.grid(1)] < 0:
                raise ValueError("negative")

        with pytest.raises(ValueError, match="negative"):
            simt.jit(kernel)[1, 3](np.array([1.0, -1.0, 1.0]))

    def test_variable_of_several_types_across_a_loop(self) -> None:
        def kernel(x, out, n):
            i = cuda.grid(1)
            v = (x[i], 1)
            s = 0.0
            for k in range(n):
                s += v[0]
            v = i
            for k in range(n):
                s += v
            out[i] = s + math.fabs(v)

        x, out = np.arange(6.0), np.zeros(6)
        simt.jit(kernel)[2, 3](x, out, 100)
        assert (out == 201 * x).all()
