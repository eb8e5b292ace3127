"""Optimisers as pure functions: optax's steps, to rounding; bad arguments."""

import io
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose

import synknumba as synk
from synknumba import optim
from synknumba._ops.tree import flatten, unflatten
from tests.environment import ROOT, environment

# where optax computes rates so
IN_FLOAT32 = {
    "cosine",
    "exponential",
    "staircase",
    "linear",
    "warm-up",
    "accumulated",
}
TINY = 1e-300  # optax's ε = 0
NO_FACTOR = {"b": (False, True), "a": True}
OURS = {
    "sgd": optim.sgd(0.05),
    "momentum": optim.momentum(0.01),
    "nesterov": optim.nesterov_momentum(0.01),
    "adagrad": optim.adagrad(0.5),
    "rmsprop": optim.rmsprop(0.01),
    "adadelta": optim.adadelta(),
    "adam": optim.adam(0.1, epsilon=TINY),
    "adamax": optim.adamax(0.1, epsilon=TINY),
    "adamw": optim.adamw(0.1, epsilon=1e-4, weight_decay=0.01),
    "adamw, masked": optim.adamw(0.1, weight_decay=0.5, mask=NO_FACTOR),
    "lion": optim.lion(0.01, weight_decay=0.01),
    "clipped": optim.chain(optim.clip(0.5), optim.sgd(0.05)),
    "clipped by norm": optim.chain(optim.clip_by_global_norm(0.7), optim.adam(0.1, epsilon=TINY)),
    "norm in the middle": optim.chain(
        optim.momentum(-1.0), optim.clip_by_global_norm(0.7), optim.scale(-0.05)
    ),
    "cosine": optim.sgd(optim.cosine(0.05, 9, end=0.01)),
    "exponential": optim.sgd(optim.exponential(0.05, 0.5, 7)),
    "staircase": optim.sgd(optim.exponential(0.05, 0.5, 7, staircase=True)),
    "linear": optim.sgd(optim.linear(0.05, 0.01, 9)),
    "warm-up": optim.adam(optim.warm_up(optim.cosine(0.1, 8), 4), epsilon=TINY),
    "accumulated": optim.accumulate(
        optim.chain(optim.clip_by_global_norm(0.7), optim.sgd(0.05)), 3
    ),
}
START = {"a": np.array([[0.5, -0.3], [0.2, 0.7]]), "b": (np.array([-0.4]), np.array(0.6))}


@pytest.fixture(scope="module")
def theirs():
    pytest.importorskip("optax")
    script = ROOT / "tests" / "unit" / "optax_steps.py"
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(),
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return np.load(io.BytesIO(done.stdout))


def joined(tree):
    return np.concatenate([np.ravel(leaf) for leaf in flatten(tree)[0]])


@pytest.mark.whole  # JAX takes many seconds
@pytest.mark.parametrize("name", OURS)
def test_as_optax(theirs, name):
    structure, sizes = flatten(START)[1], [4, 1, 1]
    tolerances = (
        {"rtol": 1e-6, "atol": 1e-7} if name in IN_FLOAT32 else {"rtol": 1e-10, "atol": 1e-13}
    )
    for what in ("parabola", "rosenbrock"):
        slopes, points = theirs[f"{what}: {name}"]
        assert np.ptp(points, axis=0).min() > 0, "the parameters move"
        params, state = START, OURS[name].init(START)
        for slope, point in zip(slopes, points, strict=True):
            parts = np.split(slope, np.cumsum(sizes)[:-1])
            gradient = unflatten(
                structure,
                [
                    one.reshape(np.shape(leaf))
                    for one, leaf in zip(parts, flatten(START)[0], strict=True)
                ],
            )
            step, state = OURS[name].update(gradient, state, params)
            params = optim.apply_updates(params, step)
            assert_allclose(joined(params), point, **tolerances)


def test_every_optimiser_is_compared():
    made = {name for name in vars(optim) if name[0].islower() and callable(getattr(optim, name))}
    # others' tests
    rest = {
        "averaged",
        "chain",
        "constant",
        "apply_updates",
        "global_norm",
        "updater",
    }
    used = {
        *(
            "sgd",
            "momentum",
            "nesterov_momentum",
            "adagrad",
            "rmsprop",
            "adadelta",
            "adam",
            "adamax",
            "adamw",
            "lion",
            "scale",
        ),
        *(
            "clip",
            "clip_by_global_norm",
            "cosine",
            "exponential",
            "linear",
            "warm_up",
            "accumulate",
            "decay_weights",
        ),
    }
    assert made == rest | used


@pytest.mark.parametrize("dtype", [np.float32, np.float64, int])
def test_float32_stays(dtype):
    params = {"w": np.ones(3, np.float32)}
    for optimizer in (*OURS.values(), optim.momentum(lambda count: np.exp(-count))):
        if "masked" in repr(optimizer):
            continue
        try:
            state = optimizer.init(params)
        except synk.DataError:  # another mask
            continue
        step, state = optimizer.update({"w": np.ones(3, dtype)}, state, params)
        assert step["w"].dtype == np.float32
        assert optim.apply_updates(params, {"w": step["w"].astype(dtype)})["w"].dtype == np.float32
        assert all(leaf.dtype == np.float32 for leaf in flatten(state.parts)[0])


def test_moving_average():
    w, average = np.array([4.0]), 4.0
    optimizer = optim.averaged(optim.sgd(0.5), decay=0.9)
    state = optimizer.init(w)
    for _ in range(5):
        step, state = optimizer.update(w, state, w)
        w = w + step
        average = 0.9 * average + 0.1 * w[0]
        assert_allclose(state.parts[-1]["average"], average)


