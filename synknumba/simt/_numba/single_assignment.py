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
    several = ssa._find_defs_violators(blocks, graph)  # noqa: SLF001
    frontiers = ssa._iterated_domfronts(graph)  # noqa: SLF001
    known = ssa._CacheListVars()  # noqa: SLF001
    places = _places(blocks, several)
    bodies = {label: [*block.body] for label, block in blocks.items()}
    joins: dict[int, list[Any]] = {label: [] for label in blocks}
    for name in several:
        at = places[name]
        part = {
            label: _block(block, [bodies[label][place] for place in at[label]])
            for label, block in blocks.items()
        }
        part, definitions = ssa._fresh_vars(part, name)  # noqa: SLF001
        part = ssa._fix_ssa_vars(part, name, definitions, graph, frontiers, known)  # noqa: SLF001
        for label, block in part.items():
            made = len(block.body) - len(at[label])
            joins[label] = block.body[:made] + joins[label]
            for place, statement in zip(at[label], block.body[made:], strict=True):
                bodies[label][place] = statement
    return {label: _block(block, joins[label] + bodies[label]) for label, block in blocks.items()}


def _places(blocks: Blocks, names: AbstractSet[str]) -> dict[str, dict[int, list[int]]]:
    """Returns the indices of the statements with each of the variables, by block, and of the
    block's last statement.

    The last is Numba's end of the search for a statement.
    """
    places: dict[str, dict[int, list[int]]] = {
        name: {label: [] for label in blocks} for name in names
    }
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
                if _is_phi(statement):
                    node = statement.value
                    for origin, value in zip(
                        node.incoming_blocks, node.incoming_values, strict=True
                    ):
                        exported[origin].append((statement.target, value))
                else:
                    bodies[label].append(statement)
        for label, pairs in exported.items():
            _export(bodies[label], pairs, func_ir.loc)
        func_ir.blocks = {
            label: _block(block, bodies[label]) for label, block in func_ir.blocks.items()
        }
        return func_ir


def _is_phi(statement: Any) -> bool:
    return (
        isinstance(statement, ir.Assign)
        and isinstance(statement.value, ir.Expr)
        and statement.value.op == "phi"
    )


def _export(body: list[Any], pairs: list[tuple[Any, Any]], start: Any) -> None:
    """Assigns each value to the target of its phi node: behind the value's last assignment in
    the block, else at the top.
    """
    targets = [
        statement.target.name if isinstance(statement, ir.Assign) else None for statement in body
    ]
    for target, found in pairs:
        value = ir.Expr.null(loc=start) if found is ir.UNDEFINED else found
        name = None if found is ir.UNDEFINED else value.name
        behind = len(targets) - targets[::-1].index(name) if name in targets and name else 0
        body.insert(behind, ir.Assign(target=target, value=value, loc=value.loc))
        targets.insert(behind, target.name)
