"""Rounds: a command to all ranks and the wait for their answers, with the handling of failures,
deaths and timeouts.

    ring ──> ranks work ──> all have arrived ──> read news ──> show warnings ──> raise failures

Only one round is under way at a time; the thread that starts it holds the world. A round that
`ring` has started goes on while no thread holds the world, until the thread that takes it next
completes the round with `land` (`call_in_flight.py`).

While the coordinator waits, it checks the ranks every 50 ms. The death of a rank or a timeout ends
the world in the middle of the round. So does any other exception raised there, as by Ctrl-C: ranks
still at work would answer the next round with the results of this one.
"""

import contextlib
import math
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NoReturn, TypeAlias, final

from synknumba._device import StrandedError
from synknumba._errors import ArgumentError, CallTimeout, DeviceError, SynkError, WorldError
from synknumba._host.signals import is_of_handler
from synknumba._types import Array, DeviceKind
from synknumba._wire import channel, doorbell
from synknumba._wire import function_pickling as pickling
from synknumba._wire.control import MESSAGE, SLEEP_SECONDS, ControlBlock
from synknumba._wire.messages import Command, Failed, Install, Stop
from synknumba._wire.statistics import Tally
from synknumba._world.events import Events
from synknumba._world.failure import CallInfo, Death, cause_of, rank_error, whereabouts
from synknumba._world.machines import OtherMachines
from synknumba._world.news import NewsReader, RankNews
from synknumba._world.processes import Processes
from synknumba._world.watchdog import Watch, Watchdog

# counted at most between two looks, 50 ms apart; more, and the machine or the script was suspended
LOOK_SECONDS = 0.5
START_SECONDS = 120.0  # a CUDA context takes 2 s, many on one busy machine longer

Learn: TypeAlias = Callable[[Sequence[RankNews]], None]


@final
class _Rung:
    """The round that `Rounds.ring` has started.

    Attributes:
        number: number of its program.
        at: when it was started, by `time.monotonic`.
        counts_from: when its time limit began.
    """

    __slots__ = ("at", "counts_from", "number")

    def __init__(self) -> None:
        self.number = 0
        self.at = self.counts_from = 0.0


