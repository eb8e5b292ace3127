"""Routine that combines large results: each rank combines its share of the elements, over all
ranks' parts.

cores    parts[0][own], parts[1][own], … ──op──> place[own]
GPUs     result ──(mean: · rows)──> reduce_scatter, in place ──(mean: / all rows)──> result[own] ──copy──> place[own]

Steps are created once for each place that results are written to (`_host/lent_results.py`).
"""  # noqa: E501

import struct
from collections.abc import Sequence
from functools import partial
from typing import Any, final

import numpy as np

from synknumba._comm import Communicator, Exchange, on_rank
from synknumba._device import Step, fold_kernel
from synknumba._host.lent_results import MOST_PLACES
from synknumba._ops import reduction
from synknumba._ops.rows import Partition
from synknumba._rank.kernel_routine import KernelRoutine
from synknumba._rank.outputs import total
from synknumba._rank.replay import Repetition
from synknumba._rank.routine import Place, Repeated
from synknumba._types import Array, Cache
from synknumba._wire.program import Combination, Combined, Joined
from synknumba._wire.relaunch import Again

SHARED_BYTES = 64 << 10  # of a smaller array, one rank combines all elements
# one run for each combination of places and, for means, of the ranks' row counts
RUNS_KEPT = 64 * MOST_PLACES


@final
class CombinationRoutine(Repeated):
    """A combination on one rank.

    Args:
        program: description of the combination.
        place: state of the rank.
        source: routine of the kernel that computes the results.
        communicator: communicator between the devices; None if the parts are in shared memory.
    """

    def __init__(
        self,
        program: Combination,
        place: Place,
        source: KernelRoutine,
        communicator: Communicator | None,
    ) -> None:
        self.segments = source.segments  # so that it is dropped together with the kernel's program
        self.variables = source.variables
        self.function = source.function
        self.written: set[int] = set()
        self._program = program
        self._place = place
        self._source = source
        self._communicator = communicator
        values = len(program.results)
        if program.weighted:
            values += place.world_size
        self._layout = struct.Struct(f"<{values}q")
        self._runs: Cache[bytes, Repetition] = Cache(RUNS_KEPT, Repetition.close)
        self._last: tuple[bytes, Repetition] | None = None

    def __call__(self) -> None:
        packed = bytes(self._place.control.values.data[: self._layout.size])
        run = self._runs.get(packed)
        if run is None:
            values = self._layout.unpack(packed)
            # may call `forget_buffers`, if memory must be page-locked anew
            run = self._make(values)
            self._runs[packed] = run
            self.written.update(values[: len(self._program.results)])
        self._last = (packed, run)
        run()

    @property
    def again(self) -> Again | None:
        if self._last is None:
            return None
        packed, run = self._last
        return run.again(self._program.number, self._place.control.values, packed)

    @property
    def _partition(self) -> Partition:
        """That of the elements: equal work for each rank, independent of its rows."""
        return Partition.even(self._place.world_size)

    def forget_buffers(self) -> None:
        self._runs.drop_all()
        self._last = None
        self.written.clear()

    def _make(self, values: Sequence[int]) -> Repetition:
        results = self._program.results
        segments, weights = values[: len(results)], np.array(values[len(results) :], np.int64)
        parts = list(map(self._part, results, segments))
        if self._communicator is None:
            steps = self._on_cores(parts, weights)
        else:
            steps = self._on_devices(self._communicator, parts, weights)
        return Repetition(self._place.device, steps)

    def _part(self, result: Combined, segment: int) -> Array:
        """Returns this rank's elements of the result, in the segment that the coordinator reads."""
        start, stop = self._partition.part(result.count, self._place.rank)
        return self._place.segments[segment].array(result.dtype, (result.count,))[start:stop]

    def _on_cores(self, targets: Sequence[Array], weights: Array) -> list[Step]:
        steps: list[Step] = []
        for result, target in zip(self._program.results, targets, strict=True):
            assert result.parts is not None  # without a communicator, parts are in shared memory
            start, stop = self._partition.part(result.count, self._place.rank)
            lines = self._place.host(result.parts).reshape(self._place.world_size, result.count)
            parts = lines[:, start:stop]
            steps.append(partial(reduction.combine_into, result.op, parts, weights, target))
        return steps

    def _on_devices(
        self, communicator: Communicator, targets: Sequence[Array], weights: Array
    ) -> list[Step]:
        device = self._place.device
        before: list[Step] = []
        reductions: list[Step] = []
        after: list[Step] = []
        for result, target in zip(self._program.results, targets, strict=True):
            line = total(self._source.workspace, result.name, result.dtype, (result.count,))
            op: Any = result.op
            if result.op == "mean":
                line, op = self._weighted(result, line, weights, before), "sum"
            exchange, share = self._exchange(result, line)
            reductions.append(communicator.reduce_scatter([exchange], op))
            if not len(target):
                continue
            if result.op == "mean":
                share = self._divided(result, share, weights, after)
            after.append(device.download(target, share))
        if communicator.on_stream:
            reductions = list(map(device.on_stream, reductions))
        return [*before, *reductions, *after]

    def _exchange(self, result: Combined, line: Any) -> tuple[Exchange, Any]:
        """Returns the exchange that reduces the result in place, and this rank's share of
        `line`.
        """
        world_size, rank = self._place.world_size, self._place.rank
        share = line[slice(*self._partition.part(result.count, rank))]
        sources = on_rank(rank, line, world_size)
        targets = on_rank(rank, share, world_size)
        counts = self._partition.counts(result.count)
        return Exchange(line.dtype, sources, targets, (result.count,) * world_size, counts), share

    def _weighted(self, result: Combined, line: Any, weights: Array, steps: list[Step]) -> Any:
        """Adds steps that multiply this rank's mean by its rows; returns the product, in double
        precision or wider.
        """
        device = self._place.device
        wide = self._source.workspace.scratch(
            (result.name, "wide"), np.result_type(result.dtype, np.float64), line.shape
        )
        steps.append(device.fill(wide, wide.dtype.type(0)))
        weight = int(_shares(weights)[self._place.rank])
        if weight:  # a rank without rows contributes 0, even if its mean is NaN
            steps.append(device.accumulate("mean", wide, line, weight))
        return wide

    def _divided(self, result: Combined, share: Any, weights: Array, steps: list[Step]) -> Any:
        """Adds steps that compute the mean from the weighted sum; returns it in the result's
        dtype.
        """
        device = self._place.device
        total = int(_shares(weights).sum())
        if total > 1:
            steps.append(device.divide(share, total))
        if share.dtype == np.dtype(result.dtype):
            return share
        narrow = self._source.workspace.scratch((result.name, "narrow"), result.dtype, share.shape)
        steps += [
            device.fill(narrow, narrow.dtype.type(0)),
            device.accumulate("sum", narrow, share),
        ]
        return narrow


