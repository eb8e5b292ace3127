"""`Variable`: an array, or a tree of arrays, that stays on the ranks between calls.

    value ──created, or first used in a world──> a replica on every rank ──scatter──> a shard on every rank

Each rank may change its own array. The coordinator keeps the dtypes, the shapes, and whether replicas may differ, but not the
values, which it fetches on request.
"""

import operator
from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias, final

import numpy as np
from numpy.typing import DTypeLike

from synknumba._errors import ArgumentError, DataError, PartitionError, WorldError
from synknumba._host import this_process
from synknumba._host.casting import accept
from synknumba._host.data import Data
from synknumba._ops.tree import LEAF, Structure, describe, parts_like, shape_told, unflatten
from synknumba._ops.variable_layout import LeafLayout, StorageLayout
from synknumba._types import Array, Shape
from synknumba._variables.allocation import Allocation
from synknumba._variables.gpu_transfers import GpuTraffic
from synknumba._variables.transfers import CoreTraffic, Traffic
from synknumba._world.world import World, current_world, holds_world, open_world

_Values: TypeAlias = list[Array]
Values: TypeAlias = dict[int, _Values]  # arrays of a variable, by rank


def traffic_of(world: World) -> Traffic:
    """Returns the object that transfers a world's variables; called between the world's `begin` and `end`."""
    if world.traffic is None:
        world.traffic = CoreTraffic(world) if world.traits.shares_memory else GpuTraffic(world)
    traffic: Traffic = world.traffic
    return traffic


