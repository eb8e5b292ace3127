"""The decorator `jit`, the counterpart of `numba.cuda.jit` on a CPU, and `Kernel`, launched as
`kernel[grid, block](*args)`.
"""

import ast
import copy
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final, TextIO, overload

import numpy as np
from numba import typeof
from numba.core import errors, types
from numba.core.compiler import CompileResult

from synknumba._errors import ArgumentError, KernelError, LaunchError
from synknumba._types import as_flag, nearest, shown, with_article
from synknumba.simt._emit.build import KernelProgram
from synknumba.simt._emit.cuda_extensions import EXTENSIONS
from synknumba.simt._emit.emit import has_many_threads
from synknumba.simt._emit.error_location import WHERE_TYPE, located
from synknumba.simt._emit.options import Options
from synknumba.simt._explain.arguments import (
    ARGUMENTS,
    TRANSFERS,
    WRITABLE,
    _of_dtype,
    in_host_memory,
    is_readonly,
    problem,
    wrong_count,
)
from synknumba.simt._explain.compile_errors import explain
from synknumba.simt._explain.cuda_only import cuda_only, refuse_arguments
from synknumba.simt._launch import Configuration, Dim3, check_sizes, refuse_names
from synknumba.simt._library.readonly_records import REFUSAL, protected
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
from synknumba.simt._machine.codegen import Compiled, compile_launch, jit_problem
from synknumba.simt._maths import bfloat16, float16
from synknumba.simt._numba.compilation import compilation
from synknumba.simt._source import mlir
from synknumba.simt._source.mlir import counterpart
from synknumba.simt._source.pickling import reduce_object
from synknumba.simt._source.reads import is_device_function, is_njit_function
from synknumba.simt._source.scope import splits_block
from synknumba.simt._source.source_text import keep_text
from synknumba.simt._source.syntax import walk
from synknumba.simt._source.written import has_rest, parameters

# Block sizes for which a signature gets specialised code; launches with further sizes share code
# for any block.
MAX_BLOCKS = 4


# Classes that determine the Numba type of an argument; for int see `_has_one_type`.
_PLAIN_SCALARS = frozenset(
    {bool, int, float, complex, *(np.dtype(char).type for char in "?bhilqBHILQefdFD")}
)

# A compiled launch function: takes grid size, block size, bytes of dynamic shared memory, and the
# kernel's arguments.
_Entry = Callable[..., None]


