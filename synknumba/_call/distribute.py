"""What ranks are sent once in each world, before they run it: functions, and those that are inside of generated kernels.

distribute()  ──> all that there are          first call of one ──> that one
"""

import itertools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, final

from synknumba._call.serialize import device_function, make_spec
from synknumba._wire.messages import Install
from synknumba._world.failure import CallInfo
from synknumba._world.world import World, current_world, holds_world

_ids = itertools.count()
_made: "weakref.WeakSet[Distributed]" = weakref.WeakSet()


class Distributed(ABC):
    """Something that ranks know by its number."""

    def __init__(self) -> None:
        self._id = next(_ids)
        _made.add(self)

    @property
    def number(self) -> int:
        """Of no other; what was made later has a greater one."""
        return self._id

    @abstractmethod
    def send(self, world: World) -> None:
        """Sends it, unless the ranks have it. The world is begun."""

    def _note_sent(self, world: World) -> None:
        """The ranks have it from now on, and forget it when it is gone here."""
        world.shipped.add(self._id)
        weakref.finalize(self, _forget, weakref.ref(world), self._id).atexit = False


@final
class InnerFunction(Distributed):
    """A function of numbers or rows that generated kernels call; these are sent without it.

    Args:
        name: for messages.
        py_func: the plain function.
    """

    def __init__(self, name: str, py_func: Callable[..., Any]) -> None:
        super().__init__()
        self.name = name
        self.py_func = py_func

    @cached_property
    def device_function(self) -> Any:
        """It as kernels call it: one object for all of them, by which it is known in what is sent."""
        return device_function(self.py_func)

    def send(self, world: World) -> None:
        if self._id not in world.shipped:
            world.command(Install(make_spec(self._id, self.name, self.device_function), None), info=CallInfo(self.name))
            self._note_sent(world)


@holds_world
def distribute() -> None:
    """Sends every function made so far to the ranks now, instead of at its first call. May be called again.

    Of what `expectation` and `vectorize` made, it is the function that is wrapped: kernels are generated around it when
    calls show what the arguments are.
    """
    world = current_world()
    world.begin()
    try:
        for one in sorted(_made, key=lambda one: one.number):
            one.send(world)
    finally:
        world.end()


def _forget(world: "weakref.ref[World]", number: int) -> None:
    """Has the ranks drop what is gone here."""
    alive = world()
    if alive is not None:
        alive.forget("function", number)
