"""The spellings of public code, all of which the compiler takes: against NumPy, and against
Numba's simulator.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from synknumba import simt
from tests.conformance.simt.spellings import ENTRIES, NOT_SIMULATED, imported

ROOT = Path(__file__).resolve().parents[3]

# The quick suite translates all entries, and runs those whose translation is more than names, and
# one in 24 of the others.
QUICK = {
    *(
        "wrapped_functions",
        "more_parameters",
        "kernels_with_more_parameters",
        "tuple_of_functions",
        "cases",
    ),
    *("assignment_expressions", "names_with_suffixes", "lambda_as_a_kernel"),
    *list(ENTRIES)[::24],
}


def check(name, jit):
    """Runs an entry, and compares what it wrote with what it should."""
    pairs = list(ENTRIES[name](jit))
    assert pairs
    for got, wanted in pairs:
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-9)


def test_entries_are_there():
    assert imported.__name__
    assert len(ENTRIES) >= 140
    assert set(ENTRIES) > QUICK
    assert len(set(ENTRIES) - set(NOT_SIMULATED)) >= 90


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.whole) for name in ENTRIES],
)
def test_agrees_with_numpy(name):
    check(name, simt.jit)


class NotLaunched(Exception):  # noqa: N818  # no error
    """Ends an entry at its first launch."""


@pytest.mark.parametrize("name", ENTRIES)
def test_is_translated(name, monkeypatch):
    """Most refusals come from the translation, which takes milliseconds."""

    def translate_only(kernel, *_):
        assert kernel.source.startswith("def ")
        raise NotLaunched

    monkeypatch.setattr(simt.Kernel, "entry", translate_only)
    monkeypatch.setattr(simt.Kernel, "compile", translate_only)
    with pytest.raises(NotLaunched):
        list(ENTRIES[name](simt.jit))


@pytest.mark.whole
def test_agrees_in_the_simulator():
    """What NumPy computes for an entry is what the simulator does."""
    code = "from tests.conformance.simt.spellings import simulate; simulate()"
    env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", code]
    told = subprocess.run(command, check=False, env=env, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert set(told.stdout.split()) == set(ENTRIES) - set(NOT_SIMULATED)
