"""Collectives: where the threads of a block exchange values, one loop collects and one returns
them.
"""

import ast

from synknumba.simt._analysis.team import BLOCKS, THREADS
from synknumba.simt._emit.region import Active, Regions
from synknumba.simt._lower.sync import CollectiveStatement
from synknumba.simt._source.syntax import (
    load,
    place,
    read_names,
    statements,
    store,
)

# Boolean array, one element per thread: whether it takes part in the collective.
ACTIVE = "_k_active"


def collect(
    collective: CollectiveStatement, regions: Regions, active: Active, at: ast.stmt
) -> list[ast.stmt]:
    """Emits a collective."""
    code, part = _take_part(regions, active, at)
    arguments = [_argument(node, regions) for node in collective.operands.values()]
    sizes = [load(THREADS), load(BLOCKS) if regions.team.grid else ast.Constant(1)]
    call_name = f"_k_all_{collective.path}"
    if collective.operation.is_vote and not regions.team.grid:
        name = collective.results[0]
        regions.slots.add(name)
        regions.assigned_before.add(name)
        value = ast.Call(load(call_name), [*arguments, part, *sizes], [])
        return [*code, place(ast.Assign([store(f"{name}__u")], value), at)]
    regions.slots |= set(collective.results)
    results: list[ast.expr] = [load(f"{name}__s") for name in collective.results]
    suffix = "_each" if collective.operation.is_vote else _padded(collective, regions, part)
    call = ast.Call(load(call_name + suffix), [*results, *arguments, part, *sizes], [])
    return [*code, place(ast.Expr(call), at)]


def _padded(collective: CollectiveStatement, regions: Regions, part: ast.expr) -> str:
    """Returns "_padded" for a shuffle by all threads at a uniform distance, which reads a slot
    array with margins; else "".
    """
    *_, value, distance = [None, None, *collective.operands.values()]
    plain = isinstance(part, ast.Constant) and not regions.team.grid
    if (
        not plain
        or not collective.path.startswith("shfl_")
        or not isinstance(value, ast.Name)
        or distance is None
    ):
        return ""
    if read_names(distance) & regions.analysis.varying:
        return ""
    regions.padded.add(value.id)
    return "_padded"


def _argument(node: ast.expr, regions: Regions) -> ast.expr:
    """Returns an operand: the slot array of a varying variable, or a uniform value."""
    names = read_names(node)
    if isinstance(node, ast.Name) and names & regions.analysis.varying:
        regions.slots.add(node.id)
        return load(f"{node.id}__s")
    return regions.block_value(node)


def _take_part(regions: Regions, active: Active, at: ast.stmt) -> tuple[list[ast.stmt], ast.expr]:
    """Returns code that marks the threads that take part, and the array of marks, or the constant
    None if all take part.
    """
    if regions.takes_all(active):
        return [], ast.Constant(None)
    team = regions.team
    clear = statements(f"for _k_t in range({team.size}):\n    {ACTIVE}[_k_t] = False", at)
    mark = regions.region(statements(f"{ACTIVE}[{team.index}] = True", at), active)
    return clear + mark, load(ACTIVE)
