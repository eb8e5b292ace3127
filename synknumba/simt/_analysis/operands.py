"""Operands of collectives: what a variable's own slot holds need not be copied for others to read."""

import ast
from collections.abc import Callable

from synknumba.simt._analysis.variables import single_target
from synknumba.simt._frontend.sync import collective_of, is_exchanged, is_operand
from synknumba.simt._frontend.syntax import read_names


def without_copies(body: list[ast.stmt], has_slot: Callable[[str], bool]) -> list[ast.stmt]:
    """Has collectives take a variable's own slot instead of a copy: for `given = v`, `got = shfl(m, given, d)`.

    Args:
        body: the statements; changed in place.
        has_slot: whether a variable is kept for each thread.
    """
    done: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, (ast.If, ast.For, ast.While)):
            statement.body = without_copies(statement.body, has_slot)
            statement.orelse = without_copies(statement.orelse, has_slot)
        if collective_of(statement) is not None and isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            for copied in _operands_at_the_end(done):
                name, value = single_target(copied), copied.value
                if name is not None and is_exchanged(name) and isinstance(value, ast.Name) and has_slot(value.id):
                    done.remove(copied)
                    statement.value.args = [value if read_names(arg) == {name} else arg for arg in statement.value.args]
        done.append(statement)
    return done


def _operands_at_the_end(body: list[ast.stmt]) -> list[ast.Assign]:
    """The assignments of operands that come last."""
    found: list[ast.Assign] = []
    for statement in reversed(body):
        if not isinstance(statement, ast.Assign) or not is_operand(single_target(statement) or ""):
            break
        found.insert(0, statement)
    return found
