"""`step.check`: does a gradient return sums over rows, and are its slopes those of its loss?

    all rows ──gradient──> loss, slopes      =      first half of the rows + second half
    parameters ± h · direction ──gradient──> loss, whose central difference is slopes · direction

It runs in the script's process, with few rows, near the parameters that the step has.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np

from synknumba._call.arguments import IndexRange, PerRankValues
from synknumba._errors import ArgumentError, DataError
from synknumba._host.data import Data
from synknumba._learning.step_inputs import StepInputs, is_scattered, may_be_row_numbers
from synknumba._ops.tree import flatten, unflatten
from synknumba._types import Array, RankConstant, Span
from synknumba._variables.variable import Variable

Evaluate: TypeAlias = Callable[[Array, Sequence[Array]], list[Array]]
"""The loss, 0-d, the slopes and the count, for positions among the selected rows, and arrays of
the parameters.
"""

ROWS = 8  # the kernel checker makes some 100,000 accesses a second
_DIRECTIONS = 32  # at most; of more arrays, several change together
# Of their size, from parameters that may be zeros, where wrong slopes can be zeros, too.
_AWAY = 0.01
_FITS = 0.01  # relative; a wrong slope is mostly further off, and one computed in float32 is not
_ON_RANK = {RankConstant.RANK: 0, RankConstant.WORLD_SIZE: 1, RankConstant.OFFSET: 0}


def check_gradient(
    evaluate: Evaluate, count: int, params: Sequence[Array], paths: Sequence[str], name: str
) -> None:
    """Raises `DataError` if a gradient returns no sums over rows, or slopes that are not those of
    the loss.

    Args:
        evaluate: the gradient.
        count: of rows, even.
        params: arrays of the parameters, float32 or float64.
        paths: what each is called.
        name: of the gradient.
    """
    rng, rows = np.random.default_rng(0), np.arange(count)
    near = [_beside(rng, param, _AWAY) for param in params]
    totals = evaluate(rows, near)
    loss, slopes = totals[0], totals[1:]
    quantities = ["the loss", *(f"the slope of {path}" for path in paths), "the count"]
    for value, what in zip(totals, quantities, strict=True):
        if not np.isfinite(value).all():
            raise DataError(
                f"{what} by {name} has a NaN or an infinity, for parameters near those of the step"
            )
    dtypes = {array.dtype for array in (*totals, *params) if array.dtype.kind == "f"}
    eps = max(float(np.finfo(dtype).eps) for dtype in dtypes)
    again = evaluate(rows, near)[0]
    if not np.isclose(again, loss, rtol=1e4 * eps, atol=0):
        raise DataError(
            f"{name} returns a loss of {loss:.6g}, and of {again:.6g} when called again with the "
            "same rows and parameters, so that slopes cannot be compared with it; seed its random "
            "numbers by an argument"
        )
    first, second = (evaluate(half, near) for half in np.split(rows, 2))
    for what, total, *halves in zip(quantities, totals, first, second, strict=True):
        _check_sum(f"{what} by {name}", count, total, halves, eps)
    for number in range(min(len(near), _DIRECTIONS)):
        chosen = range(number, len(near), _DIRECTIONS)
        what = f"{', '.join(paths[number::_DIRECTIONS])} by {name}"
        directions, by_slopes = {}, 0.0
        for index in chosen:
            signs = rng.choice([-1.0, 1.0], size=near[index].shape)
            directions[index] = signs * _size(near[index])
            by_slopes += float((slopes[index].astype(np.float64) * directions[index]).sum())

        def loss_at(distance: float, directions: Mapping[int, Array] = directions) -> float:
            moved = [*near]
            for index, direction in directions.items():
                moved[index] = (near[index] + distance * direction).astype(near[index].dtype)
            return float(evaluate(rows, moved)[0])

        _check_direction(what, loss_at, by_slopes, eps)


def _beside(rng: np.random.Generator, array: Array, part: float) -> Array:
    """Returns an array whose elements differ from another's by some part of its size."""
    return (array + part * _size(array) * rng.normal(size=array.shape)).astype(array.dtype)


def _size(array: Array) -> float:
    """Returns the root mean square of an array; 1 of zeros."""
    if not array.size:
        return 1.0
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) or 1.0


def _check_sum(what: str, rows: int, all_rows: Array, halves: Sequence[Array], eps: float) -> None:
    total = halves[0] + halves[1]
    largest = max(float(np.abs(total).max(initial=0)) for total in (all_rows, *halves))
    allowed = max(1e3 * eps, 1e-8) * largest

    def is_close(left_side: Any, right_side: Any) -> bool:
        return bool((np.abs(np.asarray(left_side, np.float64) - right_side) <= allowed).all())

    if is_close(all_rows, total):
        return
    reason = "a term that is no sum over rows has to be multiplied by their number"
    if is_close(all_rows, 0.5 * total):
        reason = (
            "it looks like a mean; return the sum, as by .sum() in place of .mean(), since "
            "the step divides by all rows"
        )
    elif np.allclose(all_rows, 2.0 * total, rtol=0.3):
        reason = (
            f"it may grow as their square: shapes ({rows},) and ({rows}, 1) "
            f"broadcast to ({rows}, {rows})"
        )
    raise DataError(
        f"{what} is no sum over rows: of {rows} rows it is {_largest(all_rows)}, and of "
        f"their halves {_largest(halves[0])} + {_largest(halves[1])}; {reason}"
    )


