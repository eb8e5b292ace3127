"""Starts real scripts that use synknumba, speaks with them over their output, and sees what they
leave behind.

    test ──start(text)──> script (the coordinator) ──fork──> ranks
      ├── expect(pattern)        ←── a line that the script or a rank wrote with say(...)
      ├── tell(word)             ──→ what hear() in the script returns
      └── check_nothing_left()       no process, no name in /dev/shm

Nothing here waits for a fixed time: everything polls, with a deadline. Each script leads a session,
to which all its processes belong, so that one of unknown number is found too.
"""

import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from synknumba._host.segment import SWITCH, posix_ipc
from tests.environment import environment
from tests.faults.nursery import FLAGS, Nursery
from tests.quick import whole

PATIENCE = (
    40.0  # seconds until a test gives up on a step; on an idle machine none takes a tenth of that
)

MAKERS = ["memfd"] if posix_ipc is None else ["posix", *whole("memfd")]  # of segments

# A rank's death in the middle of what the script does.
KILLER = """
import threading

class Killer(threading.Thread):  # kills a process when the test says so, at the time `at`
    def __init__(self, pid):
        super().__init__()
        self.pid, self.at = pid, 0.0
        self.start()

    def run(self):
        hear()
        self.at = time.monotonic()
        os.kill(self.pid, signal.SIGKILL)

"""

# What every script starts with. `forever` is Python code that never returns, `burn` a kernel that
# takes as long as asked.
HEADER = """
import os, select, signal, sys, time
import numpy as np
from numba import cuda
import synknumba as synk

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def hear():  # looks at signals now and then: one that came right before a read that waits would be handled after it
    line = b""
    while not line.endswith(b"\\n"):
        while not select.select([0], [], [], 0.1)[0]:
            pass
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    return line.decode().strip()

@synk.function(outputs="sum")
def total(x):
    return x.sum()

@synk.function(outputs="sum")
def forever(x):
    say("working", os.getpid())
    while True:
        pass

@synk.parallel(outputs={"found": synk.output("sum", shape=(), dtype="int64")})
def burn(x, rounds, found):
    i = cuda.grid(1)
    if i < x.shape[0]:
        state = i + 1
        for _ in range(rounds):
            state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        cuda.atomic.add(found, 0, state)

HOURS = 10**15
ROWS = np.arange(1001.0)

def check_world():
    with synk.fork(2, device="cpu"):
        assert total(ROWS) == ROWS.sum()
"""  # noqa: E501


class Script:
    """One running script."""

    def __init__(self, text: str, path: Path, nursery: Nursery | None = None) -> None:
        made = f"os.environ[{SWITCH!r}] = {os.environ[SWITCH]!r}\n" if SWITCH in os.environ else ""
        path.write_text(HEADER + made + textwrap.dedent(text))
        self._names_before = names_in_shm()
        self._buffer = b""
        self.printed: list[str] = []
        self._errors = path.with_suffix(".err").open("w+")
        if nursery is not None:
            self.process = nursery.start(path, self._errors.fileno())
        else:
            self.process = subprocess.Popen(
                [sys.executable, *FLAGS, str(path)],
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        self.pid = self.process.pid

    # ---- speaking

    def expect(self, pattern: str, seconds: float = PATIENCE) -> re.Match[str]:
        """Reads on to the next line that matches."""
        deadline = time.monotonic() + seconds
        while True:
            line = self._line(deadline)
            if line is None:
                pytest.fail(
                    f"no line like {pattern!r} within {seconds} s; got "
                    f"{self.printed}\n{self.errors}"
                )
            self.printed.append(line)
            found = re.fullmatch(pattern, line)
            if found:
                return found

    def _line(self, deadline: float) -> str | None:
        """The next line; None at the deadline and at the end."""
        out = self.process.stdout
        assert out is not None
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([out], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(out.fileno(), 65536) if ready else b""
            if not more:
                return None
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def ranks(self) -> list[int]:
        """The process ids of the ranks of a script that does `say("ranks", *world.pids)`."""
        return [int(word) for word in self.expect(r"ranks( \d+)+").group().split()[1:]]

    def tell(self, word: str) -> None:
        """One line for the script to hear."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n".encode())
        self.process.stdin.flush()

    def kill(self, sig: signal.Signals) -> None:
        """Sends a signal to the script alone."""
        os.kill(self.pid, sig)

    def press_ctrl_c(self) -> None:
        """What a terminal does: SIGINT to the script and to all its ranks."""
        os.killpg(self.pid, signal.SIGINT)

    @property
    def errors(self) -> str:
        """What it wrote to stderr so far."""
        return Path(self._errors.name).read_text()

    # ---- ending

    def finish(self, status: int = 0) -> None:
        """Waits for the end; the exit status is as told (minus the signal where one ended it),
        and nothing is left.
        """
        try:
            ended = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            pytest.fail(
                f"the script did not end within {PATIENCE} s; it printed "
                f"{self.printed}\n{self.errors}"
            )
        assert ended == status, self.errors
        self.check_nothing_left()

    def check_nothing_left(self) -> None:
        """No process within a second, and no name in /dev/shm. Without processes no memory can
        be left either.
        """
        poll(lambda: not self.processes(), "all processes have ended", 1.0)
        poll(lambda: names_in_shm() <= self._names_before, "no name is left in /dev/shm", 5.0)

    def check_alone(self) -> None:
        """The script lives, and within a second none of its ranks."""
        poll(lambda: self.processes() == {self.pid}, "only the script itself lives", 1.0)

    def processes(self) -> set[int]:
        """Every process of the script that lives."""
        return members(self.pid)

    def clean_up(self) -> None:
        """Ends whatever a failed test has left."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            assert stream is not None
            with suppress(BrokenPipeError):  # it ended before it had heard everything
                stream.close()


def poll(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Waits until the condition holds; fails the test if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not so within {seconds} s: {what}")
        time.sleep(0.005)


def lives(pid: int) -> bool:
    """Whether a process runs; one that has ended and is only remembered for its parent does not."""
    return _runs(_stat(pid))


def scribes(parent: int) -> list[int]:
    """The processes that carry what ranks print, of a script."""
    children = map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
    return [pid for pid in children if _told(pid, "comm") == "synk-scribe\n" and lives(pid)]


def await_scribes(parent: int) -> list[int]:
    """Waits for them, which have their name some time after the fork; ranks do not wait."""
    poll(lambda: scribes(parent), "the scribe has its name")
    return scribes(parent)


def _told(pid: int, file: str) -> str:
    """What the system tells of a process; nothing of one that has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/{file}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _stat(pid: int) -> list[str]:
    """The fields of a process behind its name, the first its state (see proc_pid_stat(5)); none
    if it has ended.
    """
    return _told(pid, "stat").rpartition(")")[2].split()


def _runs(fields: list[str]) -> bool:
    return bool(fields) and fields[0] not in {"Z", "X"}


def members(session: int) -> set[int]:
    """The living processes of a session."""
    fields = {int(name): _stat(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    return {pid for pid, of in fields.items() if _runs(of) and int(of[3]) == session}


def cpu_ticks(pid: int) -> int:
    """The processor time that a process has used, in ticks of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def await_work(pid: int) -> None:
    """Waits until a process has computed for 50 ms from now."""
    before = cpu_ticks(pid)
    poll(lambda: cpu_ticks(pid) >= before + 5, f"process {pid} computes")


def names_in_shm() -> set[str]:
    """The names of segments. Semaphores have none here; those of other programs, as of
    multiprocessing, come and go.
    """
    return {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith("synk-")}
