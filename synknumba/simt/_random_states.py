"""States of the generator xoroshiro128p, for the functions of `numba.cuda.random`, without a
GPU.
"""

from typing import Any

import numpy as np

from synknumba._errors import ArgumentError
from synknumba.simt._source.numba_cuda import from_numba_cuda


def random_states(n: int, seed: int, subsequence_start: int = 0) -> np.ndarray[Any, Any]:
    """Returns the states of
    `numba.cuda.random.create_xoroshiro128p_states(n, seed, subsequence_start)`, bit for bit.

    Args:
        n: number of states, one for each thread.
        seed: any 64-bit integer.
        subsequence_start: number of subsequences, of 2**64 numbers each, to skip; each takes a
            microsecond.

    Returns:
        Host array of shape (n,) and the dtype `numba.cuda.random.xoroshiro128p_dtype`; a kernel
        updates it.
    """
    if not isinstance(n, (int, np.integer)) or n < 0:
        raise ArgumentError(
            f"n of simt.random_states must be a number of states, 0 or more, got {n!r}"
        )
    if not isinstance(seed, (int, np.integer)) or not -(1 << 63) <= seed < 1 << 64:
        raise ArgumentError(f"seed of simt.random_states must be a 64-bit integer, got {seed!r}")
    if not isinstance(subsequence_start, (int, np.integer)) or not 0 <= subsequence_start < 1 << 63:
        raise ArgumentError(
            f"subsequence_start of simt.random_states must be a number, 0 or more, "
            f"got {subsequence_start!r}"
        )
    random = from_numba_cuda("random", "simt.random_states")
    states = np.empty(n, random.xoroshiro128p_dtype)
    # Numba passes an int as an int64; the function casts it back
    signed = (int(seed) + (1 << 63)) % (1 << 64) - (1 << 63)
    random.init_xoroshiro128p_states_cpu(states, signed, int(subsequence_start))
    return states
