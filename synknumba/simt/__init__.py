"""Numba CUDA kernels, run natively on one CPU core.

The layers of the compiler, each a module: `_source` (function to syntax tree), `_names` (CUDA's words to plain names),
`_analysis`, `_bounds`, `_loops` and `_flat` (what is known about the code), `_emit` (one thread's code to loops over blocks and
threads), `_build` (a compiled function), `_kernel` (the object that is launched) and `_jit` (the decorator).

Beside the compiler, `_debug` and `_check` run a kernel in Python: `_threads_source` and `_threads_program` (the user's
functions as generators), `_threads_run` (threads, blocks and barriers), `_threads_arrays` and `_threads_arithmetic` (memory and
numbers as a kernel has them), `_threads_shadow` (who used which element).
"""

from synknumba._errors import BoundsError as BoundsError
from synknumba._errors import DivergenceError as DivergenceError
from synknumba._errors import KernelCheckError as KernelCheckError
from synknumba._errors import RaceError as RaceError
from synknumba._errors import UninitializedError as UninitializedError
from synknumba.simt._debugger.check import check as check
from synknumba.simt._debugger.debug import debug as debug
from synknumba.simt._jit import jit as jit
from synknumba.simt._kernel import Kernel as Kernel
