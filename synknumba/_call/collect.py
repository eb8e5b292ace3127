"""Combination of the ranks' results into the result of a call.

A collector combines small results in the coordinator: a function of the call's number of rows, made
once for each plan, which reads the ranks' parts from memory.

Large results of reductions are combined by the ranks, after the kernels; each rank combines some of
the elements:

                    cores                                       GPUs
    kernels         rank r writes parts[r] in a segment         rank r's result stays on its GPU
    (arrivals)
    combination     rank r combines its elements of             reduce_scatter by NCCL; rank r copies
                    parts[0], parts[1], …, in this order        its elements of the result
                                └──────────> memory that is lent to the caller <────────┘

These are two rounds rather than one: a rank whose kernel fails reports this in the first, so no
rank waits for it in a collective.
"""  # noqa: E501

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, final

import numpy as np

from synknumba._comm import DRIVERS
from synknumba._device import fold_kernel
from synknumba._host.copying import private_copy
from synknumba._host.lent_results import ResultLeases
from synknumba._host.segment import Segment
from synknumba._ops import reduction
from synknumba._ops.rows import Partition
from synknumba._types import Array, CallValues, Extremum, Op, UserOp
from synknumba._wire.messages import Install
from synknumba._wire.program import Combination, Program
from synknumba._world.engine import Engine
from synknumba._world.failure import CallInfo
from synknumba._world.transport_setup import join

Count: TypeAlias = int | tuple[int, ...] | None
"""Row count of a call: a total, a tuple with one count per rank (sliceable variables), or None if
the call has no rows.
"""


def total_rows(count: Count) -> int | None:
    """Returns the number of rows on all ranks; None if the call has no rows."""
    if isinstance(count, tuple):
        return sum(count)
    return count


def row_weights(count: Count, partition: Partition) -> Array:
    """Returns the number of rows of each rank or shard, int64 and read-only, into which a call's
    are cut; 1 for each if it has no rows.
    """
    if count is None:
        count = (1,) * partition.parts
    if not isinstance(count, tuple):
        count = partition.counts(count)
    weights = np.array(count, np.int64)
    weights.flags.writeable = False
    return weights


Collector: TypeAlias = Callable[[Count], Any]
"""Combines the parts that are in memory now, given the row count of the call."""


def make_collector(op: Op, parts: Array, weights: Callable[[Count], Array]) -> Collector:
    """Returns a collector for an op, which reads the parts when it is called and returns memory
    of its own.
    """
    if op is None:
        if parts.ndim == 1:
            return lambda _: list(parts)
        return lambda _: [private_copy(part) for part in parts]
    if op == "mean":
        return lambda count: reduction.combine("mean", parts, weights(count))
    if len(parts) == 1:
        if parts.ndim == 1:
            return lambda _: parts[0]
        return lambda _: private_copy(parts[0])
    if isinstance(op, UserOp):
        return lambda _: fold_kernel.fold(op, parts)
    # a Python loop takes 0.2 µs for two numbers, NumPy 1 µs
    are_few = parts.ndim == 1 and len(parts) < reduction.SEQUENTIAL_SUM
    if op == "sum" and are_few and parts.dtype == np.float64:
        return lambda _: np.float64(_add(parts.tolist()))
    reduce = partial(reduction.UFUNCS[op].reduce, parts, 0, parts.dtype)
    return lambda _: reduce()


@final
class Selection:
    """Maps positions among the rows of a call to indices of rows in the data; holds the call's
    segments weakly.
    """

    def __init__(self, program: Program, segments: Sequence[Callable[[], Segment | None]]) -> None:
        after = program.lent
        if program.own is not None:
            after += len(program.own.values)
        self._source = program.rows
        self._segments = segments
        # value that selects rows
        self.first = len(program.values) - len(program.rows.values) - after
        self.values: CallValues = ()  # of the last call, from that one on

    def data_rows(self, positions: Any) -> Any:
        """Returns the indices in the data of rows given by their positions in the call."""
        if self._source.kind == "range":
            start, step, _ = self.values[:3]
            return start + step * positions
        if self._source.kind != "list":
            return positions
        indices = self._source.indices
        assert indices is not None  # always present for a "list"
        for reference in self._segments:
            segment = reference()
            if segment is not None and segment.id == indices.segment:
                return segment.array(np.int64, indices.shape)[positions]
        raise AssertionError  # a call keeps its segments


def make_locator(op: Op, values: Array, rows: Array, selection: Selection) -> Collector:
    """Returns a collector that finds the best of the parts, and the index of its row."""

    def collect(_: Count) -> Extremum:
        value, position = reduction.best(op, values, rows)
        return Extremum(value, selection.data_rows(position))

    return collect


def _add(values: list[float]) -> float:
    """Returns the sum in order, as NumPy adds so few numbers; the built-in `sum` compensates
    from Python 3.12 on.
    """
    total = values[0]
    for value in values[1:]:
        total += value
    return total


# On two cores, a sum by the ranks takes as long as one by the coordinator up to 1 MiB, and half as
# long at 64 MiB.
CORES_BYTES = 1 << 20
DEVICES_BYTES = 256 << 10


def is_worthwhile(world: Engine, nbytes: int) -> bool:
    """Returns whether the ranks should combine a result of `nbytes` bytes.

    Sets up the transport if that decides; called between the world's `begin` and `end`.
    """
    if world.world_size == 1 or world.spans_machines:
        return False
    if world.traits.shares_memory:
        return nbytes >= CORES_BYTES
    if DRIVERS[world.life.transport].in_shared_memory or nbytes < DEVICES_BYTES:
        return False
    join(world)  # the transport is "host" by now if it could not be set up
    return not DRIVERS[world.life.transport].in_shared_memory


@final
class Combining:
    """The combination of large results by the ranks, which must have the plan's program already,
    to memory of `lenders`.
    """

    def __init__(
        self,
        world: Engine,
        program: Combination,
        info: CallInfo,
        lenders: Mapping[str, ResultLeases],
    ) -> None:
        self._world = world
        self._program = program
        self._info = info
        self._lenders = [lenders[result.name] for result in program.results]
        fields = len(program.results)
        if program.weighted:
            fields += world.world_size
        self._pack = struct.Struct(f"<{fields}q").pack_into
        self._memory = world.ranks.values.data
        world.command(Install(None, program), info=info)

    def run(self, weights: Callable[[], Array]) -> None:
        """Has the ranks combine their results; calls `weights` for the rows on each rank if one
        of the results is a mean.
        """
        values: list[Any] = [lender.choose() for lender in self._lenders]
        if self._program.weighted:
            values += weights().tolist()
        self._pack(self._memory, 0, *values)
        self._world.run(self._program.number, self._info, _nothing_to_learn)

    def forget(self) -> None:
        """Makes the ranks drop the program."""
        self._world.forget("program", self._program.number)


def _nothing_to_learn(_: object) -> None:
    """Ignores news: ranks that combine send none."""
