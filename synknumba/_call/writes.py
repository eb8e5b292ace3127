"""Which of its parameters a kernel writes to, as far as its source shows.

Inputs are read-only: on the CPU they are the caller's own memory, and on a GPU what is written to a copy of them is lost. The
CPU's compiler refuses every such store. This look at the source refuses the plain ones for every device, before anything is
sent: `x[...] = …`, `x[...] += …`, `x += …` and `cuda.atomic.…(x, …)` where x is a parameter.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any


def written_parameters(function: Callable[..., Any]) -> dict[str, int]:
    """The parameters that are stored to, each with the line of its first store; empty where there is no source."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return {}
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        return {}
    names = {argument.arg for argument in definition.args.args}
    found: dict[str, int] = {}
    nodes = list(_own_nodes(definition))
    for node in nodes:
        for name in _stored(node) & names:
            found.setdefault(name, first + node.lineno - 1)  # type: ignore[attr-defined]  # statements and calls have lines
    added_to = {id(node.target) for node in nodes if isinstance(node, ast.AugAssign)}  # arrays are, where they lie
    stores = (node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    rebound = {node.id for node in stores if id(node) not in added_to}
    return {name: line for name, line in found.items() if name not in rebound}


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """What is in a function, without the functions inside it, which may call their own parameters the same."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef | ast.AsyncFunctionDef):
            yield from _own_nodes(child)


def _stored(node: ast.AST) -> set[str]:
    """Names whose elements a statement or call stores to."""
    match node:
        case ast.Assign(targets=targets):
            return {name for target in targets for name in _elements(target)}
        case ast.AugAssign(target=ast.Name(id=name)):
            return {name}
        case ast.AugAssign(target=target):
            return set(_elements(target))
        case ast.Call(
            func=ast.Attribute(value=ast.Attribute(attr="atomic") | ast.Name(id="atomic")), args=[ast.Name(id=name), *_]
        ):
            return {name}
        case _:
            return set()


def _elements(target: ast.expr) -> list[str]:
    match target:
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            return [name for one in targets for name in _elements(one)]
        case ast.Subscript(value=ast.Name(id=name)):
            return [name]
        case ast.Subscript(value=ast.Subscript() as inner):
            return _elements(inner)
        case ast.Attribute(value=ast.Subscript() as inner):
            return _elements(inner)
        case _:
            return []
