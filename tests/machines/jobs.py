"""Starts scripts under mpiexec, with a "machine" for each process, and sees what they leave behind.

The machines of a job are one here: each has an agent, a relay and ranks of its own, and shares
nothing with others that the product knows of. A variable of the environment marks the processes of
a job, so that whatever is left of it is found: launchers start theirs in sessions of their own.
"""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests.environment import environment
from tests.machines.namespaces import VARIABLES, Network

ROOT = Path(__file__).parents[2]
SECONDS = (
    60.0  # on an idle machine no job takes a quarter of that, but that of the conformance suite
)

HEADER = """
import os, signal, sys, time
import numpy as np
import synknumba as synk

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

@synk.function(outputs="sum")
def total(x):
    return x.sum()

@synk.function(outputs=None, broadcast=("who", "what"))
def strike(x, rank, who, what):
    if rank == who:
        os.kill(os.getpid() if what == 0 else os.getppid(), signal.SIGKILL)

ROWS = np.arange(1001.0)
"""


@cache
def launcher() -> tuple[str, ...]:
    """The command that starts processes under MPI: of the environment of this Python, or of the
    system.
    """
    own = Path(sys.prefix) / "bin" / "mpiexec"
    found = str(own) if own.exists() else shutil.which("mpiexec")
    assert found is not None  # tests/conftest.py leaves tests marked mpi out
    told = subprocess.run(
        [found, "--version"], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    if "Open MPI" in told.stdout or "prte" in told.stdout.lower():
        return found, "--oversubscribe", "--bind-to", "none"
    return (
        (found, "-bind-to", "none")
        if "HYDRA" in told.stdout and "Intel" not in told.stdout
        else (found,)
    )


class Job:
    """A job that has been started; its output is in files, which no process can block on.

    Args:
        machines: processes that the launcher starts.
        ranks: on each machine.
        arguments: of `synknumba run`: a script and its arguments.
        folder: for output.
        network: machines that share nothing; None for those that only the product takes for
            machines.
        variables: of the environment.
    """

    def __init__(
        self,
        machines: int,
        ranks: int,
        arguments: list[str],
        folder: Path,
        network: Network | None = None,
        **variables: str,
    ) -> None:
        self.out, self.errors = folder / "out.txt", folder / "errors.txt"
        command = list(launcher()) if network is None else network.launcher(launcher())
        command += [
            "-n",
            str(machines),
            sys.executable,
            "-m",
            "synknumba",
            "run",
            "--ranks-per-node",
            str(ranks),
        ]
        allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self.mark = f"SYNK_TEST_JOB={uuid.uuid4()}"
        name, value = self.mark.split("=")
        if network is not None:
            variables = {**VARIABLES, **variables}
        # the last for `stacks`
        variables = {
            **allowed,
            name: value,
            "PYTHONFAULTHANDLER": "1",
            **variables,
        }
        with self.out.open("wb") as out, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env=environment(**variables),
                cwd=ROOT,
                start_new_session=True,
            )

    def lines(self) -> list[str]:
        """What the job has printed so far."""
        return self.out.read_text(errors="replace").splitlines()

    def expect(self, text: str, seconds: float = SECONDS) -> str:
        """Waits for a line with some text; returns the line."""
        until = time.monotonic() + seconds
        while True:
            for line in self.lines():
                if text in line:
                    return line
            assert time.monotonic() < until, (text, self.told)
            assert self.process.poll() is None or any(text in line for line in self.lines()), (
                text,
                self.told,
            )
            time.sleep(0.01)

    @property
    def told(self) -> str:
        """All output, for messages."""
        return self.out.read_text(errors="replace") + self.errors.read_text(errors="replace")

    def finish(self, code: int | None = 0, seconds: float = SECONDS) -> list[str]:
        """Waits for the end; returns what the job has printed. None for any code but 0."""
        try:
            found = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            processes = self.stacks()
            self.kill()
            raise AssertionError(
                f"the job did not end within {seconds} s:\n{processes}\n{self.told}"
            ) from None
        assert found != 0 if code is None else found == code, (found, self.told)
        return self.lines()

    def left(self) -> list[str]:
        """The processes of the job that are there, but mpiexec."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it has ended, or is another user's
                if (
                    self.mark.encode() in path.read_bytes().split(b"\0")
                    and int(path.parent.name) != self.process.pid
                ):
                    found.append(path.parent.name)
        return found

    def check_nothing_left(self, seconds: float = 10.0, *, of_launcher: bool = True) -> None:
        """Fails if a process of the job is there after its end, or, without those of the
        launcher, a process of ours.
        """
        until = time.monotonic() + seconds
        while (left := self.left() if of_launcher else self.ours()) and time.monotonic() < until:
            time.sleep(0.02)
        left = [f"{pid}: {Path('/proc', pid, 'cmdline').read_bytes()!r}" for pid in left]
        if left:
            self.kill()
        assert not left, left

    def ours(self) -> list[str]:
        """The processes of the job that are not the launcher's."""
        found = []
        for pid in self.left():
            with suppress(OSError):
                if Path("/proc", pid, "comm").read_text().startswith(("python", "synk")):
                    found.append(pid)
        return found

    def stacks(self) -> str:
        """Has the processes of the job print their stacks, which ends them; returns which there
        were.

        A relay that has no more to do but to end its MPI prints nothing.
        """
        ours = self.ours()
        others = {*self.left(), str(self.process.pid)} - {*ours}
        told = {}
        for pid in (*ours, *others):
            with suppress(OSError):
                name, waits = (
                    Path("/proc", pid, what).read_text().strip() for what in ("comm", "wchan")
                )
                told[pid] = f"{pid} {name} ({waits})"
        for pid in others:
            with suppress(OSError):
                # a launcher would end the others before they have printed
                os.kill(int(pid), signal.SIGSTOP)
        # relays end with their parents
        for pid in sorted(ours, key=lambda pid: "synk-relay" not in told.get(pid, "")):
            with suppress(OSError):
                os.kill(int(pid), signal.SIGABRT)
                time.sleep(0.1)
        for pid in others:
            with suppress(OSError):
                os.kill(int(pid), signal.SIGCONT)  # and they pass on what has been printed
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10.0)
        return "\n".join(told.values())

    def kill(self) -> None:
        """Ends all processes of the job."""
        for pid in (*self.left(), self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        self.process.wait(10.0)


def start(
    machines: int,
    ranks: int,
    text: str,
    folder: Path,
    network: Network | None = None,
    **variables: str,
) -> Job:
    """Starts a script under mpiexec."""
    script = folder / "script.py"
    script.write_text(HEADER + textwrap.dedent(text))
    return Job(machines, ranks, [str(script)], folder, network, **variables)
