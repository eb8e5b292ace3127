"""Reduction by a user's op: the kernel, for every device, and its use on a core.

    target[i] ← fn(… fn(fn(target[i], parts[0, i]), parts[1, i]) …, parts[P − 1, i])

The kernel is in Numba's CUDA dialect, so the function may call what a kernel may call. Parts are folded in the order of their
rows: an op must be associative, but need not be commutative.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numba.core.errors import NumbaError

from synknumba._errors import KernelError, ReductionError
from synknumba._ops.reduction import identity
from synknumba._types import Array, UserOp
from synknumba.simt import Kernel, jit

THREADS = 256  # per block
MOST_BLOCKS = 4096  # beyond, a thread takes several elements

_kernels: "WeakKeyDictionary[UserOp, Kernel]" = WeakKeyDictionary()


def fold_kernel(op: UserOp) -> Callable[..., None]:
    """Returns the kernel of an op: a plain function of `target`, shape (n,), and `parts`, shape (P, n)."""
    from numba import cuda  # not when synknumba is imported

    combine = cuda.jit(device=True)(op.function)

    def fold(target: Any, parts: Any) -> None:
        for i in range(cuda.grid(1), target.shape[0], cuda.gridsize(1)):
            for p in range(parts.shape[0]):
                target[i] = combine(target[i], parts[p, i])

    return fold


def blocks_for(elements: int) -> int:
    """Returns the number of blocks of a launch."""
    return max(1, min(-(-elements // THREADS), MOST_BLOCKS))


def check(op: UserOp) -> None:
    """Checks that a kernel can call the op's function, as far as that shows without types; a KernelError names the line."""
    _kernel(op).check()


def check_identity(op: UserOp, dtype: Any, name: str) -> None:
    """Checks that an op compiles for the dtype of an output, and that its identity e satisfies op(e, e) = e.

    Raises:
        KernelError: Numba cannot compile the op for the dtype.
        ReductionError: op(e, e) ≠ e.
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
            f"{name}: identity={op.identity!r} of op {op!r} is not neutral: {op!r}({start}, {start}) is {got}; pass "
            f"the number e with {op!r}(e, a) = {op!r}(a, e) = a"
        )


def fold(op: UserOp, parts: Array) -> Any:
    """Folds parts of shape (P, …), P ≥ 1, along axis 0, on this core; returns a new array, or a NumPy scalar for 1-D parts."""
    total = np.array(parts[0], order="C")
    lines = np.ascontiguousarray(parts[1:]).reshape(len(parts) - 1, total.size)
    if lines.size:
        _kernel(op)[blocks_for(total.size), THREADS](total.reshape(-1), lines)
    return total if total.ndim else total[()]


def _kernel(op: UserOp) -> Kernel:
    kernel = _kernels.get(op)
    if kernel is None:
        kernel = _kernels[op] = jit(fold_kernel(op))
    return kernel
