"""What the script's process does with a world, while it is traced: calls, rounds and messages, with
their times.

    call     begin ────────────────────────────────────────────── end        the script has the world
    round              ring ─────────────── all have arrived                 the ranks work
                bind                                          combine        what remains

Times are those of `time.monotonic_ns`, as the ranks' are. Rounds are recorded by compiled code, but
for those that end late.
"""  # noqa: E501

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar, final

from synknumba._types import Array
from synknumba._wire import doorbell
from synknumba._wire.messages import Trace, Traced
from synknumba._wire.ring import Ring
from synknumba._world.failure import CallInfo

OF_TRACES = Trace.__name__.lower()  # name of the messages that begin traces and collect them


class Message(NamedTuple):
    """A message to all ranks, and their answers."""

    began: int
    ended: int
    nbytes: int
    name: str


Call: TypeAlias = tuple[int, int, int]  # begin, end, bytes passed to the ranks

_T = TypeVar("_T", Call, Message)


@final
class _Latest(deque[_T]):
    """The last calls or messages.

    Attributes:
        gone: end of the last that was dropped, as there was no room; 0 if there is none.
    """

    gone = 0

    def add(self, span: _T) -> None:
        if len(self) == self.maxlen:
            self.gone = max(self.gone, self[0][1])
        self.append(span)


@final
class Events:
    """The events of one world.

    Args:
        records: how many of each kind are kept, the last ones.
        scattered: bytes that the world has scattered so far.
        ended: gets the events when the trace has ended.

    Attributes:
        names: the calls of programs, by number.
        began: when the call under way has got the world.
        calls: begin and end of each, and the bytes that it has passed to the ranks.
        ring: the rounds.
        ranks: what the ranks have recorded, by rank; nothing if they were killed.
        started: when the trace began.
        reason: why the ranks were ended while they were traced; None if they were not.
    """

    def __init__(self, records: int, scattered: int, ended: "Callable[[Events], None]") -> None:
        self._ended = ended
        self.names: dict[int, CallInfo] = {}
        self.began = 0
        self.calls: _Latest[Call] = _Latest(maxlen=records)
        self.ring = Ring(records + 1)  # the oldest tells where those that are kept begin
        self.messages: _Latest[Message] = _Latest(maxlen=records)
        self.ranks: dict[int, Traced] = {}
        self.reason: str | None = None
        self.clock = time.time_ns() - time.monotonic_ns()
        self.started = time.monotonic_ns()
        self._scattered = scattered  # up to the last call

    @property
    def gone(self) -> int:
        """End of the last call or message that was dropped; 0 if there is none."""
        return max(self.calls.gone, self.messages.gone)

    def call_ends(self, scattered: int) -> None:
        """Notes that the call under way gives the world back; `scattered` bytes in all."""
        self.calls.add((self.began, time.monotonic_ns(), scattered - self._scattered))
        self._scattered = scattered

    def hand_over(self, reason: str | None, scattered: int) -> None:
        """Ends the trace; `reason` is that for which the ranks have been ended, if they have."""
        self.reason = reason
        # the call under way, if any, ends now
        last = self.calls[-1][1] if self.calls else 0
        if reason is not None and self.began > last:
            self.call_ends(scattered)
        self._ended(self)

    def add_round(self, sequence: int, number: int, began: int) -> None:
        """Adds a round that has just ended."""
        doorbell.record(self.ring.address, sequence, number, began, time.monotonic_ns())

    def rounds(self) -> tuple[Array, int]:
        """Returns number, program, begin and end of each round: int64, shape (n, 4); and how
        many are lost.
        """
        return self.ring.read()

    def add_message(self, name: str, began: int, nbytes: int) -> None:
        """Adds a message that all ranks have just answered; but that which collects this trace
        is no work of the script.
        """
        if name == OF_TRACES:
            return
        self.messages.add(Message(began, time.monotonic_ns(), nbytes, name))
