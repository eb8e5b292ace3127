"""Helpers of the intrinsics of instrumented code: words of the running thread, Numba's operators,
the end of a thread.
"""

from collections.abc import Sequence
from typing import Any, Final

from llvmlite import ir
from numba.core import errors, types

from synknumba.simt._checker import layout
from synknumba.simt._checker.integer_code import I64, word
from synknumba.simt._checker.runtime import call

# Types of the integers in an index.
INDEX: Final = (types.Integer, types.Boolean)


def parts_of(kind: types.Type) -> list[types.Type]:
    """Returns the types in that of a tuple; of any other, the type itself."""
    if isinstance(kind, types.BaseTuple):
        return list(kind)
    return [kind]


def constant(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def get_word(builder: Any, table: Any, number: Any) -> Any:
    return builder.load(word(builder, table, number))


def put_word(builder: Any, table: Any, number: Any, value: Any) -> None:
    builder.store(value, word(builder, table, number))


def state_word(builder: Any, number: int) -> Any:
    """Emits the read of a word of the check's state."""
    return get_word(builder, call(builder, "state"), number)


def running(builder: Any) -> Any:
    """Emits the address of the running thread."""
    return state_word(builder, layout.CURRENT)


def scratch(builder: Any) -> Any:
    """Emits the address of zeros that belong to no array."""
    return state_word(builder, layout.SCRATCH)


def resolved(context: Any, function: Any, *kinds: types.Type) -> Any:
    """Returns Numba's signature of an operator."""
    signature = context.resolve_function_type(context.resolve_value_type(function), kinds, {})
    if signature is None:
        raise errors.NumbaTypeError(f"{function.__name__} of {kinds}")
    return signature


def apply(
    context: Any,
    builder: Any,
    function: Any,
    signature: Any,
    kinds: Sequence[types.Type],
    values: Sequence[Any],
) -> Any:
    """Emits Numba's implementation of an operator."""
    callee = context.typing_context.resolve_value_type(function)
    callee.get_call_type(context.typing_context, signature.args, {})
    implementation = context.get_function(callee, signature)
    cast = [
        context.cast(builder, *both) for both in zip(values, kinds, signature.args, strict=True)
    ]
    context.add_linking_libs(getattr(implementation, "libs", ()))
    return implementation(builder, cast)


def fails(builder: Any, condition: Any, fault: int, site: Any) -> None:
    """Emits the end of the thread under a condition."""
    with builder.if_then(condition, likely=False):
        me = running(builder)
        put_word(builder, me, layout.SITE, site)
        key = builder.or_(get_word(builder, me, layout.KEY), site)
        call(builder, "report", layout.FAULT, 0, 0, fault, key, layout.RAISES, 0)
        call(builder, "wait", layout.FAILED, 0, 0)
