"""numba-cuda's side of the kernel cache: a dispatcher looks in the store before it compiles.

    launch ──types──> dispatcher.compile ──> in this process? ──> GpuKernelCache.get

What is stored is machine code (a cubin), so nothing is left to be linked. GPUs of another compute
capability have kernels of their own. The key is made as for CPU kernels (see
`simt._machine.fingerprint`), with NVIDIA's compilers and driver in place of the processor.
numba-cuda's own `cache=True` is not used: it looks at a file's date instead of at what the function
reads, and compiles on every rank.

Only kernels of numba-cuda are stored. Those of another `numba.cuda`, or of a version with other
private parts, run without.
"""

import contextlib
import pickle
from functools import cache
from typing import Any, final

from numba import cuda
from numba.core.serialize import dumps

from synknumba._device.compilers.base import (
    GpuKernelCache,
    describe_files,
    driver_text,
    settings_of,
)
from synknumba.simt.internals import Fingerprint, NotComparableError, type_text, versions

# Part of every key: to be raised when the meaning of a key or of a file changes.
_FORMAT = "CUDA kernel 1"

_USED = ("compile", "overloads", "add_overload", "targetoptions", "py_func")


@final
class CudaCache(GpuKernelCache):
    """The cache of one dispatcher of `cuda.jit`, compiled for no argument types yet."""

    def __init__(self, dispatcher: Any) -> None:
        super().__init__()
        self._dispatcher = dispatcher
        self._compile = dispatcher.compile

    def compile(self, signature: tuple[Any, ...]) -> Any:
        """Replaces the dispatcher's own method, which a launch calls."""
        overload = self._dispatcher.overloads.get(signature)
        return self.get(signature) if overload is None else overload

    def key(self, signature: tuple[Any, ...]) -> str:
        options = self._dispatcher.targetoptions
        if options.get("link"):
            raise NotComparableError("it is linked with files, which may change")
        capability = tuple(cuda.get_current_device().compute_capability)
        fingerprint = Fingerprint(
            _FORMAT, *versions(), *_toolkit(), _settings(), capability, options
        )
        fingerprint.function(self._dispatcher.py_func)
        return Fingerprint(fingerprint.hexdigest(), *map(type_text, signature)).hexdigest()

    def build(self, signature: tuple[Any, ...]) -> Any:
        return self._compile(signature)

    def load(self, payload: bytes, signature: tuple[Any, ...]) -> Any:
        kernel = pickle.loads(payload)  # noqa: S301  # the store reads files of this user only
        # puts it on the GPU, and sets how it shares memory with the cache: numba-cuda would not
        kernel.bind()
        self._dispatcher.add_overload(kernel, signature)
        return kernel

    def dump(self, kernel: Any) -> bytes:
        return dumps(kernel)

    def not_kept(self, kernel: Any) -> str | None:
        if getattr(kernel, "launch_config_sensitive", True):
            return "its code depends on the size of the launch"
        return None


def attach(dispatcher: Any) -> CudaCache | None:
    """Has a dispatcher look in the store before it compiles. Returns the cache; None if kernels
    of its kind are not stored.
    """
    if getattr(cuda, "implementation", None) != "NVIDIA" or not all(
        hasattr(dispatcher, name) for name in _USED
    ):
        return None
    attached = CudaCache(dispatcher)
    dispatcher.compile = attached.compile
    return attached


@cache
def _toolkit() -> tuple[object, ...]:
    """The compilers and the driver; raises NotComparableError if they are not where they were
    looked for.
    """
    try:
        from numba.cuda.cudadrv.driver import get_version
        from numba.cuda.cudadrv.libs import get_cudalib, get_libdevice

        files = [
            get_cudalib("nvvm"),
            get_libdevice(),
            get_cudalib("cudadevrt", static=True),
            _linker(),
        ]
        described = describe_files(files)
        return *get_version(), driver_text(), *described
    except Exception as error:
        raise NotComparableError(
            f"CUDA's compilers were not found where expected ({type(error).__name__}: {error})"
        ) from error


def _linker() -> str | None:
    """The library that links kernels; where there is none, the driver does it."""
    # comes with numba-cuda
    from cuda.pathfinder import (
        DynamicLibNotFoundError,
        load_nvidia_dynamic_lib,
    )

    with contextlib.suppress(DynamicLibNotFoundError):
        return str(load_nvidia_dynamic_lib("nvJitLink").abs_path)
    return None


def _settings() -> list[tuple[str, str]]:
    from numba.cuda.core import config  # numba-cuda's

    return settings_of(config)
