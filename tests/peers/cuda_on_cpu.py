"""Makes `numba.cuda` run on the CPU, for programs and tests that were written for a GPU.

After `install()`, `cuda.jit` is `simt.jit`, device arrays are NumPy arrays, and streams, events and
contexts do nothing. What has no meaning without a GPU (PTX, linking of CUDA C, the driver, arrays
of other GPU libraries) raises `GpuOnly` when it is asked for: a `unittest.SkipTest`, so that a test
is set aside at the line where it leaves what a kernel computes, not before. So arrays and streams
are not those of `simt.as_cuda`, which have more of a GPU's; the device is.
"""

import builtins
import contextlib
import functools
import itertools
import linecache
import os
import sys
import unittest
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from synknumba import simt
from synknumba.simt._kernel import Launcher
from synknumba.simt._lower.signatures import GpuOnly as GpuOnlyMember
from synknumba.simt._lower.signatures import Overload
from synknumba.simt._standins.device import GPUS, current_context, current_device


class GpuOnly(unittest.SkipTest):  # nothing went wrong
    """The program asks for something that exists on a GPU only."""


class Seen:
    """Whether kernels were made or launched since the last `clear()`, here or in a process that
    was started meanwhile.
    """

    def __init__(self) -> None:
        self.any = False

    def note(self) -> None:
        self.any = True
        if name := os.environ.get(SEEN_ELSEWHERE):
            Path(name).touch()

    def clear(self) -> None:
        self.any = False


SEEN_ELSEWHERE = "CUDA_ON_CPU_SEEN"
seen = Seen()


# What a test may ask of a compiled kernel that only a GPU's compiler has, and what it then looks
# at.
OF_A_COMPILED_KERNEL = {
    "inspect_asm": "inspects PTX",
    "inspect_llvm": "inspects the LLVM code for NVVM",
    "inspect_lto_ptx": "inspects PTX",
    "inspect_sass": "inspects SASS",
    "inspect_sass_cfg": "inspects SASS",
    "get_regs_per_thread": "asks for the GPU's resources of a kernel",
    "get_shared_mem_per_block": "asks for the GPU's resources of a kernel",
    "get_const_mem_size": "asks for the GPU's resources of a kernel",
    "get_local_mem_per_thread": "asks for the GPU's resources of a kernel",
    "get_max_threads_per_block": "asks for the GPU's resources of a kernel",
    "compile_device": "uses the stages of numba-cuda's own compiler",
    "_compile_for_args": "uses the stages of numba-cuda's own compiler",
    "launch_config_sensitive": "uses the stages of numba-cuda's own compiler",
    "stats": "looks into numba-cuda's own disk cache",
    "pre_launch_callbacks": "links CUDA C or PTX",
}

# And of what it was compiled for.
OF_AN_OVERLOAD = {
    "inspect_llvm": "inspects the LLVM code for NVVM",
    "_type_annotation": "looks into the types that numba-cuda's own compiler inferred",
    "_codelibrary": "links CUDA C or PTX",
    "inspect_asm": "inspects PTX",
    "metadata": "uses the stages of numba-cuda's own compiler",
}

# Members of numba.cuda without a meaning here.
OF_THE_MODULE = {
    "compile": "compiles to PTX",
    "compile_all": "compiles to PTX",
    "compile_for_current_device": "compiles to PTX",
    "compile_ptx": "compiles to PTX",
    "compile_ptx_for_current_device": "compiles to PTX",
    "declare_device": "links CUDA C or PTX",
    "detect": "uses the CUDA driver",
    "open_ipc_array": "uses the CUDA driver",
    "external_stream": "uses the CUDA driver",
    "select_device": "uses the CUDA driver",
    "current_context": "uses the CUDA driver",
    "as_cuda_array": "passes arrays of other GPU libraries",
    "from_cuda_array_interface": "passes arrays of other GPU libraries",
    "is_cuda_array": "passes arrays of other GPU libraries",
}


