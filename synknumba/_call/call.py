"""One call: its options, its bound arguments, its rows, and the values that change from call to
call.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from synknumba._call.collect import Count, total_rows
from synknumba._call.options import CallOptions
from synknumba._host.data import Data
from synknumba._host.file_data import FileData
from synknumba._host.segment import Segment
from synknumba._host.stored import StoredData
from synknumba._ops.local_rows import OwnRows
from synknumba._ops.rows import Partition, Rows
from synknumba._tracing import Number
from synknumba._types import Array, RankConstant, Shape
from synknumba._variables.state import VariableState
from synknumba._variables.variable import Branch, Variable, state_of
from synknumba._wire.program import (
    Broadcast,
    Dynamic,
    HeldRows,
    OwnSource,
    Param,
    RowSource,
    Sharded,
    Tree,
)
from synknumba._world.engine import Engine

ShapeOf: TypeAlias = Callable[[VariableState, int], Shape]

OWN_PREFIX = "synk_"  # of parameters of generated kernels that callers do not pass


@dataclass(slots=True)
class Call:
    """One call, as `Binder.bind` (its arguments) and `RowSelector` (its rows) work it out."""

    options: CallOptions
    partition: Partition  # of rows into ranks
    world: Engine | None = (
        None  # None for a call that is only planned, so that nothing is copied or placed
    )
    parameters: dict[str, Param] = field(default_factory=dict)  # for the ranks
    # equal for calls that differ in scalar values and array contents only
    key: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)  # scalars that are sent with each call
    format: str = ""  # `struct` letter of each of these
    lengths: dict[str, int] = field(default_factory=dict)  # rows of each sharded argument
    minibatches: dict[str, int] = field(default_factory=dict)  # rows of each minibatch argument
    # nested arrays without rows, which need not agree with others
    empties: dict[str, int] = field(default_factory=dict)
    # number of values of each per-rank argument
    per_rank: dict[str, int] = field(default_factory=dict)
    # index ranges and offsets, which require consecutive rows
    contiguous: list[str] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)  # which the ranks must have mapped
    files: set[int] = field(default_factory=set)  # ids of those that are files
    # (parameter, NumPy array to write to, staged copy)
    write_back: list[tuple[str, Array, Data]] = field(default_factory=list)
    # arguments as they were passed, for output shapes
    whole: dict[str, Any] = field(default_factory=dict)
    # rows on each rank of each sliceable variable
    own_lengths: dict[str, tuple[int, ...]] = field(default_factory=dict)
    # by the parameter, or leaf of one, that receives them
    variables: dict[str, VariableState] = field(default_factory=dict)
    # arrays of those that are passed in part only
    branches: dict[str, range] = field(default_factory=dict)
    # arrays of variables, by id and leaf, that several arguments are
    shared: frozenset[tuple[int, int]] = frozenset()
    # those of them that ranks get whole, not in rows
    intact: dict[str, VariableState] = field(default_factory=dict)
    # constants that an argument, or a leaf of one, is
    filled: set[RankConstant] = field(default_factory=set)
    whose: str | None = (
        # argument with the variable whose rows OWN, and in a call without rows OFFSET and ROWS, are
        None
    )
    changed: list[VariableState] = field(default_factory=list)  # that ranks may write to
    rows: Rows | None = (
        None  # of the sharded arguments that `batch` selects; None if nothing is sharded
    )
    own: OwnRows | None = (
        None  # of the sliceable variables that `local_batch` selects; None if there are none
    )
    # encoding of `rows` for the ranks
    source: RowSource = field(default_factory=lambda: RowSource("none"))
    own_source: OwnSource | None = None  # encoding of `own` for the ranks
    # those parts of the encodings that are sent with each call, after `values`
    row_values: tuple[int, ...] = ()

    @property
    def run_partition(self) -> Partition:
        """Partition of rows into the ranks that run."""
        return Partition.even(1) if self.options.solo else self.partition

    @property
    def count(self) -> Count:
        """Number of rows; by rank if they are the ranks' own; None if the call has no rows."""
        if self.rows is not None:
            return self.rows.count
        return None if self.own is None else self.own.counts

    @property
    def total(self) -> int | None:
        """Number of rows on all ranks; None if the call has no rows."""
        return total_rows(self.count)

    @property
    def exact(self) -> bool:
        """Whether the number of rows is part of the plan, rather than sent with each call."""
        return self.source.kind in ("all", "none") and (
            self.own_source is None or self.own_source.kind == "all"
        )

    @property
    def follows_lines(self) -> bool:
        """Whether lines of row numbers may change without the host, as `Program.line_offset`
        tells ranks.
        """
        leaves = (leaf for param in self.parameters.values() for leaf in leaves_of(param))
        writes = any(isinstance(leaf, Sharded) and leaf.writable for leaf in leaves)
        return self.options.num_slices == 1 and self.options.shards is None and not writes

    def leaf_of(self, path: str) -> int:
        """Returns the index of the first array that an argument gets of its variable."""
        return self.branches[path].start if path in self.branches else 0

    def written(self) -> tuple[list[str], list[str]]:
        """Returns the parameters whose rows are written back: those of sharded arguments, and
        those of sliceable variables.
        """
        leaves = [
            (name, leaf) for name, param in self.parameters.items() for leaf in leaves_of(param)
        ]
        sharded = [
            name
            for name, leaf in leaves
            if isinstance(leaf, Sharded) and leaf.writable and not leaf.by_position
        ]
        return sharded, [
            name for name, leaf in leaves if isinstance(leaf, HeldRows) and leaf.writable
        ]

    def sizes(
        self, *, frozen: bool = False, files: bool = False, sent: bool = False
    ) -> tuple[int, int]:
        """Returns the bytes per row of all sharded arguments, and the bytes of all broadcast ones.

        Of frozen ones only, with `frozen`; of those in files only, with `files`; of those that
        other machines are sent only, as they cannot open them themselves, with `sent`.
        """
        per_row = whole = 0
        for leaf in (leaf for param in self.parameters.values() for leaf in leaves_of(param)):
            match leaf:
                case Sharded(array) | Broadcast(array) if frozen and not array.version:
                    pass
                case Sharded(array) | Broadcast(array) if sent and array.source is not None:
                    pass
                case Sharded(array) | Broadcast(array) if files and array.segment not in self.files:
                    pass
                case Sharded(array):
                    per_row += (
                        int(np.prod(array.shape[1:], dtype=np.int64))
                        * np.dtype(array.dtype).itemsize
                    )
                case Broadcast(array):
                    whole += (
                        int(np.prod(array.shape, dtype=np.int64)) * np.dtype(array.dtype).itemsize
                    )
        return per_row, whole

    def texts(
        self, *, lasting: bool = False, shape_of: ShapeOf = VariableState.root_shape
    ) -> tuple[str, ...]:
        """Returns a short description of each argument, as passed; without what generated kernels
        get for themselves.

        A `lasting` one holds for all calls of a plan: of arguments that change between calls, it
        gives only the type. `shape_of` is as for `describe`.
        """
        changing = {
            name
            for name, param in self.parameters.items()
            if lasting and isinstance(param, Dynamic | Tree)
        }
        passed = (
            (name, value) for name, value in self.whole.items() if not name.startswith(OWN_PREFIX)
        )
        return tuple(
            f"{name}: {type_told(one) if name in changing else describe(one, shape_of)}"
            for name, one in passed
        )

    def add_value(self, value: Any, fmt: str, dtype: str | None) -> Dynamic:
        """Adds a scalar that is sent with each call, and returns its parameter."""
        self.values.append(value)
        self.format += fmt
        return Dynamic(len(self.values) - 1, dtype)


