"""MPI between the relays: orders down a tree, rows straight to their machine, answers straight to
the first one.

Waiting relays must leave the cores to the ranks: blocking receives spin in all implementations of
MPI, so requests are tested, giving way to others for a while and then with naps in between.
"""

import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from synknumba._host import this_process
from synknumba._host.gpu_packages import version_of
from synknumba._types import Array

# how long a wait gives way before it naps; as long as ranks wait for the next call
# (`control.ROOMY`)
YIELD_SECONDS = 0.02
FIRST_NAP, LONGEST_NAP = 50e-6, 1e-3
LOOK_SECONDS = 0.05  # how often a wait calls its `watch`

ABORT_SECONDS = 5  # MPI's own end of a job may wait for a machine that is lost

ORDER, BIG, ANSWER, ROWS, BACK, PULSE, QUESTION, REPLY, LIVES, PART, WHOLE = range(11, 22)  # tags

LIVES_SECONDS = (
    1.0  # after which the first relay, if it has sent no order, tells the others that it lives
)
ORPHAN_SECONDS = (
    20.0  # after which a machine that has not heard of the first one counts itself as lost
)
LONGEST_LOOK = 1.0  # of a process that was stopped: it has not looked meanwhile

WHICH_MPI = (
    "and set MPI4PY_MPIABI=openmpi or MPI4PY_MPIABI=mpich"  # for wheels of mpi4py, which take any
)

# Words before an order: kind, number, bytes of values, bytes of a payload. Before an answer: 0,
# ranks, bytes of small results of each, bytes of news.
HEAD = 8
ROOM = 32 << 10  # bytes of the first message of an order; larger payloads follow in another


def import_mpi() -> str:
    """Imports mpi4py, which initialises MPI; returns why that cannot be done, or ""."""
    try:
        import mpi4py
    except ImportError:
        return "mpi4py is missing: pip install 'synknumba[mpi]'"
    mpi4py.rc.thread_level = "single"
    try:
        from mpi4py import MPI  # noqa: F401
    except (ImportError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        return (
            f"mpi4py finds no MPI ({reason}): `module load` the cluster's "
            f"{WHICH_MPI}, or pip install mpich"
        )
    return ""


@final
class Between:
    """The machines of a job, as a relay reaches them, after `import_mpi`."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.mpi = MPI
        self.serial = 0  # of the last question
        self.is_lost = False  # whether a machine is
        self.spoke = 0.0  # when the first relay has sent an order, or that it lives
        self.silence = 0.0  # seconds in which another relay has heard nothing of it
        self._looked = time.monotonic()
        self._byte = np.zeros(1, np.uint8)
        self.jobs: Any = MPI.COMM_WORLD.Dup()  # for orders outside worlds
        self.index, self.count = self.jobs.rank, self.jobs.size
        low = self.index & -self.index or 1 << 62
        steps = [1 << k for k in range(self.count.bit_length())]
        self.parent = self.index & (self.index - 1)
        self.children = [
            self.index + step
            for step in reversed(steps)
            if step < low and self.index + step < self.count
        ]
        self.hosts: tuple[str, ...] = tuple(self.jobs.allgather(socket.gethostname()))
        told = self.jobs.allgather(versions())
        others = [
            f"machine {i} ({self.hosts[i]}) has {one}"
            for i, one in enumerate(told)
            if one != told[0]
        ]
        self.problem = ""  # why the job cannot be served
        if others:
            self.problem = (
                f"versions differ: machine 0 ({self.hosts[0]}) has {told[0]}, {', '.join(others)}"
            )

    def wait(self, request: Any, watch: Callable[[], None]) -> None:
        """Waits for a request; calls `watch` now and then, which may raise."""
        test = request.Test
        if test():
            return
        began = looked = time.monotonic()
        turns, nap = 0, FIRST_NAP
        while not test():
            turns += 1
            if turns & 31 and nap == FIRST_NAP:
                os.sched_yield()
                continue
            now = time.monotonic()
            if now - looked > LOOK_SECONDS:
                watch()
                looked = now
            if now - began > YIELD_SECONDS:
                time.sleep(nap)
                nap = min(nap * 1.5, LONGEST_NAP)

    def tell_lives(self) -> None:
        """Tells all other relays now and then that the first one lives."""
        now = time.monotonic()
        if now - self.spoke > LIVES_SECONDS:
            self.spoke = now
            for machine in range(1, self.count):
                self.jobs.Isend(self._byte, machine, LIVES).Free()

    def hears_first(self) -> bool:
        """Returns whether the first machine has been heard of lately: without it nothing would
        end the ranks of this one.
        """
        now = time.monotonic()
        self.silence += min(now - self._looked, LONGEST_LOOK)
        self._looked = now
        while self.jobs.Iprobe(source=0, tag=LIVES):
            self.jobs.Recv(self._byte, 0, LIVES)
            self.silence = 0.0
        return self.silence < ORPHAN_SECONDS

    def lose(self) -> None:
        """Notes that a machine is lost: MPI is of no use any more, and this process outlives the
        script, to end the job.
        """
        self.is_lost = True
        this_process.end_with_parent(wanted=False)

    def abort(self) -> None:
        """Ends the job, as far as that is possible without the lost machine."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(ABORT_SECONDS)  # ends this process
        self.mpi.COMM_WORLD.Abort(1)

    def ask(self, question: object) -> None:
        """Sends a question to all other machines; they answer it in the middle of a round, too."""
        packed = pickled((self.next_serial(), question))
        for machine in range(1, self.count):
            self.jobs.Send(packed, machine, QUESTION)

    def next_serial(self) -> int:
        """Returns the number of the next question, or order to end, whose answers are told apart
        by it.
        """
        self.serial += 1
        return self.serial

    def question(self) -> Any:
        """Returns a question of the first relay that has come, and notes its serial; None if
        none has.
        """
        status = self.mpi.Status()
        if not self.jobs.Iprobe(source=0, tag=QUESTION, status=status):
            return None
        buffer = np.empty(status.Get_count(self.mpi.BYTE), np.uint8)
        self.jobs.Recv(buffer, 0, QUESTION)
        self.serial, question = pickle.loads(buffer.tobytes())  # noqa: S301  # of a relay of this job
        return question

    def wait_all(self, requests: Sequence[Any], watch: Callable[[], None]) -> None:
        """Waits for several requests."""
        for request in requests:
            self.wait(request, watch)


def versions() -> str:
    """Returns the versions that machines must share, since they exchange pickles and memory."""
    names = ("synknumba", "numba", "numpy")
    told = [f"{name} {version_of(name) or 'of unknown version'}" for name in names]
    return ", ".join([f"Python {sys.version_info.major}.{sys.version_info.minor}", *told])


def pickled(message: object) -> Array:
    """Returns a pickled message as bytes."""
    return np.frombuffer(pickle.dumps(message), np.uint8)