def _largest(value: Array) -> str:
    """Returns a number, or the element of an array that is largest."""
    if not value.size:
        return "nothing"
    return f"{value.ravel()[np.abs(value).argmax()]:.6g}"


def _check_direction(
    what: str, loss_at: Callable[[float], float], by_slopes: float, eps: float
) -> None:
    """Compares the slope along a direction with central differences of the loss."""

    def difference(h: float) -> tuple[float, float]:
        ahead, behind = loss_at(h), loss_at(-h)
        return (ahead - behind) / (2 * h), abs(ahead)

    h = float(eps ** (1 / 3))
    (fine, loss), (coarse, _) = difference(h), difference(2 * h)
    # The two differ by what is cut off, by kinks of the loss, and by rounding.
    allowed = _FITS * (abs(by_slopes) + abs(fine)) + 3 * abs(fine - coarse) + 10 * eps * loss / h
    if not abs(by_slopes - fine) <= allowed:
        ratio = ""
        if fine:
            ratio = f", {by_slopes / fine:.3g} times as much"
        raise DataError(
            f"the slope of {what} is not that of its loss: along a random direction "
            f"the loss changes by {fine:.6g}, by central differences, and by the slope "
            f"{by_slopes:.6g}{ratio}. Look for a factor, a sign, a missing term, or arrays that "
            "broadcast"
        )


# ---- inputs


@final
class SampledRows:
    """Some rows of the inputs of a step, as a rank would get them.

    Attributes:
        count: number of rows that can be taken, even.

    Args:
        inputs: of a step.
        numbers: of rows that are selected; None for the first.
        world_size: number of ranks.
    """

    def __init__(self, inputs: StepInputs, numbers: Array | None, world_size: int) -> None:
        self._inputs = inputs
        roles, leaves = inputs.roles, inputs.leaves
        scattered = {name for name, leaf in leaves if is_scattered(leaf)}
        arrays = [leaf for _, leaf in leaves if _has_rows(leaf)]
        # Row numbers before variables are those of a rank's own rows; the gradient gets all of
        # these.
        by_number = bool(arrays) and leaves[0][0] not in scattered and may_be_row_numbers(arrays[0])
        self._cut = scattered
        if by_number:
            self._cut = scattered.intersection(roles.sliceable)
        parts = world_size if scattered - self._cut else 1
        if numbers is None:
            lengths = [ROWS, *(len(array) // parts for array in arrays)]
            for name, leaf in leaves:
                if self._is_cut(name, leaf):
                    lengths += map(len, flatten(leaf.get_value(rank=0))[0])
            self._numbers = np.arange(min(lengths))
        else:
            self._numbers = numbers[: len(numbers) // parts]
        self.count = len(self._numbers) // 2 * 2

    def rows(self, positions: Array) -> list[Any]:
        """Returns the inputs, in order, with the rows at some positions among those that are
        selected.
        """
        batch = []
        for name, value in self._inputs.values.items():
            leaves, structure = flatten(value)
            if name in self._inputs.roles.divided:
                parts = [self._rows(name, leaf, positions) for leaf in leaves]
            else:
                parts = [_whole(leaf, len(positions)) for leaf in leaves]
            batch.append(unflatten(structure, parts))
        return batch

    def _is_cut(self, name: str, leaf: Any) -> bool:
        """Returns whether rows of rank 0's array of a variable are taken."""
        return name in self._cut and is_scattered(leaf)

    def _rows(self, name: str, leaf: Any, positions: Array) -> Any:
        numbers = self._numbers[positions]
        if self._is_cut(name, leaf):
            arrays, structure = flatten(leaf.get_value(rank=0))
            return unflatten(structure, [array[numbers] for array in arrays])
        if isinstance(leaf, IndexRange):
            span = Span if self._inputs.roles.is_kernel else range
            return span(int(numbers[0]), int(numbers[-1]) + 1)
        if isinstance(leaf, Data) and leaf.minibatch:
            return leaf.data[positions]
        if _has_rows(leaf):
            return np.asarray(leaf)[numbers]
        return _whole(leaf, len(positions))


def _has_rows(leaf: Any) -> bool:
    """Returns whether rows of an input are selected: of an array that is no variable, or an
    index range.
    """
    if isinstance(leaf, Variable) or (isinstance(leaf, Data) and leaf.minibatch):
        return False
    return isinstance(leaf, IndexRange) or getattr(leaf, "ndim", 0) > 0


def _whole(leaf: Any, rows: int) -> Any:
    """Returns what rank 0 gets for an input of which all rows are passed, or which has none;
    `rows` are those of others.
    """
    match leaf:
        case Variable():
            return leaf.get_value(rank=0)
        case PerRankValues():
            return leaf.values[0]
        case RankConstant():
            if leaf is RankConstant.ROWS:
                return rows
            if leaf not in _ON_RANK:
                raise ArgumentError(f"step.check runs no rank, and cannot fill in {leaf!r}")
            return _ON_RANK[leaf]
    if getattr(leaf, "ndim", 0):
        return np.array(leaf)
    return leaf