class Launcher:
    """A kernel with a launch configuration: grid, block, and bytes of dynamic shared memory."""

    def __init__(self, kernel: "Kernel", grid: Dim3, block: Dim3, smem: int = 0) -> None:
        self._kernel, self._block, self._sizes = kernel, block, (*grid, *block, smem)

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
        return self._block

    def __call__(self, *args: Any, **named: Any) -> None:
        """Runs every thread of the grid on the calling CPU core."""
        if named:
            refuse_names(self._kernel.py_func.__qualname__, named)
        args = self._kernel.coerce(args)
        try:
            self._kernel.entry(args, self._block)(*self._sizes, *args)
        except RecursionError as error:  # of a device function, which names itself
            error.add_note(f"in a launch of {self._kernel!r}")
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
        self.declared = tuple(one.args for one in signatures)
        self.extensions = list(extensions)
        self.device = device
        self.specializations: dict[Signature, Kernel] = {}
        self._entries: dict[tuple[Signature, Dim3 | None], _Entry] = {}
        self._any_block_size: dict[tuple[Signature, bool], _Entry] = {}
        self._by_class: dict[tuple[Any, ...], _Entry] = {}
        self._natives: dict[_Entry, tuple[Signature, CompileResult]] = {}
        self._signatures = Signatures(function, self.declared) if self.declared else None
        self._texts: dict[Signature, str] = {}

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
        sizes = Configuration.of(config, self.py_func, "kernel")
        self._check_dynamic(sizes.smem)
        return Launcher(self, *sizes)

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
        sizes = Configuration.forall(ntasks, tpb, stream, sharedmem)
        self._check_dynamic(sizes.smem)
        return Launcher(self, *sizes)

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

    @functools.cached_property
    def _program(self) -> KernelProgram:
        problem = jit_problem()
        if problem:
            raise KernelError(f"{self.py_func.__qualname__} cannot be compiled: {problem}")
        self._cache.translating()
        EXTENSIONS.adopt()
        return KernelProgram(self.py_func, self._options)

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
        self._cache.accept(lambda: self._program)

    @property
    def source(self) -> str:
        """Source of the launch function compiled last; a version without types if none is
        compiled yet.
        """
        if not self._texts:
            return self._program.text(self._program.launch_body({}))
        return next(reversed(self._texts.values()))

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
        return functools.partial(self.entry(args, block), *grid, *block, smem, *args)

    def bind(
        self, grid: Dim3, block: Dim3, args: tuple[Any, ...], smem: int = 0
    ) -> Callable[..., None]:
        """Returns a launch function as `prepare` does, but one that takes the arguments, of the
        same types as `args`.
        """
        check_sizes(grid, block)
        self._check_dynamic(smem)
        launch = functools.partial(self.entry(self.coerce(args), block), *grid, *block, smem)
        return (lambda *given: launch(*self.coerce(given))) if self.declared else launch

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
        compiled = self._natives.get(self.entry(args, block))
        if compiled is None:
            return None
        kinds, result = compiled
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
        missing = self.py_func.__code__.co_argcount - len(args)
        if missing and 0 < missing <= len(self.py_func.__defaults__ or ()):
            args += (self.py_func.__defaults__ or ())[-missing:]
        if self._has_rest:
            count = self.py_func.__code__.co_argcount
            args = (*args[:count], args[count:])
        return args if self._signatures is None else self._signatures.convert(args, typeof)

    def _prepared(self, place: int, arg: Any) -> Any:
        for extension in reversed(self.extensions):
            _, arg = extension.prepare_args(typeof(arg), arg, stream=0, retr=[])
        if type(arg).__module__ in TRANSFERS:
            # cuda.In, cuda.Out and cuda.InOut. An In argument is copied, as a GPU does not copy
            # writes to it back.
            arg = copy.copy(arg.value) if type(arg).__name__ == "In" else arg.value
        names = parameters(self.py_func)
        label = f"{self.py_func.__qualname__}(): {names[place] if place < len(names) else place}"
        return as_arrays(in_host_memory(arg), label)

    # ---- the members of numba.cuda's kernels that programs use

    @property
    def signatures(self) -> list[Signature]:
        """Declared argument types; those compiled so far if none are declared."""
        return list(self.declared or dict.fromkeys(kinds for kinds, _ in self._entries))

    @property
    def synchronises_grid(self) -> bool:
        """Whether the kernel has a barrier of the whole grid; False for one that a core refuses."""
        try:
            return self._program.is_cooperative
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
        self._compiled(kinds)
        argtypes = dict(zip(self._program.params, kinds, strict=True))
        return Overload(
            kinds, self._program.names_grid, MAX_BLOCK, self._program.shared_bytes(argtypes)
        )

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
        found = {kinds: getattr(one, name) for kinds, one in self.overloads.items()}
        return next(iter(found.values())) if self.specialized else found

    get_regs_per_thread = GpuOnly("counts the registers of a GPU")
    get_const_mem_size = GpuOnly("measures the constant memory of a GPU")
    get_local_mem_per_thread = GpuOnly("measures the local memory of a GPU")
    ptx = GpuOnly("is PTX")

    def inspect_types(self, file: TextIO | None = None) -> None:
        """Prints the launch function generated for each signature, to standard output or to
        `file`.
        """
        self.overloads  # noqa: B018  # reading it compiles the declared signatures
        for kinds, text in self._texts.items():
            print(f"{self.py_func.__name__} {kinds}", "-" * 80, text, "=" * 80, sep="\n", file=file)

    def type_of(self, name: str, *kinds: types.Type) -> types.Type | None:
        """Infers the type of a local variable for arguments of these types; compiles nothing.

        Returns:
            The type; None if the variable is unused, `types.unknown` if its types do not unify.
        """
        if any(float16.is_named(str(kind)) for kind in kinds):
            float16.prepare()
        return self._program.type_of(name, dict(zip(self._program.params, kinds, strict=True)))

    @property
    def targetoptions(self) -> dict[str, Any]:
        """Options that the decorator was given, as `cuda.jit` takes them, which wants
        `opt=False` beside `debug=True`.
        """
        options = self._options
        given = {"device": True} if self.device else {}
        given |= {"debug": True, "opt": False} if options.debug else {}
        return (
            given
            if options.fastmath == Options().fastmath
            else {**given, "fastmath": options.fastmath}
        )

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
        given = map(counterpart, args)
        kinds = tuple(arg if isinstance(arg, types.Type) else typeof(arg) for arg in given)
        if kinds not in self.specializations:
            made = type(self)(
                self.py_func,
                self._options,
                (Declared(kinds, None),),
                self.extensions,
                self._cache.enabled,
            )
            made.compile(kinds)
            self.specializations[kinds] = made
        return self.specializations[kinds]

    @functools.cached_property
    def _splits_block(self) -> bool:
        return splits_block(self.py_func)

    def entry(self, args: tuple[Any, ...], block: Dim3) -> _Entry:
        """Returns the compiled launch function for the types of these arguments.

        A kernel that is cut into loops over threads is compiled for each block size: with constant
        trip counts, LLVM's code is up to three times as fast. Code of other kernels serves any
        block size.
        """
        key = tuple(
            [(a.dtype, a.ndim, a.flags.num) if type(a) is np.ndarray else type(a) for a in args]
        )
        if self._splits_block:
            key = (block, *key)
        found = self._by_class.get(key)
        if found is None:
            found = self._typed_entry(args, block if self._splits_block else None)
            if all(type(arg) is np.ndarray or _has_one_type(arg) for arg in args):
                self._by_class[key] = found
        return found

    def _typed_entry(self, args: tuple[Any, ...], block: Dim3 | None) -> _Entry:
        return self._compiled(self.types_of(args), block)

    def types_of(self, args: tuple[Any, ...]) -> Signature:
        """Returns the types of the arguments of a launch, which `coerce` has returned; raises
        ArgumentError for others.
        """
        params = parameters(self.py_func)
        if len(args) != len(params):
            raise wrong_count(self.py_func, params, args)
        kinds = tuple(self._type_of(name, arg) for name, arg in zip(params, args, strict=True))
        known = self._signatures
        # of several, `coerce` has found the best
        if known is not None and known.is_one and len(self.declared[0]) == len(kinds):
            known.best(kinds)
        return kinds

    def _compiled(self, kinds: Signature, block: Dim3 | None = None) -> _Entry:
        many = block is not None and has_many_threads(block)
        if (
            block is not None
            and (kinds, block) not in self._entries
            and (kinds, many) in self._any_block_size
        ):
            self._entries[kinds, block] = self._any_block_size[kinds, many]
        if (kinds, block) not in self._entries and sum(
            known == kinds for known, _ in self._entries
        ) >= MAX_BLOCKS:
            block = None
        if (kinds, block) not in self._entries:
            if any(float16.is_named(str(kind)) for kind in kinds):
                self._need_float16()  # loaded code, too, takes arguments of its types
            if any(bfloat16.is_named(str(kind)) for kind in kinds):
                bfloat16.represent()
            keyed = (*kinds, *map(types.literal, block or ()))
            compiled = self._cache.get(keyed, functools.partial(self._compile, kinds, block))
            entry = located(compiled.entry, self.py_func) if self._options.debug else compiled.entry
            if not self._options.debug:
                self._natives[entry] = kinds, compiled.result
            self._entries[kinds, block] = entry
            if compiled.any_block_size:
                self._any_block_size[kinds, many] = entry
            self._texts.pop(kinds, None)
            self._texts[kinds] = compiled.text  # last in order, for `source`
        return self._entries[kinds, block]

    def _type_of(self, parameter: str, arg: Any) -> types.Type:
        try:
            kind = protected(typeof(arg), arg)
        except (ValueError, errors.NumbaError) as error:
            if EXTENSIONS.adopt():  # a type of the program's, registered for GPUs
                return self._type_of(parameter, arg)
            what = (
                f"{self.py_func.__qualname__}(): {parameter} is "
                f"{with_article(type(arg).__qualname__)}"
            )
            if str(getattr(arg, "dtype", "")) == bfloat16.NAME:
                if bfloat16.adopt(arg.dtype):
                    return typeof(arg)
                raise ArgumentError(
                    f"{what} of bfloat16, for which kernels need numba-cuda; install it, or "
                    f"pass .astype(np.float32)"
                ) from error
            if isinstance(arg, np.ndarray):
                raise ArgumentError(f"{what} {_of_dtype(arg, parameter)}") from None
            way_out = f"pass {parameter}.to_numpy()" if hasattr(arg, "to_numpy") else ARGUMENTS
            raise ArgumentError(
                f"{what}, which Numba cannot pass to a kernel; {way_out}"
            ) from error
        if (unusable := problem(kind)) is not None:
            raise ArgumentError(
                f"{self.py_func.__qualname__}(): {parameter} is {unusable}, which no kernel takes; "
                f"{ARGUMENTS}"
            )
        return kind

    @compilation()
    def _compile(self, kinds: Signature, block: Dim3 | None, key: str) -> Compiled:
        argtypes = dict(zip(self._program.params, kinds, strict=True))
        EXTENSIONS.adopt()
        refuse_arguments(self._program.code.source, argtypes)
        try:
            try:
                return self._build(argtypes, block, key)
            except (errors.NumbaError, NotImplementedError) as error:
                # None of the arguments has told: the type is named in the body.
                if float16.is_represented() or not float16.is_named(str(error)):
                    raise
                self._need_float16()
                return self._build(argtypes, block, key)
        except errors.TypingError as error:
            if REFUSAL in str(error):  # other messages may name a readonly type, too
                raise self._readonly(argtypes, str(error)) from error
            self._program.refuse_several_types(argtypes)
            self._refuse(error)
            raise
        except (errors.NumbaError, NotImplementedError, AttributeError) as error:
            self._refuse(error)
            raise
        except RecursionError:
            if (refusal := self._program.endless()) is None:
                raise
            raise refusal from None

    def _build(self, argtypes: Mapping[str, types.Type], block: Dim3 | None, key: str) -> Compiled:
        bfloat16.prepare()
        if float16.is_represented():
            float16.register()
        launch = self._program.compile(argtypes, block)
        where = (WHERE_TYPE,) if self._options.debug else ()
        return compile_launch(launch, (*[types.int64] * 7, *argtypes.values(), *where), key)

    def _need_float16(self) -> None:
        """Prepares Numba for float16; raises KernelError on a processor that cannot convert it."""
        if problem := float16.problem():
            source = self._program.code.source
            raise source.refusal(source.tree, f"float16 ({problem})", "compute in float32")
        float16.represent()

    def _refuse(self, error: Exception) -> None:
        """Raises KernelError for an error of Numba, with the place in the kernel, unless Numba's
        own text is asked for.
        """
        refusal = cuda_only(error, self._program.code.source, self._program.namespace)
        if refusal is not None:
            raise refusal from error
        if str(self.py_func.__module__).startswith("synknumba."):
            return  # a kernel around a user's function, whose caller explains
        if (short := explain(error, self.py_func, anywhere=True)) is not None:
            raise short from None

    def _readonly(self, argtypes: Mapping[str, types.Type], text: str) -> ArgumentError:
        """Returns the error for a write to a read-only array, naming the parameter if the source or
        its type shows it.

        `text` is Numba's message, which names the type that is written.
        """
        fixed = {
            name.removesuffix("__arg"): name for name, kind in argtypes.items() if is_readonly(kind)
        }
        source = self._program.code.source
        for node in walk(self._program.body):
            for parameter, name in sorted(fixed.items()):
                if name in _written_arrays(node):
                    where = f"{source.name} ({source.filename}:{node.lineno})"  # type: ignore[attr-defined]
                    return ArgumentError(
                        f"{where}: {parameter} is read-only; "
                        f"{WRITABLE.format(name=repr(parameter))}"
                    )
        where = f"{source.name} ({source.filename}:{source.tree.lineno})"
        if not fixed:
            return ArgumentError(
                f"{where} writes to a global array or a constant, which are "
                f"read-only; pass the array to it"
            )
        # A write to a field of an array's record names the type of the record.
        fixed = {
            param: name
            for param, name in fixed.items()
            if str(argtypes[name]) in text
            or f"record of type {getattr(argtypes[name], 'dtype', None)}" in text
        } or fixed
        if len(fixed) == 1:
            (parameter,) = fixed
            return ArgumentError(
                f"{where}: {parameter} is read-only; {WRITABLE.format(name=repr(parameter))}"
            )
        return ArgumentError(
            f"{where} writes to an array that is read-only, one of {', '.join(fixed)}; "
            f"{WRITABLE.format(name='...')}. A "
            "variable that is passed twice is read-only, too; pass a copy of it as another variable"
        )


