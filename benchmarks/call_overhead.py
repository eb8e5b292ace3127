"""What one call costs beside its work: an empty call, and one that brings back a sum, beside those
of other libraries.

    python benchmarks/call_overhead.py
    python benchmarks/call_overhead.py --device cuda --ranks 1 2 4
    python benchmarks/call_overhead.py --peer-python ~/torch/bin/python --json
    benchmarks/results/cpu-2core-call_overhead.json

"empty": every worker gets an order that does nothing, and all have answered. "sum": every worker
adds up its half of 100 numbers that it has already, and the sum of the sums is back in the script.

Peers are measured in the same run; those that are not installed are left out and named. For every
number of ranks, on either
device: torch in lockstep, JAX, and a hand-made loop, which is the floor. On CPUs also
multiprocessing, joblib, mpi4py with objects (bcast + gather) and with buffers (Bcast + Reduce), and
Numba's threads, which have nothing on GPUs.
"""

import json
import multiprocessing
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path

import numba
import numpy as np
from _common import Timing, arguments, print_table, save, time_calls
from _gpu_call_peers import Peer, Settings, peer_rows
from numba import cuda

import synknumba as synk

ROWS = 100
PAUSE = 0.05  # seconds between calls that find the ranks asleep


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; times in microseconds."""

    library: str
    what: str
    kind: str
    workers: int
    timing: Timing
    ratio: float | None = None  # to the same kind of call here


@synk.parallel(grid=1)
def nothing():
    """A kernel that does nothing."""


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
def kernel_sum(x, total):
    """Adds up x: float64, shape (n,)."""
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        acc += x[i]
    cuda.atomic.add(total, 0, acc)


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
def kernel_scaled_sum(x, factor, total):
    """The same with a factor that changes from call to call."""
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        acc += factor * x[i]
    cuda.atomic.add(total, 0, acc)


@synk.function(outputs="sum")
def array_sum(x):
    """A Python function: NumPy's sum here, CuPy's on a GPU."""
    return x.sum()


def measure_here(ranks: int, device: str, seconds: float) -> Iterator[Result]:
    """The calls of this library."""
    values = np.arange(float(ROWS))
    with synk.fork(ranks, device=device):
        x = synk.data(values)
        x.freeze()  # as what the others have on the device already
        assert kernel_sum(x) == array_sum(x) == kernel_scaled_sum(x, 1.0) == values.sum()
        factors = iter(range(1 << 62))

        turns = cycle((partial(kernel_sum, x), partial(kernel_scaled_sum, x, 1.0)))

        def in_turn() -> object:
            return next(turns)()

        def result(what: str, kind: str, call: Callable[[], object], pause: float = 0.0) -> Result:
            return Result("synknumba", what, kind, ranks, time_calls(call, seconds, pause=pause))

        yield result("kernel without arguments", "empty", nothing)
        yield result("kernel, sum", "sum", partial(kernel_sum, x))
        yield result(
            "kernel, sum, another factor each call",
            "sum",
            lambda: kernel_scaled_sum(x, float(next(factors))),
        )
        yield result("two kernels in turn, sum", "sum", in_turn)
        yield result("Python function, sum", "sum", partial(array_sum, x))
        sent = synk.data(values)
        assert kernel_sum(sent) == values.sum()
        yield result("kernel, sum, rows sent at each call", "sum", partial(kernel_sum, sent))
        yield result("kernel without arguments, ranks asleep", "asleep", nothing, PAUSE)


# ---- peers ---------------------------------------------------------------------------------------


def do_nothing(_: int) -> None:
    """What a worker does in an empty call."""


def sum_half(worker: int) -> float:
    """What one of two workers does in a call with a sum."""
    return float(np.arange(float(ROWS))[worker::2].sum())


def _meet(barrier: "multiprocessing.synchronize.Barrier") -> None:
    while True:
        barrier.wait()  # before the work
        barrier.wait()  # after it


def measure_barrier(workers: int, seconds: float) -> Iterator[Result]:
    """multiprocessing: the two barriers of a round, the script among those who meet."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(workers + 1)
    processes = [
        context.Process(target=_meet, args=(barrier,), daemon=True) for _ in range(workers)
    ]
    for process in processes:
        process.start()

    def meet_twice() -> None:
        barrier.wait()
        barrier.wait()

    yield Result(
        "multiprocessing", "Barrier, two waits", "empty", workers, time_calls(meet_twice, seconds)
    )
    for process in processes:
        process.kill()
        process.join()


def measure_pool(workers: int, seconds: float) -> Iterator[Result]:
    """multiprocessing: a pool."""
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        tasks = range(workers)
        empty = time_calls(lambda: pool.map(do_nothing, tasks, chunksize=1), seconds)
        yield Result("multiprocessing", "Pool.map", "empty", workers, empty)
        total = time_calls(lambda: sum(pool.map(sum_half, tasks, chunksize=1)), seconds)
        yield Result("multiprocessing", "Pool.map", "sum", workers, total)


def measure_joblib(workers: int, seconds: float) -> Iterator[Result]:
    """Joblib's default, loky, with its workers kept between calls."""
    import joblib
    from joblib.externals.loky import get_reusable_executor

    with joblib.Parallel(n_jobs=workers) as parallel:
        for kind, task in (("empty", do_nothing), ("sum", sum_half)):
            call = partial(_joblib_call, joblib.delayed(task), parallel, workers)
            yield Result("joblib", "Parallel, loky", kind, workers, time_calls(call, seconds))
    get_reusable_executor().shutdown(wait=True)


