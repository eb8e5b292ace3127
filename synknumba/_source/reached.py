"""What functions of the script reach: other functions, and the values that they read from outside.

    function ── reads_of ──> the values of globals, cells, defaults, and names of the script's modules
        ▲                        │
        └───── functions_in ─────┘  functions within methods, partial functions, classes, …

`walk` follows whatever its client asks it to follow: `reached` functions only, the body of a sequence
also containers and objects (`_sequence/outer_values.py`).
"""  # noqa: E501

import builtins
import dis
import glob
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache, partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

from synknumba.simt.internals import names_in

MISSING: Final = object()
MAX_CODES = 1024  # functions whose global names are kept
_MAX_ITEMS = 100  # of a list or a dict, in which functions are looked for
_PACKAGE = os.path.dirname(os.path.dirname(__file__))


def _folders() -> list[str]:
    """Returns the folders of the path; what else is in it, Python's own importer ignores."""
    return [entry for entry in sys.path if isinstance(entry, str)]


# with other environments
_SHARED = [
    path for path in _folders() if os.path.basename(path) in {"site-packages", "dist-packages"}
]
_INSTALLED = tuple(
    {
        os.path.join(path, "")
        for path in (*sysconfig.get_paths().values(), *_SHARED, _PACKAGE)
        if path != sys.prefix
    }
)

Look: TypeAlias = Callable[[Any, Any], Any]
"""Finds a value by the place that it is in; called with `MISSING` as the default."""

_of_cell: Look = vars(CellType)["cell_contents"].__get__
_of_code: Look = vars(FunctionType)["__code__"].__get__
_of_defaults: Look = vars(FunctionType)["__defaults__"].__get__
_of_keyword_defaults: Look = vars(FunctionType)["__kwdefaults__"].__get__


class Read(NamedTuple):
    """A value that code reads by a name.

    Attributes:
        space: what has the name: globals, a module, a cell, an object.
        name: the name.
        look: finds the value again: `look(place, MISSING)`.
        place: where it looks.
        value: the value, or `MISSING`.
    """

    space: object
    name: str
    look: Look
    place: Any
    value: Any


def reads_of(function: FunctionType) -> Iterator[Read]:
    """Yields what a function reads from outside, its own code and defaults among it."""
    code, space = function.__code__, function.__globals__
    yield Read(function, f"the code of {function.__name__}", _of_code, function, code)
    if function.__defaults__:
        name = f"the defaults of {function.__name__}"
        yield Read(function, name, _of_defaults, function, function.__defaults__)
    if by_keyword := function.__kwdefaults__:
        name = f"the keyword defaults of {function.__name__}"
        yield Read(function, name, _of_keyword_defaults, function, by_keyword)
        yield from _reads_in(by_keyword, by_keyword, by_keyword)
    names = [name for name in globals_of(code) if name in space or not hasattr(builtins, name)]
    reads = list(_reads_in(space, space, names))
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            reads.append(Read(cell, name, _of_cell, cell, cell.cell_contents))
        except ValueError:  # not yet assigned
            continue
    modules = list[ModuleType]()
    for read in reads:
        yield read
        module = read.value
        if not isinstance(module, ModuleType) or module in modules:
            continue
        if is_a_module_of_the_script(module):
            modules.append(module)
            members = vars(module)
            reads += _reads_in(module, members, sorted(members.keys() & {*names_in(code)}))


def _reads_in(space: object, values: Mapping[str, Any], names: Iterable[str]) -> Iterator[Read]:
    for name in names:
        yield Read(space, name, values.get, name, values.get(name, MISSING))


def walk(roots: Iterable[object], parts: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
    """Yields these objects and, once each, what they lead to."""
    waiting, visited = list(roots), dict[int, Any]()
    while waiting:
        holder = waiting.pop()
        if id(holder) not in visited:
            visited[id(holder)] = holder  # which keeps its id from being used again
            yield holder
            waiting += parts(holder)


def reached(roots: Iterable[object]) -> Iterator[FunctionType]:
    """Yields the functions of the script that objects use: by names, closures, defaults, methods
    and containers.
    """
    return filter(is_a_function_of_the_script, walk(roots, functions_in))


def functions_in(holder: Any) -> list[Any]:
    """Returns the objects that an object uses, or within it, that may be functions or have some."""
    if is_a_function_of_the_script(holder):
        return [read.value for read in reads_of(holder)]
    match holder:
        case type() if is_the_scripts(file_of(holder.__module__)):
            return [*vars(holder).values(), *holder.__bases__]
        case type() | ModuleType():
            return []
        case dict() if len(holder) <= _MAX_ITEMS:
            return list(dict.values(holder))
        case list() | tuple() if len(holder) <= _MAX_ITEMS:
            return list(holder)
    # compiled by Numba, or an instance
    return inside(holder) or [(own(holder) or {}).get("py_func"), type(holder)]


def inside(holder: Any) -> list[Any]:
    """Returns the parts of a method, a property or a partial function; else nothing."""
    match holder:
        case staticmethod() | classmethod():
            return [holder.__func__]
        case property():
            return [holder.fget, holder.fset, holder.fdel]
        case MethodType():
            return [holder.__func__, holder.__self__]
        case partial():
            return [holder.func, *holder.args, *holder.keywords.values()]
        case FunctionType():
            return [vars(holder).get("__wrapped__")]
    return []


def own(holder: Any) -> dict[str, Any] | None:
    """Returns the attributes stored in an object itself; None if it can have none."""
    try:
        attributes = object.__getattribute__(holder, "__dict__")
    except Exception:  # noqa: BLE001  # also of an object that answers for another one
        return None
    if not isinstance(attributes, dict):
        return None
    return attributes


@lru_cache(MAX_CODES)
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


def is_a_function_of_the_script(value: Any) -> bool:
    return isinstance(value, FunctionType) and is_the_scripts(value.__code__.co_filename)


def is_a_module_of_the_script(value: Any) -> bool:
    return isinstance(value, ModuleType) and is_the_scripts(getattr(value, "__file__", None))


def imported_modules() -> Iterator[tuple[str, ModuleType]]:
    """Yields the script's modules but for `__main__`, with their names."""
    for name, module in list(sys.modules.items()):
        if name != "__main__" and is_a_module_of_the_script(module):
            yield name, module


def file_of(module: str) -> str | None:
    """Returns the file of a module that is loaded; "__main__" for that one."""
    if module == "__main__":
        return module
    return getattr(sys.modules.get(module), "__file__", None)


@cache
def is_the_scripts(file: str | None) -> bool:
    """Returns whether a file is the user's own: not the standard library's, and not installed."""
    if file is None or file.startswith((*_INSTALLED, "<frozen")):
        return False
    for folder in _folders():
        inner = file.removeprefix(os.path.join(folder, ""))
        if inner != file and inner.partition(os.sep)[0] in _installed_in(folder):
            return False
    return True


@cache
def _installed_in(folder: str) -> frozenset[str]:
    """Returns what `pip install --target` has put into a folder, which may hold the user's own
    modules too.
    """
    names = set()
    for record in glob.iglob(os.path.join(glob.escape(folder), "*.dist-info", "RECORD")):
        with suppress(OSError), open(record, encoding="utf-8", errors="replace") as lines:
            names |= {line.partition(",")[0].partition("/")[0] for line in lines}
    return frozenset(names)
