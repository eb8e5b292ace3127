"""Votes and shuffles of a warp or a block, computed on arrays with one element per thread.

Every function takes its result arrays and operands, then `active` (a flag per thread that takes
part; None if all do), the number of threads in a block and the number of blocks. A uniform operand
that other threads do not read may be a scalar. A warp is 32 consecutive threads of a block; the
last warp may be shorter. Where CUDA leaves a result undefined, as for a shuffle from an inactive
thread, a thread gets its own value.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numba.core import types
from numba.extending import intrinsic, overload
from numba.np.arrayobj import load_item, make_array

from synknumba.simt._library.intrinsics import float_bits
from synknumba.simt._library.words import WARP_SIZE

LANES = WARP_SIZE - 1
FULL = np.uint32(0xFFFFFFFF)


def _of(value: Any, thread: int) -> Any:
    """Returns the thread's element of a varying operand, or the value of a uniform one."""
    return value[thread] if isinstance(value, np.ndarray) else value


@overload(_of, inline="always", strict=False)
def _of_overload(value: types.Type, thread: types.Type) -> Callable[..., Any]:
    del thread
    if isinstance(value, types.Array):
        return lambda value, thread: value[thread]
    return lambda value, thread: value


def _is_active(active: Any, thread: int) -> bool:
    return active is None or bool(active[thread])


@overload(_is_active, inline="always", strict=False)
def _is_active_overload(active: types.Type, thread: types.Type) -> Callable[..., Any]:
    del thread
    if isinstance(active, types.Array):
        return lambda active, thread: active[thread]
    return lambda active, thread: True


def _same(a: Any, b: Any) -> bool:
    """Returns whether two values have the same bits, the comparison of `match_any_sync` and
    `match_all_sync`.
    """
    return np.array(a).tobytes() == np.array(b).tobytes()


@intrinsic  # type: ignore[untyped-decorator]
def _bits(_context: Any, value: types.Type) -> Any:
    value = types.unliteral(value)
    if isinstance(value, types.Float):
        kind = {16: types.uint16, 32: types.uint32, 64: types.uint64}[value.bitwidth]
    elif isinstance(value, (types.Integer, types.Boolean)):
        kind = value
    else:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if isinstance(signature.args[0], types.Float):
            return float_bits(builder, args[0])
        return args[0]

    return kind(value), codegen


@overload(_same, inline="always", strict=False)
def _same_overload(a: types.Type, b: types.Type) -> Callable[..., Any]:
    del a, b
    return lambda a, b: _bits(a) == _bits(b)


_compiled = njit(error_model="numpy")
_inlined = njit(error_model="numpy", inline="always")


# ---- votes of a block


@_compiled
def vote_count(predicate: Any, active: Any, threads: int, _blocks: int) -> Any:
    """Counts the threads of a block with a true predicate."""
    total = 0
    for thread in range(threads):
        if _is_active(active, thread) and predicate[thread]:
            total += 1
    return np.int32(total)


@_compiled
def vote_and(predicate: Any, active: Any, threads: int, _blocks: int) -> Any:
    """Returns 1 if all threads of a block have a true predicate, else 0."""
    for thread in range(threads):
        if _is_active(active, thread) and not predicate[thread]:
            return np.int32(0)
    return np.int32(1)


@_compiled
def vote_or(predicate: Any, active: Any, threads: int, _blocks: int) -> Any:
    """Returns 1 if any thread of a block has a true predicate, else 0."""
    for thread in range(threads):
        if _is_active(active, thread) and predicate[thread]:
            return np.int32(1)
    return np.int32(0)


def _each(vote: Any) -> Any:
    @_compiled
    def each(got: Any, predicate: Any, active: Any, threads: int, blocks: int) -> None:
        for block in range(blocks):
            first, end = block * threads, (block + 1) * threads
            if active is None:
                result = vote(predicate[first:end], None, threads, 1)
            else:
                result = vote(predicate[first:end], active[first:end], threads, 1)
            for thread in range(first, end):
                got[thread] = result

    return each


