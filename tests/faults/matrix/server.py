"""Carries out cases one after the other, each in a process forked for it, and tells what was seen.

    test ──names of cases──> server ──fork──> coordinator ──fork──> ranks
         <──what was seen──    │                   │
                               ├── signals to those that ask for one, or are stopped
                               └── waits, and looks for what is left

To import everything takes seconds, to fork a process that has milliseconds, so hundreds of cases take a minute or two. The
server itself never has a world while a case runs.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import synknumba as synk
from tests.faults.matrix import coordinator
from tests.faults.matrix.cases import Case
from tests.faults.matrix.phases import BOARD, Calls
from tests.faults.matrix.table import CASES, Outcome
from tests.faults.scripts import PATIENCE, ROOT, cpu_ticks, names_in_shm, poll

SMALL_SHM = 12 << 20
UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]
MOUNT = f'mount -t tmpfs -o size={SMALL_SHM} tmpfs /dev/shm && exec "$@"'
STOPPED_SECONDS = 0.2


class Server:
    """The test's end."""

    def __init__(self, *, small_shm: bool = False) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with the server
        command = [sys.executable, "-m", "tests.faults.matrix.server"]
        self._process = subprocess.Popen(
            [*UNSHARE, "sh", "-c", MOUNT, "sh", *command] if small_shm else command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )

    @staticmethod
    def can_have_small_shm() -> bool:
        """Whether this user may mount a file system of their own."""
        with suppress(OSError):
            return subprocess.run([*UNSHARE, "sh", "-c", MOUNT, "sh", "true"], capture_output=True, check=False).returncode == 0
        return False

    def run(self, name: str) -> Outcome:
        """What was seen of a case."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\n".encode())
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], 2 * PATIENCE)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            self._errors.seek(0)
            return {"broken": f"the server did not answer: {self._errors.read()}"}
        return json.loads(line)

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait(PATIENCE)
        self._errors.close()


def run_all(names: Sequence[str], *, small_shm: bool = False, servers: int = 2) -> dict[str, Outcome]:
    """What was seen of each case, in the order of the names; several at a time, each by a server."""
    free: SimpleQueue[Server] = SimpleQueue()
    for _ in range(servers):
        free.put(Server(small_shm=small_shm))

    def one(name: str) -> Outcome:
        server = free.get()
        try:
            return server.run(name)
        finally:
            free.put(server)

    with ThreadPoolExecutor(servers) as pool:
        seen = dict(zip(names, pool.map(one, names), strict=True))
    for _ in range(servers):
        free.get().close()
    return seen


# ---- the server's end ----------------------------------------------------------------------------------------------------


def serve() -> None:
    """Reads names of cases, writes what was seen of each, a line each."""
    with synk.fork(2, device="cpu"):  # what is loaded or compiled at first use is there before a case looks at what is held
        calls = Calls(2)
        for name in ("total", "double", "kernel", "collective", "combination"):
            getattr(calls, name)()
    del calls
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
    """How a child ends that is given a pipe to write to, what it wrote, and what it leaves behind."""
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
    """Waits a second for all processes of a session to end; those that have not are killed and named."""
    deadline = time.monotonic() + 1.0
    while members := _members(session):
        if time.monotonic() > deadline:
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return [f"process {pid}" for pid in members]
        time.sleep(0.002)
    return []


def _members(session: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] not in "ZX":
                    found.append(int(name))
    return found


if __name__ == "__main__":
    serve()