class DeviceArray(np.ndarray):
    """A NumPy array with the methods of numba.cuda's device arrays."""

    def copy_to_host(self, ary: np.ndarray | None = None, stream: Any = 0) -> np.ndarray:
        del stream
        if ary is None:
            return np.array(self, subok=False, order="K")
        ary[...] = self
        return ary

    def copy_to_device(self, ary: np.ndarray, stream: Any = 0) -> None:
        del stream
        self[...] = ary

    def bind(self, stream: Any = 0) -> "DeviceArray":
        del stream
        return self

    def __bool__(self) -> bool:  # as numba.cuda's, which are objects like any other
        return bool(self.ndim) or bool(self.item())

    def is_c_contiguous(self) -> bool:
        return self.flags.c_contiguous

    def is_f_contiguous(self) -> bool:
        return self.flags.f_contiguous

    @property
    def gpu_data(self) -> Any:
        raise GpuOnly("uses the CUDA driver")

    @property
    def __cuda_array_interface__(self) -> Any:
        raise GpuOnly("passes arrays of other GPU libraries")


class Stream:
    """Everything has already happened."""

    def synchronize(self) -> None: ...

    def wait(self, *_events: Any, **_more: Any) -> None: ...

    def add_callback(self, callback: Any, arg: Any = None) -> None:
        callback(self, 0, arg)

    @contextlib.contextmanager
    def auto_synchronize(self):
        yield self

    def __cuda_stream__(self) -> Any:  # by which `simt` knows a stream
        raise GpuOnly("uses the CUDA driver")

    @property
    def handle(self) -> Any:
        raise GpuOnly("uses the CUDA driver")


def device_array(
    shape: Any,
    dtype: Any = np.float64,
    strides: Any = None,
    order: str = "C",
    stream: Any = 0,
    **_more: Any,
):
    del stream
    plain = (
        np.empty(shape, dtype, order)
        if strides is None
        else np.ndarray(shape, dtype, strides=strides)
    )
    return plain.view(DeviceArray)


def device_array_like(ary: Any, stream: Any = 0, **_more: Any) -> DeviceArray:
    del stream
    return np.empty_like(ary, subok=False).view(DeviceArray)


def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: Any = None) -> DeviceArray:
    del stream
    if to is not None:
        to[...] = obj
        return to
    if not copy:
        return device_array_like(obj)
    return np.array(obj, order="K", subok=False).view(DeviceArray)


@contextlib.contextmanager
def _as_they_are(*arrays: Any, **_more: Any):
    yield arrays if len(arrays) != 1 else arrays[0]


def _refuses(name: str, reason: str) -> Any:
    def refuse(*_args: Any, **_options: Any) -> Any:
        raise GpuOnly(f"{reason} ({name})")

    return refuse


def jit(
    function: Any = None,
    device: bool = False,
    inline: str = "never",
    link: Any = (),
    **options: Any,
) -> Any:
    """`simt.jit`, called as `cuda.jit`."""
    seen.note()
    if link:
        raise GpuOnly("links CUDA C or PTX (link=)")
    if device:
        options["device"] = device
    if inline != "never":
        options["inline"] = inline
    return simt.jit(function, **options)


def _of_the_target(make: Any, on_cpu: Any) -> Any:
    """`numba.vectorize` or `guvectorize`, with that of simt for the target "cuda"."""

    @functools.wraps(make)
    def checked(*args: Any, **options: Any) -> Any:
        if options.get("target") != "cuda":
            return make(*args, **options)
        seen.note()
        return on_cpu(*args, **options)

    return checked


def _array_functions() -> dict[str, Any]:
    return {
        "to_device": to_device,
        "device_array": device_array,
        "device_array_like": device_array_like,
        "pinned_array": device_array,
        "pinned_array_like": device_array_like,
        "mapped_array": device_array,
        "mapped_array_like": device_array_like,
        "managed_array": device_array,
        "pinned": _as_they_are,
        "mapped": _as_they_are,
        "defer_cleanup": _as_they_are,
    }


def _patch_device_arrays() -> None:
    from numba.cuda.cudadrv import devicearray, devices, driver

    devices.get_context = lambda *_: current_context()
    driver.driver.get_device = lambda *_: current_device()
    devicearray.DeviceNDArray = lambda shape, strides, dtype, stream=0, **_more: device_array(
        shape, dtype, strides, stream
    )
    devicearray.from_array_like = device_array_like
    devicearray.auto_device = lambda obj, stream=0, copy=True, **_more: (
        to_device(obj, stream, copy),
        True,
    )
    devicearray.is_cuda_ndarray = lambda obj: isinstance(obj, DeviceArray)


