"""The text of a function's file as it was when the function was defined, though the file may be
edited while the process runs.

`inspect` reads a file when it is asked, and again when the file has changed. A kernel is translated
at its first call, perhaps hours after the script was started, and in another process: it would get
whatever the file holds by then.

    definition ── keep_text ──> `linecache` entry without a time, which Python never drops; ranks inherit it, or are sent it
    translation ── check_text ──> refuses a text that the function was not compiled from

A text is compared by compiling it as Python did: the function's code must be among the code
objects. Where an import hook has compiled something else, as pytest's does, the text is believed if
the file is older than the process.
"""  # noqa: E501

import linecache
import os
import stat
import sys
import time
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from zipimport import zipimporter

from synknumba._errors import KernelError
from synknumba.simt._source.reads import code_objects, functions_called


class KeptText(list[str]):
    """The lines of a file that `keep_text` has kept."""


_EDITED = (
    "the file has been edited since this process read it, so the source of the kernel is no longer "
    "known, and running it on the CPU needs it; start the script again, or call the function as it "
    "was defined last"
)
_EXECUTED = (
    "the kernel was not compiled from this file, and running it on the CPU needs its source; a "
    "text for exec(compile(text, name, 'exec')) needs a name of its own, and must be entered "
    "first: linecache.cache[name] = (len(text), None, text.splitlines(True), name)"
)

# time and size of each file whose text is kept; None in a zip archive
_kept: dict[str, tuple[int, int] | None] = {}
# by file: the lines, and all code objects compiled from them
_codes: dict[str, tuple[object, frozenset[CodeType]]] = {}


def keep_text(function: object) -> None:
    """Keeps the texts of the files of a function and of the device functions that it names, as they
    are now.
    """
    plain = getattr(function, "py_func", function)
    if isinstance(plain, FunctionType):
        for called in functions_called(plain):
            _keep(called)


def _keep(function: FunctionType) -> None:
    filename = function.__code__.co_filename
    try:
        status = os.stat(filename)
        state = status.st_mtime_ns, status.st_size
        if not stat.S_ISREG(status.st_mode):
            # a pipe, which has been read: to read it again finds nothing, or waits for ever
            linecache.cache[filename] = (0, None, [], filename)
            return
    except OSError:
        if not isinstance(function.__globals__.get("__loader__"), zipimporter):
            return  # a notebook cell, generated code, a file that is gone
        state = None
    if isinstance(_lines(function), KeptText):
        if _kept.get(filename) == state or function.__code__ in _compiled_from(function):
            return
        linecache.cache.pop(filename, None)  # a module that was edited and loaded again
    linecache.checkcache(filename)
    lines = _lines(function)
    if lines:
        _kept[filename] = state
        linecache.cache[filename] = (sum(map(len, lines)), None, KeptText(lines), filename)


def _lines(function: FunctionType) -> list[str]:
    return linecache.getlines(function.__code__.co_filename, function.__globals__)


def check_text(function: FunctionType) -> None:
    """Raises `KernelError` if the function was not compiled from what is known as the text of
    its file.
    """
    code, loader = function.__code__, function.__globals__.get("__loader__")
    filename = code.co_filename
    lines = _lines(function)
    try:
        status = os.stat(filename)
    except OSError:
        if not isinstance(lines, KeptText):
            return  # a notebook cell, generated code; without lines, `inspect` raises
        is_older = False
    else:
        if not stat.S_ISREG(status.st_mode):
            return  # `inspect` raises
        is_older = status.st_ctime < _started()
    is_plain = type(loader) in {SourceFileLoader, zipimporter}
    if (is_plain or not is_older) and code not in _compiled_from(function):
        reason = _EXECUTED if is_older else _EDITED
        raise KernelError(f"{function.__qualname__} ({filename}:{code.co_firstlineno}): {reason}")


def _started() -> float:
    """Returns the time when the process was started, or the script that it was forked from; 0 if
    the system does not tell.
    """
    if not _start:
        _start.append(0.0)
        with suppress(OSError, ValueError, IndexError):
            # proc(5): starttime
            ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
            age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
            _start[0] = time.time() - age - 0.1  # ticks are 10 ms long
    return _start[0]


_start: list[float] = []
_started()  # not in a rank, whose start is the fork


def _compiled_from(function: FunctionType) -> frozenset[CodeType]:
    """Returns all code objects that the known text of a function's file is compiled to."""
    filename = function.__code__.co_filename
    linecache.checkcache(filename)
    lines = _lines(function)
    compiled, codes = _codes.get(filename, (None, frozenset()))
    if compiled is lines:
        return codes
    try:
        module = compile(
            "".join(lines), filename, "exec", dont_inherit=True, optimize=sys.flags.optimize
        )
    except (SyntaxError, ValueError):  # the middle of an edit
        return frozenset()
    codes = frozenset(code_objects(module))
    _codes[filename] = lines, codes
    return codes
