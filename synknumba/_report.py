"""A call worked out but not made: what `Function.plan` returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from synknumba._arguments import Output
from synknumba._bind import Bound
from synknumba._call_rows import CallRows
from synknumba._partition import part
from synknumba._program import Broadcast, Sharded, Tree


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank's share.

    Attributes:
        rank: which.
        rows: (start, stop), positions among the rows of the call.
        slices: (start, stop) of each slice that has rows.
        input_bytes: of the arguments it reads.
    """

    rank: int
    rows: tuple[int, int]
    slices: tuple[tuple[int, int], ...]
    input_bytes: int


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A call, worked out.

    Attributes:
        function: its name.
        arguments: what was passed, one short text each.
        rows: of the call, after `batch`; None where nothing is sharded.
        num_slices: that each rank cuts its rows into.
        ranks: each rank's share.
        outputs: (name, op) of each output; for a Python function one entry with its tree of ops.
    """

    function: str
    arguments: tuple[str, ...]
    rows: int | None
    num_slices: int
    ranks: tuple[RankReport, ...]
    outputs: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        """A small table."""
        lines = [f"{self.function}({', '.join(self.arguments)})"]
        lines.append("no sharded argument: every rank runs once" if self.rows is None else f"{self.rows} rows")
        lines += [
            f"  rank {rank.rank}: rows {rank.rows[0]}..{rank.rows[1]} in {len(rank.slices)} slice(s), "
            f"reads {rank.input_bytes:,} bytes"
            for rank in self.ranks
        ]
        lines += [f"  {name}: {'a list, one value per rank' if op is None else op}" for name, op in self.outputs]
        return "\n".join(lines)


def make_report(
    name: str,
    outputs: Mapping[str, Output],
    ops: Any,
    bound: Bound,
    rows: CallRows,
    world_size: int,
    num_slices: int,
) -> PlanReport:
    """Works the report out.

    Args:
        name: of the function.
        outputs: of a kernel.
        ops: of a Python function.
        bound: the call's arguments.
        rows: the rows of the call.
        world_size: ranks to plan for.
        num_slices: slices per rank.
    """
    count = rows.total
    per_row, whole = _bytes(bound)
    ranks, at = [], 0
    for rank in range(world_size):
        start, stop = part(count or 0, world_size, rank)
        if isinstance(rows.count, tuple):
            start, stop = at, at + rows.count[rank]
            at = stop
        cuts = [part(stop - start, num_slices, k) for k in range(num_slices)]
        slices = tuple((start + low, start + high) for low, high in cuts if high > low)
        ranks.append(RankReport(rank, (start, stop), slices, per_row * (stop - start) + whole))
    told = tuple((key, output.op) for key, output in outputs.items()) or ((("result", ops),) if ops is not None else ())
    return PlanReport(name, bound.texts(), count, num_slices, tuple(ranks), told)


def _bytes(bound: Bound) -> tuple[int, int]:
    """Bytes that a row of all sharded arguments takes, and bytes of all broadcast arguments."""
    per_row = whole = 0
    params = list(bound.parameters.values())
    while params:
        match params.pop():
            case Tree(_, leaves):
                params += leaves
            case Sharded(array):
                per_row += int(np.prod(array.shape[1:], dtype=np.int64)) * np.dtype(array.dtype).itemsize
            case Broadcast(array):
                whole += int(np.prod(array.shape, dtype=np.int64)) * np.dtype(array.dtype).itemsize
    return per_row, whole
