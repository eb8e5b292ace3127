"""MPI between relays: orders down a tree, rows and answers straight to and from machine 0.

Waiting relays must leave the cores to the ranks: blocking receives spin in all implementations of
MPI, so requests are tested, giving way to others for a while and then with naps in between.
"""

import os
import pickle
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from synknumba._host import this_process
from synknumba._host.gpu_packages import version_of
from synknumba._types import Array

# How long a wait gives way before it naps; as long as ranks wait for the next call
# (`control.ROOMY`).
YIELD_SECONDS = 0.02
FIRST_NAP, LONGEST_NAP = 50e-6, 1e-3
LOOK_SECONDS = 0.05  # how often a wait calls its `watch`
REPLY_NAP = 0.0005

ABORT_SECONDS = 5  # MPI's own end of a job may wait for a machine that is lost

ORDER, BODY, ANSWER, ROWS, BACK, PULSE, QUESTION, REPLY, LIVES, PART, WHOLE = range(11, 22)  # tags

# After which the first relay, if it has sent no order, tells the others that it lives.
LIVES_SECONDS = 1.0
ORPHAN_SECONDS = 20.0  # after which a machine that has not heard of machine 0 gives itself up
LONGEST_LOOK = 1.0  # of a process that was stopped: it has not looked meanwhile

# For wheels of mpi4py, which take any MPI.
WHICH_MPI = "and set MPI4PY_MPIABI=openmpi or MPI4PY_MPIABI=mpich"

ROOM = 32 << 10  # bytes of the first message of an envelope; a longer body follows in another
_HEAD = struct.Struct("3q")
BYTE = np.zeros(1, np.uint8)  # of messages without contents

Watch = Callable[[], None]  # called during a wait; raises to leave it


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
        advice = f"`module load` the cluster's {WHICH_MPI}, or pip install mpich"
        return f"mpi4py finds no MPI ({reason}): {advice}"
    return ""


@final
class Envelope:
    """Buffer for an order or an answer: two words, the number of bytes of a body, and the body.

    A body that does not fit into ROOM bytes is a message of its own.
    """

    def __init__(self) -> None:
        self.buffer = np.zeros(ROOM, np.uint8)
        self._view = self.buffer.data
        self._is_long = False  # whether the body is a message of its own
        self._body = self.buffer[_HEAD.size :]

    def fill(self, first: int, second: int, nbytes: int) -> Array:
        """Sets the words, and returns room for a body."""
        _HEAD.pack_into(self._view, 0, first, second, nbytes)
        return self._room(nbytes)

    def open(self, receive: Callable[[Array], None]) -> tuple[int, int, Array]:
        """Returns the words and the body of what has come; `receive` gets a body that follows."""
        first, second, nbytes = _HEAD.unpack_from(self._view)
        body = self._room(nbytes)
        if self._is_long:
            receive(body)
        return first, second, body

    def _room(self, nbytes: int) -> Array:
        self._is_long = nbytes > ROOM - _HEAD.size
        if self._is_long:
            self._body = np.empty(nbytes, np.uint8)
        else:
            self._body = self.buffer[_HEAD.size : _HEAD.size + nbytes]
        return self._body

    def messages(self, tag: int) -> list[tuple[Array, int]]:
        """Returns what is sent, with tags: a message with `tag`, and a body that follows."""
        if self._is_long:
            return [(self.buffer[: _HEAD.size], tag), (self._body, BODY)]
        return [(self.buffer[: _HEAD.size + len(self._body)], tag)]


