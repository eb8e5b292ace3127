"""Parameters of device functions that must be compile-time constants: callees, dtypes and array
shapes.

    @cuda.jit(device=True)
    def total(x, n, dtype, op):
        s = cuda.shared.array(n, dtype)
        ...
        return op(s[0], s[1])

A callee, a dtype and the shape of an array must be known when a function is compiled. Such a
function is therefore specialised: translated once for each combination of `n`, `dtype` and `op` in
its calls, without these parameters.
"""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final, NamedTuple

import numpy as np
from numba.core import types

from synknumba._errors import KernelError
from synknumba.simt._lower.arrays import ARRAY_PATHS, constant, is_shape
from synknumba.simt._source.numba_cuda import MISSING, CudaPath
from synknumba.simt._source.reads import is_device_function, is_jitted, is_njit_function
from synknumba.simt._source.scope import NUMBERS, Scope
from synknumba.simt._source.source import read_source
from synknumba.simt._source.syntax import (
    assign,
    assigned_names,
    has_starred,
    load,
    nodes_of,
    place,
    read_names,
)
from synknumba.simt._source.written import Source, has_rest, parameters

# A recursion over a size calls the function with a new constant each time, and each constant needs
# a translation of its own.
MAX_VARIANTS = 32


def fix(source: Source, values: Mapping[str, Any]) -> Source:
    """Removes the parameters that have values and binds their names in the scope, like global
    names.
    """
    if not values:
        return source
    args = source.tree.args
    args.posonlyargs = [arg for arg in args.posonlyargs if arg.arg not in values]
    args.args = [arg for arg in args.args if arg.arg not in values]
    scope = {**source.scope}
    for name, value in values.items():
        if isinstance(value, Rest):
            args.args += map(ast.arg, value.names(name))
            parts = ast.Tuple(list(map(load, value.names(name))), ast.Load())
            source.tree.body.insert(0, assign(name, parts, source.tree))
        else:
            scope[name] = value
    place(source.tree, source.tree)
    return replace(source, scope=scope)


@dataclass(frozen=True, slots=True)
class Rest:
    """The number of values that a call passes to a parameter `*rest`."""

    count: int

    def names(self, name: str) -> list[str]:
        """Returns the parameters that take the values."""
        return [f"_k_{name}{number}" for number in range(self.count)]


def key(value: Any) -> Any:
    """Returns a key equal for interchangeable values only: it includes the type, so 1, 1.0 and True
    differ.

    Raises:
        TypeError: the value is not hashable.
    """
    if isinstance(value, tuple):
        return tuple(map(key, value))
    hash(value)
    return type(value), value


class Argument(NamedTuple):
    """An argument of a call: an expression, or None where the parameter's default value is used."""

    node: ast.expr | None
    default: Any = None


def arguments(node: ast.Call, function: FunctionType) -> dict[str, Argument]:
    """Maps a function's parameters to their arguments in a call; parameters without argument or
    default are left out.
    """
    names, count = parameters(function), function.__code__.co_argcount
    defaults = function.__defaults__ or ()
    with_default = names[count - len(defaults) : count]
    passed: dict[str, Argument] = {}
    for name, value in zip(with_default, defaults, strict=True):
        passed[name] = Argument(None, value)
    for name, arg in zip(names[:count], node.args, strict=False):
        passed[name] = Argument(arg)
    if has_rest(function):
        passed[names[-1]] = Argument(_rest_of(node, count))
    for keyword in node.keywords:
        if keyword.arg in names[:count]:
            passed[keyword.arg] = Argument(keyword.value)
    return passed


def _rest_of(node: ast.Call, count: int) -> ast.expr:
    """Returns the tuple that a call passes to a parameter `*rest` after `count` others."""
    match node.args[count:]:
        case [ast.Starred(value=value)]:
            return place(value, node)
        case [*parts, ast.Starred(value=value)]:
            return place(ast.BinOp(ast.Tuple(parts, ast.Load()), ast.Add(), value), node)
        case parts:
            return place(ast.Tuple(parts, ast.Load()), node)


