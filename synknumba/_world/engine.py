"""The engine of a world: its ranks, and how the coordinator starts, commands and ends them.

    coordinator ──fork──> rank 0 … rank W−1            one process each
        │                    │
        ├── control block ───┤   shared memory and semaphores, inherited: doorbell, values, small results, arrivals
        ├── socketpair r ────┤   commands and descriptors out, news back; end of file: the peer has died
        ├── lifeline r ──────┤   a pipe without data: the kernel ends the rank when the coordinator's end closes
        ├── stacks r ────────┤   a memory file: the rank's stack, on request or after a crash (`_host/stacks.py`)
        ├── output ── fd 2 ──┤   a process that forwards the ranks' output and keeps its last lines (`output_process.py`)
        │                    │
        └── waitpid          └── parent-death signal, parent's process id

The coordinator writes values, command and doorbell to the control block, and commands to the
sockets. A rank writes results and its arrival to the control block, and news to its socket. A round
is: the coordinator rings, all ranks work, all arrive. Only one round is under way at a time.

The death of a rank ends the world. The other ranks are killed, since they may wait for the dead one
inside a kernel or a collective, which nothing can interrupt; the processes are reaped, and the call
raises `RankDied`. Of the user's objects only `Variable`s live in the ranks alone, so `fork()` works
again at once; with `fork(respawn=True)`, the next call starts the ranks again
(`Engine._start_again`), and the world begins another `Life`.

A process has at most one open world, which `OpenWorld` tracks. Scripts have a `World` (`world.py`),
which passes on to the engine what users may ask for.
"""  # noqa: E501

import atexit
import contextlib
import linecache
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import itemgetter
from types import FrameType
from typing import Any, Protocol, TextIO, final

from synknumba import _tracing as tracing
from synknumba._device import TRAITS, usable_cores
from synknumba._errors import SynkError, WorldError
from synknumba._host import segment as segment_module
from synknumba._host import this_process
from synknumba._host.deaths import noted, settle
from synknumba._host.log import log
from synknumba._host.segment import Segment
from synknumba._host.signals import in_main_thread
from synknumba._ops.rows import Partition
from synknumba._types import Array, CompilerName, DeviceKind, Transport, WeakTable
from synknumba._wire.control import CROWDED, ROOMY, ControlBlock
from synknumba._wire.messages import Measure, Measured, Rate, Rated, Trace, Traced
from synknumba._wire.statistics import Memory, Statistics, Tally, own_memory
from synknumba._world import machines as machines_module
from synknumba._world.call_in_flight import Flight, lock_limit, remaining
from synknumba._world.code import RankCode
from synknumba._world.events import Events
from synknumba._world.failure import CallInfo, calling, whereabouts
from synknumba._world.limits import as_timeout
from synknumba._world.mapped_segments import Kind, RankHoldings
from synknumba._world.processes import Processes
from synknumba._world.read_values import RankValues
from synknumba._world.rounds import Ranks, Rounds

RATE_SECONDS = (
    0.2  # for which ranks measure how fast they are: some tens of time slices of a shared core
)


