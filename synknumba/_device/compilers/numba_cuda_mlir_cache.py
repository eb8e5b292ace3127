"""numba-cuda-mlir's side of the kernel cache: before a dispatcher compiles, the store is looked in.

    launch ──> dispatcher._compile_impl ──> has it compiled? ──> GpuKernelCache.get

As in `numba_cuda_cache`, what is stored is machine code, with the PTX beside it, which tells
whether it prints. The package's own `cache=True` is not used: it looks at a file's date instead of
at what the function reads, compiles on every rank, and forgets that a kernel is cooperative (0.6).
"""

import pickle
from collections.abc import Mapping
from functools import cache
from typing import Any, final

import numba_cuda_mlir
from cuda.pathfinder import load_nvidia_dynamic_lib
from numba_cuda_mlir import tools
from numba_cuda_mlir.caching import CachedCompileResult
from numba_cuda_mlir.compiler import CompileResult
from numba_cuda_mlir.numba_cuda import typing
from numba_cuda_mlir.numba_cuda.core import config
from numba_cuda_mlir.numba_cuda.cudadrv.driver import get_version
from numba_cuda_mlir.numba_cuda.cudadrv.libs import get_libdevice
from numba_cuda_mlir.types import none

from synknumba._device.compilers.base import (
    GpuKernelCache,
    describe_files,
    driver_text,
    settings_of,
)
from synknumba.simt.internals import (
    Fingerprint,
    NotComparableError,
    counterpart,
    type_text,
    versions,
)

# Part of every key: to be raised when the meaning of a key or of a file changes.
_FORMAT = "CUDA kernel of numba-cuda-mlir 2"

# What a launch needs of a compiled kernel, and what `prints` reads.
_KEPT = ("cubin", "ptx", "func_name", "use_cooperative")
# What else a compiled kernel may need before it is launched.
_LOST = (
    "setup_callbacks",
    "teardown_callbacks",
    "linked_external_link_items",
    "required_dynamic_shared_memory",
)

_USED = (
    "_compile_impl",
    "overloads",
    "launch_config_overloads",
    "targetoptions",
    "py_func",
    "_literal_arg_positions",
)


@final
class MlirCache(GpuKernelCache):
    """The cache of one dispatcher, which compiles for arguments of these types only, and has not
    yet.
    """

    def __init__(self, dispatcher: Any, kinds: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        super().__init__()
        self._dispatcher, self._kinds, self._options = dispatcher, kinds, dict(options)
        self._compile = dispatcher._compile_impl  # noqa: SLF001  # `compile` is not what a launch calls
        self._args: tuple[Any, ...] | None = None  # of the launch that has it compiled

    def compile(self, *args: Any) -> Any:
        """Replaces the dispatcher's own method, which a launch calls, and which calls itself
        when it begins anew.
        """
        if self._args is None:
            self._args = args
            self.get(self._kinds)
        return self._compile(*args)  # finds what is compiled

    def key(self, signature: tuple[Any, ...]) -> str:
        parts = (
            *versions(),
            numba_cuda_mlir.__version__,
            *_toolkit(),
            settings_of(config),
            tools.get_gpu_compute_capability(tuple),
        )
        fingerprint = Fingerprint(_FORMAT, *parts, self._options)
        fingerprint.function(self._dispatcher.py_func)
        return Fingerprint(
            fingerprint.hexdigest(), *(type_text(counterpart(kind)) for kind in signature)
        ).hexdigest()

    def build(self, signature: tuple[Any, ...]) -> Any:
        assert self._args is not None
        self._compile(*self._args)
        return self._dispatcher.overloads.get(signature)

    def load(self, payload: bytes, signature: tuple[Any, ...]) -> Any:
        fields = pickle.loads(payload)  # noqa: S301  # the store reads files of this user only
        kernel = CompileResult(
            CachedCompileResult(
                typing.signature(none, *signature), {name: fields[name] for name in _KEPT}
            )
        )
        self._dispatcher.overloads[signature] = kernel
        return kernel

    def dump(self, kernel: Any) -> bytes:
        return pickle.dumps({name: kernel.metadata.get(name) for name in _KEPT})

    def not_kept(self, kernel: Any) -> str | None:
        if kernel is None:
            return "its code depends on the size of the launch, or on the values of arguments"
        for name in _LOST:
            if kernel.metadata.get(name):
                if name.startswith("linked"):
                    return "it is linked with files, which may change"
                return f"it needs {name}"
        if not kernel.metadata.get("ptx"):
            return "it is optimised when it is linked"
        return None


def attach(dispatcher: Any, kinds: tuple[Any, ...], options: Mapping[str, Any]) -> MlirCache | None:
    """Has a dispatcher look in the store before it compiles. Returns the cache; None if the
    version has other private parts.
    """
    if not all(hasattr(dispatcher, name) for name in _USED):
        return None
    attached = MlirCache(dispatcher, kinds, options)
    dispatcher._compile_impl = attached.compile  # noqa: SLF001
    return attached


@cache
def _toolkit() -> tuple[object, ...]:
    """The compilers and the driver; raises NotComparableError if they are not where they were
    looked for.
    """
    try:
        libraries = (
            str(load_nvidia_dynamic_lib(name).abs_path) for name in ("nvvm", "nvrtc", "nvJitLink")
        )
        described = describe_files([get_libdevice(), *libraries])
        return *get_version(), driver_text(), *described
    except Exception as error:
        raise NotComparableError(
            f"CUDA's compilers were not found where expected ({type(error).__name__}: {error})"
        ) from error
