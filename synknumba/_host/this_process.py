"""The rank of this process, if it is one; used to refuse calls made on a rank."""

from dataclasses import dataclass


@dataclass(slots=True)
class RankState:
    """Rank of this process; None in the coordinator."""

    rank: int | None = None


_state = RankState()


def enter(rank: int) -> None:
    """Marks this process as a rank."""
    _state.rank = rank


def current_rank() -> int | None:
    """Returns the rank of this process; None in the coordinator."""
    return _state.rank
