"""Barriers and collectives of `numba.cuda`: which there are, and their names in the plain code of one thread."""

from dataclasses import dataclass
from typing import Final, Literal

BarrierKind = Literal["block", "warp", "grid"]

BARRIER_PREFIX: Final = "_k_barrier_"
COLLECTIVE_PREFIX: Final = "_k_collective_"

BARRIER_KINDS: Final[tuple[BarrierKind, ...]] = ("block", "warp", "grid")

# The operations of `numba.cuda` that stand for a barrier.
BARRIER_PATHS: Final[dict[str, BarrierKind]] = {"syncthreads": "block", "syncwarp": "warp"}


@dataclass(frozen=True, slots=True)
class Operation:
    """A collective operation as CUDA spells it.

    Attributes:
        params: the names of its parameters.
        exchanged: the parameter that is read from other threads; empty if there is none.
        results: how many values it gives.
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
    """The name that a collective has in the plain code."""
    return COLLECTIVE_PREFIX + path


def barrier_name(kind: BarrierKind) -> str:
    """The name that a barrier has in the plain code."""
    return BARRIER_PREFIX + kind
