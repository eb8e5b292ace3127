"""What an iteration of a sequence costs, beside single calls of the same functions, mpi4py with
njit, and JAX.

python benchmarks/sequences.py
python benchmarks/sequences.py --ranks 2 4 --sides 67 256 --json
benchmarks/results/cpu-2core-sequences.json

Rows, on 100 float64 for each rank: an empty kernel; a Python function that does nothing, without
and with a number that each iteration computes anew; a kernel, an all_reduce, a kernel and the sum
of its results; the same with every iteration judged by until=, by the ranks and by the script; and
one round of a sequence with an empty kernel, beside one call of that kernel. Then steps of Jacobi's
method for the Laplace equation on n × n points, float64, rows divided among the ranks, which
exchange a row with each neighbour and swap two arrays; and sweeps of an Ising model on 64 × 64
sites, two kernels with an exchange after each. Microseconds an iteration; the minimum counts where
other programs share the cores.
"""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
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
SIDES = (67, 256, 1024)
LONGEST = 150.0  # seconds that a peer may take
LATTICE = 64  # sites along a side of the Ising model
MPI_PEER = Path(__file__).with_name("_sequences_peer.py")
JAX_PEER = Path(__file__).with_name("_sequences_jax.py")


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


@synk.function
def scheduled(x, rate):
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


@synk.sequence
def schedules(x):
    scheduled(x, 0.1 * synk.STEP)


steps = synk.sequence(step)


@synk.parallel(grid="elements")
@cuda.jit
def relax(u, v):
    j, i = cuda.grid(2)
    if 0 < i < u.shape[0] - 1 and 0 < j < u.shape[1] - 1:
        v[i, j] = 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1])


@synk.sequence
def jacobi(u, v):
    synk.exchange(u)
    relax(u, v)
    synk.swap(u, v)


def jacobi_once(u, v):
    """A step by single calls; the next one takes `v, u`."""
    synk.exchange(u)
    relax(u, v)


@synk.parallel(grid="elements")
@cuda.jit
def turn(s, first, own, beta, seed, sweep, colour):
    j, i = cuda.grid(2)
    n = s.shape[1]
    row = (first + i) % n
    if own.start <= i < own.stop and j < n and (row + j) % 2 == colour:
        around = s[i - 1, j] + s[i + 1, j] + s[i, (j - 1) % n] + s[i, (j + 1) % n]
        if synk.random.uniform(seed, row, sweep * n + j) < math.exp(-2 * beta * s[i, j] * around):
            s[i, j] = -s[i, j]


def sweep(s, beta, number):
    """A sweep over both colours of a checkerboard."""
    for colour in (0, 1):
        turn(s, synk.OFFSET, synk.OWN, beta, 1, number, colour)
        synk.exchange(s)


@synk.sequence
def sweeps(s, beta):
    sweep(s, beta, synk.STEP)


def per_iteration(timing: Timing, iterations: int) -> Timing:
    """The times of one iteration."""
    return Timing(
        timing.median / iterations,
        timing.p99 / iterations,
        timing.minimum / iterations,
        timing.calls,
    )


def repeated(call: Callable[[], object]) -> Callable[[], None]:
    """The call, CALLS times."""

    def calls() -> None:
        for _ in range(CALLS):
            call()

    return calls


def judged(
    steps: Callable[..., object], single: Callable[[], object]
) -> list[tuple[str, Callable[[], object], int, Callable[[], object]]]:
    """Rows of a loop whose result until= judges in each iteration, which never ends it."""
    return [
        (
            "the same, until= by the ranks",
            lambda: steps(times=TIMES, until=lambda t: t < 0),
            TIMES,
            single,
        ),
        (
            "the same, until= by the script",
            lambda: steps(times=CALLS, until=lambda t: bool(t < 0)),
            CALLS,
            single,
        ),
    ]


def measure(ranks: int, seconds: float) -> Iterator[Result]:
    """Sequences beside single calls."""
    with synk.fork(ranks, device="cpu"):
        x = synk.variable(np.zeros(COUNT))
        rows: list[tuple[str, Callable[[], object], int, Callable[[], object]]] = [
            ("empty kernel", lambda: empties(x, times=TIMES), TIMES, lambda: empty(x)),
            ("Python function", lambda: functions(x, times=TIMES), TIMES, lambda: nothing(x)),
            (
                "Python function, STEP",
                lambda: schedules(x, times=TIMES),
                TIMES,
                lambda: scheduled(x, 0.1),
            ),
            (
                "kernel, all_reduce, kernel, sum",
                lambda: steps(x, times=TIMES),
                TIMES,
                lambda: step(x),
            ),
            *judged(lambda **options: steps(x, **options), lambda: step(x)),
            ("one round", repeated(lambda: empties(x)), CALLS, lambda: empty(x)),
        ]
        for what, sequence, iterations, single in rows:
            ours, calls = time_in_turns([sequence, repeated(single)], seconds)
            yield Result("synknumba: sequence", what, ranks, per_iteration(ours, iterations))
            yield Result("synknumba: single calls", what, ranks, per_iteration(calls, CALLS))
        assert np.isclose(steps(x, times=100), 2.0 * COUNT * ranks)  # x = x / 2 + 1


def start_of(side: int) -> np.ndarray:
    """The points of a Laplace problem; those at the edges stay."""
    return np.random.default_rng(0).random((side, side))


