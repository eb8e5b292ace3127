"""Inlining of device functions that have barriers or shared memory, which must belong to the
kernel.

The statements of the device function go in front of the statement that contains the call, and its
result replaces the call. Its variables are renamed, and each `return` becomes an assignment.
"""

import ast
from collections.abc import Mapping
from typing import cast

from synknumba.simt._lower.arrays import SharedArray
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
    statements,
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
    if body and isinstance(body[-1], ast.Return) and not has_return(body[:-1]):
        return body[:-1], body[-1].value
    return None


class ReturnsAssigned:
    """Replaces each `return value` by `result = value`, and skips the statements after it.

    Statements after an `if` that returns move into its `else`. Where that is impossible, as after a
    loop that may return, they are guarded by `flag`, a variable that is true once the function has
    returned.
    """

    def __init__(self, result: str, flag: str) -> None:
        self._result, self._flag = result, flag
        self._flagged = False

    def lower(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Returns the statements without `return`."""
        at = body[0] if body else None
        done = self._lower(body, loops=0)
        if not self._flagged or at is None:
            return [_Without(self._flag).visit(statement) for statement in done]
        return statements(f"{self._flag} = False", at) + done

    def _lower(self, body: list[ast.stmt], *, loops: int) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        for position, statement in enumerate(body):
            rest = body[position + 1 :]
            if isinstance(statement, ast.Return):
                return done + self._return(statement, loops=loops)
            if not has_return(statement):
                done.append(statement)
                continue
            if not loops and isinstance(statement, ast.If) and self._one_branch(statement, rest):
                return [*done, statement]
            return done + self._with_flag(statement, rest, loops=loops)
        return done

    def _one_branch(self, statement: ast.If, rest: list[ast.stmt]) -> bool:
        """Moves the statements after an `if` into its branch that does not return; returns whether
        the other one does.
        """
        if _returns(statement.body):
            statement.orelse = statement.orelse + rest
        elif _returns(statement.orelse):
            statement.body = statement.body + rest
        else:
            return False
        empty = ast.copy_location(ast.Pass(), statement)
        statement.body = self._lower(statement.body, loops=0) or [empty]
        statement.orelse = self._lower(statement.orelse, loops=0)
        return True

    def _with_flag(
        self, statement: ast.stmt, rest: list[ast.stmt], *, loops: int
    ) -> list[ast.stmt]:
        self._flagged = True
        inside = loops + isinstance(statement, (ast.For, ast.While))
        if isinstance(statement, (ast.If, ast.For, ast.While)):
            statement.body = self._lower(statement.body, loops=inside)
            statement.orelse = self._lower(statement.orelse, loops=inside)
        done = [statement]
        if loops and inside > loops:  # nested loop: leave the outer one too
            done += statements(f"if {self._flag}:\n    break", statement)
            return done + self._lower(rest, loops=loops)
        behind = self._lower(rest, loops=loops)
        if behind and not loops:
            guard = ast.If(ast.UnaryOp(ast.Not(), load(self._flag)), behind, [])
            return [*done, place(guard, statement)]
        return done + behind  # in a loop, `break` has already left

    def _return(self, statement: ast.Return, *, loops: int) -> list[ast.stmt]:
        self._flagged |= loops > 0
        text = f"{self._flag} = True"
        leave = statements(f"{text}\nbreak" if loops else text, statement)
        if statement.value is None:
            return leave
        return [assign(self._result, statement.value, statement), *leave]


class _Without(ast.NodeTransformer):
    """Removes the assignments of a variable that is never read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        match node.targets[0]:
            case ast.Name(id=self._name):
                return ast.copy_location(ast.Pass(), node)
        return node


def _returns(body: list[ast.stmt]) -> bool:
    """Returns whether every path through the statements ends in a `return`."""
    match body:
        case [*_, ast.If(body=then, orelse=other)]:
            return _returns(then) and _returns(other)
    return bool(body) and isinstance(body[-1], ast.Return)


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
        simple = last_return(body)
        if simple is not None:
            return assignments + simple[0], simple[1] or place(ast.Constant(None), at)
        result, flag = self._variables.new("result", word), self._variables.new("returned", word)
        done = ReturnsAssigned(result, flag).lower(body)
        value = load(result) if result in assigned_names(done) else ast.Constant(None)
        return assignments + done, place(value, at)

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
