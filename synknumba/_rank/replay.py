"""Steps that are run at every call: one by one at first, and then as one, where the device can record them."""

from collections.abc import Callable, Sequence
from typing import final

from synknumba._device import Device, Replay, Step
from synknumba._types import Array
from synknumba._wire.relaunch import Again, ScalarPacking

_NO_SCALARS = ScalarPacking()


def _nothing() -> None:
    """What follows where there are no scalars that could have changed."""


@final
class Repetition:
    """What a rank runs at every call. The first run compiles what is to be compiled; the second one is recorded.

    Args:
        device: of the rank.
        steps: what is run, without the wait for its end.
        checks: what is run before them, always one by one.
        packing: of the scalars that the steps use.
    """

    def __init__(
        self, device: Device, steps: Sequence[Step], checks: Sequence[Step] = (), packing: ScalarPacking = _NO_SCALARS
    ) -> None:
        self._device = device
        self._steps = steps
        self._checks = checks
        self._packing = packing
        self._runs = 0  # up to 2
        self._replay: Replay | None = None
        self._again: Again | None = None
        self._now = self._one_by_one()

    def __call__(self) -> None:
        """One run, and the wait for its end."""
        if self._runs == 1:
            self._runs = 2
            self._replay = self._device.record(self._steps)
            if self._replay is not None:
                self._now = [*self._checks, self._replay]
        for step in self._now:
            step()
        if self._runs == 0:  # it has succeeded
            self._runs = 1

    @property
    def is_recorded(self) -> bool:
        """Whether runs are replays."""
        return self._replay is not None

    def again(self, number: int, values: Array, packed: bytes, changed: Callable[[], None] = _nothing) -> Again | None:
        """How compiled code repeats the last run; None where it cannot, or not yet.

        Once made it stays the same: `renew` tells it of other scalars, and whatever else changes closes it.

        Args:
            number: of the program whose call it is.
            values: where a round's values are.
            packed: what they were at this call.
            changed: called after compiled code has rewritten scalars.
        """
        replay = self._replay
        if self._again is None and replay is not None and replay.relaunch:
            self._again = Again(number, values, packed, self._packing, replay.relaunch, replay.wait, changed)
            self._again.know(packed, replay.scalars)
        return self._again

    def forget(self) -> None:
        """Has compiled code not repeat it any more, until it is asked for that again."""
        if self._again is not None:
            self._again.close()
            self._again = None

    def renew(self, packed: bytes) -> None:
        """Has launches use the scalars that are in their argument lists now, and that are packed like this."""
        if self._replay is None:
            return
        if self._again is not None:
            self._again.forget()  # should this raise half-way
        if not self._replay.renew():
            self.close()
        elif self._again is not None:
            self._again.know(packed, self._replay.scalars)

    def close(self) -> None:
        """Frees what was recorded."""
        self.forget()
        if self._replay is not None:
            self._replay.close()
            self._replay = None
            self._now = self._one_by_one()

    def _one_by_one(self) -> list[Step]:
        wait = [self._device.synchronize] if self._device.traits.queues_work else []
        return [*self._checks, *self._steps, *wait]
