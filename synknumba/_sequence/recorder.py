"""Recordings: the body of a sequence, run once with stand-ins, and what it calls, in order.

    body ──run with stand-ins──> calls, collectives, inner sequences ──> parts, with what they read and write

A `Installer` sends the calls to the ranks, and a `DryRun` only plans them. What calls return stands
in for results: the body can return it, and a 0-d result can be an argument of later calls.
"""  # noqa: E501

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, final

import numpy as np

from synknumba import _tracing as tracing
from synknumba._call.call import Call, leaves_of
from synknumba._call.options import CallOptions
from synknumba._call.work_out import WorkedCall
from synknumba._errors import ArgumentError, BatchError
from synknumba._formulas import Formula, computed, fold
from synknumba._host.data import Data
from synknumba._host.file_data import over_file
from synknumba._host.foreign import adopted, is_foreign
from synknumba._ops import reduction
from synknumba._ops.rows import Partition
from synknumba._ops.tree import flatten, is_nested, unflatten
from synknumba._sequence.outer_values import bytes_of
from synknumba._tracing import Here, Line, Number, Unknown, UnknownArray
from synknumba._types import Array, CollectiveKind, CollectiveOp
from synknumba._variables.collectives import check_halos, check_no_halo, checked_op, several_of
from synknumba._variables.state import VariableState
from synknumba._wire.program import Broadcast, Held, HeldRows, Result, Sharded, Update
from synknumba._wire.sequence import (
    CARRIED,
    NOTHING,
    RECORDED,
    SUCCESS,
    Access,
    Key,
    Loop,
    Part,
    Shared,
    own_access,
    waits,
)
from synknumba._world.engine import Engine

if TYPE_CHECKING:
    from synknumba._call.function import Function

Parts: TypeAlias = "list[Part | Loop]"

MOST_TURNS = 4  # iterations after which swapped variables must have their memory again


class SymbolicResult(UnknownArray):
    """Stands for a result of a call.

    Attributes:
        label: name in messages.
        result: the result of a kernel, as the ranks know it; None for a Python function's.
        key: the ranks' parts of it, for accesses.
        home: body of the call.
    """

    def __init__(self, recorder: "Recorder", label: str, result: Result | None, key: Key) -> None:
        self.label, self.result, self.key, self.home = label, result, key, recorder.parts

    def _why(self, operation: str) -> str:
        problem = _unfit(self.result, has_shards=False)
        if problem is None:
            return super()._why(operation)
        return (
            "its calls run later, on the ranks. Return it and look at it after the call, or pass "
            f"until=. Later calls cannot take it: {problem}"
        )


def told_dtype(dtype: "np.dtype[Any]") -> str | None:
    """Returns the name of a dtype for a `Number`: None for int64 and float64, which are as
    Python's numbers.
    """
    return None if dtype in (np.int64, np.float64) else dtype.name


def _combined_dtype(result: Result) -> "np.dtype[Any]":
    """Returns the dtype of a combined result."""
    assert result.parts is not None  # it is a result that the caller gets
    dtype = np.dtype(result.parts.dtype)
    return (
        reduction.combine(result.op, np.ones(1, dtype), np.ones(1, np.int64)).dtype
        if isinstance(result.op, str)
        else dtype
    )


def _unfit(result: Result | None, *, has_shards: bool) -> str | None:
    """Returns why a result cannot be an array argument of a later call, and what to write
    instead; None if it can.
    """
    if result is None:
        return (
            "its shape is known only after the call. Let the function write to "
            "a variable, and pass that"
        )
    if result.op is None:
        return (
            "it is a list of the ranks' values. Write to a variable, which keeps each rank's "
            "own, or combine them by an op"
        )
    if result.op in reduction.LOCATING:
        return f"{result.op} finds values and rows, which the script puts together. Return it"
    if result.op == "gather":
        return (
            "it has the rows of all ranks. Write them to a scattered variable, as in sliceable= "
            "and inout=, and pass that"
        )
    if result.shape == ():
        return (
            f"it is one {np.dtype(result.dtype)}. Return it and look at it after the call, or "
            f"declare it an int or a float"
        )
    if has_shards:
        return "with shards=, the script combines it. Leave shards= out"
    if result.stays:
        return (
            "it is so large that the GPUs combine it. Write to a variable, and "
            "combine it with all_reduce"
        )
    return None


