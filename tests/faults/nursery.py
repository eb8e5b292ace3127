"""Runs scripts in processes forked from one that has imported what they import: in milliseconds,
not in seconds.

    test ──path, descriptors of its streams──> nursery ──fork──> parent ──fork──> script (leads a session of its own)
     └──────────────<──process id, exit status──────────────────────┘

The script is what a new interpreter would run as `__main__`: its functions are of that module, its
file is found for their source, it ends as an interpreter ends. What differs is that nothing is
imported for the first time. So the quick suite runs scripts this way, and the whole suite each by
an interpreter of its own.
"""  # noqa: E501

import gc
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from tests.environment import environment

FLAGS = ["-W", "error"]  # with which scripts are run
_PID = struct.Struct("i")


class Nursery:
    """The process that forks scripts; `variables` are set in its environment."""

    def __init__(self, **variables: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *FLAGS, __file__, str(theirs.fileno())],
                env=environment(**variables),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is for the tests
            )

    def start(self, path: Path, errors: int) -> "Forked":
        """Runs a script, whose stderr is the file with the descriptor `errors`."""
        (stdin, to), (from_, stdout), (status, told) = os.pipe(), os.pipe(), os.pipe()
        socket.send_fds(self._socket, [os.fsencode(path)], [stdin, stdout, errors, told])
        for end in (stdin, stdout, told):
            os.close(end)
        return Forked(os.fdopen(to, "wb"), os.fdopen(from_, "rb"), os.fdopen(status, "rb"))

    def run(self, text: str, script: Path) -> subprocess.CompletedProcess[str]:
        """Runs a program from a file to its end, as `environment.run_program` does in an
        interpreter of its own.
        """
        script.write_text(text, encoding="utf-8")
        with tempfile.TemporaryFile() as errors:
            process = self.start(script, errors.fileno())
            with process.stdin, process.stdout:
                process.stdin.close()
                printed = process.stdout.read()
            status = process.wait()
            errors.seek(0)
            return subprocess.CompletedProcess(
                [str(script)], status, printed.decode(), errors.read().decode()
            )

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


class Forked:
    """A script's process: those parts of `subprocess.Popen` that the tests use."""

    def __init__(self, stdin: BinaryIO, stdout: BinaryIO, status: BinaryIO) -> None:
        self.stdin, self.stdout = stdin, stdout
        self._status = status
        self.pid = _PID.unpack(status.read(_PID.size))[0]
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """The exit status; minus the signal where one ended the script."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("the script", timeout or 0.0)
            self.returncode = _PID.unpack(self._status.read(_PID.size))[0]
            self._status.close()
        return self.returncode


def _await_script(server: socket.socket) -> Path | None:
    """Forks for each script that is asked for; returns its path in the process that is to run
    it, None at the end.
    """
    while True:
        message, descriptors, _, _ = socket.recv_fds(server, 4096, 4)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not message:
            return None
        if os.fork() == 0:
            server.close()
            return _fork_script(Path(os.fsdecode(message)), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_script(path: Path, descriptors: list[int]) -> Path:
    """Returns in the script's process; that of its parent tells how it ends, and is gone."""
    *streams, told = descriptors
    script = os.fork()
    if script:
        for stream in streams:
            os.close(stream)
        status = os.waitstatus_to_exitcode(os.waitpid(script, 0)[1])
        os.write(told, _PID.pack(status))
        os._exit(0)
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.write(told, _PID.pack(os.getpid()))
    for descriptor in descriptors:
        os.close(descriptor)
    return path


def _run(path: Path) -> None:
    """Runs a script as `__main__`, whose names are those of the script alone: they live as long
    as in any interpreter.
    """
    sys.argv[:] = [str(path)]
    sys.path[0] = str(path.parent)
    code, main = compile(path.read_text(), path, "exec"), sys.modules["__main__"].__dict__
    kept = {name: main[name] for name in ("__name__", "__builtins__", "__loader__")} | {
        "__file__": str(path)
    }
    main.clear()
    main.update(kept)
    exec(code, main)


if __name__ == "__main__":
    import numba.cuda  # noqa: F401  # as scripts do
    import numpy  # noqa: F401

    import synknumba  # noqa: F401

    gc.freeze()  # what each script would go through at its end, and so copy
    with socket.socket(fileno=int(sys.argv[1])) as server:
        path = _await_script(server)
    if path is not None:
        _run(path)
