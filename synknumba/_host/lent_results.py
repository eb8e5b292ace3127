"""Leases of large results: the array returned to the caller is the shared memory that the ranks
wrote, without a copy.

The results of one output go to one of up to three places, each a segment. Every call names its
place:

    y = f(x)      written      then
    1st call      place 0      copied: a call that is not repeated does not justify more memory
    2nd           place 0      lent to y; place 1 is allocated for the next call
    3rd           place 1      lent to y, which releases place 0; place 2 is allocated before, since y might keep place 0
    4th           place 0      lent to y, which releases place 1; …

A lent place is not written to until its array and all views of it are dead. One place is never
lent, so the next call always has a place, however many results the script keeps; a result written
there is copied. No call waits or fails because results are kept.

How the death of an array is detected: NumPy makes an array on foreign memory the base of all its
views, and of their views. So the array that was handed out lives as long as any view, and a weak
reference to it suffices. (NumPy arrays are not tracked by the garbage collector, so it never clears
that reference while a finalizer resurrects the array.)

A child that the script forks has a copy-on-write copy of the script's memory, but shared memory
stays shared. So before a fork all lent memory is made private to the script
(`Segment.make_private`), and its places are given up.
"""  # noqa: E501

import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, final

from synknumba._errors import RankError, SharedMemoryError
from synknumba._host.copying import private_copy
from synknumba._host.segment import Segment, has_room
from synknumba._types import Array, Shape

# copying 128 KiB takes as long as lending them; copying 512 KiB twice as long
LENT_BYTES = 256 << 10
MOST_PLACES = 3

# by segment id; the segment is kept for its make_private()
_lent: "dict[int, tuple[weakref.ref[Array], Segment]]" = {}


@final
class ResultLeases:
    """The places of one output's results, in the coordinator; `attach` makes all ranks map a
    segment, as they have `first`.
    """

    def __init__(self, first: Segment, dtype: Any, attach: Callable[[Segment], None]) -> None:
        self._places = [first]
        self._now = first
        self._dtype = dtype
        self._attach = attach
        self._calls = 0  # up to 2

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory in all places."""
        return sum(place.size for place in self._places)

    def choose(self) -> int:
        """Chooses the place that the next call writes to, and returns its segment id."""
        for place in self._places:
            if place.id not in _lent and not place.closed:
                self._now = place
                break
        return self._now.id

    def result(self, shape: Shape) -> Array:
        """Returns the last call's result: lent if it is large and another place is left for the
        next call, else a copy.
        """
        place = self._now
        array = place.array(self._dtype, shape)
        if array.nbytes < LENT_BYTES or not self._has_another():
            return private_copy(array)
        # The callback may run between any two instructions, so it is a dict method: one step, no
        # Python code.
        _lent[place.id] = weakref.ref(array, partial(_lent.pop, place.id)), place
        return array

    def trim(self) -> None:
        """Closes all places that are not lent, except one."""
        free = [place for place in self._places if place.id not in _lent]
        for place in free[1:]:
            place.close()
        self._drop_closed()

    def _has_another(self) -> bool:
        """Returns whether the next call has a place other than the one just written; allocates
        one if possible.
        """
        self._calls = min(self._calls + 1, 2)
        if self._calls == 1:
            return False
        self._drop_closed()  # those given up before a fork
        others = {place.id for place in self._places} - {self._now.id}
        if not others <= _lent.keys():
            return True
        if len(self._places) == MOST_PLACES or not has_room(self._now.size):
            return False
        try:
            another = Segment(self._now.size)
            self._attach(another)
        except (SharedMemoryError, RankError):
            return False
        self._places.append(another)
        return True

    def _drop_closed(self) -> None:
        self._places = [place for place in self._places if not place.closed]


def _make_private() -> None:
    """Makes all lent memory private to this process; runs before a fork."""
    for place_id, (reference, place) in list(_lent.items()):
        array = reference()
        # died meanwhile in another thread: the place may already be written to again
        if array is None:
            continue
        place.make_private()
        del _lent[place_id]


os.register_at_fork(before=_make_private)
