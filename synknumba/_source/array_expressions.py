"""Functions whose text shows that they only compute with arrays: what they return depends on their
arguments, and they do nothing else, so that a GPU may repeat their work without Python.

    def f(x, beta):
        y = np.exp(-beta * x)                          assignments to names, arithmetic, ufuncs
        return {"sum": y[1:].sum(0), "most": y.max()}  reductions, parts, trees of results
"""

import ast
from collections.abc import Callable, Iterable
from typing import Any, final

import numpy as np

from synknumba._source.definition import is_as_written, read_function

_REDUCTIONS = frozenset({"sum", "prod", "mean", "min", "max"})  # functions of NumPy, and methods
_ATTRIBUTES = frozenset({"T", "real", "imag", "size"})
_OPTIONS = frozenset({"axis", "keepdims"})
_COMPARISONS = ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq  # element by element


def is_array_expression(function: Callable[..., Any]) -> bool:
    """Returns whether a function certainly does nothing but compute its result from its arguments,
    if these are arrays and numbers.
    """
    definition = read_function(function)
    if definition is None or not is_as_written(function):
        return False
    expressions = _Expressions(function.__globals__, definition.parameters)
    *statements, last = definition.tree.body
    return all(map(expressions.is_assignment, statements)) and expressions.is_result(last)


@final
class _Expressions:
    """Expressions of a function.

    Args:
        space: its globals.
        names: its parameters.
    """

    def __init__(self, space: dict[str, Any], names: Iterable[str]) -> None:
        self._space, self._names = space, {*names}  # names have arrays and numbers

    def is_assignment(self, node: ast.stmt) -> bool:
        """Whether a statement assigns an array to a name, or does nothing."""
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if self._is_array(value):
                self._names.add(name)
                return True
            case ast.Expr(value=ast.Constant()):
                return True
        return False

    def is_result(self, node: ast.stmt) -> bool:
        """Whether a statement returns arrays."""
        return isinstance(node, ast.Return) and node.value is not None and self._is_tree(node.value)

    def _is_tree(self, node: ast.expr) -> bool:
        match node:
            case ast.Tuple(elts=values) | ast.List(elts=values):
                return all(map(self._is_tree, values))
            case ast.Dict(keys=keys, values=values):
                are_plain = all(isinstance(key, ast.Constant) for key in keys)
                return are_plain and all(map(self._is_tree, values))
        return self._is_array(node)

    def _is_array(self, node: ast.expr) -> bool:
        """Whether an expression is an array or a number, and computes nothing else."""
        operands = self._operands(node)
        return operands is not None and all(map(self._is_array, operands))

    def _operands(self, node: ast.expr) -> list[ast.expr] | None:
        """Returns the expressions of which one is computed, if these are arrays or numbers; None
        if it may do anything else.
        """
        match node:
            case ast.Constant():
                return []
            case ast.Name(id=name) if name in self._names:
                return []
            case ast.BinOp(left=left, right=right):
                return [left, right]
            case ast.Compare(left=left, ops=[op], comparators=[right]) if isinstance(
                op, _COMPARISONS
            ):
                return [left, right]
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Invert(), operand=operand):
                return [operand]
            case ast.Attribute(value=value, attr=name) if name in _ATTRIBUTES:
                return [value]
            case ast.Subscript(value=value, slice=index) if _is_index(index):
                return [value]
            case ast.Call(
                func=ast.Attribute(value=value, attr=name), args=args, keywords=options
            ) if _are_options(options):
                return self._arrays_of(value, name, args)
        return None

    def _arrays_of(self, value: ast.expr, name: str, args: list[ast.expr]) -> list[ast.expr] | None:
        """Returns the arrays with which a function of NumPy, or a method, computes; None if it may
        do anything else.
        """
        arrays = [value, *args]
        if isinstance(value, ast.Name) and value.id not in self._names:
            arrays = args
            if self._space.get(value.id) is not np:
                return None
            ufunc = getattr(np, name, None)
            if isinstance(ufunc, np.ufunc):
                return args if len(args) == ufunc.nin else None
        if name in _REDUCTIONS and all(map(_is_index, arrays[1:2])) and len(arrays) <= 2:
            return arrays[:1]
        return None


def _is_index(node: ast.expr) -> bool:
    """Whether an expression consists of constants."""
    match node:
        case ast.Tuple(elts=parts):
            return all(map(_is_index, parts))
        case ast.Slice(lower=lower, upper=upper, step=step):
            return all(part is None or _is_index(part) for part in (lower, upper, step))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_index(operand)
    return isinstance(node, ast.Constant)


def _are_options(options: Iterable[ast.keyword]) -> bool:
    return all(option.arg in _OPTIONS and _is_index(option.value) for option in options)
