"""What makes a fork of the script a rank: everything that is done before its device is opened."""

import ctypes
import fcntl
import gc
import os
import signal
import socket
from dataclasses import dataclass
from typing import Any

from synknumba._host import inherited as inherited_module
from synknumba._host import this_process
from synknumba._host.segment import allow_descriptors, release_inherited
from synknumba._host.stacks import Stacks
from synknumba._host.thread_pools import limit_threads
from synknumba._types import DeviceKind
from synknumba._wire.control import ControlBlock

_PR_SET_PDEATHSIG = 1  # prctl.h


@dataclass(frozen=True, slots=True)
class RankConfig:
    """What a rank is given at the fork.

    Attributes:
        rank: its number.
        world_size: number of ranks.
        device: the kind that it opens.
        device_index: which GPU; of no meaning on the CPU.
        control: the world's.
        socket: the rank's end of its socketpair.
        lifeline: the end of a pipe whose other end the coordinator alone has.
        stacks: where it tells where it is.
        streams: what takes the place of stdout (1) and stderr (2).
        coordinator: the script's process id.
        from_main_thread: whether that forks in its main thread.
        threads: that numerical libraries may use.
        random_state: `random.getstate()` of the script.
        profile: whether it profiles itself.
    """

    rank: int
    world_size: int
    device: DeviceKind
    device_index: int
    control: ControlBlock
    socket: socket.socket
    lifeline: int
    stacks: Stacks
    streams: dict[int, int]
    coordinator: int
    from_main_thread: bool
    threads: int
    random_state: Any
    profile: bool


def settle(config: RankConfig) -> None:
    """Makes the child a process of its own: signals, death with the coordinator, streams, threads, random state."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the coordinator decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _die_with_the_coordinator(config)
    config.stacks.enter()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the fork was made with all signals held
    if os.getppid() != config.coordinator:
        os._exit(1)
    this_process.enter(config.rank, config.world_size)
    release_inherited(keep=(config.control.segment,))  # or dropped Data would live on in the ranks
    _take_over_streams(config)
    allow_descriptors()  # as many as the coordinator may come to have
    limit_threads(config.threads)
    inherited_module.seed(config.rank, config.random_state)
    gc.freeze()  # what was inherited is never collected here, so its pages stay shared


def _die_with_the_coordinator(config: RankConfig) -> None:
    # The signal comes when the *thread* that forked ends, so it is asked for only where that thread lives as long as its
    # process.
    if config.from_main_thread:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The lifeline's other end is the coordinator's alone. It closes when the coordinator ends or becomes another program, and
    # the kernel then sends SIGIO, which ends a process that does not handle it.
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(config.lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(config.lifeline, fcntl.F_SETFL, os.O_ASYNC)


def _take_over_streams(config: RankConfig) -> None:
    inherited_module.close_inherited({config.socket.fileno(), config.lifeline, config.stacks.fd, *config.streams.values()})
    for stream, end in config.streams.items():
        os.dup2(end, stream)
        os.close(end)
    inherited_module.settle_streams()
