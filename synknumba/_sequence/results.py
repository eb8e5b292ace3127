"""What the body of a sequence returns: handles of results, and kept iterations, stacked."""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from synknumba._call.plan import KernelPlan
from synknumba._errors import ReductionError
from synknumba._ops import reduction
from synknumba._ops.tree import flatten, unflatten
from synknumba._sequence.install import ResultHandle
from synknumba._sequence.recorder import ScalarResult
from synknumba._types import Array

SEQUENTIAL: Final = 8  # NumPy sums fewer parts than this in order, along any axis


def handle_of(leaf: Any) -> ResultHandle | None:
    """Returns the stand-in for a result of a call that the body returns; None for anything else."""
    one = leaf.unseen if isinstance(leaf, ScalarResult) else leaf
    return one if isinstance(one, ResultHandle) else None


def is_small(one: ResultHandle) -> bool:
    if not isinstance(one.plan, KernelPlan):
        return False
    result = one.plan.wanted[output_name(one)]
    return result.is_small and result.op is not None


def output_name(one: ResultHandle) -> str:
    assert isinstance(one.plan, KernelPlan)
    return list(one.plan.wanted)[one.index or 0]


def combined(one: ResultHandle, memory: Array) -> Array:
    """Returns the results of kept iterations, combined over the ranks: memory is uint8, shape
    (entries, W, bytes).
    """
    assert isinstance(one.plan, KernelPlan)
    name = output_name(one)
    result = one.plan.wanted[name]
    assert result.parts is not None
    if result.op in reduction.UFUNCS and memory.shape[1] < SEQUENTIAL:
        dtype = np.dtype(result.parts.dtype)
        strides = *memory.strides[:2], *np.ndarray(result.shape, dtype).strides
        parts = np.ndarray(
            (*memory.shape[:2], *result.shape), dtype, memory.data, result.parts.offset, strides
        )
        found: Array = reduction.UFUNCS[result.op].reduce(parts, 1, dtype)
        return found
    return np.stack([one.plan.collector_in(entry, name)(one.count) for entry in memory])


def stack(entries: Iterable[Any]) -> Any:
    """Returns the entries' arrays and numbers stacked along a new first axis, in the structure of
    one entry.

    A list with a value for each rank, as the op None makes it, counts as an array. Raises
    `ReductionError` if shapes or structures differ.
    """
    flat = [flatten(entry) for entry in entries]
    structure = flat[0][1]
    for index, (leaves, other) in enumerate(flat):
        shapes = [np.shape(leaf) for leaf in leaves]
        first = [np.shape(leaf) for leaf in flat[0][0]]
        if other != structure or shapes != first:
            raise ReductionError(
                "results of kept iterations must have the same shapes to be stacked, but entry "
                f"{index} has {shapes} and entry 0 has {first}; use every=None for the last ones "
                "only"
            )
    leaves = [np.stack(column) for column in zip(*(one[0] for one in flat), strict=True)]
    return _joined(unflatten(structure, leaves))


def _joined(tree: Any) -> Any:
    """Returns a tree with lists of arrays of one shape, one array for each rank, as arrays of
    shape (entries, W, …).
    """
    if (
        isinstance(tree, list)
        and tree
        and all(isinstance(one, np.ndarray) and one.shape == tree[0].shape for one in tree)
    ):
        return np.stack(tree, axis=1)
    if isinstance(tree, dict):
        return {key: _joined(one) for key, one in tree.items()}
    if isinstance(tree, tuple):
        parts = [_joined(one) for one in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree
