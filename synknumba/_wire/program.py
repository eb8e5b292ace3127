"""What the ranks are told: functions, and programs that run them. Frozen dataclasses that travel once, as pickles.

A program is one call of a function with everything worked out that does not change from call to call: which rows of which
segment each parameter gets, where each result goes. What does change (scalars, the bounds of a `batch`, the number of
entries of an index list) travels in the control block's values, in the layout `Program.values`.
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
    """A program number that was never used before."""
    return next(_numbers)


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """A user's function as it is shipped: once, before its first program.

    Attributes:
        id: unique in the coordinator's life.
        name: for messages.
        style: a Numba CUDA kernel, or a Python function of device arrays.
        payload: of (plain function, LaunchConfig or None, compile options), as `_payload` makes it; what was sent before is a
            number in it.
        sources: text of files that do not exist on disk (notebook cells), for `linecache`.
    """

    id: int
    name: str
    style: FunctionStyle
    payload: bytes
    sources: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostArray:
    """An array in a segment: where it is and how to read it.

    Attributes:
        segment: its id.
        dtype: of the array.
        shape: of the array.
        offset: in the segment, in bytes.
        version: of contents that do not change; 0 where they may, between any two calls.
    """

    segment: int
    dtype: Any
    shape: Shape
    offset: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Sharded:
    """A parameter that gets the rank's rows. `by_position`: a minibatch input, indexed by position in the batch."""

    array: HostArray
    by_position: bool = False
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A parameter that gets the whole array on every rank."""

    array: HostArray


@dataclass(frozen=True, slots=True)
class Dynamic:
    """A scalar that comes with each call: the field `index` of the values, made into `dtype` (a NumPy name) where given."""

    index: int
    dtype: str | None = None
    is_complex: bool = False


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is part of the program: None, a string, a tuple."""

    value: Any


@dataclass(frozen=True, slots=True)
class IndexSpan:
    """A parameter that gets the `Span` of its rows, from `synk.arange`; `start` is the index of row 0."""

    start: int = 0


@dataclass(frozen=True, slots=True)
class Filled:
    """A parameter that each rank fills in: its rank, the world size, the index of its first row."""

    constant: RankConstant


@dataclass(frozen=True, slots=True)
class PerRank:
    """A parameter with one value for each rank."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """A kernel's output parameter.

    Attributes:
        name: the parameter.
        op: how slices and ranks are put together.
        dtype: what the kernel writes.
        shape: on one rank; for "gather" of one row.
        parts: where the coordinator reads it: shape (W, *shape), in the result dtype, or for "gather" (rows, *shape).
            None for an output that the caller did not ask for.
        is_small: the parts are in the ranks' small results, at `parts.offset` bytes of each, and not in a segment.
        stays: each rank's part stays on its device, where a `Combination` takes it; `parts` tells its dtype and shape.
        lent: the parts are in a segment whose id comes with each call: which of `Program.lent` at the end of its values.
        rows: of an op that locates, the parts' rows: int64, of their shape, and in the control block where they are.
        filled: it starts at the identity of the op; a kernel that is sure to write every element need not wait for that. With
            the op None, slices then write different elements of one array, instead of being added up: 0 + −0 is 0.
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
    """A parameter that gets the rank's own array of a variable; the function may write to it.

    Attributes:
        variable: the number of its memory.
        leaf: which of its arrays.
        read_only: the function must not write, because the call assigns the variable at its end.
    """

    variable: int
    leaf: int
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class HeldRows:
    """A parameter that gets rows of the rank's own array of a variable: those that `local_batch` and the slice select."""

    variable: int
    leaf: int
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Update:
    """A parameter that accumulates what a variable is assigned when the call ends.

    Attributes:
        variable: the number of its memory.
        leaf: which of its arrays.
        op: how slices are put together.
        dtype: of the array.
        shapes: by rank.
    """

    variable: int
    leaf: int
    op: Op
    dtype: Any
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """A nested argument of a Python function: the structure, and a parameter for each leaf."""

    structure: Any
    leaves: "tuple[Param, ...]"


Param: TypeAlias = (
    Sharded | Broadcast | Dynamic | Constant | IndexSpan | Filled | PerRank | Result | Held | HeldRows | Update | Tree
)


@dataclass(frozen=True, slots=True)
class RowSource:
    """Which rows the call is about.

    Attributes:
        kind: "none": no sharded argument, so there are no rows; "all": rows 0 … length − 1; "range": start, step and count are
            the last three values; "list": the count is the last value and the indices are in `indices`.
        length: rows of the sharded arguments.
        indices: int64 array of at least that many row numbers.
    """

    kind: RowsKind
    length: int = 0
    indices: HostArray | None = None

    @property
    def values(self) -> str:
        """What of the selection comes with each call, as a `struct` format: one letter a value."""
        return {"range": "qqq", "list": "q"}.get(self.kind, "")


@dataclass(frozen=True, slots=True)
class OwnSource:
    """Which of its own rows each rank gets of the sliceable variables.

    Attributes:
        kind: "all"; "range": start, step and count of each rank are the last 3·W values; "list": the counts of the ranks are
            the last W values, and their indices follow each other in `indices`.
        lengths: rows that each rank holds.
        indices: int64 array of at least as many row numbers as there are.
    """

    kind: RowsKind
    lengths: tuple[int, ...]
    indices: HostArray | None = None

    @property
    def values(self) -> str:
        """What of the selection comes with each call, as a `struct` format: one letter a value."""
        return {"range": "qqq", "list": "q"}.get(self.kind, "") * len(self.lengths)


