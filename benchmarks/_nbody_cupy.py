"""n-body in CUDA C by CuPy, with the algorithm of kernels/nbody.py: four targets of each thread in
registers, tiles of sources in shared memory. Started by `_gpu_call_peers`; also says what the
cards could do.
"""

from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np
from _common import summarise
from _gpu_call_peers import Row, Settings, print_rows, rows_of, time_steps
from _nbody import INSTRUCTIONS, SOFTENING, bodies_of, check, pairs_a_second

THREADS, EACH, TILE = 128, 4, 512
KERNEL = cupy.RawKernel(
    f"""
extern "C" __global__ void accelerations(
    const float4* targets, const float4* sources, int n, int s, float soft, float* out)
{{
    __shared__ float4 tile[{TILE}];
    float3 place[{EACH}];
    float total[{EACH}][3] = {{}};
    int begin = blockIdx.x * {THREADS * EACH} + threadIdx.x;
    #pragma unroll
    for (int e = 0; e < {EACH}; ++e) {{
        float4 body = targets[min(begin + e * {THREADS}, n - 1)];
        place[e] = make_float3(body.x, body.y, body.z);
    }}
    for (int first = 0; first < s; first += {TILE}) {{
        #pragma unroll
        for (int k = threadIdx.x; k < {TILE}; k += {THREADS}) {{
            float4 body = sources[min(first + k, s - 1)];
            tile[k] = make_float4(body.x, body.y, body.z, first + k < s ? body.w : 0.0f);
        }}
        __syncthreads();
        float pull[{EACH}][3] = {{}};
        #pragma unroll 8
        for (int k = 0; k < {TILE}; ++k) {{
            float4 source = tile[k];
            #pragma unroll
            for (int e = 0; e < {EACH}; ++e) {{
                float dx = source.x - place[e].x;
                float dy = source.y - place[e].y;
                float dz = source.z - place[e].z;
                float root = rsqrtf(dx * dx + (dy * dy + (dz * dz + soft)));
                float factor = source.w * root * (root * root);
                pull[e][0] += factor * dx;
                pull[e][1] += factor * dy;
                pull[e][2] += factor * dz;
            }}
        }}
        #pragma unroll
        for (int e = 0; e < {EACH}; ++e)
            for (int axis = 0; axis < 3; ++axis)
                total[e][axis] += pull[e][axis];
        __syncthreads();
    }}
    #pragma unroll
    for (int e = 0; e < {EACH}; ++e)
        if (begin + e * {THREADS} < n)
            for (int axis = 0; axis < 3; ++axis)
                out[3 * (begin + e * {THREADS}) + axis] = total[e][axis];
}}
""",
    "accelerations",
    options=("--use_fast_math",),
)


class Part:
    """A device's targets, and all sources."""

    def __init__(self, device: int, bodies: Any, own: slice) -> None:
        self.device = cupy.cuda.Device(device)
        with self.device:
            self.sources = cupy.asarray(bodies)
            self.targets = self.sources[own].copy()
            self.out = cupy.empty((len(self.targets), 3), np.float32)
            self.stream = cupy.cuda.Stream(non_blocking=True)
            self.device.synchronize()

    def launch(self) -> None:
        n, s = len(self.targets), len(self.sources)
        soft = np.float32(SOFTENING**2)
        with self.device, self.stream:
            KERNEL(
                (-(-n // (THREADS * EACH)),),
                (THREADS,),
                (self.targets, self.sources, np.int32(n), np.int32(s), soft, self.out),
            )

    def result(self) -> Any:
        with self.device:
            return self.out.get(stream=self.stream)


def cupy_rows(settings: Settings) -> Iterator[Row]:
    """One process that launches on every GPU, then waits for all."""
    for ranks in settings.ranks:
        for count in settings.rows:
            places, masses = bodies_of(count, "float32")
            bodies = np.concatenate([places, masses[:, None]], axis=1)
            parts = [Part(rank, bodies, rows_of(rank, ranks, count)) for rank in range(ranks)]

            def step(parts: list[Part] = parts) -> Any:
                for part in parts:
                    part.launch()
                return np.concatenate([part.result() for part in parts])

            check("CuPy", step(), places, masses)
            yield Row("CuPy", "RawKernel, float32", ranks, count, time_steps(step, settings))
            limit = count * count / (ranks * pairs_a_second())
            what = f"{INSTRUCTIONS} float32 instructions a pair"
            yield Row("limit", what, ranks, count, summarise([round(limit * 1e9)]))


if __name__ == "__main__":
    print_rows(cupy_rows)
