"""Votes, matches and shuffles of all threads at once, against a model in plain Python of one
thread after the other.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import njit

from synknumba.simt._library.collectives import COLLECT
from synknumba.simt._library.slots import MARGIN, inner
from tests.quick import whole

WARP = 32
ALL = 0xFFFFFFFF
# Threads of a block and blocks: whole warps, a last one that is not, less than a warp, several
# blocks.
SIZES = [(64, 1), (40, 1), (7, 1), (1, 1), (33, 3), (64, 2)]
DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float32",
    "float64",
    "complex64",
]
DTYPES += ["complex128"]
FEW = ("bool", "int8", "uint64", "float32", "complex128")  # of every size and kind


def warps(threads: int, blocks: int) -> list[range]:
    return [
        range(block + first, block + min(first + WARP, threads))
        for block in range(0, threads * blocks, threads)
        for first in range(0, threads, WARP)
    ]


def values_of(dtype: str, size: int, seed: int = 0) -> np.ndarray:
    """Values of all bits, some of them equal."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return rng.integers(0, 2, size).astype(bool)
    bits = rng.integers(0, 256, (5, kind.itemsize), np.uint8)
    return bits.view(kind).ravel()[rng.integers(0, 5, size)]


def active_of(name: str, size: int) -> np.ndarray | None:
    rng = np.random.default_rng(size)
    return {
        "all": None,
        "some": rng.integers(0, 2, size).astype(np.int8),
        "none": np.zeros(size, np.int8),
    }[name]


def element(operand: Any, thread: int) -> int:
    return int(operand[thread]) if isinstance(operand, np.ndarray) else int(operand)


def runs(active: np.ndarray | None, thread: int) -> bool:
    return active is None or bool(active[thread])


# ---- votes of a block


@pytest.mark.parametrize("active", ["all", "some", "none"])
@pytest.mark.parametrize(("name", "of"), [("count", sum), ("and", all), ("or", any)])
def test_votes_of_a_block(name: str, of: Callable[[list[bool]], int], active: str) -> None:
    for threads, blocks in [(64, 1), (40, 1), (1, 1)]:
        for share in (0, 1, 3):
            predicate = np.random.default_rng(threads).integers(0, 4, threads) < share + (
                share == 3
            )
            part = active_of(active, threads)
            wanted = int(
                of([bool(predicate[thread]) for thread in range(threads) if runs(part, thread)])
            )
            found = COLLECT[f"_k_all_syncthreads_{name}"](predicate, part, threads, blocks)
            assert found == wanted


@pytest.mark.parametrize(("name", "of"), [("count", sum), ("and", all), ("or", any)])
def test_votes_of_each_block_of_a_grid(name: str, of: Callable[[list[bool]], int]) -> None:
    threads, blocks = 10, 4
    predicate = np.repeat([0, 1, 2, 3], threads) > np.tile(np.arange(threads) % 3, blocks)
    for part in (None, active_of("some", threads * blocks)):
        got = np.zeros(threads * blocks, np.int32)
        COLLECT[f"_k_all_syncthreads_{name}_each"](got, predicate, part, threads, blocks)
        for block in range(blocks):
            of_block = range(block * threads, (block + 1) * threads)
            assert set(got[of_block.start : of_block.stop]) == {
                int(of([predicate[t] for t in of_block if runs(part, t)]))
            }


# ---- votes of a warp


def vote(name: str, true: int, part: int) -> int:
    match name:
        case "ballot":
            return int(np.uint32(true).astype(np.int32))
        case "all":
            return true == part
        case "any":
            return true != 0
        case _:
            return true in (0, part)


@pytest.mark.parametrize("active", ["all", "some"])
@pytest.mark.parametrize("name", ["ballot", "all", "any", "eq"])
def test_votes_of_a_warp(name: str, active: str) -> None:
    for threads, blocks in SIZES:
        size = threads * blocks
        part, rng = active_of(active, size), np.random.default_rng(threads)
        random = rng.integers(0, 2, size).astype(bool)
        for predicate in (random, np.ones(size, bool), np.zeros(size, bool)):
            for mask in (-1, ALL, 0x0F0F0F0F, rng.integers(0, 1 << 32, size)):
                got = np.zeros(size, np.int32)
                COLLECT[f"_k_all_{name}_sync"](got, mask, predicate, part, threads, blocks)
                wanted = []
                for warp in warps(threads, blocks):
                    takes = sum(1 << lane for lane, thread in enumerate(warp) if runs(part, thread))
                    true = sum(
                        1 << lane
                        for lane, thread in enumerate(warp)
                        if runs(part, thread) and predicate[thread]
                    )
                    wanted += [
                        vote(name, true & element(mask, t) & ALL, takes & element(mask, t) & ALL)
                        for t in warp
                    ]
                assert got.tolist() == wanted


def test_active_mask() -> None:
    for threads, blocks in SIZES:
        for part in (None, active_of("some", threads * blocks)):
            got = np.zeros(threads * blocks, np.uint32)
            COLLECT["_k_all_activemask"](got, part, threads, blocks)
            wanted: list[int] = []
            for warp in warps(threads, blocks):
                wanted += [
                    sum(1 << lane for lane, thread in enumerate(warp) if runs(part, thread))
                ] * len(warp)
            assert got.tolist() == wanted


