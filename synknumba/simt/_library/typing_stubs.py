"""Stubs of barriers and collectives, with which Numba infers the types of one thread's code; they never run.

The types are those of `numba.cuda`: a ballot is an int32, an active mask a uint32.
"""

from collections.abc import Callable
from typing import Any

from numba.core import errors, types
from numba.extending import intrinsic

from synknumba.simt._library.synchronisation import BARRIER_KINDS, COLLECTIVES, barrier_name, collective_name

_PREDICATE = (types.Number, types.Boolean)


def _typed(path: str, result: Callable[..., types.Type]) -> Any:
    """Returns an intrinsic that yields zero; `result` maps the argument types to the result type."""
    count = len(COLLECTIVES[path].params)

    def null(context: Any, _builder: Any, signature: Any, _args: Any) -> Any:
        return context.get_constant_null(signature.return_type)

    def check(args: tuple[types.Type, ...]) -> Any:
        plain = [types.unliteral(arg) for arg in args]
        if not all(isinstance(arg, _PREDICATE) for arg in plain):
            raise errors.NumbaTypeError(f"cuda.{path} needs numbers, not {', '.join(map(str, plain))}")
        return result(*plain)(*plain), null

    if count == 0:
        return intrinsic(lambda _context: check(()))
    if count == 1:
        return intrinsic(lambda _context, a: check((a,)))
    if count == 2:
        return intrinsic(lambda _context, a, b: check((a, b)))
    return intrinsic(lambda _context, a, b, c: check((a, b, c)))


def _shuffled(_mask: types.Type, value: types.Type, _operand: types.Type) -> types.Type:
    return types.int32 if isinstance(value, types.Boolean) else value


_RESULTS: dict[str, Callable[..., types.Type]] = {
    "syncthreads_count": lambda _: types.int32,
    "syncthreads_and": lambda _: types.int32,
    "syncthreads_or": lambda _: types.int32,
    "shfl_sync": _shuffled,
    "shfl_up_sync": _shuffled,
    "shfl_down_sync": _shuffled,
    "shfl_xor_sync": _shuffled,
    "ballot_sync": lambda _, __: types.int32,
    "all_sync": lambda _, __: types.boolean,
    "any_sync": lambda _, __: types.boolean,
    "eq_sync": lambda _, __: types.boolean,
    "match_any_sync": lambda _, __: types.int32,
    "match_all_sync": lambda _, __: types.Tuple((types.int32, types.boolean)),
    "activemask": lambda: types.uint32,
}


@intrinsic  # type: ignore[untyped-decorator]
def _barrier(_context: Any) -> Any:
    return types.void(), lambda context, _builder, _signature, _args: context.get_dummy_value()


STAND_INS: dict[str, Any] = {
    **{collective_name(path): _typed(path, result) for path, result in _RESULTS.items()},
    **{barrier_name(kind): _barrier for kind in BARRIER_KINDS},
}
