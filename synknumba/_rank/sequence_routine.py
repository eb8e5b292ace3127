"""Routine for sequences: repeats calls and collectives on a rank, without the coordinator.

    values ──> for each iteration: for each part: wait for other ranks → formulas → run its routine → show the count

`_execution` decides how, each time memory has moved:

    all parts of an iteration only queue work on the device ──> recordings of iterations (`fused_parts.py`)
    else ──> rows (`sequence_lowering.py`, `sequence_program.py`), which are
        compiled code's where that runs the device's steps, as on cores
        else of order alone: Python runs parts, and records those together that need no host between them

If a part fails, the rank sets a word of the board, on which the others leave their waits, and the
world remains usable.
"""  # noqa: E501

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeAlias, final

import numpy as np

from synknumba._rank.collective_routine import StagedRoutine
from synknumba._rank.fused_parts import PartFusion, QueuedIterations
from synknumba._rank.routine import Place, Repeated
from synknumba._rank.sequence_context import (
    Board,
    PeerFailed,
    Progress,
    RoundNews,
    SequenceContext,
)
from synknumba._rank.sequence_lowering import Lowering, runs_natively
from synknumba._rank.sequence_numbers import Numbers
from synknumba._rank.sequence_program import RowProgram
from synknumba._types import Array
from synknumba._wire import sequence
from synknumba._wire.messages import News, ReturnedInSequence
from synknumba._wire.relaunch import Again, Relaunch, Scalar, ScalarPacking, Scalars
from synknumba._wire.sequence import HEAD, Loop, Part, SequenceProgram

TRIALS = 3  # rounds in which functions have their chance to be recorded
_HEAD = struct.Struct("<" + HEAD)

_Parts: TypeAlias = Sequence[Part | Loop]


@dataclass(frozen=True, slots=True)
class Execution:
    """How a rank runs the iterations of a sequence, until memory moves.

    Attributes:
        runner: runs them.
        fusion: has the parts that are recorded together; None if compiled code runs the steps.
        staged: routines whose places on their stages alternate.
    """

    runner: RowProgram | QueuedIterations
    fusion: PartFusion | None
    staged: Sequence[StagedRoutine]

    def begin(self) -> None:
        """Loads what is loaded at the beginning of a round."""
        if self.fusion is not None:
            self.fusion.begin()

    def close(self) -> None:
        """Frees recordings."""
        if self.fusion is not None:
            self.fusion.close()


def _execution(context: SequenceContext, parts: _Parts) -> Execution:
    """Decides how parts are run; an exception is about the part in progress."""
    program, routines = context.program, context.routines
    used = [routines[number] for number in sorted(_numbers(parts))]
    staged = [routine for routine in used if isinstance(routine, StagedRoutine)]
    if runs_natively(context.place.device):
        return Execution(RowProgram(context, Lowering(context, None).lower(parts)), None, staged)
    fusion = PartFusion(context)
    if not any(program.carried):  # between iterations, numbers are the host's
        fused = fusion.whole(program.turns(parts), 0)
        if fused is not None:
            return Execution(QueuedIterations(context, fused), fusion, staged)
    try:
        rows = RowProgram(context, Lowering(context, fusion).lower(parts))
    except BaseException:
        fusion.close()
        raise
    return Execution(rows, fusion, staged)


