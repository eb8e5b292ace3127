"""Loop transformations: interchange of a thread's loop with the loop over threads, and
normalisation of loops and returns.

After the interchange (`LoopInversion`) the thread's loop is outside and the loop over the block's
threads inside. Neighbouring threads access neighbouring elements, so the inner loop vectorizes.
PoCL does the same for OpenCL as "implicit loop barriers".
"""

import ast
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

from synknumba.simt._analysis.bounds import Bounds, Guards
from synknumba.simt._analysis.uniformity import Analysis
from synknumba.simt._library.words import AXES, THREAD
from synknumba.simt._lower.exits import has_exit
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
        args = syntax.range_arguments(statement)
        if args is None or not isinstance(statement, ast.For) or not self._is_turnable(statement):
            return None
        start, stop, step = args
        analysis = self._analysis
        if not _steps_up(stop, step, analysis):
            return None
        for axis in AXES:
            offset = self._guards.offset(start, axis)
            if offset is not None:
                return StridedLoop(statement, axis, offset, analysis.is_nonneg(start), stop, step)
        return None

    def is_uniform_loop(self, statement: ast.stmt) -> bool:
        """Returns whether all threads run the loop the same number of times and interchanging it
        pays.
        """
        args = self._common_range(statement)
        if args is None or self._trip_count(args) <= SHORT_LOOP:
            return False
        loop = cast(ast.For, statement)
        target = syntax.loop_variable(loop)
        if any(isinstance(node, (ast.For, ast.While)) for node in syntax.walk(loop.body)):
            return False
        for node in syntax.walk(loop.body):
            match node:
                case ast.Subscript(slice=index) if target in syntax.read_names(index):
                    if not self._suits_threads(index):
                        return False
        return True

    def is_around_strided(self, statement: ast.stmt, axes: Collection[str]) -> bool:
        """Returns whether all threads run the loop the same number of times and a grid-stride loop
        along an axis is inside.

        Inside a region the inner loop would be one thread's, with a stride between its elements.
        """
        if self._common_range(statement) is None:
            return False
        inside = [self.strided(inner) for inner in cast(ast.For, statement).body]
        return any(loop is not None and loop.axis in axes for loop in inside)

    def _common_range(self, statement: ast.stmt) -> list[ast.expr] | None:
        """Returns the arguments of `range` if a loop may be interchanged and all threads run it
        with the same values.
        """
        args = syntax.range_arguments(statement)
        if args is None or not isinstance(statement, ast.For) or not self._is_turnable(statement):
            return None
        if syntax.loop_variable(statement) in self._analysis.varying:
            return None
        return args if all(map(self._analysis.is_uniform, args)) else None

    def _is_turnable(self, loop: ast.For) -> bool:
        if has_exit(loop.body) or synchronises(loop):
            return False
        assigned = syntax.assigned_names(loop.body)
        names = syntax.read_names(loop) | assigned
        is_fixed = syntax.loop_variable(loop) not in assigned
        return is_fixed and not (names & self._local_arrays) and self._is_own(loop)

    def _is_own(self, loop: ast.For) -> bool:
        """Returns whether the loop's variable is used only in loops over that variable."""
        target = syntax.loop_variable(loop)
        inside = sum(
            syntax.count_names(node, target)
            for node in _outermost_loops(self._analysis.body, target)
        )
        return inside == syntax.count_names(self._analysis.body, target)

    def _trip_count(self, args: list[ast.expr]) -> float:
        names = self._analysis.namespace
        values: list[Any] = [
            arg.value if isinstance(arg, ast.Constant) else names.get(getattr(arg, "id", ""))
            for arg in args
        ]
        if any(type(value) is not int for value in values):
            return float("inf")
        return len(range(*values)) if values[2] else 0

    def _suits_threads(self, index: ast.expr) -> bool:
        """Returns whether neighbouring threads access neighbouring elements, or the same one, or
        a gathered one.
        """
        *leading, last = syntax.parts_of(index)
        thread = THREAD["x"]
        if any(self._analysis.depends_on(part, thread) for part in leading):
            return False
        is_same = not self._analysis.depends_on(last, thread)
        if is_same or self._guards.offset(last, "x") is not None:
            return True
        return any(isinstance(node, ast.Subscript) for node in syntax.walk(last))


def _steps_up(stop: ast.expr, step: ast.expr, analysis: Analysis) -> bool:
    """Returns whether the end and the step of a loop are uniform integers and the step is
    positive.
    """
    return analysis.is_positive(step) and all(
        analysis.is_uniform(part) and analysis.is_integral(part) for part in (stop, step)
    )


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
    done: list[ast.stmt] = []
    for position, statement in enumerate(body):
        plain = isinstance(statement, ast.While) and not synchronises(statement)
        loop = (
            _as_for(cast(ast.While, statement), body[position + 1 :], analysis) if plain else None
        )
        done.append(loop or statement)
    return done


def _as_for(loop: ast.While, behind: list[ast.stmt], analysis: Analysis) -> ast.For | None:
    match loop.test, loop.body:
        case (
            ast.Compare(ast.Name(name), [ast.Lt()], [stop]),
            [*work, ast.AugAssign(ast.Name(counted), ast.Add(), step)],
        ) if name == counted and work:
            pass
        case _:
            return None
    if not _steps_up(stop, step, analysis) or not analysis.is_integral(syntax.load(name)):
        return None
    if syntax.read_names([syntax.load(name), stop, step]) & syntax.assigned_names(
        work
    ) or name in syntax.read_names(stop):
        return None
    if any(isinstance(node, ast.Continue) for node in syntax.own_exits(work)) or syntax.count_names(
        behind, name
    ):
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
        varies = not all(map(analysis.is_uniform, args)) and synchronises(statement)
        done += _as_while(cast(ast.For, statement), args) if varies else [statement]
    return done


def _as_while(loop: ast.For, args: list[ast.expr]) -> list[ast.stmt]:
    name = f"{syntax.loop_variable(loop)}{loop.lineno}"
    at, stop, step = (f"_k_{word}_{name}" for word in ("at", "stop", "step"))
    start = [
        syntax.assign(target, value, loop)
        for target, value in zip((at, stop, step), args, strict=True)
    ]
    up = isinstance(args[2], ast.Constant) and isinstance(args[2].value, int) and args[2].value > 0
    test = syntax.expression(
        f"{at} < {stop}" if up else f"({at} < {stop}) if {step} > 0 else ({at} > {stop})", loop
    )
    count = syntax.statements(f"{syntax.loop_variable(loop)} = {at}\n{at} += {step}", loop)
    return [*start, ast.copy_location(ast.While(test, count + loop.body, []), loop)]