@final
class Variable:
    """An array, or a nested tree of arrays, on every rank. Created by `variable` and `flatten`.

    Pass it to functions like any other argument: on each rank the function receives the rank's own array, and may write to it
    in place. A variable may be used by any number of functions, and in collectives. It belongs to the world in which it is
    first used.

    `shape`, `size` and `nbytes` are those on the root, rank 0; `get_shapes` and `get_lengths` return those on all ranks.
    `np.asarray`, `bool`, `int` and `float` copy the root's array to the coordinator. If the variable is divided, so that each
    rank has rows of its own, or shapes differ between ranks, they and `len` raise `PartitionError`.

    A variable cannot be pickled. In a process forked from the coordinator, one on cores can be read, and one on GPUs cannot.

    Attributes:
        name: name in messages; None or any string.
    """

    __slots__ = (
        "__weakref__",
        "_differs",
        "_dtypes",
        "_flat",
        "_layout",
        "_pending",
        "_sharded",
        "_storage",
        "_structure",
        "name",
    )

    _layout: tuple[str, int]

    def __init__(self, values: Sequence[Array], structure: Structure, name: str | None, *, flat: bool = False) -> None:
        self.name = name
        self._structure = structure
        self._flat = flat
        self._dtypes = [value.dtype for value in values]
        self._pending: _Values | None = list(values)  # initial values; None once they are on the ranks
        self._storage: Allocation | None = None
        self._layout = ("variable", -1)
        self._sharded = False
        self._differs = False

    # ---- properties

    @property
    def is_tree(self) -> bool:
        """Whether this is a tree of arrays rather than a single array."""
        return self._structure != LEAF

    @property
    def dtype(self) -> Any:
        """Dtype; for a tree, the tree of dtypes."""
        return unflatten(self._structure, self._dtypes)

    @property
    def shape(self) -> Any:
        """Shape on the root; for a tree, the tree of shapes."""
        return unflatten(self._structure, self.root_shapes())

    @property
    def ndim(self) -> Any:
        """Number of dimensions, which never changes; for a tree, the tree of these numbers."""
        return unflatten(self._structure, [len(shape) for shape in self.root_shapes()])

    @property
    def size(self) -> int:
        """Number of elements on the root, in all arrays."""
        return sum(int(np.prod(shape, dtype=np.int64)) for shape in self.root_shapes())

    @property
    def nbytes(self) -> int:
        """Bytes of the elements on the root, in all arrays."""
        sizes = (int(np.prod(shape, dtype=np.int64)) for shape in self.root_shapes())
        return sum(size * dtype.itemsize for size, dtype in zip(sizes, self._dtypes, strict=True))

    def __len__(self) -> int:
        """Returns the number of rows of a replica; raises `PartitionError` if the variable is divided."""
        shapes = self.root_shapes()
        if self.is_tree or not shapes[0]:
            raise ArgumentError(f"{self.label} has no length: it is {'a tree' if self.is_tree else '0-d'}")
        self._check_whole("length", "use synk.get_lengths(v), or len() of get_value(rank=…) or of synk.gather(v, nd_up=0)")
        return shapes[0][0]

    def root_shapes(self) -> list[Shape]:
        """Returns the shape of each array on the root."""
        if self._storage is None:
            return [value.shape for value in self._pending or ()]
        return [leaf.shapes[0] for leaf in self._storage.layout.leaves]

    @property
    def label(self) -> str:
        """Name in error messages."""
        return "the variable" if self.name is None else f"variable {self.name!r}"

    def __repr__(self) -> str:
        """Shows name, dtype, shape, location, and whether replicas may differ."""
        name = "" if self.name is None else f" {self.name!r}"
        what = f"{self.dtype} {self.shape}" if not self.is_tree else f"tree {describe(self._structure)}"
        flat = ", one vector" if self._flat else ""
        return f"<Variable{name} {what}{flat}, {self._whereabouts()}>"

    def _whereabouts(self) -> str:
        if self._storage is None:
            return "not on any rank yet"
        world = self._storage.world
        if world.closed:
            return "of a world that is closed"
        where = f"on {world.world_size} {world.device} rank{'s' if world.world_size > 1 else ''}"
        if self._sharded:
            told = self.shapes()[0] if not self.is_tree else self.shapes()
            return f"{where}, shards {told}"
        return f"{where}, replicas {'may differ' if self._differs else 'equal'}"

    # ---- values

    def get_value(self, rank: int | None = None) -> Any:
        """Returns a copy of one rank's array.

        Called in the coordinator, between calls. On cores, the last value can still be read after the world is closed.

        Args:
            rank: rank to read; None for the root, whose replica may differ from others if a function has written to them and
                no collective was called since.

        Returns:
            A NumPy array; for a tree, the tree of arrays.

        Raises:
            PartitionError: there is no such rank, or `rank` is None and the variable is divided: each rank has rows of its own,
                or shapes differ between ranks.
            WorldError: this process is a rank, or the variable was on the GPUs of a closed world.
        """
        value = self.value_on(0 if rank is None else rank)  # first: it may be lost, or this process a rank
        if rank is None:
            self._check_whole("value", "use get_value(rank=…) for one rank's part, or synk.gather(v, nd_up=0) for all rows")
        return value

    @holds_world
    def set_value(self, value: Any, rank: int | None = None) -> None:
        """Sets the arrays of all ranks, or of one rank, to a new value.

        Called in the coordinator, between calls. If one rank is set, the others keep their arrays, so replicas may differ
        afterwards. Before a world is open, `rank` must be None or 0, and the value becomes the initial value on all ranks.

        Args:
            value: array, `Data`, number or nested list; for a tree, a tree of these. The number of dimensions must be the
                variable's, and the dtype must cast safely to the variable's. The shape may differ.
            rank: rank to write to; None for all.

        Raises:
            DataError: the value has another number of dimensions, or its dtype does not cast safely; nothing has changed.
            PartitionError: there is no such rank, or `rank` is None and the variable is divided; nothing has changed.
            WorldError: this process is a rank, or the variable belongs to a closed world.
        """
        refuse_on_rank("variables are set")
        values = self.accept(value)
        if self._storage is None and open_world() is None:
            check_rank(0 if rank is None else rank, 1)
            self._pending = [np.array(one, dtype) for one, dtype in zip(values, self._dtypes, strict=True)]
            return
        self.check_open()
        world = current_world()
        world.begin()
        try:
            self.place(world)
            if rank is None:
                self._check_whole(
                    "value to set",
                    "use set_value(value, rank=…) for one rank's part, synk.scatter(v, value) to divide the value, or "
                    "synk.broadcast(v, value) to make it a replica on every rank",
                )
                new = dict.fromkeys(range(world.world_size), values)
            else:
                new = {check_rank(rank, world.world_size): values}
            self.assign(world, new, self.room_for(world, new))
        finally:
            world.end()

    def value_on(self, rank: int) -> Any:
        """Returns a copy of one rank's array; for a tree, the tree of arrays."""
        return unflatten(self._structure, self.fetch([rank])[0])

    def _check_whole(self, what: str, way_out: str) -> None:
        """Raises `PartitionError` if the variable is divided, so that the root's array does not stand for those of others."""
        storage = self._storage
        if storage is None or storage.world.world_size == 1:
            return
        if self._sharded or not all(leaf.uniform for leaf in storage.layout.leaves):
            shapes = max(self.shapes(), key=lambda shapes: len(set(shapes)))
            told = ", ".join(map(str, shapes))
            raise PartitionError(f"{self.label} is divided among the ranks (shapes {told}) and has no single {what}; {way_out}")

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Returns a copy of the root's array; raises `PartitionError` if the variable is divided."""
        if copy is False:
            raise ValueError(f"{self.label} lives on the ranks; np.asarray of it is always a copy")
        if self.is_tree:
            raise ArgumentError(f"{self.label} is a tree {describe(self._structure)}; use get_value()")
        return np.asarray(self.get_value(), dtype=dtype)

    def __bool__(self) -> bool:
        return bool(np.asarray(self))

    def __int__(self) -> int:
        return int(np.asarray(self))

    def __float__(self) -> float:
        return float(np.asarray(self))

    def __reduce__(self) -> NoReturn:
        """Raises `DataError`: a copy in another process would not be the variable."""
        raise DataError(
            f"{self.label} cannot be pickled or deep-copied: it lives on the ranks. Pass it as an argument instead of "
            f"capturing it in the function, or use get_value()"
        )

    # ---- for collectives and calls

    def leaves(self) -> range:
        """Returns the indices of the arrays."""
        return range(len(self._dtypes))

    def dtypes(self) -> "list[np.dtype[Any]]":
        """Returns the dtype of each array."""
        return self._dtypes

    def structure(self) -> Structure:
        """Returns the structure of the tree."""
        return self._structure

    @property
    def sharded(self) -> bool:
        """Whether each rank has its own rows instead of a replica."""
        return self._sharded

    def storage(self) -> Allocation:
        """Returns the memory of the variable, which must have been placed."""
        assert self._storage is not None  # callers have called `place`
        return self._storage

    def shapes(self) -> list[tuple[Shape, ...]]:
        """Returns the shapes of each array, by rank; the variable must have been placed."""
        return [leaf.shapes for leaf in self.storage().layout.leaves]

    def accept(self, value: Any) -> _Values:
        """Returns the arrays of a new value; raises `DataError` if it does not fit. Changes nothing."""
        ndims = [len(shape) for shape in self.root_shapes()]
        if not self.is_tree:
            return [accept(plain_value(value), self._dtypes[0], ndims[0], self.label, force_cast=None)]
        leaves = parts_like(self._structure, plain_value(value))
        if leaves is None:
            raise DataError(f"{self.label} is a tree {describe(self._structure)}, but the value is {shape_told(value)}")
        return [
            accept(plain_value(leaf), self._dtypes[i], ndims[i], f"{self.label}, array {i}", force_cast=None)
            for i, leaf in enumerate(leaves)
        ]

    def place(self, world: World) -> Allocation:
        """Places a new variable on the ranks, and returns its memory; called between the world's `begin` and `end`."""
        if self._storage is None:
            values = self._pending or []
            self._check_device(world)
            storage = Allocation(world, self.layout_with([(value.shape,) * world.world_size for value in values]))
            traffic_of(world).deliver(storage, [(value,) * world.world_size for value in values])
            self._pending = None
            self._use(storage)
        if self.storage().world is not world:
            raise self._lost()
        return self.storage()

    def check_open(self) -> None:
        """Raises `WorldError` if the variable belongs to a closed world."""
        if self._storage is not None and self._storage.world.closed:
            raise self._lost()

    def _check_device(self, world: World) -> None:
        """Raises `DataError` for a floating-point type wider than GPUs support."""
        for dtype in () if world.traits.has_long_double else self._dtypes:
            if dtype.kind in "fc" and dtype.itemsize > (8 if dtype.kind == "f" else 16):
                raise DataError(f"{self.label} has dtype {dtype}, which GPUs do not support; use float64 or complex128")

    def room_for(self, world: World, values: Values) -> Allocation:
        """Returns memory for new values: the variable's own, or, if shapes change, new memory with the arrays to keep.

        Ranks that are absent in `values` keep their arrays. Called between the world's `begin` and `end`.
        """
        old = self.storage()
        ranks = range(world.world_size)
        shapes = [
            tuple(values[rank][i].shape if rank in values else leaf.shapes[rank] for rank in ranks)
            for i, leaf in enumerate(old.layout.leaves)
        ]
        if shapes == self.shapes():
            return old
        return Allocation(world, self.layout_with(shapes), carry=old if len(values) < world.world_size else None)

    def assign(self, world: World, values: Values, storage: Allocation, *, sharded: bool | None = None) -> None:
        """Writes new values to memory that `room_for` has returned; called between the world's `begin` and `end`.

        `sharded` is whether each rank has its own rows from now on; None leaves this unchanged.
        """
        ranks = range(world.world_size)
        told = [tuple(values[rank][i] if rank in values else None for rank in ranks) for i in self.leaves()]
        traffic_of(world).deliver(storage, told)
        same = len(values) == world.world_size and all(all(one is row[0] for one in row) for row in told)
        self.mark(differs=not same, sharded=sharded)
        self._use(storage)

    def replace(self, storage: Allocation, *, sharded: bool) -> None:
        """Replaces the memory of the variable; replicas may differ afterwards if it is sharded."""
        self._use(storage)
        self.mark(differs=sharded, sharded=sharded)

    def mark(self, *, differs: bool, sharded: bool | None = None) -> None:
        """Records whether replicas may differ, and whether each rank has its own rows; None leaves the latter unchanged."""
        self._differs = differs
        if sharded is not None:
            self._sharded = sharded

    def layout_with(self, shapes: Sequence[tuple[Shape, ...]]) -> StorageLayout:
        """Returns a layout of the arrays with other shapes, by rank."""
        leaves = tuple(LeafLayout(dtype, shape) for dtype, shape in zip(self._dtypes, shapes, strict=True))
        return StorageLayout(leaves, self._flat)

    @holds_world
    def fetch(self, ranks: Sequence[int]) -> list[_Values]:
        """Returns copies of the arrays on the given ranks."""
        refuse_on_rank("variables are read")
        storage = self._storage
        if storage is None:
            world = open_world()
            for rank in ranks:
                check_rank(rank, 1 if world is None else world.world_size)
            return [[value.copy() for value in self._pending or ()] for _ in ranks]
        for rank in ranks:
            check_rank(rank, storage.world.world_size)
        if storage.world is not open_world():  # closed, or inherited from the parent process
            if storage.segment is None:
                raise self._lost()
            return [[storage.array(leaf, rank).copy() for leaf in self.leaves()] for rank in ranks]
        world = storage.world
        world.begin()
        try:
            return self.copies(world, ranks)
        finally:
            world.end()

    def copies(self, world: World, ranks: Sequence[int]) -> list[_Values]:
        """Returns copies of the arrays on the given ranks; called between the world's `begin` and `end`."""
        flat = iter(traffic_of(world).fetch(self.storage(), [(leaf, rank) for rank in ranks for leaf in self.leaves()]))
        return [[next(flat) for _ in self.leaves()] for _ in ranks]

    def _use(self, storage: Allocation) -> None:
        self._storage = storage
        self._layout = ("variable", storage.number)

    def _lost(self) -> WorldError:
        storage = self.storage()
        world = storage.world
        whose = "of the process from which this one was forked" if world.is_inherited else "that is closed"
        reason = f"{world.end_reason}; " if world.end_reason and not world.is_inherited else ""
        if storage.segment is not None:
            way_out = "call fork() and create a new variable from its last value, get_value()"
        else:
            way_out = "read it there, and pass the value on" if world.is_inherited else "its values are lost; create a new one"
        return WorldError(f"{self.label} belongs to a world {whose}: {reason}{way_out}")


def refuse_on_rank(what: str) -> None:
    """Raises `WorldError` on a rank, which may have inherited a variable in its state at the fork; `what` is refused there."""
    rank = this_process.current_rank()
    if rank is not None:
        raise WorldError(
            f"this is rank {rank}, but {what} in the coordinator only; pass the variable to the function as an argument"
        )


def plain_value(value: Any) -> Any:
    """Returns a value in a form that NumPy can read: the array of a `Data`, or the value of a variable that is not divided."""
    if isinstance(value, Data):
        return value.data
    return value.get_value() if isinstance(value, Variable) else value


def check_rank(rank: Any, world_size: int) -> int:
    """Returns a rank as an int; raises `PartitionError` if there is no such rank."""
    try:
        number = -1 if isinstance(rank, bool | np.bool) else operator.index(rank)  # before NumPy 2.4 np.bool is an index, too
    except TypeError:
        number = -1
    if not 0 <= number < world_size:
        raise PartitionError(f"rank must be an integer from 0 to {world_size - 1}, got {rank!r}")
    return number