@final
class SequenceRoutine(Repeated):
    """One sequence on one rank.

    Args:
        program: the sequence.
        place: state of the rank.
        routines: those of the parts' programs, by number; changes as programs are installed and
            dropped.
    """

    function = None

    def __init__(
        self, program: SequenceProgram, place: Place, routines: Mapping[int, Repeated]
    ) -> None:
        self.program = program
        self.place = place
        self.segments = program.segments()
        self.variables = program.variables()
        self._routines = routines
        self._numbers = Numbers(
            sequence.depth(program.parts), program.scalars, program.slots, program.lines.numbers
        )
        scalars = place.control.values[_HEAD.size :][: self._numbers.scalars.nbytes]
        self._scalars: Array = scalars.view(np.int64)  # of a round
        self._values = place.control.values.data[: _HEAD.size + scalars.nbytes]  # of a round
        self._carried = sorted({index for turn in program.carried for index, _ in turn})
        # how often each shared result has been combined
        self._turns: Array = np.zeros(program.slots, np.int64)
        self._progress, self._news = Progress(), RoundNews()
        self._board: Board | None = None
        self._execution: Execution | None = None
        # values of the last round, if compiled code may repeat it, and of that before, by Python
        self._repeatable: bytes | None = None
        self._seen_for: bytes | None = None
        # of rows: values of a round, and what repeats it
        self._repeated: tuple[bytes, Relaunch, Again] | None = None
        # Where functions are recorded: the parts with waits for those that fail, until all ranks'
        # functions are recorded.
        self._parts: _Parts = program.parts
        self._trials = TRIALS if program.free and not runs_natively(place.device) else 0

    @property
    def running(self) -> Part | None:
        """The part that is run, for messages."""
        return self._progress.part

    @property
    def again(self) -> Again | None:
        if self._repeatable is None or self._execution is None:
            return None
        runner = self._execution.runner
        if isinstance(runner, RowProgram):
            return self._again_by_rows(self._execution, runner, self._repeatable)
        first, *_ = _HEAD.unpack_from(self._repeatable)
        return runner.again(self.place.control.values, self._repeatable, first)

    def _again_by_rows(self, execution: Execution, rows: RowProgram, packed: bytes) -> Again | None:
        """Returns the `Again` that repeats a round with the same values."""
        # Rounds are alike whatever their first iteration is, unless iterations differ, or begin
        # with numbers of the last round.
        alike = len(self.program.starts) == 1 and not self._carried
        key = packed[8:] if alike else packed
        if self._repeated is None or self._repeated[0] != key:
            self._forget_repeated()
            last_key, self._seen_for = self._seen_for, key
            if last_key != key:  # worth the work once they are repeated
                return None
            first, count, times, *_ = _HEAD.unpack_from(packed)
            # carried numbers, with which the next round of the call goes on
            reached = self._numbers.scalars.copy()
            self._begin_turns(execution)
            self._take_scalars(first)
            state = [
                self._turns,
                self._numbers.scalars,
                *(routine.turn for routine in execution.staged),
            ]
            repetition = rows.repetition(first, count, state)
            self._numbers.scalars[:] = reached
            if repetition is None:
                return None
            launch, firsts = repetition
            packing = ScalarPacking(HEAD, 8, {0: 0}) if alike else ScalarPacking()
            resume = partial(self._resume, rows, times)
            again = Again(
                self.program.number,
                self.place.control.values,
                packed,
                packing,
                launch.address,
                resume,
                _no_change,
            )
            scalars = None
            if alike:
                scalars = Scalars([Scalar(0, 0, "q", word) for word in firsts], 0, ())
            again.know(packed, scalars)
            self._repeated = key, launch, again
        return self._repeated[2]

    def _resume(self, rows: RowProgram, times: int) -> None:
        """Goes on with a round that compiled code has begun."""
        try:
            rows.resume()
        except PeerFailed:
            pass
        except BaseException as error:  # noqa: BLE001  # raised again
            self._fail(error, times)

    def _forget_repeated(self) -> None:
        if self._repeated is not None:
            self._repeated[2].close()
            self._repeated = None

    def forget_buffers(self) -> None:
        self._forget_repeated()
        if self._execution is not None:
            self._execution.close()
            self._execution = None

    def __call__(self) -> News | None:
        """Runs the iterations of one round."""
        first, count, times, period, segment = _HEAD.unpack_from(self._values)
        self._take_scalars(first)
        self._news.begin()
        self._repeatable = None
        history = self._kept(segment, count // period) if period else None
        self._progress.part = None
        try:
            execution = self._execution
            if execution is None:
                self._numbers.steps[0] = first
                execution = self._execution = self._decide()
            self._begin_turns(execution)
            done = 0
            # with one rank, parts that wait for no other may be queued before they were tried
            if self._trials and isinstance(execution.runner, RowProgram):
                execution, done = self._try_out(execution, first, count, period, history)
            execution.begin()
            execution.runner.run(first, range(done, count), period, history)
            if not (period or self._news.returned) and self._may_repeat(execution, first, count):
                self._repeatable = bytes(self._values)
        except PeerFailed:
            self.place.device.synchronize()  # parts that were queued
        except BaseException as error:  # noqa: BLE001  # raised again
            self._fail(error, times)
        returned = self._news.returned
        return ReturnedInSequence(tuple(returned)) if returned else None

    def _may_repeat(self, execution: Execution, first: int, count: int) -> bool:
        """Whether compiled code may repeat a round that returns nothing and keeps no results."""
        if isinstance(execution.runner, QueuedIterations):
            return count == 1
        return not (execution.runner.needs_python or (first and self._carried))

    def _take_scalars(self, first: int) -> None:
        """Takes the scalars of a round; those that are carried keep what they have got in the
        round before.
        """
        if not self.program.scalars:
            return
        carried = self._numbers.scalars[self._carried] if self._carried and first else None
        self._numbers.scalars[:] = self._scalars
        if carried is not None:
            self._numbers.scalars[self._carried] = carried

    def _decide(self) -> Execution:
        place = self.place
        board = Board(place.host(self.program.board), place.world_size, place.rank)
        self._board = board
        context = SequenceContext(
            self.program,
            place,
            self._numbers,
            self._routines,
            board,
            self._turns,
            self._progress,
            self._news,
        )
        return _execution(context, self._parts)

    def _try_out(
        self, execution: Execution, first: int, count: int, period: int, history: Array | None
    ) -> tuple[Execution, int]:
        """Runs some iterations one by one, which records functions; then goes over to parts without
        waits for these.

        All ranks do, or none: they wait for each other's. Returns how the others are run, and the
        number of iterations that were.
        """
        rows, fusion, board = execution.runner, execution.fusion, self._board
        assert isinstance(rows, RowProgram)
        assert fusion is not None  # compiled code that runs steps records nothing
        assert board is not None
        tried = min(count, len(self.program.starts))
        execution.begin()
        rows.run(first, range(tried), period, history)
        self._trials -= 1
        board.show_ready(is_ready=fusion.are_recorded(self.program.parts))
        rows.meet()
        if not board.are_ready:
            return execution, tried
        self._trials = 0
        self._parts = self.program.free
        self._numbers.steps[0] = first + tried
        execution.close()
        self._execution = None
        execution = self._execution = self._decide()
        if isinstance(execution.runner, RowProgram):
            execution.runner.done_parts = rows.done_parts
        return execution, tried

    def _begin_turns(self, execution: Execution) -> None:
        """Lets all ranks begin a round with the same places on their stages, also where a
        failure has ended the last one.
        """
        if self.program.slots:
            self._turns.fill(0)
        for routine in execution.staged:
            routine.turn[0] = 0

    def descriptors(self, news: News) -> list[int]:
        return self._news.descriptors

    def _kept(self, segment: int, entries: int) -> Array:
        """Returns the memory for this rank's kept results, one line for each entry."""
        shape = entries, self.place.world_size, self.program.entry_bytes
        memory: Array = self.place.segments[segment].array(np.uint8, shape)
        return memory[:, self.place.rank]

    def _fail(self, error: BaseException, times: int) -> NoReturn:
        """Lets the other ranks go, and raises the error with the place where it happened."""
        assert self._board is not None  # made before parts are lowered
        self._board.abort()
        steps = self._numbers.steps.tolist()
        error.add_note(sequence.place_of(self.program, times, self.running, self._parts, steps))
        raise error


def _no_change() -> None:
    """Does nothing after compiled code has changed the first iteration of a round: Python keeps
    no copy of it.
    """


def _numbers(parts: Sequence[Part | Loop]) -> set[int]:
    """Returns the numbers of the programs of all parts."""
    numbers = {part.number for part in parts if isinstance(part, Part) and part.number >= 0}
    return numbers.union(*(_numbers(part.parts) for part in parts if isinstance(part, Loop)))
