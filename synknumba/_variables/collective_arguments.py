"""Checks of the arguments of collectives. All are made before anything is sent."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast, final

import numpy as np

from synknumba import _tracing as tracing
from synknumba._errors import ArgumentError, DataError, PartitionError, ReductionError, WorldError
from synknumba._host import this_process
from synknumba._host.casting import as_index
from synknumba._host.data import Data
from synknumba._ops.halo import Halo
from synknumba._ops.reduction import nearest_op
from synknumba._ops.tree import Structure, describe, flatten, parts_like, shape_text, unflatten
from synknumba._types import (
    Array,
    CollectiveOp,
    Counts,
    Shape,
    as_flag,
    class_text,
    count_text,
)
from synknumba._variables.state import VariableState, rows_fit
from synknumba._variables.variable import Branch, Variable, accepted, state_of
from synknumba._world.open_world import current_world

_OPS = ("sum", "prod", "min", "max", "mean", "avg")
SAME_OPS: dict[Any, Any] = {"mean": "avg"}  # NCCL's name
_ORDER = "complex numbers have no order: reduce the real part or the absolute value"
_REFUSED = {  # op: {dtype kind: way out}
    "sum": {"b": "make it an integer variable to count, or use 'max' for any"},
    "prod": {"b": "make it an integer variable, or use 'min' for all"},
    "min": {"c": _ORDER},
    "max": {"c": _ORDER},
    "avg": dict.fromkeys(
        "biu", "an average is rarely an integer: use 'sum' and divide, or make it a float variable"
    ),
}


@final
@dataclass(frozen=True, slots=True)
class VariableGroup:
    """The variables of a collective, with the checks of these and of values for them.

    Attributes:
        what: name of the collective in messages.
        states: the variables, which are different ones.
        structure: structure of the tree in which the script passes them; None for one variable.
    """

    what: str
    states: Sequence[VariableState]
    structure: Structure | None = None

    @classmethod
    def of(cls, vars: Any, what: str) -> "VariableGroup":
        """Returns the variables of a tree; raises `ArgumentError` for other leaves, and for a
        variable that is there twice.
        """
        if isinstance(vars, Variable):
            return cls(what, [state_of(vars)])
        leaves, structure = flatten(vars)
        states = [_state_of_leaf(leaf, what) for leaf in leaves]
        if not states:
            raise ArgumentError(f"{what} got no variables")
        ids: set[int] = set()
        for state in states:
            if id(state) in ids:
                raise ArgumentError(f"{what} got {state.label} twice; give each variable once")
            ids.add(id(state))
        return cls(what, states, structure)

    # ---- values and results

    def each(self, result_of: Callable[[VariableState], Any]) -> Any:
        """Returns the result of a function for each variable, in the structure of the variables."""
        results = list(map(result_of, self.states))
        if self.structure is None:
            return results[0]
        return unflatten(self.structure, results)

    def matched(self, values: Any) -> list[list[Array]]:
        """Returns the arrays of each variable, checked, from values in the structure of the
        variables.
        """
        return list(map(accepted, self.states, self._parts(values)))

    def matched_or_none(self, values: Any) -> list[list[Array] | None]:
        """Returns what `matched` does, and None for a variable whose value is None; if `values` is
        None, for all.
        """
        if values is None:
            return [None] * len(self.states)
        matched: list[list[Array] | None] = list(self._parts(values))
        for i, (state, value) in enumerate(zip(self.states, matched, strict=True)):
            if value is not None:
                matched[i] = accepted(state, value)
        return matched

    def _parts(self, values: Any) -> list[Any]:
        if self.structure is None:
            return [values]
        parts = parts_like(self.structure, values)
        if parts is None:
            raise DataError(
                f"{self.what} needs values in the structure of its variables, "
                f"{describe(self.structure)}, but got {shape_text(values)}"
            )
        return parts

    # ---- checks of arguments

    def destinations(self, dest: Any) -> "VariableGroup":
        """Returns the variables of `dest=`, which must be like these; these if it is None."""
        if dest is None:
            return self
        targets = VariableGroup.of(dest, self.what)
        if self.structure is not None and self.structure != targets.structure:
            raise ArgumentError(
                f"{self.what} needs dest= in the structure of its variables, "
                f"{describe(self.structure)}"
            )
        if len(targets.states) != len(self.states):
            raise ArgumentError(
                f"{self.what} needs {len(self.states)} variables in dest=, one per source, got "
                f"{len(targets.states)}"
            )
        for source, target in zip(self.states, targets.states, strict=True):
            self._check_destination(source, target)
        return targets

    def _check_destination(self, source: VariableState, target: VariableState) -> None:
        if source.structure() != target.structure():
            raise ArgumentError(
                f"{self.what}: {target.label} in dest= is not a tree of the same "
                f"structure as {source.label}"
            )
        for kind, target_kind in zip(_kinds_of(source), _kinds_of(target), strict=True):
            if kind != target_kind:
                raise DataError(
                    f"{self.what}: {target.label} in dest= is {target_kind}, but {source.label} is "
                    f"{kind}; use the same dtype and number of dimensions"
                )

    def checked_op(self, op: object) -> CollectiveOp:
        """Returns the op, "avg" for "mean"; raises `ReductionError` if it is unknown, or not
        defined for a variable's dtype.
        """
        what = self.what
        if op is None:
            raise ReductionError(
                f"{what} needs an op; there is no default, as torch and mpi4py sum and "
                f"Synkhronos averaged: write "
                f'synk.{what}(v, "sum") for the sum over the ranks, or synk.{what}(v, '
                f'"mean") for their average'
            )
        if not isinstance(op, str) or op not in _OPS:
            raise ReductionError(
                f"op must be one of {', '.join(map(repr, _OPS))}; got {op!r}{nearest_op(op, _OPS)}"
            )
        op_name = cast("CollectiveOp", SAME_OPS.get(op, op))
        for state in self.states:
            for leaf, dtype in enumerate(state.dtypes()):
                if way_out := _way_out(op_name, dtype):
                    raise ReductionError(
                        f"{state.label_of(leaf)}: op {op!r} is not defined for dtype {dtype}; "
                        f"{way_out}"
                    )
        return op_name

    def check_rows(self) -> None:
        """Raises `PartitionError` if an array is 0-d and so has no rows."""
        for state in self.states:
            for leaf, shape in enumerate(state.root_shapes()):
                if not shape:
                    problem = f"{state.label_of(leaf)} is 0-d; give it at least one dimension"
                    raise PartitionError(f"{self.what} divides or joins rows, but {problem}")

    # ---- checks of variables that have been placed

    def check_no_halo(self) -> None:
        """Raises `PartitionError` if ranks hold neighbours' rows."""
        for state in self.states:
            if state.halo is not None:
                raise PartitionError(
                    f"{self.what}: {state.label} is scattered with a halo: rows of different ranks "
                    f"are not the same rows; gather it"
                )

    def check_divided(self) -> None:
        """Raises `PartitionError` if a variable is a replica."""
        for state in self.states:
            if not state.sharded:
                raise PartitionError(f"{self.what}: {state.label} is a replica; scatter it first")

    def checked_counts(self, counts: Any) -> Counts:
        """Returns the rows that each rank sends to each; `()` for equal blocks, if `counts` is
        None.

        Raises:
            PartitionError: they are no integers of shape (W, W), or do not add up to the rows of
                each rank, or without them, those are no W blocks.
        """
        size = current_world().world_size
        if counts is None:
            for label, rank, length in self._own_lengths():
                if length % size:
                    raise PartitionError(
                        f"{self.what}: {label} has {count_text(length, 'row')} on rank {rank}, "
                        f"which are no {size} equal blocks; say in counts= how many go to each rank"
                    )
            return ()
        numbers = np.asarray(counts)
        if numbers.shape != (size, size) or numbers.dtype.kind not in "iu":
            raise PartitionError(
                f"{self.what}: counts must be integers of shape {(size, size)}, where rank r sends "
                f"counts[r, j] rows to rank j, or a variable with {size} integers on each rank; "
                f"got {numbers.dtype} {numbers.shape}"
            )
        checked = tuple(map(tuple, numbers.tolist()))
        for label, rank, length in self._own_lengths():
            if min(checked[rank]) < 0 or sum(checked[rank]) != length:
                raise PartitionError(
                    f"{self.what}: the counts of a rank must be at least 0 and add up to its rows; "
                    f"{label} has {count_text(length, 'row')} on rank {rank}, whose counts are "
                    f"{list(checked[rank])}"
                )
        return checked

    def _own_lengths(self) -> Iterator[tuple[str, int, int]]:
        """Yields the label of each array, with each rank and the number of its own rows."""
        for state, leaf, shapes in self._own_shapes():
            for rank, shape in enumerate(shapes):
                yield state.label_of(leaf), rank, shape[0]

    def check_halos(self) -> None:
        """Raises `PartitionError` if a variable has no halo."""
        for state in self.states:
            if state.halo is None:
                raise PartitionError(
                    f"exchange: {state.label} is {state.division_text()}; scatter it with halo=1 "
                    "first"
                )

    def check_uniform(
        self, way_out: str = "use all_gather or gather for arrays of different lengths"
    ) -> None:
        """Raises `PartitionError` if the shapes of own rows differ between ranks."""
        for state, leaf, shapes in self._own_shapes():
            if len(set(shapes)) > 1:
                raise PartitionError(
                    f"{self.what} needs one shape on all ranks, but {state.label_of(leaf)} has "
                    f"{_by_rank(shapes)}; {way_out}"
                )

    def check_row_shapes(self) -> None:
        """Raises `PartitionError` if the ranks' rows differ in shape and cannot be concatenated."""
        for state, leaf, shapes in self._own_shapes():
            if not rows_fit(shapes):
                raise PartitionError(
                    f"{self.what} concatenates rows, but those of {state.label_of(leaf)} differ "
                    f"in shape: {_by_rank(shapes)}"
                )

    def _own_shapes(self) -> Iterator[tuple[VariableState, int, tuple[Shape, ...]]]:
        """Yields each array, as variable and leaf, and its shapes by rank, without halos."""
        for state in self.states:
            layout = state.storage().layout
            for leaf in state.leaves():
                yield state, leaf, layout.own_shapes(leaf)


