"""The decorator `jit`, the counterpart of `numba.cuda.jit` on a CPU."""

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, overload

from synknumba._errors import ArgumentError
from synknumba._types import as_flag
from synknumba.simt._emit.device_functions import Options
from synknumba.simt._frontend.scope import is_device_function
from synknumba.simt._frontend.signatures import parse_signatures
from synknumba.simt._kernel import Kernel


@overload
def jit(function: Callable[..., Any], /, **options: Any) -> Kernel: ...


@overload
def jit(function: Any = None, /, **options: Any) -> Callable[[Callable[..., Any]], Kernel]: ...


def jit(function: Any = None, /, **options: Any) -> Any:
    """Compiles a CUDA kernel to run natively on one CPU core.

    Accepts the arguments of `numba.cuda.jit`. The kernel is compiled when it is first needed, for example by its first launch.

    Args:
        function: plain function, function decorated by `numba.cuda.jit`, signature, or list of signatures.
        options: `fastmath` is as in `numba.njit`. `thread_order="reverse"` runs the threads from the last to the first, which
            changes results only if a barrier is missing. `cache=False` disables the cache on disk. With `debug=True`, an index
            out of bounds raises IndexError, a division by zero raises ZeroDivisionError, and an error raised in a kernel names
            the source line and the thread. The other options of `numba.cuda.jit` are ignored, except `extensions` and
            `device`.

    Returns:
        The kernel; a decorator if `function` is not a function.
    """
    if isinstance(function, Kernel):
        return function if not options else jit(function.py_func, **options)
    if is_device_function(function):
        return jit(function.py_func, **{**getattr(function, "targetoptions", {}), **options})
    signatures = () if isinstance(function, FunctionType) else parse_signatures(function)
    extensions, device = options.get("extensions") or (), options.get("device", False)
    cache = as_flag(options.get("cache", True), "cache of simt.jit")

    def decorate(decorated: Any) -> Kernel:
        plain = decorated.py_func if is_device_function(decorated) else decorated
        return Kernel(plain, _options(options), signatures, extensions, cache, device)

    return decorate(function) if isinstance(function, FunctionType) else decorate


def _options(given: Mapping[str, Any]) -> Options:
    fastmath: Any = given.get("fastmath") or Options().fastmath
    order = given.get("thread_order", "forward")
    if order not in {"forward", "reverse"}:
        raise ArgumentError(f"thread_order must be 'forward' or 'reverse', got {order!r}")
    debug = given.get("debug")
    if debug is None or (isinstance(debug, int) and debug in {0, 1}):  # None and 0 are defaults of Numba's
        debug = bool(debug)
    return Options(True if fastmath is True else frozenset(fastmath), order == "reverse", as_flag(debug, "debug of simt.jit"))
