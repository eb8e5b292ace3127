"""The decorator `jit`, the counterpart of `numba.cuda.jit` on a CPU, and its options."""

import functools
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final, overload

from numba.core import errors

from synknumba._errors import ArgumentError
from synknumba._types import as_flag, nearest, shown
from synknumba.simt._emit.options import Options
from synknumba.simt._kernel import Kernel
from synknumba.simt._lower.signatures import Declared, parse_signatures
from synknumba.simt._source import mlir
from synknumba.simt._source.reads import is_device_function, is_njit_function
from synknumba.simt._source.source_text import keep_text


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
        if not options:
            return function
        return decorated_as(kind, function.py_func, **options)
    if is_device_function(function):
        options = {**getattr(function, "targetoptions", {}), "cache": True, **options}
        return decorated_as(kind, function.py_func, **options)
    wrapped = getattr(function, "__wrapped__", None)  # of a kernel decorated by synk.parallel
    if isinstance(wrapped, FunctionType) and not isinstance(function, FunctionType):
        return decorated_as(kind, wrapped, **options)
    _check_options(options)
    extensions, device = options.get("extensions") or (), options.get("device", False)
    cache = as_flag(options.get("cache", True), "cache of simt.jit")

    def decorate(decorated: Any, signatures: tuple[Declared, ...] = ()) -> Kernel:
        plain = decorated
        if is_device_function(decorated):
            plain = decorated.py_func
        if not isinstance(plain, FunctionType):
            raise ArgumentError(f"simt.jit {_TAKES}; got {_described(plain)}")
        keep_text(plain)
        return kind(plain, _options(options), signatures, extensions, cache, device)

    if isinstance(function, FunctionType):
        return decorate(function)
    return functools.partial(decorate, signatures=_signatures(function))


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
    if isinstance(value, BuiltinFunctionType):
        return f"the built-in function {value.__name__}"
    return shown(value)


# Errors of Numba's parser of signatures.
_UNREADABLE: Final = (
    *(TypeError, ValueError, AttributeError, NameError, SyntaxError),
    errors.NumbaError,
)


def _signatures(value: Any) -> tuple[Declared, ...]:
    """Returns the signatures that are passed to `jit` in the place of a function."""
    try:
        return parse_signatures(value)
    except _UNREADABLE as error:
        got = f"{shown(value)} ({error})"
        if callable(value):
            got = _described(value)
        raise ArgumentError(f"simt.jit {_TAKES}; got {got}") from None


# Options of `jit`, those of `cuda.jit` of Numba and of numba-cuda, and `thread_order`; the first
# three are of old programs.
_OPTIONS: Final = (
    *("argtypes", "bind", "restype"),
    *("cache", "debug", "device", "extensions", "fastmath", "forceinline", "inline"),
    *("launch_bounds", "lineinfo", "link", "lto", "max_registers", "opt"),
    *("shared_memory_carveout", "thread_order"),
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


def _options(options: Mapping[str, Any]) -> Options:
    fastmath: Any = options.get("fastmath") or Options().fastmath
    if fastmath is not True:
        fastmath = frozenset(fastmath)
    order = options.get("thread_order", "forward")
    if order not in {"forward", "reverse"}:
        raise ArgumentError(f"thread_order must be 'forward' or 'reverse', got {order!r}")
    debug = options.get("debug")
    # None and 0 are defaults of Numba's
    if debug is None or (isinstance(debug, int) and debug in {0, 1}):
        debug = bool(debug)
    return Options(fastmath, order == "reverse", as_flag(debug, "debug of simt.jit"))
