"""The members of `numba.cuda` that kernels name, also where Numba has no such module.

There they are classes without code, as Numba's own are: the compiler replaces both by their paths.
"""

import importlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from synknumba._errors import KernelError
from synknumba.simt._library.words import INDICES
from synknumba.simt._maths.operations import FUNCTIONS, HEADS, MODULES
from synknumba.simt._source.numba_cuda import OWN, cuda_module

# Paths of members of members that are no functions with code.
_BELOW: Final = (
    *INDICES,
    "shared.array",
    "local.array",
    "const.array_like",
    "cg.this_grid",
)


class KernelName:
    """A member of `synknumba.simt.cuda` for kernels, which only a compiler gives a meaning."""

    def __new__(cls, *_args: Any, **_named: Any) -> "KernelName":
        raise KernelError(f"cuda.{cls.__qualname__}() works in kernels only")


def kernel_names() -> Mapping[str, Any]:
    """Returns the members of `numba.cuda` for kernels; classes without code if Numba has none."""
    cuda = cuda_module()
    if cuda.__name__ == OWN:
        return _without_code()
    for name in MODULES:
        with suppress(ImportError):  # numba-cuda alone has `bf16`
            importlib.import_module(f"numba.cuda.{name}")
    names = (*HEADS, *MODULES)
    return {name: getattr(cuda, name) for name in names if hasattr(cuda, name)}


def _without_code() -> dict[str, type[KernelName]]:
    below: dict[str, list[str]] = {head: [] for head in HEADS}
    for path in (*_BELOW, *FUNCTIONS):
        head, _, name = path.partition(".")
        if name:
            below[head].append(name)
    return {head: _class(head, names) for head, names in below.items()}


def _class(path: str, names: Iterable[str] = ()) -> type[KernelName]:
    members = {name: _class(f"{path}.{name}") for name in names}
    attributes = {**members, "__module__": OWN, "__qualname__": path}
    return type(path.rpartition(".")[2], (KernelName,), attributes)


def path_of(value: Any) -> str | None:
    """Returns the path of a name without code; None for all other values."""
    if isinstance(value, type) and issubclass(value, KernelName):
        return value.__qualname__
    return None
