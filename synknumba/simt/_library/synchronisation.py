"""Tables of the barriers and collectives of `numba.cuda`, and their names in the code of one thread."""

from dataclasses import dataclass
from typing import Final, Literal

BarrierKind = Literal["block", "warp", "grid"]

BARRIER_PREFIX: Final = "_k_barrier_"
COLLECTIVE_PREFIX: Final = "_k_collective_"

BARRIER_KINDS: Final[tuple[BarrierKind, ...]] = ("block", "warp", "grid")

# Barriers of `numba.cuda` by path.
BARRIER_PATHS: Final[dict[str, BarrierKind]] = {"syncthreads": "block", "syncwarp": "warp"}


@dataclass(frozen=True, slots=True)
class Operation:
    """Description of a collective of `numba.cuda`.

    Attributes:
        params: names of its parameters.
        exchanged: parameter whose values other threads read; empty if there is none.
        results: number of values returned.
        is_vote: whether all threads of the block take part and get the same value.
    """

    params: tuple[str, ...]
    exchanged: str = ""
    results: int = 1
    is_vote: bool = False


COLLECTIVES: Final[dict[str, Operation]] = {
    "syncthreads_count": Operation(("predicate",), "predicate", is_vote=True),
    "syncthreads_and": Operation(("predicate",), "predicate", is_vote=True),
    "syncthreads_or": Operation(("predicate",), "predicate", is_vote=True),
    "shfl_sync": Operation(("mask", "value", "src_lane"), "value"),
    "shfl_up_sync": Operation(("mask", "value", "delta"), "value"),
    "shfl_down_sync": Operation(("mask", "value", "delta"), "value"),
    "shfl_xor_sync": Operation(("mask", "value", "lane_mask"), "value"),
    "ballot_sync": Operation(("mask", "predicate"), "predicate"),
    "all_sync": Operation(("mask", "predicate"), "predicate"),
    "any_sync": Operation(("mask", "predicate"), "predicate"),
    "eq_sync": Operation(("mask", "predicate"), "predicate"),
    "match_any_sync": Operation(("mask", "value"), "value"),
    "match_all_sync": Operation(("mask", "value"), "value", results=2),
    "activemask": Operation(()),
}


def collective_name(path: str) -> str:
    """Returns the name of a collective in the code of one thread."""
    return COLLECTIVE_PREFIX + path


def barrier_name(kind: BarrierKind) -> str:
    """Returns the name of a barrier in the code of one thread."""
    return BARRIER_PREFIX + kind
