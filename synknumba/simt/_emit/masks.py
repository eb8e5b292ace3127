"""Divergent conditions and loops around barriers, which only some threads of a block take.

Each thread has a mask, an int8, and runs the statements whose level is below its mask:

    127      runs everywhere
    L + 1    skips the body of an `if` at level L, which has level L + 1, until the end of the `if`
    L + 1    has left a loop at level L, until the end of the loop
    L + 2    has ended the iteration of a loop at level L, until the next iteration
    0        has returned
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace

from synknumba.simt._analysis.bounds import Bounds
from synknumba.simt._emit.region import MASK, Active, Regions
from synknumba.simt._library.words import AXES
from synknumba.simt._lower.exits import RUNNING, around
from synknumba.simt._lower.sync import waits_for
from synknumba.simt._source.syntax import loop_variable, own_exits, place, statements, store
from synknumba.simt._source.written import Source

BEFORE = "_k_before"
INSIDE = "_k_inside"

# Emits nested statements for the active threads.
Nested = Callable[[list[ast.stmt], Active], list[ast.stmt]]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Generates runtime checks for divergent barriers, which only some threads of a block reach; a
    GPU waits there forever.

    If the kernel synchronises the whole `grid`, only barriers of the grid are checked.
    """

    source: Source
    grid: bool = False

    def of_counts(self, statement: ast.stmt, what: str) -> list[ast.stmt]:
        """Returns a check that none or all of the `_k_before` threads are among the `_k_inside`
        threads in the statement.
        """
        return self._check(statement, what, f"0 < {INSIDE} < {BEFORE}")

    def of_bounds(self, statement: ast.stmt, outer: Bounds, inner: Bounds) -> list[ast.stmt]:
        """Returns a check that an `if` with narrower bounds runs for none or all of the threads."""
        changed = [
            axis
            for axis in AXES
            if outer.high[axis] != inner.high[axis] or outer.low[axis] != inner.low[axis]
        ]
        spans = {axis: f"{inner.high_text(axis)} - {inner.low_text(axis)}" for axis in changed}
        fewer = " or ".join(
            f"{spans[axis]} < {outer.high_text(axis)} - {outer.low_text(axis)}" for axis in changed
        )
        not_empty = " and ".join(f"{spans[axis]} > 0" for axis in changed)
        return self._check(statement, "an if", f"({not_empty}) and ({fewer})")

    def of_exits(self, statement: ast.stmt, regions: Regions, active: Active) -> list[ast.stmt]:
        """Returns a check that no thread has left the loop around a barrier, or ended the
        iteration, while others reach it.

        Threads that meet no further barrier after the loop may have left it, as they may have
        returned.
        """
        check = self.of_counts(statement, "a break or continue")
        if active.loop is None or not active.missed or not check:
            return []
        mask = f"{MASK}[{regions.team.index}]"
        has_left = " or ".join(f"{mask} == {level}" for level in active.missed)
        count = f"""
if {mask} > {active.level}:
    {INSIDE} += 1
    {BEFORE} += 1
elif {has_left}:
    {BEFORE} += 1
"""
        start = statements(f"{BEFORE} = 0\n{INSIDE} = 0", statement)
        return [*start, *regions.masked_loops(count, active, statement), *check]

    def refusal(self, statement: ast.stmt, construct: str) -> Exception:
        """Returns the error for a construct in which a barrier is not supported."""
        return self.source.refusal(
            statement, construct, "put it into an if, a while, or a for over a range"
        )

    def _check(self, statement: ast.stmt, what: str, condition: str) -> list[ast.stmt]:
        if not waits_for(statement, "grid" if self.grid else "block"):
            return []
        where = f"{self.source.name} ({self.source.filename}:{statement.lineno})"
        message = (
            f"{where}: a barrier under {what} that some threads of a block enter and others do "
            "not; on a GPU they wait for each other forever, or go on with wrong values. Move the "
            "barrier out, so that all threads reach it"
        )
        if not self.grid:
            message += (
                "; threads of one warp can meet at cuda.syncwarp(mask), and parts of a "
                "block can be blocks of their own"
            )
        return statements(f"if {condition}:\n    raise _k_DivergenceError({message!r})", statement)