# Classes of arguments that `coerce` need not unwrap.
_AS_THEY_ARE = _PLAIN_SCALARS | {np.ndarray, np.void}


def _has_one_type(arg: Any) -> bool:
    """Returns whether all arguments of this class share a Numba type. An int of 2**63 or more is
    a uint64, others are int64.
    """
    return type(arg) in _PLAIN_SCALARS and not (type(arg) is int and arg >= 1 << 63)


def _written_arrays(node: ast.AST) -> set[str]:
    """Returns the variables whose elements or fields the node assigns or updates atomically."""
    match node:
        case (
            ast.Subscript(value=value, ctx=ast.Store())
            | ast.Attribute(value=value, ctx=ast.Store())
        ):
            return _root(value)
        case ast.Call(func=ast.Name(id=function), args=[value, *_]) if function.startswith(
            "_k_atomic"
        ):
            return _root(value)
    return set()


def _root(node: ast.expr) -> set[str]:
    """Returns the variable of which an expression takes elements and fields, if it is one."""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


@overload
def jit(function: Callable[..., Any], /, **options: Any) -> Kernel: ...


@overload
def jit(function: Any = None, /, **options: Any) -> Callable[[Callable[..., Any]], Kernel]: ...


def jit(function: Any = None, /, **options: Any) -> Any:
    """Compiles a CUDA kernel to run natively on one CPU core.

    Accepts the arguments of `numba.cuda.jit`. The kernel is compiled when it is first needed, for
    example by its first launch.

    Args:
        function: plain function, function decorated by `numba.cuda.jit` or `synknumba.parallel`,
            signature, or list of signatures.
        options: `fastmath` is as in `numba.njit`. `thread_order="reverse"` runs the threads from
            the last to the first, which changes results only if a barrier is missing. `cache=False`
            disables the cache on disk. With `debug=True`, an index out of bounds raises IndexError,
            a division by zero raises ZeroDivisionError, and an error raised in a kernel names the
            source line and the thread. The other options of `numba.cuda.jit` are ignored, except
            `extensions` and `device`.

    Returns:
        The kernel; a decorator if `function` is not a function.
    """
    return decorated_as(Kernel, function, **options)