@final
class ScalarResult(Number):
    """Stands for a 0-d result of a kernel, which may be an argument of later calls: the ranks then
    combine it.

    Attributes:
        home: body of the call.
        result: the result, as the ranks know it.
        unseen: the result for the script.
        weights: returns the number of rows on each rank, for a mean.
    """

    __slots__ = ("_recording", "home", "result", "unseen", "weights")

    def __init__(
        self,
        recorder: "Recorder",
        result: Result,
        unseen: Unknown,
        weights: Callable[[], tuple[int, ...]],
    ) -> None:
        assert result.parts is not None  # it is a result that the caller gets
        dtype = _combined_dtype(result)
        super().__init__((), unseen.label, is_int=dtype.kind in "iub", dtype=told_dtype(dtype))
        self._recording, self.home, self.result, self.unseen, self.weights = (
            recorder,
            recorder.parts,
            result,
            unseen,
            weights,
        )

    @property
    def formula(self) -> Formula:
        return ("result", self._recording.share(self))


@final
@dataclass(frozen=True, slots=True)
class Lines:
    """Row numbers of a call, a line for each iteration; checked at each call of the sequence, as
    they may have changed.
    """

    line: Line
    function: str
    rows: int  # number of rows of the call's arrays

    def check(self, name: str, times: int, _scalars: Sequence[Any]) -> None:
        """Raises `BatchError` if there are too few lines, or a row does not exist."""
        array = self.line.data.data
        if self.line.number.formula_of_step and times > len(array):
            raise BatchError(
                f"{name}: {self.line.label} has {len(array)} lines of row numbers, but "
                f"times={times}; give it as many"
            )
        low, high = array.min(), array.max()
        if low < 0 or high >= self.rows:
            at = np.argwhere((array < 0) | (array >= self.rows))[0]
            raise BatchError(
                f"{name}: batch= of {self.function} has row {array[tuple(at)]} in line {at[0]}, "
                f"but its rows are 0 to {self.rows - 1}"
            )


@final
@dataclass(frozen=True, slots=True)
class InnerTimes:
    """A number of iterations of an inner sequence that calls of the outer one pass, or from
    which it is computed.
    """

    times: Number
    inner: str  # name of the inner sequence
    line: str

    def check(self, name: str, _times: int, scalars: Sequence[Any]) -> None:
        """Raises `ArgumentError` if it is negative."""
        found = known_value(self.times.formula, scalars)
        if found is not None and found < 0:
            raise ArgumentError(
                f"{self.line}: times of {self.inner} must be an int of at least 0, but "
                f"{self.times.label} is {found} in this call of {name}"
            )


def known_value(formula: Formula, scalars: Sequence[Any], step: int | None = None) -> Any:
    """Returns the value of a formula of numbers that a call passes; None if it has others, or
    cannot be computed here.

    `step` is the number of the iteration, in all loops, if that is known.
    """

    def leaf(kind: str, operand: Any) -> Any:
        match kind:
            case "value":
                return operand
            case "scalar":
                return scalars[operand]
            case _:
                return step if kind == "step" else None

    def combine(sign: str, operands: list[Any]) -> Any:
        return None if None in operands else computed(sign, operands)

    try:
        return fold(formula, leaf, combine)
    except ArithmeticError:
        return None


