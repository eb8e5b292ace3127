"""What of a function goes to the ranks, and what comes back from one: its pickle with its sources, stand-ins, named tuples."""

import linecache
import os
from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NoReturn

from synknumba._call.options import FunctionOptions
from synknumba._errors import ArgumentError
from synknumba._wire import pickling
from synknumba._wire.program import FunctionSpec
from synknumba._world.world import current_world

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
        message = (
            f"{name} cannot be sent to the ranks: {error}. What a function needs must be passed to it, or be defined so that "
            "it can be pickled."
        )
        raise ArgumentError(message) from error
    style = "function" if options is None else options.style
    return FunctionSpec(function_id, name, style, pickled, _pseudo_files())


def _pseudo_files() -> dict[str, Any]:
    """Sources that exist in `linecache` only: cells of a notebook or an interactive session, which ranks cannot read."""
    return {
        name: entry
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and (name.startswith("<") or not os.path.exists(name))
    }


def device_function(function: Callable[..., Any]) -> Any:
    """A plain function as kernels call it."""
    from numba import cuda  # not when synknumba is imported

    return cuda.jit(device=True)(function)


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