def leaves_of(param: Param) -> Iterator[Param]:
    """Yields the leaves of a parameter; the parameter itself if it is not nested."""
    if not isinstance(param, Tree):
        yield param
        return
    for one in param.leaves:
        yield from leaves_of(one)


def type_told(value: Any) -> str:
    """Describes the type of an argument; of a number of a sequence, that of what ranks get."""
    if isinstance(value, Number):
        return value.dtype or ("int" if value.is_int else "float")
    return type(value).__name__


def describe(value: Any, shape_of: ShapeOf = VariableState.root_shape) -> str:
    """Describes an argument briefly: dtype and shape of an array, the value of a number.

    `shape_of` returns the shape of a variable's array, given its index: by default that on the
    root.
    """
    if isinstance(value, Data | np.ndarray):
        where = (
            f" in {value.path}"
            if isinstance(value, FileData | StoredData)
            else " in a file"
            if type(value) is np.memmap
            else ""
        )
        return f"{value.dtype} {value.shape}{where}"
    if isinstance(value, Variable):  # its repr shows what changes from call to call
        state = state_of(value)
        return (
            "variable, a tree" if state.is_tree else f"variable {value.dtype} {shape_of(state, 0)}"
        )
    if isinstance(value, Branch):
        first = value.leaves.start
        many = len(value.leaves) > 1
        return (
            "variable, a tree"
            if many
            else f"variable {value.variable.dtypes()[first]} {shape_of(value.variable, first)}"
        )
    text = repr(value)
    return text if len(text) <= 40 else type(value).__name__
