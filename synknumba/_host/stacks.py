"""Stack traces of ranks: requested by the coordinator from a running rank, and left behind by one
that crashed.

    coordinator                         memory file of the rank                   rank
    -----------                         -----------------------                   ----
    creates it before the fork     →    (no name, not on disk)               →    faulthandler writes to it:
    sends a signal                 →                                         →    the stack of each thread, or
                                                                                  at a crash, the
                                                                                  error and the
                                                                                  stacks
    reads it                       ←    text                                 ←

The handlers are faulthandler's: they run at once, in the thread that received the signal, and need
neither the GIL nor memory allocation. So a rank that hangs in a compiled loop, a library or the
driver reports its stack as well, and a crashed rank has written its stack before it died.
"""  # noqa: E501

import errno
import faulthandler
import fcntl
import os
import signal
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import final

from synknumba._host.children import status

# not used by any known library; SIGUSR1 and SIGUSR2 are left to the script
ASK = signal.SIGRTMAX - 3
# a running rank answers within a millisecond; on a busy machine it takes longer
ANSWER_SECONDS = 0.4
_POLL_SECONDS = 0.001
# after which a rank that has taken the signal, and written nothing, gets it again
_AGAIN_SECONDS = 0.1
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
# frames below a rank's loop are the script's fork() call
_LOOP = f'File "{_PACKAGE}_rank/loop.py", line '
_ROWS = f'File "{_PACKAGE}_rank/sequence_program.py", line '
_WATCHER = f'File "{_PACKAGE}_rank/startup.py", line '  # the thread of a rank in a sandbox


@final
class Stacks:
    """The memory file of one rank's stack traces. Created before the fork."""

    def __init__(self, rank: int) -> None:
        self.fd = _open_file(f"synk-stacks-{rank}")
        fcntl.fcntl(self.fd, fcntl.F_SETFL, os.O_APPEND)

    def enter(self) -> None:
        """In the rank: installs the handlers for crashes and for the coordinator's signal."""
        faulthandler.enable(self.fd, all_threads=True)
        faulthandler.register(ASK, self.fd, all_threads=True, chain=False)

    def read(self) -> str:
        """Returns the contents as text."""
        with suppress(OSError):  # closed, by a signal handler in the middle of `ask`
            return os.pread(self.fd, os.fstat(self.fd).st_size, 0).decode(errors="backslashreplace")
        return ""

    def clear(self) -> None:
        """Empties the file, so that later contents come from a crash."""
        with suppress(OSError):
            os.ftruncate(self.fd, 0)

    def close(self) -> None:
        """Closes the file; idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _open_file(name: str) -> int:
    """Opens a memory file, or where a sandbox refuses that, one without a name in /dev/shm; else
    stacks are not kept.
    """
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            raise
    try:
        with tempfile.TemporaryFile(dir="/dev/shm") as file:
            return os.dup(file.fileno())
    except OSError:
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


def ask(ranks: Mapping[int, Stacks], seconds: float = ANSWER_SECONDS) -> dict[int, str]:
    """Requests the stacks of running ranks, given their memory files by process id; returns the
    text for each, shortened.

    For a process that does not answer in time, the text gives its state in the kernel; processes
    that have ended are left out.
    """
    waiting = dict(ranks)
    for pid, stacks in ranks.items():
        stacks.clear()
        try:
            os.kill(pid, ASK)
        except (ProcessLookupError, PermissionError):  # ended; or the script has changed its user
            del waiting[pid]
    begin = time.monotonic()
    again = begin + _AGAIN_SECONDS
    while waiting and time.monotonic() < begin + seconds:
        time.sleep(_POLL_SECONDS)
        waiting = {pid: stacks for pid, stacks in waiting.items() if not _is_done(pid, stacks)}
        if time.monotonic() > again:
            again += _AGAIN_SECONDS
            _ask_again(waiting)
    texts = {}
    for pid, stacks in ranks.items():
        text, kernel = shorten(stacks.read()), state(pid)
        stacks.clear()
        if text:
            texts[pid] = text
        elif not _has_ended(kernel):
            texts[pid] = f"  no answer; process state: {kernel}"
    return texts


def _ask_again(waiting: Mapping[int, Stacks]) -> None:
    """Sends the signal once more to ranks that neither have it pending nor run its handler."""
    for pid, stacks in waiting.items():
        if not any(_held(status(pid))) and not shorten(stacks.read()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, ASK)


def _held(fields: Mapping[str, str]) -> list[int]:
    """Returns whether the signal is pending for the process, for its main thread, and blocked,
    as it is in its handler.
    """
    return [
        int(fields.get(name, "0"), 16) >> (ASK - 1) & 1 for name in ("ShdPnd", "SigPnd", "SigBlk")
    ]


def _is_done(pid: int, stacks: Stacks) -> bool:
    """Returns whether no more text will come: the handler has finished, the process has ended, or
    the file is closed.

    The handler has finished when the signal is neither pending nor blocked (it is blocked while its
    handler runs), and there is text with a heading: of an answer that was asked for twice, the end
    may come after the file was cleared. Without /proc that is not known, and `ask` waits as long as
    it may.
    """
    fields = status(pid)
    if stacks.fd < 0 or _has_ended(fields.get("State", "gone")):
        return True
    if "SigPnd" not in fields:
        return False
    return not any(_held(fields)) and bool(shorten(stacks.read()))


def _has_ended(state: str) -> bool:
    return state.startswith(("gone", "Z", "X"))


def state(pid: int) -> str:
    """Returns the kernel's state of a process, such as "R (running)"; "gone" if it has ended."""
    return status(pid).get("State", "gone")


def shorten(text: str) -> str:
    """Removes the frames common to all ranks from faulthandler's text: the script's call of fork()
    and the rank's loop.

    With several threads, each keeps its heading. Frames stay in faulthandler's order, innermost
    first.
    """
    threads: list[list[str]] = []
    for line in text.splitlines():
        if line.endswith("(most recent call first):"):
            threads.append([line])
        elif threads and line.startswith("  "):
            threads[-1].append(line)
    threads = [thread for thread in threads if not any(map(_is_of_watcher, thread))]
    lines = []
    for heading, *frames in threads:
        if len(threads) > 1:
            lines.append(heading)
        doing = "  waits for a call"
        # With `_arrive` innermost, the rank may be in compiled code (`doorbell.serve`).
        if _first(frames).endswith(" in _arrive"):
            doing += ", or repeats the last one in compiled code"
        lines += _without_loop(frames) or [doing]
    return "\n".join(lines)


def _is_of_watcher(frame: str) -> bool:
    return _WATCHER in frame and frame.endswith("_lifeline")


def _first(frames: list[str]) -> str:
    """Returns the innermost frame; "" of none."""
    return next(iter(frames), "")


def _without_loop(frames: list[str]) -> list[str]:
    ends = (" in run", " in _execute", " in _arrive", " in _report", " in _await_command")
    loop = next(
        (i for i, frame in enumerate(frames) if _LOOP in frame and frame.endswith(ends)),
        len(frames),
    )
    inner = frames[:loop]
    if _ROWS in _first(inner):
        if inner[0].endswith(" in _handle"):
            return ["  waits for other ranks"]
        return ["  runs compiled code, or waits for other ranks"]
    if _first(frames[loop:]).endswith(" in _await_command"):
        return []
    while inner and _PACKAGE in inner[-1] and any(_PACKAGE not in frame for frame in inner):
        inner = inner[:-1]
    return inner
