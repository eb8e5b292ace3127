"""Collectives from 1 KiB to 1 GiB, beside mpi4py and torch.distributed: how long one takes, and
what it moves in a second.

python benchmarks/collectives.py
python benchmarks/collectives.py --torch-python ~/torch/bin/python --json
benchmarks/results/cpu-2core-collectives.json python benchmarks/collectives.py --device cuda --ranks
4

float32, sum, in place where the library can. A size is that of the array which every rank has in
the end. "synknumba": a call from the script, until all ranks have said that they are done.
"transport alone": the ranks call the transport themselves, on the host between two spinning
barriers. Peers have no script beside their ranks either. "queued": many are put on a stream and
waited for together.

Bus bandwidth as NVIDIA's nccl-tests define it: bytes / time, times 2(W − 1)/W for all_reduce, (W −
1)/W for all_gather, 1 for broadcast.
"""

import json
import mmap
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import numpy as np
from _collectives_peers import (
    AT_LEAST,
    Collective,
    Group,
    How,
    Prepared,
    Row,
    Settings,
    elements,
    expected,
    measure,
    part,
)
from _common import Timing, arguments, print_table, save, time_calls

import synknumba as synk
from synknumba._comm import DRIVERS, Communicator, Exchange, host_communicator
from synknumba._wire import doorbell

COLLECTIVES: tuple[Collective, ...] = ("all_reduce", "all_gather", "broadcast")
# 1 KiB to 1 GiB, and 10³, 10⁵, 10⁷ elements
SIZES = (
    *(2**10 * 4**k for k in range(11)),
    4_000,
    400_000,
    40_000_000,
)
ID_BYTES = 128  # of NCCL
LOOKS = 1000  # at a barrier before a core is offered to others: some microseconds
PEERS = Path(__file__).with_name("_collectives_peers.py")


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; times in microseconds."""

    library: str
    collective: Collective
    size: int
    ranks: int
    how: How
    timing: Timing
    bus_gb_per_s: float
    ratio: float | None = None  # to the first row here of the same collective and size


def result(library: str, ranks: int, row: Row) -> Result:
    factor = {
        "all_reduce": 2 * (ranks - 1) / ranks,
        "all_gather": (ranks - 1) / ranks,
        "broadcast": 1.0,
    }[row.collective]
    bandwidth = factor * row.size / (row.timing.median * 1e3)
    return Result(library, row.collective, row.size, ranks, row.how, row.timing, bandwidth)


def measure_here(device: str, ranks: int, settings: Settings) -> Iterator[Result]:
    """Calls from the script."""
    with synk.fork(ranks, device=device):
        for collective in settings.collectives:
            for size in settings.sizes:
                count = elements(size, ranks)
                own = synk.variable(
                    np.zeros(count // ranks if collective == "all_gather" else count, np.float32)
                )
                whole = (
                    synk.variable(np.zeros(count, np.float32))
                    if collective == "all_gather"
                    else own
                )
                call = call_of(collective, own, whole)
                check_call(collective, own, whole, call)
                timing = time_calls(call, settings.seconds, at_least=AT_LEAST)
                yield result("synknumba", ranks, Row(collective, size, "waited", timing))


def call_of(
    collective: Collective, own: synk.Variable, whole: synk.Variable
) -> Callable[[], object]:
    match collective:
        case "all_reduce":
            return partial(synk.all_reduce, own, "sum")
        case "all_gather":
            return partial(synk.all_gather, own, dest=whole)
        case "broadcast":
            return partial(synk.broadcast, own)


def check_call(
    collective: Collective, own: synk.Variable, whole: synk.Variable, call: Callable[[], object]
) -> None:
    """As `_collectives_peers.check`."""
    (count,), (total,) = own.shape, whole.shape
    lengths = synk.get_lengths(own)
    for rank in range(len(lengths)):
        synk.set_value(rank, own, np.full(count, rank + 1, np.float32))
    call()
    for rank in range(len(lengths)):
        assert (synk.get_value(rank, whole) == expected(collective, len(lengths), total)).all()
    synk.broadcast(own, np.zeros(count, np.float32))


# ---- the transports alone ------------------------------------------------------------------------


@doorbell.compiled("void(int64, int64)")
def meet(base: int, ranks: int) -> None:
    """A barrier: goes on when the count of arrivals has reached the next multiple of the ranks."""
    arrived = doorbell.fetch_add(base, 0, 1)
    everybody = (arrived // ranks + 1) * ranks
    looks = 0
    while doorbell.load_acquire(base, 0) < everybody:
        looks += 1
        if looks > LOOKS:
            doorbell.sched_yield()


class Forked(Group):
    """Forked processes that share a page, where they meet and agree.

    Args:
        rank: of this process.
        ranks: all of them.
        page: shared; zeros at first.
    """

    def __init__(self, rank: int, ranks: int, page: mmap.mmap) -> None:
        self.rank, self.ranks = rank, ranks
        self._words = np.frombuffer(page, np.int64)
        self._base = self._words.ctypes.data

    def meet(self) -> None:
        meet(self._base, self.ranks)

    def agree(self, number: int) -> int:
        if self.rank == 0:
            self._words[8] = number
        self.meet()
        agreed = int(self._words[8])
        self.meet()
        return agreed

    def prepare(self, collective: Collective, count: int) -> Prepared:
        """One exchange, in place."""
        targets = self.arrays(count)
        whole = (count,) * self.ranks
        exchange = Exchange(np.dtype(np.float32), targets, targets, whole, whole)
        source = target = targets[self.rank]
        match collective:
            case "all_reduce":
                step = self.communicator.all_reduce([exchange], "sum")
            case "broadcast":
                step = self.communicator.broadcast([exchange], 0)
            case "all_gather":
                sources = tuple(
                    None if a is None else part(a, rank, self.ranks)
                    for rank, a in enumerate(targets)
                )
                exchange = replace(
                    exchange, sources=sources, source_counts=(count // self.ranks,) * self.ranks
                )
                step = self.communicator.all_gather([exchange])
                source = sources[self.rank]
        return Prepared(self.round(step), source, target)

    communicator: Communicator

    @abstractmethod
    def arrays(self, count: int) -> tuple[Any, ...]:
        """All ranks' that this one reaches, float32, ones."""

    def round(self, step: Callable[[], object]) -> Callable[[], object]:
        """A step with what it takes that all begin and end together."""
        return step


