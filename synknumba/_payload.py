"""Functions as bytes: what is sent to the ranks, in which what they have already is a number."""

import io
import pickle
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import cloudpickle

from synknumba import _foreign
from synknumba._overloaded import with_overloads
from synknumba.simt import _pickling


def dump(value: Any, sent: Mapping[int, Any]) -> bytes:
    """The bytes of a function and what comes with it.

    Args:
        value: what is sent.
        sent: objects in it that the ranks have, by number.
    """
    numbers = {id(one): number for number, one in sent.items()}
    file = io.BytesIO()
    with _pickling.by_one_pickler():
        _Pickler(file, numbers).dump(value)
    return file.getvalue()


def load(payload: bytes, sent: Callable[[int], Any]) -> Any:
    """What `dump` was given.

    Args:
        payload: from our own coordinator.
        sent: gives what has a number.
    """
    return _Unpickler(io.BytesIO(payload), sent).load()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    def __init__(self, file: io.BytesIO, numbers: Mapping[int, int]) -> None:
        super().__init__(file)
        self._numbers = numbers

    def reducer_override(self, obj: Any) -> Any:
        if _foreign.is_foreign(obj):
            return _foreign.reduced(obj)
        if type(obj).__name__ == "_CustomPickled":  # a function that Numba compiles; Numba would use a pickler of its own
            return type(obj), (obj.ctor, obj.states)
        parts = super().reducer_override(obj)
        return with_overloads(obj, parts) if isinstance(obj, FunctionType) and parts is not NotImplemented else parts

    def persistent_id(self, obj: Any) -> int | None:
        return self._numbers.get(id(obj))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, sent: Callable[[int], Any]) -> None:
        super().__init__(file)
        self._sent = sent

    def persistent_load(self, pid: int) -> Any:
        return self._sent(pid)
