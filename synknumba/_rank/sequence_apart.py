"""Parts of a sequence as steps of their own, which a rank can record: launches, collectives,
gathers of rows.

Rows that each iteration takes from another line of a table are gathered from the host's memory.
Where nothing in an iteration writes them, those of the next one are gathered meanwhile, into memory
of their own:

    work     take 0 | calls 0                | take 1 | calls 1                | take 2 ...
    beside            gather 1 ..........              gather 2 ..........
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeGuard, final

from synknumba._device import Gather, LineRows, Step
from synknumba._rank.collective_routine import Steps
from synknumba._rank.function_routine import FunctionRoutine
from synknumba._rank.kernel_routine import KernelRoutine
from synknumba._rank.routine import Place, Repeated, Routine
from synknumba._rank.sequence_numbers import Numbers
from synknumba._rank.sequence_renewal import FindPlaces
from synknumba._wire.program import Program, Sharded
from synknumba._wire.relaunch import Scalar
from synknumba._wire.sequence import Access, Formulas, Key, Loop, Part

Change = Callable[[bytes], None]
"""Writes packed values into the arguments of launches."""


@dataclass(slots=True)
class Apart:
    """A part with steps of its own, or the gathers of its rows.

    Attributes:
        part: the part.
        routine: of the part; None for steps between parts.
        checks: loads to run at the beginning of a round.
        formulas: those of the part for the numbers that the steps have.
        copies: of results to the host, where these are made apart.
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
class Placed:
    """A part in an iteration, with the numbers of this iteration, or of a `later` one."""

    apart: Apart
    later: int = 0


Layout = Sequence[Placed]
"""What an iteration is, in order."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Iterations whose rows have been gathered ahead."""

    first: Layout  # gathers the rows of an iteration, before it
    between: Layout  # an iteration, which gathers the rows of the next one
    last: Layout  # one that gathers none


@dataclass(frozen=True, slots=True)
class Layouts:
    """The iterations of a loop.

    Attributes:
        turns: an iteration that gathers its own rows, and the next ones until swapped variables
            have their memory again.
        ahead: the same where rows are gathered ahead; None if there are none.
    """

    turns: Sequence[Layout]
    ahead: Ahead | None = None


@dataclass(slots=True)
class _Call:
    """A part as steps: those that gather the rows of a line, and those of the part."""

    gather: Apart | None
    call: Apart
    in_line: Sequence[LineRows]

    @property
    def in_order(self) -> list[Placed]:
        return [Placed(apart) for apart in (self.gather, self.call) if apart is not None]


