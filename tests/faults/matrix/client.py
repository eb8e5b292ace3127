"""The test's end: servers that carry out cases by name, and tell what was seen.

It imports none of what the cases call: functions made here would be functions of the test's own
process, which `distribute()` sends to its ranks, and some of these cannot be sent.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue

from synknumba._host.segment import SWITCH, posix_ipc
from tests.environment import ROOT
from tests.faults.matrix.table import CASES, Outcome
from tests.faults.scripts import PATIENCE

SMALL_SHM = 12 << 20
UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]
MOUNT = f'mount -t tmpfs -o size={SMALL_SHM} tmpfs /dev/shm && exec "$@"'


class Server:
    """A process that carries out one case after the other."""

    def __init__(self, *, small_shm: bool = False) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with the server
        command = [sys.executable, "-m", "tests.faults.matrix.server"]
        self._process = subprocess.Popen(
            [*UNSHARE, "sh", "-c", MOUNT, "sh", *command] if small_shm else command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, SWITCH: "posix"}
            if small_shm
            else None,  # else what has no room there is made elsewhere
            start_new_session=True,
        )

    @staticmethod
    def can_have_small_shm() -> bool:
        """Whether this user may mount a file system of their own, and segments can be made in
        it.
        """
        with suppress(OSError):
            if posix_ipc is None:
                return False
            return (
                subprocess.run(
                    [*UNSHARE, "sh", "-c", MOUNT, "sh", "true"], capture_output=True, check=False
                ).returncode
                == 0
            )
        return False

    def run(self, name: str) -> Outcome:
        """What was seen of a case."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # of a server that has ended: it has said why
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
            with suppress(BrokenPipeError):
                stream.close()
        self._process.wait(PATIENCE)
        self._errors.close()


def run_all(
    names: Sequence[str], *, small_shm: bool = False, servers: int = 2
) -> dict[str, Outcome]:
    """What was seen of each case, in the order of the names; several at a time, each by a
    server.
    """
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


def run_wanted(names: Sequence[str]) -> dict[str, Outcome]:
    """What was seen of the cases that can be had here: those for a small `/dev/shm` where this
    user may mount one.
    """
    seen = run_all([name for name in names if not CASES[name].small_shm])
    cramped = [name for name in names if CASES[name].small_shm]
    if cramped and Server.can_have_small_shm():
        seen |= run_all(cramped, small_shm=True, servers=1)
    return seen