def _joblib_call(
    task: Callable[[int], object], parallel: Callable[..., list[object]], workers: int
) -> list[object]:
    return parallel(task(worker) for worker in range(workers))


@numba.njit(parallel=True)
def _threads_sum(x):
    total = 0.0
    for i in numba.prange(x.shape[0]):
        total += x[i]
    return total


def measure_prange(workers: int, seconds: float) -> Iterator[Result]:
    """Numba's threads: no other process, no Python on the workers, a kernel of its own dialect."""
    numba.set_num_threads(min(workers, numba.config.NUMBA_NUM_THREADS))
    values = np.arange(float(ROWS))
    yield Result(
        "numba",
        "prange, threads",
        "sum",
        workers,
        time_calls(lambda: _threads_sum(values), seconds),
    )


MPI_ROUNDS = {
    "barrier": ("one Barrier", "empty"),
    "bcast_gather": ("bcast + gather", "empty"),
    "bcast_reduce": ("Bcast + Reduce", "sum"),
}


def measure_mpi(workers: int, seconds: float) -> Iterator[Result]:
    """mpi4py, in processes of its own: the root as one of the workers, and beside them as the
    script is here.
    """
    for processes, who in ((workers, "root works too"), (workers + 1, "root beside")):
        script = str(Path(__file__).with_name("_mpi_peer.py"))
        command = [str(mpiexec()), "-n", str(processes), sys.executable, script, str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"mpi4py left out: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            return
        for name, timing in json.loads(done.stdout).items():
            what, kind = MPI_ROUNDS[name]
            yield Result("mpi4py", f"{what}, {who}", kind, workers, Timing(**timing))


def mpiexec() -> Path | None:
    """The one beside this Python, as the wheels of MPICH and Open MPI put it, else the system's."""
    beside = Path(sys.prefix) / "bin" / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    return Path(found) if found else None


def peers() -> Iterator[Callable[[int, float], Iterator[Result]]]:
    """Those that are installed. Forked ones first: numba's threads and loky's would be in the
    way of a fork.
    """
    yield measure_barrier
    yield measure_pool
    if find_spec("mpi4py") and mpiexec():
        yield measure_mpi
    else:
        print("mpi4py is not installed, or has no mpiexec: left out", file=sys.stderr)
    if find_spec("joblib"):
        yield measure_joblib
    else:
        print("joblib is not installed: left out", file=sys.stderr)
    yield measure_prange


def measure_lockstep(
    device: str, ranks: list[int], seconds: float, python: str
) -> Iterator[Result]:
    """Those in processes of their own, which compute the same sum for every number of ranks. The
    loop needs what this needs.
    """
    peers: dict[Peer, str] = {"loop": sys.executable, "torch": python, "jax": python}
    for peer, interpreter in peers.items():
        for row in peer_rows(
            peer, Settings("sum", device, tuple(ranks), (ROWS,), seconds), interpreter
        ):
            yield Result(row.library, row.what, "sum", row.ranks, row.timing)


# ---- all of it -----------------------------------------------------------------------------------


def with_ratios(results: list[Result]) -> list[Result]:
    """Every row beside the first row here of the same kind and as many workers."""
    own: dict[tuple[str, int], float] = {}
    for result in results:
        if result.library == "synknumba":
            own.setdefault((result.kind, result.workers), result.timing.median)
    out = []
    for result in results:
        base = own.get((result.kind, result.workers))
        ratio = None if base is None else result.timing.median / base
        out.append(
            Result(result.library, result.what, result.kind, result.workers, result.timing, ratio)
        )
    return out


def main() -> None:
    """Measures, prints, and saves where asked to."""
    parser = arguments(__doc__)
    parser.add_argument("--no-peers", action="store_true", help="measure this library only")
    parser.add_argument(
        "--peer-python",
        metavar="PATH",
        default=sys.executable,
        help="a Python that has torch and JAX",
    )
    args = parser.parse_args()
    ranks = args.ranks or ([2] if args.device == "cpu" else [1])

    results = [result for size in ranks for result in measure_here(size, args.device, args.seconds)]
    if not args.no_peers:
        results += measure_lockstep(args.device, ranks, args.seconds, args.peer_python)
    if not args.no_peers and args.device == "cpu":
        for peer in peers():
            for size in ranks:
                results += peer(size, args.seconds)
    results = with_ratios(results)

    def cells(result: Result) -> list[str]:
        timing = result.timing
        numbers = [f"{timing.median:.1f}", f"{timing.p99:.1f}", f"{timing.minimum:.1f}"]
        return [
            f"{result.library}: {result.what}",
            result.kind,
            str(result.workers),
            *numbers,
            f"{result.ratio or 0:.2f}",
        ]

    print(f"one call, {args.device}, microseconds; ratio: to the first row of the same kind")
    print_table(
        ["", "kind", "workers", "median", "p99", "minimum", "ratio"],
        [cells(result) for result in results],
    )
    save(
        args.json,
        "call_overhead",
        results,
        {"device": args.device, "seconds": args.seconds, "rows": ROWS},
    )


if __name__ == "__main__":
    main()
