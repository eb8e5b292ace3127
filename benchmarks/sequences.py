"""What an iteration of a sequence costs, beside single calls of the same functions, and beside mpi4py with njit.

python benchmarks/sequences.py
python benchmarks/sequences.py --ranks 2 4 --json benchmarks/results/cpu-2core-sequences.json

Rows, on 100 float64 for each rank: an empty kernel; a Python function that does nothing; a kernel, an all_reduce, a kernel and
the sum of its results; the same with every iteration judged by until=; and one round of a sequence with an empty kernel, beside
one call of that kernel. Microseconds an iteration; the minimum counts where other programs share the cores.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from _common import Timing, arguments, print_table, save, time_in_turns
from call_overhead import mpiexec
from numba import cuda

import synknumba as synk

COUNT = 100  # elements
TIMES = 2000  # iterations of a sequence; long beside a round
CALLS = 50  # single calls in one measurement
PEER = Path(__file__).with_name("_sequences_peer.py")


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; times of one iteration in microseconds."""

    library: str
    what: str
    ranks: int
    timing: Timing


@synk.parallel(grid=1, block=1)
@cuda.jit
def empty(x):
    pass


@synk.parallel(grid=1, block=1)
@cuda.jit
def halve(x):
    for i in range(x.shape[0]):
        x[i] = 0.5 * x[i] + 1.0


@synk.parallel(grid=1, block=1, outputs={"t": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def total(x, t):
    for i in range(x.shape[0]):
        t[0] += x[i]


@synk.function
def nothing(x):
    pass


def step(x):
    """An iteration, which brings all elements closer to 2."""
    halve(x)
    synk.all_reduce(x, "avg")
    return total(x)


@synk.sequence
def empties(x):
    empty(x)


@synk.sequence
def functions(x):
    nothing(x)


steps = synk.sequence(step)


def per_iteration(timing: Timing, iterations: int) -> Timing:
    """The times of one iteration."""
    return Timing(timing.median / iterations, timing.p99 / iterations, timing.minimum / iterations, timing.calls)


def repeated(call: Callable[[], object]) -> Callable[[], None]:
    """The call, CALLS times."""

    def calls() -> None:
        for _ in range(CALLS):
            call()

    return calls


def measure(ranks: int, seconds: float) -> Iterator[Result]:
    """Sequences beside single calls."""
    with synk.fork(ranks, device="cpu"):
        x = synk.variable(np.zeros(COUNT))
        rows: list[tuple[str, Callable[[], object], int, Callable[[], object]]] = [
            ("empty kernel", lambda: empties(x, times=TIMES), TIMES, lambda: empty(x)),
            ("Python function", lambda: functions(x, times=TIMES), TIMES, lambda: nothing(x)),
            ("kernel, all_reduce, kernel, sum", lambda: steps(x, times=TIMES), TIMES, lambda: step(x)),
            ("the same, until=", lambda: steps(x, times=CALLS, until=lambda t: t < 0), CALLS, lambda: step(x)),
            ("one round", repeated(lambda: empties(x)), CALLS, lambda: empty(x)),
        ]
        for what, sequence, iterations, single in rows:
            ours, calls = time_in_turns([sequence, repeated(single)], seconds)
            yield Result("synknumba: sequence", what, ranks, per_iteration(ours, iterations))
            yield Result("synknumba: single calls", what, ranks, per_iteration(calls, CALLS))
        assert np.isclose(steps(x, times=100), 2.0 * COUNT * ranks)  # x = x / 2 + 1


def measure_peer(ranks: int, seconds: float) -> Iterator[Result]:
    """mpi4py, whose ranks run compiled loops and its collectives by themselves, without a script."""
    if not (find_spec("mpi4py") and mpiexec()):
        print("mpi4py is not installed, or has no mpiexec: left out", file=sys.stderr)
        return
    command = [str(mpiexec()), "-n", str(ranks), sys.executable, str(PEER), str(seconds), str(COUNT), str(TIMES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"mpi4py left out: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return
    for what, timing in json.loads(done.stdout).items():
        yield Result("mpi4py + njit", what, ranks, Timing(**timing))


def main() -> None:
    given = arguments(__doc__)
    given.add_argument("--no-peers", action="store_true")
    options = given.parse_args()
    if options.device != "cpu":
        given.error("sequences run as tables on cores only")
    results: list[Result] = []
    for ranks in options.ranks or [2]:
        results += measure(ranks, options.seconds)
        if not options.no_peers:
            results += measure_peer(ranks, options.seconds)
    least = {(one.what, one.ranks): one.timing.minimum for one in results if one.library == "synknumba: sequence"}
    rows = [
        (
            one.library,
            one.what,
            str(one.ranks),
            f"{one.timing.median:.3f}",
            f"{one.timing.minimum:.3f}",
            f"{one.timing.minimum / least[one.what, one.ranks]:.2f}",
        )
        for one in results
    ]
    print_table(("library", "what", "ranks", "median µs", "minimum µs", "ratio of minima"), rows)
    save(options.json, "sequences", results, {"count": COUNT, "times": TIMES, "seconds": options.seconds})


if __name__ == "__main__":
    main()
