"""Steps on a core that compiled code repeats: launches of kernels, copies and fills, one after the
other.

    steps ──native──> rows of words ──run_rows──> results in the control block

So a rank serves a known call without Python, as on a GPU, where a graph is launched; here nothing
is late. If a kernel fails, Python runs the steps again, and tells the error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from numba import types

from synknumba._device.base import Recording, Step
from synknumba._wire.native import Native, NativeCall, NativeStep, rows_of
from synknumba._wire.relaunch import Relaunch, Scalar, Scalars

_LETTERS = {  # of the `struct` module, by type of a number
    **dict(zip((types.boolean, types.float32, types.float64), "?fd", strict=True)),
    **dict(zip((types.int8, types.int16, types.int32, types.int64), "bhiq", strict=True)),
    **dict(zip((types.uint8, types.uint16, types.uint32, types.uint64), "BHIQ", strict=True)),
}


def record(steps: Sequence[Step]) -> Recording | None:
    """Returns steps as compiled code repeats them; None if it cannot run one of them."""
    native_steps: list[NativeStep] = []
    launches: list[_Launch] = []
    for position, step in enumerate(steps):
        native = step.native() if isinstance(step, Native) else None
        if native is None:
            return None
        native_steps += native
        changing = [call for call in native if isinstance(call, NativeCall) and call.changing]
        launches += [_Launch(position, call, step.args[-1]) for call in changing]  # type: ignore[attr-defined]  # a launch with a list
    return _CpuRecording(steps, native_steps, launches)


@dataclass(frozen=True, slots=True)
class _Launch:
    position: int  # of its step
    call: NativeCall
    arguments: list[Any]


@final
class _CpuRecording(Recording):
    def __init__(
        self, steps: Sequence[Step], native: Sequence[NativeStep], launches: Sequence[_Launch]
    ) -> None:
        self._steps, self._launches = steps, launches
        self._relaunch = Relaunch.of_rows(rows_of(native), native)
        self.relaunch = self._relaunch.address

    def launch(self) -> None:
        for step in self._steps:
            step()

    def queue(self) -> None:
        self.launch()

    def wait(self) -> None:
        pass

    def renew(self, first: int = 0, after: int | None = None) -> bool:
        launches = self._launches_of(first, after)
        letters = [
            _letter(launch.call, position)
            for launch in launches
            for position in launch.call.changing
        ]
        if None in letters:
            return False
        for launch in launches:
            for position in launch.call.changing:
                launch.call.store(position, launch.arguments[position])
        return True

    def scalars(self, first: int = 0, after: int | None = None) -> Scalars | None:
        places: list[Scalar] = []
        for launch in self._launches_of(first, after):
            for position in launch.call.changing:
                letter = _letter(launch.call, position)
                if letter is None:
                    return None
                word, kind = launch.call.place(position)
                parts = range(2 if isinstance(kind, types.Complex) else 1)
                address = word.ctypes.data
                places += [Scalar(position, part, letter, address + 8 * part) for part in parts]
        return Scalars(places, 0, ())

    def _launches_of(self, first: int, after: int | None) -> list[_Launch]:
        end = len(self._steps) if after is None else after
        return [launch for launch in self._launches if first <= launch.position < end]

    def close(self) -> None:
        self.relaunch = 0
        self._steps = ()


def _letter(call: NativeCall, position: int) -> str | None:
    """Returns the letter of a number among a call's words, or of both of its parts; None for one
    that compiled code lacks.
    """
    _, kind = call.place(position)
    return _LETTERS.get(kind.underlying_float if isinstance(kind, types.Complex) else kind)
