"""Routine for sequences: repeats calls and collectives on a rank, without the coordinator.

    values ──> for each iteration: for each part: wait for other ranks → formulas → run its routine → show the count

On cores the parts become a table, which compiled code runs (`sequence_table.py`). On other devices
the loop is Python's: parts that need no host between them are recorded together
(`sequence_stretches.py`), and the others are run by their own routines, whose values come from
templates in which formulas are filled in. If a part fails, the rank sets a word of the board, on
which the others leave their waits, and the world remains usable.
"""  # noqa: E501

import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NoReturn, final

import numpy as np

from synknumba._device import fold_kernel
from synknumba._formulas import Formula
from synknumba._rank import spans
from synknumba._rank.collective_routine import StagedRoutine
from synknumba._rank.routine import Place, Repeated, Routine
from synknumba._rank.sequence_numbers import Numbers
from synknumba._rank.sequence_stretches import Stretch, Stretches, wait_of
from synknumba._rank.sequence_table import (
    NAP_SECONDS,
    Action,
    PeerFailed,
    SequenceTable,
    runs_tables,
)
from synknumba._types import Array
from synknumba._wire import sequence, sequence_waits
from synknumba._wire.messages import News, Returned, ReturnedInSequence
from synknumba._wire.relaunch import Again, Relaunch, Scalar, ScalarPacking, Scalars
from synknumba._wire.sequence import (
    CARRIED,
    HEAD,
    Loop,
    Part,
    SequenceProgram,
    Shared,
    Wait,
)

