"""The processes of the ranks of this machine: fork, detection of deaths, kill, join. `engine.py`
has their commands.

Lists are by line of the control block: a rank's number, less that of the first rank of this
machine.
"""

import contextlib
import errno
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

from synknumba._device import import_driver, usable_cores
from synknumba._errors import SANDBOX, WorldError
from synknumba._host.children import (
    exit_status,
    has_ended,
    has_stopped,
    kill,
    lives,
    reap,
    was_stopped,
)
from synknumba._host.inherited import before_fork, fork
from synknumba._host.segment import allow_descriptors
from synknumba._host.signals import held_signals, in_main_thread
from synknumba._host.stacks import Stacks, ask, shorten
from synknumba._host.thread_pools import pools_for_ranks
from synknumba._rank.loop import rank_main
from synknumba._rank.startup import RankConfig, RankDevice, RankEnds
from synknumba._types import CompilerName, DeviceKind
from synknumba._wire.control import ControlBlock
from synknumba._world.failure import Death
from synknumba._world.limits import DESCRIPTORS, REFUSED
from synknumba._world.output_process import OutputForwarder


@contextlib.contextmanager
def _naming_a_lack_of_descriptors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.EMFILE, errno.ENFILE}:
            raise
        raise OSError(
            error.errno,
            f"{error.strerror}: the ranks could not be started: the limit of open files is "
            f"reached, and each rank takes up to {DESCRIPTORS} while it starts. Raise the limit by "
            "`ulimit -n`, close files, or fork fewer ranks.",
        ) from error


@final
class _StackFiles:
    """The memory files of the ranks' stacks, and requests to write to them.

    Attributes:
        by_line: the files.
    """

    def __init__(self) -> None:
        self.by_line: list[Stacks] = []
        self._lock = threading.RLock()  # one request at a time; a signal handler may nest another
        self._requests = 0

    def ask(self, running: Callable[[], dict[int, int]]) -> dict[int, str]:
        """Returns the stacks of ranks by line, from `stacks.ask`. The ranks continue.

        Args:
            running: returns the process ids of the ranks to ask, by line.
        """
        with self._lock:
            while True:
                self._requests += 1
                request, pids = self._requests, running()
                texts = ask({pid: self.by_line[line] for line, pid in pids.items()})
                if request == self._requests:
                    return {line: texts[pid] for line, pid in pids.items() if pid in texts}
                # A signal handler has interrupted this request with another, which consumed the
                # answers.

    def close(self) -> None:
        """Closes the files."""
        with self._lock:
            for stacks in self.by_line:
                stacks.close()


