"""Three reductions of one function, whole, in slices and on one rank; after Synkhronos's first
demo.

    python examples/synkhronos/reductions.py
    python examples/synkhronos/reductions.py --rows 1000001 --ranks 4

The rows of x are divided over the ranks, y goes to each of them. The ops say how the ranks' results
become one: a mean weighted by rows, a sum, a maximum. The function has no other trace of ranks:
`py_func` is the function itself, with NumPy.
"""

import argparse
import timeit

import numpy as np

import synknumba as synk


@synk.function(broadcast=("y",), outputs=("mean", "sum", "max"))
def summaries(x, y):
    """Returns mean, sum and maximum of the rows of x·y; x: float64, shape (n, d); y: float64,
    shape (d, k).
    """
    product = synk.matmul(x, y)
    return product.mean(axis=0), product.sum(axis=0), product.max(axis=0)


def main() -> None:
    """Compares all ways to call the function with NumPy."""
    parser = argparse.ArgumentParser(description="Three reductions of one function.")
    parser.add_argument("--rows", type=int, default=200_001, help="default: 200,001")
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(args.rows, 10)), rng.normal(size=(10, 5))
    expected = summaries.py_func(x, y)

    with synk.fork(args.ranks, device=args.device) as world:
        print(
            f"{args.rows:,} rows on {world.world_size} {world.device} "
            f"rank{'' if world.world_size == 1 else 's'}"
        )
        shared, whole = summaries.build_inputs(x, y)  # copied to shared memory once
        ways = {
            "NumPy arrays, copied": lambda: summaries(x, y),
            "in shared memory": lambda: summaries(shared, whole),
            "in four slices": lambda: summaries(shared, whole, num_slices=4),
            "on one rank": lambda: summaries.as_serial(shared, whole),
            "NumPy": lambda: summaries.py_func(x, y),
        }
        for name, call in ways.items():
            for found, value in zip(call(), expected, strict=True):
                # sums in another order
                np.testing.assert_allclose(found, value, rtol=1e-10, atol=1e-10)
            print(f"  {name:<22}{min(timeit.repeat(call, number=1, repeat=5)) * 1e3:9.3f} ms")
        greatest, mean = summaries(shared, whole, output_subset=[2, 0])  # the sum is not fetched
        np.testing.assert_array_equal(greatest, expected[2])
        np.testing.assert_allclose(mean, expected[0], rtol=1e-10, atol=1e-10)
    print("all results are NumPy's")


if __name__ == "__main__":
    main()
