"""Errors for functions, attributes and types that a program has registered with Numba for the
target "cuda" only.

Overloads of plain functions and classes are refused when the kernel is translated, see `desugar`.
The rest shows when Numba types the generated code: its errors name what it lacks, and the
registries of both targets tell whether CUDA has it.
"""

import ast
import builtins
import importlib
import operator
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

from numba.core import types
from numba.core.errors import NumbaError
from numba.core.pythonapi import _unboxers
from numba.core.registry import cpu_target
from numba.core.typing.templates import builtin_registry

from synknumba._errors import KernelError
from synknumba.simt._explain.numba_says import says, text_of
from synknumba.simt._source.pickling import target_of, templates_of
from synknumba.simt._source.written import Source

_EVERY_TARGET: Final = "register it for every target"


def cuda_only(error: Exception, source: Source, namespace: Mapping[str, Any]) -> KernelError | None:
    """Returns the error to raise in place of an error of Numba; None if that is about something
    else.

    Args:
        error: raised by Numba as it compiled a kernel.
        source: the kernel.
        namespace: the kernel's global names and their objects.
    """
    if "numba.cuda" not in sys.modules:
        return None  # nothing is registered for it
    text = text_of(error)
    only = "which is registered for the target 'cuda' only,"
    if match := says(text, "no match for this target"):
        return _refusal(source, match["name"], f"{_last(match['name'])}(), {only}")
    if match := says(text, "not lowered"):
        name = match["attribute"] or _last(match["name"])
        return _refusal(source, name, f"{name}, without an implementation for the CPU,")
    match = says(text, "untyped global")
    # The name may be one of a function that the kernel calls, and so not in its namespace.
    if match and match[1] in namespace and _is_typed_for_cuda(namespace[match[1]]):
        return _refusal(source, match[1], f"{match[1]}, {only}")
    match = says(text, "no attribute")
    if match and match[1] in set(_attributes_of_cuda()):
        construct = f"the attribute {match[1]!r} of {match[2].strip()}, {only}"
        return _refusal(source, match[1], construct)
    return None


def refuse_arguments(source: Source, argtypes: Mapping[str, types.Type]) -> None:
    """Raises KernelError for an argument of a type that the program has added to Numba, and that
    only a GPU's kernels take.
    """
    for name, kind in argtypes.items():
        is_of_numba = type(kind).__module__.partition(".")[0] == "numba"
        if not is_of_numba and _unboxers.lookup(type(kind)) is None:
            shown = name.removesuffix("__arg")
            construct = (
                f"the argument {shown!r} of the type {kind}, which Numba cannot "
                f"pass to code for the CPU,"
            )
            remedy = "register its model and unbox() with numba.extending, or pass its parts"
            raise source.refusal(source.tree, construct, remedy)


def _refusal(source: Source, name: str, construct: str) -> KernelError:
    """Returns the error, at the first line of the kernel that has the name."""
    for node in ast.walk(source.tree):
        if _last(name) in {getattr(node, "id", ""), getattr(node, "attr", "")}:
            return source.refusal(node, construct, _EVERY_TARGET)
    return source.refusal(source.tree, construct, _EVERY_TARGET)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _cuda_context() -> Any:
    context = importlib.import_module("numba.cuda.descriptor").cuda_target.typing_context
    context.refresh()
    return context


def _is_typed_for_cuda(value: Any) -> bool:
    try:
        _cuda_context().resolve_value_type(value)
    except (NumbaError, TypeError, ValueError):  # TypeError: unhashable; ValueError: by numba-cuda
        return False
    return True


def is_overloaded_for_cuda(name: str) -> bool:
    """Returns whether the program has registered an operator or built-in function of this name
    for CUDA only.
    """
    function = getattr(operator, name, getattr(builtins, name, None))
    modules = [
        template._overload_func.__module__  # noqa: SLF001
        for _, _, template in templates_of(function)
        if target_of(template) == "cuda"
    ]
    registered = getattr(sys.modules.get("numba.cuda.cudadecl"), "registry", None)
    for value, kind in getattr(registered, "globals", ()):
        if value is function:  # a decorator has derived the template from the program's
            modules += [base.__module__ for template in kind.templates for base in template.__mro__]
    return any(module != "builtins" and not module.startswith("numba.") for module in modules)


def _attributes_of_cuda() -> Iterator[str]:
    """Yields the attributes and methods that the program has registered for CUDA only."""
    for template in builtin_registry.attributes:
        if target_of(template) == "cuda":
            yield getattr(template, "_attr", "")
    for kind in _attribute_templates(_cuda_context()) - _attribute_templates(
        cpu_target.typing_context
    ):
        if not kind.__module__.startswith("numba."):
            for name in dir(kind):
                if name.startswith("resolve_"):
                    yield name.removeprefix("resolve_")


def _attribute_templates(context: Any) -> set[type]:
    lists = context._attributes.values()  # noqa: SLF001  # there is no public list
    return set(map(type, chain.from_iterable(lists)))
