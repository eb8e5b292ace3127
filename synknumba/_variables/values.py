"""`Values`: where the values of a variable are, and what is known of them."""

from collections.abc import Sequence
from typing import TypeAlias, final

from synknumba._errors import VariableLost
from synknumba._types import Array
from synknumba._variables.allocation import Allocation
from synknumba._variables.kept_values import CLOSE_BYTES, Kept
from synknumba._world.life import Ending
from synknumba._world.open_world import snapshots_taken

Arrays: TypeAlias = list[Array]  # of a variable on one rank


@final
class Values:
    """The values of one variable, apart from its name, dtypes and structure.

    Two variables swap their values by exchanging these objects.

    Attributes:
        pending: initial values; None once they are on the ranks.
        storage: the memory on the ranks of a world, perhaps an earlier one; None before.
        sharded: whether each rank has its own rows instead of a replica.
        differs: whether replicas may differ.
        written: whether ranks may have written since the coordinator gave or kept the values.
        torn: whether a failing call may have left them half-written.
        copied: the coordinator's copy of the present values; none on cores, where it can read them.
        snapshot: values of the last snapshot, or those that a later world began with.
        snapshots_known: snapshots up to the creation, the last placement, or the last of these
            values.
    """

    def __init__(self, pending: Arrays) -> None:
        self.snapshot: Kept | None = None
        self.snapshots_known = snapshots_taken()
        self.restart(pending)

    def restart(self, pending: Arrays) -> None:
        """Makes values the initial ones of the next world; the snapshot stays."""
        self.pending: Arrays | None = pending
        self.storage: Allocation | None = None
        self.copied: Kept | None = None
        self.sharded = self.differs = self.written = self.torn = False

    def keep_snapshot(self, values: Kept) -> None:
        """Sets what to go back to when a rank has died, which are the present values."""
        self.snapshots_known = snapshots_taken()
        self.snapshot = self.copied = values
        self.written = False

    def enter(self, entry_values: Kept | None, *, keeps_snapshots: bool) -> None:
        """Keeps the values that enter a world, if snapshots are taken: they are as at the last.

        If they are lost, and a snapshot was taken since they were, it has none of this variable.
        """
        newer = self.snapshots_known != snapshots_taken()
        self.snapshots_known = snapshots_taken()
        is_kept = self.snapshot is not None or keeps_snapshots
        if newer or (is_kept and entry_values is not None):
            self.snapshot = entry_values

    def initial(self) -> Arrays:
        """Returns the initial values, which are not on the ranks yet."""
        assert self.pending is not None  # of a variable without memory
        return self.pending

    def are_equal(self) -> bool:
        """Whether all ranks certainly have equal replicas; they have been placed."""
        return not self.differs and not self.sharded and self.placed().is_uniform

    def placed(self) -> Allocation:
        """Returns the memory of the values, which must have been placed."""
        assert self.storage is not None  # callers have called `VariableState.place`
        return self.storage

    def kept(self, parts: Sequence[Arrays]) -> Kept:
        """Returns arrays of all ranks, divided as the values on the ranks are."""
        storage = self.placed()
        partition = storage.world.partition
        return Kept(parts, self.sharded, self.differs, storage.layout.halo, partition)

    def in_memory(self) -> list[Arrays]:
        """Returns views of the arrays of all ranks, which are in shared memory."""
        storage = self.placed()
        return list(map(storage.arrays, range(storage.world.world_size)))

    # ---- for another world

    def known(self, label: str) -> Kept | None:
        """Returns the values that the coordinator knows, or None if they are lost."""
        try:
            return self.recall(label)
        except VariableLost:
            return None

    def recall(self, label: str) -> Kept:
        """Returns the values to put on the ranks of another world: the present ones if known,
        else the last snapshot's.
        """
        if self.storage is None:
            return Kept((self.initial(),))
        if self.copied is not None:
            return self.copied
        if self._remain_in_memory(self.storage):
            parts = self.in_memory()
            if self.are_equal():
                parts = parts[:1] * len(parts)
            return self.kept(parts)
        ending = self.storage.life.ending
        if self.snapshot is not None and ending.has_failed:
            return self.snapshot
        raise VariableLost(
            f"the values of {label} {_why_lost(ending)}. Give it a value to use it again: "
            f"v.set_value(value), or synk.scatter(v, value) "
            "to divide its rows. Call world.snapshot() now and then to keep the "
            "values of all variables."
        )

    def _remain_in_memory(self, storage: Allocation) -> bool:
        """Whether the values are in shared memory, and as a script may expect them after a
        failure: those of the last snapshot if ranks may have written since.
        """
        if storage.segment is None or self.torn:
            return False
        if storage.life.ending.reason is None or not self.written:
            return True
        return self.snapshot is None or not storage.life.keeps_snapshots


def _why_lost(ending: Ending) -> str:
    if ending.not_kept is not None:
        return f"could not be fetched when its world was closed: {ending.not_kept}"
    if ending.reason is not None:
        return f"ended with the ranks ({ending.reason}), and there is no snapshot of them"
    return (
        f"were not fetched when its world was closed, since they have more "
        f"than {CLOSE_BYTES >> 30} GiB"
    )
