"""The code that ranks have of the script's functions, and which functions have other code by now.

`%autoreload` in IPython changes functions in place: it assigns `__code__`, of methods too. Ranks keep what they have: functions
of modules since the fork, functions of the script since they were sent. So the code is noted at the fork and when a function is
first used, and compared before calls. Functions of the standard library and of installed packages are not looked at.
"""

import functools
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NoReturn, final

from synknumba._errors import WorldError

_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_SHARED = [path for path in sys.path if os.path.basename(path) in {"site-packages", "dist-packages"}]  # with other environments
_INSTALLED = tuple(
    {os.path.join(path, "") for path in (*sysconfig.get_paths().values(), *_SHARED, _PACKAGE) if path != sys.prefix}
)
_MOST_ITEMS = 100  # of a list or a dict, in which functions are looked for

Uses = tuple[tuple[FunctionType, CodeType], ...]  # functions, with the code that the ranks have of them


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
                        self._known.update((one, one.__code__) for one in _functions(_parts(value)))

    def uses(self, roots: Iterable[object], name: str) -> Uses:
        """Returns the functions that these objects reach; raises `WorldError` if the ranks have other code of one."""
        found = tuple((one, self._known.setdefault(one, one.__code__)) for one in reached(roots))
        for one, code in found:
            if one.__code__ is not code:
                refuse(one, name)
        return found


def refuse(function: FunctionType, name: str) -> NoReturn:
    """Raises the error for a function that was changed in place."""
    code = function.__code__
    used = "" if function.__name__ == name else f", which {name} uses,"
    raise WorldError(
        f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno}){used} was changed in place, as %autoreload does, "
        "and the ranks have the code from before. Call close() and fork() again: the new ranks have the new code, and Data and "
        "variables keep their contents."
    )


def reached(roots: Iterable[object]) -> Iterator[FunctionType]:
    """Yields the functions of the script that objects use: by names, closures, defaults, methods and containers."""
    waiting, seen = list(roots), set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, FunctionType):
            if not is_the_scripts(one.__code__.co_filename):
                continue
            yield one
            waiting += _used_by(one)
        else:
            waiting += _parts(one)


def _used_by(function: FunctionType) -> list[Any]:
    names = {*names_in(function.__code__)}
    found = [function.__globals__[name] for name in names if name in function.__globals__]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not yet assigned
            continue
    for module in [one for one in found if isinstance(one, ModuleType)]:
        if is_the_scripts(getattr(module, "__file__", None)):
            found += [vars(module)[name] for name in names if name in vars(module)]
    return [*found, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def names_in(code: CodeType) -> Iterator[str]:
    """Yields the names of globals and attributes that code uses, with the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def _parts(one: Any) -> list[Any]:
    """Returns the objects within an object that may be functions or have some."""
    match one:
        case FunctionType():
            return [one]
        case type():
            return [*vars(one).values(), *one.__bases__] if is_the_scripts(file_of(one.__module__)) else []
        case staticmethod() | classmethod():
            return [one.__func__]
        case property():
            return [one.fget, one.fset, one.fdel]
        case MethodType():
            return [one.__func__, type(one.__self__)]
        case functools.partial():
            return [one.func, *one.args, *one.keywords.values()]
        case list() | tuple() | dict() if len(one) <= _MOST_ITEMS:
            return list(one.values() if isinstance(one, dict) else one)
        case ModuleType():
            return []
    attributes = getattr(one, "__dict__", None)
    known = attributes if isinstance(attributes, dict) else {}  # not of an object that has any attribute, as llvmlite's library
    return [known.get("py_func"), type(one)]  # compiled by Numba, or an instance


def _functions(parts: Iterable[Any]) -> Iterator[FunctionType]:
    """Yields the functions among the parts of an object, and those within methods."""
    for part in parts:
        for one in [part] if isinstance(part, FunctionType) else _parts(part):
            if isinstance(one, FunctionType):
                yield one


def file_of(module: str) -> str | None:
    """Returns the file of a module that is loaded; "__main__" for that one."""
    return "__main__" if module == "__main__" else getattr(sys.modules.get(module), "__file__", None)


@cache
def is_the_scripts(file: str | None) -> bool:
    """Returns whether a file is the user's own: neither the standard library's nor an installed package's."""
    return file is not None and not file.startswith((*_INSTALLED, "<frozen"))
