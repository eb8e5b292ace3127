"""Limits the thread pools of numerical libraries in a rank to the rank's share of the cores."""

import ctypes
import os
import re
from contextlib import suppress
from pathlib import Path

import numba

_OPENBLAS_SETTERS = ("openblas_set_num_threads", "openblas_set_num_threads64_")
_PREFIXES = ("", "scipy_")  # the wheels of NumPy and SciPy rename the symbols of their bundled OpenBLAS


def limit_threads(threads: int) -> None:
    """Limits BLAS, OpenMP and Numba's parallel loops to `threads` threads in this process.

    Uses threadpoolctl where installed. Without it, the OpenBLAS of NumPy's wheels is set directly. Libraries loaded later
    read the limit from environment variables.
    """
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[variable] = str(threads)
    numba.config.NUMBA_NUM_THREADS = threads  # read when the pool starts; numba.set_num_threads would start it here
    try:
        import threadpoolctl  # optional
    except ImportError:
        _limit_openblas(threads)
    else:
        threadpoolctl.threadpool_limits(threads)


def _limit_openblas(threads: int) -> None:
    maps = ""
    with suppress(OSError):  # without /proc, the pools are as large as the machine
        maps = Path("/proc/self/maps").read_text()
    for path in set(re.findall(r"/\S*openblas\S*\.so\S*", maps)):
        with suppress(OSError):
            library = ctypes.CDLL(path)
            for name in (prefix + setter for prefix in _PREFIXES for setter in _OPENBLAS_SETTERS):
                if hasattr(library, name):
                    getattr(library, name)(threads)
