"""Bad input of training: told before anything is sent, or as the rank's own words, and the step
can be called again.
"""

import dataclasses
import gc
import itertools
import time
import weakref

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from synknumba import optim

X, Y = np.ones((6, 2)), np.ones(6)
SGD = optim.sgd(0.1)
make = synk.train.step


def gradient(x, y, w):
    error = x @ w - y
    return (error**2).sum(), 2 * x.T @ error


@cuda.jit
def kernel(x, y, w, loss, slope):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(loss, 0, y[i])


@cuda.jit
def writes(x, y, w, loss, slope):
    w[0] = x[0, 0]


@cuda.jit
def slope_before_loss(x, y, w, slope, loss):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(loss, 0, y[i])
        for j in range(2):
            cuda.atomic.add(slope, j, x[i, j])


@cuda.jit
def assigns_in_the_wrong_order(x, y, w, slope, loss):
    slope[1] += x[0, 0]


@cuda.jit
def adds_to_all_of_the_loss(x, y, w, loss, slope):
    loss += x[0, 0]


@cuda.jit
def without_slopes(x, y, w, loss):
    cuda.atomic.add(loss, 0, w[1] * x[0, 0])


@cuda.jit
def for_two(x, y, w, b, loss, w_slope, b_slope):
    cuda.atomic.max(loss, 0, x[0, 0])


def two_numbers(x, y, a, b):
    error = a * x + b - y
    return (error**2).sum(), [(2 * error * x).sum(), 2 * error.sum()]


FIRST = 0


@cuda.jit
def at_a_named_place(x, y, w, loss, slope):
    loss[FIRST] = loss[(0,)] + 0 * slope[FIRST + 1]
    cuda.atomic.add(loss, (0,), x[0, 0])


BAD = [
    (
        lambda: make(gradient, np.zeros(2), 0.1),
        "needs an optimiser of synk.optim, such as adam.*got 0.1",
    ),
    (lambda: make(gradient, np.zeros(2), optim.adam), r"call it, as in adam\(1e-3\)"),
    (
        lambda: make("gradient", np.zeros(2), SGD),
        "a function or a kernel, before the parameters; got a str",
    ),
    (lambda: make(synk.function(gradient), np.zeros(2), SGD), "takes the gradient undecorated"),
    (lambda: make(synk.parallel(kernel), np.zeros(2), SGD), "takes the gradient undecorated"),
    (
        lambda: make(gradient, np.zeros(2), SGD, on_nonfinite="stop"),
        r'on_nonfinite as "raise", "skip" or None, got \'stop\'',
    ),
    (lambda: make(gradient, np.zeros(2), SGD, block=64), "block= and grid= are those of a kernel"),
    (
        lambda: make(gradient, np.zeros(2), SGD, broadcast=("z",)),
        "broadcast= names 'z', but the inputs of gradient are x, y",
    ),
    (lambda: make(gradient, np.zeros(2), SGD, broadcast=("x", "y")), "no rows to divide"),
    (
        lambda: make(gradient, np.zeros(2), SGD, broadcast=("y",), weights="y"),
        "weights= takes the name of an input of gradient that is divided, x; got 'y'",
    ),
    (lambda: make(gradient, np.zeros(2), SGD, weights=Y), r"that is divided, x or y; got array"),
    (lambda: make(lambda w: (0, w), np.zeros(2), SGD), "none is left for the batch"),
    (
        lambda: make(lambda *all: (0, all), np.zeros(2), SGD),
        r'name its inputs, as in inputs=\("x", "y"\)',
    ),
    (
        lambda: make(writes, np.zeros(2), SGD),
        r"writes \(.*:\d+\) writes to w, a parameter of the model.*add to its slope",
    ),
    (
        lambda: make(slope_before_loss, np.zeros(2), SGD),
        r"_errors.py:\d+\) writes to slope\[j\], but slope stands where the "
        r"loss does.*: slope\[0\], .*"
        r"\(\*batch, \*params, loss, \*slopes\).*the batch is x, y, params w, the loss slope, "
        r"and slopes loss; write loss",
    ),
    (
        lambda: make(assigns_in_the_wrong_order, np.zeros(2), SGD),
        r"writes to slope\[1\].* and slopes loss; write loss behind",
    ),
    (
        lambda: make(adds_to_all_of_the_loss, np.zeros(2), SGD),
        r"writes to loss, but .*one element: loss\[0\].* slopes slope$",
    ),
    (
        lambda: make(without_slopes, np.zeros(2), SGD),
        r"reads w\[1\], but w stands.*with a slope for each of params: .*",
    ),
    (
        lambda: make(for_two, np.zeros(2), SGD),
        "writes to loss, a parameter .* not do. A kernel .*x, y, w, b, params loss, the loss w_sl",
    ),
    (
        lambda: make(kernel, np.zeros(2), SGD, inputs=("x",)),
        r"has y, w, loss, slope behind its inputs, but needs 1 for the model",
    ),
    (
        lambda: make(kernel, [np.zeros(2)] * 2, SGD),
        r"the last 5 would be the model's .* has the parameters \(\*batch, \*params, lo",
    ),
    (
        lambda: make(two_numbers, [1.5, 0.5], SGD),
        r"a list of numbers, .* pass \[np.array\(1.5\), np.array\(0.5\)\] for 2, each an argument "
        r".* np.asarray\(…\) of it",
    ),
    (
        lambda: make(two_numbers, (np.float64(1), 2, 3), SGD),
        r"a tuple of numbers.*\[np.array\(1.0\), np.array\(2.0\), …\] for 3",
    ),
    (
        lambda: make(gradient, np.zeros(2), optim.clip(0.1)),
        r"<Optimizer clipped>, of which no part takes a learning rate.*sgd",
    ),
    (
        lambda: make(gradient, np.zeros(2), optim.averaged(optim.decay_weights(0.1))),
        "no part takes a learning rate.*uphill",
    ),
    (
        lambda: make(gradient, np.zeros(2), optim.accumulate(optim.clip_by_global_norm(1), 2)),
        "no part takes a learning rate",
    ),
    (
        lambda: optim.updater(
            optim.decay_weights(0.1, {"a": True}),
            *[synk.vector({"a": np.zeros(2)}) for _ in range(2)],
        ),
        "updater got <Optimizer decayed_where>, of which no part",
    ),
    (
        lambda: optim.updater(SGD, *[synk.vector(np.zeros(2))] * 2),
        "updater got the same variable as params and gradient",
    ),
    (
        lambda: optim.updater(SGD, synk.vector(np.zeros(2))),
        "updater.* missing 1 required positional argument: 'gradient'; write",
    ),
    (
        lambda: optim.chain([SGD, SGD]),
        r"chain takes each optimiser as an argument of its own; write chain\(\*optimizers\)",
    ),
    (
        lambda: make(np.zeros(2), gradient, SGD),
        "train.step needs a gradient, .* before the parameters; got an ndarray",
    ),
    (lambda: make(gradient, synk.variable(np.zeros(2)), SGD), "made by synk.vector"),
    (lambda: make(gradient, np.zeros(2, int), SGD), "of float32 or float64, got int64"),
    (
        lambda: make(gradient, [np.zeros(2), np.zeros(2, np.float32)], SGD),
        "vector needs arrays of one dtype",
    ),
    (
        lambda: make(gradient, np.zeros(2), SGD, learning_rate=1),
        "step has no option learning_rate=",
    ),
    (lambda: make(lambda *all: all, np.zeros(2), SGD, inputs=("x", "x")), "inputs name 'x' twice"),
    (
        lambda: make(lambda *all: all, np.zeros(2), SGD, inputs=("x", "1y")),
        "inputs need names of parameters.*got '1y'",
    ),
    (
        lambda: make(lambda *all: all, np.zeros(2), SGD, inputs=("x", 1)),
        "inputs need names of parameters.*got 1",
    ),
    (
        lambda: make(gradient, np.zeros(2), SGD, broadcast="x"),
        r'broadcast takes a tuple of names.*broadcast=\("x",\)',
    ),
    (
        lambda: optim.updater(SGD, synk.vector(np.zeros(2)), synk.variable(np.zeros(2))),
        "gradient as a variable made by",
    ),
    (
        lambda: optim.updater(SGD, synk.vector(np.zeros(2)), synk.vector(np.zeros(3))),
        "gradient is value with shapes",
    ),
]


