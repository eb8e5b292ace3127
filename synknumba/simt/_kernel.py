"""The object that a user launches: `kernel[grid, block](*args)`."""

import ast
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, Protocol, cast, overload

import numpy as np
from numba import typeof
from numba.core import errors, sigutils, types
from numba.np.numpy_support import as_dtype

from synknumba._errors import ArgumentError, LaunchError
from synknumba.simt._build import MAX_BLOCK, Options, Program
from synknumba.simt._scope import is_device_function

Dim3 = tuple[int, int, int]

# CUDA's limits on a block, for each axis.
MAX_BLOCK_AXES: Dim3 = (1024, 1024, 64)

# As many threads as numba-cuda gives `forall` on most GPUs.
FORALL_BLOCK = 256

# Types of which the class alone determines the Numba type.
_PLAIN_SCALARS = frozenset({bool, int, float, complex, *(np.dtype(char).type for char in "?bhilqBHILQfdFD")})


class _Entry(Protocol):
    """A compiled launch function: the sizes of grid and block, then the kernel's arguments."""

    def __call__(self, *args: Any) -> None: ...


class Launcher:
    """A kernel with a grid and a block."""

    def __init__(self, kernel: "Kernel", grid: Dim3, block: Dim3) -> None:
        self._kernel, self._sizes = kernel, (*grid, *block)

    def __call__(self, *args: Any) -> None:
        """Runs every thread of the grid on the calling CPU core."""
        args = self._kernel.coerce(args)
        self._kernel.entry(args)(*self._sizes, *args)


