"""Inputs of a training step: bound to names, and checked for rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from synknumba._call.arguments import IndexRange
from synknumba._errors import ArgumentError, BatchError
from synknumba._host.data import Data
from synknumba._learning.roles import Roles
from synknumba._ops.rows import Partition, select
from synknumba._ops.tree import flatten
from synknumba._types import Array, RankConstant, class_text, shown
from synknumba._variables.collectives import get_lengths
from synknumba._variables.variable import Variable, state_of


@final
@dataclass(frozen=True, slots=True)
class StepInputs:
    """Inputs of one step. Created by `bind`.

    Attributes:
        values: by name, in the order of the gradient's parameters.
        leaves: (name, array) of each array of the inputs that are divided.
    """

    roles: Roles
    values: dict[str, Any]
    leaves: list[tuple[str, Any]]

    def selected(self, rows: Any) -> Array:
        """Returns the numbers of the rows that `batch=` selects."""
        return select(rows, self.selectable_rows("batch")).indices

    def selectable_rows(self, option: str) -> int:
        """Returns the number of rows among which `batch=` or `order=` selects; raises
        `BatchError` where it cannot.
        """
        divided = self.roles.divided
        for name in divided:
            if isinstance(self.values[name], IndexRange):
                raise BatchError(
                    f"{option}= selects rows by number, but {name} is an index "
                    f"range; pass the numbers as an array, such as "
                    f"np.arange({len(self.values[name])})"
                )
        selected = self._selectable()
        if selected is None:
            owners = f"{divided[0]} is a variable"
            if len(divided) > 1:
                owners = f"{', '.join(divided)} are variables"
            raise BatchError(
                f"{option}= selects rows of arrays, but {owners}, whose rows are on the ranks. "
                f"Pass an array of their numbers there: def {self.roles.name}(rows, "
                f"{', '.join(self.roles.inputs)}, …), which takes {divided[0]}[rows]"
            )
        name, array = selected
        scattered = next((owner for owner, leaf in self.leaves if self._stays(owner, leaf)), None)
        if scattered is None:
            return len(array)
        if scattered == self.leaves[0][0] or not may_be_row_numbers(array):
            raise BatchError(
                f"{option}= selects rows of arrays, as {name}, but {scattered} is a scattered "
                "variable, whose rows are on the ranks, so that its rows would not be those of "
                f"{name}. Pass an array as {scattered}, too, such as synk.gather({scattered}), or "
                "scatter both, and pass an array of row numbers before them: def "
                f"{self.roles.name}(rows, {scattered}, …), which takes {scattered}[rows]"
            )
        return len(array)

    def _selectable(self) -> tuple[str, Any] | None:
        """Returns the first array of which rows can be selected, with its name."""
        for name, leaf in self.leaves:
            is_selectable = not isinstance(leaf, Variable) and not getattr(leaf, "minibatch", False)
            if is_selectable and _length(leaf) is not None:
                return name, leaf
        return None

    def _stays(self, name: str, leaf: Any) -> bool:
        """Returns whether an array is a scattered variable that ranks get whole."""
        return is_scattered(leaf) and name not in self.roles.sliceable

    def leaves_out_ranks(self, selected: int | None, partition: Partition) -> bool:
        """Returns whether a rank may have no rows, on which a function is not called.

        Args:
            selected: number of rows that are selected; None for all.
            partition: of rows into ranks.
        """
        for name, leaf in self.leaves:
            if isinstance(leaf, Variable):
                if name in self.roles.sliceable and 0 in _lengths(leaf):
                    return True
                continue
            rows = _length(leaf)
            if rows is None:
                continue
            if selected is not None:
                rows = selected
            if 0 in partition.counts(rows):
                return True
        return False

    def check(self) -> None:
        """Raises `BatchError` for inputs without rows, whose mean is NaN, and `ArgumentError` for
        other values than arrays where rows are counted, and for rows that would count twice.
        """
        name = self.roles.divided[0]
        first = next((leaf for owner, leaf in self.leaves if owner == name), None)
        if isinstance(first, Variable):
            rows: int | None = first.size or sum(_lengths(first))
        else:
            rows = _length(first)
        if rows is None:
            raise ArgumentError(
                f"{name} is the first input of {self.roles.name} that is divided, and must be an "
                f"array, whose rows are counted; got {shown(first)}. Write np.asarray(…) of a list "
                "of numbers; put numbers behind it, or name them in broadcast="
            )
        if not rows:
            raise BatchError(f"a step of {self.roles.name} needs rows, and {name} has none")
        self._check_lists()
        self._check_halos()
        if self.roles.weights is not None:
            self._check_weights(self.roles.weights, first)

    def _check_lists(self) -> None:
        """Raises `ArgumentError` for lists of numbers as long as the rows beside them, which
        every rank would get whole.
        """
        divided = self.roles.divided
        lists = [(name, items) for name in divided for items in _lists(self.values[name])]
        if not lists:
            return
        lengths = {_rows_beside(leaf) for _, leaf in self.leaves}
        first = self.values[divided[0]]
        if isinstance(first, range):
            lengths.add(len(first))
        for name, items in lists:
            if len(items) in lengths:
                raise ArgumentError(
                    f"{name} is {class_text(items)} as long as the rows, "
                    f"{len(items)}, which "
                    f"every rank would get whole; pass {_as_array(name, items)} to have its rows "
                    f'divided, or name it in broadcast=("{name}",)'
                )

    def _check_halos(self) -> None:
        """Raises `ArgumentError` for rows of halos, which two ranks would add up.

        A gradient that gets `synk.OWN` tells them apart; what counts the rows does not.
        """
        counted = self.roles.inputs[self.roles.counted]
        gets_own = any(value is RankConstant.OWN for value in self.values.values())
        for name, value in self.values.items():
            if name in self.roles.sliceable or (gets_own and name != counted):
                continue
            for leaf in flatten(value)[0]:
                halo = state_of(leaf).halo if isinstance(leaf, Variable) else None
                if halo is None:
                    continue
                raise ArgumentError(
                    f"{name} is a variable with {halo}, whose rows beside a rank's own would count "
                    f"twice in a step of {self.roles.name}; name it in "
                    f'synk.train.step(…, rows=("{name}",)), or scatter it without halo=. '
                    "A gradient that reads neighbours' rows needs synk.OWN as one more input, and "
                    f"{counted}, whose rows are counted, in rows="
                )

    def _check_weights(self, name: str, first: Any) -> None:
        """Raises `ArgumentError` unless weights are those of the rows of the first input."""
        weights, what = self.values[name], f"{name}, the weights of {self.roles.name},"
        of_variable = isinstance(weights, Variable)
        if not of_variable and not getattr(weights, "ndim", 0):
            raise ArgumentError(f"{what} must be an array, got {shown(weights)}")
        if of_variable != isinstance(first, Variable):
            kinds = ["an array", "a variable"]
            raise ArgumentError(
                f"{what} is {kinds[of_variable]}, and "
                f"{self.roles.divided[0]} {kinds[not of_variable]}, whose rows may be others; "
                "leave out weights=, and return the sum of the weights: return loss, slopes, count"
            )


def bind(roles: Roles, batch: Sequence[Any], named: dict[str, Any]) -> StepInputs:
    """Returns the inputs of a step from its arguments by position and by name; raises
    `SynkError` for those that do not fit.
    """
    inputs = ", ".join(roles.inputs)
    if len(batch) > len(roles.inputs):
        raise ArgumentError(f"a step takes {inputs}, got {len(batch)} arguments{roles.explained()}")
    arguments = dict(zip(roles.inputs, batch, strict=False))
    for name, value in named.items():
        if name not in roles.inputs:
            raise ArgumentError(f"a step takes {inputs}, batch= and num_slices=; got {name}=")
        if name in arguments:
            raise ArgumentError(f"a step got {name} twice")
        arguments[name] = value
    missing = [name for name in roles.inputs if name not in arguments]
    if missing:
        raise ArgumentError(f"a step is missing {', '.join(missing)}{roles.explained()}")
    values = {name: arguments[name] for name in roles.inputs}
    leaves = [(name, leaf) for name in roles.divided for leaf in flatten(values[name])[0]]
    bound = StepInputs(roles, values, leaves)
    bound.check()
    return bound


def is_scattered(leaf: Any) -> bool:
    """Returns whether an array is a variable whose rows are divided over the ranks."""
    return isinstance(leaf, Variable) and state_of(leaf).sharded


def may_be_row_numbers(array: Any) -> bool:
    """Returns whether an array can be an index of rows: ints, or a mask, along one axis."""
    if isinstance(array, IndexRange):
        return False
    numbers = array if isinstance(array, Data | np.ndarray) else np.asarray(array)
    return numbers.ndim == 1 and numbers.dtype.kind in "iub"


def _length(value: Any) -> int | None:
    """Returns the number of rows of an array; None for what has none."""
    try:
        return len(value)
    except TypeError:
        return None


def _lengths(variable: Variable) -> list[int]:
    """Returns the number of rows of each rank, and of each array if they are several."""
    return flatten(get_lengths(variable))[0]


def _rows_beside(leaf: Any) -> int | None:
    """Returns the number of rows of an array, of an index range, or of a scattered variable;
    None of anything else.
    """
    if isinstance(leaf, Variable):
        if not is_scattered(leaf) or state_of(leaf).is_tree:
            return None
        return sum(_lengths(leaf))
    if isinstance(leaf, IndexRange) or getattr(leaf, "ndim", False):
        return _length(leaf)
    return None


def _lists(value: Any) -> Iterator[Sequence[Any]]:
    """Yields the ranges in an input, and its lists and tuples of several items without an array
    among them.
    """
    if isinstance(value, range):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _lists(item)
    elif isinstance(value, list | tuple):
        if len(value) > 1 and not any(map(_has_rows, flatten(value)[0])):
            yield value
            return
        for item in value:
            yield from _lists(item)


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, Variable | range) or bool(getattr(leaf, "ndim", 0))


def _as_array(name: str, items: Sequence[Any]) -> str:
    """Returns, for errors, how to write a list or range as an array."""
    if not isinstance(items, range):
        return f"np.asarray({name})"
    if items == range(len(items)):
        return f"synk.arange({len(items)})"
    return f"np.arange{str(items)[5:]}"
