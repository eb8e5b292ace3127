"""Functions that a program overloads for GPUs, by `@overload(function, target="cuda")` of Numba or
numba-cuda.

The CPU target would use another overload, if there is one, and compute something else. A kernel on
a core calls the overload that a GPU's would: that for "cuda", else that for "gpu", else that for
every target.
"""

from dataclasses import dataclass
from itertools import chain
from types import FunctionType
from typing import Any, Final

from synknumba.simt._source.pickling import target_of, templates_of
from synknumba.simt._source.reads import values_read

# Top-level modules whose CUDA overloads compute the same as those for the CPU.
_SAME_EVERYWHERE: Final = frozenset({"builtins", "cmath", "math", "numpy", "operator"})

# Targets of overloads that a GPU's kernel may call, the most specific first.
_TARGETS: Final = ("cuda", "gpu", "generic")


@dataclass(frozen=True, slots=True)
class OverloadedFunction:
    """A function in a kernel's namespace that stands for its overloads for GPUs."""

    function: Any


def maker_of(template: Any) -> Any:
    """Returns the function that gives an overload by the types of the arguments; None if the
    template has none. Numba has no public accessor.
    """
    return getattr(template, "_overload_func", None)


def overloaded_for_cuda(function: Any) -> Any:
    """Returns the function or class, or one that its overloads call, which has an overload for
    CUDA only; None if none has.
    """
    return _overloaded(function, set())


def _overloaded(function: Any, visited: set[Any]) -> Any:
    if not isinstance(function, (FunctionType, type)) or function in visited:
        return None
    visited.add(function)
    if str(function.__module__).partition(".")[0] in _SAME_EVERYWHERE:
        return None
    templates = [template for _, _, template in templates_of(function)]
    if "cuda" in map(target_of, templates):
        return function
    makers = (maker for maker in map(maker_of, templates) if isinstance(maker, FunctionType))
    for callee in chain.from_iterable(map(values_read, makers)):
        overloaded = _overloaded(callee, visited)
        if overloaded is not None:
            return overloaded
    return None


def overloads_for_cuda(function: Any) -> list[Any]:
    """Returns the templates of the overloads that a GPU's kernel tries, in that order; later
    ones replace earlier ones.
    """
    by_maker = {}  # numba-cuda registers one for every target with Numba too
    for _, _, template in templates_of(function):
        maker = maker_of(template)
        if maker is not None and target_of(template) in _TARGETS:
            by_maker[maker] = template
    latest_first = [*by_maker.values()][::-1]
    return sorted(latest_first, key=lambda template: _TARGETS.index(target_of(template)))