@final
class Processes:
    """The processes of a world on this machine, and the parent's ends of sockets and pipes.

    Args:
        prefix_output: whether to put the rank's number before each line that a rank prints.
        first: number of the first rank of this machine.
        host: name of this machine, for messages, if there are several.
    """

    def __init__(self, *, prefix_output: bool, first: int = 0, host: str = "") -> None:
        self.first, self.host = first, host
        self.pids: list[int] = []  # 0 for a rank that has ended and been reaped
        self.sockets: list[socket.socket] = []  # the coordinator's end of each rank's socketpair
        self._lifelines: list[int] = []
        # The ranks' ends: with these open here, a cut lifeline also ends the processes that a rank
        # has left behind, by the rights that the rank had at its start. The script may have given
        # up its own since.
        self._groups: list[int] = []
        self._stacks = _StackFiles()
        self.forwarder = OutputForwarder(prefix=prefix_output)
        self._owner = os.getpid()
        self._closed = False

    def __del__(self) -> None:
        """Ends the ranks with the object that tracks them, as where a second Ctrl-C interrupts
        the handling of the first.
        """
        # if closed, this may be the end of Python, where `os` is None
        if not self._closed and os.getpid() == self._owner:
            self.kill()
            self.close()

    @_naming_a_lack_of_descriptors()
    def start(
        self,
        control: ControlBlock,
        count: int,
        device: DeviceKind,
        devices: Sequence[int],
        *,
        compiler: CompilerName | None,
        profile: bool,
        random_state: Any = None,
    ) -> None:
        """Forks the ranks, then the output process.

        Args:
            control: control block, whose first lines are those of the ranks.
            count: number of ranks of this machine.
            device: kind of their devices.
            devices: index of each rank's GPU; empty on the CPU.
            compiler: what compiles for GPUs where no decorator decides; None for what can be used
                there.
            profile: whether they write profiles.
            random_state: state of Python's random numbers that ranks derive theirs from; default:
                of this process.
        """
        # each rank takes some, and the soft limit may be far below the hard one
        allow_descriptors()
        import_driver(device)
        before_fork()
        state = random_state or random.getstate()
        threads = max(1, usable_cores() // max(1, count))  # a machine may have no ranks
        with pools_for_ranks(threads):
            for line in range(count):
                # An exception from a signal handler right after the fork would lose the new process
                # id, and would make the child continue in the script.
                with held_signals(), contextlib.ExitStack() as child_ends:
                    sock, lifeline, streams = self._connect(self.first + line, child_ends)
                    stacks = self._stacks.by_line[line]
                    others = self._descriptors() - {stacks.fd, lifeline}
                    config = RankConfig(
                        rank=self.first + line,
                        line=line,
                        ranks_here=count,
                        threads=threads,
                        control=control,
                        device=RankDevice(device, devices[line] if devices else 0, compiler),
                        ends=RankEnds(sock, lifeline, streams, others),
                        stacks=stacks,
                        coordinator=os.getpid(),
                        from_main_thread=in_main_thread(),
                        random_state=state,
                        profile=profile,
                    )
                    self._fork_one(config)
        # its fork also ends the threads that OpenBLAS has started to be set back
        self.forwarder.start()

    def _connect(
        self, rank: int, child_ends: contextlib.ExitStack
    ) -> tuple[socket.socket, int, dict[int, int]]:
        """Creates a rank's socketpair, lifeline and stream pipes; returns the rank's ends."""
        ours, theirs = socket.socketpair()
        self.sockets.append(ours)
        child_ends.callback(theirs.close)
        lifeline, end = os.pipe()
        self._lifelines.append(end)
        self._groups.append(lifeline)
        self._stacks.by_line.append(Stacks(rank))
        streams = {}
        for stream in self.forwarder.streams:
            streams[stream] = self.forwarder.pipe(rank, stream)
            child_ends.callback(os.close, streams[stream])
        return theirs, lifeline, streams

    def _descriptors(self) -> frozenset[int]:
        """Returns the descriptors that the coordinator has for ranks."""
        stacks = (rank_stacks.fd for rank_stacks in self._stacks.by_line)
        return frozenset(
            (
                *(sock.fileno() for sock in self.sockets),
                *self._lifelines,
                *self._groups,
                *stacks,
                *self.forwarder.readers,
            )
        )

    def _fork_one(self, config: RankConfig) -> None:
        try:
            # closes the coordinator's ends, or a rank would not see them close
            pid = fork(partial(rank_main, config))
        except OSError as error:
            if error.errno in REFUSED:
                raise WorldError(
                    f"os.fork() failed: {type(error).__name__}: {error}. {SANDBOX}"
                ) from error
            # OSError picks its subclass by errno
            raise OSError(
                error.errno,
                f"{error.strerror}: rank {config.rank} of {config.control.world_size} could not be "
                "started: the system is out of processes or memory. See `ulimit -u` and `free`; "
                "close other programs, or fork fewer ranks.",
            ) from error
        self.pids.append(pid)

    def ranks_of(self, lines: Iterable[int]) -> list[int]:
        """Returns the ranks of this machine with lines of the control block, in which another line
        may be that of other machines.
        """
        return [self.first + line for line in lines if line < len(self.pids)]

    def pid_of(self, rank: int) -> int:
        """Returns a rank's process id; 0 if it is on another machine, or has ended."""
        line = rank - self.first
        return self.pids[line] if line < len(self.pids) else 0

    def is_stopped(self, line: int) -> bool:
        """Returns whether a signal or a debugger has stopped a rank."""
        try:
            stat = Path(f"/proc/{self.pids[line]}/stat").read_text()
            state, *_ = stat.rpartition(")")[2].split()
        except (OSError, ValueError):  # it has ended, or /proc is not mounted
            return has_stopped(self.pids[line])
        return state in {"T", "t"}

    def were_stopped(self) -> bool:
        """Returns whether a signal has stopped or continued a rank since the last query."""
        # each, since they tell it once
        changes = [was_stopped(pid) for pid in tuple(self.pids) if pid]
        return any(changes)

    def find_dead(self, grace: float) -> Death | None:
        """Polls for a rank that has ended, for at most `grace` seconds; None if there is none."""
        self.forwarder.look_after()
        deadline = time.monotonic() + grace
        while True:
            for line, pid in self._running():
                status = exit_status(pid)
                if status is not None:
                    self.pids[line] = 0
                    return Death(self.first + line, pid, *status, self.host)
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.01)

    def _running(self) -> list[tuple[int, int]]:
        """Returns line and process id of each rank that has not been reaped."""
        return [(line, pid) for line, pid in enumerate(self.pids) if pid]

    @property
    def has_dead(self) -> bool:
        """Whether a rank has ended; `find_dead` finds it, unless it has done so before."""
        return not all(pid and lives(pid) for pid in tuple(self.pids))

    def join(self, seconds: float) -> None:
        """Waits until all ranks have ended, for at most `seconds`."""
        self.forwarder.look_after()  # otherwise a rank may block on a full pipe
        deadline = time.monotonic() + seconds
        pause = 0.0005
        while any(self.pids) and time.monotonic() < deadline:
            for line, pid in self._running():
                if has_ended(pid):
                    self.pids[line] = 0
            time.sleep(pause)
            pause = min(pause * 2, 0.02)

    def kill(self) -> None:
        """Kills all running ranks, with the processes that they have started, and waits."""
        if os.getpid() != self._owner:  # in a child that the script forked during a call
            return
        killed = [pid for _, pid in self._running()]
        allowed = [kill(pid) for pid in killed]
        if not all(allowed):
            self._cut_lifelines()  # the kernel ends them
        # before they end, or a call in another thread would report a death
        self.pids[:] = [0] * len(self.pids)
        reap(killed)

    # ---- diagnosis

    def where(self, ranks: Collection[int]) -> dict[int, str]:
        """Returns the stacks of running ranks. The ranks continue."""

        def running() -> dict[int, int]:
            # Another thread may be ending them, or starting them: those that are not forked yet
            # have no pid.
            return {line: pid for line, pid in self._running() if self.first + line in ranks}

        return {self.first + line: text for line, text in self._stacks.ask(running).items()}

    def last_words(self, rank: int) -> tuple[str, str]:
        """Returns a crashed rank's stack, innermost frame first, and the end of its stderr.

        The stack is empty if it did not crash or could not write it. Call when all ranks have been
        killed: it ends the output process.
        """
        stack, line = "", rank - self.first
        if line < len(self._stacks.by_line):
            stack = shorten(self._stacks.by_line[line].read())
        return stack, self.forwarder.finish().get(rank, "")

    def close(self) -> None:
        """Waits until the ranks' output is forwarded, then closes the coordinator's ends;
        idempotent.
        """
        self.forwarder.finish()
        self._stacks.close()
        for sock in self.sockets:
            sock.close()
        self._cut_lifelines()
        self._closed = True

    def _cut_lifelines(self) -> None:
        # in this order: SIGIO comes while there is a reader
        for ends in (self._lifelines, self._groups):
            while ends:
                os.close(ends.pop())
