"""Rounds that a rank serves in compiled code: calls that it knows, launched again, with other scalars where these have changed.

    doorbell ──> a known call? ──yes──> the same scalars? ──yes──> launch ──> take the results ──> arrive ─┐
       ▲              │                        └──no──> rewrite them ──┘                                   │
       │              no                                                                                   │
       │              └──> back to Python                                                                  │
       └───────────────────────────────────────────────────────────────────────────────────────────────────┘

A call is known by its program's number and by the values that select its rows and say where its results go. It is known for as
long as its launch repeats it: until the memory that it has to do with moves, or is given other contents.

What is launched ends by writing its small results to a mailbox, page-locked words of 8 bytes: 4 of a result, and 4 that say
that these are there. A word arrives whole, so the device needs no fence between a result and a flag, which takes it more than a
microsecond; NCCL's protocol LL is the same. The host takes the words apart and puts the results where they belong.

Compiled code hears of no signal and looks after nobody, so it goes back to Python every 50 ms, as soon as a result is late or a
launch fails, and with every other command.
"""

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import final

import numpy as np

from synknumba._types import Array
from synknumba._wire import doorbell as doorbell_module

MOST_KNOWN = 64  # calls; to find the last of them takes 0.23 µs


@final
class Relaunch:
    """What is launched, and where its results go: 4 bytes to each target.

    Args:
        function: address of a C function that takes an executable and a stream and returns 0, or an error.
        executable: the first argument.
        stream: the second one.
        box: address of the mailbox, of as many words as there are targets.
        targets: addresses.
    """

    def __init__(self, function: int, executable: int, stream: int, box: int, targets: Sequence[int]) -> None:
        self._words = np.array([function, executable, stream, box, len(targets), *targets], np.int64)
        self.address: int = self._words.ctypes.data


@dataclass(frozen=True, slots=True)
class Scalar:
    """Where a launch reads a number.

    Attributes:
        position: of the scalar among the launch's arguments.
        part: 0, or 1 for the imaginary part.
        letter: how the number is packed there, as in the struct module.
        address: of the number.
    """

    position: int
    part: int
    letter: str
    address: int


@dataclass(frozen=True, slots=True)
class Scalars:
    """Where launches read their scalars, and how they are told that these have changed.

    Attributes:
        places: all of them.
        function: address of a C function that takes three pointers and returns 0, or an error.
        calls: what it is called with.
    """

    places: Sequence[Scalar]
    function: int
    calls: Sequence[tuple[int, int, int]]


@final
class Rewriting:
    """How the scalars among a round's values get to where launches read them.

    Args:
        scalars: of the launches.
        moves: for each place the first byte among the values, the address that it goes to, and how many bytes go there, or
            AS_SINGLE where 8 of them become 4.
    """

    def __init__(self, scalars: Scalars, moves: Sequence[tuple[int, int, int]]) -> None:
        lines = [word for line in (*scalars.calls, *moves) for word in line]
        self._words = np.array([scalars.function, len(scalars.calls), len(moves), *lines], np.int64)
        self.address: int = self._words.ctypes.data


@dataclass(frozen=True, slots=True)
class ScalarPacking:
    """How scalars come with a round.

    Attributes:
        formats: of all values, a letter of the struct module each.
        nbytes: of the scalars, which come first.
        first: the index among the values of the argument at a position, or of its real part.
    """

    formats: str = ""
    nbytes: int = 0
    first: Mapping[int, int] = field(default_factory=dict)

    def rewriting(self, scalars: Scalars) -> Rewriting | None:
        """How these are rewritten; None where one is packed in another way there."""
        moves = []
        for place in scalars.places:
            index = self.first[place.position] + place.part
            nbytes = _moved_bytes(self.formats[index], place.letter)
            if nbytes is None:
                return None
            moves.append((struct.calcsize("<" + self.formats[:index]), place.address, nbytes))
        return Rewriting(scalars, moves)


def _moved_bytes(source: str, target: str) -> int | None:
    """How many bytes of a number make the same number in another place, where the lowest come first."""
    integers = "qihbQIHB"
    if source == target or (source in "qQ" and target in integers):
        return struct.calcsize("<" + target)
    return doorbell_module.AS_SINGLE if (source, target) == ("d", "f") else None


