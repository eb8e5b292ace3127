"""Routine for Python functions: calls the function per slice, merges the results, and packs them
for the coordinator.
"""

import copy
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import groupby
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, TypeAlias, final

import numpy as np

from synknumba._device import (
    Gather,
    LineRows,
    RecordedCall,
    Recorder,
    SliceSteps,
    Step,
    fold_kernel,
)
from synknumba._errors import PartitionError, ReductionError
from synknumba._host.this_process import end_child
from synknumba._ops import reduction
from synknumba._ops.tree import Structure, flatten, result_text, spread, unflatten
from synknumba._rank import spans
from synknumba._rank.outputs import variable_updates
from synknumba._rank.replay import Repetition
from synknumba._rank.result_writer import ResultWriter
from synknumba._rank.routine import Moves, Outputs, Place, Routine, SliceRows, scalar_reader
from synknumba._source.array_expressions import is_array_expression
from synknumba._types import Array, CallValues, Span, UserOp
from synknumba._wire.control import RESULT_BYTES
from synknumba._wire.messages import News, Returned
from synknumba._wire.program import (
    Constant,
    Dynamic,
    Held,
    HeldRows,
    Param,
    Program,
    Sharded,
    Tree,
    leaves_of,
    may_write,
)
from synknumba._wire.relaunch import Again

# Of the arrays of a function that is recorded unasked: a recording keeps the memory of temporary
# arrays, and a GPU takes longer than Python for large ones.
MOST_BYTES = 8 << 20

_NUMBERS = (type(None), bool, int, float, complex, np.generic, np.dtype)
_OTHERS = (str, bytes, range, slice, type, Enum, FunctionType, BuiltinFunctionType, ModuleType)
_FIXED = (*_NUMBERS, *_OTHERS)  # types of objects that no function can change

# NumPy's and CuPy's words where an array stands for a number: in `math.exp(x)`, `if x > 0`,
# `range(x)`.
_NEEDS_NUMBER = (
    "truth value of an array",
    "only 0-dim",
    "only size-1",
    "only length-1",
    "only integer scalar",
)

_Read: TypeAlias = Callable[[Sequence[Any]], Any]


@final
class _Passed:
    """An object that is an argument, and that a function may change."""

    def __init__(self, slot: object, value: Any) -> None:
        self.slot, self.value = slot, value


@dataclass(frozen=True, slots=True)
class _Nested:
    """An argument of dicts, lists and objects, which a function may change: each call gets new
    ones.
    """

    leaves: Sequence[Any]
    structure: Structure


@dataclass(frozen=True, slots=True)
class FunctionBinding:
    """A recorded function for one set of values."""

    checks: Sequence[Step]  # loads that are run before, at the beginning of a round
    steps: list[Step]
    # gathers to run before the steps, if the rows are those of a line that may change
    in_line: Sequence[LineRows] = ()


@dataclass(slots=True)
class _Call:
    """The call of the function for one slice; replaced when its numbers change."""

    arguments: dict[str, Any]
    make: Callable[[], Any]


@dataclass(slots=True)
class _Bound:
    """The steps of a call for one selection of rows.

    Attributes:
        rows: the values that select them, after the number of the line that gathers follow.
        scalars: bytes of the numbers that the calls pass now; empty if unknown.
        calls: one for each slice.
        steps: through the last slice.
        after: assignments of updated variables.
        alone: the only call, if it needs no steps around it: fast path.
        gathers: of rows of a line, if all that depends on it.
    """

    rows: tuple[Any, ...] | None = None
    scalars: bytes = b""
    calls: Sequence[_Call] = ()
    steps: Sequence[Step] = ()
    after: Sequence[Step] = ()
    alone: _Call | None = None
    gathers: Sequence[Gather] = ()


