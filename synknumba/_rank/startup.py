"""Turns a forked child of the script into a rank, up to the opening of its device: signals,
descriptors, threads, seeds.
"""

import fcntl
import gc
import os
import signal
import socket
import threading
from dataclasses import dataclass
from typing import Any

from synknumba._host import inherited as inherited_module
from synknumba._host import this_process
from synknumba._host.segment import allow_descriptors, release_inherited
from synknumba._host.signals import leave_to_script
from synknumba._host.stacks import Stacks
from synknumba._host.thread_pools import limit_threads
from synknumba._types import CompilerName, DeviceKind
from synknumba._wire.control import ControlBlock


@dataclass(frozen=True, slots=True)
class RankDevice:
    """The device that a rank opens."""

    kind: DeviceKind
    index: int  # of the GPU; meaningless on the CPU
    compiler: CompilerName | None  # for GPUs, where no decorator decides; None for what can be used


@dataclass(frozen=True, slots=True)
class RankEnds:
    """What a rank shares with the coordinator by descriptors, and which others it inherits."""

    socket: socket.socket  # of its socketpair
    lifeline: int  # read end of a pipe whose write end only the coordinator has
    streams: dict[int, int]  # descriptors that replace stdout (1) and stderr (2), by descriptor
    others: frozenset[int]  # descriptors of the coordinator and of other ranks, to be replaced


@dataclass(frozen=True, slots=True)
class RankConfig:
    """Settings of a rank, inherited at the fork."""

    rank: int
    line: int  # of the control block
    control: ControlBlock
    device: RankDevice
    ends: RankEnds
    stacks: Stacks
    coordinator: int  # process id of the parent
    ranks_here: int  # number of ranks on this machine
    threads: int  # for libraries: the rank's share of the cores
    from_main_thread: bool  # whether the script forked in its main thread
    random_state: Any  # `random.getstate()` of the script
    profile: bool  # whether the rank writes a profile


def settle(config: RankConfig) -> None:
    """Separates the child from the script: signals, death with the coordinator, descriptors,
    threads, random state.
    """
    # A group of its own, which includes the processes that functions start: they end with the rank.
    os.setpgid(0, 0)
    leave_to_script()
    # else a terminal with `stty tostop` stops a rank that prints
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    _die_with_the_coordinator(config)
    config.stacks.enter()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # all signals were blocked during the fork
    if os.getppid() != config.coordinator:
        os._exit(1)
    this_process.enter(config.rank, config.control.world_size, config.ranks_here)
    inherited_module.replace(config.ends.others)
    # else the ranks would keep the memory of dropped Data
    release_inherited((config.control.segment,), config.ends.others)
    _take_over_streams(config)
    inherited_module.settle_trackers()
    inherited_module.leave_deleted_directory()
    allow_descriptors()  # as many as the coordinator may need
    limit_threads(config.threads)
    inherited_module.seed(config.rank, config.random_state)
    gc.freeze()  # inherited objects are never collected here, so their pages stay shared


def _die_with_the_coordinator(config: RankConfig) -> None:
    # The kernel sends the parent-death signal when the *thread* that forked ends, so it is
    # requested only if that is the main thread, which lives as long as its process.
    if config.from_main_thread:
        this_process.end_with_parent()
    # Only the coordinator has the lifeline's other end. It closes when the coordinator ends or
    # calls exec. The kernel then sends SIGIO to the rank's group; its default action is to end the
    # process.
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    lifeline = config.ends.lifeline
    try:
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)
    # a sandbox refuses it; a thread does the same, but cannot while compiled code holds the GIL
    except OSError:
        threading.Thread(target=end_with_the_lifeline, args=(lifeline,), daemon=True).start()


def end_with_the_lifeline(lifeline: int) -> None:
    """Kills this rank's group when the lifeline's other end closes."""
    os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _take_over_streams(config: RankConfig) -> None:
    ends = config.ends
    descriptors = {ends.socket.fileno(), ends.lifeline, config.stacks.fd, *ends.streams.values()}
    inherited_module.close_inherited(descriptors, ends.others)
    for stream, end in ends.streams.items():
        os.dup2(end, stream)
        os.close(end)
    inherited_module.settle_streams()
