"""Results of barriers and warp operations, computed from the arguments of all participating
threads.

Warp operations follow the PTX instructions `shfl.sync`, `vote.sync` and `match.sync`; result types
are Numba's.
"""

from collections.abc import Callable, Mapping, Sequence
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
        return int(self.args[0]) & FULL_MASK if self.args else FULL_MASK


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
    return np.int32(value) if isinstance(value, (bool, np.bool_)) else value


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
    if kind == "syncthreads_count":
        return sum(truths)
    return int(all(truths) if kind == "syncthreads_and" else any(truths))


def _source(lane: int, mode: int, offset: int, clamp: int) -> tuple[int, bool]:
    """Returns the source lane of `shfl.sync`, and whether it lies within the segment."""
    segment, bound, offset = clamp >> 8 & 31, clamp & 31, offset & 31
    last = (lane & segment) | (bound & ~segment)
    if mode == 1:
        source = lane - offset
        return (source, True) if source >= last else (lane, False)
    source = ((lane & segment) | (offset & ~segment), lane, lane + offset, lane ^ offset)[mode]
    return (source, True) if source <= last else (lane, False)


def _shuffle(
    mode: int, value: int, offset: int, clamp: int | None, args: Mapping[int, tuple[Any, ...]]
) -> dict[int, Any]:
    """Returns (value, in segment) for each lane; `value` and `offset` are positions in the
    argument tuples.
    """
    answers = {}
    for lane, operands in args.items():
        bound = operands[4] if clamp is None else clamp
        source, inside = _source(lane, mode, int(operands[offset]), int(bound))
        # Reading from a non-participating lane is undefined in CUDA; the lane's own value is used.
        answers[lane] = (args[source if source in args else lane][value], inside)
    return answers


def absent_sources(kind: str, args: Mapping[int, tuple[Any, ...]]) -> dict[int, int]:
    """Returns the lanes that shuffle from a lane that does not take part, and that lane."""
    if kind not in SHUFFLES or len(args) == WARP_SIZE:
        return {}
    absent = {}
    for lane, operands in args.items():
        mode, clamp = _SHUFFLES.get(kind) or (int(operands[1]), int(operands[4]))
        source, _ = _source(lane, mode, int(operands[2 if kind in _SHUFFLES else 3]), clamp)
        if source not in args:
            absent[lane] = source
    return absent


def _vote(mode: int, args: Mapping[int, tuple[Any, ...]], predicate: int) -> tuple[Any, bool]:
    """Returns (ballot, vote); `predicate` is a position in the argument tuples."""
    truths = {lane: bool(operands[predicate]) for lane, operands in args.items()}
    ballot = sum(1 << lane for lane, truth in truths.items() if truth)
    vote = (all(truths.values()), any(truths.values()), len(set(truths.values())) == 1, False)[mode]
    return np.uint32(ballot if mode == 3 else 0).astype(np.int32), vote


# Mode and clamp that Numba passes to the instruction.
_SHUFFLES: Final = {
    "shfl_sync": (0, 0x1F),
    "shfl_up_sync": (1, 0),
    "shfl_down_sync": (2, 0x1F),
    "shfl_xor_sync": (3, 0x1F),
}
SHUFFLES: Final = {*_SHUFFLES, "shfl_sync_intrinsic"}
_VOTES: Final = {"all_sync": 0, "any_sync": 1, "eq_sync": 2, "ballot_sync": 3}  # modes


def warp_answers(kind: str, args: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
    """Returns the result of a warp operation for each participating lane, from the positional
    arguments of each.
    """
    if kind == "syncwarp":
        return dict.fromkeys(args)
    if kind in _SHUFFLES:
        mode, clamp = _SHUFFLES[kind]
        return {lane: value for lane, (value, _) in _shuffle(mode, 1, 2, clamp, args).items()}
    if kind == "shfl_sync_intrinsic":
        return _shuffle(int(next(iter(args.values()))[1]), 2, 3, None, args)
    if kind in _VOTES:
        ballot, vote = _vote(_VOTES[kind], args, 1)
        return dict.fromkeys(args, ballot if kind == "ballot_sync" else vote)
    if kind == "vote_sync_intrinsic":
        mode = int(next(iter(args.values()))[1])
        return dict.fromkeys(args, _vote(mode, args, 2))
    return _match(kind, {lane: operands[1] for lane, operands in args.items()})


def _match(kind: str, values: Mapping[int, Any]) -> dict[int, Any]:
    # -0.0 is not 0.0, and NaN is NaN
    bits = {lane: np.asarray(value).tobytes() for lane, value in values.items()}
    masks = dict.fromkeys(bits.values(), 0)
    for lane, value in bits.items():
        masks[value] |= 1 << lane
    if kind == "match_any_sync":
        return {lane: np.uint32(masks[value]).astype(np.int32) for lane, value in bits.items()}
    agree = len(masks) == 1
    mask = sum(masks.values()) if agree else 0
    return dict.fromkeys(values, (np.uint32(mask).astype(np.int32), agree))
