"""`debug`: a kernel in pure Python, for a debugger."""

from typing import Any, final

from synknumba.simt._debugger.arrays import Array
from synknumba.simt._debugger.findings import outside_finding
from synknumba.simt._debugger.launch import PythonKernel
from synknumba.simt._debugger.run import LaunchWatch


@final
class _DebugWatch(LaunchWatch):
    """Stops at the first mistake."""

    def outside(self, array: Array, index: Any, what: str) -> None:
        raise self.fail(outside_finding(self.launch.current, array, index, what))


def debug(kernel: Any) -> PythonKernel:
    """Makes a kernel run in pure Python, one thread after the other, for a debugger.

    `simt.debug(kernel)[grid, block, stream, smem](*args)` does what the kernel does on a GPU, to the same arrays, but each
    thread is ordinary Python code with the user's own lines and variable names. A `breakpoint()` in the kernel works, and so
    does `python -m pdb script.py` with `break FILE:LINE, cuda.grid(1) == 17`: the names of `numba.cuda` answer for the thread
    that stands there. After an error `pdb.pm()` shows the thread that raised it.

    Threads run in order, x fastest; each until it ends or waits for others. Arithmetic has Numba's types: float32 stays
    float32, integers wrap around after 64 bits. New shared and local arrays hold NaN, integers in them the bytes 0xCD.

    It is slow: 300,000 to 700,000 accesses to array elements a second, with the arithmetic around them. Launch few threads.

    Args:
        kernel: a plain function, one decorated by `cuda.jit`, or a `simt` kernel.

    Raises:
        BoundsError: at the launch: an index is outside of an array; from -n to -1 it counts from the end, as on a GPU.
        DivergenceError: at the launch: threads that must meet at a barrier never can.
        KernelError: at the launch: the kernel uses what cannot be run.

        What the kernel raises itself, such as the AssertionError of an `assert`, keeps its type; a note names line and thread.
    """
    return PythonKernel(kernel, "debug", _DebugWatch)
