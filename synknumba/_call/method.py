"""Decorated methods: a function or a sequence with the object through which it was looked up."""

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any, final

_CALLS = frozenset({"submit", "plan", "as_serial", "check"})  # whose arguments are those of a call


@final
class Method(partial[Any]):
    """A function or sequence whose calls pass the object first; all else is as it has it."""

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the function; a method that takes the arguments of a call gets
        the object first.
        """
        attribute = getattr(self.func, name)
        if name in _CALLS:
            return partial(attribute, *self.args)
        return attribute


def unbound(function: Callable[..., Any]) -> tuple[Callable[..., Any], Any, str | None]:
    """Returns the function of a method, or of an object with `__call__`, the object and a name;
    others have no object.
    """
    if isinstance(function, MethodType):
        return function.__func__, function.__self__, function.__name__
    call = inspect.getattr_static(type(function), "__call__", None)
    # with a signature of its own
    is_wrapper = hasattr(function, "__wrapped__") or hasattr(function, "__signature__")
    if isinstance(call, FunctionType) and not is_wrapper:
        return call, function, getattr(function, "__name__", type(function).__name__)
    return function, None, None
