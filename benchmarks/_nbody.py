"""The bodies of nbody.py, what is right, and the limit of a card; imports nothing but NumPy."""

from typing import Any

import numpy as np

SOFTENING = 0.1
# of a float32 pair: 3 differences, 6 fused multiply-adds and 3 products; its square root goes to
# another unit
INSTRUCTIONS = 12
LANES = 128  # float32 units of a multiprocessor, since compute capability 8.6 and in 9.0
CHECKED = 64  # targets that are compared with NumPy
CLOSE = {"float32": 2e-6, "float64": 1e-12}


def bodies_of(count: int, dtype: str) -> tuple[Any, Any]:
    """Positions, shape (count, 3), and masses."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 3)).astype(dtype), rng.random(count).astype(dtype)


def pairs_a_second() -> float:
    """Of a card whose float32 units start an instruction in every cycle, at its highest clock."""
    import cupy

    attributes = cupy.cuda.Device().attributes
    cycles = attributes["MultiProcessorCount"] * attributes["ClockRate"] * 1e3
    return cycles * LANES / INSTRUCTIONS


def check(what: str, got: Any, places: Any, masses: Any) -> None:
    """Ends the benchmark where accelerations are wrong; got: shape (n, 3)."""
    some = np.linspace(0, len(places) - 1, CHECKED).astype(int)
    d = places.astype(np.float64)[None] - places.astype(np.float64)[some, None]
    square = (d * d).sum(axis=2) + SOFTENING**2
    wanted = (masses[None, :, None] * d / square[:, :, None] ** 1.5).sum(axis=1)
    off = np.abs(got[some] - wanted).max() / np.abs(wanted).max()
    assert off < CLOSE[str(places.dtype)], f"{what}: relative error {off}"
