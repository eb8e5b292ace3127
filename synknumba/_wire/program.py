"""Functions and programs as sent to the ranks: frozen dataclasses, pickled and sent once.

A program describes all calls of a function that differ only in their values: which rows of which
segment each parameter gets, and where each result goes. The values (scalars, the bounds of a
`batch`, the length of an index list) are written to the control block at each call, in the layout
`Program.values`. Collectives, combinations and transfers are run by number too.

In all classes, `number` is what the coordinator runs something by, `variable` the number of a
variable's memory, and `leaf` the index of an array in the variable's tree.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import calcsize
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from synknumba._host.stored import Source
from synknumba._ops.halo import Copy
from synknumba._ops.rows import Partition, RowPlan
from synknumba._ops.variable_layout import VECTOR
from synknumba._types import Array, CollectiveKind, CollectiveOp, Op, RankConstant, Shape, Transport

_numbers = itertools.count()

FunctionStyle: TypeAlias = Literal["kernel", "function"]
RowsKind: TypeAlias = Literal["none", "all", "range", "list", "line"]


def next_number() -> int:
    """Returns a new program number."""
    return next(_numbers)


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """A user's function, serialised; sent once, before its first program.

    The payload is (plain function, LaunchConfig or None, compile options), pickled by
    `_wire/function_pickling.py`. Functions sent earlier are pickled as their ids.
    """

    id: int  # unique in the coordinator's process
    name: str  # for messages
    # "kernel" for a Numba CUDA kernel, "function" for a Python function of device arrays
    style: FunctionStyle
    payload: bytes
    # `linecache` entries that the ranks lack
    sources: Mapping[str, Any] = field(default_factory=dict)
    # Values to assign in modules, by module and name: what is pickled by reference reads them
    # there.
    of_modules: Mapping[tuple[str, str], Any] = field(default_factory=dict)
    revision: int = 0


@dataclass(frozen=True, slots=True)
class HostArray:
    """Location and type of an array in a segment."""

    segment: int  # id
    dtype: Any
    shape: Shape
    offset: int = 0  # in the segment, in bytes
    version: int = (
        0  # of the contents, if they are frozen; 0 if they may change between any two calls
    )
    source: Source | None = (
        None  # of an array in a file that ranks open themselves, which is in no segment
    )

    def in_lines(self, memory: Array) -> Array:
        """Returns the array of each line of some memory: uint8, the last axis is the bytes of a
        line, in which the array has its offset.
        """
        dtype = np.dtype(self.dtype)
        strides = *memory.strides[:-1], *np.ndarray(self.shape, dtype).strides
        shape = *memory.shape[:-1], *self.shape
        return np.ndarray(shape, dtype, memory.data, self.offset, strides)


@dataclass(frozen=True, slots=True)
class Sharded:
    """Parameter: the rank's rows of an array."""

    array: HostArray  # split along axis 0
    by_position: bool = (
        False  # whether the array is a minibatch input, indexed by position in the batch
    )
    writable: bool = False  # whether the function may write; its rows are then written back


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Parameter: the whole array, on every rank."""

    array: HostArray


@dataclass(frozen=True, slots=True)
class Dynamic:
    """Parameter: a scalar passed with each call."""

    index: int  # of the scalar, or of its real part, among the values
    dtype: str | None = None  # NumPy name of the dtype to convert to; None for a Python number
    is_complex: bool = False  # if true, the next value is the imaginary part


@dataclass(frozen=True, slots=True)
class Constant:
    """Parameter: a value that is part of the program, such as None, a string or a tuple."""

    value: Any


@dataclass(frozen=True, slots=True)
class IndexSpan:
    """Parameter: the `Span` of a slice's rows, from `synk.arange`; `start` is row 0's index."""

    start: int = 0


@dataclass(frozen=True, slots=True)
class Filled:
    """Parameter: a number that each rank fills in, such as its rank, the world size or the index
    of its first row.
    """

    constant: RankConstant


@dataclass(frozen=True, slots=True)
class PerRank:
    """Parameter: one value per rank."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """Parameter: an output of a kernel.

    Attributes:
        parts: array that the coordinator reads: shape (W, *shape), or (shards, *shape) if shards
            are kept apart, in the result dtype; for "gather", (rows, *shape). None for an output
            that the caller did not request.
        is_small: whether the parts are in the control block, at `parts.offset` bytes of each rank's
            small results; `parts` then describes one rank's part.
        filled: whether the output starts at the op's identity. A kernel that writes every element
            need not wait for the fill; slices with the op None then write different elements of one
            array, and are not added: 0 + −0 is 0, not −0.
    """

    name: str
    op: Op  # combines slices and ranks
    dtype: Any  # that the kernel writes
    shape: Shape  # on one rank; for "gather", shape of one row
    parts: HostArray | None
    is_small: bool = False
    # each rank's part stays on its device, for a `Combination`; `parts` then only gives dtype and
    # shape
    stays: bool = False
    lent: int | None = (
        # index among the `Program.lent` last values of the id of the segment; None for a fixed
        # segment
        None
    )
    rows: HostArray | None = (
        None  # for "argmin" and "argmax", row positions of `parts`: int64, same shape, same segment
    )
    filled: bool = True


@dataclass(frozen=True, slots=True)
class Held:
    """Parameter: the rank's array of a variable."""

    variable: int
    leaf: int  # `VECTOR` for all arrays of a flat variable as one vector
    # whether the function must not write: the call assigns the variable at its end, or passes it
    # twice
    read_only: bool = False
    count: int = 1  # arrays that it covers

    def leaves(self) -> range:
        """Returns the indices of the arrays that it covers."""
        return range(self.count) if self.leaf == VECTOR else range(self.leaf, self.leaf + 1)


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Parameter: rows of a variable on the rank, selected by `local_batch` and the slice."""

    variable: int
    leaf: int
    writable: bool = False  # as for `Sharded`


@dataclass(frozen=True, slots=True)
class Update:
    """Parameter: an accumulator, to which a variable is set at the end of the call.

    Attributes:
        parts: array of shape (shards, *shape) for the accumulators of the shards, from which the
            coordinator sets the variable on all ranks; None if each rank sets its own.
    """

    variable: int
    leaf: int
    op: Op  # combines slices
    dtype: Any
    shapes: tuple[Shape, ...]  # on each rank
    parts: HostArray | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """Parameter: a nested argument of a Python function, with a parameter for each leaf."""

    structure: Any
    leaves: "tuple[Param, ...]"


Param: TypeAlias = (
    Sharded
    | Broadcast
    | Dynamic
    | Constant
    | IndexSpan
    | Filled
    | PerRank
    | Result
    | Held
    | HeldRows
    | Update
    | Tree
)


# parameters that are arrays, other than outputs
ARRAYS = (
    Sharded,
    Broadcast,
    Held,
    HeldRows,
    Update,
)


@dataclass(frozen=True, slots=True)
class RowSource:
    """Selection of the rows of a call.

    Attributes:
        kind: "none": there is no sharded argument, so there are no rows; "all": rows 0 … length −
            1; "range": three values give start, step and count; "list": one value gives the count,
            and `indices` the rows; "line": one value gives the line of `indices` that has the rows.
            These values follow the scalars.
    """

    kind: RowsKind
    length: int = 0  # number of rows of the sharded arguments
    indices: HostArray | None = (
        None  # int64 row numbers, with room for at least count of them, or lines of them
    )

    @property
    def values(self) -> str:
        """Format of the selection's values in each call: one `struct` letter per value."""
        return {"range": "qqq", "list": "q", "line": "q"}.get(self.kind, "")

    def count(self, values: Sequence[Any]) -> int | None:
        """Returns the number of rows, given these values; None if there are no rows."""
        match self.kind:
            case "none":
                return None
            case "all":
                return self.length
            case "range":
                return int(values[2])
            case "list":
                return int(values[0])
            case "line":
                assert self.indices is not None  # a "line" has indices
                return self.indices.shape[1]


