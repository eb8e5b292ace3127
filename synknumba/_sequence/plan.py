"""A sequence that the ranks have: its program, its memory, and how a round of it runs."""

import struct
import sys
from collections.abc import Callable, Iterable
from collections.abc import Sequence as AnySequence
from functools import partial
from typing import Any, Final, final

import numpy as np

from synknumba._call.plan import FunctionPlan, KernelPlan
from synknumba._errors import SynkError
from synknumba._host.data import Data
from synknumba._host.file_data import FileData
from synknumba._host.segment import Segment
from synknumba._ops.tree import LEAF, NONE, flatten, parts_like, unflatten
from synknumba._sequence.install import Installer
from synknumba._sequence.outer_values import bytes_of
from synknumba._sequence.recorder import free_of_recorded, ordered
from synknumba._sequence.report import LAST_ONLY, Schedule, schedule
from synknumba._sequence.results import combined, handle_of, is_small, output_name, stack
from synknumba._sequence.rounds import RoundLoop
from synknumba._types import Array
from synknumba._variables.failed_writes import note_failure
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
from synknumba._world.call_in_flight import Flight
from synknumba._world.engine import Engine
from synknumba._world.failure import CallInfo
from synknumba._world.rounds import RankNews

KEPT_BYTES = 64 << 20  # of small results that one round keeps; of more, a round ends at each


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

    def __init__(
        self, world: Engine, name: str, recorder: Installer, results: AnySequence[Any]
    ) -> None:
        self.world = world
        self.recorder = recorder
        self._leaves, self._structure = flatten(results[0])
        # Of each turn, the stand-ins among the leaves; None for the others, which are returned as
        # they are.
        self._turns = [[handle_of(leaf) for leaf in flatten(result)[0]] for result in results]
        self._results = self._turns[0]
        self._turns_differ = len(results) > 1
        self._at = 0  # number of the last iteration
        self._plans = {plan.program.number: plan for plan in recorder.plans}
        size = 8 * board_words(world.world_size, recorder.slots)
        self._board_segment = Segment(size)
        self._board = self._board_segment.array(np.int64, (size // 8,))
        self.program = SequenceProgram(
            number=next_number(),
            name=name,
            parts=tuple(ordered(recorder.parts)),
            scalars=recorder.scalars,
            slots=recorder.slots,
            board=HostArray(self._board_segment.id, np.dtype(np.int64), (size // 8,)),
            entry_bytes=recorder.used,
            starts=tuple(recorder.starts),
            lines=recorder.lines,
            places=recorder.places,
            free=free_of_recorded(recorder.parts),
            carried=tuple(tuple(one.items()) for one in recorder.carried),
            segment_ids=frozenset(recorder.segments),
            variable_numbers=frozenset(recorder.variables),
        )
        self.positions = _Positions(self.program, self._board, world.world_size)
        self.info = CallInfo(name, where=self.positions)
        self._parts: RoundLoop | None = (
            None  # runs the parts one by one; None if the ranks have the whole
        )
        self._number = self.program.number
        if world.spans_machines:
            self._parts = RoundLoop(world, self.program, self._board, self.info, self.learn)
            # the round of a submitted call, whose work is done before
            nothing = Transfer(next_number(), up=False, arrays=())
            self._number = nothing.number
            world.command(Install(None, nothing), info=CallInfo(name))
        else:
            world.attach([self._board_segment])
            world.command(Install(None, self.program), info=CallInfo(name))
        self._layout = struct.Struct("<" + HEAD + recorder.scalars)
        self._pack, self._memory = self._layout.pack_into, world.ranks.values.data
        self._collect_quickly = self._make_collect()
        # others are constants
        self.outside = [pair for pair in recorder.outside.values() if _has_other_owner(pair)]
        self._looked = tuple(recorder.looked.values())
        self._changed = tuple(recorder.changed.values())
        self._layouts = tuple(recorder.variables.values())
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
            (one.label for one in self._results if one is not None and not is_small(one)), None
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
        for function, number in self.recorder.numbers.items():
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
        return [pair for pair in self.outside if pair[1]._segment.id in self.recorder.written]  # noqa: SLF001  # as above

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

    def _run_parts(self, parts: RoundLoop, entries: int) -> None:
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
        if self.recorder.lenders:
            scalars = [*scalars, *[lender.choose() for lender in self.recorder.lenders]]
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
            self.recorder.turn(first, count)

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
            return [leaf if one is None else combined(one, memory) for leaf, one in pairs]
        out = []
        for place, leaf in enumerate(self._leaves):
            ones = [
                self._turns[((entry + 1) * period - 1) % len(self._turns)][place]
                for entry in range(entries)
            ]
            kept = [
                combined(one, memory[entry : entry + 1])[0]
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
            result = one.plan.wanted[output_name(one)]
            assert result.parts is not None
            out.append(np.empty((0, *result.shape), result.parts.dtype))
        return out

    def unflatten(self, leaves: AnySequence[Any]) -> Any:
        """Returns results in the structure that the body returns."""
        return unflatten(self._structure, leaves)

    def forget(self) -> None:
        """Makes the ranks drop the sequence and its calls."""
        self.forgotten = True
        for plan in self.recorder.plans:
            plan.forget()
        for number in (*self.recorder.programs, self._number):
            self.world.life.own_programs.pop(number, None)
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
