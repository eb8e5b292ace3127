"""The world: ranks forked from the coordinator, told what to do, watched, and joined.

    coordinator ──fork──> rank 0 … rank W−1            one process each
        │                    │
        ├── control block ───┤   shared memory and semaphores, inherited: doorbell, values, small results, arrivals
        ├── socketpair r ────┤   commands and descriptors out, news back; a closed end means the other has died
        ├── lifeline r ──────┤   a pipe that carries nothing: the kernel ends the rank when the coordinator's end closes
        ├── stacks r ────────┤   a memory file: where the rank is in its code, when asked or when it crashed (see `_stacks`)
        ├── scribe ── fd 2 ──┤   a process that passes on what ranks write, and remembers the end of it (see `_scribe`)
        │                    │
        └── waitpid          └── parent-death signal, parent's process id

What the coordinator writes: values, command, doorbell; commands on the sockets. What a rank writes: its results, its arrival,
news on its socket. A round is: ring, all ranks work, all arrive. Only one round is under way at a time.

A rank that has died ends the world: the others are killed
(they may be waiting for it inside a kernel or a collective, which nothing can interrupt), the processes are reaped, and the
call raises `RankDied`. Nothing that the user owns is in the ranks alone but `Variable`s, so `fork()` works again at once.

Which world of this process is open, and how the last one ended; a process has one at a time.

What the ranks hold of the coordinator's: which segments they have mapped, and what they need not keep any longer.

Only the books are here. Whoever has the world for a call sends what they say.
"""

import atexit
import collections
import inspect
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any, Generic, Literal, TextIO, TypeAlias, TypeVar, final

from synknumba._device import TRAITS, usable_cores
from synknumba._errors import SynkError, WorldError
from synknumba._host import segment as segment_module
from synknumba._host import this_process
from synknumba._host.segment import Segment
from synknumba._ops.rows import Partition
from synknumba._types import DeviceKind, Transport
from synknumba._wire import channel
from synknumba._wire.control import CROWDED, ROOMY, ControlBlock
from synknumba._wire.messages import Attach, Drop, Measure, Measured
from synknumba._wire.statistics import Memory, Statistics, Tally, own_memory
from synknumba._world.failure import whereabouts
from synknumba._world.processes import Processes
from synknumba._world.rounds import Ranks, Rounds

Kind: TypeAlias = Literal["segment", "program", "function", "variable"]
"""What a rank can let go of; a variable's is its memory."""


@final
class RankHoldings:
    """The books of one world.

    Attributes:
        unwanted: what the ranks have not been told to drop yet; read at the end of each call.
    """

    def __init__(self) -> None:
        self._mapped: dict[int, int] = {}  # by segment id: the generation that the ranks have mapped
        self.unwanted: collections.deque[tuple[Kind, int]] = collections.deque()

    def missing(self, segments: Sequence[Segment]) -> Iterator[tuple[Attach, list[int]]]:
        """What makes the ranks map these segments where they have not, or where they have grown since: with descriptors.

        What was yielded counts as sent when the next is asked for.
        """
        needed = [segment for segment in segments if self._mapped.get(segment.id) != segment.generation]
        for start in range(0, len(needed), channel.MAX_DESCRIPTORS):
            some = needed[start : start + channel.MAX_DESCRIPTORS]
            yield Attach(tuple((one.id, one.size) for one in some)), [one.fd for one in some]
            self._mapped.update((one.id, one.generation) for one in some)

    def forget(self, kind: Kind, number: int) -> bool:
        """Notes that something is no longer wanted; whether the ranks have it. Takes no lock."""
        if kind == "segment" and self._mapped.pop(number, None) is None:
            return False
        self.unwanted.append((kind, number))
        return True

    def drop(self) -> Drop:
        """What makes the ranks let go of all that is not wanted. It counts as sent."""
        numbers: dict[Kind, list[int]] = {"segment": [], "program": [], "function": [], "variable": []}
        while self.unwanted:
            kind, number = self.unwanted.popleft()
            numbers[kind].append(number)
        return Drop(*(tuple(numbers[kind]) for kind in ("segment", "program", "function", "variable")))

    def clear(self) -> None:
        """There are no ranks any more."""
        self.unwanted.clear()


_W = TypeVar("_W")


