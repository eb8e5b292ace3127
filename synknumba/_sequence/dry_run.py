"""Dry runs: the body of a sequence, run once to plan its calls; nothing is sent to the ranks,
which need not exist.

Waits are those of ranks on cores. On GPUs linked by NCCL the streams wait instead, and over the
host's memory collectives have more steps.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np

from synknumba._call.report import make_report
from synknumba._call.variable_rows import planned_shape, shapes_by_rank
from synknumba._call.work_out import WorkedCall
from synknumba._host.data import Data, segment_of
from synknumba._ops.rows import Partition
from synknumba._ops.variable_layout import StorageLayout, line_type
from synknumba._sequence.recorder import Recorder
from synknumba._sequence.report import LoopReport, PartReport, ResultReport, Whom
from synknumba._sequence.symbolic_results import SymbolicResult
from synknumba._tracing import Number
from synknumba._variables.collective_arguments import check_alike
from synknumba._variables.collective_plans import (
    CollectiveSpec,
    access_in_place,
    stage_bytes,
    staged_accesses,
)
from synknumba._variables.state import VariableState
from synknumba._wire.program import Result
from synknumba._wire.sequence import Access, Key, Loop, Part, Shared, ordered, turns_of, united

if TYPE_CHECKING:
    from synknumba._call.function import Function


@final
class DryRun(Recorder):
    """What the body of a sequence would do.

    Args:
        name: name of the sequence.
        partition: of rows into ranks.
        labels: names of the sequence's arguments: of variables by id, and of `Data` by segment.
    """

    def __init__(self, name: str, partition: Partition, labels: Mapping[int, str]) -> None:
        super().__init__(name, partition)
        self._labels: dict[Any, str] = dict(labels)
        # of swapped variables, by id: the id of the one whose memory it has
        self._memory: dict[int, int] = {}
        self._reports: list[PartReport] = []  # by number of the parts

    # ---- calls

    def _record(self, function: "Function[..., Any]", worked: WorkedCall, access: Access) -> Any:
        call, options, part = worked.call, worked.call.options, len(self._reports)
        for path, variable in call.variables.items():
            self._label(variable, f"{path} of {function.name}")
        for value in call.values:
            if isinstance(value, Number):
                value.formula  # noqa: B018  # for results that the ranks are to combine
        results = [worked.built.results[name] for name in worked.returned]
        places = {("result", part, index) for index in range(len(results))}
        access = replace(access, writes=access.writes | places)
        texts = call.texts(lasting=True, shape_of=partial(planned_shape, self.partition))
        reports = tuple(map(_result_report, results))
        if not worked.is_kernel and worked.options.has_ops:
            reports = (ResultReport("result", worked.ops, None, None),)
        needs_host = not worked.is_kernel
        if worked.options.record and options.is_whole:
            scalars = call.arguments.scalars.values
            needs_host = any(isinstance(value, Number) for value in scalars)
        if call.rows.source.kind == "line" and not call.follows_lines:
            needs_host = True
        report = PartReport(
            self.calls,
            f"{function.name}({', '.join(texts)})",
            results=reports,
            plan=make_report(worked),
            needs_host=needs_host,
        )
        self._add(report, [access])
        return self._results_of(worked, part)

    def _label(self, variable: VariableState, otherwise: str) -> None:
        self._labels.setdefault(id(variable), variable.name or otherwise)

    def _add(self, report: PartReport, accesses: Sequence[Access]) -> None:
        """Adds the parts of a call, a collective or a swap, with what they read and write."""
        together = united(accesses)
        report = replace(
            report,
            reads=report.reads or self._names(together.reads | together.remote_reads),
            writes=report.writes or self._names(together.writes | together.remote_writes),
        )
        number = len(self._reports)
        self._reports.append(report)
        for access in accesses:
            self.parts.append(Part(number, report.name, self.calls, self._in_memory(access)))

    def _names(self, keys: Iterable[Key]) -> tuple[str, ...]:
        memory = set()
        for key in keys:
            match key:
                case ("variable" | "data", place, *_):
                    memory.add(place)
        return tuple(sorted(self._labels.get(place, "an array") for place in memory))

    def _in_memory(self, access: Access) -> Access:
        """Returns an access to the memory that swapped variables have."""
        return replace(
            access,
            reads=self._placed(access.reads),
            writes=self._placed(access.writes),
            remote_reads=self._placed(access.remote_reads),
            remote_writes=self._placed(access.remote_writes),
        )

    def _placed(self, keys: frozenset[Key]) -> frozenset[Key]:
        placed: set[Key] = set()
        for key in keys:
            match key:
                case ("variable", int(variable), leaf):
                    placed.add(("variable", self._memory.get(variable, variable), leaf))
                case _:
                    placed.add(key)
        return frozenset(placed)

    def _join(self, result: SymbolicResult, data: Data, access: Access) -> Part:
        self._labels[segment_of(data).id] = result.label
        self._reports.append(self._combination(result.label, "the ranks", data.nbytes))
        return Part(len(self._reports) - 1, result.label, self.calls, access)

    def _combination(self, label: str, whom: str, nbytes: int) -> PartReport:
        """Returns the report on a result of so many bytes that is combined for later calls."""
        size, moved = self.partition.parts, 0
        if size > 1:
            moved = nbytes * size
        name = f"{label}, combined by {whom}"
        return PartReport(0, name, moved_bytes=moved, needs_host=True)

    # ---- collectives

    def _place(self, states: Sequence[VariableState]) -> None:
        for variable in states:
            self._label(variable, "a variable")

    def _record_collective(self, states: Sequence[VariableState], spec: CollectiveSpec) -> None:
        size, kind = self.partition.parts, spec.kind
        layouts = [
            variable.layout_with(shapes_by_rank(variable, self.partition), variable.halo)
            for variable in states
        ]
        keys = frozenset(
            ("variable", id(variable), leaf) for variable in states for leaf in variable.leaves()
        )
        sizes = [max(map(leaf.nbytes, range(size))) for layout in layouts for leaf in layout.leaves]
        if kind == "exchange":
            moved = sum(map(_exchanged_bytes, layouts))
        elif size > 1:
            givers = {"all_reduce": size, "reduce": size - 1, "broadcast": 1}[kind]
            moved = givers * sum(sizes)
        else:
            moved = 0
        accesses: Sequence[Access] = [access_in_place(spec, keys)]
        if stage_bytes(kind, size, sizes):
            accesses = staged_accesses(keys, ("stage", len(self._reports)))
        writes = self._names(keys)
        self._add(PartReport(self.calls, kind, writes=writes, moved_bytes=moved), accesses)

    def _swap(self, first: VariableState, second: VariableState) -> None:
        shapes = [shapes_by_rank(variable, self.partition) for variable in (first, second)]
        check_alike(first, second, shapes)
        names = self._labels[id(first)], self._labels[id(second)]
        self._add(PartReport(0, f"swap of {names[0]} and {names[1]}"), [Access()])
        memory = self._memory
        memory[id(first)], memory[id(second)] = (
            memory.get(id(second), id(second)),
            memory.get(id(first), id(first)),
        )

    # ---- report

    def report(self, returned: Iterable[Any]) -> tuple[PartReport | LoopReport, ...]:
        """Returns the parts of the first turn; `returned` are the symbolic results that the body
        has returned in it.
        """
        for result in returned:
            self._mark(result, is_returned=True)
        for number, _ in self._numbers.values():
            self._mark(number, is_passed=True)
        for result, _ in self._arrays.values():
            self._mark(result, is_passed=True)
        return self._part_reports(turns_of(ordered(self.parts), self.innermost.starts)[0])

    def _mark(self, result: Any, *, is_returned: bool = False, is_passed: bool = False) -> None:
        """Marks a result in the report of its call."""
        if isinstance(result, SymbolicResult):
            report = self._reports[result.number]
            results = list(report.results)
            marked = results[result.position]
            results[result.position] = replace(
                marked,
                is_returned=marked.is_returned | is_returned,
                is_passed=marked.is_passed | is_passed,
            )
            self._reports[result.number] = replace(report, results=tuple(results))

    def first_large(self, returned: Iterable[Any]) -> str | None:
        """Returns the label of the first result of those returned that the ranks cannot keep;
        None if there is none.
        """
        for result in returned:
            if isinstance(result, SymbolicResult):
                report = self._reports[result.number].results[result.position]
                if not report.is_kept:
                    return result.label
        return None

    def _part_reports(self, parts: Sequence[Part | Loop]) -> tuple[PartReport | LoopReport, ...]:
        reports: list[PartReport | LoopReport] = []
        before: Part | None = None
        for part in parts:
            whom = self._awaited_by(part)
            if isinstance(part, Loop):
                turns = turns_of(part.parts, part.starts)
                inner = self._part_reports(turns[0])
                times, ends, count = _plain_times(part), bool(part.ends), len(turns)
                reports.append(LoopReport(part.name, times, inner, part.meets, whom, ends, count))
                before = None
                continue
            report = replace(self._report_of(part), waits_for=whom)
            if before is not None and _identity(before) == _identity(part):
                first = reports.pop()
                assert isinstance(first, PartReport)
                report = replace(report, waits_for=max(whom, first.waits_for, key=_WIDTHS.index))
            reports.append(report)
            before = part
        return tuple(reports)

    def _awaited_by(self, part: Part | Loop) -> Whom | None:
        """Returns the ranks that each one waits for before a part."""
        if part.wait is None or self.partition.parts == 1:
            return None
        return "neighbours" if part.wait.nearby else "all ranks"

    def _report_of(self, part: Part) -> PartReport:
        shared = _shared(part)
        if shared is None:
            return self._reports[part.number]
        return self._combination(part.name, "each rank", np.dtype(shared.dtype).itemsize)


_WIDTHS: tuple[Whom | None, ...] = (None, "neighbours", "all ranks")


def _shared(part: Part) -> Shared | None:
    return part.puts or part.combines


def _identity(part: Part) -> tuple[int, Shared | None]:
    """Returns what the steps of one collective, or of one combination, have in common."""
    return part.number, _shared(part)


def _plain_times(loop: Loop) -> int | None:
    """Returns the number of iterations of an inner sequence; None if it is computed."""
    kind, times = loop.times[:2]
    return int(times) if kind == "value" else None


def _result_report(result: Result) -> ResultReport:
    is_kept = result.is_small and result.op is not None
    return ResultReport(result.name, result.op, result.dtype, result.shape, is_kept=is_kept)


def _exchanged_bytes(layout: StorageLayout) -> int:
    """Returns the bytes that an exchange copies between the ranks' rows of a variable."""
    nbytes = 0
    for index, leaf in enumerate(layout.leaves):
        words = line_type(leaf.dtype, math.prod(leaf.shapes[0][1:]))[1]
        itemsize = line_type(leaf.dtype, 0)[0].itemsize
        nbytes += sum(copy.count for copy in layout.copies(index)) * words * itemsize
    return nbytes
