"""First steps, after chapter 2 of the Synkhronos manual: run a serial function on the rows of a
matrix on all ranks.

    python examples/intro.py
    python examples/intro.py --rows 101 --ranks 4

The rows of x are scattered, y is broadcast, and each rank averages x·y over its own rows. The op
"mean" then weights each rank by its number of rows, so the result equals the serial one even if the
rows do not divide evenly.
"""

import argparse

import numpy as np

import synknumba as synk


@synk.function(outputs="mean", broadcast=("y",))
def mean_product(x, y):
    """Returns the mean of x·y over rows; x: float, shape (n, d); y: float, shape (d,). NumPy on
    CPUs, CuPy on GPUs.
    """
    return x.dot(y).mean(axis=0)


def main() -> None:
    """Compares the parallel function with the serial one."""
    parser = argparse.ArgumentParser(description="A mean over scattered rows.")
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[100, 101, 7], help="default: 100 101 7"
    )
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    args = parser.parse_args()
    rng = np.random.default_rng(0)

    with synk.fork(args.ranks, device=args.device) as world:
        print(world)
        for rows in args.rows:
            x = rng.random((rows, 10))
            y = rng.random(10)
            # the undecorated function, in this process, with NumPy
            expected = mean_product.py_func(x, y)

            # copied once, reused by any number of calls
            x_data, y_data = mean_product.build_inputs(x, y)
            result = mean_product(x_data, y_data)
            # each rank processes its rows in four slices
            sliced = mean_product(x_data, y_data, num_slices=4)
            alone = mean_product.as_serial(x_data, y_data)  # all rows on the root

            np.testing.assert_allclose([result, sliced, alone], expected, rtol=1e-12)
            print(mean_product.plan(x_data, y_data))
            print(f"  parallel {result:.15f}, in slices {sliced:.15f}, serial {expected:.15f}\n")


if __name__ == "__main__":
    main()