@final
class OpenWorld(Generic[_W]):
    """The place of the one world."""

    def __init__(self) -> None:
        self._world: _W | None = None
        self._untold: SynkError | None = None  # how it ended, if no call has said so
        self._reason: str | None = None  # why the last one was closed, if it was not the script that closed it

    def enter(self, world: _W) -> None:
        """The world is open from now on."""
        self._untold = None
        self._world = world

    def leave(self, world: _W, reason: str | None) -> None:
        """The world has ended."""
        if self._world is world:
            self._world, self._reason = None, reason

    def clear(self) -> None:
        """In a process that the script has forked: it has no ranks."""
        self._world = None

    def keep(self, error: SynkError) -> None:
        """Keeps what ended the world while nobody was there to hear it: the next call says it."""
        self._untold = error

    def raise_untold(self) -> None:
        """Raises what ended the last world, if no call has done so yet."""
        if self._untold is not None:
            error, self._untold = self._untold, None
            raise error

    def get(self) -> _W | None:
        """The open world, or None."""
        return self._world

    def current(self) -> _W:
        """The open world.

        Raises:
            WorldError: there is none, or this process is a rank.
        """
        if self._world is not None:
            return self._world
        rank = this_process.current_rank()
        if rank is not None:
            raise WorldError(
                f"this is rank {rank}, and only the coordinator makes calls. Call the plain function here (f.py_func)."
            )
        self.raise_untold()
        if self._reason is not None:
            message = f"there is no world any more: {self._reason}. Call synknumba.fork() to start a new one."
        else:
            message = "there is no world: call synknumba.fork() first (it starts one process per GPU, or per CPU core)"
        raise WorldError(message)


CLOSE_SECONDS = 2.0  # how long ranks may take to end when told to; then they are killed
DROP_SECONDS = 5.0  # how long a call waits for a drop in another thread; one takes some 50 µs

_F = TypeVar("_F", bound=Callable[..., Any])

_holders: set[CodeType] = set()

_open: "OpenWorld[World]" = OpenWorld()
current_world = _open.current
raise_untold = _open.raise_untold


def holds_world(function: _F) -> _F:
    """Marks a function that takes a world and gives it back, so that a call that is under way is seen on the stack."""
    _holders.add(function.__code__)
    return function


