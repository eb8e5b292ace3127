"""Traces: the body of a sequence, run once to record its calls.

    body ──run with stand-ins──> calls, collectives, inner sequences ──> parts, their formulas and memory ──> SequenceProgram

Each call is worked out as usual, and its program is sent to the ranks; a part names the program and
gives its values.
"""  # noqa: E501

import struct
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, final

from synknumba._call.call import Call
from synknumba._call.distribute import Distributed, result_class
from synknumba._call.plan import FunctionPlan, KernelPlan, Plan
from synknumba._call.work_out import WorkedCall
from synknumba._device import fold_kernel
from synknumba._formulas import Formula
from synknumba._host.data import Data
from synknumba._host.lent_results import Lender
from synknumba._ops import reduction
from synknumba._sequence.recorder import Lines, Recorder, SymbolicResult, rows_of
from synknumba._tracing import Line, Number, where
from synknumba._types import Array, CollectiveKind, CollectiveOp
from synknumba._variables.allocation import Allocation
from synknumba._variables.collective_plans import Work
from synknumba._variables.collectives import check_alike, check_uniform, pairs_in_place
from synknumba._variables.state import VariableState, check_rank, traffic_of
from synknumba._wire.messages import Install
from synknumba._wire.program import HostArray, Joined, Result, next_number
from synknumba._wire.sequence import RECORDED, SUCCESS, Access, Key, Part
from synknumba._world.engine import Engine
from synknumba._world.holdings import Uses

if TYPE_CHECKING:
    from synknumba._call.function import Function

Swap: TypeAlias = "tuple[weakref.ref[VariableState], weakref.ref[VariableState]]"


@final
class ResultHandle(SymbolicResult):
    """Stands for a result of a call.

    Attributes:
        plan: plan of the call.
        index: position among the results of the call; None for the only one.
        count: number of rows of the call.
    """

    def __init__(
        self,
        recorder: Recorder,
        plan: Plan,
        index: int | None,
        label: str,
        result: Result | None,
        count: Any,
    ) -> None:
        super().__init__(recorder, label, result, _result_key(plan, index or 0))
        self.plan, self.index, self.count = plan, index, count


def _result_key(plan: Plan, index: int) -> Key:
    return "result", plan.program.number, index


