"""Compiled device functions, and how generated code becomes a Python function."""

import ast
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast
from weakref import WeakKeyDictionary

from numba import njit

from synknumba.simt._analysis.team import LINEAR_TEXT
from synknumba.simt._analysis.uniformity import NONNEG
from synknumba.simt._frontend.syntax import place, read_names, statements
from synknumba.simt._frontend.thread_code import DeviceFunction, ThreadCode
from synknumba.simt._library.operations import LINEAR, STATE
from synknumba.simt._library.runtime import HELPERS


@dataclass(frozen=True, slots=True)
class Options:
    """How Numba compiles a kernel.

    Attributes:
        fastmath: as `numba.njit` takes it. GPUs contract `a * b + c` by default, so that is the default here.
        reverse: whether threads run from the last to the first, which shows a missing barrier.
        debug: whether indices and divisions are checked, and errors say which thread raised them.
    """

    fastmath: bool | frozenset[str] = frozenset({"contract"})
    reverse: bool = False
    debug: bool = False

    def njit(self, function: Callable[..., Any], **more: Any) -> Any:
        """The function, to be compiled by Numba."""
        fastmath = set(self.fastmath) if isinstance(self.fastmath, frozenset) else self.fastmath
        # A possible ZeroDivisionError would be an exit from the loop, which then does not vectorize.
        checks_divisions = self.debug and fastmath is not True  # as in numba-cuda
        error_model, boundscheck = "python" if checks_divisions else "numpy", True if self.debug else None
        return njit(error_model=error_model, boundscheck=boundscheck, fastmath=fastmath, **more)(function)


def with_devices(code: ThreadCode, options: Options) -> dict[str, Any]:
    """The namespace of a function, its device functions compiled."""
    return {
        name: _compile_device(value, options) if isinstance(value, DeviceFunction) else value
        for name, value in code.namespace.items()
    }


# Device functions are often shared by many kernels, and compiling one costs 0.05 to 0.2 s.
_compiled_devices: WeakKeyDictionary[FunctionType, dict[Any, Any]] = WeakKeyDictionary()


def _compile_device(device: DeviceFunction, options: Options) -> Any:
    compiled = _compiled_devices.setdefault(device.function, {})
    key = options, device.variant
    if key not in compiled:
        code = cast(ThreadCode, device.code)  # set by now: the whole kernel has been translated
        source = code.source
        body = code.body
        if LINEAR in read_names(body):
            body = statements(f"{LINEAR} = {NONNEG}({LINEAR_TEXT})", source.tree) + body
        params = [*(STATE if code.uses_state else ()), *code.params]
        module = source.function.__module__
        function = define_function(device.name, params, body, HELPERS, source.filename, source.tree, module)
        compiled[key] = options.njit(function, forceinline=not device.is_recursive)
        function.__globals__.update(with_devices(code, options))  # where it may find itself
    return compiled[key]


def define_function(
    name: str,
    params: Iterable[str],
    body: list[ast.stmt],
    namespace: Mapping[str, Any],
    filename: str,
    at: ast.AST,
    module: str,
) -> FunctionType:
    """A Python function made of statements; its lines are those of the user's file."""
    arguments = ast.arguments([], [ast.arg(param) for param in params], None, [], [], None, [])
    tree = ast.FunctionDef(name, arguments, body or [ast.Pass()], [], None)
    if sys.version_info >= (3, 12):
        tree.type_params = []
    place(tree, at)
    # Numba names a function of a module that is nowhere otherwise where it calls itself.
    scope: dict[str, Any] = {**namespace, "__name__": module if module in sys.modules else "builtins"}
    exec(compile(ast.Module([tree], []), filename, "exec"), scope)  # noqa: S102  # the generated function
    function: FunctionType = scope[name]
    return function
