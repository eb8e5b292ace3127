"""Every kernel of the corpus against NumPy, and against Numba's CUDA simulator."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synknumba import simt
from tests.unit.simt.corpus import CASES

SIMULATE = Path(__file__).with_name("simulate.py")
_kernels: dict[Any, Any] = {}


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Starts the simulator in a process of its own, and gives a function that waits for its results."""
    out = tmp_path_factory.mktemp("simulator") / "results.pickle"
    env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    with subprocess.Popen([sys.executable, str(SIMULATE), str(out)], env=env, stderr=subprocess.PIPE, text=True) as process:
        results: dict[str, Any] = {}

        def get(name: str) -> Any:
            if not results:
                _, errors = process.communicate()
                assert process.returncode == 0, errors
                results.update(pickle.loads(out.read_bytes()))
            return results[name]

        yield get
        process.kill()


def kernel_of(function: Any) -> Any:
    """One kernel for each function, so that each is compiled once."""
    if function not in _kernels:
        _kernels[function] = simt.jit(function)
    return _kernels[function]


def check_equal(got: Any, expected: Any, rtol: float) -> None:
    if got.dtype.names:
        for name in got.dtype.names:
            check_equal(got[name], expected[name], rtol)
    elif got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, rtol=max(rtol, 1e-6 if got.dtype.itemsize == 4 else 0), atol=1e-12)


@pytest.fixture(scope="session")
def ran(simulated: Any) -> Any:
    """The arguments of a case after its launch. The simulator works meanwhile."""
    done: dict[str, tuple[Any, ...]] = {}

    def run(name: str) -> tuple[Any, ...]:
        if name not in done:
            case = CASES[name]
            args = case.make()
            kernel_of(case.kernel)[case.grid, case.block](*args)
            done[name] = args
        return done[name]

    return run


def test_corpus_is_there() -> None:
    assert len(CASES) > 90
    assert len({case.kernel for case in CASES.values()}) > 75


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.expect])
def test_agrees_with_numpy(name: str, ran: Any) -> None:
    case = CASES[name]
    for place, expected in case.expect(*case.make()).items():
        check_equal(ran(name)[place], expected, case.rtol)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.differs])
def test_agrees_with_the_simulator(name: str, ran: Any, simulated: Any) -> None:
    args = ran(name)
    for place, expected in simulated(name).items():
        check_equal(args[place], expected, CASES[name].rtol)
