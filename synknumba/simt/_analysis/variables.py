"""Where the variables of a kernel get their values, and where they are needed.

One name for each life of a variable: `v = x[i]`, and behind a barrier `v = 3`, are two variables that share a name.

What is kept from region to region has one type, so that two lives of different types would be kept as the type that holds both.
"""

import ast
from collections import Counter
from collections.abc import Collection, Iterable

from synknumba.simt._frontend.syntax import assigned_names, read_names, walk


def single_target(statement: ast.AST) -> str | None:
    """The variable of a plain assignment `name = value`."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def definitions(body: list[ast.stmt]) -> dict[str, ast.expr]:
    """The variables assigned once, at the top, from constants, arguments and other such variables, and their values."""
    stores = Counter(node.id for node in walk(body) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    found: dict[str, ast.expr] = {}
    for statement in body:
        name = single_target(statement)
        if name is None or stores[name] != 1 or not isinstance(statement, ast.Assign):
            continue
        if all(read in found or read not in stores for read in read_names(statement.value)):
            found[name] = statement.value
    return found


def exposed(body: Iterable[ast.stmt], tracked: set[str], defined: set[str] | None = None) -> tuple[set[str], set[str]]:
    """The variables read before they are surely assigned, and those surely assigned, by statements run in order."""
    live: set[str] = set()
    sure = set(defined or ())

    def reads(node: ast.AST) -> set[str]:
        return (read_names(node) & tracked) - sure

    for statement in body:
        match statement:
            case ast.Assign():
                live |= reads(statement)
                sure |= assigned_names(statement) & tracked
            case ast.AugAssign():
                live |= reads(statement)
                sure |= assigned_names(statement) & tracked
            case ast.If():
                live |= reads(statement.test)
                live_then, sure_then = exposed(statement.body, tracked, sure)
                live_else, sure_else = exposed(statement.orelse, tracked, sure)
                live |= live_then | live_else
                sure |= sure_then & sure_else
            case ast.For() | ast.While():
                live |= reads(statement.iter if isinstance(statement, ast.For) else statement.test)
                inside = sure | (assigned_names(statement.target) & tracked if isinstance(statement, ast.For) else set())
                live |= exposed(statement.body, tracked, inside)[0]
            case _:
                live |= reads(statement)
    return live, sure


def with_own_names(body: list[ast.stmt], kept: Collection[str]) -> list[ast.stmt]:
    """The statements of a kernel, where a variable assigned anew at the top has a new name from there on.

    A statement at the top runs before all that follow it, so nothing behind it reads what was assigned before.

    Args:
        body: the statements; changed in place.
        kept: the variables that keep their names.
    """
    begins = Counter(name for statement in body if (name := single_target(statement)) is not None and name not in kept)
    taken = {node.id for node in walk(body) if isinstance(node, ast.Name)}
    current: dict[str, str] = {}
    for statement in body:
        name = single_target(statement)
        if name is None or begins[name] < 2 or not isinstance(statement, ast.Assign):
            _rename(statement, current)
            continue
        _rename(statement.value, current)
        if name in current or name in read_names(statement.value) or _was_seen(name, body, statement):
            current[name] = _new(name, taken)
            _rename(statement.targets[0], current)
    return body


def _was_seen(name: str, body: list[ast.stmt], until: ast.stmt) -> bool:
    """Whether the variable is named before a statement."""
    return any(isinstance(node, ast.Name) and node.id == name for node in walk(body[: body.index(until)]))


def _new(name: str, taken: set[str]) -> str:
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    taken.add(f"{name}_{number}")
    return f"{name}_{number}"


def _rename(node: ast.AST, names: dict[str, str]) -> None:
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in names:
            part.id = names[part.id]
