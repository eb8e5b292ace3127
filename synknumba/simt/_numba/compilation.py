"""The state in which Numba compiles a kernel quickly: without garbage collection, and with a table
of signatures.

CPython's collector walks the objects of the compiler again and again and finds next to nothing, as
they live to the end of the compilation.

Numba asks for the signature of an operator at each use, in each round of type inference and again
when it lowers the use, and tries all definitions each time: for one kernel of ours 6,000 times.
They are asked for once here. Only signatures of functions of Numba's own (`types.Function`) are
kept, and no failures; the table ends with the compilation, so that what a program registers later
counts.
"""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from numba.core import types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target


@contextmanager
def compilation() -> Iterator[None]:
    """Compiles within the context, with Numba's lock held."""
    with global_compiler_lock, _without_collector(), _with_signatures_kept():
        yield


@contextmanager
def _without_collector() -> Iterator[None]:
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def _with_signatures_kept() -> Iterator[None]:
    context, numbas = cpu_target.typing_context, types.Function.get_call_type
    of_this_context = _keeping(lambda function, args, kws: numbas(function, context, args, kws))

    def get_call_type(function: Any, where: Any, args: Any, kws: Mapping[str, Any]) -> Any:
        if where is context:
            return of_this_context(function, args, kws)
        return numbas(function, where, args, kws)

    # type inference asks here, lowering the function
    context.resolve_function_type = _keeping(context.resolve_function_type)
    types.Function.get_call_type = get_call_type
    try:
        yield
    finally:
        types.Function.get_call_type = numbas
        vars(context).pop("resolve_function_type", None)


def _keeping(resolve: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `resolve` with a cache of the signatures by function and argument types."""
    signatures: dict[Any, Any] = {}

    def look_up(function: Any, args: Any, kws: Mapping[str, Any]) -> Any:
        if kws or type(function) is not types.Function:
            return resolve(function, args, kws)
        key = function, tuple(args)
        try:
            signature = signatures.get(key)
        except TypeError:  # a type of a literal that cannot be hashed
            return resolve(function, args, kws)
        if signature is None:
            signature = resolve(function, args, kws)
            if signature is not None:
                signatures[key] = signature
        return signature

    return look_up