@final
class FunctionRoutine(Routine):
    """A Python function of device arrays, called once per slice; its results are its return
    values.

    Attributes:
        writer: packs the results.
    """

    def __init__(self, program: Program, place: Place, function: Callable[..., Any]) -> None:
        super().__init__(program, place)
        self._function = function
        first, nbytes = program.returns.small or (0, RESULT_BYTES)
        memory = place.control.results[place.rank, first : first + nbytes]
        self._name = name = getattr(function, "__name__", "the function")
        self.writer = ResultWriter(memory, nbytes, place.device, name)
        self._bound = _Bound()
        self._results: list[tuple[Any, SliceRows | None]] = []
        self._objects: dict[object, Any] = {}  # copies of objects that are arguments, of this run
        # Records the calls, if the function has `record=True` and Python is what its calls wait
        # for.
        self._recorder = place.device.recorder(name) if program.is_recorded else None
        self._takes_python = place.device.traits.shares_memory  # always, as on cores
        # Others are recorded if they do nothing but compute, once a call of theirs is repeated.
        self._may_try = not program.is_recorded
        self._own_recorder: Recorder | None = None
        # how often the present values were run, up to 2, and their run that takes no Python
        self._runs = 0
        self._repetition: Repetition | None = None
        self._line = program.line_offset
        # what reads the numbers of a call: arguments, and leaves of nested ones
        self._numbers: dict[str, _Read] = {}
        self._nested_numbers: dict[str, list[tuple[int, _Read]]] = {}
        for name, param in program.parameters:
            if isinstance(param, Dynamic):
                self._numbers[name] = scalar_reader(param)
            leaves = enumerate(leaves_of(param))
            reads = [(at, scalar_reader(leaf)) for at, leaf in leaves if isinstance(leaf, Dynamic)]
            if isinstance(param, Tree) and reads:
                self._nested_numbers[name] = reads

    def bind(self, values: CallValues, scalars: bytes) -> None:
        self._let_go()
        rows, bound = values[self._row_values :], self._bound
        follows = bool(bound.gathers)
        if bound.rows != rows[follows:]:
            self._bound = _Bound()
            self._bound = self._make_binding(values, scalars)
            return
        if follows:
            for gather in bound.gathers:
                gather.take(rows[0])
        if bound.scalars != scalars:
            bound.scalars = b""  # unknown until the change is complete
            for call in bound.calls:
                self._renumber(call, values)
            bound.scalars = scalars

    def _make_binding(self, values: CallValues, scalars: bytes) -> _Bound:
        program = self.program
        slices = self.slices(values, in_line=self._line is not None)
        updates = Outputs(variable_updates(self, slices))
        parts: list[SliceSteps] = []
        calls: list[_Call] = []
        checks: list[Step] = []
        gathers: list[Gather] = []
        alone: _Call | None = None
        needs_steps = (
            self.place.device.traits.queues_work
            or len(slices) != 1
            or bool(updates.by_slot)
            or program.shows_slices
            or self._selects_or_splits
        )
        done = [0] * len(slices)
        if program.shows_slices:
            done = self.done_after(slices)
        for number, rows in enumerate(slices):
            call, moves = self._call_of(number, rows, values, updates)
            calls.append(call)
            moves.loads += [line.gather.step for line in moves.in_line]
            if not needs_steps and moves.is_empty:
                alone = call
            gathers = [line.gather for line in moves.in_line]
            if moves.has_fixed_line:
                gathers.clear()
            run = partial(self._call_slice, call, rows, done[number], alone=len(slices) == 1)
            parts.append(moves.around(run))
            checks += moves.checks
        steps = [*checks, *updates.before, *self.workspace.in_order(parts)]
        selecting = values[self._row_values + bool(gathers) :]
        return _Bound(selecting, scalars, calls, steps, updates.after, alone, gathers)

    def _renumber(self, call: _Call, values: CallValues) -> None:
        """Replaces the numbers that a call passes."""
        arguments = call.arguments
        if self._recorder is not None:  # recordings keep the calls that they have made
            arguments = arguments.copy()
        for name, read in self._numbers.items():
            arguments[name] = read(values)
        for name, reads in self._nested_numbers.items():
            nested = arguments[name]
            leaves = [*nested.leaves]
            for position, read in reads:
                leaves[position] = read(values)
            arguments[name] = _Nested(leaves, nested.structure)
        if self._recorder is not None:
            call.arguments, call.make = arguments, self._recorded(arguments)

    @property
    def _selects_or_splits(self) -> bool:
        """Whether results are not the function's: some of them, or one for each shard."""
        return self.program.returns.subset is not None or self.program.shards is not None

    def apart(self, packed: bytes, *, is_new: bool = False) -> FunctionBinding | None:
        """Returns the steps of a recorded function that has been called with these values; None
        if it takes Python. If `is_new`, it is recorded now.
        """
        values = self._unpack(packed)
        slices = self.slices(values, in_line=self._line is not None)
        if self._recorder is None or len(slices) != 1 or self._selects_or_splits:
            return None
        replaced, (rows,) = self.workspace.replaced, slices
        updates = Outputs(variable_updates(self, slices))
        call, moves = self._call_of(0, rows, values, updates)
        # the steps of other calls refer to the replaced memory
        if self.workspace.replaced != replaced:
            self._packed, self._bound = None, _Bound()
        if not isinstance(call.make, RecordedCall):
            return None
        if is_new:
            call.make()
        if (recording := call.make.step()) is None:
            return None
        step, results = recording
        copies = self.writer.copies(results)
        if copies is None:
            return None
        work = self.workspace.in_order([moves.around(step)])
        steps = [*updates.before, *work, *updates.after, *copies]
        return FunctionBinding(moves.checks, steps, moves.in_line)

    def _call_of(
        self,
        number: int,
        rows: SliceRows | None,
        values: CallValues,
        updates: Outputs,
    ) -> tuple[_Call, Moves]:
        """Returns the call of the function for one slice, and the steps around it."""
        moves = Moves(number, self.workspace.turns, updates)
        arguments: dict[str, Any] = {}
        for name, param in self.program.parameters:
            argument = self.argument(name, param, rows, values, moves)
            if isinstance(param, Tree) or isinstance(argument, _Passed):
                argument = _Nested(*flatten(argument))
            arguments[name] = argument
        moves.after += updates.fold(rows)
        if self._recorder is not None:
            return _Call(arguments, self._recorded(arguments)), moves
        make = self._call_with(arguments)
        if isinstance(make, partial):
            arguments = make.keywords  # those that it passes
        return _Call(arguments, make), moves

    def _call_slice(self, call: _Call, rows: SliceRows | None, done: int, *, alone: bool) -> None:
        result, subset = call.make(), self.program.returns.subset
        end_child()
        if subset is not None:
            result = self._selected(result, subset)
        if not alone:
            result = self._keep(result)
        self._results.append((result, rows))
        if done:  # it shows them
            self.place.control.slices[self.place.line] = done

    def _selected(self, result: Any, subset: Sequence[Any]) -> Any:
        try:
            selected = tuple(result[key] for key in subset)
        except (LookupError, TypeError):
            raise ReductionError(
                f"{self._function.__name__} returned {result_text(flatten(result)[1])}, which "
                f"lacks some of output_subset={list(subset)}"
            ) from None
        return selected[0] if len(selected) == 1 else selected

    def argument(
        self,
        slot: object,
        param: Any,
        rows: SliceRows | None,
        values: CallValues,
        moves: Moves,
    ) -> Any:
        if isinstance(param, Constant) and not _is_fixed(param.value):
            return _Passed(slot, param.value)
        rows_or_array = super().argument(slot, param, rows, values, moves)
        # a `Span` has a length of 2, and these two as items
        return range(*rows_or_array) if isinstance(rows_or_array, Span) else rows_or_array

    def _call_with(self, arguments: dict[str, Any]) -> Callable[[], Any]:
        """Returns a callable that calls the function with what the arguments are then."""
        names = [name for name, value in arguments.items() if isinstance(value, _Nested)]
        if not names:
            return partial(self._function, **arguments)
        return lambda: self._function(
            **arguments | {name: self._renewed(arguments[name]) for name in names}
        )

    def _recorded(self, arguments: dict[str, Any]) -> Callable[[], Any]:
        """Returns a call with these arguments that is recorded."""
        assert self._recorder is not None  # the caller has seen to it
        leaves: list[Any] = []
        for value in arguments.values():
            leaves += value.leaves if isinstance(value, _Nested) else [value]
        if self._may_try and not _are_small_arrays(leaves):
            return self._call_with(arguments)
        pairs = zip(self.program.leaves(), leaves, strict=True)
        written = [leaf for param, leaf in pairs if may_write(param)]
        values = [leaf.value if isinstance(leaf, _Passed) else leaf for leaf in leaves]
        return self._recorder.recorded(self._call_with(arguments), values, written)

    def _renewed(self, argument: _Nested) -> Any:
        """Returns a tree with new dicts, lists and tuples, and this run's objects."""
        leaves = [
            self._object(leaf) if isinstance(leaf, _Passed) else leaf for leaf in argument.leaves
        ]
        return unflatten(argument.structure, leaves)

    def _object(self, passed: "_Passed") -> Any:
        """Returns this run's copy of an object: the next call is to get what the script passes."""
        if passed.slot not in self._objects:
            try:
                self._objects[passed.slot] = copy.deepcopy(passed.value)
            except Exception:  # noqa: BLE001  # of the object's own methods
                self._objects[passed.slot] = passed.value
        return self._objects[passed.slot]

    def forget_buffers(self) -> None:
        super().forget_buffers()
        self._bound = _Bound()
        self._let_go()

    def _let_go(self) -> None:
        """Forgets the run of the present values."""
        self._runs = 0
        if self._repetition is not None:
            self._repetition.close()
            self._repetition = None

    @property
    def again(self) -> Again | None:
        repetition, packed = self._repetition, self._packed
        if repetition is None or packed is None:
            return None
        return repetition.again(self.program.number, self.place.control.values, packed)

    def _find_repetition(self) -> Repetition | None:
        """Returns the run of the present values, if they were run before and it takes no Python."""
        packed = self._packed
        if self._runs == 1 and packed is not None:
            self._runs = 2  # it is tried once
            binding = None
            if self._may_try:
                binding = self._try_out(packed)
            elif self._recorder is not None and not self.program.shows_slices:
                binding = self.apart(packed)
            if binding is None or binding.in_line or self._packed is None:
                return None
            device = self.place.device
            self._repetition = Repetition(device, binding.steps, binding.checks)
        return self._repetition

    def _try_out(self, packed: bytes) -> FunctionBinding | None:
        """Returns the steps of a call that was made before, if it can be recorded without
        `record=True`: it certainly does nothing but compute, with arrays so small that its time is
        Python's.
        """
        if self._own_recorder is None:
            may_record = not self.program.shows_slices and is_array_expression(self._function)
            self._own_recorder = self.place.device.recorder(self._name) if may_record else None
        self._recorder = self._own_recorder
        try:
            with self.place.device.scope():
                return self.apart(packed, is_new=True)
        except Exception:  # noqa: BLE001  # of CuPy, CUDA, the function: it cannot be recorded, or memory is short
            self._recorder = None
        finally:
            self._may_try, self._recorder = self._recorder is not None, None
        return None

    def run(self) -> News | None:
        if self._takes_python:
            return self._run()
        repetition = self._find_repetition()
        if repetition is None:
            news = self._run()
            self._runs = max(self._runs, 1)
            return news
        repetition()
        return None

    def _run(self) -> News | None:
        """Calls the function, on each slice."""
        if self._objects:
            self._objects.clear()
        bound = self._bound
        alone = bound.alone
        if alone is not None:
            try:
                if spans.active is None:
                    result = alone.make()
                else:
                    result = spans.active.run_one(alone.make, "function")
            except (ValueError, TypeError, AttributeError, pickle.PicklingError) as error:
                self._explain(error)
                raise
            end_child()
            return self.writer.write(result)
        self._results.clear()  # left over from a failed call
        with self.place.device.scope():
            try:
                if spans.active is None:
                    for step in bound.steps:
                        step()
                else:
                    spans.active.run(bound.steps)
            except (ValueError, TypeError, AttributeError, pickle.PicklingError) as error:
                self._explain(error)
                raise
            # before the updates: a result may be a view of a variable
            news = self._answer(self._results)
            self._results.clear()
            for step in bound.after:
                step()
            self.place.device.synchronize()
            return news

    def _explain(self, error: Exception) -> None:
        """Adds notes: to errors of NumPy that do not name the array, to a process pool's, and which
        arguments are lists of numbers.

        NumPy's are those for a write to an input, and for an array where a number is needed.
        """
        if isinstance(error, pickle.PicklingError) and "not the same object" in str(error):
            error.add_note(
                "Functions and classes of the script are copies on a rank, which multiprocessing "
                "cannot find by their names. Define them in a module of their own and import it, "
                "or use multiprocessing.pool.ThreadPool."
            )
        if any(words in str(error) for words in _NEEDS_NUMBER):
            self._explain_arrays(error)
        # a training step has told what to do
        if "read-only" in str(error) and not getattr(error, "__notes__", None):
            inputs = [name for name, param in self.program.parameters if _has_input_rows(param)]
            if inputs:
                options = " or ".join(f'inout=("{name}",)' for name in inputs)
                error.add_note(
                    f"Inputs are read-only. Name one in {options} to have its rows written "
                    f"back, or write to a copy."
                )
        for name, param in self.program.parameters:
            match param:
                case Tree(("list", *_), (Dynamic(), *_)):
                    error.add_note(
                        f"{name} is a list: ranks get all of it; np.asarray({name}) is divided "
                        "into rows."
                    )

    def _explain_arrays(self, error: BaseException) -> None:
        for kinds, what in ((Sharded | HeldRows, "rows"), (Held, "elements of a variable")):
            names = self._names_of(kinds)
            if names:
                phrase = "are arrays" if len(names) > 1 else "is an array"
                error.add_note(
                    f"{', '.join(names)} {phrase} of the rank's {what}, for which the function is "
                    "called once. Write it for arrays, as np.exp(x) in place of math.exp(x) and "
                    "np.where(x > 0, a, b) in place of if x > 0; synk.vectorize and "
                    "synk.expectation take a function of one row."
                )
                return

    def _names_of(self, kinds: Any) -> list[str]:
        """Returns the parameters that are, or contain, arguments of some kinds."""
        return [
            name
            for name, param in self.program.parameters
            if any(isinstance(leaf, kinds) for leaf in leaves_of(param))
        ]

    def descriptors(self, news: News) -> list[int]:
        if isinstance(news, Returned) and news.segment is not None:
            return self.writer.descriptors
        return []

    def close(self) -> None:
        super().close()
        self.writer.close()
        for recorder in (self._recorder, self._own_recorder):
            if recorder is not None:
                recorder.close()

    def _answer(self, results: list[tuple[Any, SliceRows | None]]) -> News | None:
        if not results:
            self.writer.write_nothing()
            return None
        if self.program.shards is not None:
            return self.writer.write(tuple(self._by_shard(results)))
        return self.writer.write(self._merge(results))

    def _by_shard(self, results: list[tuple[Any, SliceRows | None]]) -> Iterator[Any]:
        """Yields one result for each shard that has rows, in order."""
        for _, group in groupby(results, lambda item: getattr(item[1], "shard", None)):
            yield self._merge(list(group))

    def _keep(self, result: Any) -> Any:
        """Copies a result to the host: the next slice reuses the arguments' memory, and a result
        may be a view of it.
        """
        leaves, structure = flatten(result)
        return unflatten(structure, [np.array(self.place.device.to_host(leaf)) for leaf in leaves])

    def _merge(self, results: list[tuple[Any, SliceRows | None]]) -> Any:
        if len(results) == 1:
            return results[0][0]
        flat = [flatten(result) for result, _ in results]
        structure = flat[0][1]
        if any(leaf_structure != structure for _, leaf_structure in flat):
            raise PartitionError(
                f"{self._function.__name__} returned results of different "
                f"structure for different slices"
            )
        ops = spread(self.program.returns.ops, structure)
        if ops is None:
            return results[0][0]  # the coordinator raises the error for ops that do not fit
        weights = [1 if rows is None else rows.count for _, rows in results]
        if not any(weights):  # rows of variables only: slices count equally; this rank has weight 0
            weights = [1] * len(results)
        to_host = self.place.device.to_host
        merged = [
            _merge_leaf(op, [to_host(leaves[i]) for leaves, _ in flat], weights)
            for i, op in enumerate(ops)
        ]
        return unflatten(structure, merged)


