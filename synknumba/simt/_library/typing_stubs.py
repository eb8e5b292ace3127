"""Stubs of barriers and collectives, with which Numba infers the types of one thread's code;
they never run.
"""

from typing import Any

from numba.core import errors, types

from synknumba.simt._library.synchronisation import (
    BARRIER_KINDS,
    BARRIER_PREFIX,
    COLLECTIVE_PREFIX,
    COLLECTIVES,
)
from synknumba.simt._library.typed import with_arity


def _null(context: Any, _builder: Any, signature: Any, _args: Any) -> Any:
    return context.get_constant_null(signature.return_type)


def _collective(path: str) -> Any:
    """Returns an intrinsic with the types of a collective."""
    operation = COLLECTIVES[path]

    def resolve(*args: types.Type) -> Any:
        plain = [types.unliteral(arg) for arg in args]
        if not all(isinstance(arg, (types.Number, types.Boolean)) for arg in plain):
            raise errors.NumbaTypeError(
                f"cuda.{path} needs numbers, not {', '.join(map(str, plain))}"
            )
        return operation.result_type(plain)(*plain), _null

    return with_arity(path, len(operation.params), resolve)


def _barrier() -> Any:
    return types.void(), lambda *_: None


TYPING_STUBS: dict[str, Any] = {
    **{COLLECTIVE_PREFIX + path: _collective(path) for path in COLLECTIVES},
    **{BARRIER_PREFIX + kind: with_arity(f"barrier_{kind}", 0, _barrier) for kind in BARRIER_KINDS},
}