def _as_number(value: Any) -> Number:
    """Returns a number of a sequence, or a plain one as such."""
    if isinstance(value, Number):
        return value
    if isinstance(value, bool | np.bool_) or not isinstance(
        value, int | float | np.integer | np.floating
    ):
        raise ArgumentError(
            f"{tracing.where()}: carry takes a number as the next value; got "
            f"a {type(value).__name__}"
        )
    dtype = told_dtype(value.dtype) if isinstance(value, np.generic) else None
    plain = value.item() if isinstance(value, np.generic) else value
    return Number(("value", plain), repr(value), is_int=isinstance(plain, int), dtype=dtype)


def _check_carried(number: Number, value: Number) -> None:
    """Raises `ArgumentError` if a number of another kind than `number` would be its next value."""
    if number.is_int and not value.is_int:
        raise ArgumentError(
            f"{tracing.where()}: {number.label} is an int, and its next value, {value.label}, a "
            f"float; pass a float at first"
        )
    if number.dtype != value.dtype and not (number.dtype is None and value.dtype == "uint64"):
        theirs, mine = (
            one.dtype or ("int64" if one.is_int else "float64") for one in (number, value)
        )
        raise ArgumentError(
            f"{tracing.where()}: {number.label} is {theirs}, and its next value, {value.label}, "
            f"{mine}; pass a number of the same dtype at first"
        )


def rows_of(call: Call) -> int:
    """Returns the number of rows of the arrays of a call."""
    return next(iter(call.arguments.lengths.sharded.values()))


