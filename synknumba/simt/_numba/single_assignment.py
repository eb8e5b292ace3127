"""Numba's static single assignment, made and removed in a time that grows with the length of a
function.

Numba looks at all statements for each variable that is assigned several times, and when it removes
the form again, for each assignment that it adds. Here it sees the statements with the variable
only, so that it makes the same names in the same order.
"""

from collections import defaultdict
from collections.abc import Set as AbstractSet
from typing import Any

from numba.core import ir, ssa
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.compiler_machinery import register_pass
from numba.core.ir_utils import build_definitions
from numba.core.postproc import PostProcessor
from numba.core.typed_passes import PreLowerStripPhis
from numba.core.untyped_passes import ReconstructSSA

Blocks = dict[int, Any]  # by label


@register_pass(mutates_CFG=False, analysis_only=False)
class SingleAssignment(ReconstructSSA):  # type: ignore[misc]
    """Numba's pass that gives each assignment a variable of its own."""

    _name = "synknumba_single_assignment"

    def run_pass(self, state: Any) -> bool:
        """Changes the function that is compiled."""
        state.func_ir.blocks = with_own_variables(state.func_ir.blocks)
        self._patch_locals(state)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)  # noqa: SLF001  # as Numba's pass does
        PostProcessor(state.func_ir).run(emit_dels=False)
        return True


def with_own_variables(blocks: Blocks) -> Blocks:
    """Returns the blocks with a variable for each assignment, and phi nodes where values meet."""
    graph = compute_cfg_from_blocks(blocks)
    names = ssa._find_defs_violators(blocks, graph)  # noqa: SLF001
    frontiers = ssa._iterated_domfronts(graph)  # noqa: SLF001
    cache = ssa._CacheListVars()  # noqa: SLF001
    places = _places(blocks, names)
    bodies = {label: [*block.body] for label, block in blocks.items()}
    joins: dict[int, list[Any]] = defaultdict(list)
    for name in names:
        at = places[name]
        part = {}
        for label, block in blocks.items():
            part[label] = _block(block, [bodies[label][place] for place in at[label]])
        part, definitions = ssa._fresh_vars(part, name)  # noqa: SLF001
        part = ssa._fix_ssa_vars(part, name, definitions, graph, frontiers, cache)  # noqa: SLF001
        for label, block in part.items():
            phis = len(block.body) - len(at[label])
            joins[label] = block.body[:phis] + joins[label]
            for place, statement in zip(at[label], block.body[phis:], strict=True):
                bodies[label][place] = statement
    return {label: _block(block, joins[label] + bodies[label]) for label, block in blocks.items()}


def _places(blocks: Blocks, names: AbstractSet[str]) -> dict[str, dict[int, list[int]]]:
    """Returns the indices of the statements with each of the variables, by block, and of the
    block's last statement.

    The last is Numba's end of the search for a statement.
    """
    places: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for label, block in blocks.items():
        for place, statement in enumerate(block.body[:-1]):
            for name in {variable.name for variable in statement.list_vars()} & names:
                places[name][label].append(place)
        for name in names:
            places[name][label].append(len(block.body) - 1)
    return places


def _block(like: Any, body: list[Any]) -> Any:
    block = ir.Block(scope=like.scope, loc=like.loc)
    block.body = body
    return block


@register_pass(mutates_CFG=False, analysis_only=False)
class NoPhiNodes(PreLowerStripPhis):  # type: ignore[misc]
    """Numba's pass that puts assignments, at the ends of the blocks before, in the place of phi
    nodes.
    """

    _name = "synknumba_no_phi_nodes"

    def _strip_phi_nodes(self, func_ir: Any) -> Any:
        exported = defaultdict(list)
        bodies: dict[int, list[Any]] = {}
        for label, block in func_ir.blocks.items():
            bodies[label] = []
            for statement in block.body:
                match statement:
                    case ir.Assign(value=ir.Expr(op="phi") as phi):
                        incoming = zip(phi.incoming_blocks, phi.incoming_values, strict=True)
                        for origin, value in incoming:
                            exported[origin].append((statement.target, value))
                    case _:
                        bodies[label].append(statement)
        for label, pairs in exported.items():
            _export(bodies[label], pairs, func_ir.loc)
        func_ir.blocks = {
            label: _block(block, bodies[label]) for label, block in func_ir.blocks.items()
        }
        return func_ir


def _export(body: list[Any], pairs: list[tuple[Any, Any]], start: Any) -> None:
    """Assigns each value to the target of its phi node: behind the value's last assignment in
    the block, else at the top.
    """
    names = []
    for statement in body:
        name = None
        if isinstance(statement, ir.Assign):
            name = statement.target.name
        names.append(name)
    for target, value in pairs:
        behind = 0
        if value is ir.UNDEFINED:
            value = ir.Expr.null(loc=start)  # noqa: PLW2901
        elif value.name in names:
            behind = len(names) - names[::-1].index(value.name)
        body.insert(behind, ir.Assign(target=target, value=value, loc=value.loc))
        names.insert(behind, target.name)
