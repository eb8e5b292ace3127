"""Values and collectives on cores: all memory is shared, so values are written, read and combined in place."""

from collections.abc import Sequence
from typing import final

from synknumba._casting import fill
from synknumba._storage import Storage
from synknumba._traffic import DIRECT_BYTES, Delivery, Pair, Run, Traffic, Work, describe
from synknumba._types import Array


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

    def fetch(self, storage: Storage, places: Sequence[tuple[int, int]]) -> list[Array]:
        return [storage.array(leaf, rank).copy() for leaf, rank in places]

    def plan(self, work: Work, pairs: Sequence[Pair]) -> tuple[Run, tuple[int, ...]]:
        arrays = [(*pair.source.end(pair.leaf), pair.target.end(pair.leaf)[1]) for pair in pairs]
        segments = [storage.segment for pair in pairs for storage in (pair.source, pair.target) if storage.segment]
        run, number = self.over_host(work, arrays, segments, describe(work, pairs))
        return run, () if number is None else (number,)