@final
class Installer(Recorder):
    """What the body of a sequence does, sent to the ranks call by call.

    Args:
        world: the world, which the caller has taken.
        name: name of the sequence, for messages.
        scalars: `struct` letters of the numbers that calls of the sequence pass.
    """

    def __init__(self, world: Engine, name: str, scalars: str) -> None:
        super().__init__(name, world.partition)
        self.world: Engine = world
        self.scalars = scalars
        # of results in memory that each round chooses; their segments are further scalars
        self.lenders: list[Lender] = []
        self.plans: list[Plan] = []
        # With their layouts and their memory, by its number.
        self.variables: dict[
            int, tuple[weakref.ref[VariableState], Any, weakref.ref[Allocation]]
        ] = {}
        # Variables that ranks write, by id, with the last part's arguments of `VariableState.mark`.
        self.changed: dict[int, tuple[weakref.ref[VariableState], bool, bool | None]] = {}
        self.programs: set[int] = set()
        self.segments: set[int] = set()
        self.swaps: list[list[Swap]] = [[]]  # of each turn
        # Swaps so far, while the body runs; with the first one's memory before.
        self._memory: list[tuple[VariableState, VariableState, Allocation]] = []
        self.uses: Uses = ()  # functions that the ranks run, with their code
        # of the functions called; others for other values from outside
        self.numbers: dict[Distributed, int] = {}

    # ---- calls

    def _record(self, function: "Function[..., Any]", worked: WorkedCall, access: Access) -> Any:
        function._number_now(self.world)  # noqa: SLF001  # shared with this package
        plan, call = function._install(self.world, worked), worked.call  # noqa: SLF001  # as above
        self.plans.append(plan)  # first: it is freed with the recorder
        self.kept.append(worked.selector)
        self.uses += self.world.holdings.code.uses(function._roots(), function.name)  # noqa: SLF001  # as above
        self.numbers |= function._numbers()  # noqa: SLF001  # as above
        options = call.options
        values = call.values
        if isinstance(options.batch, Line):
            self.checks.append(Lines(options.batch, function.name, rows_of(call)))
        if isinstance(plan, KernelPlan):
            plan.select(values)
        self._note_memory(call, plan)
        lent = [self._lend(lender) for lender in plan.lenders]
        self.lines |= {
            (str(plan.info), one.formula): one.line or where()
            for one in values
            if isinstance(one, Number)
        }
        packed, formulas = _packed(plan.program.values, (*values, *lent))
        if isinstance(plan, KernelPlan):
            access = replace(
                access,
                writes=access.writes
                | {_result_key(plan, index) for index in range(len(plan.wanted))},
            )
        elif (
            plan.program.is_recorded
            and options.is_whole
            and all(offset == plan.program.line_offset for offset, *_ in formulas)
        ):
            access = replace(access, writes=access.writes - SUCCESS | RECORDED)
        self.parts.append(
            Part(plan.program.number, str(plan.info), self.calls, access, packed, formulas)
        )
        self.programs.add(plan.program.number)
        return self._results_of(function, plan, call.count)

    def _results_of(self, function: "Function[..., Any]", plan: Plan, count: Any) -> Any:
        if isinstance(plan, FunctionPlan):
            if not plan.has_ops:
                return None
            return ResultHandle(self, plan, None, f"the result of {function.name}", None, count)
        assert isinstance(plan, KernelPlan)
        found = []
        for index, (name, result) in enumerate(plan.wanted.items()):
            place = index if len(plan.wanted) > 1 else None
            unseen = ResultHandle(self, plan, place, f"{name} of {function.name}", result, count)
            found.append(
                self._stand_in(result, unseen, lambda: tuple(plan.weights(count).tolist()))
            )
        if len(found) <= 1:
            return found[0] if found else None
        return result_class(function.name, tuple(plan.wanted))(*found)

    def _has_shards(self, outcome: SymbolicResult) -> bool:
        assert isinstance(outcome, ResultHandle)  # all are, in a recorder
        return outcome.plan.program.shards is not None

    def _join(self, outcome: SymbolicResult, data: Data, access: Access) -> Part:
        assert isinstance(outcome, ResultHandle)  # as above
        result = outcome.result
        assert result is not None  # it is an array
        assert result.parts is not None
        segment = data._segment  # noqa: SLF001  # shared with this package
        target = HostArray(segment.id, data.dtype, data.shape)
        weights = outcome.plan.weights(outcome.count)
        if result.op == "mean":
            reduction.check_weights(weights)
        told = Joined(
            next_number(), result.op, result.parts, result.is_small, tuple(weights.tolist()), target
        )
        self.world.attach([segment])
        if self.world.spans_machines:
            assert isinstance(outcome.plan, KernelPlan)  # functions return no arrays to other calls
            self.world.life.own_programs[told.number] = partial(
                _join, outcome.plan, result, told.weights, data.data
            )
        else:
            self.world.command(Install(None, told), info=outcome.plan.info)
        self.programs.add(told.number)
        self.segments |= told.segments()
        return Part(told.number, outcome.label, self.calls, access)

    def _lend(self, lender: Lender) -> Number:
        """Returns the number of the segment that a round chooses for a result."""
        self.lenders.append(lender)
        self.scalars += "q"
        return Number(("scalar", len(self.scalars) - 1), "a segment", is_int=True)

    # ---- memory

    def _note_memory(self, call: Call, plan: Plan) -> None:
        for variable in call.variables.values():
            self._hold(variable)
        for variable in call.arguments.changed:
            self.changed[id(variable)] = weakref.ref(variable), self.world.world_size > 1, None
        self.segments |= plan.program.segments()

    def _hold(self, variable: VariableState) -> Allocation:
        storage = variable.place(self.world)
        # As at first: swapped variables have other memory in later turns.
        told = weakref.ref(variable), variable._layout, weakref.ref(storage)  # noqa: SLF001  # as a key
        self.variables.setdefault(storage.number, told)
        return storage

    # ---- collectives

    def _place(self, several: Sequence[VariableState]) -> None:
        for one in several:
            self._hold(one)

    def _record_collective(
        self,
        several: Sequence[VariableState],
        kind: CollectiveKind,
        op: CollectiveOp | None,
        root: int,
    ) -> None:
        if kind != "exchange":
            check_uniform(several, kind)
        work = Work(kind, op, check_rank(root, self.world.world_size))
        keys = frozenset(
            ("variable", one.storage().number, leaf) for one in several for leaf in one.leaves()
        )
        for number, segments, access in traffic_of(self.world).programs(
            work, pairs_in_place(work, several), keys
        ):
            self.programs.add(number)
            self.parts.append(Part(number, kind, self.calls, access))
            self.kept += segments
            self.segments |= {segment.id for segment in segments}
        differs = kind in {"reduce", "exchange"} and self.world.world_size > 1
        for one in several:
            self.changed[id(one)] = weakref.ref(one), differs, kind == "exchange"

    def _swap(self, first: VariableState, second: VariableState) -> None:
        for one in (first, second):
            self.changed[id(one)] = weakref.ref(one), self.world.world_size > 1, None
        check_alike(first, second, [first.shapes(), second.shapes()])
        self.swaps[-1].append((weakref.ref(first), weakref.ref(second)))
        # before it is traded, which Ctrl-C may prevent
        self._memory.append((first, second, first.storage()))
        first.trade(second)

    def _begin_turn(self) -> None:
        self.swaps.append([])

    def undo(self) -> None:
        """Gives swapped variables the memory back that they had at first."""
        while self._memory:
            first, second, storage = self._memory[-1]
            if first.storage() is not storage:
                first.trade(second)
            self._memory.pop()

    def turn(self, first: int, count: int) -> None:
        """Swaps variables as that many iterations do, from the number of the first on."""
        for iteration in range(first, first + count % len(self.swaps)):
            for pair in self.swaps[iteration % len(self.swaps)]:
                one, other = (variable() for variable in pair)
                if one is not None and other is not None:
                    one.trade(other)


def _join(plan: KernelPlan, result: Result, weights: Sequence[int], target: Array) -> None:
    """Combines an array that a kernel returns, into memory of the host that later calls read."""
    target[...] = fold_kernel.combined(result.op, plan.parts_of(result), weights)


def _packed(
    layout: str, values: Sequence[Any]
) -> tuple[bytes, tuple[tuple[int, str, Formula], ...]]:
    """Returns a call's values packed, with zeros for the unknown ones, and the formulas of these
    by offset.
    """
    plain = [0 if isinstance(value, Number) else value for value in values]
    formulas = tuple(
        (struct.calcsize("<" + layout[:index]), layout[index], value.formula)
        for index, value in enumerate(values)
        if isinstance(value, Number)
    )
    return struct.pack("<" + layout, *plain), formulas
