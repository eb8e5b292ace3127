"""`Values`: where the values of a variable are, and what is known of them."""

from typing import TypeAlias, final

from synknumba._types import Array
from synknumba._variables.allocation import Allocation
from synknumba._variables.kept_values import Kept
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
        given: the coordinator's copy of the present values; none on cores, where it can read them.
        snapshot: values of the last snapshot, or those that a later world began with.
        seen: snapshots up to the creation, the last placement, or the last one of these values.
    """

    __slots__ = (
        "differs",
        "given",
        "pending",
        "seen",
        "sharded",
        "snapshot",
        "storage",
        "torn",
        "written",
    )

    def __init__(self, pending: Arrays) -> None:
        self.snapshot: Kept | None = None
        self.seen = snapshots_taken()
        self.restart(pending)

    def restart(self, pending: Arrays) -> None:
        """Makes values the initial ones of the next world; the snapshot stays."""
        self.pending: Arrays | None = pending
        self.storage: Allocation | None = None
        self.given: Kept | None = None
        self.sharded = self.differs = self.written = self.torn = False

    def keep_snapshot(self, values: Kept) -> None:
        """Sets what to go back to when a rank has died, which are the present values."""
        self.seen = snapshots_taken()
        self.snapshot = self.given = values
        self.written = False

    def enter(self, entry_values: Kept | None, *, keeps_snapshots: bool) -> None:
        """Keeps the values that enter a world, if snapshots are taken: they are as at the last.

        If they are lost, and a snapshot was taken since they were, it has none of this variable.
        """
        newer = self.seen != snapshots_taken()
        self.seen = snapshots_taken()
        if entry_values is None:
            self.snapshot = None if newer else self.snapshot
        elif newer or self.snapshot is not None or keeps_snapshots:
            self.snapshot = entry_values
