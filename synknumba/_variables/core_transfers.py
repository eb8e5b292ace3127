"""Values and collectives on cores: all memory is shared, so values are written, read and combined in place."""

from collections.abc import Sequence
from typing import final

import numpy as np

from synknumba._comm import Exchange
from synknumba._host.casting import fill
from synknumba._types import Array
from synknumba._variables.allocation import Allocation
from synknumba._variables.transfers import DIRECT_BYTES, Delivery, Pair, Run, Traffic, Work, describe


@final
class CoreTraffic(Traffic):
    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        spread = []
        for one in deliveries:
            values = one.values
            if self._is_worth_spreading(values):
                values = (values[0], *(None for _ in values[1:]))
                spread.append(Pair(one.storage, one.storage, one.leaf))
            for rank, value in enumerate(values):
                if value is not None:
                    fill(one.storage.array(one.leaf, rank), value)
        if spread:
            self.collective(Work("broadcast"), spread)()

    def _is_worth_spreading(self, values: Sequence[Array | None]) -> bool:
        """Whether all ranks get the same, and so much that they had better copy it themselves."""
        first = values[0]
        same = first is not None and all(value is first for value in values)
        return same and first is not None and first.nbytes * len(values) > DIRECT_BYTES and len(values) > 1

    def fetch(self, storage: Allocation, places: Sequence[tuple[int, int]]) -> list[Array]:
        return [storage.array(leaf, rank).copy() for leaf, rank in places]

    def reduced(self, work: Work, storage: Allocation) -> list[Array]:
        # The coordinator alone: for the ranks to help it, the result would have to be in new shared memory first.
        assert work.op is not None  # noqa: S101  # it reduces
        leaves = range(len(storage.layout.leaves))
        results = [np.empty(storage.layout.leaf(leaf).shapes[0], storage.layout.leaf(leaf).dtype) for leaf in leaves]
        exchanges = []
        for leaf, result in zip(leaves, results, strict=True):
            sources = tuple(storage.array(leaf, rank).reshape(-1) for rank in range(self.world.world_size))
            counts = tuple(map(len, sources))
            exchanges.append(Exchange(result.dtype, sources, (result.reshape(-1),), counts, counts[:1]))
        self.alone().reduce(exchanges, work.op, 0)()
        return results

    def plan(self, work: Work, pairs: Sequence[Pair]) -> tuple[Run, tuple[int, ...]]:
        arrays = [pair.ends() for pair in pairs]
        segments = [storage.segment for pair in pairs for storage in (pair.source, pair.target) if storage.segment]
        run, number = self.over_host(work, arrays, segments, describe(work, pairs))
        return run, () if number is None else (number,)
