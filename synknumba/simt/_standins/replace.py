"""`as_cuda`: `numba.cuda` on a machine without a GPU, by replacing what a GPU would be needed for.

The members of the modules that programs hold, `numba.cuda` and `numba_cuda_mlir.cuda`, are
replaced, and those of the modules that define them; so a program that has imported `cuda` before is
served too, and one that has imported `cuda.jit` is not. Kernels that the real `cuda.jit` has
decorated before are launched on cores by a method of their class.

The modules are those of the process, and so are the stand-ins: the first of the blocks that are
open, in all threads, puts them in place, and the last one puts the modules back. While one of the
blocks asks for checks, all launches are checked.
"""

import contextlib
import functools
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final, final
from unittest import mock

import numba

from synknumba._errors import (
    ArgumentError,
    DeviceError,
    Finding,
    KernelCheckError,
    KernelError,
)
from synknumba.simt import _ufuncs
from synknumba.simt._checker.check import check as checked
from synknumba.simt._jit import decorated_as
from synknumba.simt._kernel import Kernel
from synknumba.simt._lower.signatures import Signature
from synknumba.simt._source import mlir
from synknumba.simt._source.numba_cuda import OWN, cuda_module
from synknumba.simt._standins import arrays, device

VARIABLE = "SYNKNUMBA_SIMT"

_MLIR = mlir.PACKAGE

# Where what programs ask for is defined, and where it is found; below each package.
_PACKAGES = ("numba.cuda", f"{_MLIR}.cuda", f"{_MLIR}.numba_cuda")
_MODULES = ("", ".api", ".decorators", ".device_init", ".cudadrv.devices", ".cudadrv.devicearray")
_DISPATCHERS = (
    ("numba.cuda.dispatcher", "CUDADispatcher"),
    (f"{_MLIR}.descriptor", "MLIRDispatcher"),
)

# Functions of `arrays` that stand in for those of the same names.
_OF_ARRAYS = (
    "as_cuda_array",
    "device_array",
    "device_array_like",
    "from_cuda_array_interface",
    "is_cuda_array",
    "mapped",
    "mapped_array",
    "mapped_array_like",
    "pinned",
    "pinned_array",
    "pinned_array_like",
    "to_device",
)
_STREAMS = ("default_stream", "legacy_default_stream", "per_thread_default_stream", "stream")
# What has nothing to do on a core.
_IDLE = ("cuda_error", "profile_start", "profile_stop", "reset", "synchronize")
_SUPPORTED = (
    "is_available",
    "is_bfloat16_supported",
    "is_float16_supported",
    "is_supported_version",
)

_STAND_INS: dict[str, Any] = {
    **dict.fromkeys(_STREAMS, device.Stream),
    **dict.fromkeys(_IDLE, lambda: None),
    **dict.fromkeys(_SUPPORTED, lambda: True),
    # memory
    **{name: getattr(arrays, name) for name in _OF_ARRAYS},
    "DeviceNDArray": arrays.DeviceArray,
    "is_cuda_ndarray": lambda obj: isinstance(obj, arrays.DeviceArray),
    "managed_array": arrays.mapped_array,
    "auto_device": lambda obj, stream=0, copy=True, **_options: (
        arrays.to_device(obj, stream, copy),
        True,
    ),
    # streams and events
    "event": device.Event,
    "event_elapsed_time": device.event_elapsed_time,
    "external_stream": lambda _ptr: device.Stream(),
    # devices
    "close": device.close,
    "current_context": device.current_context,
    "defer_cleanup": device.nothing,
    "detect": device.detect,
    "get_context": device.current_context,
    "get_current_device": device.current_device,
    "gpus": device.GPUS,
    "is_fp8_supported": lambda: False,
    "list_devices": lambda: device.GPUS,
    "profiling": device.nothing,
    "runtime": device.RUNTIME,
    "require_context": lambda function: function,
    "select_device": device.select_device,
}

_NEEDS_A_GPU = {
    "compile": "compiles to PTX",
    "compile_all": "compiles to PTX",
    "compile_cubin": "compiles to machine code of a GPU",
    "compile_for": "compiles to PTX",
    "compile_for_current_device": "compiles to PTX",
    "compile_mlir": "compiles to MLIR",
    "compile_ptx": "compiles to PTX",
    "compile_ptx_for_current_device": "compiles to PTX",
    "open_ipc_array": "opens the memory of a GPU",
    "set_memory_manager": "manages the memory of a GPU",
}


# Exceptions that Python raises where Numba cannot infer types.
_OF_TYPES: Final = ("NameError", "AttributeError", "TypeError")