@final
class HostAlone(Forked):
    """The host transport: memory that was mapped before the fork."""

    def __init__(self, rank: int, ranks: int, page: mmap.mmap, memory: mmap.mmap) -> None:
        super().__init__(rank, ranks, page)
        self.communicator = host_communicator(rank, ranks)
        self._memory = np.frombuffer(memory, np.float32).reshape(ranks, -1)

    def arrays(self, count: int) -> tuple[Any, ...]:
        return tuple(array[:count] for array in self._memory)

    def round(self, step: Callable[[], object]) -> Callable[[], object]:
        base, ranks = self._base, self.ranks

        def call() -> None:
            meet(base, ranks)
            step()
            meet(base, ranks)

        return call


@final
class NcclAlone(Forked):
    """The NCCL transport: each process on a GPU of its own."""

    queues = True

    def __init__(self, rank: int, ranks: int, page: mmap.mmap, memory: None) -> None:
        super().__init__(rank, ranks, page)
        import cupy

        self._cupy = cupy
        cupy.cuda.Device(rank).use()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        # Not `use()`: the transport enters and leaves this stream, and after that CuPy goes back to
        # what was entered before. The arrays were then filled on another stream than `wait` waits
        # for.
        self._stream.__enter__()
        shared_id = self._words[64:].view(np.uint8)[:ID_BYTES]
        if rank == 0:
            shared_id[:] = np.frombuffer(DRIVERS["nccl"].make_unique_id(), np.uint8)
        self.meet()
        self.communicator = DRIVERS["nccl"].open(rank, ranks, shared_id.tobytes(), self._stream)

    def arrays(self, count: int) -> tuple[Any, ...]:
        own = self._cupy.ones(count, np.float32)
        return tuple(own if rank == self.rank else None for rank in range(self.ranks))

    def wait(self) -> None:
        self._stream.synchronize()

    def to_host(self, array: Any) -> Any:
        return array.get()


