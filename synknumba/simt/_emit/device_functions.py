"""Compilation options, compiled device functions, and Python functions made from generated code."""

import ast
from collections import Counter
from types import FunctionType
from typing import Any, cast

from synknumba._types import WeakTable
from synknumba.simt._emit.generated import generated_function
from synknumba.simt._emit.options import Options
from synknumba.simt._library.words import STATE
from synknumba.simt._lower.cuda_overloads import OverloadedFunction
from synknumba.simt._lower.thread_code import DeviceFunction, ThreadCode
from synknumba.simt._machine.codegen import make_device
from synknumba.simt._source.syntax import walk


def with_devices(code: ThreadCode, options: Options) -> dict[str, Any]:
    """Returns the namespace of a function, with its device functions replaced by Numba
    dispatchers.
    """
    uses = Counter(node.id for node in walk(code.body) if isinstance(node, ast.Name))
    return {
        name: _compiled(value, options, code, inline=uses[name] <= MAX_INLINED)
        for name, value in code.namespace.items()
    }


def _compiled(value: Any, options: Options, code: ThreadCode, *, inline: bool) -> Any:
    """Returns the dispatcher of a device function, those of a tuple of them, or any other value
    as it is.
    """
    if isinstance(value, tuple) and any(isinstance(part, DeviceFunction) for part in value):
        for part in value:
            device = part.code if isinstance(part, DeviceFunction) else None
            if device is not None and (device.uses_state or device.must_be_inlined):
                construct = (
                    f"{part.name}(), which asks for its thread or waits, in a tuple of functions"
                )
                raise code.source.refusal(code.source.tree, construct, "call it by its name")
        return tuple(_compiled(part, options, code, inline=inline) for part in value)
    if isinstance(value, DeviceFunction):
        return _compile_device(value, options, inline=inline)
    if isinstance(value, OverloadedFunction):
        # which compiles functions as this module does
        from synknumba.simt._emit.overloads import cpu_overload

        return cpu_overload(value.function, options)
    if type(value).__name__ == "_Intrinsic":
        from synknumba.simt._emit.cuda_extensions import is_intrinsic, of_the_cpu

        return of_the_cpu(value) if is_intrinsic(value) else value
    return value


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
        params = [*(STATE if code.uses_state else ()), *code.params]
        function = generated_function(device.name, code, params, rest=device.takes_rest)
        dispatcher = options.njit(function, forceinline=inline and not device.is_recursive)
        # A recursive function is called through an address, so that it needs machine code of its
        # own.
        compiled[key] = dispatcher if device.is_recursive else make_device(dispatcher)
        # last, as a recursive function finds itself
        function.__globals__.update(with_devices(code, options))
    return compiled[key]
