"""Thread pools of numerical libraries: ranks have their share of the cores in them, and do not wait
for the script's threads.

    OpenBLAS              ends its threads before a fork; its setter would start them again, a thread for each
                          core on every rank, which spin for some 0.1 s: it is called in the script
    MKL, LLVM's and       end their threads before a fork, or start new ones after it
    Intel's OpenMP
    GNU OpenMP            `pools_for_ranks` ends the threads; new ones start where they are needed
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
from contextlib import contextmanager, suppress
from pathlib import Path

import numba

from synknumba._host.signals import held_signals

_OPENBLAS_SETTERS = ("openblas_set_num_threads", "openblas_set_num_threads64_")
# the wheels of NumPy and SciPy rename the symbols of their bundled OpenBLAS
_PREFIXES = (
    "",
    "scipy_",
)
# Of OpenBLAS: number of threads that its pool starts with. The wheels of NumPy 2.5.5 hide it, and
# start one for each core as soon as a rank with a share of several cores computes.
_POOL_SIZE = "blas_num_threads"
_PAUSE_SOFT = 1  # omp_pause_soft of <omp.h>


# Of the libraries that `pools_for_ranks` has found: what returns their number of threads, and what
# sets it.
_pools: list[tuple[Callable[[], int], Callable[[int], object]]] = []
_pool_sizes: list[ctypes.c_int] = []
_serial: list[ctypes.CDLL] = []  # OpenMP runtimes whose threads could not be ended


@contextmanager
def pools_for_ranks(threads: int) -> Iterator[None]:
    """Finds the libraries loaded so far, ends the threads of GNU OpenMP, and sets OpenBLAS to
    `threads` threads or fewer in the block, for children: in the thread that forks them.

    Takes 10 ms. Uses threadpoolctl where installed, else finds OpenBLAS and GNU OpenMP.
    """
    paths = _find_pools()
    _serial[:] = [library for library in _gnu_openmp(paths) if not _has_paused(library)]
    openblas = list(_openblas(paths))
    _pool_sizes[:] = [
        ctypes.c_int.in_dll(library, _POOL_SIZE)
        for library in openblas
        if hasattr(library, _POOL_SIZE)
    ]
    larger = [(set_number, get()) for get, set_number in _accessors(openblas) if get() > threads]
    try:
        for set_number, _ in larger:
            set_number(threads)
        yield
    finally:
        with held_signals():
            for set_number, number in larger:
                set_number(number)


def _find_pools() -> set[str]:
    """Finds the libraries that `limit_threads` sets; returns paths, theirs among them."""
    try:
        import threadpoolctl  # optional
    except ImportError:
        paths = _loaded_libraries()
        _pools[:] = [
            (library.omp_get_max_threads, library.omp_set_num_threads)
            for library in _gnu_openmp(paths)
        ]
        return paths
    with warnings.catch_warnings():  # of two OpenMP runtimes, which is the script's business
        warnings.simplefilter("ignore")
        libraries = threadpoolctl.ThreadpoolController().lib_controllers
    _pools[:] = [(library.get_num_threads, library.set_num_threads) for library in libraries]
    return {library.filepath for library in libraries}


def limit_threads(threads: int) -> None:
    """Limits BLAS, OpenMP and Numba's parallel loops to `threads` threads in this process, or to
    fewer, as they are already.

    Sets what `pools_for_ranks` has found. Libraries loaded later read the limit from environment
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
    for size in _pool_sizes:
        size.value = min(threads, size.value)
    for get, set_number in _pools:
        if (get() or 0) > threads:  # not where it is so: a setter may start threads
            set_number(threads)
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


def _openblas(paths: Iterable[str]) -> Iterator[ctypes.CDLL]:
    for path in paths:
        if re.search(r"openblas.*\.so", path):  # Debian's is openblas-pthread/libblas.so.3
            with suppress(OSError):
                yield ctypes.CDLL(path)


def _accessors(
    openblas: Iterable[ctypes.CDLL],
) -> Iterator[tuple[Callable[[], int], Callable[[int], object]]]:
    for library in openblas:
        for name in (prefix + setter for prefix in _PREFIXES for setter in _OPENBLAS_SETTERS):
            if hasattr(library, name):
                yield getattr(library, name.replace("_set_", "_get_")), getattr(library, name)
