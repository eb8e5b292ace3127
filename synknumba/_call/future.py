"""`Future`: the result of a submitted call, which the ranks may still be working on.

    script: submit ── result(), or the next call ─────────────────> the call is complete
    thread:         add_done_callback, as_completed, wrap_future ── looks until it is, then calls back

The script's process completes a call when it next uses the world. An event loop waits without
using it, so the first callback starts a thread that polls for the end of the call. The thread
takes the world only for calls that have landed.
"""  # noqa: E501

import concurrent.futures
import math
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn, TypeVar, cast, final

from synknumba._errors import ArgumentError, SynkError, shortened
from synknumba._host.deaths import when_gone
from synknumba._world.call_in_flight import Flight

R = TypeVar("R")

FIRST_PAUSE: Final = 100e-6  # seconds between looks of the thread; doubled each time
LONGEST_PAUSE: Final = 5e-3  # a look takes some microseconds


@final
class Future(concurrent.futures.Future[R]):
    """The result of a call made by `submit`, on which the ranks may still be working.

    The next use of the world, by this or any other call, waits for the call to end; the future then
    keeps its result or error. An error that the script does not retrieve is a `RuntimeWarning` at
    the next call after the future has gone, or at the script's end.

    It is a `concurrent.futures.Future`, for `asyncio.wrap_future`,
    `concurrent.futures.as_completed` and `wait`. A call that has started cannot be cancelled.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function(outputs="sum")
        ... def total(x):
        ...     return x.sum()
        >>> with synk.fork(2, device="cpu"):
        ...     future = total.submit(np.ones(10))  # returns while the ranks work
        ...     future.result()
        np.float64(10.0)
    """

    def __init__(self, flight: Flight, value: Callable[[Any], R] | None = None) -> None:
        self._flight = flight
        self._value = value  # returns the future's result for the call's, or raises `SynkError`
        self._looks = False  # whether the thread was started
        super().__init__()
        self.set_running_or_notify_cancel()
        when_gone(self, flight.drop)

    @property  # type: ignore[override]
    def _waiters(self) -> list[Any]:
        """What `concurrent.futures.wait` and `as_completed` append to, whose lock they hold."""
        self._look()
        return self._waiting

    @_waiters.setter
    def _waiters(self, waiters: list[Any]) -> None:
        self._waiting = waiters

    @shortened
    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[R]], object]) -> None:
        """Calls `fn` with the future when the call has ended: at once, or in another thread.

        Args:
            fn: a function of one argument. Its exceptions are logged, and ignored. Calls in it need
                a lock, as those of any two threads do.
        """
        if self._flight.over:
            self._finish()
        super().add_done_callback(fn)
        self._look()

    def running(self) -> bool:
        """Whether the ranks are still working on the call."""
        return not self.done()

    def done(self) -> bool:
        """Whether `result()` would return, or raise the call's error, without waiting for the
        ranks. Returns at once.

        Where a sequence has several rounds, this starts the next one if a round has ended.
        """
        return self._flight.is_done

    @shortened
    def result(self, timeout: float | None = None) -> R:
        """Waits until the call has ended, and returns its result.

        Args:
            timeout: seconds to wait at most; None for no limit.

        Raises:
            TimeoutError: the call has not ended by then, and goes on. `CallTimeout`, after the
                world's timeout, is one too.
            RankError, RankDied, CallTimeout, ReductionError: as for the call.
            WorldError: the call was interrupted or the world closed.
        """
        self._wait(timeout)
        self._flight.raise_error()
        result = self._flight.result
        if self._value is None:
            return cast("R", result)
        return self._value(result)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Waits until the call has ended, and returns its error, or None if it has a result.

        Args:
            timeout: as for `result`.

        Raises:
            TimeoutError: as for `result`.
        """
        self._wait(timeout)
        self._flight.is_reported = True
        if self._flight.error is None and self._value is not None:
            try:
                self._value(self._flight.result)
            except SynkError as error:
                return error
        return self._flight.error

    def _wait(self, timeout: float | None) -> None:
        if not self._flight.wait(_seconds(timeout)):
            raise TimeoutError(
                f"{self._flight.info} has not ended within {timeout} s; it goes on, so "
                f"ask for its result() later"
            )

    def _look(self) -> None:
        """Starts the thread that completes the call, once."""
        with self._condition:
            if self._looks or self._state == "FINISHED":
                return
            self._looks = True
        threading.Thread(
            target=self._complete, name=f"future of {self._flight.info}", daemon=True
        ).start()

    def _complete(self) -> None:
        # they are the main thread's, which may sleep
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pause = FIRST_PAUSE
        # without the world, so that a call of the script need not wait for this thread
        while not self._flight.is_done:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        self._flight.wait(None)
        self._finish()

    def _finish(self) -> None:
        """Tells those who wait, and calls back; the result stays that of the call."""
        with suppress(concurrent.futures.InvalidStateError):  # another thread has done so
            if self._flight.error is None:
                self.set_result(cast("R", None))
            else:
                self.set_exception(self._flight.error)

    def __repr__(self) -> str:
        """Shows the call and its state."""
        flight = self._flight
        state = "in flight"
        if flight.over:
            state = "done"
            if flight.error is not None:
                state = f"failed with {type(flight.error).__name__}"
        return f"<Future of {flight.info}, {state}>"

    def __reduce__(self) -> NoReturn:
        """Raises `ArgumentError`: the call belongs to this process."""
        raise ArgumentError(
            f"the future of {self._flight.info} cannot be pickled or copied: its call belongs to "
            "this process; pass its result()"
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
        raise ArgumentError(
            f"timeout of result() must be a number of seconds, or None for "
            f"no limit; got {timeout!r}"
        )
    return max(seconds, 0.0)