@final
class AllApart:
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
        routine = self._routines[part.number]
        if isinstance(routine, FunctionRoutine):
            return routine.program.is_recorded and all(
                formula[0] == routine.program.line_offset for formula in part.formulas
            )
        if isinstance(routine, KernelRoutine):
            line = routine.program.line_offset
            return all(
                offset < routine.scalar_bytes or offset == line for offset, _, _ in part.formulas
            )
        return isinstance(routine, Steps)

    def layouts(self, turns: Sequence[Sequence[Part]], *, copies_apart: bool) -> Layouts | None:
        """Returns the steps of the parts of each iteration; None if the host is needed for one.

        With `copies_apart` they are all that is done in a loop, and copies of their results are
        apart.
        """
        calls = self._calls([part for parts in turns for part in parts], copies_apart=copies_apart)
        if calls is None:
            return None
        rest = iter(calls)
        turns_of_calls = [[next(rest) for _ in parts] for parts in turns]
        ahead = (
            self._ahead(turns_of_calls[0]) if copies_apart and len(turns_of_calls) == 1 else None
        )
        return Layouts(
            [[placed for call in turn for placed in call.in_order] for turn in turns_of_calls],
            ahead,
        )

    def can_be(self, part: Part) -> bool:
        """Whether a part has steps now."""
        return self._call(part, copies_apart=False) is not None

    def _calls(self, parts: Sequence[Part], *, copies_apart: bool) -> list[_Call] | None:
        used = {
            id(routine): routine
            for part in parts
            if isinstance(routine := self._routines[part.number], Routine)
        }
        replaced = -1
        calls: list[_Call] = []
        while replaced != (now := sum(routine.workspace.replaced for routine in used.values())):
            replaced, calls = now, []  # again if memory was replaced by larger memory
            for part in parts:
                call = self._call(part, copies_apart=copies_apart)
                if call is None:
                    return None
                calls.append(call)
        loading = [id(call.call.routine) for call in calls if call.call.checks]
        # two that load other rows to the same memory
        return None if len(set(loading)) < len(loading) else calls

    def _call(self, part: Part, *, copies_apart: bool) -> _Call | None:
        routine, device = self._routines[part.number], self._place.device
        gather: Apart | None = None
        in_line: Sequence[LineRows] = ()
        if isinstance(routine, KernelRoutine):
            binding = routine.apart(part.values)
            checks, steps = binding.run.parted
            apart = Apart(part, routine, checks, [*steps], part.formulas, packed=part.values)
            apart.change, apart.find_places = (
                partial(routine.change_scalars, binding.launches),
                routine.places_of,
            )
            in_line = binding.in_line
        elif isinstance(routine, FunctionRoutine):
            recorded = routine.apart(part.values)
            if recorded is None:
                return None
            apart = Apart(part, routine, recorded.checks, recorded.steps)
            in_line = recorded.in_line
        else:
            assert isinstance(routine, Steps)  # `is_possible`
            apart = Apart(part, routine, (), routine.make())
        if isinstance(routine, Routine) and routine.program.line_offset is not None:
            apart.formulas = tuple(
                formula for formula in apart.formulas if formula[0] < routine.scalar_bytes
            )
            gather = (
                _gathers(part, routine.program, [line.gather for line in in_line])
                if in_line
                else None
            )
        if not device.can_queue(apart.steps):
            return None
        if copies_apart:
            results = self._place.control.results[self._place.rank]
            apart.copies = [step for step in apart.steps if device.only_copies_to(results, step)]
            apart.steps = [step for step in apart.steps if step not in apart.copies]
        return _Call(gather, apart, in_line)

    def _ahead(self, calls: Sequence[_Call]) -> Ahead | None:
        """Returns the iterations of a loop whose rows are gathered ahead; None if that cannot
        be.
        """
        gathering = [call for call in calls if call.gather is not None]
        beside = self._place.device.beside()
        numbers = [call.call.part.number for call in calls]
        if (
            not gathering
            or beside is None
            or any(numbers.count(call.call.part.number) > 1 for call in gathering)
        ):
            return None
        parts = [call.call.part for call in calls]
        written = frozenset[Key]().union(
            *(part.access.writes | part.access.remote_writes for part in parts)
        )
        taking: list[Step] = []
        gathers: list[Placed] = []
        for call in gathering:
            routine = call.call.routine
            assert isinstance(routine, Routine)  # others gather nothing
            if written & _tables(routine.program):
                return None
            pairs = [line.ahead() for line in call.in_line if line.ahead is not None]
            taking += [take for _, take in pairs]
            assert call.gather is not None  # as above
            gathers.append(
                Placed(_gathers(call.gather.part, routine.program, [gather for gather, _ in pairs]))
            )
        begin, end = (Placed(_between(steps)) for steps in beside)
        take_rows, work = Placed(_between(taking)), [Placed(call.call) for call in calls]
        later = [Placed(gather.apart, 1) for gather in gathers]
        return Ahead(
            [begin, *gathers, end], [take_rows, begin, *later, *work, end], [take_rows, *work]
        )


def _between(steps: list[Step]) -> Apart:
    """Returns steps that belong to no part."""
    return Apart(_NO_PART, None, (), steps)


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


def _gathers(part: Part, program: Program, gathers: Sequence[Gather]) -> Apart:
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

    formulas = tuple(formula for formula in part.formulas if formula[0] == line_offset)
    apart = Apart(part, None, (), [gather.step for gather in gathers], formulas)
    apart.change, apart.find_places, apart.lines, apart.packed = (
        change,
        find_places,
        lines,
        part.values,
    )
    return apart
