"""What the ranks hold of the coordinator's: which segments they have mapped, and what they need not keep any longer.

Only the books are here. Whoever has the world for a call sends what they say.
"""

import collections
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias, final

from synknumba._host.segment import Segment
from synknumba._wire import channel
from synknumba._wire.messages import Attach, Drop

Kind: TypeAlias = Literal["segment", "program", "function", "variable"]
"""What a rank can let go of; a variable's is its memory."""


@final
class RankHoldings:
    """The books of one world.

    Attributes:
        unwanted: what the ranks have not been told to drop yet; read at the end of each call.
    """

    def __init__(self) -> None:
        self._mapped: dict[int, int] = {}  # by segment id: the generation that the ranks have mapped
        self.unwanted: collections.deque[tuple[Kind, int]] = collections.deque()

    def missing(self, segments: Sequence[Segment]) -> Iterator[tuple[Attach, list[int]]]:
        """What makes the ranks map these segments where they have not, or where they have grown since: with descriptors.

        What was yielded counts as sent when the next is asked for.
        """
        needed = [segment for segment in segments if self._mapped.get(segment.id) != segment.generation]
        for start in range(0, len(needed), channel.MAX_DESCRIPTORS):
            some = needed[start : start + channel.MAX_DESCRIPTORS]
            yield Attach(tuple((one.id, one.size) for one in some)), [one.fd for one in some]
            self._mapped.update((one.id, one.generation) for one in some)

    def forget(self, kind: Kind, number: int) -> bool:
        """Notes that something is no longer wanted; whether the ranks have it. Takes no lock."""
        if kind == "segment" and self._mapped.pop(number, None) is None:
            return False
        self.unwanted.append((kind, number))
        return True

    def drop(self) -> Drop:
        """What makes the ranks let go of all that is not wanted. It counts as sent."""
        numbers: dict[Kind, list[int]] = {"segment": [], "program": [], "function": [], "variable": []}
        while self.unwanted:
            kind, number = self.unwanted.popleft()
            numbers[kind].append(number)
        return Drop(*(tuple(numbers[kind]) for kind in ("segment", "program", "function", "variable")))

    def clear(self) -> None:
        """There are no ranks any more."""
        self.unwanted.clear()
