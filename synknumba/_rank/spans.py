"""What a rank does in a round, while it is traced: spans by Python, and records by compiled code.

    rounds   a ring in compiled code: seen, answered                        every round
    notes    a ring in tables of sequences: begin and end of each part      iterations without Python
    spans    steps that Python runs, and events on the device's stream      the others

`active` is None unless the rank is traced, so that a round costs no more than to look at it.
"""

import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, final

from synknumba._device import Device, Step
from synknumba._wire.control import ControlBlock
from synknumba._wire.messages import Span, Traced
from synknumba._wire.ring import Ring

BEGIN_WAIT, BEGIN, END = range(3)  # phases of a part in a table
_PHASES = 4  # room for phases in a note
_PER_STEP = 8  # spans that are kept for each round that is


@final
class Spans:
    """The records of one rank.

    Args:
        control: control block of the world.
        line: of the rank.
        device: of the rank.
        records: how many of each kind are kept, the last ones.
    """

    def __init__(self, control: ControlBlock, line: int, device: Device, records: int) -> None:
        self._control, self._line, self._device = control, line, device
        self._rounds, self._notes = Ring(records + 1), Ring(_PER_STEP * records)
        self._spans: deque[Span] = deque(maxlen=_PER_STEP * records)
        self._marked: deque[tuple[str, int, int, Any, Any]] = deque(maxlen=_PER_STEP * records)
        self._count = 0  # of spans and marks
        self._parts: list[str] = []  # names of the parts that notes are of
        self._base = device.mark()
        if self._base is not None:
            device.synchronize()
        self._base_at = time.monotonic_ns()
        control.set_ring(line, self._rounds.address)

    # ---- by Python

    def add(self, name: str, began: int, nbytes: int = 0, step: int = -1) -> None:
        """Adds something that has just ended."""
        self._count += 1
        self._spans.append(Span(name, began, time.monotonic_ns(), nbytes, step))

    def run_round(self, routine: Callable[[], Any], name: str) -> Any:
        """Runs what a round asks for, under a name for the device's profilers; compiled code records the round itself."""
        with self._device.named(name):
            return routine()

    def run(self, steps: Iterable[Step]) -> None:
        """Runs steps, and notes each."""
        for step in steps:
            self.run_one(step, *self._device.told(step))

    def run_one(self, step: Callable[[], object], name: str, nbytes: int = 0, at: int = -1) -> Any:
        """Runs a step, and notes it; on a GPU, also when its work begins and ends there."""
        first, began = self._device.mark(step), time.monotonic_ns()
        try:
            with self._device.named(name):
                return step()
        finally:
            self.add(name, began, nbytes, at)
            if first is not None:
                self._count += 1
                self._marked.append((name, nbytes, at, first, self._device.mark(step)))

    # ---- by tables

    def note_of(self, name: str) -> tuple[int, int]:
        """Returns the address of the ring of notes, and the first of the numbers that notes of a part have."""
        self._parts.append(name)
        return self._notes.address, (len(self._parts) - 1) * _PHASES

    def _noted(self) -> tuple[list[Span], int]:
        records, lost = self._notes.read()
        began: dict[int, int] = {}
        found = []
        for number, at, step, _ in records.tolist():
            part, phase = divmod(number, _PHASES)
            name = self._parts[part]
            if phase == END and part in began:
                found.append(Span(name, began.pop(part), at, 0, step))
            elif phase == BEGIN and (since := began.get(part)) is not None:
                found.append(Span("wait", since, at, 0, step))
            if phase != END:
                began[part] = at
        return found, lost

    # ---- the end

    def stop(self) -> Traced:
        """Ends the records, and returns them."""
        self._control.set_ring(self._line, 0)
        rounds, _ = self._rounds.read()
        rounds = rounds[rounds[:, 2] >= self._base_at]  # without that in which the trace began, which was seen before
        noted, lost = self._noted()
        spans = [*self._spans, *noted, *self._on_device()]
        lost += self._count - len(self._spans) - len(self._marked)
        return Traced(rounds.tobytes(), tuple(spans), lost, time.time_ns() - time.monotonic_ns(), 0, socket.gethostname())

    def _on_device(self) -> list[Span]:
        if not self._marked:
            return []
        self._device.synchronize()
        found = []
        for name, nbytes, step, *marks in self._marked:
            began, ended = (self._base_at + self._device.since(self._base, mark) for mark in marks)
            found.append(Span(name, began, ended, nbytes, step, on_device=True))
        return found


active: Spans | None = None


def start(spans: Spans) -> None:
    """Traces the rank from now on."""
    global active  # noqa: PLW0603  # one rank in a process
    active = spans


def stop() -> Traced | None:
    """Ends the trace, and returns its records; None if there is none."""
    global active  # as above
    found, active = active, None
    return None if found is None else found.stop()
