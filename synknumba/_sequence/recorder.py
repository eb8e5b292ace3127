"""Recorders: the body of a sequence is run once with stand-ins, and what it calls is noted in order.

    body ──run with stand-ins──> calls, collectives, inner sequences ──> parts, with what they read and write

An `Installer` sends the calls to the ranks, and a `DryRun` only plans them. What calls return stands
in for results (`symbolic_results.py`).
"""  # noqa: E501

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, final

import numpy as np

from synknumba import _tracing as tracing
from synknumba._call.call import Call
from synknumba._call.distribute import result_class
from synknumba._call.options import CallOptions
from synknumba._call.plan import Plan
from synknumba._call.work_out import WorkedCall
from synknumba._errors import ArgumentError
from synknumba._formulas import Formula
from synknumba._host.data import Data, segment_of
from synknumba._ops import reduction
from synknumba._ops.rows import Partition
from synknumba._ops.tree import flatten, is_nested, unflatten
from synknumba._sequence.arguments import is_number, plain_number
from synknumba._sequence.call_checks import InnerTimes, Lines
from synknumba._sequence.own_calls import exchange, number_call
from synknumba._sequence.symbolic_results import (
    ScalarResult,
    SymbolicResult,
    combined_dtype,
    may_be_number,
    unfit,
)
from synknumba._sequence.used_memory import OuterArrays
from synknumba._tracing import Here, Line, Number, Unknown, formula_of
from synknumba._types import Args, Array, CollectiveKind, Kwargs, class_text
from synknumba._variables.collective_arguments import VariableGroup
from synknumba._variables.collective_plans import WITH_DEST, CollectiveSpec
from synknumba._variables.state import VariableState, check_rank
from synknumba._variables.variable import Variable, state_of
from synknumba._wire.program import Broadcast, Held, HeldRows, Param, Sharded, Update, leaves_of
from synknumba._wire.sequence import (
    CARRIED,
    INNER_TIMES,
    SUCCESS,
    Access,
    Key,
    Loop,
    Moves,
    Part,
    Shared,
    ordered,
    own_access,
    united,
)
from synknumba._world.engine import Engine

if TYPE_CHECKING:
    from synknumba._call.function import Function

Parts: TypeAlias = "list[Part | Loop]"

NO_NUMBERS: Mapping[Formula, Formula] = MappingProxyType({})
MOST_TURNS = 4  # iterations after which swapped variables must have their memory again


@final
class RecordedBody:
    """A body that is being recorded: its iterations until swapped variables have their memory
    again.

    Attributes:
        body: the body, which has a name.
        parts: its parts so far.
        starts: index of the first part of each turn.
        carried: numbers that have other values after an iteration, with formulas of these; of each
            turn.
        swaps: variables that are swapped in the first turn.
        carriable: numbers that the body may carry.
        returned: those that an inner body returns, by their places.
        ends: of each turn, the condition that ends an inner sequence.
        returns: whether an inner sequence has results.
    """

    def __init__(self, body: Any, carriable: Set[Formula]) -> None:
        self.body, self.carriable = body, carriable
        self.parts: Parts = []
        self.starts = [0]
        self.carried: list[dict[Formula, Formula]] = [{}]
        self.swaps: list[tuple[Variable, Variable]] = []
        self.returned: dict[int, Number] = {}
        self.ends: list[Formula] = []
        self.returns = False

    def period(self) -> int:
        """Returns the number of turns."""
        period, origins = 1, dict[int, int]()
        for pair in self.swaps:
            first, second = (id(state_of(variable)) for variable in pair)
            # of the memory that a variable has after the first turn: whose it was
            origins[first], origins[second] = (
                origins.get(second, second),
                origins.get(first, first),
            )
        for start, place in origins.items():
            length = 1
            while place != start:
                length, place = length + 1, origins[place]  # noqa: PLW2901
            period = math.lcm(period, length)
        return period

    def moves(self) -> tuple[Moves, ...]:
        """Returns what is carried in each turn."""
        return tuple(tuple(numbers.items()) for numbers in self.carried)


