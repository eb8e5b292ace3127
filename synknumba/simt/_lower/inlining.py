"""Inlining of device functions that have barriers or shared memory, which must belong to the
kernel.

The statements of the device function go in front of the statement that contains the call, and its
result replaces the call. Its variables are renamed, and each `return` becomes an assignment.
"""

import ast
from collections.abc import Mapping
from typing import cast

from synknumba.simt._lower.arrays import SharedArray
from synknumba.simt._lower.exits import lower_returns
from synknumba.simt._lower.thread_code import ThreadCode
from synknumba.simt._source.scope import Locals
from synknumba.simt._source.syntax import (
    all_copied,
    assign,
    assigned_names,
    copied,
    has_return,
    load,
    place,
)


def renamed(
    body: list[ast.stmt], names: Mapping[str, str], values: Mapping[str, ast.expr]
) -> list[ast.stmt]:
    """Returns a copy of the statements with variables renamed, or, if they are only read,
    replaced by expressions.
    """
    renamer = _Renamer(names, values)
    return [renamer.visit(statement) for statement in all_copied(body)]


class _Renamer(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str], values: Mapping[str, ast.expr]) -> None:
        self._names, self._values = names, values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._values:
            return ast.copy_location(copied(self._values[node.id]), node)
        return ast.copy_location(ast.Name(self._names.get(node.id, node.id), node.ctx), node)


def last_return(body: list[ast.stmt]) -> tuple[list[ast.stmt], ast.expr | None] | None:
    """Splits a body whose only `return` is its last statement into the rest and the value; None
    for other bodies.
    """
    match body:
        case [*before, ast.Return(value)] if not has_return(before):
            return before, value
    return None


class Inliner:
    """Inlines device functions into one function, whose `code` and `variables` get the callees'
    names, arrays and flags.
    """

    def __init__(self, code: ThreadCode, variables: Locals) -> None:
        self._code, self._variables = code, variables
        self._shared: dict[tuple[int, str, str], str] = {}

    def inline(
        self, called: ThreadCode, args: list[ast.expr], at: ast.Call
    ) -> tuple[list[ast.stmt], ast.expr]:
        """Returns the statements that replace a call, and the expression of its value; `args` are
        already translated.
        """
        self._code.must_be_inlined = True
        self._code.uses_state |= called.uses_state
        word = called.source.tree.name
        assignments, names, values = self._variables_of(called, args, at)
        self._code.local_arrays |= {names[name] for name in called.local_arrays}
        self._take_shared_arrays(called, names, values, at)
        body = renamed(called.body, names, values)
        nothing = place(ast.Constant(None), at)
        simple = last_return(body)
        if simple is not None:
            return assignments + simple[0], simple[1] or nothing
        result, flag = self._variables.new("result", word), self._variables.new("going", word)
        done = lower_returns(body, flag, result)
        if result not in assigned_names(done):
            return assignments + done, nothing
        return assignments + done, place(load(result), at)

    def _variables_of(
        self, called: ThreadCode, args: list[ast.expr], at: ast.Call
    ) -> tuple[list[ast.stmt], dict[str, str], dict[str, ast.expr]]:
        """Returns assignments of arguments to new variables, the new names, and the expressions
        for names without one.
        """
        word = called.source.tree.name
        changed = assigned_names(called.body)
        names = {name: self._variables.new(name, word) for name in changed}
        values: dict[str, ast.expr] = {
            name: self._code.bind(name.removeprefix("_k_"), value)
            for name, value in called.namespace.items()
            if name not in changed
        }
        assignments: list[ast.stmt] = []
        for param, arg in zip(called.params, args, strict=True):
            if param not in changed and _is_plain(arg):
                values[param] = arg
                continue
            names.setdefault(param, self._variables.new(param, word))
            assignments.append(assign(names[param], arg, at))
        return assignments, names, values

    def _take_shared_arrays(
        self, called: ThreadCode, names: dict[str, str], values: dict[str, ast.expr], at: ast.Call
    ) -> None:
        """Adds the shared arrays of the device function to the caller, under new names."""
        for name, array in called.shared_arrays.items():
            (statement,) = renamed([place(ast.Expr(array.dtype), at)], names, values)
            dtype = cast(ast.Expr, statement).value
            self._variables.check_known_at_launch(dtype, at)
            key = (id(called), name, ast.unparse(dtype))
            if key not in self._shared:  # all calls of a function share one array, as on a GPU
                self._shared[key] = self._variables.new(name, called.source.tree.name)
            names[name] = self._shared[key]
            self._code.shared_arrays[names[name]] = SharedArray(array.shape, dtype, array.at)


def _is_plain(arg: ast.expr) -> bool:
    """Returns whether an argument may stand for the parameter wherever that is read."""
    match arg:
        case ast.Name() | ast.Constant() | ast.Attribute(ast.Name(), "dtype"):
            return True
    return False
