"""Debugs a kernel where Numba's CUDA simulator is switched on:
`NUMBA_ENABLE_CUDASIM=1 python debug_in_simulator.py`.
"""

import numpy as np
from numba import cuda, float64

from synknumba import simt


@cuda.jit(device=True)
def total(memory):
    cuda.syncthreads()
    return memory[0] + memory[1] + memory[2] + memory[3]


@cuda.jit
def kernel(x, out):
    i = cuda.grid(1)
    memory = cuda.shared.array(4, float64)
    memory[i] = x[i]
    out[i] = total(memory)


def main() -> None:
    device = cuda.to_device(np.zeros(4))
    simt.debug(kernel)[1, 4](np.arange(4.0), device)
    print(device.copy_to_host())
    try:
        simt.check(kernel)[1, 4](np.arange(3.0), device)
    except simt.BoundsError as error:
        print(type(error).__name__)


if __name__ == "__main__":
    main()