def _are_small_arrays(arguments: Sequence[Any]) -> bool:
    """Returns whether a function of these arguments may be recorded unasked. Methods and operators
    of an object may do anything, whatever the text of the function shows.
    """
    if any(isinstance(argument, _Passed) for argument in arguments):
        return False
    return sum(getattr(argument, "nbytes", 0) for argument in arguments) <= MOST_BYTES


def _has_input_rows(param: Param) -> bool:
    """Returns whether a parameter, or a leaf of a nested one, is rows that the function must not
    write.
    """
    return any(
        isinstance(leaf, Sharded | HeldRows) and not leaf.writable for leaf in leaves_of(param)
    )


def _is_fixed(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_is_fixed, value))
    return isinstance(value, _FIXED)


def _merge_leaf(op: Any, parts: list[Array], weights: Sequence[int]) -> Any:
    if op == "gather":
        # The coordinator raises the error for 0-d results, which cannot be gathered.
        return parts[0] if parts[0].ndim == 0 else np.concatenate(parts, axis=0)
    shapes = [part.shape for part in parts]
    if len(set(shapes)) > 1:
        raise ReductionError(
            f"results of different shapes cannot be combined across slices: {shapes}. Use "
            f'num_slices=1, or the op "gather".'
        )
    op = "sum" if op is None else op
    for part in parts:
        reduction.check_dtype(op, part.dtype, "a result across slices")
    stacked = np.stack(parts)
    if isinstance(op, UserOp):
        try:
            return fold_kernel.fold(op, stacked)
        except fold_kernel.COMPILE_ERRORS:
            return stacked[0]  # the coordinator raises the error
    summed = stacked.astype(reduction.summed_dtype(op, stacked.dtype), copy=False)
    return reduction.combine(op, summed, np.asarray(weights))
