"""What gpu_sequences.py runs in a process of its own: Jacobi steps by CuPy on one GPU, 100 in a CUDA graph. Prints JSON."""

import dataclasses
import json
import sys

import cupy
import numpy as np
from _common import time_calls
from sequences import per_iteration, relaxed, start_of

STEPS = 100
KERNEL = cupy.RawKernel(
    """
extern "C" __global__ void relax(const float* u, float* v, int n)
{
    int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y;
    if (0 < i && i < n - 1 && 0 < j && j < n - 1) {
        size_t at = (size_t)i * n + j;
        v[at] = 0.25f * (u[at - n] + u[at + n] + u[at - 1] + u[at + 1]);
    }
}
""",
    "relax",
)


def main() -> None:
    seconds, sides, found = float(sys.argv[2]), [int(one) for one in sys.argv[3:]], {}
    stream = cupy.cuda.Stream(non_blocking=True)
    for side in sides:
        start = start_of(side).astype(np.float32)
        with stream:
            u, v = cupy.asarray(start), cupy.asarray(start)
            grid = (-(-side // 32), -(-side // 8))

            def steps(count: int) -> None:
                for step in range(count):
                    KERNEL(grid, (32, 8), ((u, v, np.int32(side)), (v, u, np.int32(side)))[step % 2])  # noqa: B023

            steps(10)
            if side <= 1024:
                assert np.allclose(u.get(), relaxed(start, 10), rtol=1e-5)
            stream.begin_capture()
            steps(STEPS)
            graph = stream.end_capture()

            def run() -> None:
                for _ in range(10):
                    graph.launch()  # noqa: B023
                stream.synchronize()

            run()
            found[f"Jacobi {side}²"] = per_iteration(time_calls(run, seconds, at_least=4), 10 * STEPS)
    print(json.dumps({what: dataclasses.asdict(timing) for what, timing in found.items()}))


main()
