"""The statements of a device function for another place: other names of variables, assignments instead of `return`."""

import ast
import copy
from collections.abc import Mapping

from synknumba.simt._frontend.syntax import has_return, load, place, statements, store


def renamed(body: list[ast.stmt], names: Mapping[str, str], values: Mapping[str, ast.expr]) -> list[ast.stmt]:
    """The statements with other variables.

    Args:
        body: the statements; not changed.
        names: the new name of each variable.
        values: what stands for the variables that are only read.
    """
    renamer = _Renamer(names, values)
    return [renamer.visit(copy.deepcopy(statement)) for statement in body]


class _Renamer(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str], values: Mapping[str, ast.expr]) -> None:
        self._names, self._values = names, values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._values:
            return ast.copy_location(copy.deepcopy(self._values[node.id]), node)
        return ast.copy_location(ast.Name(self._names.get(node.id, node.id), node.ctx), node)


def last_return(body: list[ast.stmt]) -> tuple[list[ast.stmt], ast.expr | None] | None:
    """The statements before a function's only `return`, its last statement, and the value; None for other functions."""
    if body and isinstance(body[-1], ast.Return) and not has_return(body[:-1]):
        return body[:-1], body[-1].value
    return None


class ReturnsAssigned:
    """Replaces each `return value` by `result = value`, and keeps what follows from running.

    What follows an `if` that returns becomes its `else`. Where that cannot be, as behind a loop that may return, it goes under
    a condition on a flag.

    Args:
        result: the variable that gets the value.
        flag: the variable that says whether the function has returned.
    """

    def __init__(self, result: str, flag: str) -> None:
        self._result, self._flag = result, flag
        self._flagged = False

    def lower(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The statements without `return`."""
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
            if isinstance(statement, ast.If) and not loops and (_returns(statement.body) or _returns(statement.orelse)):
                then_goes_on = not _returns(statement.body)
                body_then = statement.body + rest if then_goes_on else statement.body
                body_else = statement.orelse if then_goes_on else statement.orelse + rest
                statement.body = self._lower(body_then, loops=loops) or [ast.copy_location(ast.Pass(), statement)]
                statement.orelse = self._lower(body_else, loops=loops)
                return [*done, statement]
            return done + self._with_flag(statement, rest, loops=loops)
        return done

    def _with_flag(self, statement: ast.stmt, rest: list[ast.stmt], *, loops: int) -> list[ast.stmt]:
        self._flagged = True
        inside = loops + isinstance(statement, (ast.For, ast.While))
        if isinstance(statement, (ast.If, ast.For, ast.While)):
            statement.body = self._lower(statement.body, loops=inside)
            statement.orelse = self._lower(statement.orelse, loops=inside)
        done = [statement]
        if loops and inside > loops:  # a loop in a loop: leave the outer one too
            done += statements(f"if {self._flag}:\n    break", statement)
            return done + self._lower(rest, loops=loops)
        behind = self._lower(rest, loops=loops)
        if behind and not loops:
            guard = ast.If(ast.UnaryOp(ast.Not(), load(self._flag)), behind, [])
            return [*done, place(guard, statement)]
        return done + behind  # in a loop, `break` has left already

    def _return(self, statement: ast.Return, *, loops: int) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        if statement.value is not None:
            done.append(place(ast.Assign([store(self._result)], statement.value), statement))
        done += statements(f"{self._flag} = True", statement)
        if loops:
            self._flagged = True
            done += statements("break", statement)
        return done


class _Without(ast.NodeTransformer):
    """Removes the assignments of a variable that nothing reads."""

    def __init__(self, name: str) -> None:
        self._name = name

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        target = node.targets[0]
        return ast.copy_location(ast.Pass(), node) if isinstance(target, ast.Name) and target.id == self._name else node


def _returns(body: list[ast.stmt]) -> bool:
    """Whether the statements surely end in a `return`."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.If):
        return _returns(last.body) and _returns(last.orelse)
    return isinstance(last, ast.Return)
