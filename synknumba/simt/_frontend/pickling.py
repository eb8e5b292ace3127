"""Pickles of kernels that no module holds under their name: functions inside others, and those of a script.

`pickle` cannot do these, `cloudpickle` can. So a kernel's pickle holds one of cloudpickle's, in which everything else is plain:
a function may lead back to its kernel.
"""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import cloudpickle

_inside: ContextVar[bool] = ContextVar("inside", default=False)


@contextmanager
def by_one_pickler() -> Iterator[None]:
    """Kernels that are pickled meanwhile, by a pickler that does functions, are not put into pickles of their own."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def reduced(make: Callable[..., Any], parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """What `__reduce__` returns of an object that `make(*parts)` makes again."""
    if _inside.get():
        return make, parts
    with by_one_pickler():
        packed = cloudpickle.dumps((make, parts))
    return _made, (packed,)


def _made(packed: bytes) -> Any:
    make, parts = pickle.loads(packed)  # noqa: S301  # a part of the pickle that is being read
    return make(*parts)