BAD = [
    (lambda: optim.adam("fast"), "adam needs learning_rate as a finite number, got 'fast'"),
    (lambda: optim.adam(np.nan), "adam needs learning_rate as a finite number, got nan"),
    (lambda: optim.adam(lambda: 1), "fails for step 0.0: TypeError"),
    (
        lambda: optim.sgd(lambda count: "x"),
        r"sgd needs learning_rate\(0\) as a finite number, got 'x'",
    ),
    (lambda: optim.adam(beta1=1.0), "beta1 as a number from 0 to below 1, got 1.0"),
    (lambda: optim.adam(epsilon=0), "epsilon as a positive number, got 0"),
    (lambda: optim.clip_by_global_norm(-1), "limit as a positive number, got -1"),
    (lambda: optim.cosine(0.1, 0), "steps as a positive int, got 0"),
    (lambda: optim.cosine(0.1, 10.5), "steps as a positive int, got 10.5"),
    (lambda: optim.exponential(0.1, -1, 5), "positive factor, got -1.0"),
    (optim.chain, "got none"),
    (lambda: optim.chain(optim.adam), r"call it, as in adam\(1e-3\)"),
    (
        lambda: optim.chain(optim.clip(1), optim.accumulate(optim.sgd(1), 2)),
        r"write accumulate\(chain",
    ),
    (lambda: optim.chain(optim.averaged(optim.sgd(1)), optim.scale(0.1)), r"write averaged\(chain"),
    (lambda: optim.sgd(partial(pow, 0.5)), "as a function by def or lambda, .*Write lambda count"),
    (lambda: optim.sgd(lambda count: [0.1, 0.2][count]), "It gets the number of steps as a float"),
    (lambda: optim.accumulate(optim.sgd(1), 0), "steps as a positive int, got 0"),
    (lambda: optim.accumulate(optim.accumulate(optim.sgd(1), 2), 2), "accumulates already"),
    (lambda: optim.averaged(optim.averaged(optim.sgd(1))), "keeps an average already"),
    (
        lambda: optim.sgd(1).init(synk.data(np.ones(2))),
        r"params is a Data: .*pass its array, x.data",
    ),
    (lambda: optim.sgd(1).init({"w": synk.data(np.ones(2))}), r"pass its array, \['w'\].data"),
    (
        lambda: optim.sgd(1).init([synk.variable(np.ones(2))]),
        r"params\[0\] is a Variable: .*updater",
    ),
]


@pytest.mark.parametrize(("call", "text"), BAD, ids=range(len(BAD)))
def test_bad_arguments(call, text):
    with pytest.raises(synk.ArgumentError, match=text):
        call()


def test_gradients_that_do_not_fit():
    w = {"a": np.ones(2), "b": np.ones((2, 3))}
    state = optim.sgd(1).init(w)
    with pytest.raises(
        synk.DataError,
        match=r"the gradient\['b'\] has shape \(3,\), but the parameter has \(2, 3\)",
    ):
        optim.sgd(1).update({"a": np.ones(2), "b": np.ones(3)}, state, w)
    with pytest.raises(
        synk.DataError,
        match=r"the gradient is \[value\], but the parameters are \{'a': value, 'b': value\}",
    ):
        optim.sgd(1).update([np.ones(2)], state, w)
    with pytest.raises(
        synk.DataError, match=r"the gradient\['a'\] must be of real numbers, got complex128"
    ):
        optim.sgd(1).update({"a": np.ones(2, complex), "b": np.ones((2, 3))}, state, w)
    with pytest.raises(synk.DataError, match=r"the mask is \{'a': value\}, but the parameters"):
        optim.decay_weights(0.1, mask={"a": True}).init(w)
    with pytest.raises(
        synk.DataError, match=r"the mask needs True or False for params\['a'\], got 1"
    ):
        optim.decay_weights(0.1, mask={"a": 1, "b": True}).init(w)


def test_states_and_parameters_that_do_not_fit():
    w = np.ones(2)
    with pytest.raises(
        synk.DataError,
        match="the state is not one that init of <Optimizer mean_of_squares> has made",
    ):
        optim.rmsprop().update(w, optim.adam().init(w), w)
    with pytest.raises(synk.DataError, match="the state is not one"):
        optim.adam().update({"a": w}, optim.adam().init(w), {"a": w})
    for optimizer in (optim.adam(), optim.accumulate(optim.sgd(1), 2)):
        with pytest.raises(synk.DataError, match="the state is not one"):
            optimizer.update(w, optimizer.init(np.ones(3)), w)
    for value in (np.ones(2, int), np.ones(2, complex)):
        with pytest.raises(
            synk.DataError, match=f"params has dtype {value.dtype}; optimisers take floats"
        ):
            optim.adam().init(value)


def test_states_begin_as_zeros_whatever_the_parameters_are():
    """Parameters may get their values later, as those that `np.empty` has made."""
    w = np.array([np.nan, np.inf, 1.0])
    optimizer = optim.accumulate(
        optim.chain(optim.decay_weights(0.1, mask=np.True_), optim.adam(beta1=np.float32(0.5))), 2
    )
    state = optimizer.init(w)
    step, _ = optimizer.update(np.ones(3), state, w)
    assert [leaf.tolist() for leaf in flatten((state.parts, state.gathered, step))[0]] == [
        [1] * 3,
        *[[0] * 3] * 4,
    ]


def test_steps_are_the_callers():
    """To change one in place changes no state."""
    w, optimizer = np.ones(2), optim.momentum(0.1)
    points = []
    for spoils in (False, True):
        point, state = w.copy(), optimizer.init(w)
        for _ in range(3):
            step, state = optimizer.update(point, state, point)
            point = optim.apply_updates(point, step)
            if spoils:
                step *= 0
        points.append(point)
    assert_allclose(points[0], points[1])
