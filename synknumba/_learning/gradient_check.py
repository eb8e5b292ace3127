"""`step.check`: does a gradient return sums over rows, and are its slopes those of its loss?

    all rows ──gradient──> loss, slopes      =      first half of the rows + second half
    parameters ± h · direction ──gradient──> loss, whose central difference is slopes · direction

It runs in the script's process, with few rows, near the parameters that the step has.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np

from synknumba._call.arguments import IndexRange, PerRankValues
from synknumba._errors import ArgumentError, DataError
from synknumba._host.data import Data
from synknumba._ops.tree import flatten, unflatten
from synknumba._types import Array, RankConstant
from synknumba._variables.variable import Variable, state_of

Evaluate: TypeAlias = Callable[[Array, Sequence[Array]], tuple[Array, list[Array]]]
"""The loss, 0-d, the slopes and the count, for positions among the selected rows, and arrays of
the parameters.
"""

ROWS = 8  # the kernel checker makes some 100,000 accesses a second
_DIRECTIONS = 32  # at most; of more arrays, several change together
_AWAY = (
    0.01  # of their size, from parameters that may be zeros, where wrong slopes can be zeros, too
)
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
    loss, slopes = evaluate(rows, near)
    what_they_are = "the loss", *(f"the slope of {path}" for path in paths), "the count"
    for value, what in zip((loss, *slopes), what_they_are, strict=True):
        if not np.isfinite(value).all():
            raise DataError(
                f"{what} by {name} has a NaN or an infinity, for parameters near those of the step"
            )
    eps = max(
        float(np.finfo(array.dtype).eps)
        for array in (loss, *slopes, *params)
        if array.dtype.kind == "f"
    )
    again, _ = evaluate(rows, near)
    if not np.isclose(again, loss, rtol=1e4 * eps, atol=0):
        raise DataError(
            f"{name} returns a loss of {loss:.6g}, and of {again:.6g} when called again with the "
            "same rows and parameters, so that slopes cannot be compared with it; seed its random "
            "numbers by an argument"
        )
    parts = [evaluate(half, near) for half in np.split(rows, 2)]
    for what, total, *halves in zip(
        what_they_are, (loss, *slopes), *((array, *more) for array, more in parts), strict=True
    ):
        _check_sum(name, what, count, total, halves, eps)
    for number in range(min(len(near), _DIRECTIONS)):
        chosen = range(number, len(near), _DIRECTIONS)
        _check_direction(
            evaluate,
            rows,
            near,
            [*chosen],
            slopes,
            rng,
            eps,
            name,
            ", ".join(paths[index] for index in chosen),
        )


def _beside(rng: np.random.Generator, array: Array, part: float) -> Array:
    """Returns an array whose elements differ from another's by some part of its size."""
    return (array + part * _size(array) * rng.normal(size=array.shape)).astype(array.dtype)


def _size(array: Array) -> float:
    """Returns the root mean square of an array; 1 of zeros."""
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) or 1.0 if array.size else 1.0


def _check_sum(
    name: str, what: str, rows: int, all_rows: Array, halves: Sequence[Array], eps: float
) -> None:
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
        f"{what} by {name} is no sum over rows: of {rows} rows it is {_told(all_rows)}, and of "
        f"their halves {_told(halves[0])} + {_told(halves[1])}; {reason}"
    )


def _told(value: Array) -> str:
    """Returns a number, or the element of an array that is largest."""
    return f"{value.ravel()[np.abs(value).argmax()]:.6g}" if value.size else "nothing"


def _check_direction(
    evaluate: Evaluate,
    rows: Array,
    params: Sequence[Array],
    chosen: Sequence[int],
    slopes: Sequence[Array],
    rng: np.random.Generator,
    eps: float,
    name: str,
    quantity: str,
) -> None:
    """Compares the slopes of some arrays with central differences along a random direction."""
    directions = {
        index: rng.choice([-1.0, 1.0], size=params[index].shape) * _size(params[index])
        for index in chosen
    }
    by_slopes = sum(
        float((slopes[index].astype(np.float64) * directions[index]).sum()) for index in chosen
    )

    def difference(h: float) -> tuple[float, float]:
        losses = []
        for sign in (1, -1):
            moved = [*params]
            for index in chosen:
                moved[index] = (params[index] + sign * h * directions[index]).astype(
                    params[index].dtype
                )
            losses.append(float(evaluate(rows, moved)[0]))
        return (losses[0] - losses[1]) / (2 * h), abs(losses[0])

    h = float(eps ** (1 / 3))
    (fine, loss), (coarse, _) = difference(h), difference(2 * h)
    # The two differ by what is cut off, by kinks of the loss, and by rounding.
    allowed = _FITS * (abs(by_slopes) + abs(fine)) + 3 * abs(fine - coarse) + 10 * eps * loss / h
    if not abs(by_slopes - fine) <= allowed:
        ratio = f", {by_slopes / fine:.3g} times as much" if fine else ""
        raise DataError(
            f"the slope of {quantity} by {name} is not that of its loss: along a random direction "
            f"the loss changes by {fine:.6g}, by central differences, and by the slope "
            f"{by_slopes:.6g}{ratio}. Look for a factor, a sign, a missing term, or arrays that "
            "broadcast"
        )


