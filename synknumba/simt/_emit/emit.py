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
import operator
from dataclasses import dataclass, replace
from typing import Literal, cast

from synknumba.simt._analysis.bounds import Bounds, Guards, inner_axis
from synknumba.simt._analysis.buffer_swaps import SwapFinder, SwapUpdate
from synknumba.simt._analysis.loops import LoopInversion, StridedLoop
from synknumba.simt._analysis.split_regions import is_silent
from synknumba.simt._analysis.team import Team
from synknumba.simt._analysis.uniformity import Analysis
from synknumba.simt._emit.collect import collect
from synknumba.simt._emit.masks import Divergence, masked_if, masked_loop
from synknumba.simt._emit.region import MASK, Active, Block, Regions, Slots, Style
from synknumba.simt._emit.storage import escaping
from synknumba.simt._library.words import AXES, BLOCK, THREAD, VARYING_STATE
from synknumba.simt._lower.exits import RUNNING, around, has_exit
from synknumba.simt._lower.sync import barrier_kind, collective_of, synchronises, waits_for
from synknumba.simt._source.syntax import (
    assign,
    assigned_names,
    call,
    expression,
    has_return,
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

# Of few threads, of many, or gathered in larger ones.
BlockKind = Literal["few", "many", "gathered"]


def has_many_threads(block: Block) -> bool:
    """Returns whether a block has enough threads for loops over them."""
    return math.prod(block) >= MIN_THREADS


def block_kind(block: Block | None) -> BlockKind:
    """Returns which blocks a flat kernel has the same code as this one for."""
    if block is not None and len(block) > len(AXES):
        return "gathered"
    return "many" if block is None or has_many_threads(block) else "few"


def long_axes(grid: Block, block: Block) -> Block:
    """Returns the numbers of the axes along which a launch of small blocks has enough threads to
    gather them in larger blocks; none if the blocks are large.
    """
    if block[0] * block[1] * block[2] >= MIN_THREADS:
        return ()
    threads = map(operator.mul, grid, block)
    return tuple(axis for axis, count in enumerate(threads) if count >= MIN_THREADS)


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
        interchanges: whether loops of a thread have been interchanged with the loop over threads.
        style: the options by which the code was generated.
    """

    body: list[ast.stmt]
    varying_slots: tuple[str, ...]
    padded: frozenset[str]
    swapped: frozenset[str]
    undefined: tuple[str, ...]
    team: Team
    interchanges: bool
    style: Style

    @property
    def serves_any_block(self) -> bool:
        """Whether the code does not depend on the size of blocks."""
        return len(self.style.flat) == len(AXES) and not self.style.threads


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
    names: set[str] = set()
    if style.cuts or synchronises(analysis.body):
        names = escaping(analysis, local_arrays)
    while True:  # to a fixed point: a slot found in a late region must be stored by an earlier one
        slots = Slots(analysis, local_arrays, set(names))
        emitter = _Emitter(analysis, slots, divergence, style)
        body = emitter.grid()
        if slots.names == names:
            varying = tuple(sorted(names & analysis.varying))
            undefined = tuple(sorted(slots.undefined - analysis.varying))
            padded, swapped = frozenset(slots.padded), frozenset(emitter.swapped)
            return BlockCode(
                body,
                varying,
                padded,
                swapped,
                undefined,
                emitter.regions.team,
                emitter.interchanges,
                style,
            )
        names = slots.names


class _Interchange:
    """Decides which loops of a thread are interchanged with the loop over threads."""

    def __init__(self, analysis: Analysis, local_arrays: set[str], style: Style) -> None:
        self._analysis, self._splits = analysis, style.split
        # queries only: creates no slots
        self._loops = LoopInversion(analysis, Guards(analysis, ast.unparse), local_arrays)
        sizes = style.block or (MIN_THREADS,) * len(AXES)
        wide = (axis for axis, size in zip(AXES, sizes, strict=True) if size >= MIN_THREADS)
        self._wide = style.flat.union(wide)
        # Whether loops that all threads run alike are interchanged: not where one thread's suit
        # vector instructions better.
        thread = read_names([*analysis.body, *analysis.recomputed.values()]) & VARYING_STATE
        self._turns_uniform = bool(thread) and has_many_threads(sizes)

    def is_strided(self, statement: ast.stmt) -> bool:
        """Returns whether the statement is a grid-stride loop."""
        return self._loops.strided(statement) is not None

    def applies(self, statement: ast.stmt) -> bool:
        """Returns whether the statement is a loop that is interchanged, or an `if` around one."""
        if not self._splits:
            return False
        strided = self._loops.strided(statement)
        if strided is not None:
            return strided.axis in self._wide
        if self._turns_uniform and self._loops.is_uniform_loop(statement):
            return True
        if self._loops.is_around_strided(statement, self._wide):
            return True
        # an `if` in which all threads go the same way
        match statement:
            case ast.If(test, then, orelse) if self._analysis.is_uniform(test):
                if not has_exit([statement]) and not synchronises(statement):
                    return any(map(self.applies, [*then, *orelse]))
        return False


class _Emitter:
    """One pass over a kernel, given the slots found by earlier passes."""

    def __init__(
        self, analysis: Analysis, slots: Slots, divergence: Divergence, style: Style
    ) -> None:
        self.analysis, self.style, self.divergence = analysis, style, divergence
        inner = inner_axis(analysis)
        if style.threads:
            inner = style.long[0]
        self._order = [*(axis for axis in reversed(AXES) if axis != inner), inner]
        self.regions = Regions(analysis, self._order, slots, style)
        self.loops = LoopInversion(analysis, self.regions.guards, slots.local_arrays)
        self._interchange = _Interchange(analysis, slots.local_arrays, style)
        self.updates = SwapFinder(analysis, style.shared, style.block)
        self.swapped: set[str] = set()
        self.interchanges = False
        self._synchronised = synchronises(analysis.body)
        self._count = 0

    def grid(self) -> list[ast.stmt]:
        """Emits the loops over the grid."""
        at = next(iter(self.analysis.body), ast.Pass())
        team = self.regions.team
        active = Active(self.regions.all_threads, final=not team.grid)
        body = self.statements(self.analysis.body, active, top=True)
        if MASK in read_names(body):
            start = f"for _k_t in range({team.size}):\n    {MASK}[_k_t] = {RUNNING}"
            body = statements(start, at) + body
        if not team.grid:
            for axis in reversed(self._order):
                if axis not in self.style.flat:
                    blocks = self.regions.blocks(axis)
                    body = around(f"for {BLOCK[axis]} in range({blocks}):", body, at)
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
            if self._interchange.applies(statement):
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
        if not self.regions.takes_all(active):
            return None
        return self.updates.find(before, behind)

    def _alone(self, statement: ast.stmt, active: Active) -> list[ast.stmt]:
        collective = collective_of(statement)
        if collective is not None:
            code = self.divergence.of_exits(statement, self.regions, active)
            return code + collect(collective, self.regions, active, statement)
        if barrier_kind(statement):
            return self.divergence.of_exits(statement, self.regions, active)
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
        slots = self.regions.slots
        before = set(slots.assigned)
        slots.assigned.add(target)
        code = self.statements(body, active)
        slots.assigned = before
        return code

    # ---- conditions and loops around barriers

    def _if(self, statement: ast.If, active: Active) -> list[ast.stmt]:
        if self.analysis.is_uniform(statement.test):
            # All threads may return together as long as no loop is around; a condition does not
            # count as depth for that.
            inner = active
            if not _ends_in_return(statement):
                inner = active.inside()
            test = self.regions.block_value(statement.test)
            body = self._nested(statement.body, inner)
            orelse = self._nested(statement.orelse, inner)
            return [place(ast.If(test, _or_pass(body), orelse), statement)]
        bounded = self._bounded_if(statement, active)
        if bounded is not None:
            return bounded
        checks: Divergence | None = self.divergence
        if active.final and not _branches_meet(statement):
            checks = None
        return masked_if(statement, self.regions, active, checks, self._nested)

    def _bounded_if(self, statement: ast.If, active: Active) -> list[ast.stmt] | None:
        """Emits an `if` whose condition bounds the thread indices, so that no masks are needed;
        None for any other `if`.
        """
        if statement.orelse or not self.regions.has_all_within(active):
            return None
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
        self.regions.slots.names.add(target)
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

    def _interchanged(self, statement: ast.stmt, active: Active) -> list[ast.stmt]:
        self.interchanges = True
        if self._interchange.is_strided(statement):
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
        return _loop_around(body, first, span, loop)

    def _uniform_loop(self, loop: ast.For, active: Active) -> list[ast.stmt]:
        """Emits a loop that all threads run the same number of times: the loop outside, the loop
        over threads inside.
        """
        name = loop_variable(loop)
        self.regions.slots.names.add(name)
        body = self._nested(loop.body, active.inside(), target=name)
        return _loop_around(body, f"{name}__u", self.regions.block_value(loop.iter), loop)

    # ---- fewer threads

    def _prefix(
        self, statement: ast.stmt, pending: list[ast.stmt], behind: list[ast.stmt], active: Active
    ) -> list[ast.stmt] | None:
        """Emits `if i >= n: return` and all statements after it, or a final `if i < n: …`, as loops
        over fewer threads.

        Returns:
            The code, pending statements included; None if the statement is not such an `if`.
        """
        match statement:
            case ast.If(test, [ast.Return()], []):
                leaves, inside = True, behind
            case ast.If(test, inside, []) if all(map(_does_nothing, behind)):
                leaves, behind = False, []
            case _:
                return None
        # Local results of threads that return are unused, so only the remaining threads need to
        # compute theirs.
        hoisted, remaining = self.regions.declare_before(pending)
        moves_in = all(is_silent(before, self.analysis) for before in remaining)
        if not (moves_in or synchronises(inside) or any(map(self._interchange.applies, inside))):
            return None  # all of it is one region
        bounds, writes = Bounds(), set[str]()
        if moves_in:
            writes = assigned_names(remaining)
        rest = self.regions.guards.absorb(test, bounds, writes, negate=leaves)
        if rest is test:
            return None
        if rest is not None:
            guard = ast.copy_location(ast.If(rest, statement.body, []), statement)
            inside = [guard, *behind]
        if moves_in:
            before, inside = hoisted, remaining + inside
        else:
            before = self.regions.region(pending, active)
        code, inner, empty = self._shrunk(bounds, active, statement, "")
        for text in empty:
            code += around(f"if {text}:", [self._leave(statement)], statement)
        return before + code + self.statements(inside, replace(active, bounds=inner), top=True)

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
        for axis in bounds.axes():
            low, high = f"_k_low_{axis}{suffix}", f"_k_high_{axis}{suffix}"
            inner.low[axis] += bounds.low[axis]
            inner.high[axis] += bounds.high[axis]
            code += statements(f"{high} = {inner.high_text(axis)}", at)
            inner.high[axis] = [high]
            if not inner.low[axis]:
                empty.append(f"{high} <= 0")
                continue
            code += statements(f"{low} = {inner.low_text(axis)}", at)
            inner.low[axis] = [low]
            empty.append(f"{high} <= {low}")
        inner.facts += [fact for fact in bounds.facts if self.analysis.is_settled(fact)]
        return code, inner, empty


def _or_pass(body: list[ast.stmt]) -> list[ast.stmt]:
    return body or [ast.Pass()]


def _loop_around(body: list[ast.stmt], name: str, span: ast.expr, at: ast.AST) -> list[ast.stmt]:
    """Returns the loop over a range; nothing if it has no body."""
    if not body:
        return []
    return [place(ast.For(store(name), span, body, []), at)]


def _branches_meet(statement: ast.If) -> bool:
    """Returns whether threads of both branches meet at barriers, one of which is of the block."""
    if not all(map(synchronises, (statement.body, statement.orelse))):
        return False
    return waits_for(statement, "block")


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
