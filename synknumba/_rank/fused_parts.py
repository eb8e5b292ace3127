"""Fused parts of a sequence: consecutive parts that only put work on the device's stream, so that
nothing waits between them.

    first iteration one by one ──> recordings of 64, 8 and 1 iterations, queued ──> one of the last, with copies of its results

Each part has steps, and arguments of launches, of its own. Numbers that change from iteration to
iteration are written into a recording before it is queued. A few recordings at most are under way,
so that the rank knows where it is. The last iteration is recorded as a call is: the host waits for
its results, and so for all iterations.
"""  # noqa: E501

import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from synknumba._device import Device, Recording, ResultRing, Step
from synknumba._formulas import Formula, fold
from synknumba._rank.recordable_parts import (
    Layout,
    Layouts,
    PartSteps,
    ScheduledPart,
)
from synknumba._rank.replay import Repetition
from synknumba._rank.scalar_update import ScalarUpdate
from synknumba._rank.sequence_context import SequenceContext
from synknumba._rank.sequence_rows import PythonOnlyError
from synknumba._types import Array
from synknumba._wire.relaunch import Again
from synknumba._wire.sequence import Formulas, Loop, Part, Parts, Wait

# recordings are of so many iterations, of as many as are often asked for, or of one
SIZES = 64, 8
MOST_STEPS = 5000  # in a recording
WORTH = 4  # a recording of several iterations is made for so many launches
UNDER_WAY = 2  # recordings that are queued
MOST_SECONDS = 0.02  # that a recording of several iterations takes


@dataclass(slots=True)
class _Written:
    """The numbers of one part in one iteration of a recording."""

    part: ScheduledPart  # its offset is from the first iteration of the recording
    first: int  # position of its steps in the recording
    after: int
    packed: bytes  # the values that they have

    def depends_on_step(self, depth: int) -> bool:
        """Whether its numbers depend on the step of a loop."""
        return any(_has_step(formula, depth) for _, _, formula in self.part.recordable.formulas)


@final
class _Arguments:
    """Writes the numbers of iterations into the arguments of launches.

    Args:
        context: what the parts refer to.
        depth: of the loop whose step counts the iterations.
    """

    def __init__(self, context: SequenceContext, depth: int) -> None:
        self.context, self.depth = context, depth
        self._numbers, self._progress = context.numbers, context.progress

    def write(self, part: ScheduledPart, step: int) -> bytes:
        """Writes the numbers of a part in the iteration `step`; returns them, packed."""
        self._numbers.steps[self.depth] = step + part.iteration_offset
        self._progress.part = part.recordable.part
        return part.recordable.write(self._numbers)

    def write_all(self, layout: Layout, step: int) -> None:
        """Writes the numbers of an iteration."""
        for part in layout:
            self.write(part, step)
        self.end(step)

    def end(self, step: int) -> None:
        """Called when numbers are written."""
        self._numbers.steps[self.depth] = step
        self._progress.part = None


@final
class _RecordedIterations:
    """A recording of several iterations.

    Args:
        arguments: writes the numbers.
        recording: the recording.
        count: number of iterations.
        written: the numbers that it has.
    """

    def __init__(
        self, arguments: _Arguments, recording: Recording, count: int, written: Sequence[_Written]
    ) -> None:
        self.recording, self.count = recording, count
        self._numbers, self._depth = arguments.context.numbers, arguments.depth
        self._arguments, self._written = arguments, written
        self._key: object = None  # of all numbers that it has but the step
        by_step = [place for place in written if place.depends_on_step(arguments.depth)]
        # gathers whose line depends on the step must find it: first iteration that has one too few
        self._before = min(map(_without_line, by_step), default=math.inf)
        # writes what depends on the step; None if Python does
        self._update = _scalar_update(arguments, recording, by_step)

    def begin_at(self, step: int) -> bool:
        """Writes the numbers of the iterations from `step` on; returns false if that is not
        possible.
        """
        key = self._numbers.all_but(self._depth)
        is_known = self._key == key and step < self._before
        if self._update is not None and is_known and self._update(step):
            self._arguments.end(step)
            return True
        self._key = None
        for place in self._written:
            packed = self._arguments.write(place.part, step)
            if packed == place.packed and self._update is None:
                continue
            place.packed = b""  # unknown until it is written
            if not self.recording.renew(place.first, place.after):
                return False
            place.packed = packed
        self._arguments.end(step)
        self._key = key
        return True


