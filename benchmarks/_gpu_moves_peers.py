"""What scatter.py, minibatch.py and stream.py measure in processes of their own: other ways to
bring a host's rows to devices.

    python _gpu_moves_peers.py scatter copies SETTINGS      CuPy: a process per GPU copies its page-locked part, all at once
    python _gpu_moves_peers.py scatter torch SETTINGS       one process: copies from pinned memory, and from pageable
    python _gpu_moves_peers.py scatter jax SETTINGS         one process: device_put onto a sharding
    python _gpu_moves_peers.py minibatch take SETTINGS      np.take into pinned memory, CuPy copies it: a process per GPU
    python _gpu_moves_peers.py minibatch torch SETTINGS     index_select into pinned memory, .to(device), and of a table on the device: a process per GPU
    python _gpu_moves_peers.py minibatch jax SETTINGS       one process: device_put of x[indices], and jnp.take of a table on the devices
    python _gpu_moves_peers.py minibatch prange SETTINGS    Numba's threads on cores

SETTINGS are JSON; rows are printed as JSON. synknumba is not imported, nor is Numba but by its own
peer: the packages may be elsewhere.
"""  # noqa: E501

import json
import mmap
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from typing import Any, TypeAlias, final

import numpy as np
from _common import Timing
from _gpu_moves import (
    ON_DEVICES,
    Kind,
    Row,
    Settings,
    fill,
    index_lists,
    part,
    time_rounds,
)
from numpy.typing import NDArray

CHECKED = 1 << 24  # bytes at each end of a part that are compared


# ---- processes that work in rounds ---------------------------------------------------------------


@final
class Team:
    """Forked processes, seen from one of them: they meet in shared memory, and leave sums there.

    Args:
        rank: of this process.
        settings: of the run.
        memory: shared; zeros at first.
    """

    def __init__(self, rank: int, settings: Settings, memory: mmap.mmap) -> None:
        self.rank, self.ranks, self.seconds = rank, settings.ranks, settings.seconds
        # a cache line each
        words = np.frombuffer(memory, np.int64, 8 * (self.ranks + 1)).reshape(-1, 8)
        self._places, self._told = words[:-1, 0], words[-1]
        self._met = 0
        self.sums = np.frombuffer(memory, np.float64, offset=mmap.PAGESIZE).reshape(
            self.ranks, settings.columns
        )

    @staticmethod
    def memory(settings: Settings) -> mmap.mmap:
        """As much as a team needs."""
        return mmap.mmap(-1, mmap.PAGESIZE + 8 * settings.ranks * settings.columns)

    def meet(self) -> None:
        """Until everybody is here."""
        self._met += 1
        self._places[self.rank] = self._met
        while self._places.min() < self._met:
            os.sched_yield()

    def agree(self, decision: bool) -> bool:
        """The root's decision."""
        if self.rank == 0:
            self._told[0] = decision
        self.meet()
        agreed = bool(self._told[0])
        self.meet()
        return agreed

    def time(self, work: Callable[[], object], after: Callable[[], object] | None = None) -> Timing:
        """Times rounds that all begin and end together; `after`: what the root does when all
        have worked.
        """

        def call() -> None:
            self.meet()
            work()
            self.meet()
            if after is not None and self.rank == 0:
                after()

        return time_rounds(call, self.seconds, self.agree)


Member: TypeAlias = Callable[[Team, Settings], Iterator[Row]]


def together(member: Member, settings: Settings) -> list[Row]:
    """Runs a member in a process for each rank; rows are the root's. No CUDA here: the processes
    are forked.
    """
    context = multiprocessing.get_context("fork")
    memory = Team.memory(settings)
    receiver, sender = context.Pipe(duplex=False)

    def work(rank: int) -> None:
        rows = list(member(Team(rank, settings, memory), settings))
        if rank == 0:
            sender.send(rows)

    processes = [
        context.Process(target=work, args=(rank,), daemon=True) for rank in range(settings.ranks)
    ]
    for process in processes:
        process.start()
    while not receiver.poll(0.05):
        if any(process.exitcode for process in processes):
            sys.exit(1)  # which ends the others, for they are daemons
    rows: list[Row] = receiver.recv()
    for process in processes:
        process.join()
    return rows


