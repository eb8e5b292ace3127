"""Pickling of kernels, of functions that `cuda.declare_device` declares, and of overloaded
functions.

Kernels defined inside functions or in a script cannot be imported by name. `pickle` cannot
serialise them, `cloudpickle` can: a kernel's pickle contains one made by cloudpickle. Kernels met
inside that one are pickled by value, not as nested pickles, because a function may refer back to
its kernel and only a single pickler's memo resolves the cycle.

A CUDA C or PTX function declared by `cuda.declare_device` is registered with Numba in the declaring
process only. Its pickle holds the arguments of the declaration, and unpickling declares it again.

Overloads of functions (`numba.extending.overload`, `register_jitable`) are registered by the
identity of the function. A rank unpickles a new function object, so the pickle carries the
overloads, and unpickling registers them again.

Since release 3.1.3 cloudpickle writes `<dynamic-code>` in place of the names of source files. A
kernel is translated from its source, and tracebacks show it, so the names stay.
"""

import io
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from operator import attrgetter
from types import CodeType, FunctionType
from typing import Any

import cloudpickle

# Modules of the templates of Numba and of numba-cuda, which has its own.
_MODULES = ("numba.core.typing.templates", "numba.cuda.typing.templates")

# Arguments of `make_overload_template`; a template gives the decorator's arguments in no other way.
_ARGUMENTS = attrgetter(
    "_overload_func", "_jit_options", "_strict", "_inline.value", "prefer_literal"
)

# Module of the template, class of the Numba type of the function, arguments and metadata of
# `make_overload_template`.
_Overload = tuple[str, type, tuple[Any, ...], dict[str, Any]]


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """The pickler of cloudpickle, which writes the names of source files in every release."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            return _code_of_file, (obj.co_filename, *self.dispatch_table[CodeType](obj))
        return super().reducer_override(obj)


def _code_of_file(name: str, make: Callable[..., CodeType], parts: tuple[Any, ...]) -> CodeType:
    return make(*parts).replace(co_filename=name)


def dumps(value: Any) -> bytes:
    """Pickles a value; functions and classes that cannot be imported by name by value, as
    `cloudpickle.dumps` does.
    """
    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def is_foreign(value: object) -> bool:
    """Returns whether the value was returned by `cuda.declare_device`."""
    kind = type(value)
    return kind.__name__ == "ExternFunction" and kind.__module__.startswith("numba.")


def reduce_foreign(function: Any) -> tuple[Any, ...]:
    """Returns the `__reduce__` value of a foreign function declared in this process: the
    arguments of its declaration.
    """
    return _declared, (dumps((function.name, function.sig, _options(function))),)


@cache  # declared twice, it would be two functions of one name, and the linker rejects the second
def _declared(packed: bytes) -> Any:
    from numba import cuda

    name, signature, options = pickle.loads(packed)  # noqa: S301  # part of the pickle being read
    if "link" in options:
        options["link"] = [*map(_linked, options["link"])]
    return cuda.declare_device(name, signature, **options)


@cache  # functions of one linked file share one object
def _linked(packed: bytes) -> Any:
    return pickle.loads(packed)  # noqa: S301  # part of the pickle being read


def _options(function: Any) -> dict[str, Any]:
    """Returns the keyword arguments of `cuda.declare_device`, read back from Numba; linked files
    are pickled one by one.
    """
    from numba.cuda.descriptor import cuda_target

    ((_, lowering),) = cuda_target.target_context._defns[function].versions  # noqa: SLF001  # Numba has no public accessor
    if not lowering.libs:  # the numba.cuda bundled with Numba has no such arguments
        return {}
    (library,), (descriptor,) = lowering.libs, lowering.__defaults__
    abi = "numba"
    if type(descriptor.call_conv).__name__ == "CUDACABICallConv":
        abi = "c"
    linked = [*map(dumps, library._linking_files)]  # noqa: SLF001
    return {"link": linked, "use_cooperative": library.use_cooperative, "abi": abi}


_inside: ContextVar[bool] = ContextVar("inside", default=False)


@contextmanager
def by_one_pickler() -> Iterator[None]:
    """Context in which kernels are pickled by value; the caller's pickler must handle functions,
    as cloudpickle does.
    """
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def reduce_object(make: Callable[..., Any], parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the `__reduce__` value of an object that `make(*parts)` rebuilds."""
    if _inside.get():
        return make, parts
    with by_one_pickler():
        packed = dumps((make, parts))
    return _made, (packed,)


def _made(packed: bytes) -> Any:
    make, parts = pickle.loads(packed)  # noqa: S301  # part of the pickle being read
    return make(*parts)


def target_of(template: Any) -> str:
    """Returns the target of an overload's template; "generic" if it is for all."""
    return str(getattr(template, "metadata", {}).get("target") or "generic").lower()


def templates_of(function: Any) -> Iterator[tuple[str, type, Any]]:
    """Yields the typing templates registered for a function, with their module and the class of
    the function's Numba type.
    """
    for module in _MODULES:
        registry = getattr(sys.modules.get(module), "builtin_registry", None)
        for value, kind in getattr(registry, "globals", ()):
            if value is function:
                yield from ((module, type(kind), template) for template in kind.templates)


def overloads_of(function: FunctionType) -> Iterator[_Overload]:
    """Yields the overloads registered for a function."""
    for module, kind, template in templates_of(function):
        if hasattr(template, "_overload_func"):
            yield module, kind, _ARGUMENTS(template), template.metadata


def reduce_overloaded(parts: tuple[Any, ...], overloads: list[_Overload]) -> tuple[Any, ...]:
    """Returns the reduce value of an overloaded function; `parts` is cloudpickle's reduce value
    of it, by value.
    """
    make, arguments, state, _, _, set_state = parts
    return make, arguments, (set_state, state, overloads), None, None, _set_overloaded


def _set_overloaded(function: FunctionType, parts: tuple[Any, Any, list[_Overload]]) -> None:
    set_state, state, overloads = parts
    set_state(function, state)
    for module, kind, arguments, metadata in overloads:
        templates: Any = import_module(module)
        template = templates.make_overload_template(function, *arguments, **metadata)
        templates.infer(template)
        templates.infer_global(function, kind(template))
