"""`vectorize`, `guvectorize` and `reduce` of the target "cuda" on a core."""

import pickle

import numpy as np
import pytest

from synknumba import KernelError, simt
from synknumba._errors import ArgumentError


@simt.vectorize(
    ["int32(int32, int32)", "float32(float32, float32)", "float64(float64, float64)"], target="cuda"
)
def add(a, b):
    return a + b


@simt.guvectorize(
    ["void(float64[:,:], float64[:,:], float64[:,:])"], "(m,n),(n,p)->(m,p)", target="cuda"
)
def product(a, b, out):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            out[i, j] = 0.0
            for k in range(a.shape[1]):
                out[i, j] += a[i, k] * b[k, j]


X = np.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.float64])
def test_ufunc(dtype):
    x = X.astype(dtype)
    for y in (x, x[0], x[:, :1], x[::-1]):
        got = add(x, y)
        assert (type(got), got.dtype) == (np.ndarray, dtype)
        np.testing.assert_array_equal(got, x + y)
    np.testing.assert_array_equal(add(x, 3), x + 3)
    np.testing.assert_array_equal(add(2, x.T), 2 + x.T)
    out = np.zeros(4, dtype)
    add(x[0], x[1], out=out)
    np.testing.assert_array_equal(out, x[0] + x[1])


def test_ufunc_of_other_types():
    with pytest.raises(TypeError, match="No matching version"):
        add(X.astype(np.int8), X.astype(np.int8))
    with pytest.raises(ValueError, match="broadcast"):
        add(X, X.T)
    with pytest.raises(ArgumentError, match="needs signatures"):
        simt.vectorize(lambda v: v)
    with pytest.raises(KernelError, match="must return a value"):

        @simt.vectorize(["(float64,)"])
        def nothing(v):
            v + 1


def test_results_of_the_types_that_are_inferred():
    half = simt.vectorize(["(int32,)", "(float32,)"])(lambda v: v / 2)
    assert half(np.arange(3, dtype=np.int32)).dtype == np.float64
    np.testing.assert_array_equal(half(np.arange(3, dtype=np.int32)), [0, 0.5, 1])


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 1001])
def test_reduce_of_a_ufunc(n):
    x = np.arange(n, dtype=np.int32)
    assert add.reduce(x) == x.sum()


def test_reduce_of_a_ufunc_refuses():
    with pytest.raises(TypeError, match="empty array"):
        add.reduce(np.zeros(0))
    with pytest.raises(ArgumentError, match="1 dimension"):
        add.reduce(X)


def test_gufunc():
    a, b = np.random.default_rng(1).random((2, 5, 3, 3))
    np.testing.assert_allclose(product(a, b), a @ b)
    np.testing.assert_allclose(product(a[0], b[0]), a[0] @ b[0])
    np.testing.assert_allclose(product(a, b[0]), a @ b[0])
    out = np.zeros_like(a)
    product(a, b, out)
    np.testing.assert_allclose(out, a @ b)


def test_gufunc_of_scalars():
    @simt.guvectorize(["(int32, int32[:], int32[:])"], "(),(t)->(t)")
    def scale(a, x, out):
        for i in range(x.size):
            out[i] = a * x[i]

    x = np.arange(8, dtype=np.int32).reshape(2, 4)
    np.testing.assert_array_equal(scale(np.int32(3), x), 3 * x)
    np.testing.assert_array_equal(scale(np.array([2, 5], np.int32), x), [[2], [5]] * x)
    with pytest.raises(TypeError, match="cannot return values"):
        simt.guvectorize(["int32(int32[:], int32[:])"], "(t)->(t)")(scale)


def test_both_pickle():
    for function, args in ((add, (X, X)), (product, (X, X.T.copy()))):
        again = pickle.loads(pickle.dumps(function))
        np.testing.assert_array_equal(again(*args), function(*args))


def test_reduce():
    total = simt.reduce(lambda a, b: a + b)
    largest = simt.Reduce(lambda a, b: max(a, b))  # noqa: PLW0108  # a kernel cannot call the builtin as a value
    x = np.random.default_rng(2).integers(-50, 50, 1000)
    assert total(x) == x.sum()
    assert total(x, init=7, size=10) == 7 + x[:10].sum()
    assert largest(x, init=-100) == x.max()
    assert total(x[:0], init=3) == 3
    assert total(x.astype(np.int8)).dtype == np.int8
    assert total(x.astype(np.int8)) == x.astype(np.int8).sum(dtype=np.int8)
    res = np.zeros(2, np.int64)
    assert total(x, res=res) is None
    assert res.tolist() == [x.sum(), 0]
    with pytest.raises(TypeError, match="1D"):
        total(X)
