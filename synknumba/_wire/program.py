"""Functions and programs as sent to the ranks: frozen dataclasses, pickled and sent once.

A program describes all calls of a function that differ only in their values: which rows of which segment each parameter gets,
and where each result goes. The values (scalars, the bounds of a `batch`, the length of an index list) are written to the
control block at each call, in the layout `Program.values`. Collectives, combinations and transfers are run by number too.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from synknumba._ops.rows import Partition
from synknumba._types import CollectiveKind, CollectiveOp, Op, RankConstant, Shape, Transport

_numbers = itertools.count()

FunctionStyle: TypeAlias = Literal["kernel", "function"]
RowsKind: TypeAlias = Literal["none", "all", "range", "list"]


def next_number() -> int:
    """Returns a new program number."""
    return next(_numbers)


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """A user's function, serialised; sent once, before its first program.

    Attributes:
        id: number, unique in the coordinator's process.
        name: name for messages.
        style: "kernel" for a Numba CUDA kernel, "function" for a Python function of device arrays.
        payload: (plain function, LaunchConfig or None, compile options), pickled by `_wire/pickling.py`. Functions sent earlier
            are pickled as their ids.
        sources: `linecache` entries by file name, for files that do not exist on disk, such as notebook cells.
    """

    id: int
    name: str
    style: FunctionStyle
    payload: bytes
    sources: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostArray:
    """Location and type of an array in a segment.

    Attributes:
        segment: id of the segment.
        dtype: dtype of the array.
        shape: shape of the array.
        offset: offset in the segment, in bytes.
        version: version of the contents, if they are frozen; 0 if they may change between any two calls.
    """

    segment: int
    dtype: Any
    shape: Shape
    offset: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Sharded:
    """Parameter: the rank's rows of an array.

    Attributes:
        array: the array, split along axis 0.
        by_position: whether the array is a minibatch input, indexed by position in the batch.
        writable: whether the function may write; its rows are then written back.
    """

    array: HostArray
    by_position: bool = False
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Parameter: the whole array, on every rank."""

    array: HostArray


@dataclass(frozen=True, slots=True)
class Dynamic:
    """Parameter: a scalar passed with each call.

    Attributes:
        index: index of the scalar, or of its real part, among the values.
        dtype: NumPy name of the dtype to convert to; None for a Python number.
        is_complex: whether the scalar is complex; the next value is then its imaginary part.
    """

    index: int
    dtype: str | None = None
    is_complex: bool = False


@dataclass(frozen=True, slots=True)
class Constant:
    """Parameter: a value that is part of the program, such as None, a string or a tuple."""

    value: Any


@dataclass(frozen=True, slots=True)
class IndexSpan:
    """Parameter: the `Span` of the slice's rows, from `synk.arange`; `start` is the index of row 0."""

    start: int = 0


@dataclass(frozen=True, slots=True)
class Filled:
    """Parameter: a number that each rank fills in, such as its rank, the world size or the index of its first row."""

    constant: RankConstant


@dataclass(frozen=True, slots=True)
class PerRank:
    """Parameter: one value per rank."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """Parameter: an output of a kernel.

    Attributes:
        name: name of the parameter.
        op: op that combines slices and ranks.
        dtype: dtype that the kernel writes.
        shape: shape on one rank; for "gather", shape of one row.
        parts: array that the coordinator reads: shape (W, *shape), or (shards, *shape) if shards are kept apart, in the result
            dtype; for "gather", (rows, *shape). None for an output that the caller did not request.
        is_small: whether the parts are in the control block, at `parts.offset` bytes of each rank's small results; `parts` then
            describes one rank's part.
        stays: whether each rank's part stays on its device, for a `Combination`; `parts` then only gives dtype and shape.
        lent: index among the `Program.lent` last values of the id of the segment to write to; None for a fixed segment.
        rows: for "argmin" and "argmax", the array of row positions of `parts`: int64, same shape, same segment.
        filled: whether the output starts at the op's identity. A kernel that writes every element need not wait for the fill;
            slices with the op None then write different elements of one array, and are not added: 0 + −0 is 0, not −0.
    """

    name: str
    op: Op
    dtype: Any
    shape: Shape
    parts: HostArray | None
    is_small: bool = False
    stays: bool = False
    lent: int | None = None
    rows: HostArray | None = None
    filled: bool = True


@dataclass(frozen=True, slots=True)
class Held:
    """Parameter: the rank's array of a variable.

    Attributes:
        variable: number of the variable's memory.
        leaf: index of the array in the variable's tree.
        read_only: whether the function must not write, because the call assigns the variable at its end.
    """

    variable: int
    leaf: int
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Parameter: rows of the rank's array of a variable, selected by `local_batch` and the slice.

    Attributes:
        variable: number of the variable's memory.
        leaf: index of the array in the variable's tree.
        writable: whether the function may write; its rows are then written back.
    """

    variable: int
    leaf: int
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Update:
    """Parameter: an accumulator, to which a variable is set at the end of the call.

    Attributes:
        variable: number of the variable's memory.
        leaf: index of the array in the variable's tree.
        op: op that combines slices.
        dtype: dtype of the array.
        shapes: shape of the array on each rank.
    """

    variable: int
    leaf: int
    op: Op
    dtype: Any
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """Parameter: a nested argument of a Python function, with a parameter for each leaf of its structure."""

    structure: Any
    leaves: "tuple[Param, ...]"


