"""What newcomers write: kernels without declared outputs, launches as in CUDA, misspelt options,
decorators in any order.
"""

import math
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from synknumba import simt
from tests.environment import environment

X = np.random.default_rng(5).random(1000)


@pytest.fixture(scope="module", autouse=True)
def world():
    with synk.fork(2, device="cpu") as world:
        yield world


def energy(x, beta, total):
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        acc += math.exp(-beta * x[i] * x[i])
    cuda.atomic.add(total, 0, acc)


def histogram(x, counts):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(counts, int(10 * x[i]), 1)


def largest(x, most):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.max(most, 0, x[i])


def double(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = 2 * x[i]


def increase(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] += x[i]


def first(x, found):
    if cuda.grid(1) == 0:
        found[0] = x[0]


def both(x, y, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = x[i] + 1
        cuda.atomic.add(total, 0, x[i])


ENERGY = np.exp(-0.5 * X * X).sum()

CASES = [  # a kernel, what is passed at first, the decorator line, what is passed then, the result
    (
        energy,
        (X, 0.5, np.zeros(1)),
        {"outputs": {"total": ("sum", (), "float64")}},
        (X, 0.5),
        ENERGY,
    ),
    (energy, (X, 0.5), {"outputs": {"total": ("sum", (), "float64")}}, (X, 0.5), ENERGY),
    *(
        (energy, (X, 0.5, zero), {"outputs": {"total": ("sum", (), "float64")}}, (X, 0.5), ENERGY)
        for zero in (0, 0.0, [0.0], (0.0,), np.float64(0), np.zeros(()), synk.data(0.0))
    ),
    (
        histogram,
        (X, np.zeros(10, np.int32)),
        {"outputs": {"counts": ("sum", (10,), "int32")}},
        (X,),
        np.histogram(X, 10, (0, 1))[0],
    ),
    (largest, (X, np.zeros(1)), {"outputs": {"most": ("max", (), "float64")}}, (X,), X.max()),
    (double, (X,), {"outputs": {"y": ("gather", (), "float64")}}, (X,), 2 * X),
    (
        double,
        (X, np.zeros(7, np.float32)),
        {"outputs": {"y": ("gather", (), "float32")}},
        (X,),
        (2 * X).astype(np.float32),
    ),
    (first, (X, np.zeros(1)), {"outputs": {"found": (None, (), "float64")}}, (X,), X[[0, 500]]),
]


@pytest.mark.parametrize(("function", "passed", "declared", "then", "result"), CASES)
def test_the_first_error_prints_the_decorator_line_that_works(
    function, passed, declared, then, result
):
    with pytest.raises(synk.ArgumentError) as caught:
        synk.parallel(cuda.jit(function))(*passed)
    message = str(caught.value)
    line = re.search(r"^    @(synk\.parallel\(.*\))$", message, re.MULTILINE)[1]
    outputs = {
        name: synk.output(op, shape=shape, dtype=dtype)
        for name, (op, shape, dtype) in declared["outputs"].items()
    }
    texts = ", ".join(
        f'"{name}": synk.output({op!r}, shape={shape}, dtype={dtype!r})'.replace("'", '"')
        for name, (op, shape, dtype) in declared["outputs"].items()
    )
    assert line == f"synk.parallel(outputs={{{texts}}})"
    decorated = eval(line)(cuda.jit(function))  # as a user pastes it
    assert decorated._options.outputs == outputs
    np.testing.assert_allclose(decorated(*then), result, rtol=1e-12)


@pytest.mark.parametrize("tool", [simt.check, simt.debug, simt.jit])
def test_tools_take_decorated_kernels(tool):
    total = np.zeros(1)
    tool(synk.parallel(outputs={"total": synk.output("sum", like="x")})(cuda.jit(energy)))[1, 32](
        X, 0.5, total
    )
    assert math.isclose(total[0], ENERGY)


def test_several_parameters_and_options_are_in_one_line():
    with pytest.raises(synk.ArgumentError) as caught:
        synk.parallel(broadcast=("total",))(both)(X, np.zeros(3), np.zeros(1))
    line = re.search(r"^    @(synk\.parallel\(.*\))$", str(caught.value), re.MULTILINE)[1]
    y, total = eval(line)(both)(X)  # as a user pastes it
    assert np.array_equal(y, X + 1)
    assert math.isclose(total, X.sum())


def test_rows_that_are_read_and_written_are_inout():
    with pytest.raises(
        synk.ArgumentError,
        match=r'synk.parallel\(inout=\("y",\)\)\n.*increase\(x, y\).*written back',
    ):
        synk.parallel(increase)(X)
    with pytest.raises(synk.ArgumentError, match=r'inout=\("y",\)'):
        synk.parallel(increase)(X, np.zeros(1000))  # as many rows
    y = np.ones(1000)
    synk.parallel(inout=("y",))(increase)(X, y)
    assert np.array_equal(y, 1 + X)


def sets_field(x):
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i].a = 65


def sets_named_field(x, y):
    i = cuda.grid(1)
    if i < y.shape[0]:
        x[i]["a"] = y[i]


def test_fields_of_records_are_inout():
    records = np.zeros(10, [("a", np.int64), ("b", np.float64)])
    records["b"] = 3
    for kernel, more in ((sets_field, ()), (sets_named_field, (np.full(10, 65.0),))):
        for passed in ((records, *more), (records[:3], *more)):
            if more or len(passed[0]) == 10:
                with pytest.raises(synk.ArgumentError, match=r'inout=\("x",\)') as caught:
                    synk.parallel(kernel)(*passed)
                assert "synk.output" not in str(caught.value)
        synk.parallel(inout=("x",))(kernel)(records, *more)
        assert set(records["a"]) == {65}
        assert set(records["b"]) == {3}
        records["a"] = 0


def test_variables_are_written_without_a_declaration():
    total = synk.variable(np.zeros(1))
    synk.parallel(energy)(X, 0.5, total)
    assert math.isclose(sum(total.get_value(rank=rank)[0] for rank in (0, 1)), ENERGY)


def test_an_array_that_may_be_left_out():
    def optional(x, total, y=None):
        i = cuda.grid(1)
        if i < x.shape[0]:
            cuda.atomic.add(total, 0, x[i])
            if y is not None:
                y[i] = x[i]

    summed = synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})(
        optional
    )
    for given in ((X,), (X, None)):
        assert math.isclose(summed(*given), X.sum())


