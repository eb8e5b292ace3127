"""Whether this process is a rank, so that a call from inside one can be refused."""

from dataclasses import dataclass


@dataclass(slots=True)
class RankState:
    """Where this process is; None in the coordinator."""

    rank: int | None = None
    world_size: int | None = None


_state = RankState()


def enter(rank: int, world_size: int) -> None:
    """Says that this process is a rank from now on."""
    _state.rank = rank
    _state.world_size = world_size


def current_rank() -> int | None:
    """This process's rank, or None in the coordinator."""
    return _state.rank
