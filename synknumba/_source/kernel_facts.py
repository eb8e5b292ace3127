"""What a function's source shows of its names, found in one pass over its definition.

    y[i] = x[i] + 1            y is stored to at i, an element of x is read at i
    cuda.atomic.add(t, 0, v)   t is combined at 0 by "add"
    t[i][1] = v                t is stored to at i, where another element may stay
    n = len(x)                 of x the size is read; n is bound to len(x)
    i, j = cuda.grid(2)        i is bound to cuda.grid(2)[0], and j to cuda.grid(2)[1]
    fill(x); row = x[0]        x escapes: whoever has it may write to it; an element of x, or a view

Every check of source is a question about these uses and bindings.
"""

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property, lru_cache
from types import CodeType
from typing import Any, TypeAlias, final

from synknumba._source.definition import MAX_READ, Definition, read_code, read_function

Bound: TypeAlias = ast.stmt | ast.NamedExpr
Position: TypeAlias = tuple[int, int]  # line and column

_SIZES = {"shape", "size", "ndim", "itemsize", "nbytes", "strides", "dtype"}


class Kind(Enum):
    """What happens to an array where its name occurs."""

    BOUND = auto()  # none of it: the name gets another value, or is deleted
    STORED = auto()
    UPDATED = auto()  # by `+=` and the like, in place
    ATOMIC = auto()  # by an operation of `cuda.atomic`
    ELEMENT = auto()  # brackets make an element, or a view
    SIZE = auto()
    ESCAPES = auto()  # it gets another name, is passed on, or is used as a whole


_OF_A_NAME = {ast.Load: Kind.ESCAPES, ast.Store: Kind.BOUND, ast.Del: Kind.BOUND}
_BEHIND_BRACKETS = {ast.Load: Kind.ELEMENT, ast.Store: Kind.STORED, ast.Del: Kind.ESCAPES}
_WRITES = {Kind.STORED, Kind.UPDATED, Kind.ATOMIC}


@final
@dataclass(frozen=True, slots=True)
class Use:
    """An occurrence of a name.

    Attributes:
        name: the name.
        kind: what happens to the array.
        brackets: contents of the brackets behind the name: x[i, j][k] has (i, j) and k.
        node: the name with the brackets.
        parent: what contains this; None if nothing does.
        is_own: whether it is outside nested functions.
    """

    name: ast.Name
    kind: Kind
    brackets: tuple[ast.expr, ...]
    node: ast.expr
    parent: ast.AST | None
    is_own: bool

    @property
    def is_write(self) -> bool:
        """Whether elements are written."""
        return self.kind in _WRITES

    @property
    def op(self) -> str | None:
        """Name of the atomic operation, such as "add"."""
        if self.kind is not Kind.ATOMIC:
            return None
        return _atomic_operation(self.parent)

    @property
    def index(self) -> ast.expr | None:
        """The first index: in brackets, or the argument of an atomic operation."""
        indices = list(self.brackets)
        match self.kind, self.parent:
            case Kind.ATOMIC, ast.Call(args=[_, *indices]):
                pass
        return next(iter(indices), None)

    @property
    def element(self) -> str:
        """The text of the name with its first index."""
        if self.index is None:
            return self.name.id
        return ast.unparse(ast.Subscript(self.name, self.index))

    @property
    def read_at(self) -> tuple[ast.expr, ...]:
        """Contents of the brackets that read: in `t[i][1] = v` and `t[i].a = v` those of t[i]."""
        if self.is_write and not isinstance(self.parent, ast.Attribute):
            return self.brackets[:-1]
        return self.brackets

    @property
    def line(self) -> int:
        """Line in the file."""
        match self.kind, self.parent:
            case Kind.ATOMIC, ast.Call(lineno=line):
                return line
        return self.name.lineno

    @property
    def position(self) -> Position:
        """Where the name stands."""
        return self.name.lineno, self.name.col_offset


