"""A call worked out but not made: what `Function.plan` returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from synknumba._call.arguments import Output
from synknumba._call.bound_arguments import Bound
from synknumba._call.select_rows import CallRows
from synknumba._ops.rows import Partition


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank's share.

    Attributes:
        rank: which.
        rows: (start, stop), positions among the rows of the call.
        own_rows: how many it takes of its own rows of sliceable variables; None where there are none.
        slices: (start, stop) of each slice that has rows, shard after shard.
        input_bytes: of the arrays that it reads from the host; variables are with it already.
    """

    rank: int
    rows: tuple[int, int]
    slices: tuple[tuple[int, int], ...]
    input_bytes: int
    own_rows: int | None = None


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A call, worked out.

    Attributes:
        function: its name.
        arguments: what was passed, one short text each.
        rows: of the call, after `batch`; where sliceable variables alone have rows, theirs; None where nothing has.
        num_slices: that each rank cuts its rows, or each of its shards, into.
        ranks: each rank's share.
        outputs: (name, op) of each output; for a Python function one entry with its tree of ops.
        updates: (parameter, op) of each variable that is updated.
        shards: that the rows are cut into, whatever the world size; None for one a rank.
    """

    function: str
    arguments: tuple[str, ...]
    rows: int | None
    num_slices: int
    ranks: tuple[RankReport, ...]
    outputs: tuple[tuple[str, Any], ...]
    updates: tuple[tuple[str, Any], ...] = ()
    shards: int | None = None

    def __str__(self) -> str:
        """A small table."""
        cut = "" if self.shards is None else f" in {self.shards} shards"
        lines = [f"{self.function}({', '.join(self.arguments)})"]
        lines.append("no sharded argument: every rank runs once" if self.rows is None else f"{self.rows} rows{cut}")
        lines += [
            f"  rank {rank.rank}: rows {rank.rows[0]}..{rank.rows[1]}"
            f"{'' if rank.own_rows is None else f', {rank.own_rows} of its own,'} in {len(rank.slices)} slice(s), "
            f"reads {rank.input_bytes:,} bytes"
            for rank in self.ranks
        ]
        listed = f"a list, one value per {'rank' if self.shards is None else 'shard'}"
        lines += [f"  {name}: {listed if op is None else op}" for name, op in self.outputs]
        lines += [f"  {name}: each rank's variable, {op}" for name, op in self.updates]
        return "\n".join(lines)


def make_report(
    name: str,
    outputs: Mapping[str, Output],
    ops: Any,
    updates: Mapping[str, Any],
    bound: Bound,
    rows: CallRows,
    num_slices: int,
    shards: int | None = None,
) -> PlanReport:
    """Works the report out.

    Args:
        name: of the function.
        outputs: of a kernel.
        ops: of a Python function.
        updates: the op of each updated variable, by parameter.
        bound: the call's arguments.
        rows: the rows of the call.
        num_slices: slices of each shard.
        shards: in all; None for one a rank.
    """
    slicing = Partition.even(num_slices)
    per_row, whole = bound.sizes()
    own = None if rows.own is None else rows.own.counts
    ranks, at = [], 0
    for rank in range(bound.partition.parts):
        if isinstance(rows.count, tuple):
            cuts: tuple[int, ...] = (at, at + rows.count[rank])
            at = cuts[1]
        else:
            cuts = bound.partition.shard_edges(rows.count or 0, shards, rank)
        start, stop = cuts[0], cuts[-1]
        mine = None if own is None else own[rank]
        slices = tuple(one for cut in pairwise(cuts) for one in _slices(*cut, mine or 0, slicing))
        ranks.append(RankReport(rank, (start, stop), slices, per_row * (stop - start) + whole, mine))
    told = tuple((key, output.op) for key, output in outputs.items()) or ((("result", ops),) if ops is not None else ())
    return PlanReport(name, bound.texts(), rows.total, num_slices, tuple(ranks), told, tuple(updates.items()), shards)


def _slices(start: int, stop: int, own: int, slicing: Partition) -> tuple[tuple[int, int], ...]:
    """The parts of some rows that are run: those that have rows, or rows of the rank's own."""
    cuts = zip(pairwise(slicing.edges(stop - start)), slicing.counts(own), strict=True)
    return tuple((start + low, start + high) for (low, high), own_rows in cuts if high > low or own_rows)