TRIALS = 3  # rounds in which functions have their chance to be recorded
ABORT_PERIOD = (
    64  # iterations in Python after which a rank that waits for no other sees that one has failed
)


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
        head = struct.Struct("<" + HEAD)
        self._numbers = Numbers(
            sequence.depth(program.parts), program.scalars, program.slots, program.lines
        )
        self._unpack, self._packed, self._head = (
            head.unpack,
            place.control.values.data[: head.size],
            head.size,
        )
        scalars = place.control.values[head.size :][: self._numbers.scalars.nbytes]
        self._round = place.control.values.data[: head.size + scalars.nbytes]  # all values
        self._again_for: bytes | None = (
            None  # those of the last round, if compiled code may repeat it
        )
        self._seen_for: bytes | None = None  # those of the round before, by Python
        self._repeated: tuple[bytes, Relaunch, Again] | None = (
            None  # of a table: values of a round, and what repeats it
        )
        # of a round
        self._scalars: Array | None = scalars.view(np.int64) if program.scalars else None
        self._carried = sorted({index for turn in program.carried for index, _ in turn})
        # how often each shared result has been combined
        self._turns: Array = np.zeros(program.slots, np.int64)
        self._uses_table = runs_tables(place.device)
        self._table: SequenceTable | None = None
        self._stretches = Stretches(place, self._numbers, program.scalars, routines, self._seen)
        self._whole: Stretch | None = (
            None  # all parts of an iteration, where no host is needed between them
        )
        self._actions: list[list[Action]] | None = None  # of the parts of each iteration, in Python
        self._staged: list[StagedRoutine] = []  # of the parts
        self._count = 0  # parts finished in this call
        self._news: list[tuple[int, Returned]] = []
        self._descriptors: list[int] = []
        self._running: Part | None = None
        # Where functions are recorded: the parts with waits for those that fail, until all ranks'
        # functions are recorded.
        self._parts = program.parts
        self._trials = TRIALS if program.free and not self._uses_table else 0

    @property
    def running(self) -> Part | None:
        """The part that is run, for messages."""
        return self._running if self._table is None else self._table.running

    @property
    def again(self) -> Again | None:
        if self._again_for is None:
            return None
        packed = self._again_for
        if self._table is not None:
            return self._again_by_table(self._table, packed)
        if self._whole is None:
            return None
        return self._whole.again(
            self.program.number,
            self.place.control.values,
            packed,
            self._unpack(packed[: self._head])[0],
        )

    def _again_by_table(self, table: SequenceTable, packed: bytes) -> Again | None:
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
            first, count, times, *_ = self._unpack(packed[: self._head])
            # carried numbers, with which the next round of the call goes on
            reached = self._numbers.scalars.copy()
            self._begin_turns()
            self._take_scalars(first)
            state = [
                self._turns,
                self._numbers.scalars,
                *(routine.turn for routine in self._staged),
            ]
            repetition = table.repetition(first, count, state)
            self._numbers.scalars[:] = reached
            if repetition is None:
                return None
            launch, firsts = repetition
            packing = ScalarPacking(HEAD, 8, {0: 0}) if alike else ScalarPacking()
            resume = partial(self._resume, table, times)
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

    def _resume(self, table: SequenceTable, times: int) -> None:
        """Goes on with a round that compiled code has begun."""
        try:
            table.resume()
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
        self._stretches.close()
        self._whole = None
        self._actions = None
        self._table = None

    def __call__(self) -> News | None:
        """Runs the iterations of one round."""
        first, count, times, period, segment = self._unpack(self._packed)
        self._take_scalars(first)
        self._news, self._descriptors, self._again_for, self._count = [], [], None, 0
        history = self._kept(segment, count // period) if period else None
        self._running = None
        try:
            if self._actions is None and self._table is None:
                self._numbers.steps[0] = first
                self._prepare()
            self._begin_turns()
            if self._table is not None:
                self._table.run(first, count, period, history)
                if not (period or self._news or (first and self._carried)):
                    self._again_for = bytes(self._round)
            else:
                done = self._try_out(first, count, period, history) if self._trials else 0
                self._numbers.steps[0] = first + done
                self._stretches.begin()
                if count > done:
                    run = self._run if self._whole is None else self._queue
                    run(first, range(done, count), period, history)
                if count == 1 and not period:
                    self._again_for = bytes(self._round)
        except PeerFailed:
            self.place.device.synchronize()  # parts that were queued
        except BaseException as error:  # noqa: BLE001  # raised again
            self._fail(error, times)
        return ReturnedInSequence(tuple(self._news)) if self._news else None

    def _take_scalars(self, first: int) -> None:
        """Takes the scalars of a round; those that are carried keep what they have got in the
        round before.
        """
        if self._scalars is not None:
            carried = self._numbers.scalars[self._carried] if self._carried and first else None
            self._numbers.scalars[:] = self._scalars
            if carried is not None:
                self._numbers.scalars[self._carried] = carried

    def _prepare(self) -> None:
        self._board = self.place.host(self.program.board)
        self._address = self._board.ctypes.data
        used = [self._routines[number] for number in sorted(_numbers(self._parts))]
        self._staged = [routine for routine in used if isinstance(routine, StagedRoutine)]
        if self._uses_table:
            args = self.program, self.place, self._numbers, self._board, self._turns, self._routines
            self._table = SequenceTable(*args, self._doing)
            self._table.build()
        else:
            at = sequence.position_word(self.place.world_size, self.place.rank)
            # faster to index than the array
            self._position = self._board[at : at + sequence.LINE].data
            self._abort = self._board[sequence.abort_word(self.place.world_size) :].data
            ends = (*self.program.starts[1:], len(self._parts))
            turns = [
                self._parts[start:end] for start, end in zip(self.program.starts, ends, strict=True)
            ]
            self._whole = None if self._carried else self._stretches.whole(turns, 0)
            self._actions = (
                []
                if self._whole
                else [
                    self._actions_of(*starts_of_turn)
                    for starts_of_turn in zip(turns, self.program.starts, strict=True)
                ]
            )

    def _try_out(self, first: int, count: int, period: int, history: Array | None) -> int:
        """Runs some iterations one by one, which records functions; then goes over to parts without
        waits for these.

        All ranks do, or none: they wait for each other's. Returns the number of iterations that
        were run.
        """
        tried = min(count, len(self.program.starts))
        self._numbers.steps[0] = first
        self._stretches.begin()
        self._run(first, range(tried), period, history)
        self._trials -= 1
        world_size, rank = self.place.world_size, self.place.rank
        ready, after = (
            sequence.ready_word(world_size, rank),
            sequence.ready_word(world_size, world_size),
        )
        self._board[ready] = self._stretches.are_recorded(self.program.parts)
        self._meet()
        if self._board[after - world_size : after].all():
            self._trials = 0
            self._stretches.close()
            self._parts = self.program.free
            self._prepare()
        return tried

    def _begin_turns(self) -> None:
        """Lets all ranks begin a round with the same places on their stages, also where a
        failure has ended the last one.
        """
        if self.program.slots:
            self._turns.fill(0)
        for routine in self._staged:
            routine.turn[0] = 0

    def _run(self, first: int, iterations: range, period: int, history: Array | None) -> None:
        """Runs some of the iterations from `first` on in Python."""
        assert self._actions is not None  # prepared
        for iteration in iterations:
            if iteration % ABORT_PERIOD == ABORT_PERIOD - 1 and self._abort[0]:
                raise PeerFailed
            self._position[sequence.ITERATION] = self._numbers.steps[0] = first + iteration
            turn = (first + iteration) % len(self._actions)
            for action in self._actions[turn]:
                action()
            if self._carried:
                self._carry(self.program.carried[turn])
            if history is not None and (iteration + 1) % period == 0:
                history[iteration // period] = self._results()

    def _queue(self, first: int, iterations: range, period: int, history: Array | None) -> None:
        """Queues some of the iterations from `first` on on the device, and waits for it where
        results are kept.
        """
        assert self._whole is not None  # prepared
        self._position[sequence.AT] = -1
        at, end = iterations.start, iterations.stop
        while at < end:
            after = min(at - at % period + period, end) if period else end
            run = partial(self._whole.run, first + at, after - at, goes_on=after < end)
            with self._in(self._whole):
                if spans.active is None:
                    run()
                else:
                    spans.active.run_one(run, f"{after - at} iterations", at=first + at)
            if history is not None and after % period == 0:
                history[after // period - 1] = self._results()
            at = after

    @contextmanager
    def _in(self, stretch: Stretch) -> Iterator[None]:
        """Context in which the part that runs is that whose numbers are computed, if that fails."""
        try:
            yield
        except (OverflowError, IndexError):
            self._running = stretch.running
            raise

    def _seen(self, depth: int, iteration: int) -> None:
        """Shows how far a stretch is in a loop; leaves it if another rank has failed."""
        word = sequence.inner_word(depth) + 1 if depth else sequence.ITERATION
        self._shown(word)[word] = iteration
        if self._abort[0]:
            raise PeerFailed

    def _results(self) -> Array:
        return self.place.control.results[self.place.rank, : self.program.entry_bytes]

    def _carry(self, carried: Sequence[tuple[int, Formula]]) -> None:
        """Gives scalars their values for the next iteration, at the end of one."""
        self._running = None
        scalars = self.program.scalars
        updates = [
            (index, self._numbers.packed(scalars[index], formula, CARRIED))
            for index, formula in carried
        ]
        for index, packed in updates:
            self._numbers.scalars[index] = np.frombuffer(packed, np.int64)[0]

    def descriptors(self, news: News) -> list[int]:
        return self._descriptors

    def _kept(self, segment: int, entries: int) -> Array:
        """Returns the memory for this rank's kept results, one line for each entry."""
        shape = entries, self.place.world_size, self.program.entry_bytes
        memory: Array = self.place.segments[segment].array(np.uint8, shape)
        return memory[:, self.place.rank]

    def _fail(self, error: BaseException, times: int) -> NoReturn:
        """Lets the other ranks go, and raises the error with the place where it happened."""
        self._board[sequence.abort_word(self.place.world_size)] = 1
        part = self.running
        indices = () if part is None else sequence.path_to(part, self._parts)
        path = list(zip(self._numbers.steps.tolist(), indices or (-1,), strict=False))
        error.add_note(sequence.place_told(self.program, times, path))
        raise error

    # ---- parts

    def _actions_of(
        self, parts: Sequence[Part | Loop], number: int, word: int = sequence.AT, depth: int = 0
    ) -> list[Action]:
        """Returns callables that run parts; meanwhile a word of the rank's position shows which,
        from `number` on.
        """
        actions, at = [], 0
        for group, stretch in self._stretches.groups(parts, depth):
            if stretch is None:
                actions.append(self._action(group[0], word, number + at))
            else:
                actions.append(self._action_of(stretch, group, word, number + at, depth))
            at += len(group)
        return actions

    def _action_of(
        self, stretch: Stretch, group: Sequence[Part | Loop], word: int, number: int, depth: int
    ) -> Action:
        """Returns a callable that runs the parts of a stretch once, and waits for them."""
        position, wait, last = self._shown(word), wait_of(group), group[-1]
        assert isinstance(last, Part)  # loops are in no stretch
        names = ", ".join(part.name for part in group)  # for traces

        def action() -> None:
            position[word] = number
            if wait is not None:
                self._await(wait)
            step = int(self._numbers.steps[depth])
            with self._in(stretch):
                if spans.active is None:
                    stretch.run(step, 1)
                else:
                    spans.active.run_one(partial(stretch.run, step, 1), names, at=step)
            self._count += len(group)
            if last.shows:
                sequence_waits.show_count(self._address, self.place.rank, self._count)

        return action

    def _action(self, part: Part | Loop, word: int, number: int) -> Action:
        """Returns a callable that runs one part; meanwhile a word of the rank's position, if
        there is one, shows which.
        """
        position = self._shown(word)
        if isinstance(part, Loop):
            inner = sequence.inner_word(part.depth)
            stretch = self._stretches.whole([part.parts], part.depth)
            actions = [] if stretch else self._actions_of(part.parts, 1, inner, part.depth)

            def loop() -> None:
                position[word] = number
                if part.wait is not None:
                    self._await(part.wait)
                self._loop(part, actions, stretch, inner)
                if part.shows:
                    sequence_waits.show_count(self._address, self.place.rank, self._count)

            return loop
        do = self._doing(part)

        def action() -> None:
            self._running = part
            position[word] = number
            if part.wait is not None:
                self._await(part.wait)
            if spans.active is None:
                do()
            else:
                spans.active.run_one(do, part.name, at=int(self._numbers.steps[0]))
            self._count += 1
            if part.shows:
                sequence_waits.show_count(self._address, self.place.rank, self._count)

        return action

    def _shown(self, word: int) -> memoryview:
        """Returns the words of the rank's position that others read; for deeper loops than it
        has, unused ones.
        """
        return self._position if word < sequence.LINE else np.zeros(word + 2, np.int64).data

    def _loop(
        self, loop: Loop, actions: Sequence[Action], stretch: Stretch | None, word: int
    ) -> None:
        """Runs an inner sequence; `word` shows its parts meanwhile. Where ranks do not meet, its
        parts do not count.
        """
        times, before = self._numbers.count(loop.times), self._count
        position = self._shown(word)
        if loop.meets:
            self._meet()
        if stretch is not None and times > 0:
            with self._in(stretch):
                stretch.run(0, times)
            self._count += times * len(loop.parts)
        for step in range(times if stretch is None else 0):
            self._numbers.steps[loop.depth] = position[word + 1] = step
            for action in actions:
                action()
        position[word] = 0
        if loop.meets:
            self._meet()
        else:
            self._count = before
        self._count += 1

    def _meet(self) -> None:
        """Waits until all ranks are here."""
        sequence_waits.show_count(self._address, self.place.rank, self._count)
        self._until(self._count, nearby=False)

    def _await(self, wait: Wait) -> None:
        level = self._count - wait.back + 1
        if level > 0:
            self._until(level, nearby=wait.nearby)

    def _until(self, level: int, *, nearby: bool) -> None:
        place, patience = self.place, self.place.control.patience
        while True:
            code = sequence_waits.await_counts(
                self._address,
                place.world_size,
                place.rank,
                level,
                nearby,
                patience.pauses,
                patience.rank,
            )
            if code == sequence_waits.REACHED:
                return
            if code == sequence_waits.GIVEN_UP:
                raise PeerFailed
            time.sleep(NAP_SECONDS)

    def _doing(self, part: Part) -> Action:
        if part.puts is not None:
            return partial(self._put, part.puts)
        if part.combines is not None:
            return partial(self._combine, part.combines)
        routine = self._routines[part.number]
        if not isinstance(routine, Routine):
            return routine  # type: ignore[return-value]  # collectives and transfers have no news
        values = bytearray(part.values)

        def call() -> None:
            self._numbers.fill(values, part.name, part.formulas)
            news = routine.call(bytes(values))
            if isinstance(news, Returned):
                self._news.append((part.number, news))
                self._descriptors += routine.descriptors(news)

        return call

    # ---- numbers that ranks share

    def _stage(self, shared: Shared, turn: int, rank: int) -> Array:
        at = sequence.stage_word(self.place.world_size, shared.slot, turn, rank)
        memory: Array = self._board[at : at + sequence.LINE].view(shared.dtype)
        return memory[:1]

    def _put(self, shared: Shared) -> None:
        nbytes, rank = np.dtype(shared.dtype).itemsize, self.place.rank
        mine = self.place.control.results[rank, shared.offset : shared.offset + nbytes].view(
            shared.dtype
        )
        self._stage(shared, self._turns[shared.slot] % 2, rank)[:] = mine

    def _combine(self, shared: Shared) -> None:
        turn = self._turns[shared.slot] % 2
        parts = np.array(
            [self._stage(shared, turn, rank)[0] for rank in range(self.place.world_size)]
        )
        self._turns[shared.slot] += 1
        self._numbers.set_result(
            shared.slot, fold_kernel.combined(shared.op, parts, shared.weights).item()
        )


def _no_change() -> None:
    """Does nothing after compiled code has changed the first iteration of a round: Python keeps
    no copy of it.
    """


def _numbers(parts: Sequence[Part | Loop]) -> set[int]:
    """Returns the numbers of the programs of all parts."""
    numbers = {part.number for part in parts if isinstance(part, Part) and part.number >= 0}
    return numbers.union(*(_numbers(part.parts) for part in parts if isinstance(part, Loop)))