@dataclass(frozen=True, slots=True)
class OwnSource:
    """Selection of each rank's own rows of sliceable variables.

    Attributes:
        kind: "all": all rows; "range": 3·W values give start, step and count for each rank; "list":
            W values give the ranks' counts, and their row numbers follow each other in `indices`.
            These values follow those of `RowSource`.
    """

    kind: RowsKind
    lengths: tuple[int, ...]  # number of rows that each rank holds
    indices: HostArray | None = (
        None  # int64 row numbers, with room for at least the sum of the counts
    )

    @property
    def values(self) -> str:
        """Format of the selection's values in each call: one `struct` letter per value."""
        return {"range": "qqq", "list": "q"}.get(self.kind, "") * len(self.lengths)

    def counts(self, values: Sequence[Any]) -> tuple[int, ...]:
        """Returns the number of rows on each rank, given these values."""
        if self.kind == "all":
            return self.lengths
        return tuple(values[2::3] if self.kind == "range" else values)


@dataclass(frozen=True, slots=True)
class ReturnSpec:
    """What the ranks pass on of a Python function's result.

    Attributes:
        ops: tree of ops, in the structure of the result.
        subset: the requested top-level results; None for all.
        small: place (first, number of bytes) of small results in the control block; None for all of
            a rank's.
    """

    ops: Any = None
    subset: tuple[int | str, ...] | None = None
    small: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class KernelTraits:
    """What the text of a kernel and its launch rule say.

    Attributes:
        only_read: parameters that it provably does not write.
        sized_by: the array whose rows or elements a launch has threads for, as `Extent.source`.
    """

    only_read: frozenset[str] = frozenset()
    sized_by: str | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """Description of a call, up to its values, for the ranks.

    With `shards`, all rows are cut into that number of shards, independent of the world size, whose
    results are kept apart; without, each rank is one shard.
    """

    number: int
    function: int  # id of a `FunctionSpec` sent earlier
    # (name, param), in the order of the function's signature
    parameters: tuple[tuple[str, Param], ...]
    rows: RowSource
    partition: Partition  # of the rows into ranks: the world's, or one part if `solo`
    num_slices: int = 1  # of each shard
    values: str = ""  # `struct` format of the values of a call, one letter each
    solo: bool = False  # whether only rank 0 runs, with all rows
    returns: ReturnSpec = ReturnSpec()
    kernel: KernelTraits = KernelTraits()
    # each rank's own rows of sliceable variables; None if there are none
    own: OwnSource | None = None
    lent: int = 0  # number of values, the last ones, that are ids of segments to write results to
    shards: int | None = None
    is_recorded: bool = False  # of a Python function: whether GPUs repeat its work without Python
    shows_slices: bool = False  # whether ranks show how many slices they have done

    @property
    def is_cut(self) -> bool:
        """Whether a rank may run the function several times in a call."""
        return self.num_slices > 1 or self.shards is not None

    @property
    def scalars(self) -> str:
        """Format of the scalars among the values, which come first."""
        trailing = len(self.rows.values) + self.lent
        if self.own is not None:
            trailing += len(self.own.values)
        return self.values[: len(self.values) - trailing]

    @property
    def line_offset(self) -> int | None:
        """Offset among packed values of the number of a line of rows, if it may change without the
        host; else None.

        That is so where a rank has one slice, and only reads the rows.
        """
        if self.rows.kind != "line" or self.is_cut:
            return None
        if any(isinstance(param, Sharded) and param.writable for param in self.leaves()):
            return None
        return calcsize("<" + self.scalars)

    @property
    def shard_partition(self) -> Partition:
        """Partition of the rows into shards, whose results are kept apart until they reach the
        coordinator.
        """
        return self.partition if self.shards is None else Partition.even(self.shards)

    def row_plan(self, count: int | None, own: tuple[int, ...] | None = None) -> RowPlan:
        """Returns the division of a number of rows, and of rows of sliceable variables by rank."""
        return RowPlan(self.partition, self.shards, self.num_slices, count, own)

    def own_shards(self, rank: int) -> tuple[int, int]:
        """Returns the range of shards that a rank runs, as (first, one after the last)."""
        return self.row_plan(None).shard_span(rank, rank + 1)

    def leaves(self) -> list[Param]:
        """Returns the parameters, with nested arguments replaced by their leaves."""
        return [leaf for _, param in self.parameters for leaf in leaves_of(param)]

    def segments(self) -> frozenset[int]:
        """Returns the ids of the segments that the program uses, except those named by values."""
        arrays = [
            source.indices
            for source in (self.rows, self.own)
            if source is not None and source.indices is not None
        ]
        for param in self.leaves():
            match param:
                case Sharded(array) | Broadcast(array):
                    arrays.append(array)
                case (
                    Result(parts=HostArray() as parts, lent=None, stays=False)
                    | Update(parts=HostArray() as parts)
                ):
                    arrays.append(parts)
        return frozenset(array.segment for array in arrays if array.source is None)

    def variables(self) -> frozenset[int]:
        """Returns the numbers of the variables' memory that the program uses."""
        return frozenset(
            param.variable for param in self.leaves() if isinstance(param, Held | HeldRows | Update)
        )