def test_the_loss_of_a_kernel_at_a_named_place():
    assert make(at_a_named_place, np.zeros(2), SGD).steps == 0


@pytest.mark.parametrize(("call", "text"), BAD, ids=range(len(BAD)))
def test_bad_arguments(call, text):
    with pytest.raises(synk.SynkError, match=text):
        call()


@pytest.fixture(scope="module", autouse=True)
def world():
    with synk.fork(2, device="cpu") as world:
        yield world


RETURNED = [
    (lambda x, y, w: 2 * x.T @ (x @ w - y), r"\(loss, slopes\) or .*; got an ndarray"),
    (
        lambda x, y, w: (np.zeros(2), 0.0),
        r"the slope of params must have shape \(2,\), got \(\); return the loss first, then slopes",
    ),
    (
        lambda x, y, w: ((x @ w - y) ** 2, w),
        r"the loss, a sum over rows, must have shape \(\), got \(3,\); add up the 3 rows",
    ),
    (
        lambda x, y, w: ((x @ w - y[:, None]) ** 2, w),
        r"the loss, .*got \(3, 3\); arrays of .* write y.ravel\(\)",
    ),
    (
        lambda x, y, w: (0.0, {"w": w}),
        r"the slope of params must be of real numbers, got \{'w': .*\}(?!; return)",
    ),
    (
        lambda x, y, w: (0.0, w[:1]),
        r"the slope of params must have shape \(2,\), got \(1,\)(?!; return)",
    ),
    (
        lambda x, y, w: (0.0, w, w),
        r"the count, a sum over rows, must have shape \(\), got \(2,\)\n",
    ),
    (
        lambda x, y, w: (0.0, w * 0, x[:, 0] > 0),
        r"the count, .* must have shape \(\), got \(3,\); add up the 3 rows",
    ),
    (
        lambda x, y, w: (0.0, w * 0, None),
        r"the count, a sum over rows, must be of real numbers, got None",
    ),
    (
        lambda x, y, w: (0.0, w * 0, -1),
        r"the weights by gradient do not add up to a number above 0",
    ),
    (
        lambda x, y, w: (0.0, w, w, w),
        r"\(loss, slopes\) or \(loss, slopes, count\); got a tuple of 4",
    ),
    (lambda x, y, w: None, r"got a NoneType"),
    (
        lambda x, y, w: (None, w * 0),
        r"the loss, a sum over rows, must be of real numbers, got None",
    ),
    (
        lambda x, y, w: (0.0, w + 1j),
        r"the slope of params must be of real numbers, got array\(.*\)(?!; return)",
    ),
]


