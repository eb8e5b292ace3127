"""Report on a planned call: the return value of `Function.plan`."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from synknumba._call.arguments import Output
from synknumba._call.call import Call
from synknumba._ops.rows import Partition


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank's share of a planned call.

    Attributes:
        rank: the rank.
        rows: (start, stop), positions among the rows of the call.
        own_rows: number of selected rows of its own in sliceable variables; None if there are no such variables.
        slices: (start, stop) of each slice that has rows, shard after shard.
        input_bytes: bytes of the arrays that it reads from the host; variables are not counted, as they are on the rank.
    """

    rank: int
    rows: tuple[int, int]
    slices: tuple[tuple[int, int], ...]
    input_bytes: int
    own_rows: int | None = None


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A planned call, which has not been made. `str` formats it as a table.

    Attributes:
        function: name of the function.
        arguments: short description of each argument.
        rows: number of rows that `batch` selects; if only sliceable variables have rows, the number of these on all ranks; None
            if nothing has rows.
        num_slices: number of slices of each rank, or of each shard.
        ranks: share of each rank.
        outputs: (name, op) of each output; for a Python function, one entry with its tree of ops, if any.
        updates: (parameter, op) of each updated variable.
        shards: number of shards, independent of the world size; None for one per rank.
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
        """Formats the report as a small table."""
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
        whose = "each rank's variable" if self.shards is None else "the variable on every rank, the same"
        lines += [f"  {name}: {whose}, {op}" for name, op in self.updates]
        return "\n".join(lines)


def make_report(name: str, outputs: Mapping[str, Output], ops: Any, updates: Mapping[str, Any], call: Call) -> PlanReport:
    """Makes the report on a call; outputs are those of a kernel, `ops` those of a Python function."""
    slicing, shards = Partition.even(call.options.num_slices), call.options.shards
    per_row, whole = call.sizes()
    own, count = None if call.own is None else call.own.counts, call.count
    ranks, at = [], 0
    for rank in range(call.partition.parts):
        if isinstance(count, tuple):
            cuts: tuple[int, ...] = (at, at + count[rank])
            at = cuts[1]
        else:
            cuts = call.partition.shard_edges(count or 0, shards, rank)
        start, stop = cuts[0], cuts[-1]
        mine = None if own is None else own[rank]
        slices = tuple(one for cut in pairwise(cuts) for one in _slices(*cut, mine or 0, slicing))
        ranks.append(RankReport(rank, (start, stop), slices, per_row * (stop - start) + whole, mine))
    told = tuple((key, output.op) for key, output in outputs.items()) or ((("result", ops),) if ops is not None else ())
    return PlanReport(
        name, call.texts(), call.total, call.options.num_slices, tuple(ranks), told, tuple(updates.items()), shards
    )


def _slices(start: int, stop: int, own: int, slicing: Partition) -> tuple[tuple[int, int], ...]:
    """Returns the slices that are run: those with rows, or with rows of the rank's own."""
    cuts = zip(pairwise(slicing.edges(stop - start)), slicing.counts(own), strict=True)
    return tuple((start + low, start + high) for (low, high), own_rows in cuts if high > low or own_rows)
