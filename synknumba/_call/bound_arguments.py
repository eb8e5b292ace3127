"""The bound arguments of one call: parameters for the ranks, numbers of rows, and the values that change from call to call."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from synknumba._errors import BatchError
from synknumba._host.data import Data
from synknumba._host.segment import Segment
from synknumba._ops import rows as rows_module
from synknumba._ops.rows import Partition, Range, Rows
from synknumba._types import Array, Batch, RankConstant
from synknumba._variables.allocation import Allocation
from synknumba._variables.variable import Variable
from synknumba._wire.program import Broadcast, Dynamic, HeldRows, Param, Sharded, Tree
from synknumba._world.world import World


@dataclass(slots=True)
class Bound:
    """The arguments of one call, as `Binder.bind` collects them.

    Attributes:
        partition: partition of rows into ranks.
        parameters: parameter for the ranks, by name.
        key: plan key; equal for calls that differ in scalar values and array contents only.
        values: scalars that are sent with each call.
        formats: `struct` format of each of these.
        lengths: number of rows of each sharded argument.
        minibatches: number of rows of each minibatch argument.
        empties: arrays without rows inside nested arguments, which need not agree in length with those that have rows.
        per_rank: number of values of each per-rank argument.
        contiguous: arguments that are index ranges or offsets, and so require consecutive rows.
        segments: segments that the ranks must have mapped.
        write_back: (parameter, array, staged copy) of each NumPy array to which rows are written back.
        whole: arguments as they were passed, for output shapes.
        own_lengths: number of rows on each rank, for each sliceable variable.
        variables: variables, by the parameter, or leaf of one, that receives them.
        changed: variables that ranks may write to.
        world: world of the call; None for a call that is only planned.
        solo: whether only the root runs.
    """

    partition: Partition
    parameters: dict[str, Param] = field(default_factory=dict)
    key: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    formats: list[str] = field(default_factory=list)
    lengths: dict[str, int] = field(default_factory=dict)
    minibatches: dict[str, int] = field(default_factory=dict)
    empties: dict[str, int] = field(default_factory=dict)
    per_rank: dict[str, int] = field(default_factory=dict)
    contiguous: list[str] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    write_back: list[tuple[str, Array, Data]] = field(default_factory=list)
    whole: dict[str, Any] = field(default_factory=dict)
    own_lengths: dict[str, tuple[int, ...]] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    changed: list[Variable] = field(default_factory=list)
    world: World | None = None
    solo: bool = False

    @property
    def dry(self) -> bool:
        """Whether the call is only planned, so that nothing is copied."""
        return self.world is None

    @property
    def run_partition(self) -> Partition:
        """Partition of rows into the ranks that run."""
        return Partition.even(1) if self.solo else self.partition

    @property
    def storages(self) -> list[Allocation]:
        """Memory of the variables."""
        return [] if self.dry else [one.storage() for one in self.variables.values()]

    def written(self) -> tuple[list[str], list[str]]:
        """Returns the parameters whose rows are written back: those of sharded arguments, and those of sliceable variables."""
        leaves = [(name, leaf) for name, param in self.parameters.items() for leaf in leaves_of(param)]
        sharded = [name for name, leaf in leaves if isinstance(leaf, Sharded) and leaf.writable and not leaf.by_position]
        return sharded, [name for name, leaf in leaves if isinstance(leaf, HeldRows) and leaf.writable]

    def sizes(self) -> tuple[int, int]:
        """Returns the bytes per row of all sharded arguments, and the bytes of all broadcast arguments."""
        per_row = whole = 0
        for leaf in (leaf for param in self.parameters.values() for leaf in leaves_of(param)):
            match leaf:
                case Sharded(array):
                    per_row += int(np.prod(array.shape[1:], dtype=np.int64)) * np.dtype(array.dtype).itemsize
                case Broadcast(array):
                    whole += int(np.prod(array.shape, dtype=np.int64)) * np.dtype(array.dtype).itemsize
        return per_row, whole

    def texts(self) -> tuple[str, ...]:
        """Returns a short description of each argument."""
        return tuple(f"{name}: {describe_value(value)}" for name, value in self._passed())

    def lasting_texts(self) -> tuple[str, ...]:
        """Returns descriptions that hold for all calls of a plan: of arguments that change between calls, only the type."""
        changing = {name for name, param in self.parameters.items() if isinstance(param, Dynamic | Tree)}
        told = ((name, type(value).__name__ if name in changing else describe_value(value)) for name, value in self._passed())
        return tuple(f"{name}: {text}" for name, text in told)

    def _passed(self) -> Iterator[tuple[str, Any]]:
        """Yields the arguments as passed; without the slice number, an internal argument of generated kernels."""
        return ((name, value) for name, value in self.whole.items() if value is not RankConstant.SLICE)

    def add_value(self, value: Any, fmt: str, dtype: str | None) -> Dynamic:
        """Adds a scalar that is sent with each call, and returns its parameter."""
        param = Dynamic(len(self.values), dtype)
        self.values.append(value)
        self.formats.append(fmt)
        return param

    def select(self, function: str, batch: Batch) -> Rows | None:
        """Returns the rows of the call; None if nothing is sharded.

        Raises:
            PartitionError: the numbers of rows disagree.
            BatchError: the batch selects rows that do not exist.
        """
        lengths = self.lengths or self.minibatches or self.empties
        if not lengths:
            if batch is not None:
                message = (
                    f"{function} got batch={batch!r}, but none of its arguments is sharded, so there are no rows to select"
                )
                if self.own_lengths:
                    message += "; local_batch selects rows of sliceable variables"
                raise BatchError(message)
            return None
        agree = len({*lengths.values()}) == 1
        length = rows_module.common_length(lengths, () if agree else self.written()[0])
        rows = rows_module.select(batch, length)
        for name, available in self.minibatches.items():
            rows_module.minibatch_rows(rows, available, name)
        in_one_piece = isinstance(rows, Range) and (rows.step == 1 or rows.count == 0)
        if self.contiguous and not in_one_piece:
            raise BatchError(
                "batch must select consecutive rows (an int, or a slice with step 1) because "
                f"{self.contiguous[0]} is an index range or synk.OFFSET; to select other rows, pass the indices as an array"
            )
        return rows


def leaves_of(param: Param) -> list[Param]:
    """Returns the leaves of a parameter; the parameter itself if it is not nested."""
    if not isinstance(param, Tree):
        return [param]
    return [leaf for one in param.leaves for leaf in leaves_of(one)]


def describe_value(value: Any) -> str:
    """Describes an argument briefly: dtype and shape of an array, the value of a number."""
    if isinstance(value, Data | np.ndarray):
        return f"{value.dtype} {value.shape}"
    if isinstance(value, Variable):  # its repr shows what changes from call to call
        return "variable, a tree" if value.is_tree else f"variable {value.dtype} {value.shape}"
    text = repr(value)
    return text if len(text) <= 40 else f"{type(value).__name__}"
