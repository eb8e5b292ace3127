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
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import NoReturn, TypeAlias, final

from synknumba._device import StrandedError
from synknumba._errors import ArgumentError, CallTimeout, DeviceError, SynkError, WorldError
from synknumba._host.signals import held_signals, is_of_handler
from synknumba._types import DeviceKind
from synknumba._wire import channel, doorbell
from synknumba._wire import function_pickling as pickling
from synknumba._wire.control import MESSAGE, SLEEP_SECONDS, ControlBlock
from synknumba._wire.messages import Answer, Command, Failed, Install, News, Parcel, Stop, Warned
from synknumba._wire.rank_warnings import show
from synknumba._wire.statistics import Tally
from synknumba._world.events import Events
from synknumba._world.failure import (
    JOB_IS_OVER,
    CallInfo,
    Death,
    cause_of,
    rank_died,
    rank_error,
    whereabouts,
)
from synknumba._world.machines import OtherMachines
from synknumba._world.processes import Processes

END_SECONDS = 20.0  # wait for another thread that is ending the ranks and freeing their resources
# counted at most between two looks, 50 ms apart; more, and the machine or the script was suspended
LOOK_SECONDS = 0.5
START_SECONDS = 120.0  # a CUDA context takes 2 s, many on one busy machine longer

_ELSEWHERE = CallInfo("a call")

RankNews: TypeAlias = tuple[int, News, list[int]]  # rank, its news, descriptors
Learn: TypeAlias = Callable[[Sequence[RankNews]], None]
# weakly refers to what is called with the reason when the ranks have been ended
Ended: TypeAlias = Callable[[], Callable[[str | None], None] | None]


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
class _Ending:
    """The end of the ranks, which threads may ask for at the same time.

    Attributes:
        has_begun: set before the ranks are killed: their deaths are then no errors.
        is_over: set once their resources are freed.
        lock: held by the thread that kills them.
    """

    __slots__ = ("has_begun", "is_over", "lock")

    def __init__(self) -> None:
        self.has_begun = False
        self.is_over = threading.Event()
        self.lock = threading.Lock()