@pytest.mark.parametrize(("function", "text"), RETURNED, ids=range(len(RETURNED)))
def test_gradients_that_do_not_fit(function, text):
    step = make(function, np.zeros(2), SGD)
    with pytest.raises(synk.SynkError, match=text):
        step(X, Y)
    assert step.steps == 0


def test_which_parameters_are_inputs():
    def plain(x, y, w, loss, slope):
        pass

    for how, params, text in (
        (
            two_numbers,
            {"a": 1.5, "b": 0.5},
            "is missing a; of two_numbers, x, y, a are inputs, and b for "
            "params, a dict, which is one",
        ),
        (
            gradient,
            [np.zeros(2)] * 2,
            "takes x, got 2 arguments; of gradient, x are inputs, and y, w for "
            "params, a list of 2, each",
        ),
        (
            plain,
            np.zeros(2),
            "is missing w, loss; .* a kernel, which is given the loss and the slopes, "
            "decorate it by @cuda.jit",
        ),
    ):
        with pytest.raises(synk.ArgumentError, match=text):
            make(how, params, SGD)(X, Y)
    with pytest.raises(
        synk.ArgumentError,
        match="is missing y; of kernel, x, y are inputs, and w, loss, slope params, the loss",
    ):
        make(kernel, np.zeros(2), SGD)(X)
    step = make(two_numbers, [np.array(0.0), np.array(0.0)], SGD)
    step.check(X[:, 0], Y)
    assert step(X[:, 0], Y) == 1


def scattered(*arrays):
    return [synk.scatter(synk.variable(one)) for one in arrays]


def in_a_sequence(call):
    @synk.sequence
    def body():
        call()

    body()


CALLS = [
    (lambda step: step(X), "a step is missing y"),
    (lambda step: step(X, Y, Y), "a step takes x, y, got 3 arguments"),
    (lambda step: step(X, Y, z=1), r"a step takes x, y, batch= and num_slices=; got z="),
    (lambda step: step(X, Y, x=X), "a step got x twice"),
    (
        lambda step: step(X, Y, batch=[6]),
        "batch has index 6 at position 0, which is out of range for 6 rows",
    ),
    (lambda step: step(X, Y, batch=[]), "an empty list selects no rows"),
    (lambda step: step(X, Y, batch=7), "batch=7 asks for the first 7 rows, but there are 6"),
    (lambda step: step(X, Y, batch="all"), "batch is 'all', of type str; a batch is an int k"),
    (lambda step: step(X, Y[:5]), "rows"),
    (
        lambda step: step.epoch(X, Y, order=[0, 1]),
        r"int64 .*got int64 \(2,\); write order.reshape\(-1, size\)",
    ),
    (
        lambda step: step.epoch(X, Y),
        r"an epoch is missing order=: .*\(steps, size\), as order=.*\.order\(0\)",
    ),
    (
        lambda step: step.epoch(X, Y, order=np.zeros((0, 3), int)),
        r"order needs .*; got none, in an array of shape \(0, 3\)",
    ),
    (
        lambda step: step.epoch(X, Y, order=[[], []]),
        r"order needs .*; got none, in an array of shape \(2, 0\)",
    ),
    (
        lambda step: step.epoch(X, Y, order=synk.batches(X, 2, seed=0)),
        r"got a Batches: write batches.order\(0\)",
    ),
    (
        lambda step: step.epoch(X, Y, order=iter([[0]])),
        r"got a list_iterator: write np.array\(list\(…\)\)",
    ),
    (
        lambda step: step.epoch(X, Y, order=np.zeros((2, 3))),
        r"int64 of shape \(steps, size\); got float64 \(2, 3\)",
    ),
    (
        lambda step: step.epoch(X, Y, order=np.full((2, 3), 6)),
        "order has row 6, but there are rows 0 to 5",
    ),
    (lambda step: step.epoch(X, Y, order=[[0, -1]]), "order has row -1, but there are rows 0 to 5"),
    (lambda step: step.epoch(X, Y, order=[[0], [0, 1]]), "its lines have other lengths"),
    (
        lambda step: step.epoch(X, Y, order=[[0]], batch=[0]),
        "an epoch takes the rows of each step from order=, and no batch=",
    ),
    (
        lambda step: step.epoch(X, Y, order=[[0]], every=None),
        "every must be a positive int, got None",
    ),
    (
        lambda step: step.epoch(X, Y, order=[[0]], every=2),
        "every=2 returns no loss of 1 steps; pass at most every=1",
    ),
    (lambda step: step(X, Y, num_slices=None), "num_slices must be a positive int, got None"),
    (lambda step: step(X.tolist(), Y), r"np.asarray\(…\) of a list of numbers"),
    (lambda step: step(X[:0], Y[:0]), "a step of gradient needs rows, and x has none"),
    (
        lambda step: step.epoch(X[:0], Y[:0], order=[[0]]),
        "a step of gradient needs rows, and x has none",
    ),
    (lambda step: step(*scattered(X[:0], Y[:0])), "a step of gradient needs rows, and x has none"),
    (
        lambda step: step(2.0, Y),
        "x is the first input of gradient that is divided, and must be an array.*got 2.0",
    ),
    (
        lambda step: step(*scattered(X, Y), batch=[0, 1]),
        r"x, y are variables.*def gradient\(rows, x, y, …\), .*x\[rows\]",
    ),
    (
        lambda step: step.epoch(*scattered(X, Y), order=[[0, 1]]),
        "order= selects rows of arrays, but x, y are variables",
    ),
    (
        lambda step: step(X, *scattered(Y), batch=[0, 1]),
        r"batch= selects rows of arrays, as x, but y is a scattered "
        r"variable.*gather\(y\).*y\[rows\]",
    ),
    (
        lambda step: step.submit(X, *scattered(Y), batch=[0, 1]),
        "batch= selects rows of arrays, as x, but y is a scattered",
    ),
    (
        lambda step: step.epoch(synk.data(X), *scattered(Y), order=[[0, 1]]),
        "order= selects rows of arrays, as x, but y",
    ),
    (
        lambda step: step.epoch(*scattered(X), np.arange(6), order=[[0, 1]]),
        "order= selects rows of arrays, as y, but x",
    ),
    (
        lambda step: step(X, Y.tolist()),
        r"y is a list as long as the rows, 6, .*np.asarray\(y\) .* in broadcast=\(\"y\",\)",
    ),
    (
        lambda step: step.epoch(synk.data(X), tuple(Y), order=[[0, 1]]),
        r"y is a tuple as long as the rows, 6",
    ),
    (
        lambda step: step(X, range(6)),
        r"y is a range as long as the rows, 6, .*pass synk.arange\(6\)",
    ),
    (
        lambda step: step(range(1, 7), Y),
        r"x is a range as long as the rows, 6, .*pass np.arange\(1, 7\)",
    ),
    (
        lambda step: step(*scattered(X), synk.scatter(synk.variable(Y), halo=1)),
        r"y is a variable with halo=1, .* count twice .*rows=\(\"y\",\)\), or scatter",
    ),
    (
        lambda step: step.check(*scattered(X), {"y": synk.scatter(synk.variable(Y), halo=1)}),
        "y is a variable with halo=1",
    ),
    (lambda step: step(*scattered(X), X.tolist()), "y is a list as long as the rows, 6"),
    (lambda step: step([X, {"a": Y.tolist()}], Y), "x is a list as long as the rows, 6"),
    (
        lambda step: in_a_sequence(lambda: step(X, Y)),
        "cannot be part of body.*in one round; .* synk.optim.updater",
    ),
    (lambda step: in_a_sequence(lambda: step.epoch(X, Y, order=[[0]])), "cannot be part of body"),
    (lambda step: in_a_sequence(lambda: step.check(X, Y)), "cannot be part of body"),
    (lambda step: step.check(X), "a step is missing y"),
    (lambda step: in_a_sequence(lambda: step.submit(X, Y)), "cannot be part of body"),
    (lambda step: step.average(), r"wrap it, as in synk.optim.averaged\("),
]


