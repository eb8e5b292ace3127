"""What Numba has to know of a float of 16 bits: the types of operations, and their code.

An operation has the type that it has in numba.cuda: of the format with another operand of it or an
integer of 8 bits, which converts to it safely; with any other number what Numba gives to a float32.

The registries are our own, so that kernels compiled for a GPU in the same process keep numba.cuda's
implementations.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.imputils import Registry
from numba.core.registry import cpu_target
from numba.core.typeconv import Conversion
from numba.core.typing import templates
from numba.core.typing.templates import AbstractTemplate, signature

from synknumba.simt._library.typed import Code, plain
from synknumba.simt._maths.rounding import Format, from_integer
from synknumba.simt._maths.small_floats import (
    ARITHMETIC,
    COMPARISONS,
    NEGATED,
    in_float32,
)

_ENOUGH = (Conversion.exact, Conversion.promote, Conversion.safe)


def same(_context: Any, _builder: Any, _signature: Any, args: Any) -> Any:
    """Emits the operand."""
    return args[0]


@final
class Registries:
    """The operators, conversions and constants of a format, for the CPU target only.

    Args:
        half: the format.
        constant: returns the LLVM constant of a number.
    """

    def __init__(self, half: Format, constant: Callable[[Any], Any]) -> None:
        self._half, self._constant = half, constant
        self._types, self._code = templates.Registry(), Registry(str(half.kind))
        for name, code in ARITHMETIC.items():
            if name == "div":
                name = "truediv"  # noqa: PLW2901
            for function in (getattr(operator, name), getattr(operator, f"i{name}")):
                self._add(function, self._binary(half.kind), code, 2)
        for name, code in COMPARISONS.items():
            self._add(getattr(operator, name), self._binary(types.boolean), code, 2)
        for function, code in {operator.neg: NEGATED, operator.pos: same}.items():
            self.add_unary(function, code)
        self._add_casts()

    def add_unary(self, function: Any, code: Code) -> None:
        """Adds a function of the format to itself, by its code for float32."""
        kind = self._half.kind

        def generic(_self: Any, args: Sequence[types.Type], kws: Any) -> Any:
            if kws or tuple(args) != (kind,):
                return None
            return signature(kind, kind)

        self._add(function, generic, code, 1)

    def install_types(self) -> None:
        """Makes the CPU target use the types, after everything of Numba's own."""
        cpu_target.typing_context.refresh()
        cpu_target.typing_context.install_registry(self._types)

    def install_code(self) -> None:
        """Makes the CPU target use the implementations, after everything of Numba's own."""
        cpu_target.target_context.refresh()
        cpu_target.target_context.install_registry(self._code)

    def _binary(self, result: types.Type) -> Callable[..., Any]:
        kind = self._half.kind

        def generic(self: Any, args: Sequence[types.Type], kws: Any) -> Any:
            if kws or len(args) != 2 or kind not in args:
                return None
            for arg in args:
                if arg != kind and self.context.can_convert(arg, kind) not in _ENOUGH:
                    return None
            return signature(result, kind, kind)

        return generic

    def _add(self, function: Any, generic: Callable[..., Any], code: Code, arity: int) -> None:
        # Templates "for the CPU" are tried before those for every target, to whose float32 the
        # format converts.
        members = {"generic": generic, "metadata": {"target": "cpu"}, "key": function}
        template = type(f"{self._half.kind}_{function.__name__}", (AbstractTemplate,), members)
        self._types.register_global(function)(template)
        self._code.lower(function, *[self._half.kind] * arity)(in_float32(self._half, code))

    def _add_casts(self) -> None:
        half, cast = self._half, self._code.lower_cast

        def to_number(
            context: Any, builder: Any, _kind: Any, number: types.Type, value: Any
        ) -> Any:
            return context.cast(builder, half.widen(builder, value), types.float32, number)

        def from_float(
            context: Any, builder: Any, kind: types.Float, _half: Any, value: Any
        ) -> Any:
            if kind.bitwidth == 16:
                value = context.cast(builder, value, kind, types.float32)
            return half.narrow(builder, value)

        def of_integer(
            context: Any, builder: Any, kind: types.Integer, _half: Any, value: Any
        ) -> Any:
            return half.narrow(builder, from_integer(context, builder, kind, value))

        def of_literal(_context: Any, _builder: Any, kind: Any, _half: Any, _value: Any) -> Any:
            return self._constant(kind.literal_value)

        def is_true(builder: Any, value: Any) -> Any:
            wide = half.widen(builder, value)
            return builder.fcmp_unordered("!=", wide, ir.Constant(wide.type, 0.0))

        cast(half.kind, types.Float)(to_number)
        cast(half.kind, types.Integer)(to_number)
        cast(types.Float, half.kind)(from_float)
        cast(types.Integer, half.kind)(of_integer)
        cast(types.IntegerLiteral, half.kind)(of_literal)
        self._code.lower(bool, half.kind)(plain(is_true))
        self._code.lower_constant(half.kind)(
            lambda _context, _builder, _kind, value: self._constant(value)
        )


def rounded(value: Any, dtype: Any) -> float:
    """Returns a number as one of a dtype, for a constant."""
    with np.errstate(over="ignore"):
        return float(dtype(value))
