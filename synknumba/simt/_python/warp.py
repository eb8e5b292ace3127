"""Results of barriers and warp operations, computed from the arguments of all participating
threads.

Warp operations follow the PTX instructions `shfl.sync`, `vote.sync` and `match.sync`; result types
are Numba's.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from synknumba.simt._library.synchronisation import COLLECTIVES
from synknumba.simt._library.words import WARP_SIZE

FULL_MASK: Final = 0xFFFFFFFF

ACTIVE_MASK: Final = "activemask"
GRID_SYNC: Final = "cg.this_grid().sync"

# Parameter names of the operations that wait, in order, for keyword arguments. The intrinsics are
# those of PTX.
BLOCK_WIDE: Final[dict[str, tuple[str, ...]]] = {
    "syncthreads": (),
    **{path: operation.params for path, operation in COLLECTIVES.items() if operation.is_vote},
}
# Operations of whole blocks, and of the grid.
OF_BLOCKS: Final = frozenset({*BLOCK_WIDE, GRID_SYNC})
WAITING: Final[dict[str, tuple[str, ...]]] = {
    **BLOCK_WIDE,
    "syncwarp": ("mask",),
    **{path: operation.params for path, operation in COLLECTIVES.items() if not operation.is_vote},
    "shfl_sync_intrinsic": ("mask", "mode", "value", "mode_offset", "clamp"),
    "vote_sync_intrinsic": ("mask", "mode", "predicate"),
}


class Request(NamedTuple):
    """A pending operation of a thread."""

    kind: str  # its name below `numba.cuda`
    args: tuple[Any, ...] = ()

    @property
    def mask(self) -> int:
        """Lane mask of a warp operation; all lanes by default."""
        if not self.args:
            return FULL_MASK
        return int(self.args[0]) & FULL_MASK

    @property
    def meeting(self) -> tuple[str, int]:
        """What the requests of threads that wait for each other have in common."""
        if self.kind in BLOCK_WIDE:
            return self.kind, FULL_MASK
        return self.kind, self.mask


def request(kind: str, *args: Any, **keywords: Any) -> Request:
    """Returns the request for a call, with keyword arguments put in positional order."""
    names = WAITING[kind]
    values = dict(zip(names, args, strict=False)) | keywords
    missing = [name for name in names if name not in values]
    if len(args) > len(names) or len(values) > len(names) or (missing and kind != "syncwarp"):
        raise TypeError(f"cuda.{kind}() takes the arguments ({', '.join(names)})")
    # Converted here, in the thread: an exception, such as that of int(nan), is the thread's.
    return Request(
        kind, tuple(_CONVERSIONS.get(name, _same)(values[name]) for name in names if name in values)
    )


def _same(value: Any) -> Any:
    return value


def _shuffled(value: Any) -> Any:
    if isinstance(value, (bool, np.bool_)):
        return np.int32(value)
    return value


_CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "predicate": bool,
    "value": _shuffled,
    **dict.fromkeys(
        ("mask", "src_lane", "delta", "lane_mask", "mode", "mode_offset", "clamp"), int
    ),
}


def block_answer(kind: str, requests: Sequence[Request]) -> Any:
    """Returns the result of a block barrier, the same for every thread."""
    if kind == "syncthreads":
        return None
    truths = [bool(request.args[0]) for request in requests]
    match kind:
        case "syncthreads_count":
            return sum(truths)
        case "syncthreads_and":
            return int(all(truths))
    return int(any(truths))


# Mode and clamp that Numba passes to the instruction.
_SHUFFLES: Final = {
    "shfl_sync": (0, 0x1F),
    "shfl_up_sync": (1, 0),
    "shfl_down_sync": (2, 0x1F),
    "shfl_xor_sync": (3, 0x1F),
}
SHUFFLES: Final = {*_SHUFFLES, "shfl_sync_intrinsic"}
_VOTES: Final = {"all_sync": 0, "any_sync": 1, "eq_sync": 2, "ballot_sync": 3}  # modes


class _Shuffle(NamedTuple):
    """The operands of `shfl.sync` in a lane."""

    mode: int
    value: Any
    offset: int
    clamp: int

    @classmethod
    def of(cls, kind: str, operands: tuple[Any, ...]) -> "_Shuffle":
        """Returns the operands of a shuffle of this kind, from its positional arguments."""
        if kind == "shfl_sync_intrinsic":
            return cls(*operands[1:])
        mode, clamp = _SHUFFLES[kind]
        return cls(mode, operands[1], int(operands[2]), clamp)

    def source(self, lane: int) -> tuple[int, bool]:
        """Returns the lane to read from, and whether it lies within the segment."""
        segment, bound, offset = self.clamp >> 8 & 31, self.clamp & 31, self.offset & 31
        last = (lane & segment) | (bound & ~segment)
        sources = (
            (lane & segment) | (offset & ~segment),
            lane - offset,
            lane + offset,
            lane ^ offset,
        )
        source = sources[self.mode]
        is_inside = source <= last
        if self.mode == 1:
            is_inside = source >= last
        if not is_inside:
            source = lane
        return source, is_inside


def _shuffled_values(kind: str, args: Mapping[int, tuple[Any, ...]]) -> dict[int, tuple[Any, bool]]:
    """Returns (value, in segment) for each lane."""
    shuffles = {lane: _Shuffle.of(kind, operands) for lane, operands in args.items()}
    answers = {}
    for lane, shuffle in shuffles.items():
        source, is_inside = shuffle.source(lane)
        # Reading from a non-participating lane is undefined in CUDA; the lane's own value is used.
        answers[lane] = shuffles.get(source, shuffle).value, is_inside
    return answers


def absent_sources(kind: str, args: Mapping[int, tuple[Any, ...]]) -> dict[int, int]:
    """Returns the lanes that shuffle from a lane that does not take part, and that lane."""
    if kind not in SHUFFLES or len(args) == WARP_SIZE:
        return {}
    absent = {}
    for lane, operands in args.items():
        source, _ = _Shuffle.of(kind, operands).source(lane)
        if source not in args:
            absent[lane] = source
    return absent


def _as_mask(lanes: Iterable[int]) -> np.int32:
    """Returns the mask of these lanes, as Numba's type of masks."""
    return np.uint32(sum(1 << lane for lane in lanes)).astype(np.int32)


