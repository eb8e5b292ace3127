"""Links a kernel and its device functions, all rewritten as Python generators, into one program."""

import ast
from collections.abc import Callable, Generator
from types import FunctionType
from typing import Any, Final

import numpy as np
from numba import typeof
from numba.core import types
from numba.np.numpy_support import from_dtype

from synknumba.simt._lower.arrays import ARRAY_PATHS
from synknumba.simt._lower.signatures import Declared, best_declared, declared_signatures
from synknumba.simt._python.arithmetic import convert, scalar_type
from synknumba.simt._python.arrays import Array
from synknumba.simt._python.cuda import FENCES, LOCKS, as_numpy, member
from synknumba.simt._python.source import (
    MARK,
    Rewriter,
    SourceFunction,
    device_code,
    is_waiting_call,
)
from synknumba.simt._python.warp import SHUFFLES, Request
from synknumba.simt._source.numba_cuda import CudaPath, is_cuda_module
from synknumba.simt._source.scope import Scope
from synknumba.simt._source.source import read_definition
from synknumba.simt._source.written import has_rest, parameters

# Syntax that takes compiling time: types to infer, code to make.
_OPERATIONS: Final = (ast.AugAssign, ast.BinOp, ast.Call, ast.Compare, ast.Subscript, ast.UnaryOp)


class DebugProgram:
    """A kernel and its device functions, rewritten to run in Python.

    Args:
        kernel: the plain function.
        stand_ins: whether a variable that is read unassigned has another value, which the watch
            chooses.
    """

    def __init__(self, kernel: FunctionType, *, stand_ins: bool = False) -> None:
        self.name = kernel.__qualname__
        self.fences = False  # whether the kernel or a device function calls one of `FENCES`
        self.may_spin = False  # whether one of them calls one of `LOCKS`
        self.may_be_undefined = False  # whether one of them may read a value that is undefined
        self.operations = 0  # number of operations in the source of all functions
        self._kernel = kernel
        self._functions: dict[FunctionType, SourceFunction] = {}
        self._collect(kernel)
        self._spread_waiting()
        for function in self._functions.values():
            is_kernel = function is self._functions[kernel]
            Rewriter(function, self._waits, is_kernel=is_kernel, stand_ins=stand_ins).run()
        self.may_be_undefined |= any(function.unassigned for function in self._functions.values())

    @property
    def params(self) -> tuple[str, ...]:
        """Names of the kernel's parameters; the last one may be `*rest`, of a tuple."""
        return parameters(self._kernel)

    @property
    def takes_rest(self) -> bool:
        """Whether the last parameter takes any number of arguments."""
        return has_rest(self._kernel)

    @property
    def defaults(self) -> tuple[Any, ...]:
        """Default values of the kernel's last parameters."""
        return self._kernel.__defaults__ or ()

    def _waits(self, function: FunctionType) -> bool:
        return self._functions[function].waits

    def _collect(self, function: FunctionType) -> None:
        if function in self._functions:
            return
        source = read_definition(function)
        entry = self._functions[function] = SourceFunction(source)
        scope = Scope(source)
        for node in ast.walk(source.tree):
            self.operations += isinstance(node, _OPERATIONS)
            if isinstance(node, ast.Call):
                entry.waits |= is_waiting_call(scope, node)
            if isinstance(node, (ast.Name, ast.Attribute)):
                value = scope.resolve(node)
                if isinstance(value, CudaPath):
                    self.may_be_undefined |= value.path in SHUFFLES | ARRAY_PATHS
                    self.fences |= value.path in FENCES
                    self.may_spin |= value.path in LOCKS
                if (callee := device_code(value)) is not None:
                    entry.calls.add(callee)
                    self._collect(callee)
                    self._functions[callee].declared = declared_signatures(value)

    def _spread_waiting(self) -> None:
        changed = True
        while changed:
            changed = False
            for function in self._functions.values():
                if not function.waits and any(map(self._waits, function.calls)):
                    function.waits = changed = True

    def link(
        self, cuda: Any, constant: Callable[[str, Any], Any]
    ) -> Callable[..., Generator[Request, Any, None]]:
        """Returns the kernel as a generator function.

        Args:
            cuda: the implementation of `numba.cuda`.
            constant: converts a global array or tuple to the value the kernel sees, from its name
                and the value.
        """
        spaces = {
            function: self._namespace(entry, cuda, constant)
            for function, entry in self._functions.items()
        }
        new: dict[FunctionType, FunctionType] = {}  # user function -> rewritten function
        for function, entry in self._functions.items():
            assert entry.code is not None  # set by the rewriter
            exec(entry.code, spaces[function])  # noqa: S102  # the user's own code
            new[function] = spaces[function][entry.source.tree.name]
            new[function].__defaults__ = function.__defaults__
            new[function].__kwdefaults__ = function.__kwdefaults__
            if entry.declared:
                new[function] = _fitted(new[function], entry)
        for function, entry in self._functions.items():
            for name, value in entry.bindings.items():
                target = value
                if isinstance(value, CudaPath):
                    target = member(cuda, value.path)
                elif isinstance(value, FunctionType):
                    target = new.get(value, value)
                spaces[function][name] = target
        return new[self._kernel]

    @staticmethod
    def _namespace(
        entry: SourceFunction, cuda: Any, constant: Callable[[str, Any], Any]
    ) -> dict[str, Any]:
        constants = {
            name: constant(name.removeprefix("_k_"), value)
            for name, value in entry.constants.items()
        }
        # Even if the function does not use the module: a breakpoint's condition may.
        scope = entry.source.scope
        modules = {name: cuda for name, value in scope.items() if is_cuda_module(value)}
        return {**scope, **modules, **constants, MARK: cuda}


def _fitted(function: FunctionType, entry: SourceFunction) -> FunctionType:
    """Wraps the function to convert numeric arguments and results to the types of its declared
    signatures.
    """
    params, defaults = entry.source.params, function.__defaults__ or ()

    def match_signature(
        args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[Declared, list[Any]]:
        values = dict(zip(params[len(params) - len(defaults) :], defaults, strict=True))
        values |= {**dict(zip(params, args, strict=False)), **keywords}
        ordered = [values[param] for param in params]
        chosen = entry.declared[0]
        if len(entry.declared) > 1:
            argument_types = tuple(map(_type_of, ordered))
            chosen = best_declared(entry.source.tree.name, entry.declared, argument_types)
        return chosen, [*map(_as, ordered, chosen.args)]

    def call(*args: Any, **keywords: Any) -> Any:
        chosen, values = match_signature(args, keywords)
        return _as(function(*values), chosen.result)

    def wait(*args: Any, **keywords: Any) -> Generator[Request, Any, Any]:
        chosen, values = match_signature(args, keywords)
        return _as((yield from function(*values)), chosen.result)

    if entry.waits:
        return wait  # type: ignore[return-value]
    return call  # type: ignore[return-value]


def _type_of(value: Any) -> types.Type:
    """Returns the Numba type of an argument of a device function."""
    if isinstance(value, Array):
        return types.Array(from_dtype(value.dtype), value.ndim, "C")
    kind = scalar_type(value)
    if kind is None:
        return typeof(value)
    return from_dtype(np.dtype(kind))


def _as(value: Any, kind: types.Type | None) -> Any:
    """Returns a value as it is declared: a number in the number's type."""
    if value is None or not isinstance(kind, (types.Number, types.Boolean)):
        return value
    return convert(value, as_numpy(kind).type)
