"""What a script has taught Numba holds in kernels on the ranks: overloads, intrinsics, functions
that kernels may call.
"""

import numpy as np
import pytest
from numba import cuda, njit
from numba.extending import intrinsic, overload, register_jitable
from numpy.testing import assert_array_equal

import synknumba as synk
from tests.quick import whole

X = np.arange(1000.0)


def applied(function):
    """A kernel that does the function to each element."""

    @synk.parallel(outputs={"out": synk.output("gather", like="x")})
    @cuda.jit
    def apply(x, out):
        i = cuda.grid(1)
        if i < x.shape[0]:
            out[i] = function(x[i])

    return apply(X)


@register_jitable
def by_reference(v):  # a module's function is sent by name
    return v + 1


@pytest.mark.parametrize("options", [{"inline": "never"}, *whole({"fastmath": True})], ids=str)
def test_register_jitable(world, options):
    @register_jitable(**options)
    def twice(v):
        return 2 * v

    assert_array_equal(applied(twice), 2 * X)
    assert_array_equal(applied(by_reference), X + 1)


def test_an_overload(world):
    def capped(v):
        raise NotImplementedError

    @overload(capped)
    def _(v):
        return lambda v: min(v, 3.0)

    assert_array_equal(applied(capped), np.minimum(X, 3))


@pytest.mark.whole
def test_several_overloads_of_a_function(world):
    def kind(v):
        raise NotImplementedError

    @overload(kind)
    def _(v):
        return (lambda v: 1.0) if v.name == "float64" else None

    @overload(kind)
    def _(v):
        return (lambda v: 2.0) if v.name != "float64" else None

    assert_array_equal(applied(kind), np.full(X.shape, 1.0))

    @cuda.jit(device=True)
    def of_an_int(v):
        return kind(np.int64(v))

    assert_array_equal(applied(of_an_int), np.full(X.shape, 2.0))


@pytest.mark.whole
def test_overloads_that_call_each_other(world):
    """Each is reached by way of the other, of a device function, and of an njit function."""

    def halved(v):
        raise NotImplementedError

    def thrice(v):
        raise NotImplementedError

    @njit
    def plus_one(v):
        return v + 1

    @cuda.jit(device=True)
    def minus_one(v):
        return thrice(v) - 1

    @overload(halved)
    def _(v):
        return lambda v: v / 2

    @overload(thrice)
    def _(v):
        return lambda v: plus_one(halved(6 * v))

    assert_array_equal(applied(thrice), 3 * X + 1)
    assert_array_equal(applied(minus_one), 3 * X)


def test_as_an_argument_and_as_an_op(world):
    """What is passed in a call, and what combines the results of slices, goes to the ranks
    another way.
    """

    @register_jitable
    def larger(a, b):
        return max(a, b)

    @njit
    def wrapped(a):
        return larger(a, 500.0)

    @synk.function(outputs="gather")
    def by_argument(x, f):
        return np.array([f(one) for one in x.tolist()])

    @synk.function(outputs=synk.output(larger, identity=-np.inf, shape=()))
    def highest(x):
        return x.max()

    assert_array_equal(by_argument(X, wrapped), np.maximum(X, 500))
    assert_array_equal(applied(wrapped), np.maximum(X, 500))
    assert highest(X, num_slices=3) == X.max()


def test_an_intrinsic(world):
    @intrinsic
    def negated(context, v):
        def code(context, builder, signature, arguments):
            (value,) = arguments
            return builder.fmul(value, value.type(-1.0))

        return v(v), code

    assert_array_equal(applied(negated), -X)


def test_device_functions_that_call_each_other(world):
    @cuda.jit(device=True)
    def outer(v):
        return inner(v) + 1

    @cuda.jit(device=True)
    def inner(v):
        return 2 * v

    assert_array_equal(applied(outer), 2 * X + 1)


def test_a_function_of_cuda_c(world):
    """On a GPU it is linked; what a CPU cannot run is refused before anything is sent."""
    source = (
        'extern "C" __device__ int cubed(double *returned, double v) { *returned '
        "= v * v * v; return 0; }"
    )
    linked = {"link": cuda.CUSource(source)} if world.device == "cuda" else {}
    cubed = cuda.declare_device("cubed", "float64(float64)", **linked)

    @cuda.jit(device=True)
    def opposite(v):
        return -cubed(v)

    @cuda.jit(device=True)
    def both(v):
        return cubed(v) + opposite(v) + opposite(v)

    @njit
    def compiled(v):
        return 1 + cubed(v)

    if world.device == "cuda":
        assert_array_equal(applied(cubed), X**3)
        assert_array_equal(applied(opposite), -(X**3))
        assert_array_equal(applied(both), -(X**3))
        assert_array_equal(applied(compiled), 1 + X**3)
    else:
        for function in (cubed, opposite, both, compiled):
            with pytest.raises(
                synk.KernelError,
                match=r"cubed\(\), a function of cuda.declare_device, .*device='cuda'",
            ):
                applied(function)
    assert_array_equal(applied(by_reference), X + 1)
