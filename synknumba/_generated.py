"""Kernels that are generated around a user's function: their names, and how their text becomes a function."""

import hashlib
import linecache
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from synknumba._errors import ArgumentError

OWN_PREFIX = "synk_"  # of the names in a generated kernel that are not parameters of the function


def kernel_name(what: str, function: str) -> str:
    """A name that tells what the kernel does with which function, which may be a lambda."""
    return f"{what}_{function}" if function.isidentifier() else f"{what}_rows"


def check_own_names(name: str, parameters: Iterable[str], others: Collection[str]) -> None:
    """Refuses parameters named as the kernel's own variables, or as `others`, the global names that it uses."""
    own = [parameter for parameter in parameters if parameter.startswith(OWN_PREFIX) or parameter in others]
    if own:
        message = f"{name} has a parameter named {own[0]!r}, which its kernel uses itself; rename it"
        raise ArgumentError(message)


def device_function(function: Callable[..., Any]) -> Any:
    """A plain function as kernels call it."""
    from numba import cuda  # not when synknumba is imported

    return cuda.jit(device=True)(function)


def define_kernel(text: str, name: str, what: str, function: Any, scope: Mapping[str, Any]) -> Callable[..., Any]:
    """The kernel as a Python function whose source can be looked at, on the ranks too.

    Args:
        text: its source.
        name: the kernel's.
        what: it is for, as its file is named.
        function: what `device_function` made of the user's; the text calls it `synk_function`.
        scope: what else the text names, besides `cuda`.
    """
    from numba import cuda  # not when synknumba is imported

    whole: dict[str, Any] = {"synk_function": function, "cuda": cuda, "__name__": function.py_func.__module__}
    whole |= scope
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]  # the same text, the same name: kernels on disk are found again
    filename = f"<synknumba {what} {digest}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), whole)  # noqa: S102  # the generated kernel
    kernel: Any = whole[name]
    kernel.__doc__ = function.py_func.__doc__
    return kernel  # type: ignore[no-any-return]
