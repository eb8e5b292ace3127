"""The module `numba.cuda`, of Numba or numba-cuda, or what takes its place where Numba has none."""

import importlib
import sys
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, Final

from synknumba._errors import DeviceError

OWN: Final = "synknumba.simt.cuda"
_NAMES: Final = ("numba.cuda", OWN)


def cuda_module() -> ModuleType:
    """Returns the module `numba.cuda`; `synknumba.simt.cuda` where Numba has none.

    Raises:
        DeviceError: there is one, which cannot be imported.
    """
    try:
        # the import takes 0.3 s, and fails if the CUDA installation is broken
        from numba import cuda
    except Exception as error:
        if str(error).startswith("cannot import name 'cuda' from 'numba'"):
            return importlib.import_module(OWN)  # by name: it is above the compiler
        # A bare numba-cuda raises DynamicLibNotFoundError, which is a RuntimeError, not an
        # ImportError.
        reason = str(error).partition("\n")[0]
        raise DeviceError(
            f"numba.cuda cannot be imported ({type(error).__name__}: {reason}); "
            "if numba-cuda is installed without the CUDA runtime, pip install nvidia-cuda-runtime, "
            "or pip uninstall numba-cuda"
        ) from error
    module: ModuleType = cuda
    return module


def from_numba_cuda(name: str, user: str) -> ModuleType:
    """Imports and returns a module of `numba.cuda`; raises DeviceError where Numba has none, for
    the feature `user`.
    """
    if cuda_module().__name__ == OWN:
        raise DeviceError(
            f"{user} needs numba.cuda.{name}, and this Numba has no numba.cuda; "
            f"install numba-cuda with CUDA's libraries: pip install 'synknumba[cuda13]'"
        )
    return importlib.import_module(f"numba.cuda.{name}")


def is_cuda_module(value: object) -> bool:
    """Returns whether this is `numba.cuda` or `synknumba.simt.cuda`."""
    return isinstance(value, ModuleType) and value in map(sys.modules.get, _NAMES)


def has_cuda_module() -> bool:
    """Returns whether either module is imported, so that a kernel may refer to it."""
    return not sys.modules.keys().isdisjoint(_NAMES)


@dataclass(frozen=True, slots=True)
class CudaPath:
    """Dotted path of a member of `numba.cuda`, such as "atomic.add"; empty for the module
    itself.
    """

    path: str

    def below(self, name: str) -> "CudaPath":
        """Returns the path of a member of this member."""
        return CudaPath(f"{self.path}.{name}".removeprefix("."))

    def member(self) -> Any:
        """Returns the member; `MISSING` if there is none."""
        value: Any = cuda_module()
        for part in filter(None, self.path.split(".")):
            value = getattr(value, part, MISSING)
        return value


MISSING: Final[Any] = object()  # the result for a name that has no value at translation


def is_of_module(value: Any, module: str) -> bool:
    """Returns whether the module has the value, a function, under its own name."""
    if not isinstance(value, FunctionType):
        return False
    return getattr(sys.modules.get(module), value.__name__, None) is value
