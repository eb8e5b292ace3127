"""Resolution of names in one thread's code: functions, constants, definitions of variables,
array arguments.
"""

import ast
import builtins
import math
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinFunctionType, ModuleType
from typing import Any

import numpy as np
from numba.core import types

from synknumba.simt._analysis.types import VariableTypes
from synknumba.simt._analysis.variables import definitions
from synknumba.simt._source.syntax import assigned_names, call, place, read_names

NONNEG = "_k_nonneg"

_PURE_BUILTINS = (abs, bool, float, int, len, max, min, range, round)
ARRAY_ATTRIBUTES = frozenset({"shape", "size", "ndim", "itemsize", "nbytes"})


class Names:
    """Resolves names to functions, constants, definitions and argument types.

    Args:
        body: the statements of one thread.
        params: variables that are never assigned: arguments, shared arrays.
        namespace: global names and their objects.
        variable_types: types of the variables.
    """

    def __init__(
        self,
        body: list[ast.stmt],
        params: Iterable[str],
        namespace: Mapping[str, Any],
        variable_types: VariableTypes,
    ) -> None:
        self.params = frozenset(params)
        self.namespace = namespace
        self.types = variable_types
        self.assigned = assigned_names(body)
        self._definitions = definitions(body)
        # Variables recomputed wherever they are read, and their assignments, in order.
        self.recomputed: dict[str, ast.Assign] = {}
        # Block-level variables introduced by the emitter, and whether they are non-negative.
        self.block_indices: dict[str, bool] = {}

    @property
    def stored(self) -> set[str]:
        """The variables that are not recomputed wherever they are read."""
        return self.assigned - self.recomputed.keys()

    # ---- functions, constants and definitions

    def function_of(self, node: ast.expr) -> Any:
        """Returns the object that a called expression names, such as a builtin, a math function
        or a type; else None.
        """
        match node:
            case ast.Name(name):
                if name in self.namespace:
                    return self.namespace[name]
                if name not in self.assigned | self.params:
                    return getattr(builtins, name, None)
            case ast.Attribute(ast.Name(name), attribute):
                match self.namespace.get(name):
                    case ModuleType() as module:
                        return getattr(module, attribute, None)
        return None

    def is_pure_function(self, node: ast.expr) -> bool:
        """Returns whether a call has no side effects: pure builtins, `math` functions, ufuncs,
        number types.
        """
        function = self.function_of(node)
        match node, function:
            case ast.Name(name), _ if name == NONNEG:
                return True
            case _, np.ufunc():
                return True
            case _, BuiltinFunctionType(__module__=math.__name__):
                return True
        return is_one_of(function, *_PURE_BUILTINS) or is_number_type(function)

    def definition(self, name: str) -> ast.expr | None:
        """Returns the value of a name that never changes: a global int, a variable recomputed or
        assigned once; else None.
        """
        if type(constant := self.namespace.get(name)) is int:
            return ast.Constant(constant)
        if name in self.recomputed:
            return self.recomputed[name].value
        return self._definitions.get(name)

    def is_defined_as(self, name: str, is_kind: Callable[[ast.expr], bool]) -> bool:
        """Returns whether a name that never changes has a value that passes the test."""
        value = self.definition(name)
        return value is not None and is_kind(value)

    def is_settled(self, node: ast.expr) -> bool:
        """Returns whether the expression has the same value wherever in the kernel it is
        evaluated.
        """
        return None not in map(self.definition, read_names(node) & self.assigned)

    # ---- arguments

    @property
    def arrays(self) -> frozenset[str]:
        """Names of the array parameters; all parameters if their types are unknown."""
        kinds = self.types.params
        if not kinds:
            return self.params
        return frozenset(name for name in self.params if isinstance(kinds.get(name), types.Array))

    def is_array_number(self, node: ast.expr) -> bool:
        """Returns whether the expression is `a.shape[k]`, `a.size` or `a.ndim` of an array
        argument.
        """
        match node:
            case ast.Subscript(ast.Attribute(ast.Name(name), "shape")) | ast.Attribute(
                ast.Name(name), "size" | "ndim"
            ):
                return name in self.arrays
        return False

    def is_value_tuple(self, node: ast.expr) -> bool:
        """Returns whether the expression is an array's shape or a tuple argument."""
        match node:
            case ast.Attribute(_, "shape"):
                return True
        return isinstance(self.param_type(node), types.BaseTuple)

    def param_type(self, node: ast.expr) -> types.Type | None:
        """Returns the type of an argument; None if it is unknown or the expression is not an
        argument.
        """
        match node:
            case ast.Name(name) if name in self.params:
                return self.types.params.get(name)
        return None


def nonneg(node: ast.expr) -> ast.expr:
    """Returns the expression marked as non-negative."""
    return place(call(NONNEG, node), node)


def is_one_of(function: Any, *candidates: Any) -> bool:
    """Compares by identity, because a global may be an array, which is unhashable and compares
    elementwise.
    """
    return any(function is candidate for candidate in candidates)


def is_number_type(function: Any) -> bool:
    """Returns whether calling the object converts to a number."""
    if isinstance(function, types.Type):
        return isinstance(function, (types.Number, types.Boolean))
    return isinstance(function, type) and issubclass(
        function, (np.number, np.bool_, bool, int, float)
    )
