"""Thread pools of numerical libraries: ranks have their share of the cores in them, and do not wait
for the script's threads.

    OpenBLAS, MKL         handlers of their own end the threads before a fork, or start new ones after it;
                          OpenBLAS's setter starts them, a thread for each core on every rank, which spin for
                          some 0.1 s: its numbers are set in its memory (`_set_stopped`)
    LLVM's, Intel's OpenMP likewise
    GNU OpenMP            `find_pools` ends the threads; new ones start where they are needed
    the same of GCC 8     has no function for that: its loops are serial on ranks
    polars                threads cannot be started again: `inherited.tell_of_threads` warns

A child has none of these threads, only the records of them, and would wait for them at its next
parallel loop for ever.
"""  # noqa: E501

import ctypes
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numba

_OPENBLAS_SETTERS = ("openblas_set_num_threads", "openblas_set_num_threads64_")
# the wheels of NumPy and SciPy rename the symbols of their bundled OpenBLAS
_PREFIXES = (
    "",
    "scipy_",
)
# of OpenBLAS with threads of its own: whether they run, their number, and how many are used
_OPENBLAS_WORDS = ("blas_server_avail", "blas_num_threads", "blas_cpu_number")
_PAUSE_SOFT = 1  # omp_pause_soft of <omp.h>


# Of the libraries that `find_pools` has found: what tells their number of threads, and what sets
# it.
_found: list[tuple[Callable[[], int], Callable[[int], object]]] = []
_serial: list[ctypes.CDLL] = []  # OpenMP runtimes whose threads could not be ended


def find_pools() -> None:
    """Finds the libraries loaded so far, and ends the threads of GNU OpenMP: in the thread that
    forks, before that.

    Takes 10 ms. Uses threadpoolctl where installed, else finds OpenBLAS and GNU OpenMP.
    """
    try:
        import threadpoolctl  # optional
    except ImportError:
        paths = _loaded_libraries()
        openmp = (
            (library.omp_get_max_threads, library.omp_set_num_threads)
            for library in _gnu_openmp(paths)
        )
        _found[:] = [*_openblas(paths), *openmp]
    else:
        with warnings.catch_warnings():  # of two OpenMP runtimes, which is the script's business
            warnings.simplefilter("ignore")
            controller = threadpoolctl.ThreadpoolController()
        paths = {library.filepath for library in controller.lib_controllers}
        _found[:] = [
            (library.get_num_threads, partial(_set, library.dynlib, library.set_num_threads))
            for library in controller.lib_controllers
        ]
    _serial[:] = [library for library in _gnu_openmp(paths) if not _has_paused(library)]


def limit_threads(threads: int) -> None:
    """Limits BLAS, OpenMP and Numba's parallel loops to `threads` threads in this process, or to
    fewer, as they are already.

    Sets what `find_pools` has found. Libraries loaded later read the limit from environment
    variables.
    """
    for variable in (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "NUMBA_NUM_THREADS",
    ):
        setting = os.environ.get(variable, "")
        limit = int(setting) if setting.isdecimal() else 0
        os.environ[variable] = str(min(threads, limit or threads))
    # Read when the pool starts; numba.set_num_threads would start it here.
    numba.config.NUMBA_NUM_THREADS = min(threads, numba.config.NUMBA_NUM_THREADS)
    for get, set_limit in _found:
        set_limit(min(threads, get() or threads))
    for library in _serial:
        library.omp_set_max_active_levels(0)  # also where a library asks for a number of threads


def _loaded_libraries() -> set[str]:
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:  # without /proc, the pools are as large as the machine
        return set()
    return {line.split(maxsplit=5)[5] for line in lines if ".so" in line}


def _gnu_openmp(paths: Iterable[str]) -> Iterator[ctypes.CDLL]:
    """Yields the loaded copies of GNU OpenMP; wheels such as torch's and scikit-learn's bring
    their own.
    """
    for path in paths:
        if os.path.basename(path).startswith("libgomp"):
            with suppress(OSError):  # the file has been replaced
                yield ctypes.CDLL(path)


def _has_paused(library: ctypes.CDLL) -> bool:
    """Ends the threads of this thread's parallel regions; the next region starts threads again,
    here and on the ranks.
    """
    pause = getattr(library, "omp_pause_resource_all", None)
    return pause is not None and pause(_PAUSE_SOFT) == 0


def _openblas(paths: Iterable[str]) -> Iterator[tuple[Callable[[], int], Callable[[int], object]]]:
    for path in paths:
        if not re.search(r"openblas.*\.so", path):  # Debian's is openblas-pthread/libblas.so.3
            continue
        with suppress(OSError):
            library = ctypes.CDLL(path)
            for name in (prefix + setter for prefix in _PREFIXES for setter in _OPENBLAS_SETTERS):
                if hasattr(library, name):
                    getter = getattr(library, name.replace("_set_", "_get_"))
                    yield getter, partial(_set, library, getattr(library, name))


def _set(library: ctypes.CDLL, setter: Callable[[int], object], threads: int) -> None:
    """Sets the number of threads of a library, without starting any."""
    if not _set_stopped(library, threads):
        setter(threads)


def _set_stopped(library: ctypes.CDLL, threads: int) -> bool:
    """Sets the number in the memory of an OpenBLAS without threads, as after a fork; returns
    whether it is one.
    """
    try:
        runs, number, used = (ctypes.c_int.in_dll(library, word) for word in _OPENBLAS_WORDS)
    except ValueError:  # another library, or one that hides them
        return False
    if runs.value:
        return False
    number.value = used.value = threads
    return True
