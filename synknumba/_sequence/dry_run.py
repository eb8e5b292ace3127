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

from synknumba._call.distribute import result_class
from synknumba._call.report import make_report
from synknumba._call.variable_rows import planned_shape, shapes_by_rank
from synknumba._call.work_out import WorkedCall
from synknumba._host.data import Data
from synknumba._ops.rows import Partition
from synknumba._ops.variable_layout import line_type
from synknumba._sequence.recorder import Recorder, ScalarResult, SymbolicResult, ordered
from synknumba._sequence.report import LoopReport, PartReport, ResultReport, Whom
from synknumba._tracing import Number, Unknown
from synknumba._types import CollectiveKind, CollectiveOp
from synknumba._variables.collective_plans import access_in_place, stage_bytes, staged_accesses
from synknumba._variables.collectives import check_alike
from synknumba._variables.state import VariableState, check_rank
from synknumba._wire.program import Result
from synknumba._wire.sequence import Access, Key, Loop, Part

if TYPE_CHECKING:
    from synknumba._call.function import Function


@final
class PlannedResult(SymbolicResult):
    """Stands for a result of a planned call.

    Attributes:
        part: index of the call's report.
        index: position among the results of the call.
        has_shards: whether the call has shards.
    """

    def __init__(
        self,
        recorder: Recorder,
        part: int,
        index: int,
        label: str,
        result: Result | None,
        *,
        has_shards: bool,
    ) -> None:
        super().__init__(recorder, label, result, ("result", part, index))
        self.part, self.index, self.has_shards = part, index, has_shards


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
        self._told: list[PartReport] = []  # by number of the parts

    # ---- calls

    def _record(self, function: "Function[..., Any]", worked: WorkedCall, access: Access) -> Any:
        call, options, is_kernel = worked.call, worked.call.options, worked.is_kernel
        for path, variable in call.variables.items():
            self._labels.setdefault(id(variable), variable.name or f"{path} of {function.name}")
        numbers = [value for value in call.values if isinstance(value, Number)]
        for number in numbers:
            number.formula  # noqa: B018  # for results that the ranks are to combine
        part = len(self._told)
        results = [worked.built.results[name] for name in worked.wanted]
        places = {("result", part, index) for index in range(len(results))}
        access = replace(access, writes=access.writes | places)
        texts = call.texts(lasting=True, shape_of=partial(planned_shape, self.partition))
        reports = [
            ResultReport(
                result.name,
                result.op,
                result.dtype,
                result.shape,
                False,
                result.is_small and result.op is not None,
                False,
            )
            for result in results
        ]
        if not is_kernel and worked.options.has_ops:
            reports.append(ResultReport("result", worked.ops, None, None, False, False, False))
        is_repeated = is_kernel
        if worked.options.record and options.is_whole:
            is_repeated = not any(isinstance(value, Number) for value in call.arguments.values)
        reads_lines = call.rows.source.kind == "line" and not call.follows_lines
        self._add(
            f"{function.name}({', '.join(texts)})",
            [access],
            results=tuple(reports),
            plan=make_report(worked),
            needs_host=reads_lines or not is_repeated,
        )
        has_shards = options.shards is not None
        if not is_kernel:
            if not reports:
                return None
            label = f"the result of {function.name}"
            return PlannedResult(self, part, 0, label, None, has_shards=has_shards)
        stand_ins = []
        for index, result in enumerate(results):
            label = f"{result.name} of {function.name}"
            planned = PlannedResult(self, part, index, label, result, has_shards=has_shards)
            stand_ins.append(self._stand_in(result, planned, tuple))
        if len(stand_ins) <= 1:
            return stand_ins[0] if stand_ins else None
        return result_class(function.name, tuple(worked.wanted))(*stand_ins)

    def _add(
        self, name: str, accesses: Sequence[Access], *, is_call: bool = True, **told: Any
    ) -> None:
        """Adds the parts of a call, or of a swap."""
        reads, writes = (
            self._names(
                key
                for one in accesses
                for key in (*getattr(one, kind), *getattr(one, f"remote_{kind}"))
            )
            for kind in ("reads", "writes")
        )
        number = len(self._told)
        self._told.append(
            PartReport(
                self.calls if is_call else 0, name, **{"reads": reads, "writes": writes, **told}
            )
        )
        self.parts += [
            Part(number, name, self.calls, self._in_memory(access)) for access in accesses
        ]

    def _names(self, keys: Iterable[Key]) -> tuple[str, ...]:
        found = {
            key[1] for key in keys if isinstance(key, tuple) and key[0] in {"variable", "data"}
        }
        return tuple(sorted(self._labels.get(one, "an array") for one in found))

    def _in_memory(self, access: Access) -> Access:
        """Returns an access to the memory that swapped variables have."""

        def placed(keys: frozenset[Key]) -> frozenset[Key]:
            return frozenset(
                (key[0], self._memory.get(key[1], key[1]), *key[2:])
                if isinstance(key, tuple) and key[0] == "variable"
                else key
                for key in keys
            )

        return replace(
            access,
            reads=placed(access.reads),
            writes=placed(access.writes),
            remote_reads=placed(access.remote_reads),
            remote_writes=placed(access.remote_writes),
        )

    def _has_shards(self, outcome: SymbolicResult) -> bool:
        assert isinstance(outcome, PlannedResult)  # all are, in a dry_run
        return outcome.has_shards

    def _join(self, outcome: SymbolicResult, data: Data, access: Access) -> Part:
        self._labels[data._segment.id] = outcome.label  # noqa: SLF001  # shared with this package
        given = data.nbytes * self.partition.parts if self.partition.parts > 1 else 0
        self._told.append(
            PartReport(
                0, f"{outcome.label}, combined by the ranks", moved_bytes=given, needs_host=True
            )
        )
        return Part(len(self._told) - 1, outcome.label, self.calls, access)

    # ---- collectives

    def _place(self, several: Sequence[VariableState]) -> None:
        for one in several:
            self._labels.setdefault(id(one), one.name or "a variable")

    def _record_collective(
        self,
        several: Sequence[VariableState],
        kind: CollectiveKind,
        op: CollectiveOp | None,
        root: int,
    ) -> None:
        size = self.partition.parts
        check_rank(root, size)
        layouts = [
            one.layout_with(shapes_by_rank(one, self.partition), one.halo) for one in several
        ]
        leaves = [(layout, index) for layout in layouts for index in range(len(layout.leaves))]
        keys = frozenset(("variable", id(one), leaf) for one in several for leaf in one.leaves())
        sizes = [max(map(layout.leaves[index].nbytes, range(size))) for layout, index in leaves]
        if kind == "exchange":
            moved = sum(
                copy.count
                * line_type(of.dtype, math.prod(of.shapes[0][1:]))[1]
                * line_type(of.dtype, 0)[0].itemsize
                for layout, index in leaves
                for of in [layout.leaves[index]]
                for copy in layout.copies(index)
            )
        else:
            givers = (
                {"all_reduce": size, "reduce": size - 1, "broadcast": 1}[kind] if size > 1 else 0
            )
            moved = givers * sum(sizes)
        staged = stage_bytes(kind, size, sizes)
        accesses = (
            staged_accesses(keys, ("stage", len(self._told)))
            if staged
            else (access_in_place(kind, keys),)
        )
        self._add(kind, accesses, writes=self._names(keys), moved_bytes=moved)

    def _swap(self, first: VariableState, second: VariableState) -> None:
        shapes = [shapes_by_rank(one, self.partition) for one in (first, second)]
        check_alike(first, second, shapes)
        self._add(
            f"swap of {self._labels[id(first)]} and {self._labels[id(second)]}",
            [Access()],
            is_call=False,
        )
        memory = self._memory
        memory[id(first)], memory[id(second)] = (
            memory.get(id(one), id(one)) for one in (second, first)
        )

    # ---- report

    def report(self, results: Iterable[Any]) -> tuple[PartReport | LoopReport, ...]:
        """Returns the parts of the first turn; `results` are the stand-ins that the body has
        returned in it.
        """
        passed: list[Unknown] = [one.unseen for one in self.kept if isinstance(one, ScalarResult)]
        passed += [outcome for outcome, _ in self._arrays.values()]
        for one, is_passed in (
            *((one, False) for one in results),
            *((one, True) for one in passed),
        ):
            if isinstance(one, PlannedResult):
                told, found = self._told[one.part], list(self._told[one.part].results)
                of = found[one.index]
                found[one.index] = (
                    replace(of, is_passed=True) if is_passed else replace(of, is_returned=True)
                )
                self._told[one.part] = replace(told, results=tuple(found))
        parts = ordered(self.parts)
        return self._reports(parts[: self.starts[1]] if len(self.starts) > 1 else parts)

    def first_large(self, returned: Iterable[Any]) -> str | None:
        """Returns the label of the first result of those returned that the ranks cannot keep;
        None if there is none.
        """
        planned = (one for one in returned if isinstance(one, PlannedResult))
        return next(
            (one.label for one in planned if not self._told[one.part].results[one.index].is_kept),
            None,
        )

    def _reports(self, parts: Sequence[Part | Loop]) -> tuple[PartReport | LoopReport, ...]:
        out: list[PartReport | LoopReport] = []
        last: Part | None = None
        for part in parts:
            whom: Whom | None = None
            if part.wait is not None and self.partition.parts > 1:
                whom = "neighbours" if part.wait.nearby else "all ranks"
            if isinstance(part, Loop):
                times = int(part.times[1]) if part.times[0] == "value" else None
                out.append(
                    LoopReport(part.name, times, self._reports(part.parts), part.meets, whom)
                )
                last = None
                continue
            shared = part.puts or part.combines
            if shared is not None:
                given = (
                    np.dtype(shared.dtype).itemsize * self.partition.parts
                    if self.partition.parts > 1
                    else 0
                )
                told = PartReport(
                    0, f"{part.name}, combined by each rank", moved_bytes=given, needs_host=True
                )
            else:
                told = self._told[part.number]
            same = last is not None and (part.number, part.puts or part.combines) == (
                last.number,
                last.puts or last.combines,
            )
            if same:  # a step of the same
                before = out.pop()
                assert isinstance(before, PartReport)
                whom = (
                    "all ranks"
                    if "all ranks" in (whom, before.waits_for)
                    else whom or before.waits_for
                )
            out.append(replace(told, waits_for=whom))
            last = part
        return tuple(out)