# ---- votes of a warp


@_compiled
def _ballot(predicate: Any, active: Any, first: int, end: int) -> Any:
    """Returns the bit masks of a warp's active threads with a true predicate, and of all its
    active threads.
    """
    true, part = np.uint32(0), np.uint32(0)
    for thread in range(first, end):
        if _is_active(active, thread):
            bit = np.uint32(1) << np.uint32(thread - first)
            part |= bit
            if _of(predicate, thread):
                true |= bit
    return true, part


def _warp_vote(decide: Any) -> Any:
    """Returns a warp vote among the threads in each thread's mask; `decide` gets the true and
    the active ones as bits.
    """
    decide = _compiled(decide)

    @_compiled
    def vote(got: Any, mask: Any, predicate: Any, active: Any, threads: int, blocks: int) -> None:
        for block in range(0, threads * blocks, threads):
            for first in range(block, block + threads, WARP_SIZE):
                end = min(first + WARP_SIZE, block + threads)
                true, part = _ballot(predicate, active, first, end)
                for thread in range(first, end):
                    named = np.uint32(_of(mask, thread) & FULL)
                    got[thread] = decide(np.uint32(true & named), np.uint32(part & named))

    return vote


_WARP_VOTES = {
    "ballot_sync": _warp_vote(lambda true, _: np.int32(true)),
    "all_sync": _warp_vote(lambda true, part: true == part),
    "any_sync": _warp_vote(lambda true, _: true != 0),
    "eq_sync": _warp_vote(lambda true, part: (true == part) | (true == 0)),
}
_active_lanes = _warp_vote(lambda _, part: part)


@_compiled
def activemask(got: Any, active: Any, threads: int, blocks: int) -> None:
    """Sets each thread's result to the bit mask of its warp's active threads."""
    _active_lanes(got, FULL, True, active, threads, blocks)


@_compiled
def _matching(mask: Any, value: Any, active: Any, thread: int, threads: int) -> Any:
    """Returns the bit masks of the active threads in this thread's mask that have its value, and
    of all in its mask.
    """
    same, named = np.uint32(0), np.uint32(0)
    first = thread - (thread % threads & LANES)
    for other in range(first, min(first + WARP_SIZE, thread - thread % threads + threads)):
        bit = np.uint32(1) << np.uint32(other - first)
        if _is_active(active, other) and np.uint32(_of(mask, thread) & FULL) & bit:
            named |= bit
            if _same(value[other], value[thread]):
                same |= bit
    return same, named


@_compiled
def match_any(got: Any, mask: Any, value: Any, active: Any, threads: int, blocks: int) -> None:
    """Sets each thread's result to the bit mask of the threads with its value."""
    for thread in range(threads * blocks):
        same, _ = _matching(mask, value, active, thread, threads)
        got[thread] = np.int32(same)


@_compiled
def match_all(
    got: Any, agreed: Any, mask: Any, value: Any, active: Any, threads: int, blocks: int
) -> None:
    """Sets each thread's results to its mask and True if all threads in the mask have one value,
    else to 0 and False.
    """
    for thread in range(threads * blocks):
        same, named = _matching(mask, value, active, thread, threads)
        agreed[thread] = same == named
        got[thread] = np.int32(named) if same == named else np.int32(0)


# ---- shuffles


@intrinsic  # type: ignore[untyped-decorator]
def _peek(_context: Any, array: types.Type, index: types.Type) -> Any:
    """Returns an element of an array at an index that may lie in the margins of a padded array."""
    if not isinstance(array, types.Array) or not isinstance(index, types.Integer):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = make_array(signature.args[0])(context, builder, args[0])
        return load_item(context, builder, signature.args[0], builder.gep(struct.data, [args[1]]))

    return array.dtype(array, types.int64), codegen