def decorated_as(kind: type[Kernel], function: Any, /, **options: Any) -> Any:
    """Returns what `jit` returns, with kernels of this class."""
    if isinstance(function, Kernel):
        return function if not options else decorated_as(kind, function.py_func, **options)
    if is_device_function(function):
        # a GPU's
        given = {
            name: value
            for name, value in getattr(function, "targetoptions", {}).items()
            if name != "cache"
        }
        return decorated_as(kind, function.py_func, **{**given, **options})
    wrapped = getattr(function, "__wrapped__", None)  # of a kernel decorated by synk.parallel
    if isinstance(wrapped, FunctionType) and not isinstance(function, FunctionType):
        return decorated_as(kind, wrapped, **options)
    _check_options(options)
    signatures = () if isinstance(function, FunctionType) else _signatures(function)
    extensions, device = options.get("extensions") or (), options.get("device", False)
    cache = as_flag(options.get("cache", True), "cache of simt.jit")

    def decorate(decorated: Any) -> Kernel:
        plain = decorated.py_func if is_device_function(decorated) else decorated
        if not isinstance(plain, FunctionType):
            raise ArgumentError(f"simt.jit {_TAKES}; got {_described(plain)}")
        keep_text(plain)
        return kind(plain, _options(options), signatures, extensions, cache, device)

    return decorate(function) if isinstance(function, FunctionType) else decorate