def masked_if(
    statement: ast.If,
    regions: Regions,
    active: Active,
    divergence: Divergence | None,
    nested: Nested,
) -> list[ast.stmt]:
    """Returns the code of an `if` that some of the active threads enter, with runtime checks
    unless `divergence` is None.
    """
    level = active.level + 1
    inner = replace(active.inside(), level=level, masked=True)
    index = regions.team.index
    code = _entered(statement, statement.test, regions, active, level)
    if divergence is not None:
        code += divergence.of_counts(statement, "an if")
    code += _if_any(nested(statement.body, inner), statement)
    if statement.orelse:
        swap = f"""
if {MASK}[{index}] > {level}:
    {MASK}[{index}] = {level}
elif {MASK}[{index}] == {level}:
    {MASK}[{index}] = {RUNNING}
    {INSIDE} += 1
"""
        code += statements(f"{INSIDE} = 0", statement) + regions.masked_loops(
            swap, active, statement
        )
        code += _if_any(nested(statement.orelse, inner), statement)
    return code + _restore(level, regions, active, statement)


def masked_loop(
    loop: ast.For | ast.While,
    regions: Regions,
    active: Active,
    divergence: Divergence,
    nested: Nested,
) -> list[ast.stmt]:
    """Returns the code of a loop that some of the active threads leave before others."""
    left, ended = active.level + 1, active.level + 2
    continues = any(isinstance(node, ast.Continue) for node in own_exits(loop.body))
    missed = (*(() if active.final else (left,)), *((ended,) if continues else ()))
    inside = replace(
        active.inside(), level=left, masked=True, loop=(left, ended), final=False, missed=missed
    )
    always: ast.expr = ast.Constant(value=True)
    head = _entered(
        loop, loop.test if isinstance(loop, ast.While) else always, regions, inside, left
    )
    if isinstance(loop, ast.While) and not active.final:
        head += divergence.of_counts(loop, "a loop condition")
    head += statements(f"if {INSIDE} == 0:\n    break", loop)
    repeated: ast.For | ast.While = ast.While(always, [], [])
    if isinstance(loop, ast.For):
        target, counter = loop_variable(loop), f"{loop_variable(loop)}__i"
        regions.slots.add(target)
        repeated = ast.For(store(counter), regions.block_value(loop.iter), [], [])
        head += regions.region(statements(f"{target} = {counter}", loop), inside)
    repeated.body = (
        head
        + nested(loop.body, replace(inside, level=ended))
        + _restore(ended, regions, active, loop)
    )
    return [place(repeated, loop), *_restore(left, regions, active, loop)]


def _entered(
    at: ast.stmt, test: ast.expr, regions: Regions, active: Active, level: int
) -> list[ast.stmt]:
    """Returns code that counts the threads that reach a condition and those for which it holds,
    and masks off the others.
    """
    text = (
        f"{BEFORE} += 1\nif _k_test:\n    {INSIDE} += 1\nelse:\n    "
        f"{MASK}[{regions.team.index}] = {level}"
    )
    counted = statements(text, at)
    counted[1].test = test  # type: ignore[attr-defined]
    return [*statements(f"{BEFORE} = 0\n{INSIDE} = 0", at), *regions.region(counted, active)]


def _if_any(body: list[ast.stmt], at: ast.stmt) -> list[ast.stmt]:
    """Returns the statements under the condition that any thread is inside."""
    return around(f"if {INSIDE} > 0:", body, at) if body else []


def _restore(level: int, regions: Regions, active: Active, at: ast.stmt) -> list[ast.stmt]:
    """Returns code after which the threads with this mask run again."""
    mask = f"{MASK}[{regions.team.index}]"
    return regions.masked_loops(f"if {mask} == {level}:\n    {mask} = {RUNNING}", active, at)
