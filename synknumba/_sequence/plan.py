"""A sequence that the ranks have, and the rounds of its calls."""

import struct
from collections.abc import Callable
from collections.abc import Sequence as AnySequence
from functools import partial
from typing import Any, final

import numpy as np

from synknumba._call.plan import FunctionPlan
from synknumba._errors import SynkError
from synknumba._host.data import Data
from synknumba._host.segment import Segment
from synknumba._sequence.install import InstalledSequence
from synknumba._sequence.results import Columns, SequenceResults
from synknumba._sequence.rounds import RoundLoop
from synknumba._sequence.schedule import (
    KEPT_BYTES,
    LAST_ONLY,
    NEVER,
    RANKS,
    SCRIPT,
    Round,
    Schedule,
    schedule,
)
from synknumba._types import Array
from synknumba._wire.messages import Install, ReturnedInSequence
from synknumba._wire.program import Transfer, next_number
from synknumba._wire.results import SPECS_KEPT
from synknumba._wire.sequence import (
    AT,
    ENDED,
    HEAD,
    ITERATION,
    LINE,
    NOT_BEGUN,
    Part,
    SequenceProgram,
    place_text,
    position_word,
    shown_path,
)
from synknumba._world.call_in_flight import GOES_ON, Flight
from synknumba._world.engine import Engine
from synknumba._world.failure import CallInfo
from synknumba._world.news import RankNews


@final
class Board:
    """The words by which ranks show where they are, in the coordinator.

    It does not refer to the plan, whose memory is freed with its last reference.

    Attributes:
        positions: where each rank is, shape (W, LINE).
        memory, clear: all words, and those before a round; faster to copy than arrays.
        times: iterations of the call.
        first, after: number of iterations done before the round, and at its end.
    """

    def __init__(self, installed: InstalledSequence, world_size: int) -> None:
        self._program = installed.program
        words: Array = installed.board.array(np.int64, self._program.board.shape)
        first = position_word(world_size, 0)
        positions = words[first : first + world_size * LINE]
        self.positions: Array = positions.reshape(world_size, LINE)
        self.memory, self.clear = words.data, words.copy().data
        self.times = self.first = self.after = 0
        self.begin()

    def __call__(self, rank: int) -> str:
        """Returns in words where a rank is."""
        return place_text(self._program, self.times, shown_path(self.positions[rank].tolist()))

    @property
    def is_over(self) -> bool:
        """Whether the condition that ranks judge has ended the loop."""
        return bool(self.positions[0, AT] == ENDED)

    def begin(self) -> None:
        """Notes that no rank has begun the call."""
        self.positions[:, ITERATION] = NOT_BEGUN
        self.first = self.after = 0

    def done(self, at_work: set[int]) -> list[int]:
        """Returns how many iterations each rank has done, given the ranks that have not answered
        the round.
        """
        done = []
        for rank, iteration in enumerate(self.positions[:, ITERATION].tolist()):
            done.append(max(self.first, iteration) if rank in at_work else self.after)
        return done


