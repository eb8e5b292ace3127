"""One call, worked out in two stages, each of which makes a frozen record.

arguments ──`Binder.bind`──> Arguments ──`RowSelector.select`──> SelectedRows ──> Call, of both
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, final

import numpy as np

from synknumba._call.collect import Count, total_rows
from synknumba._call.kinds import ShapeOf, describe, type_told
from synknumba._call.options import CallOptions
from synknumba._host.data import Data
from synknumba._host.segment import Segment
from synknumba._ops.local_rows import OwnRows
from synknumba._ops.rows import Partition, Rows
from synknumba._ops.tree import paths
from synknumba._types import Array, CallValues, Shape
from synknumba._variables.state import VariableState
from synknumba._wire.program import (
    Broadcast,
    Dynamic,
    HeldRows,
    HostArray,
    OwnSource,
    Param,
    RowSource,
    Sharded,
    Tree,
    leaves_of,
)
from synknumba._world.engine import Engine

OWN_PREFIX = "synk_"  # of parameters of generated kernels that callers do not pass


@final
@dataclass(frozen=True, slots=True)
class Lengths:
    """Numbers of rows of a call's arguments, by the argument, or leaf of one, that has them.

    Attributes:
        sharded: of arrays and index ranges that are divided among the ranks.
        minibatches: of arrays that are indexed by position in the batch.
        empty: of nested arrays without rows, which need not agree with others.
        sliceable: of sliceable variables, on each rank.
        contiguous: index ranges and offsets, which require consecutive rows.
    """

    sharded: dict[str, int] = field(default_factory=dict)
    minibatches: dict[str, int] = field(default_factory=dict)
    empty: dict[str, int] = field(default_factory=dict)
    sliceable: dict[str, tuple[int, ...]] = field(default_factory=dict)
    contiguous: list[str] = field(default_factory=list)

    @property
    def divided(self) -> dict[str, int]:
        """Those of the arrays that `batch` selects rows of."""
        return self.sharded or self.minibatches or self.empty


@final
@dataclass(frozen=True, slots=True)
class Scalars:
    """The numbers that are sent with each call.

    Attributes:
        values: the numbers.
        letters: `struct` letter of each.
    """

    values: list[Any] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)

    def add(self, value: Any, letter: str, dtype: str | None) -> Dynamic:
        """Adds a number, and returns its parameter."""
        self.values.append(value)
        self.letters.append(letter)
        return Dynamic(len(self.values) - 1, dtype)


@final
@dataclass(frozen=True, slots=True)
class Arguments:
    """The bound arguments of a call. Variables are by the argument, or leaf of one, that gets them.

    Attributes:
        passed: arguments as the script passes them, for output shapes.
        parameters: what ranks get for each of them, and for accumulators.
        key: equal for calls that differ in scalar values and array contents only.
        scalars: numbers that are sent with each call.
        lengths: numbers of rows.
        variables: the variables.
        branches: indices of the arrays of variables that are passed in part.
        intact: variables that ranks get whole, not in rows.
        changed: variables that ranks may write to.
        segments: memory that the ranks must have mapped.
        write_back: parameter, NumPy array to write to, and staged copy.
    """

    passed: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Param] = field(default_factory=dict)
    key: list[Any] = field(default_factory=list)
    scalars: Scalars = field(default_factory=Scalars)
    lengths: Lengths = field(default_factory=Lengths)
    variables: dict[str, VariableState] = field(default_factory=dict)
    branches: dict[str, range] = field(default_factory=dict)
    intact: dict[str, VariableState] = field(default_factory=dict)
    changed: list[VariableState] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    write_back: list[tuple[str, Array, Data]] = field(default_factory=list)

    def arrays_of(self, path: str) -> range:
        """Returns the indices of the arrays that an argument gets of its variable."""
        return self.branches.get(path, self.variables[path].leaves())

    def first_array(self, path: str) -> int:
        """Returns the index of the first array that an argument gets of its variable."""
        return self.branches.get(path, range(1)).start

    def alias(self, variable: VariableState, arrays: range, besides: str = "") -> str | None:
        """Returns the path of another argument that has some of these arrays of a variable."""
        for path, passed in self.variables.items():
            is_other = passed is variable and path != besides
            if is_other and not set(arrays).isdisjoint(self.arrays_of(path)):
                return path
        return None

    def leaves(self) -> Iterator[tuple[str, Param]]:
        """Yields the leaves of all parameters, by parameter."""
        for name, param in self.parameters.items():
            for leaf in leaves_of(param):
                yield name, leaf

    def written(self) -> tuple[list[str], list[str]]:
        """Returns the parameters whose rows are written back: those of sharded arguments, and
        those of sliceable variables.
        """
        sharded, sliceable = list[str](), list[str]()
        for name, leaf in self.leaves():
            match leaf:
                case Sharded(by_position=False, writable=True):
                    sharded.append(name)
                case HeldRows(writable=True):
                    sliceable.append(name)
        return sharded, sliceable


@final
@dataclass(frozen=True, slots=True)
class SelectedRows:
    """The rows of a call, and their encoding for the ranks.

    Attributes:
        sharded: those of the sharded arguments that `batch` selects; None if nothing is sharded.
        local: those of the sliceable variables that `local_batch` selects; None if there are none.
        source: encoding of `sharded`.
        local_source: encoding of `local`.
        values: what of the encodings is sent with each call, after the scalars.
        segments: memory of row numbers.
        key: as for `Arguments`.
    """

    sharded: Rows | None
    local: OwnRows | None
    source: RowSource
    local_source: OwnSource | None
    values: CallValues
    segments: tuple[Segment, ...]
    key: tuple[Any, ...]

    @property
    def count(self) -> Count:
        """Number of rows; by rank if they are the ranks' own; None if the call has no rows."""
        if self.sharded is not None:
            return self.sharded.count
        if self.local is not None:
            return self.local.counts
        return None

    @property
    def is_exact(self) -> bool:
        """Whether the number of rows is part of the plan, rather than sent with each call."""
        if self.local_source is not None and self.local_source.kind != "all":
            return False
        return self.source.kind in {"all", "none"}

    @property
    def letters(self) -> str:
        """`struct` letter of each of the values."""
        if self.local_source is None:
            return self.source.values
        return self.source.values + self.local_source.values


