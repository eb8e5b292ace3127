"""Traces: the body of a sequence, run once to record its calls.

    body ──run with stand-ins──> calls, collectives, inner sequences ──> parts, their formulas and memory ──> SequenceProgram

Each call is worked out as usual, and its program is sent to the ranks; a part names the program and gives its values. What the
calls return stands in for results: it can be returned by the body, and a 0-d result can be an argument of later calls.
"""

import math
import struct
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from synknumba import _tracing as tracing
from synknumba._call.call import Call, leaves_of
from synknumba._call.distribute import result_class
from synknumba._call.options import CallOptions
from synknumba._call.plan import FunctionPlan, KernelPlan, Plan
from synknumba._errors import ArgumentError, BatchError
from synknumba._host.data import Data
from synknumba._host.lease import Lender
from synknumba._ops import reduction
from synknumba._ops.tree import flatten, unflatten
from synknumba._tracing import Formula, Here, Line, Number, Unknown
from synknumba._types import CollectiveKind, CollectiveOp
from synknumba._variables.allocation import Allocation
from synknumba._variables.collectives import (
    check_halos,
    check_no_halo,
    check_uniform,
    checked_op,
    pairs_in_place,
    several_of,
)
from synknumba._variables.transfers import Work
from synknumba._variables.variable import Variable, check_rank, traffic_of
from synknumba._wire.program import Broadcast, Held, HeldRows, Result, Sharded, Update
from synknumba._wire.sequence import Access, Key, Loop, Part, Shared, waits
from synknumba._world.code import Uses
from synknumba._world.engine import Engine

if TYPE_CHECKING:
    from synknumba._call.function import Function, Prepared

Parts: TypeAlias = "list[Part | Loop]"
Swap: TypeAlias = "tuple[weakref.ref[Variable], weakref.ref[Variable]]"

MOST_TURNS = 4  # iterations after which swapped variables must have their memory again


class Unseen(Unknown):
    """Stands for a result of a call that only the script can see.

    Attributes:
        plan: plan of the call.
        index: position among the results of the call; None for the only one.
    """

    def __init__(self, plan: Plan, index: int | None, label: str, count: Any) -> None:
        self.plan, self.index, self.label, self.count = plan, index, label, count


@final
class Seen(Number):
    """Stands for a 0-d result of a kernel, which may be an argument of later calls: the ranks then combine it.

    Attributes:
        home: body of the call.
        result: the result, as the ranks know it.
        unseen: the result for the script.
    """

    __slots__ = ("_trace", "home", "result", "unseen")

    def __init__(self, trace: "Trace", home: "Parts", result: Result, unseen: Unseen) -> None:
        assert result.parts is not None  # it is a result that the caller gets
        super().__init__((), unseen.label, is_int=np.dtype(result.parts.dtype).kind in "iub")
        self._trace, self.home, self.result, self.unseen = trace, home, result, unseen

    @property
    def formula(self) -> Formula:
        return ("result", self._trace.share(self))


@final
@dataclass(frozen=True, slots=True)
class Lines:
    """Row numbers of a call, a line for each iteration; checked at each call of the sequence, as they may have changed."""

    line: Line
    function: str
    rows: int  # number of rows of the call's arrays

    def check(self, name: str, times: int) -> None:
        """Raises `BatchError` if there are too few lines, or a row does not exist."""
        array = self.line.data.data
        if self.line.number.formula_of_step and times > len(array):
            raise BatchError(
                f"{name}: {self.line.label} has {len(array)} lines of row numbers, but times={times}; give it as many"
            )
        low, high = array.min(), array.max()
        if low < 0 or high >= self.rows:
            at = np.argwhere((array < 0) | (array >= self.rows))[0]
            raise BatchError(
                f"{name}: batch= of {self.function} has row {array[tuple(at)]} in line {at[0]}, but its rows are 0 to "
                f"{self.rows - 1}"
            )


def rows_of(call: Call) -> int:
    """Returns the number of rows of the arrays of a call."""
    return next(iter(call.lengths.values()))


