"""Installers: the body of a sequence, run once, whose calls are sent to the ranks.

    body ──run with stand-ins──> calls, collectives, inner sequences ──> parts, their formulas and memory ──> InstalledSequence

Each call is worked out as usual, and its program is sent to the ranks; a part names the program and
gives its values.
"""  # noqa: E501

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np

from synknumba._call.call import Call
from synknumba._call.distribute import Distributed
from synknumba._call.plan import KernelPlan, Plan
from synknumba._call.work_out import WorkedCall
from synknumba._device import fold_kernel
from synknumba._formulas import Formula
from synknumba._host.data import Data, segment_of
from synknumba._host.lent_results import ResultLeases
from synknumba._host.segment import Segment
from synknumba._ops import reduction
from synknumba._sequence.call_checks import InnerTimes, Lines
from synknumba._sequence.recorder import Recorder
from synknumba._sequence.symbolic_results import SymbolicResult
from synknumba._sequence.used_memory import OuterArrays, UsedVariables
from synknumba._tracing import Number
from synknumba._types import Array
from synknumba._variables.collective_arguments import VariableGroup, check_alike
from synknumba._variables.collective_call import pairs_in_place
from synknumba._variables.collective_plans import DIFFERING, SHARDING, CollectiveSpec
from synknumba._variables.state import VariableState, transfers_of
from synknumba._wire.messages import Install
from synknumba._wire.program import HostArray, Joined, Result, next_number
from synknumba._wire.sequence import (
    RECORDED,
    SUCCESS,
    Access,
    BodyLines,
    Ending,
    Formulas,
    Key,
    Part,
    SequenceProgram,
    UsedMemory,
    board_words,
    free_of_recorded,
    ordered,
)
from synknumba._world.engine import Engine
from synknumba._world.holdings import Uses

if TYPE_CHECKING:
    from synknumba._call.function import Function


@final
@dataclass(frozen=True, slots=True)
class InstalledSequence:
    """A body whose calls the ranks have.

    Attributes:
        program: the sequence, as ranks get it.
        board: memory of the program's board.
        plans: of the calls, by the numbers of their programs.
        programs: numbers of all programs of the parts.
        leases: of results in memory that each round chooses; their segments are the last scalars.
        functions: those that are called, with their numbers, which are others for other values from
            outside.
        uses: functions that the ranks run, with their code.
        checks: what each call must satisfy.
        variables, arrays: memory of the script that calls use.
        written: segments whose rows ranks write.
        memory: memory of the parts that has no other owner.
    """

    program: SequenceProgram
    board: Segment
    plans: Mapping[int, Plan]
    programs: frozenset[int]
    leases: Sequence[ResultLeases]
    functions: Mapping[Distributed, int]
    uses: Uses
    checks: Sequence[InnerTimes | Lines]
    variables: UsedVariables
    arrays: OuterArrays
    written: frozenset[int]
    memory: Sequence[Any]


