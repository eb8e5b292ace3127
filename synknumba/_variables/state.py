"""What the coordinator knows of a variable: dtypes, shapes, memory, and whether replicas may
differ; not the values.

    value ──created, or first used in a world──> a replica on every rank ──scatter──> a shard on every rank

Each rank may change its own array. The coordinator fetches values on request. Scripts have a
`Variable`, which is a handle of this state (`variable.py`); everything else asks the state.

A variable outlives its world: at its first use in the next one, `Values.recall` finds the values
that the coordinator knows, and `place` puts them on the new ranks.
"""  # noqa: E501

import itertools
import math
import operator
from collections import deque
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np

from synknumba import _tracing as tracing
from synknumba._errors import DataError, PartitionError, VariableLost, WorldError
from synknumba._host import this_process
from synknumba._host.casting import as_index
from synknumba._ops.halo import Halo
from synknumba._ops.tree import LEAF, Structure, describe, paths, unflatten
from synknumba._ops.variable_layout import VECTOR, LeafLayout, StorageLayout
from synknumba._types import Array, Shape, count_text
from synknumba._variables.allocation import Allocation
from synknumba._variables.collective_plans import CoreTransfers, Row, VariableTransfers
from synknumba._variables.failed_writes import writing
from synknumba._variables.gpu_collective_plans import GpuTransfers
from synknumba._variables.kept_values import CLOSE_BYTES, GIVEN_BYTES, Kept, copies_of
from synknumba._variables.values import Arrays, Values
from synknumba._world.engine import Engine
from synknumba._world.failure import calling
from synknumba._world.open_world import current_world, open_world

ByRank: TypeAlias = dict[int, Arrays]  # arrays of a variable
_UNPLACED = ("variable", -1)


def transfers_of(world: Engine) -> VariableTransfers:
    """Returns what transfers a world's variables; called between `begin` and `end`."""
    if world.life.transfers is None:
        kind = CoreTransfers if world.traits.shares_memory else GpuTransfers
        world.life.transfers = kind(world)
    transfers: VariableTransfers = world.life.transfers
    return transfers


_values_of = operator.attrgetter("_layout", "_values")


