"""Regions: statements without a barrier, run as a loop over the threads of a block.

A variable that lives across regions is stored in a *slot*: the variable `v__u` if it is uniform,
else an element of the array `v__s`, one per thread. A variable that is cheap to compute is
recomputed instead. An *iteration* is one thread's pass through the loop.

    i = grid(1)                     for bx in range(Gx):
    if i >= n: return                   high = min(Bx, n - bx * Bx)     the threads within bounds
    v = x[i]                            m__u = n // 2                   uniform: once per block
    m = n // 2                          for tx in range(high):          a region
    s[t] = v                    →           i = bx * Bx + tx            recomputed
    syncthreads()                           v = x[i]; s[t] = v
    if v > m: return                        v__s[tx] = v                varying, and read later
    x[i] = s[-t] + v                    for tx in range(high):          another
                                            i = …; v = v__s[tx]; m = m__u
                                            if not v > m: x[i] = s[-t] + v

The threads that run a statement are all of the block (`Regions.takes_all`), all within some bounds
(`has_all_within`), or those within them whose mask is above the level of the statement.
"""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from synknumba.simt._analysis.atomic_sums import keep_sums_apart
from synknumba.simt._analysis.bounds import Bounds, Guards, operand_text, with_signs
from synknumba.simt._analysis.split_regions import GuardCut, free_cut, guard_cut, scatter_cut
from synknumba.simt._analysis.team import Team
from synknumba.simt._analysis.uniformity import Analysis
from synknumba.simt._analysis.variables import single_target
from synknumba.simt._library.words import AXES, BLOCK, BLOCK_SIZE, GRID_SIZE, THREAD
from synknumba.simt._lower.arrays import SharedArray
from synknumba.simt._lower.exits import (
    RUNNING,
    around,
    has_exit,
    lower_exits,
    lower_returns,
    needs_flag,
)
from synknumba.simt._source.reads import exposed
from synknumba.simt._source.syntax import (
    all_copied,
    assigned_names,
    call,
    copied,
    count_each,
    expression,
    has_return,
    nodes_of,
    place,
    read_names,
    statements,
)

# Cuts at a condition per region; each makes up to three loops of one.
MAX_CUTS = 1

# Array of int8, one element per thread: a thread runs statements at levels below its mask.
MASK = "_k_mask"
# Mask that a thread gets at the end of its iteration; and whether its last iteration goes on.
EXIT, GOING = "_k_exit", "_k_going"


@dataclass(frozen=True, slots=True)
class Active:
    """The threads that run some statements, and the nesting of these.

    Attributes:
        bounds: bounds of the thread indices.
        level: level of the statements; threads with a mask above it run.
        masked: whether some threads within the bounds may not run.
        loop: masks that `break` and `continue` of the enclosing loop set; None if all threads take
            them in step, or there is no loop.
        depth: number of enclosing block-level loops and conditions.
        final: whether threads that skip a statement meet no further barrier or warp operation, so
            that they count as returned.
        missed: masks of threads that have left the enclosing loop or the iteration, and that its
            barriers wait for.
    """

    bounds: Bounds
    level: int = 0
    masked: bool = False
    loop: tuple[int, int] | None = None
    depth: int = 0
    final: bool = False
    missed: tuple[int, ...] = ()

    def inside(self) -> "Active":
        """Returns the same threads, one block-level loop or condition deeper."""
        return replace(self, depth=self.depth + 1)


# The sizes along x, y and z; for small blocks, of which threads are gathered in larger ones, also
# the numbers of the axes along which the grid has enough threads for that.
Block = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Style:
    """Options of code generation.

    Attributes:
        flat: axes flattened to a single block.
        split: whether a thread's loops may be interchanged with the loop over threads. If not, a
            kernel without barriers is a single region.
        cuts: whether the statements between two barriers may be run as several loops.
        reverse: whether threads run in reverse order.
        shared: the shared arrays that may be double-buffered.
        block: the only block size that the kernel will be launched with; None for any.
        threads: expressions of the threads of the grid along each axis, if those of small blocks
            are gathered in larger ones.
        long: the axes along which they may be gathered.
    """

    flat: frozenset[str] = frozenset()
    split: bool = True
    cuts: bool = False
    reverse: bool = False
    shared: Mapping[str, SharedArray] = field(default_factory=dict)
    block: Block | None = None
    threads: Mapping[str, str] = field(default_factory=dict)
    long: tuple[str, ...] = ()