class Rounds:
    """The rounds of one world.

    Args:
        control: control block of the world.
        processes: processes of the ranks.
        tally: counters to update.
        timeout: time limit of a call in seconds; None for no limit.
        ended: called with the reason when the ranks have been ended; the reason is None if the
            script closed the world.
        others: the ranks of other machines, whose rounds end with one line of the control block;
            None if there are none.
    """

    def __init__(
        self,
        control: ControlBlock,
        processes: Processes,
        tally: Tally,
        timeout: float | None,
        ended: Ended,
        others: OtherMachines | None = None,
    ) -> None:
        self.sequence = 0  # number of the last round
        self.timeout = timeout
        self.in_flight: CallInfo | None = (
            None  # description of the round under way, once the compiled wait has ended
        )
        # If true between two calls, a round was interrupted and the world not yet ended. False
        # while the script goes on during a round that `ring` has started.
        self.under_way = False
        self._rung = _Rung()
        self.look: Callable[[], None] | None = (
            None  # called with each look at the ranks, while a call shows how far they are
        )
        self.events: Events | None = None  # while the world is traced
        self.starts_again = (
            False  # whether the next call starts the ranks again after a failure; for messages
        )
        self._ending = _Ending()
        self._control = control
        self.values, self.results = control.values, control.results
        self._base, self._lines = control.base, control.lines
        self._others = others
        self._spins = control.patience.pauses, control.patience.coordinator
        self._processes = processes
        self._tally = tally
        self._ended = ended
        self._warned: list[Warned] = []  # warnings of the ranks, not shown yet

    @property
    def doing(self) -> str:
        """What the world is doing, in words."""
        if self.in_flight is not None:
            return f"in {self.in_flight}"
        return (
            "in a call that has just begun"
            if self._control.missing(self.sequence)
            else "between calls"
        )

    def places(self) -> dict[int, str]:
        """Returns where the ranks at work are in a call of several parts; nothing otherwise."""
        info = self.in_flight
        if info is None or info.where is None:
            return {}
        return info.places(
            rank
            for rank in map(self._rank, self._control.missing(self.sequence))
            if rank is not None
        )

    def at_work(self) -> set[int]:
        """Returns the ranks of this machine that have not answered the last round."""
        lines = self._control.missing(self.sequence)
        return {
            self._processes.first + line
            for line in lines
            if self._others is None or line != self._others.line
        }

    def _rank(self, line: int) -> int | None:
        """Returns the rank with a line of the control block; None for that of other machines."""
        return (
            None
            if self._others is not None and line == self._others.line
            else self._processes.first + line
        )

    def await_ranks(self, device: DeviceKind) -> None:
        """Waits until every rank has opened its device; raises the first error."""
        began = time.monotonic()
        info = CallInfo("starting", is_call=False)
        unheard = set(range(len(self._processes.sockets)))  # lines
        check_alive = partial(
            self._check_alive, info, last_word=partial(self._hear_last_word, device, unheard)
        )

        def watch() -> None:
            check_alive()
            waited = time.monotonic() - began
            if (
                self.timeout is not None
                and waited > self.timeout
                and (stopped := self._stopped(unheard))
            ):
                raise CallTimeout(
                    f"the ranks did not start within timeout={self.timeout} s: {stopped}"
                )
            if waited > START_SECONDS:
                why = self._stopped(unheard) or "see what `nvidia-smi` and the system log say"
                raise WorldError(f"the ranks did not start within {START_SECONDS:.0f} s: {why}")

        for line in range(len(self._processes.sockets)):
            try:
                self._listen(device, unheard, line, watch)
            except EOFError:
                check_alive(grace=1.0)
                raise
        if self._others is not None:
            self._warned += self._others.await_start(watch)
        self._show_warnings()

    def _stopped(self, unheard: Collection[int]) -> str:
        """Names ranks that have not answered and never will, since a signal or a debugger has
        stopped them; "" if none is.
        """
        names = [
            f"rank {self._processes.first + line} (pid {self._processes.pids[line]})"
            for line in sorted(unheard)
            if self._processes.is_stopped(line)
        ]
        return f"{', '.join(names)} stopped by SIGSTOP, its like, or a debugger" if names else ""

    def _listen(
        self, device: DeviceKind, unheard: set[int], line: int, watch: Callable[[], None]
    ) -> None:
        """Receives a rank's answer to its start; raises the error if it failed: `DeviceError` if
        it has no device.
        """
        answer, _ = channel.receive(self._processes.sockets[line], watch)
        unheard.remove(line)
        self._warned += answer.warned
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
        self.under_way = (
            True  # first: an interrupt below may leave the sequence ahead of the ranks'
        )
        try:
            events = self.events
            if events is not None:
                events.names[number] = info
            self.sequence += 1
            code = doorbell.call(self._base, self._lines, self.sequence, number, *self._spins)
            if code != doorbell.ALL_DONE:
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
        if self._warned:
            self._show_warnings()

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
        if self._warned:
            self._show_warnings()
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
        if (
            self._control.all_arrived
            or self._processes.has_dead
            or (self._others is not None and self._others.is_dead)
        ):
            return True
        return self.timeout is not None and self._spent_in_flight() > self.timeout

    def _spent_in_flight(self) -> float:
        """Returns the seconds of the time limit that have passed since `ring`.

        The limit is not checked while a call is in flight, so one that has passed begins again if
        the ranks were stopped meanwhile.
        """
        spent = time.monotonic() - self._rung.counts_from
        if self.timeout is not None and spent > self.timeout and self._processes.were_stopped():
            self._rung.counts_from, spent = time.monotonic(), 0.0
        return spent

    def _failed(self, error: BaseException) -> None:
        """Ends the round in which an exception was raised, or the world if the round goes on."""
        if isinstance(error, SynkError):  # the round is over, or the world has ended
            self.under_way = False
            # the failure takes precedence over a warning raised as an error
            with contextlib.suppress(Warning):
                self._show_warnings()
        else:
            places = {}
            try:
                places = self.places()
            finally:  # even if Ctrl-C is pressed again
                self.break_off()
            for rank, place in places.items():
                error.add_note(f"rank {rank} was {place}")

    def _show_warnings(self) -> None:
        """Issues the ranks' warnings after the round; raises one that the script's filters turn
        into an error.
        """
        if self._warned:
            collected, self._warned = self._warned, []
            show(collected)

    def take_warnings(self) -> list[Warned]:
        """Returns the ranks' warnings that have not been shown, to be shown elsewhere."""
        collected, self._warned = self._warned, []
        return collected

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
        news = self._read_news(info, watch)
        self.in_flight = None
        learn([entry for entry in news if not isinstance(entry[1], Failed)])
        failures = [(rank, item) for rank, item, _ in news if isinstance(item, Failed)]
        if any(failed.lost for _, failed in failures):
            self._end_for_lost(failures, info)
        if failures:
            raise self._located(rank_error(info, failures), [rank for rank, _ in failures])

    def arrive(self, code: int, watch: Callable[[], None]) -> None:
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
        what = f"{failed.type_name}: {(failed.message.strip().splitlines() or [''])[0]}"
        if failed.lost:
            reason = f"the GPU of rank {rank} failed ({what})"
        else:
            waiting = ", ".join(str(number) for number, failure in failures if failure.lost)
            reason = f"rank {rank} failed ({what}), for which the GPU of rank {waiting} waits"
        line = rank - self._processes.first
        pid = self._processes.pids[line] if line < len(self._processes.pids) else 0
        self._end(reason, Death(rank, pid, None), info)

    def watch(self, info: CallInfo, spent: float = 0.0) -> Callable[[], None]:
        """Returns a check to call repeatedly while ranks work: it raises if a rank has died or
        the time limit is exceeded.
        """
        last = time.monotonic()

        def watch() -> None:
            nonlocal spent, last
            self._check_alive(info)
            now = time.monotonic()
            spent, last = spent + min(now - last, LOOK_SECONDS), now
            if self.timeout is not None and spent > self.timeout:
                self._give_up(info)
            if self.look is not None:
                self.look()

        return watch

    def _give_up(self, info: CallInfo) -> None:
        # If all ranks have arrived, one of them has not sent its news.
        lines = self._control.missing(self.sequence) or self._control.with_news(self.sequence)
        missing = [rank for rank in map(self._rank, lines) if rank is not None]
        places, stacks = self.places(), self._processes.where(missing)
        if self._others is not None and self._others.line in lines:
            stacks |= self._others.where()
            missing += [rank for rank in stacks if rank not in missing]
        self.kill(f"{info} took longer than timeout={self.timeout} s")
        way_out = "Call fork() again, with a larger timeout"
        if self.starts_again:
            way_out = "The next call starts them again; set world.timeout to a larger one"
        error = CallTimeout(
            f"{info} took longer than timeout={self.timeout} s; still working: rank "
            f"{', '.join(map(str, missing))}. All ranks have been terminated; every Data keeps its "
            f"contents. {way_out} if the call needs it.\n{whereabouts(stacks, places)}",
            stacks=stacks,
        )
        raise self._located(error, missing)

    def _located(self, error: SynkError, ranks: Iterable[int]) -> SynkError:
        """Notes the machines of ranks, if there are several."""
        if self._others is not None:
            error.add_note(self._others.whereabouts(ranks))
        return error

    def _read_news(self, info: CallInfo, watch: Callable[[], None]) -> list[RankNews]:
        out: list[RankNews] = []
        try:
            for line in self._control.with_news(self.sequence):
                if self._others is not None and line == self._others.line:
                    out += self._read_others(self._others, info, watch)
                    continue
                answer, descriptors = self._read_one(info, watch, line)
                self._warned += answer.warned
                if answer.news is not None:
                    out.append(self._opened(info, answer.rank, answer.news, descriptors))
        except BaseException:
            for _, _, descriptors in out:
                channel.close_all(descriptors)
            raise
        return out

    def _read_others(
        self, machines: OtherMachines, info: CallInfo, watch: Callable[[], None]
    ) -> list[RankNews]:
        """Reads the news of the ranks of other machines; ends the world if one of them has died."""
        parcels, warned, lost = machines.read(watch)
        self._warned += warned
        if lost is not None:
            self._end(lost.reason, lost.death, info, (lost.stack, lost.stderr))
        return [
            self._opened(info, rank, parcel, descriptors) for rank, parcel, descriptors in parcels
        ]

    def read_parcels(self, watch: Callable[[], None]) -> list[tuple[int, Parcel, list[int]]]:
        """Reads the news of a round, still packed, for the coordinator on another machine."""
        out = []
        for line in self._control.with_news(self.sequence):
            answer, descriptors = self._read_one(_ELSEWHERE, watch, line)
            self._warned += answer.warned
            if answer.news is not None:
                out.append((answer.rank, answer.news, descriptors))
        return out

    def _read_one(
        self, info: CallInfo, watch: Callable[[], None], line: int
    ) -> tuple[Answer, list[int]]:
        try:
            return channel.receive(self._processes.sockets[line], watch)
        except WorldError:
            raise  # CallTimeout is an OSError too
        except (EOFError, OSError):
            self._check_alive(info, grace=1.0)
            raise
        except Exception:
            if (
                self._ending.has_begun
            ):  # perhaps raised because the socket has been closed meanwhile
                self._check_alive(info)
            raise

    def _opened(
        self, info: CallInfo, rank: int, parcel: Parcel, descriptors: list[int]
    ) -> RankNews:
        try:
            return rank, parcel.open(), descriptors
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a user's class may raise anything when it is unpickled
            channel.close_all(descriptors)
            message = f"its result cannot be unpickled in the script: {error}"
            return rank, Failed(type(error).__qualname__, message, message, None), []

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
        self._show_warnings()
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
        self, payload: bytes, descriptors: Sequence[int], info: CallInfo, watch: Callable[[], None]
    ) -> None:
        """Starts a round with a pickled command for the ranks of this machine."""
        self._ring_for_message()
        try:
            for sock in self._processes.sockets:
                channel.send(sock, payload, descriptors, watch)
        except WorldError:
            raise  # as in `_read_one`
        except (OSError, ValueError):  # ValueError: the socket has been closed meanwhile
            self._check_alive(info, grace=1.0)
            raise

    # ---- the end

    def _check_alive(
        self, info: CallInfo, grace: float = 0.0, last_word: Callable[[int], None] | None = None
    ) -> None:
        """Ends all ranks and raises `RankDied` if one has ended; first calls `last_word` with
        it, which may raise instead.
        """
        death = self._processes.find_dead(grace)
        if self._ending.has_begun:
            self._ending.is_over.wait(
                END_SECONDS
            )  # else the script would still find the world open
            raise WorldError(
                f"the world was closed during {info}, by another thread or a signal handler; "
                f"call fork() to start again"
            )
        if death is not None:
            if last_word is not None:
                last_word(death.rank)
            self._end(str(death), death, info)
        if self._others is not None and self._others.is_dead:
            reason = (
                f"{self._others.relay} has ended {'during' if info.is_call else 'while'} {info}"
            )
            self.kill(reason)
            raise WorldError(
                f"{reason}. All ranks have been terminated; every Data keeps "
                f"its contents. {JOB_IS_OVER}"
            )

    def _end(
        self, reason: str, death: Death, info: CallInfo, last_words: tuple[str, str] | None = None
    ) -> NoReturn:
        """Ends all ranks, and raises `RankDied` with the reason; `last_words` are those of a
        rank of another machine.
        """
        at = "".join(f", {place}" for place in info.places([death.rank]).values())
        reason = f"{reason} {'during' if info.is_call else 'while'} {info}{at}"
        self._processes.kill()
        stack, stderr = last_words or self._processes.last_words(death.rank)
        self.kill(reason)
        raise rank_died(reason, death, info, stack, stderr, starts_again=self.starts_again)

    def kill(self, reason: str | None = None) -> None:
        """Kills all ranks and ends the world, even if Ctrl-C is pressed repeatedly meanwhile."""
        try:
            with held_signals():
                self._kill(reason)
        except BaseException:
            if not self._ending.is_over.is_set():  # a handler raised before signals were deferred
                with held_signals():
                    self._kill(reason)
            raise

    def _kill(self, reason: str | None) -> None:
        ending = self._ending
        ending.has_begun = True
        with ending.lock:
            if ending.is_over.is_set():
                return  # another thread was faster
            if self._others is not None:
                self._others.end()
            self._processes.kill()
            ended = self._ended()
            if ended is not None:
                ended(reason)
            self.under_way = False
            ending.is_over.set()

    def disown(self) -> None:
        """Resets the state in a child that the script has forked, perhaps during a call, as if
        the world had ended.
        """
        self.under_way = False  # else the next call would end the world
        self.in_flight = None
        ending = _Ending()  # another thread of the script may have used the old one
        ending.has_begun = True
        ending.is_over.set()
        self._ending = ending

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
