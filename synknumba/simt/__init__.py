"""Compiler and debugger that run Numba CUDA kernels on one CPU core.

The compiler, one package per stage:

    _frontend    Python function -> code of one thread: source, names, device functions
    _library     CUDA's operations on a CPU: atomics, collectives, libdevice, vector types
    _analysis    uniformity, bounds, types and loops of that code
    _emit        code of one thread -> loops over the blocks of the grid and the threads of a block
    _machine     generated code -> machine code: Numba, vector maths, the cache of compiled kernels

`_standins` has what programs written for `numba.cuda` need beside kernels: device arrays, streams,
devices; and `as_cuda`, which puts them and `jit` into `numba.cuda`. `pytest` is a plugin that does
so for tests. Importing this package with SYNKNUMBA_SIMT=1 in the environment does it for the whole
process.

`_kernel` holds the object that a user launches, `_jit` the decorator that makes it,
`_random_states` the states of random streams, `_ufuncs` the counterparts of numba's `vectorize`,
`guvectorize` and `cuda.reduce`.

`_debugger` holds `debug` and `check`, which run a kernel in Python without compiling it: `source`
and `program` turn the user's functions into generators, `run` schedules threads, blocks and
barriers, `arrays` and `arithmetic` reproduce a kernel's memory and number types, `shadow` records
which thread accessed which element. Long checks go on in compiled code: `instrument` and `accesses`
put checks into the source before the compiler lowers it, `runtime` is the shadow and the scheduler
in machine code, and `compiled` launches it. `annotate` shows findings at the lines of the source.
"""

from synknumba._errors import BoundsError as BoundsError
from synknumba._errors import DivergenceError as DivergenceError
from synknumba._errors import KernelCheckError as KernelCheckError
from synknumba._errors import KernelCheckWarning as KernelCheckWarning
from synknumba._errors import RaceError as RaceError
from synknumba._errors import UninitializedError as UninitializedError
from synknumba.simt._debugger.annotate import AnnotatedSource as AnnotatedSource
from synknumba.simt._debugger.annotate import annotate as annotate
from synknumba.simt._debugger.check import check as check
from synknumba.simt._debugger.debug import debug as debug
from synknumba.simt._kernel import Kernel as Kernel
from synknumba.simt._kernel import jit as jit
from synknumba.simt._random_states import random_states as random_states
from synknumba.simt._standins.replace import as_cuda as as_cuda
from synknumba.simt._standins.replace import of_environment as _of_environment
from synknumba.simt._ufuncs import Reduce as Reduce
from synknumba.simt._ufuncs import guvectorize as guvectorize
from synknumba.simt._ufuncs import reduce as reduce
from synknumba.simt._ufuncs import vectorize as vectorize

_of_environment()
