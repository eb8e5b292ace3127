"""Resolution of names in one thread's code: functions, constants, definitions of variables,
array arguments.
"""

import ast
import builtins
import math
from collections.abc import Iterable, Mapping
from types import BuiltinFunctionType, ModuleType
from typing import Any

import numpy as np
from numba.core import types

from synknumba.simt._analysis.types import VariableTypes
from synknumba.simt._analysis.variables import definitions
from synknumba.simt._source.syntax import assigned_names, call, place, read_names

NONNEG = "_k_nonneg"

PURE_BUILTINS = frozenset({"abs", "bool", "float", "int", "len", "max", "min", "range", "round"})
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

    # ---- functions, constants and definitions

    def function_of(self, node: ast.expr) -> Any:
        """Returns the object that a called expression names, such as a builtin, a math function
        or a type; else None.
        """
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
        """Returns whether a call has no side effects: pure builtins, `math` functions, ufuncs,
        number types.
        """
        if isinstance(node, ast.Name) and node.id == NONNEG:
            return True
        function = self.function_of(node)
        is_math = isinstance(function, BuiltinFunctionType) and function.__module__ == math.__name__
        if is_math or isinstance(function, np.ufunc) or is_number_type(function):
            return True
        return (
            getattr(function, "__module__", None) == "builtins"
            and getattr(function, "__name__", "") in PURE_BUILTINS
        )

    def is_module_constant(self, node: ast.Attribute) -> bool:
        """Returns whether the attribute is a numeric constant of a module, such as `math.pi`."""
        if not isinstance(node.value, ast.Name):
            return False
        module = self.namespace.get(node.value.id)
        return isinstance(module, ModuleType) and isinstance(
            getattr(module, node.attr, None), (int, float)
        )

    def definition(self, name: str) -> ast.expr | None:
        """Returns the value of a name that never changes: a global int, a variable recomputed or
        assigned once; else None.
        """
        if type(constant := self.namespace.get(name)) is int:
            return ast.Constant(constant)
        return (
            self.recomputed[name].value if name in self.recomputed else self._definitions.get(name)
        )

    def is_settled(self, node: ast.expr) -> bool:
        """Returns whether the expression has the same value wherever in the kernel it is
        evaluated.
        """
        return all(
            name not in self.assigned or self.definition(name) is not None
            for name in read_names(node)
        )

    # ---- arguments

    @property
    def arrays(self) -> frozenset[str]:
        """Names of the array parameters; all parameters if their types are unknown."""
        if not self.types.params:
            return self.params
        return frozenset(
            name for name in self.params if isinstance(self.types.params.get(name), types.Array)
        )

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
        if isinstance(node, ast.Attribute) and node.attr == "shape":
            return True
        return isinstance(self.param_type(node), types.BaseTuple)

    def param_type(self, node: ast.expr) -> types.Type | None:
        """Returns the type of an argument; None if it is unknown or the expression is not an
        argument.
        """
        is_param = isinstance(node, ast.Name) and node.id in self.params
        return self.types.params.get(node.id) if is_param else None  # type: ignore[attr-defined]


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
