"""The text of a function's file as it was when the function was defined, though the file may be edited while the process runs.

`inspect` reads a file when it is asked, and again when the file has changed. A kernel is translated at its first call, perhaps
hours after the script was started, and in another process: it would get whatever the file holds by then.

    definition ── keep_text ──> `linecache` entry without a time, which Python never drops; ranks inherit it, or are sent it
    translation ── check_text ──> refuses a text that the function was not compiled from
"""

import linecache
import os
import sys
import time
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from synknumba._errors import KernelError

_STARTED = time.time()  # a file whose status is older has not been edited since this process read it

_kept: dict[str, tuple[int, int]] = {}  # time and size of each file whose text is kept
_codes: dict[str, tuple[object, frozenset[CodeType]]] = {}  # by file: the lines, and all code objects compiled from them


def keep_text(function: object) -> None:
    """Keeps the texts of the files of a function and of the device functions that it names, as they are now."""
    seen: set[FunctionType] = set()
    found = [getattr(function, "py_func", function)]
    while found:
        one = found.pop()
        if isinstance(one, FunctionType) and one not in seen:
            seen.add(one)
            _keep(one.__code__)
            found += _called(one)


def _keep(code: CodeType) -> None:
    filename = code.co_filename
    try:
        status = os.stat(filename)
    except OSError:  # a notebook cell, generated code, a module in a zip file
        return
    state = status.st_mtime_ns, status.st_size
    if filename in _kept:
        if _kept[filename] == state or code in _compiled_from(filename):
            return
        linecache.cache.pop(filename, None)  # a module that was edited and loaded again
    linecache.checkcache(filename)
    lines = linecache.getlines(filename)
    if lines:
        _kept[filename] = state
        linecache.cache[filename] = (status.st_size, None, lines, filename)


def _called(function: FunctionType) -> Iterator[FunctionType]:
    """Yields the plain functions of the device and njit functions that a function names, also as attributes of modules."""
    names = set(_names(function.__code__))
    values = [function.__globals__.get(name) for name in names]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    values += [vars(value).get(name) for value in values if isinstance(value, ModuleType) for name in names]
    for value in values:
        plain: Any = getattr(value, "py_func", None) if not isinstance(value, ModuleType) else None
        if isinstance(plain, FunctionType):
            yield plain


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def check_text(function: FunctionType) -> None:
    """Raises `KernelError` if the function's file was edited since and the text of the function is no longer known."""
    code = function.__code__
    filename = code.co_filename
    try:
        edited = os.stat(filename).st_ctime >= _STARTED
    except OSError:
        return
    if edited and code not in _compiled_from(filename):
        raise KernelError(
            f"{function.__qualname__} ({filename}:{code.co_firstlineno}): the file has been edited since this process read it, "
            "so the source of the kernel is no longer known, and running it on the CPU needs it; start the script again"
        )


def _compiled_from(filename: str) -> frozenset[CodeType]:
    """Returns all code objects that the known text of a file is compiled to."""
    linecache.checkcache(filename)
    lines = linecache.getlines(filename)
    known = _codes.get(filename)
    if known is not None and known[0] is lines:
        return known[1]
    try:
        whole = compile("".join(lines), filename, "exec", dont_inherit=True, optimize=sys.flags.optimize)
    except (SyntaxError, ValueError):  # the middle of an edit
        return frozenset()
    _codes[filename] = lines, frozenset(_inside(whole))
    return _codes[filename][1]


def _inside(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _inside(constant)
