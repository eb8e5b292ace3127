"""Warnings issued on ranks: collected, sent with a round's answer, and issued in the script.

    rank: warnings.warn ──filters──> Collector ── with the answer of the round ──> coordinator: show ──filters──> the script

A rank has the filters that the script had at the fork, so ignored warnings stay on the rank, and
those turned into errors are raised there. The collector receives those that Python would have
printed, on every rank anew.
"""  # noqa: E501

import builtins
import sys
import warnings
from collections.abc import Iterable
from typing import Any, final

from synknumba._wire import channel
from synknumba._wire.messages import Warned

MOST = 100  # per rank and round; a loop under the filter "always" must not fill the rank's memory

# by file: Python's once-per-location registries, for all ranks and worlds
_shown: dict[str, dict[Any, Any]] = {}


@final
class Collector:
    """Collects the warnings of one rank, from its creation on."""

    def __init__(self) -> None:
        self.waiting: list[Warned] = []  # checked at the end of each round
        self._print = warnings.showwarning
        warnings.showwarning = self._take  # the hook documented for this

    def _take(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: Any = None,
    ) -> None:
        if file is not None:
            self._print(message, category, filename, lineno, file, line)
        elif len(self.waiting) < MOST:
            self.waiting.append(_packed(str(message), category, filename, lineno))

    def hand_over(self) -> tuple[Warned, ...]:
        """Returns the warnings since the last call."""
        collected = tuple(self.waiting)
        self.waiting.clear()
        return collected

    def print_rest(self) -> None:
        """Writes the remaining warnings to stderr, when the rank ends."""
        for warning in self.hand_over():
            sys.stderr.write(f"{warning.filename}:{warning.line}: {warning.name}: {warning.text}\n")


def _packed(text: str, category: type[Warning], filename: str, line: int) -> Warned:
    try:
        packed = channel.pack(category)
    except Exception:  # noqa: BLE001  # a metaclass of the user may raise anything
        packed = b""
    builtin = next(base.__name__ for base in category.__mro__ if base.__module__ == "builtins")
    return Warned(text, category.__name__, builtin, packed, filename, line)


def show(collected: Iterable[Warned]) -> None:
    """Issues the ranks' warnings in this process, each once; raises if its filters turn a
    warning into an error.
    """
    for warning in dict.fromkeys(collected):
        category = _category(warning)
        text = (
            warning.text if category.__name__ == warning.name else f"{warning.name}: {warning.text}"
        )
        registry = _shown.setdefault(warning.filename, {})
        warnings.warn_explicit(
            text, category, warning.filename, warning.line, _module_of(warning.filename), registry
        )


def _module_of(filename: str) -> str | None:
    """Returns the module of a file, for filters by module: by default, deprecations in
    `__main__` are shown.
    """
    modules = (
        name
        for name, module in tuple(sys.modules.items())
        if getattr(module, "__file__", None) == filename
    )
    return next(modules, None)


def _category(warning: Warned) -> type[Warning]:
    """Returns the warning's class, if it unpickles in this process; else the built-in class that
    it derives from.
    """
    try:
        category = channel.unpack_known(warning.category)
    except Exception:  # noqa: BLE001  # a class not found here, or anything that the user's class raises
        category = None
    if isinstance(category, type) and issubclass(category, Warning):
        return category
    derived_from: type[Warning] = getattr(builtins, warning.builtin)
    return derived_from
