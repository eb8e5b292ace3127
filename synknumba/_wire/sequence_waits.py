"""Compiled waits of ranks for each other, inside a sequence (board: see `sequence.py`)."""

from synknumba._wire.compiled import compiled
from synknumba._wire.doorbell import load_acquire, rest, store_release

REACHED, GIVEN_UP, NOT_YET = range(3)

_LINE = 8  # words from one rank's count to the next


@compiled("int64(int64, int64, int64)")
def _await_one(board: int, rank: int, level: int) -> int:
    return 1 if load_acquire(board, rank * _LINE) >= level else 0


@compiled("int64(int64, int64, int64, int64, int64, int64, int64)")
def await_counts(
    board: int, world_size: int, rank: int, level: int, nearby: int, pauses: int, yields: int
) -> int:
    """Spins until the other ranks, or the neighbours if `nearby`, show counts of at least `level`.

    Returns:
        REACHED; GIVEN_UP if a rank has failed; NOT_YET if the spins ended first, for the caller to
        handle signals.
    """
    spin, since, index = 0, 0, 0
    end = 2 if nearby != 0 else world_size
    while index < end:
        which = index
        if nearby != 0:
            which = (rank + world_size - 1 + 2 * index) % world_size
        if _await_one(board, which, level) == 1 or which == rank:
            index += 1
            continue
        if load_acquire(board, world_size * _LINE) != 0:
            return GIVEN_UP
        if spin >= pauses + yields:
            return NOT_YET
        since = rest(spin, pauses, since)
        if since < 0:
            return NOT_YET
        spin += 1
    return REACHED


@compiled("void(int64, int64, int64)")
def show_count(board: int, rank: int, count: int) -> None:
    """Shows a rank's count of finished parts to the others, with all that it has written before."""
    store_release(board, rank * _LINE, count)