def test_a_plan_needs_the_declaration_too():
    with pytest.raises(synk.ArgumentError, match="not declared as an output"):
        synk.parallel(energy).plan(X, 0.5, np.zeros(1))


# ---- launches ------------------------------------------------------------------------------------


@synk.parallel(outputs={"sizes": synk.output(None, shape=(2,), dtype="int64")})
@cuda.jit
def sizes_of(x, sizes):
    if cuda.grid(1) == 0:
        sizes[0], sizes[1] = cuda.gridDim.x, cuda.blockDim.x


@synk.parallel(outputs={"got": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def through_shared(x, got):
    part = cuda.shared.array(0, np.float64)
    t = cuda.threadIdx.x
    part[t] = 1.0
    cuda.syncthreads()
    cuda.atomic.add(got, 0, part[t])


def test_launch_configurations_as_in_cuda():
    for config in ((3, 64), ((3,), (64,)), ([3], [64]), (3, 64, 0), (3, 64, None), (3, 64, 0, 512)):
        assert [tuple(one) for one in sizes_of[config](X)] == [(3, 64)] * 2
    assert [tuple(one) for one in sizes_of(X)] == [(2, 256)] * 2  # as decorated
    assert sizes_of[3, 64] is sizes_of[(3, 64, 0)]  # with its plans
    assert through_shared[2, 32, 0, 32 * 8](X) == 2 * 32 * 2


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (3, r"write sizes_of\[grid, block\]"),
        ((3,), r"write sizes_of\[grid, block\]"),
        ((1, 2, 0, 0, 0), r"write sizes_of\[grid, block\]"),
        ((0, 64), "sizes_of: grid must be 1 to"),
        ((3, 2000), "sizes_of: block must be 1 to 1024"),
        ((3, 64, "stream"), "sizes_of: each rank launches on a stream of its own; pass 0"),
        ((3, 64, 0, -1), "sizes_of: smem_bytes"),
    ],
)
def test_launch_configurations_that_are_refused(config, says):
    with pytest.raises(synk.LaunchError, match=says):
        sizes_of[config]


def test_a_function_of_arrays_has_no_grid():
    with pytest.raises(
        synk.ArgumentError, match="total is a function of arrays, which has no grid"
    ):
        synk.function(lambda x: x.sum(), outputs="sum", name="total")[1, 2]


# ---- decorators ----------------------------------------------------------------------------------


def test_decorators_in_the_wrong_order():
    with pytest.raises(
        synk.ArgumentError, match=r"sizes_of is decorated.*@synk.parallel above @cuda.jit"
    ):
        cuda.jit(sizes_of)
    assert not hasattr(sizes_of, "__code__")


def test_the_checker_and_the_debugger_take_a_decorated_kernel():
    for tool in (simt.check, simt.debug):
        y, x = np.zeros(4), np.arange(4.0)
        tool(synk.parallel(inout=("y",))(cuda.jit(double)))[1, 4](x, y)
        assert np.array_equal(y, 2 * x)


