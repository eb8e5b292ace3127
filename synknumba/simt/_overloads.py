"""The signatures that a kernel is declared with, and how arguments are fitted to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.core import sigutils, types
from numba.core.registry import cpu_target
from numba.core.typing import signature
from numba.np.numpy_support import as_dtype

from synknumba._errors import ArgumentError

Signature = tuple[types.Type, ...]

# CUDA's limit on a grid along x. One core runs the blocks in turn, so a grid that synchronises may have as many as any other.
MAX_GRID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Overload:
    """A kernel compiled for one list of argument types.

    Attributes:
        cooperative: whether the kernel synchronises the whole grid.
    """

    signature: Signature
    cooperative: bool

    def max_cooperative_grid_blocks(self, blockdim: Any, dynsmemsize: int = 0) -> int:
        """How many blocks a grid that synchronises may have: as many as any grid, since one core runs them in turn."""
        del blockdim, dynsmemsize
        return MAX_GRID


def parse_signatures(given: Any) -> tuple[Signature, ...]:
    """The argument types of the signatures given to the decorator: none, one, or a list of them."""
    if given is None:
        return ()
    listed = given if isinstance(given, list) else [given]
    return tuple(tuple(sigutils.normalize_signature(one)[0]) for one in listed)


def best_signature(function: Any, signatures: Sequence[Signature], kinds: Signature) -> Signature:
    """The signature that fits arguments of these types best, by Numba's own rules for overloads.

    Raises:
        ArgumentError: none fits.
        TypeError: several fit equally well.
    """
    cases = [signature(types.none, *one) for one in signatures]
    context = cpu_target.typing_context
    best = context.resolve_overload(function, cases, kinds, {}, allow_ambiguous=False)
    if best is None:
        given = ", ".join(str(kind) for kind in kinds)
        declared = "; ".join(str(one) for one in signatures)
        message = f"No matching definition of {function.__qualname__}() for argument type(s) {given}; it has {declared}"
        raise ArgumentError(message)
    return tuple(best.args)


def fit(signature: Signature, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, numbers among them converted to the types of the signature."""
    if len(signature) != len(args):
        return args  # the call says how many there must be
    return tuple(
        _converted(as_dtype(kind), arg) if isinstance(kind, (types.Number, types.Boolean)) else arg
        for kind, arg in zip(signature, args, strict=True)
    )


def _converted(dtype: np.dtype[Any], value: Any) -> Any:
    try:
        return dtype.type(value)
    except OverflowError:  # an int that does not fit keeps its low bits, as it does on a GPU
        bits = 8 * dtype.itemsize
        return np.array(value & ((1 << bits) - 1), f"u{dtype.itemsize}").view(dtype)[()]
