"""Emitter: turns one thread's code into loops over the blocks of the grid and the threads of a
block.

The statements of a kernel are cut into *regions* at its barriers. A region becomes one loop over
the threads of the block, so that all threads reach the barrier before any thread continues.
Statements at the *block level*, between regions, run once per
block: assignments of uniform values, conditions and loops around barriers, interchanged loops
(`_analysis.loops`), and collectives, each a single call for all threads on the slot arrays of its
operands and results.

    for _k_bx in range(_k_Gx):                       the block level
        n__u = x.shape[0]
        for _k_tx in range(min(_k_Bx, ...)):         a region: recompute, load slots, statements, store slots
            ...

Stratton, Stone and Hwu (LCPC 2008) describe this for CUDA C under the name MCUDA, where a slot is
called selective replication.
"""  # noqa: E501

import ast
import math
from dataclasses import dataclass, replace
from typing import cast

from synknumba.simt._analysis.bounds import Bounds, Guards, inner_axis
from synknumba.simt._analysis.buffer_swaps import SwapFinder, SwapUpdate
from synknumba.simt._analysis.loops import LoopInversion, StridedLoop
from synknumba.simt._analysis.split_regions import is_silent
from synknumba.simt._analysis.team import Team
from synknumba.simt._analysis.uniformity import Analysis
from synknumba.simt._emit.collect import collect
from synknumba.simt._emit.masks import Divergence, masked_if, masked_loop
from synknumba.simt._emit.region import MASK, Active, Block, Regions, Style
from synknumba.simt._emit.storage import escaping
from synknumba.simt._library.words import AXES, BLOCK, GRID_SIZE, THREAD, VARYING_STATE
from synknumba.simt._lower.exits import RUNNING, around, has_exit
from synknumba.simt._lower.sync import barrier_kind, collective_of, synchronises, waits_for
from synknumba.simt._source.syntax import (
    assign,
    assigned_names,
    call,
    expression,
    has_return,
    is_leave,
    loop_variable,
    own_exits,
    place,
    read_names,
    statements,
    store,
)

# Threads of a block along an axis. The interchange around a grid-stride loop made a heat step at
# 1024² take a tenth of the time with 128 threads, half with 16, and 1.2 to 1.7 times as long with
# 8: the loops over few threads cost more than they save.
MIN_THREADS = 16


def has_many_threads(block: Block) -> bool:
    """Returns whether a block has enough threads for loops over them."""
    return math.prod(block) >= MIN_THREADS


@dataclass(frozen=True, slots=True)
class BlockCode:
    """The loops over the grid, and the storage that they need.

    Attributes:
        body: the statements.
        varying_slots: variables that need a slot array, with one element per thread.
        padded: the varying slots that need margins.
        swapped: the double-buffered shared arrays.
        undefined: uniform variables that may be read before assignment, as after an `if` that sets
            them. Python and Numba need a value there; which one does not matter.
        team: the threads that run in step.
        flat: the axes that run as one block, in code that does not depend on the size of blocks
            along them.
    """

    body: list[ast.stmt]
    varying_slots: tuple[str, ...]
    padded: frozenset[str]
    swapped: frozenset[str]
    undefined: tuple[str, ...]
    team: Team
    flat: frozenset[str]


def emit_blocks(
    analysis: Analysis, local_arrays: set[str], divergence: Divergence, style: Style
) -> BlockCode:
    """Generates the code of a whole launch except its storage.

    Args:
        analysis: analysis of the kernel; not changed.
        local_arrays: variables created by `cuda.local.array`.
        divergence: makes the runtime checks for barriers that some threads do not reach.
        style: options of code generation.
    """
    slots = escaping(analysis, local_arrays) if style.cuts or synchronises(analysis.body) else set()
    while True:  # to a fixed point: a slot found in a late region must be stored by an earlier one
        emitter = _Emitter(analysis, local_arrays, set(slots), divergence, style)
        body = emitter.grid()
        regions = emitter.regions
        if regions.slots == slots:
            varying = tuple(sorted(slots & analysis.varying))
            undefined = tuple(sorted(regions.undefined - analysis.varying))
            padded, swapped = frozenset(regions.padded), frozenset(emitter.swapped)
            return BlockCode(body, varying, padded, swapped, undefined, regions.team, style.flat)
        slots = regions.slots


