"""`Variable`: arrays that live on the ranks between calls.

    value ──at creation, or when a world is opened──> a replica on every rank ──scatter──> a shard on every rank

What a rank does to its array stays there. The coordinator knows the dtype and the shapes, and whether replicas may differ, but
not the values: it fetches them when asked.
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
from synknumba._variables.transfers import CoreTraffic, Delivery, Traffic
from synknumba._world.world import World, current_world, holds_world, open_world

_Values: TypeAlias = list[Array]
Values: TypeAlias = dict[int, _Values]  # the arrays of a variable, by rank


def traffic_of(world: World) -> Traffic:
    """What carries values and collectives in a world; between its `begin` and `end`."""
    if world.traffic is None:
        world.traffic = CoreTraffic(world) if world.traits.shares_memory else GpuTraffic(world)
    traffic: Traffic = world.traffic
    return traffic


@final
class Variable:
    """An array, or a nested tree of arrays, on every rank. Made by `variable` and `flatten`.

    Pass it to functions like any argument: each gets the rank's own array, and may write to it in place. The same object can be
    used by any number of functions, and in collectives. It belongs to the world in which it was first used.

    Attributes:
        name: for messages; None or any text.
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
        self._pending: _Values | None = list(values)  # until there is a world
        self._storage: Allocation | None = None
        self._layout = ("variable", -1)
        self._sharded = False
        self._differs = False

    # ---- what it is

    @property
    def is_tree(self) -> bool:
        """Whether it is a tree of arrays, and not one array."""
        return self._structure != LEAF

    @property
    def dtype(self) -> Any:
        """The dtype; of a tree, the tree of them."""
        return unflatten(self._structure, self._dtypes)

    @property
    def shape(self) -> Any:
        """The shape on the root; of a tree, the tree of them."""
        return unflatten(self._structure, self.root_shapes())

    @property
    def ndim(self) -> Any:
        """The number of dimensions, which is fixed; of a tree, the tree of them."""
        return unflatten(self._structure, [len(shape) for shape in self.root_shapes()])

    @property
    def size(self) -> int:
        """The number of items on the root, of all arrays."""
        return sum(int(np.prod(shape, dtype=np.int64)) for shape in self.root_shapes())

    @property
    def nbytes(self) -> int:
        """The bytes of the items on the root, of all arrays."""
        sizes = (int(np.prod(shape, dtype=np.int64)) for shape in self.root_shapes())
        return sum(size * dtype.itemsize for size, dtype in zip(sizes, self._dtypes, strict=True))

    def __len__(self) -> int:
        """Rows on the root."""
        shapes = self.root_shapes()
        if self.is_tree or not shapes[0]:
            raise ArgumentError(f"{self.label} has no length: it is {'a tree' if self.is_tree else '0-d'}")
        return shapes[0][0]

    def root_shapes(self) -> list[Shape]:
        """The shape of each array on the root."""
        if self._storage is None:
            return [value.shape for value in self._pending or ()]
        return [leaf.shapes[0] for leaf in self._storage.layout.leaves]

    @property
    def label(self) -> str:
        """How messages call it."""
        return "the variable" if self.name is None else f"variable {self.name!r}"

    def __repr__(self) -> str:
        """Name, dtype, shape, where it lives, and whether replicas may differ."""
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

    def get_value(self, rank: int = 0) -> Any:
        """A copy of one rank's array, as NumPy's; of a tree, the tree of them.

        Args:
            rank: whose; by default the root's.

        Raises:
            PartitionError: there is no such rank.
            WorldError: it lived on GPUs, in a world that is closed.
        """
        return unflatten(self._structure, self.fetch([rank])[0])

    @holds_world
    def set_value(self, value: Any, rank: int = 0) -> None:
        """Gives one rank's array a new value; the others keep theirs.

        Args:
            value: array, `Data`, number or nested list, of this dtype (or one that casts safely) and number of dimensions; of a
                tree, a tree of them. The shape may be another.
            rank: whose; by default the root's.

        Raises:
            DataError: another number of dimensions, or a dtype that does not cast safely; nothing has changed.
            PartitionError: there is no such rank.
            WorldError: the world is closed.
        """
        refuse_on_rank("variables are set")
        values = self.accept(value)
        if self._storage is None and open_world() is None:
            check_rank(rank, 1)
            self._pending = [np.array(one, dtype) for one, dtype in zip(values, self._dtypes, strict=True)]
            return
        self.check_open()
        world = current_world()
        world.begin()
        try:
            self.place(world)
            check_rank(rank, world.world_size)
            new = {rank: values}
            self.assign(world, new, self.room_for(world, new))
        finally:
            world.end()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        """A copy of the root's array."""
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
        """Refuses: a copy in another process would not be the variable."""
        raise DataError(
            f"{self.label} cannot be pickled or deep-copied: it lives on the ranks. Pass it as an argument instead of "
            f"capturing it in the function, or use get_value()"
        )

    # ---- for collectives and calls

    def leaves(self) -> range:
        """The numbers of its arrays."""
        return range(len(self._dtypes))

    def dtypes(self) -> "list[np.dtype[Any]]":
        """Of its arrays."""
        return self._dtypes

    def structure(self) -> Structure:
        """Of its tree."""
        return self._structure

    @property
    def sharded(self) -> bool:
        """Whether each rank has rows of its own."""
        return self._sharded

    def storage(self) -> Allocation:
        """Its memory; it has been placed."""
        assert self._storage is not None  # `place` comes first
        return self._storage

    def shapes(self) -> list[tuple[Shape, ...]]:
        """The shapes of each array, by rank; it has been placed."""
        return [leaf.shapes for leaf in self.storage().layout.leaves]

    def accept(self, value: Any) -> _Values:
        """The arrays of a new value, judged; nothing is changed.

        Raises:
            DataError: the value does not fit.
        """
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
        """Puts a new variable on the ranks; between the world's `begin` and `end`.

        Raises:
            WorldError: it lives in another world.
        """
        if self._storage is None:
            values = self._pending or []
            self._check_device(world)
            layout = self._layout_of([(value.shape,) * world.world_size for value in values])
            storage = Allocation(world, layout)
            self._deliver(world, storage, [(value,) * world.world_size for value in values])
            self._pending = None
            self._use(storage)
        if self.storage().world is not world:
            raise self._lost()
        return self.storage()

    def check_open(self) -> None:
        """Refuses a variable of a world that is closed."""
        if self._storage is not None and self._storage.world.closed:
            raise self._lost()

    def _check_device(self, world: World) -> None:
        """Refuses what no GPU computes with."""
        for dtype in () if world.traits.has_long_double else self._dtypes:
            if dtype.kind in "fc" and dtype.itemsize > (8 if dtype.kind == "f" else 16):
                raise DataError(f"{self.label} has dtype {dtype}, which GPUs do not have; make it of float64 or complex128")

    def room_for(self, world: World, values: Values) -> Allocation:
        """Memory that new values fit into: its own, or, where shapes change, new memory with what is to be kept.

        Args:
            world: that it lives in; between its `begin` and `end`.
            values: the arrays by rank; other ranks keep what they have.
        """
        old = self.storage()
        ranks = range(world.world_size)
        shapes = [
            tuple(values[rank][i].shape if rank in values else leaf.shapes[rank] for rank in ranks)
            for i, leaf in enumerate(old.layout.leaves)
        ]
        if shapes == self.shapes():
            return old
        return Allocation(world, self._layout_of(shapes), carry=old if len(values) < world.world_size else None)

    def assign(self, world: World, values: Values, storage: Allocation, *, sharded: bool | None = None) -> None:
        """Gives ranks new values.

        Args:
            world: that it lives in; between its `begin` and `end`.
            values: the arrays by rank; other ranks keep what they have.
            storage: the `room_for` them.
            sharded: whether they are rows of each rank's own from now on; None if that stays as it is.
        """
        ranks = range(world.world_size)
        told = [tuple(values[rank][i] if rank in values else None for rank in ranks) for i in self.leaves()]
        self._deliver(world, storage, told)
        same = len(values) == world.world_size and all(all(one is row[0] for one in row) for row in told)
        self.mark(differs=not same, sharded=sharded)
        self._use(storage)

    def replace(self, storage: Allocation, *, sharded: bool) -> None:
        """Lives in other memory from now on."""
        self._use(storage)
        self.mark(differs=sharded, sharded=sharded)

    def mark(self, *, differs: bool, sharded: bool | None = None) -> None:
        """Notes whether replicas may differ, and whether they are shards."""
        self._differs = differs
        if sharded is not None:
            self._sharded = sharded

    def layout_with(self, shapes: Sequence[tuple[Shape, ...]]) -> StorageLayout:
        """A layout of its arrays with other shapes, by rank."""
        return self._layout_of(shapes)

    @holds_world
    def fetch(self, ranks: Sequence[int]) -> list[_Values]:
        """Copies of the arrays of some ranks."""
        refuse_on_rank("variables are read")
        storage = self._storage
        if storage is None:
            world = open_world()
            for rank in ranks:
                check_rank(rank, 1 if world is None else world.world_size)
            return [[value.copy() for value in self._pending or ()] for _ in ranks]
        for rank in ranks:
            check_rank(rank, storage.world.world_size)
        if storage.world is not open_world():  # it is closed, or that of the process that this one was forked from
            if storage.segment is None:
                raise self._lost()
            return [[storage.array(leaf, rank).copy() for leaf in self.leaves()] for rank in ranks]
        world = storage.world
        world.begin()
        try:
            flat = traffic_of(world).fetch(storage, [(leaf, rank) for rank in ranks for leaf in self.leaves()])
        finally:
            world.end()
        count = len(self._dtypes)
        return [flat[i * count : (i + 1) * count] for i in range(len(ranks))]

    def _layout_of(self, shapes: Sequence[tuple[Shape, ...]]) -> StorageLayout:
        leaves = tuple(LeafLayout(dtype, shape) for dtype, shape in zip(self._dtypes, shapes, strict=True))
        return StorageLayout(leaves, self._flat)

    def _deliver(self, world: World, storage: Allocation, values: Sequence[tuple[Array | None, ...]]) -> None:
        traffic_of(world).deliver([Delivery(storage, leaf, row) for leaf, row in enumerate(values)])

    def _use(self, storage: Allocation) -> None:
        self._storage = storage
        self._layout = ("variable", storage.number)

    def _lost(self) -> WorldError:
        storage = self.storage()
        world = storage.world
        whose = "of the process that this one was forked from" if world.is_inherited else "that is closed"
        reason = f"{world.end_reason}; " if world.end_reason and not world.is_inherited else ""
        if storage.segment is not None:
            way_out = "its last value is get_value(); call fork() and make a new one of it with synknumba.variable"
        else:
            way_out = "read it there, and pass the value on" if world.is_inherited else "its values are lost; make a new one"
        return WorldError(f"{self.label} belongs to a world {whose}: {reason}{way_out}")


def refuse_on_rank(what: str) -> None:
    """Refuses in a rank, which may have inherited a variable with what it was at the fork.

    Raises:
        WorldError: this process is a rank.
    """
    rank = this_process.current_rank()
    if rank is not None:
        raise WorldError(
            f"this is rank {rank}, and {what} in the coordinator alone; pass the variable to the function as an argument"
        )


def plain_value(value: Any) -> Any:
    """What NumPy can read of a value."""
    if isinstance(value, Data):
        return value.data
    return value.get_value() if isinstance(value, Variable) else value


def check_rank(rank: Any, world_size: int) -> int:
    """The rank as an int.

    Raises:
        PartitionError: there is no such rank.
    """
    try:
        number = -1 if isinstance(rank, bool) else operator.index(rank)
    except TypeError:
        number = -1
    if not 0 <= number < world_size:
        raise PartitionError(f"rank must be an integer from 0 to {world_size - 1}, got {rank!r}")
    return number