@final
@dataclass(frozen=True, slots=True)
class Binding:
    """A name that gets a value: by an assignment, `:=`, or as the target of a `for` or `with`.

    Attributes:
        name: the name.
        value: an expression with this value, or with any of the values in a loop over a range; None
            if there is none.
        node: the statement, or the expression with `:=`.
        source: what the value is taken from.
        names: the names that are bound together with it, itself among them.
    """

    name: ast.Name
    value: ast.expr | None
    node: Bound
    source: ast.expr
    names: tuple[ast.Name, ...]

    @property
    def end(self) -> Position:
        """Where the name has its value."""
        last: Any = self.node
        if isinstance(last, ast.For):
            last = self.source
        elif isinstance(last, ast.With):
            last = self.names[-1]
        return last.end_lineno, last.end_col_offset

    @property
    def exchanges(self) -> bool:
        """Whether names are exchanged, as in `u, v = v, u`."""
        return _exchanges(self.node)


@final
class KernelFacts:
    """How a function uses its names.

    Attributes:
        definition: the source.
        uses: occurrences of each name.
        bindings: of names, outside nested functions.
    """

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        own_nodes = {id(node) for node in definition.own}
        self.uses: dict[str, list[Use]] = {}
        for name in definition.names:
            use = _use(name, definition.parents, is_own=id(name) in own_nodes)
            self.uses.setdefault(name.id, []).append(use)
        self.bindings: list[Binding] = []
        for node in definition.nodes:
            if id(node) in own_nodes:
                self.bindings += _bindings(node)

    @cached_property
    def values(self) -> dict[str, list[ast.expr | None]]:
        """The values that each local name gets; None for those that no expression has."""
        values: dict[str, list[ast.expr | None]] = {}
        for binding in self.bindings:
            values.setdefault(binding.name.id, []).append(binding.value)
        bound = {id(binding.name) for binding in self.bindings}
        for name in self.definition.names:
            if not isinstance(name.ctx, ast.Load) and id(name) not in bound:
                values.setdefault(name.id, []).append(None)
        for mentioned in self.definition.mentioned:
            values.setdefault(mentioned, []).append(None)
        return values

    @cached_property
    def local(self) -> frozenset[str]:
        """Parameters, and the names that get values."""
        return frozenset({*self.definition.parameters, *self.values})

    def element_uses(self) -> list[Use]:
        """Returns where elements of parameters are read or written, in the order of the source.

        Not of a parameter that the function binds: its name may stand for something else.
        """
        uses: list[Use] = []
        for parameter in self.definition.parameters:
            uses += _element_uses(self.uses.get(parameter, ()))
        return sorted(uses, key=lambda use: use.position)

    def outermost(self, node: ast.AST) -> ast.AST:
        """Returns the statement of the function's outermost level that has a node in it."""
        for ancestor in self.definition.ancestors(node):
            node = ancestor
        return node


def facts_of(function: Callable[..., Any]) -> KernelFacts | None:
    """Returns the facts of a function, of one with `__wrapped__` those of the wrapped one; None
    without source.
    """
    return _facts(read_function(function))


def facts_of_code(code: CodeType) -> KernelFacts | None:
    """Returns the facts of the source of code; None without source, or if the name shows that it
    has changed.
    """
    return _facts(read_code(code))


@lru_cache(MAX_READ)
def _facts(definition: Definition | None) -> KernelFacts | None:
    return None if definition is None else KernelFacts(definition)


def parts_of(index: ast.expr) -> list[ast.expr]:
    """Returns the indices inside a pair of brackets."""
    if isinstance(index, ast.Tuple):
        return index.elts
    return [index]


def _element_uses(uses: Iterable[Use]) -> list[Use]:
    """Returns the uses of elements outside nested functions; none of a name that is bound there."""
    elements = []
    for use in uses:
        if not use.is_own:
            continue
        if use.kind is Kind.BOUND:
            return []
        if use.is_write or use.kind is Kind.ELEMENT:
            elements.append(use)
    return elements


def _use(name: ast.Name, parents: dict[int, ast.AST], *, is_own: bool) -> Use:
    node: ast.expr = name
    brackets = []
    while isinstance(parent := parents.get(id(node)), ast.Subscript) and parent.value is node:
        brackets.append(parent.slice)
        node = parent
    return Use(name, _kind(node, parent), tuple(brackets), node, parent, is_own)


