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
    blocks: ast.expr = ast.Constant(1)
    if regions.team.grid:
        blocks = load(BLOCKS)
    sizes = [load(THREADS), blocks]
    call_name = f"_k_all_{collective.path}"
    if collective.operation.is_vote and not regions.team.grid:
        name = collective.results[0]
        regions.slots.assign_uniform(name)
        value = ast.Call(load(call_name), [*arguments, part, *sizes], [])
        return [*code, place(ast.Assign([store(f"{name}__u")], value), at)]
    regions.slots.names.update(collective.results)
    results: list[ast.expr] = [load(f"{name}__s") for name in collective.results]
    suffix = "_each" if collective.operation.is_vote else _padded(collective, regions, part)
    call = ast.Call(load(call_name + suffix), [*results, *arguments, part, *sizes], [])
    return [*code, place(ast.Expr(call), at)]


def _padded(collective: CollectiveStatement, regions: Regions, part: ast.expr) -> str:
    """Returns "_padded" for a shuffle by all threads at a uniform distance, which reads a slot
    array with margins; else "".
    """
    match part, collective.path.partition("_"), [*collective.operands.values()]:
        case ast.Constant(), ("shfl", *_), [*_, ast.Name() as value, distance]:
            pass
        case _:
            return ""
    if regions.team.grid or read_names(distance) & regions.analysis.varying:
        return ""
    regions.slots.padded.add(value.id)
    return "_padded"


def _argument(node: ast.expr, regions: Regions) -> ast.expr:
    """Returns an operand: the slot array of a varying variable, or a uniform value."""
    match node:
        case ast.Name(name) if name in regions.analysis.varying:
            regions.slots.names.add(name)
            return load(f"{name}__s")
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