Param: TypeAlias = (
    Sharded | Broadcast | Dynamic | Constant | IndexSpan | Filled | PerRank | Result | Held | HeldRows | Update | Tree
)


@dataclass(frozen=True, slots=True)
class RowSource:
    """Selection of the rows of a call.

    Attributes:
        kind: "none": there is no sharded argument, so there are no rows; "all": rows 0 … length − 1; "range": three values give
            start, step and count; "list": one value gives the count, and `indices` the rows. These values follow the scalars.
        length: number of rows of the sharded arguments.
        indices: int64 array of row numbers, with room for at least count of them.
    """

    kind: RowsKind
    length: int = 0
    indices: HostArray | None = None

    @property
    def values(self) -> str:
        """Format of the selection's values in each call: one `struct` letter per value."""
        return {"range": "qqq", "list": "q"}.get(self.kind, "")


@dataclass(frozen=True, slots=True)
class OwnSource:
    """Selection of each rank's own rows of sliceable variables.

    Attributes:
        kind: "all": all rows; "range": 3·W values give start, step and count for each rank; "list": W values give the ranks'
            counts, and their row numbers follow each other in `indices`. These values follow those of `RowSource`.
        lengths: number of rows that each rank holds.
        indices: int64 array of row numbers, with room for at least the sum of the counts.
    """

    kind: RowsKind
    lengths: tuple[int, ...]
    indices: HostArray | None = None

    @property
    def values(self) -> str:
        """Format of the selection's values in each call: one `struct` letter per value."""
        return {"range": "qqq", "list": "q"}.get(self.kind, "") * len(self.lengths)


@dataclass(frozen=True, slots=True)
class Program:
    """Description of a call, up to its values, for the ranks.

    Attributes:
        number: number by which the coordinator runs the program.
        function: id of a `FunctionSpec` sent earlier.
        parameters: (name, param) of each parameter, in the order of the function's signature.
        rows: selection of the rows.
        partition: partition of the rows into ranks: the world's, or one part if `solo`.
        num_slices: number of slices of each shard.
        values: `struct` format of the values of a call, one letter each; empty if there are none.
        solo: whether only rank 0 runs, with all rows.
        ops: for a Python function, the tree of ops of its results.
        subset: for a Python function, the requested top-level results; None for all.
        own: selection of each rank's own rows of sliceable variables; None if there are none.
        lent: number of values, the last ones, that are ids of segments to write results to.
        only_read: parameters that a kernel provably does not write.
        shards: number of shards into which all rows are cut, independent of the world size, and whose results are kept apart;
            None for one shard per rank.
    """

    number: int
    function: int
    parameters: tuple[tuple[str, Param], ...]
    rows: RowSource
    partition: Partition
    num_slices: int = 1
    values: str = ""
    solo: bool = False
    ops: Any = None
    subset: tuple[int | str, ...] | None = None
    own: OwnSource | None = None
    lent: int = 0
    only_read: frozenset[str] = frozenset()
    shards: int | None = None

    @property
    def is_cut(self) -> bool:
        """Whether a rank may run the function several times in a call."""
        return self.num_slices > 1 or self.shards is not None

    @property
    def shard_partition(self) -> Partition:
        """Partition of the rows into shards, whose results are kept apart until they reach the coordinator."""
        return self.partition if self.shards is None else Partition.even(self.shards)

    def own_shards(self, rank: int) -> tuple[int, int]:
        """Returns the range of shards that a rank runs, as (first, one after the last)."""
        if self.solo and rank:
            return 0, 0
        return (rank, rank + 1) if self.shards is None else self.partition.part(self.shards, rank)

    def leaves(self) -> list[Param]:
        """Returns the parameters, with nested arguments replaced by their leaves; in no particular order."""
        out: list[Param] = []
        params = [param for _, param in self.parameters]
        while params:
            param = params.pop()
            if isinstance(param, Tree):
                params += param.leaves
            else:
                out.append(param)
        return out

    def segments(self) -> frozenset[int]:
        """Returns the ids of the segments that the program uses, except those named by values."""
        arrays = [source.indices for source in (self.rows, self.own) if source is not None and source.indices is not None]
        for param in self.leaves():
            match param:
                case Sharded(array) | Broadcast(array):
                    arrays.append(array)
                case Result(parts=HostArray() as parts, lent=None, stays=False):
                    arrays.append(parts)
        return frozenset(array.segment for array in arrays)

    def variables(self) -> frozenset[int]:
        """Returns the numbers of the variables' memory that the program uses."""
        return frozenset(param.variable for param in self.leaves() if isinstance(param, Held | HeldRows | Update))


