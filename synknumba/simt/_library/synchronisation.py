"""Tables of the barriers and collectives of `numba.cuda`, and their names in the code of one thread."""

from dataclasses import dataclass
from typing import Final, Literal

from numba.core import types

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
        kind: type of the result, as in `numba.cuda`; None for that of the parameter `value`.
        is_vote: whether all threads of the block take part and get the same value.
    """

    params: tuple[str, ...]
    exchanged: str
    kind: types.Type | None = None
    is_vote: bool = False

    @property
    def results(self) -> int:
        """Number of values returned."""
        return len(self.kind) if isinstance(self.kind, types.BaseTuple) else 1


COLLECTIVES: Final[dict[str, Operation]] = {
    "syncthreads_count": Operation(("predicate",), "predicate", types.int32, is_vote=True),
    "syncthreads_and": Operation(("predicate",), "predicate", types.int32, is_vote=True),
    "syncthreads_or": Operation(("predicate",), "predicate", types.int32, is_vote=True),
    "shfl_sync": Operation(("mask", "value", "src_lane"), "value"),
    "shfl_up_sync": Operation(("mask", "value", "delta"), "value"),
    "shfl_down_sync": Operation(("mask", "value", "delta"), "value"),
    "shfl_xor_sync": Operation(("mask", "value", "lane_mask"), "value"),
    "ballot_sync": Operation(("mask", "predicate"), "predicate", types.int32),
    "all_sync": Operation(("mask", "predicate"), "predicate", types.boolean),
    "any_sync": Operation(("mask", "predicate"), "predicate", types.boolean),
    "eq_sync": Operation(("mask", "predicate"), "predicate", types.boolean),
    "match_any_sync": Operation(("mask", "value"), "value", types.int32),
    "match_all_sync": Operation(("mask", "value"), "value", types.Tuple((types.int32, types.boolean))),
    "activemask": Operation((), "", types.uint32),
}
