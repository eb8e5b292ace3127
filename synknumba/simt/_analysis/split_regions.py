"""Loop fission and index-set splitting: where to cut a region into several loops so that each one
vectorizes.

Threads are independent between two barriers, so a region may be cut between any two of its
statements, or between any two of its threads.
"""

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from synknumba.simt._analysis.bounds import Bounds, Guards
from synknumba.simt._analysis.uniformity import Analysis
from synknumba.simt._analysis.variables import single_target
from synknumba.simt._library.words import AXES
from synknumba.simt._source.syntax import (
    assigned_names,
    copied,
    count_each,
    nodes_of,
    place,
    walk,
)

# Syntax nodes; a larger region is not duplicated.
SMALL = 150


@dataclass(frozen=True, slots=True)
class GuardCut:
    """A condition on a thread index, at which to split a region's threads."""

    position: int  # index of the statement in the region
    guard: ast.If  # the statement as an `if`
    axis: str  # of the thread index
    bounds: Bounds  # the threads for which the condition holds


def _opened(statement: ast.stmt) -> ast.If | None:
    """Returns an `if`, or `v = a if c else b` rewritten as one; None for any other statement."""
    match statement:
        case ast.If():
            return statement
        case ast.Assign([target], ast.IfExp(test, body, orelse)):
            then, otherwise = ast.Assign([target], body), ast.Assign([copied(target)], orelse)
            return place(ast.If(test, [then], [otherwise]), statement)
    return None


def guard_cut(
    body: Sequence[ast.stmt], guards: Guards, slots: set[str], analysis: Analysis
) -> GuardCut | None:
    """Returns the first condition that splits the threads into those before, inside and after a
    range; None if none does.
    """
    writes = assigned_names(body)
    if (writes & slots) - analysis.varying or sum(1 for _ in walk(body)) > SMALL:
        return None
    for position, statement in enumerate(body):
        guard = _opened(statement)
        if guard is None or (len(body) == 1 and not guard.orelse):
            continue
        bounds = Bounds()
        if guards.absorb(guard.test, bounds, writes) is not None:
            continue
        match bounds.axes():
            case [axis]:
                return GuardCut(position, guard, axis, bounds)
    return None


def free_cut(body: Sequence[ast.stmt], analysis: Analysis, guards: Guards) -> int:
    """Returns a position that separates an `if` on thread indices from its neighbours without
    storing a variable; else 0.
    """
    if len(body) == 1:
        return 0
    for position, statement in enumerate(body):
        match statement:
            case ast.If(test, _, []):
                if guards.absorb(test, Bounds(), assigned_names(body)) is not None:
                    continue
            case _:
                continue
        for cut in range(max(position, 1), min(position + 2, len(body))):
            written = assigned_names(body[:cut]) & analysis.stored
            if written.isdisjoint(count_each(body[cut:])):
                return cut
    return 0


def scatter_cut(body: Sequence[ast.stmt], analysis: Analysis, guards: Guards) -> int:
    """Returns the position that separates costly vectorizable statements from scattered writes;
    0 if there is none.
    """
    first = list(takewhile(lambda statement: _only_computes(statement, analysis), body))
    if not any(_is_costly(part, analysis) for part in walk(first)):
        return 0
    scatters = any(_scatters(part, analysis, guards) for part in walk(body[len(first) :]))
    return len(first) if scatters else 0


def _only_computes(statement: ast.stmt, analysis: Analysis) -> bool:
    if single_target(statement) is None:
        return False
    return all(analysis.is_pure_function(node.func) for node in nodes_of(ast.Call, statement))


def is_silent(statement: ast.stmt, analysis: Analysis) -> bool:
    """Returns whether the statement only assigns local variables and cannot raise."""
    if isinstance(statement, ast.Pass):
        return True
    if any(map(analysis.may_raise, nodes_of(ast.expr, statement))):
        return False
    return _only_computes(statement, analysis)


def _is_costly(node: ast.AST, analysis: Analysis) -> bool:
    """Returns whether the node costs several additions, and less when vectorized: a division,
    power or `math` function.
    """
    match node:
        case ast.BinOp(_, ast.Div() | ast.Pow()):
            return True
        case ast.Call(function):
            module = getattr(analysis.function_of(function), "__module__", None)
            return module == math.__name__
    return False


def _scatters(node: ast.AST, analysis: Analysis, guards: Guards) -> bool:
    """Returns whether the node writes at varying indices other than a thread index plus a
    uniform offset.
    """
    match node:
        case ast.Subscript(_, index, ast.Store()):
            if analysis.is_uniform(index):
                return False
            return all(guards.offset(index, axis) is None for axis in AXES)
        case ast.Call(ast.Name(name), [_, index, *_]) if name.startswith("_k_atomic_"):
            return not analysis.is_uniform(index)
    return False
