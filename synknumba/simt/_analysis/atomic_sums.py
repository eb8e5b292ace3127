"""Atomic sums: many threads' `cuda.atomic.add` to one element become a sum in a register, added
once.

The order in which threads add is undefined, so the terms may be summed in any order, and LLVM
vectorizes a plain sum in a register. The transformation applies only where no thread can observe
it: the old value is unused, the element is the same for all threads, the loop body names the array
nowhere else, and nothing is read from memory after the atomic.
"""

import ast
from dataclasses import dataclass, field
from typing import Any

from synknumba.simt._analysis.namespace import is_one_of
from synknumba.simt._analysis.uniformity import Analysis
from synknumba.simt._library.atomics import ATOMICS
from synknumba.simt._source.syntax import (
    assigned_names,
    count_names,
    load,
    place,
    read_names,
    statements,
    walk,
)

_SUMS = (ATOMICS["add"], ATOMICS["sub"])


@dataclass(slots=True)
class AtomicSums:
    """The sums of one loop over threads."""

    before: list[ast.stmt] = field(default_factory=list)  # the loop; sets the sums to zero
    after: list[ast.stmt] = field(default_factory=list)  # the loop; adds the sums to memory


class _Finder:
    """Replaces the atomics in one iteration of a loop over threads, last statement first."""

    def __init__(self, analysis: Analysis, body: list[ast.stmt]) -> None:
        self.analysis, self.body, self.writes = analysis, body, assigned_names(body)
        self.sums: list[tuple[str, ast.Call]] = []  # by what numbers their variables

    def replace(self, body: list[ast.stmt]) -> bool:
        """Replaces atomics from the last statement upwards, up to the first that reads memory;
        returns whether none does.
        """
        for position, statement in reversed(list(enumerate(body))):
            added = self._summed(statement)
            if added is not None:
                number = f"{statement.lineno}_{len(self.sums)}"
                self.sums.append((number, added))
                text = (
                    f"_k_sum{number} = _k_sum_any_order(_k_sum{number}, 0)\n_k_any{number} = True"
                )
                new = statements(text, statement)
                new[0].value.args[1] = added.args[2]  # type: ignore[attr-defined]
                body[position : position + 1] = new
                if self._reads_memory(added.args[2]):
                    return False
            elif isinstance(statement, ast.If):
                silent = [self.replace(statement.body), self.replace(statement.orelse)]
                silent.append(not self._reads_memory(statement.test))
                if not all(silent):
                    return False
            elif self._reads_memory(statement):
                return False
        return True

    def _summed(self, statement: ast.stmt) -> ast.Call | None:
        analysis = self.analysis
        match statement:
            case ast.Expr(ast.Call(ast.Name(name), [ast.Name(array), index, _], []) as added):
                if not is_one_of(analysis.namespace.get(name), *_SUMS):
                    return None
                if array not in analysis.params or count_names(self.body, array) != 1:
                    return None
                if analysis.is_uniform(index) and not read_names(index) & self.writes:
                    return added
        return None

    def _reads_memory(self, node: ast.AST) -> bool:
        analysis = self.analysis
        for part in walk(node):
            match part:
                case ast.Subscript() if not analysis.is_uniform(part):
                    return True
                case ast.Call(ast.Name("_k_sum_any_order" | "_k_assume")):
                    pass
                case ast.Call(function) if not analysis.is_pure_function(function):
                    return True
        return False


def keep_sums_apart(analysis: Analysis, body: list[ast.stmt], block_value: Any) -> AtomicSums:
    """Replaces atomic sums in the body of a loop over threads by sums in registers, in place.

    `block_value` rewrites a thread's uniform expression for the block level.
    """
    finder = _Finder(analysis, body)
    finder.replace(body)
    sums = AtomicSums()
    for number, added in finder.sums:
        array = added.args[0]
        sums.before += statements(
            f"_k_sum{number} = _k_zero_like_element(0)\n_k_any{number} = False", array
        )
        sums.before[-2].value.args = [array]  # type: ignore[attr-defined]
        flush = ast.Call(
            added.func, [array, block_value(added.args[1]), load(f"_k_sum{number}")], []
        )
        sums.after += statements(f"if _k_any{number}:\n    pass", array)
        sums.after[-1].body = [place(ast.Expr(flush), array)]  # type: ignore[attr-defined]
    return sums
