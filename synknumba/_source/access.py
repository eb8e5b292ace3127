"""Array parameters that a function writes, and those that it certainly only reads.

`written_parameters`: inputs are read-only. On the CPU they are the caller's own memory, and on a
GPU, writes to a copy would be lost. The CPU's compiler refuses every such store. This analysis
refuses the obvious ones on every device, before anything is sent.

`read_parameters`: on a GPU, a frozen input that is certainly only read needs no copy of its own. An
array is certainly only read if the kernel uses its name only to read elements and to query sizes:
then no view of it exists, so nothing can write through one.

    x[i]   x[i, j + 1]   x[i][j]   x.shape[0]   len(x)   x.size          only read, if i and j are certainly numbers
    x[k]   x[1:]   x[...]   y = x   row = x[i]   store(x, i)   x[i] = 0  and anything else: not certain

The k of x[k] is analysed too, since x[k] is a view if k is a slice, a tuple or None. Numbers are
the variables of loops over ranges, the positions of threads, sizes, results of arithmetic, and
names that are bound to nothing else. Where the analysis fails, an unnecessary copy is made; the
result is the same.
"""  # noqa: E501

import ast
import builtins
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from synknumba._source.definition import is_as_written
from synknumba._source.grid_names import GridNames, grid_names
from synknumba._source.kernel_facts import KernelFacts, Kind, Use, facts_of, facts_of_code, parts_of

_POSITIONS = {
    f"{triple}.{axis}"
    for triple in ("threadIdx", "blockIdx", "blockDim", "gridDim")
    for axis in "xyz"
}
_POSITIONS |= {"laneid", "warpsize"}  # members of numba.cuda that are numbers
_SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | ast.comprehension


def written_parameters(function: Callable[..., Any]) -> dict[str, int]:
    """Returns the parameters that a function stores to, with the line of the first store; empty
    if there is no source.
    """
    lines: dict[str, int] = {}
    for use in element_uses(function):
        if use.is_write:
            lines.setdefault(use.name.id, use.line)
    return lines


def element_uses(function: Callable[..., Any]) -> list[Use]:
    """Returns where a function writes to parameters, or reads elements of them; empty if there
    is no source.
    """
    facts = facts_of(function)
    if facts is None:
        return []
    return facts.element_uses()


def is_first_element(use: Use, function: Callable[..., Any]) -> bool:
    """Returns whether the index of a use is 0, `(0,)`, or a name that the function finds outside,
    and that is 0.
    """
    index, facts = use.index, facts_of(function)
    if facts is None:
        return False
    match index:
        case ast.Tuple(elts=[element]):
            index = element
    match index:
        case ast.Constant(value=int(value)):
            return value == 0
        case ast.Name(id=name) if name not in facts.local:
            try:
                around = inspect.getclosurevars(function)
            except (TypeError, ValueError):
                return False
            value = around.nonlocals.get(name, around.globals.get(name))
            return isinstance(value, int | np.integer) and value == 0
    return False


def read_parameters(function: Callable[..., Any], dimensions: Mapping[str, int]) -> frozenset[str]:
    """Returns the array parameters of which a kernel certainly reads only elements and sizes.

    `dimensions` has the number of dimensions of each array parameter, at least 1; 0 for each
    number; no other parameters.
    """
    if not is_as_written(function):
        return frozenset()
    facts = facts_of_code(function.__code__)
    if facts is None or any(isinstance(node, _SCOPES) for node in facts.definition.nodes):
        return frozenset()  # a name may have several meanings
    names = grid_names(function)
    if names is None:
        return frozenset()
    numbers = _Numbers(facts, dimensions, names)
    return frozenset(
        name for name in numbers.arrays if all(map(numbers.only_reads, facts.uses.get(name, ())))
    )


