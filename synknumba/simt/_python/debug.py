"""`simt.debug`: runs a kernel as pure Python under a debugger."""

from typing import Any, final

from synknumba.simt._python.arrays import Array, Watch
from synknumba.simt._python.findings import outside_finding
from synknumba.simt._python.launch import PythonKernel


@final
class _DebugWatch(Watch):
    """Raises at the first error."""

    def outside(self, array: Array, index: Any, what: str) -> None:
        raise self.fail(outside_finding(self.launch.current, array, index, what))


def debug(kernel: Any) -> PythonKernel:
    """Returns a version of a kernel that runs in pure Python, one thread after another, for use
    with a debugger.

    `simt.debug(kernel)[grid, block, stream, smem](*args)` has the kernel's effect on the arrays,
    but each thread is ordinary Python code with the user's own lines and variable names.
    `breakpoint()` in the kernel works, and so does `python -m pdb script.py` with
    `break FILE:LINE, cuda.grid(1) == 17`: names of `numba.cuda` refer to the current thread. After
    an error, `pdb.pm()` shows the thread that raised it.

    Threads run in order, x fastest, each until it ends or waits for others. Arithmetic uses Numba's
    types: float32 stays float32, and integers wrap around at 64 bits. New shared and local arrays
    hold NaN, or bytes 0xCD in integers.

    Speed is 300,000 to 700,000 element accesses per second, including the arithmetic around them:
    launch few threads.

    Args:
        kernel: a plain function, one decorated by `cuda.jit` or `synknumba.parallel`, or a `simt`
            kernel.

    Raises:
        BoundsError: at launch: an index is out of bounds; indices from -n to -1 count from the end,
            as on a GPU.
        DivergenceError: at launch: threads that must meet at a barrier cannot.
        KernelError: at launch: the kernel uses an unsupported feature.

        Exception: at launch: what the kernel itself raises, such as an AssertionError; a note gives
            line and thread.
    """
    return PythonKernel(kernel, "debug", _DebugWatch)
