"""`sequence`: several calls that the ranks repeat by themselves, in one round.

    s(u, 0.5, times=1000) ──known arguments──> SequencePlan.run ── one round ──> results, stacked
        └── new arguments ──> Trace ──> SequencePlan, sent to the ranks

With `until=`, or with results that are not small, a round ends at each kept result; without, the
ranks keep small results in a segment, and one round does all.
"""

import inspect
import itertools
import operator
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as AnySequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final, Generic, Never, NoReturn, ParamSpec, TypeAlias, TypeVar, final

import numpy as np

from synknumba import _tracing as tracing
from synknumba._call.bind import share_memory, signature_names
from synknumba._call.call import Call, describe, type_told
from synknumba._call.function import planned_partition
from synknumba._call.future import Future
from synknumba._call.method import Method
from synknumba._call.options import CallOptions
from synknumba._call.plan import FunctionPlan, KernelPlan
from synknumba._call.progress_bars import iterations_shown
from synknumba._call.variable_rows import planned_shape
from synknumba._errors import (
    ArgumentError,
    BatchError,
    DataError,
    PartitionError,
    ReductionError,
    SynkError,
    shorten,
    shortened,
)
from synknumba._host.copying import copy_into
from synknumba._host.data import Data
from synknumba._host.file_data import FileData, over_file
from synknumba._host.foreign import adopted, is_foreign
from synknumba._host.log import log
from synknumba._host.segment import Segment
from synknumba._host.stored import StoredData
from synknumba._ops import reduction
from synknumba._ops.tree import LEAF, NONE, Structure, flatten, parts_like, paths, unflatten
from synknumba._progress import Progress, default, refusal, refuse_inside, wanted
from synknumba._sequence.body import check_body, differ, watch_draws
from synknumba._sequence.dry_run import Rehearsal
from synknumba._sequence.install import Trace, Unseen
from synknumba._sequence.outer_values import OuterValues, Values, bytes_of
from synknumba._sequence.recorder import (
    InnerTimes,
    Outcome,
    Recording,
    Seen,
    free_of_recorded,
    ordered,
    told_dtype,
)
from synknumba._sequence.report import LAST_ONLY, Schedule, SequenceReport, schedule
from synknumba._sequence.rounds import PartByPart
from synknumba._tracing import Number, Unknown
from synknumba._types import Array, known_options, unknown_keyword
from synknumba._variables.state import note_failure
from synknumba._variables.variable import Variable, layout_of, state_of
from synknumba._wire.messages import Install, ReturnedInSequence
from synknumba._wire.program import HostArray, Transfer, next_number
from synknumba._wire.sequence import (
    HEAD,
    ITERATION,
    LINE,
    NOT_BEGUN,
    SequenceProgram,
    board_words,
    place_told,
    position_word,
    shown_path,
)
from synknumba._world.call_in_flight import GOES_ON, Flight
from synknumba._world.code import refuse
from synknumba._world.engine import Engine, current_world, open_world
from synknumba._world.failure import CallInfo
from synknumba._world.read_values import is_plain, key_of
from synknumba._world.rounds import RankNews

OPTIONS = ("times", "every", "until", "progress")
PLANS_KEPT = 16  # of one sequence
KNOWN_KEPT = (
    256  # kinds of calls of one sequence that are found by the layouts of their arguments alone
)
KEPT_BYTES = 64 << 20  # of small results that one round keeps; of more, a round ends at each
_planning = threading.Lock()  # held where a sequence is planned without a world
SEQUENTIAL = 8  # NumPy sums fewer parts than this in order, along any axis

P = ParamSpec("P")
R = TypeVar("R")


@final
class _Once(int):
    """The number of iterations of a call without `times=`, distinct from `times=1`."""


ONCE: Final = _Once(1)