@final
class Trace:
    """What the body of a sequence does, recorded.

    Args:
        world: the world, which the caller has taken.
        name: name of the sequence, for messages.
        scalars: `struct` letters of the numbers that calls of the sequence pass.
    """

    def __init__(self, world: Engine, name: str, scalars: str) -> None:
        self.world = world
        self.name = name
        self.names = [name]  # of the sequences that are traced, from the outermost
        self.scalars = scalars
        self.lenders: list[Lender] = []  # of results in memory that each round chooses; their segments are further scalars
        self.parts: Parts = []
        self.calls = 0  # so far
        self.used = 0  # bytes of the ranks' small results
        self.slots = 0  # numbers that the ranks share
        self.plans: list[Plan] = []
        self.variables: dict[int, tuple[weakref.ref[Variable], Any]] = {}  # with their layouts, by number of their memory
        # Variables that ranks write, by id, with the last part's arguments of `Variable.mark`.
        self.changed: dict[int, tuple[weakref.ref[Variable], bool, bool | None]] = {}
        self.programs: set[int] = set()
        self.segments: set[int] = set()
        self.starts = [0]  # index of the first part of each turn
        self.swaps: list[list[Swap]] = [[]]  # of each turn
        self._memory: list[
            tuple[Variable, Variable, Allocation]
        ] = []  # swaps so far, while the body runs; first's memory before
        self.lines: list[Lines] = []
        self.uses: Uses = ()  # functions that the ranks run, with their code
        self.written: set[int] = set()  # segments whose rows ranks write
        self.kept: list[Any] = []  # memory that the parts use and nobody else keeps
        self._outer: list[Parts] = []  # bodies around the innermost one
        self._shared: dict[int, int] = {}  # slots, by id of the result
        self._here = Here()

    @property
    def is_here(self) -> bool:
        return bool(self._here)

    @property
    def depth(self) -> int:
        return len(self._outer)

    # ---- calls

    def call(
        self, function: "Function[..., Any]", args: tuple[Any, ...], kwargs: Mapping[str, Any], options: CallOptions
    ) -> Any:
        """Records a call; returns stand-ins for its results."""
        if isinstance(options.batch, Line):
            self._note_lines(function, options.batch)
        for name, value in (("batch", options.batch), ("local_batch", options.local_batch)):
            if isinstance(value, Unknown) and not isinstance(value, Line):
                raise ArgumentError(f"{tracing.where()}: {name}= of {function.name} must be known while {self.name} is traced")
        self.calls += 1
        args, kwargs = tuple(map(self._argument, args)), {name: self._argument(value) for name, value in kwargs.items()}
        prepared = function._prepare(self.world, args, kwargs, options, self.used)  # noqa: SLF001
        plan, call = prepared.plan, prepared.call
        self.plans.append(plan)  # first: it is freed with the trace
        if plan.updates is not None:
            raise ArgumentError(
                f"{tracing.where()}: {function.name} has shards= and updates=, which the script combines; leave shards= out in "
                f"{self.name}"
            )
        self.used = prepared.used
        self.kept.append(prepared.selector)
        self.uses += prepared.uses
        values = (*call.values, *call.row_values)
        if isinstance(options.batch, Line):
            self.lines.append(Lines(options.batch, function.name, rows_of(call)))
        if isinstance(plan, KernelPlan):
            plan.select(values)
            located = [name for name, result in plan.wanted.items() if result.op in reduction.LOCATING]
            if located and isinstance(options.batch, Line):
                raise ArgumentError(
                    f"{tracing.where()}: {located[0]} of {function.name} is a row number, which rows of "
                    f"{options.batch.label} do not have in a sequence; use another output"
                )
        self._note_memory(prepared)
        lent = [self._lend(lender) for lender in plan.lenders]
        packed, formulas = _packed(plan.program.values, (*values, *lent))
        self.parts.append(Part(plan.program.number, str(plan.info), self.calls, self._access(prepared), packed, formulas))
        self.programs.add(plan.program.number)
        return self._results_of(function, plan, call.count)

    def _note_lines(self, function: "Function[..., Any]", line: Line) -> None:
        data = line.data
        if data.ndim != 2 or data.dtype != np.int64 or not data.shape[0] or not data.shape[1]:
            raise ArgumentError(
                f"{tracing.where()}: batch= of {function.name} takes a line of row numbers: {line.label} must be 2-D and "
                f"int64, with a line for each iteration, and is {data.dtype} {data.shape}"
            )

    def _argument(self, value: Any) -> Any:
        """Returns an argument with NumPy arrays, which are part of the sequence, copied to memory of its own."""
        if isinstance(value, np.ndarray) and value.ndim:
            self.kept.append(Data(value))
            return self.kept[-1]
        if isinstance(value, Unseen | Line):
            value._refuse()  # noqa: SLF001
        if isinstance(value, dict | list | tuple):
            leaves, structure = flatten(value)
            return unflatten(structure, [self._argument(leaf) for leaf in leaves])
        return value

    def _results_of(self, function: "Function[..., Any]", plan: Plan, count: Any) -> Any:
        if isinstance(plan, FunctionPlan):
            if not plan.has_ops:
                return None
            return Unseen(plan, None, f"the result of {function.name}", count)
        assert isinstance(plan, KernelPlan)
        found = []
        for index, (name, result) in enumerate(plan.wanted.items()):
            unseen = Unseen(plan, index if len(plan.wanted) > 1 else None, f"{name} of {function.name}", count)
            is_number = result.is_small and result.shape == () and np.dtype(result.dtype).kind in "iuf"
            combines = result.op is not None and result.op not in reduction.BY_ROWS
            found.append(Seen(self, self.parts, result, unseen) if is_number and combines else unseen)
        if len(found) <= 1:
            return found[0] if found else None
        return result_class(function.name, tuple(plan.wanted))(*found)

    def _lend(self, lender: Lender) -> Number:
        """Returns the number of the segment that a round chooses for a result."""
        self.lenders.append(lender)
        self.scalars += "q"
        return Number(("scalar", len(self.scalars) - 1), "a segment", is_int=True)

    def share(self, seen: "Seen") -> int:
        """Makes the ranks combine a result, after the call that makes it; returns the slot of the number."""
        slot = self._shared.get(id(seen))
        if slot is None:
            slot = self._shared[id(seen)] = self.slots
            self.slots += 1
            self.kept.append(seen)  # so that its id is not used again
            result, unseen = seen.result, seen.unseen
            assert result.parts is not None
            weights = tuple(unseen.plan.weights(unseen.count).tolist())
            shared = Shared(slot, result.parts.offset, np.dtype(result.parts.dtype), result.op, weights)
            stage = frozenset({("stage", slot)})
            # At the end of the body that makes it, which may be around the one that uses it; or has ended, and made its last.
            home = next((parts for parts in (*self._outer, self.parts) if parts is seen.home), self.parts)
            home.append(Part(-1, seen.label, self.calls, Access(writes=stage), puts=shared))
            home.append(Part(-1, seen.label, self.calls, Access(remote_reads=stage), combines=shared))
        return slot

    # ---- memory

    def _note_memory(self, prepared: "Prepared") -> None:
        call = prepared.call
        for variable in call.variables.values():
            self._hold(variable)
        for variable in call.changed:
            self.changed[id(variable)] = weakref.ref(variable), self.world.world_size > 1, None
        self.segments |= prepared.plan.program.segments()

    def _hold(self, variable: Variable) -> Allocation:
        storage = variable.place(self.world)
        # As at first: swapped variables have other memory in later turns.
        self.variables.setdefault(storage.number, (weakref.ref(variable), variable._layout))  # noqa: SLF001  # as a key
        return storage

    def _access(self, prepared: "Prepared") -> Access:
        """Returns what a call reads and writes: variables on its own rank, and arrays that others may read or write, too."""
        program, is_kernel = prepared.plan.program, isinstance(prepared.plan, KernelPlan)
        reads: set[Key] = set()
        writes: set[Key] = set()
        shared_reads: set[Key] = set()
        shared_writes: set[Key] = set()
        for name, param in program.parameters:
            for leaf in leaves_of(param):
                match leaf:
                    case Held(variable, index) | HeldRows(variable, index):
                        reads.add(("variable", variable, index))
                        if not is_kernel or name in prepared.written:
                            writes.add(("variable", variable, index))
                    case Update(variable, index):
                        writes.add(("variable", variable, index))
                    case Sharded(array, _, writable):
                        (shared_writes if writable else shared_reads).add(("data", array.segment))
                        self.written |= {array.segment} if writable else set()
                    case Broadcast(array):
                        shared_reads.add(("data", array.segment))
        return Access(frozenset(reads), frozenset(writes), frozenset(shared_reads), frozenset(shared_writes))

    # ---- collectives

    def collective(self, kind: CollectiveKind, given: Any, op: Any, root: int, dest: Any) -> Any:
        """Records a collective in place."""
        if dest is not None or kind not in {"all_reduce", "reduce", "broadcast", "exchange"}:
            raise ArgumentError(
                f"{tracing.where()}: {kind} gives variables other memory, which {self.name} cannot do; call it before, or after"
            )
        self.calls += 1
        several = several_of(given, kind)
        known: CollectiveOp | None = checked_op(several, op, kind) if kind in {"all_reduce", "reduce"} else None
        storages = [self._hold(one) for one in several]
        if kind == "exchange":
            check_halos(several)
        else:
            check_no_halo(several, kind)
            check_uniform(several, kind)
        work = Work(kind, known, check_rank(root, self.world.world_size))
        keys = frozenset(("variable", one.number, leaf) for one in storages for leaf in range(len(one.layout.leaves)))
        for number, segments, access in traffic_of(self.world).programs(work, pairs_in_place(work, several), keys):
            self.programs.add(number)
            self.parts.append(Part(number, kind, self.calls, access))
            self.kept += segments
            self.segments |= {segment.id for segment in segments}
        differs = kind in {"reduce", "exchange"} and self.world.world_size > 1
        for one in several:
            self.changed[id(one)] = weakref.ref(one), differs, kind == "exchange"
        return given

    def swap(self, first: Variable, second: Variable) -> None:
        """Exchanges the memory of two variables, for the calls that follow."""
        if self._outer:
            raise ArgumentError(
                f"{tracing.where()}: swap in {self.names[-1]}, which {self.name} calls; swap in {self.name}, or write two steps"
            )
        for one in (first, second):
            self._hold(one)
            self.changed[id(one)] = weakref.ref(one), self.world.world_size > 1, None
        self.swaps[-1].append((weakref.ref(first), weakref.ref(second)))
        self._memory.append((first, second, first.storage()))  # before it is traded, which Ctrl-C may prevent
        first.trade(second)

    def end_of_turn(self) -> bool:
        """Ends an iteration; returns whether swapped variables have the memory again that they had at first.

        Raises:
            ArgumentError: that takes more than MOST_TURNS iterations.
        """
        period = _period(self.swaps[0])
        if period > MOST_TURNS:
            raise ArgumentError(f"{self.name}: swapped variables repeat after {period} iterations; at most {MOST_TURNS}")
        if len(self.swaps) == period:
            return True
        self.starts.append(len(self.parts))
        self.swaps.append([])
        return False

    def undo(self) -> None:
        """Gives swapped variables the memory back that they had at first."""
        while self._memory:
            first, second, storage = self._memory[-1]
            if first.storage() is not storage:
                first.trade(second)
            self._memory.pop()

    def turn(self, first: int, count: int) -> None:
        """Swaps variables as that many iterations do, from the number of the first on."""
        for iteration in range(first, first + count % len(self.swaps)):
            for pair in self.swaps[iteration % len(self.swaps)]:
                one, other = (variable() for variable in pair)
                if one is not None and other is not None:
                    one.trade(other)

    # ---- inner sequences

    @contextmanager
    def inside(self, name: str, times: Any) -> Iterator[None]:
        """Context in which calls become parts of an inner sequence."""
        formula = times.formula if isinstance(times, Number) else ("value", times)
        parts: Parts = []
        self._outer.append(self.parts)
        self.names.append(name)
        self.parts = parts
        try:
            yield
        finally:
            self.parts = self._outer.pop()
            self.names.pop()
        self.parts.append(Loop(name, formula, self.depth + 1, tuple(ordered(parts))))


