"""Compilation options, compiled device functions, and Python functions made from generated code."""

from types import FunctionType
from typing import Any, cast

from synknumba._types import WeakTable
from synknumba.simt._emit.generated import generated_function
from synknumba.simt._emit.options import Options
from synknumba.simt._lower.cuda_overloads import OverloadedFunction
from synknumba.simt._lower.thread_code import DeviceFunction, ThreadCode
from synknumba.simt._machine.codegen import make_device
from synknumba.simt._source.syntax import count_each


def with_devices(code: ThreadCode, options: Options) -> dict[str, Any]:
    """Returns the namespace of a function, with its device functions replaced by Numba
    dispatchers.
    """
    uses = count_each(code.body)
    return {
        name: _compiled(value, options, code, inline=uses[name] <= MAX_INLINED)
        for name, value in code.namespace.items()
    }


def _compiled(value: Any, options: Options, code: ThreadCode, *, inline: bool) -> Any:
    """Returns the dispatcher of a device function, those of a tuple of them, or any other value
    as it is.
    """
    match value:
        case tuple():
            devices = [part for part in value if isinstance(part, DeviceFunction)]
            for device in devices:
                _check_needs_nothing(device, code)
            if devices:
                return tuple(_compiled(part, options, code, inline=inline) for part in value)
        case DeviceFunction():
            return _compile_device(value, options, inline=inline)
        case OverloadedFunction(function):
            # which compiles functions as this module does
            from synknumba.simt._emit.overloads import cpu_overload

            return cpu_overload(function, options)
        case _ if type(value).__name__ == "_Intrinsic":
            from synknumba.simt._emit.cuda_extensions import for_the_cpu

            return for_the_cpu(value)
    return value


def _check_needs_nothing(device: DeviceFunction, code: ThreadCode) -> None:
    """Raises KernelError for a function that only a call by its name gives what it needs."""
    if device.code is None:
        return
    if device.code.uses_state or device.code.must_be_inlined:
        construct = f"{device.name}(), which asks for its thread or waits, in a tuple of functions"
        raise code.source.refusal(code.source.tree, construct, "call it by its name")


# Calls of a device function by one function up to which all of them are inlined; beyond, LLVM
# decides. Deposition of currents has 96 of each of two, which took LLVM a second to inline and
# simplify, and runs as fast without.
MAX_INLINED = 16

# Many kernels may share a device function, and compiling one takes 0.05 to 0.2 s.
_compiled_devices: WeakTable[FunctionType, dict[Any, Any]] = WeakTable()


def _compile_device(device: DeviceFunction, options: Options, *, inline: bool) -> Any:
    compiled = _compiled_devices.setdefault(device.function, {})
    # An instrumented function names accesses by numbers of its kernel.
    key = options, device.variant, inline, device.code if options.checked else None
    if key not in compiled:
        code = cast(ThreadCode, device.code)  # set: the whole kernel has been translated by now
        params = code.state_and_params()
        function = generated_function(device.name, code, params, rest=device.takes_rest)
        dispatcher = options.njit(function, forceinline=inline and not device.is_recursive)
        # A recursive function is called through an address, so that it needs machine code of its
        # own.
        compiled[key] = dispatcher if device.is_recursive else make_device(dispatcher)
        # last, as a recursive function finds itself
        function.__globals__.update(with_devices(code, options))
    return compiled[key]
