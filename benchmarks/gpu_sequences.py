"""What an iteration of a sequence costs on GPUs, beside single calls, CuPy's graphs and JAX.

python benchmarks/gpu_sequences.py
python benchmarks/gpu_sequences.py --ranks 1 2 --json benchmarks/results/h200x2-gpu_sequences.json

Rows: an empty kernel and a Python function that does nothing, each without and with the iteration's
number as an argument; a kernel, an all_reduce of 100 float32, a kernel and the sum of its results,
also judged by until=, by the ranks and by the script;
steps of Jacobi's method on n × n points, float32, whose ranks exchange rows and swap two arrays,
also with unsigned indices; sweeps of an Ising model on 512 × 512 sites; and steps of softmax
regression, by functions with record=True in the sequence, and without in single calls. Microseconds
an iteration.

CuPy's peer has 100 steps in a graph, with NCCL between GPUs; JAX's is fori_loop under jit, with
ppermute, in two forms; of the regression, a step under jit, with its loss, beside several forms of
torch. The fastest form is the peer. "limit: copies" is the time in which the GPUs copy as many
bytes as a step of a large lattice reads and writes.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import numpy as np
import sequences
from _common import arguments, save, time_in_turns
from _copies import copies, limit
from _gpu_regression import CLASSES, FEATURES, RATE, WHAT, losses_by_numpy, problem
from numba import cuda
from sequences import (
    CALLS,
    COUNT,
    TIMES,
    Result,
    empties,
    empty,
    functions,
    judged,
    nothing,
    per_iteration,
    relaxed,
    repeated,
    scheduled,
    schedules,
    start_of,
    sweep,
    sweeps,
)

import synknumba as synk

SIDES = (1024, 4096, 16384)
LATTICE = 512
CACHES = 200e6  # bytes, more than a GPU has
ROWS_OF_BLOCK = 64  # of Jacobi's method: 8 for each thread
CUPY_PEER, REGRESSION = (
    Path(__file__).with_name(name) for name in ("_gpu_sequences_cupy.py", "_gpu_regression.py")
)


@synk.parallel(grid=1, block=1)
@cuda.jit
def numbered(x, number):
    pass


@synk.parallel(grid=1, block=128)
@cuda.jit
def halve(x):
    i = cuda.threadIdx.x
    if i < x.shape[0]:
        x[i] = np.float32(0.5) * x[i] + np.float32(1.0)


@synk.parallel(grid=1, block=128, outputs={"t": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def total(x, t):
    i = cuda.threadIdx.x
    if i < x.shape[0]:
        cuda.atomic.add(t, 0, x[i])


def step(x):
    """An iteration, which brings all elements closer to 2."""
    halve(x)
    synk.all_reduce(x, "avg")
    return total(x)


steps = synk.sequence(step)


@synk.sequence
def numbers(x):
    numbered(x, synk.STEP)


in_blocks_of_rows = synk.parallel(
    block=(32, 8),
    grid=lambda shapes: (-(-shapes["u"][1] // 32), -(-shapes["u"][0] // ROWS_OF_BLOCK)),
)


@in_blocks_of_rows
@cuda.jit
def relax(u, v):
    j = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    first = cuda.blockIdx.y * ROWS_OF_BLOCK + cuda.threadIdx.y
    if 0 < j < u.shape[1] - 1:
        for i in range(first, first + ROWS_OF_BLOCK, 8):
            if 0 < i < u.shape[0] - 1:
                v[i, j] = np.float32(0.25) * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1])


@in_blocks_of_rows
@cuda.jit
def relax_unsigned(u, v):
    """The same with unsigned indices of 32 bits."""
    j = np.uint32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
    first = np.uint32(cuda.blockIdx.y * ROWS_OF_BLOCK + cuda.threadIdx.y)
    rows, columns = np.uint32(u.shape[0] - 1), np.uint32(u.shape[1] - 1)
    if 0 < j < columns:
        for step in range(0, ROWS_OF_BLOCK, 8):
            i = np.uint32(first + step)
            if 0 < i < rows:
                v[i, j] = np.float32(0.25) * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1])


@synk.sequence
def jacobi(u, v):
    synk.exchange(u)
    relax(u, v)
    synk.swap(u, v)


@synk.sequence
def jacobi_unsigned(u, v):
    synk.exchange(u)
    relax_unsigned(u, v)
    synk.swap(u, v)


def jacobi_once(u, v):
    synk.exchange(u)
    relax(u, v)


@synk.function(outputs="mean")
def slope(x, onehot, w, new):
    """The loss of softmax regression, and the sum of its gradient over rows."""
    z = synk.matmul(x, w)
    e = np.exp(z - z.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    new[...] = synk.matmul(x.T, p - onehot)
    return -np.log((p * onehot).sum(1)).mean()


@synk.function
def descend(w, new, rate):
    w -= rate * new


@synk.function(record=True, outputs="mean")
def torch_slope(x, onehot, w, new):
    """As `slope`."""
    import torch

    x, onehot, w, new = (torch.from_dlpack(array) for array in (x, onehot, w, new))
    p = torch.log_softmax(x @ w, 1)
    new.copy_(x.T @ (p.exp() - onehot))
    return -(p * onehot).sum() / len(x)


recorded_slope = synk.function(record=True, outputs="mean")(slope.__wrapped__)
recorded_descend = synk.function(record=True)(descend.__wrapped__)


def learn_once(x, onehot, w, new):
    loss = slope(x, onehot, w, new)
    synk.all_reduce(new, "sum")
    descend(w, new, RATE)
    return loss


@synk.sequence
def learn(x, onehot, w, new):
    loss = recorded_slope(x, onehot, w, new)
    synk.all_reduce(new, "sum")
    recorded_descend(w, new, RATE)
    return loss


@synk.sequence
def learn_by_torch(x, onehot, w, new):
    loss = torch_slope(x, onehot, w, new)
    synk.all_reduce(new, "sum")
    recorded_descend(w, new, RATE)
    return loss


def steps_of(side: int) -> int:
    """How many steps take some milliseconds."""
    return max(100, TIMES * SIDES[0] ** 2 // side**2)


def measure(ranks: int, seconds: float, sides: Sequence[int]) -> Iterator[Result]:
    """Sequences beside single calls."""
    with synk.fork(ranks, device="cuda"):
        x = synk.variable(np.zeros(COUNT, np.float32))
        rows: list[tuple[str, Callable[[], object], int, Callable[[], object]]] = [
            ("empty kernel", lambda: empties(x, times=TIMES), TIMES, lambda: empty(x)),
            ("empty kernel, STEP", lambda: numbers(x, times=TIMES), TIMES, lambda: numbered(x, 3)),
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
            ("the same, every=1", lambda: steps(x, times=TIMES, every=1), TIMES, lambda: step(x)),
            *judged(lambda **options: steps(x, **options), lambda: step(x)),
            (
                "the same, until= by the ranks, every=8",
                lambda: steps(x, times=TIMES, every=8, until=lambda t: t < 0),
                TIMES,
                lambda: step(x),
            ),
            ("one round", repeated(lambda: empties(x)), CALLS, lambda: empty(x)),
        ]
        for what, sequence, iterations, single in rows:
            yield from both(what, ranks, sequence, iterations, single, seconds)
        assert np.isclose(steps(x, times=100), 2.0 * COUNT * ranks)  # x = x / 2 + 1
        _, bandwidth = copies("cuda")
        for side in sides:
            yield from measure_jacobi(ranks, seconds, side)
            nbytes = 8 * side**2 / ranks  # each point is read and written, as float32
            if nbytes > CACHES:
                what = f"Jacobi {side}²"
                yield Result("limit: copies", what, ranks, limit(nbytes, bandwidth))
        s = synk.scatter(synk.variable(np.ones((LATTICE, LATTICE), np.int8)), halo=1, periodic=True)
        yield from measure_regression(ranks, seconds)
        yield from both(
            f"Ising {LATTICE}²",
            ranks,
            lambda: sweeps(s, 0.5, times=500),
            500,
            lambda: sweep(s, 0.5, 7),
            seconds,
        )
        assert set(np.unique(synk.gather(s, nd_up=0))) <= {-1, 1}


def measure_jacobi(ranks: int, seconds: float, side: int) -> Iterator[Result]:
    """Steps on one lattice."""
    start, times = start_of(side).astype(np.float32), steps_of(side)
    u, v = (synk.scatter(synk.variable(start), halo=1) for _ in range(2))
    jacobi(u, v, times=10)
    if side <= SIDES[0]:
        assert np.allclose(synk.gather(u, nd_up=0), relaxed(start, 10), rtol=1e-5)
        jacobi_unsigned(u, v, times=10)
        assert np.allclose(synk.gather(u, nd_up=0), relaxed(start, 20), rtol=1e-5)
    yield from both(
        f"Jacobi {side}²",
        ranks,
        lambda: jacobi(u, v, times=times),
        times,
        lambda: jacobi_once(u, v),
        seconds,
        {"unsigned indices": lambda: jacobi_unsigned(u, v, times=times)},
    )


def measure_regression(ranks: int, seconds: float) -> Iterator[Result]:
    """Steps of softmax regression, with the loss of each to the script."""
    x, y = (synk.scatter(synk.variable(one)) for one in problem())
    w, new = (synk.variable(np.zeros((FEATURES, CLASSES), np.float32)) for _ in range(2))
    assert np.allclose(learn(x, y, w, new, times=20, every=1), losses_by_numpy(20), rtol=1e-4)
    given = x, y, w, new
    yield from both(
        WHAT,
        ranks,
        lambda: learn(*given, times=100, every=1),
        100,
        lambda: learn_once(*given),
        seconds,
    )
    if find_spec("torch"):
        w.set_value(np.zeros((FEATURES, CLASSES), np.float32))
        assert np.allclose(
            learn_by_torch(*given, times=20, every=1), losses_by_numpy(20), rtol=1e-4
        )
        (ours,) = time_in_turns([lambda: learn_by_torch(*given, times=100, every=1)], seconds)
        yield Result(
            "synknumba: sequence, torch in a recorded function",
            WHAT,
            ranks,
            per_iteration(ours, 100),
        )


def both(
    what: str,
    ranks: int,
    sequence: Callable[[], object],
    iterations: int,
    single: Callable[[], object],
    seconds: float,
    forms: Mapping[str, Callable[[], object]] = MappingProxyType({}),
) -> Iterator[Result]:
    """The sequence, other forms of it, and single calls, in turns."""
    calls = [sequence, repeated(single), *forms.values()]
    ours, singles, *others = time_in_turns(calls, seconds)
    yield Result("synknumba: sequence", what, ranks, per_iteration(ours, iterations))
    for form, timing in zip(forms, others, strict=True):
        name = f"synknumba: sequence, {form}"
        yield Result(name, what, ranks, per_iteration(timing, iterations))
    yield Result("synknumba: single calls", what, ranks, per_iteration(singles, CALLS))


def peers(ranks: int, seconds: float, sides: Sequence[int]) -> Iterator[Result]:
    """Those that are installed."""
    name = "CuPy, graph" if ranks == 1 else "CuPy and NCCL, graph"
    yield from sequences.results_of(name, [], CUPY_PEER, ranks, seconds, sides, "cuda")
    for module, name in (("torch", "torch"), ("jax", "JAX")):
        if find_spec(module):
            yield from sequences.results_of(name, [], REGRESSION, ranks, seconds, [module], "cuda")
    if find_spec("jax"):
        yield from sequences.results_of(
            "JAX", [], sequences.JAX_PEER, ranks, seconds, ["float32", *sides], "cuda"
        )
    else:
        print("JAX is not installed: left out", file=sys.stderr)


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
    settings = {
        "count": COUNT,
        "times": TIMES,
        "sides": options.sides,
        "seconds": options.seconds,
    }
    results: list[Result] = []
    for ranks in options.ranks or [1]:
        results += measure(ranks, options.seconds, options.sides)
        if not options.no_peers:
            results += peers(ranks, options.seconds, options.sides)
        save(options.json, "gpu_sequences", results, settings)  # a run of several may be ended
    sequences.show(results, "median", digits=2)


if __name__ == "__main__":
    main()
