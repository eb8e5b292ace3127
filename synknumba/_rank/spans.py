"""What a rank does in a round, while it is traced: spans by Python, and records by compiled code.

    rounds   a ring in compiled code: seen, answered                        every round
    notes    a ring in tables of sequences: begin and end of each part      iterations without Python
    spans    steps that Python runs, and events on the device's stream      the others

`active` is None unless the rank is traced, so that a round costs no more than to look at it.
"""  # noqa: E501

import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, final

from synknumba._device import Device, Step
from synknumba._types import Cache
from synknumba._wire.control import ControlBlock
from synknumba._wire.messages import Span, Traced
from synknumba._wire.ring import Ring

COMPILE = "compile"  # on cores, where kernels are compiled as they are bound to arguments
RECORD = "record"  # a CUDA graph, on cores a compiled function
BEGIN_WAIT, BEGIN, END = range(3)  # phases of a part in a table
_PHASES = 4  # room for phases in a note
_PER_STEP = 8  # spans that are kept for each round that is
_STEPS_KNOWN = 4096

_Noted: TypeAlias = tuple[str, int, int, int, int]  # the first fields of a `Span`


@final
class Notes:
    """The records of tables of sequences.

    Args:
        records: how many are kept, the last ones.
    """

    def __init__(self, records: int) -> None:
        self._ring = Ring(records)
        self._parts: list[str] = []  # names of the parts that notes are of

    def of(self, name: str) -> tuple[int, int]:
        """Returns the address of the ring of notes, and the first of the numbers that notes of a
        part have.
        """
        self._parts.append(name)
        return self._ring.address, (len(self._parts) - 1) * _PHASES

    def read(self) -> tuple[list[Span], int]:
        """Returns parts and waits as spans, and the number of notes that were lost."""
        records, lost = self._ring.read()
        began: dict[int, int] = {}
        spans = []
        for number, at, step, _ in records.tolist():
            part, phase = divmod(number, _PHASES)
            if phase == END and part in began:
                spans.append(Span(self._parts[part], began.pop(part), at, 0, step))
            elif phase == BEGIN and part in began:
                spans.append(Span("wait", began[part], at, 0, step))
            if phase != END:
                began[part] = at
        return spans, lost


@final
class Spans:
    """The records of one rank.

    Args:
        control: control block of the world.
        line: of the rank.
        device: of the rank.
        records: how many of each kind are kept, the last ones.

    Attributes:
        notes: of tables of sequences.
    """

    def __init__(self, control: ControlBlock, line: int, device: Device, records: int) -> None:
        self._control, self._line, self._device = control, line, device
        self._rounds, self.notes = Ring(records + 1), Notes(_PER_STEP * records)
        self._spans: deque[_Noted] = deque(maxlen=_PER_STEP * records)
        self._marked: deque[tuple[str, int, int, Any, Any]] = deque(maxlen=_PER_STEP * records)
        # steps, with what is recorded of them
        self._known: Cache[int, tuple[Step, str, int, Any]] = Cache(_STEPS_KNOWN)
        self._count = 0  # of spans and marks
        timeline = device.timeline()
        self._base = None if timeline is None else device.mark(timeline)
        if timeline is not None:
            device.synchronize()
        self._base_at = time.monotonic_ns()
        control.set_ring(line, self._rounds.address)

    # ---- by Python

    def run_round(self, routine: Callable[[], Any], name: str) -> Any:
        """Runs what a round asks for, under a name for the device's profilers; compiled code
        records the round itself.
        """
        self._device.enter(name)
        try:
            return routine()
        finally:
            self._device.leave()

    def run(self, steps: Iterable[Step]) -> None:
        """Runs steps, and notes each."""
        for step in steps:
            entry = self._known.get(id(step))
            if entry is None:
                entry = self._known[id(step)] = (
                    step,
                    *self._device.told(step),
                    self._device.timeline(step),
                )
            self._run(*entry, -1)

    def forget_steps(self) -> None:
        """Drops what is known of steps, which keep memory."""
        self._known.clear()

    def run_one(self, step: Callable[[], object], name: str, at: int = -1) -> Any:
        """Runs a step, and notes it; on a GPU, also when its work begins and ends there."""
        self.forget_steps()  # a "bind" may end some
        return self._run(step, name, 0, self._device.timeline(step), at)

    def _run(
        self, step: Callable[[], object], name: str, nbytes: int, timeline: Any, at: int
    ) -> Any:
        device, first, second = self._device, None, None
        if timeline is not None:
            if len(self._marked) == self._marked.maxlen:
                *_, first, second = self._marked.popleft()
            first = device.mark(timeline, first)
        device.enter(name)
        began = time.monotonic_ns()
        try:
            return step()
        finally:
            self._count += 1
            self._spans.append((name, began, time.monotonic_ns(), nbytes, at))
            device.leave()
            if timeline is not None:
                self._count += 1
                self._marked.append((name, nbytes, at, first, device.mark(timeline, second)))

    # ---- the end

    def stop(self) -> Traced:
        """Ends the records, and returns them."""
        self._control.set_ring(self._line, 0)
        rounds, _ = self._rounds.read()
        # without that in which the trace began, which was seen before
        rounds = rounds[rounds[:, 2] >= self._base_at]
        noted, lost = self.notes.read()
        lost += self._count - len(self._spans) - len(self._marked)
        spans = [*(Span(*record) for record in self._spans), *noted, *self._on_device()]
        return Traced(
            rounds.tobytes(),
            tuple(spans),
            lost,
            time.time_ns() - time.monotonic_ns(),
            0,
            socket.gethostname(),
        )

    def _on_device(self) -> list[Span]:
        if self._base is None:
            return []
        self._device.synchronize()
        spans = []
        for name, nbytes, step, *marks in self._marked:
            began, ended = (self._base_at + self._device.since(self._base, mark) for mark in marks)
            spans.append(Span(name, began, ended, nbytes, step, on_device=True))
            for mark in marks:
                self._device.drop_mark(mark)
        self._device.drop_mark(self._base)
        return spans


active: Spans | None = None


def run_one(step: Callable[[], Any], name: str, at: int = -1) -> Any:
    """Runs a step, and notes it if the rank is traced."""
    return step() if active is None else active.run_one(step, name, at)


def start(spans: Spans) -> None:
    """Traces the rank from now on."""
    global active  # noqa: PLW0603  # one rank in a process
    active = spans


def stop() -> Traced | None:
    """Ends the trace, and returns its records; None if there is none."""
    global active  # as above
    recorder, active = active, None
    return None if recorder is None else recorder.stop()
