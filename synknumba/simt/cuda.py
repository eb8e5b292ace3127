"""What programs use of `numba.cuda`, on cores, whether Numba has such a module or not.

    from synknumba.simt import cuda        # in place of: from numba import cuda

The members for kernels are Numba's own where it has them, so that kernels may name either module.
`jit` is `simt.jit`; arrays, streams, events and devices are those of `simt.as_cuda`.
"""

from dataclasses import dataclass
from typing import Any, final

from synknumba.simt._source.kernel_names import kernel_names
from synknumba.simt._standins.replace import host_members

globals().update(kernel_names(), **host_members())


@dataclass(frozen=True)
class InOut:
    """An argument of a launch that a GPU would copy there and back."""

    value: Any


@final
class In(InOut):
    """An argument of a launch that a GPU would copy there, so that writes to it are lost."""


@final
class Out(InOut):
    """An argument of a launch that a GPU would copy back."""


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"synknumba.simt.cuda has no {name}: either numba.cuda has none, or it needs a GPU"
    )
