"""Pickles of decorated functions: by reference for other processes, with the plain function for
the ranks.
"""

import multiprocessing
import pickle
import sys
from types import CodeType

import cloudpickle
import numpy as np
import pytest
from numba import cuda
from numba.cuda import (
    atomic,
    blockIdx,
    grid,
    gridsize,
    shared,
    syncthreads,
    syncthreads_count,
    threadIdx,
)

import synknumba as synk
from synknumba import simt
from synknumba._wire import channel
from synknumba._wire.function_pickling import dump, load


@synk.function(outputs="sum")
def total(x):
    return x.sum()


@synk.parallel(inout=("y",))
@cuda.jit
def double(y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] *= 2


@synk.vectorize
def square(x):
    return x * x


@synk.expectation
def mean(x):
    return x


class Model:
    @synk.function(outputs="sum")
    def total(self, x):
        return x.sum()


def plain(x):
    return x.sum()


decorated = synk.function(plain, outputs="sum")

AT_TOP = [total, double, square, mean, Model.total]
PICKLERS = pytest.mark.parametrize(
    "dumps", [pickle.dumps, cloudpickle.dumps], ids=["pickle", "cloudpickle"]
)


@PICKLERS
@pytest.mark.parametrize("function", AT_TOP, ids=repr)
def test_by_reference(dumps, function):
    assert pickle.loads(dumps(function)) is function
    assert pickle.loads(dumps({"f": [function]}))["f"][0] is function


def nested():
    @synk.function
    def inner(x):
        return x.sum()

    return inner


@PICKLERS
@pytest.mark.parametrize(
    ("function", "name", "place"),
    [
        (decorated, "plain", "plain"),
        (double[1, 32], "double", "double"),
        (nested(), "inner", "nested.<locals>.inner"),
        (synk.expectation(plain), "plain", "plain"),
        (synk.function(lambda x: x, name="identity"), "identity", "<lambda>"),
    ],
    ids=["plain", "launched", "nested", "expectation", "lambda"],
)
def test_of_no_place(dumps, function, name, place):
    with pytest.raises(synk.ArgumentError) as caught:
        dumps(function)
    assert str(caught.value).startswith(f"{name} is decorated by synknumba")
    assert (
        f"{__name__}.{place} is not this object. Decorate it at the top level of a module"
        in str(caught.value)
    )


def test_a_pool_of_processes():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        with pytest.raises(synk.ArgumentError, match="inner is decorated by synknumba"):
            pool.map(nested(), [np.ones(3)])
        with pytest.raises(synk.WorldError):  # found there; the pool's process has no world
            pool.map(total, [np.ones(3)])


def test_another_process_that_lacks_it(monkeypatch):
    packed = pickle.dumps(total)
    monkeypatch.setattr(sys.modules[__name__], "total", total.py_func)
    with pytest.raises(
        synk.ArgumentError, match=rf"{__name__}\.total, decorated by synknumba, .* here has no such"
    ):
        pickle.loads(packed)


def test_ranks_get_the_plain_function():
    by_plain_function = synk.function(lambda x, f: f.py_func(x), outputs="sum")
    with synk.fork(2, device="cpu"):
        for function in (total, nested(), decorated):
            assert by_plain_function(np.ones(4), function) == 4
            with pytest.raises(synk.WorldError, match="only the coordinator makes calls"):
                synk.function(lambda x, f: f(x), outputs="sum")(np.ones(4), function)
        inner, squares = nested(), synk.vectorize(lambda x: x * x)
        captured = synk.function(lambda x: inner.py_func(squares.py_func(x)), outputs="sum")
        assert captured(np.full(4, 2.0)) == 16


@synk.parallel(outputs={"total": synk.output("sum", shape=(3,), dtype="int64")}, grid=2, block=32)
@cuda.jit
def imported_by_name(x, total):
    part = shared.array(32, "int64")
    part[threadIdx.x] = 0
    for i in range(grid(1), x.shape[0], gridsize(1)):
        part[threadIdx.x] += x[i]
    positive = syncthreads_count(part[threadIdx.x] > 0)
    syncthreads()
    if threadIdx.x == 0:
        for one in part:
            atomic.add(total, 0, one)
        atomic.add(total, 1, positive)
        atomic.add(total, 2, blockIdx.x)


def test_names_of_files_stay(monkeypatch):
    """Release 3.1.3 of cloudpickle writes a placeholder, and ranks would not find the source of
    a kernel.
    """
    reduce = cloudpickle.Pickler.dispatch_table[CodeType]
    table = {
        **cloudpickle.Pickler.dispatch_table,
        CodeType: lambda code: reduce(code.replace(co_filename="<dynamic-code>")),
    }
    monkeypatch.setattr(cloudpickle.Pickler, "dispatch_table", table)

    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = twice(x[i])

    twice = cuda.jit(device=True)(lambda v: v + v)
    function = kernel.py_func
    # else this tests nothing
    assert pickle.loads(cloudpickle.dumps(lambda: 0)).__code__.co_filename == "<dynamic-code>"
    of_kernel = pickle.loads(pickle.dumps(simt.jit(kernel))).py_func
    copies = [load(dump(function), dict), pickle.loads(channel.pack(function)), of_kernel]
    for copy in copies:
        assert copy is not function
        assert copy.__code__ == function.__code__
        assert copy.__code__.co_filename == __file__
        assert copy.__closure__[0].cell_contents.py_func.__code__.co_filename == __file__


def test_members_of_numba_cuda_that_are_imported_by_name():
    with synk.fork(2, device="cpu"):
        assert imported_by_name(np.arange(1, 101)).tolist() == [5050, 100, 2]