@dataclass(frozen=True, slots=True)
class Program:
    """One call, as the ranks need it.

    Attributes:
        number: by which the coordinator asks for it.
        function: the id of a `FunctionSpec` that was shipped before.
        parameters: in the order of the function's signature; each (name, param).
        rows: which rows are selected.
        partition: of these rows into ranks: the world's; where only the root runs, one part.
        own: which of its own rows each rank gets of the sliceable variables; None where there are none.
        num_slices: parts that each shard is cut into.
        values: `struct` format of what comes with each call, empty if nothing does.
        solo: only the root runs, with all the rows.
        ops: for a Python function, the tree of ops of what it returns.
        subset: for a Python function, the top-level results wanted, or None for all.
        lent: how many of the values, the last ones, are ids of segments that results are written to.
        only_read: parameters that a kernel surely does not write to.
        shards: what all rows are cut into, whatever the world size, and whose results are kept apart; None for one a rank.
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
        """Whether a rank may run several times in a call."""
        return self.num_slices > 1 or self.shards is not None

    @property
    def shard_partition(self) -> Partition:
        """The partition of the rows into shards, whose results are kept apart until the coordinator has them."""
        return self.partition if self.shards is None else Partition.even(self.shards)

    def own_shards(self, rank: int) -> tuple[int, int]:
        """The first of the shards that a rank runs, and the one after the last."""
        if self.solo and rank:
            return 0, 0
        return (rank, rank + 1) if self.shards is None else self.partition.part(self.shards, rank)

    def leaves(self) -> list[Param]:
        """What its parameters get, those inside nested arguments too."""
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
        """The ids of the segments that its arrays lie in."""
        arrays = [source.indices for source in (self.rows, self.own) if source is not None and source.indices is not None]
        for param in self.leaves():
            match param:
                case Sharded(array) | Broadcast(array):
                    arrays.append(array)
                case Result(parts=HostArray() as parts, lent=None, stays=False):
                    arrays.append(parts)
        return frozenset(array.segment for array in arrays)

    def variables(self) -> frozenset[int]:
        """The numbers of the variables' memory that it is about."""
        return frozenset(param.variable for param in self.leaves() if isinstance(param, Held | HeldRows | Update))


# ---- what else the ranks can be asked to repeat --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class End:
    """One array that each rank gives to a collective, or gets from it.

    Attributes:
        variable: the number of its memory.
        leaf: which of its arrays.
        counts: elements on each rank; of records, bytes.
        hosts: by rank, where the arrays are in segments; empty where they are on GPUs.
    """

    variable: int
    leaf: int
    counts: tuple[int, ...]
    hosts: tuple[HostArray, ...] = ()


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective over several arrays, as the ranks need it.

    Attributes:
        number: by which the coordinator asks for it.
        kind: which collective.
        arrays: (dtype, what each rank gives, what each rank gets).
        op: of those that reduce.
        root: of those that have one.
        transport: what carries it.
    """

    number: int
    kind: CollectiveKind
    arrays: tuple[tuple[Any, End, End], ...]
    op: CollectiveOp | None
    root: int
    transport: Transport

    def segments(self) -> frozenset[int]:
        """The ids of the segments that its arrays lie in."""
        return frozenset(host.segment for _, *ends in self.arrays for end in ends for host in end.hosts)

    def variables(self) -> frozenset[int]:
        """The numbers of the variables' memory that it is about."""
        return frozenset(end.variable for _, *ends in self.arrays for end in ends)


@dataclass(frozen=True, slots=True)
class Combined:
    """One result of a `Combination`.

    Attributes:
        name: the output's.
        op: how the ranks' parts are put together.
        dtype: of the parts and of the result.
        count: elements.
        parts: where the parts of all ranks are, shape (W, …); None where they are on the devices.
    """

    name: str
    op: Op
    dtype: Any
    count: int
    parts: HostArray | None


@dataclass(frozen=True, slots=True)
class Combination:
    """What ranks do after a program whose results are large: each combines its part of the elements of all.

    With every call come the ids of the segments that the results are written to and, where there is a mean, the rows of each
    rank.

    Attributes:
        number: by which the coordinator asks for it.
        program: the number of the program.
        results: which.
        weighted: whether there is a mean among them.
        transport: what carries the parts, which are on the devices; None where they are in shared memory.
    """

    number: int
    program: int
    results: tuple[Combined, ...]
    weighted: bool
    transport: Transport | None


@dataclass(frozen=True, slots=True)
class Transfer:
    """Copies between a variable's arrays and the host's memory.

    Attributes:
        number: by which the coordinator asks for it.
        up: from the host to the variable, or the other way.
        arrays: (number of the memory, leaf, place on the host of each rank's array; None where that rank copies nothing).
    """

    number: int
    up: bool
    arrays: tuple[tuple[int, int, tuple[HostArray | None, ...]], ...]

    def segments(self) -> frozenset[int]:
        """The ids of the segments that it copies from or to."""
        return frozenset(host.segment for _, _, hosts in self.arrays for host in hosts if host is not None)

    def variables(self) -> frozenset[int]:
        """The numbers of the variables' memory that it is about."""
        return frozenset(variable for variable, _, _ in self.arrays)
