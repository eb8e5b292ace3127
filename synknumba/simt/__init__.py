"""Compiler and debugger that run Numba CUDA kernels on one CPU core.

The compiler, one package per stage:

    _frontend    Python function -> code of one thread: source, names, device functions
    _library     CUDA's operations on a CPU: atomics, collectives, libdevice, vector types
    _analysis    uniformity, bounds, types and loops of that code
    _emit        code of one thread -> loops over the blocks of the grid and the threads of a block
    _machine     generated code -> machine code: Numba, vector maths, the cache of compiled kernels

`_kernel` holds the object that a user launches, `_jit` the decorator that makes it.

`_debugger` holds `debug` and `check`, which run a kernel in Python without compiling it: `source` and `program` turn the user's
functions into generators, `run` schedules threads, blocks and barriers, `arrays` and `arithmetic` reproduce a kernel's memory
and number types, `shadow` records which thread accessed which element.
"""

from synknumba._errors import BoundsError as BoundsError
from synknumba._errors import DivergenceError as DivergenceError
from synknumba._errors import KernelCheckError as KernelCheckError
from synknumba._errors import RaceError as RaceError
from synknumba._errors import UninitializedError as UninitializedError
from synknumba.simt._debugger.check import check as check
from synknumba.simt._debugger.debug import debug as debug
from synknumba.simt._kernel import Kernel as Kernel
from synknumba.simt._kernel import jit as jit
from synknumba.simt._standins.replace import as_cuda as as_cuda
