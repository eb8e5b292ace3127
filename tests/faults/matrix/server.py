"""Carries out cases one after the other, each in a process forked for it, and tells what was seen.

    test ──names of cases──> server ──fork──> coordinator ──fork──> ranks
         <──what was seen──    │                   │
                               ├── signals to those that ask for one, or are stopped
                               └── waits, and looks for what is left

To import everything takes seconds, to fork a process that has milliseconds, so hundreds of cases
take a minute or two. The server itself never has a world while a case runs.
"""

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import synknumba as synk
from tests.faults.matrix import coordinator
from tests.faults.matrix.cases import Case
from tests.faults.matrix.phases import BOARD, Calls
from tests.faults.matrix.table import CASES, Outcome
from tests.faults.scripts import PATIENCE, cpu_ticks, members, names_in_shm, poll

STOPPED_SECONDS = 0.2


def serve() -> None:
    """Reads names of cases, writes what was seen of each, a line each."""
    # what is loaded or compiled at first use is there before a case looks at what is held
    with synk.fork(2, device="cpu"):
        calls = Calls(2)
        for name in ("total", "double", "kernel", "collective", "combination"):
            getattr(calls, name)()
    del calls
    gc.collect()
    # each case collects garbage several times, and would go through all that is imported
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(carry_out(CASES[line.strip()])), flush=True)


def carry_out(case: Case) -> Outcome:
    """One case."""
    BOARD.clear()
    names = names_in_shm()
    status, text, left = _in_child(partial(coordinator.main, case), case)
    gone = time.monotonic()
    if text:
        seen = {"status": status, **json.loads(text)}
    elif case.error == "ended":
        seen = {"status": status, "struck": BOARD.struck > 0, "seconds": gone - BOARD.struck}
        BOARD.clear()
        _, text, left_later = _in_child(partial(coordinator.check_alone, case.world_size), None)
        seen["next"] = text or "nothing was told"
        left += left_later
    else:
        return {"broken": f"the script ended with {status} and said nothing; left: {left}"}
    seen["left"] = left + _names_left(names)
    return seen


def _names_left(before: set[str]) -> list[str]:
    """Names that stay; another server's segments have one for microseconds."""
    deadline = time.monotonic() + 2.0
    while (more := names_in_shm() - before) and time.monotonic() < deadline:
        time.sleep(0.002)
    return sorted(more)


def _in_child(function: Callable[[int], object], case: Case | None) -> tuple[int, str, list[str]]:
    """How a child ends that is given a pipe to write to, what it wrote, and what it leaves
    behind.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        function(writing)
    os.close(writing)
    status = _await_end(pid, case)
    left = _await_nobody(pid)
    with open(reading) as file:
        return status, file.read(), left


def _await_end(pid: int, case: Case | None) -> int:
    """Waits for a coordinator; signals those that ask for it meanwhile."""
    deadline = time.monotonic() + PATIENCE
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if ended and os.WIFSTOPPED(status):
            time.sleep(STOPPED_SECONDS)
            os.kill(pid, signal.SIGCONT)
        elif ended:
            return os.waitstatus_to_exitcode(status)
        if case is not None and len(BOARD.waiting()) == case.world_size:
            _signal(case)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return -1000
        time.sleep(0.002)


def _signal(case: Case) -> None:
    """To ranks that are in compiled code, when they have computed for 30 ms."""
    pids = [BOARD.waiting()[rank] for rank in case.fault.ranks]
    BOARD.forget_waiting()
    for pid in pids:
        before = cpu_ticks(pid)
        poll(lambda pid=pid, before=before: cpu_ticks(pid) >= before + 3, f"rank {pid} computes")
    BOARD.strike()
    for pid in pids:
        os.kill(pid, getattr(signal, case.fault.what))


def _await_nobody(session: int) -> list[str]:
    """Waits a second for all processes of a session to end; those that have not are killed and
    named.
    """
    deadline = time.monotonic() + 1.0
    while left := members(session):
        if time.monotonic() > deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return [f"process {pid}" for pid in left]
        time.sleep(0.002)
    return []


if __name__ == "__main__":
    serve()
