"""From one thread's code to the code of one CPU core: loops over the blocks of the grid and over the threads of a block.

The statements of a kernel are cut into *regions*. A region becomes one loop over the threads of the block. What stands between
regions runs once for the block: assignments of uniform values, and the loops that `_loops` turns inside out. A variable that
lives from one region to the next is kept in a *slot*: `v__u` if it is uniform, else an element of the array `v__s`, one for
each thread.

    for _k_bx in range(_k_Gx):                       the block level
        n__u = x.shape[0]
        for _k_tx in range(min(_k_Bx, ...)):         a region: recompute, load slots, statements, store slots
            ...
"""

import ast
import copy
from dataclasses import dataclass
from typing import cast

from synknumba.simt._analysis import NONNEG, Analysis
from synknumba.simt._ast import (
    assign,
    assigned_names,
    call,
    count_names,
    expression,
    has_return,
    is_leave,
    loop_variable,
    place,
    read_names,
    statements,
    store,
    walk,
)
from synknumba.simt._atomic_sums import keep_sums_apart
from synknumba.simt._bounds import Bounds, Guards
from synknumba.simt._exits import lower_returns
from synknumba.simt._loops import Loops, StridedLoop
from synknumba.simt._operations import AXES, BLOCK, BLOCK_SIZE, GRID_SIZE, LINEAR, THREAD
from synknumba.simt._variables import exposed

LINEAR_TEXT = f"{THREAD['x']} + {BLOCK_SIZE['x']} * ({THREAD['y']} + {BLOCK_SIZE['y']} * {THREAD['z']})"


@dataclass(frozen=True, slots=True)
class BlockCode:
    """The loops over the grid.

    Attributes:
        body: the statements.
        varying_slots: the variables that need an array with one element for each thread.
        undefined: the uniform variables that may be read before they are assigned, as after an `if` that sets them. Python and
            Numba want a value there, though none that matters.
    """

    body: list[ast.stmt]
    varying_slots: tuple[str, ...]
    undefined: tuple[str, ...]


def emit_blocks(
    analysis: Analysis, local_arrays: set[str], *, flat: frozenset[str] = frozenset(), split: bool = True
) -> BlockCode:
    """The code of a whole launch but for its slot arrays.

    Args:
        analysis: of the kernel; not changed.
        local_arrays: the variables made by `cuda.local.array`.
        flat: the axes that are run as one block.
        split: whether loops may be turned inside out. Without it there is a single region, and nothing needs a slot array.
    """
    slots: set[str] = set()
    while True:  # a slot found late makes an earlier region store it
        emitter = _Emitter(analysis, local_arrays, slots, flat, split=split)
        body = emitter.grid()
        if emitter.slots == slots:
            return BlockCode(body, tuple(sorted(slots & analysis.varying)), tuple(sorted(emitter.undefined)))
        slots = set(emitter.slots)


def inner_axis(analysis: Analysis) -> str:
    """The axis whose neighbouring threads touch neighbouring elements most often: the innermost loop."""
    guards = Guards(analysis, ast.unparse)
    votes = dict.fromkeys(AXES, 0)
    for node in walk(analysis.body):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and node.slice.elts:
            last = node.slice.elts[-1]
            for axis in AXES:
                votes[axis] += guards.offset(last, axis) is not None
    return max(AXES, key=lambda axis: votes[axis])


