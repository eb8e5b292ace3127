"""Kernels compiled for a GPU, kept from one process to the next, and compiled once for all ranks.

    launch ──types──> dispatcher.compile ──> in this process? ──> on disk? ──> lock ──> on disk by now? ──> compile, keep

Of all ranks that need a kernel at the same time, the one that gets the lock compiles it; the others wait, and load what it has
kept: machine code (a cubin), so nothing is left to be linked. GPUs of another compute capability have kernels of their own.

The key is made as for CPU kernels (see `simt._fingerprint`), with NVIDIA's compilers and driver in it instead of the processor.
Not numba-cuda's `cache=True`, which looks at a file's date instead of at what the function reads, and compiles on every rank.

Only numba-cuda's kernels are kept. Those of another `numba.cuda`, or of one that works differently inside, run without.
"""

import contextlib
import pickle
from functools import cache
from pathlib import Path
from typing import Any

from numba import cuda
from numba.core.serialize import dumps

from synknumba.simt.internals import CacheInfo, Fingerprint, KernelStore, NotComparableError, directory, type_text, versions

# Part of every key: to be raised when the meaning of a key or of a file changes.
_FORMAT = "CUDA kernel 1"

# Settings of Numba that differ between processes without a meaning for the code, or that change at the first compilation, as
# the capability that PTX is made for where none is given. All others count.
_OTHER_SETTINGS = frozenset(
    {
        "NUMBA_NUM_THREADS",
        "NUMBA_DEFAULT_NUM_THREADS",
        "THREADING_LAYER",
        "THREADING_LAYER_PRIORITY",
        "CACHE_DIR",
        "GDB_BINARY",
        "CUDA_DEFAULT_PTX_CC",
    }
)

# The driver's text about itself: the version that CUDA tells is that of its interface only.
_DRIVER = Path("/proc/driver/nvidia/version")

_USED = ("compile", "overloads", "add_overload", "targetoptions", "py_func")


class CudaCache:
    """The cache, as one dispatcher sees it, which is what `cuda.jit` makes of a function.

    Args:
        dispatcher: compiled for no argument types yet.
    """

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher
        self._compile = dispatcher.compile
        self.info = CacheInfo()

    def compile(self, kinds: tuple[Any, ...]) -> Any:
        """The kernel for these types of its arguments; instead of the dispatcher's own method, which a launch calls.

        Args:
            kinds: Numba's types.
        """
        known = self._dispatcher.overloads.get(kinds)
        if known is not None:
            return known
        store = _store()
        if store is None:
            return self._compiled(kinds, "the cache is switched off")
        try:
            key = self._key(kinds)
        except NotComparableError as error:
            return self._compiled(kinds, str(error))
        kernel = self._load(store, key, kinds)
        if kernel is not None:
            return kernel
        with store.lock(key):  # also given back when the compiler refuses the kernel
            kernel = self._load(store, key, kinds)
            return self._made(store, key, kinds) if kernel is None else kernel

    def _key(self, kinds: tuple[Any, ...]) -> str:
        options = self._dispatcher.targetoptions
        if options.get("link"):
            raise NotComparableError("it is linked with files, which may change")
        capability = tuple(cuda.get_current_device().compute_capability)
        fingerprint = Fingerprint(_FORMAT, *versions(), *_toolkit(), _settings(), capability, options)
        fingerprint.function(self._dispatcher.py_func)
        return Fingerprint(fingerprint.hexdigest(), *map(type_text, kinds)).hexdigest()

    def _load(self, store: KernelStore, key: str, kinds: tuple[Any, ...]) -> Any:
        payload = store.read(key)
        if payload is None:
            return None
        try:
            kernel = pickle.loads(payload)  # noqa: S301  # the store reads files of this user only
            kernel.bind()  # puts it on the GPU, and sets how it shares memory with the cache: numba-cuda would not
        except Exception:  # noqa: BLE001  # made by something else than this, or refused by the driver: compiled again
            return None
        self._dispatcher.add_overload(kernel, kinds)
        self.info = CacheInfo(self.info.hits + 1, self.info.misses, self.info.not_kept)
        return kernel

    def _made(self, store: KernelStore, key: str, kinds: tuple[Any, ...]) -> Any:
        kernel = self._compiled(kinds, None)
        not_kept = self._keep(store, key, kinds, kernel)
        self.info = CacheInfo(self.info.hits, self.info.misses, not_kept)
        return kernel

    def _compiled(self, kinds: tuple[Any, ...], not_kept: str | None) -> Any:
        kernel = self._compile(kinds)
        self.info = CacheInfo(self.info.hits, self.info.misses + 1, not_kept)
        return kernel

    def _keep(self, store: KernelStore, key: str, kinds: tuple[Any, ...], kernel: Any) -> str | None:
        """Writes a kernel to the disk. Returns why that could not be done."""
        if getattr(kernel, "launch_config_sensitive", True):
            return "its code depends on the size of the launch"
        try:
            payload = dumps(kernel)
            if self._key(kinds) != key:
                return "a value that it reads has changed in the meantime"
        except Exception as error:  # noqa: BLE001  # whatever an object raises that is pickled: the kernel runs all the same
            return f"it cannot be kept ({type(error).__name__}: {error})"
        return None if store.write(key, payload) else f"{store.path} cannot be written to"


def attach(dispatcher: Any) -> CudaCache | None:
    """Makes a dispatcher look on disk before it compiles a kernel.

    Args:
        dispatcher: what `cuda.jit` made of a function.

    Returns:
        The cache; None where kernels of this kind are not kept.
    """
    if getattr(cuda, "implementation", None) != "NVIDIA" or not all(hasattr(dispatcher, name) for name in _USED):
        return None
    kept = CudaCache(dispatcher)
    dispatcher.compile = kept.compile
    return kept


@cache
def _store() -> KernelStore | None:
    """Asked for once in a process: nothing is known of what was compiled while the cache was switched off."""
    path = directory()
    return None if path is None else KernelStore(path)


@cache
def _toolkit() -> tuple[object, ...]:
    """The compilers and the driver.

    Raises:
        NotComparableError: where they are is not known.
    """
    try:
        # Private to numba-cuda, so not to be relied on.
        from numba.cuda.cudadrv.driver import get_version
        from numba.cuda.cudadrv.libs import get_cudalib, get_libdevice

        files = [get_cudalib("nvvm"), get_libdevice(), get_cudalib("cudadevrt", static=True), _linker()]
        described = [(str(path), *_size_and_date(path)) for path in files if path is not None]
        driver = _DRIVER.read_text() if _DRIVER.exists() else ""
        return *get_version(), driver, *described
    except Exception as error:
        raise NotComparableError(
            f"CUDA's compilers are not where they were looked for ({type(error).__name__}: {error})"
        ) from error


def _size_and_date(path: str) -> tuple[int, int]:
    status = Path(path).stat()
    return status.st_size, status.st_mtime_ns


def _linker() -> str | None:
    """The library that links kernels; where there is none, the driver does it."""
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib  # comes with numba-cuda

    with contextlib.suppress(DynamicLibNotFoundError):
        return str(load_nvidia_dynamic_lib("nvJitLink").abs_path)
    return None


def _settings() -> list[tuple[str, str]]:
    from numba.cuda.core import config  # private to numba-cuda

    named = {name: value for name, value in vars(config).items() if name.isupper() and name not in _OTHER_SETTINGS}
    return [(name, str(value)) for name, value in sorted(named.items())]
