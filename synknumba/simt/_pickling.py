"""Pickles of kernels that no module holds under their name: functions inside others, and those of a script.

`pickle` cannot do these, `cloudpickle` can. So a kernel's pickle holds one of cloudpickle's, in which everything else is plain:
a function may lead back to its kernel.
"""

import pickle
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import cloudpickle

_inside: ContextVar[bool] = ContextVar("inside", default=False)


def reduced(make: Callable[..., Any], parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """What `__reduce__` returns of an object that `make(*parts)` makes again."""
    if _inside.get():
        return make, parts
    token = _inside.set(True)
    try:
        packed = cloudpickle.dumps((make, parts))
    finally:
        _inside.reset(token)
    return _made, (packed,)


def _made(packed: bytes) -> Any:
    make, parts = pickle.loads(packed)  # noqa: S301  # a part of the pickle that is being read
    return make(*parts)
