"""Parts of a sequence as steps that a rank can record: launches, collectives, gathers of rows.

Rows that each iteration takes from another line of a table are gathered from the host's memory.
Where nothing in an iteration writes them, those of the next one are gathered meanwhile, into memory
of their own:

    work     take 0 | calls 0                | take 1 | calls 1                | take 2 ...
    beside            gather 1 ..........              gather 2 ..........
"""

import itertools
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeGuard, final

from synknumba._device import Gather, LineRows, ResultRing, Step
from synknumba._rank.collective_routine import Steps
from synknumba._rank.function_routine import FunctionRoutine
from synknumba._rank.kernel_routine import KernelRoutine
from synknumba._rank.routine import Place, Repeated, Routine
from synknumba._rank.scalar_update import FindPlaces
from synknumba._rank.sequence_numbers import Numbers
from synknumba._wire.program import Program, Sharded
from synknumba._wire.relaunch import Scalar
from synknumba._wire.sequence import Access, Formulas, Key, Loop, Part

Change = Callable[[bytes], None]
"""Writes packed values into the arguments of launches."""


@dataclass(slots=True)
class RecordablePart:
    """The steps of a part, or the gathers of its rows.

    Attributes:
        part: the part.
        routine: of the part; None for steps between parts.
        checks: loads to run at the beginning of a round.
        formulas: those of the part for the numbers that the steps have.
        copies: of results to the host, if these are made separately.
        change: gives the steps the numbers in packed values.
        find_places: finds numbers among the scalars of a recording.
        lines: number of lines that there are, for gathers.
        packed: the values that the steps have.
    """

    part: Part
    routine: Repeated | None
    checks: Sequence[Step]
    steps: list[Step]
    formulas: Formulas = ()
    copies: list[Step] = field(default_factory=list)
    change: Change | None = None
    find_places: FindPlaces | None = None
    lines: int | None = None
    packed: bytes = b""

    def write(self, numbers: Numbers) -> bytes:
        """Gives the steps the numbers as they are now; returns the part's packed values."""
        if not self.formulas:
            return self.packed
        values = bytearray(self.part.values)
        numbers.fill(values, self.part.name, self.formulas)
        if values != self.packed:
            assert self.change is not None  # others have no formulas
            self.change(bytes(values))
            self.packed = bytes(values)
        return self.packed


@dataclass(frozen=True, slots=True)
class ScheduledPart:
    """A part at its place in an iteration; the offset is that of the iteration whose numbers it
    has.
    """

    recordable: RecordablePart
    iteration_offset: int = 0