def _kind(node: Any, parent: ast.AST | None) -> Kind:
    is_name = isinstance(node, ast.Name)
    match parent:
        case ast.AugAssign(target=target) if target is node:
            return Kind.UPDATED
        case ast.Attribute(ctx=ast.Store()) if not is_name:
            return Kind.STORED  # a field of a record
        case ast.Attribute(attr=attribute, ctx=ast.Load()) if attribute in _SIZES:
            return Kind.SIZE
        case ast.Call(func=ast.Name(id="len"), args=[argument], keywords=[]) if argument is node:
            return Kind.SIZE
        case ast.Call(args=[first, *_]) if first is node and is_name and _atomic_operation(parent):
            return Kind.ATOMIC
    context = type(node.ctx)
    if is_name:
        return _OF_A_NAME[context]
    return _BEHIND_BRACKETS[context]


def _atomic_operation(node: ast.AST | None) -> str | None:
    """Returns "add" for `cuda.atomic.add(…)` or `atomic.add(…)`; None for other nodes."""
    match node:
        case ast.Call(
            func=ast.Attribute(
                value=ast.Attribute(attr="atomic") | ast.Name(id="atomic"), attr=operation
            )
        ):
            return operation
    return None


def _bindings(node: ast.AST) -> Iterator[Binding]:
    """Yields the bindings of a statement, or of an expression with `:=`, but not of what is
    inside.
    """
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if (
            _are_pairs(targets, values) and not _exchanges(node)
        ):
            for target, value in zip(targets, values, strict=True):
                yield from _bound(node, [target], value)
        case ast.Assign(targets=targets, value=value):
            yield from _bound(node, targets, value)
        case (
            ast.AnnAssign(target=target, value=ast.expr() as value)
            | ast.NamedExpr(target=target, value=value)
        ):
            yield from _bound(node, [target], value)
        case ast.AugAssign(target=ast.Name(id=name) as target, op=operator, value=value):
            total = ast.BinOp(ast.Name(name, ast.Load()), operator, value)
            yield Binding(target, total, node, value, (target,))
        case ast.For(target=target, iter=source):
            yield from _bound(node, [target], source)
        case ast.With(items=items):
            for item in items:
                if item.optional_vars is not None:
                    yield from _bound(node, [item.optional_vars], item.context_expr)


def _bound(node: Bound, targets: list[ast.expr], source: ast.expr) -> Iterator[Binding]:
    match node:
        case ast.For(target=ast.Name(), iter=ast.Call(func=ast.Name(id="range"))):
            value: ast.expr | None = source
        case ast.For() | ast.With():
            value = None
        case _:
            value = source
    pairs: list[tuple[ast.Name, ast.expr | None]] = []
    for target in targets:
        pairs += _paired(target, value)
    names = tuple(name for name, _ in pairs)
    for name, expression in pairs:
        yield Binding(name, expression, node, source, names)


def _paired(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[ast.Name, ast.expr | None]]:
    """Yields the bare names of a target, each with an expression of its value."""
    match target:
        case ast.Name():
            yield target, value
        case ast.Starred(value=starred):
            yield from _paired(starred, None)
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            for number, element in enumerate(targets):
                yield from _paired(element, _item(value, number, targets))


def _item(value: ast.expr | None, number: int, targets: list[ast.expr]) -> ast.expr | None:
    if isinstance(value, ast.Tuple):
        if not _are_pairs(targets, value.elts):
            return None
        return value.elts[number]
    if value is None or _has_starred(targets):
        return None
    return ast.Subscript(value, ast.Constant(number), ast.Load())


def _are_pairs(targets: list[ast.expr], values: list[ast.expr]) -> bool:
    return len(targets) == len(values) and not _has_starred([*targets, *values])


def _has_starred(nodes: list[ast.expr]) -> bool:
    return any(isinstance(node, ast.Starred) for node in nodes)


def _exchanges(node: ast.AST) -> bool:
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            new, old = _names(targets), _names(values)
            if new == old or sorted(new) != sorted(old):
                return False
            return len(new) == len(targets) == len(values) == len({*new})
    return False


def _names(nodes: list[ast.expr]) -> list[str]:
    return [node.id for node in nodes if isinstance(node, ast.Name)]
