"""Signals held back for a moment: what must be done whole is not broken off by Ctrl-C, or by what a script's handlers raise."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_signals() -> Iterator[None]:
    """Signals that come to this thread meanwhile are dealt with right after.

    What a handler raises for a signal that came before comes out of here before the block begins, or after it has ended.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