@final
class VariableState:
    """The state of one variable. It belongs to a `Variable`, and ends with it.

    Attributes:
        name: name in messages.
    """

    def __init__(
        self, values: Sequence[Array], structure: Structure, name: str | None, *, flat: bool = False
    ) -> None:
        self.name = name
        self._structure = structure
        self._flat = flat
        self._dtypes = [value.dtype for value in values]
        self._values = Values(list(values))
        # key of the variable in plans; beside the values, since each call reads it
        self._layout = _UNPLACED

    # ---- properties

    @property
    def is_tree(self) -> bool:
        """Whether this is a tree of arrays rather than a single array."""
        return self._structure != LEAF

    @property
    def nbytes(self) -> int:
        """Bytes of the elements on the root, in all arrays."""
        shapes = zip(self.root_shapes(), self._dtypes, strict=True)
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes)

    def root_shapes(self) -> list[Shape]:
        """Returns the shape of each array on the root."""
        if self._values.storage is None:
            return list(shapes_of(self._values.initial()))
        return [leaf.shapes[0] for leaf in self._values.storage.layout.leaves]

    def root_shape(self, leaf: int) -> Shape:
        """Returns the shape of one array on the root; for `VECTOR`, of all as one vector."""
        if leaf == VECTOR:
            return (sum(map(math.prod, self.root_shapes())),)
        return self.root_shapes()[leaf]

    @property
    def is_flat(self) -> bool:
        """Whether its arrays are one vector."""
        return self._flat

    @property
    def label(self) -> str:
        """Name in error messages."""
        return label_of_name(self.name)

    def label_of(self, leaf: int) -> str:
        """Returns the name of one of the arrays in error messages."""
        if not self.is_tree:
            return self.label
        return f"{paths(self._structure)[leaf]} of {self.label}"

    def __repr__(self) -> str:
        """Shows name, dtype, shape, location, and whether replicas may differ."""
        what = f"{self._dtypes[0]} {self.root_shapes()[0]}"
        if self.is_tree:
            what = f"tree {describe(self._structure)}"
        if self.name is not None:
            what = f"{self.name!r} {what}"
        if self._flat:
            what += ", one vector"
        return f"<Variable {what}, {self.place_text()}>"

    @property
    def is_placed(self) -> bool:
        """Whether ranks of some world have, or had, the values."""
        return self._values.storage is not None

    def leaf_paths(self) -> tuple[str, ...]:
        """Returns the path to each array in the tree, as a script writes it."""
        return paths(self._structure)

    def readable(self) -> Arrays | None:
        """Returns the root's arrays if they are in the coordinator's memory and no rank is at work;
        None otherwise.

        For showing them: asks no rank, and waits for none.
        """
        storage = self._values.storage
        if storage is None:
            return self._values.pending
        if storage.segment is None or storage.world.work is not None or self._values.torn:
            return None
        return storage.arrays(0)

    def place_text(self) -> str:
        """Returns where the values are, and whether replicas may differ, as text."""
        storage = self._values.storage
        if storage is None:
            return "not on any rank yet"
        if not storage.lives_in(open_world()):
            return "of a world that is closed"
        world = storage.world
        where = f"on {count_text(world.world_size, f'{world.device} rank')}"
        if not self._values.sharded:
            return f"{where}, replicas {'may differ' if self._values.differs else 'equal'}"
        shapes: Any = self.shapes()
        if not self.is_tree:
            (shapes,) = shapes
        if self.halo is not None:
            return f"{where}, shards {shapes} with {self.halo}"
        return f"{where}, shards {shapes}"

    # ---- values

    def value(self, rank: int | None) -> Any:
        """Returns a copy of one rank's array, or of the replica that stands for all if `rank` is
        None; for a tree, the tree of arrays.
        """
        # first: it may be lost, or this process a rank
        arrays = self.fetch([0 if rank is None else rank])[0]
        if rank is None:
            self.check_whole(
                "value",
                "use get_value(rank=…) for one rank's part, or synk.gather(v) for all rows",
            )
        return self.as_tree(arrays)

    def whole_value(self) -> Any:
        """Returns a copy of the value, for a divided variable the rows of all ranks; for a tree,
        the tree of arrays.
        """
        return self.as_tree(self._present().whole(self.label))

    def whole_arrays(self) -> Arrays:
        """Returns copies of the arrays, as `whole_value`; raises `PartitionError` if replicas
        differ between the ranks.
        """
        values = self._present()
        values.check_equal(self.label)
        return values.whole(self.label)

    def whole_shapes(self) -> list[Shape | None]:
        """Returns the shape of each array of `whole_value`, whose values may be lost; None if
        the ranks' do not allow one.
        """
        if self._values.storage is None:
            return list(self.root_shapes())
        layout, shapes = self._values.storage.layout, list[Shape | None]()
        for leaf in self.leaves():
            own = layout.own_shapes(leaf)
            shape, is_one = own[0], len(set(own)) == 1
            if self._values.sharded:
                shape, is_one = joined_shape(own), rows_fit(own)
            shapes.append(shape if is_one else None)
        return shapes

    def _present(self) -> Kept:
        """Returns the values on all ranks of the open world; without one, those that the next
        would start from.
        """
        refuse_on_rank("variables are read")
        _refuse_in_body()
        self.check_process()
        world = open_world()
        if self._values.storage is None or world is None:
            return self._values.recall(self.label)
        world.begin()
        try:
            self.place(world)
            return self._fetched(world)
        finally:
            world.end()

    def restart(self, wholes: Arrays) -> None:
        """Makes arrays of the dtypes and shapes of `whole_value` those that the next world starts
        from; there is none open.

        A divided variable stays divided, with its halo.
        """
        if not self._values.sharded:
            self._start_from(wholes)
            return
        copies = list(map(np.array, wholes, self._dtypes))
        self._values.copied = Kept.divided(copies, self.storage().world.partition, self.halo)
        self._values.written = self._values.torn = False

    def set_value(self, values: Arrays, rank: int | None) -> None:
        """Sets the arrays of all ranks, or of one, to values that fit; see `Variable.set_value`."""
        self.check_process()
        if rank is None:
            self.check_settable()
        if open_world() is None and not self._needs_world(rank):
            _refuse_in_body()  # with a world `begin` does
            if rank is not None:
                check_rank(rank, 1)
            self._start_from(values)
            return
        world = current_world()
        world.begin()
        try:
            if rank is None:
                self.place(world, values)
                of_ranks = dict.fromkeys(range(world.world_size), values)
            else:
                self.place(world)
                of_ranks = {check_rank(rank, world.world_size): values}
            with writing(world, [self]):
                write_all(world, [self.assignment_of_own(world, of_ranks)])
        finally:
            world.end()

    def _needs_world(self, rank: int | None) -> bool:
        """Whether to set one rank's array needs those that other ranks keep."""
        return rank is not None and self._values.storage is not None

    def check_settable(self) -> None:
        """Raises `PartitionError` if the variable is divided, so that no value is that of all."""
        self.check_whole(
            "value to set",
            "use set_value(value, rank=…) for one rank's part, synk.scatter(v, value) to "
            "divide the value, or synk.broadcast(v, value) to make it a replica on every rank",
        )

    def check_whole(self, what: str, way_out: str) -> None:
        """Raises `PartitionError` if the variable is divided, so that the root's array does not
        stand for those of others.
        """
        storage = self._values.storage
        if storage is None or storage.world.world_size == 1:
            return
        if self._values.sharded or not storage.is_uniform:
            shapes = max(self.shapes(), key=lambda shapes: len(set(shapes)))
            listing = ", ".join(map(str, shapes))
            raise PartitionError(
                f"{self.label} is divided among the ranks (shapes {listing}) and has no "
                f"single {what}; {way_out}"
            )

    # ---- for collectives and calls

    def leaves(self) -> range:
        """Returns the indices of the arrays."""
        return range(len(self._dtypes))

    def as_tree(self, leaves: Sequence[Any]) -> Any:
        """Returns something of each array in the structure of the tree."""
        return unflatten(self._structure, leaves)

    def dtypes(self) -> "list[np.dtype[Any]]":
        """Returns the dtype of each array."""
        return self._dtypes

    def structure(self) -> Structure:
        """Returns the structure of the tree."""
        return self._structure

    @property
    def sharded(self) -> bool:
        """Whether each rank has its own rows instead of a replica."""
        return self._values.sharded

    @property
    def halo(self) -> Halo | None:
        """Halo of the arrays on the ranks, which their shapes include; None without."""
        storage = self._values.storage
        return None if storage is None else storage.layout.halo

    def division_text(self) -> str:
        """Returns how the ranks have the rows, as text."""
        if self.halo is not None:
            return f"divided with {self.halo}"
        return "divided without a halo" if self.sharded else "a replica"

    def storage(self) -> Allocation:
        """Returns the memory of the variable, which must have been placed."""
        return self._values.placed()

    def shapes(self) -> list[tuple[Shape, ...]]:
        """Returns the shapes of each array, by rank; the variable must have been placed."""
        return [leaf.shapes for leaf in self.storage().layout.leaves]

    def place(self, world: Engine, initial: Arrays | None = None) -> Allocation:
        """Places the variable on the ranks, unless they have it, and returns its memory; called
        between `begin` and `end`.

        The values are `initial` or, if it is None, those that the coordinator knows: raises
        `VariableLost` without any.
        """
        old = self._values.storage
        if old is not None and old.lives_in(world):
            return old
        self.check_process()
        self._check_device(world)
        if initial is None:
            values = self._values.recall(self.label).fit(world.partition, self.label)
            entry_values: Kept | None = values
        else:
            values = Kept((initial,)).fit(world.partition, self.label)
            entry_values = self._values.known(self.label)
        by_leaf = list(zip(*values.parts, strict=True))
        shapes = list(map(shapes_of, by_leaf))
        storage = Allocation(world, self.layout_with(shapes, values.halo))
        transfers_of(world).deliver(storage, by_leaf)
        world.life.residents[self] = None
        now = self._values
        now.pending = None
        now.differs, now.sharded = values.differs, values.sharded
        self._use(storage)
        now.written = now.torn = False
        # `initial` is the caller's own memory, and is assigned next.
        now.copied = None
        if initial is None and storage.segment is None:
            now.copied = values
        now.enter(entry_values, keeps_snapshots=world.life.keeps_snapshots)
        return storage

    def place_to_assign(self, world: Engine) -> Allocation:
        """As `place`, for a call that assigns the variable without reading it: values may be
        lost, or have no place here.
        """
        try:
            return self.place(world)
        except (VariableLost, PartitionError):
            if self._values.sharded or not self.storage().is_uniform:
                raise
            zeros = map(np.zeros, self.root_shapes(), self._dtypes)
            return self.place(world, list(zeros))

    def renew_if_lost(self, numbers: Sequence[float] | None = None) -> None:
        """Fills each array with a number, by default 0, if the values are lost: of variables
        that scripts do not see.
        """
        storage = self._values.storage
        if storage is None:
            return
        is_here = storage.lives_in(open_world()) and storage.life.ending.reason is None
        if is_here or self._values.known(self.label) is not None:
            return
        shapes = self.root_shapes()
        self._start_from(list(map(np.full, shapes, numbers or [0.0] * len(shapes))))

    def _start_from(self, values: Arrays) -> None:
        """Makes values the initial ones of the next world."""
        self._values.restart(list(map(np.array, values, self._dtypes)))
        self._layout = _UNPLACED

    def _fetched(self, world: Engine) -> Kept:
        """Returns copies of all ranks' arrays, once for equal replicas; called between the
        world's `begin` and `end`.
        """
        ranks = range(world.world_size)
        if self._values.are_equal():
            return Kept(self.copies(world, [0]) * len(ranks))
        return self._values.kept(self.copies(world, ranks))

    def take_snapshot(self, world: Engine) -> Kept:
        """Returns the values for a snapshot; those of the last one if nothing was written since."""
        snapshot = self._values.snapshot
        if snapshot is not None and self._values.copied is snapshot:
            return snapshot
        return self._fetched(world)

    def keep_snapshot(self, values: Kept) -> None:
        """Sets what the variable goes back to when a rank has died."""
        self._values.keep_snapshot(values)

    def keep_at_close(self, world: Engine) -> None:
        """Fetches the values from GPUs whose world is about to be closed, unless they are many."""
        if self._values.copied is not None:
            return
        copies = 1 if self._values.are_equal() else world.world_size
        if self.nbytes * copies <= CLOSE_BYTES:
            self._values.copied = self._fetched(world)

    def check_process(self) -> None:
        """Raises `WorldError` if the variable is on ranks of the process that forked this one."""
        if self._values.storage is not None and self._values.storage.world.is_inherited:
            raise self._inherited()

    def _check_device(self, world: Engine) -> None:
        """Raises `DataError` for a floating-point type wider than GPUs support."""
        if world.traits.has_long_double:
            return
        widest = {"f": 8, "c": 16}
        for leaf, dtype in enumerate(self._dtypes):
            if dtype.itemsize > widest.get(dtype.kind, dtype.itemsize):
                raise DataError(
                    f"{self.label_of(leaf)} has dtype {dtype}, which GPUs do not support; "
                    f"use float64 or complex128"
                )

    def assignment(
        self,
        world: Engine,
        values: ByRank,
        halo: Halo | None = None,
        *,
        sharded: bool | None = None,
    ) -> "Assignment":
        """Makes room for new values of ranks, and returns their assignment; called between the
        world's `begin` and `end`.

        If shapes change, the room is new memory with the arrays to keep. Values and memory have
        the given halo.
        """
        old = self.storage()
        by_rank = [list(leaf.shapes) for leaf in old.layout.leaves]
        for rank, arrays in values.items():
            for shapes_of_leaf, array in zip(by_rank, arrays, strict=True):
                shapes_of_leaf[rank] = array.shape
        shapes = list(map(tuple, by_rank))
        if shapes == self.shapes() and halo == old.layout.halo:
            return Assignment(self, values, old, sharded)
        carry = None
        if len(values) < world.world_size:
            carry = old
        room = Allocation(world, self.layout_with(shapes, halo), carry=carry)
        return Assignment(self, values, room, sharded)

    def assignment_of_own(self, world: Engine, values: ByRank) -> "Assignment":
        """As `assignment`, of own rows: halos stay, and with them the shapes.

        Raises:
            PartitionError: the variable has a halo, and a value has another shape than the own
                rows.
        """
        layout = self.storage().layout
        if layout.halo is None:
            return self.assignment(world, values)
        for leaf in self.leaves():
            shapes = layout.own_shapes(leaf)
            for rank, arrays in values.items():
                if arrays[leaf].shape != shapes[rank]:
                    raise PartitionError(
                        f"set_value: {self.label_of(leaf)} is scattered with {layout.halo}, so its "
                        f"own rows on rank {rank} keep their shape {shapes[rank]}; got "
                        f"{arrays[leaf].shape}. Divide other rows with synk.scatter(v, value, "
                        f"halo={layout.halo.width})"
                    )
        return Assignment(self, values, self.storage(), without_halos=True)

    def assign(self, world: Engine, new: "Assignment") -> None:
        """Writes new values to memory of their shapes; called between the world's `begin` and
        `end`.
        """
        values, storage, without_halos = new.values, new.storage, new.without_halos
        absent: list[Array | None] = [None] * len(self._dtypes)
        by_rank = (values.get(rank, absent) for rank in range(world.world_size))
        rows: list[Row] = list(zip(*by_rank, strict=True))
        transfers_of(world).deliver(storage, rows, without_halos=without_halos)
        is_complete = len(values) == world.world_size and not without_halos
        are_equal = is_complete and len(set(map(id, values.values()))) == 1
        written, previous = self._values.written, self._values.copied
        self.mark(differs=not are_equal, sharded=new.sharded)
        self._use(storage)
        self._values.written = written and not is_complete
        if storage.segment is not None or (previous is None and not is_complete):
            return
        if previous is not None and without_halos:
            copied: Kept | None = previous.with_own(values)  # beside halos that stay
        else:
            copied = self._copied(world, values, previous)
        self._values.copied, self._values.written = copied, copied is None

    def _copied(self, world: Engine, values: ByRank, old: Kept | None) -> Kept | None:
        """Returns a copy of the values that GPUs have got, with those that other ranks keep;
        None if it would be large.
        """
        different = {id(arrays): arrays for arrays in values.values()}
        every = itertools.chain.from_iterable(different.values())
        if sum(array.nbytes for array in every) > GIVEN_BYTES:
            return None
        copies = {key: copies_of(arrays) for key, arrays in different.items()}
        parts: list[Arrays] = [[]] * world.world_size
        if old is not None:
            parts = list(old.parts)
        for rank, arrays in values.items():
            parts[rank] = copies[id(arrays)]
        return self._values.kept(parts)

    def trade(self, partner: "VariableState") -> None:
        """Exchanges memory and values with another variable."""
        states, names = (self, self, partner, partner), ("_layout", "_values") * 2
        # By `map`, so that no handler of a signal runs in the middle: Ctrl-C would leave both with
        # the same memory.
        deque(map(setattr, states, names, _values_of(partner) + _values_of(self)), 0)

    def noted(self) -> tuple[tuple[str, int], Values]:
        """Returns what `put_back` takes: where the values are now."""
        return self._layout, copy(self._values)

    def put_back(self, noted: tuple[tuple[str, int], Values]) -> None:
        """Gives the variable the memory and the values that it had."""
        self._layout, self._values = noted

    def replace(self, storage: Allocation, *, differs: bool, sharded: bool) -> None:
        """Gives the variable memory, perhaps its own, to which ranks have written; see `mark`."""
        self.mark(differs=differs, sharded=sharded)
        if storage is not self._values.storage:  # else keys of plans stay the same object
            self._use(storage)

    def mark(self, *, differs: bool, sharded: bool | None = None) -> None:
        """Records that ranks may have written: whether replicas may differ, and each rank has
        its own rows; None: as before.
        """
        values = self._values
        values.differs, values.written, values.copied = differs, True, None
        if sharded is not None and sharded is not values.sharded:
            values.sharded = sharded
            self._use(self.storage())

    def layout_with(
        self, shapes: Sequence[tuple[Shape, ...]], halo: Halo | None = None
    ) -> StorageLayout:
        """Returns a layout of the arrays with other shapes, by rank, halos included."""
        leaves = tuple(map(LeafLayout, self._dtypes, shapes))
        return StorageLayout(leaves, self._flat, halo)

    def fetch(self, ranks: Sequence[int], *, own: bool = True) -> list[Arrays]:
        """Returns copies of the arrays on the given ranks: of own rows, or with halos."""
        refuse_on_rank("variables are read")
        _refuse_in_body()
        storage, world = self._values.storage, open_world()
        parts: Sequence[Arrays]
        if storage is None:
            parts = [self._values.initial()]
            if world is not None:
                parts *= world.world_size
        elif world is None or storage.world.is_inherited:
            parts = self._parts_elsewhere(storage, own=own)
        else:
            return self._fetch_from(world, ranks, own=own)
        return [copies_of(parts[check_rank(rank, len(parts))]) for rank in ranks]

    def _fetch_from(self, world: Engine, ranks: Sequence[int], *, own: bool) -> list[Arrays]:
        """Returns what `fetch` does, of the ranks of the open world."""
        world.begin()
        try:
            self.place(world)
            for rank in ranks:
                check_rank(rank, world.world_size)
            return self.own_copies(world, ranks) if own else self.copies(world, ranks)
        finally:
            world.end()

    def _parts_elsewhere(self, storage: Allocation, *, own: bool) -> Sequence[Arrays]:
        """Returns the arrays of all ranks of a world that has ended, or is of the process from
        which this one was forked.
        """
        if not storage.world.is_inherited:
            kept = self._values.recall(self.label).fit(storage.world.partition, self.label)
        elif storage.segment is None:
            raise self._inherited()
        else:
            kept = Kept(self._values.in_memory(), halo=self.halo)
        return kept.own() if own else kept.parts

    def own_copies(self, world: Engine, ranks: Sequence[int]) -> list[Arrays]:
        """Returns copies of own rows on the given ranks; called between `begin` and `end`."""
        copies, layout = self.copies(world, ranks), self.storage().layout
        if layout.halo is None:
            return copies
        for rank, arrays in zip(ranks, copies, strict=True):
            for leaf, array in enumerate(arrays):
                arrays[leaf] = array[slice(*layout.own(leaf, rank))]
        return copies

    def copies(self, world: Engine, ranks: Sequence[int]) -> list[Arrays]:
        """Returns copies of arrays with halos; called between the world's `begin` and `end`."""
        return transfers_of(world).fetch(self.storage(), ranks)

    def _use(self, storage: Allocation) -> None:
        """Takes memory, and makes the key of the variable in plans, which depend on whether rows
        are divided.
        """
        self._values.storage = storage
        self._layout = ("shards" if self._values.sharded else "variable", storage.number)

    def note_failure(self, world: Engine, *, torn: bool) -> None:
        storage = self._values.storage
        if storage is None or not storage.lives_in(world):
            return  # it was not on these ranks yet
        self._values.written, self._values.copied = True, None
        self._values.torn = self._values.torn or torn

    def _inherited(self) -> WorldError:
        if self.storage().segment is None:
            way_out = "read it there, and pass the value on"
        else:
            way_out = "create a new variable from its last value, get_value()"
        return WorldError(
            f"{self.label} belongs to a world of the process from which this "
            f"one was forked: {way_out}"
        )


