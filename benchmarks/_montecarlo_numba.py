"""Numba's own way on one GPU: a hand-written kernel with the generator of numba.cuda.random.
Started by `_gpu_call_peers`.

Every thread has a state of xoroshiro128+, walks over the samples in strides of the grid, and the
sums of a block's threads are added in smem. The states stay on the GPU, so that calls go on where
the last one has ended.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from _gpu_call_peers import Row, Settings, print_rows, time_steps
from _montecarlo import DISCOUNT, DRIFT, SPOT, SPREAD, STRIKE, affordable, check
from numba import cuda, float64
from numba.cuda.random import (
    create_xoroshiro128p_states,
    xoroshiro128p_normal_float32,
    xoroshiro128p_normal_float64,
    xoroshiro128p_uniform_float32,
    xoroshiro128p_uniform_float64,
)

THREADS = 256  # of a block
BLOCKS = 8 * 132  # all that an H200 holds at once
DRAWS = {
    "float64": (np.float64, xoroshiro128p_uniform_float64, xoroshiro128p_normal_float64),
    "float32": (np.float32, xoroshiro128p_uniform_float32, xoroshiro128p_normal_float32),
}


def sample_of(work: str, dtype: str) -> Any:
    """A device function that draws one sample from the state with that number."""
    real, uniform, normal = DRAWS[dtype]
    one, four, zero = real(1), real(4), real(0)
    spot, strike, drift, spread, discount = (
        real(number) for number in (SPOT, STRIKE, DRIFT, SPREAD, DISCOUNT)
    )

    def inside(states, thread):
        x, y = uniform(states, thread), uniform(states, thread)
        return four if x * x + y * y < one else zero

    def payoff(states, thread):
        return discount * max(
            spot * math.exp(drift + spread * normal(states, thread)) - strike, zero
        )

    return cuda.jit(device=True)(inside if work == "pi" else payoff)


def kernel_of(sample: Any) -> Any:
    """Adds up the samples: a sum for each block."""

    @cuda.jit
    def add_up(states, samples, sums):
        of_threads = cuda.shared.array(THREADS, float64)
        thread, lane = cuda.grid(1), cuda.threadIdx.x
        own = 0.0
        for _ in range(thread, samples, cuda.gridsize(1)):
            own += sample(states, thread)
        of_threads[lane] = own
        half = THREADS // 2
        while half > 0:
            cuda.syncthreads()
            if lane < half:
                of_threads[lane] += of_threads[lane + half]
            half //= 2
        if lane == 0:
            sums[cuda.blockIdx.x] = of_threads[0]

    return add_up


def numba_rows(settings: Settings) -> Iterator[Row]:
    """One GPU, for a program with several would have to be another one."""
    most = max(settings.rows)
    blocks = min(BLOCKS, -(-most // THREADS))
    for dtype in DRAWS:
        kernel = kernel_of(sample_of(settings.work, dtype))
        states = create_xoroshiro128p_states(blocks * THREADS, seed=1)
        sums = cuda.device_array(blocks, np.float64)

        def mean(
            samples: int, kernel: Any = kernel, states: Any = states, sums: Any = sums
        ) -> float:
            kernel[blocks, THREADS](states, samples, sums)
            return float(sums.copy_to_host().sum()) / samples

        samples = affordable(mean, min(most, BLOCKS * THREADS), most, settings.seconds)

        def step(mean: Callable[[int], float] = mean, samples: int = samples) -> None:
            check(settings.work, mean(samples), samples)

        yield Row(
            "numba-cuda", f"kernel, xoroshiro128p, {dtype}", 1, samples, time_steps(step, settings)
        )


if __name__ == "__main__":
    print_rows(numba_rows)
