"""Functions as bytes: what is sent to the ranks, in which what they have already is a number."""

import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle


def dump(value: Any, sent: Mapping[int, Any]) -> bytes:
    """The bytes of a function and what comes with it.

    Args:
        value: what is sent.
        sent: objects in it that the ranks have, by number.
    """
    numbers = {id(one): number for number, one in sent.items()}
    file = io.BytesIO()
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

    def persistent_id(self, obj: Any) -> int | None:
        return self._numbers.get(id(obj))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, sent: Callable[[int], Any]) -> None:
        super().__init__(file)
        self._sent = sent

    def persistent_load(self, pid: int) -> Any:
        return self._sent(pid)