@final
class CudaKernel(Kernel):
    """A kernel of `cuda.jit` on cores, whose launches run under `simt.check` while a block of
    `as_cuda` asks for that.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # of launches under the checker, which compiles nothing here
        self._checked: dict[Signature, None] = {}

    def __getitem__(self, config: Any) -> Any:
        launcher = super().__getitem__(config)
        if not _blocks.are_checked:
            return launcher
        run = checked(self)[launcher.griddim, launcher.blockdim, 0, launcher.smem_bytes]
        return self._with_typing_errors(launcher, run)

    def forall(self, *args: Any, **options: Any) -> Any:
        """Returns a launcher as `Kernel.forall` does, checked if launches are."""
        launcher = super().forall(*args, **options)
        if _blocks.are_checked:
            return self._with_typing_errors(launcher, checked(self).forall(*args, **options))
        return launcher

    def _with_typing_errors(self, launcher: Any, run: Callable[..., None]) -> Callable[..., None]:
        """Returns a checked launcher that raises the TypingError of an unchecked one for what
        Numba refuses.
        """

        def launch(*args: Any, **named: Any) -> None:
            try:
                run(*args, **named)
            except KernelCheckError as error:
                if any(map(_is_of_types, error.findings)):
                    self.prepare(launcher.griddim, launcher.blockdim, args, launcher.smem_bytes)
                raise

        return launch

    def coerce(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Prepares the arguments of a launch, and notes their types if it is checked."""
        args = super().coerce(args)
        if _blocks.are_checked:
            self._checked[self.types_of(args)] = None
        return args

    @property
    def signatures(self) -> list[Signature]:
        """Declared argument types; those launched so far if none are declared."""
        if self.declared:
            return super().signatures
        return [*dict.fromkeys((*super().signatures, *self._checked))]


def _is_of_types(finding: Finding) -> bool:
    """Returns whether a finding is an exception of Python's for what Numba would refuse."""
    return finding.error is KernelCheckError and finding.summary.startswith(_OF_TYPES)


class _Blocks:
    """The blocks of `as_cuda` that are open, in all threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._replaced = contextlib.ExitStack()
        self._open = self._checking = 0
        self._reported = 0

    @property
    def is_open(self) -> bool:
        """Whether the stand-ins are in place."""
        return self._open > 0

    @property
    def are_checked(self) -> bool:
        """Whether launches run under `simt.check`, and raise what it finds."""
        return self._checking > 0 and not self._reported

    def enter(self, *, check: bool, devices: int = 1) -> None:
        """Puts the stand-ins in place if no block is open, with at least this number of devices."""
        with self._lock:
            if not self._open:
                with contextlib.ExitStack() as replaced:
                    cuda = cuda_module()
                    if cuda.__name__ == OWN:  # Numba has none to import
                        replaced.enter_context(mock.patch.object(numba, "cuda", cuda, create=True))
                        sys.modules["numba.cuda"] = cuda
                        replaced.callback(sys.modules.pop, "numba.cuda")
                    for owner, name, value in _replacements():
                        replaced.enter_context(mock.patch.object(owner, name, value))
                    self._replaced = replaced.pop_all()
            device.set_count(max(devices, len(device.GPUS)))
            self._open += 1
            self._checking += check

    def leave(self, *, check: bool) -> None:
        """Puts the modules back if no other block is open."""
        with self._lock:
            self._open -= 1
            self._checking -= check
            if not self._open:
                device.close()
                device.set_count(1)
                self._replaced.close()

    @contextlib.contextmanager
    def reported(self) -> Iterator[None]:
        """Context in which launches are not checked here, since the caller checks and reports
        them.
        """
        self._reported += 1
        try:
            yield
        finally:
            self._reported -= 1


_blocks = _Blocks()


def stands_in() -> bool:
    """Returns whether `numba.cuda` is replaced, so that a program takes cores for a GPU."""
    return _blocks.is_open


@contextlib.contextmanager
def as_cuda(check: bool = False, devices: int = 1) -> Iterator[None]:
    """Context in which programs written for `numba.cuda` run without a GPU.

    Within it, `cuda.jit` of Numba, numba-cuda and numba-cuda-mlir is `simt.jit`; `to_device`,
    `device_array` and the like make arrays in host memory, which kernels see and which are copied
    as to and from a GPU; streams, events, contexts and devices do nothing. What needs a GPU, such
    as `cuda.compile_ptx`, raises `DeviceError`.

    It concerns the whole process, not one thread. Blocks may overlap in several threads: the
    stand-ins are there until the last one ends, and launches are checked in all threads while one
    of the open blocks has `check=True`.

    Args:
        check: whether every launch runs under `simt.check`, which raises the errors that it finds,
            and is slow.
        devices: number of devices in `cuda.gpus`, all of them the same core; of blocks that overlap
            the largest number.

    Raises:
        ArgumentError: `check` is neither True nor False, or `devices` is not a positive integer.
        DeviceError: `numba.cuda` cannot be imported, or is Numba's simulator.
    """
    if not isinstance(check, bool):
        raise ArgumentError(
            f"simt.as_cuda takes check=True or check=False, got {check!r}; "
            f"check=True checks every launch"
        )
    if not isinstance(devices, int) or isinstance(devices, bool) or devices < 1:
        raise ArgumentError(
            f"simt.as_cuda takes devices=1 or more, the length of cuda.gpus, got {devices!r}"
        )
    _blocks.enter(check=check, devices=devices)
    try:
        yield
    finally:
        _blocks.leave(check=check)


@contextlib.contextmanager
def as_cuda_reported() -> Iterator[None]:
    """Context like that of `as_cuda` for a caller that checks launches and reports what is found,
    as `synknumba check`.

    Launches do not raise what a checker finds, whatever the program and SYNKNUMBA_SIMT ask for.
    """
    with as_cuda(), _blocks.reported():
        yield


def of_environment() -> None:
    """Enters `as_cuda` for the rest of the process if SYNKNUMBA_SIMT is "1", or "check" to check
    every launch.

    Raises:
        ArgumentError: it has another value.
    """
    value = os.environ.get(VARIABLE, "").lower()
    if value not in {"", "0", "off", "1", "on", "check"}:
        raise ArgumentError(f"{VARIABLE} must be 1, check or 0, got {value!r}")
    if value in {"1", "on", "check"}:
        # without a context, which Python would leave at its end, when modules are empty
        _blocks.enter(check=value == "check", devices=1)


def host_members() -> dict[str, Any]:
    """Returns what programs call of `numba.cuda` outside kernels, on cores."""
    return {
        **_STAND_INS,
        **{name: _refuses(name, reason) for name, reason in _NEEDS_A_GPU.items()},
        "jit": _jit,
        "Reduce": _on_device(_ufuncs.Reduce),
        "reduce": _on_device(_ufuncs.reduce),
    }


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yields a module or class, the name of a member, and what replaces it."""
    members = host_members()
    modules = _modules()
    for module in modules:
        for name in members.keys() & vars(module).keys():
            yield module, name, members[name]
        if hasattr(module, "declare_device"):
            yield module, "declare_device", _declare_device(module.declare_device)

    @functools.cache
    def kernel_of(dispatcher: Any) -> Kernel:
        made: Kernel = decorated_as(CudaKernel, dispatcher)
        return made

    for module_name, class_name in _DISPATCHERS:
        if module_name in sys.modules:
            dispatcher = getattr(sys.modules[module_name], class_name)
            yield dispatcher, "__getitem__", lambda self, config: kernel_of(self)[config]
            yield dispatcher, "configure", lambda self, *config: kernel_of(self)[config]
            yield (
                dispatcher,
                "forall",
                lambda self, *args, **options: kernel_of(self).forall(*args, **options),
            )
    for name, on_cores in (("vectorize", _ufuncs.vectorize), ("guvectorize", _ufuncs.guvectorize)):
        yield numba, name, _of_target(getattr(numba, name), on_cores)