@final
class Static:
    """A value that is part of a sequence. Created by `static`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        """Shows the value."""
        return f"synk.static({self.value!r})"


@shortened
def static(value: Any) -> Any:
    """Marks a number as part of a sequence: its body can compute with it, and another value makes
    another sequence.

    Args:
        value: a number, for an argument of a function decorated with `sequence`.

    Returns:
        The argument to pass.
    """
    try:
        hash(value)
    except TypeError:
        raise ArgumentError(
            "synk.static takes a number, or a tuple of numbers, that the body can compute with; "
            f"got a {type(value).__name__}. Pass an array as it is"
        ) from None
    return Static(value)


@known_options
def carry(number: Any, value: Any) -> None:
    """Gives a number that was passed to a sequence another value from the next iteration on.

    Calls after it in the same iteration still get the old value. The next call of the sequence
    begins with its own argument.

    Args:
        number: a parameter of the body for which the call passes an int or a float.
        value: a number, or a formula of numbers and 0-d results of kernels; float64 for a float, an
            int for an int.

    Raises:
        ArgumentError: this is no body of a sequence, or that of an inner one; `number` was not
            passed to it as a number, or is carried already; or the value is of another kind.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function
        ... def note(v, step, n):
        ...     v[step] = n
        >>> @synk.sequence
        ... def fibonacci(v, a, b):
        ...     note(v, synk.STEP, a)
        ...     synk.carry(a, b)
        ...     synk.carry(b, a + b)
        >>> with synk.fork(2, device="cpu"):
        ...     v = synk.variable(np.zeros(8, int))
        ...     fibonacci(v, 0, 1, times=8)
        ...     v.get_value()
        array([ 0,  1,  1,  2,  3,  5,  8, 13])
    """
    recorder = tracing.current
    if recorder is None or not recorder.is_here:
        raise ArgumentError(
            "synk.carry gives a number of a sequence its next value, and there is none here; use "
            "it inside a function decorated with @synk.sequence"
        )
    recorder.carry(number, value)


@final
class _Positions:
    """Where ranks are in a sequence, as its board shows.

    It does not refer to the plan, whose memory is freed with its last reference.
    """

    def __init__(self, program: SequenceProgram, board: Array, world_size: int) -> None:
        self._program = program
        first = position_word(world_size, 0)
        self._words = board[first : first + world_size * LINE].reshape(world_size, LINE)
        self.times = 0  # iterations of the call
        self.begin()

    def __call__(self, rank: int) -> str:
        """Returns in words where a rank is."""
        return place_told(self._program, self.times, shown_path(self._words[rank].tolist()))

    def begin(self) -> None:
        """Notes that no rank has begun the call."""
        self._words[:, ITERATION] = NOT_BEGUN
        self.first = self.after = 0  # iterations done before the round, and at its end

    def done(self, at_work: set[int]) -> list[int]:
        """Returns how many iterations each rank has done, given the ranks that have not answered
        the round.
        """
        shown = self._words[:, ITERATION].tolist()
        return [
            max(self.first, one) if rank in at_work else self.after
            for rank, one in enumerate(shown)
        ]


@final
class SequencePlan:
    """A sequence that the ranks have, for arguments of some layout."""

    def __init__(self, world: Engine, name: str, trace: Trace, results: AnySequence[Any]) -> None:
        self.world = world
        self.trace = trace
        self._leaves, self._structure = flatten(results[0])
        # Of each turn, the stand-ins among the leaves; None for the others, which are returned as
        # they are.
        self._turns = [[_unseen(leaf) for leaf in flatten(result)[0]] for result in results]
        self._results = self._turns[0]
        self._turns_differ = len(results) > 1
        self._at = 0  # number of the last iteration
        self._plans = {plan.program.number: plan for plan in trace.plans}
        size = 8 * board_words(world.world_size, trace.slots)
        self._board_segment = Segment(size)
        self._board = self._board_segment.array(np.int64, (size // 8,))
        self.program = SequenceProgram(
            number=next_number(),
            name=name,
            parts=tuple(ordered(trace.parts)),
            scalars=trace.scalars,
            slots=trace.slots,
            board=HostArray(self._board_segment.id, np.dtype(np.int64), (size // 8,)),
            entry_bytes=trace.used,
            starts=tuple(trace.starts),
            lines=trace.lines,
            places=trace.places,
            free=free_of_recorded(trace.parts),
            carried=tuple(tuple(one.items()) for one in trace.carried),
            segment_ids=frozenset(trace.segments),
            variable_numbers=frozenset(trace.variables),
        )
        self.positions = _Positions(self.program, self._board, world.world_size)
        self.info = CallInfo(name, where=self.positions)
        self._parts: PartByPart | None = (
            None  # runs the parts one by one; None if the ranks have the whole
        )
        self._number = self.program.number
        if world.spans_machines:
            self._parts = PartByPart(world, self.program, self._board, self.info, self.learn)
            # the round of a submitted call, whose work is done before
            nothing = Transfer(next_number(), up=False, arrays=())
            self._number = nothing.number
            world.command(Install(None, nothing), info=CallInfo(name))
        else:
            world.attach([self._board_segment])
            world.command(Install(None, self.program), info=CallInfo(name))
        self._layout = struct.Struct("<" + HEAD + trace.scalars)
        self._pack, self._memory = self._layout.pack_into, world.ranks.values.data
        self._collect_quickly = self._make_collect()
        # others are constants
        self.outside = [pair for pair in trace.outside.values() if _has_other_owner(pair)]
        self._looked = tuple(trace.looked.values())
        self._changed = tuple(trace.changed.values())
        self._layouts = tuple(trace.variables.values())
        self._ring: Segment | None = None
        self.forgotten = False
        self.used = 0  # number of the world's call that has used it last
        # functions without ops that have returned something new
        self._unchecked: dict[int, FunctionPlan] = {}
        # faster than the arrays
        self._board_memory, self._clear_board = (
            self._board.data,
            self._board.copy().data,
        )

    @property
    def returns_something(self) -> bool:
        """Whether the sequence returns something else than None."""
        return bool(self._leaves)

    def schedule(self, times: int, every: int | None, *, is_judged: bool) -> Schedule:
        """Returns the rounds of a call; `is_judged` is whether it has `until=`."""
        if every is None and not is_judged:
            return LAST_ONLY
        large = next(
            (one.label for one in self._results if one is not None and not _is_small(one)), None
        )
        nbytes = self.program.entry_bytes * self.world.world_size
        return schedule(
            times, every, is_judged=is_judged, large=large, nbytes=nbytes, room=KEPT_BYTES
        )

    @property
    def is_current(self) -> bool:
        """Whether variables still have the memory, and functions the values, of the ranks'
        programs.
        """
        for function, number in self.trace.numbers.items():
            if function._number_now(self.world) != number:  # noqa: SLF001  # shared with this package
                return False
        for variable, layout, _ in self._layouts:
            one = variable()
            if one is None or one._layout != layout:  # noqa: SLF001  # as a key
                return False
        for array, copy in self.outside:
            if array.shape != copy.shape or array.dtype != copy.dtype:
                return False
            if isinstance(copy, FileData) and copy._version != copy.renewed_version():  # noqa: SLF001
                return False
        return not self._looked or all(bytes_of(data) == before for data, before in self._looked)

    def renew_outside(self) -> list[tuple[Array, Data]]:
        """Copies NumPy arrays that are no arguments for the next call; returns those that get
        what ranks write.
        """
        for array, copy in self.outside:
            if not isinstance(copy, FileData):
                copy.set_value(array)
        return [pair for pair in self.outside if pair[1]._segment.id in self.trace.written]  # noqa: SLF001  # as above

    @property
    def is_lost(self) -> bool:
        """Whether it will not be current again: a variable or its memory is gone. Swapped
        variables may have theirs again.
        """
        return any(variable() is None or memory() is None for variable, _, memory in self._layouts)

    def run(
        self, first: int, count: int, times: int, scalars: AnySequence[Any], period: int = 0
    ) -> list[Any]:
        """Runs iterations in one round, of `times` in all; with a period, returns the results
        that it keeps, by entries.
        """
        self._send(first, count, times, scalars, period)
        try:
            if self._parts is None:
                self.world.run(self._number, self.info, self.learn)
            else:
                self._run_parts(self._parts, count // period if period else 0)
            self._note_end(first, count)
        # Ctrl-C also after the round: swapped variables may not be swapped here yet
        except BaseException as error:
            self.note_failure(error)
            raise
        return self._results_of(first, count, period)

    def launch(
        self,
        flight: Flight,
        first: int,
        count: int,
        times: int,
        scalars: AnySequence[Any],
        period: int = 0,
    ) -> None:
        """Starts a round as `run` does, without waiting for its end; `finish` follows then."""
        self._send(first, count, times, scalars, period)
        if self._parts is not None:
            try:
                self._run_parts(self._parts, count // period if period else 0)
            except SynkError as error:
                flight.fail(error)  # raised by `result()` of the future
                return
        self.world.launch(flight, self._number)

    def _run_parts(self, parts: PartByPart, entries: int) -> None:
        shape = entries, self.world.world_size, self.program.entry_bytes
        parts.run(self._ring.array(np.uint8, shape) if entries and self._ring is not None else None)

    def finish(
        self, first: int, count: int, times: int, scalars: AnySequence[Any], period: int = 0
    ) -> list[Any]:
        """Returns what `run` does, for a round that `launch` has started, and that has ended."""
        self._note_end(first, count)
        return self._results_of(first, count, period)

    def note_failure(self, error: BaseException) -> None:
        """Notes the variables that have no values any more, as a round has failed."""
        note_failure(self.world, [variable() for variable, *_ in self._changed], error)

    def _send(
        self, first: int, count: int, times: int, scalars: AnySequence[Any], period: int
    ) -> None:
        """Writes the values of a round to shared memory."""
        entries = count // period if period else 0
        kept = self._kept_segment(entries).id if entries else -1
        self._board_memory[:] = self._clear_board
        self.positions.times = times
        self.positions.first, self.positions.after = first, first + count
        if self.trace.lenders:
            scalars = [*scalars, *[lender.choose() for lender in self.trace.lenders]]
        self._pack(self._memory, 0, first, count, times, period if entries else 0, kept, *scalars)
        tally = self.world.tally
        tally.calls += 1
        self.used = tally.calls

    def _note_end(self, first: int, count: int) -> None:
        """Notes what a round has done to variables."""
        for variable, differs, sharded in self._changed:
            one = variable()
            if one is not None:
                one.mark(differs=differs, sharded=sharded)
        if self._turns_differ:
            self.trace.turn(first, count)

    def _results_of(self, first: int, count: int, period: int) -> list[Any]:
        """Returns the results that a round has kept."""
        while self._unchecked:
            # raises if it returns something, which nothing says how to combine
            self._unchecked.popitem()[1].collect(None)
        self._at = first + count - 1
        entries = count // period if period else 0
        if not entries:
            return []
        assert self._ring is not None  # the ranks have written to it
        return self._read(self._ring, entries, period)

    def collect(self) -> Any:
        """Returns the results of the last iteration."""
        return self._collect_all() if self._collect_quickly is None else self._collect_quickly()

    def _make_collect(self) -> Callable[[], Any] | None:
        """Returns a quick way to collect; None if there is none. It must not refer to the plan,
        which would outlive its use.
        """
        structure = self._structure
        if len(self._turns) > 1:
            return None
        if structure == NONE:
            return lambda: None
        if not self._leaves:
            return lambda: unflatten(structure, [])
        if len(self._leaves) == 1 and structure == LEAF:
            (one,), (leaf,) = self._results, self._leaves
            if one is None:
                return lambda: leaf
            if one.index is None:
                return partial(one.plan.collect, one.count)
        return None

    def _collect_all(self) -> Any:
        found: dict[int, Any] = {}
        leaves = []
        for leaf, one in zip(self._leaves, self._turns[self._at % len(self._turns)], strict=True):
            if one is None:
                leaves.append(leaf)
                continue
            if id(one.plan) not in found:
                found[id(one.plan)] = one.plan.collect(one.count)
            value = found[id(one.plan)]
            leaves.append(value if one.index is None else value[one.index])
        return unflatten(self._structure, leaves)

    def learn(self, news: AnySequence[RankNews]) -> None:
        """Processes the shapes of results that are new."""
        for rank, item, descriptors in news:
            assert isinstance(item, ReturnedInSequence)  # the world has raised failures already
            left = list(descriptors)
            for number, returned in item.returned:
                own = [left.pop(0)] if returned.segment is not None else []
                plan = self._plans[number]
                plan.learn([(rank, returned, own)])
                if isinstance(plan, FunctionPlan) and not plan.has_ops:
                    self._unchecked[number] = plan

    def _kept_segment(self, entries: int) -> Segment:
        nbytes = entries * self.world.world_size * self.program.entry_bytes
        if self._ring is None or self._ring.size < nbytes:
            self._ring = Segment(nbytes)
        self.world.attach([self._ring])
        return self._ring

    def _read(self, segment: Segment, entries: int, period: int) -> list[Any]:
        """Returns, for each result, an array of what the kept iterations have, from iteration 0
        on.
        """
        shape = entries, self.world.world_size, self.program.entry_bytes
        memory: Array = segment.array(np.uint8, shape)
        if len(self._turns) == 1:
            pairs = zip(self._leaves, self._results, strict=True)
            return [leaf if one is None else _combined(one, memory) for leaf, one in pairs]
        out = []
        for place, leaf in enumerate(self._leaves):
            ones = [
                self._turns[((entry + 1) * period - 1) % len(self._turns)][place]
                for entry in range(entries)
            ]
            kept = [
                _combined(one, memory[entry : entry + 1])[0]
                for entry, one in enumerate(ones)
                if one is not None
            ]
            out.append(np.stack(kept) if kept else leaf)
        return out

    def stacked(self, kept: Iterable[Any]) -> Any:
        """Returns what the body has returned in kept iterations: results of calls are stacked,
        and all else is as it is.
        """
        if self._structure == LEAF:
            return self._leaves[0] if self._results[0] is None else stack(kept)
        columns = zip(*(parts_like(self._structure, one) or () for one in kept), strict=True)
        leaves = [
            leaf if result is None else stack(column)
            for leaf, result, column in zip(self._leaves, self._results, columns, strict=True)
        ]
        return unflatten(self._structure, leaves)

    def empty(self) -> list[Any]:
        """Returns the results of no iterations; of calls whose results are not known yet, None."""
        out: list[Any] = []
        for leaf, one in zip(self._leaves, self._results, strict=True):
            if one is None or not isinstance(one.plan, KernelPlan):
                out.append(leaf if one is None else None)
                continue
            result = one.plan.wanted[_name(one)]
            assert result.parts is not None
            out.append(np.empty((0, *result.shape), result.parts.dtype))
        return out

    def unflatten(self, leaves: AnySequence[Any]) -> Any:
        """Returns results in the structure that the body returns."""
        return unflatten(self._structure, leaves)

    def forget(self) -> None:
        """Makes the ranks drop the sequence and its calls."""
        self.forgotten = True
        for plan in self.trace.plans:
            plan.forget()
        for number in (*self.trace.programs, self._number):
            self.world.own_programs.pop(number, None)
            self.world.forget("program", number)


def _references(pair: tuple[Array, Any]) -> int:
    array = pair[0]
    return sys.getrefcount(array)


_ONE_OWNER: Final = _references((np.zeros(1), None))


def _has_other_owner(pair: tuple[Array, Any]) -> bool:
    """Returns whether something else than a pair has its array, or an object of which that is a
    view.
    """
    array = pair[0]
    while sys.getrefcount(array) <= _ONE_OWNER:
        base = array.base
        if base is None:
            return False
        # memory of another object, of whose owners nothing is known
        if not isinstance(base, np.ndarray):
            return True
        array = base
        del base
    return True


def _unseen(leaf: Any) -> Unseen | None:
    """Returns the stand-in for a result of a call that the body returns; None for anything else."""
    one = leaf.unseen if isinstance(leaf, Seen) else leaf
    return one if isinstance(one, Unseen) else None


def _is_small(one: Unseen) -> bool:
    if not isinstance(one.plan, KernelPlan):
        return False
    result = one.plan.wanted[_name(one)]
    return result.is_small and result.op is not None


def _name(one: Unseen) -> str:
    assert isinstance(one.plan, KernelPlan)
    return list(one.plan.wanted)[one.index or 0]


def _combined(one: Unseen, memory: Array) -> Array:
    """Returns the results of kept iterations, combined over the ranks: memory is uint8, shape
    (entries, W, bytes).
    """
    assert isinstance(one.plan, KernelPlan)
    name = _name(one)
    result = one.plan.wanted[name]
    assert result.parts is not None
    if result.op in reduction.UFUNCS and memory.shape[1] < SEQUENTIAL:
        dtype = np.dtype(result.parts.dtype)
        strides = *memory.strides[:2], *np.ndarray(result.shape, dtype).strides
        parts = np.ndarray(
            (*memory.shape[:2], *result.shape), dtype, memory.data, result.parts.offset, strides
        )
        found: Array = reduction.UFUNCS[result.op].reduce(parts, 1, dtype)
        return found
    return np.stack([one.plan.collector_in(entry, name)(one.count) for entry in memory])


def stack(entries: Iterable[Any]) -> Any:
    """Returns the entries' arrays and numbers stacked along a new first axis, in the structure of
    one entry.

    A list with a value for each rank, as the op None makes it, counts as an array. Raises
    `ReductionError` if shapes or structures differ.
    """
    flat = [flatten(entry) for entry in entries]
    structure = flat[0][1]
    for index, (leaves, other) in enumerate(flat):
        shapes = [np.shape(leaf) for leaf in leaves]
        first = [np.shape(leaf) for leaf in flat[0][0]]
        if other != structure or shapes != first:
            raise ReductionError(
                "results of kept iterations must have the same shapes to be stacked, but entry "
                f"{index} has {shapes} and entry 0 has {first}; use every=None for the last ones "
                "only"
            )
    leaves = [np.stack(column) for column in zip(*(one[0] for one in flat), strict=True)]
    return _joined(unflatten(structure, leaves))


def _joined(tree: Any) -> Any:
    """Returns a tree with lists of arrays of one shape, one array for each rank, as arrays of
    shape (entries, W, …).
    """
    if (
        isinstance(tree, list)
        and tree
        and all(isinstance(one, np.ndarray) and one.shape == tree[0].shape for one in tree)
    ):
        return np.stack(tree, axis=1)
    if isinstance(tree, dict):
        return {key: _joined(one) for key, one in tree.items()}
    if isinstance(tree, tuple):
        parts = [_joined(one) for one in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree


_Copied: TypeAlias = tuple[str, Array, Data]
"""An array for messages, and the copy in shared memory that calls take."""


@final
class _Arguments:
    """The arguments of one call of a sequence, told apart."""

    def __init__(self) -> None:
        self.key: list[Any] = []
        self.scalars: list[Any] = []
        self.letters = ""
        self.leaves: list[Any] = []  # for the body
        self.write_back: list[_Copied] = []  # arguments
        self.data: list[tuple[str, Data]] = []
        # which are part of the sequence, with what the body reads of them
        self.objects: list[Any] = []


@final
class Sequence(Generic[P, R]):
    """Several calls that the ranks repeat by themselves. Created by `sequence`.

    Attributes:
        name: name in messages.
        py_func: the function that was decorated, the body.
    """

    def __init__(self, function: Callable[P, R], name: str | None = None) -> None:
        self.py_func = function
        self._body: Callable[..., Any] = function
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))
        self.__name__ = self.name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        signature_names(function, "the sequence", OPTIONS)
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise ArgumentError(
                f"{self.name} is a generator or a coroutine, whose body would not "
                f"run; write a plain function"
            )
        check_body(self.name, function)
        self._signature = inspect.signature(function)
        self._outer = OuterValues(function, _body_of)
        self._plans: dict[Any, SequencePlan] = {}
        self._known: dict[tuple[Any, ...], SequencePlan] = {}  # of calls that `_find` finds
        self._staging: dict[Any, Data] = {}
        self._world: Engine | None = None
        self._traced = 0  # how often the body was recorded

    def __call__(
        self,
        *args: Any,
        times: Any = ONCE,
        every: int | None = None,
        until: Any = None,
        progress: Progress | None = None,
        **kwargs: Any,
    ) -> Any:
        """Runs the calls of the body on all ranks, over and over, without the script.

        Args:
            *args: arguments of the body. Variables, `Data` and NumPy arrays go to its calls; ints
                and floats may change from call to call, and the body cannot look at them; anything
                else, and `synk.static(n)`, is part of the sequence.
            times: number of iterations, 1 if it is left out; 0 runs nothing.
            every: period of kept results: those of iterations every − 1, 2·every − 1, … are stacked
                along a new first axis. None returns the results of the last iteration.
            until: function of the results of a kept iteration (of each, if every is None), called
                in the script: the loop ends when it returns true, or after `times` iterations,
                which must be given. It does not change what `every` returns.
            progress: whether to draw a bar over the iterations, as far as the slowest rank; "auto"
                draws it on a terminal and in a notebook, after half a second. None for the default,
                which `synk.options` sets.
            **kwargs: arguments of the body by name.

        Returns:
            What the body returns, with the results of its calls; variables as they are.

        Raises:
            ArgumentError: an argument is invalid, or the body does what cannot be repeated on the
                ranks.
            RankError: an exception on a rank, with iteration and call; the world remains usable,
                and variables that the sequence writes are undefined.
            RankDied, CallTimeout: all ranks have been terminated; `fork()` works again.
        """
        recorder = tracing.current
        if recorder is not None and recorder.is_here:
            assert isinstance(recorder, Recording)  # there is no other recorder
            refuse_inside(progress, tracing.where(), self.name)
            return self._inside(recorder, args, kwargs, times, every, until)
        try:
            times, every = self._checked(times, every, until)
            shows = (
                wanted(progress, self.name)
                if progress is not None or (times > 1 and default())
                else False
            )
            world = current_world()
            world.begin()
        except SynkError as error:
            shorten(error)
            raise
        try:
            plan, scalars, back = self._prepared(world, args, kwargs, times)
            if not times:
                self._check_kept(every, until, returns=plan.returns_something)
                return self._nothing(plan, every)
            result = self._repeat(plan, scalars, times, every, until, shows)
            for array, staged in back:
                copy_into(array, staged.data)
        except Exception as error:
            shorten(error)
            raise
        else:
            return result
        finally:
            world.end()

    @shortened
    def submit(
        self,
        *args: Any,
        times: Any = ONCE,
        every: int | None = None,
        until: Any = None,
        **kwargs: Any,
    ) -> Future[Any]:
        """Starts a call, and returns while the ranks work.

        Arguments are those of a call, without `until=`. As for `submit` of a function, NumPy arrays
        have been copied when this returns, the script must not change or read what the calls write
        before the end, and the next use of the world waits for it. Where a round ends at each kept
        result (`plan` tells), another begins when `result()`, `done()` or the next use of the world
        finds that the one before has ended.

        Returns:
            The future of the results.

        Raises:
            ArgumentError: `until=` is given; or as for a call, of what is found before the ranks
                start.
        """
        if until is not None:
            raise ArgumentError(
                f"{self.name}: until= is judged in the script at each kept result, and submit() "
                f"returns before the first; call {self.name}(...), or submit it with times= and "
                "every="
            )
        times, every = self._checked(times, every, None)
        world = current_world()
        world.begin()
        try:
            return self._submit(world, args, kwargs, times, every)
        finally:
            world.end()

    def _submit(
        self,
        world: Engine,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        times: int,
        every: int | None,
    ) -> Future[Any]:
        plan, scalars, back = self._prepared(world, args, kwargs, times)
        self._check_kept(every, None, returns=plan.returns_something)
        self._check_before(plan, times, scalars)
        found = plan.schedule(times, every, is_judged=False)
        kept: deque[Any] = deque()
        spans = (
            self._spans(plan, times, found.period, None, kept)
            if found.round_ends
            else iter([(0, times)])
        )
        period, span = 0 if found.round_ends else found.period, next(spans, (0, 0))

        def launch() -> None:
            flight.has_more = sum(span) < times
            plan.launch(flight, *span, times, scalars, period)

        def collect(_: object = (args, kwargs)) -> Any:
            nonlocal span
            read = plan.finish(*span, times, scalars, period)
            following = next(spans, None)
            if following is not None:
                span = following
                launch()
                return GOES_ON
            result = (
                plan.stacked(kept)
                if found.round_ends
                else plan.unflatten(read)
                if period
                else plan.collect()
            )
            for array, staged in back:
                copy_into(array, staged.data)
            return result

        def give_up(error: BaseException) -> None:
            plan.note_failure(error)
            self._drop(plan)

        nothing = None if times else self._nothing(plan, every)
        flight = Flight(
            world, plan.info, plan.learn, collect if times else lambda: nothing, give_up
        )
        future: Future[Any] = Future(flight)
        if not times:
            flight.complete()
            return future
        try:
            launch()
        except BaseException as error:
            give_up(error)
            raise
        return future

    # ---- checks

    def _checked(self, times: Any, every: Any, until: Any) -> tuple[int, int | None]:
        if every is None and until is None and type(times) is int and 0 < times < 2**63:
            return times, None
        if times is ONCE:
            self._check_times(every, until)
            return 1, None if every is None else 1
        times = _count(self.name, "times", times, 0)
        if every is not None:
            every = _count(self.name, "every", every, 1)
            if times and every > times:
                raise ArgumentError(
                    f"{self.name}: every={every} keeps nothing of times={times}; "
                    f"pass at most every={times}"
                )
        elif times == 0:
            every = None
        if until is not None and not callable(until):
            raise ArgumentError(
                f"{self.name}: until= takes a function of the results, as in until=lambda "
                f"r: r < 1e-6; got {until!r}"
            )
        return times, every

    def _check_times(self, every: Any, until: Any) -> None:
        """Raises `ArgumentError` for options of several iterations in a call that is not told
        how many to make.
        """
        if until is not None:
            raise ArgumentError(
                f"{self.name}: until= needs times=, the largest number of iterations, and a call "
                f"without times= makes one; write {self.name}(..., times=10_000, until=...)"
            )
        if every is not None and _count(self.name, "every", every, 1) > 1:
            raise ArgumentError(
                f"{self.name}: every= needs times=, the number of iterations, and a call without "
                f"times= makes one; write {self.name}(..., times=1_000, every={every!r})"
            )

    def _bound(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], Structure]:
        for name in kwargs:
            if name not in self._signature.parameters:
                if name == "progress":
                    raise ArgumentError(refusal(self.name))
                raise ArgumentError(
                    unknown_keyword(self.name, name, self._signature.parameters, OPTIONS)
                )
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{self.name}{self._signature}: {error}") from None
        bound.apply_defaults()
        return flatten(dict(bound.arguments))

    def _told_apart(self, leaves: AnySequence[Any], structure: Structure) -> _Arguments:
        """Returns the arguments of a call: numbers become scalars, and arrays are copied to
        shared memory.
        """
        told = _Arguments()
        for place, (leaf, path) in enumerate(zip(leaves, paths(structure), strict=True)):
            name = f"{_argument_name(path)} of {self.name}"
            leaf = adopted(leaf, name) if is_foreign(leaf) else leaf  # noqa: PLW2901
            if isinstance(leaf, Variable | Data):
                told.key.append(layout_of(leaf))
                told.leaves.append(leaf)
                if isinstance(leaf, Data):
                    told.data.append((name, leaf))
            elif isinstance(leaf, np.ndarray) and leaf.ndim:
                self._stage(told, place, name, leaf)
            elif isinstance(leaf, Static):
                told.key.append(("static", type(leaf.value), leaf.value))
                told.leaves.append(leaf.value)
            elif isinstance(
                leaf, int | float | np.integer | np.floating | np.ndarray
            ) and not isinstance(leaf, bool | np.longdouble):
                self._number(told, name, leaf)
            else:
                told.key.append(key_of(leaf) if is_plain(leaf) else type(leaf))
                told.leaves.append(leaf)
                if not is_plain(leaf):
                    told.objects.append(leaf)
        if told.objects:
            told.key.append(self._outer.of(told.objects).version)
        return told

    def _number(self, told: _Arguments, name: str, value: Any) -> None:
        number = value.item() if isinstance(value, np.generic | np.ndarray) else value
        is_int = isinstance(number, int)
        if is_int and not -(2**63) <= number < 2**63:
            raise ArgumentError(
                f"{self.name}: {number} does not fit in 64 bits; pass a float, or an array"
            )
        letter = "q" if is_int else "d"
        dtype = told_dtype(value.dtype) if isinstance(value, np.generic | np.ndarray) else None
        told.key.append((letter, dtype))
        told.leaves.append(Number(("scalar", len(told.scalars)), name, is_int=is_int, dtype=dtype))
        told.scalars.append(number)
        told.letters += letter

    def _stage(self, told: _Arguments, place: int, name: str, array: Array) -> None:
        mapped = over_file(array, name)
        if mapped is not None:
            told.key.append(layout_of(mapped))
            told.leaves.append(mapped)
            return
        staged = self._staging.get(place)
        if (
            staged is not None
            and staged.ndim == array.ndim
            and staged.dtype == array.dtype.newbyteorder("=")
        ):
            staged.set_value(array)
        else:
            staged = self._staging[place] = Data(array)
        told.key.append(staged._layout)  # noqa: SLF001  # as a key
        told.leaves.append(staged)
        told.write_back.append((name, array, staged))

    # ---- calls

    def _find(self, args: tuple[Any, ...]) -> tuple[SequencePlan | None, list[Any]]:
        """Returns the plan of a call with nothing but `Data`, variables and numbers, if it is
        known, and the numbers.
        """
        key: list[Any] = [self._outer.now().version]
        scalars: list[Any] = []
        for arg in args:
            kind = arg.__class__
            if kind is Variable:
                key.append(arg._state._layout)  # noqa: SLF001  # hot path: no call
            elif kind is Data or kind is FileData or kind is StoredData:
                key.append(arg._layout)  # noqa: SLF001  # as for variables
            elif kind is float or (kind is int and -(2**63) <= arg < 2**63):
                key.append(kind)
                scalars.append(arg)
            else:
                return None, scalars
        return self._known.get(tuple(key)), scalars

    def _remember(self, args: tuple[Any, ...], told: _Arguments, plan: SequencePlan) -> None:
        """Makes `_find` find the plan of a call, if its arguments allow it."""
        kinds = [type(arg) for arg in args]
        if len(args) == len(told.leaves) == len(self._signature.parameters) and {
            Variable,
            Data,
            FileData,
            StoredData,
            float,
            int,
        }.issuperset(kinds):
            if len(self._known) >= KNOWN_KEPT:
                self._known.clear()
            key = (
                layout_of(arg) if isinstance(arg, Variable | Data) else type(arg) for arg in args
            )
            self._known[self._outer.now().version, *key] = plan

    def _prepared(
        self, world: Engine, args: tuple[Any, ...], kwargs: Mapping[str, Any], times: int
    ) -> tuple[SequencePlan, AnySequence[Any], AnySequence[tuple[Array, Data]]]:
        """Returns the plan of a call, its scalars, and the NumPy arrays that get what ranks
        write, with the staged copies.
        """
        if not kwargs and times and world is self._world:
            known, scalars = self._find(args)
            if known is not None and not known.forgotten and known.is_current:
                return known, scalars, known.renew_outside() if known.outside else ()
        if world is not self._world:
            self._leave()
            self._world = world
            world.at_close(self)
        leaves, structure = self._bound(args, kwargs)
        told = self._told_apart(leaves, structure)
        plan = self._plan(world, structure, told)
        back = [*self._written_back(plan, told), *plan.renew_outside()] if times else []
        if not kwargs and times:
            self._remember(args, told, plan)
        return plan, told.scalars, back

    def _written_back(self, plan: SequencePlan, told: _Arguments) -> list[tuple[Array, Data]]:
        """Returns the NumPy arrays that get what ranks write; raises `ArgumentError` if another
        is over the same memory.
        """
        shared = ((name, data.data, data) for name, data in told.data)
        self._refuse_shared(
            plan.trace, told.write_back, [*told.write_back, *self._outside(plan.trace), *shared]
        )
        return [
            (array, staged)
            for _, array, staged in told.write_back
            if staged._segment.id in plan.trace.written  # noqa: SLF001  # shared with this package
        ]

    def _check_kept(self, every: int | None, until: Any, *, returns: bool) -> None:
        """Raises `ArgumentError` for options about results, unless the body returns any."""
        if returns or (every is None and until is None):
            return
        what = "every= keeps" if until is None else "until= judges"
        raise ArgumentError(
            f"{self.name}: {what} what {self.name} returns, and it returns nothing; return the "
            f"result of a call in its body"
        )

    def _holds(self, world: Engine, until: Any, results: Any) -> bool:
        """Returns whether the loop ends, by what `until=` returns for results."""
        world.judged = self.name
        try:
            answer = until(results)
        finally:
            world.judged = ""
        if answer is None:
            raise ArgumentError(
                f"{self.name}: until= must return True or False, got None; a function without a "
                f"return statement returns None"
            )
        return bool(answer)

    def _repeat(
        self,
        plan: SequencePlan,
        scalars: AnySequence[Any],
        times: int,
        every: int | None,
        until: Any,
        shows: Progress,
    ) -> Any:
        if every is not None or until is not None:
            self._check_kept(every, until, returns=plan.returns_something)
        self._check_before(plan, times, scalars)
        try:
            found = plan.schedule(times, every, is_judged=until is not None)
            if not shows:
                return self._rounds(plan, scalars, times, found, until)
            plan.positions.begin()
            with iterations_shown(plan.world, plan.positions.done, times, self.name, shows) as show:
                return self._rounds(plan, scalars, times, found, until, show)
        except BaseException:
            self._drop(plan)  # ranks may have stopped at different places
            raise

    def _check_before(self, plan: SequencePlan, times: int, scalars: AnySequence[Any]) -> None:
        """Raises `ArgumentError` or `BatchError` for what may have changed since the plan was
        made.
        """
        for one, code in plan.trace.uses:
            if one.__code__ is not code:
                refuse(one, self.name)
        for check in plan.trace.checks:
            check.check(self.name, times, scalars)

    def _rounds(
        self,
        plan: SequencePlan,
        scalars: AnySequence[Any],
        times: int,
        found: Schedule,
        until: Any,
        show: Callable[[], None] | None = None,
    ) -> Any:
        """Makes the rounds of a call, and returns the results; calls `show` after each."""
        step = found.period
        if not step:
            plan.run(0, times, times, scalars)
            if show is not None:
                show()
            return plan.collect()
        if not found.round_ends:
            kept_here = plan.run(0, times, times, scalars, step)
            if show is not None:
                show()
            return plan.unflatten(kept_here)
        kept: deque[Any] = deque(maxlen=None if found.is_stacked else 1)
        for first, count in self._spans(plan, times, step, until, kept):
            plan.run(first, count, times, scalars)
            if show is not None:
                show()
        return plan.stacked(kept) if found.is_stacked else kept[-1]

    def _spans(
        self, plan: SequencePlan, times: int, step: int, until: Any, kept: deque[Any]
    ) -> Iterator[tuple[int, int]]:
        """Yields first iteration and number of iterations of each round, to be run before the
        next; keeps the results.
        """
        for first in range(0, times - step + 1, step):
            yield first, step
            kept.append(plan.collect())
            if until is not None and self._holds(plan.world, until, kept[-1]):
                return
        if times % step:
            yield times - times % step, times % step

    def _nothing(self, plan: SequencePlan, every: int | None) -> Any:
        """Returns the results of no iterations."""
        if not plan.returns_something:
            return None
        if every is None:
            raise ArgumentError(
                f"{self.name}: times=0 has no last iteration; pass every=, which "
                f"then gives empty results"
            )
        return plan.unflatten(plan.empty())

    def _plan(self, world: Engine, structure: Structure, told: _Arguments) -> SequencePlan:
        key = (self._outer.now().version, structure, *told.key)
        known = self._plans.get(key)
        if known is not None:
            if known.is_current:
                return known
            self._plans.pop(key).forget()
        for lost in [key for key, plan in self._plans.items() if plan.is_lost]:
            self._plans.pop(lost).forget()
        plan = self._trace(world, structure, told)
        log.debug(
            "the body of %s was run to record its calls: %s",
            self.name,
            "the first time" if self._traced == 1 else "again",
        )
        self._plans[key] = plan
        while len(self._plans) > PLANS_KEPT:
            oldest = min(
                (known for known in self._plans if known is not key),
                key=lambda known: self._plans[known].used,
            )
            self._plans.pop(oldest).forget()
        return plan

    def _trace(self, world: Engine, structure: Structure, told: _Arguments) -> SequencePlan:
        """Runs the body to record its calls, and sends them to the ranks."""
        trace = Trace(world, self.name, told.letters)
        self._traced += 1
        values = self._values(told)
        drew = watch_draws(
            [*told.leaves, *itertools.chain.from_iterable(map(Values.alive, values))]
        )
        tracing.current = trace
        try:
            results = self._run_turns(trace, structure, told.leaves)
            passed, trace.passed = trace.passed if drew() else [], []
            trace.undo()
            self._check_outside(trace, told)
            if passed or any(map(Values.changed, values)):
                self._check_again(
                    Rehearsal(self.name, world.partition, {}), passed, structure, told
                )
            return SequencePlan(world, self.name, trace, results)
        except BaseException:
            trace.undo()
            for plan in trace.plans:
                plan.forget()
            raise
        finally:
            tracing.current = None

    def _check_again(
        self,
        rehearsal: Rehearsal,
        passed: AnySequence[tuple[Any, ...]],
        structure: Structure,
        told: _Arguments,
    ) -> None:
        """Refuses a body that changes values from outside whenever it runs, or draws random numbers
        for its calls.

        A cache that it has filled stays as it is. Generators do not tell who has drawn, a thread
        that loads data or the body; what the body passes to its calls does.

        Args:
            rehearsal: of a second run, of which the ranks do not know.
            passed: arguments of the calls of the first run, if generators have drawn meanwhile.
            structure: of the sequence's arguments.
            told: these.

        Raises:
            ArgumentError: a value has changed in the second run, or its calls get other numbers.
        """
        values = self._values(told)
        tracing.current = rehearsal
        try:
            self._run_turns(rehearsal, structure, told.leaves)
        except Exception:  # noqa: BLE001  # the first run was good
            return
        name, code = next(filter(None, map(Values.changed, values)), None), self.py_func.__code__
        place = f"{code.co_filename}:{code.co_firstlineno}"
        if passed and differ(passed, rehearsal.passed):
            raise ArgumentError(
                f"{self.name} ({place}) draws random numbers in its body, which runs once, so that "
                "all iterations and later calls would get the same ones: run again, it passes "
                "others to its calls. Draw in kernels with synk.random, which takes synk.STEP as "
                "an index; or draw before the call, and pass the numbers as an argument"
            )
        if name is not None:
            raise ArgumentError(
                f"{self.name} ({place}) changes {name}, itself or in a function that it calls. "
                "That would be done once, while the body is recorded, and not in each iteration. "
                "For a number of each iteration write synk.carry; return results, which every=1 "
                "gives of each iteration, and change other things after the call"
            )

    def _values(self, told: _Arguments) -> list[Values]:
        """Returns what the body reads from outside and of its arguments, as it is now."""
        return [self._outer.now(), self._outer.of(told.objects)]

    def _check_outside(self, trace: Trace, told: _Arguments) -> None:
        """Refuses NumPy arrays from outside that calls cannot write to, or over the same memory
        as others.
        """
        arrays = self._outside(trace)
        for name, array, copy in arrays:
            if not array.flags.writeable and copy._segment.id in trace.written:  # noqa: SLF001  # shared with this package
                raise ArgumentError(f"{name} is read-only, and calls write to it. Pass a copy.")
        labels = [
            (name, value) for name, value in self._outer.now().labels() if isinstance(value, Data)
        ]
        shared = {id(data): (name, data.data, data) for name, data in (*labels, *told.data)}
        self._refuse_shared(trace, [*arrays, *told.write_back], [*arrays, *shared.values()])

    def _outside(self, trace: Trace) -> list[_Copied]:
        """Returns the arrays that calls take and that are no arguments, with their copies."""
        return [
            (f"an array that {self.name} has from outside", *pair)
            for pair in trace.outside.values()
        ]

    @staticmethod
    def _refuse_shared(
        trace: Trace, arrays: AnySequence[_Copied], others: AnySequence[_Copied]
    ) -> None:
        """Refuses NumPy arrays over the same memory as other arrays of the sequence, if one is
        written.

        Each has a copy, and what calls write to one would not be seen in the other.
        """
        for (name, array, copy), (other, memory, data) in itertools.product(arrays, others):
            written = {copy._segment.id, data._segment.id} & trace.written  # noqa: SLF001  # as above
            if copy is not data and written and share_memory(array, memory):
                raise ArgumentError(
                    f"{name} and {other} are arrays over the same memory, and calls write to one "
                    "of them, which the other would not show. Pass a copy."
                )

    def _run_turns(
        self, recording: Recording, structure: Structure, leaves: AnySequence[Any]
    ) -> list[Any]:
        """Runs the body until swapped variables have their memory again; returns what it returns
        each time.
        """
        recording.running.append(self)
        results = [self._run_body(structure, leaves)]
        while not recording.end_of_turn():
            results.append(self._run_body(structure, leaves))
        recording.check_looked()
        return results

    def _run_body(self, structure: Structure, leaves: AnySequence[Any]) -> Any:
        """Runs the body to record its calls, and returns what it returns.

        Raises:
            ArgumentError: that has a number which only the ranks compute.
        """
        try:
            results = self._body(**unflatten(structure, leaves))
        # others have a place
        except (
            ArgumentError,
            BatchError,
            DataError,
            PartitionError,
            ReductionError,
        ) as error:
            tracing.add_line(error)
            raise
        for leaf in flatten(results)[0]:
            if isinstance(leaf, Unknown) and not isinstance(leaf, Seen | Outcome):
                raise ArgumentError(
                    f"{self.name} returns {leaf.label}, which no call makes, so that the script "
                    "cannot get it; return the results of calls, and compute with them after the "
                    "call"
                )
        return results

    def _inside(
        self,
        trace: Recording,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        times: Any,
        every: Any,
        until: Any,
    ) -> Any:
        """Records a call inside another sequence."""
        if self in trace.running:
            path = " → ".join(
                one.name for one in (*trace.running[trace.running.index(self) :], self)
            )
            raise ArgumentError(
                f"{tracing.where()}: {self.name} calls itself ({path}); loop with times="
            )
        if until is not None:
            raise ArgumentError(
                f"{tracing.where()}: until= is judged in the script; an inner "
                f"sequence cannot wait for it"
            )
        if every is not None:
            raise ArgumentError(
                f"{tracing.where()}: an inner sequence keeps the results of its last "
                f"iteration; leave every= out"
            )
        if not isinstance(times, Number):
            times = _count(self.name, "times", times, 1)
        elif not times.is_int:
            raise ArgumentError(
                f"{tracing.where()}: times of {self.name} must be an int, and {times.label} is a "
                f"float; divide ints with //"
            )
        elif times.formula_of_argument:
            trace.checks.append(InnerTimes(times, self.name, tracing.where()))
        leaves, structure = self._bound(args, kwargs)
        values = [_inner_argument(leaf) for leaf in leaves]
        with trace.inside(self, times):
            return self._body(**unflatten(structure, values))

    # ---- inspection

    @shortened
    def plan(
        self,
        *args: Any,
        times: Any = ONCE,
        every: int | None = None,
        until: Any = None,
        world_size: int | None = None,
        **kwargs: Any,
    ) -> SequenceReport:
        """Plans a call without making it: parts, what they read and write, waits, bytes moved, and
        what ends a round.

        Needs no GPU and no world. Arguments are those of a call, and `world_size`, the number of
        ranks to plan for; default: that of the open world. Waits are those of ranks on cores: on
        GPUs linked by NCCL, their streams wait instead.

        Raises:
            WorldError: no world is open, and `world_size` is not given.
            ArgumentError, PartitionError, BatchError, LaunchError: as for a call.
        """
        tracing.refuse(f"{self.name}.plan()")
        times, every = self._checked(times, every, until)
        partition, world = planned_partition("plan", world_size), open_world()
        with _planning if world is None else _held(world, sys._getframe()):  # noqa: SLF001  # the call that has the world
            leaves, structure = self._bound(args, kwargs)
            told = self._told_apart(leaves, structure)
            names = [_argument_name(path) for path in paths(structure)]
            arguments = [(name, leaf) for name, leaf in zip(names, told.leaves, strict=True)]
            named = [*self._outer.now().labels(), *arguments]
            labels = {
                _memory_of(one): name for name, one in named if isinstance(one, Variable | Data)
            }
            rehearsal = Rehearsal(self.name, partition, labels)
            tracing.current = rehearsal
            try:
                results = self._run_turns(rehearsal, structure, told.leaves)[0]
            finally:
                tracing.current = None
        for one in rehearsal.checks:
            one.check(self.name, times, told.scalars)
        shape_of = partial(planned_shape, Call(CallOptions(None), partition))
        returned, _ = flatten(results)
        planned = [leaf.unseen if isinstance(leaf, Seen) else leaf for leaf in returned]
        parts = rehearsal.report(planned)
        self._check_kept(every, until, returns=bool(returned))
        found = schedule(
            times,
            every,
            is_judged=until is not None,
            large=rehearsal.first_large(planned),
            nbytes=rehearsal.used * partition.parts,
            room=KEPT_BYTES,
        )
        return SequenceReport(
            self.name,
            tuple(
                f"{name}: "
                f"{type_told(leaf) if isinstance(leaf, Number) else describe(leaf, shape_of)}"
                for name, leaf in arguments
            ),
            partition.parts,
            parts,
            len(rehearsal.starts),
            times,
            found.rounds(times),
            found.round_ends,
            rehearsal.used * partition.parts,
            any(rehearsal.carried),
        )

    def _scalars(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Returns the numbers among the arguments of a call, in the order in which formulas
        count them.
        """
        return self._told_apart(*self._bound(args, kwargs)).scalars

    def _drop(self, plan: SequencePlan) -> None:
        for key in [key for key, known in self._plans.items() if known is plan]:
            del self._plans[key]
        if not plan.world.closed:
            plan.forget()

    def _leave(self) -> None:
        """Drops all plans, and the memory of their results."""
        self._world = None
        self._plans.clear()
        self._known.clear()
        self._outer = OuterValues(self.py_func, _body_of)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Binds a decorated method to its instance."""
        return self if instance is None else Method(self, instance)

    def __repr__(self) -> str:
        """Shows name and parameters."""
        return f"<synknumba sequence {self.name}{self._signature}>"

    def __reduce__(self) -> NoReturn:
        """Raises `ArgumentError`: only the script runs sequences."""
        raise ArgumentError(
            f"{self.name} is a sequence, which only the script can run; it cannot be "
            f"pickled or sent to ranks"
        )


@contextmanager
def _held(world: Engine, call: FrameType) -> Iterator[None]:
    """Context in which this thread has the world, so that neither another nor the body of a
    sequence uses it.
    """
    world.begin(call)
    try:
        yield
    finally:
        world.end()


def _memory_of(value: Variable | Data) -> int:
    return id(state_of(value)) if isinstance(value, Variable) else value._segment.id  # noqa: SLF001  # shared with this package


def _body_of(value: Any) -> Any:
    """Returns the body of a sequence; None for any other object."""
    return value.py_func if isinstance(value, Sequence) else None


def _argument_name(path: str) -> str:
    """Returns the path of an argument, with the parameter's name plain.

    >>> _argument_name("['x'][0]")
    'x[0]'
    """
    name, _, rest = path[2:].partition("']")
    return name + rest


def _inner_argument(leaf: Any) -> Any:
    if isinstance(leaf, Static):
        return leaf.value
    return Number(leaf.formula, leaf.label, is_int=leaf.is_int) if leaf is tracing.STEP else leaf


_NOTHING: Any = object()


def _count(name: str, option: str, value: Any, least: int) -> int:
    try:
        number = -1 if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = -1
    if not least <= number < 2**63:
        limit = "" if number < least else ", and below 2**63"
        raise ArgumentError(
            f"{name}: {option} must be an int of at least {least}{limit}, got {value!r}"
        )
    return number


@shortened
def sequence(function: Callable[P, R] = _NOTHING, /, **options: Never) -> Sequence[P, R]:
    """Makes a function that calls others into a sequence: the ranks run its calls by themselves, as
    often as asked.

    The function, the body, runs once for each kind of arguments, to record its calls, and must not
    depend on what these return: they run later, on the ranks. It may call functions decorated with
    `parallel` and `function`, `all_reduce`, `reduce` and `broadcast` of variables, and other
    sequences. `synk.STEP` in an argument is the number of the iteration.

    Args:
        function: the body.
        **options: none; those of a call, such as `times=`, are refused here.

    Returns:
        The `Sequence`, called with the body's arguments and `times=`, `every=` and `until=`.

    Raises:
        ArgumentError: the function has variadic parameters, or one named like an option, or assigns
            to a parameter at its end; or the decorator got options, which belong to the call.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function
        ... def double(v, by):
        ...     v *= by
        >>> @synk.sequence
        ... def grow(v, by):
        ...     double(v, by)
        ...     synk.all_reduce(v, "mean")
        >>> with synk.fork(2, device="cpu"):
        ...     v = synk.variable(np.ones(3))
        ...     grow(v, 2.0, times=5)
        ...     v.get_value()
        array([32., 32., 32.])
    """
    if options or function is _NOTHING or not callable(function):
        told = ", ".join(f"{name}={value!r}" for name, value in dict[str, Any](options).items())
        call = f", and pass {told} to the call, as in step(u, v, {told})" if options else ""
        got = (
            ""
            if function is _NOTHING or callable(function)
            else f"; got a {type(function).__name__}"
        )
        raise ArgumentError(
            f"write @synk.sequence without parentheses above the function{call}{got}"
        )
    return Sequence(function)
