"""Calls with some of the rows: batches are selected first, and then divided over the ranks; after
Synkhronos's fourth demo.

    python examples/synkhronos/batches.py
    python examples/synkhronos/batches.py --rows 1000001 --ranks 3

The data lie in shared memory once. `batch=` names the rows of a call by number, slice, indices or
mask, so minibatches are not copied by the script. An array made with `minibatch=True` has rows for
the batch alone: its row k goes with the batch's k-th.
"""

import argparse
import timeit

import numpy as np

import synknumba as synk


@synk.function(broadcast=("y",), outputs="mean")
def mean_product(x, y):
    """Returns the mean of the rows of x·y; x: float64, shape (n, d); y: float64, shape (d, k)."""
    return synk.matmul(x, y).mean(axis=0)


@synk.function(outputs="sum")
def weighted(x, w):
    """Returns the sum of rows times weights; x: float64, shape (n, d); w: float64, shape (n,)."""
    return (w[:, None] * x).sum(axis=0)


def main() -> None:
    """Compares calls with batches with NumPy's results of the same rows."""
    parser = argparse.ArgumentParser(description="Batches of rows.")
    parser.add_argument("--rows", type=int, default=100_001, help="at least 100 (default: 100,001)")
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    args = parser.parse_args()
    if args.rows < 100:
        parser.error("--rows must be at least 100")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(args.rows, 10)), rng.normal(size=(10, 5))
    batches = {
        "the first k": args.rows // 10,
        "a slice": slice(10, args.rows // 2),
        "every seventh, to the end": slice(3, None, 7),
        "indices, some of them twice": rng.integers(0, args.rows, args.rows // 5),
        "a mask": x[:, 0] > 0.5,
    }

    with synk.fork(args.ranks, device=args.device) as world:
        where = f"{world.world_size} {world.device} rank{'' if world.world_size == 1 else 's'}"
        print(f"{args.rows:,} rows, {len(batches)} batches of them, on {where}")
        data, whole = mean_product.build_inputs(x, y)
        for name, batch in batches.items():
            rows = x[:batch] if isinstance(batch, int) else x[batch]
            expected = mean_product.py_func(rows, y)
            for call in (mean_product, mean_product.as_serial):
                np.testing.assert_allclose(
                    call(data, whole, batch=batch), expected, rtol=1e-9, atol=1e-12
                )
            np.testing.assert_allclose(
                mean_product(data, whole, batch=batch, num_slices=3),
                expected,
                rtol=1e-9,
                atol=1e-12,
            )
            seconds = min(
                timeit.repeat(
                    lambda batch=batch: mean_product(data, whole, batch=batch), number=1, repeat=5
                )
            )
            print(f"  {name:<28}{len(rows):>8,} rows {seconds * 1e3:9.3f} ms")

        chosen = batches["indices, some of them twice"]
        weights = synk.data(rng.random(len(chosen)), minibatch=True)
        expected = weighted.py_func(x[chosen], weights.data)
        np.testing.assert_allclose(
            weighted(data, weights, batch=chosen), expected, rtol=1e-9, atol=1e-9
        )
        try:
            mean_product(data, whole, batch=args.rows + 1)
        except synk.SynkError as error:
            print(f"  refused: {error}")
        else:
            raise AssertionError("a batch of more rows than there are was taken")
    print("all results are NumPy's of the same rows")


if __name__ == "__main__":
    main()