class _Numbers:
    """The names and expressions of a kernel without nested functions that are certainly numbers.

    Attributes:
        arrays: number of dimensions of each array parameter.
    """

    def __init__(self, facts: KernelFacts, dimensions: Mapping[str, int], names: GridNames) -> None:
        self._names, self._local = names, facts.local
        parameters, values = {*facts.definition.parameters}, facts.values
        self.arrays, scalars = dict[str, int](), set[str]()
        for name in parameters & dimensions.keys():
            axes = dimensions[name]
            if not axes:
                scalars.add(name)
            elif name not in values:
                self.arrays[name] = axes
        # Starts from all candidates, and removes names bound to anything but a number until none is
        # left to remove.
        self._numbers, before = scalars | (values.keys() - parameters), -1
        while len(self._numbers) != before:
            before = len(self._numbers)
            self._numbers = {
                name for name in self._numbers if all(map(self._is_number, values.get(name, ())))
            }

    def only_reads(self, use: Use) -> bool:
        """Returns whether a use of an array reads an element, or queries a size."""
        axes = self.arrays[use.name.id]
        if use.kind is Kind.SIZE and not use.brackets:
            return not isinstance(use.parent, ast.Call) or self._is_builtin("len")
        indices: list[ast.expr] = []
        for index in use.brackets:
            if len(indices) >= axes:
                break  # brackets behind an element
            indices += parts_of(index)
        if use.kind not in {Kind.ELEMENT, Kind.SIZE} or len(indices) < axes:
            return False
        return all(map(self._is_number, indices))

    def _is_number(self, node: ast.expr | None) -> bool:
        """Returns whether an expression is certainly a number, or an array of numbers, which as
        an index copies rows.
        """
        match node:
            case ast.Constant(value=value):
                return type(value) in {int, float}
            case ast.Name(id=name, ctx=ast.Load()) if name in self._local:
                return name in self._numbers
            case ast.Name(ctx=ast.Load()):
                return isinstance(self._names.resolve(node), int | float | np.number)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Invert()):
                return True
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                # rules out the concatenation of two tuples
                return any(map(self._is_number, (left, right)))
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                # rules out the repetition of a tuple
                return all(map(self._is_number, (left, right)))
            case ast.BinOp():
                return True
            case ast.IfExp(body=first, orelse=second):
                return all(map(self._is_number, (first, second)))
            case ast.NamedExpr(value=value):
                return self._is_number(value)
            case ast.Subscript():
                return self._is_element(node)
            case ast.Attribute(value=ast.Name(id=name), attr="size" | "ndim"):
                return name in self.arrays
            case ast.Attribute():
                return self._names.path(node) in _POSITIONS
            case ast.Call(keywords=[]):
                return self._is_call_for_number(node)
        return False

    def _is_element(self, node: ast.Subscript) -> bool:
        """Returns whether a subscript is an element or a row of an array, one of its sizes, or a
        position.
        """
        parts = parts_of(node.slice)
        if not (parts and all(map(self._is_number, parts))):
            return False
        match node.value:
            case (
                ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name), attr="shape" | "strides")
            ):
                return name in self.arrays
            case ast.Call(func=function, args=[_], keywords=[]):
                return self._names.path(function) in {"grid", "gridsize"}
        return False

    def _is_call_for_number(self, call: ast.Call) -> bool:
        match call.func, call.args:
            case ast.Name(id="range" | "len" | "int" as name), _:  # a range: its loop's variable
                return self._is_builtin(name)
            case (ast.Name(id="abs" as name), [_] as args) | (
                ast.Name(id="min" | "max" as name),
                [_, _, *_] as args,
            ) if self._is_builtin(name):
                return all(map(self._is_number, args))
            case function, [ast.Constant(value=1)] if self._names.path(function) in {
                "grid",
                "gridsize",
            }:
                return True
        return _is_type_of_numbers(self._names.resolve(call.func))

    def _is_builtin(self, name: str) -> bool:
        value = self._names.resolve(ast.Name(name, ast.Load()))
        return name not in self._local and value is getattr(builtins, name)


def _is_type_of_numbers(value: object) -> bool:
    from numba.core.types import Number  # deferred until needed

    if isinstance(value, type):
        return issubclass(value, np.number)
    return isinstance(value, Number)
