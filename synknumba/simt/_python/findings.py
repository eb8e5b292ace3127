"""Texts of findings, and the location of a thread in user code."""

import bdb
import dis
import sys
from collections.abc import Iterable
from traceback import walk_tb
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

import numpy as np

from synknumba._errors import Access, BoundsError, Finding, KernelCheckError, SynkError
from synknumba.simt._python.arrays import Array, TrackedMemory, index_parts
from synknumba.simt._python.source import MARK


def access(what: str, thread: Any, code: CodeType, line: int) -> Access:
    """Returns the record of an access by a `Thread` on a line."""
    return Access(
        what, (*thread.index,), (*thread.block_index,), code.co_name, code.co_filename, line
    )


def user_frame() -> FrameType:
    """Returns the innermost running frame of the kernel or of one of its device functions."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # there is no public equivalent
    while frame is not None and MARK not in frame.f_globals:
        frame = frame.f_back
    assert frame is not None  # only kernels access these arrays
    return frame


def outside_finding(thread: Any, array: Array, index: Any, what: str) -> Finding:
    """Returns the finding for an out-of-bounds index."""
    frame = user_frame()
    parts = index_parts(index)
    where = described_part(array.shape, array.memory)
    summary = f"index {shown_index(parts)} is outside of {where}"
    place = access(what, thread, frame.f_code, frame.f_lineno)
    numbers = tuple(int(part) for part in parts if isinstance(part, (int, np.integer)))
    return Finding(BoundsError, summary, (place,), BOUNDS_ADVICE, array.memory.name, numbers)


BOUNDS_ADVICE: Final = "guard the access by a condition, or make the array larger"
_RAISE: Final = dis.opmap["RAISE_VARARGS"]
_ENDED: Final = (
    "the thread ended here: what it would have done next was not checked; "
    "simt.debug stops on this line"
)
_FAULTS: Final[dict[str, str]] = {
    "UnboundLocalError": (
        "assign the variable on every path to this line; on a GPU its value is undefined"
    ),
    "ZeroDivisionError": "test the divisor first; on a GPU the result is undefined",
}


def is_fault(error: BaseException) -> bool:
    """Returns whether Python raised the exception while it ran a kernel's code, not a `raise` or
    `assert` of that code.

    Errors of this package, of the debugger (a user's "quit") and of memory are not about the
    kernel.
    """
    if not isinstance(error, Exception) or isinstance(error, (SynkError, bdb.BdbQuit, MemoryError)):
        return False
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or MARK not in traceback.tb_frame.f_globals:
        return True
    return traceback.tb_frame.f_code.co_code[traceback.tb_lasti] != _RAISE


def fault_finding(thread: Any, error: BaseException) -> Finding:
    """Returns the finding for an exception of a thread, with the innermost line in user code."""
    frame, line = _user_frames(error.__traceback__)[-1]
    place = access("raises", thread, frame.f_code, line)
    return Finding(
        KernelCheckError,
        f"{type(error).__name__}: {error}",
        (place,),
        fault_advice(type(error).__name__),
    )


def fault_advice(name: str) -> str:
    """Returns the advice for an exception with this name."""
    return _FAULTS.get(name, _ENDED)


def described(memory: TrackedMemory) -> str:
    """Returns a description of an array: kind, name, shape and dtype."""
    kind = f"{memory.space} array"
    if memory.space == "global":
        kind = "array"
    return f"the {kind} {memory.name} (shape {memory.array.shape}, {memory.array.dtype})"


def described_part(shape: tuple[int, ...], memory: TrackedMemory) -> str:
    """Returns a description of a view of this shape: of the array, or of a part of it."""
    if shape == memory.array.shape:
        return described(memory)
    return f"a part of shape {shape} of {described(memory)}"


def shown_index(index: Iterable[Any]) -> str:
    """Returns an index as it is written."""
    return f"[{', '.join(map(_shown_part, index))}]"


def _shown_part(part: Any) -> str:
    if not isinstance(part, slice):
        return str(part)
    ends = [part.start, part.stop]
    if part.step is not None:
        ends.append(part.step)
    return ":".join(map(str, ends)).replace("None", "")


def _user_frames(traceback: TracebackType | None) -> list[tuple[FrameType, int]]:
    return [(frame, line) for frame, line in walk_tb(traceback) if MARK in frame.f_globals]


def user_line(traceback: TracebackType | None) -> str:
    """Returns "file:line" of the innermost traceback entry in the kernel or its device
    functions; "" if there is none.
    """
    frames = _user_frames(traceback)
    if not frames:
        return ""
    frame, line = frames[-1]
    return f"{frame.f_code.co_filename}:{line}"


def of_the_user(traceback: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without this package's frames, so that a debugger opens at the user's
    line.
    """
    entries, users = [], []
    while traceback is not None:
        entries.append(traceback)
        if not _is_ours(traceback.tb_frame):
            users.append(traceback)
        traceback = traceback.tb_next
    new = None
    for entry in reversed(users or entries):
        new = TracebackType(new, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return new


def _is_ours(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.startswith("synknumba.simt.") and MARK not in frame.f_globals