class Recorder(ABC):
    """What the body of a sequence does.

    Args:
        name: name of the sequence, for messages.
        partition: of rows into ranks.

    Attributes:
        names: names of arguments and of what the body reads from outside, by id.
        stack: the bodies that are being recorded, from the outermost.
        used: bytes of the ranks' small results so far.
        cells: `struct` letters of the numbers of inner bodies.
        lines: file and line of the body that computes a number, by the part's name and the formula.
        places: file and line of the body that makes a call, by its number.
        checks: what each call of the sequence must satisfy.
        arrays: arrays from outside.
        written: arguments whose rows ranks write, with their calls, by segment.
        passed: arguments and options of each call, as the body passes them, while that runs.
    """

    world: Engine | None = None  # of the ranks that get the calls

    def __init__(self, name: str, partition: Partition) -> None:
        self.name, self.partition = name, partition
        self.names: Mapping[int, str] = {}
        self.stack: list[RecordedBody] = []
        self.used = 0
        self.cells = ""
        self.lines: dict[tuple[str, Formula], str] = {}
        self.places: dict[int, str] = {}
        self.checks: list[InnerTimes | Lines] = []
        self.arrays = OuterArrays(name)
        self.written: dict[int, str] = {}
        self.passed: list[tuple[Any, ...]] = []
        # results that later calls take, by their ids: as numbers, with slots, and as arrays
        self._numbers: dict[int, tuple[SymbolicResult, int]] = {}
        self._arrays: dict[int, tuple[SymbolicResult, Data]] = {}
        self.judges = False
        # results that ranks combine for the condition of the outermost loop alone
        self._judged: list[Shared] = []
        self._here = Here()

    @property
    def is_here(self) -> bool:
        return bool(self._here)

    @property
    def depth(self) -> int:
        return len(self.stack) - 1

    @property
    def innermost(self) -> RecordedBody:
        """The body that runs."""
        return self.stack[-1]

    @property
    def parts(self) -> Parts:
        """Its parts so far."""
        return self.innermost.parts

    @property
    def calls(self) -> int:
        """Number of calls so far."""
        return len(self.places)

    @property
    def slots(self) -> int:
        """Number of results that ranks combine to numbers."""
        return len(self._numbers)

    # ---- calls

    def call(
        self,
        function: "Function[..., Any]",
        args: Args,
        kwargs: Kwargs,
        options: CallOptions,
    ) -> Any:
        """Records a call; returns stand-ins for its results."""
        self._check_call(function, options)
        for rows in (options.batch, options.local_batch):
            if isinstance(rows, Data | np.ndarray):
                self.note_read(rows)
        self._count_call()
        self.passed.append((args, kwargs, options.batch, options.local_batch))
        args = tuple(map(self._argument, args))
        kwargs = {name: self._argument(value) for name, value in kwargs.items()}
        worked = function._planner.work_out_in_sequence(  # noqa: SLF001  # shared with this package
            args, kwargs, options, self.partition, self.world, self.used
        )
        _check_located(worked)
        self._note_lines(worked)
        self.used = worked.built.used
        return self._record(function, worked, self._access(worked))

    def _check_call(self, function: "Function[..., Any]", options: CallOptions) -> None:
        """Raises `ArgumentError` for a call that a sequence cannot have."""
        if problem := function._unfit:  # noqa: SLF001  # as above
            raise ArgumentError(f"{tracing.where()}: {problem}")
        if isinstance(options.batch, Line):
            _check_lines(function, options.batch)
        for name, value in (("batch", options.batch), ("local_batch", options.local_batch)):
            match value:
                case Line():
                    continue
                case Unknown():
                    self._refuse_rows(f"{name}= of {function.name}", value)
        if options.shards is not None and function.update_modes:
            raise ArgumentError(
                f"{tracing.where()}: {function.name} has shards= and updates=, which the script "
                f"combines; leave shards= out in {self.name}"
            )

    def _note_lines(self, worked: WorkedCall) -> None:
        """Notes that each call of the sequence tests the table of rows of this one."""
        call, name = worked.call, worked.planner.name
        if isinstance(call.options.batch, Line):
            written, _ = call.arguments.written()
            lines = Lines(call.options.batch, name, self._place_of_call, rows_of(call), written)
            self.checks.append(lines)

    def check_written(self) -> None:
        """Raises `ArgumentError` if calls write what the script looks at before they begin: arrays
        that the body has read, and tables of rows.
        """
        self.arrays.check_reads(self.written.keys())
        for check in self.checks:
            if isinstance(check, Lines):
                check.refuse_writer(self.name, self.written)

    @property
    def _place_of_call(self) -> str:
        return f"call {self.calls}, {self.places[self.calls]}"

    def _count_call(self) -> None:
        self.places[self.calls + 1] = tracing.where()

    def _refuse_rows(self, option: str, value: Unknown) -> NoReturn:
        way_out = (
            "for other rows in each iteration, write batch=rows[synk.STEP] with a "
            "line of row numbers for each"
        )
        if isinstance(value, Number) and value.formula_of_argument:
            way_out = "pass synk.static(k), which makes another recording for each value"
        raise ArgumentError(
            f"{tracing.where()}: {option} must be known while {self.name} is traced; got "
            f"{value.label}: {way_out}"
        )

    @abstractmethod
    def _record(self, function: "Function[..., Any]", worked: WorkedCall, access: Access) -> Any:
        """Records a call; returns stand-ins for its results."""

    def _argument(self, value: Any) -> Any:
        """Returns an argument with what ranks can take: arrays are copied to shared memory."""
        value = self.arrays.shared(value)
        if isinstance(value, SymbolicResult):
            return self._as_array(value)
        if isinstance(value, Line):
            tracing.refuse_value(value)
        if is_nested(value):
            leaves, structure = flatten(value)
            return unflatten(structure, [self._argument(leaf) for leaf in leaves])
        return value

    def note_read(self, data: Array | Data) -> None:
        self.arrays.note_read(data)

    # ---- results

    def _results_of(self, worked: WorkedCall, number: int, plan: Plan | None = None) -> Any:
        """Returns what stands for the results of a call, given the number of its program; in a dry
        run, of its report.
        """
        name = worked.planner.name
        symbolic = partial(SymbolicResult, self.parts, worked.call, plan, number)
        if not worked.is_kernel:
            return symbolic(f"the result of {name}") if worked.options.has_ops else None
        returned = tuple(worked.returned)
        places: Sequence[int | None] = range(len(returned)) if len(returned) > 1 else [None]
        stand_ins: list[Any] = []
        for place, output in zip(places, returned, strict=False):
            result = worked.built.results[output]
            handle = symbolic(f"output {output} of {name}", result, place)
            stand_ins.append(ScalarResult(self, handle) if may_be_number(result) else handle)
        if not stand_ins:
            return None
        return stand_ins[0] if len(returned) == 1 else result_class(name, returned)(*stand_ins)

    def share(self, number: SymbolicResult) -> int:
        """Makes the ranks combine a result to a number, after the call that makes it; returns the
        slot of the number.
        """
        if id(number) not in self._numbers:
            slot, result = self.slots, number.result
            self._numbers[id(number)] = number, slot
            assert result is not None  # it is a kernel's
            assert result.parts is not None  # it is a result that the caller gets
            dtype = np.dtype(result.parts.dtype)
            shared = Shared(slot, result.parts.offset, dtype, result.op, number.weights())
            if self.judges and not self.depth:
                self._judged.append(shared)
                return slot
            stage = frozenset({("stage", slot)})
            puts = Part(-1, number.label, self.calls, Access(writes=stage), puts=shared)
            access = Access(remote_reads=stage)
            combines = Part(-1, number.label, self.calls, access, combines=shared)
            self._home_of(number).extend((puts, combines))
        return self._numbers[id(number)][1]

    @contextmanager
    def judging(self) -> Iterator[list[Shared]]:
        """Context in which the condition of a loop is traced; gives the results that ranks then
        combine for it alone. In an inner loop, their combinations are parts.
        """
        self.judges, self._judged = True, []
        try:
            yield self._judged
        finally:
            self.judges = False

    def _home_of(self, result: SymbolicResult) -> Parts:
        """Returns the parts behind which a result is combined: of the body that makes it, or if
        that has ended, of the innermost one.

        That may be around the one that uses the result. A body that has ended has made its last.
        """
        for recorded in self.stack:
            if recorded.parts is result.home:
                return recorded.parts
        return self.parts

    def _as_array(self, result: SymbolicResult) -> Data:
        """Makes the ranks combine a result after the call that makes it; returns the memory that
        later calls read.
        """
        if id(result) not in self._arrays:
            problem = unfit(result.result, has_shards=result.has_shards)
            if problem is not None:
                raise ArgumentError(
                    f"{tracing.where()}: {result.label} cannot be an argument "
                    f"of a later call: {problem}"
                )
            assert result.result is not None  # it fits
            data = Data(np.zeros(result.result.shape, combined_dtype(result.result)))
            self._arrays[id(result)] = result, data
            access = Access(
                remote_reads=frozenset({result.key}),
                writes=frozenset({("data", segment_of(data).id)}),
            )
            self._home_of(result).append(self._join(result, data, access))
        return self._arrays[id(result)][1]

    @abstractmethod
    def _join(self, result: SymbolicResult, data: Data, access: Access) -> Part:
        """Returns the part that combines a result into memory of the host."""

    # ---- memory

    def _access(self, worked: WorkedCall) -> Access:
        """Returns what a call reads and writes: variables on its own rank, and arrays that others
        may read or write, too.

        Raises:
            ArgumentError: it writes to a result of another call.
        """
        is_kernel, written, batch = worked.is_kernel, worked.written(), worked.call.options.batch
        accesses = []
        if isinstance(batch, Line):
            table = segment_of(batch.data).id
            accesses.append(Access(remote_reads=frozenset({("data", table)})))
        for name, param in worked.call.parameters.items():
            for leaf in leaves_of(param):
                if isinstance(leaf, Sharded) and leaf.writable:
                    self._note_written(name, worked.planner.name, leaf.array.segment)
                may_write = name in written
                if not is_kernel:  # a GPU's kernel may write to what is read-only here
                    may_write = not getattr(leaf, "read_only", False)
                accesses.append(_access_of(leaf, may_write=may_write))
        if not is_kernel:  # a function may raise on one rank only
            accesses.append(Access(writes=SUCCESS))
        return united(accesses)

    def _note_written(self, name: str, function: str, segment: int) -> None:
        for result, data in self._arrays.values():
            if segment_of(data).id == segment:
                raise ArgumentError(
                    f"{tracing.where()}: {name} is in inout=, and {result.label} would be "
                    "changed for all calls that take it; write to a variable"
                )
        self.written.setdefault(segment, f"{name} of {function} ({self._place_of_call})")

    # ---- collectives

    def collective(
        self, kind: CollectiveKind, variables: Any, op: Any, root: int, dest: Any
    ) -> Any:
        """Records a collective in place."""
        if dest is not None or kind in WITH_DEST:
            raise ArgumentError(
                f"{tracing.where()}: {kind} gives variables other memory, which {self.name} cannot "
                f"do; call it before, or after"
            )
        self._count_call()
        group = VariableGroup.of(variables, kind)
        spec = CollectiveSpec(kind, None, check_rank(root, self.partition.parts))
        if op is not None or kind in {"all_reduce", "reduce"}:
            spec = spec._replace(op=group.checked_op(op))
        self._place(group.states)
        if kind == "exchange":
            group.check_halos()
        else:
            group.check_no_halo()
        self._record_collective(group.states, spec)
        return variables

    def beside(self, during: Callable[[], object], variables: Any) -> Any:
        """Records the calls that `during` makes, and an exchange that runs beside them."""
        group = VariableGroup.of(variables, "exchange")
        self._place(group.states)
        group.check_halos()  # before `during` has run
        parts = self.parts
        first = len(parts)
        during()
        exchange = len(parts)
        self.collective("exchange", variables, None, 0, None)
        for index in range(first, len(parts)):
            part = parts[index]
            if part.access is None:
                continue
            if index < exchange:
                access = replace(part.access, beside=self.calls)
            else:
                access = replace(part.access, exchange=self.calls)
            parts[index] = replace(part, access=access)
        return variables

    @abstractmethod
    def _place(self, states: Sequence[VariableState]) -> None:
        """Notes the variables of a collective or a swap, and gives them memory if they are to
        have some.
        """

    @abstractmethod
    def _record_collective(self, states: Sequence[VariableState], spec: CollectiveSpec) -> None:
        """Records a collective that has been checked, but for equal shapes."""

    def swap(self, first: Variable, second: Variable) -> None:
        """Exchanges the memory of two variables, for the calls that follow."""
        if len(self.innermost.starts) == 1:
            self.innermost.swaps.append((first, second))
        states = [state_of(first), state_of(second)]
        self._place(states)
        self._swap(*states)

    @abstractmethod
    def _swap(self, first: VariableState, second: VariableState) -> None:
        """Exchanges the memory of two variables."""

    def _begin_turn(self) -> None:
        """Notes that the outermost body is run again, with variables swapped."""

    def end_of_turn(self) -> bool:
        """Ends an iteration; returns whether swapped variables have the memory again that they had
        at first.

        Raises:
            ArgumentError: that takes more than MOST_TURNS iterations.
        """
        inner = self.innermost
        period = inner.period()
        if period > MOST_TURNS:
            raise ArgumentError(
                f"{inner.body.name}: swapped variables repeat after {period} "
                f"iterations; at most {MOST_TURNS}"
            )
        if len(inner.starts) == period:
            return True
        inner.starts.append(len(inner.parts))
        inner.carried.append({})
        if not self.depth:
            self._begin_turn()
        return False

    # ---- numbers

    def carry(self, number: Any, value: Any) -> None:
        """Gives a number of the sequence's arguments another value from the next iteration on."""
        inner = self.innermost
        if not isinstance(number, Number) or number.formula not in inner.carriable:
            label = number.label if isinstance(number, Unknown) else repr(number)
            name, alone = inner.body.name, ""
            if isinstance(number, Variable):
                alone = "; synk.swap(u, v) exchanges variables"
            elif self.depth:
                alone = "; the body itself calls it, by that name"
            raise ArgumentError(
                f"{tracing.where()}: carry takes a number that is passed to {name}, and its next "
                f"value, as in synk.carry(old, new); got {label}{alone}"
            )
        next_value = as_number(value)
        if number.formula in inner.carried[-1]:
            raise ArgumentError(
                f"{tracing.where()}: {number.label} has its next value already; carry it once"
            )
        _check_carried(number, next_value)
        self._carry(number, next_value)

    def cell(self, number: Number, label: str) -> Number:
        """Returns a number of an inner body, of the kind of another."""
        formula = "cell", len(self.cells)
        self.cells += "q" if number.is_int else "d"
        return Number(formula, label, is_int=number.is_int, dtype=number.dtype)

    def keep(self, place: int, number: Number) -> Number:
        """Returns a number that has, behind an inner loop, the value of one of its last iteration;
        `place` is that among what the body returns.
        """
        cells = self.innermost.returned
        if place not in cells:
            cells[place] = self.cell(number, number.label)
        self._carry(cells[place], number)
        return cells[place]

    def _carry(self, target: Number, value: Number) -> None:
        self.innermost.carried[-1][target.formula] = value.formula
        self._note_line(CARRIED, value)

    def _note_line(self, part: str, number: Number) -> None:
        """Notes the line of the body that computes a number for a part."""
        self.lines[part, number.formula] = number.line or tracing.where()

    def returned(self, number: Number) -> Any:
        """Records a call whose result for the script is a number; returns what stands for it."""
        return self.call(number_call(_dtype_of(number)), (number,), {}, CallOptions(None))

    # ---- inner sequences

    @contextmanager
    def inside(
        self, body: Any, times: Any, begins: Mapping[Formula, Formula] = NO_NUMBERS
    ) -> Iterator[RecordedBody]:
        """Context in which calls become parts of an inner sequence, which begins with numbers that
        it may carry.
        """
        formula = formula_of(times)
        if isinstance(times, Number):
            self._note_line(INNER_TIMES, times)
        inner = RecordedBody(body, begins.keys())
        self.stack.append(inner)
        try:
            yield inner
        finally:
            self.stack.pop()
        self.parts.append(
            Loop(
                body.name,
                formula,
                self.depth + 1,
                tuple(ordered(inner.parts)),
                own_access(inner.parts),
                starts=tuple(inner.starts),
                begins=tuple(begins.items()),
                carried=inner.moves(),
                ends=tuple(inner.ends),
                returns=inner.returns,
            )
        )
        if len(inner.starts) > 1:
            self._exchange_back(formula, inner)

    def _exchange_back(self, times: Formula, inner: RecordedBody) -> None:
        """Exchanges what swapped variables hold, behind an inner loop that has ended when they had
        other memory than at first: the calls that follow were recorded with that one.
        """
        period = len(inner.starts)
        if times[0] == "value" and not inner.ends and times[1] % period == 0:
            return
        for u, v in (map(state_of, pair) for pair in inner.swaps):
            if (u.sharded, u.halo) != (v.sharded, v.halo):
                divisions = f"{u.division_text()}, and {v.division_text()}"
                raise ArgumentError(
                    f"{tracing.where()}: {inner.body.name} swaps {u.label} and {v.label}, which "
                    f"are divided in different ways ({divisions}); swapped variables of an inner "
                    "sequence must be divided alike: scatter both with one halo="
                )
        done: Formula = ("+", ("step", self.depth + 1), ("value", 1))  # 1 without iterations
        done = "minimum", done, ("maximum", times, ("value", 0))
        rest = Number(("%", done, ("value", period)), "a number of iterations", is_int=True)
        function = exchange()
        with self.inside(function, rest):
            for pair in inner.swaps:
                self.call(function, pair, {}, CallOptions(None))


