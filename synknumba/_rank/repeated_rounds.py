"""Repeated rounds of a sequence: compiled code serves a round of rows once its values have come
twice in a row.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import final

import numpy as np

from synknumba._rank.sequence_context import PeerFailed, SequenceContext
from synknumba._rank.sequence_program import RowProgram
from synknumba._types import Array
from synknumba._wire.relaunch import Again, Relaunch, Scalar, ScalarPacking, Scalars
from synknumba._wire.sequence import HEAD

_FIRST = 8  # bytes of the number of the first iteration, which begins the values


@final
class RepeatedRounds:
    """The round of rows that compiled code repeats.

    Args:
        context: what the rows refer to.
        rows: the rows.
        turns: counts that are 0 when a round begins.
    """

    def __init__(self, context: SequenceContext, rows: RowProgram, turns: Sequence[Array]) -> None:
        self._context, self._rows, self._turns = context, rows, turns
        # Rounds are alike whatever their first iteration is, unless iterations differ, or begin
        # with numbers of the last round.
        self._are_alike = len(context.program.starts) == 1 and not context.numbers.carried
        self._last: bytes | None = None  # values of the last round
        self._repeated: tuple[bytes, Relaunch, Again] | None = None  # with the values of the round

    def may_repeat(self, first: int, count: int) -> bool:
        """Whether compiled code may repeat a round that returns nothing and keeps no results."""
        return not (self._rows.needs_python or (first and self._context.numbers.carried))

    def again(self, packed: bytes) -> Again | None:
        """Returns the `Again` that repeats a round whose values are packed; None if they have come
        once only.
        """
        key = packed[_FIRST:] if self._are_alike else packed
        if self._repeated is not None:
            if self._repeated[0] == key:
                return self._repeated[2]
            self.close()
        if self._last != key:  # worth the work once they are repeated
            self._last = key
            return None
        launch, again = self._repetition(packed)
        self._repeated = key, launch, again
        return again

    def _repetition(self, packed: bytes) -> tuple[Relaunch, Again]:
        numbers = self._context.numbers
        words = np.frombuffer(packed, np.int64)
        first, count, times = words[:3].tolist()
        begin_turns(self._turns)
        # carried numbers, with which the next round of the call goes on
        reached = numbers.scalars.copy()
        numbers.take_scalars(words[len(HEAD) :], first)
        launch, firsts = self._rows.repetition(first, count, [numbers.scalars, *self._turns])
        numbers.scalars[:] = reached
        packing, scalars = ScalarPacking(), None
        if self._are_alike:
            packing = ScalarPacking(HEAD, _FIRST, {0: 0})
            scalars = Scalars([Scalar(0, 0, "q", word) for word in firsts], 0, ())
        again = Again(
            self._context.program.number,
            self._context.place.control.values,
            packed,
            packing,
            launch.address,
            partial(self._resume, times),
            _no_change,
        )
        again.know(packed, scalars)
        return launch, again

    def _resume(self, times: int) -> None:
        """Goes on with a round that compiled code has begun, of a call of so many iterations."""
        try:
            self._rows.resume()
        except PeerFailed:
            pass
        except BaseException as error:  # noqa: BLE001  # raised again
            self._context.fail(error, times)

    def close(self) -> None:
        """Stops compiled code from repeating a round."""
        if self._repeated is not None:
            self._repeated[2].close()
            self._repeated = None


def begin_turns(turns: Iterable[Array]) -> None:
    """Lets all ranks begin a round with the same places on their stages, also where a failure has
    ended the last one.
    """
    for turn in turns:
        turn[:] = 0


def _no_change() -> None:
    """Does nothing after compiled code has changed the first iteration of a round: Python keeps
    no copy of it.
    """