def _without_line(place: _Written) -> float:
    """Returns the first iteration of a recording at which a gather has no line any more."""
    lines = place.part.recordable.lines
    return math.inf if lines is None else lines - place.part.iteration_offset


def _scalar_update(
    arguments: _Arguments, recording: Recording, by_step: Sequence[_Written]
) -> ScalarUpdate | None:
    """Returns the update of the numbers that depend on the step; None if compiled code cannot
    write them.
    """
    context, depth, launches = arguments.context, arguments.depth, []
    for place in by_step:
        recordable = place.part.recordable
        if recordable.lines is not None and not _is_step(recordable.formulas, depth):
            return None  # a line that may not exist
        if recordable.find_places is None:
            continue
        scalars = recording.scalars(place.first, place.after)
        if scalars is None:
            return None
        offset = place.part.iteration_offset
        launches.append((offset, recordable.formulas, recordable.find_places, scalars))
    try:
        return ScalarUpdate(context.numbers, depth, launches)
    except PythonOnlyError:
        return None


@final
class _Queue:
    """Iterations that are queued on the device.

    Args:
        device: the device.
        report: called with the number of the first iteration not known to be done.
    """

    def __init__(self, device: Device, report: Callable[[int], None]) -> None:
        self._device, self._report = device, report
        # whether each is done, its iterations, the number of the one after
        self._under_way: deque[tuple[Callable[[], bool], int, int]] = deque()
        self.total = 0  # iterations, in all runs
        self.seconds = 0.0  # of an iteration
        self._ended = 0.0  # when one was seen to have ended

    def begin(self) -> None:
        """Forgets what was waited for otherwise."""
        self._under_way.clear()
        self._ended = time.perf_counter()

    def add(self, count: int, after: int) -> None:
        """Notes that iterations were queued; waits if too many are under way."""
        self.total += count
        self._under_way.append((self._device.marker(), count, after))
        while len(self._under_way) > UNDER_WAY:
            self._await_oldest()

    def _await_oldest(self) -> None:
        is_done, count, after = self._under_way[0]
        self._report(after - count)
        while not is_done():
            self._report(after - count)
        self._under_way.popleft()
        now = time.perf_counter()
        self.seconds, self._ended = (now - self._ended) / count, now


@final
class _Recordings:
    """The recordings of several iterations, and of one.

    Args:
        arguments: writes the numbers.
        turns: the iterations.
        queue: tells how many have run, and how long one takes.
    """

    def __init__(self, arguments: _Arguments, turns: Sequence[Layout], queue: _Queue) -> None:
        self._arguments, self._turns, self._queue = arguments, turns, queue
        layouts = itertools.chain.from_iterable(turns)
        self._length = sum(len(scheduled.recordable.steps) for scheduled in layouts)
        # whether the steps of each turn were run, which compiles kernels
        self._warm = [False] * len(turns)
        # by turn and count; None if there cannot be one
        self._by_count: dict[tuple[int, int], _RecordedIterations | None] = {}
        # how often so few iterations were left, such as those of a period
        self._limits = Counter[int]()

    def are_few(self, count: int) -> bool:
        """Whether the steps of so many iterations are few enough for a recording."""
        return count * self._length <= MOST_STEPS * len(self._turns)

    def note_run(self, turn: int) -> None:
        """Notes that the steps of a turn were run one by one."""
        self._warm[turn] = True

    def find(self, turn: int, limit: int, step: int) -> _RecordedIterations | None:
        """Returns a recording of at most so many iterations, made if need be; None if the next
        one runs one by one.
        """
        if not self._warm[turn]:
            return None
        for count in self._counts(turn, limit):
            if (turn, count) not in self._by_count:
                self._by_count[turn, count] = self._record(turn, count, step)
            recorded = self._by_count[turn, count]
            if recorded is not None:
                return recorded
        return None

    def _counts(self, turn: int, limit: int) -> Iterator[int]:
        """Yields counts of iterations that a recording may have, largest first."""
        turns, sizes = len(self._turns), list[int]()
        if all(self._warm):
            sizes = [size * turns for size in SIZES]
            if limit < sizes[0]:
                self._limits[limit] += 1
                sizes.append(limit)
        for count in sorted(sizes, reverse=True):
            is_long = count * self._queue.seconds > MOST_SECONDS
            if count > limit or is_long or not self.are_few(count):
                continue
            is_worth = self._queue.total + limit >= WORTH * count
            if count == limit:
                is_worth = self._limits[limit] >= WORTH
            if (turn, count) in self._by_count or is_worth:
                yield count
        yield 1

    def _record(self, turn: int, count: int, step: int) -> _RecordedIterations | None:
        written: list[_Written] = []
        device = self._arguments.context.place.device
        recording = device.record_queued(self._steps(turn, count, step, written))
        if recording is None:
            return None
        return _RecordedIterations(self._arguments, recording, count, written)

    def _steps(self, turn: int, count: int, step: int, written: list[_Written]) -> Iterator[Step]:
        """Yields the steps of several iterations, and notes the numbers that they have."""
        position = 0
        for iteration in range(count):
            for scheduled in self._turns[(turn + iteration) % len(self._turns)]:
                recordable = scheduled.recordable
                packed = self._arguments.write(scheduled, step + iteration)
                after = position + len(recordable.steps)
                if recordable.formulas:
                    offset = iteration + scheduled.iteration_offset
                    part = ScheduledPart(recordable, offset)
                    written.append(_Written(part, position, after, packed))
                yield from recordable.steps
                position = after

    def give_up(self, recorded: _RecordedIterations) -> None:
        """Frees a recording, after which its iterations run otherwise."""
        recorded.recording.close()
        for key, candidate in self._by_count.items():
            if candidate is recorded:
                self._by_count[key] = None

    def close(self) -> None:
        """Frees the recordings."""
        for recorded in self._by_count.values():
            if recorded is not None:
                recorded.recording.close()
        self._by_count.clear()