# ---- collectives, combinations and transfers ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class End:
    """Source or target of a collective: one array on each rank.

    Attributes:
        variable: number of the variable's memory.
        leaf: index of the array in the variable's tree.
        counts: elements on each rank; bytes for records.
        hosts: each rank's array, if they are in segments; empty if they are on GPUs.
    """

    variable: int
    leaf: int
    counts: tuple[int, ...]
    hosts: tuple[HostArray, ...] = ()


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective on several arrays.

    Attributes:
        number: number by which the coordinator runs the collective.
        kind: name of the collective.
        arrays: (dtype, source, target) of each array.
        op: op of a reduction; None for other collectives.
        root: root of broadcast and reduce; ignored by others.
        transport: transport that runs the collective.
    """

    number: int
    kind: CollectiveKind
    arrays: tuple[tuple[Any, End, End], ...]
    op: CollectiveOp | None
    root: int
    transport: Transport

    def segments(self) -> frozenset[int]:
        """Returns the ids of the segments that hold the arrays."""
        return frozenset(host.segment for _, *ends in self.arrays for end in ends for host in end.hosts)

    def variables(self) -> frozenset[int]:
        """Returns the numbers of the variables' memory that the collective uses."""
        return frozenset(end.variable for _, *ends in self.arrays for end in ends)


@dataclass(frozen=True, slots=True)
class Combined:
    """One result of a `Combination`.

    Attributes:
        name: name of the output.
        op: op that combines the ranks' parts.
        dtype: dtype of the parts and of the result.
        count: number of elements.
        parts: the parts of all ranks, shape (W, …); None if they are on the devices.
    """

    name: str
    op: Op
    dtype: Any
    count: int
    parts: HostArray | None


@dataclass(frozen=True, slots=True)
class Combination:
    """Combination of large results after their program: each rank combines its share of the elements, over all ranks' parts.

    The values of a call are the id of the segment of each result and, if one is a mean, the number of rows of each rank.

    Attributes:
        number: number by which the coordinator runs the combination.
        program: number of the program that computes the results.
        results: the results to combine.
        weighted: whether one of them is a mean.
        transport: transport between the devices that hold the parts; None if the parts are in shared memory.
    """

    number: int
    program: int
    results: tuple[Combined, ...]
    weighted: bool
    transport: Transport | None


@dataclass(frozen=True, slots=True)
class Transfer:
    """Copies between a variable's arrays and host memory.

    Attributes:
        number: number by which the coordinator runs the transfer.
        up: whether the copies are from the host to the variable; otherwise the reverse.
        arrays: (number of the variable's memory, leaf, host array of each rank or None if that rank copies nothing).
    """

    number: int
    up: bool
    arrays: tuple[tuple[int, int, tuple[HostArray | None, ...]], ...]

    def segments(self) -> frozenset[int]:
        """Returns the ids of the segments that the copies read or write."""
        return frozenset(host.segment for _, _, hosts in self.arrays for host in hosts if host is not None)

    def variables(self) -> frozenset[int]:
        """Returns the numbers of the variables' memory that the copies read or write."""
        return frozenset(variable for variable, _, _ in self.arrays)