@pytest.fixture(scope="module")
def step(world):
    """A step that is used again after each bad call."""
    return make(gradient, np.zeros(2), SGD)


@pytest.mark.parametrize(("call", "text"), CALLS, ids=range(len(CALLS)))
def test_bad_calls(call, text, step):
    made = step.steps
    step(X, Y)
    before = step.params.get_value()
    with pytest.raises(synk.SynkError, match=text):
        call(step)
    np.testing.assert_array_equal(step.params.get_value(), before)
    step(X, Y)
    assert step.steps == made + 2


def test_an_exception_in_a_gradient_has_its_line():
    def fails(x, y, w):
        raise ValueError("so it is")

    step = make(fails, np.zeros(2), SGD)
    with pytest.raises(
        synk.RankError, match=r"ValueError: so it is(?s:.*)test_training_errors.py"
    ) as raised:
        step(X, Y)
    lines = raised.value.failures[0].traceback.splitlines()
    assert [line.split(",")[0].strip() for line in lines if " File " in line] == [
        f'File "{__file__}"'
    ]


def test_parameters_are_read_only():
    def writes(x, y, w):
        w += 1
        return 0.0, np.zeros(2)

    step = make(writes, np.zeros(2), SGD)
    with pytest.raises(
        synk.RankError, match="of a gradient are read-only; write to a copy"
    ) as raised:
        step(X, Y)
    assert "inout" not in str(raised.value)
    np.testing.assert_array_equal(step.params.get_value(), np.zeros(2))


def test_params_stay_the_variable_that_they_are():
    step = make(gradient, np.zeros(2), SGD)
    with pytest.raises(AttributeError, match=r"step\.params\.set_value"):
        step.params = np.ones(2)
    for name in ("learning_rate", "optimizer", "on_nonfinite"):
        with pytest.raises(
            AttributeError,
            match=f"no attribute {name} to set: .* a schedule, .*another step, whose state",
        ):
            setattr(step, name, 0.0)
    with pytest.raises(
        dataclasses.FrozenInstanceError, match="cannot assign to field 'learning_rate'"
    ):
        SGD.learning_rate = 0.0
    step(X, Y)
    count = step.state["optimizer"]["count"]
    count.set_value(np.zeros(1, int))
    with pytest.raises(
        synk.DataError, match=r"variable 'count' had the shapes \[\(4,\)\].* has \[\(1,\)\]"
    ):
        step(X, Y)
    count.set_value(np.zeros(4, int))
    step.params.set_value(np.zeros(3))
    with pytest.raises(
        synk.DataError, match=r"variable 'params' had the shapes \[\(2,\)\].* has \[\(3,\)\]"
    ):
        step(X, Y)


