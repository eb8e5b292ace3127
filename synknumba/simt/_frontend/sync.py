"""Synchronisation in a kernel's plain code: the statements that one thread cannot run by itself.

A *barrier* is the statement `_k_barrier_block()`, `_k_barrier_warp()` or `_k_barrier_grid()`. A *collective* is an assignment
whose value is computed from a value of every thread, such as a vote or a shuffle: `r = _k_collective_shfl_down_sync(v, d, m)`.
Both always stand as statements of their own: `_names` has taken them out of the expressions they stood in.

A collective in an expression becomes assignments of its arguments, a statement, and the variable that has its value.
"""

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from synknumba.simt._frontend.source import Source
from synknumba.simt._frontend.syntax import assign, call, call_name, load, place, read_names, store, walk
from synknumba.simt._library.synchronisation import (
    BARRIER_KINDS,
    BARRIER_PREFIX,
    COLLECTIVE_PREFIX,
    COLLECTIVES,
    BarrierKind,
    Operation,
)

# Variables that hold the arguments of collectives. Other threads read the exchanged ones, so that each thread has its own,
# whatever is assigned to it.
EXCHANGED: Final = "given"
OPERAND: Final = "operand"


@dataclass(frozen=True, slots=True)
class CollectiveStatement:
    """A collective as it stands in a kernel.

    Attributes:
        path: which one.
        results: the variables that get its values.
        operands: its arguments, by the names of the parameters.
    """

    path: str
    results: tuple[str, ...]
    operands: dict[str, ast.expr]

    @property
    def operation(self) -> Operation:
        """What kind of collective it is."""
        return COLLECTIVES[self.path]


def barrier(kind: BarrierKind, at: ast.AST) -> ast.stmt:
    """A barrier, at the line of `at`."""
    return place(ast.Expr(call(f"{BARRIER_PREFIX}{kind}")), at)


def barrier_kind(statement: ast.AST) -> BarrierKind | None:
    """Which threads a statement waits for; None if it is not a barrier."""
    if isinstance(statement, ast.Expr):
        name = call_name(statement.value) or ""
        for kind in BARRIER_KINDS:
            if name == BARRIER_PREFIX + kind:
                return kind
    return None


def collective_statement(path: str, results: Sequence[str], operands: Sequence[ast.expr], at: ast.AST) -> ast.stmt:
    """The statement of a collective, at the line of `at`."""
    targets: list[ast.expr] = [store(name) for name in results]
    target = targets[0] if len(targets) == 1 else ast.Tuple(targets, ast.Store())
    return place(ast.Assign([target], call(COLLECTIVE_PREFIX + path, *operands)), at)


def collective_of(statement: ast.AST) -> CollectiveStatement | None:
    """The collective that a statement is; None for any other statement."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return None
    name = call_name(statement.value) or ""
    if not name.startswith(COLLECTIVE_PREFIX):
        return None
    path = name.removeprefix(COLLECTIVE_PREFIX)
    target = statement.targets[0]
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    results = tuple(element.id for element in names if isinstance(element, ast.Name))
    return CollectiveStatement(path, results, dict(zip(COLLECTIVES[path].params, statement.value.args, strict=True)))


def is_exchanged(name: str) -> bool:
    """Whether other threads read the variable."""
    return name.startswith(f"_k_{EXCHANGED}")


def is_operand(name: str) -> bool:
    """Whether the variable holds an argument of a collective."""
    return is_exchanged(name) or name.startswith(f"_k_{OPERAND}")


def synchronises(nodes: ast.AST | Iterable[ast.AST]) -> bool:
    """Whether there is a barrier or a collective anywhere below."""
    return any(barrier_kind(node) or collective_of(node) for node in walk(nodes))


def waits_for(nodes: ast.AST | Iterable[ast.AST], kind: BarrierKind) -> bool:
    """Whether there is a barrier of this kind anywhere below; a vote of the block is one too."""
    for node in walk(nodes):
        found = collective_of(node)
        if barrier_kind(node) == kind or (kind == "block" and found is not None and found.operation.is_vote):
            return True
    return False


Fresh = Callable[[str], str]


def arguments_of(node: ast.Call, path: str, source: Source) -> list[ast.expr]:
    """The arguments of a collective, in the order of its parameters.

    Raises:
        KernelError: they are not as many as it has parameters, or not of their names.
    """
    params = COLLECTIVES[path].params
    given = dict(zip(params, node.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    if len(node.args) + len(node.keywords) != len(params) or set(given) != set(params):
        construct = f"cuda.{path}() without exactly the arguments {', '.join(params)}"
        raise source.refusal(node, construct, "give it these")
    return [given[name] for name in params]


def exchange(path: str, values: list[ast.expr], at: ast.Call, fresh: Fresh) -> tuple[list[ast.stmt], ast.expr]:
    """The statements that a collective stands for, and its value.

    Args:
        path: which collective.
        values: its arguments.
        at: its call.
        fresh: makes a new variable from a word.
    """
    operation = COLLECTIVES[path]
    before: list[ast.stmt] = []
    operands: list[ast.expr] = []
    for param, value in zip(operation.params, values, strict=True):
        exchanged = param == operation.exchanged
        if exchanged or read_names(value):
            name = fresh(EXCHANGED if exchanged else OPERAND)
            before.append(assign(name, value, value))
            operands.append(ast.copy_location(load(name), value))
        else:
            operands.append(value)
    results = [fresh("got") for _ in range(operation.results)]
    if operation.is_vote:  # the same for all threads of the block; each then keeps it as its own
        count = fresh("vote")
        before.append(collective_statement(path, [count], operands, at))
        before.append(assign(results[0], load(count), at))
    else:
        before.append(collective_statement(path, results, operands, at))
    parts: list[ast.expr] = [load(name) for name in results]
    return before, place(parts[0] if len(parts) == 1 else ast.Tuple(parts, ast.Load()), at)
