"""The ranks as processes: forked, found dead, killed, joined. What they are told is the world's business."""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from typing import final

from synknumba._control import ControlBlock
from synknumba._failure import how_it_ended
from synknumba._rank import RankConfig, rank_main
from synknumba._types import DeviceKind
from synknumba.device import usable_cores


@final
class Processes:
    """The processes of one world, and the coordinator's ends of what connects it with them.

    Attributes:
        pids: process ids by rank; 0 for one that has ended and been waited for.
        sockets: the coordinator's end of each rank's socketpair.
    """

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.sockets: list[socket.socket] = []
        self._lifelines: list[int] = []

    def start(self, control: ControlBlock, device: DeviceKind, devices: Sequence[int], *, profile: bool) -> None:
        """Forks the ranks of a control block.

        Args:
            control: the world's.
            device: the kind that each rank opens.
            devices: the GPU of each rank; empty on the CPU.
            profile: whether ranks profile themselves.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        threads = max(1, usable_cores() // control.world_size)
        for rank in range(control.world_size):
            ours, theirs = socket.socketpair()
            lifeline, end = os.pipe()
            self.sockets.append(ours)
            self._lifelines.append(end)
            config = RankConfig(
                rank=rank,
                world_size=control.world_size,
                device=device,
                device_index=devices[rank] if devices else 0,
                control=control,
                socket=theirs,
                lifeline=lifeline,
                coordinator=os.getpid(),
                from_main_thread=threading.current_thread() is threading.main_thread(),
                threads=threads,
                profile=profile,
            )
            # What a signal handler raised right after the fork would lose us the new rank's process id, and would have the rank
            # run on in the script.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                self._fork_one(config)
            finally:
                theirs.close()
                os.close(lifeline)
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _fork_one(self, config: RankConfig) -> None:
        with warnings.catch_warnings():
            # Python 3.12 warns of a fork beside threads. Ranks run our own loop and compiled code, take no lock that a
            # thread of the coordinator may hold, and notebooks always have threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            # Only the coordinator may hold its ends, or a rank would not see them close.
            for sock in self.sockets:
                sock.close()
            for end in self._lifelines:
                os.close(end)
            rank_main(config)
        self.pids.append(pid)

    def find_dead(self, grace: float) -> str | None:
        """Looks for a rank that has ended, for `grace` seconds at most; says which and how, or None."""
        deadline = time.monotonic() + grace
        while True:
            for rank, pid in enumerate(self.pids):
                if not pid:
                    continue  # it is known to have ended; waitpid(0) would wait for any child of the script
                try:
                    ended, status = os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    ended, status = pid, None
                if ended:
                    self.pids[rank] = 0
                    return f"rank {rank} (pid {pid}) {how_it_ended(status)}"
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.01)

    def join(self, seconds: float) -> None:
        """Waits until all have ended, or the time is up."""
        deadline = time.monotonic() + seconds
        pause = 0.0005
        while any(self.pids) and time.monotonic() < deadline:
            for rank, pid in enumerate(self.pids):
                if pid and os.waitpid(pid, os.WNOHANG)[0]:
                    self.pids[rank] = 0
            time.sleep(pause)
            pause = min(pause * 2, 0.02)

    def kill(self) -> None:
        """Ends all that have not, at once, and waits for them."""
        for pid in self.pids:
            if pid:
                with contextlib.suppress(ProcessLookupError):  # where the script ignores SIGCHLD nobody need wait for it
                    os.kill(pid, signal.SIGKILL)
        for index, pid in enumerate(self.pids):
            if pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
                self.pids[index] = 0

    def close(self) -> None:
        """Closes the coordinator's ends; idempotent."""
        for sock in self.sockets:
            sock.close()
        while self._lifelines:
            os.close(self._lifelines.pop())
