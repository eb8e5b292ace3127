"""Helpers that read and build Python syntax trees.

Every node made by the compiler gets the line number of the user's statement that it implements, so
that Numba's errors and the tracebacks of generated functions point at the user's source.
"""

import ast
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


def one_or_tuple(parts: Sequence[ast.expr], ctx: ast.expr_context) -> ast.expr:
    """Returns the only expression, or several as a tuple."""
    if len(parts) == 1:
        return parts[0]
    return ast.Tuple(list(parts), ctx)


def parts_of(node: ast.expr) -> list[ast.expr]:
    """Returns the elements of a tuple display, or any other expression alone."""
    if isinstance(node, ast.Tuple):
        return node.elts
    return [node]


def place(node: Node, at: ast.AST, *, move: bool = False) -> Node:
    """Sets the line of `at` on all nodes that have none yet, or with `move` on all nodes, and
    returns the node.
    """
    line = getattr(at, "lineno", 1)
    for part in walk(node):
        if isinstance(part, (ast.expr, ast.stmt, ast.arg, ast.keyword)) and (
            move or not hasattr(part, "lineno")
        ):
            part.lineno = part.end_lineno = line
            part.col_offset = part.end_col_offset = 0
    return node


def statements(text: str, at: ast.AST) -> list[ast.stmt]:
    """Parses statements and sets the line of `at` on all their nodes."""
    return place(ast.parse(text), at, move=True).body


def expression(text: str, at: ast.AST) -> ast.expr:
    """Parses one expression and sets the line of `at` on all its nodes."""
    return place(ast.parse(text, mode="eval"), at, move=True).body


def assign(name: str, value: ast.expr, at: ast.AST) -> ast.Assign:
    """Returns the statement `name = value`, at the line of `at`."""
    return place(ast.Assign([store(name)], value), at)


def walk(nodes: ast.AST | Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Iterates over every node of a tree, or of several trees, roots included: as `ast.walk`, in
    two thirds of its time.
    """
    for root in _roots(nodes):
        waiting = deque((root,))
        while waiting:
            node = waiting.popleft()
            for name in node._fields:
                part = getattr(node, name, None)
                if isinstance(part, ast.AST):
                    waiting.append(part)
                elif part.__class__ is list:
                    waiting.extend([child for child in part if isinstance(child, ast.AST)])
            yield node


def _roots(nodes: ast.AST | Iterable[ast.AST]) -> Iterable[ast.AST]:
    if isinstance(nodes, ast.AST):
        return (nodes,)
    return nodes


# Nodes that are never changed; the parser puts one object of each in all places.
_SHARED = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)


def copied(tree: Node) -> Node:
    """Returns a copy of a tree: as `copy.deepcopy` does, in a quarter of the time."""
    copy = tree.__class__.__new__(tree.__class__)
    fields = vars(copy)
    for name, part in vars(tree).items():
        if part.__class__ is list:
            part = [copied(node) if isinstance(node, ast.AST) else node for node in part]  # noqa: PLW2901
        elif isinstance(part, ast.AST) and not isinstance(part, _SHARED):
            part = copied(part)  # noqa: PLW2901
        fields[name] = part
    return copy


def all_copied(trees: Iterable[Node]) -> list[Node]:
    """Returns copies of several trees."""
    return [*map(copied, trees)]


def nodes_of(kind: type[Node], nodes: ast.AST | Iterable[ast.AST]) -> Iterator[Node]:
    """Iterates as `walk` does, over the nodes of a class."""
    for node in walk(nodes):
        if isinstance(node, kind):
            yield node


def walk_statements(nodes: ast.AST | Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Iterates as `walk` does, but over no expression: a tree has ten times as many of them as
    statements.
    """
    waiting = [*_roots(nodes)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.expr):
            continue
        yield node
        if not isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr)):
            waiting += ast.iter_child_nodes(node)


def param_names(function: ast.FunctionDef | ast.Lambda) -> set[str]:
    """Returns the names of all parameters of a function."""
    return {arg.arg for arg in nodes_of(ast.arg, function.args)}


def count_stores(nodes: ast.AST | Iterable[ast.AST]) -> Counter[str]:
    """Counts the assignments of each name in the trees."""
    return Counter(node.id for node in nodes_of(ast.Name, nodes) if isinstance(node.ctx, ast.Store))


def assigned_names(nodes: ast.AST | Iterable[ast.AST]) -> set[str]:
    """Returns the names assigned anywhere in the trees."""
    return set(count_stores(nodes))


def read_names(nodes: ast.AST | Iterable[ast.AST]) -> set[str]:
    """Returns the names read anywhere in the trees, targets of augmented assignments included."""
    names: set[str] = set()
    for node in walk(nodes):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.AugAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


def count_each(nodes: ast.AST | Iterable[ast.AST]) -> Counter[str]:
    """Counts the occurrences of all names, read or assigned."""
    return Counter(node.id for node in nodes_of(ast.Name, nodes))


def count_names(nodes: ast.AST | Iterable[ast.AST], name: str) -> int:
    """Counts the occurrences of a name, read or assigned."""
    return count_each(nodes)[name]


def rename(nodes: ast.AST | Iterable[ast.AST], names: Mapping[str, str]) -> None:
    """Gives variables and parameters new names, in place."""
    for node in walk(nodes):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
        elif isinstance(node, ast.arg):
            node.arg = names.get(node.arg, node.arg)


def has_starred(parts: Iterable[ast.expr]) -> bool:
    """Returns whether one of the parts is a `*parts`."""
    return any(isinstance(part, ast.Starred) for part in parts)


def has_return(nodes: ast.AST | Iterable[ast.AST]) -> bool:
    """Returns whether the trees contain a `return`."""
    return any(isinstance(node, ast.Return) for node in walk_statements(nodes))


def loop_variable(loop: ast.For) -> str:
    """Returns the variable of a loop `for name in range(...)`."""
    return cast(ast.Name, loop.target).id


def own_exits(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the `break` and `continue` statements of the loop with this body, without those of
    nested loops.
    """
    for statement in body:
        if isinstance(statement, (ast.Break, ast.Continue)):
            yield statement
        elif isinstance(statement, ast.If):
            yield from own_exits(statement.body)
            yield from own_exits(statement.orelse)


def range_arguments(statement: ast.stmt) -> list[ast.expr] | None:
    """Returns start, stop and step of `for name in range(...)`; None for any other statement."""
    match statement:
        case ast.For(
            target=ast.Name(),
            iter=ast.Call(func=ast.Name(id="range"), args=args, keywords=[]) as loop,
        ):
            start, step = place(ast.Constant(0), loop), place(ast.Constant(1), loop)
            return {1: [start, *args, step], 2: [*args, step], 3: args}.get(len(args))
    return None


def unparse(body: Sequence[ast.stmt]) -> str:
    """Returns the statements as Python source."""
    return ast.unparse(ast.fix_missing_locations(ast.Module(list(body), [])))


def call_name(node: ast.expr) -> str | None:
    """Returns the name of the called function if the expression is a call of a plain name, else
    None.
    """
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name
    return None
