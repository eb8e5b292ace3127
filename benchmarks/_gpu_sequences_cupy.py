"""What gpu_sequences.py runs in processes of their own: Jacobi steps by CuPy, 100 in a CUDA graph.
Prints JSON.

On several GPUs each process has its rows and those next to them, which it exchanges by NCCL in the
same graph.
"""

import multiprocessing
import sys
import time
from multiprocessing.connection import Connection

import cupy
import numpy as np
from _common import Timing, print_timing, summarise
from cupy.cuda import nccl
from sequences import per_iteration, relaxed, start_of

STEPS = 100
KERNEL = cupy.RawKernel(
    """
extern "C" __global__ void relax(const float* u, float* v, int rows, int n)
{
    int j = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * 64 + threadIdx.y;
    if (0 < j && j < n - 1)
        for (int i = first; i < first + 64; i += 8)
            if (0 < i && i < rows - 1) {
                size_t at = (size_t)i * n + j;
                v[at] = 0.25f * (u[at - n] + u[at + n] + u[at - 1] + u[at + 1]);
            }
}
""",
    "relax",
)


class Rows:
    """A process's part of the points."""

    def __init__(self, side: int, rank: int, ranks: int, communicator: object) -> None:
        start = start_of(side).astype(np.float32)
        self.low, self.high = side * rank // ranks, side * (rank + 1) // ranks
        self.below, self.above = int(rank > 0), int(rank < ranks - 1)
        mine = start[self.low - self.below : self.high + self.above]
        self.u, self.v = cupy.asarray(mine), cupy.asarray(mine)
        self.rank, self.communicator, self.side = rank, communicator, side

    def exchange(self, u: cupy.ndarray, stream: cupy.cuda.Stream) -> None:
        nccl.groupStart()
        for there, peer, sent, got in (
            (self.below, self.rank - 1, 1, 0),
            (self.above, self.rank + 1, -2, -1),
        ):
            if there:
                self.communicator.send(
                    u[sent].data.ptr, self.side, nccl.NCCL_FLOAT32, peer, stream.ptr
                )
                self.communicator.recv(
                    u[got].data.ptr, self.side, nccl.NCCL_FLOAT32, peer, stream.ptr
                )
        nccl.groupEnd()

    def steps(self, count: int, stream: cupy.cuda.Stream) -> None:
        u, v, rows = self.u, self.v, len(self.u)
        for _ in range(count):
            if self.communicator is not None:
                self.exchange(u, stream)
            KERNEL(
                (-(-self.side // 32), -(-rows // 64)),
                (32, 8),
                (u, v, np.int32(rows), np.int32(self.side)),
            )
            u, v = v, u


def measure(side: int, rank: int, ranks: int, seconds: float, communicator: object) -> Timing:
    """Times graphs; all processes launch as many, by the time that the first launches take."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        part = Rows(side, rank, ranks, communicator)
        part.steps(10, stream)
        if side <= 1024:
            own = part.u.get()[part.below : part.below + part.high - part.low]
            assert np.allclose(
                own, relaxed(start_of(side).astype(np.float32), 10)[part.low : part.high], rtol=1e-5
            )
        stream.begin_capture()
        part.steps(STEPS, stream)
        graph = stream.end_capture()

    def run() -> int:
        began = time.perf_counter_ns()
        for _ in range(10):
            graph.launch(stream)
        stream.synchronize()
        return time.perf_counter_ns() - began

    run()
    wanted = np.array([min(max(seconds / (run() * 1e-9), 4), 500)], np.int64)
    if communicator is not None:
        with stream:
            agreed = cupy.asarray(wanted)
            communicator.allReduce(
                agreed.data.ptr, agreed.data.ptr, 1, nccl.NCCL_INT64, nccl.NCCL_MIN, stream.ptr
            )
            wanted = agreed.get()
    return per_iteration(summarise([run() for _ in range(int(wanted[0]))]), 10 * STEPS)


def rank_main(rank: int, ranks: int, seconds: float, sides: list[int], pipe: Connection) -> None:
    cupy.cuda.Device(rank).use()
    communicator = None
    if ranks > 1:
        if rank == 0:
            pipe.send(nccl.get_unique_id())
        communicator = nccl.NcclCommunicator(ranks, pipe.recv(), rank)
    found = {f"Jacobi {side}²": measure(side, rank, ranks, seconds, communicator) for side in sides}
    pipe.send(found)


def main() -> None:
    ranks, seconds, sides = int(sys.argv[1]), float(sys.argv[2]), [int(one) for one in sys.argv[3:]]
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(ranks)]
    processes = [
        context.Process(target=rank_main, args=(rank, ranks, seconds, sides, pipes[rank][1]))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    if ranks > 1:
        unique_id = pipes[0][0].recv()
        for mine, _ in pipes:
            mine.send(unique_id)
    for _, theirs in pipes:
        theirs.close()  # so that the end of a process is seen
    told = [mine.recv() for mine, _ in pipes]
    for what, timing in told[0].items():
        print_timing("", what, timing)
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