def _modules() -> list[ModuleType]:
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") != "0":
        raise DeviceError(
            "NUMBA_ENABLE_CUDASIM is set, which replaces numba.cuda by a simulator; "
            "unset it: simt is faster"
        )
    # absent, or broken: a program that needs it has the error of its own import
    with contextlib.suppress(Exception):
        importlib.import_module(f"{_MLIR}.cuda")
    names = (package + below for package in _PACKAGES for below in _MODULES)
    modules = [sys.modules[name] for name in names if name in sys.modules]
    return [module for module in modules if module.__name__ != OWN]


def _jit(func_or_sig: Any = None, device: bool = False, link: Any = (), **options: Any) -> Any:
    """`simt.jit` with the parameters of `cuda.jit`."""
    if link:
        raise KernelError(
            f"cuda.jit(link={link!r}) links CUDA C or PTX, which a CPU "
            f"cannot run; write it in Python"
        )
    return decorated_as(CudaKernel, func_or_sig, device=device, **options)


def _of_target(make: Callable[..., Any], on_cores: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `numba.vectorize` or `guvectorize`, with that of simt for the target "cuda"."""

    @functools.wraps(make)
    def decorate(*args: Any, **options: Any) -> Any:
        if options.get("target") != "cuda":
            return make(*args, **options)
        return _on_device(on_cores(*args, **options))

    return decorate


def _on_device(make: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a maker of functions of arrays, such as ufuncs, which take device arrays, too."""

    @functools.wraps(make, updated=())
    def make_on_device(*args: Any, **options: Any) -> arrays.OfDeviceArrays:
        return arrays.OfDeviceArrays(make(*args, **options))

    return make_on_device


def _declare_device(real: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `declare_device`, refused to programs: the packages' own modules, such as
    `cuda.fp16`, call it at import.
    """
    refuse = _refuses("declare_device", "links CUDA C or PTX")

    def declare(*args: Any, **options: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001  # as the warnings module does
        if caller.startswith(("numba.", f"{_MLIR}.")):
            return real(*args, **options)
        return refuse(*args, **options)

    return declare


def _refuses(name: str, reason: str) -> Callable[..., Any]:
    def refuse(*_args: Any, **_options: Any) -> Any:
        raise DeviceError(
            f"cuda.{name} {reason}, and kernels run on CPU cores here; leave it "
            f"out, or run this on a GPU"
        )

    return refuse