Layout = Sequence[ScheduledPart]
"""What an iteration is, in order."""


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Iterations whose rows are gathered ahead, during the iteration before."""

    first: Layout  # gathers the rows of an iteration, before it
    between: Layout  # an iteration, which gathers the rows of the next one
    last: Layout  # one that gathers none


@dataclass(frozen=True, slots=True)
class Layouts:
    """The iterations of a loop.

    Attributes:
        turns: an iteration that gathers its own rows, and the next ones until swapped variables
            have their memory again.
        prefetch: the same where rows are gathered ahead; None if there are none.
    """

    turns: Sequence[Layout]
    prefetch: Prefetch | None = None


@dataclass(slots=True)
class _Call:
    """A part as steps: those that gather the rows of a line, and those of the part."""

    gather: RecordablePart | None
    call: RecordablePart
    in_line: Sequence[LineRows]

    @property
    def program(self) -> Program:
        """The program of a part that gathers rows."""
        routine = self.call.routine
        assert isinstance(routine, Routine)  # others gather nothing
        return routine.program

    def ahead(self) -> tuple[RecordablePart, list[Step]]:
        """Returns gathers of the rows into memory of their own, and the steps that take them from
        there.
        """
        pairs = [line.ahead() for line in self.in_line if line.ahead is not None]
        gathers = _gathers(self.call.part, self.program, [gather for gather, _ in pairs])
        return gathers, [take for _, take in pairs]


def _in_order(calls: Sequence[_Call]) -> Layout:
    layout: list[ScheduledPart] = []
    for call in calls:
        if call.gather is not None:
            layout.append(ScheduledPart(call.gather))
        layout.append(ScheduledPart(call.call))
    return layout


@final
class PartSteps:
    """Makes the steps of parts.

    Args:
        place: state of the rank.
        routines: of the parts' programs, by number.
    """

    def __init__(self, place: Place, routines: Mapping[int, Repeated]) -> None:
        self._place, self._routines = place, routines

    def is_possible(self, part: Part | Loop) -> TypeGuard[Part]:
        """Whether a part may have steps that need no host between them."""
        if not isinstance(part, Part) or part.puts is not None or part.combines is not None:
            return False
        routine, offsets = self._routines[part.number], {formula[0] for formula in part.formulas}
        if isinstance(routine, FunctionRoutine):
            return routine.program.is_recorded and offsets <= {routine.program.line_offset}
        if isinstance(routine, KernelRoutine):
            scalars = offsets - {routine.program.line_offset}
            return all(offset < routine.scalar_bytes for offset in scalars)
        return isinstance(routine, Steps)

    def layouts(
        self,
        turns: Sequence[Sequence[Part]],
        *,
        separate_copies: bool,
        ring: ResultRing | None = None,
    ) -> Layouts | None:
        """Returns the steps of the parts of each iteration; None if the host is needed for one.

        With `separate_copies` they are all that is done in a loop, and the steps have no copies of
        results to the host. A ring then keeps them at the end of each iteration.
        """
        parts = list(itertools.chain.from_iterable(turns))
        calls = self._calls(parts, separate_copies=separate_copies)
        if calls is None:
            return None
        rest = iter(calls)
        turns_of_calls = [list(itertools.islice(rest, len(turn))) for turn in turns]
        if ring is not None:
            for turn_calls in turns_of_calls:
                copies = [copy for call in turn_calls for copy in call.call.copies]
                turn_calls.append(_Call(None, _between([ring.step(copies)]), ()))
        prefetch = None
        if separate_copies and len(turns) == 1:
            prefetch = self._prefetch(turns_of_calls[0])
        return Layouts([_in_order(turn) for turn in turns_of_calls], prefetch)

    def has_steps(self, part: Part) -> bool:
        """Whether a part has steps now."""
        return self._call(part, separate_copies=False) is not None

    def _calls(self, parts: Sequence[Part], *, separate_copies: bool) -> list[_Call] | None:
        routines = {part.number: self._routines[part.number] for part in parts}
        spaces = [each.workspace for each in routines.values() if isinstance(each, Routine)]
        replaced = -1
        calls: list[_Call] = []
        while replaced != (now := sum(space.replaced for space in spaces)):
            replaced, calls = now, []  # again if memory was replaced by larger memory
            for part in parts:
                call = self._call(part, separate_copies=separate_copies)
                if call is None:
                    return None
                calls.append(call)
        loading = [id(call.call.routine) for call in calls if call.call.checks]
        if len(set(loading)) < len(loading):  # two that load other rows to the same memory
            return None
        return calls

    def _call(self, part: Part, *, separate_copies: bool) -> _Call | None:
        routine, device = self._routines[part.number], self._place.device
        gather: RecordablePart | None = None
        in_line: Sequence[LineRows] = ()
        if isinstance(routine, KernelRoutine):
            binding = routine.apart(part.values)
            checks, steps = binding.run.parted
            recordable = RecordablePart(
                part,
                routine,
                checks,
                [*steps],
                part.formulas,
                change=partial(routine.change_scalars, binding.launches),
                find_places=routine.places_of,
                packed=part.values,
            )
            in_line = binding.in_line
        elif isinstance(routine, FunctionRoutine):
            recorded = routine.apart(part.values)
            if recorded is None:
                return None
            recordable = RecordablePart(part, routine, recorded.checks, recorded.steps)
            in_line = recorded.in_line
        else:
            assert isinstance(routine, Steps)  # `is_possible`
            recordable = RecordablePart(part, routine, (), routine.make())
        if isinstance(routine, Routine) and routine.program.line_offset is not None:
            recordable.formulas = tuple(
                formula for formula in recordable.formulas if formula[0] < routine.scalar_bytes
            )
            if in_line:
                gather = _gathers(part, routine.program, [line.gather for line in in_line])
        if not device.can_queue(recordable.steps):
            return None
        if separate_copies:
            results = self._place.control.results[self._place.rank]
            steps, recordable.steps = recordable.steps, []
            for step in steps:
                only_copies = device.only_copies_to(results, step)
                (recordable.copies if only_copies else recordable.steps).append(step)
        return _Call(gather, recordable, in_line)

    def _prefetch(self, calls: Sequence[_Call]) -> Prefetch | None:
        """Returns the iterations of a loop whose rows are gathered ahead; None if that cannot
        be.
        """
        gathering = [call for call in calls if call.gather is not None]
        beside = self._place.device.beside()
        if not gathering or beside is None or not _are_apart(calls, gathering):
            return None
        gathers: list[RecordablePart] = []
        taking: list[Step] = []
        for call in gathering:
            gather, takes = call.ahead()
            gathers.append(gather)
            taking += takes
        begin, end = (ScheduledPart(_between(steps)) for steps in beside)
        take_rows = ScheduledPart(_between(taking))
        first_gathers = [ScheduledPart(gather) for gather in gathers]
        next_gathers = [ScheduledPart(gather, 1) for gather in gathers]
        work = [ScheduledPart(call.call) for call in calls]
        return Prefetch(
            [begin, *first_gathers, end],
            [take_rows, begin, *next_gathers, *work, end],
            [take_rows, *work],
        )


def _are_apart(calls: Sequence[_Call], gathering: Sequence[_Call]) -> bool:
    """Whether the rows of the next iteration can be gathered during an iteration: nothing in it
    writes the tables, and each call that gathers has its memory for itself.
    """
    parts = [call.call.part for call in calls]
    times = Counter(part.number for part in parts)
    written = frozenset[Key]().union(
        *(part.access.writes | part.access.remote_writes for part in parts)
    )
    return all(
        times[call.call.part.number] == 1 and written.isdisjoint(_tables(call.program))
        for call in gathering
    )


def _between(steps: list[Step]) -> RecordablePart:
    """Returns steps that belong to no part."""
    return RecordablePart(_NO_PART, None, (), steps)


_NO_PART = Part(-1, "", 0, Access())


def _tables(program: Program) -> frozenset[Key]:
    """Returns the memory whose rows a line lists, and that of the lines."""
    segments = {
        param.array.segment
        for param in program.leaves()
        if isinstance(param, Sharded) and not param.by_position
    }
    assert program.rows.indices is not None  # lines have indices
    return frozenset(("data", segment) for segment in segments | {program.rows.indices.segment})


def _gathers(part: Part, program: Program, gathers: Sequence[Gather]) -> RecordablePart:
    assert program.rows.indices is not None  # as above
    line_offset, lines = program.line_offset, program.rows.indices.shape[0]
    assert line_offset is not None  # the rows are those of a line
    unpack = struct.Struct(f"<{line_offset}xq").unpack_from

    def change(packed: bytes) -> None:
        (line,) = unpack(packed)
        for gather in gathers:
            gather.take(line)

    def find_places(offset: int, among: Sequence[Scalar]) -> list[Scalar]:
        positions = {gather.position for gather in gathers}
        return [place for place in among if place.position in positions]

    return RecordablePart(
        part,
        None,
        (),
        [gather.step for gather in gathers],
        tuple(formula for formula in part.formulas if formula[0] == line_offset),
        change=change,
        find_places=find_places,
        lines=lines,
        packed=part.values,
    )