def _patch_the_compiler() -> None:
    from numba.cuda import compiler

    for name, reason in OF_THE_MODULE.items():
        if name.startswith("compile") and hasattr(compiler, name):
            setattr(compiler, name, _refuses(name, reason))
    with contextlib.suppress(ImportError):  # plain Numba has no such thing
        from numba.cuda.memory_management.nrt import rtsys

        rtsys.memsys_enable_stats = rtsys.memsys_disable_stats = lambda *_: None
        rtsys.get_allocation_stats = lambda *_: SimpleNamespace(
            alloc=0, free=0, mi_alloc=0, mi_free=0
        )


def _patch_errors() -> None:
    """Kernels are compiled by Numba itself, whose errors are classes of its own."""
    with contextlib.suppress(ImportError):  # plain Numba has one set of classes
        from numba.core import errors
        from numba.cuda import errors as public_errors
        from numba.cuda.core import errors as errors_of_cuda

        for name in ("LoweringError", "TypingError", "UnsupportedError"):
            for module in (errors_of_cuda, public_errors):
                if hasattr(module, name):
                    setattr(module, name, getattr(errors, name))


def _patch_kernels() -> None:
    launched = {"pre_launch_callbacks": OF_A_COMPILED_KERNEL["pre_launch_callbacks"]}
    for members, owner in (
        (OF_A_COMPILED_KERNEL, simt.Kernel),
        (launched, Launcher),
        (OF_AN_OVERLOAD, Overload),
    ):
        for name, reason in members.items():
            # To a test an error of ours could be the one it expects.
            if isinstance(getattr(owner, name, None), GpuOnlyMember | None):
                setattr(owner, name, property(_refuses(name, reason)))
    entry = simt.Kernel.entry

    def noted_entry(self: simt.Kernel, *args: Any) -> Any:
        seen.note()
        return entry(self, *args)

    simt.Kernel.entry = noted_entry


def install() -> ModuleType:
    """Replaces what numba.cuda takes from a GPU. Returns the module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import numba
        from numba import cuda

        with contextlib.suppress(ImportError):  # plain Numba has no such module
            import numba.cuda.bf16  # declares functions in CUDA C when it is imported

    for name, reason in OF_THE_MODULE.items():
        if hasattr(cuda, name):
            setattr(cuda, name, _refuses(name, reason))
    for name, function in _array_functions().items():
        setattr(cuda, name, function)
    _patch_device_arrays()
    _patch_the_compiler()
    _patch_errors()
    _patch_kernels()
    cuda.get_current_device = current_device
    cuda.list_devices = lambda: GPUS
    cuda.gpus = GPUS
    cuda.is_available = lambda: True
    cuda.is_float16_supported = cuda.is_bfloat16_supported = lambda: True
    cuda.is_fp8_supported = cuda.api.is_fp8_supported = lambda: False
    cuda.synchronize = cuda.close = cuda.profile_start = cuda.profile_stop = lambda: None
    cuda.stream = cuda.default_stream = cuda.legacy_default_stream = (
        cuda.per_thread_default_stream
    ) = Stream
    cuda.jit = jit
    for module, target in ((numba, {}), (cuda, {"target": "cuda"})):
        for name in ("vectorize", "guvectorize"):
            if hasattr(module, name):
                made = _of_the_target(getattr(module, name), getattr(simt, name))
                setattr(module, name, functools.partial(made, **target) if target else made)
    _keep_the_source_of_a_command()
    _keep_the_source_of_strings()
    return cuda


def _keep_the_source_of_a_command() -> None:
    """Lets `inspect` find the source of a program given as `python -c`, as Python itself does
    from 3.13 on.
    """
    command = sys.orig_argv
    if "-c" in command and "<string>" not in linecache.cache:
        _keep(command[command.index("-c") + 1], "<string>")


def _keep_the_source_of_strings() -> None:
    """Lets `inspect` find the source of functions that are made by `exec`, as IPython does for
    its cells.
    """
    run, number = builtins.exec, itertools.count()

    def run_with_source(code: Any, names: Any = None, locals_: Any = None, /, **more: Any) -> None:
        if isinstance(code, str):
            filename = f"<exec-{next(number)}>"
            _keep(code, filename)
            code = compile(code, filename, "exec", dont_inherit=True)
        if names is None:
            frame = sys._getframe(1)
            names, locals_ = frame.f_globals, frame.f_locals
        run(code, names, locals_ if locals_ is not None else names, **more)

    builtins.exec = run_with_source


def _keep(text: str, filename: str) -> None:
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
