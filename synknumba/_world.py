"""The world: ranks forked from the coordinator, told what to do, watched, and joined.

    coordinator ──fork──> rank 0 … rank W−1            one process each
        │                    │
        ├── control block ───┤   shared memory and semaphores, inherited: doorbell, values, small results, arrivals
        ├── socketpair r ────┤   commands and descriptors out, news back; a closed end means the other has died
        ├── lifeline r ──────┤   a pipe that carries nothing: the kernel ends the rank when the coordinator's end closes
        │                    │
        └── waitpid          └── parent-death signal, parent's process id

What the coordinator writes: values, command, doorbell; commands on the sockets. What a rank writes: its results, its arrival,
news on its socket. A round is: ring, all ranks work, all arrive. Only one round is under way at a time.

While it waits, the coordinator looks after the ranks every 50 ms. A rank that has died ends the world: the others are killed
(they may be waiting for it inside a kernel or a collective, which nothing can interrupt), the processes are reaped, and the
call raises `RankDied`. Nothing that the user owns is in the ranks alone but `Variable`s, so `fork()` works again at once.
"""

import atexit
import collections
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

from synknumba import _channel, _rank_state, _shm, _spin
from synknumba._control import CROWDED, MESSAGE, ROOMY, ControlBlock
from synknumba._errors import ArgumentError, CallTimeout, DeviceError, RankDied, RankError, SynkError, WorldError
from synknumba._failure import CallInfo, cause_of, device_lost, rank_error, unreadable
from synknumba._messages import Attach, Command, Drop, Failed, Invitation, Invite, Join, News, Stop
from synknumba._processes import Processes
from synknumba._shm import Segment
from synknumba._types import DeviceKind, Transport
from synknumba.device import usable_cores

CLOSE_SECONDS = 2.0  # how long ranks may take to end when told to; then they are killed
DROP_SECONDS = 5.0  # how long a call waits for a drop in another thread; one takes some 50 µs
START_SECONDS = 120.0  # a CUDA context takes 2 s, many on one busy machine longer

_log = logging.getLogger("synknumba")

RankNews: TypeAlias = tuple[int, News, list[int]]  # rank, what it says, descriptors

_open: "list[World]" = []  # the open world, if any
_untold: list[SynkError] = []  # how it ended, if no call has said so
_last_end: list[str] = []  # why the last one was closed, if it was not the script that closed it