class Recorder(ABC):
    """What the body of a sequence does.

    Args:
        name: name of the sequence, for messages.
        partition: of rows into ranks.

    Attributes:
        running: the sequences that are recorded, from the outermost.
        parts: parts of the innermost of them, so far.
        calls: number of calls so far.
        used: bytes of the ranks' small results so far.
        slots: number of results that ranks share.
        starts: index of the first part of each turn.
        carried: formulas of the scalars that have other values after an iteration, by index; of
            each turn.
        lines: file and line of the body that computes a number, by the part's name and the formula.
        places: file and line of the body that makes a call, by its number.
        kept: memory of the parts that has no other owner.
        checks: what each call of the sequence must pass, whose numbers and arrays may have changed.
        outside: NumPy arrays that calls take and that are no arguments of the sequence, by id, with
            their copies.
        looked: arrays whose elements have decided what is recorded, by id, with what they hold.
        written: segments whose rows ranks write.
        passed: arguments and options of each call, as the body passes them, while that runs.
    """

    world: Engine | None = None  # of the ranks that get the calls

    def __init__(self, name: str, partition: Partition) -> None:
        self.name = name
        self.partition = partition
        self.running: list[Any] = []
        self.parts: Parts = []
        self.calls = 0
        self.used = 0
        self.slots = 0
        self.starts = [0]
        self.carried: list[dict[int, Formula]] = [{}]
        self.lines: dict[tuple[str, Formula], str] = {}
        self.places: dict[int, str] = {}
        self.kept: list[Any] = []
        self.checks: list[Lines | InnerTimes] = []
        self.outside: dict[int, tuple[Array, Data]] = {}
        # other objects with arrays, by id, with these
        self.foreign: dict[int, tuple[Any, Array | Data]] = {}
        self.looked: dict[int, tuple[Array | Data, bytes]] = {}
        self._looked_at: dict[int, str] = {}
        self.written: set[int] = set()
        self.passed: list[tuple[Any, ...]] = []
        self._exchanges = 0  # beside other parts, so far
        self._outer: list[Parts] = []  # bodies around the innermost one
        self._shared: dict[int, int] = {}  # slots, by id of the result
        # results that later calls take as arrays, by their ids
        self._arrays: dict[int, tuple[SymbolicResult, Data]] = {}
        self._swapped: list[tuple[int, int]] = []  # ids of the variables that the first turn swaps
        self._here = Here()

    @property
    def is_here(self) -> bool:
        return bool(self._here)

    @property
    def depth(self) -> int:
        return len(self._outer)

    # ---- calls

    def call(
        self,
        function: "Function[..., Any]",
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: CallOptions,
    ) -> Any:
        """Records a call; returns stand-ins for its results."""
        if problem := function._unfit:  # noqa: SLF001  # shared with this package
            raise ArgumentError(f"{tracing.where()}: {problem}")
        if isinstance(options.batch, Line):
            self._check_lines(function, options.batch)
        for name, value in (("batch", options.batch), ("local_batch", options.local_batch)):
            if isinstance(value, Unknown) and not isinstance(value, Line):
                self._refuse_rows(f"{name}= of {function.name}", value)
        if options.shards is not None and function.update_modes:
            raise ArgumentError(
                f"{tracing.where()}: {function.name} has shards= and updates=, which the script "
                f"combines; leave shards= out in {self.name}"
            )
        for rows in (options.batch, options.local_batch):
            if isinstance(rows, Data | np.ndarray):
                self.note_read(rows)
        self._count_call()
        self.passed.append((args, kwargs, options.batch, options.local_batch))
        args, kwargs = (
            tuple(map(self._argument, args)),
            {name: self._argument(value) for name, value in kwargs.items()},
        )
        worked = function._planner.work_out_in_sequence(  # noqa: SLF001  # as above
            args, kwargs, options, self.partition, self.world, self.used
        )
        self._check_located(worked)
        self.used = worked.used
        return self._record(function, worked, self._access(worked))

    def _count_call(self) -> None:
        self.calls += 1
        self.places[self.calls] = tracing.where()

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

    @staticmethod
    def _check_lines(function: "Function[..., Any]", line: Line) -> None:
        data = line.data
        if data.ndim != 2 or data.dtype != np.int64 or not data.shape[0] or not data.shape[1]:
            raise ArgumentError(
                f"{tracing.where()}: batch= of {function.name} takes a line of row numbers: "
                f"{line.label} must be 2-D and int64, with a line for each iteration, and is "
                f"{data.dtype} {data.shape}"
            )

    def _argument(self, value: Any) -> Any:
        """Returns an argument with NumPy arrays, which the body has from outside or makes,
        copied to shared memory.
        """
        if is_foreign(value):
            if id(value) not in self.foreign:
                self.foreign[id(value)] = (
                    value,
                    adopted(value, f"an argument of a call of {self.name}"),
                )
            value = self.foreign[id(value)][1]
        if isinstance(value, np.ndarray) and value.ndim:
            if id(value) not in self.outside:
                mapped = over_file(value, f"an array that {self.name} has from outside")
                self.outside[id(value)] = value, Data(value) if mapped is None else mapped
            return self.outside[id(value)][1]
        if isinstance(value, np.ndarray):  # a call takes its number
            self.note_read(value)
        if isinstance(value, SymbolicResult):
            return self._as_array(value)
        if isinstance(value, Line):
            value._refuse()  # noqa: SLF001
        if is_nested(value):
            leaves, structure = flatten(value)
            return unflatten(structure, [self._argument(leaf) for leaf in leaves])
        return value

    def note_read(self, data: Array | Data) -> None:
        if id(data) not in self.looked:
            self.looked[id(data)] = data, bytes_of(data)
            self._looked_at[id(data)] = tracing.where()

    def check_looked(self) -> None:
        """Raises `ArgumentError` if the body has read an array that its calls write: it runs
        once, before they do.
        """
        for key, (given, _) in self.looked.items():
            data = given if isinstance(given, Data) else self.outside.get(key, (None, None))[1]
            if data is not None and data._segment.id in self.written:  # noqa: SLF001  # shared with this package
                raise ArgumentError(
                    f"{self._looked_at[key]}: {self.name} reads an array that its calls write, and "
                    "would get what it holds before the first of them: the body runs once, and its "
                    "calls run later, on the ranks. Read it in a kernel or a function, or after "
                    "the call"
                )

    @staticmethod
    def _check_located(worked: WorkedCall) -> None:
        outputs, batch = worked.options.outputs, worked.call.options.batch
        located = [name for name in worked.wanted if outputs[name].op in reduction.LOCATING]
        if located and isinstance(batch, Line):
            raise ArgumentError(
                f"{tracing.where()}: {located[0]} of {worked.planner.name} is a row number, which "
                f"rows of {batch.label} do not have in a sequence; use another output"
            )

    def _stand_in(
        self, result: Result, unseen: Unknown, weights: Callable[[], tuple[int, ...]]
    ) -> Unknown:
        """Returns what stands for a result of a kernel: a number, if ranks can combine it."""
        is_number = result.is_small and result.shape == () and np.dtype(result.dtype).kind in "iuf"
        combines = result.op is not None and result.op not in reduction.BY_ROWS
        return ScalarResult(self, result, unseen, weights) if is_number and combines else unseen

    def share(self, seen: ScalarResult) -> int:
        """Makes the ranks combine a result, after the call that makes it; returns the slot of
        the number.
        """
        slot = self._shared.get(id(seen))
        if slot is None:
            slot = self._shared[id(seen)] = self.slots
            self.slots += 1
            self.kept.append(seen)  # so that its id is not used again
            result = seen.result
            assert result.parts is not None  # as above
            shared = Shared(
                slot, result.parts.offset, np.dtype(result.parts.dtype), result.op, seen.weights()
            )
            stage = frozenset({("stage", slot)})
            home = self._body_of(seen)
            home.append(Part(-1, seen.label, self.calls, Access(writes=stage), puts=shared))
            home.append(
                Part(-1, seen.label, self.calls, Access(remote_reads=stage), combines=shared)
            )
        return slot

    def _body_of(self, result: ScalarResult | SymbolicResult) -> Parts:
        """Returns the parts behind which a result is combined: of the body that makes it, or if
        that has ended, of this one.

        That may be around the one that uses the result. A body that has ended has made its last.
        """
        return next(
            (parts for parts in (*self._outer, self.parts) if parts is result.home), self.parts
        )

    def _as_array(self, outcome: SymbolicResult) -> Data:
        """Makes the ranks combine a result after the call that makes it; returns the memory that
        later calls read.
        """
        if id(outcome) not in self._arrays:
            problem = _unfit(outcome.result, has_shards=self._has_shards(outcome))
            if problem is not None:
                raise ArgumentError(
                    f"{tracing.where()}: {outcome.label} cannot be an argument "
                    f"of a later call: {problem}"
                )
            assert outcome.result is not None  # it fits
            data = Data(np.zeros(outcome.result.shape, _combined_dtype(outcome.result)))
            self._arrays[id(outcome)] = outcome, data
            access = Access(
                remote_reads=frozenset({outcome.key}),
                writes=frozenset({("data", data._segment.id)}),  # noqa: SLF001
            )
            self._body_of(outcome).append(self._join(outcome, data, access))
        return self._arrays[id(outcome)][1]

    @abstractmethod
    def _has_shards(self, outcome: SymbolicResult) -> bool:
        """Returns whether the call of a result has shards."""

    @abstractmethod
    def _join(self, outcome: SymbolicResult, data: Data, access: Access) -> Part:
        """Returns the part that combines a result into memory of the host."""

    # ---- memory

    def _access(self, worked: WorkedCall) -> Access:
        """Returns what a call reads and writes: variables on its own rank, and arrays that others
        may read or write, too.

        Raises:
            ArgumentError: it writes to a result of another call.
        """
        is_kernel, written = worked.is_kernel, worked.written()
        results = {data._segment.id: outcome for outcome, data in self._arrays.values()}  # noqa: SLF001
        reads: set[Key] = set()
        writes: set[Key] = set()
        shared_reads: set[Key] = set()
        shared_writes: set[Key] = set()
        for name, param in worked.call.parameters.items():
            for leaf in leaves_of(param):
                match leaf:
                    case Held(variable, index) | HeldRows(variable, index):
                        indices = leaf.leaves() if isinstance(leaf, Held) else (index,)
                        keys = {("variable", variable, one) for one in indices}
                        reads |= keys
                        # for functions; a GPU's kernel may write to it
                        is_fixed = isinstance(leaf, Held) and leaf.read_only
                        if name in written if is_kernel else not is_fixed:
                            writes |= keys
                    case Update(variable, index):
                        writes.add(("variable", variable, index))
                    case Sharded(array, _, writable):
                        if writable and array.segment in results:
                            label = results[array.segment].label
                            raise ArgumentError(
                                f"{tracing.where()}: {name} is in inout=, and {label} would be "
                                "changed for all calls that take it; write to a variable"
                            )
                        (shared_writes if writable else shared_reads).add(("data", array.segment))
                        self.written |= {array.segment} if writable else set()
                    case Broadcast(array):
                        shared_reads.add(("data", array.segment))
        outcome = frozenset() if is_kernel else SUCCESS  # a function may raise on one rank only
        return Access(
            frozenset(reads),
            frozenset(writes) | outcome,
            frozenset(shared_reads),
            frozenset(shared_writes),
        )

    # ---- collectives

    def collective(self, kind: CollectiveKind, given: Any, op: Any, root: int, dest: Any) -> Any:
        """Records a collective in place."""
        if dest is not None or kind not in {"all_reduce", "reduce", "broadcast", "exchange"}:
            raise ArgumentError(
                f"{tracing.where()}: {kind} gives variables other memory, which {self.name} cannot "
                f"do; call it before, or after"
            )
        self._count_call()
        several = several_of(given, kind)
        known: CollectiveOp | None = (
            checked_op(several, op, kind) if kind in {"all_reduce", "reduce"} else None
        )
        self._place(several)
        if kind == "exchange":
            check_halos(several)
        else:
            check_no_halo(several, kind)
        self._record_collective(several, kind, known, root)
        return given

    def beside(self, during: Callable[[], object], given: Any) -> Any:
        """Records the calls that `during` makes, and an exchange that runs beside them."""
        several = several_of(given, "exchange")
        self._place(several)
        check_halos(several)  # before `during` has run
        number = self._exchanges = self._exchanges + 1
        first = len(self.parts)
        during()
        self._mark(first, lambda access: replace(access, beside=number))
        first = len(self.parts)
        self.collective("exchange", given, None, 0, None)
        self._mark(first, lambda access: replace(access, exchange=number))
        return given

    def _mark(self, first: int, marked: Callable[[Access], Access]) -> None:
        """Marks the parts from an index on as those of an exchange, or as beside one."""
        self.parts[first:] = [
            part if part.access is None else replace(part, access=marked(part.access))
            for part in self.parts[first:]
        ]

    @abstractmethod
    def _place(self, several: Sequence[VariableState]) -> None:
        """Notes the variables of a collective or a swap, and gives them memory if they are to
        have some.
        """

    @abstractmethod
    def _record_collective(
        self,
        several: Sequence[VariableState],
        kind: CollectiveKind,
        op: CollectiveOp | None,
        root: int,
    ) -> None:
        """Records a collective that has been checked, but for equal shapes."""

    def swap(self, first: VariableState, second: VariableState) -> None:
        """Exchanges the memory of two variables, for the calls that follow."""
        if self._outer:
            inner = self.running[-1].name
            raise ArgumentError(
                f"{tracing.where()}: swap in {inner}, which {self.name} calls; swap in "
                f"{self.name}, or write two steps"
            )
        if len(self.starts) == 1:
            self._swapped.append((id(first), id(second)))
        self._place([first, second])
        self._swap(first, second)

    @abstractmethod
    def _swap(self, first: VariableState, second: VariableState) -> None:
        """Exchanges the memory of two variables, in the outermost body."""

    def _begin_turn(self) -> None:
        """Notes that the body is run again, with variables swapped."""

    def end_of_turn(self) -> bool:
        """Ends an iteration; returns whether swapped variables have the memory again that they had
        at first.

        Raises:
            ArgumentError: that takes more than MOST_TURNS iterations.
        """
        period = _period(self._swapped)
        if period > MOST_TURNS:
            raise ArgumentError(
                f"{self.name}: swapped variables repeat after {period} "
                f"iterations; at most {MOST_TURNS}"
            )
        if len(self.starts) == period:
            return True
        self.starts.append(len(self.parts))
        self.carried.append({})
        self._begin_turn()
        return False

    # ---- numbers

    def carry(self, number: Any, value: Any) -> None:
        """Gives a number of the sequence's arguments another value from the next iteration on."""
        if self._outer:
            inner = self.running[-1].name
            raise ArgumentError(
                f"{tracing.where()}: carry in {inner}, which {self.name} calls: an inner sequence "
                f"begins with the numbers that the call passes; carry in {self.name}"
            )
        if not isinstance(number, Number) or number.formula[:1] != ("scalar",):
            told = number.label if isinstance(number, Unknown) else repr(number)
            raise ArgumentError(
                f"{tracing.where()}: carry takes a number that is passed to {self.name}, and its "
                f"next value, as in synk.carry(old, new); got {told}"
            )
        if isinstance(value, Unknown) and not isinstance(value, Number):
            value._refuse()  # noqa: SLF001
        (_, index), next_one = number.formula, _as_number(value)
        if index in self.carried[-1]:
            raise ArgumentError(
                f"{tracing.where()}: {number.label} has its next value already; carry it once"
            )
        _check_carried(number, next_one)
        self.carried[-1][index] = next_one.formula
        self.lines[CARRIED, next_one.formula] = next_one.line or tracing.where()

    # ---- inner sequences

    @contextmanager
    def inside(self, sequence: Any, times: Any) -> Iterator[None]:
        """Context in which calls become parts of an inner sequence."""
        formula = times.formula if isinstance(times, Number) else ("value", times)
        parts: Parts = []
        self._outer.append(self.parts)
        self.running.append(sequence)
        self.parts = parts
        try:
            yield
        finally:
            self.parts = self._outer.pop()
            self.running.pop()
        self.parts.append(
            Loop(sequence.name, formula, self.depth + 1, tuple(ordered(parts)), own_access(parts))
        )