@final
class OpenWorld:
    """Reference to this process's open world, and the reason why the last one ended."""

    def __init__(self) -> None:
        self.world: Engine | None = None
        self.untold: SynkError | None = (
            None  # what ended the last one outside any call, until a call has raised it
        )
        self.reason: str | None = None  # why the last one ended; None if the script closed it
        self.closed = ""  # how and where the script closed the last one
        self.ended: Engine | None = (
            None  # a world that a failure has ended, and that the next call starts again
        )
        # whether the world that this process had when it was forked is that of its parent
        self.is_parents = False
        self.snapshots = 0  # number of snapshots taken in this process
        self.when_started: Callable[[Engine], None] | None = (
            None  # called with each world that has started
        )
        # "one": the thread that starts a world, in a list of its own
        self.starters: dict[str, list[int]] = {}

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Refuses a second start of a world meanwhile; a dict can be taken and given back in one
        step, unlike a lock.

        Raises:
            WorldError: another thread, or a call around this one, starts a world.
        """
        mine = [threading.get_ident()]
        try:
            if self.starters.setdefault("one", mine) is not mine:
                raise WorldError(
                    "a world is being started, by another thread or by the call around this one; "
                    "call again when it has started"
                )
            yield
        finally:
            if self.starters.get("one") is mine:
                del self.starters["one"]

    def await_start(self) -> None:
        """Waits until another thread has started a world."""
        while self.starters.get("one", [threading.get_ident()]) != [threading.get_ident()]:
            time.sleep(0.001)

    def raise_untold(self) -> None:
        """Raises the error that ended the last world outside any call, once."""
        if self.untold is not None:
            error, self.untold = self.untold, None
            raise error

    def current(self) -> "Engine":
        """Returns the open world.

        Raises:
            WorldError: no world is open, or this process is a rank.
        """
        if self.world is not None:
            return self.world
        rank = this_process.current_rank()
        if rank is not None:
            raise WorldError(
                f"this is rank {rank}, and only the coordinator makes calls. Call the plain "
                f"function here (f.py_func)."
            )
        self.raise_untold()
        if self.ended is not None:
            return self._start_again()
        if self.reason is not None:
            message = (
                f"the world has ended: {self.reason}. Call synknumba.fork() to start a new one."
            )
        elif self.is_parents or _is_of_multiprocessing():
            message = (
                "no world is open in this process: a world belongs to the process that has called "
                "synknumba.fork(), and this is the child of another. Make the calls in the parent "
                "process, or call synknumba.fork() here for another world"
            )
        elif self.closed:
            message = (
                f"no world is open: the world was closed {self.closed}. Make the call "
                f"before, or call synknumba.fork() again"
            )
        else:
            message = (
                "no world is open: call synknumba.fork() first (it starts one process "
                "per GPU, or per CPU core)"
            )
        raise WorldError(message)

    def _start_again(self) -> "Engine":
        with self.starting():
            if self.world is None and self.ended is not None:
                self.ended._start_again()  # noqa: SLF001
        return self.current()


@final
@dataclass(slots=True, eq=False)
class Life:
    """The time from the start of a world's ranks to their end.

    Attributes:
        reason: why they ended; None before the end, or if the script closed the world.
        not_kept: why values of variables could not be fetched from them at the end; None if all
            could.
        keeps_snapshots: whether a snapshot of their world was taken, now or before it started
            again.
    """

    reason: str | None = None
    not_kept: str | None = None
    keeps_snapshots: bool = False


class Resident(Protocol):
    """What lives on the ranks and outlives them: a variable."""

    def take_snapshot(self, world: "Engine") -> Any:
        """Returns copies of the values on the ranks."""

    def keep_snapshot(self, values: Any) -> None:
        """Sets the values to go back to if a rank dies."""

    def keep_at_close(self, world: "Engine") -> None:
        """Fetches the values before the ranks end."""


class Visitor(Protocol):
    """What has something on the ranks that ends with them: a function or a sequence."""

    def _leave(self) -> None:
        """Drops it here."""


CLOSE_SECONDS = 2.0  # time for ranks to end on request, before they are killed
FETCH_SECONDS = 60.0  # time for ranks on GPUs to send the values of variables before they end
DROP_SECONDS = 5.0  # wait of a call for a drop in another thread; a drop takes some 50 µs

_FREEING = CallInfo("freeing memory", is_call=False)

_frame: Callable[..., FrameType] = sys._getframe  # noqa: SLF001

_open = OpenWorld()
current_world = _open.current


def when_started(call: "Callable[[Engine], None] | None") -> None:
    """Sets what is called with each world that has started."""
    _open.when_started = call


raise_untold = _open.raise_untold
starting = _open.starting


@final
class Engine:
    """The ranks: forked processes, one per device. `fork()` returns a `World` over it.

    Attributes:
        world_size: number of ranks.
        partition: partition of rows into ranks, in calls and in `scatter`.
        device: kind of device, "cuda" or "cpu".
        traits: properties of the ranks' devices.
        devices: GPU index of each rank; empty on the CPU.
        ranks: interface of calls to the ranks: values, results, `run` and `command`.
        tally: counters for `statistics`.
        run: `Ranks.run`: runs a program on every rank.
        command: `Ranks.command`: executes a command on every rank.
        transport: transport of collectives, "nccl" or "host". With `fork(transport="auto")`, "nccl"
            changes to "host" at the first collective if NCCL cannot be set up.
        transport_is_free: whether `transport` may change, since "auto" was requested.
        joined: whether the transport is set up, if it needs that.
        own_programs: what the coordinator does itself, by number, since ranks of other machines do
            not reach the memory.
        traffic: the world's `Traffic`, which transfers values and runs collectives; None before the
            first. Set by `_variables`.
        shipped: ids of the functions that the ranks have.
        proven: ids of those that have run to their end; others are sent again after a failure.
        texts: `linecache` entries that the ranks have: texts of files, of which some are not on
            disk, or not as they were.
        asked: text of the arguments of `fork()`.
        handle: the script's `World`, if it still has one.
    """

    __slots__ = (  # so that a misspelt attribute is refused
        "__weakref__",
        "_at_end",
        "_awaiting",
        "_belongings",
        "_call",
        "_closed",
        "_closing",
        "_compiler",
        "_control",
        "_died",
        "_drops",
        "_first_transport",
        "_firsts",
        "_flight",
        "_how_closed",
        "_is_mine",
        "_life",
        "_lock",
        "_looking",
        "_others",
        "_owner",
        "_prefix_output",
        "_processes",
        "_profile",
        "_residents",
        "_respawn",
        "_rounds",
        "_subscriptions",
        "_traced",
        "_visitors",
        "asked",
        "code",
        "command",
        "device",
        "devices",
        "handle",
        "joined",
        "judged",
        "own_programs",
        "partition",
        "proven",
        "ranks",
        "run",
        "shipped",
        "tally",
        "texts",
        "traffic",
        "traits",
        "transport",
        "transport_is_free",
        "values",
        "world_size",
    )

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
        firsts: tuple[int, ...] = (),
        compiler: CompilerName | None = None,
    ) -> None:
        self.world_size = world_size
        self.partition = Partition.even(world_size)
        self.device: DeviceKind = device
        # first rank of each machine, and the number of ranks
        self._firsts = firsts or (
            0,
            world_size,
        )
        self._others = machines_module.current[0] if len(self._firsts) > 2 else None
        # The coordinator does not share memory with ranks of other machines, as if all were on
        # GPUs.
        self.traits = (
            TRAITS[device] if self._others is None else replace(TRAITS[device], shares_memory=False)
        )
        self.devices = devices
        self.transport: Transport = transport
        self.transport_is_free = transport_is_free
        self.joined = False
        self.traffic: Any = None
        self.judged = ""  # name of the sequence whose until= is asked
        self.asked = ""  # arguments of the `fork()` that returned this world
        self.handle: weakref.ref[Any] | None = (
            None  # not strong: an engine is freed without a garbage collection
        )
        self.tally = Tally(opened=time.monotonic_ns())
        self._owner = os.getpid()
        self._profile, self._prefix_output, self._compiler = profile, prefix_output, compiler
        self._first_transport = transport
        self._residents: WeakTable[Resident, None] = WeakTable()
        self._life = Life()
        self._respawn: Callable[[], None] | None = (
            None  # checks, before the ranks are started again, that they can be
        )
        # never taken twice; an RLock can tell whether this thread holds it
        self._lock = threading.RLock()
        self._is_mine: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001  # as `Condition` uses it
        self._call: FrameType | None = None  # frame of the call that has the world
        self._flight: Flight | None = None  # call on which the ranks work while the script goes on
        self._awaiting: set[int] = set()  # threads that wait in `await_flight`, or are about to
        # held to read the control block, which another thread may free
        self._looking = threading.RLock()
        self._visitors: WeakTable[Visitor, None] = WeakTable()
        self._closing = False
        self._how_closed = ""
        self._drops = 0  # drops in progress, or about to begin
        self._subscriptions = contextlib.ExitStack()
        self._traced: Callable[[Events], None] | None = None  # gets the events of a trace
        self._at_end: tuple[int, Memory, int] | None = (
            None  # `worked`, memory, `network`, which cannot be read after the end
        )
        self._start(timeout)

    def _start(self, timeout: float | None) -> None:
        """Starts the ranks, for the first time or again."""
        self.transport = self._first_transport
        self.joined = False
        self.traffic = None
        began = time.monotonic_ns()
        self._life = Life(keeps_snapshots=self._life.keeps_snapshots)
        self._residents.clear()
        self.own_programs: dict[int, Callable[[], object]] = {}
        self.shipped: set[int] = set()
        self.proven: set[int] = set()
        self.texts = dict(linecache.cache)
        self._belongings = RankHoldings()
        self.code = RankCode()
        self.values = RankValues()
        segment_module.sweep_names()
        segment_module.close_orphans()
        here, machines = self._firsts[1], self._others
        busy, cores = here + 1, usable_cores()
        if machines is not None:
            busy, cores = busy + 1, machines_module.cores_each(machines.hosts, machines.hosts[0])
        patience = CROWDED if busy > cores else ROOMY
        control = ControlBlock(self.world_size, patience, lines=here + (machines is not None))
        with self._looking:
            if self._at_end is not None:  # the ranks are started again, and statistics go on
                self.tally.go_on(
                    self._rounds.sequence,
                    self._at_end[0],
                    self._processes.forwarder.dropped,
                    self._at_end[2],
                )
            self._control = control
            host = "" if machines is None else machines.hosts[0]
            self._processes: Processes = Processes(prefix_output=self._prefix_output, host=host)
            release = weakref.WeakMethod(self._release)
            self._rounds: Rounds = Rounds(
                control, self._processes, self.tally, timeout, release, machines
            )
            self._rounds.starts_again = self._respawn is not None
            self._at_end = None
            self._died: str | None = None
            self._closed = False
        self.ranks: Ranks = self._rounds
        self.run, self.command = self.ranks.run, self.ranks.command
        try:
            if machines is not None:
                machines.start(
                    control,
                    self._firsts,
                    self.device,
                    self.devices,
                    compiler=self._compiler,
                    profile=self._profile,
                    prefix_output=self._prefix_output,
                )
            local_devices = self.devices[:here]
            self._processes.start(
                control,
                here,
                self.device,
                local_devices,
                compiler=self._compiler,
                profile=self._profile,
            )
            self._rounds.await_ranks(self.device)
            # Subscriptions keep the world alive, so they come last. A world whose start and end
            # were both interrupted by Ctrl-C must be found by `close()`, or be garbage-collected,
            # which kills its ranks (`Processes.__del__`).
            _open.untold, _open.world, _open.ended, _open.is_parents = None, self, None, False
            self._subscriptions.callback(
                segment_module.on_release(lambda segment: self.forget("segment", segment))
            )
            self._subscriptions.callback(segment_module.before_making(self._drop_unwanted))
        except BaseException:
            self._rounds.kill()
            raise
        took = time.monotonic_ns() - began
        self.tally.starting += took
        log.info(
            "%s has started in %.2f s: processes %s",
            repr(self),
            took / 1e9,
            list(self._processes.pids),
        )
        if _open.when_started is not None:
            _open.when_started(self)

    def _set_respawn(self, check: Callable[[], None]) -> None:
        """Lets the next call start the ranks again after a failure, if `check` does not raise."""
        self._respawn = check
        self._rounds.starts_again = True

    def _start_again(self) -> None:
        """Starts the ranks after a failure; if that fails, the next call tries again."""
        # The call that the failure broke off notes what it may have written, in its thread, before
        # it gives the world back.
        if not self._take(_frame(), DROP_SECONDS):
            raise WorldError(
                "the world is started again after the call in progress; call "
                "again when that has ended"
            )
        reason = self._died
        log.info("the ranks are started again, which had ended: %s", reason)
        try:
            if self._respawn is not None:
                self._respawn()
            self._start(self._rounds.timeout)
        except BaseException:
            if _open.world is not self:
                self._died, _open.ended = reason, self
            raise
        finally:
            self._give_back()

    # ---- calls

    def at_close(self, visitor: Visitor) -> None:
        """Registers an object whose `_leave` is called at the world's end, if it is still alive."""
        self._visitors[visitor] = None

    def begin(self, call: FrameType | None = None) -> None:
        """Takes the world for one call: until `end()`, no other thread can use it. First waits for
        the call in flight.

        Args:
            call: frame that calls `end()`; default: the caller's.

        Raises:
            WorldError: the world is closed, or another call is in progress.
            RankDied, CallTimeout: of the call in flight; other errors of it stay in its future.
        """
        if noted:
            settle()
        # A drop in another thread, which makes a segment, is no call of the user, and soon over:
        # wait for it. Nor is the wait for a call in flight, which has ended if the world is free at
        # the second try.
        if not self._take(
            call or _frame(1), DROP_SECONDS if self._drops else 0.0
        ) and not self._take(call or _frame(1), threading.TIMEOUT_MAX if self._awaiting else 0.0):
            tracing.refuse(f"{calling().function}()")
            if self.judged and self._is_mine():
                raise WorldError(
                    f"until= of {self.judged} is judged between the rounds of its call, and cannot "
                    "make calls or read variables. It gets what the body returns, so return what "
                    f"it looks at; or call {self.judged} with times= in a loop of the script"
                )
            raise WorldError(
                "another call is in progress, in another thread or around this one; a world runs "
                "one call at a time. Make calls from one thread, or guard them with a lock."
            )
        if self._rounds.under_way:
            self._rounds.break_off()
        if self._flight is not None:
            self._land_first()
        if self._closed:
            self._give_back()
            raise self.closed_error()
        if self._belongings.unwanted:
            try:
                self._drop_now()
            except BaseException:
                self._give_back()
                raise
        if self._rounds.events is not None:
            self._rounds.events.began = time.monotonic_ns()

    def end(self) -> None:
        """Releases the world, and sends the frees queued during the call."""
        if self._rounds.events is not None:
            self._rounds.events.call_ends()
        self._give_back()
        if noted or self._belongings.unwanted:
            self._drop_unwanted()

    # ---- the call in flight

    def launch(self, flight: Flight, number: int) -> None:
        """Starts a program on every rank for a call in flight; between `begin` and `end`."""
        self._rounds.ring(number, flight.info)
        self._flight = flight
        self._rounds.under_way = False  # last: see `Rounds.ring`

    def await_flight(self, flight: Flight, seconds: float | None) -> None:
        """Waits for at most `seconds` for a call in flight, whose outcome is then in `flight`.

        Raises:
            WorldError: this thread is in another call, around this one.
        """
        began, thread = time.monotonic(), threading.get_ident()
        self._awaiting.add(thread)  # before taking the lock, as for drops
        try:
            if not self._take(_frame(), lock_limit(seconds)):
                if self._is_mine():
                    raise WorldError(
                        f"result() of {flight.info} was asked for in the middle of "
                        f"another call; ask after it"
                    )
                return  # another thread had the world for so long
            self._await_held(flight, remaining(seconds, began))
        finally:
            self._awaiting.discard(thread)

    def go_on(self, flight: Flight) -> None:
        """Completes a round of a call in flight that has landed, and starts the next, unless
        another call has the world.
        """
        if self._take(_frame()):
            self._await_held(flight, 0.0)

    def _await_held(self, flight: Flight, seconds: float | None) -> None:
        """Waits for at most `seconds` for a call in flight, and gives back the taken world."""
        try:
            if self._rounds.under_way:
                self._rounds.break_off()
            if self._flight is flight:
                self._land(seconds)
            elif not flight.over:  # it was interrupted, and the round has ended meanwhile
                flight.interrupt()
        finally:
            self.end()

    def has_landed(self, flight: Flight) -> bool:
        """Returns whether `await_flight` would not wait for the ranks' present round."""
        with self._looking:
            if self._flight is flight:
                return self._closed or self._rounds.is_decided
        return flight.over or self._call is None  # else the thread that has the world completes it

    def _land(self, seconds: float | None = None) -> None:
        """Waits for all rounds of the call in flight, for at most `seconds`, and completes it;
        the world is held.
        """
        began = time.monotonic()
        while self._flight is not None and self._land_round(
            self._flight, remaining(seconds, began)
        ):
            pass

    def _land_round(self, flight: Flight, seconds: float | None) -> bool:
        """Waits for a round, for at most `seconds`; returns whether it has ended: the call is
        complete, or in the next.
        """
        self._rounds.under_way = (
            True  # first: after an interrupt below, the next use of the world ends it
        )
        self._flight = None
        try:
            if not self._rounds.land(flight.info, flight.learn, seconds):
                self._flight = flight
                self._rounds.under_way = False
                return False
            flight.complete()
        # a warning of a rank that the script's filters turn into an error
        except (
            SynkError,
            Warning,
        ) as error:
            flight.fail(error)
        except BaseException:
            flight.interrupt()
            raise
        return True

    def _land_first(self) -> None:
        """Completes the call in flight before another one; raises its error if the world ended."""
        flight = self._flight
        assert flight is not None
        try:
            self._land()
            if self._closed:
                flight.raise_error()
            flight.warn_if_dropped()
        except BaseException:
            self._give_back()
            raise

    def _land_last(self, *, at_exit: bool) -> None:
        """Completes the call in flight before the end of the world; at the end of the script
        its error can no longer be retrieved.
        """
        flight = self._flight
        if flight is not None:
            self._land()
            if at_exit:
                flight.drop()
            else:
                flight.warn_if_dropped()

    def _take(self, call: FrameType, seconds: float = 0.0) -> bool:
        """Takes the world, unchecked, for the call with this frame; returns whether it could.

        An exception from outside, such as that of Ctrl-C, may strike between taking the world and
        the `try` that gives it back, or just before it is given back. So a world whose call is no
        longer on the stack is free for the thread that has it.
        """
        while True:
            if self._is_mine():
                if self._is_in_call():
                    return False
            elif not self._lock.acquire(False) and not (
                seconds and self._lock.acquire(timeout=seconds)
            ):
                return False
            self._call = call
            # else a signal handler's call took the world and gave it back before the line above
            if self._is_mine():
                return True

    def _give_back(self) -> None:
        self._call = None
        try:
            self._lock.release()
        # a signal handler's call took the world and gave it back after the line above
        except RuntimeError:
            return

    def _is_in_call(self) -> bool:
        frame: FrameType | None = _frame()
        while frame is not None and frame is not self._call:
            frame = frame.f_back
        return frame is not None

    # ---- objects on the ranks

    def attach(self, segments: Sequence[Segment], info: CallInfo | None = None) -> None:
        """Maps segments on the ranks, unless they are mapped already and have not grown since.

        Args:
            segments: those that a call needs.
            info: description of the call for messages; default: the name of the function that the
                script has called.
        """
        for command, descriptors in self._belongings.missing(segments):
            self.command(command, descriptors, info or calling())

    def forget(self, kind: Kind, number: int) -> None:
        """Notes an object that the ranks are to free: with the next call, or before the next
        segment is made.
        """
        if not self._closed and not self.is_inherited:
            self._belongings.forget(kind, number)

    def _drop_unwanted(self) -> None:
        """Frees noted objects on the ranks, unless a call in progress does so at its end."""
        if noted:
            settle()
        if self._closed or self.is_inherited or not self._belongings.unwanted:
            return
        self._drops += (
            1  # before taking the lock, so that `begin` does not mistake the drop for a call
        )
        try:
            self._drop_if_idle()
        finally:
            self._drops -= 1

    def _drop_if_idle(self) -> None:
        if not self._take(_frame()):
            return  # a call is in progress; `end` sends the drop
        try:
            if not self._closed and not self._rounds.under_way and self._flight is None:
                self._drop_now()
        except SynkError as error:
            if self._closed:
                _open.untold = error
        finally:
            self._give_back()

    def _drop_now(self) -> None:
        self.command(self._belongings.drop(), info=_FREEING)

    # ---- how far ranks are

    @contextmanager
    def showing(self, look: Callable[[], None]) -> Iterator[None]:
        """Context in which the coordinator calls `look` every 50 ms while it waits for ranks."""
        self._rounds.look = look
        try:
            yield
        finally:
            self._rounds.look = None

    def at_work(self) -> set[int]:
        """Returns the ranks of this machine that have not answered the last round."""
        return self._rounds.at_work()

    @property
    def slices_done(self) -> Array:
        """Slices that the ranks of this machine, which write them, have done of a call: int64."""
        return self._control.slices[: self._firsts[1]]

    # ---- traces

    def trace(self, records: int, ended: Callable[[Events], None]) -> None:
        """Traces the world until `end_trace` or its end; `ended` then gets the recording."""
        is_starting = bool(_open.starters)  # then no other thread can use it
        if not is_starting:
            self.begin()
        try:
            self.command(Trace(records))
            events = Events(records, self.tally)
            self._rounds.events, self._traced = events, ended
            self._control.set_ring_of_rounds(events.ring.address)
        finally:
            if not is_starting:
                self.end()

    def end_trace(self) -> None:
        """Ends the trace of the world, if it is traced."""
        if self._rounds.events is None or self._closed or self.is_inherited:
            return
        self.begin()
        try:
            self._collect_trace()
        finally:
            self.end()

    def _collect_trace(self) -> None:
        """Gets the ranks' records, and hands them over; the world is held."""
        events = self._rounds.events
        if events is None:
            return
        try:
            news = self.command(Trace(0))
            events.ranks = {rank: item for rank, item, _ in news if isinstance(item, Traced)}
        finally:
            self._hand_over_trace(None)

    def _hand_over_trace(self, reason: str | None) -> None:
        events, self._rounds.events = self._rounds.events, None
        if events is not None:
            self._control.set_ring_of_rounds(0)
        ended, self._traced = self._traced, None
        if events is not None and ended is not None:
            events.reason = reason
            if reason is not None:
                events.break_off()
            ended(events)

    # ---- the end

    def _release(self, reason: str | None) -> None:
        """Frees the coordinator's resources for the ranks, after the ranks have ended."""
        self._died = self._life.reason = reason
        self._hand_over_trace(reason)
        with self._looking:
            if self._at_end is None:
                memory = Memory(segment_module.total_bytes(), (), (), ())
                self._at_end = self._control.worked, memory, int(self._control.network[0])
                self.tally.closed = time.monotonic_ns()
            self._closed = True
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.fail(
                WorldError(
                    f"the world was closed while {flight.info} was in flight; "
                    f"call fork() to start again"
                )
            )
        self._subscriptions.close()
        for visitor in self._visitors:
            self._visitors.pop(visitor)
            visitor._leave()  # noqa: SLF001  # of its protocol
        self.traffic = None
        self._processes.close()
        self._control.close()
        self._belongings.unwanted.clear()
        if _open.world is self:
            _open.world, _open.reason, _open.closed = None, reason, self._how_closed
            if reason is not None and self._respawn is not None and not self._closing:
                _open.ended = self
        log.info("%s has ended: %s", repr(self), reason or "the script has closed it")

    def snapshot(self) -> None:
        """Keeps the values of all variables on the ranks; see `World.snapshot`."""
        if _open.ended is self:
            _open.current()
        self.begin()
        try:
            snapshots = [(resident, resident.take_snapshot(self)) for resident in self._residents]
            _open.snapshots += 1
            self._life.keeps_snapshots = True
            for resident, values in snapshots:  # before another thread's call may write
                resident.keep_snapshot(values)
        finally:
            self.end()

    def close(self, how: str = "", *, at_exit: bool = False, patient: bool = True) -> None:
        """Ends the ranks; see `World.close`.

        Args:
            how: by what, and where in the script.
            at_exit: whether the script ends, so that values of variables are not fetched.
            patient: whether to wait for the call in flight.
        """
        if noted:
            settle()
        if _open.ended is self and not self.is_inherited:
            _open.await_start()
            _open.ended = None
        if self._closed or self.is_inherited:
            return
        self._closing, self._how_closed = True, how
        try:
            seconds = 0.0 if in_main_thread() else CLOSE_SECONDS
            if not self._take(_frame(), seconds):
                self._rounds.kill("the world was closed during a call")
                return
            try:
                self._close_now(at_exit=at_exit, patient=patient)
            finally:
                self._give_back()
        finally:
            self._closing = False

    def _close_now(self, *, at_exit: bool, patient: bool) -> None:
        """Ends the ranks, while the world is held."""
        try:
            if not self._rounds.under_way and (patient or self._flight is None):
                self._land_last(at_exit=at_exit)
        finally:
            busy = self._rounds.under_way or self._flight is not None
            if not self._closed and not busy and not at_exit and not self.traits.shares_memory:
                self._keep_residents()
            if not self._closed and self._flight is not None:
                self._rounds.kill()
            if not self._closed and not busy:
                # the script asks for the end of the world, not for this
                with contextlib.suppress(SynkError):
                    self._collect_trace()
            if not self._closed:
                self._rounds.stop(CLOSE_SECONDS)

    def _keep_residents(self) -> None:
        """Fetches the values of variables from GPUs."""
        timeout = self._rounds.timeout
        self._rounds.timeout = min(timeout or FETCH_SECONDS, FETCH_SECONDS)
        try:
            for resident in self._residents:
                resident.keep_at_close(self)
        except (SynkError, MemoryError) as error:
            self._life.not_kept = str(error).splitlines()[0]
        finally:
            self._rounds.timeout = timeout

    def settle(self) -> None:
        """Ends the world if a round was interrupted by two Ctrl-C so close together that the
        first could not end it.
        """
        if self._rounds.under_way and self._take(_frame()):
            try:
                self._rounds.break_off()
            finally:
                self._give_back()

    def disown(self) -> None:
        """Marks the world as closed in a child of the script, and leaves the ranks alone."""
        self._closed = True
        self._died = "it belongs to the process from which this one was forked"
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.lose(self._died)
        self._rounds.disown()

    # ---- diagnosis

    def statistics(self) -> Statistics:
        """Returns counts, times and memory; see `World.statistics`."""
        self._check_owner()
        self._drop_unwanted()
        devices = self._measure_devices()
        held = tuple(device.held for device in devices)
        free = tuple(device.free for device in devices)
        ranks = own_memory(self._processes.pids)
        with self._looking:
            if self._at_end is None:
                memory = Memory(segment_module.total_bytes(), ranks, held, free)
                worked, network = self._control.worked, int(self._control.network[0])
            else:
                worked, memory, network = self._at_end
        return self.tally.told(
            self._rounds.sequence, worked, memory, self._processes.forwarder.dropped, network
        )

    def weigh(self, weights: Sequence[float]) -> None:
        """Divides rows by weights of the ranks from now on; by their rates, which are measured,
        if there are none.
        """
        if not weights:
            news = self.command(Rate(RATE_SECONDS), info=CallInfo("measuring rates"))
            weights = [
                item.rate
                for _, item, _ in sorted(news, key=itemgetter(0))
                if isinstance(item, Rated)
            ]
        self.partition = Partition.weighted(weights)

    def _measure_devices(self) -> Sequence[Measured]:
        nothing = [Measured(None, None)] * self.world_size
        if self.traits.shares_memory or self._rounds.under_way or not self._take(_frame()):
            return nothing
        try:
            if self._closed or self._flight is not None:
                return nothing
            news = self.command(Measure(), info=CallInfo("statistics"))
            return [item for _, item, _ in news if isinstance(item, Measured)] or nothing
        finally:
            self._give_back()

    def dump(self, file: TextIO | None = None) -> None:
        """Prints the stack of every rank; see `World.dump`."""
        self._check_owner()
        stacks = dict.fromkeys(range(self.world_size), "  has ended")
        stacks |= self._processes.where(stacks)
        if self._others is not None and not self._closed:
            stacks |= self._others.where()
        with self._looking:
            if self._closed:
                raise self.closed_error()
            doing, places = f"{self!r}, {self._rounds.doing}", self._rounds.places()
        out = sys.stderr if file is None else file
        if out is not None:  # the script's stderr may be closed
            out.write(f"{doing}\n{whereabouts(stacks, places)}\n")

    def _check_owner(self) -> None:
        if self.is_inherited:
            self.disown()
            raise self.closed_error()

    # ---- state

    @property
    def machines(self) -> tuple[tuple[str, int, int], ...]:
        """Name, first rank and end of the ranks of each machine; empty for one machine."""
        hosts = () if self._others is None else self._others.hosts
        return tuple(zip(hosts, self._firsts[:-1], self._firsts[1:], strict=True)) if hosts else ()

    @property
    def spans_machines(self) -> bool:
        """Whether ranks are on several machines, so that they do not all reach the same memory."""
        return self._others is not None

    @property
    def mirrors_variables(self) -> bool:
        """Whether variables lie in memory shared by a machine's ranks, out of reach of others."""
        return self._others is not None and TRAITS[self.device].shares_memory

    @property
    def _is_broken(self) -> bool:
        """Whether a failure has ended the world, or is about to."""
        return self._closed or self._rounds.under_way

    @property
    def closed(self) -> bool:
        """Whether the ranks have ended, or belong to another process."""
        return self._closed

    @property
    def is_inherited(self) -> bool:
        """Whether the world belongs to the process from which this one was forked."""
        return os.getpid() != self._owner

    @property
    def timeout(self) -> float | None:
        """Time limit of a call in seconds; None for no limit."""
        return self._rounds.timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._rounds.timeout = as_timeout(seconds)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the ranks; () if they have ended, or belong to another process."""
        pids = tuple(self._processes.pids)  # of this machine
        # never 0, which signals the whole process group
        return () if self._closed or not all(pids) else pids

    @property
    def end_reason(self) -> str | None:
        """Why the world ended; None while it is open, or if the script closed it."""
        return self._died

    @property
    def work(self) -> str | None:
        """Description of the call on which the ranks work; None without one, or at its begin."""
        flight, info = self._flight, self._rounds.in_flight
        if flight is not None:
            return str(flight.info)
        return None if info is None or self._closed else str(info)

    def closed_error(self) -> WorldError:
        """Returns the error for a call of a closed world."""
        reason = f": {self._died}" if self._died else ""
        reason = reason or (f": it was closed {self._how_closed}" if self._how_closed else "")
        if _open.ended is self:
            return WorldError(
                f"the ranks of this world have ended{reason}. Call again: the "
                f"next call starts them again."
            )
        return WorldError(f"this world is closed{reason}. Call fork() to start a new one.")

    def __repr__(self) -> str:
        """Shows size, device and state of the world."""
        where = f", devices={list(self.devices)}" if self.devices else ""
        state = "closed" if self._closed else "open"
        return (
            f"<World of {self.world_size} {self.device} "
            f"rank{'s' if self.world_size > 1 else ''}{where}, {state}>"
        )


def _is_of_multiprocessing() -> bool:
    """Returns whether this is a child that multiprocessing has started, also without a copy of
    its parent's memory.
    """
    process: Any = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def open_world() -> Engine | None:
    """Returns the engine of the open world, or None."""
    world = _open.world
    if world is not None:
        world.settle()
    return _open.world


def snapshots_taken() -> int:
    """Returns the number of snapshots of worlds that this process has taken."""
    return _open.snapshots


def close_at_exit() -> None:
    """Closes the open world without fetching values that nothing will read; after Ctrl-C also
    without the call in flight.
    """
    settle()  # a future that has gone may have a warning
    world = _open.world
    if world is not None:
        interrupted = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
        world.close(at_exit=True, patient=not interrupted)


def world_to_start_again() -> Engine | None:
    """Returns the world that the next call would start again, or None."""
    return _open.ended


def world_to_close() -> Engine | None:
    """Returns the engine that `close()` ends: that of the open world, or the one that the next
    call would start again.
    """
    return _open.world or _open.ended


def _disown() -> None:
    _open.starters.clear()  # the thread is not in this process
    world, ended, _open.world, _open.ended = _open.world, _open.ended, None, None
    if world is not None or ended is not None:
        _open.is_parents, _open.reason = True, None
    if world is not None:
        world.disown()


atexit.register(close_at_exit)
os.register_at_fork(after_in_child=_disown)