@dataclass(slots=True)
class Slots:
    """The variables that live across regions.

    Attributes:
        analysis: analysis of the kernel.
        local_arrays: variables created by `cuda.local.array`.
        names: variables with slots found so far; more are added.
        padded: variables whose slot arrays need margins.
        undefined: uniform variables that may be read before assignment.
        assigned: uniform variables assigned on every path so far.
    """

    analysis: Analysis
    local_arrays: set[str]
    names: set[str]
    padded: set[str] = field(default_factory=set)
    undefined: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)

    def read_uniform(self, name: str) -> None:
        """Registers a read of a uniform variable at the block level."""
        self.names.add(name)
        if name not in self.assigned:
            self.undefined.add(name)

    def assign_uniform(self, name: str) -> None:
        """Registers an assignment of a uniform variable at the block level."""
        self.names.add(name)
        self.assigned.add(name)

    def loads(self, names: Iterable[str], index: str, at: ast.AST) -> list[ast.stmt]:
        """Returns the statements by which a thread reads variables from the slots of an index."""
        lines = []
        for name in sorted(names):
            if name in self.analysis.varying:
                lines.append(f"{name} = _k_slot_get({name}__s, {index})")
            else:
                lines.append(f"{name} = {name}__u")
        return statements("\n".join(lines), at)

    def stores(self, names: Iterable[str], index: str, at: ast.AST) -> list[ast.stmt]:
        """Returns the statements by which a thread stores variables."""
        lines = []
        for name in sorted(names):
            if name not in self.analysis.varying:
                lines.append(f"{name}__n = {name}")
            elif name not in self.local_arrays:
                lines.append(f"_k_slot_set({name}__s, {index}, {name})")
        return statements("\n".join(lines), at)


