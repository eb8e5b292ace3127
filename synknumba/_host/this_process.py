"""The rank of this process, if it is one; used to refuse calls made on a rank."""

from dataclasses import dataclass


@dataclass(slots=True)
class RankState:
    """Rank and world size of this process; None in the coordinator."""

    rank: int | None = None
    world_size: int | None = None


_state = RankState()


def enter(rank: int, world_size: int) -> None:
    """Marks this process as a rank."""
    _state.rank, _state.world_size = rank, world_size


def current_rank() -> int | None:
    """Returns the rank of this process; None in the coordinator."""
    return _state.rank
