"""Reduction by a user's op: the kernel, for every device, and its use on a core.

    target[i] ← fn(… fn(fn(target[i], parts[0, i]), parts[1, i]) …, parts[P − 1, i])

The kernel is in Numba's CUDA dialect, so the function may call what a kernel may call. Parts are
folded in the order of their
rows: an op must be associative, but need not be commutative.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core.errors import NumbaError

from synknumba._errors import ArgumentError, KernelError, ReductionError
from synknumba._ops import reduction
from synknumba._ops.reduction import identity
from synknumba._types import Array, Op, UserOp, WeakTable
from synknumba.simt import Kernel, jit
from synknumba.simt.internals import cause, cuda_module, explain

THREADS = 256  # per block
MOST_BLOCKS = 4096  # beyond, a thread takes several elements

# From the most common on: nearly every op compiles for the first, and the next ones take time only
# if it does not.
_DTYPES = ("f8", "i8", "c16", "?", "f4", "i4")

# Raised as a kernel is compiled for an op.
# the last of a name that a module lacks
COMPILE_ERRORS = (
    NumbaError,
    KernelError,
    ArgumentError,
    AttributeError,
)

_kernels: "WeakTable[UserOp, Kernel]" = WeakTable()


def fold_kernel(op: UserOp) -> Callable[..., None]:
    """Returns the kernel of an op: a plain function of `target`, shape (n,), and `parts`, shape
    (P, n).
    """
    cuda = cuda_module()  # not when synknumba is imported
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
    """Checks that a kernel can call the op's function, as far as that shows without types; a
    ReductionError names the line.
    """
    try:
        _kernel(op).check()
    except KernelError as error:
        raise ReductionError(f"op {op!r} cannot be compiled: {error}") from error


def check_any(op: UserOp, name: str) -> None:
    """Checks that an op compiles for numbers of some dtype; the ReductionError tells why it does
    not for float64.
    """
    first: ReductionError | None = None
    for dtype in _DTYPES:
        try:
            return compile_for(op, dtype, name)
        except ReductionError as error:
            first = first or error
    assert first is not None  # there are dtypes
    raise first


def compile_for(op: UserOp, dtype: Any, name: str) -> None:
    """Compiles an op for a dtype without calling it; raises ReductionError, with the reason in
    one line, if Numba cannot.
    """
    try:
        _kernel(op)[1, THREADS](np.empty(0, dtype), np.empty((1, 0), dtype))
    except COMPILE_ERRORS as error:
        raise ReductionError(
            f"{name}: op {op!r} cannot be compiled for two numbers of dtype "
            f"{np.dtype(dtype)}: {_reason(error, op)}"
        ) from cause(error)


def check_identity(op: UserOp, dtype: Any, name: str) -> None:
    """Checks that an op compiles for the dtype of an output, and that its identity e satisfies
    op(e, e) = e.

    Raises:
        ReductionError: Numba cannot compile the op for the dtype, or op(e, e) ≠ e.
    """
    compile_for(op, dtype, name)
    start = identity(op, dtype)
    got = fold(op, np.array([start, start]))
    if not (got == start or (got != got and start != start)):  # noqa: PLR0124  # NaN
        raise ReductionError(
            f"{name}: identity={op.identity!r} of op {op!r} is not neutral: {op!r}({start}, "
            f"{start}) is {got}; pass the number e with {op!r}(e, a) = {op!r}(a, e) = a"
        )


def _reason(error: Exception, op: UserOp) -> str:
    """Returns what a compiler's message says is wrong, with the place in the op's source if it
    is there.
    """
    short = explain(error, op.function)
    if short is not None:
        return str(short)
    lines = [line for line in map(str.strip, str(error).splitlines()) if line]
    lines = [line for line in lines if not line.startswith("Failed in ")]
    calls = [line.removeprefix(">>> ") for line in lines if line.startswith(">>> ")]
    if not calls:
        return next(iter(lines), type(error).__name__)
    # the kernel's own statement
    returned = re.fullmatch(r"setitem\(array\(\w+, 1d, C\), int64, (.+)\)", calls[0])
    if returned:
        return f"it returns {returned[1]}, not a number"
    return f"Numba has no {calls[0]}"


def fold(op: UserOp, parts: Array) -> Any:
    """Folds parts of shape (P, …), P ≥ 1, along axis 0, on this core; returns a new array, or a
    NumPy scalar for 1-D parts.
    """
    total = np.array(parts[0], order="C")
    lines = np.ascontiguousarray(parts[1:]).reshape(len(parts) - 1, total.size)
    if lines.size:
        _kernel(op)[blocks_for(total.size), THREADS](total.reshape(-1), lines)
    return total if total.ndim else total[()]


def combined(op: Op, parts: Array, weights: Any) -> Any:
    """Returns the combination of the ranks' parts, of shape (W, …), by any op; `weights` are the
    rows of each, for a mean.
    """
    if isinstance(op, UserOp):
        return fold(op, parts)
    return reduction.combine(op, parts, np.asarray(weights, np.int64))


def _kernel(op: UserOp) -> Kernel:
    kernel = _kernels.get(op)
    if kernel is None:
        kernel = _kernels[op] = jit(fold_kernel(op))
    return kernel