@final
class JoinRoutine(Repeated):
    """A combination in a sequence, on one rank, of an array that later calls of the sequence read.

    Rank 0 combines a small array, and each rank its share of a large one.
    """

    function = None
    variables: frozenset[int] = frozenset()

    def __init__(self, program: Joined, place: Place) -> None:
        self.segments = program.segments()
        self._program, self._place = program, place
        self._weights = np.array(program.weights, np.int64)
        self._arrays: tuple[Array, Array] | None = None  # parts and target

    def __call__(self) -> None:
        program, place = self._program, self._place
        if self._arrays is None:
            if program.is_small:
                parts = program.parts.in_lines(place.control.results)
            else:
                parts = place.host(program.parts)
            self._arrays = parts, place.host(program.target)
        parts, target = self._arrays
        if isinstance(program.op, str) and target.nbytes > SHARED_BYTES:
            start, stop = Partition.even(place.world_size).part(target.size, place.rank)
            flat = parts.reshape(place.world_size, target.size)[:, start:stop]
            reduction.combine_into(program.op, flat, self._weights, target.reshape(-1)[start:stop])
        elif place.rank == 0:
            target[...] = fold_kernel.combined(self._program.op, parts, self._weights)

    def forget_buffers(self) -> None:
        self._arrays = None


def _shares(weights: Array) -> Array:
    """Returns the weights; 1 if a single rank has all rows, since w·v / w may differ from v in
    the last bit.
    """
    return weights if np.count_nonzero(weights) > 1 else np.minimum(weights, 1)
