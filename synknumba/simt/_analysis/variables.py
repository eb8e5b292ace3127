"""Definitions, live variables and renaming of a kernel's variables.

`v = x[i]` before a barrier and `v = 3` after it are two variables that share a name. A variable
that lives across a barrier is stored with one type; `with_own_names` renames the second, so that
the two are not stored as a type that holds both.
"""

import ast
from collections import Counter
from collections.abc import Collection
from itertools import count

from synknumba.simt._source.syntax import count_names, count_stores, read_names, rename, walk


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
    values: dict[str, ast.expr] = {}
    for statement in body:
        match statement:
            case ast.Assign([ast.Name(name)], value) if stores[name] == 1:
                if all(read in values or read not in stores for read in read_names(value)):
                    values[name] = value
    return values


def with_own_names(body: list[ast.stmt], local_arrays: Collection[str]) -> list[ast.stmt]:
    """Renames a variable, unless it is a local array, from each top-level reassignment on; changes
    the statements in place.

    A top-level statement runs before all statements after it, so none of these reads the variable's
    earlier value.
    """
    begins = Counter(
        name
        for statement in body
        if (name := single_target(statement)) is not None and name not in local_arrays
    )
    names = {node.id for node in walk(body) if isinstance(node, ast.Name)}
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
                        new for number in count(2) if (new := f"{name}_{number}") not in names
                    )
                    names.add(new)
                    target.id = current[name] = new
            case _:
                rename(statement, current)
    return body
