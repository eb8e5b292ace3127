"""The values from outside that functions of the script read: those that ranks have, and whether a name has another by now.

    the function is sent ──> ReadValues: where each value is found, and what it was
    each call            ──> look(place, MISSING) is value, for each; some 40 ns
                               └── another object ──> ReadValues anew: another key? the function is sent again

Looked at are the names of globals, variables of closures and defaults that have numbers, texts, None, enums, dtypes, tuples of
these, or functions of the script. What arrays and other objects hold is not.

Functions are pickled by value, with the values of their globals. Those of modules that ranks have imported go by reference, and
so do the modules. So what is read from a module is assigned there on the ranks.
"""

import builtins
import dis
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import lru_cache
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, Final, TypeAlias, final

import numpy as np

from synknumba._world.code import is_the_scripts, names_in, reached

MISSING: Final = object()
MOST_CODES = 1024  # functions whose global names are kept

Look: TypeAlias = Callable[[Any, Any], Any]
"""Finds a value by the place that it is in; called with `MISSING` as the default."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype, Enum)
_of_cell: Look = vars(CellType)["cell_contents"].__get__
_of_defaults: Look = vars(FunctionType)["__defaults__"].__get__


@final
class ReadValues:
    """What functions read, as it is now.

    Args:
        roots: functions, or objects that lead to them.
        revision: has another value under "now" when a value in a module has changed on the ranks.

    Attributes:
        looks: how each value is found again, and the value.
        names: names of the values.
        key: equal for equal values of one revision.
        of_modules: values that are read from modules of the script, by module and name.
    """

    __slots__ = ("_seen", "key", "looks", "names", "of_modules")

    def __init__(self, roots: Iterable[object]) -> None:
        self.looks: list[tuple[Look, Any, Any]] = []
        self.names: list[str] = []
        self.of_modules: dict[tuple[str, str], Any] = {}
        self._seen: set[tuple[int, Any]] = set()
        for function in reached(roots):
            self._read(function)
        self.key: tuple[Any, ...] = tuple(
            (name, key_of(value)) for name, (_, _, value) in zip(self.names, self.looks, strict=True)
        )

    def differing(self, before: "ReadValues") -> list[str]:
        """Returns the names whose values are not as they were before."""
        old: dict[str, Any] = dict(item for item in before.key if isinstance(item, tuple))
        return [item[0] for item in self.key if isinstance(item, tuple) and old.get(item[0], MISSING) != item[1]]

    def _read(self, function: FunctionType) -> None:
        space, by_reference = function.__globals__, _goes_by_reference(function)
        for name in globals_of(function.__code__):
            value = space.get(name, MISSING)
            if isinstance(value, ModuleType):
                self._read_module(value, function.__code__)
            elif value is not MISSING or not hasattr(builtins, name):
                self._note(space, space.get, name, name, value)
                if by_reference:
                    self._note_module(space, name, value)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                self._note(cell, _of_cell, cell, name, cell.cell_contents)
            except ValueError:  # not yet assigned
                continue
        if function.__defaults__:
            name = f"the defaults of {function.__name__}"
            self._note(function, _of_defaults, function, name, function.__defaults__)
        by_keyword = function.__kwdefaults__ or {}
        for name, value in by_keyword.items():
            self._note(by_keyword, by_keyword.get, name, name, value)

    def _read_module(self, module: ModuleType, code: CodeType) -> None:
        if not is_the_scripts(getattr(module, "__file__", None)):
            return
        space = vars(module)
        for name in names_in(code):
            if name in space:
                self._note(space, space.get, name, f"{module.__name__}.{name}", space[name])
                self._note_module(space, name, space[name])

    def _note(self, holder: object, look: Look, place: Any, name: str, value: Any) -> None:
        where = id(holder), name
        if where not in self._seen and (value is MISSING or is_plain(value) or _is_function(value)):
            self._seen.add(where)
            self.looks.append((look, place, value))
            self.names.append(name)

    def _note_module(self, space: dict[str, Any], name: str, value: Any) -> None:
        module = space.get("__name__")
        if module != "__main__" and is_plain(value) and getattr(sys.modules.get(str(module)), "__dict__", None) is space:
            self.of_modules[str(module), name] = value


@final
class RankValues:
    """The values in modules of the script that were assigned on the ranks of one world."""

    def __init__(self) -> None:
        self._assigned: dict[tuple[str, str], Any] = {}
        self._revision: dict[str, object] = {"now": object()}

    def read(self, roots: Iterable[object]) -> ReadValues:
        """Returns what functions read now, which the ranks get if they lack it.

        Where a value in a module changes on the ranks, other functions that read from modules are sent again.
        """
        values = ReadValues(roots)
        new = {name: key_of(value) for name, value in values.of_modules.items()}
        if any(self._assigned.get(name, key) != key for name, key in new.items()):
            self._revision["now"] = object()
        self._assigned.update(new)
        if new:
            revision = self._revision["now"]
            values.looks.append((self._revision.get, "now", revision))
            values.key = (*values.key, revision)
        return values


def is_plain(value: Any) -> bool:
    """Returns whether a value cannot change, and is equal to others in a plain way."""
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(is_plain, value)))


def key_of(value: Any) -> Any:
    """Returns a key that tells 0.0 from −0.0 and 1 from True, and is equal for two NaN."""
    if isinstance(value, tuple):
        return type(value), *map(key_of, value)
    if isinstance(value, float | complex) and (value != value or value == 0):  # noqa: PLR0124  # NaN
        return type(value), repr(value)
    if isinstance(value, np.generic):
        return value.dtype, value.tobytes()
    return type(value), value


def _goes_by_reference(function: FunctionType) -> bool:
    """Returns whether pickles have the name of a function only, as it is found in a module."""
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _is_function(value: Any) -> bool:
    """Returns whether a value is a function of the script, or one that Numba compiles."""
    attributes = getattr(value, "__dict__", None)  # not `getattr`, which for some objects opens a driver
    compiled = attributes.get("py_func") if isinstance(attributes, dict) else None
    function = value if isinstance(value, FunctionType) else compiled
    return isinstance(function, FunctionType) and is_the_scripts(function.__code__.co_filename)


@lru_cache(MOST_CODES)
def globals_of(code: CodeType) -> tuple[str, ...]:
    """Returns the names of globals that code reads, with the functions inside it."""
    return tuple(dict.fromkeys(_loaded(code)))


def _loaded(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in {"LOAD_GLOBAL", "LOAD_NAME"}:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _loaded(constant)