@final
class FusedParts:
    """Consecutive parts that a rank repeats without waiting in between.

    Args:
        context: what the parts refer to.
        depth: of the loop whose step counts the iterations.
        layouts: the iterations.
    """

    def __init__(self, context: SequenceContext, depth: int, layouts: Layouts) -> None:
        device = context.place.device
        self._arguments = _Arguments(context, depth)
        self._prefetch = layouts.prefetch
        # The iterations of which several are recorded together, and those after which the host
        # waits: alone, or with rows that were gathered ahead, without and with a gather for the one
        # after.
        self._turns, self._ends = layouts.turns, list[_FinalIteration]()
        self._last = [_FinalIteration(device, turn) for turn in layouts.turns]
        if layouts.prefetch is not None:
            self._turns = [layouts.prefetch.between]
            ends = layouts.prefetch.last, layouts.prefetch.between
            self._ends = [_FinalIteration(device, layout) for layout in ends]
        # runs that are recordings, by their count and the turn of their last iteration
        self._whole: dict[tuple[int, int], _FinalIteration] = {}
        self._count = 0  # of the iterations of such a run
        parts = itertools.chain.from_iterable(self._turns)
        formulas = itertools.chain(*(part.recordable.formulas for part in parts))
        has_step = any(_has_step(formula, depth) for *_, formula in formulas)
        # whether iterations differ in nothing but their turns
        self._are_alike = layouts.prefetch is None and not has_step
        self._gathered: int | None = None  # the iteration whose rows have been gathered ahead
        self._is_loaded = False  # in this round
        self._queue = _Queue(device, partial(context.board.report, depth))
        self._recordings = _Recordings(self._arguments, self._turns, self._queue)

    @property
    def turns(self) -> int:
        """After so many iterations they repeat."""
        return len(self._turns)

    def begin(self) -> None:
        """Called at the beginning of a round."""
        self._gathered = None
        self._is_loaded = False

    def run(self, first: int, count: int, *, goes_on: bool = False) -> None:
        """Runs iterations `first`, `first + 1`, …, copies the results of the last one to the host,
        and waits for them.

        If it `goes_on`, more iterations of the round follow at once.
        """
        done, turn = 0, (first + count - 1) % len(self._turns)
        if not self._is_loaded:
            self._load()
        self._queue.begin()
        if count == self._count:
            whole = self._whole_run(first, count)
            self._arguments.write_all(whole.layout, first)
            whole.run()
            return
        last = self._last[turn]
        if self._prefetch is not None and (count > 1 or goes_on or self._gathered == first):
            last = self._ends[goes_on]
            if self._gathered != first:
                self._one_by_one(self._prefetch.first, first)
        self._gathered = None
        while done < count - 1:
            done += self._enqueue(first + done, count - 1 - done)
        self._arguments.write_all(last.layout, first + count - 1)
        last.run()
        self._recordings.note_run(turn)
        self._gathered = first + count if goes_on and self._ends else None

    def as_whole(self, count: int) -> dict[int, Recording]:
        """Makes each run of so many iterations a recording, if possible: iterations are alike and
        short, and runs follow each other in the same turn, or in the next. Returns those that
        compiled code can launch, by the turn of their last iteration.
        """
        is_next = count % self.turns in {0, 1 % self.turns}
        is_short = count * self._queue.seconds < MOST_SECONDS and self._recordings.are_few(count)
        if not (self._are_alike and is_next and is_short):
            return {}
        self._count = count
        return {
            turn: whole.recording
            for (known, turn), whole in self._whole.items()
            if known == count and whole.recording is not None and whole.recording.relaunch
        }

    def _whole_run(self, first: int, count: int) -> "_FinalIteration":
        last = (first + count - 1) % self.turns
        if (count, last) not in self._whole:
            layouts = [self._turns[(first + offset) % self.turns] for offset in range(count)]
            device = self._arguments.context.place.device
            self._whole[count, last] = _FinalIteration(device, *layouts)
        return self._whole[count, last]

    def _load(self) -> None:
        """Loads what iterations do not load themselves."""
        for scheduled in itertools.chain.from_iterable(self._turns):
            for check in scheduled.recordable.checks:
                check()
        self._is_loaded = True

    def again(self, number: int, values: Array, packed: bytes, step: int) -> Again | None:
        """Returns the `Again` that repeats a round of one iteration; None if it would not do what
        `run` does.

        Args:
            number: of the sequence's program.
            values: memory of a round's values.
            packed: those of the last round.
            step: number of the iteration.
        """
        last = self._last[step % len(self._last)]
        if any(scheduled.recordable.checks for scheduled in last.layout):
            return None
        return last.again(number, values, packed)

    def close(self) -> None:
        """Frees the recordings."""
        self._recordings.close()
        for last in (*self._last, *self._ends, *self._whole.values()):
            last.close()
        self._whole.clear()
        self._gathered = None
        self._queue.begin()

    def _enqueue(self, step: int, limit: int) -> int:
        """Queues iterations from `step` on, at most so many; returns how many."""
        turn, count = step % len(self._turns), 1
        recorded = self._recordings.find(turn, limit, step)
        if recorded is not None and not recorded.begin_at(step):
            self._recordings.give_up(recorded)
            recorded = None
        if recorded is None:
            self._one_by_one(self._turns[turn], step)
            self._recordings.note_run(turn)
        else:
            recorded.recording.queue()
            count = recorded.count
        self._queue.add(count, step + count)
        return count

    def _one_by_one(self, layout: Layout, step: int) -> None:
        self._arguments.write_all(layout, step)
        for scheduled in layout:
            for run in scheduled.recordable.steps:
                run()


