"""`Future`: the result of a submitted call, which the ranks may still be working on."""

import math
from typing import Any, Generic, NoReturn, TypeVar, cast, final

from synknumba._errors import ArgumentError, shortened
from synknumba._host.deaths import when_gone
from synknumba._world.call_in_flight import Flight

R = TypeVar("R")


@final
class Future(Generic[R]):
    """The result of a call made by `submit`, on which the ranks may still be working.

    The next use of the world, by this or any other call, waits for the call to end; the future then keeps its result or error.
    An error for which nobody asks is a `RuntimeWarning` at the next call after the future has gone, or at the script's end.
    """

    __slots__ = ("__weakref__", "_flight")

    def __init__(self, flight: Flight) -> None:
        self._flight = flight
        when_gone(self, flight.drop)

    def done(self) -> bool:
        """Whether `result()` would return, or raise the call's error, without waiting for the ranks. Returns at once.

        Where a sequence has several rounds, this starts the next one if a round has ended.
        """
        return self._flight.is_done

    @shortened
    def result(self, timeout: float | None = None) -> R:
        """Waits until the call has ended, and returns its result.

        Args:
            timeout: seconds to wait at most; None for no limit.

        Raises:
            TimeoutError: the call has not ended by then, and goes on. `CallTimeout`, after the world's timeout, is one too.
            RankError, RankDied, CallTimeout, ReductionError: as for the call.
            WorldError: the call was interrupted or the world closed.
        """
        self._wait(timeout)
        self._flight.raise_error()
        return cast("R", self._flight.result)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Waits until the call has ended, and returns its error, or None if it has a result.

        Args:
            timeout: as for `result`.

        Raises:
            TimeoutError: as for `result`.
        """
        self._wait(timeout)
        self._flight.told = True
        return self._flight.error

    def _wait(self, timeout: float | None) -> None:
        if not self._flight.wait(_seconds(timeout)):
            raise TimeoutError(
                f"{self._flight.info} has not ended within {timeout} s; it goes on, so ask for its result() later"
            )

    def __repr__(self) -> str:
        """Shows the call and its state."""
        flight = self._flight
        state = "in flight"
        if flight.over:
            state = "done" if flight.error is None else f"failed with {type(flight.error).__name__}"
        return f"<Future of {flight.info}, {state}>"

    def __reduce__(self) -> NoReturn:
        """Raises `ArgumentError`: the call belongs to this process."""
        raise ArgumentError(
            f"the future of {self._flight.info} cannot be pickled or copied: its call belongs to this process; "
            "pass its result()"
        )


def _seconds(timeout: Any) -> float | None:
    """Returns a time limit as a number of seconds."""
    if timeout is None:
        return None
    try:
        seconds = math.nan if isinstance(timeout, bool | str) else float(timeout)
    except (TypeError, ValueError):
        seconds = math.nan
    if math.isnan(seconds):
        raise ArgumentError(f"timeout of result() must be a number of seconds, or None for no limit; got {timeout!r}")
    return max(seconds, 0.0)
