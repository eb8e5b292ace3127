"""Warnings that code on the ranks gives: shown by the script, once, as if it had given them.

    rank: warnings.warn ──filters──> Collector ── with the answer of the round ──> coordinator: show ──filters──> the script

A rank has the filters that the script had at the fork, so what is ignored stays on the rank and what is an error is raised
there. What comes here is what would have been printed: by every rank, and by each anew.
"""

import builtins
import sys
import warnings
from collections.abc import Iterable
from typing import Any, final

from synknumba._wire import channel
from synknumba._wire.messages import Warned

MOST = 100  # of one rank in one round; a loop with the filter "always" must not fill its memory

_shown: dict[str, dict[Any, Any]] = {}  # by file, what Python keeps to show a warning once, for all ranks and all worlds


@final
class Collector:
    """Takes the warnings of one rank."""

    def __init__(self) -> None:
        self.waiting: list[Warned] = []  # read at the end of each round
        self._print = warnings.showwarning

    def enter(self) -> None:
        """Has this process's warnings come here."""
        warnings.showwarning = self._take  # what Python provides for this

    def _take(
        self, message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        if file is not None:
            self._print(message, category, filename, lineno, file, line)
        elif len(self.waiting) < MOST:
            self.waiting.append(_packed(str(message), category, filename, lineno))

    def hand_over(self) -> tuple[Warned, ...]:
        """What has come since the last time."""
        told = tuple(self.waiting)
        self.waiting.clear()
        return told

    def print_rest(self) -> None:
        """Writes what nobody will ask for any more to stderr."""
        for one in self.hand_over():
            sys.stderr.write(f"{one.filename}:{one.line}: {one.name}: {one.text}\n")


def _packed(text: str, category: type[Warning], filename: str, line: int) -> Warned:
    try:
        packed = channel.pack(category)
    except Exception:  # noqa: BLE001  # whatever a metaclass of the user's raises
        packed = b""
    builtin = next(base.__name__ for base in category.__mro__ if base.__module__ == "builtins")
    return Warned(text, category.__name__, builtin, packed, filename, line)


def show(told: Iterable[Warned]) -> None:
    """Gives the ranks' warnings in this process, each once, under its filters; raises one that these make an error."""
    for one in dict.fromkeys(told):
        category = _category(one)
        text = one.text if category.__name__ == one.name else f"{one.name}: {one.text}"
        registry = _shown.setdefault(one.filename, {})
        warnings.warn_explicit(text, category, one.filename, one.line, _module_of(one.filename), registry)


def _module_of(filename: str) -> str | None:
    """The module whose code is in a file, for filters by module: by default a script's own deprecations are shown."""
    found = (name for name, module in tuple(sys.modules.items()) if getattr(module, "__file__", None) == filename)
    return next(found, None)


def _category(one: Warned) -> type[Warning]:
    """The class, where this process knows it; else the built-in one that it derives from."""
    try:
        found = channel.unpack_known(one.category)
    except Exception:  # noqa: BLE001  # a class that is not known here, or whatever one of the user's raises
        found = None
    if isinstance(found, type) and issubclass(found, Warning):
        return found
    derived_from: type[Warning] = getattr(builtins, one.builtin)
    return derived_from