@final
class MachineComm:
    """The machines of a job, as a relay reaches them, after `import_mpi`.

    Attributes:
        mpi: mpi4py's module.
        jobs: communicator of orders, and of all that is outside worlds.
        index: number of this machine.
        hosts: name of each machine.
        parent, children: machines from which orders come, and to which they go.
        problem: why the job cannot be served; "" if it can.
        serial: of the last question, or order to end a world; tells their answers apart.
        is_lost: whether a machine is.
    """

    def __init__(self) -> None:
        from mpi4py import MPI

        self.mpi = MPI
        self.jobs: Any = MPI.COMM_WORLD.Dup()
        self.index = index = self.jobs.rank
        self.hosts: tuple[str, ...] = tuple(self.jobs.allgather(socket.gethostname()))
        self.parent = index & (index - 1)
        self.children = children_of(index, len(self.hosts))
        self.problem = self._mismatch(self.jobs.allgather(versions()))
        self.serial = 0
        self.is_lost = False
        self._silence = 0.0  # seconds since the last order, or sign that the first relay lives
        self._looked = time.monotonic()

    def _mismatch(self, versions: Sequence[str]) -> str:
        """Returns how versions differ from those of machine 0; "" if they are equal."""
        differing = [
            f"machine {machine} ({self.hosts[machine]}) has {version}"
            for machine, version in enumerate(versions)
            if version != versions[0]
        ]
        if not differing:
            return ""
        first = f"machine 0 ({self.hosts[0]}) has {versions[0]}"
        return f"versions differ: {first}, {', '.join(differing)}"

    # ---- requests

    def wait(self, request: Any, watch: Watch) -> None:
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

    def wait_all(self, requests: Sequence[Any], watch: Watch) -> None:
        """Waits for several requests."""
        for request in requests:
            self.wait(request, watch)

    # ---- signs of life of the first relay

    def note_order(self) -> None:
        """Notes that an order was sent or has come, which is a sign of life, too."""
        self._silence = 0.0

    def send_sign(self) -> None:
        """Tells all other relays now and then that the first one lives."""
        if self._count_silence() > LIVES_SECONDS:
            self._silence = 0.0
            for machine in range(1, len(self.hosts)):
                self.jobs.Isend(BYTE, machine, LIVES).Free()

    def hears_first(self) -> bool:
        """Returns whether machine 0 was heard of lately: nothing else would end these ranks."""
        self._count_silence()
        while self.jobs.Iprobe(source=0, tag=LIVES):
            self.jobs.Recv(BYTE, 0, LIVES)
            self._silence = 0.0
        return self._silence < ORPHAN_SECONDS

    def _count_silence(self) -> float:
        now = time.monotonic()
        self._silence += min(now - self._looked, LONGEST_LOOK)
        self._looked = now
        return self._silence

    # ---- questions, which other relays answer in the middle of a round, too

    def ask(self, question: object) -> None:
        """Sends a question to all other machines."""
        message = self.next_serial(), question
        for machine in range(1, len(self.hosts)):
            self.jobs.send(message, machine, QUESTION)

    def next_serial(self) -> int:
        """Returns the number of the next question."""
        self.serial += 1
        return self.serial

    def question(self) -> Any:
        """Returns a question that has come, and notes its serial; None if none has."""
        message = self._receive(QUESTION)
        if message is None:
            return None
        _, (self.serial, question) = message
        return question

    def reply(self, answer: object) -> None:
        """Answers the last question."""
        self.jobs.send((self.serial, answer), 0, REPLY)

    def replies(self, until: float) -> dict[int, Any]:
        """Returns the answers of all machines to the last question; without those that are late."""
        answers: dict[int, Any] = {}
        while len(answers) < len(self.hosts) - 1 and time.monotonic() < until:
            message = self._receive(REPLY)
            if message is None:
                time.sleep(REPLY_NAP)
                continue
            machine, (serial, answer) = message
            if serial == self.serial:
                answers[machine] = answer
        return answers

    def _receive(self, tag: int) -> tuple[int, Any] | None:
        """Returns a message that has come, with its sender; None if none has."""
        status = self.mpi.Status()
        if not self.jobs.Iprobe(source=self.mpi.ANY_SOURCE, tag=tag, status=status):
            return None
        return status.source, self.jobs.recv(source=status.source, tag=tag)

    # ---- the end

    def lose(self) -> None:
        """Notes that a machine is lost, and MPI of no use any more.

        This process outlives the script, to end the job.
        """
        self.is_lost = True
        this_process.end_with_parent(wanted=False)

    def abort(self) -> None:
        """Ends the job, as far as that is possible without the lost machine."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(ABORT_SECONDS)  # ends this process
        self.mpi.COMM_WORLD.Abort(1)


def children_of(index: int, count: int) -> list[int]:
    """Returns the children of a machine in a binomial tree of `count`, in the order of sending.

    >>> children_of(0, 6), children_of(4, 6)
    ([4, 2, 1], [5])
    """
    low = index & -index or 1 << 62
    steps = [1 << power for power in range(count.bit_length())]
    return [index + step for step in reversed(steps) if step < low and index + step < count]


def versions() -> str:
    """Returns the versions that machines must share, since they exchange pickles and memory."""
    names = ("synknumba", "numba", "numpy")
    packages = [f"{name} {version_of(name) or 'of unknown version'}" for name in names]
    return ", ".join([f"Python {sys.version_info.major}.{sys.version_info.minor}", *packages])


def pickled(message: object) -> Array:
    """Returns a pickled message as bytes."""
    return np.frombuffer(pickle.dumps(message), np.uint8)


def unpickled(packed: Array) -> Any:
    """Returns the message that a relay of this job has pickled."""
    return pickle.loads(packed.data)  # noqa: S301
