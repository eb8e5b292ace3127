"""Calls in flight: the ranks work on one while the script goes on.

    launch ── ring ──> the script goes on, the ranks work ──> Engine.begin, await_flight or close ── land ──> complete

A world has at most one call in flight, which no thread holds. Whoever takes the world next first
waits for it: its result or error then stays in its `Flight`, to which the script's `Future` refers.
`Flights` refers to the call in flight; the thread that holds the world changes it. A call may be of several rounds, as a sequence whose results the script keeps: when one has landed,
`collect` launches the next, and the call is still in flight.
"""  # noqa: E501

import threading
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, final

from synknumba._errors import SynkError, WorldError, depth_of_script
from synknumba._world.failure import CallInfo
from synknumba._world.rounds import Learn, Rounds

if TYPE_CHECKING:
    from synknumba._world.engine import Engine


GOES_ON: Final = object()  # in place of a result: the call has another round


@final
class Flight:
    """One call in flight.

    Args:
        world: world of the call.
        info: description of the call for messages.
        learn: receives the news of the ranks, as for `Rounds.run`.
        collect: completes the call when a round has ended, and returns its result; or launches the
            next round of the call, and returns `GOES_ON`.
        give_up: notes the effects of a failure, such as variables whose values are not known any
            more.

    Attributes:
        has_more: whether the round under way is not the call's last; set by whoever launches it.
        over: whether the call has ended, with a result or an error.
        result: its result; None before.
        error: its error; None before, or if it has a result.
        is_reported: whether the error was raised, or warned of.
    """

    __slots__ = (
        "_collect",
        "_dropped",
        "_give_up",
        "_world",
        "error",
        "has_more",
        "info",
        "is_reported",
        "learn",
        "over",
        "result",
    )

    def __init__(
        self,
        world: "Engine",
        info: CallInfo,
        learn: Learn,
        collect: Callable[[], Any],
        give_up: Callable[[BaseException], None],
    ) -> None:
        self._world = world
        self.info = info
        self.learn = learn
        self._collect: Callable[[], Any] | None = collect
        self._give_up: Callable[[BaseException], None] | None = give_up
        self._dropped = False  # whether the script has no future of it any more
        self.has_more = False
        self.over = False
        self.is_reported = False
        self.result: Any = None
        self.error: Exception | None = None

    # ---- for the world

    def complete(self) -> None:
        """Collects the result, after a round and while the world is held, or launches the next
        round; keeps an error.
        """
        if self._collect is None:  # it was interrupted just after it had launched the round
            return
        try:
            result = self._collect()
        except Exception as error:  # noqa: BLE001  # raised by `result()` of the future
            self.fail(error)
        else:
            if result is not GOES_ON:
                self.result = result
                self._end()

    def fail(self, error: Exception) -> None:
        """Ends the call with an error."""
        if self.over:
            return
        self.error, give_up = error, self._give_up
        self._end()
        if give_up is not None:
            give_up(error)

    def interrupt(self) -> None:
        """Ends the call whose round or collection an exception from outside has broken off,
        which is raised itself.
        """
        self.fail(
            WorldError(
                f"{self.info} was interrupted while it was in flight, so it "
                f"has no result; call again"
            )
        )
        self.is_reported = True

    def lose(self, why: str) -> None:
        """Ends the call in a child that the script has forked, where nothing has failed."""
        self.error = WorldError(f"{self.info} was in flight, and {why}")
        self.is_reported = True
        self._end()

    def _end(self) -> None:
        self._collect = self._give_up = None  # frees the arguments
        self.over = True

    # ---- for the future

    @property
    def is_done(self) -> bool:
        """Whether `wait` would return or raise without waiting for the ranks; launches the next
        round if one has landed.
        """
        if self.over or not self._world.has_landed(self):
            return self.over
        if not self.has_more:
            return True
        self._world.go_on(self)
        return self.over

    def wait(self, seconds: float | None) -> bool:
        """Waits until the call has ended, for at most `seconds`. Returns whether it has."""
        if not self.over:
            self._world.await_flight(self, seconds)
        return self.over

    def raise_error(self) -> None:
        """Raises the call's error, if it has one."""
        if self.error is not None:
            self.is_reported = True
            raise self.error

    def drop(self) -> None:
        """Notes that the script has deleted the future of the call, so that its error cannot be
        retrieved.
        """
        self._dropped = True
        self.warn_if_dropped()

    def warn_if_dropped(self) -> None:
        """Warns of an error that cannot be retrieved any more."""
        if self._dropped and self.error is not None and not self.is_reported:
            self.is_reported = True
            what = f"{type(self.error).__name__}: {self.error}"
            message = (
                f"a submitted call of {self.info} failed, and nobody asked for its result(): {what}"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=depth_of_script())


@final
class Flights:
    """The call in flight of a world, of which there is at most one.

    The world is held in all methods. An interrupt in the middle of one leaves `under_way` of the
    rounds true, so that the next use of the world ends it.

    Attributes:
        current: call on which the ranks work while the script goes on.
    """

    __slots__ = ("_ranks", "current")

    def __init__(self, ranks: Rounds) -> None:
        self._ranks = ranks
        self.current: Flight | None = None

    def launch(self, flight: Flight, number: int) -> None:
        """Starts a program on every rank for a call in flight."""
        self._ranks.ring(number, flight.info)
        self.current = flight
        self._ranks.under_way = False  # last: see `Rounds.ring`

    def land(self, seconds: float | None = None) -> None:
        """Waits for all rounds of the call in flight, for at most `seconds`, and completes it."""
        began = time.monotonic()
        while self.current is not None:
            if not self._land_round(self.current, remaining(seconds, began)):
                return

    def _land_round(self, flight: Flight, seconds: float | None) -> bool:
        """Waits for a round, for at most `seconds`; returns whether it has ended: the call is
        complete, or in the next.
        """
        # first: after an interrupt below, the next use of the world ends it
        self._ranks.under_way = True
        self.current = None
        try:
            if not self._ranks.land(flight.info, flight.learn, seconds):
                self.current = flight
                self._ranks.under_way = False
                return False
            flight.complete()
        # a warning of a rank that the script's filters turn into an error
        except (SynkError, Warning) as error:
            flight.fail(error)
        except BaseException:
            flight.interrupt()
            raise
        return True

    def land_last(self, *, at_exit: bool) -> None:
        """Completes the call in flight before the end of the world; at the end of the script
        its error can no longer be retrieved.
        """
        flight = self.current
        if flight is not None:
            self.land()
            if at_exit:
                flight.drop()
            else:
                flight.warn_if_dropped()

    def fail(self) -> None:
        """Ends the call in flight, if any, with the world."""
        flight, self.current = self.current, None
        if flight is not None:
            flight.fail(
                WorldError(
                    f"the world was closed while {flight.info} was in flight; "
                    f"call fork() to start again"
                )
            )

    def lose(self, why: str) -> None:
        """Forgets the call in flight in a child that the script has forked."""
        flight, self.current = self.current, None
        if flight is not None:
            flight.lose(why)


def remaining(seconds: float | None, began: float) -> float | None:
    """Returns what is left of `seconds` since `began`, by `time.monotonic`; None for no limit."""
    return None if seconds is None else max(0.0, seconds - (time.monotonic() - began))


def lock_limit(seconds: float | None) -> float:
    """Returns the time limit in the form that locks take."""
    return threading.TIMEOUT_MAX if seconds is None else min(seconds, threading.TIMEOUT_MAX)
