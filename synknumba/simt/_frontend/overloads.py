"""Overloads of functions (`numba.extending.overload`, `register_jitable`) in pickles.

Numba registers overloads by the identity of the function. A rank unpickles a new function object, so the pickle carries the
overloads, and unpickling registers them again.
"""

import sys
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from types import FunctionType
from typing import Any

# Modules of the templates of Numba and of numba-cuda, which has its own.
_MODULES = ("numba.core.typing.templates", "numba.cuda.typing.templates")

# Arguments of `make_overload_template`; a template gives the decorator's arguments in no other way.
_ARGUMENTS = attrgetter("_overload_func", "_jit_options", "_strict", "_inline.value", "prefer_literal")

# Module of the template, class of the Numba type of the function, arguments and metadata of `make_overload_template`.
_Overload = tuple[str, type, tuple[Any, ...], dict[str, Any]]


def templates_of(function: Any) -> Iterator[tuple[str, type, Any]]:
    """Yields the typing templates registered for a function, with their module and the class of the function's Numba type."""
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
    """Returns the reduce value of an overloaded function; `parts` is cloudpickle's reduce value of it, by value."""
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
