"""Signals that ask the script to stop soon: `stop_on` and `stopping`.

A handler sets a flag, which loops look at between two steps. Only the script's process decides, so
nothing of this is on ranks.
"""

import signal
from types import FrameType
from typing import Any

from synknumba._errors import ArgumentError, WorldError
from synknumba._host import this_process
from synknumba._host.signals import handle_here, in_main_thread
from synknumba._types import shown

_DEFAULT = (signal.SIGTERM, signal.SIGUSR1)
_NEVER_HANDLED = (signal.SIGKILL, signal.SIGSTOP)

_replaced: dict[int, Any] = {}  # the handlers that were there before, by signal
_is_stopping = False


def stop_on(*signals: int) -> None:
    """Has signals set `stopping()`, in place of ending the script.

    A handler that the script had for one of them is called after that.

    Args:
        signals: numbers of signals, as `signal.SIGUSR1`; default: SIGTERM and SIGUSR1.

    Raises:
        ArgumentError: no signal has such a number, or it cannot be handled.
        WorldError: this is not the script's main thread, in which Python handles signals, or it is
            a rank.

    Example:
        >>> import signal
        >>> import synknumba as synk
        >>> before = signal.getsignal(signal.SIGUSR2)
        >>> synk.stop_on(signal.SIGUSR2)
        >>> synk.stopping()  # whether that signal has come
        False
        >>> _ = signal.signal(signal.SIGUSR2, before)
    """
    if this_process.current_rank() is not None:
        raise WorldError(
            "stop_on() called on a rank; call it in the script, which alone gets a job's signals"
        )
    if not in_main_thread():
        raise WorldError(
            "stop_on() must be called in the script's main thread, in which Python "
            "runs handlers of signals"
        )
    numbers = signals or _DEFAULT
    for number in numbers:
        if number not in signal.valid_signals() or number in _NEVER_HANDLED:
            raise ArgumentError(
                f"stop_on: {shown(number)} is no signal that can be handled; pass some such as "
                f"signal.SIGTERM or signal.SIGUSR1"
            )
    for number in numbers:
        if signal.getsignal(number) is not _note:
            # Not in children, or `Pool.terminate()` would wait for ever for one that goes on.
            _replaced[number] = handle_here(number, _note)


def stopping() -> bool:
    """Returns whether a signal of `stop_on` has come: time to save, and to end.

    False for ever without `stop_on`, and on ranks. `synk.batches` and `step.epoch` end early where
    it is true.

    Example:
        >>> import synknumba as synk
        >>> synk.stopping()
        False
    """
    return _is_stopping and this_process.current_rank() is None


def is_asked_for() -> bool:
    """Returns whether `stop_on` was called."""
    return bool(_replaced)


def _note(number: int, frame: FrameType | None) -> None:
    global _is_stopping  # noqa: PLW0603  # of the process, as its handlers are
    _is_stopping = True
    earlier = _replaced.get(number)
    if callable(earlier) and earlier is not signal.default_int_handler:
        earlier(number, frame)