_TAKES: Final = (
    "takes a function defined by def or lambda, one decorated by cuda.jit or "
    "synk.parallel, a signature such as "
    '"void(float32[:], int32)", or a list of signatures'
)


def _described(value: Any) -> str:
    """Returns what a value is that is no function of Python's, and what to write instead."""
    if isinstance(value, functools.partial):
        return (
            f"a functools.partial of {getattr(value.func, '__name__', value.func)!s}: "
            f"write a def that calls it"
        )
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    if is_njit_function(value):
        return f"the njit function {value.py_func.__qualname__}: pass its .py_func"
    return (
        f"the built-in function {value.__name__}"
        if isinstance(value, BuiltinFunctionType)
        else shown(value)
    )


def _signatures(given: Any) -> tuple[Declared, ...]:
    """Returns the signatures given to `jit` in the place of a function."""
    try:
        return parse_signatures(given)
    except (
        TypeError,
        ValueError,
        AttributeError,
        NameError,
        SyntaxError,
        errors.NumbaError,
    ) as error:
        got = _described(given) if callable(given) else f"{shown(given)} ({error})"
        raise ArgumentError(f"simt.jit {_TAKES}; got {got}") from None


# Options of `jit`, those of `cuda.jit` of Numba and of numba-cuda, and `thread_order`; the first
# three are of old programs.
_OPTIONS: Final = (
    *("argtypes", "bind", "restype"),
    *(
        "cache",
        "debug",
        "device",
        "extensions",
        "fastmath",
        "forceinline",
        "inline",
        "launch_bounds",
        "lineinfo",
        "link",
    ),
    *("lto", "max_registers", "opt", "shared_memory_carveout", "thread_order"),
)


