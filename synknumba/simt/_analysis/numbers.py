"""Static analysis of numbers: sign, integrality, and invariance over the kernel."""

import ast
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numba.core import types

from synknumba.simt._analysis.namespace import NONNEG, Meanings, is_one_of
from synknumba.simt._analysis.types import VariableTypes, is_integer_type
from synknumba.simt._analysis.variables import definitions
from synknumba.simt._frontend.syntax import call_name, read_names
from synknumba.simt._library.operations import LINEAR, SIZES, STATE


class Numbers(Meanings):
    """Determines sign and integrality of expressions in one thread's code.

    Args:
        body: the statements of one thread.
        params: variables that are never assigned: arguments, shared arrays.
        namespace: global names and their objects.
        variable_types: types of the variables.

    Attributes:
        recomputed: variables recomputed wherever they are read, and their assignments.
    """

    def __init__(
        self, body: list[ast.stmt], params: Iterable[str], namespace: Mapping[str, Any], variable_types: VariableTypes
    ) -> None:
        super().__init__(body, params, namespace, variable_types)
        self.recomputed: dict[str, ast.Assign] = {}
        self._definitions = definitions(body)
        # Block-level variables introduced by the emitter, and whether they are non-negative.
        self._block_indices: dict[str, bool] = {}

    def is_nonneg(self, node: ast.expr) -> bool:
        """Returns whether the expression is a non-negative integer."""
        match node:
            case ast.Constant():
                return type(node.value) is int and node.value >= 0
            case ast.Name():
                if node.id in STATE or node.id == LINEAR:
                    return True
                if node.id in self._block_indices:
                    return self._block_indices[node.id]
                if node.id in self.namespace:
                    constant = self.namespace[node.id]
                    return type(constant) is int and constant >= 0
                value = self.definition(node.id)
                return value is not None and self.is_nonneg(value)
            case ast.Attribute():
                return self.is_array_number(node)
            case ast.Subscript():
                return self.is_array_number(node)
            case ast.Call():
                if call_name(node) == NONNEG:
                    return True
                return is_one_of(self.function_of(node.func), min, max) and all(map(self.is_nonneg, node.args))
            case ast.BinOp(op=ast.Add() | ast.Mult() | ast.FloorDiv() | ast.Mod() | ast.RShift() | ast.BitAnd()):
                return self.is_nonneg(node.left) and self.is_nonneg(node.right)
        return False

    def is_positive(self, node: ast.expr) -> bool:
        """Returns whether the expression is a positive integer."""
        match node:
            case ast.Constant():
                return type(node.value) is int and node.value > 0
            case ast.Name():
                if node.id in SIZES:
                    return True
                value = self.definition(node.id)
                constant = self.namespace.get(node.id)
                return (value is not None and self.is_positive(value)) or (type(constant) is int and constant > 0)
            case ast.BinOp(op=ast.Mult()):
                return self.is_positive(node.left) and self.is_positive(node.right)
            case ast.BinOp(op=ast.Add()):
                pair = (node.left, node.right)
                return all(map(self.is_nonneg, pair)) and any(map(self.is_positive, pair))
        return False

    def definition(self, name: str) -> ast.expr | None:
        """Returns the value of a variable that never changes: recomputed, or assigned once (see `definitions`); else None."""
        if name in self.recomputed:
            return self.recomputed[name].value
        return self._definitions.get(name)

    def is_settled(self, node: ast.expr) -> bool:
        """Returns whether the expression has the same value wherever in the kernel it is evaluated."""
        return all(name not in self.assigned or self.definition(name) is not None for name in read_names(node))

    def is_integral(self, node: ast.expr) -> bool:
        """Returns whether the expression is an integer computed in int64."""
        match node:
            case ast.Constant():
                return type(node.value) is int
            case ast.Name():
                if node.id in STATE or node.id == LINEAR or node.id in self._block_indices:
                    return True
                constant = self.namespace.get(node.id)
                if node.id in self.namespace:
                    return type(constant) is int
                value = self.definition(node.id)
                if value is not None and self.is_integral(value):
                    return True
                return is_integer_type(self.types.of(node.id))
            case ast.Call():
                return self._is_integral_call(node)
            case ast.Attribute() | ast.Subscript():
                return self._is_integral_field(node) or self.is_array_number(node)
            case ast.BinOp():
                whole = isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.RShift))
                return whole and self.is_integral(node.left) and self.is_integral(node.right)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                return self.is_integral(node.operand)
        return False

    def _is_integral_field(self, node: ast.expr) -> bool:
        """Returns whether the expression is an integer field of a named tuple, such as `span.start` of an index range."""
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=field) if name not in self.namespace:
                kind = self.types.of(name)
                if isinstance(kind, types.BaseNamedTuple) and field in kind.fields:
                    return is_integer_type(kind.types[kind.fields.index(field)])
        return False

    def is_known_number(self, node: ast.expr) -> bool:
        """Returns whether the expression is known to be a real number; only such limits may become loop bounds."""
        if self.is_integral(node):
            return True
        match node:
            case ast.Constant():
                return type(node.value) in {int, float}
            case ast.Name():
                if node.id in self.namespace:
                    return isinstance(self.namespace[node.id], (int, float, np.integer, np.floating))
                return isinstance(self.types.of(node.id), (types.Integer, types.Float))
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div()):
                return self.is_known_number(node.left) and self.is_known_number(node.right)
        return False

    def _is_integral_call(self, node: ast.Call) -> bool:
        if call_name(node) == NONNEG:
            return self.is_integral(node.args[0])
        function = self.function_of(node.func)
        if isinstance(function, types.Type):
            return is_integer_type(function)
        return is_one_of(function, abs, max, min) and all(map(self.is_integral, node.args))
