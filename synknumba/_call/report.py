"""Report on a planned call: the return value of `Function.plan`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from synknumba import _html
from synknumba._call.call import Call
from synknumba._call.launches import held_shapes, launches, row_plan
from synknumba._call.variable_rows import planned_shape
from synknumba._call.work_out import WorkedCall
from synknumba._ops.launch import FEW_THREADS, WARP, Dim3, size_text
from synknumba._types import Shape
from synknumba._world.open_world import open_world


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank's share of a planned call.

    Attributes:
        rank: the rank.
        rows: (start, stop), positions among the rows of the call.
        own_rows: number of selected rows of its own in sliceable variables; None if there are no
            such variables.
        launches: (grid, block) of each launch of a kernel, in order, three sizes each; None for a
            Python function.
        held: (parameter, shape) of its arrays of variables, with halos, in a call without rows;
            those of trees are left out.
        slices: (start, stop) of each slice that has rows, shard after shard.
        input_bytes: bytes of the arrays that it reads from the host; variables are not counted, as
            they are on the rank.
        file_bytes: those of them that it reads from files itself.
    """

    rank: int
    rows: tuple[int, int]
    slices: tuple[tuple[int, int], ...]
    input_bytes: int
    own_rows: int | None = None
    launches: tuple[tuple[Dim3, Dim3], ...] | None = None
    held: tuple[tuple[str, Shape], ...] = ()
    file_bytes: int = 0

    @property
    def row_text(self) -> str:
        """Its rows as text."""
        start, stop = self.rows
        text = f"rows {start}..{stop}"
        if self.own_rows is not None:
            text += f", {self.own_rows} of its own,"
        return f"{text} in {len(self.slices)} slice(s), "

    @property
    def held_text(self) -> str:
        """Its arrays of variables as text."""
        if not self.held:
            return ""
        return f"has {', '.join(f'{name} {shape}' for name, shape in self.held)}, "

    @property
    def input_text(self) -> str:
        """What it reads, as text."""
        text = f"reads {self.input_bytes:,} bytes"
        if self.file_bytes:
            text += f", {self.file_bytes:,} of them from files"
        return text

    @property
    def launch_text(self) -> str:
        """Grids and blocks as text, each once."""
        if self.launches is None:
            return ""
        sizes = (
            f"grid {size_text(grid)} of blocks {size_text(block)}"
            for grid, block in dict.fromkeys(self.launches)
        )
        return f", launches {' and '.join(sizes) or 'nothing'}"

    @property
    def lane_notes(self) -> tuple[str, ...]:
        """What the launches cost that do not fill the lanes of vector units."""
        notes = []
        for grid, block in self.launches or ():
            threads = math.prod(block)
            if threads < WARP:
                notes.append(f"blocks of {threads}: a GPU runs {WARP} lanes for each")
            if threads * math.prod(grid) < FEW_THREADS:
                notes.append(
                    f"launches of fewer than {FEW_THREADS} threads: lanes of cores are empty"
                )
        return tuple(notes)