def may_write(leaf: Param) -> bool:
    """Returns whether a function may write an argument."""
    match leaf:
        case Update():
            return True
        case Held():
            return not leaf.read_only
        case Sharded() | HeldRows():
            return leaf.writable
    return False


def leaves_of(param: Param) -> Iterator[Param]:
    """Yields the leaves of a parameter; the parameter itself if it is not nested."""
    if not isinstance(param, Tree):
        yield param
        return
    for leaf in param.leaves:
        yield from leaves_of(leaf)


# ---- collectives, combinations and transfers -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class End:
    """Source or target of a collective: one array on each rank."""

    variable: int
    leaf: int
    counts: tuple[int, ...]  # elements on each rank; bytes for records
    # each rank's array, if they are in segments; empty if they are on GPUs
    hosts: tuple[HostArray, ...] = ()


class Operand(NamedTuple):
    """One array of a collective."""

    dtype: Any
    source: End
    target: End
    copies: tuple[Copy, ...] = ()  # of an exchange, in elements


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective on several arrays."""

    number: int
    kind: CollectiveKind
    arrays: tuple[Operand, ...]
    op: CollectiveOp | None  # of a reduction
    root: int  # of broadcast and reduce; ignored by others
    transport: Transport

    def segments(self) -> frozenset[int]:
        """Returns the ids of the segments that hold the arrays."""
        return frozenset(
            host.segment
            for array in self.arrays
            for end in (array.source, array.target)
            for host in end.hosts
        )

    def variables(self) -> frozenset[int]:
        """Returns the numbers of the variables' memory that the collective uses."""
        return frozenset(
            end.variable for array in self.arrays for end in (array.source, array.target)
        )


