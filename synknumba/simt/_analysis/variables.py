"""Where the variables of a kernel get their values, and where they are needed."""

import ast
from collections import Counter
from collections.abc import Iterable

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
