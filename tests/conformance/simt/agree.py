"""How the arrays of a case are compared: integers and booleans bit for bit, reals to rounding."""

from typing import Any

import numpy as np

from tests.conformance.simt.cases import Case

SINGLE = 1e-6  # relative; a float32 has 24 bits


def check(case: Case, args: tuple[Any, ...], expected: dict[int, Any]) -> None:
    """Compares the arguments after a launch with what some of them should hold, by their place."""
    for place, wanted in expected.items():
        got = args[place]
        if place in case.unordered:
            _check(np.sort(got, axis=None), np.sort(np.asarray(wanted), axis=None), case)
        else:
            _check(got, np.asarray(wanted), case)


def _check(got: np.ndarray, wanted: np.ndarray, case: Case) -> None:
    if got.dtype.names:
        for name in got.dtype.names:
            _check(got[name], wanted[name], case)
    elif got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, wanted)
    else:
        single = got.dtype in (np.float32, np.complex64)
        np.testing.assert_allclose(
            got, wanted, rtol=max(case.rtol, SINGLE if single else 0), atol=case.atol
        )