@final
class Again:
    """A call that compiled code can repeat.

    Args:
        number: of the program.
        values: where a round's values are, in shared memory.
        packed: what these were, scalars first.
        packing: how scalars are among them.
        relaunch: address of the `Relaunch` that does the same again.
        finish: waits for the end of a launch.
        changed: called after compiled code has rewritten scalars.
    """

    def __init__(
        self,
        number: int,
        values: Array,
        packed: bytes,
        packing: ScalarPacking,
        relaunch: int,
        finish: Callable[[], None],
        changed: Callable[[], None],
    ) -> None:
        self.finish = finish
        self.changed = changed
        self.table: Table | None = None
        self._number = number
        self._packing = packing
        self._rewriting: Rewriting | None = None
        self._packed = ctypes.create_string_buffer(packed, len(packed))
        self._words = np.zeros(doorbell_module.AGAIN_WORDS, np.int64)
        known = (number, values.ctypes.data, len(packed), packing.nbytes, ctypes.addressof(self._packed), relaunch)
        self._words[: len(known)] = known
        self.address: int = self._words.ctypes.data

    def forget(self) -> None:
        """Until `know` is called, no round is this call."""
        self._words[doorbell_module.NUMBER] = doorbell_module.FORGOTTEN

    def know(self, packed: bytes, scalars: Scalars | None) -> None:
        """The launch uses these scalars now.

        Args:
            packed: as they come first among the values; what follows them does not matter.
            scalars: where the launch reads them, as far as that is known.
        """
        if self._rewriting is None and scalars is not None:
            self._rewriting = self._packing.rewriting(scalars)
        ctypes.memmove(self._packed, packed, self._packing.nbytes)
        self._words[doorbell_module.REWRITING] = 0 if self._rewriting is None else self._rewriting.address
        self._words[doorbell_module.NUMBER] = self._number

    def take_changed(self) -> bool:
        """Whether compiled code has rewritten scalars since this was asked last."""
        changed = bool(self._words[doorbell_module.CHANGED])
        self._words[doorbell_module.CHANGED] = 0
        return changed

    def close(self) -> None:
        """The launch is no longer possible, or no longer does the same."""
        self.forget()
        if self.table is not None:
            self.table.drop(self)


@final
class Table:
    """The calls that a rank knows. Where these are too many, any one of them makes room: loops over more are known in part.

    Attributes:
        known: all of them.
    """

    def __init__(self) -> None:
        self.known: list[Again] = []
        self._any = Random(0)  # noqa: S311  # of its own: functions on the rank draw from the module's
        self._words = np.zeros(doorbell_module.ENTRIES + MOST_KNOWN, np.int64)
        self.address: int = self._words.ctypes.data

    @property
    def served(self) -> int:
        """The rounds of the last `serve`."""
        return int(self._words[doorbell_module.SERVED])

    @property
    def late(self) -> Again:
        """The call that is under way after the last `serve`."""
        (late,) = [again for again in self.known if again.address == self._words[doorbell_module.LATE]]
        return late

    def add(self, again: Again) -> None:
        """Knows one more call."""
        if again.table is not None:
            return
        if len(self.known) == MOST_KNOWN:
            self.drop(self._any.choice(self.known))
        self._words[doorbell_module.ENTRIES + len(self.known)] = again.address
        self.known.append(again)
        self._words[doorbell_module.KNOWN] = len(self.known)
        again.table = self

    def drop(self, again: Again) -> None:
        """Does not know a call any more; the last one takes its place."""
        place, last = self.known.index(again), self.known[-1]
        self._words[doorbell_module.ENTRIES + place] = last.address
        self.known[place] = last
        self.known.pop()
        self._words[doorbell_module.KNOWN] = len(self.known)
        again.table = None

    def catch_up(self) -> None:
        """After `serve`, before anything else is run: tells those whose scalars have been rewritten."""
        if self._words[doorbell_module.REWRITTEN]:
            self._words[doorbell_module.REWRITTEN] = 0
            for again in self.known:
                if again.take_changed():
                    again.changed()