@final
class Installer(Recorder):
    """What the body of a sequence does, sent to the ranks call by call.

    Args:
        world: the world, which the caller has taken.
        name: name of the sequence, for messages.
        scalars: `struct` letters of the numbers that calls of the sequence pass.

    Attributes:
        plans: of the calls so far.
        variables: those that calls use.
    """

    def __init__(self, world: Engine, name: str, scalars: str) -> None:
        super().__init__(name, world.partition)
        self.world: Engine = world
        self.plans: list[Plan] = []
        self.variables = UsedVariables()
        self._scalars = scalars
        self._leases: list[ResultLeases] = []
        self._programs: set[int] = set()
        self._segments: set[int] = set()
        self._memory: list[Any] = []
        self._uses: Uses = ()
        self._functions: dict[Distributed, int] = {}

    def finish(self, ends: tuple[Ending, ...] = ()) -> InstalledSequence:
        """Returns what was recorded, with the conditions that end the loop."""
        words, turns = board_words(self.world.world_size, self.slots), self.innermost
        parts = self.parts
        board = Segment(8 * words)
        program = SequenceProgram(
            number=next_number(),
            name=self.name,
            parts=tuple(ordered(parts)),
            scalars=self._scalars,
            slots=self.slots,
            board=HostArray(board.id, np.dtype(np.int64), (words,)),
            entry_bytes=self.used,
            starts=tuple(turns.starts),
            memory=UsedMemory(frozenset(self._segments), frozenset(self.variables.memory)),
            lines=BodyLines(self.lines, self.places),
            free=free_of_recorded(parts),
            cells=self.cells,
            carried=turns.moves(),
            ends=ends,
        )
        self.arrays.find_changing()
        return InstalledSequence(
            program=program,
            board=board,
            plans={plan.program.number: plan for plan in self.plans},
            programs=frozenset(self._programs),
            leases=tuple(self._leases),
            functions=self._functions,
            uses=self._uses,
            checks=tuple(self.checks),
            variables=self.variables,
            arrays=self.arrays,
            written=frozenset(self.written),
            memory=(*self._memory, *(data for _, data in self._arrays.values())),
        )

    # ---- calls

    def _record(self, function: "Function[..., Any]", worked: WorkedCall, access: Access) -> Any:
        installed = function._install_in_sequence(self.world, worked)  # noqa: SLF001  # made for it
        plan, call = installed.plan, worked.call
        self.plans.append(plan)  # first: it is freed with the recorder
        self._memory.append(worked.selector)
        self._uses += installed.uses
        self._functions |= installed.numbers
        values = call.values
        if isinstance(plan, KernelPlan):
            plan.select(values)
        self._note_memory(call, plan)
        name = str(plan.info)
        for value in values:
            if isinstance(value, Number):
                self._note_line(name, value)
        leased = map(self._lease, plan.lenders)
        packed, formulas = _packed(plan.program.values, (*values, *leased))
        access = replace(access, writes=_writes_of(plan, call, access.writes, formulas))
        number = plan.program.number
        self.parts.append(Part(number, name, self.calls, access, packed, formulas))
        self._programs.add(number)
        return self._results_of(worked, number, plan)

    def _join(self, result: SymbolicResult, data: Data, access: Access) -> Part:
        output, segment = result.result, segment_of(data)
        assert output is not None  # it is an array
        assert output.parts is not None
        target = HostArray(segment.id, data.dtype, data.shape)
        if output.op == "mean":
            reduction.check_weights(np.array(result.weights()))
        join = Joined(
            next_number(),
            output.op,
            output.parts,
            output.is_small,
            result.weights(),
            target,
        )
        self.world.attach([segment])
        if self.world.spans_machines:
            assert isinstance(result.plan, KernelPlan)  # functions return no arrays to other calls
            self.world.life.own_programs[join.number] = partial(
                _join, result.plan, output, join.weights, data.data
            )
        else:
            self.world.command(Install(None, join), info=result.plan.info)
        self._programs.add(join.number)
        self._segments |= join.segments()
        return Part(join.number, result.label, self.calls, access)

    def _lease(self, leases: ResultLeases) -> Number:
        """Returns the number of the segment that a round chooses for a result."""
        self._leases.append(leases)
        self._scalars += "q"
        return Number(("scalar", len(self._scalars) - 1), "a segment", is_int=True)

    # ---- memory

    def _note_memory(self, call: Call, plan: Plan) -> None:
        for variable in call.variables.values():
            self.variables.hold(variable, self.world)
        for variable in call.arguments.changed:
            self.variables.note_change(variable, differs=self.world.world_size > 1)
        self._segments |= plan.program.segments()

    def _place(self, states: Sequence[VariableState]) -> None:
        for variable in states:
            self.variables.hold(variable, self.world)

    # ---- collectives

    def _record_collective(self, states: Sequence[VariableState], spec: CollectiveSpec) -> None:
        kind = spec.kind
        if kind != "exchange":
            VariableGroup(kind, states).check_uniform()
        keys = frozenset(
            ("variable", variable.storage().number, leaf)
            for variable in states
            for leaf in variable.leaves()
        )
        programs = transfers_of(self.world).programs(spec, pairs_in_place(spec, states), keys)
        for number, segments, access in programs:
            self._programs.add(number)
            self.parts.append(Part(number, kind, self.calls, access))
            self._memory += segments
            self._segments |= {segment.id for segment in segments}
        differs = self.world.world_size > 1 and kind in DIFFERING
        for variable in states:
            self.variables.note_change(variable, differs=differs, sharded=kind in SHARDING)

    def _swap(self, first: VariableState, second: VariableState) -> None:
        for variable in (first, second):
            self.variables.note_change(variable, differs=self.world.world_size > 1)
        check_alike(first, second, [first.shapes(), second.shapes()])
        self.variables.swap(first, second)

    def _begin_turn(self) -> None:
        self.variables.begin_turn()


def _join(plan: KernelPlan, result: Result, weights: Sequence[int], target: Array) -> None:
    """Combines an array that a kernel returns, into memory of the host that later calls read."""
    target[...] = fold_kernel.combined(result.op, plan.parts_of(result), weights)


def _writes_of(
    plan: Plan, call: Call, writes: frozenset[Key], formulas: Formulas
) -> frozenset[Key]:
    """Returns what a call writes on its own rank, with its results."""
    if isinstance(plan, KernelPlan):
        number = plan.program.number
        return writes | {("result", number, index) for index in range(len(plan.returned))}
    if not plan.program.is_recorded or not call.options.is_whole:
        return writes
    offsets = {offset for offset, *_ in formulas}
    if offsets <= {plan.program.line_offset}:
        return writes - SUCCESS | RECORDED
    return writes


def _packed(layout: str, values: Sequence[Any]) -> tuple[bytes, Formulas]:
    """Returns a call's values packed, with zeros for the unknown ones, and the formulas of these
    by offset.
    """
    plain = [*values]
    formulas: list[tuple[int, str, Formula]] = []
    for index, value in enumerate(values):
        if isinstance(value, Number):
            plain[index] = 0
            offset = struct.calcsize("<" + layout[:index])
            formulas.append((offset, layout[index], value.formula))
    return struct.pack("<" + layout, *plain), tuple(formulas)
