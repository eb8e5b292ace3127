"""Overloads for GPUs, called by kernels on a core.

Which overload applies depends on the types of the arguments, so Numba chooses when it types the
call. The function in the kernel is replaced by one of our own, whose only overload asks those for
GPUs in turn, translates the function that the first one gives, and returns it. As this happens
after the kernel's translation, every such function takes the thread's place.
"""

import inspect
from types import FunctionType
from typing import Any, cast

from numba.core import types
from numba.core.errors import TypingError
from numba.core.typing.templates import _OverloadFunctionTemplate
from numba.extending import overload

from synknumba._types import WeakTable
from synknumba.simt._emit.device_functions import with_devices
from synknumba.simt._emit.generated import generated_function
from synknumba.simt._emit.options import Options
from synknumba.simt._library.words import STATE
from synknumba.simt._lower.cuda_overloads import maker_of, overloads_for_cuda
from synknumba.simt._lower.lowering import DeviceFunctions
from synknumba.simt._lower.thread_code import DeviceFunction, ThreadCode
from synknumba.simt._source.written import has_rest

_replacements: WeakTable[Any, dict[Options, Any]] = WeakTable()


def cpu_overload(function: Any, options: Options) -> Any:
    """Returns what kernels call in place of a function with overloads for GPUs: the thread's place
    precedes the arguments.
    """
    replacements = _replacements.setdefault(function, {})
    if options not in replacements:
        replacements[options] = _cpu_overload(function, options)
    return replacements[options]


def _cpu_overload(function: Any, options: Options) -> Any:
    def call(*args: Any, **keywords: Any) -> Any:
        raise NotImplementedError

    call.__name__ = call.__qualname__ = function.__name__
    prefers_literals = any(template.prefer_literal for template in overloads_for_cuda(function))

    @overload(call, jit_options=options.flags(), strict=False, prefer_literal=prefers_literals)
    def choose(*args: Any, **keywords: Any) -> Any:
        return _implementation(function, args[len(STATE) :], keywords, options)

    return call


def _implementation(
    function: Any, args: tuple[Any, ...], keywords: dict[str, Any], options: Options
) -> Any:
    for template in overloads_for_cuda(function):
        chooser = maker_of(template)
        try:
            inspect.signature(chooser).bind(*args, **keywords)
        except TypeError as error:
            raise TypingError(str(error)) from error
        choice = chooser(*args, **keywords)
        if choice is None:
            continue
        signature, implementation = None, choice
        if isinstance(choice, tuple):
            signature, implementation = choice
        if template._strict:  # noqa: SLF001
            _OverloadFunctionTemplate._validate_sigs(None, chooser, implementation)  # noqa: SLF001
        translation = translated(implementation, options, f"{function.__name__}(), whose overload")
        if signature is None:
            return translation
        return signature.return_type(*[types.int64] * len(STATE), *signature.args), translation
    return None


def translated(
    implementation: FunctionType, options: Options, what: str, *, with_place: bool = True
) -> FunctionType:
    """Returns an overload's function as code of one thread; `with_place`: it takes the thread's
    place before the arguments.

    Which function a call means is known by the types of its arguments only, when the kernel has
    been cut at its barriers.

    Raises:
        KernelError: the function waits, or asks for a place that it does not take; `what` begins
            the description.
    """
    device = DeviceFunction(implementation)
    DeviceFunctions().translate(device)
    code = cast(ThreadCode, device.code)
    problem = ""
    if code.must_be_inlined:
        problem = "waits or has shared memory"
    elif code.uses_state and not with_place:
        problem = "asks for its thread"
    if problem:
        remedy = "call a device function in its place: a def below @cuda.jit(device=True)"
        raise code.source.refusal(code.source.tree, f"{what} for GPUs {problem},", remedy)
    params = code.params
    if with_place:
        params = (*STATE, *params)
    function = generated_function(
        implementation.__name__, code, params, rest=has_rest(implementation)
    )
    function.__defaults__ = implementation.__defaults__
    function.__globals__.update(with_devices(code, options))
    return function
