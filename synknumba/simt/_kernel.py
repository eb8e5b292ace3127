"""The decorator `jit`, the counterpart of `numba.cuda.jit` on a CPU, and `Kernel`, launched as
`kernel[grid, block](*args)`.
"""

import copy
import functools
import sys
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TextIO

import numpy as np
from numba import typeof
from numba.core import errors, types

from synknumba._errors import ArgumentError, KernelError, LaunchError, shorten
from synknumba.simt._emit.cuda_extensions import EXTENSIONS
from synknumba.simt._emit.emit import long_axes
from synknumba.simt._emit.options import Options
from synknumba.simt._emit.region import Block
from synknumba.simt._entries import Entries, Entry
from synknumba.simt._explain.arguments import (
    ARGUMENTS,
    TRANSFERS,
    in_host_memory,
    problem,
    without_type,
    wrong_count,
)
from synknumba.simt._launch import Configuration, Dim3, check_sizes, refuse_names
from synknumba.simt._library.readonly_records import protected
from synknumba.simt._library.words import MAX_BLOCK
from synknumba.simt._lower.array_protocols import as_arrays
from synknumba.simt._lower.arrays import dynamic_shared
from synknumba.simt._lower.signatures import (
    Declared,
    GpuOnly,
    NoDeviceCode,
    Overload,
    Overloads,
    Signature,
    Signatures,
    parse_signatures,
)
from synknumba.simt._machine.cache import CacheInfo, KernelCache
from synknumba.simt._maths import bfloat16, float16
from synknumba.simt._source.mlir import counterpart
from synknumba.simt._source.pickling import reduce_object
from synknumba.simt._source.scope import may_gather_blocks, splits_block
from synknumba.simt._source.written import has_rest, parameters

# Classes that determine the Numba type of an argument; for int see `_has_one_type`.
_PLAIN_SCALARS = frozenset(
    {bool, int, float, complex, *(np.dtype(char).type for char in "?bhilqBHILQefdFD")}
)


class Launcher:
    """A kernel with a launch configuration: grid, block, and bytes of dynamic shared memory."""

    def __init__(self, kernel: "Kernel", grid: Dim3, block: Dim3, smem: int = 0) -> None:
        self._kernel, self._sizes = kernel, (*grid, *block, smem)
        self._block = kernel.own_block(grid, block)

    @property
    def kernel(self) -> "Kernel":
        """The kernel."""
        return self._kernel

    @property
    def smem_bytes(self) -> int:
        """Bytes of dynamic shared memory of a block."""
        return self._sizes[6]

    @property
    def griddim(self) -> Dim3:
        """Number of blocks along each axis."""
        return self._sizes[:3]

    @property
    def blockdim(self) -> Dim3:
        """Number of threads per block along each axis."""
        return self._sizes[3:6]

    def __call__(self, *args: Any, **named: Any) -> None:
        """Runs every thread of the grid on the calling CPU core."""
        if named:
            refuse_names(self._kernel.py_func.__qualname__, named)
        args = self._kernel.coerce(args)
        try:
            self._kernel.entry(args, self._block)(*self._sizes, *args)
        except Exception as error:
            if isinstance(error, RecursionError):  # of a device function, which names itself
                error.add_note(f"in a launch of {self._kernel!r}")
            shorten(error)
            raise


