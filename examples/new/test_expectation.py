"""Compares expectation.py with the closed form: python -m pytest test_expectation.py."""

import math

import expectation
import pytest

import synknumba as synk


@pytest.mark.parametrize("beta", [0.5, 1.5, 10.0])
def test_the_integral_is_that_of_the_closed_form(beta):
    """∫ exp(−β r²) over the unit cube is the third power of √(π/β)/2 · erf(√β)."""
    exact = (math.sqrt(math.pi / beta) / 2 * math.erf(math.sqrt(beta))) ** 3
    with synk.fork(2, device="cpu"):
        result = expectation.estimate(1_000_000, beta)
    assert abs(result.mean - exact) < 5 * result.stderr
    assert result.stderr < 1e-3
