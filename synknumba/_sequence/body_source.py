"""The body of a sequence as its source shows it, and the generators that it makes.

A body runs once, so these mistakes would stay silent, and are refused: an assignment to a parameter
at its end, which was meant for the next iteration; an assignment to what outlives the body; and
random numbers. Values from outside that change between calls make another sequence:
`outer_values.py`.
"""

import ast
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from synknumba._errors import ArgumentError
from synknumba._source.definition import Definition, read_function

_MAKERS = frozenset({"default_rng", "RandomState", "Random", "SystemRandom"})  # of generators
_GROWING = {"append", "appendleft", "extend", "insert", "setdefault"}  # methods of containers


def check_body(name: str, function: Callable[..., Any]) -> None:
    """Raises `ArgumentError` for what a body does once, while it is recorded, and was meant for
    each iteration.
    """
    definition = read_function(function)
    if definition is None:
        return

    def place(node: ast.AST) -> str:
        return f"{name} ({function.__code__.co_filename}:{getattr(node, 'lineno', 0)})"

    _check_assignments(definition, place)
    _check_stores(definition, place)
    _check_generators(definition, place)


def _check_assignments(definition: Definition, place: Callable[[ast.AST], str]) -> None:
    """Refuses an assignment to parameters that nothing reads: the next iteration has the
    arguments again.
    """
    for statement, skipped in _once(definition.tree.body):
        match statement:
            case (
                ast.Assign(targets=[target], value=value)
                | ast.Expr(value=ast.NamedExpr(target=target, value=value))
            ):
                text = f"{_unparsed(target)} = {_unparsed(value)}"
                clears = isinstance(value, ast.Constant)
            case ast.AugAssign(target=target, op=operation, value=value):
                text, clears = ast.unparse(statement), False
                value = ast.BinOp(target, operation, value)
            case _:
                continue
        bound = set()
        for node in ast.walk(target):
            match node:
                case ast.Name(id=name, ctx=ast.Store()):
                    bound.add(name)
        # as in v = synk.all_reduce(v, "sum")
        calls = any(isinstance(node, ast.Call) for node in ast.walk(value))
        if clears or calls or not bound or not bound <= {*definition.parameters}:
            continue
        if _are_read(bound, definition, statement, skipped):
            continue
        raise ArgumentError(
            f"{place(statement)}: {text} has no effect: it changes names until the end of the "
            "body, and each iteration begins with the arguments again. "
            f"{_way_out(_elements(target), _elements(value))}"
        )


def _once(
    statements: Iterable[ast.stmt], skipped: tuple[ast.stmt, ...] = ()
) -> Iterator[tuple[ast.stmt, tuple[ast.stmt, ...]]]:
    """Yields the statements that run at most once an iteration, outside of loops, and those that
    do not run then.
    """
    for statement in statements:
        yield statement, skipped
        if isinstance(statement, ast.If):
            yield from _once(statement.body, (*skipped, *statement.orelse))
            yield from _once(statement.orelse, skipped)


def _check_stores(definition: Definition, place: Callable[[ast.AST], str]) -> None:
    """Refuses an assignment to what outlives the body, such as `self.t += dt`: it would be made
    once.
    """
    shared = {
        name
        for node in definition.own
        if isinstance(node, ast.Global | ast.Nonlocal)
        for name in node.names
    }
    local = (
        {node.id for node in definition.names if not isinstance(node.ctx, ast.Load)}
        - shared
        - {*definition.parameters}
    )
    for node in definition.own:
        done, root = "assigned", node
        match node:
            case ast.Call(func=ast.Attribute(attr=name) as method) if name in _GROWING:
                done, root = "called", method
            case _ if isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
                continue
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if not isinstance(root, ast.Name):
            continue
        is_local = root.id not in shared if root is node else root.id in local
        if is_local:
            continue
        way_out = (
            "For a number of each iteration write synk.carry, to exchange the memory of variables "
            "synk.swap; return results, which every=1 gives of each iteration, and assign other "
            "things after the call"
        )
        if isinstance(node, ast.Subscript) and root.id in definition.parameters:
            way_out = (
                "Elements of a variable or an array are written on the ranks: call a kernel or a "
                f"function with {root.id}, which writes to them"
            )
        raise ArgumentError(
            f"{place(node)}: {ast.unparse(node)} would be {done} once, while the body is recorded, "
            f"and not in each iteration. {way_out}"
        )


def _check_generators(definition: Definition, place: Callable[[ast.AST], str]) -> None:
    """Refuses a body that makes a random number generator without a seed."""
    for node in ast.walk(definition.tree):
        match node:
            case ast.Call(
                func=ast.Name(id=made) | ast.Attribute(attr=made), args=[], keywords=[]
            ) if made in _MAKERS:
                raise ArgumentError(
                    f"{place(node)}: {ast.unparse(node)} has other numbers each time, and the body "
                    "runs once, so that all iterations and later calls would get the same ones. "
                    "Draw in kernels with synk.random, which takes synk.STEP as an index; or draw "
                    "before the call, and pass the numbers as an argument"
                )


def _are_read(
    bound: set[str], definition: Definition, statement: ast.stmt, skipped: Iterable[ast.stmt]
) -> bool:
    """Returns whether something may read one of these names after a statement, other than what
    is skipped.
    """
    end = statement.end_lineno or statement.lineno, statement.end_col_offset or 0
    in_body = {id(node) for node in definition.own}
    unused = {id(node) for branch in skipped for node in ast.walk(branch)}
    for node in definition.names:
        if node.id not in bound or isinstance(node.ctx, ast.Store) or id(node) in unused:
            continue
        if id(node) not in in_body or (node.lineno, node.col_offset) >= end:
            return True
    return False


def _unparsed(node: ast.expr) -> str:
    return ", ".join(map(ast.unparse, _elements(node)))  # a tuple without parentheses


def _elements(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _way_out(targets: list[ast.expr], values: list[ast.expr]) -> str:
    if all(isinstance(node, ast.Name) for node in (*targets, *values)):
        names = dict.fromkeys(map(ast.unparse, (*targets, *values)))
        swaps = "; ".join(
            f"synk.swap({name}, {following})" for name, following in itertools.pairwise(names)
        )
        exchange = f"To exchange the memory of variables, write {swaps}; to copy, write a kernel. "
    else:
        exchange = ""
    pairs = zip(map(ast.unparse, targets), map(ast.unparse, values), strict=False)
    carried = "; ".join(f"synk.carry({name}, {value})" for name, value in pairs)
    return f"{exchange}For numbers of the next iteration, write {carried}"
