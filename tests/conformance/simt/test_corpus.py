"""Every kernel of the corpus against NumPy, and against Numba's CUDA simulator."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from synknumba import simt
from tests.conformance.simt import python_mode
from tests.conformance.simt.agree import check
from tests.conformance.simt.corpus import CASES, MODULES, WITHOUT_WAITING, Case, is_from

ROOT = Path(__file__).resolve().parents[3]

# Of the other cases, the quick suite has one in twelve, to see what takes no branch of its own.
QUICK = {*(Path(__file__).parent / "quick_cases.txt").read_text().split()}

Arguments = tuple[Any, ...]


@pytest.fixture(scope="session")
def simulated(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], dict[int, Any]]]:
    """Starts the simulator in a process of its own, and gives a function that waits for its
    results.
    """
    out = tmp_path_factory.mktemp("simulator") / "results.pickle"
    wanted = [
        item.callspec.params["name"]
        for item in request.session.items
        if item.name.startswith("test_agrees_with_the_simulator[")
    ]
    command = [sys.executable, "-m", "tests.conformance.simt.simulate", str(out), " ".join(wanted)]
    env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) as process:
        results: dict[str, Any] = {}

        def get(name: str) -> dict[int, Any]:
            if not results:
                _, errors = process.communicate()
                assert process.returncode == 0, errors
                results.update(pickle.loads(out.read_bytes()))
            assert not isinstance(results[name], str), f"the simulator failed: {results[name]}"
            return results[name]

        yield get
        process.kill()


@pytest.fixture(scope="session")
def ran(simulated: Any) -> Callable[[str], Arguments]:
    """The arguments of a case after its launch. The simulator works meanwhile; each kernel is
    compiled once.
    """
    kernels: dict[Any, simt.Kernel] = {}
    done: dict[str, Arguments] = {}

    def run(name: str) -> Arguments:
        if name not in done:
            case = CASES[name]
            args = case.make()
            kernel = kernels.setdefault(case.kernel, simt.jit(case.kernel))
            kernel[case.grid, case.block, 0, case.shared](*args)
            done[name] = args
        return done[name]

    return run


def cases(names: Iterable[str]) -> list[Any]:
    """The parameters of a test of cases."""
    return [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.whole) for name in names
    ]


def thinned(parameters: list[Any]) -> list[Any]:
    """Every third of the quick suite's parameters; the whole suite has all."""
    kept = {*[name for name in parameters if isinstance(name, str)][::3]}
    return [
        pytest.param(one, marks=pytest.mark.whole)
        if isinstance(one, str) and one not in kept
        else one
        for one in parameters
    ]


def test_corpus_is_there() -> None:
    assert set(CASES) >= QUICK
    assert len(CASES) > 280
    assert {case.kernel.__module__ for case in CASES.values()} == {
        module.__name__ for module in MODULES
    }
    assert len({case.kernel for case in CASES.values()}) > 230
    assert sum(case.expect is not None for case in CASES.values()) > 250


@pytest.mark.parametrize("name", cases(name for name, case in CASES.items() if case.expect))
def test_agrees_with_numpy(name: str, ran: Any) -> None:
    case = CASES[name]
    check(case, ran(name), case.expect(*case.make()))


@pytest.mark.parametrize(
    "name", thinned(cases(name for name, case in CASES.items() if not case.differs))
)
def test_agrees_with_the_simulator(name: str, ran: Any, simulated: Any) -> None:
    check(CASES[name], ran(name), simulated(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.expect])
def test_debug_mode_computes_the_same(name: str) -> None:
    case = CASES[name]
    args = case.make()
    simt.jit(case.kernel, debug=True, cache=False)[case.grid, case.block, 0, case.shared](*args)
    check(case, args, case.expect(*case.make()))


def in_blocks(case: Case) -> bool:
    """Whether threads meet, and plain Python computes the same: NumPy's scalars wrap around
    where Numba's do not.
    """
    return (
        case.expect is not None
        and not is_from(case, WITHOUT_WAITING)
        and not case.differs.startswith(("NumPy", "the simulator has no libdevice"))
    )


@pytest.mark.parametrize(
    "name", thinned(cases(name for name, case in CASES.items() if in_blocks(case)))
)
def test_does_not_depend_on_the_order_of_threads(name: str) -> None:
    """In plain Python, where memory that starts undefined holds a pattern, and hints
    to the optimiser are checked.
    """
    case = CASES[name]
    grid, block = (size if isinstance(size, tuple) else (size,) for size in (case.grid, case.block))
    for launch in python_mode.launches(
        simt.jit(case.kernel), grid, block, case.make(), case.shared
    ).values():
        args = case.make()
        launch(*args)
        check(case, args, case.expect(*case.make()))