def _whole_warps(take: Any, source: Any) -> Any:
    """Returns a shuffle for a block whose threads are all active and have the same operand.

    Args:
        take: returns the value for a lane of a full warp, from the padded values, the warp's first
            thread, the lane and the operand. It reads neighbours at fixed distances and selects
            among them, which vectorizes.
        source: returns the lane that a lane of the last, incomplete warp reads.
    """

    @_compiled
    def shuffle(
        got: Any, _mask: Any, value: Any, operand: Any, _active: Any, threads: int, _blocks: int
    ) -> None:
        distance = np.int64(operand) & LANES
        rest = threads - threads % WARP_SIZE
        for first in range(0, rest, WARP_SIZE):
            for lane in range(WARP_SIZE):
                got[first + lane] = take(value, first, lane, distance)
        for thread in range(rest, threads):
            peer = rest + source(thread - rest, distance)
            got[thread] = value[peer if peer < threads else thread]

    return shuffle


@_inlined
def _take_from(value: Any, first: int, _lane: int, distance: int) -> Any:
    return _peek(value, first + distance)


@_inlined
def _take_up(value: Any, first: int, lane: int, distance: int) -> Any:
    below, here = _peek(value, first + lane - distance), _peek(value, first + lane)
    return below if lane >= distance else here


@_inlined
def _take_down(value: Any, first: int, lane: int, distance: int) -> Any:
    above, here = _peek(value, first + lane + distance), _peek(value, first + lane)
    return above if lane + distance <= LANES else here


@_inlined
def _take_xor(value: Any, first: int, lane: int, distance: int) -> Any:
    if distance & (distance - 1):
        return _peek(value, first + (lane ^ distance))
    above, below = _peek(value, first + lane + distance), _peek(value, first + lane - distance)
    return below if lane & distance else above


def _shuffle(source: Any) -> Any:
    """Returns a shuffle in which each thread gets the value of lane `source(lane, operand)` of
    its warp.
    """

    @_compiled
    def shuffle(
        got: Any, _mask: Any, value: Any, operand: Any, active: Any, threads: int, blocks: int
    ) -> None:
        for block in range(0, threads * blocks, threads):
            end = block + threads
            for thread in range(block, end):
                lane = (thread - block) & LANES
                peer = thread - lane + source(lane, np.int64(_of(operand, thread)) & LANES)
                if peer >= end or not _is_active(active, min(peer, end - 1)):
                    peer = thread
                got[thread] = value[peer]

    return shuffle


@_inlined
def _from(_lane: int, operand: int) -> int:
    return operand


@_inlined
def _up(lane: int, operand: int) -> int:
    return lane - operand if lane >= operand else lane


@_inlined
def _down(lane: int, operand: int) -> int:
    return lane + operand if lane + operand <= LANES else lane


@_inlined
def _xor(lane: int, operand: int) -> int:
    return lane ^ operand


_VOTES = {"count": vote_count, "and": vote_and, "or": vote_or}
_SHUFFLES = {
    "": (_take_from, _from),
    "_up": (_take_up, _up),
    "_down": (_take_down, _down),
    "_xor": (_take_xor, _xor),
}

COLLECT: dict[str, Any] = {
    **{f"_k_all_syncthreads_{name}": vote for name, vote in _VOTES.items()},
    **{f"_k_all_syncthreads_{name}_each": _each(vote) for name, vote in _VOTES.items()},
    **{f"_k_all_{name}": vote for name, vote in _WARP_VOTES.items()},
    "_k_all_activemask": activemask,
    "_k_all_match_any_sync": match_any,
    "_k_all_match_all_sync": match_all,
    **{f"_k_all_shfl{name}_sync": _shuffle(source) for name, (_, source) in _SHUFFLES.items()},
    **{
        f"_k_all_shfl{name}_sync_padded": _whole_warps(take, source)
        for name, (take, source) in _SHUFFLES.items()
    },
}
