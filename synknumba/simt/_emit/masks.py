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
from synknumba.simt._lower.exits import RUNNING, around, has_own_exit
from synknumba.simt._lower.sync import waits_for
from synknumba.simt._source.syntax import loop_variable, place, statements, store
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
        not_empty, fewer = [], []
        for axis in AXES:
            if outer.along(axis) != inner.along(axis):
                span = f"{inner.high_text(axis)} - {inner.low_text(axis)}"
                not_empty.append(f"{span} > 0")
                fewer.append(f"{span} < {outer.high_text(axis)} - {outer.low_text(axis)}")
        condition = f"({' and '.join(not_empty)}) and ({' or '.join(fewer)})"
        return self._check(statement, "an if", condition)

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
    missed = []
    if not active.final:
        missed.append(left)
    if has_own_exit(loop.body, ast.Continue):
        missed.append(ended)
    inside = replace(
        active.inside(),
        level=left,
        masked=True,
        loop=(left, ended),
        final=False,
        missed=tuple(missed),
    )
    always: ast.expr = ast.Constant(value=True)
    none_left = statements(f"if {INSIDE} == 0:\n    break", loop)
    repeated: ast.For | ast.While
    if isinstance(loop, ast.While):
        repeated = ast.While(always, [], [])
        head = _entered(loop, loop.test, regions, inside, left)
        if not active.final:
            head += divergence.of_counts(loop, "a loop condition")
        head += none_left
    else:
        head = _entered(loop, always, regions, inside, left) + none_left
        target, counter = loop_variable(loop), f"{loop_variable(loop)}__i"
        regions.slots.names.add(target)
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
    if not body:
        return []
    return around(f"if {INSIDE} > 0:", body, at)


def _restore(level: int, regions: Regions, active: Active, at: ast.stmt) -> list[ast.stmt]:
    """Returns code after which the threads with this mask run again."""
    mask = f"{MASK}[{regions.team.index}]"
    return regions.masked_loops(f"if {mask} == {level}:\n    {mask} = {RUNNING}", active, at)
