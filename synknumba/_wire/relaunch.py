"""Relaunch: rounds that a rank serves in compiled code, by launching a known call again, with
updated scalars if they changed.

    doorbell ──> a known call? ──yes──> the same scalars? ──yes──> launch ──> read the results ──> arrive ─┐
       ▲              │                        └──no──> rewrite them ──┘                                   │
       │              no                                                                                   │
       │              └──> back to Python                                                                  │
       └───────────────────────────────────────────────────────────────────────────────────────────────────┘

A call is identified by its program's number and by the values that select its rows and the places
of its results. It stays known as long as its launch repeats it: until memory that it uses moves, or
gets other contents.

A launch ends by writing its small results to a mailbox, page-locked words of 8 bytes: 4 bytes of a
result, and a 4-byte flag that marks them as valid. A word arrives as a whole, so the device needs
no fence between result and flag, which would take more than a microsecond; NCCL's LL protocol does
the same. The host splits the words and copies the results to their targets.

Compiled code handles no signals and does not check whether the coordinator is alive. So it returns
to Python every 50 ms, as soon as a result is late or a launch fails, and for every other command.

`doorbell` holds the compiled code; the classes here are the memory that it reads, each an array of
int64 words.
"""  # noqa: E501

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import final

import numpy as np

from synknumba._types import Array
from synknumba._wire import doorbell as doorbell_module

MOST_KNOWN = 64  # calls; linear search, the last entry costs 0.23 µs


@final
class Relaunch:
    """A launch, and the targets of its results, 4 bytes each.

    Args:
        function: address of a C function of (executable, stream) that returns 0 or an error code; 0
            for `run_rows`.
        executable: its first argument.
        stream: its second argument.
        box: address of the mailbox, which has one word per target.
        targets: addresses to which the results are copied.
    """

    def __init__(
        self, function: int, executable: int, stream: int, box: int, targets: Sequence[int]
    ) -> None:
        self._kept: object = None
        self._words = np.array(
            [function, executable, stream, box, len(targets), *targets], np.int64
        )
        self.address: int = self._words.ctypes.data

    @classmethod
    def of_rows(cls, rows: Array, owner: object) -> "Relaunch":
        """Returns the launch of rows by `doorbell.run_rows`, which then is over; `owner` owns
        what the rows refer to.
        """
        relaunch = cls(0, rows.ctypes.data, 0, 0, ())
        relaunch._kept = rows, owner
        return relaunch


@dataclass(frozen=True, slots=True)
class Scalar:
    """A place from which a launch reads a scalar."""

    position: int  # of the scalar among the launch's arguments
    part: int  # 0, or 1 for the imaginary part
    letter: str  # format of the number there, as in the struct module
    address: int


@dataclass(frozen=True, slots=True)
class Scalars:
    """The places from which launches read scalars, and calls that make new ones take effect."""

    places: Sequence[Scalar]
    function: int  # address of a C function of three pointers that returns 0 or an error code
    calls: Sequence[tuple[int, int, int]]  # arguments of each call of the function


@dataclass(frozen=True, slots=True)
class ScalarPacking:
    """Layout of the scalars among a round's values."""

    formats: str = ""  # of all values, one letter of the struct module each
    nbytes: int = 0  # of the scalars, which precede the other values
    # argument position: index of its value, or of its real part
    first: Mapping[int, int] = field(default_factory=dict)

    def rewriting(self, scalars: Scalars) -> Array | None:
        """Returns the words of the `Rewriting`: the copies of a round's scalars to the places from
        which launches read them.

        None if a scalar needs a conversion that compiled code lacks.
        """
        moves = []  # offset in the values, target address, number of bytes or AS_SINGLE
        for place in scalars.places:
            index = self.first[place.position] + place.part
            nbytes = _moved_bytes(self.formats[index], place.letter)
            if nbytes is None:
                return None
            moves.append((struct.calcsize("<" + self.formats[:index]), place.address, nbytes))
        lines = [word for line in (*scalars.calls, *moves) for word in line]
        return np.array([scalars.function, len(scalars.calls), len(moves), *lines], np.int64)


