"""Loop transformations: interchange of a thread's loop with the loop over threads, and normalisation of loops and returns.

After the interchange (`LoopInversion`) the thread's loop is outside and the loop over the block's threads inside. Neighbouring
threads access neighbouring elements, so the inner loop vectorizes. PoCL does the same for OpenCL as "implicit loop barriers".
"""

import ast
import copy
from dataclasses import dataclass
from typing import cast

from synknumba.simt._analysis.bounds import Bounds, Guards
from synknumba.simt._analysis.uniformity import Analysis
from synknumba.simt._frontend.sync import synchronises
from synknumba.simt._frontend.syntax import (
    assign,
    assigned_names,
    count_names,
    expression,
    has_return,
    load,
    loop_variable,
    own_exits,
    place,
    range_arguments,
    read_names,
    statements,
    store,
    walk,
)
from synknumba.simt._library.operations import AXES, THREAD

# Iterations. LLVM unrolls a constant loop this short and then vectorizes over the threads by itself; interchanging it as well
# cost a factor of 2.5 on a 16 × 16 matrix tile.
SHORT_LOOP = 64


@dataclass(frozen=True, slots=True)
class StridedLoop:
    """`for i in range(u + <thread index>, stop, step)`: a grid-stride loop.

    Attributes:
        loop: the statement.
        axis: the axis of the thread index.
        offset: text of `u` at the block level.
        nonneg: whether the start is known to be non-negative.
        stop: the uniform end.
        step: the uniform, positive step.
    """

    loop: ast.For
    axis: str
    offset: str
    nonneg: bool
    stop: ast.expr
    step: ast.expr


class LoopInversion:
    """Decides which loops of a kernel to interchange with the loop over threads.

    Args:
        analysis: analysis of the kernel.
        guards: the kernel's conditions on thread indices.
        local_arrays: variables created by `cuda.local.array`. A loop that uses one is not interchanged: the threads would take
            turns on one array.
    """

    def __init__(self, analysis: Analysis, guards: Guards, local_arrays: set[str]) -> None:
        self._analysis = analysis
        self._guards = guards
        self._local_arrays = local_arrays

    def strided(self, statement: ast.stmt) -> StridedLoop | None:
        """Returns the parts of a grid-stride loop; None if the statement is not an interchangeable one."""
        args = range_arguments(statement)
        if args is None or not isinstance(statement, ast.For) or not self._is_turnable(statement):
            return None
        start, stop, step = args
        known = self._analysis
        if loop_variable(statement) in assigned_names(statement.body) or not known.is_positive(step):
            return None
        if not all(known.is_uniform(part) and known.is_integral(part) for part in (stop, step)):
            return None
        for axis in AXES:
            offset = self._guards.offset(start, axis)
            if offset is not None:
                return StridedLoop(statement, axis, offset, known.is_nonneg(start), stop, step)
        return None

    def is_uniform_loop(self, statement: ast.stmt) -> bool:
        """Returns whether all threads run the loop the same number of times and interchanging it pays."""
        args = range_arguments(statement)
        if args is None or not isinstance(statement, ast.For) or not self._is_turnable(statement):
            return False
        target = loop_variable(statement)
        if target in self._analysis.varying or target in assigned_names(statement.body):
            return False
        if not all(self._analysis.is_uniform(arg) for arg in args) or self._trip_count(args) <= SHORT_LOOP:
            return False
        if any(isinstance(node, (ast.For, ast.While)) for node in walk(statement.body)):
            return False
        subscripts = [node for node in walk(statement.body) if isinstance(node, ast.Subscript)]
        return all(self._suits_threads(node.slice) for node in subscripts if target in read_names(node.slice))

    def _is_turnable(self, loop: ast.For) -> bool:
        if has_return(loop.body) or next(own_exits(loop.body), None) is not None or synchronises(loop):
            return False
        names = read_names(loop) | assigned_names(loop)
        return not (names & self._local_arrays) and self._is_own(loop)

    def _is_own(self, loop: ast.For) -> bool:
        """Returns whether the loop's variable is used only in loops over that variable."""
        target = loop_variable(loop)
        inside = sum(count_names(node, target) for node in _outermost_loops(self._analysis.body, target))
        return inside == count_names(self._analysis.body, target)

    def _trip_count(self, args: list[ast.expr]) -> float:
        values = []
        for arg in args:
            value = arg.value if isinstance(arg, ast.Constant) else None
            if isinstance(arg, ast.Name):
                value = self._analysis.namespace.get(arg.id)
            if type(value) is not int:
                return float("inf")
            values.append(value)
        return len(range(*values)) if values[2] else 0

    def _suits_threads(self, index: ast.expr) -> bool:
        """Returns whether neighbouring threads access neighbouring elements, or the same one, or a gathered one."""
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        thread = THREAD["x"]
        if any(self._analysis.depends_on(part, thread) for part in parts[:-1]):
            return False
        last = parts[-1]
        if not self._analysis.depends_on(last, thread) or self._guards.offset(last, "x") is not None:
            return True
        return any(isinstance(node, ast.Subscript) for node in ast.walk(last))