def test_a_minibatch_input_before_the_array_of_which_rows_are_selected():
    step = make(lambda weights, y, w: (weights @ y, w), np.zeros(2), SGD)
    weights, y = synk.data(np.array([1.0, 10.0]), minibatch=True), np.arange(6.0)
    assert step(weights, y, batch=[-1, -2]) == (5 + 40) / 2
    assert step.epoch(weights, y, order=[[0, 1], [2, 3]]).tolist() == [10 / 2, (2 + 30) / 2]


def test_lists_that_are_no_rows():
    step = make(lambda x, y, w: (sum(y), w), np.zeros(2), SGD, broadcast=("y",))
    assert step(X, [1.0, 2.0, 3.0, 0.0, 0.0, 0.0]) == 2 * 6 / 6
    step = make(lambda x, betas, w: (betas[0], w), np.zeros(2), SGD)
    assert step(X, (0.5, 2.0)) == step([X, Y], [0.5]) == 2 * 0.5 / 6


def of_mean(x, y, w):
    loss, slope = gradient(x, y, w)
    return loss / len(x), slope / len(x)


def of_mean_slope(x, y, w):
    loss, slope = gradient(x, y, w)
    return loss, slope / len(x)


def half_of_the_slope(x, y, w):
    loss, slope = gradient(x, y, w)
    return loss, slope / 2


def with_a_penalty(x, y, w):
    loss, slope = gradient(x, y, w)
    return loss + 1, slope


def broadcasts(x, y, w):
    error = x @ w - y[:, None]
    return (error**2).sum(), 2 * x.T @ error.sum(0)


DRAWN = itertools.count()


def draws(x, y, w):
    return float(next(DRAWN)), w * 0


def gives_nan(x, y, w):
    return np.nan, w * 0


@cuda.jit
def right(x, y, w, loss, slope):
    i = cuda.grid(1)
    if i < x.shape[0]:
        error = x[i, 0] * w[0] + x[i, 1] * w[1] - y[i]
        cuda.atomic.add(loss, 0, error**2)
        cuda.atomic.add(slope, 0, 2 * error * x[i, 0])
        cuda.atomic.add(slope, 1, 2 * error * x[i, 1])


@cuda.jit
def wrong_sign(x, y, w, loss, slope):
    i = cuda.grid(1)
    if i < x.shape[0]:
        error = x[i, 0] * w[0] + x[i, 1] * w[1] - y[i]
        cuda.atomic.add(loss, 0, error**2)
        cuda.atomic.add(slope, 0, 2 * error * x[i, 0])
        cuda.atomic.add(slope, 1, -2 * error * x[i, 1])


@cuda.jit
def next_row(x, y, w, loss, slope):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(loss, 0, x[i + 1, 0])


def means_of_weights(x, y, w):
    loss, slopes = gradient(x, y, w)
    return loss, slopes, y.mean()


CHECKED = [
    (
        means_of_weights,
        synk.DataError,
        "the count by means_of_weights is no sum over rows.*looks like a mean",
    ),
    (lambda x, y, w: (*gradient(x, y, w), (y > 0).sum()), None, ""),
    (
        of_mean,
        synk.DataError,
        r"the loss by of_mean is no sum over rows: of 8 rows it is .*looks "
        r"like a mean; return the sum",
    ),
    (
        of_mean_slope,
        synk.DataError,
        "the slope of params by of_mean_slope is no sum over rows.*looks like a mean",
    ),
    (
        half_of_the_slope,
        synk.DataError,
        r"slope of params by half_of_the_slope is not that of its loss.*, "
        r"0\.(5|499|500)\d* times as much",
    ),
    (
        with_a_penalty,
        synk.DataError,
        "the loss .*a term that is no sum over rows has to be multiplied by their number",
    ),
    (
        broadcasts,
        synk.DataError,
        r"the loss .*grow as their square: shapes \(8,\) and \(8, 1\) broadcast to \(8, 8\)",
    ),
    (draws, synk.DataError, "draws returns a loss of .* when called again with the same rows"),
    (
        gives_nan,
        synk.DataError,
        "the loss by gives_nan has a NaN or an infinity, for parameters near",
    ),
    (
        lambda x, y, w: (0.0, w[:1]),
        synk.DataError,
        r"the slope of params must have shape \(2,\), got \(1,\)",
    ),
    (lambda x, y, w: 1 / 0, ZeroDivisionError, "division by zero"),
    (wrong_sign, synk.DataError, "the slope of params by wrong_sign is not that of its loss"),
    (next_row, synk.simt.BoundsError, r"index \[8, 0\] is outside of the array x"),
    (gradient, None, ""),
    (right, None, ""),
]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("function", "error", "text"), CHECKED, ids=range(len(CHECKED)))
def test_checked_gradients(function, error, text, dtype):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(20, 2)).astype(dtype)
    y, step = (x @ [1.0, 2.0] + 1).astype(dtype), make(function, np.zeros(2, dtype), SGD)
    if error is None:
        step.check(x, y)
        step.check(synk.data(x), y=y, batch=[7, 3, 3])
    else:
        with pytest.raises(error, match=text):
            step.check(x, y)
    assert step.steps == 0
    assert not step.params.get_value().any()


