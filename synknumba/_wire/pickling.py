"""Functions as bytes: what is sent to the ranks, in which what they have already is a number.

Numba knows functions that a script overloads, or declares, in the script's process. Pickles tell of them (`_overloaded`,
`_foreign`), also those that Numba makes by a pickler of its own, of a function that it compiles.

Functions that mean something in kernels by `numba.extending.overload` or `register_jitable`. Numba knows them by identity.

A function of a script is made anew on each rank, so what it means there is told again.
"""

import hashlib
import io
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from operator import attrgetter
from types import FunctionType, MappingProxyType
from typing import Any

import cloudpickle

from synknumba.simt import internals as foreign
from synknumba.simt.internals import by_one_pickler

# Numba's templates, and those of numba-cuda, which has its own.
_MODULES = ("numba.core.typing.templates", "numba.cuda.typing.templates")

# Of `make_overload_template`; the decorator's arguments cannot be had from a template in any other way.
_ARGUMENTS = attrgetter("_overload_func", "_jit_options", "_strict", "_inline.value", "prefer_literal")


# The module of a template, the type that Numba gives the function, and what makes the template.
_Overload = tuple[str, type, tuple[Any, ...], dict[str, Any]]


def overloads_of(function: FunctionType) -> Iterator[_Overload]:
    """What a function means in kernels."""
    for module in _MODULES:
        registry = getattr(sys.modules.get(module), "builtin_registry", None)
        for value, kind in getattr(registry, "globals", ()):
            for template in kind.templates if value is function else ():
                if hasattr(template, "_overload_func"):
                    yield module, type(kind), _ARGUMENTS(template), template.metadata


def reduce_overloaded(parts: tuple[Any, ...], overloads: list[_Overload]) -> tuple[Any, ...]:
    """What a pickle holds of an overloaded function.

    Args:
        parts: what cloudpickle makes of it, by value.
        overloads: the function's.
    """
    make, arguments, state, _, _, set_state = parts
    return make, arguments, (set_state, state, overloads), None, None, _set_overloaded


def _set_overloaded(function: FunctionType, told: tuple[Any, Any, list[_Overload]]) -> None:
    set_state, state, overloads = told
    set_state(function, state)
    for module, kind, arguments, metadata in overloads:
        templates: Any = import_module(module)
        template = templates.make_overload_template(function, *arguments, **metadata)
        templates.infer(template)
        templates.infer_global(function, kind(template))


_NOTHING: Mapping[int, Any] = MappingProxyType({})


def dump(value: Any, sent: Mapping[int, Any] = _NOTHING) -> bytes:
    """The bytes of a function and what comes with it.

    Args:
        value: what is sent.
        sent: objects in it that the ranks have, by number.
    """
    return _dumped(_Pickler, value, numbers={id(one): number for number, one in sent.items()})


def load(payload: bytes, sent: Callable[[int], Any]) -> Any:
    """What `dump` was given.

    Args:
        payload: from our own coordinator.
        sent: gives what has a number.
    """
    return _Unpickler(io.BytesIO(payload), sent).load()


def _dumped(kind: Any, value: Any, **settings: Any) -> bytes:
    file = io.BytesIO()
    pickler = kind(file)
    vars(pickler).update(settings)
    pickler.dump(value)
    return file.getvalue()


class _Telling:
    """A part of picklers.

    Attributes:
        inside: whether an overloaded function is being pickled: those that it leads to, itself among them, are parts of that.
    """

    inside = False

    def reducer_override(self, obj: Any) -> Any:
        if foreign.is_foreign(obj):
            return foreign.reduce_foreign(obj)
        parts = super().reducer_override(obj)  # type: ignore[misc]  # a pickler's
        if not isinstance(obj, FunctionType) or parts is NotImplemented:
            return parts
        overloads = list(overloads_of(obj))
        if not overloads:
            return parts
        if self.inside:
            return reduce_overloaded(parts, overloads)
        try:
            return _loaded_once, (_dumped(_Pickler, obj, inside=True),)
        except Exception:  # noqa: BLE001  # an overload may hold what cannot be pickled: the function goes alone, for Python
            return parts


class _Pickler(_Telling, cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    numbers: Mapping[int, int] = _NOTHING

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind.__name__ == "_CustomPickled" and kind.__module__.startswith("numba."):
            return _compiled, (kind, _dumped(_numbas(kind.__module__), (obj.ctor, obj.states), inside=self.inside))
        if hasattr(kind, "__simt_kernel__") and "__reduce__" in vars(kind):
            with by_one_pickler():
                return obj.__reduce__()
        return super().reducer_override(obj)

    def persistent_id(self, obj: Any) -> int | None:
        return self.numbers.get(id(obj))


@cache
def _numbas(module: str) -> type:
    """Numba's pickler, or numba-cuda's, which refuse more."""
    return type("_NumbasPickler", (_Telling, sys.modules[module].NumbaPickler), {})


def _compiled(kind: Callable[..., Any], packed: bytes) -> Any:
    return kind(*pickle.loads(packed))  # noqa: S301  # a part of the pickle that is being read


_loaded: dict[bytes, FunctionType] = {}


def _loaded_once(packed: bytes) -> FunctionType:
    """An overloaded function. Numba keeps each for ever, so the same one is not made again."""
    digest = hashlib.sha256(packed).digest()
    if digest not in _loaded:
        _loaded[digest] = pickle.loads(packed)  # noqa: S301  # a part of the pickle that is being read
    return _loaded[digest]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, sent: Callable[[int], Any]) -> None:
        super().__init__(file)
        self._sent = sent

    def persistent_load(self, pid: int) -> Any:
        return self._sent(pid)