@final
@dataclass(frozen=True, slots=True)
class Assignment:
    """New values of a variable, and memory that has room for them. Nothing is written yet, so that
    several variables can be assigned, or none if memory does not suffice.

    Attributes:
        state: the variable.
        values: new arrays by rank; other ranks keep theirs.
        storage: the variable's memory, or new memory with the arrays to keep.
        sharded: whether each rank has its own rows from now on; None leaves this unchanged.
        without_halos: whether the values are own rows only.
    """

    state: VariableState
    values: ByRank
    storage: Allocation
    sharded: bool | None = None
    without_halos: bool = False


def write_all(world: Engine, assignments: Iterable[Assignment]) -> None:
    """Writes new values; called between the world's `begin` and `end`."""
    for new in assignments:
        new.state.assign(world, new)


def shapes_of(arrays: Iterable[Array]) -> tuple[Shape, ...]:
    """Returns the shape of each array."""
    return tuple(array.shape for array in arrays)


def rows_fit(shapes: Iterable[Shape]) -> bool:
    """Returns whether the ranks' rows can be joined."""
    return len({shape[1:] for shape in shapes}) <= 1


def joined_shape(shapes: Sequence[Shape]) -> Shape:
    """Returns the shape of the ranks' rows, joined."""
    return (sum(rows for rows, *_ in shapes), *shapes[0][1:])


def _refuse_in_body() -> None:
    """Raises `ArgumentError` in the body of a sequence, which would get or give a value once;
    also without a world to ask.
    """
    if tracing.current is not None:
        tracing.refuse(f"{calling().function}()")


def refuse_on_rank(what: str) -> None:
    """Raises `WorldError` on a rank, which may have inherited a variable in its state at the
    fork; `what` is refused there.
    """
    rank = this_process.current_rank()
    if rank is not None:
        raise WorldError(
            f"this is rank {rank}, but {what} in the coordinator only; pass the variable to "
            f"the function as an argument"
        )


def label_of_name(name: str | None) -> str:
    """Returns the label of a variable in error messages."""
    if name is None:
        return "the variable"
    return f"variable {name!r}"


def check_rank(rank: Any, world_size: int) -> int:
    """Returns a rank as an int; raises `PartitionError` if there is no such rank."""
    number = as_index(rank)
    if not 0 <= number < world_size:
        raise PartitionError(f"rank must be an integer from 0 to {world_size - 1}, got {rank!r}")
    return number