def test_checked_gradients_get_the_rows_of_a_rank():
    x, y = np.random.default_rng(0).normal(size=(12, 2)), np.arange(12.0)
    seen = []

    def looks(*given):
        seen.append(given)
        return float(len(given[0])), np.zeros(2)

    def by_number(rows, x, w):
        return looks(rows, x, w)

    def in_pairs(x, y, w):
        return looks(x, y, w)

    def by_rows(x, weights, y, table, settings, w):
        return looks(x, weights, y, table, settings, w)

    (held,) = scattered(x)
    make(by_number, np.zeros(2), SGD).check(np.arange(12)[::-1], held)
    rows, whole = seen[0][:2]
    assert (rows.tolist(), whole.tolist()) == ([11, 10, 9, 8, 7, 6], x[:6].tolist())
    seen.clear()
    make(in_pairs, np.zeros(2), SGD).check(held, y)
    halves = [one for one in seen if len(one[0]) == 3][:2]
    assert [(one[0].tolist(), one[1].tolist()) for one in halves] == [
        (x[:3].tolist(), [0, 1, 2]),
        (x[3:6].tolist(), [3, 4, 5]),
    ]
    seen.clear()
    weights, table = synk.data(np.array([1.0, 2, 3, 4]), minibatch=True), synk.variable(np.ones(3))
    step = make(by_rows, np.zeros(2), SGD, broadcast=("table",))
    step.check(x, weights, {"y": [y]}, table, (0.5, synk.RANK, synk.ROWS), batch=[9, 8, 7, 6])
    halves = [one for one in seen if len(one[0]) == 2][:2]
    assert [(one[1].tolist(), one[2]["y"][0].tolist()) for one in halves] == [
        ([1, 2], [9, 8]),
        ([3, 4], [7, 6]),
    ]
    assert seen[0][3].tolist() == [1, 1, 1]
    assert next(given for given in seen if len(given[0]) == 2)[4] == (0.5, 0, 2)
    make(lambda i, w: (float(sum(i)), w * 0), np.zeros(2), SGD).check(synk.arange(5))
    with pytest.raises(
        synk.ArgumentError,
        match="step.check compares gradient of some rows with .* halves, and needs two rows",
    ):
        make(gradient, np.zeros(2), SGD).check(X[:1], Y[:1])


def test_replicas_and_sliceable_variables_beside_the_array_of_which_rows_are_selected():
    def sums(x, y, w):
        return x.sum() + y.sum(), w * len(x)

    whole = synk.variable(np.ones(5))
    # on each rank
    assert make(sums, np.zeros(2), SGD)(np.arange(6.0), whole, batch=[2, 3]) == (5 + 2 * 5) / 2
    (rows,) = scattered(np.arange(6.0))
    assert (
        make(sums, np.zeros(2), SGD, rows=("y",))(np.arange(6.0), rows, batch=[2, 3])
        == (5 + 15) / 2
    )


def test_rows_of_halos_do_not_count():
    def slopes(u, v, own, w):
        """Of neighbouring rows."""
        inner = np.array([row for row in own if 0 < row < len(v) - 1], int)
        return (v[inner + 1] - v[inner - 1]).sum() + u.sum(), w * 0 + len(own)

    rows = np.arange(6.0) ** 2
    v = synk.scatter(synk.variable(rows), halo=1)
    step = make(slopes, np.zeros(2), SGD, rows=("u",))
    loss = step(v, v, synk.OWN)
    assert loss == pytest.approx(((rows[2:] - rows[:-2]).sum() + rows.sum()) / 6)
    np.testing.assert_allclose(step.params.get_value(), -0.1)
    with pytest.raises(
        synk.ArgumentError, match=r"u is a variable with halo=1.* and u, whose rows are"
    ):
        make(slopes, np.zeros(2), SGD)(v, v, synk.OWN)


def test_plans_of_minibatches():
    step = make(gradient, np.zeros(2), SGD)
    assert "order: int64 (1, 3)" in str(step.plan(X, Y, batch=[1, 2, 3], num_slices=2))
    assert step.steps == 0


@cuda.jit
def adds_a_factor(x, y, w, loss, slope, factor=3.0):
    i = cuda.grid(1)
    if i < x.shape[0]:
        for j in range(2):
            cuda.atomic.add(slope, j, factor)


@cuda.jit
def slope_before_loss_with_a_setting(x, y, w, slope, loss, factor=3.0):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(slope, 1, factor * x[i, 0])


SETTINGS = [lambda x, y, w, factor=3.0: (0.0, w * 0 + factor * len(x)), adds_a_factor]


@pytest.mark.parametrize("inputs", [None, ("x", "y")])
@pytest.mark.parametrize("how", SETTINGS, ids=["function", "kernel"])
def test_settings_of_a_gradient_are_no_parameters(how, inputs):
    step = make(how, np.zeros(2), optim.sgd(1.0), inputs=inputs)
    step(X, Y)
    np.testing.assert_array_equal(step.params.get_value(), [-3, -3])


