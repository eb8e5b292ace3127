"""Calls in flight: the ranks work on one while the script goes on.

    Engine.launch ── ring ──> the script goes on, the ranks work ──> Engine.begin, await_flight or close ── land ──> complete

A world has at most one call in flight, which no thread holds. Whoever takes the world next first
waits for it: its result or error then stays in its `Flight`, to which the script's `Future` refers.
A call may be of several rounds, as a sequence whose results the script keeps: when one has landed,
`collect` launches the next, and the call is still in flight.
"""  # noqa: E501

import threading
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, final

from synknumba._errors import WorldError, depth_of_script
from synknumba._world.failure import CallInfo

if TYPE_CHECKING:
    from synknumba._world.engine import Engine
    from synknumba._world.rounds import Learn


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
        told: whether the error was raised, or warned of.
    """

    __slots__ = (
        "_collect",
        "_dropped",
        "_give_up",
        "_world",
        "error",
        "has_more",
        "info",
        "learn",
        "over",
        "result",
        "told",
    )

    def __init__(
        self,
        world: "Engine",
        info: CallInfo,
        learn: "Learn",
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
        self.told = False
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
        self.told = True

    def lose(self, why: str) -> None:
        """Ends the call in a child that the script has forked, where nothing has failed."""
        self.error, self.told = WorldError(f"{self.info} was in flight, and {why}"), True
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
            self.told = True
            raise self.error

    def drop(self) -> None:
        """Notes that the script has deleted the future of the call, so that its error cannot be
        retrieved.
        """
        self._dropped = True
        self.warn_if_dropped()

    def warn_if_dropped(self) -> None:
        """Warns of an error that cannot be retrieved any more."""
        if self._dropped and self.error is not None and not self.told:
            self.told = True
            what = f"{type(self.error).__name__}: {self.error}"
            message = (
                f"a submitted call of {self.info} failed, and nobody asked for its result(): {what}"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=depth_of_script())


def remaining(seconds: float | None, began: float) -> float | None:
    """Returns what is left of `seconds` since `began`, by `time.monotonic`; None for no limit."""
    return None if seconds is None else max(0.0, seconds - (time.monotonic() - began))


def lock_limit(seconds: float | None) -> float:
    """Returns the time limit in the form that locks take."""
    return threading.TIMEOUT_MAX if seconds is None else min(seconds, threading.TIMEOUT_MAX)