# ---- inputs


@final
class Inputs:
    """The inputs of a gradient, of which some rows are taken as a rank would get them.

    Attributes:
        count: number of rows that can be taken, even.

    Args:
        given: by name.
        divided: names of those that are divided.
        sliceable: names of those that are variables of rows.
        numbers: of rows that are selected; None for the first.
        span: makes what the gradient gets for an index range, of start and stop.
        world_size: number of ranks.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        divided: Collection[str],
        sliceable: Collection[str],
        numbers: Array | None,
        span: Callable[[int, int], Any],
        world_size: int,
    ) -> None:
        self._given, self._divided, self._span = arguments, divided, span
        leaves = [(name, leaf) for name in divided for leaf in flatten(arguments[name])[0]]
        scattered = {
            name for name, leaf in leaves if isinstance(leaf, Variable) and state_of(leaf).sharded
        }
        arrays = [leaf for _, leaf in leaves if _has_rows(leaf)]
        # Row numbers before variables are those of a rank's own rows; the gradient gets all of
        # these.
        by_number = bool(arrays) and leaves[0][0] not in scattered and may_be_row_numbers(arrays[0])
        self._cut = {name for name in scattered if name in sliceable or not by_number}
        parts = world_size if scattered - self._cut else 1
        lengths = [len(array) // parts for array in arrays]
        for name, leaf in leaves:
            if name in self._cut and isinstance(leaf, Variable) and state_of(leaf).sharded:
                lengths += [len(array) for array in flatten(leaf.get_value(rank=0))[0]]
        self._numbers = (
            np.arange(min([ROWS, *lengths]))
            if numbers is None
            else numbers[: len(numbers) // parts]
        )
        self.count = len(self._numbers) // 2 * 2

    def rows(self, positions: Array) -> list[Any]:
        """Returns the inputs, in order, with the rows at some positions among those that are
        selected.
        """
        return [self._rows(name, value, positions) for name, value in self._given.items()]

    def _rows(self, name: str, value: Any, positions: Array) -> Any:
        leaves, structure = flatten(value)
        if name not in self._divided:
            return unflatten(structure, [_whole(leaf, len(positions)) for leaf in leaves])
        numbers = self._numbers[positions]
        selected = []
        for leaf in leaves:
            if isinstance(leaf, Variable) and name in self._cut and state_of(leaf).sharded:
                parts, inner = flatten(leaf.get_value(rank=0))
                selected.append(unflatten(inner, [part[numbers] for part in parts]))
            elif isinstance(leaf, IndexRange):
                selected.append(self._span(int(numbers[0]), int(numbers[-1]) + 1))
            elif isinstance(leaf, Data) and leaf.minibatch:
                selected.append(leaf.data[positions])
            else:
                selected.append(
                    np.asarray(leaf)[numbers] if _has_rows(leaf) else _whole(leaf, len(positions))
                )
        return unflatten(structure, selected)


def _has_rows(leaf: Any) -> bool:
    """Returns whether rows of an input are selected: of an array that is no variable, or an
    index range.
    """
    if isinstance(leaf, Variable) or (isinstance(leaf, Data) and leaf.minibatch):
        return False
    return isinstance(leaf, IndexRange) or getattr(leaf, "ndim", 0) > 0


def may_be_row_numbers(array: Any) -> bool:
    """Returns whether an array can be an index of rows: ints, or a mask, along one axis."""
    if isinstance(array, IndexRange):
        return False
    numbers = array if isinstance(array, Data | np.ndarray) else np.asarray(array)
    return numbers.ndim == 1 and numbers.dtype.kind in "iub"


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
    return np.array(leaf) if getattr(leaf, "ndim", 0) else leaf
