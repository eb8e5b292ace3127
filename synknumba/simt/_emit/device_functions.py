"""Compilation options, compiled device functions, and Python functions made from generated code."""

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast

from numba import njit

from synknumba._types import WeakTable
from synknumba.simt._analysis.team import LINEAR_TEXT
from synknumba.simt._analysis.uniformity import NONNEG
from synknumba.simt._frontend.cuda_overloads import OverloadedFunction
from synknumba.simt._frontend.source import Source
from synknumba.simt._frontend.syntax import place, read_names, statements, walk
from synknumba.simt._frontend.thread_code import DeviceFunction, ThreadCode
from synknumba.simt._library.operations import LINEAR, STATE
from synknumba.simt._library.runtime import HELPERS
from synknumba.simt._machine.codegen import make_device


@dataclass(frozen=True, slots=True)
class Options:
    """Compilation options of a kernel.

    Attributes:
        fastmath: as in `numba.njit`. GPUs contract `a * b + c` to a fused multiply-add by default,
            hence the default here.
        reverse: whether threads run from the last to the first, which exposes a missing barrier.
        debug: whether indices and divisions are checked and errors name the thread that raised.
        checked: whether accesses are instrumented, for `simt.check`.
    """

    fastmath: bool | frozenset[str] = frozenset({"contract"})
    reverse: bool = False
    debug: bool = False
    checked: bool = False

    def njit(self, function: Callable[..., Any], **more: Any) -> Any:
        """Returns Numba's dispatcher of the function; nothing is compiled yet."""
        return njit(**self.flags(), **more)(function)

    def flags(self) -> dict[str, Any]:
        """Returns the arguments of `njit`."""
        fastmath = set(self.fastmath) if isinstance(self.fastmath, frozenset) else self.fastmath
        # A possible ZeroDivisionError is an exit from the loop, which keeps the loop from
        # vectorizing.
        checks_divisions = self.debug and fastmath is not True  # as in numba-cuda
        error_model, boundscheck = (
            "python" if checks_divisions else "numpy",
            True if self.debug else None,
        )
        return {"error_model": error_model, "boundscheck": boundscheck, "fastmath": fastmath}


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
            if (
                isinstance(part, DeviceFunction)
                and part.code is not None
                and (part.code.uses_state or part.code.needs_block)
            ):
                construct = (
                    f"{part.name}(), which asks for its thread or waits, in a tuple of functions"
                )
                raise code.source.refusal(code.source.tree, construct, "call it by its name")
        return tuple(_compiled(part, options, code, inline=inline) for part in value)
    if isinstance(value, OverloadedFunction):
        # which compiles functions as this module does
        from synknumba.simt._emit.overloads import stand_in

        return stand_in(value.function, options)
    if type(value).__name__ == "_Intrinsic":
        from synknumba.simt._emit.cuda_extensions import is_intrinsic, of_the_cpu

        return of_the_cpu(value) if is_intrinsic(value) else value
    return (
        _compile_device(value, options, inline=inline)
        if isinstance(value, DeviceFunction)
        else value
    )


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


def generated_function(
    name: str, code: ThreadCode, params: Sequence[str], *, rest: bool = False
) -> FunctionType:
    """Makes a Python function of the code of one thread; `rest`: the last parameter takes all
    further arguments.
    """
    body = code.body
    if LINEAR in read_names(body):
        body = statements(f"{LINEAR} = {NONNEG}({LINEAR_TEXT})", code.source.tree) + body
    return define_function(name, params, body, HELPERS, code.source, rest=rest)


def define_function(
    name: str,
    params: Iterable[str],
    body: list[ast.stmt],
    namespace: Mapping[str, Any],
    source: Source,
    *,
    rest: bool = False,
) -> FunctionType:
    """Makes a Python function with these globals from statements, which keep the file and line
    numbers of the user's source.
    """
    named = [ast.arg(param) for param in params]
    arguments = ast.arguments(
        [], named[:-1] if rest else named, named[-1] if rest else None, [], [], None, []
    )
    tree = ast.FunctionDef(name, arguments, body or [ast.Pass()], [], None)
    if sys.version_info >= (3, 12):
        tree.type_params = []
    place(tree, source.tree)
    module = source.function.__module__
    # If a function's module is not in sys.modules, Numba names the function differently where it
    # calls itself.
    scope: dict[str, Any] = {
        **namespace,
        "__name__": module if module in sys.modules else "builtins",
    }
    exec(compile(ast.Module([tree], []), source.filename, "exec"), scope)  # noqa: S102  # the generated function
    return cast(FunctionType, scope[name])
