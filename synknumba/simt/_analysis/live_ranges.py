"""One name for each life of a variable: `v = x[i]`, and behind a barrier `v = 3`, are two variables that share a name.

What is kept from region to region has one type, so that two lives of different types would be kept as the type that holds both.
"""

import ast
from collections import Counter
from collections.abc import Collection

from synknumba.simt._analysis.variables import single_target
from synknumba.simt._frontend.syntax import read_names, walk


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