@pytest.mark.parametrize(
    ("decorate", "says"),
    [
        (
            lambda: synk.parallel(output={})(double),
            r"parallel has no option output=;.*Did you mean outputs=\?",
        ),
        (
            lambda: synk.function(outpts="sum"),
            r"function has no option outpts=;.*Did you mean outputs=\?",
        ),
        (lambda: synk.vectorize(signature=""), r"Did you mean signatures=\?"),
        (lambda: synk.expectation(weight="w"), r"Did you mean weights=\?"),
        (lambda: synk.output("sum", shap=()), r"Did you mean shape=\?"),
        (
            lambda: synk.output("sum", shape=(), xyz=3),
            r"no option xyz=; it has op, shape, dtype, like, identity$",
        ),
        (
            lambda: synk.parallel(outputs="sum")(double),
            r'outputs takes a dict by parameter.*"total".*got \'sum\'',
        ),
        (lambda: synk.parallel(givens=5)(double), "givens takes a dict by parameter"),
        (lambda: synk.parallel(updates=["y"])(double), "updates takes a dict by parameter"),
        (lambda: synk.parallel(broadcast=5)(double), "broadcast takes a tuple of names"),
    ],
)
def test_options_of_decorators(decorate, says):
    with pytest.raises(synk.ArgumentError, match=says):
        decorate()


def failing(*_):
    raise KeyError("mine")


def test_functions_of_the_user_that_raise():
    with pytest.raises(
        synk.LaunchError, match=r"double: grid\(500\) raised KeyError: 'mine'"
    ) as caught:
        synk.parallel(inout=("y",), grid=failing)(double)(X, X.copy())
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(
        synk.ReductionError,
        match=r"shape of y of double is a function, which raised KeyError.*dict with x",
    ):
        synk.parallel(outputs={"y": synk.output("sum", shape=failing)})(double)(X)
    with pytest.raises(synk.LaunchError, match="^double: block="):
        synk.parallel(block=(64, 64))(double)


# ---- messages without placeholders ---------------------------------------------------------------


@synk.function
def nothing_declared(t):
    return t["w"][0].sum()


@synk.function(outputs="sum")
def an_object(t):
    return {1, 2}


@synk.function(outputs="max")
def a_large_int(x):
    return 2**64 + 0 * len(x)


def test_names_in_messages():
    with pytest.raises(
        synk.ReductionError, match="returned one number or array, but outputs= does not say"
    ):
        nothing_declared({"w": [X], "b": X})
    with pytest.raises(
        synk.PartitionError, match=re.escape("t['b'] has 3 rows but t['w'][0] has 1000")
    ):
        nothing_declared({"w": [X], "b": X[:3]})
    with pytest.raises(synk.ReductionError, match="an_object returned an object of type set"):
        an_object({"w": [X]})
    with pytest.raises(
        synk.ReductionError,
        match="a_large_int returned an int that does not fit in 64 bits: 1844674407370955161[5-7]",
    ):
        a_large_int(X)


@pytest.mark.parametrize("option", ["batch", "local_batch"])
def test_a_variable_as_a_batch(option):
    with pytest.raises(
        synk.BatchError, match=rf"{option} of energy is the variable.*{option}=v.get_value\(\)"
    ):
        synk.parallel(outputs={"total": synk.output("sum", shape=())})(energy)(
            X, 0.5, **{option: synk.variable(np.arange(3))}
        )


# ---- ranks ---------------------------------------------------------------------------------------


def test_rank_and_world_size(world):
    @synk.function(outputs=None)
    def who(x):
        return synk.rank(), synk.world_size()

    assert [tuple(map(int, one)) for one in zip(*who(X), strict=True)] == [(0, 2), (1, 2)]
    assert [[int(part) for part in one] for one in who.as_serial(X)] == [[0], [2]]
    assert synk.world_size() == 2
    with pytest.raises(synk.WorldError, match=r"in the script, which is no rank.*synk.RANK"):
        synk.rank()


def test_a_kernels_debug_option_is_kept_and_rows_end_where_they_end():
    @synk.parallel(inout=("y",))
    @cuda.jit(debug=True, opt=False)
    def shifted(x, y):
        i = cuda.grid(1)
        if i < x.shape[0]:
            y[i] = x[i + 1]

    with pytest.raises(synk.RankError, match=r"on rank 0, 1: IndexError") as caught:
        shifted(X, X.copy())
    line = shifted.py_func.__code__.co_firstlineno + 5
    assert (
        f"file {__file__}, line {line}, tid=[243, 0, 0] ctaid=[1, 0, 0]: index 500 is out of bounds"
        in str(caught.value)
    )


# ---- the prompt ----------------------------------------------------------------------------------


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the prompt keeps the source")
def test_a_kernel_typed_at_the_prompt_is_refused_by_name():
    typed = """
    import numpy as np, synknumba as synk
    from numba import cuda
    @synk.parallel(inout=("y",))
    @cuda.jit
    def double(x, y):
        i = cuda.grid(1)
        if i < x.shape[0]:
            y[i] = 2 * x[i]

    world = synk.fork(1, device="cpu")
    double(np.zeros(3), np.zeros(3))
    """
    run = subprocess.run(
        [sys.executable, "-i"],
        input=textwrap.dedent(typed),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert "double (<stdin>:" in run.stderr
    assert re.search("typed at Python's prompt.*define it in a file.*IPython.*3.13", run.stderr)
    assert "could not get source code" not in run.stderr