def _outermost_loops(body: list[ast.stmt], target: str) -> list[ast.For]:
    """Returns the loops over a variable that are not nested in another loop over it."""
    found: list[ast.For] = []
    for statement in body:
        if isinstance(statement, ast.For) and isinstance(statement.target, ast.Name) and statement.target.id == target:
            found.append(statement)
        elif isinstance(statement, (ast.For, ast.While, ast.If)):
            found += _outermost_loops([*statement.body, *statement.orelse], target)
    return found


def count_up(body: list[ast.stmt], analysis: Analysis) -> list[ast.stmt]:
    """Rewrites a top-level `while i < stop: …; i += step` as a `for` loop where the two are equivalent.

    They are if `stop` and `step` are uniform integers that the loop does not change, `step` is positive, and `i` is assigned
    only at the end of the loop and not used after it.

    Args:
        body: the statements of the kernel; not changed.
        analysis: analysis of the same statements.
    """
    done: list[ast.stmt] = []
    for position, statement in enumerate(body):
        plain = isinstance(statement, ast.While) and not synchronises(statement)
        loop = _as_for(cast(ast.While, statement), body[position + 1 :], analysis) if plain else None
        done.append(loop or statement)
    return done


def _as_for(loop: ast.While, behind: list[ast.stmt], known: Analysis) -> ast.For | None:
    match loop:
        case ast.While(
            test=ast.Compare(left=ast.Name(id=name), ops=[ast.Lt()], comparators=[stop]),
            body=[*work, ast.AugAssign(target=ast.Name(id=counted), op=ast.Add(), value=step)],
        ) if name == counted:
            pass
        case _:
            return None
    if not all(known.is_uniform(part) and known.is_integral(part) for part in (stop, step)) or not known.is_positive(step):
        return None
    if not known.is_integral(ast.Name(name, ast.Load())):
        return None
    if ({name} | read_names(stop) | read_names(step)) & assigned_names(work) or name in read_names(stop):
        return None
    if not work or any(isinstance(node, ast.Continue) for node in own_exits(work)) or count_names(behind, name):
        return None
    counter = f"_k_{name}"
    args = [load(name), stop, step]
    body = [_Renamed(name, counter).visit(copy.deepcopy(statement)) for statement in work]
    return place(ast.For(store(counter), ast.Call(load("range"), args, []), body, []), loop)


def return_early(body: list[ast.stmt], analysis: Analysis, guards: Guards) -> list[ast.stmt]:
    """Rewrites a final `if i < n: …` as `if not i < n: return` and its body; control flow in the body is then uniform.

    Args:
        body: the statements of the kernel; not changed.
        analysis: analysis of the same statements.
        guards: the kernel's conditions on thread indices.
    """
    last = body[-1] if body else None
    if not isinstance(last, ast.If) or last.orelse or analysis.is_uniform(last.test):
        return body
    if guards.absorb(last.test, Bounds(), set()) is not None:
        return body
    leave = ast.If(ast.UnaryOp(ast.Not(), last.test), [ast.Return()], [])
    return [*body[:-1], place(leave, last), *return_early(last.body, analysis, guards)]


def count_apart(body: list[ast.stmt], analysis: Analysis) -> list[ast.stmt]:
    """Rewrites `for v in range(…)` around a barrier as `while` with a counter per thread, where the range varies by thread.

    Args:
        body: the statements; changed in place.
        analysis: analysis of the same statements.
    """
    done: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, (ast.If, ast.For, ast.While)):
            statement.body = count_apart(statement.body, analysis)
            statement.orelse = count_apart(statement.orelse, analysis)
        args = range_arguments(statement)
        around = args is not None and isinstance(statement, ast.For) and synchronises(statement)
        if not around or all(map(analysis.is_uniform, args or [])):
            done.append(statement)
        else:
            done += _as_while(cast(ast.For, statement), args or [])
    return done


def _as_while(loop: ast.For, args: list[ast.expr]) -> list[ast.stmt]:
    name = f"{loop_variable(loop)}{loop.lineno}"
    at, stop, step = (f"_k_{word}_{name}" for word in ("at", "stop", "step"))
    start = [assign(target, value, loop) for target, value in zip((at, stop, step), args, strict=True)]
    up = isinstance(args[2], ast.Constant) and isinstance(args[2].value, int) and args[2].value > 0
    test = expression(f"{at} < {stop}" if up else f"({at} < {stop}) if {step} > 0 else ({at} > {stop})", loop)
    count = statements(f"{loop_variable(loop)} = {at}\n{at} += {step}", loop)
    return [*start, ast.copy_location(ast.While(test, count + loop.body, []), loop)]


class _Renamed(ast.NodeTransformer):
    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name(self._new, node.ctx), node) if node.id == self._old else node
