"""What functions of the script read from outside: those values that ranks have, and whether a name
has another by now.

    the function is sent ──> ReadValues: where each value is found, and what it was
    each call            ──> look(place, MISSING) is value, for each; some 40 ns
                               └── another object ──> ReadValues anew: another key? the function is sent again

Looked at are names of globals, variables of closures and defaults (`_source/reached.py`): numbers,
texts and other plain values by what they are, any other object by its identity. What an array or an
object holds is not looked at, and of a module only the names read from it.

Functions are pickled by value, with the values of their globals. Those of modules that ranks have
imported go by reference, and so do the modules. So what is read from a module is assigned there on
the ranks: plain values always, other objects once the script has replaced them.
"""  # noqa: E501

import itertools
import sys
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from enum import Enum
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, final
from weakref import ref

import numpy as np

from synknumba._source.reached import (
    MISSING,
    Look,
    Read,
    imported_modules,
    own,
    reached,
    reads_of,
)
from synknumba._wire.function_pickling import copy_of

# hold no memory of ranks, and need none of the time of references
_LASTING = FunctionType | CodeType | ModuleType | type
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype, Enum)


@final
class ReadValues:
    """What functions read, as it is now.

    Args:
        roots: functions, or objects that lead to them.

    Attributes:
        looks: how each value is found again, and the value.
        named: name of each value, and a key that equal values share.
        of_modules: values that are read from modules of the script, by module and name.
        revision: how often one of these has changed in the world; 0 for what reads none.
    """

    __slots__ = ("looks", "named", "of_modules", "revision")

    def __init__(self, roots: Iterable[object]) -> None:
        functions = list(reached(roots))
        by_reference = {
            id(function.__globals__) for function in functions if _goes_by_reference(function)
        }
        reads: dict[tuple[int, str], Read] = {}
        for read in itertools.chain.from_iterable(map(reads_of, functions)):
            reads[id(read.space), read.name] = read
        self.looks: list[tuple[Look, Any, Any]] = list(map(_kept_look, reads.values()))
        self.named = tuple((read.name, _key_of_any(read.value)) for read in reads.values())
        self.revision = 0
        self.of_modules: dict[tuple[str, str], Any] = {}
        for read in reads.values():
            if read.value is MISSING:
                continue
            module = _module_of(read.space, by_reference)
            if module is not None:
                self.of_modules[module, read.name] = read.value

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal values of one revision."""
        return self.named, self.revision

    def differing(self, before: "ReadValues") -> list[str]:
        """Returns the names whose values are not as they were before."""
        old: dict[str, Any] = dict(before.named)
        return [name for name, key in self.named if old.get(name, MISSING) != key]


@final
class RankValues:
    """The values in modules of the script that were assigned on the ranks of one world."""

    def __init__(self) -> None:
        """Notes the values in modules of the script, right before the fork."""
        self._assigned: dict[tuple[str, str], Any] = {
            (name, attribute): held(value)
            for name, module in imported_modules()
            for attribute, value in list(vars(module).items())
        }
        self._replaced = set[tuple[str, str]]()  # names that have had another value since
        self._revision = {"now": 0}

    def read(self, roots: Iterable[object]) -> ReadValues:
        """Returns what functions read now, which the ranks get if they lack it.

        Where a value in a module changes on the ranks, other functions that read from modules are
        sent again.
        """
        values = ReadValues(roots)
        new = values.of_modules
        replaced = {
            name
            for name, value in new.items()
            if _differs(self._assigned.get(name, held(value)), value)
        }
        if replaced:
            self._revision["now"] += 1
        self._assigned.update((name, held(value)) for name, value in new.items())
        self._replaced |= replaced
        values.of_modules = {
            name: value for name, value in new.items() if name in self._replaced or is_plain(value)
        }
        if new:
            revision = self._revision["now"]
            values.looks.append((self._revision.get, "now", revision))
            values.revision = revision
        return values


def is_plain(value: Any) -> bool:
    """Returns whether a value cannot change, and is equal to others in a plain way."""
    if isinstance(value, _PLAIN):
        return True
    return isinstance(value, tuple) and all(map(is_plain, value))


@final
class _Identity:
    """A key for an object: equal to that of no other object, and for none that has died."""

    __slots__ = ("_hash", "_held")

    def __init__(self, value: Any) -> None:
        self._hash = hash(id(value))
        self._held = held(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Identity):
            return False
        mine = alive(self._held)
        return mine is not None and mine is alive(other._held)


def held(value: Any) -> Any:
    """Returns a weak reference to a value, so that it is freed with its last name; itself if
    there are none to its type.
    """
    if isinstance(value, _LASTING):
        return value
    try:
        return ref(value)
    except TypeError:
        return value


def alive(reference: Any) -> Any:
    """Returns the value that `held` has taken; None if it has been freed."""
    return reference() if type(reference) is ref else reference


def _kept_look(read: Read) -> tuple[Look, Any, Any]:
    """Returns how to see whether a name still has its value, without keeping an array or another
    object alive.
    """
    _, _, look, place, value = read
    reference = held(value)
    if callable(value) or is_plain(value) or type(reference) is not ref:
        return look, place, value
    return lambda place, missing: look(place, missing) is reference(), place, True


def _key_of_any(value: Any) -> Any:
    return key_of(value) if is_plain(value) else _Identity(value)


def _differs(reference: Any, value: Any) -> bool:
    before = alive(reference)
    if before is None and reference is not None:
        return True  # freed, as the name has another value
    return before is not value and _key_of_any(before) != _key_of_any(value)


def key_of(value: Any) -> Any:
    """Returns a key that tells 0.0 from −0.0 and 1 from True, and is equal for two NaN."""
    if isinstance(value, tuple):
        return type(value), *map(key_of, value)
    if isinstance(value, float | complex):
        is_nan = value != value  # noqa: PLR0124
        if is_nan or value == 0:
            return type(value), repr(value)
    if isinstance(value, np.generic):
        return value.dtype, value.tobytes()
    return type(value), value


def _module_of(space: Any, by_reference: Collection[int]) -> str | None:
    """Returns the module that ranks have imported and to which a space of names belongs; None for
    any other space.

    Args:
        space: a module, or globals.
        by_reference: ids of the globals of functions that go by reference.
    """
    names = vars(space) if isinstance(space, ModuleType) else space
    if names is space and id(space) not in by_reference:
        return None
    module = str(names.get("__name__"))
    if module == "__main__" or own(sys.modules.get(module)) is not names:
        return None
    return module


def _goes_by_reference(function: FunctionType) -> bool:
    """Returns whether pickles have the name of a function only, as it is found in a module."""
    value: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        value = getattr(value, name, None)
    if type(value).__name__ == "CUDADispatcher":  # a device function
        value = value.py_func
    return value is function


def with_values(function: Any, change: Callable[[Any], Any]) -> FunctionType:
    """Returns a copy of a function whose globals and closure variables keep their values of now,
    each changed.
    """
    names, old_cells = {**function.__globals__}, function.__closure__ or ()
    cells = tuple(CellType() for _ in old_cells)
    copied = copy_of(function, names, cells or None)
    for name in {*function.__code__.co_names} & {*names}:
        names[name] = change(names[name])
    for cell, old in zip(cells, old_cells, strict=True):
        with suppress(ValueError):  # not yet assigned
            cell.cell_contents = change(old.cell_contents)
    return copied