def _moved_bytes(source: str, target: str) -> int | None:
    """Returns how many bytes to copy to store a `source` number as `target` (little-endian);
    None if not possible.
    """
    if source == target or (source in "qQ" and target in "qihbQIHB"):
        return struct.calcsize("<" + target)
    return doorbell_module.AS_SINGLE if (source, target) == ("d", "f") else None


@final
class Again:
    """A call that compiled code can repeat.

    Args:
        number: number of the program.
        values: memory of a round's values, in the control block.
        packed: the values of this call, scalars first.
        packing: layout of the scalars.
        relaunch: address of the `Relaunch` that repeats the call.
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
        self._rewriting: Array | None = None
        self._packed = ctypes.create_string_buffer(packed, len(packed))
        self._words = np.zeros(doorbell_module.AGAIN_WORDS, np.int64)
        words = (
            number,
            values.ctypes.data,
            len(packed),
            packing.nbytes,
            ctypes.addressof(self._packed),
            relaunch,
        )
        self._words[: len(words)] = words
        self.address: int = self._words.ctypes.data

    def forget(self) -> None:
        """Makes the call match no round until `know` is called."""
        self._words[doorbell_module.NUMBER] = doorbell_module.FORGOTTEN

    def know(self, packed: bytes, scalars: Scalars | None) -> None:
        """Records the scalars with which `packed`, a round's values, starts: the launch now uses
        them, at these places.
        """
        if self._rewriting is None and scalars is not None:
            self._rewriting = self._packing.rewriting(scalars)
        ctypes.memmove(self._packed, packed, self._packing.nbytes)
        self._words[doorbell_module.REWRITING] = (
            0 if self._rewriting is None else self._rewriting.ctypes.data
        )
        self._words[doorbell_module.NUMBER] = self._number

    def take_changed(self) -> bool:
        """Returns whether compiled code has rewritten scalars since this method's last call."""
        changed = bool(self._words[doorbell_module.CHANGED])
        self._words[doorbell_module.CHANGED] = 0
        return changed

    def close(self) -> None:
        """Removes the call from its table: its launch is no longer possible or equivalent."""
        self.forget()
        if self.table is not None:
            self.table.drop(self)


@final
class Table:
    """The calls that a rank can repeat. Eviction is random, so a loop over more calls than fit
    still finds some of them.

    Attributes:
        words: what compiled code reads and writes; SERVED counts the rounds of the last `serve`.
    """

    def __init__(self) -> None:
        self.known: list[Again] = []  # in table order
        self._any = Random(0)  # noqa: S311  # separate: users draw from the module's generator
        memory = np.zeros(doorbell_module.ENTRIES + MOST_KNOWN, np.int64)
        self.address: int = memory.ctypes.data
        self.words = memory.data  # faster to index than the array

    @property
    def late(self) -> Again:
        """The call still running after the last `serve`."""
        (late,) = [
            again for again in self.known if again.address == self.words[doorbell_module.LATE]
        ]
        return late

    def add(self, again: Again) -> None:
        """Adds a call, unless it is in the table already."""
        if again.table is not None:
            return
        if len(self.known) == MOST_KNOWN:
            self.drop(self._any.choice(self.known))
        self.words[doorbell_module.ENTRIES + len(self.known)] = again.address
        self.known.append(again)
        self.words[doorbell_module.KNOWN] = len(self.known)
        again.table = self

    def drop(self, again: Again) -> None:
        """Removes a call; the last one moves to its entry."""
        place, last = self.known.index(again), self.known[-1]
        self.words[doorbell_module.ENTRIES + place] = last.address
        self.known[place] = last
        self.known.pop()
        self.words[doorbell_module.KNOWN] = len(self.known)
        again.table = None

    def catch_up(self) -> None:
        """Notifies the calls whose scalars `serve` has rewritten, as REWRITTEN says.

        Must run after `serve`, before any other program.
        """
        self.words[doorbell_module.REWRITTEN] = 0
        for again in self.known:
            if again.take_changed():
                again.changed()
