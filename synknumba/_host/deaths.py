"""What is to be done when objects of the script's die: noted by C code, and done by the next call.

    last reference goes ──callback, in C──> noted ──settle()──> done: at the next call or segment

Python runs signal handlers between instructions of Python code, also of finalizers and of callbacks
of weak references, where it only prints what a handler raises: a Ctrl-C that comes there is lost.
So no Python code runs when an object of the script's dies. `WeakTable` is a table of such objects.
"""

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, final

from synknumba._host.signals import held_signals


@final
class _Watch(weakref.ref[Any]):
    """A weak reference with what is to be done when the object has died."""

    __slots__ = ("act",)

    act: Callable[[], object]


# of objects that have died; callers of `settle` look first whether there are any
noted: deque[_Watch] = deque()
# of all objects, by id: a weak reference that is gone calls nothing
_watches: dict[int, _Watch] = {}


def when_gone(watched: object, act: Callable[[], object]) -> None:
    """Lets `settle` call `act()`, once, after an object has died.

    It runs in any thread, between the script's calls or in one, and must not block.
    """
    watch = _Watch(watched, noted.append)
    watch.act = act
    _watches[id(watch)] = watch


def settle() -> None:
    """Does what is to be done for the objects that have died so far."""
    with held_signals():
        while noted:
            try:
                watch = noted.popleft()
            except IndexError:  # another thread was faster
                return
            del _watches[id(watch)]
            watch.act()
