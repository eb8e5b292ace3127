"""Training goes on from a checkpoint after a rank has died, or Ctrl-C in a step."""

import os
import signal
import threading
import time

import numpy as np
import pytest

import synknumba as synk
from tests.quick import whole

X = np.random.default_rng(0).normal(size=(20, 3))
Y = X @ [1.0, -2.0, 3.0]


def gradient(x, y, w):
    error = x @ w - y
    if len(x) == 1:  # of a step that is to be interrupted
        time.sleep(60)
    return (error**2).sum(), 2 * x.T @ error


def steps_by_numpy(count):
    optimizer, w = synk.optim.adam(0.1), np.zeros(3)
    state = optimizer.init(w)
    for _ in range(count):
        step, state = optimizer.update(2 * X.T @ (X @ w - Y) / len(X), state, w)
        w = w + step
    return w


@pytest.mark.parametrize("how", ["a rank dies", *whole("Ctrl-C")])
def test_training_goes_on_from_a_checkpoint(tmp_path, how):
    with synk.fork(2, device="cpu", respawn=True) as world:
        step = synk.train.step(gradient, np.zeros(3), synk.optim.adam(0.1))
        step(X, Y)
        synk.save(tmp_path / "state", step.state)
        step(X, Y)
        if how == "Ctrl-C":
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                step(X[:2], Y[:2])  # a row for each rank
        else:
            os.kill(world.pids[0], signal.SIGKILL)
            with pytest.raises(synk.RankDied):
                step(X, Y)
        synk.load(tmp_path / "state", like=step.state)
        step(X, Y)
        future = step.submit(X, Y)
        future.result()
        assert step.steps == 3
        np.testing.assert_allclose(step.params.get_value(), steps_by_numpy(3), rtol=1e-12)


@synk.function
def slope(w, g):
    g[...] = w
    if w[0] == 7 and synk.rank() == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def test_an_updater_goes_on_from_its_state(tmp_path):
    """What else it has on the ranks, norms, numbers and masks, it makes again."""
    w, g = synk.vector(np.array([3.0, 4.0])), synk.vector(np.zeros(2))
    parts = (
        synk.optim.clip_by_global_norm(1.0),
        synk.optim.decay_weights(1.0, mask=True),
        synk.optim.sgd(0.5),
    )
    update = synk.optim.updater(synk.optim.chain(*parts), w, g, on_nonfinite="skip")

    @synk.sequence
    def descend(w, g):
        slope(w, g)
        update()

    with synk.fork(2, device="cpu", respawn=True):
        descend(w, g)
        synk.save(tmp_path / "state", {"w": w, "update": update.state})
        w.set_value(np.full(2, 7.0))
        with pytest.raises(synk.RankDied):
            descend(w, g)
        synk.load(tmp_path / "state", like={"w": w, "update": update.state})
        g.set_value(np.zeros(2))
        descend(w, g)
        first = np.array([3 - 0.5 * (0.6 + 3), 4 - 0.5 * (0.8 + 4)])
        np.testing.assert_allclose(w.get_value(), first - 0.5 * (first / np.hypot(*first) + first))
        assert update.counts()[0] == 2
