"""Calls with some of the rows that each rank holds; after Synkhronos's fifth demo.

    python examples/synkhronos/local_batches.py
    python examples/synkhronos/local_batches.py --rows 1000000 --ranks 3

The rows of a variable were scattered before, and stay where they are. `local_batch=` selects among
each rank's own: the same selection on all ranks, or a list with one for each. Compare
examples/synkhronos/batches.py, where rows are selected before they are divided.
"""

import argparse
import timeit

import numpy as np

import synknumba as synk

x = synk.variable(np.zeros((1, 10)), name="x")
y = synk.variable(np.zeros((10, 5)), name="y")


@synk.function(outputs="sum", givens={"x": x, "y": y}, sliceable=("x",))
def total_product(x, y):
    """Returns the sum of the rows of x·y; x: float64, shape (n, 10), rows of this rank; y:
    float64, shape (10, 5).
    """
    return synk.matmul(x, y).sum(axis=0)


@synk.function(outputs="mean", givens={"x": x, "y": y}, sliceable=("x",))
def mean_product(x, y):
    """Returns the mean of the rows of x·y, as `total_product`."""
    return synk.matmul(x, y).mean(axis=0)


def main() -> None:
    """Compares calls with local batches with NumPy's results of the same rows."""
    parser = argparse.ArgumentParser(description="Batches of the rows of each rank.")
    parser.add_argument(
        "--rows", type=int, default=20_000, help="of each rank, at least 100 (default: 20,000)"
    )
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    args = parser.parse_args()
    if args.rows < 100:
        parser.error("--rows must be at least 100")
    n, rng = args.rows, np.random.default_rng(0)

    with synk.fork(args.ranks, device=args.device) as world:
        ranks = world.world_size
        print(f"{ranks} {world.device} rank{'' if ranks == 1 else 's'} with {n:,} rows each")
        parts, matrix = rng.normal(size=(ranks, n, 10)), rng.normal(size=(10, 5))
        synk.scatter(x, parts.reshape(-1, 10))
        synk.broadcast(y, matrix)
        some = [rng.integers(0, n, n // 4 + rank) for rank in range(ranks)]  # of different lengths
        selections = {
            "all rows": None,
            "the same slice": slice(n // 2, n),
            "the same indices": some[0],
            "a slice for each rank": [slice(rank, n // 3 + 2 * rank) for rank in range(ranks)],
            "indices for each rank": some,
        }
        for name, chosen in selections.items():
            own = (
                chosen
                if isinstance(chosen, list)
                else [slice(None) if chosen is None else chosen] * ranks
            )
            rows = np.concatenate([part[one] for part, one in zip(parts, own, strict=True)])
            product = rows @ matrix
            for slices in (1, 4):
                total = total_product(local_batch=chosen, num_slices=slices)
                mean = mean_product(local_batch=chosen, num_slices=slices)
                np.testing.assert_allclose(total, product.sum(axis=0), rtol=1e-9, atol=1e-9)
                np.testing.assert_allclose(mean, product.mean(axis=0), rtol=1e-9, atol=1e-12)
            seconds = min(
                timeit.repeat(
                    lambda chosen=chosen: total_product(local_batch=chosen), number=1, repeat=5
                )
            )
            print(f"  {name:<22}{len(rows):>9,} rows {seconds * 1e3:9.3f} ms")
    print("all results are NumPy's of the same rows")


if __name__ == "__main__":
    main()
