"""Limits the thread pools of numerical libraries in a rank to the rank's share of the cores."""

import ctypes
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numba

_OPENBLAS_SETTERS = ("openblas_set_num_threads", "openblas_set_num_threads64_")
_PREFIXES = ("", "scipy_")  # the wheels of NumPy and SciPy rename the symbols of their bundled OpenBLAS


# Of the libraries that `find_pools` has found: what tells their number of threads, and what sets it.
_found: list[tuple[Callable[[], int], Callable[[int], object]]] = []


def find_pools() -> None:
    """Finds the libraries loaded so far, in the coordinator before its ranks are forked: that takes 10 ms.

    Uses threadpoolctl where installed, else finds the OpenBLAS of NumPy's wheels.
    """
    try:
        import threadpoolctl  # optional
    except ImportError:
        _found[:] = _openblas()
    else:
        with warnings.catch_warnings():  # of two OpenMP runtimes, which is the script's business
            warnings.simplefilter("ignore")
            controller = threadpoolctl.ThreadpoolController()
        _found[:] = [(one.get_num_threads, one.set_num_threads) for one in controller.lib_controllers]


def limit_threads(threads: int) -> None:
    """Limits BLAS, OpenMP and Numba's parallel loops to `threads` threads in this process, or to fewer, as they are already.

    Sets what `find_pools` has found. Libraries loaded later read the limit from environment variables.
    """
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS"):
        given = os.environ.get(variable, "")
        os.environ[variable] = str(min(threads, int(given)) if given.isdecimal() and int(given) else threads)
    # Read when the pool starts; numba.set_num_threads would start it here.
    numba.config.NUMBA_NUM_THREADS = min(threads, numba.config.NUMBA_NUM_THREADS)
    for get, limit in _found:
        limit(min(threads, get() or threads))


def _openblas() -> Iterator[tuple[Callable[[], int], Callable[[int], object]]]:
    maps = ""
    with suppress(OSError):  # without /proc, the pools are as large as the machine
        maps = Path("/proc/self/maps").read_text()
    for path in set(re.findall(r"/\S*openblas\S*\.so\S*", maps)):
        with suppress(OSError):
            library = ctypes.CDLL(path)
            for name in (prefix + setter for prefix in _PREFIXES for setter in _OPENBLAS_SETTERS):
                if hasattr(library, name):
                    yield getattr(library, name.replace("_set_", "_get_")), getattr(library, name)
