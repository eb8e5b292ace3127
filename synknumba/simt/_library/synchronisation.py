"""Tables of the barriers and collectives of `numba.cuda`, and their names in the code of one
thread.
"""

from collections.abc import Sequence
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
        kind: type of the result, as in `numba.cuda`; None if it depends on the arguments.
        is_vote: whether all threads of the block take part and get the same value.
    """

    params: tuple[str, ...]
    exchanged: str
    kind: types.Type | None = None
    is_vote: bool = False

    @property
    def results(self) -> int:
        """Number of values returned."""
        if isinstance(self.kind, types.BaseTuple):
            return len(self.kind)
        return 1

    def result_type(self, args: Sequence[types.Type]) -> types.Type:
        """Returns the type of the result by those of the arguments; a shuffle of booleans gives
        int32, as in `numba.cuda`.
        """
        if self.kind is not None:
            return self.kind
        value = args[self.params.index(self.exchanged)]
        if isinstance(value, types.Boolean):
            return types.int32
        return value


# The one table of collectives: the compiler, its types, kernels in Python and compiled checks,
# which number them in this order.
COLLECTIVES: Final[dict[str, Operation]] = {
    "syncthreads_count": Operation(("predicate",), "predicate", types.int32, is_vote=True),
    "syncthreads_and": Operation(("predicate",), "predicate", types.int32, is_vote=True),
    "syncthreads_or": Operation(("predicate",), "predicate", types.int32, is_vote=True),
    "shfl_sync": Operation(("mask", "value", "src_lane"), "value"),
    "shfl_up_sync": Operation(("mask", "value", "delta"), "value"),
    "shfl_down_sync": Operation(("mask", "value", "delta"), "value"),
    "shfl_xor_sync": Operation(("mask", "value", "lane_mask"), "value"),
    "all_sync": Operation(("mask", "predicate"), "predicate", types.boolean),
    "any_sync": Operation(("mask", "predicate"), "predicate", types.boolean),
    "eq_sync": Operation(("mask", "predicate"), "predicate", types.boolean),
    "ballot_sync": Operation(("mask", "predicate"), "predicate", types.int32),
    "match_any_sync": Operation(("mask", "value"), "value", types.int32),
    "match_all_sync": Operation(
        ("mask", "value"), "value", types.Tuple((types.int32, types.boolean))
    ),
    "activemask": Operation((), "", types.uint32),
}
