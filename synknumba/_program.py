"""What the ranks are told: functions, and programs that run them. Frozen dataclasses that travel once, as pickles.

A program is one call of a function with everything worked out that does not change from call to call: which rows of which
segment each parameter gets, where each result goes. What does change (scalars, the bounds of a `batch`, the number of
entries of an index list) travels in the control block's values, in the layout `Program.values`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from synknumba._types import Op, RankConstant, Shape

FunctionStyle: TypeAlias = Literal["kernel", "function"]
RowsKind: TypeAlias = Literal["none", "all", "range", "list"]


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """A user's function as it is shipped: once, before its first program.

    Attributes:
        id: unique in the coordinator's life.
        name: for messages.
        style: a Numba CUDA kernel, or a Python function of device arrays.
        payload: cloudpickle of (plain function, LaunchConfig or None, compile options).
        sources: text of files that do not exist on disk (notebook cells), for `linecache`.
    """

    id: int
    name: str
    style: FunctionStyle
    payload: bytes
    sources: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostArray:
    """An array in a segment: where it is and how to read it."""

    segment: int
    dtype: Any
    shape: Shape
    offset: int = 0


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
        in_control: the parts are rows of the control block's results, at `parts.offset` bytes, and not in a segment.
    """

    name: str
    op: Op
    dtype: Any
    shape: Shape
    parts: HostArray | None
    in_control: bool = False


@dataclass(frozen=True, slots=True)
class Tree:
    """A nested argument of a Python function: the structure, and a parameter for each leaf."""

    structure: Any
    leaves: "tuple[Param, ...]"


Param: TypeAlias = Sharded | Broadcast | Dynamic | Constant | IndexSpan | Filled | PerRank | Result | Tree


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
class Program:
    """One call, as the ranks need it.

    Attributes:
        number: by which the coordinator asks for it.
        function: the id of a `FunctionSpec` that was shipped before.
        parameters: in the order of the function's signature; each (name, param).
        rows: which rows are selected.
        num_slices: parts that a rank cuts its shard into.
        values: `struct` format of what comes with each call, empty if nothing does.
        solo: only the root runs, with all the rows.
        ops: for a Python function, the tree of ops of what it returns.
        subset: for a Python function, the top-level results wanted, or None for all.
    """

    number: int
    function: int
    parameters: tuple[tuple[str, Param], ...]
    rows: RowSource
    num_slices: int = 1
    values: str = ""
    solo: bool = False
    ops: Any = None
    subset: tuple[int | str, ...] | None = None

    def segments(self) -> frozenset[int]:
        """The ids of the segments that its arrays lie in."""
        arrays = [self.rows.indices] if self.rows.indices is not None else []
        params = [param for _, param in self.parameters]
        while params:
            match params.pop():
                case Tree(_, leaves):
                    params += leaves
                case Sharded(array) | Broadcast(array):
                    arrays.append(array)
                case Result(parts=HostArray() as parts):
                    arrays.append(parts)
        return frozenset(array.segment for array in arrays)


# ---- commands on the socket ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attach:
    """Map these segments; as many descriptors follow as there are entries. An id that is known already has grown."""

    segments: tuple[tuple[int, int], ...]  # (id, bytes)


@dataclass(frozen=True, slots=True)
class Install:
    """Keep this function and this program. Either may be None."""

    function: FunctionSpec | None
    program: Program | None


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget segments, programs and functions."""

    segments: tuple[int, ...] = ()
    programs: tuple[int, ...] = ()
    functions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """End."""


Command: TypeAlias = Attach | Install | Drop | Stop


# ---- what a rank says back -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failed:
    """A Python exception; `cause` is the pickled exception where it could be pickled."""

    type_name: str
    message: str
    traceback: str
    cause: bytes | None


@dataclass(frozen=True, slots=True)
class Returned:
    """The shape of what a Python function returned, when it is new.

    Attributes:
        spec: the number that stands for it from now on, in the first word of the rank's results.
        structure: of the tree.
        leaves: (dtype, shape) of each leaf.
        nbytes: that the leaves take, packed.
        segment: (id, bytes) of a segment that the rank made for them where the control block is too small; its descriptor
            follows.
    """

    spec: int
    structure: Any
    leaves: tuple[tuple[Any, Shape], ...]
    nbytes: int
    segment: tuple[int, int] | None = None


News: TypeAlias = Failed | Returned