class Kernel(NoDeviceCode):
    """A Numba CUDA kernel that runs natively on one CPU core.

    The function is translated when first needed, so decorating it does not fail; `check()` forces
    translation.

    Args:
        function: plain Python function.
        options: compilation options.
        signatures: argument types given to the decorator; Python scalars are converted to the types
            of the best match.
        extensions: objects whose `prepare_args(type, value, stream=, retr=)` may replace each
            argument, as in numba-cuda.
        cache: whether to cache compiled code on disk.
        device: whether this is a device function, which kernels call and which cannot be launched.
    """

    __simt_kernel__ = True

    def __init__(
        self,
        function: FunctionType,
        options: Options,
        signatures: Sequence[Declared] = (),
        extensions: Sequence[Any] = (),
        cache: bool = True,
        device: bool = False,
    ) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self._options = options
        self._cache = KernelCache(function, options, enabled=cache)
        self.signatures_given = tuple(signatures)
        self.declared = tuple(declared.args for declared in signatures)
        self.extensions = list(extensions)
        self.device = device
        self.specializations: dict[Signature, Kernel] = {}
        self._by_class: dict[tuple[Any, ...], Entry] = {}
        self._signatures = None
        if self.declared:
            self._signatures = Signatures(function, self.declared)

    def __repr__(self) -> str:
        """Returns the kernel's name, file and line."""
        code = self.py_func.__code__
        return (
            f"<simt kernel {self.py_func.__qualname__} ({code.co_filename}:{code.co_firstlineno})>"
        )

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickles the plain function and the options; the receiver compiles again.

        A kernel that a module holds under its name pickles by reference: the name now finds the
        kernel, not the plain function.
        """
        name, module = self.py_func.__qualname__, self.py_func.__module__
        if module != "__main__" and getattr(sys.modules.get(module), name, None) is self:
            return name
        parts = (
            self.py_func,
            self._options,
            self.signatures_given,
            self.extensions,
            self._cache.enabled,
            self.device,
        )
        return reduce_object(type(self), parts)

    def __call__(self, *_args: Any, **_kwargs: Any) -> None:
        """Raises LaunchError: a kernel needs a grid and a block, and a device function a kernel
        that calls it.
        """
        if self.device:
            name = self.py_func.__name__
            raise LaunchError(
                f"{self.py_func.__qualname__} is a device function, which kernels call; on the "
                f"host call its Python function, {name}.py_func(...)"
            )
        raise LaunchError(
            f"{self.py_func.__qualname__} is a kernel: launch it as "
            f"{self.py_func.__name__}[grid, block](...)"
        )

    def __getitem__(self, config: tuple[Any, ...]) -> Launcher:
        """Returns the launcher of `kernel[grid, block, stream, smem]`; the optional stream is
        ignored, `smem` is in bytes.
        """
        self._must_be_a_kernel()
        return self._launcher(Configuration.of(config, self.py_func, "kernel"))

    def configure(
        self, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0
    ) -> Launcher:
        """Returns the launcher of `kernel[griddim, blockdim, stream, sharedmem]`."""
        return self[griddim, blockdim, stream, sharedmem]

    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Launcher:
        """Returns a launcher with at least `ntasks` threads, in blocks of `tpb` threads (256 by
        default).
        """
        self._must_be_a_kernel()
        return self._launcher(Configuration.forall(ntasks, tpb, stream, sharedmem))

    def _launcher(self, sizes: Configuration) -> Launcher:
        self._check_dynamic(sizes.smem)
        return Launcher(self, *sizes)

    @functools.cached_property
    def _entries(self) -> Entries:
        return Entries(self.py_func, self._options, self._cache)

    @functools.cached_property
    def _has_rest(self) -> bool:
        return has_rest(self.py_func)

    @functools.cached_property
    def _dynamic_shared(self) -> str | None:
        return dynamic_shared(self.py_func)

    def _check_dynamic(self, smem: int) -> None:
        """Raises LaunchError for a launch without dynamic shared memory of a kernel with such
        arrays, which would be empty.
        """
        if not smem and self._dynamic_shared is not None:
            name = self.py_func.__name__
            raise LaunchError(
                f"{name} uses dynamic shared memory ({self._dynamic_shared}), but the launch has 0 "
                f"bytes of it; pass the bytes of a block as the 4th launch argument, {name}[grid, "
                "block, 0, bytes](...), or smem_bytes= of parallel"
            )

    def _must_be_a_kernel(self) -> None:
        if self.device:
            what = f"{self.py_func.__qualname__} is declared with device=True"
            raise KernelError(
                f"Cannot compile a device function as a kernel: {what}; call it from a kernel, or "
                f"omit device=True to launch it"
            )

    @property
    def cache_info(self) -> CacheInfo:
        """Cache hits and misses, and why the code is not cached on disk if it is not."""
        return self._cache.info

    def check(self) -> None:
        """Translates the kernel without compiling it for argument types, unless the cache shows
        that this has succeeded before.

        Raises:
            KernelError: the kernel uses a construct that the CPU cannot run.
        """
        self._cache.accept(lambda: self._entries.program)

    @property
    def source(self) -> str:
        """Source of the launch function compiled last; a version without types if none is
        compiled yet.
        """
        if not self._entries.texts:
            program = self._entries.program
            return program.text(program.launch_body({}))
        return next(reversed(self._entries.texts.values()))

    def prepare(
        self, grid: Dim3, block: Dim3, args: tuple[Any, ...], smem: int = 0
    ) -> Callable[[], None]:
        """Returns a function without parameters that launches with these argument objects; compiles
        if necessary.

        Args:
            grid: number of blocks along each axis.
            block: number of threads per block along each axis.
            args: the kernel's arguments. Array contents may change between launches; types and
                addresses may not.
            smem: bytes of dynamic shared memory per block.
        """
        check_sizes(grid, block)
        self._check_dynamic(smem)
        args = self.coerce(args)
        return functools.partial(
            self.entry(args, self.own_block(grid, block)), *grid, *block, smem, *args
        )

    def bind(
        self, grid: Dim3, block: Dim3, args: tuple[Any, ...], smem: int = 0
    ) -> Callable[..., None]:
        """Returns a launch function as `prepare` does, but one that takes the arguments, of the
        same types as `args`.
        """
        check_sizes(grid, block)
        self._check_dynamic(smem)
        entry = self.entry(self.coerce(args), self.own_block(grid, block))
        launch = functools.partial(entry, *grid, *block, smem)
        if not self.declared:
            return launch
        return lambda *args: launch(*self.coerce(args))

    def native(
        self, grid: Dim3, block: Dim3, args: tuple[Any, ...], smem: int = 0
    ) -> tuple[Any, ...] | None:
        """Returns a launch for callers that are compiled code; None if only Python can launch, to
        locate errors.

        Returns:
            The address of the launch function, which has Numba's calling convention; the types of
            its arguments; the arguments that precede the kernel's, which are sizes; the kernel's;
            and the owner of the code.
        """
        args = self.coerce(args)
        native = self._entries.native(self.entry(args, self.own_block(grid, block)))
        if native is None:
            return None
        kinds, result = native
        address = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
        return address, (*[types.int64] * 7, *kinds), (*grid, *block, smem), args, result

    def coerce(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Prepares the arguments of a launch.

        Applies extensions, unwraps `cuda.In` and the like, takes views of other libraries' arrays,
        adds defaults, makes the arguments of `*rest` a tuple, and converts scalars to a declared
        signature.
        """
        if self.extensions or not _AS_THEY_ARE.issuperset(map(type, args)):
            args = tuple(self._prepared(place, arg) for place, arg in enumerate(args))
        count = self.py_func.__code__.co_argcount
        if len(args) < count:
            defaults = self.py_func.__defaults__ or ()
            missing = count - len(args)
            if missing <= len(defaults):
                args += defaults[-missing:]
        if self._has_rest:
            args = (*args[:count], args[count:])
        if self._signatures is None:
            return args
        return self._signatures.convert(args, typeof)

    def _prepared(self, place: int, arg: Any) -> Any:
        for extension in reversed(self.extensions):
            _, arg = extension.prepare_args(typeof(arg), arg, stream=0, retr=[])
        if type(arg).__module__ in TRANSFERS:
            # cuda.In, cuda.Out and cuda.InOut. An In argument is copied, as a GPU does not copy
            # writes to it back.
            is_copied = type(arg).__name__ == "In"
            arg = arg.value
            if is_copied:
                arg = copy.copy(arg)
        label, names = str(place), parameters(self.py_func)
        if place < len(names):
            label = names[place]
        return as_arrays(in_host_memory(arg), f"{self.py_func.__qualname__}(): {label}")

    # ---- the members of numba.cuda's kernels that programs use

    @property
    def signatures(self) -> list[Signature]:
        """Declared argument types; those compiled so far if none are declared."""
        return list(self.declared) or self._entries.signatures

    @property
    def synchronises_grid(self) -> bool:
        """Whether the kernel has a barrier of the whole grid; False for one that a core refuses."""
        try:
            return self._entries.program.is_cooperative
        except KernelError:  # raised by the launch
            return False

    @property
    def overloads(self) -> Overloads:
        """Overloads by argument types; reading it compiles declared signatures that are not
        compiled yet.
        """
        return Overloads((kinds, self.compile(kinds)) for kinds in self.signatures)

    def compile(self, signature: Any) -> Overload:
        """Compiles the kernel for the argument types of a signature."""
        kinds = parse_signatures([signature])[0].args
        self._entries.of(kinds)
        program = self._entries.program
        shared_bytes = program.shared_bytes(dict(zip(program.params, kinds, strict=True)))
        return Overload(kinds, program.names_grid, MAX_BLOCK, shared_bytes)

    def get_max_threads_per_block(self, signature: Any = None) -> Any:
        """Returns the most threads of a block: for a signature, or in a dict by signature unless
        only one is declared.
        """
        return self._of_overloads("max_threads_per_block", signature)

    def get_shared_mem_per_block(self, signature: Any = None) -> Any:
        """Returns the bytes of static shared arrays of a block, for signatures as
        `get_max_threads_per_block` does.
        """
        return self._of_overloads("shared_mem_per_block", signature)

    def _of_overloads(self, name: str, signature: Any) -> Any:
        if signature is not None:
            return getattr(self.overloads[getattr(signature, "args", signature)], name)
        if self.specialized:
            (overload,) = self.overloads.values()
            return getattr(overload, name)
        return {kinds: getattr(overload, name) for kinds, overload in self.overloads.items()}

    get_regs_per_thread = GpuOnly("counts the registers of a GPU")
    get_const_mem_size = GpuOnly("measures the constant memory of a GPU")
    get_local_mem_per_thread = GpuOnly("measures the local memory of a GPU")
    ptx = GpuOnly("is PTX")

    def inspect_types(self, file: TextIO | None = None) -> None:
        """Prints the launch function generated for each signature, to standard output or to
        `file`.
        """
        self.overloads  # noqa: B018  # reading it compiles the declared signatures
        for kinds, text in self._entries.texts.items():
            print(f"{self.py_func.__name__} {kinds}", "-" * 80, text, "=" * 80, sep="\n", file=file)

    def type_of(self, name: str, *kinds: types.Type) -> types.Type | None:
        """Infers the type of a local variable for arguments of these types; compiles nothing.

        Returns:
            The type; None if the variable is unused, `types.unknown` if its types do not unify.
        """
        if any(float16.is_named(str(kind)) for kind in kinds):
            float16.prepare()
        return self._entries.program.type_of(
            name, dict(zip(self._entries.program.params, kinds, strict=True))
        )

    @property
    def targetoptions(self) -> dict[str, Any]:
        """Options that the decorator was given, as `cuda.jit` takes them, which wants
        `opt=False` beside `debug=True`.
        """
        options: dict[str, Any] = {}
        if self.device:
            options["device"] = True
        if self._options.debug:
            options |= {"debug": True, "opt": False}
        if self._options.fastmath != Options().fastmath:
            options["fastmath"] = self._options.fastmath
        return options

    @property
    def specialized(self) -> bool:
        """Whether the kernel is declared for exactly one signature."""
        return len(self.declared) == 1

    def specialize(self, *args: Any) -> "Kernel":
        """Returns a kernel compiled and declared only for these arguments, given as values or
        Numba types.
        """
        if self.specialized:
            # numba-cuda's message, which programs match
            raise RuntimeError("Dispatcher already specialized")
        kinds = tuple(map(_type_or_typeof, map(counterpart, args)))
        if kinds not in self.specializations:
            declared, is_cached = Declared(kinds, None), self._cache.enabled
            special = type(self)(
                self.py_func, self._options, (declared,), self.extensions, is_cached
            )
            special.compile(kinds)
            self.specializations[kinds] = special
        return self.specializations[kinds]

    @functools.cached_property
    def _splits_block(self) -> bool:
        return splits_block(self.py_func)

    @functools.cached_property
    def _gathers_blocks(self) -> bool:
        is_plain = not (self._options.debug or self._options.reverse)
        return is_plain and may_gather_blocks(self.py_func)

    def own_block(self, grid: Dim3, block: Dim3) -> Block | None:
        """Returns the block that a launch needs code for; None for code that serves any block.

        A kernel that is cut into loops over threads is compiled for each block size: with constant
        trip counts, LLVM's code is up to three times as fast. Blocks of few threads have code of
        their own that gathers the threads of many blocks.
        """
        long = long_axes(grid, block)
        if long and self._gathers_blocks and (self._splits_block or block == (1, 1, 1)):
            return (*block, *long)
        return block if self._splits_block else None

    def entry(self, args: tuple[Any, ...], block: Block | None) -> Entry:
        """Returns the compiled launch function for the types of these arguments, and for the block
        that `own_block` has returned.
        """
        key = (
            block,
            *[(a.dtype, a.ndim, a.flags.num) if type(a) is np.ndarray else type(a) for a in args],
        )
        entry = self._by_class.get(key)
        if entry is None:
            entry = self._entries.of(self.types_of(args), block)
            if all(type(arg) is np.ndarray or _has_one_type(arg) for arg in args):
                self._by_class[key] = entry
        return entry

    def types_of(self, args: tuple[Any, ...]) -> Signature:
        """Returns the types of the arguments of a launch, which `coerce` has returned; raises
        ArgumentError for others.
        """
        params = parameters(self.py_func)
        if len(args) != len(params):
            raise wrong_count(self.py_func, params, args)
        kinds = tuple(self._type_of(name, arg) for name, arg in zip(params, args, strict=True))
        if self._signatures is not None:
            self._signatures.check(kinds)
        return kinds

    def _type_of(self, parameter: str, arg: Any) -> types.Type:
        try:
            kind = protected(typeof(arg), arg)
        except (ValueError, errors.NumbaError) as error:
            if EXTENSIONS.adopt():  # a type of the program's, registered for GPUs
                return self._type_of(parameter, arg)
            if bfloat16.is_dtype(arg) and bfloat16.adopt(arg.dtype):
                return typeof(arg)
            raise without_type(self.py_func, parameter, arg) from error
        if (unusable := problem(kind)) is not None:
            raise ArgumentError(
                f"{self.py_func.__qualname__}(): {parameter} is {unusable}, which no kernel takes; "
                f"{ARGUMENTS}"
            )
        return kind


# Classes of arguments that `coerce` need not unwrap.
_AS_THEY_ARE = _PLAIN_SCALARS | {np.ndarray, np.void}


def _type_or_typeof(value: Any) -> types.Type:
    if isinstance(value, types.Type):
        return value
    return typeof(value)


def _has_one_type(arg: Any) -> bool:
    """Returns whether all arguments of this class share a Numba type. An int of 2**63 or more is
    a uint64, others are int64.
    """
    return type(arg) in _PLAIN_SCALARS and not (type(arg) is int and arg >= 1 << 63)


def check_kernel(function: Any) -> None:
    """Raises `KernelError` if the CPU cannot run the kernel, whose text `keep_text` has kept."""
    Kernel(function, Options()).check()
