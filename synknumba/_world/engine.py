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
(`Engine.start_again`), and the world begins another `Life`.

    open_world.py      which world this process has open, and which call has it
    engine.py          a world: its calls take it, it begins and ends lives
    life.py            what is made with the ranks, and ends with them
    call_in_flight.py  the call on which the ranks work while the script goes on
    rounds.py          commands to all ranks, and their answers (read by news.py)
    watchdog.py        checks of the ranks during waits, and their end after a failure

Scripts have a `World` (`world.py`), which passes on to the engine what users may ask for.
"""  # noqa: E501

import contextlib
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from types import FrameType
from typing import Any, NoReturn, TextIO, final

from synknumba import _tracing as tracing
from synknumba._device import TRAITS
from synknumba._errors import SynkError, WorldError
from synknumba._host import segment as segment_module
from synknumba._host.deaths import noted, settle
from synknumba._host.log import log
from synknumba._host.segment import Segment
from synknumba._host.signals import in_main_thread
from synknumba._ops.rows import Partition
from synknumba._types import Array, DeviceKind, Transport, count_text
from synknumba._wire.messages import Command, Measure, Measured, Rate, Rated, Trace, Traced
from synknumba._wire.statistics import Statistics, Tally, own_memory
from synknumba._world import machines as machines_module
from synknumba._world.call_in_flight import Flight, lock_limit, remaining
from synknumba._world.events import Events
from synknumba._world.failure import CallInfo, calling, whereabouts
from synknumba._world.holdings import Kind
from synknumba._world.life import Life, Setup, Visitor
from synknumba._world.limits import as_timeout
from synknumba._world.machines import OtherMachines
from synknumba._world.news import RankNews
from synknumba._world.open_world import CURRENT, DROP_SECONDS, WorldLock
from synknumba._world.open_world import current_frame as _frame

# for which ranks measure how fast they are: some tens of time slices of a shared core
RATE_SECONDS = 0.2
CLOSE_SECONDS = 2.0  # time for ranks to end on request, before they are killed
FETCH_SECONDS = 60.0  # time for ranks on GPUs to send the values of variables before they end

_FREEING = CallInfo("freeing memory", is_call=False)


@final
class Engine:
    """The ranks: forked processes, one per device. `fork()` returns a `World` over it.

    The thread that holds `_lock` makes calls, and begins and ends lives. `_looking` is held to read
    the control block, which another thread may free, and to replace or free it.

    Attributes:
        world_size: number of ranks.
        setup: what `fork()` has decided of the ranks.
        others: the ranks of other machines; None for one machine.
        traits: properties of the ranks' devices.
        partition: partition of rows into ranks, in calls and in `scatter`.
        tally: counters for `statistics`.
        life: what the ranks have and how they are reached, from their start to their end.
        ranks: the life's rounds: values, results, `run` and `command`.
        run: `Rounds.run`: runs a program on every rank.
        judged: name of the sequence whose until= is asked.
        holdings: what the ranks have of the script, and may free.
        handle: the script's `World`, if it still has one. Not strong: an engine is freed without a
            garbage collection.
    """

    __slots__ = (  # so that a misspelt attribute is refused
        "__weakref__",
        "_lock",
        "_looking",
        "_owner",
        "_respawn",
        "handle",
        "holdings",
        "judged",
        "life",
        "others",
        "partition",
        "ranks",
        "run",
        "setup",
        "tally",
        "traits",
        "world_size",
    )

    def __init__(self, setup: Setup, *, timeout: float | None = None) -> None:
        self.setup = setup
        self.world_size = setup.world_size
        self.partition = Partition.even(setup.world_size)
        self.others: OtherMachines | None = None
        self.traits = TRAITS[setup.device]
        if len(setup.edges) > 2:
            self.others = machines_module.current[0]
            # The coordinator does not share memory with ranks of other machines, as if all were on
            # GPUs.
            self.traits = replace(self.traits, shares_memory=False)
        self.judged = ""
        self.handle: weakref.ref[Any] | None = None
        self.tally = Tally(opened=time.monotonic_ns())
        self._owner = os.getpid()
        self._lock = WorldLock()
        self._looking = threading.RLock()
        # checks, before the ranks are started again, that they can be
        self._respawn: Callable[[], None] | None = None
        self._start(None, _limit(timeout))

    # ---- lives

    def _start(self, before: Life | None, timeout: float) -> None:
        """Starts the ranks, for the first time or again after the life `before`."""
        began = time.monotonic_ns()
        life = Life(
            self.setup,
            self.others,
            self.tally,
            timeout,
            weakref.WeakMethod(self._release),
            keeps_snapshots=before is not None and before.keeps_snapshots,
        )
        life.ranks.watchdog.starts_again = self._respawn is not None
        with self._looking:
            if before is not None and before.ending.counts is not None:
                self.tally.go_on(
                    before.ranks.sequence,
                    before.ending.counts.worked,
                    before.processes.forwarder.dropped,
                    before.ending.counts.network,
                )
            self.life, self.ranks, self.holdings = life, life.ranks, life.holdings
        self.run = life.ranks.run
        try:
            life.start(self.setup, self.others)
            # Subscriptions keep the world alive, so they come last. A world whose start and end
            # were both interrupted by Ctrl-C must be found by `close()`, or be garbage-collected,
            # which kills its ranks (`Processes.__del__`).
            CURRENT.opens(self)
            life.subscriptions.callback(
                segment_module.on_release(lambda segment: self.forget("segment", segment))
            )
            life.subscriptions.callback(segment_module.before_making(self._drop_unwanted))
        except BaseException:
            life.ranks.kill()
            raise
        took = time.monotonic_ns() - began
        self.tally.starting += took
        pids = list(life.processes.pids)
        log.info("%s has started in %.2f s: processes %s", repr(self), took / 1e9, pids)
        if CURRENT.when_started is not None:
            CURRENT.when_started(self)

    def respawn_after(self, check: Callable[[], None]) -> None:
        """Lets the next call start the ranks again after a failure, if `check` does not raise."""
        self._respawn = check
        self.ranks.watchdog.starts_again = True

    def start_again(self) -> None:
        """Starts the ranks after a failure; if that fails, the next call tries again."""
        # The call that the failure broke off notes what it may have written, in its thread, before
        # it gives the world back.
        if not self._lock.take(_frame(), DROP_SECONDS):
            raise WorldError(
                "the world is started again after the call in progress; call "
                "again when that has ended"
            )
        reason = self.life.ending.reason
        log.info("the ranks are started again, which had ended: %s", reason)
        try:
            if self._respawn is not None:
                self._respawn()
            self._start(self.life, self.ranks.timeout)
        except BaseException:
            if CURRENT.world is not self:
                self.life.ending.reason, CURRENT.ended = reason, self
            raise
        finally:
            self._lock.give_back()

    def _release(self, reason: str | None) -> None:
        """Frees the coordinator's resources for the ranks, after the ranks have ended."""
        life = self.life
        life.ending.reason = reason
        self._hand_over_trace(reason)
        with self._looking:
            if life.ending.counts is None:
                life.ending.counts = life.count()
                self.tally.closed = time.monotonic_ns()
            life.closed = True
        life.flights.fail()
        life.free()
        is_failure = reason is not None and not life.ending.is_requested
        starts_again = is_failure and self._respawn is not None
        CURRENT.ends(self, reason, life.ending.requested, starts_again=starts_again)
        log.info("%s has ended: %s", repr(self), reason or "the script has closed it")

    # ---- calls

    def at_close(self, visitor: Visitor) -> None:
        """Registers an object whose `_leave` is called at the world's end, if it is still alive."""
        self.life.visitors[visitor] = None

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
        call = call or _frame(1)
        if not self._lock.take(call) and not self._lock.take_late(call):
            self._refuse_call()
        life, ranks = self.life, self.ranks
        if ranks.under_way:
            ranks.break_off()
        if life.flights.current is not None:
            self._land_first(life.flights.current)
        if life.closed:
            self._lock.give_back()
            raise self.closed_error()
        if self.holdings.unwanted:
            try:
                self._drop_now()
            except BaseException:
                self._lock.give_back()
                raise
        if ranks.events is not None:
            ranks.events.began = time.monotonic_ns()

    def _refuse_call(self) -> NoReturn:
        """Raises the error for a call while another one has the world."""
        tracing.refuse(f"{calling().function}()")
        if self.judged and self._lock.is_mine():
            raise WorldError(
                f"until= of {self.judged} is judged between the rounds of its call, and cannot "
                "make calls or read variables. It gets what the body returns, so return what "
                f"it looks at; or call {self.judged} with times= in a loop of the script"
            )
        raise WorldError(
            "another call is in progress, in another thread or around this one; a world runs "
            "one call at a time. Make calls from one thread, or guard them with a lock."
        )

    def end(self) -> None:
        """Releases the world, and sends the frees queued during the call."""
        if self.ranks.events is not None:
            self.ranks.events.call_ends(self.tally.scattered_bytes)
        self._lock.give_back()
        if noted or self.holdings.unwanted:
            self._drop_unwanted()

    # ---- the call in flight

    def launch(self, flight: Flight, number: int) -> None:
        """Starts a program on every rank for a call in flight; between `begin` and `end`."""
        self.life.flights.launch(flight, number)

    def await_flight(self, flight: Flight, seconds: float | None) -> None:
        """Waits for at most `seconds` for a call in flight, whose outcome is then in `flight`.

        Raises:
            WorldError: this thread is in another call, around this one.
        """
        began, thread = time.monotonic(), threading.get_ident()
        self._lock.awaiting.add(thread)  # before taking the lock, as for drops
        try:
            if not self._lock.take(_frame(), lock_limit(seconds)):
                if self._lock.is_mine():
                    raise WorldError(
                        f"result() of {flight.info} was asked for in the middle of "
                        f"another call; ask after it"
                    )
                return  # another thread had the world for so long
            self._await_held(flight, remaining(seconds, began))
        finally:
            self._lock.awaiting.discard(thread)

    def go_on(self, flight: Flight) -> None:
        """Completes a round of a call in flight that has landed, and starts the next, unless
        another call has the world.
        """
        if self._lock.take(_frame()):
            self._await_held(flight, 0.0)

    def _await_held(self, flight: Flight, seconds: float | None) -> None:
        """Waits for at most `seconds` for a call in flight, and gives back the taken world."""
        try:
            if self.ranks.under_way:
                self.ranks.break_off()
            if self.life.flights.current is flight:
                self.life.flights.land(seconds)
            elif not flight.over:  # it was interrupted, and the round has ended meanwhile
                flight.interrupt()
        finally:
            self.end()

    def has_landed(self, flight: Flight) -> bool:
        """Returns whether `await_flight` would not wait for the ranks' present round."""
        with self._looking:
            if self.life.flights.current is flight:
                return self.life.closed or self.ranks.is_decided
        # else the thread that has the world completes it
        return flight.over or self._lock.call is None

    def _land_first(self, flight: Flight) -> None:
        """Completes the call in flight before another one; raises its error if the world ended."""
        try:
            self.life.flights.land()
            if self.life.closed:
                flight.raise_error()
            flight.warn_if_dropped()
        except BaseException:
            self._lock.give_back()
            raise

    # ---- objects on the ranks

    def command(
        self, command: Command, descriptors: Sequence[int] = (), info: CallInfo | None = None
    ) -> list[RankNews]:
        """Executes a command on every rank, and returns their news; see `Rounds.command`."""
        return self.ranks.command(command, descriptors, info)

    def attach(self, segments: Sequence[Segment], info: CallInfo | None = None) -> None:
        """Maps segments on the ranks, unless they are mapped already and have not grown since.

        Args:
            segments: those that a call needs.
            info: description of the call for messages; default: the name of the function that the
                script has called.
        """
        for command, descriptors in self.holdings.missing(segments):
            self.command(command, descriptors, info or calling())

    def forget(self, kind: Kind, number: int) -> None:
        """Notes an object that the ranks are to free: with the next call, or before the next
        segment is made.
        """
        if self._has_ranks:
            self.holdings.forget(kind, number)

    def _drop_unwanted(self) -> None:
        """Frees noted objects on the ranks, unless a call in progress does so at its end."""
        if noted:
            settle()
        if not self._has_ranks or not self.holdings.unwanted:
            return
        self._lock.drops += 1  # before taking the lock, so that no call mistakes this for a call
        try:
            self._drop_if_idle()
        finally:
            self._lock.drops -= 1

    def _drop_if_idle(self) -> None:
        if not self._lock.take(_frame()):
            return  # a call is in progress; `end` sends the drop
        try:
            if self._is_idle and not self.life.closed:
                self._drop_now()
        except SynkError as error:
            if self.life.closed:
                CURRENT.pending_error = error
        finally:
            self._lock.give_back()

    def _drop_now(self) -> None:
        self.command(self.holdings.drop(), info=_FREEING)

    # ---- how far ranks are

    @contextmanager
    def showing(self, look: Callable[[], None]) -> Iterator[None]:
        """Context in which the coordinator calls `look` every 50 ms while it waits for ranks."""
        self.ranks.look = look
        try:
            yield
        finally:
            self.ranks.look = None

    def at_work(self) -> set[int]:
        """Returns the ranks of this machine that have not answered the last round."""
        return set(self.ranks.at_work())

    @property
    def slices_done(self) -> Array:
        """Slices that the ranks of this machine, which write them, have done of a call: int64."""
        return self.life.control.slices[: self.setup.edges[1]]

    # ---- traces

    def trace(self, records: int, ended: Callable[[Events], None]) -> None:
        """Traces the world until `end_trace` or its end; `ended` then gets the recording."""
        is_starting = CURRENT.is_starting
        if not is_starting:
            self.begin()
        try:
            self.command(Trace(records))
            events = self.ranks.events = Events(records, self.tally.scattered_bytes, ended)
            self.life.control.set_ring_of_rounds(events.ring.address)
        finally:
            if not is_starting:
                self.end()

    def end_trace(self) -> None:
        """Ends the trace of the world, if it is traced."""
        if self.ranks.events is None or not self._has_ranks:
            return
        self.begin()
        try:
            self._collect_trace()
        finally:
            self.end()

    def _collect_trace(self) -> None:
        """Gets the ranks' records, and hands them over; the world is held."""
        events = self.ranks.events
        if events is None:
            return
        try:
            news = self.command(Trace(0))
            events.ranks = {rank: item for rank, item, _ in news if isinstance(item, Traced)}
        finally:
            self._hand_over_trace(None)

    def _hand_over_trace(self, reason: str | None) -> None:
        events, self.ranks.events = self.ranks.events, None
        if events is not None:
            self.life.control.set_ring_of_rounds(0)
            events.hand_over(reason, self.tally.scattered_bytes)

    # ---- the end

    def snapshot(self) -> None:
        """Keeps the values of all variables on the ranks; see `World.snapshot`."""
        if CURRENT.ended is self:
            CURRENT.current()
        self.begin()
        try:
            residents = self.life.residents
            snapshots = [(resident, resident.take_snapshot(self)) for resident in residents]
            CURRENT.snapshots += 1
            self.life.keeps_snapshots = True
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
        if CURRENT.ended is self and not self.is_inherited:
            CURRENT.await_start()
            CURRENT.ended = None
        if not self._has_ranks:
            return
        life = self.life
        life.ending.is_requested, life.ending.requested = True, how
        try:
            seconds = 0.0 if in_main_thread() else CLOSE_SECONDS
            if not self._lock.take(_frame(), seconds):
                self.ranks.kill("the world was closed during a call")
                return
            try:
                self._close_now(at_exit=at_exit, patient=patient)
            finally:
                self._lock.give_back()
        finally:
            life.ending.is_requested = False

    def _close_now(self, *, at_exit: bool, patient: bool) -> None:
        """Ends the ranks, while the world is held."""
        try:
            if patient and not self.ranks.under_way:
                self.life.flights.land_last(at_exit=at_exit)
        finally:
            self._end_ranks(at_exit=at_exit)

    def _end_ranks(self, *, at_exit: bool) -> None:
        life = self.life
        if life.closed:
            return
        if life.flights.current is not None:
            self.ranks.kill()
            return
        if not self.ranks.under_way:
            if not at_exit and not self.traits.shares_memory:
                self._keep_residents()
            # the script asks for the end of the world, not for this
            with contextlib.suppress(SynkError):
                self._collect_trace()
        if not life.closed:
            self.ranks.stop(CLOSE_SECONDS)

    def _keep_residents(self) -> None:
        """Fetches the values of variables from GPUs."""
        timeout = self.ranks.timeout
        self.ranks.timeout = min(timeout, FETCH_SECONDS)
        try:
            for resident in self.life.residents:
                resident.keep_at_close(self)
        except (SynkError, MemoryError) as error:
            self.life.ending.not_kept = str(error).splitlines()[0]
        finally:
            self.ranks.timeout = timeout

    def settle(self) -> None:
        """Ends the world if a round was interrupted by two Ctrl-C so close together that the
        first could not end it.
        """
        if self.ranks.under_way and self._lock.take(_frame()):
            try:
                self.ranks.break_off()
            finally:
                self._lock.give_back()

    def disown(self) -> None:
        """Marks the world as closed in a child of the script, and leaves the ranks alone."""
        why = "it belongs to the process from which this one was forked"
        self.life.closed, self.life.ending.reason = True, why
        self.life.flights.lose(why)
        self.ranks.disown()

    # ---- diagnosis

    def statistics(self) -> Statistics:
        """Returns counts, times and memory; see `World.statistics`."""
        self._check_owner()
        self._drop_unwanted()
        devices = self._measure_devices()
        held = tuple(device.held for device in devices)
        free = tuple(device.free for device in devices)
        ranks = own_memory(self.life.processes.pids)
        life = self.life
        with self._looking:
            counts = life.ending.counts or life.count(ranks, held, free)
        dropped = life.processes.forwarder.dropped
        return self.tally.told(
            life.ranks.sequence, counts.worked, counts.memory, dropped, counts.network
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
        if self.traits.shares_memory or self.ranks.under_way or not self._lock.take(_frame()):
            return nothing
        try:
            if self.life.closed or self.life.flights.current is not None:
                return nothing
            news = self.command(Measure(), info=CallInfo("statistics"))
            return [item for _, item, _ in news if isinstance(item, Measured)] or nothing
        finally:
            self._lock.give_back()

    def dump(self, file: TextIO | None = None) -> None:
        """Prints the stack of every rank; see `World.dump`."""
        self._check_owner()
        stacks = dict.fromkeys(range(self.world_size), "  has ended")
        stacks |= self.life.processes.where(stacks)
        if self.others is not None and not self.life.closed:
            stacks |= self.others.where()
        with self._looking:
            if self.life.closed:
                raise self.closed_error()
            doing, places = f"{self!r}, {self.ranks.doing}", self.ranks.places()
        out = sys.stderr if file is None else file
        if out is not None:  # the script's stderr may be closed
            out.write(f"{doing}\n{whereabouts(stacks, places)}\n")

    def _check_owner(self) -> None:
        if self.is_inherited:
            self.disown()
            raise self.closed_error()

    # ---- state

    @property
    def device(self) -> DeviceKind:
        """Kind of device, "cuda" or "cpu"."""
        return self.setup.device

    @property
    def devices(self) -> tuple[int, ...]:
        """GPU index of each rank; empty on the CPU."""
        return self.setup.devices

    @property
    def transport(self) -> Transport:
        """Transport of collectives, "nccl" or "host"."""
        return self.life.transport

    @property
    def machines(self) -> tuple[tuple[str, int, int], ...]:
        """Name, first rank and end of the ranks of each machine; empty for one machine."""
        if self.others is None:
            return ()
        edges = self.setup.edges
        return tuple(zip(self.others.hosts, edges[:-1], edges[1:], strict=True))

    @property
    def spans_machines(self) -> bool:
        """Whether ranks are on several machines, so that they do not all reach the same memory."""
        return self.others is not None

    @property
    def mirrors_variables(self) -> bool:
        """Whether variables lie in memory shared by a machine's ranks, out of reach of others."""
        return self.others is not None and TRAITS[self.device].shares_memory

    @property
    def _has_ranks(self) -> bool:
        """Whether the world is open, in the process that opened it."""
        return not self.life.closed and not self.is_inherited

    @property
    def _is_idle(self) -> bool:
        """Whether no round is under way, and no call in flight."""
        return not self.ranks.under_way and self.life.flights.current is None

    @property
    def is_broken(self) -> bool:
        """Whether a failure has ended the world, or is about to."""
        return self.life.closed or self.ranks.under_way

    @property
    def closed(self) -> bool:
        """Whether the ranks have ended, or belong to another process."""
        return self.life.closed

    @property
    def is_inherited(self) -> bool:
        """Whether the world belongs to the process from which this one was forked."""
        return os.getpid() != self._owner

    @property
    def timeout(self) -> float | None:
        """Time limit of a call in seconds; None for no limit."""
        if self.ranks.timeout == math.inf:
            return None
        return self.ranks.timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self.ranks.timeout = _limit(as_timeout(seconds))

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the ranks; () if they have ended, or belong to another process."""
        pids = tuple(self.life.processes.pids)  # of this machine
        # never 0, which signals the whole process group
        return () if self.life.closed or not all(pids) else pids

    @property
    def end_reason(self) -> str | None:
        """Why the world ended; None while it is open, or if the script closed it."""
        return self.life.ending.reason

    @property
    def work(self) -> str | None:
        """Description of the call on which the ranks work; None without one, or at its begin."""
        flight, info = self.life.flights.current, self.ranks.in_flight
        if flight is not None:
            return str(flight.info)
        return None if info is None or self.life.closed else str(info)

    def closed_error(self) -> WorldError:
        """Returns the error for a call of a closed world."""
        reason = ""
        if self.life.ending.reason:
            reason = f": {self.life.ending.reason}"
        elif self.life.ending.requested:
            reason = f": it was closed {self.life.ending.requested}"
        if CURRENT.ended is self:
            return WorldError(
                f"the ranks of this world have ended{reason}. Call again: the "
                f"next call starts them again."
            )
        return WorldError(f"this world is closed{reason}. Call fork() to start a new one.")

    def __repr__(self) -> str:
        """Shows size, device and state of the world."""
        where = f", devices={list(self.devices)}" if self.devices else ""
        state = "closed" if self.life.closed else "open"
        ranks = count_text(self.world_size, f"{self.device} rank")
        return f"<World of {ranks}{where}, {state}>"


def _limit(timeout: float | None) -> float:
    return math.inf if timeout is None else timeout
