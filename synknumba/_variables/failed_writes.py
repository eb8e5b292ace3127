"""What is known of variables after a call that wrote to them has failed."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, final

from synknumba._errors import (
    ArgumentError,
    BatchError,
    DataError,
    PartitionError,
    ReductionError,
    SharedMemoryError,
)
from synknumba._world.engine import Engine

if TYPE_CHECKING:  # it asks this module
    from synknumba._variables.state import VariableState

# Raised by checks before anything is written.
_HARMLESS = (
    ArgumentError,
    BatchError,
    DataError,
    PartitionError,
    ReductionError,
    SharedMemoryError,
)


@final
class writing:  # noqa: N801  # used as a function
    """Context in which the ranks, or the coordinator, write to variables: an exception may leave
    them half written.
    """

    def __init__(self, world: Engine, states: "Iterable[VariableState | None]") -> None:
        self._world, self._states = world, states

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        """Records what is not known any more."""
        if error is not None:
            note_failure(self._world, self._states, error)


def note_failure(
    world: Engine, states: "Iterable[VariableState | None]", error: BaseException
) -> None:
    """Records that a failed call may have written to variables: their values are not known, and
    torn if the world has ended.
    """
    broken = world.is_broken
    if not broken and isinstance(error, _HARMLESS):
        return
    for state in states:
        if state is not None:
            state.note_failure(world, torn=broken)
