"""The first steps, after chapter 2 of the Synkhronos manual: a serial function, run on the rows of a matrix by all ranks.

    python examples/intro.py
    python examples/intro.py --rows 101 --ranks 4

The rows of x are scattered, y goes to every rank whole, and each rank averages x·y over its own rows. The op "mean" then weighs
every rank by its rows, so the result equals the serial one for any number of rows, also where they do not divide evenly.
"""

import argparse

import numpy as np

import synknumba as synk


@synk.function(outputs="mean", broadcast=("y",))
def mean_product(x, y):
    """The mean over the rows of x·y; x: float, shape (n, d); y: float, shape (d,). NumPy here, CuPy on a GPU."""
    return x.dot(y).mean(axis=0)


def main() -> None:
    """Compares the parallel function with the plain one."""
    parser = argparse.ArgumentParser(description="A mean over scattered rows.")
    parser.add_argument("--rows", type=int, nargs="+", default=[100, 101, 7], help="default: 100 101 7")
    parser.add_argument("--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    args = parser.parse_args()
    rng = np.random.default_rng(0)

    with synk.fork(args.ranks, device=args.device) as world:
        print(world)
        for rows in args.rows:
            x = rng.random((rows, 10))
            y = rng.random(10)
            expected = mean_product.py_func(x, y)  # the plain function, here, with NumPy

            x_data, y_data = mean_product.build_inputs(x, y)  # once; then any number of calls
            result = mean_product(x_data, y_data)
            sliced = mean_product(x_data, y_data, num_slices=4)  # each rank takes its rows in four parts
            alone = mean_product.as_serial(x_data, y_data)  # the root, with all the rows

            np.testing.assert_allclose([result, sliced, alone], expected, rtol=1e-12)
            print(mean_product.plan(x_data, y_data))
            print(f"  parallel {result:.15f}, in slices {sliced:.15f}, serial {expected:.15f}\n")


if __name__ == "__main__":
    main()
