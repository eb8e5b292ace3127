"""Definitions, live variables and renaming of a kernel's variables.

`v = x[i]` before a barrier and `v = 3` after it are two variables that share a name. A variable that lives across a barrier is
stored with one type; `with_own_names` renames the second, so that the two are not stored as a type that holds both.
"""

import ast
from collections import Counter
from collections.abc import Collection, Iterable

from synknumba.simt._frontend.syntax import assigned_names, read_names, walk


def single_target(statement: ast.AST) -> str | None:
    """Returns the variable of a plain assignment `name = value`; None for any other statement."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def definitions(body: list[ast.stmt]) -> dict[str, ast.expr]:
    """Returns, with their values, the variables assigned once, at the top level, from constants, arguments and each other."""
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
    """Finds variables that may be read before assignment (live on entry), and variables assigned on every path.

    Args:
        body: statements that run in order.
        tracked: the variables of interest.
        defined: the variables assigned on every path before the statements.

    Returns:
        The live variables; the variables assigned on every path, `defined` included.
    """
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
    """Renames a variable from each top-level reassignment on.

    A top-level statement runs before all statements after it, so none of these reads the variable's earlier value.

    Args:
        body: statements of a kernel; changed in place.
        kept: variables that keep their names.
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
    """Returns whether the variable is named before a statement."""
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