class FixedParameters:
    """Finds the parameters that must be constants, and their values in a call."""

    def __init__(self) -> None:
        self._known: dict[FunctionType, tuple[frozenset[str], frozenset[str]]] = {}

    def in_call(self, node: ast.Call, function: FunctionType, scope: Scope) -> dict[str, Any]:
        """Returns the parameters replaced by constants in a call, and their values.

        Of a parameter `*rest` that is passed on as `*rest`, the number of values is fixed.

        A parameter that must be constant is replaced by any shape, dtype, string or callee; other
        parameters only by a dtype or a callee. Parameters that the function assigns to are never
        replaced. `scope` has the names of the caller.
        """
        needed, changed = self._of(function)
        fixed: dict[str, Any] = {}
        passed = arguments(node, function)
        if has_rest(function):
            rest = parameters(function)[-1]
            parts = passed.pop(rest).node
            match parts:
                case ast.Tuple(elements) if rest in needed:
                    if not has_starred(elements):
                        fixed[rest] = Rest(len(elements))
        for name, argument in passed.items():
            if name in changed:
                continue
            find = _value if name in needed else _callee_or_dtype
            value = find(argument, scope)
            if value is not MISSING:
                fixed[name] = value
        return fixed

    def _of(self, function: FunctionType) -> tuple[frozenset[str], frozenset[str]]:
        """Returns the parameters that must be constant, and those that are assigned to and so
        cannot be replaced.
        """
        if function not in self._known:
            # seen by a recursive call during the analysis
            self._known[function] = frozenset(), frozenset()
            try:
                self._known[function] = self._look(read_source(function))
            except KernelError:  # reported when the function is translated
                self._known[function] = frozenset(), frozenset(function.__code__.co_varnames)
        return self._known[function]

    def _look(self, source: Source) -> tuple[frozenset[str], frozenset[str]]:
        scope, params = Scope(source), set(source.params)
        needed: set[str] = set()
        for node in nodes_of(ast.Call, source.tree):
            for arg in node.args:
                match arg:
                    case ast.Starred(value=ast.Name(id=name)):
                        needed.add(name)
            if scope.path_of(node.func) in ARRAY_PATHS:
                needed |= _read([*node.args, *(keyword.value for keyword in node.keywords)], scope)
                continue
            callee = called_function(scope.resolve(node.func))
            if callee is not None:
                passed = arguments(node, callee)
                names = passed.keys() & self._of(callee)[0]
                needed |= _read(filter(None, (passed[name].node for name in names)), scope)
            elif isinstance(node.func, ast.Name):
                needed.add(node.func.id)
        return frozenset(needed & params), frozenset(params & assigned_names(source.tree))


def called_function(value: Any) -> FunctionType | None:
    """Returns the plain Python function of a device function or of a user's njit function; None
    for other values.
    """
    if is_device_function(value):
        return value.py_func
    if not is_njit_function(value):
        return None
    is_numbas = str(value.py_func.__module__).startswith("numba.")  # None if made by exec
    return None if is_numbas else value.py_func


def _read(nodes: Iterable[ast.expr], scope: Scope) -> set[str]:
    """Returns the names read in expressions, following local variables that are constants to
    their definitions.
    """
    names: set[str] = set()
    new = read_names(nodes)
    while new:
        names |= new
        new = read_names(scope.constants[name] for name in new & scope.constants.keys()) - names
    return names


def _value(argument: Argument, scope: Scope) -> Any:
    """Returns the constant value of an argument if it may replace the parameter, else `MISSING`."""
    value = _callee_or_dtype(argument, scope)
    if value is not MISSING:
        return value
    value = argument.default
    if argument.node is not None:
        try:
            value = constant(argument.node, scope)
        except KernelError:  # not computable at translation
            return MISSING
    is_constant = isinstance(value, (str, *_DTYPES)) or is_shape(value)
    return value if is_constant else MISSING


def _callee_or_dtype(argument: Argument, scope: Scope) -> Any:
    value = argument.default
    if argument.node is not None:
        value = scope.resolve(argument.node)
    if value is MISSING:
        match argument.node:
            case ast.Name(name) if name in scope.constants:
                value = scope.resolve(scope.constants[name])
    match value:
        case CudaPath(path):
            member = value.member()
            if isinstance(member, types.Type):
                return member
            return MISSING if path in NUMBERS else value
        case np.dtype() | types.Type() | np.ufunc() | BuiltinFunctionType():
            return value
        case type() if issubclass(value, _SCALARS):
            return value
    return value if is_jitted(value) else MISSING


_DTYPES: Final = (np.dtype, types.Type)
_SCALARS: Final = (np.generic, bool, int, float, complex)
