"""π from random points: the fraction of the unit square inside the unit circle is π/4.

    python examples/pi.py
    python examples/pi.py --points 1000000000 --seed 7

No array is passed: `synk.arange(n)` gives every rank its part of the indices 0 … n − 1 and uses no
memory. Point i consists of numbers 2i and 2i + 1 of the SplitMix64 sequence, which supports random
access. Any number of ranks, on GPUs or CPU cores, thus draws the same points and gets exactly the
same count.

SplitMix64: Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014.
"""

import argparse
import math
import time

import numpy as np
from numba import cuda

import synknumba as synk

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
SHIFT_1, SHIFT_2, SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
TO_53_BITS = np.uint64(11)
UNIT = 2.0**-53

POINTS_CHECKED = 1_000_000  # quick to draw with NumPy


@cuda.jit(device=True)
def uniform(seed, k):
    """Returns number k of the sequence, in [0, 1)."""
    z = seed + (k + np.uint64(1)) * GOLDEN
    z = (z ^ (z >> SHIFT_1)) * MIX_1
    z = (z ^ (z >> SHIFT_2)) * MIX_2
    z = z ^ (z >> SHIFT_3)
    return (z >> TO_53_BITS) * UNIT


@synk.parallel(grid=1024, outputs={"inside": synk.output("sum", shape=(), dtype="int64")})
@cuda.jit
def count_inside(span, seed, inside):
    """Counts the points inside the circle, for indices in `span`."""
    hits = 0
    for i in range(span.start + cuda.grid(1), span.stop, cuda.gridsize(1)):
        k = np.uint64(2) * np.uint64(i)
        x = uniform(seed, k)
        y = uniform(seed, k + np.uint64(1))
        if x * x + y * y < 1.0:
            hits += 1
    cuda.atomic.add(inside, 0, hits)


def count_with_numpy(n: int, seed: np.uint64) -> int:
    """Returns the count for the first n points, computed with NumPy."""
    z = seed + np.arange(1, 2 * n + 1, dtype=np.uint64) * GOLDEN
    z = (z ^ (z >> SHIFT_1)) * MIX_1
    z = (z ^ (z >> SHIFT_2)) * MIX_2
    z = z ^ (z >> SHIFT_3)
    x, y = ((z >> TO_53_BITS) * UNIT).reshape(n, 2).T
    return int(np.count_nonzero(x * x + y * y < 1.0))


def main() -> None:
    """Estimates π and compares with the exact value."""
    parser = argparse.ArgumentParser(description="π from random points.")
    parser.add_argument("--points", type=int, default=100_000_000, help="default: 100,000,000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    args = parser.parse_args()
    n, seed = args.points, np.uint64(args.seed)

    with synk.fork(args.ranks, device=args.device) as world:
        checked = min(n, POINTS_CHECKED)
        found, expected = count_inside(synk.arange(checked), seed), count_with_numpy(checked, seed)
        assert found == expected, f"{found} of the first {checked} points, NumPy counts {expected}"

        start = time.perf_counter()
        estimate = 4.0 * count_inside(synk.arange(n), seed) / n
        seconds = time.perf_counter() - start

        # standard deviation of 4 × a binomial proportion, p = π/4
        sigma = math.sqrt(math.pi * (4.0 - math.pi) / n)
        deviation = (estimate - math.pi) / sigma
        plural = "" if world.world_size == 1 else "s"
        print(f"{n:,} points on {world.world_size} {world.device} rank{plural} in {seconds:.3f} s")
        print(
            f"  pi = {estimate:.8f} ± {sigma:.8f}, which is {deviation:+.2f} standard "
            f"deviations from {math.pi:.8f}"
        )
        print(f"  of the first {checked:,} points {found:,} lie within the circle, as with NumPy")
        assert abs(deviation) < 5.0, "the estimate is more than five standard deviations off"


if __name__ == "__main__":
    main()
