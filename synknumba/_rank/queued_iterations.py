"""Iterations of fused parts, queued on the device; a condition that ends the loop is judged between
recordings.

    no condition     recordings of 64, 8 and 1 iterations ──> the last one, with its results
    a condition      recording of a period, with results ──> judged ──> recording ──> …
                     by Python at first, then by rows (`_wire/sequence_interpreter.py`)
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, final

from synknumba._device import Recording, ResultRing
from synknumba._rank import spans
from synknumba._rank.fused_parts import FusedParts
from synknumba._rank.sequence_context import SequenceContext
from synknumba._types import Array
from synknumba._wire.relaunch import Again
from synknumba._wire.sequence import AT, ITERATION

# Of kept results that stay on the device: a kernel in each iteration takes 1 µs, a wait for the
# results of one 14 µs.
MOST_PERIOD = 16


class Judge(Protocol):
    """Judges the condition of a loop, with the other ranks (`RowProgram`)."""

    done_parts: int

    @property
    def is_over(self) -> bool:
        """Whether the condition has ended the loop."""

    def judge(self, step: int, count: int = 1, kept: Array | None = None) -> int:
        """Judges as `RowProgram.judge` does."""


@final
class QueuedIterations:
    """Iterations of fused parts, queued on the device.

    Results of many iterations stay on the device until the end; for those of few, it is waited for.

    Args:
        context: what the parts refer to.
        fused: the parts.
        fuse: returns the parts, whose results a ring keeps; None if the host must act in between.
        judging: returns what judges the condition of the loop, and before launches recordings of
            periods, by the turns of their last iterations; takes these, and the length of a period.
            None if there is no condition.
    """

    def __init__(
        self,
        context: SequenceContext,
        fused: FusedParts,
        fuse: Callable[[ResultRing], FusedParts | None],
        judging: Callable[[Mapping[int, Recording], int], Judge] | None = None,
    ) -> None:
        self._context, self._fused, self._fuse, self._judging = context, fused, fuse, judging
        self._judge = None if judging is None else judging({}, 1)
        # the recordings of periods, and what launches and judges them
        self._served: tuple[dict[int, Recording], Judge] | None = None
        control, rank = context.place.control, context.place.rank
        self._results: Array = control.results[rank, : context.program.entry_bytes]
        # what keeps results, and the parts that it is for; made when results are kept first
        self._kept: tuple[ResultRing, FusedParts] | None = None

    def run(self, first: int, iterations: range, period: int, history: Array | None) -> None:
        """Runs iterations, as `RowProgram.run` does."""
        self._context.board.position[AT] = -1
        if not iterations.start:
            self.done_parts = 0
        if self._judge is None or not period:
            self._run_all(first, iterations, period, history)
            done = iterations.stop
        else:
            done = self._run_judged(self._judge, first, iterations, period, history)
        self._context.board.position[ITERATION] = first + done - 1

    def _run_all(self, first: int, iterations: range, period: int, history: Array | None) -> None:
        done, end = iterations.start, iterations.stop
        is_kept = history is not None and period <= MOST_PERIOD and not done % period
        if history is not None and is_kept:
            kept = self._keeping()
            if kept is not None:
                ring, fused = kept
                lines = history[done // period :]
                ring.begin(len(lines), period)
                _run(fused, first, iterations)
                ring.take(lines)
                return
        while done < end:
            after = min(done - done % period + period, end) if period else end
            _run(self._fused, first, range(done, after), goes_on=after < end)
            if history is not None and after % period == 0:
                history[after // period - 1] = self._results
            done = after

    def _run_judged(
        self, judge: Judge, first: int, iterations: range, period: int, history: Array | None
    ) -> int:
        """Runs iterations until the condition ends the loop; returns the number of those done."""
        done, end = iterations.start, iterations.stop
        runs = 0  # of periods, which gave their recordings the numbers of this round
        self._fused.as_whole(period)
        while done < end:
            after = min(done - done % period + period, end)
            if after - done == period:
                runs += 1
            _run(self._fused, first, range(done, after), goes_on=after < end)
            done = after
            if done % period:
                break
            kept = None if history is None else history[done // period - 1 :]
            if kept is not None:
                kept[0] = self._results
            judge.judge(first + done - 1)
            if judge.is_over:
                break
            step, count = first + done + period - 1, (end - done) // period
            served = self._serving(period, step, runs) if count else None
            if served is None:
                continue
            served.done_parts = judge.done_parts
            done += period * served.judge(step, count, None if kept is None else kept[1:])
            judge.done_parts = served.done_parts
            if served.is_over:
                break
        return done

    def _serving(self, period: int, step: int, runs: int) -> Judge | None:
        """Returns what launches the recordings of periods, the first of which ends with the
        iteration `step`, and judges; None while Python does.
        """
        recordings, turns = self._fused.as_whole(period), self._fused.turns
        needed = {step % turns} if period % turns == 0 else set(range(turns))
        if self._judging is None or spans.active is not None:
            return None
        if len(needed) > runs or not needed <= set(recordings):
            return None
        if self._served is None or self._served[0] != recordings:
            self._served = recordings, self._judging(recordings, period)
        return self._served[1]

    @property
    def done_parts(self) -> int:
        """The parts that the rank has counted in this round, for the condition."""
        return 0 if self._judge is None else self._judge.done_parts

    @done_parts.setter
    def done_parts(self, count: int) -> None:
        if self._judge is not None:
            self._judge.done_parts = count

    def _keeping(self) -> tuple[ResultRing, FusedParts] | None:
        """Returns what keeps results on the device; None if there is no such thing."""
        if self._kept is None:
            ring = self._context.place.device.result_ring(self._results)
            fused = None if ring is None else self._fuse(ring)
            if ring is not None and fused is not None:
                self._kept = ring, fused
        return self._kept

    def may_repeat(self, first: int, count: int) -> bool:
        """Whether compiled code may repeat a round that returns nothing and keeps no results."""
        return count == 1

    def again(self, packed: bytes) -> Again | None:
        """Returns the `Again` that repeats a round whose values are packed, as `FusedParts.again`
        does.
        """
        first = int.from_bytes(packed[:8], "little", signed=True)
        program, values = self._context.program, self._context.place.control.values
        return self._fused.again(program.number, values, packed, first)


def _run(fused: FusedParts, first: int, iterations: range, *, goes_on: bool = False) -> None:
    """Runs some of the iterations from the first on; notes it if the rank is traced."""
    begin, count = first + iterations.start, len(iterations)
    run = partial(fused.run, begin, count, goes_on=goes_on)
    spans.run_one(run, f"{count} iterations", at=begin)
