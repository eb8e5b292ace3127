"""Decorated methods: a function or a sequence with the object through which it was looked up."""

from functools import partial
from typing import Any, final

_CALLS = frozenset({"submit", "plan", "as_serial", "check"})  # whose arguments are those of a call


@final
class Method(partial[Any]):
    """A function or sequence whose calls pass the object first; all else is as it has it."""

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the function; a method that takes the arguments of a call gets the object first."""
        found = getattr(self.func, name)
        return partial(found, *self.args) if name in _CALLS else found