def _check_lines(function: "Function[..., Any]", line: Line) -> None:
    data = line.data
    if data.ndim != 2 or data.dtype != np.int64 or 0 in data.shape:
        raise ArgumentError(
            f"{tracing.where()}: batch= of {function.name} takes a line of row numbers: "
            f"{line.data_label} must be 2-D and int64, with a line for each iteration, and is "
            f"{data.dtype} {data.shape}; NumPy's astype(np.int64) converts it"
        )


def _check_located(worked: WorkedCall) -> None:
    outputs, batch = worked.options.outputs, worked.call.options.batch
    if not isinstance(batch, Line):
        return
    for name in worked.returned:
        if outputs[name].op in reduction.LOCATING:
            raise ArgumentError(
                f"{tracing.where()}: {name} of {worked.planner.name} is a row number, which "
                f"rows of {batch.label} do not have in a sequence; use another output"
            )


def _access_of(leaf: Param, *, may_write: bool) -> Access:
    """Returns what a call does to the memory of a parameter."""
    keys: frozenset[Key]
    match leaf:
        case Held(variable):
            keys = frozenset(("variable", variable, index) for index in leaf.leaves())
        case HeldRows(variable, index):
            keys = frozenset({("variable", variable, index)})
        case Update(variable, index):
            return Access(writes=frozenset({("variable", variable, index)}))
        case Sharded(array, _, True):
            return Access(remote_writes=frozenset({("data", array.segment)}))
        case Sharded(array) | Broadcast(array):
            return Access(remote_reads=frozenset({("data", array.segment)}))
        case _:
            return Access()
    return Access(keys, keys) if may_write else Access(keys)


