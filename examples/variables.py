"""Variables on the ranks, updates and collectives, after chapter 3 of the Synkhronos manual.

    python examples/variables.py
    python examples/variables.py --ranks 3

Two ranks have a variable s = [1, 1], and the rows of x = [[1, 1], [2, 2], [3, 3], [4, 4]] are
scattered. The call replaces s on each rank by the sum of x·s over that rank's rows: [3, 3] and [7,
7]. The values stay on their ranks until a collective is
called: reduce leaves their sum on the root, all_reduce on all ranks. Serially, with all rows on one
rank, the result is [10, 10].
"""

import argparse

import numpy as np
from numba import cuda

import synknumba as synk

X = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]])
MANUAL = {  # the manual's output for two ranks
    "call": [[3, 3], [7, 7]],
    "reduce": [[10, 10], [7, 7]],
    "all_reduce": [[10, 10], [10, 10]],
}

s = synk.variable(np.ones(2), name="s")  # before or after fork()


@synk.function(updates={"new": (s, "sum")}, givens={"s": s})
def weigh(x, s, new):
    """Sums x·s over rows. s is the old value; new starts at zero and replaces s when the call
    ends.
    """
    new += (x * s).sum(axis=0)


@synk.parallel(updates={"new": (s, "sum")}, givens={"s": s})
@cuda.jit
def weigh_by_kernel(x, s, new):
    """Sums x·s over rows in a kernel, one thread per row."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        for j in range(x.shape[1]):
            cuda.atomic.add(new, j, x[i, j] * s[j])


@synk.function(outputs="gather", rows=("v",))
def pick(v):
    """Returns the selected rows; gathered from all ranks."""
    return v


def show(what: str, world: synk.World) -> None:
    """Prints s on every rank and compares it with the manual."""
    gathered = synk.gather(s, nd_up=1)  # one row per rank
    print(f"  {what:<12}{gathered.tolist()}")
    if world.world_size == len(MANUAL[what]):
        np.testing.assert_array_equal(gathered, MANUAL[what])


def main() -> None:
    """Runs the chapter's steps with a Python function, then with a kernel."""
    parser = argparse.ArgumentParser(description="Variables, updates and collectives.")
    parser.add_argument(
        "--ranks", type=int, default=2, help="number of ranks (default: 2, as in the manual)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    args = parser.parse_args()

    with synk.fork(args.ranks, device=args.device) as world:
        for f in (weigh, weigh_by_kernel):
            print(f"{f.name}, {world.world_size} {world.device} ranks")
            synk.broadcast(s, np.ones(2))
            f.as_serial(X)
            serial = s.get_value()
            np.testing.assert_array_equal(serial, [10, 10])

            synk.broadcast(s, np.ones(2))
            f(X)
            show("call", world)
            synk.reduce(s, "sum")
            show("reduce", world)
            np.testing.assert_array_equal(s.get_value(), serial)

            synk.broadcast(s, np.ones(2))
            f(X, num_slices=2)  # each slice sees the old s, so the result is unchanged
            synk.all_reduce(s, "sum")
            show("all_reduce", world)
            np.testing.assert_array_equal(synk.gather(s), [serial] * world.world_size)

        print("rows of a variable")
        rows = synk.scatter(synk.variable(np.zeros(1)), np.arange(6.0 * world.world_size))
        print(
            "  scattered   "
            f"{[synk.get_value(rows, rank).tolist() for rank in range(world.world_size)]}"
        )
        chosen = pick(rows, local_batch=[0, -1])  # the first and last row of each rank
        print(f"  local_batch {chosen.tolist()}")
        firsts = 6.0 * np.arange(world.world_size)
        np.testing.assert_array_equal(chosen, np.stack([firsts, firsts + 5], axis=1).ravel())
    print(
        "all results are the manual's"
        if args.ranks == 2
        else "all results agree with the serial ones"
    )


if __name__ == "__main__":
    main()
