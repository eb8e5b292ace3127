"""Numba's own way: a hand-written kernel with the generator of numba.cuda.random.
Started by `_gpu_call_peers`.

Every thread has a state of xoroshiro128+, walks over the samples in strides of the grid, and the
sums of a block's threads are added in smem. The states stay on the GPU, so that calls go on where
the last one has ended.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from _gpu_call_peers import Row, Settings, print_rows, rows_of, time_steps
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


class Part:
    """A device with its states and sums; `sample` is a device function."""

    def __init__(self, number: int, blocks: int, sample: Any) -> None:
        self.device, self.blocks = cuda.gpus[number], blocks
        self.kernel = kernel_of(sample)
        with self.device:
            self.states = create_xoroshiro128p_states(blocks * THREADS, seed=1 + number)
            self.sums = cuda.device_array(blocks, np.float64)

    def launch(self, samples: int) -> None:
        with self.device:
            self.kernel[self.blocks, THREADS](self.states, samples, self.sums)

    def total(self) -> float:
        with self.device:
            return float(self.sums.copy_to_host().sum())


def numba_rows(settings: Settings) -> Iterator[Row]:
    """One process, which launches on every GPU, then waits for all."""
    for ranks in settings.ranks:
        most = max(settings.rows)
        blocks = min(BLOCKS, -(-most // (THREADS * ranks)))
        for dtype in DRAWS:
            sample = sample_of(settings.work, dtype)
            parts = [Part(rank, blocks, sample) for rank in range(ranks)]

            def mean(samples: int, parts: list[Part] = parts) -> float:
                for rank, part in enumerate(parts):
                    share = rows_of(rank, len(parts), samples)
                    part.launch(share.stop - share.start)
                return sum(part.total() for part in parts) / samples

            samples = affordable(mean, min(most, BLOCKS * THREADS * ranks), most, settings.seconds)

            def step(mean: Callable[[int], float] = mean, samples: int = samples) -> None:
                check(settings.work, mean(samples), samples)

            yield Row(
                "numba-cuda",
                f"kernel, xoroshiro128p, {dtype}",
                ranks,
                samples,
                time_steps(step, settings),
            )


if __name__ == "__main__":
    print_rows(numba_rows)