def as_number(value: Any) -> Number:
    """Returns a number of a sequence, or a plain one as such."""
    if isinstance(value, Number):
        return value
    if isinstance(value, Unknown):
        tracing.refuse_value(value)
    if not is_number(value):
        raise ArgumentError(
            f"{tracing.where()}: carry takes a number as the next value; got {class_text(value)}"
        )
    plain, dtype = plain_number(value)
    return Number(("value", plain), repr(value), is_int=isinstance(plain, int), dtype=dtype)


def _check_carried(number: Number, value: Number) -> None:
    """Raises `ArgumentError` if a number of another kind than `number` would be its next value."""
    if number.is_int and not value.is_int:
        raise ArgumentError(
            f"{tracing.where()}: {number.label} is an int, and its next value, {value.label}, a "
            f"float; pass a float at first, as in 1.0"
        )
    if number.dtype is None and value.dtype == "uint64":
        return
    if number.dtype != value.dtype:
        raise ArgumentError(
            f"{tracing.where()}: {number.label} is {_dtype_of(number)}, and its next value, "
            f"{value.label}, {_dtype_of(value)}; pass a number of the same dtype at first, or "
            f"carry np.float64(1) * x of a float32 x"
        )


def _dtype_of(number: Number) -> str:
    if number.dtype is not None:
        return number.dtype
    return "int64" if number.is_int else "float64"


def rows_of(call: Call) -> int:
    """Returns the number of rows of the arrays of a call."""
    return next(iter(call.arguments.lengths.divided.values()))
