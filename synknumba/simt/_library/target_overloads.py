"""Functions that somebody has given a meaning for GPUs only: `@overload(function, target="cuda")`.

The CPU would take another overload, if there is one, and compute something else.
"""

import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, Final

from numba.core.typing.templates import builtin_registry

# Functions of these have overloads for CUDA too, which mean the same.
_SAME_EVERYWHERE: Final = frozenset({"builtins", "cmath", "math", "numpy", "operator"})


def overloaded_for_cuda(function: FunctionType) -> FunctionType | None:
    """The function itself, or one that its overloads call, if it has an overload for CUDA only."""
    return _look(function, set())


def _look(function: FunctionType, seen: set[FunctionType]) -> FunctionType | None:
    if function in seen or str(function.__module__).partition(".")[0] in _SAME_EVERYWHERE:
        return None
    seen.add(function)
    templates = list(_templates(function))
    if any(template.metadata.get("target") == "cuda" for template in templates):
        return function
    for template in templates:
        made_by = getattr(template, "_overload_func", None)
        for called in _functions_named(made_by) if isinstance(made_by, FunctionType) else ():
            found = _look(called, seen)
            if found is not None:
                return found
    return None


def _templates(function: FunctionType) -> Iterator[Any]:
    """What Numba and numba-cuda, which has a list of its own, know about calls of the function."""
    own = getattr(sys.modules.get("numba.cuda.typing.templates"), "builtin_registry", None)
    for registry in (builtin_registry, own):
        for value, kind in getattr(registry, "globals", ()):
            if value is function:
                yield from kind.templates


def _functions_named(function: FunctionType) -> Iterator[FunctionType]:
    known = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    for name in _names(function.__code__):
        if isinstance(known.get(name), FunctionType):
            yield known[name]


def _names(code: CodeType) -> Iterator[str]:
    yield from (*code.co_names, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
