"""The body of a sequence as its source shows it, and the generators that it makes.

A body runs once, so these mistakes would stay silent, and are refused: an assignment to a parameter
at its end, or before what the body returns, which was meant for the next iteration; an assignment
to what outlives the body; and random numbers. Values from outside that change between calls make
another sequence: `outer_values.py`.
"""

import ast
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

from synknumba._errors import ArgumentError
from synknumba._source.definition import Definition, read_function

_MAKERS = frozenset({"default_rng", "RandomState", "Random", "SystemRandom"})  # of generators
_COLLECTIVES = {"all_reduce", "broadcast", "exchange", "reduce"}  # they return what they are given
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
    """Refuses an assignment to parameters that no call of the iteration reads, but the last ones
    for results: the next iteration has the arguments again.
    """
    for statement, skipped in _once(definition.tree.body):
        match statement:
            case (
                ast.Assign(targets=[target], value=value)
                | ast.Expr(value=ast.NamedExpr(target=target, value=value))
            ):
                text = f"{_unparsed(target)} = {_unparsed(value)}"
            case ast.AugAssign(target=target, op=operation, value=value):
                text = ast.unparse(statement)
                value = ast.BinOp(target, operation, value)
            case _:
                continue
        bound = set()
        for node in ast.walk(target):
            match node:
                case ast.Name(id=name, ctx=ast.Store()):
                    bound.add(name)
        if isinstance(value, ast.Constant) or _is_collective(value):
            continue
        if not bound or not bound <= {*definition.parameters}:
            continue
        later = _Later(definition, statement, skipped, bound)
        if later.is_used:
            continue
        effect, other = "has no effect: it", ""
        if later.is_returned:
            if not (later.is_read_before(statement) or later.is_own_value(value)):
                continue
            effect = "is for what the body returns only: it"
            other = "; for this iteration alone, assign to a name that is no parameter"
        raise ArgumentError(
            f"{place(statement)}: {text} {effect} changes names until the end of the "
            "body, and each iteration begins with the arguments again. "
            f"{_way_out(_elements(target), _elements(value))}{other}"
        )


def _is_collective(node: ast.AST) -> bool:
    """Returns whether a node is a call of a collective, as in `v = synk.all_reduce(v, "sum")`."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in _COLLECTIVES
    return False


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


@final
class _Later:
    """What follows an assignment to parameters, and reads the new values.

    Args:
        definition: the body's.
        statement: the assignment.
        skipped: statements that do not run then.
        bound: the parameters.

    Attributes:
        is_used: whether a call may read them, other than one whose result is only returned.
        is_returned: whether the body returns them, or what is made of them.
        is_passed: whether a call has them for that.
    """

    def __init__(
        self,
        definition: Definition,
        statement: ast.stmt,
        skipped: Iterable[ast.stmt],
        bound: set[str],
    ) -> None:
        self._definition, self._bound = definition, bound
        self.is_used = self.is_returned = self.is_passed = False
        end = statement.end_lineno or statement.lineno, statement.end_col_offset or 0
        unused = {id(node) for branch in skipped for node in ast.walk(branch)}
        own, names = {id(node) for node in definition.own}, set(bound)  # and what is made of them
        for node in sorted(definition.names, key=_position):
            if node.id not in names or isinstance(node.ctx, ast.Store) or id(node) in unused:
                continue
            if id(node) not in own:
                self.is_used |= node.id in bound
            elif _position(node) >= end:
                self._read(node, names)

    def _read(self, node: ast.Name, names: set[str]) -> None:
        """Notes a read of one of the names, and those that get a value of it."""
        for ancestor in self._definition.ancestors(node):
            match ancestor:
                case ast.Call():
                    self.is_passed = True
                case ast.Return():
                    self.is_returned = True
                    return
                case ast.Assign(targets=targets):
                    stores = [each for target in targets for each in ast.walk(target)]
                    names.update(each.id for each in stores if isinstance(each, ast.Name))
                    return
                case ast.Expr(value=value) if _is_collective(value):
                    return
                case ast.stmt():
                    self.is_used = True
                    return

    def is_read_before(self, statement: ast.stmt) -> bool:
        """Returns whether the next iteration reads the arguments before the assignment."""
        start = statement.lineno, statement.col_offset
        return any(
            node.id in self._bound and _position(node) < start for node in self._definition.names
        )

    def is_own_value(self, value: ast.expr) -> bool:
        """Returns whether a value is made of the one before, and returned as it is, as a counter
        is; a call may take half the argument.
        """
        reads = [node for node in ast.walk(value) if isinstance(node, ast.Name)]
        return not self.is_passed and any(node.id in self._bound for node in reads)


def _position(node: ast.Name) -> tuple[int, int]:
    return node.lineno, node.col_offset


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
