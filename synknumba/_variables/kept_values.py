"""`Kept`: values of a variable in the coordinator's own memory, to be put on the ranks of the
next world.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import numpy as np

from synknumba._errors import PartitionError
from synknumba._ops.halo import Halo
from synknumba._ops.rows import Partition
from synknumba._types import Array

# of a value for GPUs: it is copied in some 0.1 ms, the least time that sending it takes
GIVEN_BYTES = 1 << 20
CLOSE_BYTES = 1 << 30  # of a variable on GPUs: fetched in about a second when its world is closed


@final
@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The values of a variable on the ranks of one world.

    Attributes:
        parts: the arrays, by rank, with their halos; the same list for ranks with equal replicas.
        sharded: whether each rank has its own rows.
        differs: whether replicas may differ.
        halo: halo of the arrays; None without.
        partition: partition of rows in that world; None if it is not known.
    """

    parts: Sequence[list[Array]]
    sharded: bool = False
    differs: bool = False
    halo: Halo | None = None
    partition: Partition | None = None

    def fit(self, partition: Partition, label: str) -> "Kept":
        """Returns the values for a world of another size: replicas on every rank, rows divided
        anew, and halos of these rows.

        Raises:
            PartitionError: each rank had an array of its own that is not a part of a whole, or
                there are fewer rows for a rank than the halo has.
        """
        size = partition.parts
        if len(self.parts) == size and not self._follows_another(partition):
            return self
        if self._are_equal_replicas():
            return Kept((self.parts[0],) * size)
        have_rows = self.sharded and all(_fit(leaf, 1) for leaf in self._by_leaf())
        if not have_rows:
            raise PartitionError(
                f"{label} has an array of its own on each of {len(self.parts)} ranks, which have "
                f"no place on {size}; call fork({len(self.parts)}), or set it: synk.broadcast(v, "
                "value) for replicas, synk.scatter(v, value) for rows"
            )
        wholes = list(map(np.concatenate, self._by_leaf()))
        if self.halo is not None:
            for whole in wholes:
                problem = self.halo.problem(partition.counts(len(whole)), label)
                if problem is not None:
                    raise PartitionError(
                        f"{problem}; call fork({len(self.parts)}), or divide it anew: "
                        f"synk.scatter(v, value, halo=…)"
                    )
        return Kept.divided(wholes, partition, self.halo)

    def _by_leaf(self) -> list[tuple[Array, ...]]:
        """Returns the ranks' arrays without halos, for each array of the tree."""
        return list(zip(*self.own(), strict=True))

    def _are_equal_replicas(self) -> bool:
        first, *rest = self.parts
        return not self.sharded and all(_same(first, replica) for replica in rest)

    def _follows_another(self, partition: Partition) -> bool:
        """Returns whether rows were divided by a world's partition, and not by the script, and
        this is another one.
        """
        old = self.partition
        if not self.sharded or old is None or old == partition:
            return False
        for leaf in self._by_leaf():
            lengths = tuple(map(len, leaf))
            if lengths != old.counts(sum(lengths)):
                return False
        return True

    @classmethod
    def divided(cls, wholes: Sequence[Array], partition: Partition, halo: Halo | None) -> "Kept":
        """Returns the values of a variable whose rows are divided; without a halo the parts are
        views of the rows.
        """

        def part(rank: int) -> list[Array]:
            return [
                held_rows(partial(_between, whole), len(whole), partition, rank, halo)
                for whole in wholes
            ]

        parts = list(map(part, range(partition.parts)))
        return cls(parts, True, partition.parts > 1, halo, partition)

    def own(self) -> "Sequence[list[Array]]":
        """Returns views of the arrays without halos, by rank."""
        if self.halo is None:
            return self.parts
        parts = []
        for rank, arrays in enumerate(self.parts):
            edges = partial(self.halo.own, rank=rank, world_size=len(self.parts))
            parts.append([array[slice(*edges(len(array)))] for array in arrays])
        return parts

    def with_own(self, values: Mapping[int, list[Array]]) -> "Kept":
        """Returns the same with other values of some ranks' own rows."""
        parts = list(self.parts)
        for rank in values:
            parts[rank] = copies_of(parts[rank])
        new = replace(self, parts=parts)
        for rank, arrays in values.items():
            for target, value in zip(new.own()[rank], arrays, strict=True):
                target[...] = value
        return new

    def check_equal(self, label: str) -> None:
        """Raises `PartitionError` if replicas differ between the ranks."""
        if not self.sharded and not self._are_equal_replicas():
            raise PartitionError(
                f"the replicas of {label} differ between the ranks, and none is its value. "
                f"Combine them first, as by "
                'synk.all_reduce(v, "sum"), or copy that of rank 0 to all: synk.broadcast(v); or '
                "divide rows by synk.scatter"
            )

    def whole(self, label: str) -> list[Array]:
        """Returns copies of the arrays of a replica, or of the rows of all ranks, joined.

        Raises:
            PartitionError: the shapes on the ranks do not allow it.
        """
        by_leaf = self._by_leaf()
        first_axis = int(self.sharded)
        for leaf in by_leaf:
            if leaf[0].ndim < first_axis or not _fit(leaf, first_axis):
                raise PartitionError(
                    f"the arrays of {label} differ in shape between the ranks; use "
                    f"get_value(rank=…) for each"
                )
        if self.sharded:
            return list(map(np.concatenate, by_leaf))
        return [first.copy() for first, *_ in by_leaf]


def held_rows(
    take: Callable[[int, int], Array], n: int, partition: Partition, rank: int, halo: Halo | None
) -> Array:
    """Returns the rows of a whole of n rows that a rank holds, with its halos; `take` returns
    those from start to stop − 1.
    """
    start, stop = partition.part(n, rank)
    if halo is None:
        return take(start, stop)
    pieces = [take(*span) for span in halo.spans(start, stop, n, rank, partition.parts)]
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces)


def copies_of(arrays: Sequence[Array]) -> list[Array]:
    """Returns copies of arrays."""
    return [array.copy() for array in arrays]


def without_rows(arrays: Sequence[Array]) -> list[Array]:
    """Returns no rows of each array, of its dtype and row shape."""
    return [array[:0] for array in arrays]


def _fit(arrays: Sequence[Array], axis: int) -> bool:
    """Returns whether arrays have the same shape from an axis on."""
    return len({array.shape[axis:] for array in arrays}) == 1


def _between(array: Array, start: int, stop: int) -> Array:
    return array[start:stop]


def _same(first: Sequence[Array], second: Sequence[Array]) -> bool:
    """Returns whether two ranks hold the same bits."""
    return first is second or all(map(_are_same_bits, first, second))


def _are_same_bits(first: Array, second: Array) -> bool:
    return first.shape == second.shape and np.array_equal(_bytes(first), _bytes(second))


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
