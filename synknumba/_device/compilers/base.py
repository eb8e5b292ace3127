"""Contract between the CUDA device, which knows memory, streams and graphs, and a compiler of GPU
kernels.

    Python function, options ──kernel──> CompiledKernel ──launcher(grid, block, smem)──> launcher(*args) ──> work on the stream
                                              │
                        first launch with a signature: in this process? ──> in the store? ──> compile, store

The signature of a launch is the types of its arguments. A compiler

- *must* accept kernels in Numba's CUDA dialect, and arguments with `__cuda_array_interface__`,
  `RecordArray` among them;
- *must* put work on the given stream and nothing else where it says `is_capturable`: such launches
  are recorded in CUDA graphs,
  which read and replace the parameters of their nodes;
- *should* store what it compiles, by a `GpuKernelCache`, so that one rank compiles for all.

Compilers are final, override the abstract methods only, and are the only modules that use private
parts of their package.
"""  # noqa: E501

import dis
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from synknumba._device.base import Three
from synknumba._errors import ArgumentError
from synknumba._types import Array, Shape
from synknumba.simt.internals import (
    CacheInfo,
    KernelStore,
    NotComparableError,
    declared_signatures,
    directory,
)

# Options of a user's decorated kernel that its compilation on the ranks keeps.
_KEPT_OPTIONS = ("fastmath", "debug", "lineinfo", "opt", "max_registers")

_DRIVER = Path("/proc/driver/nvidia/version")

# Settings that differ between processes without a meaning for the code, or that change at the first
# compilation, as the capability that PTX is made for where none is given. All others count.
_OTHER_SETTINGS = {
    "NUMBA_NUM_THREADS",
    "NUMBA_DEFAULT_NUM_THREADS",
    "THREADING_LAYER",
    "THREADING_LAYER_PRIORITY",
    "CACHE_DIR",
    "GDB_BINARY",
    "CUDA_DEFAULT_PTX_CC",
}

# Compilers by the types of the kernels that their decorators return.
_OF_KERNELS = {"CUDADispatcher": "numba.cuda", "MLIRDispatcher": "numba-cuda-mlir"}


class CompiledKernel(ABC):
    """A kernel with its options, compiled for each signature at the first launch with it."""

    @abstractmethod
    def launcher(self, grid: Three, block: Three, smem_bytes: int) -> Callable[..., object]:
        """Returns a function of the kernel's arguments that launches it and need not wait for
        its end.
        """

    @abstractmethod
    def is_capturable(self, args: Sequence[Any]) -> bool:
        """Whether launches with arguments of these types only put work on the stream, and so can
        be recorded.
        """

    @abstractmethod
    def convert(self, arg: Any) -> Any:
        """Returns an argument in the form that launches fastest."""

    @abstractmethod
    def prints(self) -> bool:
        """Whether it or a function that it calls may print, in any signature compiled so far.

        CUDA shows printed text when the host waits for the stream, not before.
        """


class Compiler(ABC):
    """A compiler in a rank's process, which makes kernels for one GPU, given by its index and
    made current in the compiler.
    """

    @abstractmethod
    def __init__(self, index: int) -> None: ...

    @staticmethod
    @abstractmethod
    def problem() -> str | None:
        """Why it cannot be used here, in one line; None if it can."""

    @abstractmethod
    def stream(self, address: int) -> Any:
        """Returns the compiler's object for a CUDA stream made elsewhere, given its handle."""

    @abstractmethod
    def kernel(
        self, function: Callable[..., Any], options: Mapping[str, Any], stream: Any
    ) -> CompiledKernel:
        """Returns the kernel of a plain Python function in Numba's CUDA dialect; compiles nothing
        yet.

        The options are those of `cuda.jit`. Launches go to the stream, an object from `stream`.
        """

    @abstractmethod
    def to_host(self, array: Any) -> Array:
        """Copies an array with `__cuda_array_interface__` to the host; waits for it."""


