"""What the body of a sequence returns: results of its calls, collected after a round, or kept from
several iterations and stacked.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any, TypeAlias, final

import numpy as np

from synknumba._call.plan import FunctionPlan, Plan
from synknumba._errors import ReductionError
from synknumba._ops import reduction
from synknumba._ops.tree import LEAF, NONE, Structure, flatten, parts_like, unflatten
from synknumba._sequence.symbolic_results import SymbolicResult, handle_of
from synknumba._types import Array, Shape
from synknumba._wire.program import Result

Columns: TypeAlias = Mapping[int, tuple[list[Any], Structure]]
"""Results of calls in some iterations, by their places among the leaves of what a body returns: the
arrays of each have these iterations as their first axis.
"""


@final
class SequenceResults:
    """What a body returns.

    Args:
        returned: what it has returned in each turn, with symbolic results of its calls.
    """

    def __init__(self, returned: Sequence[Any]) -> None:
        leaves, self._structure = flatten(returned[0])
        # of each turn, the results among the leaves; None for constants
        self._turns = [list(map(_handle_or_none, flatten(tree)[0])) for tree in returned]
        self._handles = self._turns[0]
        self._constants = leaves
        for place, handle in enumerate(self._handles):
            if handle is not None:  # it refers to what the body has recorded
                self._constants[place] = None
        self._collect_quickly = self._quick_collector()

    @property
    def are_none(self) -> bool:
        """Whether the body returns nothing."""
        return not self._constants

    def collect(self, iteration: int) -> Any:
        """Returns the results of the last iteration, of this number."""
        if self._collect_quickly is not None:
            return self._collect_quickly()
        collected: dict[Plan, Any] = {}
        leaves = []
        handles = self._turns[iteration % len(self._turns)]
        for constant, handle in zip(self._constants, handles, strict=True):
            if handle is None:
                leaves.append(constant)
                continue
            plan = handle.plan
            if plan not in collected:
                collected[plan] = plan.collect(handle.count)
            value = collected[plan]
            leaves.append(value if handle.index is None else value[handle.index])
        return unflatten(self._structure, leaves)

    def _quick_collector(self) -> Callable[[], Any] | None:
        """Returns a quick way to collect; None if there is none."""
        structure = self._structure
        if structure == NONE:
            return lambda: None
        if len(self._turns) > 1:
            return None
        if structure == LEAF:
            ((handle,), (constant,)) = self._handles, self._constants
            if handle is None:
                return lambda: constant
            if handle.index is None:
                return partial(handle.plan.collect, handle.count)
        return None

    # ---- kept iterations

    def first_large(self) -> str | None:
        """Returns the label of the first result that ranks cannot keep; None if there is none."""
        for handle in self._handles:
            if handle is not None and not _is_small(handle.result):
                return handle.label
        return None

    def can_be_kept(self, numbers: Set[int]) -> bool:
        """Returns whether ranks keep all results of further iterations, as far as is known: those
        of functions if they were small so far, and are made once in an iteration.

        Args:
            numbers: of the programs that an iteration calls once.
        """
        for handle in (handle for turn in self._turns for handle in turn):
            if handle is None or _is_small(handle.result):
                continue
            plan = handle.plan
            if not (isinstance(plan, FunctionPlan) and plan.are_small and handle.number in numbers):
                return False
        return True

    def together(self, memory: Array) -> Columns | None:
        """Returns the results of kept iterations; None if they have to be collected one by one.

        memory: the ranks' results: uint8, shape (entries, W, bytes).
        """
        if len(self._turns) > 1:
            return None
        columns: dict[int, Any] = {}
        for place, handle in enumerate(self._handles):
            if handle is None:
                continue
            if isinstance(handle.plan, FunctionPlan):
                columns[place] = handle.plan.collect_kept(memory, handle.count)
                if handle.index is not None:
                    return None
            else:
                columns[place] = _combined(handle, memory)
            if columns[place] is None:
                return None
        return columns

    def single(self, results: Any) -> Columns:
        """Returns the results of one iteration, as `collect` does, among those of several."""
        values = parts_like(self._structure, results) or ()
        columns = {}
        for place, (handle, value) in enumerate(zip(self._handles, values, strict=True)):
            if handle is not None:
                leaves, structure = flatten(value)
                columns[place] = [np.asanyarray(leaf)[None] for leaf in leaves], structure
        return columns

    def joined(self, pieces: Sequence[Columns]) -> Any:
        """Returns what the body has returned in kept iterations: results of calls are stacked,
        and all else is as it is.
        """
        return self._with_results(lambda place, _: joined([piece[place] for piece in pieces]))

    def empty(self) -> Any:
        """Returns the results of no iterations; of calls whose results are not known yet, None."""
        return self._with_results(lambda _, handle: _empty(handle.result))

    def _with_results(self, value_of: Callable[[int, SymbolicResult], Any]) -> Any:
        """Returns what the body has returned in the first turn, with values in place of its
        symbolic results, which `value_of` gets with their places.
        """
        leaves = [*self._constants]
        for place, handle in enumerate(self._handles):
            if handle is not None:
                leaves[place] = value_of(place, handle)
        return unflatten(self._structure, leaves)


def _empty(result: Result | None) -> Array | None:
    """Returns the results of no iterations, for a result of a call."""
    if result is None:
        return None
    assert result.parts is not None  # it is a result that the caller gets
    return np.empty((0, *result.shape), result.parts.dtype)


def _is_small(result: Result | None) -> bool:
    return result is not None and result.op is not None and result.is_small


def _handle_or_none(leaf: Any) -> SymbolicResult | None:
    handle = handle_of(leaf)
    return handle if isinstance(handle, SymbolicResult) else None


def _combined(handle: SymbolicResult, memory: Array) -> tuple[list[Any], Structure] | None:
    """Returns a kernel's result of kept iterations, combined over the ranks; None if NumPy would
    add along another axis in another order.
    """
    result = handle.result
    assert result is not None
    assert result.parts is not None
    is_combined = result.op == "mean" or result.op in reduction.UFUNCS
    if not is_combined or memory.shape[1] >= reduction.SEQUENTIAL_SUM:
        return None
    parts = result.parts.in_lines(memory).swapaxes(0, 1)
    return [reduction.combine(result.op, parts, handle.plan.weights(handle.count))], LEAF


def joined(pieces: Sequence[tuple[list[Any], Structure]]) -> Any:
    """Returns arrays of consecutive iterations, their first axis, as one for all, in the structure
    of one iteration.

    A list with a value for each rank, as the op None makes it, counts as an array. Raises
    `ReductionError` if shapes or structures differ.
    """
    (first, structure), *_ = pieces
    shapes, entry = _shapes_of(first), 0
    for leaves, other in pieces:
        if _shapes_of(leaves) != shapes or other != structure:
            raise ReductionError(
                "results of kept iterations must have the same shapes to be stacked, but entry "
                f"{entry} has {_shapes_of(leaves)} and entry 0 has {shapes}; use every=None for "
                "the last ones only"
            )
        entry += max(map(len, leaves), default=1)
    columns = zip(*(leaves for leaves, _ in pieces), strict=True)
    return _joined(unflatten(structure, list(map(np.concatenate, columns))))


def _shapes_of(leaves: Iterable[Array]) -> list[Shape]:
    """Returns the shapes that arrays have in each iteration."""
    return [leaf.shape[1:] for leaf in leaves]


def _joined(tree: Any) -> Any:
    """Returns a tree with lists of arrays of one shape, one array for each rank, as arrays of
    shape (entries, W, …).
    """
    match tree:
        case list() if _are_alike(tree):
            return np.stack(tree, axis=1)
        case dict():
            return {key: _joined(value) for key, value in tree.items()}
        case tuple() if hasattr(tree, "_fields"):  # a named tuple
            return type(tree)(*map(_joined, tree))
        case tuple():
            return tuple(map(_joined, tree))
    return tree


def _are_alike(values: list[Any]) -> bool:
    """Whether there are values, and all are arrays of one shape."""
    shapes = set()
    for value in values:
        if not isinstance(value, np.ndarray):
            return False
        shapes.add(value.shape)
    return len(shapes) == 1