def wait_of(group: Parts) -> Wait | None:
    """Returns the wait before parts that are run together: that for the last part for which one of
    them waits.

    >>> from synknumba._wire.sequence import Access
    >>> first, second, third = (Part(0, "", 0, Access(), wait=wait) for wait in (Wait(2), None, Wait(3, nearby=True)))
    >>> wait_of([first, second, third])
    Wait(back=1, nearby=False)
    """  # noqa: E501
    backs, nearby = [], True
    for place, part in enumerate(group):
        if part.wait is not None:
            backs.append(part.wait.back - place)
            nearby = nearby and part.wait.nearby
    return Wait(min(backs), nearby) if backs else None


def _is_step(formulas: Formulas, depth: int) -> bool:
    """Whether numbers are the step of a loop."""
    return all(formula == ("step", depth) for _, _, formula in formulas)


def _has_step(formula: Formula, depth: int) -> bool:
    """Whether a formula has the step of a loop."""

    def leaf(kind: str, operand: Any) -> bool:
        return (kind, operand) == ("step", depth)

    return fold(formula, leaf, lambda _, operands: any(operands))


@final
class _FinalIteration:
    """The last iteration of a run, or its last ones, with copies of the results; the arguments of
    the launches are written before.
    """

    def __init__(self, device: Device, *layouts: Layout) -> None:
        # of iterations that differ
        different = {id(layout): layout for layout in layouts}.values()
        self.layout = [*itertools.chain(*different)]
        self._numbered = [part.recordable for part in self.layout if part.recordable.formulas]
        steps = [step for part in itertools.chain(*layouts) for step in part.recordable.steps]
        steps += itertools.chain(*(part.recordable.copies for part in layouts[-1]))
        self._repetition = Repetition(device, steps, alone=False)
        self._packed: list[bytes] = []  # the values that the recording has
        self._round = b""  # values of the round that compiled code may repeat

    def run(self) -> None:
        """Runs it, and waits for all work."""
        packed = [recordable.packed for recordable in self._numbered]
        if packed != self._packed:
            self._repetition.forget()
            self._repetition.renew(b"")
            self._packed = packed
        self._repetition()

    @property
    def recording(self) -> Recording | None:
        """Its recording; None if there is none."""
        return self._repetition.recording

    def again(self, number: int, values: Array, packed: bytes) -> Again | None:
        """Returns the `Again` of a round whose values are packed."""
        if packed != self._round:
            self._repetition.forget()
            self._round = packed
        return self._repetition.again(number, values, packed)

    def close(self) -> None:
        """Frees the recording."""
        self._repetition.close()


