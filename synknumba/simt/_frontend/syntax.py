"""Helpers that read and build Python syntax trees.

Every node made by the compiler gets the line number of the user's statement that it implements, so that Numba's errors and the
tracebacks of generated functions point at the user's source.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar, cast

Node = TypeVar("Node", bound=ast.AST)


def load(name: str) -> ast.Name:
    """Returns the name in a load context."""
    return ast.Name(name, ast.Load())


def store(name: str) -> ast.Name:
    """Returns the name in a store context."""
    return ast.Name(name, ast.Store())


def call(function: str, *args: ast.expr) -> ast.Call:
    """Returns a call of the function with this plain name."""
    return ast.Call(load(function), list(args), [])


def place(node: Node, at: ast.AST) -> Node:
    """Sets the line of `at` on all nodes that have none yet, and returns the node."""
    line = getattr(at, "lineno", 1)
    for part in ast.walk(node):
        if isinstance(part, (ast.expr, ast.stmt, ast.arg, ast.keyword)) and not hasattr(part, "lineno"):
            part.lineno = part.end_lineno = line
            part.col_offset = part.end_col_offset = 0
    return node


def _move(node: ast.AST, at: ast.AST) -> None:
    line = getattr(at, "lineno", 1)
    for part in ast.walk(node):
        if isinstance(part, (ast.expr, ast.stmt, ast.arg, ast.keyword)):
            part.lineno = part.end_lineno = line
            part.col_offset = part.end_col_offset = 0


def statements(text: str, at: ast.AST) -> list[ast.stmt]:
    """Parses statements and sets the line of `at` on all their nodes."""
    body = ast.parse(text).body
    for statement in body:
        _move(statement, at)
    return body


def expression(text: str, at: ast.AST) -> ast.expr:
    """Parses one expression and sets the line of `at` on all its nodes."""
    node = ast.parse(text, mode="eval").body
    _move(node, at)
    return node


def assign(name: str, value: ast.expr, at: ast.AST) -> ast.Assign:
    """Returns the statement `name = value`, at the line of `at`."""
    return place(ast.Assign([store(name)], value), at)


def walk(nodes: ast.AST | Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Iterates over every node of a tree, or of several trees, roots included."""
    return ast.walk(nodes) if isinstance(nodes, ast.AST) else chain.from_iterable(map(ast.walk, nodes))


def assigned_names(nodes: ast.AST | Iterable[ast.AST]) -> set[str]:
    """Returns the names assigned anywhere in the trees."""
    return {node.id for node in walk(nodes) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def read_names(nodes: ast.AST | Iterable[ast.AST]) -> set[str]:
    """Returns the names read anywhere in the trees, targets of augmented assignments included."""
    found = {node.id for node in walk(nodes) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    augmented = {
        node.target.id for node in walk(nodes) if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    return found | augmented


def count_names(nodes: ast.AST | Iterable[ast.AST], name: str) -> int:
    """Counts the occurrences of a name, read or assigned."""
    return sum(1 for node in walk(nodes) if isinstance(node, ast.Name) and node.id == name)


def has_return(nodes: ast.AST | Iterable[ast.AST]) -> bool:
    """Returns whether the trees contain a `return`."""
    return any(isinstance(node, ast.Return) for node in walk(nodes))


def loop_variable(loop: ast.For) -> str:
    """Returns the variable of a loop `for name in range(...)`."""
    return cast(ast.Name, loop.target).id


def is_leave(body: Sequence[ast.stmt]) -> bool:
    """Returns whether the body is a single `return` statement."""
    return len(body) == 1 and isinstance(body[0], ast.Return)


def own_exits(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the `break` and `continue` statements of the loop with this body, without those of nested loops."""
    for statement in body:
        if isinstance(statement, (ast.Break, ast.Continue)):
            yield statement
        elif isinstance(statement, ast.If):
            yield from own_exits(statement.body)
            yield from own_exits(statement.orelse)


def range_arguments(statement: ast.stmt) -> list[ast.expr] | None:
    """Returns start, stop and step of `for name in range(...)`; None for any other statement."""
    if not (isinstance(statement, ast.For) and isinstance(statement.target, ast.Name)):
        return None
    loop = statement.iter
    if not (isinstance(loop, ast.Call) and isinstance(loop.func, ast.Name) and loop.func.id == "range"):
        return None
    if loop.keywords or not 1 <= len(loop.args) <= 3:
        return None
    start, step = place(ast.Constant(0), loop), place(ast.Constant(1), loop)
    match loop.args:
        case [stop]:
            return [start, stop, step]
        case [begin, stop]:
            return [begin, stop, step]
        case args:
            return args


def unparse(body: Sequence[ast.stmt]) -> str:
    """Returns the statements as Python source."""
    return ast.unparse(ast.fix_missing_locations(ast.Module(list(body), [])))


def call_name(node: ast.expr) -> str | None:
    """Returns the name of the called function if the expression is a call of a plain name, else None."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
