"""Loop transformations: interchange of a thread's loop with the loop over threads, and
normalisation of loops and returns.

After the interchange (`LoopInversion`) the thread's loop is outside and the loop over the block's
threads inside. Neighbouring threads access neighbouring elements, so the inner loop vectorizes.
PoCL does the same for OpenCL as "implicit loop barriers".
"""

import ast
import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import cast

from synknumba.simt._analysis.bounds import Bounds, Guards
from synknumba.simt._analysis.uniformity import Analysis
from synknumba.simt._library.words import AXES, THREAD
from synknumba.simt._lower.exits import has_exit, has_own_exit
from synknumba.simt._lower.sync import synchronises
from synknumba.simt._source import syntax

# Iterations. LLVM unrolls a constant loop this short and then vectorizes over the threads by
# itself; interchanging it as well cost a factor of 2.5 on a 16 × 16 matrix tile.
SHORT_LOOP = 64


@dataclass(frozen=True, slots=True)
class StridedLoop:
    """`for i in range(u + <thread index>, stop, step)`: a grid-stride loop."""

    loop: ast.For
    axis: str  # of the thread index
    offset: str  # text of `u` at the block level
    nonneg: bool  # whether the start is known to be non-negative
    stop: ast.expr  # uniform
    step: ast.expr  # uniform and positive


@dataclass(frozen=True, slots=True)
class _Turnable:
    """A loop that may be interchanged as far as it goes alone."""

    statement: ast.For
    range: list[ast.expr]  # start, stop and step


class LoopInversion:
    """Decides which loops of a kernel to interchange with the loop over threads.

    Args:
        analysis: analysis of the kernel.
        guards: the kernel's conditions on thread indices.
        local_arrays: variables created by `cuda.local.array`. A loop that uses one is not
            interchanged: the threads would take turns on one array.
    """

    def __init__(self, analysis: Analysis, guards: Guards, local_arrays: set[str]) -> None:
        self._analysis, self._guards, self._local_arrays = analysis, guards, local_arrays

    def strided(self, statement: ast.stmt) -> StridedLoop | None:
        """Returns the parts of a grid-stride loop; None if the statement is not an
        interchangeable one.
        """
        loop = self._turnable(statement)
        if loop is None:
            return None
        start, stop, step = loop.range
        if not _steps_up(stop, step, self._analysis):
            return None
        for axis in AXES:
            offset = self._guards.offset(start, axis)
            if offset is not None:
                nonneg = self._analysis.is_nonneg(start)
                return StridedLoop(loop.statement, axis, offset, nonneg, stop, step)
        return None

    def is_uniform_loop(self, statement: ast.stmt) -> bool:
        """Returns whether all threads run the loop the same number of times and interchanging it
        pays.
        """
        loop = self._run_alike(statement)
        if loop is None or self._trip_count(loop.range) <= SHORT_LOOP:
            return False
        target = syntax.loop_variable(loop.statement)
        for node in syntax.walk(loop.statement.body):
            match node:
                case ast.For() | ast.While():
                    return False
                case ast.Subscript(slice=index) if target in syntax.read_names(index):
                    if not self._suits_threads(index):
                        return False
        return True

    def is_around_strided(self, statement: ast.stmt, axes: Collection[str]) -> bool:
        """Returns whether all threads run the loop the same number of times and a grid-stride loop
        along an axis is inside.

        Inside a region the inner loop would be one thread's, with a stride between its elements.
        """
        loop = self._run_alike(statement)
        if loop is None:
            return False
        inner_loops = filter(None, map(self.strided, loop.statement.body))
        return any(inner.axis in axes for inner in inner_loops)

    def _run_alike(self, statement: ast.stmt) -> "_Turnable | None":
        """Returns a loop that may be interchanged if all threads run it with the same values."""
        loop = self._turnable(statement)
        if loop is None or syntax.loop_variable(loop.statement) in self._analysis.varying:
            return None
        return loop if all(map(self._analysis.is_uniform, loop.range)) else None

    def _turnable(self, statement: ast.stmt) -> "_Turnable | None":
        """Returns a loop over a range that may be interchanged; None for any other statement."""
        args = syntax.range_arguments(statement)
        if args is None:
            return None
        loop = cast(ast.For, statement)
        if has_exit(loop.body) or synchronises(loop):
            return None
        assigned = syntax.assigned_names(loop.body)
        is_changed = syntax.loop_variable(loop) in assigned
        if is_changed or (syntax.read_names(loop) | assigned) & self._local_arrays:
            return None
        return _Turnable(loop, args) if self._is_own(loop) else None

    def _is_own(self, loop: ast.For) -> bool:
        """Returns whether the loop's variable is used only in loops over that variable."""
        target = syntax.loop_variable(loop)
        body = self._analysis.body
        inside = syntax.count_names(_outermost_loops(body, target), target)
        return inside == syntax.count_names(body, target)

    def _trip_count(self, args: list[ast.expr]) -> float:
        match [self._constant(arg) for arg in args]:
            case [int(start), int(stop), int(step)]:
                return len(range(start, stop, step)) if step else 0
        return math.inf

    def _constant(self, node: ast.expr) -> int | None:
        """Returns the value of an integer literal or global; None for any other expression."""
        match node:
            case ast.Constant(value):
                pass
            case ast.Name(name):
                value = self._analysis.namespace.get(name)
            case _:
                return None
        return value if type(value) is int else None

    def _suits_threads(self, index: ast.expr) -> bool:
        """Returns whether neighbouring threads access neighbouring elements, or the same one, or
        a gathered one.
        """
        *leading, last = syntax.parts_of(index)
        moves = partial(self._analysis.depends_on, thread_index=THREAD["x"])
        if any(map(moves, leading)):
            return False
        if not moves(last) or self._guards.offset(last, "x") is not None:
            return True
        return any(syntax.nodes_of(ast.Subscript, last))