# ---- scatter -------------------------------------------------------------------------------------


def scatter_copies(team: Team, settings: Settings) -> Iterator[Row]:
    """Page-locked once, then a copy on a stream: what the links give."""
    import cupy

    runtime = cupy.cuda.runtime
    cupy.cuda.Device(team.rank).use()
    stream = cupy.cuda.Stream(non_blocking=True)
    values = settings.values()
    for size in settings.sizes:
        own = values[part(size // 4, team.ranks, team.rank)]
        address, skipped = own.ctypes.data, own.ctypes.data % mmap.PAGESIZE
        runtime.hostRegister(address - skipped, own.nbytes + skipped, 0)
        target = cupy.empty(len(own), np.float32)
        up = partial(
            runtime.memcpyAsync,
            target.data.ptr,
            address,
            own.nbytes,
            runtime.memcpyHostToDevice,
            stream.ptr,
        )
        down = partial(
            runtime.memcpyAsync,
            address,
            target.data.ptr,
            own.nbytes,
            runtime.memcpyDeviceToHost,
            stream.ptr,
        )
        plan: dict[Kind, tuple[Callable[[], object], ...]] = {
            "up": (up,),
            "down": (down,),
            "both": (up, down),
        }
        for kind, steps in plan.items():

            def work(steps: tuple[Callable[[], object], ...] = steps) -> None:
                for step in steps:
                    step()
                stream.synchronize()

            yield Row("cupy", "concurrent page-locked copies", kind, size, team.time(work))
            for end in ends(len(own)):
                np.testing.assert_array_equal(target[end].get(), own[end])
        runtime.hostUnregister(address - skipped)


def ends(count: int) -> tuple[slice, slice]:
    """Of an array of float32: what is compared, where all would take too long."""
    few = min(CHECKED // 4, count)
    return slice(0, few), slice(count - few, count)


def scatter_torch(settings: Settings) -> Iterator[Row]:
    """One process that puts all copies on their way and waits for them."""
    import torch

    cuda, ranks = settings.device == "cuda", settings.ranks
    devices = [torch.device("cuda", rank) if cuda else torch.device("cpu") for rank in range(ranks)]
    for size in settings.sizes:
        pageable = torch.from_numpy(own_memory(settings.values()[: size // 4]))
        pinned = pageable.pin_memory() if cuda else pageable
        places = [part(size // 4, ranks, rank) for rank in range(ranks)]
        targets = [
            torch.empty(place.stop - place.start, device=device)
            for place, device in zip(places, devices, strict=True)
        ]

        def wait() -> None:
            for device in devices:
                if cuda:
                    torch.cuda.synchronize(device)

        def from_pinned(
            pinned: Any = pinned, places: Any = places, targets: Any = targets
        ) -> list[Any]:
            for place, target in zip(places, targets, strict=True):
                target.copy_(pinned[place], non_blocking=True)
            wait()
            return targets

        def from_pageable(pageable: Any = pageable, places: Any = places) -> list[Any]:
            arrived = [
                pageable[place].to(device) for place, device in zip(places, devices, strict=True)
            ]
            wait()
            return arrived

        for what, call in (
            ("copy_, pinned, non_blocking", from_pinned),
            (".to(device), pageable", from_pageable),
        ):
            for place, target in zip(places, call(), strict=True):
                for end in ends(len(target)):
                    assert torch.equal(target[end].cpu(), pageable[place][end])
            yield Row("torch", what, "up", size, time_rounds(call, settings.seconds))


def own_memory(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """A copy in ordinary memory, as a program's own arrays are."""
    copied = np.empty_like(values)
    fill(copied, values)
    return copied


def scatter_jax(settings: Settings) -> Iterator[Row]:
    """device_put onto all devices at once."""
    import jax

    sharding = row_sharding(settings)
    for size in settings.sizes:
        values = own_memory(settings.values()[: size // 4])

        def call(values: Any = values) -> Any:
            return jax.device_put(values, sharding).block_until_ready()

        for shard in call().addressable_shards:
            for end in ends(len(shard.data)):
                arrived = jax.lax.slice_in_dim(shard.data, end.start, end.stop)
                np.testing.assert_array_equal(np.asarray(arrived), values[shard.index][end])
        yield Row(
            "jax", "device_put, NamedSharding", "up", size, time_rounds(call, settings.seconds)
        )


def row_sharding(settings: Settings) -> Any:
    """Rows over the devices."""
    import jax

    devices = jax.devices()
    wanted = "cpu" if settings.device == "cpu" else "gpu"
    if len(devices) < settings.ranks or devices[0].platform != wanted:
        sys.exit(f"jax has {devices}, and {settings.ranks} of {wanted} are needed")
    mesh = jax.sharding.Mesh(np.array(devices[: settings.ranks]), ("rows",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))


# ---- minibatches ---------------------------------------------------------------------------------

# of the columns, of the rows with these numbers
Sums: TypeAlias = Callable[[NDArray[np.int64]], Any]


def steps(
    team: Team, settings: Settings, row: tuple[str, str], prepare: Callable[[int], Sums]
) -> Iterator[Row]:
    """Checks and times a way to work on random rows; `prepare` makes it for a number of rows."""
    table = settings.table()
    for size in settings.sizes:
        own = part(size, team.ranks, team.rank)
        work, lists = prepare(own.stop - own.start), index_lists(len(table), size)

        def step(work: Sums, indices: NDArray[np.int64]) -> None:
            team.sums[team.rank] = work(indices)

        for indices in lists[:2]:
            step(work, indices[own])
            team.meet()
            np.testing.assert_array_equal(
                team.sums.sum(axis=0), table[indices].sum(axis=0, dtype=np.float64)
            )
            team.meet()
        mine = cycle([indices[own].copy() for indices in lists])
        timing = team.time(
            lambda work=work, mine=mine: step(work, next(mine)), lambda: team.sums.sum(axis=0)
        )
        yield Row(*row, "sum", size, timing)


def minibatch_take(team: Team, settings: Settings) -> Iterator[Row]:
    """What one writes with NumPy and CuPy, in as many processes as there are GPUs."""
    import cupy

    runtime = cupy.cuda.runtime
    cupy.cuda.Device(team.rank).use()
    stream = cupy.cuda.Stream(non_blocking=True)
    table = settings.table()

    def prepare(count: int) -> Sums:
        target = cupy.empty((count, settings.columns), np.float32)
        pinned = cupy.cuda.alloc_pinned_memory(max(target.nbytes, 1))
        staging = np.frombuffer(pinned, np.float32, target.size).reshape(target.shape)

        def work(indices: NDArray[np.int64]) -> Any:
            # the default mode copies once more
            np.take(table, indices, axis=0, out=staging, mode="clip")
            with stream:
                direction = runtime.memcpyHostToDevice
                runtime.memcpyAsync(
                    target.data.ptr, staging.ctypes.data, target.nbytes, direction, stream.ptr
                )
                return target.sum(axis=0).get()

        return work

    yield from steps(team, settings, ("cupy", "np.take into pinned memory, copy"), prepare)


def minibatch_torch(team: Team, settings: Settings) -> Iterator[Row]:
    """As a data loader with pinned memory would, without its queues."""
    import torch

    cuda = settings.device == "cuda"
    device = torch.device("cuda", team.rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)  # else all would have a context on the first
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // team.ranks))
    table = torch.from_numpy(settings.table())

    def prepare(count: int) -> Sums:
        staging = torch.empty((count, settings.columns), pin_memory=cuda)

        def work(indices: NDArray[np.int64]) -> Any:
            torch.index_select(table, 0, torch.from_numpy(indices), out=staging)
            return staging.to(device, non_blocking=True).sum(dim=0).cpu().numpy()

        return work

    what = "index_select into pinned memory, .to(device)"
    if cuda:
        yield from steps(team, settings, ("torch", what), prepare)
    there = table.to(device)

    def prepare_there(count: int) -> Sums:
        def work(indices: NDArray[np.int64]) -> Any:
            numbers = torch.from_numpy(indices).to(device)
            return there.index_select(0, numbers).sum(dim=0).cpu().numpy()

        return work

    what = f"{ON_DEVICES}index_select, a process for each"
    yield from steps(team, settings, ("torch", what), prepare_there)


def minibatch_jax(settings: Settings) -> Iterator[Row]:
    """One process: rows that NumPy gathers, and rows of a table that lies on the devices, a part
    or all of it on each.
    """
    import jax
    import jax.numpy as jnp

    by_rows, table = row_sharding(settings), settings.table()
    everywhere = jax.sharding.NamedSharding(by_rows.mesh, jax.sharding.PartitionSpec())
    # JAX divides into equal parts
    divided = jax.device_put(np.pad(table, ((0, -len(table) % settings.ranks), (0, 0))), by_rows)
    copied = jax.device_put(table, everywhere)
    sums = jax.jit(lambda rows: rows.sum(axis=0))
    taken = jax.jit(lambda table, indices: jnp.take(table, indices, axis=0).sum(axis=0))

    def by_numpy(indices: NDArray[np.int64]) -> Any:
        return sums(jax.device_put(table[indices], by_rows))

    def of_parts(indices: NDArray[np.int64]) -> Any:
        return taken(divided, indices)

    def of_copies(indices: NDArray[np.int64]) -> Any:
        return taken(copied, jax.device_put(indices, by_rows))

    ways = {
        "device_put(x[indices]), NamedSharding": by_numpy,
        f"{ON_DEVICES}jnp.take, a part on each": of_parts,
        f"{ON_DEVICES}jnp.take, all of it on each": of_copies,
    }
    for size in settings.sizes:
        lists = index_lists(len(table), size)
        for what, way in ways.items():
            if size % settings.ranks and way is not of_parts:
                print(f"jax: {size} rows are not divisible: {what} left out", file=sys.stderr)
                continue

            def step(indices: NDArray[np.int64], way: Sums = way) -> NDArray[np.float32]:
                return np.asarray(way(indices))

            for indices in lists[:2]:
                np.testing.assert_array_equal(
                    step(indices), table[indices].sum(axis=0, dtype=np.float64)
                )
            turns = cycle(lists)
            timing = time_rounds(lambda step=step, turns=turns: step(next(turns)), settings.seconds)
            yield Row("jax", what, "sum", size, timing)


def minibatch_prange(settings: Settings) -> Iterator[Row]:
    """One process: threads that read rows where they lie."""
    import numba
    from _prange import sum_of_rows

    threads = min(settings.ranks, numba.config.NUMBA_NUM_THREADS)
    numba.set_num_threads(threads)
    table = settings.table()
    for size in settings.sizes:
        lists = index_lists(len(table), size)
        for indices in lists[:2]:
            np.testing.assert_array_equal(
                sum_of_rows(table, indices, threads), table[indices].sum(axis=0, dtype=np.float64)
            )
        turns = cycle(lists)
        timing = time_rounds(
            lambda turns=turns: sum_of_rows(table, next(turns), threads), settings.seconds
        )
        yield Row("numba", "prange, threads that read rows in place", "sum", size, timing)


# ---- all of it -----------------------------------------------------------------------------------

PEERS: dict[tuple[str, str], tuple[str, Callable[[Settings], Iterable[Row]]]] = {
    ("scatter", "copies"): ("cupy", partial(together, scatter_copies)),
    ("scatter", "torch"): ("torch", scatter_torch),
    ("scatter", "jax"): ("jax", scatter_jax),
    ("minibatch", "take"): ("cupy", partial(together, minibatch_take)),
    ("minibatch", "torch"): ("torch", partial(together, minibatch_torch)),
    ("minibatch", "jax"): ("jax", minibatch_jax),
    ("minibatch", "prange"): ("numba", minibatch_prange),
}


def main() -> None:
    """One peer."""
    module, measure = PEERS[sys.argv[1], sys.argv[2]]
    if find_spec(module) is None:
        sys.exit(f"{module} is not installed")
    fields = json.loads(sys.argv[3])
    settings = Settings(**{**fields, "sizes": tuple(fields["sizes"])})
    print(json.dumps([asdict(row) for row in measure(settings)]))


if __name__ == "__main__":
    main()
