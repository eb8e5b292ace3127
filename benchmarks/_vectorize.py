"""What benchmarks/vectorize.py applies to numbers, and what must come out; without synknumba and
Numba.
"""

from typing import Any, Literal, TypeAlias

import numpy as np

Work: TypeAlias = Literal["linear", "wave", "sum of rows"]
How: TypeAlias = Literal["out=", "gathered", "reduce", "on devices, out=", "on devices, reduce"]

FACTOR = 2.5
BYTES = {"linear": 24, "wave": 16, "sum of rows": 8}  # of an element, read and written
FORMULAS = {"linear": "a x + y", "wave": "exp(-x²/2) cos(3x)", "sum of rows": "x + y"}
CLOSE = 1e-12


def rows_of(count: int) -> tuple[Any, Any]:
    """X and y, float64."""
    x, y = np.random.default_rng(0).random((2, count))
    return x, y


def exact(work: Work, x: Any, y: Any) -> Any:
    """By NumPy: an array, or the sum of x."""
    if work == "linear":
        return FACTOR * x + y
    return np.exp(-0.5 * x * x) * np.cos(3.0 * x) if work == "wave" else x.sum()


def check(what: str, got: Any, wanted: Any) -> None:
    """Ends the benchmark where a result is wrong."""
    np.testing.assert_allclose(got, wanted, rtol=CLOSE, atol=CLOSE, err_msg=what)
