"""Definitions, live variables and renaming of a kernel's variables.

`v = x[i]` before a barrier and `v = 3` after it are two variables that share a name. A variable
that lives across a barrier is stored with one type; `with_own_names` renames the second, so that
the two are not stored as a type that holds both.
"""

import ast
from collections import Counter
from collections.abc import Collection

from synknumba.simt._source.syntax import count_each, count_stores, read_names, rename


def single_target(statement: ast.AST) -> str | None:
    """Returns the variable of a plain assignment `name = value`; None for any other statement."""
    match statement:
        case ast.Assign([ast.Name(name)]):
            return name
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
                if (read_names(value) & stores.keys()) <= values.keys():
                    values[name] = value
    return values


def with_own_names(body: list[ast.stmt], local_arrays: Collection[str]) -> list[ast.stmt]:
    """Renames a variable, unless it is a local array, from each top-level reassignment on; changes
    the statements in place.

    A top-level statement runs before all statements after it, so none of these reads the variable's
    earlier value.
    """
    begins = Counter(map(single_target, body))
    for name in local_arrays:
        del begins[name]
    names = set(count_each(body))
    current: dict[str, str] = {}
    for position, statement in enumerate(body):
        match statement:
            case ast.Assign([ast.Name(name) as target], value) if begins[name] > 1:
                rename(value, current)
                is_used = name in current or name in read_names(value)
                if is_used or name in count_each(body[:position]):
                    target.id = current[name] = _numbered(name, names)
                    names.add(target.id)
            case _:
                rename(statement, current)
    return body


def _numbered(name: str, names: Collection[str]) -> str:
    """Returns the name with the lowest number, from 2, that makes another one of it."""
    number = 2
    while f"{name}_{number}" in names:
        number += 1
    return f"{name}_{number}"