class Kernel:
    """A Numba CUDA kernel that runs natively on one CPU core.

    The kernel is translated when it is first needed, so that decorating a function never fails; `check()` forces it.

    Args:
        function: the plain Python function.
        options: how Numba compiles it.
        signature: the types given to the decorator; Python scalars are converted to them.
    """

    __simt_kernel__ = True

    def __init__(self, function: FunctionType, options: Options, signature: Sequence[types.Type] = ()) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self._options = options
        self._signature = tuple(signature)
        self._scalars = {
            place: as_dtype(kind).type
            for place, kind in enumerate(self._signature)
            if isinstance(kind, (types.Number, types.Boolean))
        }
        self._entries: dict[tuple[Any, ...], _Entry] = {}
        self._by_class: dict[tuple[Any, ...], _Entry] = {}
        self._text: str | None = None

    def __repr__(self) -> str:
        """The kernel and where it is defined."""
        code = self.py_func.__code__
        return f"<simt kernel {self.py_func.__qualname__} ({code.co_filename}:{code.co_firstlineno})>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickles as the plain function and the options; the other side compiles again.

        A function decorated at the top of a module cannot be found by its name any more, as the name is the kernel's. But then
        the kernel itself can.
        """
        name, module = self.py_func.__qualname__, self.py_func.__module__
        if module != "__main__" and getattr(sys.modules.get(module), name, None) is self:
            return name
        return Kernel, (self.py_func, self._options, self._signature)

    def __call__(self, *_args: Any, **_kwargs: Any) -> None:
        """Refuses: a kernel needs a grid and a block."""
        message = f"{self.py_func.__qualname__} is a kernel: launch it as {self.py_func.__name__}[grid, block](...)"
        raise LaunchError(message)

    def __getitem__(self, config: tuple[Any, ...]) -> Launcher:
        """`kernel[grid, block]`, with CUDA's optional stream and bytes of dynamic shared memory, which mean nothing here."""
        if not isinstance(config, tuple) or not 2 <= len(config) <= 4:
            message = f"{self.py_func.__qualname__}: launch as kernel[grid, block](...), got [{config!r}]"
            raise LaunchError(message)
        grid, block = (_three(part, name) for part, name in zip(config, ("grid", "block"), strict=False))
        check_sizes(grid, block)
        return Launcher(self, grid, block)

    def forall(self, n: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Launcher:
        """A launcher with at least n threads; `tpb` threads a block if given."""
        del stream, sharedmem
        block = tpb or FORALL_BLOCK
        return Launcher(self, (-(-n // block), 1, 1), (block, 1, 1))

    @functools.cached_property
    def _program(self) -> Program:
        return Program(self.py_func, self._options)

    def check(self) -> None:
        """Translates the kernel as far as its arguments do not matter.

        Raises:
            KernelError: it uses something that the CPU cannot run.
        """
        self._program  # noqa: B018  # reading it translates

    @property
    def source(self) -> str:
        """The generated function: that of the types compiled last, or a general one if there are none yet."""
        if self._text is None:
            return self._program.text(self._program.launch_body({}))
        return self._text

    def prepare(self, grid: Dim3, block: Dim3, args: tuple[Any, ...]) -> Callable[[], None]:
        """Compiles for these arguments if need be, and returns a function that launches with exactly these objects.

        Args:
            grid: the number of blocks, for each axis.
            block: the number of threads of a block, for each axis.
            args: the kernel's arguments. Their contents may change between launches, their types and places may not.
        """
        check_sizes(grid, block)
        args = self.coerce(args)
        return functools.partial(self.entry(args), *grid, *block, *args)

    def bind(self, grid: Dim3, block: Dim3, args: tuple[Any, ...]) -> Callable[..., None]:
        """As `prepare`, but the returned function takes the arguments: any of the same types as `args`."""
        check_sizes(grid, block)
        return functools.partial(self.entry(self.coerce(args)), *grid, *block)

    def coerce(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, scalars converted to the types of the decorator's signature."""
        if not self._scalars:
            return args
        return tuple(self._scalars[place](arg) if place in self._scalars else arg for place, arg in enumerate(args))

    def entry(self, args: tuple[Any, ...]) -> _Entry:
        """The compiled launch function for arguments of these types."""
        key = tuple([(a.dtype, a.ndim, a.flags.num) if type(a) is np.ndarray else type(a) for a in args])
        found = self._by_class.get(key)
        if found is None:
            found = self._typed_entry(args)
            if all(type(arg) is np.ndarray or _has_one_type(arg) for arg in args):
                self._by_class[key] = found
        return found

    def _typed_entry(self, args: tuple[Any, ...]) -> _Entry:
        params = self._program.params
        if len(args) != len(params):
            message = f"{self.py_func.__qualname__}() takes {len(params)} arguments, got {len(args)}"
            raise ArgumentError(message)
        kinds = tuple(self._type_of(name, arg) for name, arg in zip(params, args, strict=True))
        if kinds not in self._entries:
            self._entries[kinds] = self._compile(dict(zip(params, kinds, strict=True)))
        return self._entries[kinds]

    def _type_of(self, name: str, arg: Any) -> types.Type:
        try:
            return typeof(arg)
        except (ValueError, errors.NumbaError) as error:
            what = f"{self.py_func.__qualname__}(): {name.removesuffix('__arg')} is a {type(arg).__qualname__}"
            message = f"{what}, which Numba cannot pass to a kernel; pass NumPy arrays, numbers, and tuples of them"
            raise ArgumentError(message) from error

    def _compile(self, argtypes: Mapping[str, types.Type]) -> _Entry:
        sizes = (types.int64,) * 6
        try:
            dispatcher, text = self._program.compile(argtypes)
            dispatcher.compile(sizes + tuple(argtypes.values()))
        except errors.TypingError as error:
            if "Cannot modify readonly array" in str(error):  # and not any message that names the type of an input
                raise self._readonly(argtypes) from error
            raise
        self._text = text
        compiled = dispatcher.overloads[sizes + tuple(argtypes.values())]
        return cast("_Entry", compiled.entry_point)

    def _readonly(self, argtypes: Mapping[str, types.Type]) -> ArgumentError:
        """The error for a write to an array that must not change, naming the parameter if the source shows it."""
        fixed = {name for name, kind in argtypes.items() if isinstance(kind, types.Array) and not kind.mutable}
        source = self._program.code.source
        for node in ast.walk(ast.Module(self._program.body, [])):
            for name in sorted(_written_arrays(node) & fixed):
                where = f"{source.name} ({source.filename}:{node.lineno})"  # type: ignore[attr-defined]
                shown = name.removesuffix("__arg")
                return ArgumentError(f"{where}: {shown} is an input; to write to it pass it in inout=({shown!r},)")
        where = f"{source.name} ({source.filename}:{source.tree.lineno})"
        return ArgumentError(f"{where} writes to an input; its inputs are {', '.join(sorted(fixed))}: pass it in inout=(...)")


def _has_one_type(arg: Any) -> bool:
    """Whether any argument of the same class has the same Numba type. Only a very large int is a uint64."""
    return type(arg) in _PLAIN_SCALARS and not (type(arg) is int and arg >= 1 << 63)


def _written_arrays(node: ast.AST) -> set[str]:
    """The variables whose elements the node changes."""
    match node:
        case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()):
            return {name}
        case ast.Call(func=ast.Name(id=function), args=[ast.Name(id=name), *_]) if function.startswith("_k_atomic"):
            return {name}
    return set()


def _three(size: Any, name: str) -> Dim3:
    """A grid or block size with all three axes."""
    parts = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    if not 1 <= len(parts) <= 3 or not all(isinstance(part, (int, np.integer)) for part in parts):
        message = f"{name} must be an integer or a tuple of one to three integers, got {size!r}"
        raise LaunchError(message)
    return cast("Dim3", (*(int(part) for part in parts), 1, 1)[:3])


def check_sizes(grid: Dim3, block: Dim3) -> None:
    """Refuses a grid or a block that CUDA does not accept.

    Raises:
        LaunchError: a size is below one, or the block is too large.
    """
    if min(grid) < 1 or min(block) < 1:
        message = f"grid and block must be at least 1 along each axis, got grid={grid} and block={block}"
        raise LaunchError(message)
    if any(size > most for size, most in zip(block, MAX_BLOCK_AXES, strict=True)) or block[0] * block[1] * block[2] > MAX_BLOCK:
        message = f"a block has at most {MAX_BLOCK} threads, and at most {MAX_BLOCK_AXES} along its axes; got block={block}"
        raise LaunchError(message)


@overload
def jit(function: Callable[..., Any], /, **options: Any) -> Kernel: ...


@overload
def jit(function: Any = None, /, **options: Any) -> Callable[[Callable[..., Any]], Kernel]: ...


def jit(function: Any = None, /, **options: Any) -> Any:
    """Makes a kernel that runs natively on one CPU core.

    Takes what `numba.cuda.jit` takes: a function, or options and perhaps signatures, in which case it returns a decorator.

    Args:
        function: a plain function, one decorated by `numba.cuda.jit`, or a signature or list of signatures.
        options: `fastmath` as `numba.njit` takes it; the other options of `numba.cuda.jit` mean nothing here.
    """
    if isinstance(function, Kernel):
        return function if not options else jit(function.py_func, **options)
    if is_device_function(function):
        return jit(function.py_func, **{**getattr(function, "targetoptions", {}), **options})
    if isinstance(function, FunctionType):
        return Kernel(function, _options(options))
    signature = _signature(function)
    return lambda decorated: Kernel(
        decorated.py_func if is_device_function(decorated) else decorated, _options(options), signature
    )


def _options(given: Mapping[str, Any]) -> Options:
    fastmath = given.get("fastmath")
    if not fastmath:
        return Options()
    return Options(True if fastmath is True else frozenset(fastmath))


def _signature(given: Any) -> tuple[types.Type, ...]:
    """The argument types of the one signature given; none where there are several, or none."""
    if isinstance(given, (list, tuple)) and len(given) == 1 and not isinstance(given[0], types.Type):
        given = given[0]
    if given is None or isinstance(given, list):
        return ()
    args, _ = sigutils.normalize_signature(given)
    return tuple(args)
