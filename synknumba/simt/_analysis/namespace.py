"""Resolution of names in one thread's code: functions, module constants, array arguments."""

import ast
import builtins
import math
from collections.abc import Iterable, Mapping
from types import BuiltinFunctionType, ModuleType
from typing import Any

import numpy as np
from numba.core import types

from synknumba.simt._analysis.types import VariableTypes
from synknumba.simt._frontend.syntax import assigned_names

NONNEG = "_k_nonneg"

PURE_BUILTINS = frozenset({"abs", "bool", "float", "int", "len", "max", "min", "range", "round"})
ARRAY_ATTRIBUTES = frozenset({"shape", "size", "ndim", "itemsize", "nbytes"})


class Meanings:
    """Resolves names to functions, constants and argument types; knows nothing about values.

    Args:
        body: the statements of one thread.
        params: variables that are never assigned: arguments, shared arrays.
        namespace: global names and their objects.
        variable_types: types of the variables.

    Attributes:
        assigned: every variable that the body assigns.
    """

    def __init__(
        self, body: list[ast.stmt], params: Iterable[str], namespace: Mapping[str, Any], variable_types: VariableTypes
    ) -> None:
        self.params = frozenset(params)
        self.namespace = namespace
        self.types = variable_types
        self.assigned = assigned_names(body)

    # ---- functions and constants

    def function_of(self, node: ast.expr) -> Any:
        """Returns the object that a called expression names, such as a builtin, a math function or a type; else None."""
        if isinstance(node, ast.Name):
            if node.id in self.namespace:
                return self.namespace[node.id]
            is_local = node.id in self.assigned or node.id in self.params
            return None if is_local else getattr(builtins, node.id, None)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = self.namespace.get(node.value.id)
            return getattr(module, node.attr, None) if isinstance(module, ModuleType) else None
        return None

    def is_pure_function(self, node: ast.expr) -> bool:
        """Returns whether a call has no side effects: pure builtins, `math` functions, ufuncs, number types."""
        if isinstance(node, ast.Name) and node.id == NONNEG:
            return True
        function = self.function_of(node)
        if isinstance(function, BuiltinFunctionType) and function.__module__ == math.__name__:
            return True
        if isinstance(function, np.ufunc) or is_number_type(function):
            return True
        return getattr(function, "__module__", None) == "builtins" and getattr(function, "__name__", "") in PURE_BUILTINS

    def is_module_constant(self, node: ast.Attribute) -> bool:
        """Returns whether the attribute is a numeric constant of a module, such as `math.pi`."""
        if not isinstance(node.value, ast.Name):
            return False
        module = self.namespace.get(node.value.id)
        return isinstance(module, ModuleType) and isinstance(getattr(module, node.attr, None), (int, float))

    # ---- arguments

    @property
    def arrays(self) -> frozenset[str]:
        """Names of the array parameters; all parameters if their types are unknown."""
        if not self.types.params:
            return self.params
        return frozenset(name for name in self.params if isinstance(self.types.params.get(name), types.Array))

    def is_array_number(self, node: ast.expr) -> bool:
        """Returns whether the expression is `a.shape[k]`, `a.size` or `a.ndim` of an array argument."""
        if isinstance(node, ast.Subscript):
            return isinstance(node.value, ast.Attribute) and node.value.attr == "shape" and self._is_array(node.value.value)
        return isinstance(node, ast.Attribute) and node.attr in {"size", "ndim"} and self._is_array(node.value)

    def _is_array(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self.arrays

    def is_value_tuple(self, node: ast.expr) -> bool:
        """Returns whether the expression is an array's shape or a tuple argument."""
        if isinstance(node, ast.Attribute) and node.attr == "shape":
            return True
        return isinstance(self.param_type(node), types.BaseTuple)

    def param_type(self, node: ast.expr) -> types.Type | None:
        """Returns the type of an argument; None if it is unknown or the expression is not an argument."""
        return self.types.params.get(node.id) if isinstance(node, ast.Name) and node.id in self.params else None


def is_one_of(function: Any, *candidates: Any) -> bool:
    """Compares by identity, because a global may be an array, which is unhashable and compares elementwise."""
    return any(function is candidate for candidate in candidates)


def is_number_type(function: Any) -> bool:
    """Returns whether calling the object converts to a number."""
    if isinstance(function, types.Type):
        return isinstance(function, (types.Number, types.Boolean))
    return isinstance(function, type) and issubclass(function, (np.number, np.bool_, bool, int, float))
