"""Elementwise a·x + y in two ways: gathered into a new array, and written into y in place.

    python examples/saxpy.py --rows 20000000

Every rank gets its rows of x and y. An output with the op "gather" is returned as one array, in row
order. The ranks write an argument named in `inout=` in place, and nothing is returned.
"""

import argparse
import time

import numpy as np
from numba import cuda

import synknumba as synk


@synk.parallel(outputs={"out": synk.output("gather", like="x")})
@cuda.jit
def saxpy(a, x, y, out):
    """Writes a·x + y to out; x, y: float, shape (n,)."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i] = a * x[i] + y[i]


@synk.parallel(inout=("y",))
@cuda.jit
def saxpy_in_place(a, x, y):
    """Adds a·x to y; x, y: float, shape (n,)."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] += a * x[i]


def main() -> None:
    """Runs both versions and compares them with NumPy."""
    parser = argparse.ArgumentParser(description="a·x + y, gathered and in place.")
    parser.add_argument("--rows", type=int, default=5_000_000, help="default: 5,000,000")
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    args = parser.parse_args()

    a = 2.5
    rng = np.random.default_rng(0)
    x = rng.random(args.rows, dtype=np.float32)
    y = rng.random(args.rows, dtype=np.float32)
    start = time.perf_counter()
    expected = a * x + y
    print(
        f"NumPy, serial:          {(time.perf_counter() - start) * 1e3:8.2f} "
        f"ms for {args.rows:,} rows"
    )

    with synk.fork(args.ranks, device=args.device) as world:
        shared_x, shared_y = synk.data(x), synk.data(y)
        saxpy(a, shared_x, shared_y)  # compiles
        where = f"{world.world_size} {world.device} rank{'' if world.world_size == 1 else 's'}"

        start = time.perf_counter()
        out = saxpy(a, shared_x, shared_y)
        print(f"{where}, gathered:   {(time.perf_counter() - start) * 1e3:8.2f} ms")
        # A fused multiply-add rounds once, NumPy twice.
        np.testing.assert_allclose(out, expected, rtol=1e-6)

        saxpy_in_place(a, shared_x, shared_y)
        np.testing.assert_allclose(shared_y, expected, rtol=1e-6)
        shared_y.set_value(y)
        start = time.perf_counter()
        saxpy_in_place(a, shared_x, shared_y)
        print(f"{where}, in place:   {(time.perf_counter() - start) * 1e3:8.2f} ms")
        np.testing.assert_allclose(shared_y, expected, rtol=1e-6)

        saxpy_in_place(a, x, y)  # plain NumPy arrays work too: copied to shared memory and back
        np.testing.assert_allclose(y, expected, rtol=1e-6)
    print("all results equal NumPy's")


if __name__ == "__main__":
    main()
