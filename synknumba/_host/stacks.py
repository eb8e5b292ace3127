"""Where a rank is in its code: asked for by the coordinator while it works, and left behind when it crashes.

    coordinator                         memory file of the rank                   rank
    -----------                         -----------------------                   ----
    makes it before the fork       →    (no name, no place on disk)          →    faulthandler writes there:
    sends a signal                 →                                         →    the stack of each thread, or
                                                                                  at a crash, the error and the stacks
    reads it                       ←    text                                 ←

The handlers are faulthandler's: they run at once, in the thread that got the signal, and take neither the interpreter's lock
nor memory. So a rank that hangs in a compiled loop, a library or the driver tells where it is as well, and a rank that died has
told it before.
"""

import faulthandler
import fcntl
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import final

ASK = signal.SIGRTMAX - 3  # no library is known to use it; SIGUSR1 and SIGUSR2 are the script's
ANSWER_SECONDS = 0.4  # a rank that runs answers in a millisecond; on a busy machine later
_POLL_SECONDS = 0.001
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_LOOP = f'File "{_PACKAGE}_rank/loop.py", line '  # what is below a rank's loop is the script's fork() call


@final
class Stacks:
    """The memory file of one rank. Made before the fork."""

    def __init__(self, rank: int) -> None:
        self.fd = os.memfd_create(f"synk-stacks-{rank}", os.MFD_CLOEXEC)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, os.O_APPEND)

    def enter(self) -> None:
        """In the rank: has crashes and the coordinator's question answered there."""
        faulthandler.enable(self.fd, all_threads=True)
        faulthandler.register(ASK, self.fd, all_threads=True, chain=False)

    def read(self) -> str:
        """What is there, decoded."""
        with suppress(OSError):  # closed, by a signal handler in the middle of a question
            return os.pread(self.fd, os.fstat(self.fd).st_size, 0).decode(errors="backslashreplace")
        return ""

    def clear(self) -> None:
        """Forgets an answer, so that what is there later is of a crash."""
        with suppress(OSError):
            os.ftruncate(self.fd, 0)

    def close(self) -> None:
        """Lets the file go; idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def ask(ranks: Mapping[int, Stacks], seconds: float = ANSWER_SECONDS) -> dict[int, str]:
    """The stacks of running processes, as `shorten` tells them.

    Args:
        ranks: their files, by process id.
        seconds: how long is waited for those that do not answer.

    Returns:
        The text of each, by process id. Of one that does not answer it is what the kernel says of it; one that has ended is
        left out.
    """
    waiting = dict(ranks)
    for pid, stacks in ranks.items():
        stacks.clear()
        try:
            os.kill(pid, ASK)
        except ProcessLookupError:
            del waiting[pid]
    deadline = time.monotonic() + seconds
    while waiting and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        waiting = {pid: stacks for pid, stacks in waiting.items() if not _is_done(pid, stacks)}
    told = {}
    for pid, stacks in ranks.items():
        text, kernel = shorten(stacks.read()), state(pid)
        stacks.clear()
        if text or not _has_ended(kernel):
            told[pid] = text or f"  does not answer; the kernel says it is {kernel}"
    return told


def _is_done(pid: int, stacks: Stacks) -> bool:
    """Whether the handler has run to its end: the signal waits no longer, nor is it held back, as while its handler runs.

    Or it never will, since the process has ended, or nobody is there any more to ask.
    """
    fields = _status(pid)
    if stacks.fd < 0 or _has_ended(fields.get("State", "gone")):
        return True
    held = int(fields.get("ShdPnd", "0"), 16) | int(fields.get("SigPnd", "0"), 16) | int(fields.get("SigBlk", "0"), 16)
    return not held >> (ASK - 1) & 1 and bool(stacks.read())


def _has_ended(state: str) -> bool:
    return state.startswith(("gone", "Z", "X"))


def state(pid: int) -> str:
    """What the kernel says of a process, in words: "R (running)", "T (stopped)"."""
    return _status(pid).get("State", "gone")


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has ended
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def shorten(text: str) -> str:
    """What faulthandler wrote, without what is the same in every rank: the script's call of fork(), and our own loop.

    Of several threads each keeps its heading. Frames are as faulthandler writes them: the innermost first.
    """
    threads = list(_threads(text))
    told = []
    for heading, *frames in threads:
        told += [heading] if len(threads) > 1 else []
        told += _without_loop(frames) or [f"  {_idle(frames)}"]
    return "\n".join(told)


def _idle(frames: list[str]) -> str:
    """What the loop itself does: in its own frame is code that it has compiled (`_spin.serve`)."""
    in_loop = any(frame.endswith(" in run") for frame in frames[:1])
    return "waits for a call, or repeats the last one in compiled code" if in_loop else "waits for a call"


def _threads(text: str) -> Iterator[list[str]]:
    lines: list[str] = []
    for line in text.splitlines():
        if line.endswith("(most recent call first):"):
            if lines:
                yield lines
            lines = [line]
        elif lines and line.startswith("  "):
            lines.append(line)
    if lines:
        yield lines


def _without_loop(frames: list[str]) -> list[str]:
    loop = [i for i, frame in enumerate(frames) if _LOOP in frame and frame.endswith((" in run", " in _await_command"))]
    kept = frames[: loop[0]] if loop else frames
    if loop and frames[loop[0]].endswith(" in _await_command"):
        return []
    while kept and _PACKAGE in kept[-1] and any(_PACKAGE not in frame for frame in kept):
        kept = kept[:-1]
    return kept
