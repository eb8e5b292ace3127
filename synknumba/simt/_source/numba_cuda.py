"""The module `numba.cuda`, of Numba or numba-cuda."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from synknumba._errors import DeviceError


def cuda_module() -> ModuleType:
    """Imports and returns the module `numba.cuda`; raises DeviceError if it cannot be imported."""
    try:
        # the import takes 0.3 s, and fails if the CUDA installation is broken
        from numba import cuda
    except Exception as error:
        # A bare numba-cuda raises DynamicLibNotFoundError, which is a RuntimeError, not an
        # ImportError.
        raise DeviceError(
            f"numba.cuda cannot be imported ({type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''}); "
            "if numba-cuda is installed without the CUDA runtime, pip install nvidia-cuda-runtime, "
            "or pip uninstall numba-cuda"
        ) from error
    module: ModuleType = cuda
    return module


@dataclass(frozen=True, slots=True)
class CudaPath:
    """Dotted path of a member of `numba.cuda`, such as "atomic.add"; empty for the module
    itself.
    """

    path: str

    def member(self) -> Any:
        """Returns the member; `MISSING` if there is none."""
        value: Any = cuda_module()
        for part in self.path.split("."):
            value = getattr(value, part, MISSING)
        return value


MISSING: Final[Any] = object()  # the result for a name that has no value at translation