class _Emitter:
    """One pass over a kernel, with the slots that earlier passes have found."""

    def __init__(
        self, analysis: Analysis, local_arrays: set[str], slots: set[str], flat: frozenset[str], *, split: bool
    ) -> None:
        self.known = analysis
        self.flat = flat
        self.slots = set(slots)
        self.split = split
        self.assigned_before: set[str] = set()  # of the uniform slots
        self.undefined: set[str] = set()
        self.guards = Guards(analysis, self._block_text)
        self.loops = Loops(analysis, self.guards, local_arrays)
        self.planned = Loops(analysis, Guards(analysis, ast.unparse), local_arrays)  # to ask without making slots
        # The threads of the block that are left, and what is known in all of them.
        whole = {axis: f"{BLOCK_SIZE[axis]} * {GRID_SIZE[axis]}" if axis in flat else BLOCK_SIZE[axis] for axis in AXES}
        self.bounds = Bounds(high={axis: [text] for axis, text in whole.items()})
        inner = inner_axis(analysis)
        self.order = [*(axis for axis in reversed(AXES) if axis != inner), inner]

    def grid(self) -> list[ast.stmt]:
        """The loops over the grid."""
        at = self.known.body[0] if self.known.body else ast.Pass()
        body = self._statements(self.known.body, top=True)
        for axis in [axis for axis in reversed(self.order) if axis not in self.flat]:
            loop = statements(f"for {BLOCK[axis]} in range({GRID_SIZE[axis]}):\n    pass", at)
            loop[0].body = body or loop[0].body  # type: ignore[attr-defined]
            body = loop
        return body

    # ---- the block level

    def _statements(self, body: list[ast.stmt], *, top: bool) -> list[ast.stmt]:
        """The code of statements that follow each other; `top` if they run once for the block, and nothing behind them."""
        out: list[ast.stmt] = []
        pending: list[ast.stmt] = []
        for position, statement in enumerate(body):
            gone = has_return(pending)  # some threads may have left: what follows stays in their region
            if top and not gone:
                prefix = self._prefix(statement, pending, body[position + 1 :])
                if prefix is not None:
                    return out + prefix
            turned = None if gone or not self.split else self._turned(statement, pending)
            if turned is None:
                pending.append(statement)
            else:
                out += turned
                pending = []
        return out + self._region(pending, last=top)

    def _turned(self, statement: ast.stmt, pending: list[ast.stmt]) -> list[ast.stmt] | None:
        """The code of a loop that is turned inside out, behind the region of the statements before it."""
        if self.planned.strided(statement):
            before = self._region(pending, last=False)
            return before + self._strided(cast(StridedLoop, self.loops.strided(statement)))
        if isinstance(statement, ast.For) and self.planned.is_uniform_loop(statement):
            return self._region(pending, last=False) + self._uniform_loop(statement)
        return None

    def _prefix(self, statement: ast.stmt, pending: list[ast.stmt], behind: list[ast.stmt]) -> list[ast.stmt] | None:
        """The code from `if i >= n: return`, or a last `if i < n: …`, on: the block has fewer threads from here on."""
        if not isinstance(statement, ast.If) or statement.orelse:
            return None
        leaves = is_leave(statement.body)
        if not leaves and any(not isinstance(other, ast.Pass) for other in behind):
            return None
        # What threads compute before they leave is of no use to anyone, and can be left to those that stay.
        hoisted, kept = self._hoist(pending)
        silent = all(self._is_silent(other) for other in kept)
        if not silent and not self._has_turned(behind if leaves else statement.body):
            return None
        bounds = Bounds()
        test = self.guards.absorb(statement.test, bounds, assigned_names(kept) if silent else set(), negate=leaves)
        if test is statement.test:
            return None
        before = hoisted if silent else self._region(pending, last=False)
        rest: list[ast.stmt] = [] if test is None else [ast.copy_location(ast.If(test, statement.body, []), statement)]
        if leaves:
            rest += behind
        elif test is None:
            rest = statement.body
        return before + self._shrink(bounds, statement) + self._statements((kept if silent else []) + rest, top=True)

    def _shrink(self, bounds: Bounds, at: ast.stmt) -> list[ast.stmt]:
        """From here on, the block has only the threads within the bounds."""
        out: list[ast.stmt] = []
        for axis in AXES:
            if not bounds.low[axis] and not bounds.high[axis]:
                continue
            low, high = f"_k_low_{axis}", f"_k_high_{axis}"
            merged = Bounds()
            merged.low[axis] = self.bounds.low[axis] + bounds.low[axis]
            merged.high[axis] = self.bounds.high[axis] + bounds.high[axis]
            out += statements(f"{high} = {merged.high_text(axis)}", at)
            if merged.low[axis]:
                out += statements(f"{low} = {merged.low_text(axis)}", at)
            leave = "return" if len(self.flat) == len(AXES) else "continue"
            out += statements(f"if {high} <= {low if merged.low[axis] else 0}:\n    {leave}", at)
            self.bounds.low[axis] = [low] if merged.low[axis] else []
            self.bounds.high[axis] = [high]
        self.bounds.facts += [fact for fact in bounds.facts if self.known.is_settled(fact)]
        return out

    def _strided(self, strided: StridedLoop) -> list[ast.stmt]:
        """A grid-stride loop: over the first index of the block's threads outside, over the threads inside."""
        loop, axis = strided.loop, strided.axis
        name = loop_variable(loop)
        first = f"_k_first_{name}"
        index = assign(name, expression(f"{first} + {THREAD[axis]}", loop), loop)
        span = call("range", expression(strided.offset, loop), self._block_value(strided.stop), self._block_value(strided.step))
        outer = self.bounds
        self.bounds = outer.copy()
        self.bounds.high[axis].append(f"{self._block_text(strided.stop)} - {first}")
        with self.known.thread_index(index, first, nonneg=strided.nonneg):
            body = self._statements(loop.body, top=False)
        self.bounds = outer
        return [place(ast.For(store(first), span, body, []), loop)] if body else []

    def _uniform_loop(self, loop: ast.For) -> list[ast.stmt]:
        """A loop that all threads run equally often: the loop outside, the threads inside."""
        self.slots.add(loop_variable(loop))
        self.assigned_before.add(loop_variable(loop))
        body = self._region(loop.body, last=False)
        target = store(f"{loop_variable(loop)}__u")
        return [place(ast.For(target, self._block_value(loop.iter), body, []), loop)] if body else []

    def _block_value(self, node: ast.expr) -> ast.expr:
        """A uniform expression as the code of a block writes it."""
        node = copy.deepcopy(node)
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id in self.known.assigned and part.id not in self.known.recomputed:
                self.slots.add(part.id)
                part.id += "__u"
        return node

    def _block_text(self, node: ast.expr) -> str:
        text = ast.unparse(self._block_value(node))
        return text if isinstance(node, (ast.Name, ast.Constant, ast.Attribute, ast.Subscript, ast.Call)) else f"({text})"

    def _hoist(self, body: list[ast.stmt]) -> tuple[list[ast.stmt], list[ast.stmt]]:
        """The assignments of uniform values, to run once for the block, and the statements left."""
        hoisted: list[ast.stmt] = []
        kept: list[ast.stmt] = []
        for statement in body:
            name = self._uniform_target(statement)
            if name is None or has_return(kept) or not self._can_pass(statement, name, kept):
                kept.append(statement)
                continue
            moved = cast(ast.Assign | ast.AugAssign, copy.deepcopy(statement))
            moved.value = self._block_value(moved.value)
            target = moved.targets[0] if isinstance(moved, ast.Assign) else moved.target
            self.slots.add(name)
            self.assigned_before.add(name)
            cast(ast.Name, target).id += "__u"
            hoisted.append(moved)
        return hoisted, kept

    def _uniform_target(self, statement: ast.stmt) -> str | None:
        """The uniform variable that the statement assigns a uniform value to."""
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AugAssign(target=ast.Name(id=name), value=value):
                return name if name not in self.known.varying and self.known.is_uniform(value) else None
        return None

    @staticmethod
    def _can_pass(statement: ast.stmt, name: str, others: list[ast.stmt]) -> bool:
        """Whether the statement may run before the others."""
        written = assigned_names(others)
        return name not in read_names(others) | written and not read_names(statement) & written

    def _is_silent(self, statement: ast.stmt) -> bool:
        """Whether the statement does nothing but assign local variables."""
        match statement:
            case ast.Pass():
                return True
            case ast.Assign(targets=[ast.Name()], value=value):
                calls = [node for node in ast.walk(value) if isinstance(node, ast.Call)]
                return all(self.known.is_pure_function(node.func) for node in calls)
        return False

    def _has_turned(self, body: list[ast.stmt]) -> bool:
        if not self.split:
            return False
        return any(
            self.planned.strided(statement) is not None
            or (isinstance(statement, ast.For) and self.planned.is_uniform_loop(statement))
            for statement in body
        )

    # ---- a region: the loop over the threads

    def _region(self, body: list[ast.stmt], *, last: bool) -> list[ast.stmt]:
        """The code of statements that every thread runs before the next thread does; `last` if nothing runs behind them."""
        hoisted, body = self._hoist(body)
        body = [statement for statement in body if not isinstance(statement, ast.Pass)]
        if not body:
            return hoisted
        at = body[0]
        bounds = self.bounds.copy()
        body = copy.deepcopy(self._absorb_guard(body, bounds))
        tracked = self.known.assigned - set(self.known.recomputed)
        facts: list[ast.stmt] = [place(ast.Expr(call("_k_assume", fact)), fact) for fact in copy.deepcopy(bounds.facts)]
        live, sure = exposed([*facts, *body], tracked)
        writes = assigned_names(body) & tracked
        self.slots |= {name for name in live if not self._is_only_in(name, body, last=last)}
        loaded = (live | (writes - sure)) & self.slots
        stored = set() if last else writes & self.slots
        self.undefined |= loaded - self.known.varying - self.assigned_before
        self.assigned_before |= stored
        sums = keep_sums_apart(self.known, body, self._block_value)
        turn = self._turn(facts, lower_returns(body), sorted(loaded), sorted(stored), at)
        loops = self._thread_loops(turn, bounds, at)
        after = [line for name in sorted(stored - self.known.varying) for line in statements(f"{name}__u = {name}", at)]
        return hoisted + sums.before + loops + sums.after + after

    def _absorb_guard(self, body: list[ast.stmt], bounds: Bounds) -> list[ast.stmt]:
        """A region that is a single `if` without else has bounds instead."""
        guard = body[0]
        if len(body) != 1 or not isinstance(guard, ast.If) or guard.orelse:
            return body
        test = self.guards.absorb(guard.test, bounds, assigned_names(guard.body))
        if test is guard.test:
            return body
        return guard.body if test is None else [ast.copy_location(ast.If(test, guard.body, []), guard)]

    def _is_only_in(self, name: str, body: list[ast.stmt], *, last: bool) -> bool:
        """Whether the variable is named in these statements only, which run once in a block."""
        return last and count_names(body, name) == count_names(self.known.body, name)

    def _turn(
        self, facts: list[ast.stmt], body: list[ast.stmt], loaded: list[str], stored: list[str], at: ast.stmt
    ) -> list[ast.stmt]:
        """One thread's turn in a region."""
        turn = [*(line for name in loaded for line in self._load(name, at)), *facts, *body]
        turn += [line for name in stored if name in self.known.varying for line in self._store(name, at)]
        needed = read_names(turn)
        recomputed: list[ast.stmt] = []
        for name, statement in reversed(self.known.recomputed.items()):
            if name in needed:
                recomputed.insert(0, copy.deepcopy(statement))
                needed |= read_names(statement)
        turn = recomputed + turn
        if LINEAR in read_names(turn):
            turn = statements(f"{LINEAR} = {NONNEG}({LINEAR_TEXT})", at) + turn
        return turn

    def _load(self, name: str, at: ast.stmt) -> list[ast.stmt]:
        return statements(f"{name} = {name}__s[{LINEAR}]" if name in self.known.varying else f"{name} = {name}__u", at)

    @staticmethod
    def _store(name: str, at: ast.stmt) -> list[ast.stmt]:
        return statements(f"{name}__s[{LINEAR}] = {name}", at)

    def _thread_loops(self, turn: list[ast.stmt], bounds: Bounds, at: ast.stmt) -> list[ast.stmt]:
        for axis in reversed(self.order):
            loop = statements(f"for {THREAD[axis]} in range({bounds.range_text(axis)}):\n    pass", at)
            loop[0].body = turn  # type: ignore[attr-defined]
            turn = loop
        return turn