def _vote(mode: int, predicates: Mapping[int, Any]) -> tuple[np.int32, bool]:
    """Returns (ballot, vote) of `vote.sync`."""
    lanes = [lane for lane, predicate in predicates.items() if predicate]
    if mode == 3:
        return _as_mask(lanes), False
    are_all = len(lanes) == len(predicates)
    return np.int32(0), (are_all, bool(lanes), are_all or not lanes)[mode]


def warp_answers(kind: str, args: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
    """Returns the result of a warp operation for each participating lane, from the positional
    arguments of each.
    """
    if kind == "syncwarp":
        return dict.fromkeys(args)
    if kind in SHUFFLES:
        answers = _shuffled_values(kind, args)
        if kind == "shfl_sync_intrinsic":
            return answers
        return {lane: value for lane, (value, _) in answers.items()}
    if kind == "vote_sync_intrinsic":
        mode = int(next(iter(args.values()))[1])
        return dict.fromkeys(args, _vote(mode, {lane: args[lane][2] for lane in args}))
    values = {lane: operands[1] for lane, operands in args.items()}
    if kind in _VOTES:
        ballot, vote = _vote(_VOTES[kind], values)
        if kind == "ballot_sync":
            return dict.fromkeys(args, ballot)
        return dict.fromkeys(args, vote)
    return _match(kind, values)


def _match(kind: str, values: Mapping[int, Any]) -> dict[int, Any]:
    lanes: dict[bytes, list[int]] = {}  # by bits, as -0.0 is not 0.0, and NaN is NaN
    for lane, value in values.items():
        lanes.setdefault(np.asarray(value).tobytes(), []).append(lane)
    if kind == "match_any_sync":
        return {lane: _as_mask(group) for group in lanes.values() for lane in group}
    if len(lanes) > 1:
        return dict.fromkeys(values, (np.int32(0), False))
    return dict.fromkeys(values, (_as_mask(values), True))
