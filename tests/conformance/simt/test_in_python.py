"""Every kernel of the corpus through `simt.debug` and `simt.check`, which run it in Python."""

import ast
from typing import Any

import numpy as np
import pytest

from synknumba import simt
from synknumba._errors import DivergenceError, RaceError
from synknumba.simt._checker import compiled as compiled_check
from synknumba.simt._checker.instrument import _Instrumenter
from synknumba.simt._python.run import DebugLaunch, Thread
from synknumba.simt._python.source import Rewriter
from tests.conformance.simt import fuzz
from tests.conformance.simt.agree import check
from tests.conformance.simt.corpus import ALGORITHMS, CASES, Case, is_from
from tests.conformance.simt.kernel_writer import written
from tests.conformance.simt.test_corpus import cases
from tests.quick import whole

Line = tuple[str, int]

# Threads return before a barrier of the others, which the CUDA programming guide does not allow and
# all GPUs since Volta do.
EARLY = {
    "return_before_barrier",
    "return_before_barrier_one_thread",
    "guard_around_barrier",
    "returns_between_barriers",
    "threads_leave_one_by_one",
    "count_of_threads_left",
    "while_of_each_thread",
    "break_of_each_thread",
}
# A thread reads what threads of its own block have added to, without a barrier between.
RACES = {"last_block"}
# Algorithms with barriers, which compiled code can check.
BARRIERS = sorted(
    name for name, case in CASES.items() if is_from(case, ALGORITHMS) and name != "monte_carlo_pi"
)


@pytest.mark.parametrize("name", cases(name for name, case in CASES.items() if case.expect))
def test_debug_agrees_with_numpy(name: str) -> None:
    case = CASES[name]
    args = case.make()
    simt.debug(case.kernel)[case.grid, case.block, 0, case.shared](*args)
    check(case, args, case.expect(*case.make()))


@pytest.mark.parametrize("name", cases(CASES))
def test_check_finds_what_is_wrong_and_nothing_else(name: str) -> None:
    case = CASES[name]
    launch = simt.check(case.kernel)[case.grid, case.block, 0, case.shared]
    error = DivergenceError if name in EARLY else RaceError if name in RACES else None
    if error is None:
        launch(*case.make())
        return
    with pytest.raises(error) as caught:
        launch(*case.make())
    assert {finding.error for finding in caught.value.findings} == {error}


@pytest.mark.parametrize("name", sorted(EARLY))
def test_early_returns_may_be_allowed(name: str) -> None:
    case = CASES[name]
    args = case.make()
    simt.check(case.kernel, early_returns=False, compiled=False)[
        case.grid, case.block, 0, case.shared
    ](*args)
    check(case, args, case.expect(*case.make()))


@pytest.mark.whole
def test_most_barriers_are_missed_when_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out every barrier of the algorithms in turn. Some order nothing, or nothing that
    these arguments show.
    """
    absent: Line | None = None
    met: set[Line] = set()
    resume = DebugLaunch.resume

    def resume_without(self: DebugLaunch, thread: Thread) -> None:
        resume(self, thread)
        while thread.request is not None and thread.request.kind == "syncthreads":
            place = thread.waiting()
            met.add((place.filename, place.line))
            if (place.filename, place.line) != absent:
                return
            thread.request = None
            resume(self, thread)

    def is_clean(case: Case) -> bool:
        try:
            simt.check(case.kernel, early_returns=False, compiled=False)[
                case.grid, case.block, 0, case.shared
            ](*case.make())
        # the latter where a kernel computes with what was never written
        except (
            simt.KernelCheckError,
            OverflowError,
        ):
            return False
        return True

    monkeypatch.setattr(DebugLaunch, "resume", resume_without)
    missed = found = 0
    for case in {
        case.kernel: case for case in CASES.values() if is_from(case, ALGORITHMS)
    }.values():
        absent, met = None, set()
        assert is_clean(case)
        for absent in sorted(met):
            missed += is_clean(case)
            found += 1
    found -= missed
    assert found > 35
    assert found > 7 * missed


@pytest.mark.whole
@pytest.mark.parametrize("name", BARRIERS)
def test_compiled_code_misses_no_barrier_that_python_misses(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaves out each barrier of a kernel in turn; what is found in Python is found in compiled
    code.
    """
    case, absent, met = CASES[name], None, set[Line]()
    visit_in_python, visit = ast.NodeTransformer.generic_visit, _Instrumenter.visit_Expr

    def without(visit: Any) -> Any:
        def visit_Expr(self: Any, node: ast.Expr) -> Any:  # of `ast.NodeTransformer`
            if isinstance(node.value, ast.Call) and ast.unparse(node.value.func).endswith(
                "syncthreads"
            ):
                met.add(
                    (
                        self._source.filename
                        if visit is not visit_in_python
                        else self.source.filename,
                        node.lineno,
                    )
                )
                if absent in met and absent[1] == node.lineno:
                    return ast.copy_location(ast.Pass(), node)
            return visit(self, node)

        return visit_Expr

    def findings(*, compiled: bool) -> set[Any]:
        launch = simt.check(case.kernel, early_returns=False, compiled=compiled)[
            case.grid, case.block, 0, case.shared
        ]
        try:
            launch(*case.make())
        except simt.KernelCheckError as error:
            # Where a kernel computes with what was never written, Python may raise more than
            # machine code.
            found = [one for one in error.findings if one.error is not simt.KernelCheckError]
            return {
                (one.error, one.array, tuple(sorted({place.line for place in one.accesses})))
                for one in found
            }
        except OverflowError:
            return set()
        return set()

    monkeypatch.setattr(Rewriter, "visit_Expr", without(visit_in_python), raising=False)
    monkeypatch.setattr(_Instrumenter, "visit_Expr", without(visit))
    monkeypatch.setenv("SYNKNUMBA_CACHE", "0")
    assert findings(compiled=False) == findings(compiled=True) == set()
    for absent in sorted(met):
        compiled_check._programs.clear()
        assert findings(compiled=False) <= findings(compiled=True)
    compiled_check._programs.clear()


@pytest.mark.parametrize(
    "seeds",
    [range(200, 208), *whole(*(range(start, start + 8) for start in range(208, 232, 8)))],
    ids=lambda seeds: f"from{seeds.start}",
)
def test_random_kernels_without_races(seeds: range) -> None:
    for seed in seeds:
        writer = written(seed)
        kernel = fuzz.load(writer.text(), f"<kernel {seed} in Python>")
        for m in fuzz.STEPS:
            wanted = fuzz.expected(kernel, writer.grid, writer.block, m)
            for made in (simt.debug(kernel), simt.check(kernel, early_returns=False)):
                args = fuzz.arguments(int(np.prod(writer.grid + writer.block)), m)
                made[writer.grid, writer.block](*args)
                fuzz.agree(fuzz.results(args), wanted)


def test_the_lists_name_cases() -> None:
    assert EARLY | RACES <= set(CASES)
