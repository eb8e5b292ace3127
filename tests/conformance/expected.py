"""What NumPy says, and the rules of who gets which rows as they are published."""

from collections.abc import Sequence

import numpy as np

# rows, parts, rows of each: from the manual of Synkhronos
SIZES = (
    (5, 2, [2, 3]),
    (5, 3, [1, 2, 2]),
    (10, 4, [2, 3, 2, 3]),
)


def shard_sizes(n: int, parts: int) -> list[int]:
    """Rows of each part: [r·n // W, (r + 1)·n // W)."""
    return [(r + 1) * n // parts - r * n // parts for r in range(parts)]


def shards(array: np.ndarray, parts: int) -> list[np.ndarray]:
    """The rows of each part."""
    return np.split(array, np.cumsum(shard_sizes(len(array), parts))[:-1])


def lengths(world_size: int) -> list[int]:
    """Numbers of rows at which something may go wrong: around the world size, and some that
    nothing divides.
    """
    return sorted({1, max(1, world_size - 1), world_size, world_size + 1, 7, 64, 1001})


def selection(batch: object) -> object:
    """The NumPy index of a batch: the same, but an int is the first rows."""
    if batch is None:
        return slice(None)
    if isinstance(batch, int | np.integer):
        return slice(0, int(batch))
    return list(batch) if isinstance(batch, range | tuple) else batch


def values(n: int, dtype: object = "float64", seed: int = 0) -> np.ndarray:
    """Rows of a dtype whose sums and products of some thousand stay exact or small."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(n) < 0.5
    if kind in "iu":
        return rng.choice(np.array([1, 2, 3], dtype), n)
    if kind == "c":
        return (rng.uniform(0.9, 1.1, n) + 0.1j * rng.normal(size=n)).astype(dtype)
    return rng.uniform(0.9, 1.1, n).astype(dtype)


def batches(n: int) -> Sequence[object]:
    """Every form of batch that `n` rows (at least 9) allow."""
    mask = np.arange(n) % 3 == 1
    return (
        None,
        1,
        n,
        np.int32(5),
        slice(2, 7),
        slice(None, None, 2),
        slice(None, None, -1),
        slice(-2, 1, -3),
        slice(-4, None),
        slice(0, 10 * n),
        [0],
        [3, 1, 2],
        [-1, 0, -n, n - 1],
        [4, 4, 4, 4, 0],
        (1, 5),
        list(range(n)) * 2,
        np.array([1, 8, 3], np.int8),
        np.array([1, 8, 3], np.uint16),
        np.array([-1, 8, 3], np.int32),
        np.array([7, 6], np.uint64),
        np.arange(n)[::-2],
        mask,
        mask.tolist(),
        range(1, n, 3),
        range(n - 1, -1, -2),
    )
