"""Numba's passes over a function, without those that have nothing to do in most kernels.

Inlining of closures and rewrites after type inference take a twentieth of a first launch, to find
nothing: kernels rarely have lists or array expressions, and functions inside them have been inlined
before. Numba counts references to the values of all variables, and takes those without a count
apart to see that there is none: both parts of each complex number that is assigned.
"""

from collections.abc import Iterator
from typing import Any

from numba.core import ir, types
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering, NopythonRewrites, PreLowerStripPhis
from numba.core.untyped_passes import InlineClosureLikes, ReconstructSSA

from synknumba.simt._numba.single_assignment import NoPhiNodes, SingleAssignment


def with_fewer_passes(manager: PassManager) -> PassManager:
    """Returns the pass manager, with the passes of this module in place of Numba's."""
    manager.passes[:] = [(_REPLACED.get(kind, kind), text) for kind, text in manager.passes]
    manager.finalize()
    return manager


@register_pass(mutates_CFG=True, analysis_only=False)
class _InlineClosures(InlineClosureLikes):  # type: ignore[misc]
    """Numba's inlining of closures and of lists that become arrays, for functions that have
    either.
    """

    _name = "synknumba_inline_closures"

    def run_pass(self, state: Any) -> bool:
        operations = {assigned.value.op for assigned in _assigned_expressions(state)}
        if operations.isdisjoint({"make_function", "build_list"}):
            return False
        return bool(super().run_pass(state))


@register_pass(mutates_CFG=True, analysis_only=False)
class _Rewrites(NopythonRewrites):  # type: ignore[misc]
    """Numba's rewrites after type inference: array expressions, lists of constants, fields that
    a variable names.
    """

    _name = "synknumba_rewrites"

    def run_pass(self, state: Any) -> bool:
        has_names = any(isinstance(kind, types.StringLiteral) for kind in state.typemap.values())
        if not has_names and not _may_be_rewritten(state):
            return False
        return bool(super().run_pass(state))


class _Lower(Lower):  # type: ignore[misc]
    """Numba's lowering to LLVM code, which counts references to values that have a count only."""

    def init(self) -> None:
        super().init()
        self._counted: dict[types.Type, bool] = {}

    def incref(self, typ: types.Type, val: Any) -> None:
        if self._has_count(typ):
            super().incref(typ, val)

    def decref(self, typ: types.Type, val: Any) -> None:
        if self._has_count(typ):
            super().decref(typ, val)

    def _has_count(self, kind: types.Type) -> bool:
        if kind not in self._counted:
            self._counted[kind] = self.context.data_model_manager[kind].contains_nrt_meminfo()
        return self._counted[kind]


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):  # type: ignore[misc]
    """Numba's last pass, with our lowering."""

    _name = "synknumba_lowering"

    lowering_class = _Lower


def _may_be_rewritten(state: Any) -> bool:
    """Returns whether the function has a list, or an operation on whole arrays."""
    for assigned in _assigned_expressions(state):
        match assigned.value.op:
            case "build_list":
                return True
            case "call":
                kind = state.typemap[assigned.value.func.name]
                called = type(getattr(kind, "typing_key", None))
                if called.__name__ in {"ufunc", "DUFunc"}:  # the second is Numba's, slow to import
                    return True
            case "binop" | "unary":
                if isinstance(state.typemap[assigned.target.name], types.Array):
                    return True
    return False


def _assigned_expressions(state: Any) -> Iterator[Any]:
    for block in state.func_ir.blocks.values():
        for assigned in block.find_insts(ir.Assign):
            if isinstance(assigned.value, ir.Expr):
                yield assigned


_REPLACED = {
    InlineClosureLikes: _InlineClosures,
    ReconstructSSA: SingleAssignment,
    NopythonRewrites: _Rewrites,
    PreLowerStripPhis: NoPhiNodes,
    NativeLowering: _Lowering,
}