def _check_options(options: Mapping[str, Any]) -> None:
    """Raises ArgumentError for an option that no `cuda.jit` has; numba-cuda-mlir has many of its
    own.
    """
    for name in options:
        # numba-cuda has private ones
        if name not in _OPTIONS and not name.startswith("_") and not mlir.is_loaded():
            raise ArgumentError(
                f"simt.jit has no option {name}=; it has "
                f"{', '.join(_OPTIONS)}{nearest(name, _OPTIONS, '=')}"
            )


def check_kernel(function: Any) -> None:
    """Raises `KernelError` if the CPU cannot run the kernel, whose text `keep_text` has kept."""
    Kernel(function, Options()).check()


def _options(given: Mapping[str, Any]) -> Options:
    fastmath: Any = given.get("fastmath") or Options().fastmath
    order = given.get("thread_order", "forward")
    if order not in {"forward", "reverse"}:
        raise ArgumentError(f"thread_order must be 'forward' or 'reverse', got {order!r}")
    debug = given.get("debug")
    # None and 0 are defaults of Numba's
    if debug is None or (isinstance(debug, int) and debug in {0, 1}):
        debug = bool(debug)
    return Options(
        True if fastmath is True else frozenset(fastmath),
        order == "reverse",
        as_flag(debug, "debug of simt.jit"),
    )
