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
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import numpy as np

from synknumba._device import Recording
from synknumba._rank.collective_routine import StagedRoutine
from synknumba._rank.function_routine import FunctionRoutine
from synknumba._rank.fused_parts import PartFusion
from synknumba._rank.queued_iterations import QueuedIterations
from synknumba._rank.repeated_rounds import RepeatedRounds, begin_turns
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
from synknumba._wire.messages import News, ReturnedInSequence
from synknumba._wire.relaunch import Again
from synknumba._wire.sequence import HEAD, Part, Parts, SequenceProgram

TRIALS = 3  # rounds in which functions have their chance to be recorded
_HEAD = struct.Struct("<" + HEAD)


@dataclass(frozen=True, slots=True)
class Execution:
    """How a rank runs the iterations of a sequence, until memory moves.

    Attributes:
        runner: runs them.
        repeated: repeats a round of them by compiled code.
        fusion: has the parts that are recorded together; None if compiled code runs the steps.
        turns: counts by which places on stages alternate.
    """

    runner: RowProgram | QueuedIterations
    repeated: RepeatedRounds | QueuedIterations
    fusion: PartFusion | None
    turns: Sequence[Array]

    def load(self) -> None:
        """Loads what is loaded at the beginning of a round."""
        if self.fusion is not None:
            self.fusion.begin()

    def close(self) -> None:
        """Frees recordings."""
        if isinstance(self.repeated, RepeatedRounds):  # else the fusion has them
            self.repeated.close()
        if self.fusion is not None:
            self.fusion.close()


def _execution(context: SequenceContext) -> Execution:
    """Decides how parts are run; an exception is about the part in progress."""
    program, parts, routines = context.program, context.parts, context.routines
    turns = [context.turns] if program.slots else []
    for number in sorted(_numbers(parts)):
        routine = routines[number]
        if isinstance(routine, StagedRoutine):
            turns.append(routine.turn)
    fusion: PartFusion | None = None
    if not runs_natively(context.place.device):
        fusion = PartFusion(context)
        if not any(program.carried):  # between iterations, numbers are the host's
            fuse = partial(fusion.whole, program.turns(parts), 0)
            fused = fuse()
            if fused is not None:
                judging = partial(_judge, context, fusion) if program.ends else None
                queued = QueuedIterations(context, fused, fuse, judging)
                return Execution(queued, queued, fusion, turns)
    try:
        rows = RowProgram(context, Lowering(context, fusion).lower(parts))
    except BaseException:
        if fusion is not None:
            fusion.close()
        raise
    return Execution(rows, RepeatedRounds(context, rows, turns), fusion, turns)


def _judge(
    context: SequenceContext,
    fusion: PartFusion,
    recordings: Mapping[int, Recording],
    period: int,
) -> RowProgram:
    return RowProgram(context, Lowering(context, fusion, recordings, period).lower(()))


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
        self.segments = program.segments()
        self.variables = program.variables()
        self._context = SequenceContext(
            program,
            # where functions are recorded: with waits for those that fail, until all ranks' are
            program.parts,
            place,
            Numbers(program),
            routines,
            _board_of(program, place),
            np.zeros(program.slots, np.int64),
            Progress(),
            RoundNews(),
        )
        nbytes = self._context.numbers.scalars.nbytes
        self._values = place.control.values.data[: _HEAD.size + nbytes]  # of a round
        scalars = place.control.values[_HEAD.size :][:nbytes]
        self._scalars: Array = scalars.view(np.int64)  # of a round
        self._execution: Execution | None = None
        self._numbers = sorted(_numbers(program.parts))  # of the parts' programs
        # values of the last round, if compiled code may repeat it
        self._repeatable: bytes | None = None
        self._trials = TRIALS if program.free and not runs_natively(place.device) else 0

    @property
    def running(self) -> Part | None:
        """The part that is run, for messages."""
        return self._context.progress.part

    @property
    def again(self) -> Again | None:
        if self._repeatable is None or self._execution is None:
            return None
        return self._execution.repeated.again(self._repeatable)

    def forget_buffers(self) -> None:
        if self._execution is not None:
            self._execution.close()
            self._execution = None

    def __call__(self) -> News | None:
        """Runs the iterations of one round."""
        first, count, times, period, segment = _HEAD.unpack_from(self._values)
        numbers, news, progress = (
            self._context.numbers,
            self._context.news,
            self._context.progress,
        )
        numbers.take_scalars(self._scalars, first)
        news.begin()
        self._repeatable = None
        history = self._kept(segment, count // period) if segment >= 0 else None
        progress.part = None
        for number in self._numbers:
            routine = self._context.routines[number]
            if isinstance(routine, FunctionRoutine):
                routine.writer.keeps = history is not None
        try:
            execution = self._execution or self._decide(first)
            begin_turns(execution.turns)
            done = 0
            # with one rank, parts that wait for no other may be queued before they were tried
            if self._trials and isinstance(execution.runner, RowProgram):
                done = min(count, len(self._context.program.starts))
                execution = self._try_out(execution.runner, first, done, period, history)
            execution.load()
            if not (done and isinstance(execution.runner, RowProgram) and execution.runner.is_over):
                execution.runner.run(first, range(done, count), period, history)
            returns = period or news.returned
            if not returns and execution.repeated.may_repeat(first, count):
                self._repeatable = bytes(self._values)
        except PeerFailed:
            self._context.place.device.synchronize()  # parts that were queued
        except BaseException as error:  # noqa: BLE001  # raised again
            self._context.fail(error, times)
        return ReturnedInSequence(tuple(news.returned)) if news.returned else None

    def _decide(self, first: int) -> Execution:
        """Decides how the iterations from the first on are run, by where memory is now."""
        context = self._context
        board = _board_of(context.program, context.place)
        context = self._context = replace(context, board=board)
        context.numbers.steps[0] = first
        self._execution = _execution(context)
        return self._execution

    def _try_out(
        self, rows: RowProgram, first: int, tried: int, period: int, history: Array | None
    ) -> Execution:
        """Runs some iterations one by one, which records functions; then goes over to parts without
        waits for these.

        All ranks do, or none: they wait for each other's. Returns how the others are run.
        """
        execution, context = self._execution, self._context
        assert execution is not None
        assert execution.fusion is not None  # compiled code that runs steps records nothing
        program, board = context.program, context.board
        execution.load()
        rows.run(first, range(tried), period, history)
        self._trials -= 1
        if rows.is_over:  # on all ranks
            return execution
        board.show_ready(is_ready=execution.fusion.are_recorded(program.parts))
        rows.meet()
        if not board.are_ready:
            return execution
        self._trials = 0
        self._context = replace(context, parts=program.free)
        self.forget_buffers()
        execution = self._decide(first + tried)
        execution.runner.done_parts = rows.done_parts
        return execution

    def descriptors(self, news: News) -> list[int]:
        return self._context.news.descriptors

    def _kept(self, segment: int, entries: int) -> Array:
        """Returns the memory for this rank's kept results, one line for each entry."""
        program, place = self._context.program, self._context.place
        shape = entries, place.world_size, program.entry_bytes
        memory: Array = place.segments[segment].array(np.uint8, shape)
        return memory[:, place.rank]


def _board_of(program: SequenceProgram, place: Place) -> Board:
    return Board(place.host(program.board), place.world_size, place.rank)


def _numbers(parts: Parts) -> set[int]:
    """Returns the numbers of the programs of all parts."""
    numbers: set[int] = set()
    for part in parts:
        if not isinstance(part, Part):
            numbers |= _numbers(part.parts)
        elif part.number >= 0:
            numbers.add(part.number)
    return numbers
