"""Compiler and debugger that run Numba CUDA kernels on one CPU core.

A compiler, which is all that a rank needs, from the bottom up:

    _library     CUDA's operations on a CPU, and the words of generated code
    _maths       its numbers: libdevice, directed rounding, 16-bit floats
    _numba       what changes in Numba's own compiler
    _source      what the user wrote: definitions, names, values
    _lower       definition -> code of one thread
    _analysis    uniformity, bounds, types and loops of that code
    _machine     generated code -> machine code, vector maths, the cache of compiled kernels
    _emit        code of one thread -> loops over the blocks of a grid and the threads of a block
    _explain     errors in the user's words
    _launch      configurations: grid, block, stream and shared memory
    _entries     the compiled launch functions of a kernel, by types and block size
    _kernel      what a user launches
    _jit         the decorator and its options

and what hangs on it:

    _python      kernels as Python, thread by thread: `debug`
    _checker     `check`: findings, in Python and in instrumented machine code
    _ufuncs      numba's `vectorize`, `guvectorize` and `cuda.reduce`
    _random_states  the states of random streams
    _standins    programs for `numba.cuda`: `as_cuda`, and the plugin of pytest
    cuda         what takes the place of `numba.cuda`, also where Numba has none

Importing this package with SYNKNUMBA_SIMT=1 in the environment puts `jit` and the stand-ins into
`numba.cuda` for the process.
"""

import importlib
from typing import Any

from synknumba._errors import BoundsError as BoundsError
from synknumba._errors import DivergenceError as DivergenceError
from synknumba._errors import KernelCheckError as KernelCheckError
from synknumba._errors import KernelCheckWarning as KernelCheckWarning
from synknumba._errors import RaceError as RaceError
from synknumba._errors import UninitializedError as UninitializedError
from synknumba.simt._checker.annotate import AnnotatedSource as AnnotatedSource
from synknumba.simt._checker.annotate import annotate as annotate
from synknumba.simt._checker.check import check as check
from synknumba.simt._jit import jit as jit
from synknumba.simt._kernel import Kernel as Kernel
from synknumba.simt._python.debug import debug as debug
from synknumba.simt._random_states import random_states as random_states
from synknumba.simt._standins.replace import as_cuda as as_cuda
from synknumba.simt._standins.replace import of_environment as _of_environment
from synknumba.simt._ufuncs import Reduce as Reduce
from synknumba.simt._ufuncs import guvectorize as guvectorize
from synknumba.simt._ufuncs import reduce as reduce
from synknumba.simt._ufuncs import vectorize as vectorize

_of_environment()


def __getattr__(name: str) -> Any:
    if name != "cuda":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.cuda")  # imports numba.cuda, which takes 0.3 s
