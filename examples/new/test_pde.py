"""Compares pde.py with the exact decay of a sine: python -m pytest test_pde.py."""

import numpy as np
import pde
import pytest

import synknumba as synk


@pytest.mark.parametrize("waves", [1, 3])
def test_a_sine_decays_as_the_equation_says(waves):
    """sin(kx) becomes exp(−k² t) sin(kx); the scheme's error is of order (kh)²."""
    cells, steps, k = 200, 4000, waves * np.pi
    x = np.linspace(0.0, 1.0, cells + 1)
    start = np.sin(k * x)
    start[[0, -1]] = 0.0
    with synk.fork(2, device="cpu"):
        u = pde.simulate(start, steps)
    t = steps * pde.RATIO / cells**2
    exact = np.exp(-(k**2) * t) * start
    np.testing.assert_allclose(u, exact, rtol=0, atol=(k / cells) ** 2 * exact.max())