class _Emitter:
    """One pass over a kernel, given the slots found by earlier passes."""

    def __init__(
        self,
        analysis: Analysis,
        local_arrays: set[str],
        slots: set[str],
        divergence: Divergence,
        style: Style,
    ) -> None:
        self.analysis, self.style, self.divergence = analysis, style, divergence
        inner = inner_axis(analysis)
        self._order = [*(axis for axis in reversed(AXES) if axis != inner), inner]
        self.regions = Regions(analysis, self._order, local_arrays, slots, style)
        self.loops = LoopInversion(analysis, self.regions.guards, local_arrays)
        # queries only: creates no slots
        self.planned = LoopInversion(analysis, Guards(analysis, ast.unparse), local_arrays)
        self.updates = SwapFinder(analysis, style.shared, style.block)
        self.swapped: set[str] = set()
        sizes = style.block or (MIN_THREADS,) * len(AXES)
        self._wide = {
            axis
            for axis, size in zip(AXES, sizes, strict=True)
            if size >= MIN_THREADS or axis in style.flat
        }
        # Whether loops that all threads run alike are interchanged: not where one thread's suit
        # vector instructions better.
        thread = read_names([*analysis.body, *analysis.recomputed.values()]) & VARYING_STATE
        self._turns_uniform = bool(thread) and has_many_threads(sizes)
        self._synchronised = synchronises(analysis.body)
        self._count = 0

    def grid(self) -> list[ast.stmt]:
        """Emits the loops over the grid."""
        at = self.analysis.body[0] if self.analysis.body else ast.Pass()
        team = self.regions.team
        active = Active(self.regions.all_threads, final=not team.grid)
        body = self.statements(self.analysis.body, active, top=True)
        if MASK in read_names(body):
            start = f"for _k_t in range({team.size}):\n    {MASK}[_k_t] = {RUNNING}"
            body = statements(start, at) + body
        if not team.grid:
            for axis in reversed(self._order):
                if axis not in self.style.flat:
                    body = around(f"for {BLOCK[axis]} in range({GRID_SIZE[axis]}):", body, at)
        return body

    # ---- statements that follow each other

    def statements(
        self, body: list[ast.stmt], active: Active, *, top: bool = False
    ) -> list[ast.stmt]:
        """Emits consecutive statements; at the `top` they run once per block, and nothing after
        them.
        """
        out: list[ast.stmt] = []
        pending: list[ast.stmt] = []
        may_have_left = False  # whether some threads may have exited in the pending statements
        rest = body
        while rest:
            statement, *rest = rest
            update = self._update(statement, pending, rest, active)
            if update is not None:
                out += self.regions.region(update.body, active) + update.swap(statement)
                self.swapped.update(update.arrays)
                pending, may_have_left, rest = [], False, rest[update.count :]
                continue
            if self._stands_alone(statement, active):
                out += self.regions.region(pending, active)
                pending, may_have_left = [], False
                # Behind a barrier at the end of the kernel, no thread does anything that others
                # could see.
                is_last = all(map(_does_nothing, rest)) and (top or not synchronises(rest))
                out += self._alone(statement, replace(active, final=active.final and is_last))
                continue
            if self._parts_region(statement, pending, rest, top=top, may_have_left=may_have_left):
                out += self.regions.region(pending, active)
                pending, may_have_left = [], False
            if may_have_left:
                pending.append(statement)
                continue
            prefix = self._prefix(statement, pending, rest, active) if top else None
            if prefix is not None:
                return out + prefix
            if self._is_interchanged(statement):
                out += self.regions.region(pending, active)
                out += self._interchanged(statement, active)
                pending = []
            else:
                pending.append(statement)
                may_have_left = has_exit([statement])
        return out + self.regions.region(pending, active, last=top)

    def _parts_region(
        self,
        statement: ast.stmt,
        pending: list[ast.stmt],
        rest: list[ast.stmt],
        *,
        top: bool,
        may_have_left: bool,
    ) -> bool:
        """Returns whether the statement and those after it form a region of their own: for the
        remaining threads where some may have exited, or since it must not be hoisted.
        """
        splits = self._synchronised and not top
        if may_have_left:
            return splits or synchronises(rest)
        return splits and self.regions.must_wait(statement, pending)

    def _stands_alone(self, statement: ast.stmt, active: Active) -> bool:
        """Returns whether the statement is a block-level one: it contains a barrier, or all
        threads exit by it.
        """
        if synchronises(statement) or not self._synchronised:
            return self._synchronised
        match statement:
            case ast.Break() | ast.Continue():
                return active.loop is None
            case ast.Return():
                return active.depth == 0
            case ast.If() if self.analysis.is_uniform(statement.test):
                if active.depth == 0:
                    return _ends_in_return(statement)
                return active.loop is None and any(own_exits([statement]))
        return False

    def _update(
        self, statement: ast.stmt, before: list[ast.stmt], behind: list[ast.stmt], active: Active
    ) -> SwapUpdate | None:
        """Returns the double-buffered update around a barrier that all threads of the block
        reach; None if there is none.
        """
        if self.regions.team.grid or barrier_kind(statement) != "block":
            return None
        return self.updates.find(before, behind) if self.regions.takes_all(active) else None

    def _alone(self, statement: ast.stmt, active: Active) -> list[ast.stmt]:
        collective = collective_of(statement)
        if collective is not None or barrier_kind(statement):
            code = self.divergence.of_exits(statement, self.regions, active)
            if collective is not None:
                code += collect(collective, self.regions, active, statement)
            return code
        match statement:
            case ast.Break() | ast.Continue():
                return [statement]
            case ast.Return():
                return [self._leave(statement)]
            case ast.If():
                return self._if(statement, active)
            case ast.While():
                return self._while(statement, active)
            case ast.For():
                return self._for(statement, active)
        raise self.divergence.refusal(statement, "a barrier inside this statement")

    def _leave(self, at: ast.AST) -> ast.stmt:
        """Returns the statement by which all threads of the block return: to the next block, or
        from the launch.
        """
        is_only_block = len(self.style.flat) == len(AXES) or self.regions.team.grid
        return place(ast.Return() if is_only_block else ast.Continue(), at)

    def _nested(self, body: list[ast.stmt], active: Active, *, target: str = "") -> list[ast.stmt]:
        """Emits statements that may not run, so their assignments do not count as made for the
        statements after them.

        The enclosing loop assigns `target` before them.
        """
        before = set(self.regions.assigned_before)
        self.regions.assigned_before.add(target)
        code = self.statements(body, active)
        self.regions.assigned_before = before
        return code

    # ---- conditions and loops around barriers

    def _if(self, statement: ast.If, active: Active) -> list[ast.stmt]:
        if self.analysis.is_uniform(statement.test):
            # All threads may return together as long as no loop is around; a condition does not
            # count as depth for that.
            inner = active if _ends_in_return(statement) else active.inside()
            test = self.regions.block_value(statement.test)
            body = self._nested(statement.body, inner)
            orelse = self._nested(statement.orelse, inner)
            return [place(ast.If(test, _or_pass(body), orelse), statement)]
        if not statement.orelse and self.regions.has_all_within(active):
            bounded = self._bounded_if(statement, active)
            if bounded is not None:
                return bounded
        branches = statement.body, statement.orelse
        branches_meet = all(map(synchronises, branches)) and any(
            waits_for(branch, "block") for branch in branches
        )
        checks = None if active.final and not branches_meet else self.divergence
        return masked_if(statement, self.regions, active, checks, self._nested)

    def _bounded_if(self, statement: ast.If, active: Active) -> list[ast.stmt] | None:
        """Emits an `if` whose condition bounds the thread indices, so that no masks are needed;
        None for any other `if`.
        """
        bounds = Bounds()
        if self.regions.guards.absorb(statement.test, bounds, set()) is not None:
            return None
        self._count += 1
        code, inner, empty = self._shrunk(bounds, active, statement, str(self._count))
        body = self._nested(statement.body, replace(active.inside(), bounds=inner))
        if not active.final:
            code += self.divergence.of_bounds(statement, active.bounds, inner)
        test = expression(f"not ({' or '.join(empty)})", statement)
        return [*code, place(ast.If(test, _or_pass(body), []), statement)]

    def _while(self, loop: ast.While, active: Active) -> list[ast.stmt]:
        if not self.analysis.is_uniform(loop.test) or not self.analysis.leaves_in_step(loop.body):
            return masked_loop(loop, self.regions, active, self.divergence, self._nested)
        body = self._loop_body(loop, active)
        test = self.regions.block_value(loop.test)
        return [place(ast.While(test, _or_pass(body), []), loop)]

    def _for(self, loop: ast.For, active: Active) -> list[ast.stmt]:
        if not isinstance(loop.target, ast.Name) or read_names(loop.iter) & self.analysis.varying:
            # A loop over a range that varies between threads is a `while` by now: `count_apart` has
            # rewritten it.
            raise self.divergence.refusal(
                loop, "a barrier in a for loop over a value that may differ between threads"
            )
        target = loop_variable(loop)
        if not self.analysis.leaves_in_step(loop.body):
            return masked_loop(loop, self.regions, active, self.divergence, self._nested)
        self.regions.slots.add(target)
        span = self.regions.block_value(loop.iter)
        body = self._loop_body(loop, active, target)
        if target not in self.analysis.varying:
            return [place(ast.For(store(f"{target}__u"), span, _or_pass(body), []), loop)]
        counter = f"{target}__i"
        first = self.regions.region(statements(f"{target} = {counter}", loop), active)
        return [place(ast.For(store(counter), span, [*first, *body], []), loop)]

    def _loop_body(
        self, loop: ast.For | ast.While, active: Active, target: str = ""
    ) -> list[ast.stmt]:
        inner = replace(active.inside(), loop=None, final=False)
        if not has_return(loop.body):
            return self._nested(loop.body, inner, target=target)
        self.regions.left = True  # in the next iteration
        body = self._nested(loop.body, inner, target=target)
        count = self.regions.region(statements("_k_running += 1", loop), active)
        return [
            *statements("_k_running = 0", loop),
            *count,
            *statements("if _k_running == 0:\n    break", loop),
            *body,
        ]

    # ---- interchanged loops

    def _is_interchanged(self, statement: ast.stmt) -> bool:
        if not self.style.split:
            return False
        strided = self.planned.strided(statement)
        if strided is not None:
            return strided.axis in self._wide
        if self._turns_uniform and self.planned.is_uniform_loop(statement):
            return True
        return self.planned.is_around_strided(
            statement, self._wide
        ) or self._is_around_interchanged(statement)

    def _is_around_interchanged(self, statement: ast.stmt) -> bool:
        """Returns whether the statement is an `if` in which all threads go the same way, to a loop
        that is interchanged.
        """
        if not isinstance(statement, ast.If) or not self.analysis.is_uniform(statement.test):
            return False
        if has_exit([statement]) or synchronises(statement):
            return False
        return any(map(self._is_interchanged, [*statement.body, *statement.orelse]))

    def _interchanged(self, statement: ast.stmt, active: Active) -> list[ast.stmt]:
        if self.planned.strided(statement):
            return self._strided(cast(StridedLoop, self.loops.strided(statement)), active)
        if isinstance(statement, ast.If):
            return self._if(statement, active)
        return self._uniform_loop(cast(ast.For, statement), active)

    def _strided(self, strided: StridedLoop, active: Active) -> list[ast.stmt]:
        """Emits a grid-stride loop: the loop over the first index of the block outside, the loop
        over threads inside.
        """
        loop, axis = strided.loop, strided.axis
        name = loop_variable(loop)
        first = f"_k_first_{name}"
        index = assign(name, expression(f"{first} + {THREAD[axis]}", loop), loop)
        block_value = self.regions.block_value
        span = call(
            "range",
            expression(strided.offset, loop),
            block_value(strided.stop),
            block_value(strided.step),
        )
        bounds = active.bounds.copy()
        bounds.high[axis].append(f"{self.regions.block_text(strided.stop)} - {first}")
        with self.analysis.thread_index(index, first, nonneg=strided.nonneg):
            body = self._nested(loop.body, replace(active.inside(), bounds=bounds))
        return [place(ast.For(store(first), span, body, []), loop)] if body else []

    def _uniform_loop(self, loop: ast.For, active: Active) -> list[ast.stmt]:
        """Emits a loop that all threads run the same number of times: the loop outside, the loop
        over threads inside.
        """
        name = loop_variable(loop)
        self.regions.slots.add(name)
        body = self._nested(loop.body, active.inside(), target=name)
        span = self.regions.block_value(loop.iter)
        return [place(ast.For(store(f"{name}__u"), span, body, []), loop)] if body else []

    # ---- fewer threads

    def _prefix(
        self, statement: ast.stmt, pending: list[ast.stmt], behind: list[ast.stmt], active: Active
    ) -> list[ast.stmt] | None:
        """Emits `if i >= n: return` and all statements after it, or a final `if i < n: …`, as loops
        over fewer threads.

        Returns:
            The code, pending statements included; None if the statement is not such an `if`.
        """
        if not isinstance(statement, ast.If) or statement.orelse:
            return None
        leaves = is_leave(statement.body)
        if not leaves and not all(map(_does_nothing, behind)):
            return None
        # Local results of threads that return are unused, so only the remaining threads need to
        # compute theirs.
        hoisted, remaining = self.regions.declare_before(pending)
        moves_in = all(is_silent(before, self.analysis) for before in remaining)
        inside = behind if leaves else statement.body
        if not moves_in and not self._forms_regions(inside):
            return None
        bounds, writes = Bounds(), assigned_names(remaining) if moves_in else set()
        test = self.regions.guards.absorb(statement.test, bounds, writes, negate=leaves)
        if test is statement.test:
            return None
        if test is not None:
            guard = ast.copy_location(ast.If(test, statement.body, []), statement)
            inside = [guard, *behind] if leaves else [guard]
        if moves_in:
            before, inside = hoisted, remaining + inside
        else:
            before = self.regions.region(pending, active)
        code, inner, empty = self._shrunk(bounds, active, statement, "")
        for text in empty:
            code += around(f"if {text}:", [self._leave(statement)], statement)
        return before + code + self.statements(inside, replace(active, bounds=inner), top=True)

    def _forms_regions(self, body: list[ast.stmt]) -> bool:
        """Returns whether the statements are more than one region."""
        return any(map(self._is_interchanged, body)) or synchronises(body)

    def _shrunk(
        self, bounds: Bounds, active: Active, at: ast.stmt, suffix: str
    ) -> tuple[list[ast.stmt], Bounds, list[str]]:
        """Tightens the bounds of the active threads.

        Returns:
            Code that computes the new bounds; the bounds; for each axis, the condition under which
            no thread remains.
        """
        code: list[ast.stmt] = []
        inner, empty = active.bounds.copy(), []
        for axis in AXES:
            if not (bounds.low[axis] + bounds.high[axis]):
                continue
            low, high = f"_k_low_{axis}{suffix}", f"_k_high_{axis}{suffix}"
            merged = Bounds()
            merged.low[axis] = inner.low[axis] + bounds.low[axis]
            merged.high[axis] = inner.high[axis] + bounds.high[axis]
            code += statements(f"{high} = {merged.high_text(axis)}", at)
            if merged.low[axis]:
                code += statements(f"{low} = {merged.low_text(axis)}", at)
            empty.append(f"{high} <= {low if merged.low[axis] else 0}")
            inner.low[axis] = [low] if merged.low[axis] else []
            inner.high[axis] = [high]
        inner.facts += [fact for fact in bounds.facts if self.analysis.is_settled(fact)]
        return code, inner, empty


def _or_pass(body: list[ast.stmt]) -> list[ast.stmt]:
    return body or [ast.Pass()]


def _does_nothing(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or barrier_kind(statement) is not None


def _ends_in_return(statement: ast.If) -> bool:
    """Returns whether a branch ends in a `return`, and nothing else in the statement returns."""
    ends = 0
    for branch in (statement.body, statement.orelse):
        match branch:
            case [*before, ast.Return()] if not has_return(before):
                ends += 1
            case _ if has_return(branch):
                return False
    return ends > 0
