"""Numba CUDA kernels, run natively on one CPU core.

The layers of the compiler, each a module: `_source` (function to syntax tree), `_names` (CUDA's words to plain names),
`_analysis`, `_bounds`, `_loops` and `_flat` (what is known about the code), `_emit` (one thread's code to loops over blocks and
threads), `_build` (a compiled function) and `_kernel` (the object that is launched).
"""

from synknumba.simt._kernel import Kernel as Kernel
from synknumba.simt._kernel import jit as jit