def _steps_up(stop: ast.expr, step: ast.expr, analysis: Analysis) -> bool:
    """Returns whether the end and the step of a loop are uniform integers and the step is
    positive.
    """
    if not analysis.is_positive(step):
        return False
    return analysis.is_fixed(stop) and analysis.is_fixed(step)


def _outermost_loops(body: list[ast.stmt], target: str) -> list[ast.For]:
    """Returns the loops over a variable that are not nested in another loop over it."""
    loops: list[ast.For] = []
    for statement in body:
        match statement:
            case ast.For(ast.Name(name)) if name == target:
                loops.append(statement)
            case ast.For() | ast.While() | ast.If():
                loops += _outermost_loops([*statement.body, *statement.orelse], target)
    return loops


def count_up(body: list[ast.stmt], analysis: Analysis) -> list[ast.stmt]:
    """Rewrites a top-level `while i < stop: …; i += step` as a `for` loop where the two are
    equivalent.

    They are if `stop` and `step` are uniform integers that the loop does not change, `step` is
    positive, and `i` is assigned only at the end of the loop and not used after it. `body` holds
    the statements of the kernel, and is not changed.
    """
    return [
        _as_for(statement, body[position:], analysis) or statement
        for position, statement in enumerate(body, 1)
    ]


def _as_for(loop: ast.stmt, behind: list[ast.stmt], analysis: Analysis) -> ast.For | None:
    match loop:
        case ast.While(
            ast.Compare(ast.Name(name) as index, [ast.Lt()], [stop]),
            [_, *_, ast.AugAssign(ast.Name(counted), ast.Add(), step)] as body,
        ) if name == counted:
            work = body[:-1]
        case _:
            return None
    if synchronises(loop) or has_own_exit(work, ast.Continue):
        return None
    if not _steps_up(stop, step, analysis) or not analysis.is_integral(index):
        return None
    if syntax.read_names([index, stop, step]) & syntax.assigned_names(work):
        return None
    if name in syntax.read_names(stop) or syntax.count_names(behind, name):
        return None
    counter, body = f"_k_{name}", syntax.all_copied(work)
    syntax.rename(body, {name: counter})
    return syntax.place(
        ast.For(
            syntax.store(counter), syntax.call("range", syntax.load(name), stop, step), body, []
        ),
        loop,
    )


def return_early(body: list[ast.stmt], analysis: Analysis, guards: Guards) -> list[ast.stmt]:
    """Rewrites a final `if i < n: …` as `if not i < n: return` and its body; control flow in the
    body is then uniform.

    `body` holds the statements of the kernel, and is not changed.
    """
    match body:
        case [*first, ast.If(test, inside, []) as last] if not analysis.is_uniform(test):
            if guards.absorb(test, Bounds(), set()) is None:
                leave = syntax.place(ast.If(ast.UnaryOp(ast.Not(), test), [ast.Return()], []), last)
                return [*first, leave, *return_early(inside, analysis, guards)]
    return body


def count_apart(body: list[ast.stmt], analysis: Analysis) -> list[ast.stmt]:
    """Rewrites in place each `for v in range(…)` around a barrier whose range varies by thread
    as `while` with a counter.
    """
    done: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, (ast.If, ast.For, ast.While)):
            statement.body = count_apart(statement.body, analysis)
            statement.orelse = count_apart(statement.orelse, analysis)
        args = syntax.range_arguments(statement) or []
        if all(map(analysis.is_uniform, args)) or not synchronises(statement):
            done.append(statement)
        else:
            done += _as_while(cast(ast.For, statement), args)
    return done


def _as_while(loop: ast.For, args: list[ast.expr]) -> list[ast.stmt]:
    name = f"{syntax.loop_variable(loop)}{loop.lineno}"
    at, stop, step = (f"_k_{word}_{name}" for word in ("at", "stop", "step"))
    start = [
        syntax.assign(target, value, loop)
        for target, value in zip((at, stop, step), args, strict=True)
    ]
    match args[2]:
        case ast.Constant(int(value)) if value > 0:
            text = f"{at} < {stop}"
        case _:
            text = f"({at} < {stop}) if {step} > 0 else ({at} > {stop})"
    test = syntax.expression(text, loop)
    count = syntax.statements(f"{syntax.loop_variable(loop)} = {at}\n{at} += {step}", loop)
    return [*start, ast.copy_location(ast.While(test, count + loop.body, []), loop)]
