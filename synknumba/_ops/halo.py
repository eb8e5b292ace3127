"""Halos: the rows of its neighbours that a rank holds copies of, beside its own rows (pure).

    rank 1:   | rank 0's last rows | own rows | rank 2's first rows |
               lower halo                       upper halo

There is none below the first row of the whole and above the last, unless the halo is periodic: the
first and the last rank are then neighbours, and a single rank is its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import final

from synknumba._types import Span, count_text


@final
@dataclass(frozen=True, slots=True)
class Copy:
    """Consecutive rows, or elements, that one rank's array gets from another's."""

    source: int  # rank
    source_start: int
    target: int  # rank
    target_start: int
    count: int

    def scaled(self, factor: int) -> "Copy":
        """Returns the same copy in units of which `factor` make one.

        >>> Copy(0, 4, 1, 0, 2).scaled(10)
        Copy(source=0, source_start=40, target=1, target_start=0, count=20)
        """
        starts = self.source_start * factor, self.target_start * factor
        return Copy(self.source, starts[0], self.target, starts[1], self.count * factor)

    def reversed(self) -> "Copy":
        """Returns the copy back.

        >>> Copy(0, 4, 1, 0, 2).reversed()
        Copy(source=1, source_start=0, target=0, target_start=4, count=2)
        """
        return Copy(self.target, self.target_start, self.source, self.source_start, self.count)


@final
@dataclass(frozen=True, slots=True)
class Halo:
    """How many rows of each neighbour a rank holds, and whether the last rank and the first are
    neighbours.
    """

    width: int  # at least 1
    periodic: bool = False

    def sides(self, rank: int, world_size: int) -> tuple[int, int]:
        """Returns the rows of the lower and the upper halo of a rank.

        >>> [Halo(2).sides(rank, 3) for rank in range(3)], Halo(2, periodic=True).sides(0, 1)
        ([(0, 2), (2, 2), (2, 0)], (2, 2))
        """
        if self.periodic:
            return self.width, self.width
        return self.width * (rank > 0), self.width * (rank < world_size - 1)

    def own(self, length: int, rank: int, world_size: int) -> Span:
        """Returns the indices of a rank's own rows in its array of so many rows.

        >>> Halo(2).own(7, 1, 3)
        Span(start=2, stop=5)
        """
        lower, upper = self.sides(rank, world_size)
        return Span(lower, length - upper)

    def length(self, count: int, rank: int, world_size: int) -> int:
        """Returns the number of rows of a rank's array, given that of its own rows."""
        return sum(self.sides(rank, world_size)) + count

    def spans(self, start: int, stop: int, n: int, rank: int, world_size: int) -> list[Span]:
        """Returns the rows of the whole that a rank holds: its own, start … stop − 1 of n, and
        those of its halos, in order.

        No rank has fewer rows than the halo.

        >>> Halo(1).spans(3, 6, 9, 1, 3), Halo(1, periodic=True).spans(0, 3, 9, 0, 3)
        ([Span(start=2, stop=7)], [Span(start=8, stop=9), Span(start=0, stop=4)])
        """
        lower, upper = self.sides(rank, world_size)
        low, high = start - lower, stop + upper
        spans = [Span(max(low, 0), min(high, n))]
        if low < 0:
            spans.insert(0, Span(n + low, n))
        if high > n:
            spans.append(Span(0, high - n))
        return spans

    def copies(self, counts: Sequence[int]) -> list[Copy]:
        """Returns the copies that renew all halos, in rows of the ranks' arrays, given the number
        of own rows of each rank.

        No rank has fewer rows than the halo. The copies read own rows, and write rows of halos,
        each once.

        >>> Halo(1).copies([3, 2])[0]
        Copy(source=1, source_start=1, target=0, target_start=3, count=1)
        """
        copies = []
        for rank, count in enumerate(counts):
            lower, upper = self.sides(rank, len(counts))
            if lower:
                below = (rank - 1) % len(counts)
                first = self.sides(below, len(counts))[0] + counts[below] - lower
                copies.append(Copy(below, first, rank, 0, lower))
            if upper:
                above = (rank + 1) % len(counts)
                first = self.sides(above, len(counts))[0]
                copies.append(Copy(above, first, rank, lower + count, upper))
        return copies

    def problem(self, counts: Sequence[int], what: str) -> str | None:
        """Returns why the halo does not fit own rows of these numbers on the ranks; None if it
        does. `what` has the rows.
        """
        if min(counts) >= self.width:
            return None
        total = sum(counts)
        leave = "leave"
        if total == 1:
            leave = "leaves"
        return (
            f"halo={self.width} needs {count_text(self.width, 'row')} on every rank, and "
            f"{count_text(total, 'row')} of {what} on {count_text(len(counts), 'rank')} {leave} "
            f"{min(counts)}"
        )

    def __str__(self) -> str:
        """Returns the options of `scatter` that make such a halo."""
        if self.periodic:
            return f"halo={self.width}, periodic"
        return f"halo={self.width}"


def first_rows(halo: Halo | None, counts: Sequence[int]) -> tuple[int, ...]:
    """Returns the row of the whole that is row 0 of each rank's array, given own rows; below 0 for
    a row before the first.

    >>> first_rows(Halo(1), [3, 2]), first_rows(Halo(1, periodic=True), [3, 2]), first_rows(None, [3, 2])
    ((0, 2), (-1, 2), (0, 3))
    """  # noqa: E501
    starts = accumulate(counts[:-1], initial=0)
    if halo is None:
        return tuple(starts)
    return tuple(start - halo.sides(rank, len(counts))[0] for rank, start in enumerate(starts))