# ---- matches


def matches(
    value: np.ndarray, mask: Any, part: np.ndarray | None, warp: range, thread: int
) -> tuple[int, int]:
    lanes = [
        lane
        for lane, other in enumerate(warp)
        if runs(part, other) and element(mask, thread) >> lane & 1
    ]
    bits = value[thread].tobytes()
    return sum(1 << lane for lane in lanes if value[warp[lane]].tobytes() == bits), sum(
        1 << lane for lane in lanes
    )


def signed(mask: int) -> int:
    return int(np.uint32(mask).astype(np.int32))


@pytest.mark.parametrize("dtype", ["int64", *whole("bool", "float32")])
def test_matches(dtype: str) -> None:
    for threads, blocks in [(64, 1), (40, 2), (7, 1)]:
        size = threads * blocks
        value = values_of(dtype, size)
        if dtype.startswith("float"):
            value[:4] = [0.0, -0.0, np.nan, np.nan]  # compared by their bits
        for part, mask in (
            (None, -1),
            (active_of("some", size), np.random.default_rng(1).integers(0, 1 << 32, size)),
        ):
            anyone, everyone, agreed = (
                np.zeros(size, np.int32),
                np.zeros(size, np.int32),
                np.zeros(size, bool),
            )
            for values in (value, np.full(size, value[0])):
                COLLECT["_k_all_match_any_sync"](anyone, mask, values, part, threads, blocks)
                COLLECT["_k_all_match_all_sync"](
                    everyone, agreed, mask, values, part, threads, blocks
                )
                for warp in warps(threads, blocks):
                    for thread in warp:
                        same, named = matches(values, mask, part, warp, thread)
                        assert anyone[thread] == signed(same)
                        assert (everyone[thread], agreed[thread]) == (
                            signed(named) if same == named else 0,
                            same == named,
                        )


# ---- shuffles


def source(name: str, lane: int, operand: int) -> int:
    """The lane that a lane reads, by CUDA's rules: of the operand 5 bits count, and no lane reads
    beyond the warp.
    """
    operand &= 31
    other = {"": operand, "_up": lane - operand, "_down": lane + operand, "_xor": lane ^ operand}[
        name
    ]
    return other if 0 <= other < WARP else lane


def shuffled(
    name: str, value: np.ndarray, operand: Any, part: np.ndarray | None, threads: int, blocks: int
) -> np.ndarray:
    taken = np.arange(len(value))
    for warp in warps(threads, blocks):
        for lane, thread in enumerate(warp):
            other = source(name, lane, element(operand, thread))
            # A thread that is not there or does not take part has no value to give.
            if other < len(warp) and runs(part, warp[other]):
                taken[thread] = warp[other]
    return value[taken]


SHUFFLES = ["", "_up", "_down", "_xor"]


@pytest.mark.parametrize("active", ["all", "some"])
@pytest.mark.parametrize("name", SHUFFLES)
def test_shuffles(name: str, active: str) -> None:
    for threads, blocks in SIZES:
        size = threads * blocks
        value, part = values_of("float64", size), active_of(active, size)
        for operand in (*range(41), -1, np.random.default_rng(2).integers(-3, 40, size)):
            got = np.empty_like(value)
            COLLECT[f"_k_all_shfl{name}_sync"](got, -1, value, operand, part, threads, blocks)
            assert got.tobytes() == shuffled(name, value, operand, part, threads, blocks).tobytes()


def padded(value: np.ndarray) -> np.ndarray:
    """With margins that may not be read."""
    margin = np.full(MARGIN, value.dtype.type(77))
    return np.concatenate([margin, value, margin])


@njit
def shuffle_padded(shuffle, got, value, operand, threads):  # type: ignore[no-untyped-def]
    shuffle(got, -1, inner(value), operand, None, threads, 1)


@pytest.mark.parametrize("name", SHUFFLES)
def test_shuffles_at_one_distance_do_the_same(name: str) -> None:
    for threads in (64, 40, 32, 7, 1):
        value = values_of("float64", threads)
        for operand in (*range(41), -1):
            got = np.empty_like(value)
            shuffle_padded(
                COLLECT[f"_k_all_shfl{name}_sync_padded"], got, padded(value), operand, threads
            )
            assert got.tobytes() == shuffled(name, value, operand, None, threads, 1).tobytes()


@pytest.mark.parametrize("dtype", [*FEW, *whole(*(one for one in DTYPES if one not in FEW))])
def test_values_of_every_type_keep_their_bits(dtype: str) -> None:
    value = values_of(dtype, 40)
    got = np.empty_like(value)
    if DTYPES.index(dtype) % 2:
        COLLECT["_k_all_shfl_down_sync"](got, -1, value, 3, None, 40, 1)
        assert got.tobytes() == shuffled("_down", value, 3, None, 40, 1).tobytes()
    else:
        shuffle_padded(COLLECT["_k_all_shfl_xor_sync_padded"], got, padded(value), 4, 40)
        assert got.tobytes() == shuffled("_xor", value, 4, None, 40, 1).tobytes()
