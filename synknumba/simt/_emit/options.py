"""Options of a kernel that change its machine code."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba import njit


@dataclass(frozen=True, slots=True)
class Options:
    """Compilation options of a kernel.

    Attributes:
        fastmath: as in `numba.njit`. GPUs contract `a * b + c` to a fused multiply-add by default,
            hence the default here.
        reverse: whether threads run from the last to the first, which exposes a missing barrier.
        debug: whether indices and divisions are checked and errors name the thread that raised.
        checked: whether accesses are instrumented, for `simt.check`.
    """

    fastmath: bool | frozenset[str] = frozenset({"contract"})
    reverse: bool = False
    debug: bool = False
    checked: bool = False

    def njit(self, function: Callable[..., Any], **more: Any) -> Any:
        """Returns Numba's dispatcher of the function; nothing is compiled yet."""
        return njit(**self.flags(), **more)(function)

    def flags(self) -> dict[str, Any]:
        """Returns the arguments of `njit`."""
        flags: dict[str, Any] = {"error_model": "numpy", "boundscheck": None}
        flags["fastmath"] = self.fastmath
        if isinstance(self.fastmath, frozenset):
            flags["fastmath"] = set(self.fastmath)
        if self.debug:
            flags["boundscheck"] = True
            # A possible ZeroDivisionError is an exit from the loop, which keeps the loop from
            # vectorizing.
            if self.fastmath is not True:  # as in numba-cuda
                flags["error_model"] = "python"
        return flags