class RecordArray:
    """Device memory with a structured dtype, which CuPy does not have; compilers take it by its
    interface.
    """

    def __init__(self, memory: Any, dtype: "np.dtype[Any]", shape: Shape) -> None:
        self.data, self.dtype, self.shape = memory, dtype, shape
        self.nbytes = math.prod(shape) * dtype.itemsize

    def reshape(self, *shape: int) -> "RecordArray":
        """Returns the same memory in another shape."""
        return RecordArray(self.data, self.dtype, shape)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """CUDA Array Interface, version 3."""
        kind = {"typestr": self.dtype.str, "descr": self.dtype.descr}
        return {
            "shape": self.shape,
            **kind,
            "data": (self.data.ptr, False),
            "version": 3,
            "strides": None,
        }


def plain_kernel(kernel: Any) -> tuple[Callable[..., Any], dict[str, Any]] | None:
    """Returns the Python function and the options of a decorated kernel or a plain function; None
    if it is neither.

    Imports no compiler: a decorated kernel is recognised by its attributes, the same for Numba,
    numba-cuda, numba-cuda-mlir and `simt`. The options name its compiler where its type decides
    which, for `Compilers`, and the argument types of its declared signatures if it has any.
    """
    function = getattr(kernel, "py_func", kernel)
    if not callable(function) or not hasattr(function, "__code__"):
        return None
    options = getattr(kernel, "targetoptions", None) or {}
    launch_options = {
        name: options[name] for name in _KEPT_OPTIONS if options.get(name) is not None
    }
    compiler = _OF_KERNELS.get(type(kernel).__name__)
    if compiler is not None:
        launch_options["compiler"] = compiler
    signatures = [signature.args for signature in declared_signatures(kernel)]
    if signatures:
        launch_options["signatures"] = signatures
    # it takes one of the two
    if (
        compiler == "numba-cuda-mlir"
        and "opt" not in launch_options
        and options.get("opt_level") is not None
    ):
        launch_options["opt"] = options["opt_level"] > 0
    return function, launch_options


# Decorators by the types of what they return.
KERNEL_DECORATORS = {
    "CUDADispatcher": "cuda.jit",
    "MLIRDispatcher": "cuda.jit",
    "Kernel": "simt.jit",
}


def refuse_kernel(decorator: str, target: Any) -> None:
    """Raises ArgumentError if a decorator for functions is applied to a CUDA kernel, which
    returns nothing.
    """
    function = getattr(target, "py_func", None)
    if (
        type(target).__name__ not in KERNEL_DECORATORS
        or function is None
        or (getattr(target, "targetoptions", None) or {}).get("device")
    ):
        return
    returned, last = [], None
    for instruction in dis.get_instructions(function):
        if instruction.opname in {"RETURN_VALUE", "RETURN_CONST"}:
            constant = instruction if instruction.opname == "RETURN_CONST" else last
            returned.append(
                constant is None
                or constant.argval is not None
                or constant.opname not in {"LOAD_CONST", "RETURN_CONST"}
            )
        last = instruction
    if not any(returned):
        raise ArgumentError(
            f"synk.{decorator}: {function.__name__} is a kernel, decorated with "
            f"@{KERNEL_DECORATORS[type(target).__name__]}; "
            "use @synk.parallel instead"
        )


