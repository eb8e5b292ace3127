"""The source of a lambda.

`inspect` gives the lines of the statement around it, which may hold several lambdas and need not be readable by itself. So the
whole file is read, and the lambda found in it by the place of its code.
"""

import ast
import inspect
from types import FunctionType
from typing import Final

NAME: Final = "lambda_"


def identifier(function: FunctionType) -> str:
    """The function's name, or a word for one that has none."""
    return function.__name__ if function.__name__.isidentifier() else NAME


def is_lambda(function: FunctionType) -> bool:
    """Whether the function was written as a lambda."""
    return function.__code__.co_name == "<lambda>"


def lambda_definition(function: FunctionType) -> ast.FunctionDef | None:
    """The lambda as a `def` that returns its value; None if it cannot be told from another one.

    Raises:
        OSError: the source cannot be found.
        SyntaxError: it cannot be read.
    """
    lines, _ = inspect.findsource(function)
    tree = ast.parse("".join(lines))
    code = function.__code__
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno]
    names = [*code.co_varnames[: code.co_argcount]]
    found = [node for node in found if [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)] == names]
    if len(found) > 1:
        found = _around(function, found)
    if len(found) != 1:
        return None
    value = ast.copy_location(ast.Return(found[0].body), found[0].body)
    made = ast.FunctionDef(NAME, found[0].args, [value], [], None)
    return ast.fix_missing_locations(ast.copy_location(made, found[0]))


def _around(function: FunctionType, found: list[ast.Lambda]) -> list[ast.Lambda]:
    """Of several lambdas the one that the function's instructions come from: the innermost that holds all of them."""
    # The first instructions, which no expression stands for, are at column 0 and end there.
    places = [place for place in function.__code__.co_positions() if place[3]]
    around = [node for node in found if places and all(_holds(node.body, place) for place in places)]
    return sorted(around, key=lambda node: (node.body.lineno, node.body.col_offset))[-1:]


def _holds(node: ast.expr, place: tuple[int | None, int | None, int | None, int | None]) -> bool:
    line, end_line, column, end_column = place
    if line is None or end_line is None or column is None or end_column is None:
        return False
    after = (line, column) >= (node.lineno, node.col_offset)
    return after and (end_line, end_column) <= (node.end_lineno or 0, node.end_col_offset or 0)
