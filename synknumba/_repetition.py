"""Steps that are run at every call: one by one at first, and then as one, where the device can record them."""

from collections.abc import Sequence
from typing import final

from synknumba.device import Device, Replay, Step


@final
class Repetition:
    """What a rank runs at every call. The first run compiles what is to be compiled; the second one is recorded.

    Args:
        device: of the rank.
        steps: what is run, without the wait for its end.
        checks: what is run before them, always one by one.
    """

    def __init__(self, device: Device, steps: Sequence[Step], checks: Sequence[Step] = ()) -> None:
        self._device = device
        self._steps = steps
        self._checks = checks
        self._runs = 0  # up to 2
        self._replay: Replay | None = None
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
    def relaunch(self) -> int | None:
        """Address of what compiled code repeats a run by, if nothing else has run since; 0 where there is none.

        None before the second run, as where the first one has failed.
        """
        if self._replay is not None:
            return self._replay.relaunch
        return None if self._runs < 2 else 0

    def finish(self) -> None:
        """The wait for the end of a run that compiled code has launched."""
        assert self._replay is not None  # noqa: S101  # it has a relaunch
        self._replay.wait()

    def renew(self) -> None:
        """Has launches use the scalars that are in their argument lists now."""
        if self._replay is not None and not self._replay.renew():
            self.close()

    def close(self) -> None:
        """Frees what was recorded."""
        if self._replay is not None:
            self._replay.close()
            self._replay = None
            self._now = self._one_by_one()

    def _one_by_one(self) -> list[Step]:
        wait = [] if self._device.kind == "cpu" else [self._device.synchronize]
        return [*self._checks, *self._steps, *wait]
