"""Variables that stay on the ranks: scattered rows, replicas, and collectives over them; after
Synkhronos's third demo.

    python examples/synkhronos/shared_variables.py
    python examples/synkhronos/shared_variables.py --rows 1000003 --ranks 3

The rows of a are divided over the ranks, b is a replica on each. Calls over them send nothing but
their result. See examples/variables.py for functions that change variables.
"""

import argparse
import timeit

import numpy as np

import synknumba as synk

# before or after fork(); the same on all ranks until it is scattered
a = synk.variable(np.ones((100, 4)), name="a")
b = synk.variable(np.zeros((4, 5)), name="b")


@synk.function(outputs="mean", sliceable=("a",))
def mean_product(a, b):
    """Returns the mean of the rows of a·b; a: float64, shape (n, 4), this rank's own rows; b:
    float64, shape (4, 5).
    """
    return synk.matmul(a, b).mean(axis=0)


def main() -> None:
    """Moves values between the ranks, and compares with NumPy."""
    parser = argparse.ArgumentParser(description="Variables on the ranks, and collectives.")
    parser.add_argument(
        "--rows", type=int, default=100_003, help="of a, at least one per rank (default: 100,003)"
    )
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    rows, matrix = rng.normal(size=(args.rows, 4)), rng.normal(size=(4, 5))

    with synk.fork(args.ranks, device=args.device) as world:
        ranks = world.world_size
        print(
            f"{ranks} {world.device} rank{'' if ranks == 1 else 's'}, "
            f"collectives by {world.transport}"
        )
        print(f"  rows of a as a replica: {synk.get_lengths(a)}")

        synk.scatter(a, rows)
        synk.broadcast(b, matrix)
        # rows need not divide evenly
        edges = [args.rows * rank // ranks for rank in range(ranks + 1)]
        assert synk.get_lengths(a) == np.diff(edges).tolist()
        np.testing.assert_array_equal(synk.gather(a), rows)  # joined along the first axis
        # one after the other on a new axis
        np.testing.assert_array_equal(synk.gather(b), np.stack([matrix] * ranks))
        np.testing.assert_array_equal(synk.get_value(ranks - 1, a), rows[edges[-2] :])
        print(f"  rows of a scattered:    {synk.get_lengths(a)}")

        expected = (rows @ matrix).mean(axis=0)
        ways = {
            "on the ranks": lambda: mean_product(a, b),
            "in two slices": lambda: mean_product(a, b, num_slices=2),
            "NumPy": lambda: (rows @ matrix).mean(axis=0),
        }
        for name, call in ways.items():
            np.testing.assert_allclose(call(), expected, rtol=1e-9, atol=1e-12)
            print(
                "  mean of a·b, "
                f"{name:<14}{min(timeit.repeat(call, number=1, repeat=5)) * 1e3:9.3f} ms"
            )

        each = rng.normal(size=(ranks, 3))  # a variable that no function uses
        c = synk.variable(np.zeros(3), name="c")
        for rank in range(ranks):
            synk.set_value(rank, c, each[rank])
        synk.all_reduce(c, "mean")
        np.testing.assert_allclose(
            synk.gather(c), np.stack([each.mean(axis=0)] * ranks), rtol=1e-12
        )
        synk.set_value(ranks - 1, c, each[-1])  # one rank's value again
        np.testing.assert_array_equal(synk.get_value(ranks - 1, c), each[-1])
        print(f"  after the mean, and one rank reset: {synk.gather(c).round(2).tolist()}")

        synk.all_gather(a)
        assert synk.get_lengths(a) == [args.rows] * ranks
        np.testing.assert_array_equal(a.get_value(), rows)
        print(f"  rows of a on every rank:{synk.get_lengths(a)}")
    print("all values are NumPy's")


if __name__ == "__main__":
    main()
