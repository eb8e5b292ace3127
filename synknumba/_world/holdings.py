"""What the ranks of one life of a world have of the script, and what they may free.

A rank maps a segment when a call first uses it, and again after it has grown. Functions are sent
with their first call. A rank frees objects on request, at the end of a call or between calls. The
commands are sent by the thread that holds the world.
"""

import collections
import linecache
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias, final

from synknumba._host.segment import Segment
from synknumba._wire import channel
from synknumba._wire.messages import Attach, Drop
from synknumba._world.code import RankCode
from synknumba._world.read_values import RankValues

Kind: TypeAlias = Literal["segment", "program", "function", "variable"]
"""Kinds of objects that a rank can free; a "variable" is the memory of one."""


@final
class Holdings:
    """Tracks what the ranks have, and queues the objects that they may free.

    Attributes:
        code: code of the script's functions.
        values: values that these functions read.
        shipped: ids of the functions that were sent.
        proven: ids of those that have run to their end; others are sent again after a failure.
        texts: `linecache` entries: texts of files, of which some are not on disk, or not as they
            were.
        unwanted: objects to free with the next `Drop`; looked at at the end of each call.
    """

    __slots__ = ("_mapped", "code", "proven", "shipped", "texts", "unwanted", "values")

    def __init__(self) -> None:
        self.code = RankCode()
        self.values = RankValues()
        self.shipped: set[int] = set()
        self.proven: set[int] = set()
        self.texts = dict(linecache.cache)
        self.unwanted: collections.deque[tuple[Kind, int]] = collections.deque()
        self._mapped: dict[int, int] = {}  # segment id: generation that the ranks have mapped

    def missing(self, segments: Sequence[Segment]) -> Iterator[tuple[Attach, list[int]]]:
        """Yields commands, with descriptors, that map those of the segments that are new to the
        ranks or have grown.

        A command counts as sent when the next one is requested.
        """
        needed = [
            segment for segment in segments if self._mapped.get(segment.id) != segment.generation
        ]
        for start in range(0, len(needed), channel.MAX_DESCRIPTORS):
            batch = needed[start : start + channel.MAX_DESCRIPTORS]
            yield (
                Attach(tuple((segment.id, segment.size) for segment in batch)),
                [segment.fd for segment in batch],
            )
            self._mapped.update((segment.id, segment.generation) for segment in batch)

    def forget(self, kind: Kind, number: int) -> None:
        """Queues an object to be freed, unless the ranks do not have it. Takes no lock."""
        if kind != "segment" or self._mapped.pop(number, None) is not None:
            self.unwanted.append((kind, number))

    def drop(self) -> Drop:
        """Returns the command that frees all queued objects, and empties the queue."""
        numbers: dict[Kind, list[int]] = {
            "segment": [],
            "program": [],
            "function": [],
            "variable": [],
        }
        while self.unwanted:
            kind, number = self.unwanted.popleft()
            numbers[kind].append(number)
        return Drop(*(tuple(ids) for ids in numbers.values()))