@dataclass(frozen=True, slots=True)
class Staged:
    """One of the two steps of a small all_reduce in place: each rank copies its arrays to a stage,
    or combines those there.

    The stage has two places for each rank, which are used in turn: whoever copies to one has
    combined what was in the other, for which all ranks had copied to it, and so had combined what
    was in the first.
    """

    number: int
    arrays: tuple[tuple[Any, End], ...]  # dtype, the arrays
    op: CollectiveOp
    stage: HostArray  # uint8, shape (2, W, bytes)
    combines: bool

    def segments(self) -> frozenset[int]:
        """Returns the ids of the segments that hold the arrays and the stage."""
        return frozenset(
            {self.stage.segment, *(host.segment for _, end in self.arrays for host in end.hosts)}
        )

    def variables(self) -> frozenset[int]:
        """Returns the numbers of the variables' memory that the step uses."""
        return frozenset(end.variable for _, end in self.arrays)


@dataclass(frozen=True, slots=True)
class Combined:
    """One result of a `Combination`."""

    name: str  # of the output
    op: Op
    dtype: Any  # of the parts and of the result
    count: int  # of elements
    parts: HostArray | None  # of all ranks, shape (W, …); None if they are on the devices


@dataclass(frozen=True, slots=True)
class Combination:
    """Combination of large results after their program: each rank combines its share of the
    elements, over all ranks' parts.

    The values of a call are the id of the segment of each result and, if one is a mean, the number
    of rows of each rank.
    """

    number: int
    program: int  # number of the program that computes the results
    results: tuple[Combined, ...]
    weighted: bool  # whether one of them is a mean
    # between the devices that hold the parts; None if the parts are in shared memory
    transport: Transport | None


@dataclass(frozen=True, slots=True)
class Joined:
    """Combination of an array that a kernel of a sequence returns, into memory of the host that
    later calls read.

    Attributes:
        parts: of all ranks, shape (W, …); if `is_small`, one rank's part among its small results.
        weights: rows of each rank, for a mean.
        target: the combined array.
    """

    number: int
    op: Op
    parts: HostArray
    is_small: bool
    weights: tuple[int, ...]
    target: HostArray

    def segments(self) -> frozenset[int]:
        """Returns the ids of the segments that it uses."""
        return frozenset(
            {self.target.segment} if self.is_small else {self.target.segment, self.parts.segment}
        )


class Transferred(NamedTuple):
    """One array of a transfer."""

    variable: int
    leaf: int
    hosts: tuple[HostArray | None, ...]  # by rank; None where nothing is copied
    # row of each rank's array at which the host array's rows begin; empty for whole arrays
    firsts: tuple[int, ...] = ()


class Reduced(NamedTuple):
    """Arrays of equal shape, one for each rank, that are to be replaced by their combination."""

    op: CollectiveOp
    hosts: tuple[HostArray, ...]  # by rank


@dataclass(frozen=True, slots=True)
class Transfer:
    """Copies between a variable's arrays and host memory.

    Attributes:
        number: number.
        up: whether the copies are from the host to the variable; otherwise the reverse.
        arrays: the arrays.
        stays: whether the host memory is used on the machine of each rank only, so that it is not
            sent to others.
        reduced: arrays that machines combine, each those of its ranks and then with each other;
            nothing for the ranks to do.
        about: numbers of the variables that these arrays are copies of: without them the program is
            of no use.
        adds: whether copies to a variable are added to what it has, in the order of `arrays`.
    """

    number: int
    up: bool
    arrays: tuple[Transferred, ...]
    stays: bool = False
    reduced: tuple[Reduced, ...] = ()
    about: frozenset[int] = frozenset()
    adds: bool = False

    def segments(self) -> frozenset[int]:
        """Returns the ids of the segments that the copies and reductions read or write."""
        copied = frozenset(
            host.segment for array in self.arrays for host in array.hosts if host is not None
        )
        return copied.union(host.segment for array in self.reduced for host in array.hosts)

    def variables(self) -> frozenset[int]:
        """Returns the numbers of the variables' memory that the copies use, or are about."""
        return frozenset(array.variable for array in self.arrays) | self.about
