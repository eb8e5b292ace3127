"""Arrays in shared memory that grow, shrink and change between calls; after Synkhronos's second
demo.

    python examples/synkhronos/data.py
    python examples/synkhronos/data.py --ranks 3

`synk.data` makes an array that this process and all ranks see. It is read and written like a NumPy
array, and calls pass it without a copy. Its dtype and number of axes are fixed, its shape is not:
new values that fit its memory are stored there, and others get new memory. After each change the
ranks are asked for the sums of its columns.
"""

import argparse
import timeit

import numpy as np

import synknumba as synk


@synk.function(outputs="sum")
def columns(x):
    """Returns the sums of the columns of x: float32, shape (n, d)."""
    return x.sum(axis=0, dtype="float64")


def check(x: synk.Data, expected: np.ndarray, what: str) -> None:
    """Prints the array's shape and memory, and checks that this process and the ranks see what
    is expected.
    """
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_allclose(
        columns(x), expected.sum(axis=0, dtype="float64"), rtol=1e-12, atol=1e-12
    )
    print(f"  {what:<37}shape {x.shape!s:<12} {x.size:>6,} of {x.alloc_size:>6,} items")


def main() -> None:
    """Changes an array, and looks at it from the ranks."""
    parser = argparse.ArgumentParser(description="Arrays in shared memory.")
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    args = parser.parse_args()
    rng = np.random.default_rng(0)

    with synk.fork(args.ranks, device=args.device) as world:
        print(
            f"an array of float32, seen by {world.world_size} {world.device} "
            f"rank{'' if world.world_size == 1 else 's'}"
        )
        small = rng.normal(size=(5, 4)).astype("float32")
        x = synk.data(small, name="x")  # before or after fork()
        check(x, small, "made from an array")
        x[1] = 0
        x[:, 2] *= 2
        small[1] = 0
        small[:, 2] *= 2
        check(x, small, "written to by index")

        large = rng.normal(size=(2000, 10)).astype("float32")
        x.set_value(large, oversize=1.1)
        check(x, large, "set to more rows, with some to spare")
        larger = rng.normal(size=(2100, 10)).astype("float32")
        x.set_value(larger)
        check(x, larger, "set to what fits")
        assert x.alloc_size == 22_000
        x.set_length(2150)
        check(
            x,
            np.concatenate([larger, np.zeros((50, 10), "float32")]),
            "longer: rows are kept, new are 0",
        )
        x.set_length(2000)
        x[:] = large
        check(x, large, "shorter, and filled")

        x.free_memory()
        x.set_value(large[:100])
        check(x, large[:100], "set after its memory was freed")
        assert x.alloc_size == 1000
        try:
            x.set_value(large[:100].astype("float64"))
        except synk.DataError as error:
            print(f"  refused: {error}")
        else:
            raise AssertionError("float64 was stored as float32 unasked")
        check(x, large[:100], "as before what was refused")
        doubles = rng.normal(size=(100, 10))
        x.set_value(doubles, force_cast=True)
        check(x, doubles.astype("float32"), "set to numbers that are rounded")

        copied, x = np.tile(large, (100, 1)), synk.data(np.tile(large, (100, 1)))
        for name, rows in (("a NumPy array, copied", copied), ("in shared memory", x)):
            seconds = min(timeit.repeat(lambda rows=rows: columns(rows), number=1, repeat=5))
            print(f"  a call with {x.nbytes / 1e6:.0f} MB, {name:<24}{seconds * 1e3:8.3f} ms")
    print("the ranks saw every change")


if __name__ == "__main__":
    main()
