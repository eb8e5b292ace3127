"""The public names of the package, by module. tests/test_site.py compares them with the
reference.
"""

import importlib
import pkgutil
from types import ModuleType
from typing import Any

from numba.core.types import Type

MODULES = (
    "synknumba",
    "synknumba.optim",
    "synknumba.train",
    "synknumba.random",
    "synknumba.plot",
    "synknumba.simt",
)


def modules() -> list[ModuleType]:
    """Returns the public modules, with those of the kernel library."""
    kernels = importlib.import_module("synknumba.kernels")
    found = [one.name for one in pkgutil.iter_modules(kernels.__path__)]
    names = [f"synknumba.kernels.{name}" for name in found if not name.startswith("_")]
    return [importlib.import_module(name) for name in (*MODULES, *names)]


def members(module: ModuleType) -> dict[str, Any]:
    """Returns the public members of a module by name: what it defines or re-exports, not modules,
    nor what others define.

    NumPy references of kernels are left out: they are documented by the kernels beside them.
    """
    return {
        name: one for name, one in sorted(vars(module).items()) if _is_public(module, name, one)
    }


def _is_public(module: ModuleType, name: str, one: Any) -> bool:
    if name.startswith("_") or name.endswith("_reference") or isinstance(one, ModuleType | Type):
        return False
    home = getattr(one, "__module__", None)
    # not lists of imports, but the modules themselves
    if module.__name__ in {"synknumba.random", "synknumba.plot"}:
        return home == module.__name__ and callable(one) and hasattr(one, "__qualname__")
    if home is None or (isinstance(one, int | float) and not isinstance(one, type)):
        return name.isupper()  # a constant
    if module.__name__.startswith("synknumba.kernels."):
        return (
            home in {module.__name__, "synknumba._call.function"}
            and getattr(one, "__qualname__", name) == name
            and (
                module.__name__
                == getattr(getattr(one, "py_func", one), "__module__", module.__name__)
            )
        )
    return home.partition(".")[0] == "synknumba"


def public_names() -> dict[str, Any]:
    """Returns every public object by its full public name."""
    return {
        f"{module.__name__}.{name}": one
        for module in modules()
        for name, one in members(module).items()
    }