# ---- which parts ---------------------------------------------------------------------------------


@final
class PartFusion:
    """Finds the parts of a sequence that a rank can fuse, and keeps them.

    Args:
        context: what the parts refer to.
    """

    def __init__(self, context: SequenceContext) -> None:
        self._context, self._part_steps = context, PartSteps(context.place, context.routines)
        self._all: list[FusedParts] = []

    def whole(
        self,
        turns: Sequence[Parts],
        depth: int,
        ring: ResultRing | None = None,
    ) -> FusedParts | None:
        """Returns all parts of a loop, fused; None if the host must act in between. A ring keeps
        the results of each iteration.
        """
        plain = [
            [part for part in parts if isinstance(part, Part) and self._is_free(part)]
            for parts in turns
        ]
        if not any(turns) or list(map(len, plain)) != list(map(len, turns)):
            return None
        layouts = self._part_steps.layouts(plain, separate_copies=True, ring=ring)
        return None if layouts is None else self._note(layouts, depth)

    def groups(self, parts: Parts, depth: int) -> Iterator[tuple[Parts, FusedParts | None]]:
        """Yields the parts of an iteration in order: several with what they are fused to, or
        one.
        """
        at = 0
        while at < len(parts):
            end, layouts = self._end_of_group(parts, at), None
            if end > at + 1:
                group = [part for part in parts[at:end] if isinstance(part, Part)]
                layouts = self._part_steps.layouts([group], separate_copies=False)
            if layouts is None:
                end = at + 1
                yield parts[at:end], None
            else:
                yield parts[at:end], self._note(layouts, depth)
            at = end

    def begin(self) -> None:
        """Called at the beginning of a round."""
        for fused in self._all:
            fused.begin()

    def close(self) -> None:
        """Frees all recordings."""
        for fused in self._all:
            fused.close()
        self._all.clear()

    def are_recorded(self, parts: Parts) -> bool:
        """Whether all functions that can be recorded have been, with the values of these parts."""
        return all(
            self.are_recorded(part.parts)
            if isinstance(part, Loop)
            else not part.is_recorded or self._part_steps.has_steps(part)
            for part in parts
        )

    def _note(self, layouts: Layouts, depth: int) -> FusedParts:
        fused = FusedParts(self._context, depth, layouts)
        self._all.append(fused)
        return fused

    def _is_free(self, part: Part) -> bool:
        """Whether a part waits for no other rank, and none for it."""
        return self._part_steps.is_possible(part) and (
            self._context.place.world_size == 1 or (part.wait is None and not part.shows)
        )

    def _end_of_group(self, parts: Parts, at: int) -> int:
        """Returns the end of the longest group from a part on: it waits for earlier parts, and
        only its last is waited for.
        """
        end, waits = at, self._context.place.world_size > 1
        while end < len(parts) and self._part_steps.is_possible(part := parts[end]):
            # for a part of the group
            if waits and part.wait is not None and part.wait.back <= end - at:
                break
            end += 1
            if waits and part.shows:
                break
        return end