@final
class SequencePlan:
    """A sequence that the ranks have, for arguments of some layout.

    Attributes:
        world: the world.
        installed: what was recorded.
        results: what the body returns.
        board: where ranks show where they are.
        info: description for messages.
        forgotten: whether ranks drop it.
        used: number of the world's call that has used it last.
    """

    def __init__(
        self, world: Engine, installed: InstalledSequence, results: SequenceResults
    ) -> None:
        self.world, self.installed, self.results = world, installed, results
        program = installed.program
        self.board = Board(installed, world.world_size)
        self.info = CallInfo(program.name, where=self.board)
        # runs the parts one by one; None if the ranks have the whole
        self._round_loop: RoundLoop | None = None
        self._number = program.number
        if world.spans_machines:
            self._round_loop = RoundLoop(
                world, program, self.board.positions, self.info, self.learn
            )
            # the round of a submitted call, whose work is done before
            nothing = Transfer(next_number(), up=False, arrays=())
            self._number = nothing.number
            world.command(Install(None, nothing), info=CallInfo(program.name))
        else:
            world.attach([installed.board])
            world.command(Install(None, program), info=CallInfo(program.name))
        layout = struct.Struct("<" + HEAD + program.scalars)
        self._pack = partial(layout.pack_into, world.ranks.values.data, 0)
        self._ring: Segment | None = None  # of kept results
        self._entries = self._period = 0  # of results that a round keeps
        self.forgotten = False
        self.used = 0
        # functions without ops that have returned something new
        self._unchecked: dict[int, FunctionPlan] = {}

    @property
    def program(self) -> SequenceProgram:
        """The sequence, as ranks have it."""
        return self.installed.program

    def schedule(self, times: int, every: int | None, *, is_judged: bool) -> Schedule:
        """Returns the rounds of a call; `is_judged` is whether it has `until=`."""
        if every is None and not is_judged:
            return LAST_ONLY
        nbytes = self.program.entry_bytes * self.world.world_size
        large = self.results.first_large()
        judge = "" if not is_judged else RANKS if self.program.ends else SCRIPT
        return schedule(times, every, judge=judge, large=large, nbytes=nbytes)

    @property
    def is_current(self) -> bool:
        """Whether variables still have the memory, and functions and arrays the values, of the
        ranks' programs.
        """
        installed = self.installed
        for function, number in installed.functions.items():
            if function._number_now(self.world) != number:  # noqa: SLF001  # shared with this package
                return False
        return installed.variables.are_current and installed.arrays.are_current

    def renew_arrays(self) -> list[tuple[Array, Data]]:
        """Copies NumPy arrays that are no arguments for the next call; returns those that get
        what ranks write.
        """
        return self.installed.arrays.renew(self.installed.written)

    # ---- rounds

    def run(self, iterations: Round, scalars: AnySequence[Any]) -> Array | None:
        """Runs a round; returns the ranks' results that it keeps, uint8, shape
        (entries, W, bytes).
        """
        self._send(iterations, scalars)
        try:
            if self._round_loop is None:
                self.world.run(self._number, self.info, self.learn)
            else:
                self._round_loop.run(self._kept())
            self.installed.variables.note_iterations(iterations.first, self._end_round())
        # Ctrl-C also after the round: swapped variables may not be swapped here yet
        except BaseException as error:
            self.note_failure(error)
            raise
        if self._unchecked:
            self._check_returned()
        return self._kept() if self._entries else None

    def launch(
        self,
        flight: Flight,
        iterations: Round,
        scalars: AnySequence[Any],
    ) -> None:
        """Starts a round as `run` does, without waiting for its end; `finish` follows then."""
        self._send(iterations, scalars)
        if self._round_loop is not None:
            try:
                self._round_loop.run(self._kept())
            except SynkError as error:
                flight.fail(error)  # raised by `result()` of the future
                return
        self.world.launch(flight, self._number)

    def finish(self) -> Array | None:
        """Returns what `run` does, for a round that `launch` has started, and that has ended."""
        self.installed.variables.note_iterations(self.board.first, self._end_round())
        self._check_returned()
        return self._kept()

    def note_failure(self, error: BaseException) -> None:
        """Notes the variables that have no values any more, as a round has failed."""
        self.installed.variables.note_failure(self.world, error)

    def _send(
        self,
        iterations: Round,
        scalars: AnySequence[Any],
    ) -> None:
        """Writes the values of a round to shared memory."""
        first, count, times = iterations.first, iterations.count, iterations.times
        self._period = iterations.period
        entries = self._entries = count // self._period if iterations.keeps else 0
        ring = self._kept_segment(entries).id if entries else -1
        board, leases = self.board, self.installed.leases
        board.memory[:] = board.clear
        board.times, board.first, board.after = times, first, first + count
        if leases:
            scalars = [*scalars, *[each.choose() for each in leases]]
        self._pack(first, count, times, self._period, ring, *scalars)
        tally = self.world.tally
        tally.calls += 1
        self.used = tally.calls

    def _end_round(self) -> int:
        """Returns how many iterations a round has had."""
        board = self.board
        if self.program.ends and self._period:
            board.after = int(board.positions[0, ITERATION]) + 1
            if self._entries:
                self._entries = (board.after - board.first) // self._period
        return board.after - board.first

    def _check_returned(self) -> None:
        """Raises `ReductionError` if a function without ops has returned something, which nothing
        says how to combine.
        """
        while self._unchecked:
            self._unchecked.popitem()[1].collect(None)

    def learn(self, news: AnySequence[RankNews]) -> None:
        """Processes the shapes of results that are new."""
        for rank, item, descriptors in news:
            assert isinstance(item, ReturnedInSequence)  # the world has raised failures already
            rest = iter(descriptors)
            for number, returned in item.returned:
                files = []
                if returned.segment is not None:
                    files.append(next(rest))
                plan = self.installed.plans[number]
                plan.learn([(rank, returned, files)])
                if isinstance(plan, FunctionPlan) and not plan.has_ops:
                    self._unchecked[number] = plan

    # ---- kept results

    def most_entries(self, period: int) -> int:
        """Returns how many iterations of a period a round may keep whose results are collected one
        by one; 1 if ranks cannot keep them.

        Of what functions return that is new, a round brings no more than readers remember.
        """
        numbers = {part.number for part in self.program.parts if isinstance(part, Part)}
        if self.world.spans_machines or not self.results.can_be_kept(numbers):
            return 1
        nbytes = max(self.program.entry_bytes * self.world.world_size, 1)
        return min(KEPT_BYTES // nbytes, SPECS_KEPT // period)

    def pieces(self, memory: Array, first: int, period: int) -> list[Columns]:
        """Returns the results of kept iterations: of all, or of each as if its round had ended.

        Args:
            memory: the ranks' results, as `run` returns them.
            first: number of the first iteration of the round.
            period: of kept iterations.
        """
        columns = self.results.together(memory)
        if columns is not None:
            return [columns]
        pieces, results = [], self.world.ranks.results[:, : self.program.entry_bytes]
        for entry, kept in enumerate(memory, 1):
            results[...] = kept
            pieces.append(self.results.single(self.results.collect(first + entry * period - 1)))
        return pieces

    def _kept_segment(self, entries: int) -> Segment:
        nbytes = entries * self.world.world_size * self.program.entry_bytes
        if self._ring is None or self._ring.size < nbytes:
            self._ring = Segment(nbytes)
        self.world.attach([self._ring])
        return self._ring

    def _kept(self) -> Array | None:
        """Returns the memory of the round's kept iterations; None if none is kept."""
        if not self._entries:
            return None
        assert self._ring is not None  # `_send` has made it
        shape = self._entries, self.world.world_size, self.program.entry_bytes
        memory: Array = self._ring.array(np.uint8, shape)
        return memory

    def forget(self) -> None:
        """Makes the ranks drop the sequence and its calls."""
        self.forgotten = True
        for plan in self.installed.plans.values():
            plan.forget()
        for number in (*self.installed.programs, self._number):
            self.world.life.own_programs.pop(number, None)
            self.world.forget("program", number)


@final
class CallRounds:
    """The rounds of one call, one after another, and its results.

    Args:
        plan: the sequence.
        scalars: numbers of the call.
        times: number of iterations, at least 1.
        schedule: when rounds end.
        judge: returns whether the loop ends, given the results of a kept iteration; None if ranks
            judge, or nobody.
    """

    def __init__(
        self,
        plan: SequencePlan,
        scalars: AnySequence[Any],
        times: int,
        schedule: Schedule,
        judge: Callable[[Any], bool] | None = None,
    ) -> None:
        self._plan, self._scalars, self._times = plan, scalars, times
        self._schedule, self._judge = schedule, judge
        # where rounds end at kept iterations, their results, and those of the last one
        self._pieces: list[Columns] = []
        self._last: Any = None
        self._are_many = bool(schedule.round_ends)
        self._round = self._round_from(0)

    def run(self, show: Callable[[], None]) -> Any:
        """Makes the rounds, and returns the results; calls `show` after each round."""
        while True:
            memory = self._plan.run(self._round, self._scalars)
            show()
            if not self._next_round(memory):
                return self._results(memory)

    def launch(self, flight: Flight) -> None:
        """Starts a round, without waiting for its end."""
        flight.has_more = self._round.first + self._round.count < self._times
        self._plan.launch(flight, self._round, self._scalars)

    def land(self, flight: Flight) -> Any:
        """Returns the results after the last round that was launched; after another, `GOES_ON`
        with the next one launched.
        """
        memory = self._plan.finish()
        if self._next_round(memory):
            self.launch(flight)
            return GOES_ON
        return self._results(memory)

    def _round_from(self, first: int) -> Round:
        """Returns the next round: all iterations, or up to the next kept one, or of several where
        ranks keep their results.
        """
        times, period, left = self._times, self._schedule.period, self._times - first
        if not self._are_many:
            return Round(first, left, times, period, keeps=self._schedule.is_stacked)
        entries = 1
        if self._judge is None:
            entries = min(self._plan.most_entries(period), left // period)
        if entries > 1:
            return Round(first, entries * period, times, period, keeps=True)
        judged = period if self._plan.program.ends else NEVER
        return Round(first, min(period, left), times, judged)

    def _next_round(self, memory: Array | None) -> bool:
        """Keeps the results of a round that has ended; returns whether there is another."""
        if not self._are_many:
            return False
        first, count, done = self._round.first, self._round.count, self._plan.board.after
        results, is_over = self._plan.results, self._plan.board.is_over
        if memory is not None:
            self._pieces += self._plan.pieces(memory, first, self._round.period)
        elif count == self._schedule.period:
            self._last = results.collect(done - 1)
            if self._schedule.is_stacked:
                self._pieces.append(results.single(self._last))
            if self._judge is not None:
                is_over = self._judge(self._last)
        self._round = self._round_from(done)
        return done < self._times and not is_over

    def _results(self, memory: Array | None) -> Any:
        results, schedule = self._plan.results, self._schedule
        if self._are_many:
            return results.joined(self._pieces) if schedule.is_stacked else self._last
        if memory is not None:
            return results.joined(self._plan.pieces(memory, 0, schedule.period))
        return results.collect(self._plan.board.after - 1)
