"""A kernel and the functions it calls, all of them rewritten, as one Python program."""

import ast
from collections.abc import Callable, Generator
from types import FunctionType
from typing import Any

import numpy as np
from numba.core import types

from synknumba.simt._operations import cuda_module
from synknumba.simt._scope import CudaPath, Scope, is_njit_function
from synknumba.simt._source import read_definition
from synknumba.simt._threads_arithmetic import convert
from synknumba.simt._threads_cuda import FENCES, as_numpy, member
from synknumba.simt._threads_source import MARK, Function, Rewriter, device_code, is_waiting_call
from synknumba.simt._threads_warp import Request


class Program:
    """A kernel and all functions it calls, ready to run in Python.

    Attributes:
        name: the kernel's name.
        params: its parameters.
        fences: whether anything in it calls `cuda.threadfence`.
    """

    def __init__(self, kernel: FunctionType) -> None:
        self.name = kernel.__qualname__
        self.fences = False
        self._kernel = kernel
        self._functions: dict[FunctionType, Function] = {}
        self._collect(kernel)
        self._spread_waiting()
        for function in self._functions.values():
            Rewriter(function, self._waits, is_kernel=function is self._functions[kernel]).run()

    @property
    def params(self) -> tuple[str, ...]:
        """The kernel's parameters."""
        return self._functions[self._kernel].source.params

    @property
    def defaults(self) -> tuple[Any, ...]:
        """The default values of the last of the kernel's parameters."""
        return self._kernel.__defaults__ or ()

    def _waits(self, function: FunctionType) -> bool:
        return self._functions[function].waits

    def _collect(self, function: FunctionType) -> None:
        if function in self._functions:
            return
        source = read_definition(function)
        made = self._functions[function] = Function(source)
        scope = Scope(source)
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call):
                made.waits |= is_waiting_call(scope, node)
            if isinstance(node, (ast.Name, ast.Attribute)):
                value = scope.resolve(node)
                self.fences |= isinstance(value, CudaPath) and value.path in FENCES
                callee = device_code(value)
                if callee is not None:
                    made.calls.add(callee)
                    self._collect(callee)
                    self._functions[callee].declared = _declared(value)

    def _spread_waiting(self) -> None:
        changed = True
        while changed:
            changed = False
            for function in self._functions.values():
                if not function.waits and any(self._functions[callee].waits for callee in function.calls):
                    function.waits = changed = True

    def link(self, cuda: Any, constant: Callable[[str, Any], Any]) -> Callable[..., Generator[Request, Any, None]]:
        """The kernel as a generator function.

        Args:
            cuda: stands for the module `numba.cuda`.
            constant: makes what a global array is to the kernel, from its name and the array.
        """
        spaces = {function: self._namespace(made, cuda, constant) for function, made in self._functions.items()}
        new: dict[FunctionType, FunctionType] = {}  # code that the user wrote -> its new form
        for function, made in self._functions.items():
            assert made.code is not None  # noqa: S101  # every function was rewritten
            exec(made.code, spaces[function])  # noqa: S102  # the user's own code
            new[function] = spaces[function][made.source.tree.name]
            new[function].__defaults__, new[function].__kwdefaults__ = function.__defaults__, function.__kwdefaults__
            if made.declared is not None:
                new[function] = _fitted(new[function], made)
        for function, made in self._functions.items():
            for name, value in made.bindings.items():
                if isinstance(value, CudaPath):
                    spaces[function][name] = member(cuda, value.path)
                else:
                    spaces[function][name] = new.get(value, value) if isinstance(value, FunctionType) else value
        return new[self._kernel]

    @staticmethod
    def _namespace(made: Function, cuda: Any, constant: Callable[[str, Any], Any]) -> dict[str, Any]:
        constants = {name: constant(name.removeprefix("_k_"), value) for name, value in made.constants.items()}
        # Also where the function itself does not name the module: a breakpoint's condition may.
        modules = {name: cuda for name, value in made.source.scope.items() if value is cuda_module()}
        return {**made.source.scope, **modules, **constants, MARK: cuda}


def _declared(value: Any) -> tuple[tuple[Any, ...], Any] | None:
    """The types of arguments and result that a function's decorator was given; None if none, or several lists of them."""
    if is_njit_function(value):
        if value._can_compile or len(value.overloads) != 1:  # noqa: SLF001  # Numba has no public name for it
            return None
        ((args, compiled),) = value.overloads.items()
        return args, compiled.signature.return_type
    declared: tuple[Any, ...] = getattr(value, "declared", ())
    return (declared[0], None) if len(declared) == 1 else None


def _fitted(function: FunctionType, made: Function) -> FunctionType:
    """The function, with numbers converted to the types that its decorator was given."""
    args, result = made.declared or ((), None)
    kinds = dict(zip(made.source.params, map(_number_type, args), strict=False))

    def begin(given: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        positional = [_as(value, kind) for value, kind in zip(given, kinds.values(), strict=False)]
        return function(*positional, **{name: _as(value, kinds.get(name)) for name, value in keywords.items()})

    def call(*given: Any, **keywords: Any) -> Any:
        return _as(begin(given, keywords), _number_type(result))

    def wait(*given: Any, **keywords: Any) -> Generator[Request, Any, Any]:
        return _as((yield from begin(given, keywords)), _number_type(result))

    return wait if made.waits else call  # type: ignore[return-value]


def _number_type(kind: Any) -> type[np.generic] | None:
    return as_numpy(kind).type if isinstance(kind, (types.Number, types.Boolean)) else None


def _as(value: Any, kind: type[np.generic] | None) -> Any:
    return value if kind is None or value is None else convert(value, kind)
