"""Compilers of kernels for GPUs, imported on request: importing one may load GPU libraries."""

from synknumba._device.compilers.base import KERNEL_DECORATORS as KERNEL_DECORATORS
from synknumba._device.compilers.base import Compiler as Compiler
from synknumba._device.compilers.base import plain_kernel as plain_kernel
from synknumba._device.compilers.base import refuse_kernel as refuse_kernel


def find_compiler() -> type[Compiler]:
    """Returns the compiler of this process; called in a rank or a probing child, not in the coordinator."""
    from synknumba._device.compilers.numba_cuda import NumbaCuda

    return NumbaCuda
