"""The body of a sequence as its source shows it, and the values from outside that it uses.

A body runs once, so two mistakes stay silent: an assignment to a parameter at its end, which was meant for the next iteration,
and a global that is rebound between calls. The first is refused, and the second makes another sequence.
"""

import ast
import itertools
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any, final

from synknumba._call.definition import Definition, read_function
from synknumba._errors import ArgumentError
from synknumba._host.data import Data
from synknumba._variables.variable import Variable
from synknumba._world.code import is_the_scripts, names_in

VERSIONS_KEPT = 64  # sets of values from outside that are told apart
_MISSING = object()


def check_assignments(name: str, function: Callable[..., Any]) -> None:
    """Raises `ArgumentError` for an assignment to parameters that nothing reads: the next iteration has the arguments again."""
    definition = read_function(function)
    if definition is None:
        return
    parameters = {*definition.parameters}
    for statement in map(_plain, definition.tree.body):  # those of the outermost level, which run once an iteration
        bound = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        if not isinstance(statement, ast.Assign | ast.AugAssign) or not bound or not bound <= parameters:
            continue
        calls = any(isinstance(node, ast.Call) for node in ast.walk(statement.value))  # as in v = synk.all_reduce(v, "sum")
        clears = isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        if calls or clears or _are_read(bound, definition, statement):
            continue
        where = f"{function.__code__.co_filename}:{statement.lineno}"
        raise ArgumentError(
            f"{name} ({where}): {_shown(statement)} has no effect: it changes names until the end of the body, and each "
            f"iteration begins with the arguments again. {_way_out(statement)}"
        )


def _plain(statement: ast.stmt) -> ast.stmt:
    """Returns `(u := v)` as the assignment that it is, and other statements unchanged."""
    match statement:
        case ast.Expr(value=ast.NamedExpr(target=target, value=value)):
            return ast.copy_location(ast.Assign([target], value), statement)
    return statement


def _are_read(bound: set[str], definition: Definition, statement: ast.stmt) -> bool:
    """Returns whether something may read one of these names after a statement."""
    end = statement.end_lineno or statement.lineno, statement.end_col_offset or 0
    own = {id(node) for node in definition.own}
    used = [node for node in definition.names if node.id in bound and not isinstance(node.ctx, ast.Store)]
    return any((node.lineno, node.col_offset) >= end or id(node) not in own for node in used)


def _shown(statement: ast.stmt) -> str:
    match statement:
        case ast.Assign(targets=[target], value=ast.Tuple() as value):  # without parentheses
            return f"{ast.unparse(target).strip('()')} = {ast.unparse(value).strip('()')}"
    return ast.unparse(statement)


def _way_out(statement: ast.Assign | ast.AugAssign) -> str:
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if all(
            isinstance(one, ast.Name) for one in (*targets, *values)
        ) and {ast.unparse(one) for one in targets} == {ast.unparse(one) for one in values}:
            names = [ast.unparse(one) for one in targets]
            swaps = "; ".join(f"synk.swap({one}, {other})" for one, other in itertools.pairwise(names))
            return f"To exchange the memory of variables, write {swaps}"
        case ast.Assign(targets=[ast.Name(id=target)], value=ast.Name(id=source)):
            return (
                f"To exchange the memory of variables, write synk.swap({target}, {source}); to copy, write a kernel; for a "
                f"number, write synk.carry({target}, {source})"
            )
        case ast.Assign(targets=[ast.Name(id=target)], value=value):
            return f"For the next iteration, write synk.carry({target}, {ast.unparse(value)}) for a number"
        case ast.AugAssign(target=ast.Name(id=target), op=operation, value=value):
            computed = ast.unparse(ast.BinOp(ast.Name(target), operation, value))
            return f"For the next iteration, write synk.carry({target}, {computed}) for a number"
    return "Write synk.carry(n, value) for the value of a number in the next iteration"


@final
class OuterValues:
    """The globals, and the variables of closures, that a body and the functions that it calls use.

    Args:
        body: the function.
        inside: returns the body of a sequence; None for any other object.
    """

    def __init__(self, body: Callable[..., Any], inside: Callable[[Any], Any]) -> None:
        self._body, self._inside = body, inside
        self._names: list[tuple[dict[str, Any], str, Any]] = []  # with the value, or a weak reference to a variable or data
        self._cells: list[tuple[Any, Any]] = []
        self._codes: list[tuple[FunctionType, CodeType]] = []  # of the body and the functions
        self._versions: dict[Any, tuple[int, list[Any]]] = {}  # with values whose ids are in the key
        self._numbers = itertools.count()
        self._version = -1

    def version(self) -> int:
        """Returns a number that is the same for the same values, told apart like arguments; it may be new for old ones."""
        for names, name, value in self._names:
            now = names.get(name, _MISSING)
            if now is not value and not (type(value) is weakref.ref and value() is now):
                return self._renew()
        for function, code in self._codes:
            if function.__code__ is not code:  # changed in place, as %autoreload does
                return self._renew()
        for cell, value in self._cells:
            now = _contents(cell)
            if now is not value and not (type(value) is weakref.ref and value() is now):
                return self._renew()
        return self._version if self._version >= 0 else self._renew()

    def _renew(self) -> int:
        """Finds the values anew."""
        self._names, self._cells, self._codes = [], [], []
        key: list[Any] = []
        kept: list[Any] = []
        waiting, seen = [self._body], {id(self._body)}
        while waiting:
            one = waiting.pop()
            if not isinstance(one, FunctionType) or not is_the_scripts(one.__code__.co_filename):
                continue
            key.append(one.__code__)
            self._codes.append((one, one.__code__))
            for value in self._used_by(one):
                key.append(_key(value, kept))
                inner = self._inside(value) or value
                if id(inner) not in seen:
                    seen.add(id(inner))
                    waiting.append(inner)
        if len(self._versions) > VERSIONS_KEPT:
            self._versions.clear()
        found = self._versions.get(tuple(key))
        if found is None or any(type(one) is weakref.ref and one() is None for one in found[1]):  # ids may be used again
            found = self._versions[tuple(key)] = next(self._numbers), kept
        self._version = found[0]
        return self._version

    def _used_by(self, function: FunctionType) -> list[Any]:
        found: list[Any] = []
        names = [*dict.fromkeys(names_in(function.__code__))]
        spaces = [function.__globals__]
        spaces += [
            vars(module)
            for module in (function.__globals__.get(name) for name in names)
            if isinstance(module, ModuleType) and is_the_scripts(getattr(module, "__file__", None))
        ]
        for space in spaces:
            for name in names:
                if name in space:
                    found.append(space[name])
                    self._names.append((space, name, _held(space[name])))
        for cell in function.__closure__ or ():
            found.append(_contents(cell))
            self._cells.append((cell, _held(found[-1])))
        return found

    def labels(self) -> list[tuple[str, Any]]:
        """Returns the values by name."""
        self._renew()
        cells = zip(self._body.__code__.co_freevars, self._cells, strict=False) if isinstance(self._body, FunctionType) else ()
        named = [(name, value) for _, name, value in self._names] + [(name, value) for name, (_, value) in cells]
        return [(name, value() if type(value) is weakref.ref else value) for name, value in named]


def _held(value: Any) -> Any:
    """Returns a value, or a weak reference to what has memory on the ranks, which is freed with its last name."""
    return weakref.ref(value) if isinstance(value, Variable | Data) else value


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return _MISSING


def _key(value: Any, kept: list[Any]) -> Any:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return type(value), value
    kept.append(_held(value))
    return id(value)