def test_the_order_of_a_kernel_with_settings_is_checked():
    with pytest.raises(synk.ArgumentError, match="the loss slope, and slopes loss; write loss"):
        make(slope_before_loss_with_a_setting, np.zeros(2), SGD)


@cuda.jit
def adds_indices(rows, w, loss, slope):
    i = cuda.grid(1)
    if i < rows.stop - rows.start:
        cuda.atomic.add(slope, 0, rows.start + i)


INDICES = [
    lambda rows, w: (0.0, w * 0 + sum(range(rows.start, rows.stop))),
    lambda rows, w: (0.0, w * 0 + np.asarray(rows).sum() + len(rows) * 0),
    adds_indices,
]


@pytest.mark.parametrize("how", INDICES, ids=["numbers", "array", "kernel"])
def test_indices_as_the_first_input(how):
    step = make(how, np.zeros(1), optim.sgd(1.0))
    step(synk.arange(20))
    np.testing.assert_array_equal(step.params.get_value(), [-9.5])


SCHEDULES = [
    lambda count: 0.1 * 2**-count,
    lambda count: 10 ** -(count + 1),
    lambda count: 1 / 2 ** (20 * count),
]


@pytest.mark.parametrize("rate", SCHEDULES, ids=range(len(SCHEDULES)))
def test_schedules_of_powers(rate):
    """Ints of 64 bits would wrap, and negative powers of ints are 0, where Numba compiles them."""
    step = make(lambda x, y, w: (0.0, np.full(1, 1.0 * len(x))), np.zeros(1), optim.sgd(rate))
    for _ in range(6):
        step(X, Y)
    np.testing.assert_allclose(
        step.params.get_value(), -sum(rate(float(count)) for count in range(6)), rtol=1e-14
    )


def test_a_schedule_that_is_not_finite_makes_no_step():
    step = make(
        lambda x, y, w: (0.0, w * len(x)),
        np.ones(1),
        optim.sgd(lambda count: 0.1 if count < 2 else np.inf),
    )
    for _ in range(2):
        step(X, Y)
    for _ in range(2):
        with pytest.raises(
            synk.NonFiniteError,
            match="a schedule of the optimiser gives a NaN or an infinity after 2 steps",
        ):
            step(X, Y)
    np.testing.assert_allclose(step.params.get_value(), [0.81])


