"""Rows of a sequence, run on a rank: compiled code runs them, and returns where Python has to do
something.
"""

import time
from collections.abc import Sequence
from typing import final

from numba import types

from synknumba._rank.sequence_context import PeerFailed, SequenceContext
from synknumba._rank.sequence_lowering import Lowered
from synknumba._types import Array
from synknumba._wire import sequence
from synknumba._wire import sequence_interpreter as table
from synknumba._wire.native import RESULT, NativeCall, address_of, copy_of, raise_error, rows_of
from synknumba._wire.relaunch import Relaunch

NAP_SECONDS = 2e-4  # between two rounds of spins, in a wait for a rank that works for long


@final
class RowProgram:
    """The rows of one sequence on one rank.

    Args:
        context: what the rows refer to.
        lowered: the rows.
    """

    def __init__(self, context: SequenceContext, lowered: Lowered) -> None:
        self._context, self._lowered = context, lowered
        # faster to index than the arrays
        self._words, self._step = lowered.state.data, context.numbers.steps.data
        self._addresses = lowered.rows.ctypes.data, lowered.state.ctypes.data
        self._repeated: NativeCall | None = None  # of a run, by compiled code
        self.needs_python = lowered.needs_python

    def run(self, first: int, iterations: range, period: int, history: Array | None) -> None:
        """Runs some of the iterations from `first` on; `history`, shape (entries, bytes), gets this
        rank's small results after each period.
        """
        if not iterations.start:
            self._words[table.DONE_PARTS] = 0
        if iterations:
            self._start(first, iterations, period, history)
            self._go_on(table.run(*self._addresses))

    def meet(self) -> None:
        """Waits until all ranks are here, between two runs of a round."""
        words = self._words
        words[table.AT], words[table.PERIOD] = self._lowered.meeting, 0
        words[table.TIMES] = words[table.ITERATION] + 1
        self._go_on(table.run(*self._addresses))

    def judge(self, step: int, count: int = 1, kept: Array | None = None) -> int:
        """Judges the condition of a loop whose parts are run elsewhere, or in recordings of periods
        that the rows launch. Returns how many periods were judged.

        Args:
            step: number of the iteration with which the first period ends.
            count: how many periods.
            kept: shape (count, bytes), gets this rank's small results after each period.
        """
        words, begins = self._words, self._lowered.begins
        self._step[0] = self._context.board.position[sequence.ITERATION] = step
        words[table.AT], words[table.BEGAN] = begins[step % len(begins)], 0
        words[table.ITERATION], words[table.TIMES] = 0, count
        words[table.PERIOD] = 1
        self._keep(kept)
        self._go_on(table.run(*self._addresses))
        return int(words[table.ITERATION])

    @property
    def is_over(self) -> bool:
        """Whether the condition of the loop has ended the run."""
        return not self._words[table.TIMES]

    @property
    def done_parts(self) -> int:
        """The parts that the rank has counted in this round."""
        return int(self._words[table.DONE_PARTS])

    @done_parts.setter
    def done_parts(self, count: int) -> None:
        self._words[table.DONE_PARTS] = count

    def resume(self) -> None:
        """Goes on with a run that compiled code has begun, by `repetition`."""
        assert self._repeated is not None  # it has
        self._go_on(int(self._repeated.words[RESULT]))

    def repetition(
        self, first: int, count: int, state: Sequence[Array]
    ) -> tuple[Relaunch, list[int]]:
        """Returns the launch with which compiled code repeats the run of iterations, which takes no
        Python, and the addresses of words that hold the number of the first iteration.

        Args:
            first: number of the first iteration.
            count: how many.
            state: further state, which has its values of the beginning again when a run begins.
        """
        context, lowered = self._context, self._lowered
        at = sequence.position_word(context.place.world_size, context.place.rank)
        position = context.board.words[at : at + sequence.LINE]
        position.fill(0)
        self._words[table.DONE_PARTS] = 0
        self._start(first, range(count), 0, None)
        changing = [lowered.state, context.numbers.steps, position, *state]
        copies = [copy_of(array, array.copy()) for array in changing if array.nbytes]
        result = table.run.overloads[types.int64, types.int64]
        kinds = types.int64, types.int64
        self._repeated = NativeCall(
            address_of(result), kinds, self._addresses, (table.run, lowered)
        )
        rows = rows_of([*copies, self._repeated], table.FINISHED)
        steps, words = copies[1].source, copies[2].source
        return Relaunch.of_rows(rows, copies), [steps, words + 8 * sequence.ITERATION]

    def _start(self, first: int, iterations: range, period: int, history: Array | None) -> None:
        words, position = self._words, self._context.board.position
        begin = first + iterations.start
        # the position has zeros, as the script has cleared the board
        self._step[0] = position[sequence.ITERATION] = begin
        turn = begin % len(self._lowered.begins)
        position[sequence.AT] = self._context.program.starts[turn]
        words[table.AT], words[table.BEGAN] = self._lowered.begins[turn], 0
        words[table.ITERATION], words[table.TIMES] = iterations.start, iterations.stop
        words[table.PERIOD] = period
        self._keep(history)

    def _keep(self, history: Array | None) -> None:
        words = self._words
        words[table.KEPT] = 0
        if history is not None:
            words[table.KEPT], words[table.KEPT_STRIDE] = history.ctypes.data, history.strides[0]

    def _go_on(self, code: int) -> None:
        """Does what compiled code leaves to Python, and lets it go on, until the run is
        finished.
        """
        words, progress = self._words, self._context.progress
        parts, python = self._lowered.parts, self._lowered.python
        while code != table.FINISHED:
            if code == table.TO_PYTHON:
                at = words[table.AT]
                progress.part = parts[at]
                action, words[table.AT] = python[at]
                action()
            else:
                self._handle(code)
            code = table.run(*self._addresses)
        if self.is_over:
            self._context.board.position[sequence.AT] = sequence.ENDED

    def _handle(self, code: int) -> None:
        at, lowered = self._words[table.AT], self._lowered
        self._context.progress.part = lowered.parts[at]
        if code == table.FAILED:
            call = lowered.calls[int(lowered.rows[at, 3])]
            raise_error(self._words[table.CODE], int(call.words[1]))
        if code == table.GIVEN_UP or self._context.board.has_failed:
            raise PeerFailed
        if code == table.LATE:
            time.sleep(NAP_SECONDS)
