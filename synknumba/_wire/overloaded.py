"""Functions that mean something in kernels by `numba.extending.overload` or `register_jitable`. Numba knows them by identity.

A function of a script is made anew on each rank, so what it means there is told again.
"""

import sys
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from types import FunctionType
from typing import Any

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


def reduced(parts: tuple[Any, ...], overloads: list[_Overload]) -> tuple[Any, ...]:
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
