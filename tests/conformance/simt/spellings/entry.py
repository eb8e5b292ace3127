"""How an entry of the spellings is written, and the registry of all."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

# An entry takes `cuda.jit`, or what stands in its place, and returns pairs of what its kernels
# wrote and what they should.
Entry = Callable[[Any], Iterable[tuple[Any, Any]]]

ENTRIES: dict[str, Entry] = {}
NOT_SIMULATED: dict[str, str] = {}  # the reason why Numba's simulator cannot run an entry

X = np.linspace(-2.0, 3.0, 50)
N = X.size
SCALE = 2.5
OFFSETS = (1, 2, 3)


def spelling(function: Entry | None = None, *, simulator: str = "") -> Any:
    """Registers an entry; `simulator` is the reason why Numba's simulator cannot run it."""
    if function is None:
        return lambda decorated: spelling(decorated, simulator=simulator)
    known = ENTRIES.get(function.__name__)
    # pytest may import a file twice
    if known is not None and known.__code__.co_filename != function.__code__.co_filename:
        raise ValueError(f"two entries are called {function.__name__}")
    ENTRIES[function.__name__] = function
    if simulator:
        NOT_SIMULATED[function.__name__] = simulator
    return function


def zeros(dtype: Any = np.float64, n: int = N) -> np.ndarray:
    """The array that a kernel writes."""
    return np.zeros(n, dtype)