class World:
    """Forked ranks, one per device. Made by `fork()`; a context manager that closes itself.

    Attributes:
        world_size: number of ranks.
        device: "cuda" or "cpu".
        devices: the GPU of each rank; empty on the CPU.
        timeout: seconds that a call may take, or None.
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
    ) -> None:
        self.world_size = world_size
        self.device: DeviceKind = device
        self.devices = devices
        self.timeout = timeout
        self.transport: Transport = transport
        self._transport_is_free = transport_is_free  # whether it may be another than asked for
        self._joined = False
        self.traffic: Any = None  # what carries values and collectives, once there are any; the layers above make it
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._sequence = 0
        self._closed = False
        self._died: str | None = None
        self.shipped: set[int] = set()  # ids of the functions that the ranks have
        self._sent: dict[int, int] = {}  # segment id → the generation that the ranks have mapped
        self._at_close: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._drops = 0  # drops under way, or about to be
        self._unwanted: collections.deque[tuple[str, int]] = collections.deque()
        _shm.sweep_names()
        patience = CROWDED if world_size + 1 > usable_cores() else ROOMY
        self._spins = patience.pauses, patience.coordinator
        self.control = ControlBlock(world_size, patience)
        self._processes = Processes()
        self._unsubscribe = _shm.on_release(lambda segment: self.forget("segment", segment))
        try:
            self._processes.start(self.control, device, devices, profile=profile)
            self._await_ranks()
        except BaseException:
            self._kill()
            raise
        _untold.clear()
        _open.append(self)

    def _await_ranks(self) -> None:
        """Waits until every rank has its device; raises what went wrong on the first that has not."""
        deadline = time.monotonic() + START_SECONDS

        def watch() -> None:
            self._check_alive("starting")
            if time.monotonic() > deadline:
                message = f"the ranks did not start within {START_SECONDS:.0f} s; see what `nvidia-smi` and the system log say"
                raise WorldError(message)

        for rank, sock in enumerate(self._processes.sockets):
            try:
                (_, news), _ = _channel.receive(sock, watch)
            except EOFError:
                self._check_alive("starting", grace=1.0)
                raise
            if news is not None:
                assert isinstance(news, Failed)  # noqa: S101  # a rank that starts says None or why not
                message = f"rank {rank} could not open its {self.device} device: {news.type_name}: {news.message}"
                raise DeviceError(message) from cause_of(news)

    # ---- rounds

    def at_close(self, callback: "weakref.WeakMethod[Callable[[], None]]") -> None:
        """Has a method called when the world has ended, if its object still lives."""
        self._at_close.append(callback)

    def begin(self) -> None:
        """Takes the world for one call; what follows up to `end()` is one thread's alone.

        Raises:
            WorldError: the world is closed, or another thread's call is under way.
        """
        # A drop in another thread, which may be a garbage collection there, is not the user's call, and soon over.
        if not self._lock.acquire(False) and not (self._drops and self._lock.acquire(timeout=DROP_SECONDS)):
            message = (
                "a call is under way, in another thread or around this one; a world runs one call at a time. "
                "Make calls from one thread, or guard them with a lock."
            )
            raise WorldError(message)
        if self._closed:
            self._lock.release()
            raise self.closed_error()

    def end(self) -> None:
        """Gives the world back."""
        self._lock.release()
        if self._unwanted:
            self._drop_unwanted()

    def run(self, number: int, info: CallInfo, learn: Callable[[Sequence[RankNews]], None]) -> None:
        """Has every rank run a program. Between `begin` and `end`.

        Args:
            number: of the program.
            info: for messages.
            learn: takes in what ranks say that have not failed, also where another has: they say it only once.

        Raises:
            RankError: a Python exception on a rank.
            RankDied, CallTimeout: the world is closed and every rank ended.
        """
        self._sequence += 1
        try:
            code = _spin.call(self.control.base, self.world_size, self._sequence, number, *self._spins)
            if code != _spin.ALL_DONE:
                self._finish_round(code, info, learn)
        except SynkError:
            raise  # the round is over, or the world has ended
        except BaseException:
            self._break_off()
            raise

    def _break_off(self) -> None:
        """Ends the world in the middle of a round: Ctrl-C, or whatever else a signal handler raises.

        Ranks that are still at work would otherwise answer the next round with the results of this one.
        """
        self._kill("a call was interrupted")

    def _finish_round(self, code: int, info: CallInfo, learn: Callable[[Sequence[RankNews]], None]) -> None:
        """The rest of a round that was not over at once."""
        if code == -1:
            self.control.wake_ranks()
            code = _spin.await_all(self.control.base, self.world_size, *self._spins)
        watch = self._watch(info)
        while code == _spin.NOT_YET and not self.control.sleep_coordinator():
            watch()
        news = self._read_news(info, watch)
        learn([one for one in news if not isinstance(one[1], Failed)])
        failures = [(rank, item) for rank, item, _ in news if isinstance(item, Failed)]
        for rank, failed in failures:
            if failed.lost:
                self._end(device_lost(rank, failed, info))
        if failures:
            raise rank_error(info, failures)

    def _watch(self, info: CallInfo) -> Callable[[], None]:
        """What to do now and then while ranks work: raises when one has died, or the time is up."""
        deadline = None if self.timeout is None else time.monotonic() + self.timeout

        def watch() -> None:
            self._check_alive(str(info))
            if deadline is not None and time.monotonic() > deadline:
                self._give_up(info)

        return watch

    def _give_up(self, info: CallInfo) -> None:
        missing = ", ".join(map(str, self.control.missing(self._sequence)))
        self._kill(f"{info} took longer than timeout={self.timeout} s")
        message = (
            f"{info} took longer than timeout={self.timeout} s; still at work: rank {missing}. All ranks have "
            f"been ended; Data keep "
            "their contents. Call fork() again, with a larger timeout if the call needs it."
        )
        raise CallTimeout(message)

    def _read_news(self, info: CallInfo, watch: Callable[[], None]) -> list[RankNews]:
        out = []
        for rank in self.control.with_news():
            try:
                (_, item), descriptors = _channel.receive(self._processes.sockets[rank], watch)
            except WorldError:
                raise  # CallTimeout is an OSError too
            except (EOFError, OSError):
                self._check_alive(str(info), grace=1.0)
                raise
            except Exception as error:  # noqa: BLE001  # whatever a class of the user's raises when it is unpickled
                item, descriptors = unreadable(error), []
            out.append((rank, item, descriptors))
        return out

    def command(self, command: Command, descriptors: Sequence[int] = (), info: CallInfo | None = None) -> list[RankNews]:
        """Has every rank carry out a command. Between `begin` and `end`.

        Returns:
            What ranks say that have not failed.

        Raises:
            ArgumentError: the command holds something of the user's that cannot be pickled; nothing was sent.
        """
        answers: list[RankNews] = []
        info = info or CallInfo(type(command).__name__.lower())
        try:
            payload = _channel.pack(command)
        except Exception as error:
            message = f"{info}: what was passed cannot be sent to the ranks: {error}"
            raise ArgumentError(message) from error
        try:
            self._command(payload, descriptors, info, answers.extend)
        except SynkError:
            raise  # as in `run`
        except BaseException:
            self._break_off()
            raise
        return answers

    def _command(
        self,
        payload: bytes,
        descriptors: Sequence[int],
        info: CallInfo,
        learn: Callable[[Sequence[RankNews]], None],
    ) -> None:
        self._sequence += 1
        _spin.ring(self.control.base, self.world_size, self._sequence, MESSAGE)
        self.control.wake_ranks()
        watch = self._watch(info)
        try:
            for sock in self._processes.sockets:
                _channel.send(sock, payload, descriptors, watch)
        except WorldError:
            raise  # as in `_read_news`
        except OSError:
            self._check_alive(str(info), grace=1.0)
            raise
        self._finish_round(_spin.NOT_YET, info, learn)

    # ---- what the ranks hold

    def attach(self, segments: Sequence[Segment]) -> None:
        """Makes the ranks map these segments where they have not, or where they have grown since."""
        needed = [segment for segment in segments if self._sent.get(segment.id) != segment.generation]
        for start in range(0, len(needed), _channel.MAX_DESCRIPTORS):
            some = needed[start : start + _channel.MAX_DESCRIPTORS]
            self.command(Attach(tuple((s.id, s.size) for s in some)), [s.fd for s in some])
            self._sent.update((s.id, s.generation) for s in some)

    def forget(self, kind: str, number: int) -> None:
        """Notes that something is no longer wanted, and tells the ranks as soon as they are idle.

        May be called by the garbage collector at any time, so it raises nothing and waits for no lock.

        Args:
            kind: "segment", "program", "function" or "variable" (its memory).
            number: of it.
        """
        if self._closed or os.getpid() != self._owner:
            return
        if kind == "segment" and self._sent.pop(number, None) is None:
            return
        self._unwanted.append((kind, number))
        self._drop_unwanted()

    def _drop_unwanted(self) -> None:
        if self._closed or not self._unwanted:
            return
        self._drops += 1  # before the lock is taken, so that `begin` does not mistake this for a call
        try:
            self._drop_if_idle()
        finally:
            self._drops -= 1

    def _drop_if_idle(self) -> None:
        if not self._lock.acquire(False):
            return  # a round is under way: it looks here again when it ends
        try:
            if self._closed:
                return
            numbers: dict[str, list[int]] = {"segment": [], "program": [], "function": [], "variable": []}
            while self._unwanted:
                kind, number = self._unwanted.popleft()
                numbers[kind].append(number)
            self.command(Drop(*(tuple(numbers[kind]) for kind in ("segment", "program", "function", "variable"))))
        except SynkError as error:
            if self._closed:
                _untold[:] = [error]  # nobody is there to hear it: the next call says it
        finally:
            self._lock.release()

    def join(self) -> None:
        """Makes the transport ready, where it has to be set up. Between `begin` and `end`.

        Raises:
            DeviceError: "nccl" was asked for and cannot be set up.
        """
        if self._joined or self.transport != "nccl" or self.world_size == 1:
            return
        problem = self._join_nccl()
        if problem is None:
            self._joined = True
            return
        if not self._transport_is_free:
            message = f'transport="nccl" cannot be set up: {problem}. Use transport="auto" or "host".'
            raise DeviceError(message)
        self.transport = "host"
        _log.warning("collectives go over the host: NCCL cannot be set up: %s", problem)

    def _join_nccl(self) -> str | None:
        """Sets NCCL up on all ranks; says why not.

        Raises:
            CallTimeout: the ranks wait for each other for ever, as they do where it fails on one of them alone.
        """
        info = CallInfo("setting up NCCL")
        allowed, self.timeout = self.timeout, self.timeout or START_SECONDS
        try:
            told = [item for _, item, _ in self.command(Invite(), info=info) if isinstance(item, Invitation)]
            problems = [one.problem for one in told if one.problem is not None]
            if not problems:
                self.command(Join(next(one.unique_id for one in told if one.unique_id)), info=info)
        except RankError as error:
            return error.failures[0].message
        finally:
            self.timeout = allowed
        return problems[0] if problems else None

    # ---- looking after the ranks

    def _check_alive(self, doing: str, grace: float = 0.0) -> None:
        """Raises `RankDied` when a rank has ended, after ending the others."""
        how = self._processes.find_dead(grace)
        if how is not None:
            self._end(f"{how} during {doing}")

    def _end(self, reason: str) -> NoReturn:
        """Ends all ranks, and says why."""
        self._kill(reason)
        message = f"{reason}. All ranks have been ended; Data keep their contents. Call fork() to start again."
        raise RankDied(message)

    def _kill(self, reason: str | None = None) -> None:
        """Ends all ranks at once and closes the world."""
        self._died = reason
        self._processes.kill()
        self._release()

    def _release(self) -> None:
        self._closed = True
        self._unsubscribe()
        while self._at_close:
            callback = self._at_close.pop()()
            if callback is not None:
                callback()
        self.traffic = None
        self._processes.close()
        self.control.close()
        self._unwanted.clear()
        if self in _open:
            _open.remove(self)
            _last_end[:] = [self._died] if self._died else []

    def close(self) -> None:
        """Ends the ranks and frees what they hold. Idempotent; also called when the script ends."""
        if self._closed or os.getpid() != self._owner:
            return
        if not self._lock.acquire(timeout=0.0 if threading.current_thread() is threading.main_thread() else CLOSE_SECONDS):
            self._kill("the world was closed during a call")
            return
        try:
            self._stop()
        finally:
            self._lock.release()

    def _stop(self) -> None:
        """Tells the ranks to end and waits for them; kills those that do not."""
        try:
            self._sequence += 1
            _spin.ring(self.control.base, self.world_size, self._sequence, MESSAGE)
            self.control.wake_ranks()
            payload = _channel.pack(Stop())
            for sock in self._processes.sockets:
                _channel.send(sock, payload, (), self._no_patience)
            self._processes.join(CLOSE_SECONDS)
        except (OSError, TimeoutError):
            pass  # a rank is dead or stuck; it is killed below
        finally:
            self._kill()

    @staticmethod
    def _no_patience() -> None:
        raise TimeoutError

    # ---- state

    @property
    def closed(self) -> bool:
        """Whether the ranks have ended."""
        return self._closed

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


# ---- the one world of a process ------------------------------------------------------------------------------------------


def current_world() -> World:
    """The open world.

    Raises:
        WorldError: there is none, or this process is a rank.
    """
    if _open:
        return _open[0]
    rank = _rank_state.current_rank()
    if rank is not None:
        message = f"this is rank {rank}, and only the coordinator makes calls. Call the plain function here (f.py_func)."
        raise WorldError(message)
    raise_untold()
    if _last_end:
        message = f"there is no world any more: {_last_end[0]}. Call synknumba.fork() to start a new one."
    else:
        message = "there is no world: call synknumba.fork() first (it starts one process per GPU, or per CPU core)"
    raise WorldError(message)


def raise_untold() -> None:
    """Raises what ended the last world, if no call has done so yet."""
    if _untold:
        raise _untold.pop()


def open_world() -> World | None:
    """The open world, or None."""
    return _open[0] if _open else None


def close() -> None:
    """Closes the open world, if there is one."""
    if _open:
        _open[0].close()


atexit.register(close)
os.register_at_fork(after_in_child=_open.clear)  # a process that the script forks itself has no ranks
