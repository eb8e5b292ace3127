"""Pickling of functions for the ranks: by value, with objects that the ranks already have replaced
by their numbers.

Numba registers functions that a script overloads (`numba.extending.overload`, `register_jitable`)
or declares by identity, in the script's process only. A rank unpickles a new function object, so
the pickle carries the overloads and the declaration (`simt/_source/pickling.py`), and unpickling
registers them again. This also applies to pickles that Numba makes with its own pickler, of
functions that it compiles.
"""

import hashlib
import io
import pickle
import sys
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from types import CellType, FunctionType, MappingProxyType
from typing import Any

from synknumba.simt.internals import (
    Pickler,
    by_one_pickler,
    declared_signatures,
    is_foreign,
    overloads_of,
    reduce_foreign,
    reduce_overloaded,
    with_function,
)

_NOTHING: Mapping[int, Any] = MappingProxyType({})
_NUMBAS = "numba.", "numba_cuda_mlir."  # modules of Numba and numba-cuda, and of numba-cuda-mlir
_Cached: Any = type(cache(len))


def _cached_again(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    return lru_cache(**parameters)(function)


def dump(value: Any, sent: Mapping[int, Any] = _NOTHING) -> bytes:
    """Pickles a function and its options.

    Args:
        value: the object to send.
        sent: objects within it that the ranks already have, by number; each is pickled as its
            number.
    """
    return _dumped(_Pickler, value, numbers={id(item): number for number, item in sent.items()})


def load(payload: bytes, sent: Callable[[int], Any]) -> Any:
    """Unpickles a payload made by `dump`.

    Args:
        payload: bytes from the coordinator of this process.
        sent: returns the object with a number.
    """
    return _Unpickler(io.BytesIO(payload), sent).load()


def renew_device_functions() -> None:
    """Makes device functions in modules anew: those of now may be compiled with values that the
    modules had before.
    """
    copies = dict[int, Any]()
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", _NOTHING).items()):
            if can_be_renewed(value):
                if id(value) not in copies:
                    function = value.py_func
                    copied = copy_of(function, function.__globals__, function.__closure__)
                    copies[id(value)] = with_function(value, copied)
                setattr(module, name, copies[id(value)])


def can_be_renewed(value: Any) -> bool:
    """Returns whether a value is a device function of the script's, compiled for what it gets."""
    if type(value).__name__ != "CUDADispatcher" or declared_signatures(value):
        return False
    return not str(value.py_func.__module__).startswith(("numba.", "synknumba."))


def copy_of(
    function: FunctionType, names: dict[str, Any], cells: tuple[CellType, ...] | None
) -> FunctionType:
    """Returns a function of the same code, with these globals and closure variables."""
    copied = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
    for attribute in ("__kwdefaults__", "__module__", "__qualname__"):
        setattr(copied, attribute, getattr(function, attribute))
    return copied


def _is_intrinsic_of_numba(obj: Any) -> bool:
    kind, module = type(obj), str(getattr(obj, "__module__", None))
    if kind.__name__ != "_Intrinsic" or not module.startswith(_NUMBAS):
        return False
    return getattr(sys.modules.get(module), obj.__name__, None) is obj


def _dumped(kind: Any, value: Any, **settings: Any) -> bytes:
    file = io.BytesIO()
    pickler = kind(file)
    vars(pickler).update(settings)
    pickler.dump(value)
    return file.getvalue()


class _Telling:
    """Mixin of picklers: pickles overloaded functions and foreign declarations so that they can be
    registered again.

    Attributes:
        inside: whether an overloaded function is being pickled; functions that it references,
            itself included, then become parts of its pickle.
    """

    inside = False

    def reducer_override(self, obj: Any) -> Any:
        if is_foreign(obj):
            return reduce_foreign(obj)
        if _is_intrinsic_of_numba(obj):
            # by reference: `numba.cuda.grid`, imported by name, is known to the compiler by its
            # identity
            return obj.__name__
        # pickle takes it by name, and ranks may have another main
        if isinstance(obj, _Cached) and obj.__module__ == "__main__":
            return _cached_again, (obj.__wrapped__, obj.cache_parameters())
        # of a decorated function, which other pickles refer to by name
        if hasattr(type(obj), "_reduce_for_ranks"):
            return obj._reduce_for_ranks()  # noqa: SLF001
        parts = super().reducer_override(obj)  # type: ignore[misc]  # the pickler's method
        if parts is NotImplemented:
            return parts
        if isinstance(obj, type) and obj.__qualname__ != obj.__name__:
            # cloudpickle gives a nested class its plain name, which errors of ranks would have
            parts[2][0]["__qualname__"] = obj.__qualname__
        if not isinstance(obj, FunctionType):
            return parts
        overloads = list(overloads_of(obj))
        if not overloads:
            return parts
        if self.inside:
            return reduce_overloaded(parts, overloads)
        try:
            return _loaded_once, (_dumped(_Pickler, obj, inside=True),)
        except Exception:  # noqa: BLE001  # an overload may not pickle: the function is sent without it, for Python
            return parts


class _Pickler(_Telling, Pickler):
    numbers: Mapping[int, int] = _NOTHING

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind.__name__ == "_CustomPickled" and kind.__module__.startswith(_NUMBAS):
            return _compiled, (
                kind,
                _dumped(_numbas(kind.__module__), (obj.ctor, obj.states), inside=self.inside),
            )
        if hasattr(kind, "__simt_kernel__") and "__reduce__" in vars(kind):
            with by_one_pickler():
                return obj.__reduce__()
        return super().reducer_override(obj)

    def persistent_id(self, obj: Any) -> int | None:
        return self.numbers.get(id(obj))


@cache
def _numbas(module: str) -> type:
    """Returns a subclass of the pickler of Numba, numba-cuda or numba-cuda-mlir, which are
    stricter than cloudpickle's.
    """
    return type("_NumbasPickler", (_Telling, sys.modules[module].NumbaPickler), {})


def _compiled(kind: Callable[..., Any], packed: bytes) -> Any:
    return kind(*pickle.loads(packed))  # noqa: S301  # part of the pickle being read


_loaded: dict[bytes, FunctionType] = {}


def _loaded_once(packed: bytes) -> FunctionType:
    """Unpickles an overloaded function once per process: Numba never frees one, so copies would
    accumulate.
    """
    digest = hashlib.sha256(packed).digest()
    if digest not in _loaded:
        _loaded[digest] = pickle.loads(packed)  # noqa: S301  # part of the pickle being read
    return _loaded[digest]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, sent: Callable[[int], Any]) -> None:
        super().__init__(file)
        self._sent = sent

    def persistent_load(self, pid: int) -> Any:
        return self._sent(pid)
