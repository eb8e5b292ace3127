"""Definitions, live variables and renaming of a kernel's variables.

`v = x[i]` before a barrier and `v = 3` after it are two variables that share a name. A variable
that lives across a barrier is stored with one type; `with_own_names` renames the second, so that
the two are not stored as a type that holds both.
"""

import ast
from collections import Counter
from collections.abc import Collection, Iterable
from itertools import count

from synknumba.simt._source.syntax import (
    assigned_names,
    count_names,
    count_stores,
    read_names,
    rename,
    walk,
)


def single_target(statement: ast.AST) -> str | None:
    """Returns the variable of a plain assignment `name = value`; None for any other statement."""
    if (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
    ):
        return statement.targets[0].id
    return None


def definitions(body: list[ast.stmt]) -> dict[str, ast.expr]:
    """Returns, with their values, the variables assigned once, at the top level, from constants,
    arguments and each other.
    """
    stores = count_stores(body)
    found: dict[str, ast.expr] = {}
    for statement in body:
        match statement:
            case ast.Assign([ast.Name(name)], value) if stores[name] == 1:
                if all(read in found or read not in stores for read in read_names(value)):
                    found[name] = value
    return found


def exposed(
    body: Iterable[ast.stmt], tracked: set[str], defined: set[str] | None = None
) -> tuple[set[str], set[str]]:
    """Finds variables that may be read before assignment (live on entry), and variables assigned on
    every path.

    Args:
        body: statements that run in order.
        tracked: the variables of interest.
        defined: the variables assigned on every path before the statements; the second result
            includes them.
    """
    live: set[str] = set()
    sure = set(defined or ())

    def reads(node: ast.AST) -> set[str]:
        return (read_names(node) & tracked) - sure

    for statement in body:
        match statement:
            case ast.Assign() | ast.AugAssign():
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
                inside = sure | (
                    assigned_names(statement.target) & tracked
                    if isinstance(statement, ast.For)
                    else set()
                )
                live |= exposed(statement.body, tracked, inside)[0]
            case _:
                live |= reads(statement)
    return live, sure


def with_own_names(body: list[ast.stmt], kept: Collection[str]) -> list[ast.stmt]:
    """Renames a variable, unless `kept`, from each top-level reassignment on; changes the
    statements in place.

    A top-level statement runs before all statements after it, so none of these reads the variable's
    earlier value.
    """
    begins = Counter(
        name
        for statement in body
        if (name := single_target(statement)) is not None and name not in kept
    )
    taken = {node.id for node in walk(body) if isinstance(node, ast.Name)}
    current: dict[str, str] = {}
    for position, statement in enumerate(body):
        match statement:
            case ast.Assign([ast.Name(name) as target], value) if begins[name] > 1:
                rename(value, current)
                if (
                    name in current
                    or name in read_names(value)
                    or count_names(body[:position], name)
                ):
                    new = next(
                        new for number in count(2) if (new := f"{name}_{number}") not in taken
                    )
                    taken.add(new)
                    target.id = current[name] = new
            case _:
                rename(statement, current)
    return body