class GpuKernelCache(ABC):
    """Machine code of one kernel, kept from one process to the next, and compiled once for all
    ranks.

        signature ──> on disk? ──> lock ──> on disk by now? ──> compile, store

    Of all ranks that need a kernel at the same time, the one that gets the lock compiles it; the
    others wait, and load what it has stored. What depends on the compiler is abstract.
    """

    def __init__(self) -> None:
        self.info = CacheInfo()

    def get(self, signature: tuple[Any, ...]) -> Any:
        """Returns the compiled kernel for a signature that is new in this process."""
        store = _store()
        if store is None:
            return self._compiled(signature, "the cache is switched off")
        try:
            key = self.key(signature)
        except NotComparableError as error:
            return self._compiled(signature, str(error))
        kernel = self._load(store, key, signature)
        if kernel is not None:
            return kernel
        with store.lock(key):  # also released when the compiler refuses the kernel
            kernel = self._load(store, key, signature)
            if kernel is None:
                kernel = self._compiled(signature, None)
                self.info = replace(self.info, not_kept=self._keep(store, key, signature, kernel))
            return kernel

    @abstractmethod
    def key(self, signature: tuple[Any, ...]) -> str:
        """Returns a digest of everything that the machine code depends on.

        Raises:
            NotComparableError: something cannot be part of a digest.
        """

    @abstractmethod
    def build(self, signature: tuple[Any, ...]) -> Any:
        """Compiles the kernel."""

    @abstractmethod
    def load(self, payload: bytes, signature: tuple[Any, ...]) -> Any:
        """Returns the kernel that `dump` was given, ready to be launched; may raise anything."""

    @abstractmethod
    def dump(self, kernel: Any) -> bytes:
        """Returns the bytes to store; may raise anything."""

    def not_kept(self, kernel: Any) -> str | None:
        """Why a compiled kernel is not to be stored; by default None."""
        return None

    def _load(self, store: KernelStore, key: str, signature: tuple[Any, ...]) -> Any:
        payload = store.read(key)
        if payload is None:
            return None
        try:
            kernel = self.load(payload, signature)
        except Exception:  # noqa: BLE001  # another program's file, or refused by the driver: compiled again
            return None
        self.info = replace(self.info, hits=self.info.hits + 1)
        return kernel

    def _compiled(self, signature: tuple[Any, ...], not_kept: str | None) -> Any:
        kernel = self.build(signature)
        self.info = CacheInfo(self.info.hits, self.info.misses + 1, not_kept)
        return kernel

    def _keep(
        self, store: KernelStore, key: str, signature: tuple[Any, ...], kernel: Any
    ) -> str | None:
        """Writes a kernel to the disk. Returns why that could not be done."""
        problem = self.not_kept(kernel)
        if problem is not None:
            return problem
        try:
            payload = self.dump(kernel)
            if self.key(signature) != key:
                return "a value that it reads has changed in the meantime"
        except Exception as error:  # noqa: BLE001  # pickling may raise anything: the kernel runs all the same
            return f"it cannot be stored ({type(error).__name__}: {error})"
        if not store.write(key, payload):
            return f"{store.path} cannot be written to"
        return None


def is_plain(arg: Any) -> bool:
    """Whether launchers pass the argument as it is; of a host array or a record they make a copy
    for one launch, and wait.
    """
    if isinstance(arg, tuple):
        return all(map(is_plain, arg))
    if isinstance(arg, np.void | np.ndarray):
        return False
    return hasattr(arg, "__cuda_array_interface__") or isinstance(
        arg, int | float | complex | np.generic | Enum
    )


def settings_of(config: Any) -> list[tuple[str, str]]:
    """Returns the settings of a package's `config` module: a part of a key for what they change
    in the code.
    """
    settings = vars(config)
    names = sorted(filter(str.isupper, settings.keys() - _OTHER_SETTINGS))
    return [(name, str(settings[name])) for name in names]


def describe_files(paths: Iterable[str | None]) -> list[tuple[str, int, int]]:
    """Returns the path, the size and the time of the last change of each file: a part of a key
    for what files hold.
    """
    files = []
    for path in paths:
        if path is not None:
            status = Path(path).stat()
            files.append((path, status.st_size, status.st_mtime_ns))
    return files


def driver_text() -> str:
    """Returns the driver's text about itself: the version that CUDA reports is that of its
    interface only.
    """
    return _DRIVER.read_text() if _DRIVER.exists() else ""


@cache
def _store() -> KernelStore | None:
    """The store, looked up once in a process: what was compiled while the cache was switched off
    is not known to it.
    """
    path = directory()
    return None if path is None else KernelStore(path)
