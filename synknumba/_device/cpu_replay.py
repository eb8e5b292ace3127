"""Steps on a core that compiled code repeats: launches of kernels, copies and fills, one after the
other.

    steps ──native──> rows of words ──run_rows──> results in the control block

So a rank serves a known call without Python, as on a GPU, where a graph is launched; here nothing
is late. If a kernel fails, Python runs the steps again, and tells the error.
"""

from collections.abc import Sequence
from typing import Any, final

from numba import types

from synknumba._device.base import Replay, Step
from synknumba._wire.native import Native, NativeCall, NativeStep, rows_of
from synknumba._wire.relaunch import Relaunch, Scalar, Scalars

_LETTERS = {  # of the `struct` module, by type of a number
    **dict(zip((types.boolean, types.float32, types.float64), "?fd", strict=True)),
    **dict(zip((types.int8, types.int16, types.int32, types.int64), "bhiq", strict=True)),
    **dict(zip((types.uint8, types.uint16, types.uint32, types.uint64), "BHIQ", strict=True)),
}


def record(steps: Sequence[Step]) -> Replay | None:
    """Returns steps as compiled code repeats them; None if it cannot run one of them."""
    native_steps: list[NativeStep] = []
    launches: list[tuple[NativeCall, list[Any]]] = []
    for step in steps:
        native = step.native() if isinstance(step, Native) else None
        if native is None:
            return None
        native_steps += native
        changing = [call for call in native if isinstance(call, NativeCall) and call.changing]
        launches += [(call, step.args[-1]) for call in changing]  # type: ignore[attr-defined]  # a launch with a list
    return _CpuReplay(steps, native_steps, launches)


@final
class _CpuReplay(Replay):
    def __init__(
        self,
        steps: Sequence[Step],
        native: Sequence[NativeStep],
        launches: Sequence[tuple[NativeCall, list[Any]]],
    ) -> None:
        self._steps, self._launches = steps, launches
        self._relaunch = Relaunch.of_rows(rows_of(native), native)
        self.relaunch = self._relaunch.address

    def __call__(self) -> None:
        for step in self._steps:
            step()

    def wait(self) -> None:
        pass

    def renew(self) -> bool:
        places = [
            place
            for call, arguments in self._launches
            for at in call.changing
            for place in _renewed(call, at, arguments[at])
        ]
        if any(place is None for place in places):
            return False
        self.scalars = Scalars([place for place in places if place is not None], 0, ())
        return True

    def close(self) -> None:
        self.relaunch = 0
        self._steps = ()


def _renewed(call: NativeCall, position: int, value: Any) -> list[Scalar | None]:
    """Stores a number among the words of a call; returns the places of its parts, or None for
    one that compiled code lacks.
    """
    word, kind = call.place(position)
    is_complex = isinstance(kind, types.Complex)
    letter = _LETTERS.get(kind.underlying_float if is_complex else kind)
    if letter is None:
        return [None]
    call.store(position, value)
    return [
        Scalar(position, part, letter, word.ctypes.data + 8 * part)
        for part in range(1 + is_complex)
    ]
