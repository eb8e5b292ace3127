"""Outputs that a kernel never stores to: every call would return the identity of the op, such as
0.0.

Refused when the kernel is decorated, where its source shows it with certainty: each use of the
output's name reads an element in arithmetic, or asks for a size. A view, another name for it and an
argument of a function may all be stored to. Allowed are kernels without any statement, which stand
for one that is to be written, and kernels that raise, which may be there to check.
"""

import ast
from collections.abc import Callable, Mapping
from typing import Any

from synknumba._call.arguments import Output
from synknumba._errors import ArgumentError
from synknumba._ops.reduction import BY_ROWS
from synknumba._source.kernel_facts import KernelFacts, Kind, Use, facts_of

_ATOMICS = {"sum": "add", "min": "min", "max": "max"}


def check_stores(name: str, function: Callable[..., Any], outputs: Mapping[str, Output]) -> None:
    """Raises `ArgumentError` if a kernel certainly stores to none of the elements of an output."""
    if not outputs:
        return
    facts = facts_of(function)
    if facts is None or _may_store_nothing(facts):
        return
    definition = facts.definition
    for parameter, output in outputs.items():
        if parameter not in definition.parameters or parameter in definition.mentioned:
            continue
        if not all(map(_only_reads, facts.uses.get(parameter, ()))):
            continue
        line = f"{parameter}[0] = …"
        if output.op in _ATOMICS:
            line = (
                f"an atomic operation, as cuda.atomic.{_ATOMICS[output.op]}({parameter}, 0, …), or "
                f"{line}"
            )
        elif output.op in BY_ROWS:
            line = f"{parameter}[i] = …, with i = cuda.grid(1)"
        value = f"the identity of {output.op!r}"
        if output.op is None:
            value = "what it was allocated with"
        raise ArgumentError(
            f"{name} ({function.__code__.co_filename}:{definition.tree.lineno}) never stores to "
            f"its output {parameter}, which would be {value} in every call. Write {line}; or leave "
            f"{parameter} out of outputs= and of the parameters."
        )


def _may_store_nothing(facts: KernelFacts) -> bool:
    nodes = facts.definition.nodes
    if any(isinstance(node, ast.Raise) for node in nodes):
        return True
    return all(isinstance(node, ast.Pass | ast.Expr | ast.Constant) for node in nodes)


def _only_reads(use: Use) -> bool:
    """Returns whether one use of an output certainly stores nothing, and makes no view of it."""
    if use.kind is Kind.ELEMENT:
        return isinstance(use.parent, ast.BinOp | ast.UnaryOp | ast.Compare)
    return use.kind is Kind.SIZE
