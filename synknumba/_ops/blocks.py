"""Blocks of rows that each rank sends to each in an all_to_all (pure).

    rank 0:  | to 0 | to 1 |  ──>  | from 0 | from 1 |
    rank 1:  | to 0 | to 1 |  ──>  | from 0 | from 1 |

Blocks are consecutive rows, of any number. A rank's own block stays there.
"""

from collections.abc import Sequence

from synknumba._ops.halo import Copy
from synknumba._types import Counts


def equal_counts(lengths: Sequence[int]) -> Counts:
    """Returns the rows in each block, by sender and receiver, of ranks that have so many rows and
    divide them evenly.

    >>> equal_counts([4, 6])
    ((2, 2), (3, 3))
    """
    size = len(lengths)
    return tuple((length // size,) * size for length in lengths)


def block_copies(counts: Counts) -> list[Copy]:
    """Returns the copies of all blocks that have rows.

    >>> block_copies(((1, 2), (0, 3)))[1:]
    [Copy(source=0, source_start=1, target=1, target_start=0, count=2), Copy(source=1, source_start=0, target=1, target_start=2, count=3)]
    """  # noqa: E501
    copies = []
    received = [0] * len(counts)
    for source, by_target in enumerate(counts):
        sent = 0
        for target, count in enumerate(by_target):
            if count:
                copies.append(Copy(source, sent, target, received[target], count))
            sent += count
            received[target] += count
    return copies