@pytest.mark.parametrize("on_nonfinite", ["raise", None])
def test_behind_the_end_of_a_table_there_is_no_rate(on_nonfinite):
    table = np.array([1, 2])
    rate = optim.warm_up(lambda count: table[int(count) // 2], 2)
    step = make(
        lambda x, y, w: (0.0, w * 0 + len(x)),
        np.zeros(1),
        optim.momentum(rate, 0.0),
        on_nonfinite=on_nonfinite,
    )
    for _ in range(6):
        step(X, Y)
    assert step.params.get_value() == -0.5 - 1 - 1 - 2 - 2
    if on_nonfinite is None:
        step(X, Y)
        assert np.isnan(step.params.get_value())
        return
    with pytest.raises(
        synk.NonFiniteError, match="after 6 steps, or has no value there, as a table behind its end"
    ):
        step(X, Y)
    assert step.steps == 6


def test_a_refused_step_does_not_keep_the_next_from_being_made(tmp_path):
    step = make(gradient, np.zeros(2), SGD)
    first, second = step.submit(X, np.full(6, np.nan)), step.submit(X, Y)
    assert isinstance(first.exception(), synk.NonFiniteError)
    assert second.exception() is None
    assert second.result() == 1.0
    assert (step.steps, step.skipped) == (1, 1)
    lost = step.submit(X, np.full(6, np.nan))
    synk.save(tmp_path / "state", step.state)
    fresh = make(gradient, np.zeros(2), SGD)
    synk.load(tmp_path / "state", like=fresh.state)
    fresh(X, Y)
    assert fresh.steps == 2
    assert lost.done()


def test_weights_that_do_not_fit():
    def counts(x, y, mask, w):
        return *gradient(x, y, w), 1

    step = make(lambda x, y, mask, w: gradient(x, y, w), np.zeros(2), SGD, weights="mask")
    there = synk.scatter(synk.variable(Y))
    for mask, text in (
        (2.0, "mask, the weights of gradient, must be an array, got 2.0"),
        (list(Y), r"mask is a list as long as the rows.*np.asarray\(mask\)"),
        (
            there,
            "mask, the weights of gradient, is a variable, and x an array, whose rows may "
            "be others; .*slopes, count",
        ),
        (Y + 1j, "weights must be real numbers, got an array of complex128"),
        (Y[:4], "mask"),
    ):
        with pytest.raises(synk.SynkError, match=text):
            step(X, Y, mask)
    both = make(counts, np.zeros(2), SGD, weights="mask")
    with pytest.raises(
        synk.DataError,
        match=r"\(loss, slopes\), of which weights= give the count; got a tuple of 3",
    ):
        both(X, Y, Y)
    step.check(X, Y, Y)
    assert step.steps == both.steps == 0


def test_what_is_not_finite_is_told():
    step, nan = make(gradient, np.zeros(2), SGD), np.full(6, np.nan)
    with pytest.raises(
        synk.NonFiniteError,
        match=r"not made, and the parameters are as before\. If the inputs have no NaN",
    ):
        step(X, nan)
    y = np.where(np.arange(6) == 4, np.nan, Y)
    with pytest.raises(
        synk.NonFiniteError,
        match=r"step 4 to 6 of 6 by .* as before, after 4 steps\. If the inputs",
    ):
        step.epoch(X, y, order=[[0], [1], [2], [3], [4], [5]], every=3)
    step.params.set_value(np.array([np.inf, 0]))
    with pytest.raises(
        synk.NonFiniteError,
        match=r"so have the parameters themselves, .*set_value\(…\), or synk.load",
    ):
        step(X, Y)


def test_masks_are_those_of_the_script_that_loads(tmp_path):
    steps = []
    for mask in ([True, False], [False, True]):
        optimizer = optim.chain(optim.decay_weights(1.0, mask=mask), optim.sgd(0.5))
        steps.append(
            make(lambda x, w, b: (0.0, (w * 0, b * 0)), [np.ones(1), np.ones(1)], optimizer)
        )
    synk.save(tmp_path / "state", steps[0].state)
    synk.load(tmp_path / "state", like=steps[1].state)
    steps[1](X)
    assert np.hstack(steps[1].params.get_value()).tolist() == [1, 0.5]


def test_large_finite_gradients():
    step = make(lambda x, y, w: (0.0, np.full(2, 6e160)), np.zeros(2), optim.sgd(1e-160))
    step(X, Y)
    np.testing.assert_allclose(step.params.get_value(), [-2, -2])


def test_a_loss_beyond_the_dtype_of_the_parameters():
    step = make(lambda x, y, w: (np.float64(1e39), w), np.zeros(2, np.float32), SGD)
    with pytest.raises(
        synk.DataError,
        match=r"the loss, .*is 1e\+39, beyond what float32, .*parameters of float64, or divide",
    ):
        step(X, Y)
    assert make(lambda x, y, w: (np.float64(3e39), w), np.zeros(2), SGD)(X, Y) == 1e39
    assert make(lambda x, y, w: (np.inf, w), np.zeros(2, np.float32), SGD)(X, Y) == np.inf


def test_rows_of_submitted_steps_are_not_those_of_the_next():
    def slowly(x, w):
        time.sleep(0.05)  # the next step is asked for meanwhile
        return x.sum(), w

    x, step = synk.data(np.arange(6.0)), make(slowly, np.zeros(2), SGD)
    futures = [step.submit(x, batch=[row, row]) for row in (1, 2)]
    assert step(x, batch=[3, 3]) == 3
    futures += [step.submit(x, batch=[4, 4]) for _ in range(2)]
    assert step.epoch(x, order=[[5, 5]]) == [5]
    futures.append(step.submit(x, batch=[0, 0]))
    with pytest.raises(synk.ArgumentError, match="num_slices must be a positive int"):
        step.submit(x, batch=[5, 5], num_slices=0)
    futures.append(step.submit(x, batch=[5, 5]))
    assert [one.result() for one in futures] == [1, 2, 4, 4, 0, 5]


def test_a_submitted_step_that_was_not_made_is_told_if_nobody_asks():
    step, nan = make(gradient, np.zeros(2), SGD), np.full(6, np.nan)
    step.submit(X, nan)
    with pytest.warns(
        RuntimeWarning, match=r"nobody asked for its result\(\): the gradient by gradient has a NaN"
    ) as told:
        step(X, Y)
    assert told[0].filename == __file__
    assert isinstance(step.submit(X, nan).exception(), synk.NonFiniteError)
    step.submit(X, Y)
    step(X, Y)


def test_the_first_submitted_step_is_not_waited_for():
    def fails(x, y, w):
        raise ValueError("so it is")

    future = make(fails, np.zeros(2), SGD).submit(X, Y)
    with pytest.raises(synk.RankError, match="so it is"):
        future.result()


def test_what_a_step_of_another_shape_has_kept_is_freed_at_once(monkeypatch):
    monkeypatch.setattr("synknumba._sequence.plan_cache.PLANS_KEPT", 1)
    step = make(gradient, np.zeros(2), SGD)
    step(X, Y)
    ((plans,),) = (
        [weakref.ref(plan) for plan in one._plans.values()] for one in step._sequences.values()
    )
    gc.disable()  # each holds shared memory and descriptors, of which the collector knows nothing
    try:
        step(X[:3], Y[:3])
        assert plans() is None
    finally:
        gc.enable()


def test_rows_of_an_index_range_are_not_selected():
    step = make(lambda i, w: (float(len(i)), w), np.zeros(1), SGD)
    for batch in (slice(2, 6), [1, 2]):
        with pytest.raises(
            synk.BatchError,
            match=r"i is an index range; pass the numbers as an array, such as np.arange\(10\)",
        ):
            step(synk.arange(10), batch=batch)


def test_a_mask_is_not_lost():
    step = make(lambda x, w: (1.0, np.ma.masked_less(w, 1)), np.zeros(2), SGD)
    with pytest.raises(
        synk.DataError, match=r"masked array, whose mask would be lost; return one.filled\(0\)"
    ):
        step(X)