def _period(swaps: Sequence[tuple[int, int]]) -> int:
    """Returns the number of iterations after which swapped variables have their own memory
    again.
    """
    place: dict[int, int] = {}
    for first, second in swaps:
        place[first], place[second] = place.get(second, second), place.get(first, first)
    period = 1
    for start, following in place.items():
        length, at = 1, following
        while at != start:
            length, at = length + 1, place[at]
        period = math.lcm(period, length)
    return period


def ordered(parts: Sequence[Part | Loop], without: frozenset[Key] = NOTHING) -> Parts:
    """Returns the parts of a loop with their waits, as if no part read these keys of other
    ranks.
    """
    accesses = [
        None
        if part.access is None
        else replace(part.access, remote_reads=part.access.remote_reads - without)
        for part in parts
    ]
    found, shown = waits(accesses)
    return [
        replace(_with_waits(part, without), wait=wait, shows=index in shown)
        for index, (part, wait) in enumerate(zip(parts, found, strict=True))
    ]


def _with_waits(part: Part | Loop, without: frozenset[Key]) -> Part | Loop:
    return (
        replace(part, parts=tuple(ordered(part.parts, without))) if isinstance(part, Loop) else part
    )


def free_of_recorded(parts: Sequence[Part | Loop]) -> tuple[Part | Loop, ...]:
    """Returns parts with the waits that they need once functions are recorded; none if that
    makes no difference.
    """
    return tuple(ordered(parts, RECORDED)) if any(map(_has_recorded, parts)) else ()


def _has_recorded(part: Part | Loop) -> bool:
    return any(map(_has_recorded, part.parts)) if isinstance(part, Loop) else part.is_recorded