def _period(swaps: Sequence[Swap]) -> int:
    """Returns the number of iterations after which swapped variables have their own memory again."""
    place: dict[int, int] = {}
    for pair in swaps:
        first, second = map(id, (one() for one in pair))
        place[first], place[second] = place.get(second, second), place.get(first, first)
    period = 1
    for start, following in place.items():
        length, at = 1, following
        while at != start:
            length, at = length + 1, place[at]
        period = math.lcm(period, length)
    return period


def ordered(parts: Sequence[Part | Loop]) -> Parts:
    """Returns the parts of a loop with their waits."""
    found, shown = waits([part.access if isinstance(part, Part) else None for part in parts])
    return [
        part if isinstance(part, Loop) else replace(part, wait=wait, shows=index in shown)
        for index, (part, wait) in enumerate(zip(parts, found, strict=True))
    ]


def _packed(layout: str, values: Sequence[Any]) -> tuple[bytes, tuple[tuple[int, str, Formula], ...]]:
    """Returns a call's values packed, with zeros for the unknown ones, and the formulas of these by offset."""
    plain = [0 if isinstance(value, Number) else value for value in values]
    formulas = tuple(
        (struct.calcsize("<" + layout[:index]), layout[index], value.formula)
        for index, value in enumerate(values)
        if isinstance(value, Number)
    )
    return struct.pack("<" + layout, *plain), formulas
