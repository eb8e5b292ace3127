"""Repeated runs of a list of steps: one by one at first, later as one recorded launch if the device
supports that.

1st run    steps one by one, which compiles kernels
2nd run    the device records the steps, and launches the recording
later      the recording is launched: from Python, or by compiled code (`_wire/relaunch.py`)
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import final

from synknumba._device import Device, Recording, Step
from synknumba._rank import spans
from synknumba._types import Array
from synknumba._wire.relaunch import Again, ScalarPacking, Scalars

_NO_SCALARS = ScalarPacking()


@final
class Repetition:
    """Steps that a rank runs at every call. The first run compiles kernels; the second is recorded.

    Args:
        device: device of the rank.
        steps: the steps, without the wait for their end.
        checks: steps to run before them, never recorded.
        packing: layout of the scalars that the steps use and compiled code may change.
        alone: whether nothing else runs the steps, once they are recorded.

    Attributes:
        parted: the checks, and the steps.
        recording: the recorded steps; None if there is none.
    """

    def __init__(
        self,
        device: Device,
        steps: Sequence[Step],
        checks: Sequence[Step] = (),
        packing: ScalarPacking = _NO_SCALARS,
        *,
        alone: bool = True,
    ) -> None:
        self._device = device
        self._alone = alone
        self.parted = checks, steps
        self._packing = packing
        self._runs = 0  # up to 2
        self.recording: Recording | None = None
        self._scalars: Scalars | None = None  # of the recording; None before `renew`
        self._again: Again | None = None
        self._now = self._one_by_one()

    def __call__(self) -> None:
        """Runs the steps, and waits for their end."""
        if self._runs == 1:
            self._runs = 2
            checks, steps = self.parted
            record = partial(self._device.record, steps, alone=self._alone)
            self.recording = spans.run_one(record, spans.RECORD)
            if self.recording is not None:
                self._now = [*checks, self.recording.launch]
        if spans.active is None:
            for step in self._now:
                step()
        else:
            spans.active.run(self._now)
        if self._runs == 0:  # the first run has succeeded
            self._runs = 1

    @property
    def steps(self) -> list[Step]:
        """The steps, after the checks, for whoever runs them one by one."""
        return [*itertools.chain(*self.parted)]

    @property
    def is_recorded(self) -> bool:
        """Whether the steps are recorded."""
        return self.recording is not None

    def again(
        self, number: int, values: Array, packed: bytes, changed: Callable[[], None] = lambda: None
    ) -> Again | None:
        """Returns the `Again` by which compiled code repeats the last run; None if that is not
        possible, or not yet.

        The object is created once: `renew` updates its scalars, and any other change closes it.

        Args:
            number: number of the program.
            values: memory of a round's values.
            packed: the values of this call, scalars first.
            changed: called after compiled code has rewritten scalars.
        """
        recording = self.recording
        if self._again is None and recording is not None and recording.relaunch:
            self._again = Again(
                number,
                values,
                packed,
                self._packing,
                recording.relaunch,
                recording.wait,
                changed,
            )
            self._again.know(packed, self._scalars)
        return self._again

    def forget(self) -> None:
        """Stops compiled code from repeating the run, until the next `again`."""
        if self._again is not None:
            self._again.close()
            self._again = None

    def renew(self, packed: bytes) -> None:
        """Updates the recording to the scalars now in the launches' argument lists; `packed` are
        their bytes in the values.
        """
        recording = self.recording
        if recording is None:
            return
        if self._again is not None:
            self._again.forget()  # in case `renew` below raises half-way
        if not recording.renew():
            self.close()
            return
        if self._scalars is None and self._packing.first:
            self._scalars = recording.scalars()
        if self._again is not None:
            self._again.know(packed, self._scalars)

    def close(self) -> None:
        """Frees the recording; later runs are one by one."""
        self.forget()
        if self.recording is not None:
            self.recording.close()
            self.recording = None
            self._now = self._one_by_one()

    def _one_by_one(self) -> list[Step]:
        steps = self.steps
        if self._device.traits.queues_work:
            steps.append(self._device.synchronize)
        return steps
