"""Functions that a program overloads for GPUs, by `@overload(function, target="cuda")` of Numba or
numba-cuda.

The CPU target would use another overload, if there is one, and compute something else. A kernel on
a core calls the overload that a GPU's would: that for "cuda", else that for "gpu", else that for
every target.
"""

from dataclasses import dataclass
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


def overloaded_for_cuda(function: Any, seen: set[Any] | None = None) -> Any:
    """Returns the function or class, or one that its overloads call, which has an overload for
    CUDA only; None if none has.
    """
    seen = set() if seen is None else seen
    if not isinstance(function, (FunctionType, type)) or function in seen:
        return None
    if str(function.__module__).partition(".")[0] in _SAME_EVERYWHERE:
        return None
    seen.add(function)
    templates = [template for _, _, template in templates_of(function)]
    if any(target_of(template) == "cuda" for template in templates):
        return function
    for template in templates:
        maker = getattr(template, "_overload_func", None)
        for callee in values_read(maker) if isinstance(maker, FunctionType) else ():
            overloaded = overloaded_for_cuda(callee, seen)
            if overloaded is not None:
                return overloaded
    return None


def overloads_for_cuda(function: Any) -> list[Any]:
    """Returns the templates of the overloads that a GPU's kernel tries, in that order; later
    ones replace earlier ones.
    """
    by_maker = {}
    for _, _, template in templates_of(function):
        if hasattr(template, "_overload_func") and target_of(template) in _TARGETS:
            by_maker[template._overload_func] = template  # noqa: SLF001  # numba-cuda registers one for every target with Numba too
    latest_first = [*by_maker.values()][::-1]
    return sorted(latest_first, key=lambda template: _TARGETS.index(target_of(template)))
