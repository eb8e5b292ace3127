"""What ranks of other machines have of the script's process, as ranks of its own machine inherit
it.
"""

import decimal
import os
import pickle
import random
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import numpy as np


class _NeverWarning(Warning):
    """A warning that nobody issues: a filter for it makes Python look at changed filters."""


@dataclass(frozen=True, slots=True)
class ScriptState:
    """State of the script's process when it forks.

    Attributes:
        argv: the script's arguments, itself first.
        file: of the script.
        python_random, numpy_random: states of `random` and `np.random`.
        errors: as `np.geterr` tells.
        printing: options that NumPy prints arrays with.
        context: that `decimal` computes in.
        filters: of warnings, without those that only the script's process can have.
        recursion: the limit.
        umask: of files that are made.
    """

    argv: tuple[str, ...]
    file: str | None
    python_random: Any
    numpy_random: Any
    errors: Any
    printing: Any
    context: decimal.Context
    filters: tuple[Any, ...]
    recursion: int
    umask: int

    @classmethod
    def now(cls) -> Self:
        """Returns the state of this process."""
        umask = os.umask(0o77)
        os.umask(umask)
        file = getattr(sys.modules.get("__main__"), "__file__", None)
        return cls(
            argv=tuple(_plain(argument) for argument in sys.argv),
            file=file if type(file) is str else None,
            python_random=random.getstate(),
            numpy_random=np.random.get_state(),  # noqa: NPY002  # that of functions that use it
            errors=np.geterr(),
            printing=np.get_printoptions(),
            context=decimal.getcontext().copy(),
            filters=tuple(entry for entry in warnings.filters if _can_be_sent(entry)),
            recursion=sys.getrecursionlimit(),
            umask=umask,
        )

    def take_over(self) -> None:
        """Gives this process the state, but for that of `random`, which each rank sets."""
        sys.argv[:] = self.argv
        if self.file is not None:
            sys.modules["__main__"].__file__ = self.file
        np.random.set_state(self.numpy_random)  # noqa: NPY002  # as above
        np.seterr(**self.errors)
        with suppress(TypeError, ValueError):  # another version of NumPy
            np.set_printoptions(**self.printing)
        decimal.setcontext(self.context.copy())
        warnings.filters[:] = self.filters  # type: ignore[index]  # a list, which typeshed has as a sequence
        warnings.simplefilter("default", _NeverWarning, append=True)
        sys.setrecursionlimit(self.recursion)
        os.umask(self.umask)


def _plain(argument: Any) -> str:
    """Returns an argument as `str`, of no class of the script."""
    if isinstance(argument, str):
        return str.__str__(argument)
    return str(argument)


def _can_be_sent(entry: Any) -> bool:
    """Returns whether a filter of warnings can be sent: its class is not the script's own."""
    if getattr(entry[2], "__module__", "__main__") == "__main__":
        return False
    with suppress(Exception):
        pickle.dumps(entry)
        return True
    return False
