"""Ops of the user's: the kernel that folds with one, on every device, and its use on a core.

    target[i] ← fn(… fn(fn(target[i], parts[0, i]), parts[1, i]) …, parts[P − 1, i])

It is in Numba's CUDA dialect, so the function may call what a kernel may call. Parts are folded in the order of their rows: an
op has to be associative, but need not be commutative.
"""

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numba.core.errors import NumbaError

from synknumba._errors import KernelError, ReductionError
from synknumba._ops.reduction import identity
from synknumba._types import Array, UserOp
from synknumba.simt import Kernel, jit

THREADS = 256  # of a block
MOST_BLOCKS = 4096  # beyond, a thread takes several elements

_kernels: "WeakKeyDictionary[UserOp, Kernel]" = WeakKeyDictionary()


def fold_kernel(op: UserOp) -> Callable[..., None]:
    """The kernel of an op, a plain function of `target`, shape (n,), and `parts`, shape (P, n)."""
    from numba import cuda  # not when synknumba is imported

    combine = cuda.jit(device=True)(op.function)

    def fold(target: Any, parts: Any) -> None:
        for i in range(cuda.grid(1), target.shape[0], cuda.gridsize(1)):
            for p in range(parts.shape[0]):
                target[i] = combine(target[i], parts[p, i])

    return fold


def blocks_for(elements: int) -> int:
    """The blocks of a launch."""
    return max(1, min(-(-elements // THREADS), MOST_BLOCKS))


def check(op: UserOp) -> None:
    """Refuses a function that no kernel can call, as far as that shows without the types.

    Raises:
        KernelError: by name and line.
    """
    _kernel(op).check()


def check_identity(op: UserOp, dtype: Any, name: str) -> None:
    """Refuses a function that cannot be compiled for a dtype, and an identity that is none: two of them have to make one.

    Args:
        op: that starts from an identity.
        dtype: of the output.
        name: of the output.

    Raises:
        KernelError: Numba cannot compile it for numbers of the dtype.
        ReductionError: the identity is none.
    """
    start = identity(op, dtype)
    try:
        got = fold(op, np.array([start, start]))
    except NumbaError as error:
        raise KernelError(
            f"{name}: op {op!r} cannot be compiled for two numbers of dtype {np.dtype(dtype)}: {error}"
        ) from error
    if not (got == start or (got != got and start != start)):  # noqa: PLR0124  # NaN
        raise ReductionError(
            f"{name}: identity={op.identity!r} of op {op!r} changes something: {op!r}({start}, {start}) is {got}; give "
            f"the number e with {op!r}(e, a) = {op!r}(a, e) = a"
        )


def fold(op: UserOp, parts: Array) -> Any:
    """Folds along axis 0, on this core.

    Args:
        op: what with.
        parts: shape (P, …), at least one.

    Returns:
        Shape (…), memory of its own; a NumPy scalar where parts is 1-D.
    """
    total = np.array(parts[0], order="C")
    lines = np.ascontiguousarray(parts[1:]).reshape(len(parts) - 1, total.size)
    if lines.size:
        _kernel(op)[blocks_for(total.size), THREADS](total.reshape(-1), lines)
    return total if total.ndim else total[()]


def folding(op: UserOp, parts: Array) -> Callable[[], Any]:
    """A function that folds what is in the parts then."""
    return partial(fold, op, parts)


def _kernel(op: UserOp) -> Kernel:
    kernel = _kernels.get(op)
    if kernel is None:
        kernel = _kernels[op] = jit(fold_kernel(op))
    return kernel