def steps_of(side: int) -> int:
    """How many steps are long beside a round."""
    return min(TIMES, max(20, TIMES * SIDES[0] ** 2 // side**2))


def relaxed(u: np.ndarray, times: int) -> np.ndarray:
    """What NumPy gets after some steps."""
    v = u.copy()
    for _ in range(times):
        v[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
        u, v = v, u.copy()
    return u


def measure_lattices(ranks: int, seconds: float, sides: Sequence[int]) -> Iterator[Result]:
    """Jacobi's method and the Ising model, whose ranks exchange rows."""
    with synk.fork(ranks, device="cpu"):
        for side in sides:
            start = start_of(side)
            u, v = (synk.scatter(synk.variable(start), halo=1) for _ in range(2))
            jacobi(u, v, times=10)
            assert np.allclose(synk.gather(u, nd_up=0), relaxed(start, 10), rtol=1e-12)
            times = steps_of(side)
            whole, one = time_in_turns(
                [lambda: jacobi(u, v, times=times), repeated(lambda: jacobi_once(u, v))],  # noqa: B023
                seconds,
            )
            yield Result(
                "synknumba: sequence", f"Jacobi {side}²", ranks, per_iteration(whole, times)
            )
            yield Result(
                "synknumba: single calls", f"Jacobi {side}²", ranks, per_iteration(one, CALLS)
            )
        s = synk.scatter(synk.variable(np.ones((LATTICE, LATTICE), np.int8)), halo=1, periodic=True)
        whole, one = time_in_turns(
            [lambda: sweeps(s, 0.5, times=100), repeated(lambda: sweep(s, 0.5, 7))], seconds
        )
        assert set(np.unique(synk.gather(s, nd_up=0))) <= {-1, 1}
        yield Result("synknumba: sequence", f"Ising {LATTICE}²", ranks, per_iteration(whole, 100))
        yield Result(
            "synknumba: single calls", f"Ising {LATTICE}²", ranks, per_iteration(one, CALLS)
        )


def measure_mpi(ranks: int, seconds: float, sides: Sequence[int]) -> Iterator[Result]:
    """mpi4py, whose ranks run compiled loops and its collectives by themselves, without a
    script.
    """
    if not (find_spec("mpi4py") and mpiexec()):
        print("mpi4py is not installed, or has no mpiexec: left out", file=sys.stderr)
        return
    yield from results_of(
        "mpi4py + njit", [str(mpiexec()), "-n", str(ranks)], MPI_PEER, ranks, seconds, sides
    )


def measure_jax(ranks: int, seconds: float, sides: Sequence[int]) -> Iterator[Result]:
    """JAX with a device for each rank, loops by fori_loop under jit."""
    if not find_spec("jax"):
        print("JAX is not installed: left out", file=sys.stderr)
        return
    yield from results_of("JAX", [], JAX_PEER, ranks, seconds, ["float64", *sides])


def results_of(
    library: str,
    starter: list[str],
    script: Path,
    ranks: int,
    seconds: float,
    rest: Sequence[object],
    platform: str = "cpu",
) -> Iterator[Result]:
    """What a peer's script prints: the times of an iteration, by its form and what it does. One
    that fails or takes too long is named, and what it has measured counts.
    """
    command = [*starter, sys.executable, str(script), str(ranks), str(seconds), *map(str, rest)]
    environment = os.environ | {"JAX_PLATFORMS": platform}
    if platform == "cpu":
        environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={ranks}"
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,  # so that its own processes end with it
    )
    late = ""
    try:
        out, err = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        late = f"it took longer than {LONGEST:g} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
    err += late
    said = err.strip().splitlines()
    for line in dict.fromkeys(line for line in said if " left out: " in line):
        print(line, file=sys.stderr)
    if process.returncode != 0:
        print(f"{library} left out: {said[-1:]}", file=sys.stderr)
    for line in out.splitlines():
        if line.startswith('{"form"'):
            row = json.loads(line)
            name = ", ".join(filter(None, (library, row["form"])))
            yield Result(name, row["what"], ranks, Timing(**row["timing"]))


def show(
    results: Sequence[Result], compared: str, *, digits: int, base: str = "synknumba: sequence"
) -> None:
    """Prints a table, with ratios of medians, or minima, to those of one library."""
    least = {(one.what, one.ranks): one.timing for one in results if one.library == base}
    rows = [
        (
            one.library,
            one.what,
            str(one.ranks),
            f"{one.timing.median:.{digits}f}",
            f"{one.timing.minimum:.{digits}f}",
            f"{getattr(one.timing, compared) / getattr(least[one.what, one.ranks], compared):.2f}",
        )
        for one in results
    ]
    print_table(("library", "what", "ranks", "median µs", "minimum µs", f"ratio, {compared}"), rows)


def main() -> None:
    given = arguments(__doc__)
    given.add_argument("--no-peers", action="store_true")
    given.add_argument(
        "--sides",
        type=int,
        nargs="+",
        default=list(SIDES),
        help="points along a side, for Jacobi's method",
    )
    options = given.parse_args()
    if options.device != "cpu":
        given.error("that is what gpu_sequences.py measures")
    results: list[Result] = []
    for ranks in options.ranks or [2]:
        results += measure(ranks, options.seconds)
        results += measure_lattices(ranks, options.seconds, options.sides)
        if not options.no_peers:
            results += measure_mpi(ranks, options.seconds, options.sides)
            results += measure_jax(ranks, options.seconds, options.sides)
    show(results, "minimum", digits=3)
    save(
        options.json,
        "sequences",
        results,
        {"count": COUNT, "times": TIMES, "sides": options.sides, "seconds": options.seconds},
    )


if __name__ == "__main__":
    main()
