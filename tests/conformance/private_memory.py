"""Ranks whose variables are in memory of their own, as on GPUs: what a GPU's world does with
values, without a GPU.

What runs is a core, and memory starts as garbage; staging memory, transfers and the host transport
are those of GPUs.
"""

import mmap
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import synknumba as synk
from synknumba._comm import DRIVERS, Communicator, Exchange, TransportDriver, host_communicator
from synknumba._device import Device
from synknumba._device.cpu import CpuDevice
from synknumba._rank import loop as loop_module
from synknumba._world.engine import Engine
from synknumba._world.life import Setup
from synknumba._world.world import world_of

LINK_BYTES = 4 << 20  # that one rank can send at once
BARRIER_SECONDS = 30.0


class PrivateDevice(CpuDevice):
    kind = "cuda"
    locate = Device.locate
    most = 1 << 40  # bytes of one piece of memory; ranks have what it is at the fork

    def memory(self, nbytes: int) -> Any:
        if nbytes > self.most:
            raise MemoryError(f"out of memory, asked for {nbytes} bytes")
        return np.full(max(nbytes, 1), 0xA5, np.uint8)


class Links:
    """What joins the memory of the ranks of one world, where its transport is to be as between
    GPUs.
    """

    def __init__(self, world_size: int) -> None:
        self.memory = mmap.mmap(-1, 2 * world_size * LINK_BYTES)
        self.barrier = multiprocessing.get_context("fork").Barrier(
            world_size, timeout=BARRIER_SECONDS
        )


class LinkedCommunicator(Communicator):
    """A transport between memories that only their own ranks can reach, as far as tests need it."""

    def __init__(self, links: Links, world_size: int, rank: int) -> None:
        self._links, self._rank, self._world_size = links, rank, world_size
        self._host = host_communicator(rank, world_size)

    def reduce_scatter(self, exchanges: Sequence[Exchange], op: Any) -> Any:
        return self._over_links(
            exchanges, lambda communicator, linked: communicator.reduce_scatter(linked, op)
        )

    def all_reduce(self, exchanges: Sequence[Exchange], op: Any) -> Any:
        return self._over_links(
            exchanges, lambda communicator, linked: communicator.all_reduce(linked, op)
        )

    def broadcast(self, exchanges: Sequence[Exchange], root: int) -> Any:
        return self._over_links(
            exchanges, lambda communicator, linked: communicator.broadcast(linked, root)
        )

    def _over_links(self, exchanges: Sequence[Exchange], make: Any) -> Any:
        (one,) = exchanges

        def line(place: int, count: int) -> np.ndarray:
            assert count * np.dtype(one.dtype).itemsize <= LINK_BYTES
            return np.ndarray((count,), one.dtype, self._links.memory, place * LINK_BYTES)

        sources = tuple(line(rank, one.source_counts[rank]) for rank in range(self._world_size))
        targets = tuple(
            line(self._world_size + rank, one.target_counts[rank])
            for rank in range(self._world_size)
        )
        combine = make(self._host, [Exchange(one.dtype, sources, targets, *self._counts(one))])

        def step() -> None:
            sources[self._rank][:] = one.sources[self._rank]
            self._links.barrier.wait()
            combine()
            self._links.barrier.wait()
            one.targets[self._rank][:] = targets[self._rank]
            self._links.barrier.wait()

        return step

    def exchange(self, exchanges: Sequence[Exchange], op: Any = None) -> Any:
        moves, begin = [], 0
        for one in exchanges:
            for copy in one.copies:
                line = np.ndarray((copy.count,), one.dtype, self._links.memory, begin)
                moves.append((one, copy, line))
                begin += -(-line.nbytes // 16) * 16

        def step() -> None:
            for one, copy, line in moves:
                if copy.source == self._rank:
                    line[:] = one.sources[self._rank][copy.source_start :][: copy.count]
            self._links.barrier.wait()
            for one, copy, line in moves:
                if copy.target == self._rank:
                    into = one.targets[self._rank][copy.target_start :][: copy.count]
                    into[:] = line if op is None else into + line
            self._links.barrier.wait()

        return step

    @staticmethod
    def _counts(one: Exchange) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return one.source_counts, one.target_counts

    def _not_here(self, *args: object) -> Any:
        raise NotImplementedError

    all_gather = reduce = _not_here

    def close(self) -> None:
        pass


@contextmanager
def opened_by_ranks(
    world_size: int, device: Callable[[], Device] = PrivateDevice, **others: Any
) -> Iterator[None]:
    """Ranks that are forked meanwhile open such a device, and can link them; `others` replace
    names of the rank's loop.
    """
    links = Links(world_size)
    linked = TransportDriver(
        open=lambda rank, world_size, unique_id, stream: LinkedCommunicator(
            links, world_size, rank
        ),
        in_shared_memory=False,
        problem=lambda: None,
        make_unique_id=lambda: b"links",
    )
    in_ranks = {
        "open_device": lambda kind, index, compiler: device(),
        "DRIVERS": {**DRIVERS, "nccl": linked},
        **others,
    }
    usual = {name: getattr(loop_module, name) for name in in_ranks}
    for name, value in in_ranks.items():
        setattr(loop_module, name, value)
    try:
        yield
    finally:
        for name, value in usual.items():
            setattr(loop_module, name, value)


def fork_private(world_size: int, transport: Any = "host") -> synk.World:
    """A world of such ranks."""
    with opened_by_ranks(world_size):
        devices = (0,) * world_size
        return world_of(
            Engine(
                Setup(world_size=world_size, device="cuda", devices=devices, transport=transport)
            )
        )