class Regions:
    """Emits the regions of one kernel.

    Args:
        analysis: analysis of the kernel.
        order: axes of the loops over threads, outermost first.
        slots: the variables that live across regions; more are added.
        style: options of code generation.

    Attributes:
        left: whether some threads may have returned.
        all_threads: the bounds of all threads of the team, or of its blocks.
    """

    def __init__(self, analysis: Analysis, order: list[str], slots: Slots, style: Style) -> None:
        self.analysis, self.style, self.slots = analysis, style, slots
        self.team = Team(analysis.grid)
        self.left = False
        self.all_threads = Bounds(high={axis: [self._span(axis)] for axis in AXES})
        self.guards = Guards(analysis, self.block_text)
        self._order = order
        self._count = 0

    def _span(self, axis: str) -> str:
        size, threads = BLOCK_SIZE[axis], self.style.threads.get(axis)
        if axis in self.style.flat:
            return threads or f"{size} * {GRID_SIZE[axis]}"
        if threads and not self._has_one_thread(axis):
            return f"min({size}, {threads} - {BLOCK[axis]} * {size})"
        return size

    def blocks(self, axis: str) -> str:
        """Returns the expression of the number of blocks along an axis."""
        threads = self.style.threads.get(axis)
        if threads:
            return f"-(-{threads} // {BLOCK_SIZE[axis]})"
        return GRID_SIZE[axis]

    # ---- which threads run

    def has_all_within(self, active: Active) -> bool:
        """Returns whether every thread within the bounds runs the statements, without a mask."""
        return not (active.masked or self.left)

    def takes_all(self, active: Active) -> bool:
        """Returns whether every thread of the team runs the statements."""
        bounds, whole = active.bounds, self.all_threads
        if any(bounds.along(axis) != whole.along(axis) for axis in AXES):
            return False
        return self.has_all_within(active)

    # ---- the block level

    def block_value(self, node: ast.expr) -> ast.expr:
        """Rewrites a uniform expression for the block level, where the variable `v` is `v__u`."""
        node = copied(node)
        stored = self.analysis.stored
        for variable in nodes_of(ast.Name, node):
            if variable.id in stored:
                self.slots.read_uniform(variable.id)
                variable.id += "__u"
        return node

    def block_text(self, node: ast.expr) -> str:
        """Returns the text of `block_value`."""
        return operand_text(self.block_value(node))

    def declare_before(self, body: list[ast.stmt]) -> tuple[list[ast.stmt], list[ast.stmt]]:
        """Hoists assignments of uniform values to the block level, to run once per block; returns
        them and what remains.
        """
        hoisted: list[ast.stmt] = []
        remaining: list[ast.stmt] = []
        for statement in body:
            name = self._uniform_target(statement)
            if name and not has_exit(remaining) and _can_pass(statement, name, remaining):
                hoisted.append(self._at_block_level(statement))
            else:
                remaining.append(statement)
        return hoisted, remaining

    def _at_block_level(self, statement: ast.stmt) -> ast.stmt:
        """Returns a copy of an assignment to a uniform variable for the block level."""
        statement = copied(statement)
        match statement:
            case ast.Assign([ast.Name() as target]):
                pass
            case ast.AugAssign(ast.Name() as target):
                self.slots.read_uniform(target.id)
        assignment = cast(ast.Assign | ast.AugAssign, statement)
        assignment.value = self.block_value(assignment.value)
        self.slots.assign_uniform(target.id)
        target.id += "__u"
        return assignment

    def _uniform_target(self, statement: ast.stmt) -> str:
        """Returns the uniform variable to which the statement assigns a uniform value; "" for
        any other statement.
        """
        match statement:
            case ast.Assign([ast.Name(name)], value) | ast.AugAssign(ast.Name(name), _, value):
                if name in self.analysis.assigned - self.analysis.varying:
                    return name if self.analysis.is_uniform(value) else ""
        return ""

    def must_wait(self, statement: ast.stmt, pending: list[ast.stmt]) -> bool:
        """Returns whether the statement assigns a uniform variable and cannot be hoisted over
        the pending statements.
        """
        name = self._uniform_target(statement)
        if name not in self.slots.names:
            return False
        return not _can_pass(statement, name, pending)

    # ---- a region

    def region(
        self, body: list[ast.stmt], active: Active, *, last: bool = False, depth: int = 0
    ) -> list[ast.stmt]:
        """Emits statements that each thread runs to the end before the next thread starts.

        If they are the `last`, they run once per block, and nothing after them. `depth` is the
        number of times that the region has been split at a condition.
        """
        hoisted, body = self.declare_before(body)
        body = self._without_kept_arrays(body)
        if last and has_return(body) and not needs_flag(body):
            # A condition can become bounds of the loop over threads; a `return` cannot.
            body = lower_returns(all_copied(body), GOING)
        body = [statement for statement in body if not isinstance(statement, ast.Pass)]
        if not body:
            return hoisted
        if not self.style.cuts or has_exit(body):
            return hoisted + self._one_loop(body, active, last=last)
        position = scatter_cut(body, self.analysis, self.guards) or free_cut(
            body, self.analysis, self.guards
        )
        if position:
            return (
                hoisted
                + self.region(body[:position], active)
                + self.region(body[position:], active, last=last)
            )
        if depth < MAX_CUTS:
            cut = guard_cut(body, self.guards, self.slots.names, self.analysis)
            if cut is not None:
                return hoisted + self._parted(body, cut, active, last=last, depth=depth + 1)
        return hoisted + self._one_loop(body, active, last=last)

    def _parted(
        self, body: list[ast.stmt], cut: GuardCut, active: Active, *, last: bool, depth: int
    ) -> list[ast.stmt]:
        """Emits a loop over the threads for which a condition holds, and loops over the threads
        before and after these.
        """
        axis, outer = cut.axis, active.bounds
        guard = cut.guard
        inside = [*body[: cut.position], *guard.body, *body[cut.position + 1 :]]
        outside = [*body[: cut.position], *guard.orelse, *body[cut.position + 1 :]]
        self._count += 1
        first, end = f"_k_first{self._count}", f"_k_end{self._count}"
        low, high = outer.low_text(axis), outer.high_text(axis)
        merged = cut.bounds.copy()
        start = low
        if merged.low[axis]:
            start = f"min({merged.low_text(axis)}, {high})"
        code = statements(f"{first} = {start}", guard)
        if merged.low[axis] and outer.low[axis]:
            code += statements(f"{first} = max({first}, {low})", guard)
        merged.high[axis].append(high)
        code += statements(f"{end} = max({first}, {merged.high_text(axis)})", guard)
        parts = [(inside, [first], [end])]
        if cut.bounds.low[axis]:
            parts.insert(0, (outside, outer.low[axis], [first]))
        if cut.bounds.high[axis]:
            parts.append((outside, [end], outer.high[axis]))
        for part, lows, highs in parts:
            bounds = outer.copy()
            bounds.low[axis], bounds.high[axis] = list(lows), list(highs)
            if part is inside:
                bounds.facts += cut.bounds.facts
            code += self.region(part, replace(active, bounds=bounds), last=last, depth=depth)
        return code

    def _one_loop(self, body: list[ast.stmt], active: Active, *, last: bool) -> list[ast.stmt]:
        at = body[0]
        bounds = active.bounds.copy()
        body = with_signs(all_copied(self._absorb_guard(body, bounds)), bounds.facts)
        facts: list[ast.stmt] = [
            place(ast.Expr(call("_k_assume", fact)), fact) for fact in all_copied(bounds.facts)
        ]
        slots, tracked = self.slots, self.analysis.stored
        live, sure = exposed([*facts, *body], tracked)
        writes = assigned_names(body) & tracked
        slots.names |= self._named_elsewhere(live, body) if last else live
        stored = set[str]() if last else writes & slots.names
        loaded = (live | (writes - sure)) & slots.names
        # Every thread starts with the old value of a uniform variable, `v__u`; the new one, `v__n`,
        # replaces it after the loop.
        uniform = sorted(stored - self.analysis.varying)
        slots.undefined |= (loaded | stored) - self.analysis.varying - slots.assigned
        slots.assigned |= stored
        sums = keep_sums_apart(self.analysis, body, self.block_value)
        body = self._with_exits(body, stored, active, last=last)
        loads = slots.loads(loaded, self.team.index, at)
        iteration = self._iteration([*loads, *facts, *body], active, at)
        before = statements("\n".join(f"{name}__n = {name}__u" for name in uniform), at)
        after = statements("\n".join(f"{name}__u = {name}__n" for name in uniform), at)
        return sums.before + before + self.thread_loops(iteration, bounds, at) + after + sums.after

    def _named_elsewhere(self, names: set[str], body: list[ast.stmt]) -> set[str]:
        """Returns the variables that the kernel names outside the statements, too: what runs last
        keeps no others.
        """
        here, everywhere = count_each(body), count_each(self.analysis.body)
        return {name for name in names if here[name] != everywhere[name]}

    def _without_kept_arrays(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Drops the creation of local arrays that live across a barrier: these are reserved at
        the top of the launch.
        """
        names = self.slots.local_arrays & self.slots.names
        if not assigned_names(body) & names:
            return body
        dropper = _Dropper(names)
        return [dropper.visit(copied(statement)) for statement in body]

    def _absorb_guard(self, body: list[ast.stmt], bounds: Bounds) -> list[ast.stmt]:
        """Moves the condition of a region that is a single `if` without `else` into the bounds."""
        match body:
            case [ast.If(test, inside, []) as guard]:
                rest = self.guards.absorb(test, bounds, assigned_names(inside))
            case _:
                return body
        if rest is test:
            return body
        if rest is None:
            return inside
        return [ast.copy_location(ast.If(rest, inside, []), guard)]

    def _with_exits(
        self, body: list[ast.stmt], stored: set[str], active: Active, *, last: bool
    ) -> list[ast.stmt]:
        """Lowers the exits of the statements and appends the stores to slots."""
        at, index, varying = body[0], self.team.index, self.analysis.varying
        if last or not has_exit(body):
            return lower_returns(body, GOING) + self.slots.stores(stored, index, at)
        self.left |= has_return(body)
        before = statements(f"{EXIT} = {RUNNING}", at)
        after = statements(f"if {EXIT} != {RUNNING}:\n    {MASK}[{index}] = {EXIT}", at)
        # A thread that exits may not have reached the assignment of a uniform variable, so only the
        # others store it.
        after[0].orelse = self.slots.stores(stored - varying, index, at)  # type: ignore[attr-defined]
        stores = self.slots.stores(stored & varying, index, at)
        return [*before, *lower_exits(body, EXIT, active.loop), *stores, *after]

    def _iteration(self, iteration: list[ast.stmt], active: Active, at: ast.stmt) -> list[ast.stmt]:
        """Completes an iteration: test of the mask, recomputed variables, linear indices."""
        needed = read_names(iteration)
        recomputed: list[ast.stmt] = []
        for name, statement in reversed(self.analysis.recomputed.items()):
            if name in needed:
                recomputed.insert(0, copied(statement))
                needed |= read_names(statement)
        iteration = recomputed + iteration
        if not self.has_all_within(active):
            test = expression(f"{MASK}[{self.team.index}] > {active.level}", at)
            iteration = [place(ast.If(test, iteration, []), at)]
        return self.team.numbers(read_names(iteration), at) + iteration

    # ---- loops over threads

    def thread_loops(
        self, iteration: list[ast.stmt], bounds: Bounds, at: ast.stmt
    ) -> list[ast.stmt]:
        """Wraps an iteration in the loops over the threads within the bounds, and over the blocks
        of a cooperative grid.
        """
        for axis in reversed(self._order):
            span = self._range(bounds, axis)
            is_outer = axis != self._order[-1] and self._has_one_thread(axis)
            if is_outer and span == f"range({BLOCK_SIZE[axis]})":
                iteration = [*statements(f"{THREAD[axis]} = 0", at), *iteration]
            else:
                iteration = around(f"for {THREAD[axis]} in {span}:", iteration, at)
        if self.team.grid:
            for axis in AXES:
                iteration = around(f"for {BLOCK[axis]} in range({GRID_SIZE[axis]}):", iteration, at)
        return iteration

    def _has_one_thread(self, axis: str) -> bool:
        """Returns whether all blocks are known to be one thread wide along an axis: a loop over
        it costs only compile time.
        """
        return self.style.block is not None and self.style.block[AXES.index(axis)] == 1

    def _range(self, bounds: Bounds, axis: str) -> str:
        if not self.style.reverse:
            return f"range({bounds.range_text(axis)})"
        return f"range({bounds.high_text(axis)} - 1, {bounds.low_text(axis)} - 1, -1)"

    def masked_loops(self, text: str, active: Active, at: ast.stmt) -> list[ast.stmt]:
        """Emits statements on masks for each thread within the bounds, masked off or not."""
        iteration = statements(text, at)
        return self.thread_loops(
            self.team.numbers(read_names(iteration), at) + iteration, active.bounds, at
        )


class _Dropper(ast.NodeTransformer):
    """Replaces assignments to the given variables by `pass`."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        if single_target(node) in self._names:
            return ast.copy_location(ast.Pass(), node)
        return node


def _can_pass(statement: ast.stmt, name: str, pending: list[ast.stmt]) -> bool:
    """Returns whether an assignment to `name` may be moved before the pending statements."""
    written = assigned_names(pending)
    if name in read_names(pending) | written:
        return False
    return read_names(statement).isdisjoint(written)
