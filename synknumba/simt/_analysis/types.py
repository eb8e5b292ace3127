"""Numba types of a kernel's variables.

The analyses query few types, and most are parameter types. Numba's type inference therefore runs
lazily, on the first query for a local variable.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from numba import njit
from numba.core import compiler, types
from numba.core.compiler_machinery import FunctionPass, PassManager, register_pass
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from numba.core.typed_passes import NopythonTypeInference

from synknumba.simt._maths import bfloat16, float16
from synknumba.simt._numba.frame_space import with_frame_space
from synknumba.simt._numba.passes import with_fewer_passes

TypeMap = Mapping[str, types.Type]


class VariableTypes:
    """The Numba types of parameters and local variables.

    Args:
        params: types of the parameters; empty when the code is generated only for display.
        infer: runs type inference and returns the types of all versions of all local variables.
    """

    def __init__(self, params: TypeMap, infer: Callable[[], TypeMap] = dict) -> None:
        self.params, self._infer = params, infer

    @cached_property
    def _locals(self) -> TypeMap:
        if not self.params:
            return {}
        return self._infer()

    def of(self, name: str) -> types.Type | None:
        """Returns the type that holds all values of a variable; None if unknown."""
        if name in self.params:
            return types.unliteral(self.params[name])
        return unified_type(self._locals, name)


def unified_type(typemap: TypeMap, name: str) -> types.Type | None:
    """Returns the common type of all versions of a variable, which Numba names `v`, `v.1`, `v.2`,
    ….

    None if Numba has found the variable unused, `types.unknown` if the versions do not unify.
    """
    versions = {
        types.unliteral(kind) for version, kind in typemap.items() if _base_name(version) == name
    }
    # Sorted, because the result of unification may depend on the order and a set has none.
    match sorted(versions, key=str):
        case []:
            return None
        case [kind]:
            return kind
        case kinds:
            unified = cpu_target.typing_context.unify_types(*kinds)
            return types.unknown if unified is None else unified


def _base_name(version: str) -> str:
    """Returns `v` for `v.1`."""
    base, _, number = version.rpartition(".")
    return base if number.isdigit() else version


class _TypesKnown(Exception):  # noqa: N818  # not an error: ends the compilation after type inference
    def __init__(self, typemap: TypeMap) -> None:
        self.typemap = typemap


@register_pass(mutates_CFG=False, analysis_only=True)
class _StopAfterTypes(FunctionPass):  # type: ignore[misc]
    _name = "synknumba_stop_after_types"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        raise _TypesKnown(dict(state.typemap))


class _TypesOnly(compiler.CompilerBase):  # type: ignore[misc]
    """Numba's compiler pipeline up to and including type inference; generates no code."""

    def define_pipelines(self) -> list[PassManager]:
        manager = PassManager("synknumba_types_only")
        manager.passes += compiler.DefaultPassBuilder.define_untyped_pipeline(self.state).passes
        manager.add_pass(NopythonTypeInference, "type inference")
        manager.add_pass(_StopAfterTypes, "stop")
        return [with_fewer_passes(manager)]


@with_frame_space
def infer_types(function: Callable[..., Any], argtypes: tuple[types.Type, ...]) -> TypeMap:
    """Runs Numba's type inference on a function and returns the types of all its variables."""
    bfloat16.prepare()
    try:
        typemap = _inferred(function, argtypes)
    # of a device function, which Numba compiles to infer its result
    except (NumbaError, NotImplementedError) as error:
        if float16.is_represented() or not float16.is_named(str(error)):
            raise
    else:
        if types.float16 not in typemap.values() or float16.types_are_registered():
            return typemap
    float16.prepare()
    return _inferred(function, argtypes)


def _inferred(function: Callable[..., Any], argtypes: tuple[types.Type, ...]) -> TypeMap:
    dispatcher = njit(pipeline_class=_TypesOnly, error_model="numpy")(function)
    try:
        dispatcher.compile(argtypes)
    except _TypesKnown as result:
        return result.typemap
    raise AssertionError(f"type inference of {function.__name__} did not run")


def is_integer_type(kind: Any) -> bool:
    """Returns whether arithmetic on the type stays within int64. uint64 does not: mixed with
    int64 it gives float64.
    """
    match kind:
        case types.Integer(signed=signed, bitwidth=bits):
            return signed or bits < 64
    return False