@dataclass(frozen=True, slots=True)
class MachineReport:
    """What a call sends to another machine than the script's.

    Attributes:
        host: name of the machine.
        ranks: (first, one after the last) of its ranks.
        sent_bytes: bytes of the arrays that it is sent; frozen ones only once, whatever the number
            of calls.
        frozen_bytes: those of them that are frozen.
    """

    host: str
    ranks: tuple[int, int]
    sent_bytes: int
    frozen_bytes: int

    @property
    def text(self) -> str:
        """What it is sent, as text."""
        first, after = self.ranks
        ranks = f"ranks {first} to {after - 1}"
        if after == first + 1:
            ranks = f"rank {first}"
        text = f"({self.host}), {ranks}: is sent {self.sent_bytes:,} bytes"
        if self.frozen_bytes:
            text += f", {self.frozen_bytes:,} of them once: they are frozen"
        return text


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A planned call, which has not been made. `str` formats it as a table.

    Attributes:
        function: name of the function.
        arguments: short description of each argument.
        rows: number of rows that `batch` selects; if only sliceable variables have rows, the number
            of these on all ranks; None if nothing has rows.
        num_slices: number of slices of each rank, or of each shard.
        ranks: share of each rank.
        outputs: (name, op) of each output; for a Python function, one entry with its tree of ops,
            if any.
        updates: (parameter, op) of each updated variable.
        shards: number of shards, independent of the world size; None for one per rank.
        machines: what is sent to each of the other machines, if the open world has several.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function(outputs="sum")
        ... def total(x):
        ...     return x.sum()
        >>> print(total.plan(np.ones(10), world_size=2))
        total(x: float64 (10,))
        10 rows
          rank 0: rows 0..5 in 1 slice(s), reads 40 bytes
          rank 1: rows 5..10 in 1 slice(s), reads 40 bytes
          result: sum
    """

    function: str
    arguments: tuple[str, ...]
    rows: int | None
    num_slices: int
    ranks: tuple[RankReport, ...]
    outputs: tuple[tuple[str, Any], ...]
    updates: tuple[tuple[str, Any], ...] = ()
    shards: int | None = None
    machines: tuple[MachineReport, ...] = ()

    def __str__(self) -> str:
        """Formats the report as a small table."""
        rows, part, target = f"{self.rows} rows", "rank", "each rank's variable"
        if self.shards is not None:
            rows, part = f"{rows} in {self.shards} shards", "shard"
            target = "the variable on every rank, the same"
        if self.rows is None:
            rows = "no rows to divide: every rank runs once"
        lines = [f"{self.function}({', '.join(self.arguments)})", rows]
        for rank in self.ranks:
            share = rank.held_text if self.rows is None else rank.row_text
            lines.append(f"  rank {rank.rank}: {share}{rank.input_text}{rank.launch_text}")
        notes = chain.from_iterable(rank.lane_notes for rank in self.ranks)
        lines += [f"  {note}" for note in dict.fromkeys(notes)]
        for number, machine in enumerate(self.machines, 1):
            lines.append(f"  machine {number} {machine.text}")
        for name, op in self.outputs:
            text = op
            if op is None:
                text = f"a list, one value per {part}"
            lines.append(f"  {name}: {text}")
        for name, op in self.updates:
            lines.append(f"  {name}: {target}, {op}")
        return "\n".join(lines)

    def _repr_html_(self) -> str | None:
        """Shows the report in a notebook, with a bar for each rank's rows."""
        return _html.of_plan(self)


def make_report(worked: WorkedCall) -> PlanReport:
    """Returns the report on a call."""
    options, call, source = worked.options, worked.call, worked.source
    files = {segment.id for segment in call.segments if segment.is_file}
    per_row, constant = call.sizes()
    file_row, file_constant = call.sizes(
        lambda array: array.source is not None or array.segment in files
    )
    ranks = []
    plan = row_plan(call)
    for rank in range(plan.partition.parts):
        start, stop = plan.span(rank, rank + 1)
        count = stop - start
        own_rows, sizes, held = None, None, tuple[tuple[str, Shape], ...]()
        if plan.own is not None:
            own_rows = plan.own[rank]
        if options.launch is not None:
            sizes = launches(options.launch, call, rank, source)
        if call.count is None:
            held = tuple(held_shapes(call, rank).items())
        ranks.append(
            RankReport(
                rank,
                (start, stop),
                tuple((part.start, part.stop) for part in plan.slices(rank)),
                per_row * count + constant,
                own_rows,
                sizes,
                held,
                file_row * count + file_constant,
            )
        )
    outputs = tuple((key, output.op) for key, output in options.outputs.items())
    if options.ops is not None:
        outputs = (("result", options.ops),)
    updates = tuple((key, op) for key, (_, op) in options.updates.items())
    return PlanReport(
        worked.planner.name,
        call.texts(shape_of=partial(planned_shape, call.partition)),
        call.total,
        call.options.num_slices,
        tuple(ranks),
        outputs,
        updates,
        call.options.shards,
        _machines(call, ranks),
    )


def _machines(call: Call, ranks: Sequence[RankReport]) -> tuple[MachineReport, ...]:
    """Returns what a call sends to other machines, if the open world has several and as many
    ranks.
    """
    world = open_world()
    if world is None or world.world_size != len(ranks):
        return ()
    # machines open stored arrays themselves
    per_row, constant = call.sizes(lambda array: array.source is None)
    frozen_row, frozen_constant = call.sizes(
        lambda array: array.source is None and array.version > 0
    )
    reports = []
    for host, first, after in world.machines[1:]:
        rows = sum(rank.rows[1] - rank.rows[0] for rank in ranks[first:after])
        sent, frozen = per_row * rows + constant, frozen_row * rows + frozen_constant
        reports.append(MachineReport(host, (first, after), sent, frozen))
    return tuple(reports)
