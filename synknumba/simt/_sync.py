"""Synchronisation in a kernel's plain code: the statements that one thread cannot run by itself.

A *barrier* is the statement `_k_barrier_block()`, `_k_barrier_warp()` or `_k_barrier_grid()`. A *collective* is an assignment
whose value is computed from a value of every thread, such as a vote or a shuffle: `r = _k_collective_shfl_down_sync(v, d, m)`.
Both always stand as statements of their own: `_names` has taken them out of the expressions they stood in.
"""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from synknumba.simt._ast import call, call_name, place, store, walk

BarrierKind = Literal["block", "warp", "grid"]

# Variables that hold the arguments of collectives. Other threads read the exchanged ones, so that each thread has its own,
# whatever is assigned to it.
EXCHANGED: Final = "given"
OPERAND: Final = "operand"

_BARRIER: Final = "_k_barrier_"
_COLLECTIVE: Final = "_k_collective_"

BARRIER_KINDS: Final[tuple[BarrierKind, ...]] = ("block", "warp", "grid")

# The operations of `numba.cuda` that stand for a barrier.
BARRIER_PATHS: Final[dict[str, BarrierKind]] = {"syncthreads": "block", "syncwarp": "warp"}


@dataclass(frozen=True, slots=True)
class Operation:
    """A collective operation as CUDA spells it.

    Attributes:
        params: the names of its parameters.
        exchanged: the parameter that is read from other threads; empty if there is none.
        results: how many values it gives.
        is_vote: whether all threads of the block take part and get the same value.
    """

    params: tuple[str, ...]
    exchanged: str = ""
    results: int = 1
    is_vote: bool = False


COLLECTIVES: Final[dict[str, Operation]] = {
    "syncthreads_count": Operation(("predicate",), "predicate", is_vote=True),
    "syncthreads_and": Operation(("predicate",), "predicate", is_vote=True),
    "syncthreads_or": Operation(("predicate",), "predicate", is_vote=True),
    "shfl_sync": Operation(("mask", "value", "src_lane"), "value"),
    "shfl_up_sync": Operation(("mask", "value", "delta"), "value"),
    "shfl_down_sync": Operation(("mask", "value", "delta"), "value"),
    "shfl_xor_sync": Operation(("mask", "value", "lane_mask"), "value"),
    "ballot_sync": Operation(("mask", "predicate"), "predicate"),
    "all_sync": Operation(("mask", "predicate"), "predicate"),
    "any_sync": Operation(("mask", "predicate"), "predicate"),
    "eq_sync": Operation(("mask", "predicate"), "predicate"),
    "match_any_sync": Operation(("mask", "value"), "value"),
    "match_all_sync": Operation(("mask", "value"), "value", results=2),
    "activemask": Operation(()),
}


@dataclass(frozen=True, slots=True)
class Collective:
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
    return place(ast.Expr(call(f"{_BARRIER}{kind}")), at)


def barrier_kind(statement: ast.AST) -> BarrierKind | None:
    """Which threads a statement waits for; None if it is not a barrier."""
    if isinstance(statement, ast.Expr):
        name = call_name(statement.value) or ""
        for kind in BARRIER_KINDS:
            if name == _BARRIER + kind:
                return kind
    return None


def collective_statement(path: str, results: Sequence[str], operands: Sequence[ast.expr], at: ast.AST) -> ast.stmt:
    """The statement of a collective, at the line of `at`."""
    targets: list[ast.expr] = [store(name) for name in results]
    target = targets[0] if len(targets) == 1 else ast.Tuple(targets, ast.Store())
    return place(ast.Assign([target], call(_COLLECTIVE + path, *operands)), at)


def collective_of(statement: ast.AST) -> Collective | None:
    """The collective that a statement is; None for any other statement."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return None
    name = call_name(statement.value) or ""
    if not name.startswith(_COLLECTIVE):
        return None
    path = name.removeprefix(_COLLECTIVE)
    target = statement.targets[0]
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    results = tuple(element.id for element in names if isinstance(element, ast.Name))
    return Collective(path, results, dict(zip(COLLECTIVES[path].params, statement.value.args, strict=True)))


def is_exchanged(name: str) -> bool:
    """Whether other threads read the variable."""
    return name.startswith(f"_k_{EXCHANGED}")


def is_operand(name: str) -> bool:
    """Whether the variable holds an argument of a collective."""
    return is_exchanged(name) or name.startswith(f"_k_{OPERAND}")


def collective_name(path: str) -> str:
    """The name that a collective has in the plain code."""
    return _COLLECTIVE + path


def barrier_name(kind: BarrierKind) -> str:
    """The name that a barrier has in the plain code."""
    return _BARRIER + kind


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
