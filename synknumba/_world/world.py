"""The world as scripts see it: `World`, and the functions about the open one.

`World` has users' names only. Everything else asks the `Engine` (`engine.py`), of which a world is
a thin handle.
"""

import weakref
from typing import NoReturn, TextIO, final

from synknumba import _html
from synknumba import _tracing as tracing
from synknumba._errors import WorldError, shortened, where
from synknumba._host import this_process
from synknumba._host.segment import close_orphans
from synknumba._types import DeviceKind, Transport
from synknumba._wire.statistics import Statistics
from synknumba._world.engine import Engine
from synknumba._world.open_world import current_world, world_to_close


@final
class World:
    """The ranks: forked processes, one per device. Created by `fork()`; a context manager that
    closes itself.

    The ranks run until `close()`, also when the script no longer has this object.

    Example:
        >>> import synknumba as synk
        >>> with synk.fork(2, device="cpu") as world:
        ...     world.world_size, world.device, world.closed
        (2, 'cpu', False)
        >>> world.closed
        True
    """

    __slots__ = ("__weakref__", "_engine")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # ---- what it is

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._engine.world_size

    @property
    def device(self) -> DeviceKind:
        """Kind of device, "cuda" or "cpu"."""
        return self._engine.device

    @property
    def devices(self) -> tuple[int, ...]:
        """GPU index of each rank; empty on the CPU."""
        return self._engine.devices

    @property
    def weights(self) -> tuple[float, ...]:
        """Share of each rank in the rows of a call, by or measured for `fork(weights=...)`."""
        return self._engine.partition.shares

    @property
    def transport(self) -> Transport:
        """Transport of collectives, "nccl" or "host".

        With `fork(transport="auto")`, "nccl" changes to "host" at the first collective if NCCL
        cannot be set up.
        """
        return self._engine.transport

    @property
    def timeout(self) -> float | None:
        """Time limit of a call in seconds; None for no limit. Settable."""
        return self._engine.timeout

    @timeout.setter
    @shortened
    def timeout(self, seconds: float | None) -> None:
        self._engine.timeout = seconds

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the ranks; () if they have ended, or belong to another process."""
        return self._engine.pids

    # ---- the end

    @property
    def closed(self) -> bool:
        """Whether the ranks have ended, or belong to another process."""
        return self._engine.closed

    @property
    def end_reason(self) -> str | None:
        """Why the world ended; None while it is open, or if the script closed it."""
        return self._engine.end_reason

    def close(self) -> None:
        """Ends the ranks and frees their resources. Idempotent; also called when the script ends.

        `Data` and `Variable`s keep their contents. From GPUs, `close` fetches the values of
        variables still in use, of up to 1 GiB each; the end of the script does not. A call in
        progress is aborted and raises `WorldError` in its thread; outside the main thread, `close`
        first waits up to 2 s for the call to end. It waits for a call that was submitted, whose
        future keeps the result.
        """
        tracing.refuse("close()")
        self._engine.close(f"by close() at {where()}")

    def __enter__(self) -> "World":
        """Returns the world, which is closed at the end of the block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        """Closes the world; after Ctrl-C or `sys.exit` without waiting for a submitted call."""
        how = f"at the end of the with block that begins at {where()}"
        self._engine.close(how, patient=kind is None or issubclass(kind, Exception))

    # ---- variables and diagnosis

    @shortened
    def snapshot(self) -> None:
        """Keeps the values of all variables on the ranks, in the coordinator's memory.

        If a rank dies or a call takes too long, variables that may have been written to since go
        back to their values in the last snapshot, in the next world. Called in the coordinator,
        between calls. A variable that was not written to since the last snapshot is not copied
        again. One that is not on the ranks yet is covered, too: it keeps the value with which it is
        used next.

        Raises:
            WorldError: the world is closed, or busy.
            RankDied, CallTimeout, RankError: the values could not be fetched; the last snapshot is
                kept.
        """
        self._engine.snapshot()

    def statistics(self) -> Statistics:
        """Returns counts and times since `fork()`, and the memory in use; for a closed world, those
        at its end.

        With `fork(respawn=True)`, counts and times go on when the ranks are started again.

        Does not wait for a call in progress. On GPUs, the ranks report their memory, unless a call
        is in progress.

        Raises:
            WorldError: this process was forked from the one that owns the world.
            RankDied: a rank had died when it was to report its memory.
        """
        return self._engine.statistics()

    def dump(self, file: TextIO | None = None) -> None:
        """Prints the stack of every rank, innermost frame first. The ranks continue.

        Use it for a call that seems to hang, from another thread or from a signal handler. With
        `fork(timeout=...)`, the error of a call that takes too long contains the stacks already.

        Args:
            file: the file to print to; default: stderr.

        Raises:
            WorldError: the world is closed, perhaps by another thread meanwhile.
        """
        self._engine.dump(file)

    def __reduce__(self) -> NoReturn:
        """Raises `TypeError`: the ranks are children of this process."""
        raise TypeError(
            "cannot pickle a World, whose ranks are children of this process. In functions that "
            "run on the ranks, use synk.rank() and synk.world_size()"
        )

    def __repr__(self) -> str:
        """Shows size, device and state."""
        return repr(self._engine)

    def _repr_html_(self) -> str | None:
        """Shows devices, state and processes in a notebook; asks no rank."""
        return _html.of_world(self._engine)


def world_of(engine: Engine) -> World:
    """Returns the script's world with this engine: one object as long as the script has it."""
    world = None if engine.handle is None else engine.handle()
    if world is None:
        world = World(engine)
        engine.handle = weakref.ref(world)
    return world


def rank() -> int:
    """Returns the rank of this process, in functions that run on ranks; kernels take
    `synknumba.RANK` as an argument.

    Raises:
        WorldError: in the script, which is no rank.

    Example:
        >>> import synknumba as synk
        >>> @synk.function(outputs=None)
        ... def name():
        ...     return f"rank {synk.rank()} of {synk.world_size()}"
        >>> with synk.fork(2, device="cpu"):
        ...     print(*name(), sep=", ")
        rank 0 of 2, rank 1 of 2
    """
    number = this_process.current_rank()
    if number is None:
        raise WorldError(
            "rank() was called in the script, which is no rank; call it in a function that runs on "
            "the ranks, or pass synk.RANK as an argument"
        )
    return number


def world_size() -> int:
    """Returns the number of ranks: of a rank's own world, or of the script's open world.

    Raises:
        WorldError: in the script, and no world is open.

    Example:
        >>> import synknumba as synk
        >>> with synk.fork(2, device="cpu"):
        ...     synk.world_size()
        2
    """
    ranks = this_process.ranks_known()
    if ranks is None:
        ranks = current_world().world_size
    return ranks


def close() -> None:
    """Closes the open world, if any, and what interrupts have left open; see `World.close`.

    Example:
        >>> import synknumba as synk
        >>> world = synk.fork(2, device="cpu")
        >>> synk.close()
        >>> world.closed
        True
    """
    tracing.refuse("close()")
    world = world_to_close()
    if world is not None:
        world.close(f"by close() at {where()}")
    close_orphans()
