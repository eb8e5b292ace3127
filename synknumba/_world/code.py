"""The code that ranks have of the script's functions, and which functions have other code by now.

`%autoreload` in IPython changes functions in place: it assigns `__code__`, of methods too. Ranks
keep what they have: functions of modules since the fork, functions of the script since they were
sent. So the code is noted at the fork and when a function is first used, and compared before calls.
Functions of the standard library and of installed packages are not looked at.
"""

import sys
from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import NoReturn, final

from synknumba._errors import WorldError
from synknumba._world.read_values import functions_in, is_the_scripts, reached

# functions, with the code that the ranks have of them
Uses = tuple[tuple[FunctionType, CodeType], ...]


@final
class RankCode:
    """The code of the script's functions that the ranks of one world have."""

    def __init__(self) -> None:
        """Notes the code of all functions in modules of the script, right before the fork."""
        self._known: dict[FunctionType, CodeType] = {}
        for name, module in list(sys.modules.items()):
            if name != "__main__" and is_the_scripts(getattr(module, "__file__", None)):
                for value in list(vars(module).values()):
                    if getattr(value, "__module__", None) == name:
                        self._note(value, 2)

    def _note(self, value: object, depth: int) -> None:
        if isinstance(value, FunctionType):
            self._known[value] = value.__code__
        elif depth:  # a class, and a method in it
            for part in functions_in(value):
                self._note(part, depth - 1)

    def uses(self, roots: Iterable[object], name: str) -> Uses:
        """Returns the functions that these objects reach; raises `WorldError` if the ranks have
        other code of one.
        """
        uses = tuple(
            (function, self._known.setdefault(function, function.__code__))
            for function in reached(roots)
        )
        for function, code in uses:
            if function.__code__ is not code:
                refuse(function, name)
        return uses


def refuse(function: FunctionType, name: str) -> NoReturn:
    """Raises the error for a function that was changed in place."""
    code = function.__code__
    used = "" if function.__name__ == name else f", which {name} uses,"
    raise WorldError(
        f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno}){used} was changed in "
        "place, as %autoreload does, and the ranks have the code from before. Call close() and "
        "fork() again: the new ranks have the new code, and Data and variables keep their contents."
    )
