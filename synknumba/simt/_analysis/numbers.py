"""Static analysis of numbers: sign, integrality, and invariance over the kernel."""

import ast

import numpy as np
from numba.core import types

from synknumba.simt._analysis.namespace import NONNEG, Names, is_one_of
from synknumba.simt._analysis.types import is_integer_type
from synknumba.simt._library.words import LINEAR, SIZES, STATE
from synknumba.simt._source.syntax import call_name

_INDICES = frozenset({*STATE, LINEAR})
_REAL_NUMBERS = (int, float, np.integer, np.floating)

# Operators whose result is non-negative, or an integer, if both operands are.
_KEEP_NONNEG = (ast.Add, ast.Mult, ast.FloorDiv, ast.Mod, ast.RShift, ast.BitAnd)
_KEEP_INTEGRAL = (*_KEEP_NONNEG, ast.Sub)


class Numbers(Names):
    """Determines sign and integrality of expressions in one thread's code."""

    def is_nonneg(self, node: ast.expr) -> bool:
        """Returns whether the expression is a non-negative integer."""
        match node:
            case ast.Constant(value) if type(value) is int:
                return value >= 0
            case ast.Name(name):
                if name in self.block_indices:
                    return self.block_indices[name]
                return name in _INDICES or self.is_defined_as(name, self.is_nonneg)
            case ast.Attribute() | ast.Subscript():
                return self.is_array_number(node)
            case ast.Call(function, args):
                if call_name(node) == NONNEG:
                    return True
                if is_one_of(self.function_of(function), min, max):
                    return all(map(self.is_nonneg, args))
            case ast.BinOp(left, op, right) if isinstance(op, _KEEP_NONNEG):
                return all(map(self.is_nonneg, (left, right)))
        return False

    def is_positive(self, node: ast.expr) -> bool:
        """Returns whether the expression is a positive integer."""
        match node:
            case ast.Constant(value) if type(value) is int:
                return value > 0
            case ast.Name(name):
                return name in SIZES or self.is_defined_as(name, self.is_positive)
            case ast.BinOp(left, ast.Mult(), right):
                return all(map(self.is_positive, (left, right)))
            case ast.BinOp(left, ast.Add(), right) if all(map(self.is_nonneg, (left, right))):
                return any(map(self.is_positive, (left, right)))
        return False

    def is_integral(self, node: ast.expr) -> bool:
        """Returns whether the expression is an integer computed in int64."""
        match node:
            case ast.Constant(value):
                return type(value) is int
            case ast.Name(name):
                return self._is_integral_name(name)
            case ast.Call(called, args):
                function = self.function_of(called)
                if call_name(node) == NONNEG or is_one_of(function, abs, max, min):
                    return all(map(self.is_integral, args))
                return is_integer_type(function)
            case ast.Attribute() | ast.Subscript():
                return self._is_integral_field(node) or self.is_array_number(node)
            case ast.BinOp(left, op, right) if isinstance(op, _KEEP_INTEGRAL):
                return all(map(self.is_integral, (left, right)))
            case ast.UnaryOp(ast.USub() | ast.UAdd(), operand):
                return self.is_integral(operand)
        return False

    def _is_integral_name(self, name: str) -> bool:
        if name in _INDICES or name in self.block_indices:
            return True
        if self.is_defined_as(name, self.is_integral):
            return True
        return name not in self.namespace and is_integer_type(self.types.of(name))

    def _is_integral_field(self, node: ast.expr) -> bool:
        """Returns whether the expression is an integer field of a named tuple, such as
        `span.start` of an index range.
        """
        match node:
            case ast.Attribute(ast.Name(name), field) if name not in self.namespace:
                match self.types.of(name):
                    case types.BaseNamedTuple(fields=fields, types=kinds) if field in fields:
                        return is_integer_type(kinds[fields.index(field)])
        return False

    def is_known_number(self, node: ast.expr) -> bool:
        """Returns whether the expression is known to be a real number; only such limits may
        become loop bounds.
        """
        if self.is_integral(node):
            return True
        match node:
            case ast.Constant(value):
                return type(value) in {int, float}
            case ast.Name(name):
                if name in self.namespace:
                    return isinstance(self.namespace[name], _REAL_NUMBERS)
                return isinstance(self.types.of(name), (types.Integer, types.Float))
            case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right):
                return all(map(self.is_known_number, (left, right)))
        return False
