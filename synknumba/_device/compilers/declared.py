"""Kernels with declared signatures on GPUs: numbers are converted to them, as Numba's own
launches do, and arrays must fit.
"""

from collections.abc import Callable, Sequence
from typing import Any, final

from numba import typeof
from numba.core import types
from numba.np.numpy_support import from_dtype

from synknumba._device.base import Three
from synknumba._device.compilers.base import CompiledKernel
from synknumba.simt.internals import Signature, Signatures


@final
class DeclaredKernel(CompiledKernel):
    """A kernel that is compiled for what it is declared with.

    Recorded launches would pass numbers as they come, so that its launches run one by one.

    Args:
        kernel: compiles it for any arguments.
        function: the Python function, for messages.
        signatures: argument types, of Numba.
    """

    def __init__(
        self, kernel: CompiledKernel, function: Callable[..., Any], signatures: Sequence[Signature]
    ) -> None:
        self._kernel, self._signatures = kernel, Signatures(function, signatures)

    def launcher(self, grid: Three, block: Three, smem_bytes: int) -> Callable[..., object]:
        launch = self._kernel.launcher(grid, block, smem_bytes)
        return lambda *args: launch(*self._fitted(args))

    def is_capturable(self, args: Sequence[Any]) -> bool:
        return False

    def convert(self, arg: Any) -> Any:
        return arg

    def prints(self) -> bool:
        return self._kernel.prints()

    def _fitted(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        args = self._signatures.convert(args, _type_of)
        if self._signatures.is_one:
            self._signatures.best(tuple(map(_type_of, args)))  # raises for arrays that do not fit
        return tuple(map(self._kernel.convert, args))


def _type_of(arg: Any) -> types.Type:
    if not hasattr(arg, "__cuda_array_interface__"):
        return typeof(arg)
    is_contiguous = arg.__cuda_array_interface__.get("strides") is None
    return types.Array(from_dtype(arg.dtype), arg.ndim, "C" if is_contiguous else "A")