def _state_of_leaf(leaf: Any, what: str) -> VariableState:
    if isinstance(leaf, Variable):
        return state_of(leaf)
    if isinstance(leaf, Branch):
        raise ArgumentError(
            f"{what} takes whole variables, and {leaf.label} is a part of one; pass the tree, "
            f"or make one variable per array"
        )
    rank = this_process.current_rank()
    if rank is not None:
        raise WorldError(
            f"this is rank {rank}, and {what} is called by the script, for all ranks. Return the "
            'array and combine it by an op, as outputs="sum", or assign it to a variable by '
            'updates=, as updates={"new": (variable, "sum")}'
        )
    if isinstance(leaf, tracing.Unknown):
        raise ArgumentError(
            f"{tracing.where()}: {what} takes variables, and {leaf.label} is a result, which the "
            "ranks combine already; a number goes to the next iteration by synk.carry"
        )
    got = class_text(leaf)
    if tracing.current is not None and isinstance(leaf, Data):  # made of the script's array
        got = "an array"
    raise ArgumentError(
        f"{what} needs a Variable, or a dict, list or tuple of them; got {got}; "
        "synk.variable(x) makes one of an array"
    )


def _kinds_of(state: VariableState) -> list[str]:
    """Returns the number of dimensions and the dtype of each array."""
    shapes = state.root_shapes()
    return [f"{len(shape)}-D {dtype}" for shape, dtype in zip(shapes, state.dtypes(), strict=True)]