@final
class World:
    """Forked ranks, one per device. Made by `fork()`; a context manager that closes itself.

    Attributes:
        world_size: number of ranks.
        partition: of rows into ranks, in calls and in `scatter`.
        device: "cuda" or "cpu".
        traits: what the ranks' devices are like.
        devices: the GPU of each rank; empty on the CPU.
        ranks: where calls put values and find results.
        tally: what is counted while it runs.
        run: has every rank run a program, as `Ranks.run`.
        command: has every rank carry out a command, as `Ranks.command`.
        transport: "nccl" or "host": what carries the collectives. An "nccl" that was not asked for becomes "host" at the first
            collective if NCCL cannot be set up.
    """

    def __init__(
        self,
        world_size: int,
        device: DeviceKind,
        devices: tuple[int, ...],
        *,
        profile: bool,
        timeout: float | None,
        transport: Transport = "host",
        transport_is_free: bool = True,
        prefix_output: bool = False,
    ) -> None:
        self.world_size = world_size
        self.partition = Partition.even(world_size)
        self.device: DeviceKind = device
        self.traits = TRAITS[device]
        self.devices = devices
        self.transport: Transport = transport
        self.transport_is_free = transport_is_free  # whether it may be another than asked for
        self.joined = False  # whether it has been set up, where it must be
        self.traffic: Any = None  # what carries values and collectives, once there are any; the layers above make it
        self.tally = Tally(opened=time.monotonic_ns())
        self._owner = os.getpid()
        self._lock = threading.RLock()  # nobody takes it twice, but it knows whose it is
        self._is_mine: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001  # for conditions
        self._looking = threading.RLock()  # at the control block, for diagnosis, while another thread may free it
        self._closed = False
        self._died: str | None = None
        self._at_end: tuple[int, Memory] | None = None  # what is not known any more of a world that is closed
        self.shipped: set[int] = set()  # ids of the functions that the ranks have
        self._belongings = RankHoldings()
        self._at_close: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._drops = 0  # drops under way, or about to be
        segment_module.sweep_names()
        segment_module.close_orphans()
        patience = CROWDED if world_size + 1 > usable_cores() else ROOMY
        self._control = ControlBlock(world_size, patience)
        self._processes = Processes()
        self._rounds = Rounds(self._control, self._processes, self.tally, timeout, weakref.WeakMethod(self._release))
        self.ranks: Ranks = self._rounds
        self.run, self.command = self.ranks.run, self.ranks.command
        self._unsubscribe = _nothing
        try:
            self._processes.start(self._control, device, devices, profile=profile, prefix_output=prefix_output)
            self._rounds.await_ranks(device)
            # Not before: it keeps the world, and one that Ctrl-C has kept from starting, and from ending, must go by itself.
            self._unsubscribe = segment_module.on_release(lambda segment: self.forget("segment", segment))
        except BaseException:
            self._rounds.kill()
            raise
        self.tally.starting = time.monotonic_ns() - self.tally.opened
        _open.enter(self)

    # ---- calls

    def at_close(self, callback: "weakref.WeakMethod[Callable[[], None]]") -> None:
        """Has a method called when the world has ended, if its object still lives."""
        self._at_close.append(callback)

    def begin(self) -> None:
        """Takes the world for one call; what follows up to `end()` is one thread's alone.

        Used in functions that `holds_world` marks.

        Raises:
            WorldError: the world is closed, or another thread's call is under way.
        """
        # A drop in another thread, which may be a garbage collection there, is not the user's call, and soon over.
        if self._is_mine():
            taken = self._was_left()
        else:
            taken = self._lock.acquire(False) or (self._drops > 0 and self._lock.acquire(timeout=DROP_SECONDS))
        if not taken:
            raise WorldError(
                "a call is under way, in another thread or around this one; a world runs one call at a time. "
                "Make calls from one thread, or guard them with a lock."
            )
        if self._rounds.under_way:
            self._rounds.break_off()
        if self._closed:
            self._lock.release()
            raise self.closed_error()

    def end(self) -> None:
        """Gives the world back."""
        self._lock.release()
        if self._belongings.unwanted:
            self._drop_unwanted()

    def _take(self, seconds: float = 0.0) -> bool:
        """Takes the world as `begin` does, but for what there is to be said against a call."""
        if self._is_mine():
            return self._was_left()
        return self._lock.acquire(timeout=seconds)

    def _was_left(self) -> bool:
        """Whether this thread has the world, but is in no call of it besides the one that asks.

        So it is where Ctrl-C came when a call had just taken the world, or was about to give it back.
        """
        calls = 0
        frame = inspect.currentframe()
        while frame is not None:
            calls += frame.f_code in _holders
            frame = frame.f_back
        return calls == 1

    # ---- what the ranks hold

    def attach(self, segments: Sequence[Segment]) -> None:
        """Makes the ranks map these segments where they have not, or where they have grown since."""
        for command, descriptors in self._belongings.missing(segments):
            self.command(command, descriptors)

    def forget(self, kind: Kind, number: int) -> None:
        """Notes that something is no longer wanted, and tells the ranks as soon as they are idle.

        May be called by the garbage collector at any time, so it raises nothing and waits for no lock.
        """
        if not self._closed and not self.is_inherited and self._belongings.forget(kind, number):
            self._drop_unwanted()

    def _drop_unwanted(self) -> None:
        if self._closed or not self._belongings.unwanted:
            return
        self._drops += 1  # before the lock is taken, so that `begin` does not mistake this for a call
        try:
            self._drop_if_idle()
        finally:
            self._drops -= 1

    @holds_world
    def _drop_if_idle(self) -> None:
        if not self._take():
            return  # a round is under way: it looks here again when it ends
        try:
            if not self._closed and not self._rounds.under_way:
                self.command(self._belongings.drop())
        except SynkError as error:
            if self._closed:
                _open.keep(error)
        finally:
            self._lock.release()

    # ---- the end

    def _release(self, reason: str | None) -> None:
        """Frees what belongs to the ranks, which have ended."""
        self._died = reason
        with self._looking:
            if self._at_end is None:
                self._at_end = self._control.worked, Memory(segment_module.total_bytes(), (), (), ())
                self.tally.closed = time.monotonic_ns()
            self._closed = True
        self._unsubscribe()
        while self._at_close:
            callback = self._at_close.pop()()
            if callback is not None:
                callback()
        self.traffic = None
        self._processes.close()
        self._control.close()
        self._belongings.clear()
        _open.leave(self, reason)

    @holds_world
    def close(self) -> None:
        """Ends the ranks and frees what they hold. Idempotent; also called when the script ends."""
        if self._closed or self.is_inherited:
            return
        if not self._take(0.0 if threading.current_thread() is threading.main_thread() else CLOSE_SECONDS):
            self._rounds.kill("the world was closed during a call")
            return
        try:
            self._rounds.stop(CLOSE_SECONDS)
        finally:
            self._lock.release()

    @holds_world
    def settle(self) -> None:
        """Ends a world in which a round was broken off, by Ctrl-C twice so quickly that there was no time to end it."""
        if self._rounds.under_way and self._take():
            try:
                self._rounds.break_off()
            finally:
                self._lock.release()

    def disown(self) -> None:
        """In a process that the script has forked: the ranks are the script's, and are left alone."""
        self._closed = True
        self._died = "it is of the process that this one was forked from"
        self._rounds.disown()

    # ---- diagnosis

    def statistics(self) -> Statistics:
        """What has been done since `fork()`, and the memory in use; of a closed world what was at its end.

        It disturbs nobody. On GPUs the ranks are asked for their memory, unless a call is under way.

        Raises:
            WorldError: the world is of the process that this one was forked from.
            RankDied: a rank was found to have died when it was asked for its memory.
        """
        self._check_owner()
        devices = self._measure_devices()
        held, free = tuple(one.held for one in devices), tuple(one.free for one in devices)
        ranks = own_memory(self._processes.pids)
        with self._looking:
            if self._at_end is None:
                worked, memory = self._control.worked, Memory(segment_module.total_bytes(), ranks, held, free)
            else:
                worked, memory = self._at_end
        return self.tally.told(self._rounds.sequence, worked, memory, self._processes.dropped_bytes)

    @holds_world
    def _measure_devices(self) -> Sequence[Measured]:
        nothing = [Measured(None, None)] * self.world_size
        if self.traits.shares_memory or self._rounds.under_way or not self._take():
            return nothing
        try:
            if self._closed:
                return nothing
            return [item for _, item, _ in self.command(Measure()) if isinstance(item, Measured)] or nothing
        finally:
            self._lock.release()

    def dump(self, file: TextIO | None = None) -> None:
        """Prints where every rank is in its code, innermost frame first, to `file` or stderr. They are not disturbed.

        For a call that seems to hang: from another thread, or from a signal handler. `fork(timeout=...)` does it by itself.

        Raises:
            WorldError: the world is closed, or another thread has closed it meanwhile.
        """
        self._check_owner()
        stacks = dict.fromkeys(range(self.world_size), "  has ended")
        stacks |= self._processes.where(stacks)
        with self._looking:
            if self._closed:
                raise self.closed_error()
            doing = f"{self!r}, {self._rounds.doing}"
        out = sys.stderr if file is None else file
        if out is not None:  # the script's stderr may be closed
            out.write(f"{doing}\n{whereabouts(stacks)}\n")

    def _check_owner(self) -> None:
        if self.is_inherited:
            self.disown()
            raise self.closed_error()

    # ---- state

    @property
    def closed(self) -> bool:
        """Whether the ranks have ended, or are another process's."""
        return self._closed

    @property
    def is_inherited(self) -> bool:
        """Whether it is of the process that this one was forked from."""
        return os.getpid() != self._owner

    @property
    def timeout(self) -> float | None:
        """Seconds that a call may take, or None."""
        return self._rounds.timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._rounds.timeout = seconds

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the ranks."""
        return tuple(self._processes.pids)

    @property
    def end_reason(self) -> str | None:
        """What ended it, if it was not the script."""
        return self._died

    def closed_error(self) -> WorldError:
        """Why nothing can be run."""
        reason = f": {self._died}" if self._died else ""
        return WorldError(f"this world is closed{reason}. Call fork() to start a new one.")

    def __enter__(self) -> "World":
        """The world itself; it is closed when the block ends."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Closes the world."""
        self.close()

    def __repr__(self) -> str:
        """Size, device and state."""
        where = f", devices={list(self.devices)}" if self.devices else ""
        state = "closed" if self._closed else "open"
        return f"<World of {self.world_size} {self.device} rank{'s' if self.world_size > 1 else ''}{where}, {state}>"


def _nothing() -> None:
    """What there is to be undone at first."""


def open_world() -> World | None:
    """The open world, or None."""
    world = _open.get()
    if world is not None:
        world.settle()
    return _open.get()


def close() -> None:
    """Closes the open world, if there is one."""
    world = _open.get()
    if world is not None:
        world.close()


def _disown() -> None:
    world = _open.get()
    _open.clear()
    if world is not None:
        world.disown()


atexit.register(close)
os.register_at_fork(after_in_child=_disown)