def measure_alone(device: str, ranks: int, settings: Settings) -> Iterator[Result]:
    """The transport of the device, without the script."""
    context = multiprocessing.get_context("fork")
    page = mmap.mmap(-1, mmap.PAGESIZE)
    memory = None
    if device == "cpu":
        memory = mmap.mmap(-1, ranks * -(-max(settings.sizes) // mmap.PAGESIZE) * mmap.PAGESIZE)
    receiver, sender = context.Pipe(duplex=False)
    target = HostAlone if device == "cpu" else NcclAlone

    def work(rank: int) -> None:
        rows = list(measure(target(rank, ranks, page, memory), settings))
        if rank == 0:
            sender.send(rows)

    processes = [context.Process(target=work, args=(rank,), daemon=True) for rank in range(ranks)]
    for process in processes:
        process.start()
    while not receiver.poll(0.1):
        if any(process.exitcode for process in processes):
            for process in processes:
                process.kill()
            raise RuntimeError(
                f"{target.__name__}: a process ended with "
                f"{[process.exitcode for process in processes]}"
            )
    rows = receiver.recv()
    for process in processes:
        process.join()
    kind = "host" if device == "cpu" else "NCCL"
    yield from (result(f"synknumba: {kind} transport alone", ranks, row) for row in rows)


# ---- peers ---------------------------------------------------------------------------------------


def measure_mpi(ranks: int, settings: Settings) -> Iterator[Result]:
    """mpi4py, with the MPI that is installed with it."""
    command = [
        str(mpiexec()),
        "-n",
        str(ranks),
        sys.executable,
        str(PEERS),
        "mpi",
        json.dumps(asdict(settings)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"mpi4py left out: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return
    yield from rows_of("mpi4py", ranks, done.stdout)


def mpiexec() -> Path | None:
    """The one beside this Python, as the wheels of MPICH and Open MPI put it, else the system's."""
    beside = Path(sys.prefix) / "bin" / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    return Path(found) if found else None


def measure_torch(python: str, backend: str, ranks: int, settings: Settings) -> Iterator[Result]:
    """torch.distributed, in processes of the Python that has it; they talk over the loopback
    interface.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "lo",
            "WORLD_SIZE": str(ranks),
        }
        environment["MEETING_FILE"] = str(Path(folder) / "meeting")
        environment["MEETING_PAGE"] = str(Path(folder) / "page")
        (Path(folder) / "page").write_bytes(bytes(64 * ranks))
        command = [python, str(PEERS), backend, json.dumps(asdict(settings))]
        files = [
            (Path(folder) / f"{rank}.out", Path(folder) / f"{rank}.err") for rank in range(ranks)
        ]
        processes = []
        for rank, (out, err) in enumerate(files):
            with out.open("w") as stdout, err.open("w") as stderr:
                environment["RANK"] = str(rank)
                processes.append(
                    subprocess.Popen(command, env=environment, stdout=stdout, stderr=stderr)
                )
        if not all_succeed(processes):
            errors = [err.read_text().strip().splitlines()[-1:] for _, err in files]
            print(f"torch {backend} left out: {errors}", file=sys.stderr)
            return
        yield from rows_of(f"torch {backend}", ranks, files[0][0].read_text())


def all_succeed(processes: list[subprocess.Popen[bytes]]) -> bool:
    """Waits for all, or ends the others when one has failed."""
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):
            for process in processes:
                process.kill()
                process.wait()
            return False
        time.sleep(0.05)
    return not any(process.returncode for process in processes)


def rows_of(library: str, ranks: int, output: str) -> Iterator[Result]:
    for fields in json.loads(output.strip().splitlines()[-1]):
        timing = Timing(**fields.pop("timing"))
        yield result(library, ranks, Row(**fields, timing=timing))


def measure_peers(
    device: str, torch_python: str | None, ranks: int, settings: Settings
) -> Iterator[Result]:
    """Those that are installed."""
    if device == "cpu":
        if find_spec("mpi4py") and mpiexec():
            yield from measure_mpi(ranks, settings)
        else:
            print("mpi4py is not installed, or has no mpiexec: left out", file=sys.stderr)
    python = torch_python or (sys.executable if find_spec("torch") else None)
    if python:
        yield from measure_torch(python, "gloo" if device == "cpu" else "nccl", ranks, settings)
    else:
        print("torch is not installed, and no --torch-python given: left out", file=sys.stderr)


# ---- all of it -----------------------------------------------------------------------------------


def affordable(sizes: Iterable[int], ranks: int, device: str) -> tuple[int, ...]:
    """Those of which all ranks may have two arrays in half of the memory that is free."""
    if device == "cuda":
        return tuple(sizes)
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(meminfo["MemAvailable"].split()[0]) * 1024
    return tuple(size for size in sizes if 2 * ranks * size <= free / 2)


def with_ratios(results: list[Result]) -> list[Result]:
    """Every row beside the first row here of the same collective, size, ranks and way of
    waiting.
    """
    own: dict[tuple[object, ...], float] = {}
    for row in results:
        if row.library.startswith("synknumba"):
            own.setdefault((row.collective, row.size, row.ranks, row.how), row.timing.median)
    ratios = [(row, own.get((row.collective, row.size, row.ranks, row.how))) for row in results]
    return [
        replace(row, ratio=None if base is None else row.timing.median / base)
        for row, base in ratios
    ]


def cells(row: Result) -> list[str]:
    timing = row.timing
    numbers = [
        f"{timing.median:.1f}",
        f"{timing.p99:.1f}",
        f"{timing.minimum:.1f}",
        f"{row.bus_gb_per_s:.2f}",
    ]
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return [
        f"{row.collective} {row.size}",
        f"{row.library}, {row.how}",
        str(row.ranks),
        *numbers,
        ratio,
    ]


def main() -> None:
    """Measures, prints, and saves where asked to."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--bytes", type=int, nargs="+", default=list(SIZES), help="sizes (default: 1 KiB to 1 GiB)"
    )
    parser.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=list(COLLECTIVES))
    parser.add_argument(
        "--torch-python", metavar="PATH", help="a Python that has torch, where this one has not"
    )
    parser.add_argument("--no-peers", action="store_true", help="measure this library only")
    args = parser.parse_args()

    results: list[Result] = []
    for ranks in args.ranks or [2]:
        sizes = affordable(sorted(args.bytes), ranks, args.device)
        settings = Settings(tuple(args.collectives), sizes, args.seconds)
        results += measure_here(args.device, ranks, settings)
        results += measure_alone(args.device, ranks, settings)
        if not args.no_peers:
            results += measure_peers(args.device, args.torch_python, ranks, settings)
    order = {name: place for place, name in enumerate(COLLECTIVES)}
    results = sorted(
        with_ratios(results), key=lambda row: (row.ranks, order[row.collective], row.size)
    )

    print(
        f"one collective, {args.device}, microseconds; bus: GB/s; ratio: to the first row of the "
        f"same collective and size"
    )
    head = ["collective, bytes", "library", "ranks", "median", "p99", "minimum", "bus", "ratio"]
    print_table(head, [cells(row) for row in results])
    save(
        args.json,
        "collectives",
        results,
        {"device": args.device, "seconds": args.seconds, "dtype": "float32", "op": "sum"},
    )


if __name__ == "__main__":
    main()
