"""Barriers and collectives in the code of one thread: building and recognising their statements.

A *barrier* is the statement `_k_barrier_block()`, `_k_barrier_warp()` or `_k_barrier_grid()`. A
*collective* is an assignment whose value depends on a value of every thread, such as a vote or a
shuffle: `r = _k_collective_shfl_down_sync(m, v, d)`. Each is a statement of its own: `lowering`
hoists collectives out of expressions, as assignments of the arguments, the collective itself, and a
variable in place of the call.
"""

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from synknumba.simt._library.synchronisation import (
    BARRIER_KINDS,
    BARRIER_PREFIX,
    COLLECTIVE_PREFIX,
    COLLECTIVES,
    BarrierKind,
    Operation,
)
from synknumba.simt._source.syntax import (
    assign,
    call,
    call_name,
    load,
    one_or_tuple,
    parts_of,
    place,
    read_names,
    store,
    walk_statements,
)
from synknumba.simt._source.written import Source

# Prefixes of the variables that hold arguments of collectives. Other threads read an exchanged
# argument, so it has a slot per thread even if its value is the same in all threads.
EXCHANGED: Final = "given"
OPERAND: Final = "operand"

_KINDS: Final[dict[str | None, BarrierKind]] = {
    f"{BARRIER_PREFIX}{kind}": kind for kind in BARRIER_KINDS
}


@dataclass(frozen=True, slots=True)
class CollectiveStatement:
    """A collective, parsed from its statement."""

    path: str  # below `numba.cuda`, such as "shfl_sync"
    results: tuple[str, ...]  # variables assigned
    operands: dict[str, ast.expr]  # arguments by parameter name

    @property
    def operation(self) -> Operation:
        """Its parameters and results, from the table of collectives."""
        return COLLECTIVES[self.path]


def barrier(kind: BarrierKind, at: ast.AST) -> ast.stmt:
    """Returns a barrier statement, at the line of `at`."""
    return place(ast.Expr(call(f"{BARRIER_PREFIX}{kind}")), at)


def barrier_kind(statement: ast.AST) -> BarrierKind | None:
    """Returns the kind of a barrier statement; None for any other node."""
    if not isinstance(statement, ast.Expr):
        return None
    return _KINDS.get(call_name(statement.value))


def collective_statement(
    path: str, results: Sequence[str], operands: Sequence[ast.expr], at: ast.AST
) -> ast.stmt:
    """Returns the statement of a collective, at the line of `at`."""
    target = one_or_tuple([store(name) for name in results], ast.Store())
    return place(ast.Assign([target], call(COLLECTIVE_PREFIX + path, *operands)), at)


def collective_of(statement: ast.AST) -> CollectiveStatement | None:
    """Parses the statement of a collective; returns None for any other node."""
    match statement:
        case ast.Assign([target, *_], ast.Call(ast.Name(name), args)) if name.startswith(
            COLLECTIVE_PREFIX
        ):
            path = name.removeprefix(COLLECTIVE_PREFIX)
            names = parts_of(target)
            results = tuple(element.id for element in names if isinstance(element, ast.Name))
            return CollectiveStatement(
                path, results, dict(zip(COLLECTIVES[path].params, args, strict=True))
            )
    return None


def is_exchanged(name: str) -> bool:
    """Returns whether the variable holds an argument that other threads read."""
    return name.startswith(f"_k_{EXCHANGED}")


def is_operand(name: str) -> bool:
    """Returns whether the variable holds an argument of a collective."""
    return name.startswith((f"_k_{EXCHANGED}", f"_k_{OPERAND}"))


def synchronises(nodes: ast.AST | Iterable[ast.AST]) -> bool:
    """Returns whether the trees contain a barrier or a collective."""
    return any(barrier_kind(node) or collective_of(node) for node in walk_statements(nodes))


def waits_for(nodes: ast.AST | Iterable[ast.AST], kind: BarrierKind) -> bool:
    """Returns whether the trees contain a barrier of this kind; a vote counts as a block
    barrier.
    """
    return any(_waits(node) == kind for node in walk_statements(nodes))


def _waits(statement: ast.AST) -> BarrierKind | None:
    """Returns the kind of barrier at which a statement waits; None if it does not."""
    collective = collective_of(statement)
    if collective is None:
        return barrier_kind(statement)
    return "block" if collective.operation.is_vote else None


Fresh = Callable[[str], str]  # returns a new variable name that starts with the given word


def arguments_of(node: ast.Call, path: str, source: Source) -> list[ast.expr]:
    """Returns the arguments of a collective in the order of its parameters; each must have one."""
    params = COLLECTIVES[path].params
    args = dict(zip(params, node.args, strict=False))
    args |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    if len(node.args) + len(node.keywords) != len(params) or set(args) != set(params):
        construct = f"cuda.{path}() without exactly the arguments {', '.join(params)}"
        raise source.refusal(node, construct, "pass exactly these")
    return [args[name] for name in params]


def collective_call(
    path: str, values: list[ast.expr], at: ast.Call, fresh: Fresh
) -> tuple[list[ast.stmt], ast.expr]:
    """Returns the statements that replace a call of a collective with these arguments, and the
    expression of its value.
    """
    operation = COLLECTIVES[path]
    before: list[ast.stmt] = []
    operands: list[ast.expr] = []
    for param, value in zip(operation.params, values, strict=True):
        if param == operation.exchanged:
            name = fresh(EXCHANGED)
        elif read_names(value):
            name = fresh(OPERAND)
        else:
            operands.append(value)
            continue
        before.append(assign(name, value, value))
        operands.append(ast.copy_location(load(name), value))
    results = [fresh("got") for _ in range(operation.results)]
    if operation.is_vote:  # one value for the block; each thread copies it to a variable of its own
        count = fresh("vote")
        before += [
            collective_statement(path, [count], operands, at),
            assign(results[0], load(count), at),
        ]
    else:
        before.append(collective_statement(path, results, operands, at))
    return before, place(one_or_tuple([load(name) for name in results], ast.Load()), at)
