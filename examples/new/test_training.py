"""Compares training.py with NumPy's least squares: python -m pytest test_training.py."""

import numpy as np
import training

import synknumba as synk


def test_the_parameters_are_those_of_least_squares():
    """The noise is so large that they differ from those by which y was made."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2000, 3))
    y = x @ [1.0, -2.0, 3.0] + 0.5 + rng.normal(size=len(x))
    exact, *_ = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y, rcond=None)
    with synk.fork(2, device="cpu"):
        w, b, losses = training.train(x, y)
    np.testing.assert_allclose([*w, *b], exact, rtol=0, atol=2e-3)
    assert losses[-1] < losses[0] / 5