def _way_out(op: CollectiveOp, dtype: np.dtype[Any]) -> str | None:
    """Returns what to do where an op is not defined for a dtype; None where it is."""
    if dtype.kind not in "biufc":
        return "gather it and combine it yourself, or use a variable for each numeric field"
    return _REFUSED[op].get(dtype.kind)


def _by_rank(shapes: Sequence[Shape]) -> str:
    return ", ".join(f"{shape} on rank {rank}" for rank, shape in enumerate(shapes))


def check_alike(
    first: VariableState, second: VariableState, shapes: Sequence[Sequence[tuple[Shape, ...]]]
) -> None:
    """Raises `DataError` if two variables cannot take each other's place; `shapes` are those of
    their arrays, by rank.
    """
    for leaf, (shapes_of_first, shapes_of_second) in enumerate(zip(*shapes, strict=True)):
        dtypes = first.dtypes()[leaf], second.dtypes()[leaf]
        if (dtypes[0], shapes_of_first) != (dtypes[1], shapes_of_second):
            raise DataError(
                f"swap: {_described(first, dtypes[0], shapes_of_first)} and "
                f"{_described(second, dtypes[1], shapes_of_second)}; swapped variables must have "
                f"the same dtype, and the same shape on every rank: make both of like arrays, as "
                "of x and np.zeros_like(x), and scatter them with one halo="
            )


def _described(state: VariableState, dtype: np.dtype[Any], shapes: Sequence[Shape]) -> str:
    if len(set(shapes)) > 1:
        return f"{state.label} is {dtype} {list(shapes)}"
    return f"{state.label} is {dtype} {shapes[0]}"


def halo_of(width: Any, periodic: Any) -> Halo | None:
    """Returns the halo that the options of `scatter` mean; None for a width of 0."""
    is_ring = as_flag(periodic, "scatter: periodic")
    number = as_index(width)
    if number < 0:
        raise ArgumentError(
            f"scatter: halo must be an int of at least 1, or 0 for no halo, got {width!r}"
        )
    if is_ring and not number:
        raise ArgumentError(
            "scatter: periodic=True needs halo=…, the number of rows of each "
            "neighbour, such as halo=1"
        )
    if not number:
        return None
    return Halo(number, is_ring)


def check_rows_for(halo: Halo | None, lengths: Sequence[int], label: str) -> None:
    """Raises `PartitionError` if arrays of these lengths have too few rows for a halo on the
    ranks of the open world.
    """
    if halo is None:
        return
    partition = current_world().partition
    for length in lengths:
        problem = halo.problem(partition.counts(length), label)
        if problem is not None:
            raise PartitionError(f"scatter: {problem}; use a narrower halo, or fewer ranks")