@final
@dataclass(frozen=True, slots=True)
class Call:
    """One call, of which the arguments are bound and the rows selected.

    Attributes:
        options: those of the call.
        partition: of rows into ranks.
        world: that of the ranks; None for a call that is only planned.
        arguments: its arguments.
        rows: its rows.
    """

    options: CallOptions
    partition: Partition
    world: Engine | None
    arguments: Arguments
    rows: SelectedRows

    @property
    def parameters(self) -> dict[str, Param]:
        """What ranks get, by parameter."""
        return self.arguments.parameters

    @property
    def variables(self) -> dict[str, VariableState]:
        """The variables, by the argument, or leaf of one, that gets them."""
        return self.arguments.variables

    @property
    def values(self) -> tuple[Any, ...]:
        """What is sent with each call: scalars, and what encodes the rows."""
        return (*self.arguments.scalars.values, *self.rows.values)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Memory that the ranks must have mapped."""
        return (*self.arguments.segments, *self.rows.segments)

    @property
    def run_partition(self) -> Partition:
        """Partition of rows into the ranks that run."""
        return self.options.run_partition(self.partition)

    @property
    def count(self) -> Count:
        """Number of rows, as `SelectedRows.count`."""
        return self.rows.count

    @property
    def total(self) -> int | None:
        """Number of rows on all ranks; None if the call has no rows."""
        return total_rows(self.rows.count)

    @property
    def follows_lines(self) -> bool:
        """Whether lines of row numbers may change without the host, as `Program.line_offset`
        tells ranks.
        """
        if self.options.num_slices != 1 or self.options.shards is not None:
            return False
        for _, leaf in self.arguments.leaves():
            match leaf:
                case Sharded(writable=True):
                    return False
        return True

    def sizes(self, counts: Callable[[HostArray], bool] = lambda _: True) -> tuple[int, int]:
        """Returns the bytes per row of all sharded arguments, and the bytes of all broadcast ones;
        of those arrays only for which `counts` is true.
        """
        per_row = constant = 0
        for _, leaf in self.arguments.leaves():
            match leaf:
                case Sharded(array) if counts(array):
                    per_row += _nbytes(array, array.shape[1:])
                case Broadcast(array) if counts(array):
                    constant += _nbytes(array, array.shape)
        return per_row, constant

    def texts(
        self, *, lasting: bool = False, shape_of: ShapeOf = VariableState.root_shape
    ) -> tuple[str, ...]:
        """Returns a short description of each argument, as passed; without what generated kernels
        get for themselves.

        A `lasting` one holds for all calls of a plan: of arguments that change between calls, it
        gives only the type. `shape_of` is as for `describe`.
        """
        texts = []
        for name, value in self.arguments.passed.items():
            if name.startswith(OWN_PREFIX):
                continue
            if lasting and isinstance(self.parameters[name], Dynamic | Tree):
                texts.append(f"{name}: {type_told(value)}")
            else:
                texts.append(f"{name}: {describe(value, shape_of)}")
        return tuple(texts)


def _nbytes(array: HostArray, shape: Shape) -> int:
    return prod(shape) * np.dtype(array.dtype).itemsize


def named_leaves(name: str, param: Param) -> Iterator[tuple[str, Param]]:
    """Yields the leaves of a parameter, with their paths for messages."""
    if not isinstance(param, Tree):
        yield name, param
        return
    for path, leaf in zip(paths(param.structure), param.leaves, strict=True):
        yield from named_leaves(f"{name}{path}", leaf)
