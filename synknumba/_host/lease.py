"""Large results, handed to the script where they lie: the memory that ranks wrote is the array that the caller gets.

The results of one output go to one of up to three places, each a segment. Which one comes with every call:

    y = f(x)      written      then
    1st call      place 0      copied, since a call that is not repeated is not worth more memory
    2nd           place 0      lent to y; place 1 is made, for the next call
    3rd           place 1      lent to y, which lets go of place 0; place 2 is made before, since y might keep it
    4th           place 0      lent to y, which lets go of place 1; …

A place that is lent is not written to until its array, and every view of it, is gone. One place is never lent, so whatever the
script keeps, there is one for the next call, and what is written there is copied. Nothing waits, and no call fails because
results are kept.

How it is known that an array is gone: NumPy gives a view of an array on foreign memory that array as its base, and views of the
view as well. So the array that was handed out lives as long as any of them, and a weak reference tells. (NumPy's arrays are not
objects of the garbage collector's, so it never takes that reference away from one that a finalizer brings back.)

A process that the script forks has a copy of all that the script has. Shared memory is not copied, so before a fork all that is
lent becomes memory of the script's own (`Segment.make_private`), and its places are given up.
"""

import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, final

from synknumba._errors import RankError, SharedMemoryError
from synknumba._host.copying import private_copy
from synknumba._host.segment import Segment, has_room
from synknumba._types import Array, Shape

LENT_BYTES = 256 << 10  # a copy of 128 KiB takes as long as it takes to lend them; of 512 KiB twice as long
MOST_PLACES = 3

_lent: "dict[int, tuple[weakref.ref[Array], Segment]]" = {}  # by the segment's id; the segment has what make_private needs


@final
class Lender:
    """The places of one output's results, in the coordinator.

    Args:
        first: the place that there is from the start, mapped on all ranks.
        dtype: of the results.
        attach: has all ranks map a segment.
    """

    def __init__(self, first: Segment, dtype: Any, attach: Callable[[Segment], None]) -> None:
        self._places = [first]
        self._now = first
        self._dtype = dtype
        self._attach = attach
        self._calls = 0  # up to 2

    @property
    def nbytes(self) -> int:
        """Shared memory of all places."""
        return sum(place.size for place in self._places)

    def choose(self) -> int:
        """The id of the place that the next call writes to."""
        for place in self._places:
            if place.id not in _lent and not place.closed:
                self._now = place
                break
        return self._now.id

    def result(self, shape: Shape) -> Array:
        """What the call has written; memory that is the caller's until it lets go of it."""
        place = self._now
        array = place.array(self._dtype, shape)
        if array.nbytes < LENT_BYTES or not self._has_another():
            return private_copy(array)
        # A method of a dict's as the callback: the garbage collector may call it between any two instructions.
        _lent[place.id] = weakref.ref(array, partial(_lent.pop, place.id)), place
        return array

    def trim(self) -> None:
        """Gives up the places that are not lent, but for one."""
        for place in [place for place in self._places if place.id not in _lent][1:]:
            place.close()
        self._places = [place for place in self._places if not place.closed]

    def _has_another(self) -> bool:
        """Whether there is a place for the next call beside the one just written, or one can be made."""
        self._calls = min(self._calls + 1, 2)
        if self._calls == 1:
            return False
        self._places = [place for place in self._places if not place.closed]  # those given up before a fork
        if any(place is not self._now and place.id not in _lent for place in self._places):
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


def _make_private() -> None:
    """Before a fork."""
    for place_id, (reference, place) in list(_lent.items()):
        array = reference()
        if array is None:  # gone meanwhile, in another thread, and the place may be written to again
            continue
        place.make_private()
        del _lent[place_id]


os.register_at_fork(before=_make_private)