@final
class Rounds:
    """The rounds of one world.

    Args:
        control: control block of the world.
        processes: processes of the ranks.
        tally: counters to update.
        watchdog: checks the ranks during waits.
        timeout: time limit of a call in seconds.
        others: the ranks of other machines, whose rounds end with one line of the control block;
            None if there are none.

    Attributes:
        sequence: number of the last round.
        under_way: if true between two calls, a round was interrupted and the world not yet ended.
            False while the script goes on during a round that `ring` has started.
        in_flight: description of the round under way, once the compiled wait has ended.
        results: small results of the ranks, by line.
        events: while the world is traced; None otherwise.
        look: called with each check of the ranks, while a call shows how far they are.
    """

    def __init__(
        self,
        control: ControlBlock,
        processes: Processes,
        tally: Tally,
        watchdog: Watchdog,
        timeout: float = math.inf,
        others: OtherMachines | None = None,
    ) -> None:
        self.timeout = timeout
        self.look: Callable[[], None] | None = None
        self.sequence = 0
        self.under_way = False
        self.in_flight: CallInfo | None = None
        self.events: Events | None = None
        self.results = control.results
        self.watchdog = watchdog
        self.news = NewsReader(processes, watchdog, others)
        self._rung = _Rung()
        self._control = control
        self._base, self._lines = control.base, control.lines
        self._spins = control.patience.pauses, control.patience.coordinator
        self._others = others
        self._processes = processes
        self._tally = tally

    @property
    def values(self) -> Array:
        """Values of the control block, which calls pass to the ranks."""
        return self._control.values

    @property
    def doing(self) -> str:
        """What the world is doing, in words."""
        if self.in_flight is not None:
            return f"in {self.in_flight}"
        if self._control.missing(self.sequence):
            return "in a call that has just begun"
        return "between calls"

    def places(self) -> dict[int, str]:
        """Returns where the ranks at work are in a call of several parts; nothing otherwise."""
        info = self.in_flight
        if info is None or info.where is None:
            return {}
        return info.places(self.at_work())

    def at_work(self) -> list[int]:
        """Returns the ranks of this machine that have not answered the last round."""
        return self._processes.ranks_of(self._control.missing(self.sequence))

    # ---- the start

    def await_ranks(self, device: DeviceKind) -> None:
        """Waits until every rank has opened its device; raises the first error."""
        began = time.monotonic()
        info = CallInfo("starting", is_call=False)
        unheard = set(range(len(self._processes.sockets)))  # lines
        last_word = partial(self._hear_last_word, device, unheard)
        check = partial(self.watchdog.check, info, last_word=last_word)

        def watch() -> None:
            check()
            self._check_start(time.monotonic() - began, unheard)

        for line in range(len(self._processes.sockets)):
            try:
                self._listen(device, unheard, line, watch)
            except EOFError:
                check(grace=1.0)
                raise
        if self._others is not None:
            self.news.warned += self._others.await_start(watch)

    def _check_start(self, waited: float, unheard: Collection[int]) -> None:
        """Raises an error if ranks have taken too long to start."""
        if waited > self.timeout:
            stopped = self._stopped(unheard)
            if stopped:
                raise CallTimeout(
                    f"the ranks did not start within timeout={self.timeout} s: {stopped}"
                )
        if waited > START_SECONDS:
            why = self._stopped(unheard) or "see what `nvidia-smi` and the system log say"
            raise WorldError(f"the ranks did not start within {START_SECONDS:.0f} s: {why}")

    def _stopped(self, unheard: Collection[int]) -> str:
        """Names ranks that have not answered and never will, since a signal or a debugger has
        stopped them; "" if none is.
        """
        names = [
            f"rank {self._processes.first + line} (pid {self._processes.pids[line]})"
            for line in sorted(unheard)
            if self._processes.is_stopped(line)
        ]
        if not names:
            return ""
        return f"{', '.join(names)} stopped by SIGSTOP, its like, or a debugger"

    def _listen(self, device: DeviceKind, unheard: set[int], line: int, watch: Watch) -> None:
        """Receives a rank's answer to its start; raises the error if it failed: `DeviceError` if
        it has no device.
        """
        answer, _ = channel.receive(self._processes.sockets[line], watch)
        unheard.remove(line)
        self.news.warned += answer.warned
        if answer.news is not None:
            news = answer.news.open()
            assert isinstance(news, Failed)  # the answer to a start is None or Failed
            cause = cause_of(news)
            if isinstance(cause, WorldError):  # it came not so far as to open a device
                raise cause
            raise DeviceError(
                f"rank {answer.rank} could not open its {device} device: "
                f"{news.type_name}: {news.message}"
            ) from cause

    def _hear_last_word(self, device: DeviceKind, unheard: set[int], rank: int) -> None:
        """Raises the error that a dead rank has sent before its end, if the coordinator was
        still waiting for another rank.
        """
        line = rank - self._processes.first
        if line in unheard:
            with contextlib.suppress(EOFError, OSError):
                self._listen(device, unheard, line, _no_patience)

    # ---- rounds

    def run(self, number: int, info: CallInfo, learn: Learn) -> None:
        """Runs a program on every rank. Call between `Engine.begin` and `Engine.end`.

        Args:
            number: number of the program.
            info: description of the call for messages.
            learn: receives the news of the ranks that have not failed, even if others have: ranks
                send their news only once.

        Raises:
            RankError: a Python exception on a rank.
            RankDied: a rank has died. All ranks have been ended, and the world is closed.
            CallTimeout: the call took longer than `timeout`. All ranks have been ended, and the
                world is closed.
        """
        # first: an interrupt below may leave the sequence ahead of the ranks'
        self.under_way = True
        try:
            events = self.events
            if events is not None:
                events.names[number] = info
            self.sequence += 1
            code = doorbell.call(self._base, self._lines, self.sequence, number, *self._spins)
            if code == doorbell.ALL_DONE:
                self.under_way = False
                return
            began = self._control.began
            try:
                self._finish_round(code, info, learn)
            finally:
                self._tally.working += time.monotonic_ns() - began
                # also of rounds that fail, or end the world and with it the trace
                if events is not None:
                    events.add_round(self.sequence, number, began)
            self.under_way = False
        except BaseException as error:
            self._failed(error)
            raise
        if self.news.warned:
            self.news.show_warnings()

    def ring(self, number: int, info: CallInfo) -> None:
        """Starts a program on every rank, and returns while they work.

        Leaves `under_way` true. The caller sets it to false once it has noted that the round is to
        be completed by `land`, so that an interrupt before that ends the world.
        """
        self.under_way = True
        try:
            self.sequence += 1
            rung = self._rung
            rung.at = rung.counts_from = time.monotonic()
            rung.number = number
            if doorbell.ring(self._base, self._lines, self.sequence, number) != 0:
                self._control.wake_ranks()
            self.in_flight = info
        except BaseException as error:
            self._failed(error)
            raise

    def land(self, info: CallInfo, learn: Learn, seconds: float | None = None) -> bool:
        """Completes the round that `ring` has started; arguments and errors as for `run`.

        The time limit counts from `ring`, but is exceeded only once the ranks were seen at work
        here.

        Returns:
            False if the ranks need longer than `seconds`. They are still at work then, and
            `under_way` is true.
        """
        self.under_way = True
        try:
            if seconds is not None and not self._arrive_within(seconds, info):
                return False
            events = self.events
            try:
                code = doorbell.await_all(self._base, self._lines, *self._spins)
                if code != doorbell.ALL_DONE:
                    self._finish_round(code, info, learn, self._spent_in_flight())
            finally:
                number, rung_at = self._rung.number, self._rung.at
                self._tally.working += int((time.monotonic() - rung_at) * 1e9)
                if events is not None:
                    events.names[number] = info
                    events.add_round(self.sequence, number, int(rung_at * 1e9))
            self.in_flight = None
            self.under_way = False
        except BaseException as error:
            self._failed(error)
            raise
        if self.news.warned:
            self.news.show_warnings()
        return True

    def _arrive_within(self, seconds: float, info: CallInfo) -> bool:
        """Waits for at most `seconds` for all ranks to answer, and returns whether they have."""
        until = time.monotonic() + seconds
        watch = self.watch(info, self._spent_in_flight())
        while not self._control.all_arrived:
            remaining = until - time.monotonic()
            if remaining <= 0.0:
                watch()
                return self._control.all_arrived
            if not self._control.sleep_coordinator(min(remaining, SLEEP_SECONDS)):
                watch()
        return True

    @property
    def is_decided(self) -> bool:
        """Whether `land` would not wait: all ranks have answered the round, one has died, or the
        time limit is exceeded.
        """
        if self._control.all_arrived or self.watchdog.has_dead:
            return True
        return self._spent_in_flight() > self.timeout

    def _spent_in_flight(self) -> float:
        """Returns the seconds of the time limit that have passed since `ring`.

        The limit is not checked while a call is in flight, so one that has passed begins again if
        the ranks were stopped meanwhile.
        """
        spent = time.monotonic() - self._rung.counts_from
        if spent <= self.timeout or not self._processes.were_stopped():
            return spent
        self._rung.counts_from = time.monotonic()
        return 0.0

    def _failed(self, error: BaseException) -> None:
        """Ends the round in which an exception was raised, or the world if the round goes on."""
        if isinstance(error, SynkError):  # the round is over, or the world has ended
            self.under_way = False
            # the failure takes precedence over a warning raised as an error
            with contextlib.suppress(Warning):
                self.news.show_warnings()
        else:
            places = {}
            try:
                places = self.places()
            finally:  # even if Ctrl-C is pressed again
                self.break_off()
            for rank, place in places.items():
                error.add_note(f"rank {rank} was {place}")

    def break_off(self) -> None:
        """Ends the world in the middle of a round, after Ctrl-C or any other exception.

        Otherwise, ranks still at work would answer the next round with the results of this one.
        """
        self.kill("a call was interrupted")

    def _finish_round(self, code: int, info: CallInfo, learn: Learn, spent: float = 0.0) -> None:
        """Completes a round that did not end within the compiled wait, or that has news.

        Args:
            code: result of that wait.
            info: description of the call for messages.
            learn: as for `run`.
            spent: seconds of the time limit that have passed.
        """
        self.in_flight = info
        if code == -1:
            self._control.wake_ranks()
            code = doorbell.await_all(self._base, self._lines, *self._spins)
        watch = self.watch(info, spent)
        self.arrive(code, watch)
        lines = self._control.with_news(self.sequence)
        news = self.news.read(lines, info, watch) if lines else []
        self.in_flight = None
        learn([entry for entry in news if not isinstance(entry[1], Failed)])
        failures = [(rank, item) for rank, item, _ in news if isinstance(item, Failed)]
        if any(failed.lost for _, failed in failures):
            self._end_for_lost(failures, info)
        if failures:
            failed = [rank for rank, _ in failures]
            raise self.watchdog.located(rank_error(info, failures), failed)

    def arrive(self, code: int, watch: Watch) -> None:
        """Waits until all lines have answered, or one has lost its device."""
        while code == doorbell.NOT_YET and not self._control.sleep_coordinator():
            watch()
            if self._control.is_lost(self.sequence):  # others may wait for that device for ever
                break

    def _end_for_lost(self, failures: Sequence[tuple[int, Failed]], info: CallInfo) -> NoReturn:
        """Ends all ranks after the device of one has become useless, and raises `RankDied` with
        the first cause.
        """
        stranded = StrandedError.__qualname__
        rank, failed = min(
            failures, key=lambda entry: (entry[1].type_name == stranded, not entry[1].lost)
        )
        message = failed.message.strip().splitlines() or [""]
        what = f"{failed.type_name}: {message[0]}"
        if failed.lost:
            reason = f"the GPU of rank {rank} failed ({what})"
        else:
            waiting = ", ".join(str(number) for number, failure in failures if failure.lost)
            reason = f"rank {rank} failed ({what}), for which the GPU of rank {waiting} waits"
        pid = self._processes.pid_of(rank)
        self.watchdog.end(reason, Death(rank, pid, None), info)

    def watch(self, info: CallInfo, spent: float = 0.0) -> Watch:
        """Returns a check to call repeatedly while ranks work: it raises if a rank has died or
        the time limit is exceeded.
        """
        last = time.monotonic()

        def watch() -> None:
            nonlocal spent, last
            self.watchdog.check(info)
            now = time.monotonic()
            spent, last = spent + min(now - last, LOOK_SECONDS), now
            if spent > self.timeout:
                self._give_up(info)
            if self.look is not None:
                self.look()

        return watch

    def _give_up(self, info: CallInfo) -> NoReturn:
        """Ends all ranks, and raises `CallTimeout` with the stacks of those still awaited."""
        # If all ranks have arrived, one of them has not sent its news.
        lines = self._control.missing(self.sequence) or self._control.with_news(self.sequence)
        missing = self._processes.ranks_of(lines)
        places, stacks = self.places(), self._processes.where(missing)
        if self._others is not None and self._others.line in lines:
            stacks |= self._others.where()
            missing += [rank for rank in stacks if rank not in missing]
        self.kill(f"{info} took longer than timeout={self.timeout} s")
        way_out = "Call fork() again, with a larger timeout"
        if self.watchdog.starts_again:
            way_out = "The next call starts them again; set world.timeout to a larger one"
        error = CallTimeout(
            f"{info} took longer than timeout={self.timeout} s; still working: rank "
            f"{', '.join(map(str, missing))}. All ranks have been terminated; every Data keeps its "
            f"contents. {way_out} if the call needs it.\n{whereabouts(stacks, places)}",
            stacks=stacks,
        )
        raise self.watchdog.located(error, missing)

    # ---- messages

    def command(
        self, command: Command, descriptors: Sequence[int] = (), info: CallInfo | None = None
    ) -> list[RankNews]:
        """Executes a command on every rank; returns the ranks' news. Call and errors as for `run`.

        Raises:
            ArgumentError: the command contains an object of the user that cannot be pickled;
                nothing was sent.
        """
        answers: list[RankNews] = []
        info = info or CallInfo(type(command).__name__.lower())
        try:
            payload = pickling.dump(command)
        except (Exception, SystemExit) as error:
            if is_of_handler(error):
                raise
            raise ArgumentError(
                f"{info}: the arguments cannot be sent to the ranks: {error}"
            ) from error
        began = time.monotonic_ns()
        self.under_way = True
        try:
            self._send(command, payload, descriptors, info)
            self._finish_round(doorbell.NOT_YET, info, answers.extend)
            self.under_way = False
        except BaseException as error:
            self._failed(error)
            raise
        finally:
            self._tally.preparing += time.monotonic_ns() - began
            if self.events is not None:
                self.events.add_message(type(command).__name__.lower(), began, len(payload))
        self._tally.plans += isinstance(command, Install) and command.program is not None
        if self.news.warned:
            self.news.show_warnings()
        return answers

    def _ring_for_message(self) -> None:
        self.sequence += 1
        doorbell.ring(self._base, self._lines, self.sequence, MESSAGE)
        self._control.wake_ranks()

    def _send(
        self, command: Command, payload: bytes, descriptors: Sequence[int], info: CallInfo
    ) -> None:
        """Starts a round with a command, which has been pickled."""
        watch = self.watch(info)
        self.send(payload, descriptors, info, watch)
        if self._others is not None:
            self._others.send(command, payload, descriptors, watch)

    def send(
        self, payload: bytes, descriptors: Sequence[int], info: CallInfo, watch: Watch
    ) -> None:
        """Starts a round with a pickled command for the ranks of this machine."""
        self._ring_for_message()
        try:
            for sock in self._processes.sockets:
                channel.send(sock, payload, descriptors, watch)
        except WorldError:
            raise  # as in `NewsReader.receive`
        except (OSError, ValueError):  # ValueError: the socket has been closed meanwhile
            self.watchdog.check(info, grace=1.0)
            raise

    # ---- the end

    def kill(self, reason: str | None = None) -> None:
        """Kills all ranks and ends the world; see `Watchdog.kill`."""
        try:
            self.watchdog.kill(reason)
        finally:  # a signal that waited may raise once it is done
            if self.watchdog.is_over:
                self.under_way = False

    def disown(self) -> None:
        """Resets the state in a child that the script has forked, perhaps during a call, as if
        the world had ended.
        """
        self.under_way = False  # else the next call would end the world
        self.in_flight = None
        self.watchdog.disown()

    def stop(self, seconds: float) -> None:
        """Stops the ranks: sends `Stop`, waits for up to `seconds`, and kills the rest."""
        self.under_way = True
        try:
            self._ring_for_message()
            payload = channel.pack(Stop())
            for sock in self._processes.sockets:
                channel.send(sock, payload, (), _no_patience)
            if self._others is not None:
                self._others.send(Stop(), payload, (), _no_patience)
            self._processes.join(seconds)
        except (OSError, TimeoutError):
            pass  # a rank is dead or stuck; it is killed below
        finally:
            self.kill()


def _no_patience() -> None:
    raise TimeoutError
