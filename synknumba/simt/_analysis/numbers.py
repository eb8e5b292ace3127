"""Static analysis of numbers: sign, integrality, and invariance over the kernel."""

import ast

import numpy as np
from numba.core import types

from synknumba.simt._analysis.namespace import NONNEG, Names, is_one_of
from synknumba.simt._analysis.types import is_integer_type
from synknumba.simt._library.words import LINEAR, SIZES, STATE
from synknumba.simt._source.syntax import call_name

_INDICES = frozenset({*STATE, LINEAR})


class Numbers(Names):
    """Determines sign and integrality of expressions in one thread's code."""

    def is_nonneg(self, node: ast.expr) -> bool:
        """Returns whether the expression is a non-negative integer."""
        match node:
            case ast.Constant():
                return type(node.value) is int and node.value >= 0
            case ast.Name(id=name):
                if name in _INDICES or name in self.block_indices:
                    return self.block_indices.get(name, True)
                value = self.definition(name)
                return value is not None and self.is_nonneg(value)
            case ast.Attribute() | ast.Subscript():
                return self.is_array_number(node)
            case ast.Call():
                if call_name(node) == NONNEG:
                    return True
                return is_one_of(self.function_of(node.func), min, max) and all(
                    map(self.is_nonneg, node.args)
                )
            case ast.BinOp(
                op=ast.Add() | ast.Mult() | ast.FloorDiv() | ast.Mod() | ast.RShift() | ast.BitAnd()
            ):
                return self.is_nonneg(node.left) and self.is_nonneg(node.right)
        return False

    def is_positive(self, node: ast.expr) -> bool:
        """Returns whether the expression is a positive integer."""
        match node:
            case ast.Constant():
                return type(node.value) is int and node.value > 0
            case ast.Name():
                value = self.definition(node.id)
                return node.id in SIZES or (value is not None and self.is_positive(value))
            case ast.BinOp(op=ast.Mult()):
                return self.is_positive(node.left) and self.is_positive(node.right)
            case ast.BinOp(op=ast.Add()):
                pair = (node.left, node.right)
                return all(map(self.is_nonneg, pair)) and any(map(self.is_positive, pair))
        return False

    def is_integral(self, node: ast.expr) -> bool:
        """Returns whether the expression is an integer computed in int64."""
        match node:
            case ast.Constant():
                return type(node.value) is int
            case ast.Name(id=name):
                value = self.definition(name)
                if (
                    name in _INDICES
                    or name in self.block_indices
                    or (value is not None and self.is_integral(value))
                ):
                    return True
                return name not in self.namespace and is_integer_type(self.types.of(name))
            case ast.Call():
                function = self.function_of(node.func)
                if call_name(node) == NONNEG or is_one_of(function, abs, max, min):
                    return all(map(self.is_integral, node.args))
                return isinstance(function, types.Type) and is_integer_type(function)
            case ast.Attribute() | ast.Subscript():
                return self._is_integral_field(node) or self.is_array_number(node)
            case ast.BinOp():
                whole = isinstance(
                    node.op,
                    (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.RShift),
                )
                return whole and self.is_integral(node.left) and self.is_integral(node.right)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                return self.is_integral(node.operand)
        return False

    def _is_integral_field(self, node: ast.expr) -> bool:
        """Returns whether the expression is an integer field of a named tuple, such as
        `span.start` of an index range.
        """
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=field) if name not in self.namespace:
                kind = self.types.of(name)
                if isinstance(kind, types.BaseNamedTuple) and field in kind.fields:
                    return is_integer_type(kind.types[kind.fields.index(field)])
        return False

    def is_known_number(self, node: ast.expr) -> bool:
        """Returns whether the expression is known to be a real number; only such limits may
        become loop bounds.
        """
        if self.is_integral(node):
            return True
        match node:
            case ast.Constant():
                return type(node.value) in {int, float}
            case ast.Name():
                if node.id in self.namespace:
                    return isinstance(
                        self.namespace[node.id], (int, float, np.integer, np.floating)
                    )
                return isinstance(self.types.of(node.id), (types.Integer, types.Float))
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div()):
                return self.is_known_number(node.left) and self.is_known_number(node.right)
        return False
