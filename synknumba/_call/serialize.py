"""What of a function goes to the ranks, and what comes back from one: its pickle with its sources, stand-ins, named tuples.

What ranks are sent once in each world, before they run it: functions, and those that are inside of generated kernels.

distribute()  ──> all that there are          first call of one ──> that one
"""

import itertools
import linecache
import os
import weakref
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, NoReturn, final

from synknumba._call.options import FunctionOptions
from synknumba._errors import ArgumentError
from synknumba._wire import pickling
from synknumba._wire.messages import Install
from synknumba._wire.program import FunctionSpec
from synknumba._world.failure import CallInfo
from synknumba._world.world import World, current_world, holds_world

_NOTHING: Mapping[int, Any] = MappingProxyType({})


def make_spec(
    function_id: int,
    name: str,
    function: Callable[..., Any],
    options: FunctionOptions | None = None,
    sent: Mapping[int, Any] = _NOTHING,
) -> FunctionSpec:
    """The function as it is shipped.

    Args:
        function_id: its number.
        name: for messages.
        function: the plain function, or one that kernels call.
        options: what its decorator was given; None where kernels call it.
        sent: what it refers to and the ranks have, by number.

    Raises:
        ArgumentError: it, or something that it refers to, cannot be pickled.
    """
    told = (None, {}) if options is None else (options.launch, dict(options.compile_options))
    try:
        pickled = pickling.dump((function, *told), sent)
    except Exception as error:
        raise ArgumentError(
            f"{name} cannot be sent to the ranks: {error}. What a function needs must be passed to it, or be defined so that "
            "it can be pickled."
        ) from error
    style = "function" if options is None else options.style
    return FunctionSpec(function_id, name, style, pickled, _pseudo_files())


def _pseudo_files() -> dict[str, Any]:
    """Sources that exist in `linecache` only: cells of a notebook or an interactive session, which ranks cannot read."""
    return {
        name: entry
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and (name.startswith("<") or not os.path.exists(name))
    }


class RankSideFunction:
    """What a `Function` is on a rank: its plain function, and no calls."""

    def __init__(self, name: str, py_func: Callable[..., Any]) -> None:
        self.name = name
        self.py_func = py_func

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        current_world()
        raise AssertionError  # a rank has no world, so the line above raises


@cache
def result_class(function: str, names: tuple[str, ...]) -> Callable[..., Any]:
    """A named tuple for several results, which pickles and copies though no module has its class."""
    title = f"{function}_result"
    cls = namedtuple(title if title.isidentifier() else "result", names)  # type: ignore[misc]
    cls.__reduce__ = lambda self: (_make_result, (function, names, tuple(self)))  # type: ignore[method-assign,assign,arg-type]
    return cls


def _make_result(function: str, names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return result_class(function, names)(*values)


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
        from numba import cuda  # not when synknumba is imported

        return cuda.jit(device=True)(self.py_func)

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
