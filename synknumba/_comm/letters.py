"""Letters: the pieces in which small messages go from GPU to GPU (pure).

    rank 0 to 1   |aaaaaaaa|aaa     in its first and second letter
    rank 1 to 0   |bbb              in its first; its second one is empty, since rank 0 waits for one

Two ranks write each other the same number of letters. Letter i of a rank is a place in the other's
inbox that belongs to the pair, so every place is read and written by one pair of blocks of threads.
"""  # noqa: E501

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import NamedTuple, TypeAlias

from synknumba._ops.halo import Copy

LETTER_BYTES = 8 << 10  # 1,024 words of 8 bytes, two for each thread of a block
MOST_LETTERS = 32  # from one rank to another
MOST_BYTES = LETTER_BYTES * MOST_LETTERS

Run: TypeAlias = tuple[int, int]  # of memory: address, bytes


class Letter(NamedTuple):
    """Letters of a rank to another, and back, with the same number."""

    peer: int  # rank
    number: int  # among those of the pair
    send: int  # address
    send_bytes: int  # 0: an empty letter
    receive: int  # address
    receive_bytes: int


def fit(copies: Sequence[Sequence[Copy]], world_size: int) -> bool:
    """Whether the messages of several exchanges are small enough, for each pair of ranks; `copies`
    are in bytes.

    >>> fit([[Copy(0, 0, 1, 0, 70_000)], [Copy(0, 0, 1, 0, 190_000)]], 2), fit([[Copy(0, 0, 1, 0, 70_000)]], 2)
    (False, True)
    """  # noqa: E501
    letters = [0] * world_size**2
    for copy in chain.from_iterable(copies):
        if copy.source != copy.target:
            letters[copy.source * world_size + copy.target] += -(-copy.count // LETTER_BYTES)
    return max(letters) <= MOST_LETTERS


def letters_of(
    rank: int, world_size: int, copies: Sequence[Sequence[Copy]], places: Sequence[tuple[int, int]]
) -> list[Letter]:
    """Returns what a rank writes and reads in several exchanges.

    Args:
        rank: whose letters.
        world_size: W.
        copies: of each exchange, in bytes; the same on all ranks.
        places: addresses of the rank's source and target in each exchange.

    >>> for letter in letters_of(0, 2, [[Copy(0, 8, 1, 0, 9000), Copy(1, 0, 0, 64, 4)]], [(1000, 5000)]):
    ...     print(letter)
    Letter(peer=1, number=0, send=1008, send_bytes=8192, receive=5064, receive_bytes=4)
    Letter(peer=1, number=1, send=9200, send_bytes=808, receive=0, receive_bytes=0)
    """  # noqa: E501
    sent: dict[int, list[Run]] = defaultdict(list)
    received: dict[int, list[Run]] = defaultdict(list)
    for exchange, (source, target) in zip(copies, places, strict=True):
        for copy in exchange:
            if copy.source == rank != copy.target:
                sent[copy.target] += pieces((source + copy.source_start, copy.count))
            elif copy.target == rank != copy.source:
                received[copy.source] += pieces((target + copy.target_start, copy.count))
    letters: list[Letter] = []
    for peer in range(world_size):
        pairs = zip_longest(sent[peer], received[peer], fillvalue=(0, 0))
        letters += [Letter(peer, number, *send, *back) for number, (send, back) in enumerate(pairs)]
    return letters


def pieces(run: Run) -> list[Run]:
    """Returns memory in pieces of the size of a letter.

    >>> pieces((64, 8200))
    [(64, 8192), (8256, 8)]
    """
    address, nbytes = run
    return [(address + at, min(LETTER_BYTES, nbytes - at)) for at in range(0, nbytes, LETTER_BYTES)]
