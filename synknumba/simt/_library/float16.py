"""float16 on Numba's CPU target, which by itself only knows the type's name.

A float16 is LLVM's `half`. An operation has the type that it has in numba.cuda: with a float16 or an 8-bit integer it gives a
float16, with any other number what Numba gives to a float32.

`register` adds this to the process's CPU target, so `njit` functions get it too; it is called when a kernel first needs it. The
registries are our own, so that kernels compiled for a GPU in the same process keep numba.cuda's implementations.
"""

import math
import operator
import platform
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba.core import pythonapi, types
from numba.core.datamodel import default_manager, models
from numba.core.imputils import Registry
from numba.core.registry import cpu_target
from numba.core.typeconv import Conversion
from numba.core.typing import templates
from numba.core.typing.templates import AbstractTemplate, signature

from synknumba.simt._library.small_floats import (
    ABSOLUTE,
    ARITHMETIC,
    COMPARISONS,
    MATH,
    NEGATED,
    SINGLE,
    Format,
    in_float32,
)
from synknumba.simt._library.typed import Code

_NAMED: Final = re.compile(r"\bfloat16\b")
_HALF: Final = ir.HalfType()

FLOAT16: Final = Format(
    types.float16,
    widen=lambda builder, value: builder.fpext(value, SINGLE),
    round=lambda builder, value: builder.fptrunc(value, _HALF),
    from_bits=lambda builder, bits: builder.bitcast(bits, _HALF),
    bits=lambda builder, value: builder.bitcast(value, ir.IntType(16)),
)


@cache
def problem() -> str | None:
    """Returns why this processor cannot run kernels with float16; None if it can.

    Without instructions for it LLVM calls conversion functions of the compiler's runtime library; in a process that lacks them
    they are null pointers.
    """
    machine = platform.machine()
    if machine in {"aarch64", "arm64"}:  # ARMv8.0 converts between float16 and both other floats
        return None
    if machine not in {"x86_64", "AMD64"}:
        return f"untested on {machine}"
    features: str = cpu_target.target_context.codegen().magic_tuple()[2]
    return None if "+f16c" in features.split(",") else "the processor has no F16C instructions"


def is_named(text: str) -> bool:
    """Returns whether a type's name, or an error of Numba, mentions float16."""
    return _NAMED.search(text) is not None


# Functions of `math` whose result is a float16, as in numba-cuda; others convert to float32, as there.
OF_MATH: Final = frozenset({"fabs", *(name for name in MATH if hasattr(math, name))})

_ENOUGH: Final = (Conversion.exact, Conversion.promote, Conversion.safe)


def _unary(_self: Any, args: Sequence[types.Type], kws: Any) -> Any:
    return signature(types.float16, types.float16) if not kws and tuple(args) == (types.float16,) else None


def _binary(result: types.Type) -> Callable[..., Any]:
    """Returns the typing of an operator: of float16, and of a float16 and what converts to it safely, as in numba.cuda."""

    def generic(self: Any, args: Sequence[types.Type], kws: Any) -> Any:
        if kws or len(args) != 2 or types.float16 not in args:
            return None
        other = args[1] if args[0] == types.float16 else args[0]
        fits = self.context.can_convert(other, types.float16) in _ENOUGH
        return signature(result, types.float16, types.float16) if fits else None

    return generic


class _Registries:
    """A registry of types and one of implementations, for the CPU target only."""

    def __init__(self) -> None:
        self.types, self.code = templates.Registry(), Registry("float16")

    def add(self, function: Any, generic: Callable[..., Any], code: Code, arity: int) -> None:
        """Adds an implementation, by code for float32, of a function that Numba knows."""
        # Templates "for the CPU" are tried before those for every target, whose float32 a float16 converts to.
        members = {"generic": generic, "metadata": {"target": "cpu"}, "key": function}
        self.types.register_global(function)(type(f"Float16_{function.__name__}", (AbstractTemplate,), members))
        self.code.lower(function, *[types.float16] * arity)(in_float32(FLOAT16, code))


class _HalfModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: types.Type) -> None:
        super().__init__(manager, kind, _HALF)


@cache
def represent() -> None:
    """Gives Numba the representation of a float16, once: enough for compiled code that is loaded."""
    other = default_manager._handlers[types.Float]  # noqa: SLF001  # there is no public way to read it

    def model(manager: Any, kind: types.Type) -> Any:
        return (_HalfModel if kind == types.float16 else other)(manager, kind)

    default_manager.register(types.Float, model)


def is_represented() -> bool:
    """Returns whether a kernel of this process has float16; what is compiled from then on needs `register`."""
    return represent.cache_info().currsize > 0


def prepare() -> None:
    """Adds to Numba's CPU target what this processor allows: without conversions, the types of operations alone."""
    if problem() is None:
        register()
    else:
        register_types()


@cache
def register() -> None:
    """Adds float16 to Numba's CPU target, once."""
    represent()
    register_types()
    _register_boxes()
    cpu_target.target_context.refresh()  # Numba's own come first
    cpu_target.target_context.install_registry(_registries().code)


@cache
def register_types() -> None:
    """Tells Numba the types of operations, once: all that it takes to run a kernel in Python."""
    cpu_target.typing_context.refresh()
    cpu_target.typing_context.install_registry(_registries().types)


def types_are_registered() -> bool:
    """Returns whether `register_types` has been called."""
    return register_types.cache_info().currsize > 0


@cache
def _registries() -> _Registries:
    both = _Registries()
    for name, code in {**ARITHMETIC, "truediv": ARITHMETIC["div"]}.items():
        if name != "div":
            both.add(getattr(operator, name), _binary(types.float16), code, 2)
            both.add(getattr(operator, f"i{name}"), _binary(types.float16), code, 2)
    for name, code in COMPARISONS.items():
        both.add(getattr(operator, name), _binary(types.boolean), code, 2)
    for function, code in {
        operator.neg: NEGATED,
        operator.pos: _same,
        float: _same,
        abs: ABSOLUTE,
        math.fabs: ABSOLUTE,
    }.items():
        both.add(function, _unary, code, 1)
    for name in OF_MATH & MATH.keys() - {"ceil", "floor", "trunc"}:  # for which kernels have functions of their own
        both.add(getattr(math, name), _unary, MATH[name], 1)
    _add_casts(both.code)
    return both


def _same(_context: Any, _builder: Any, _signature: Any, args: Any) -> Any:
    return args[0]


def _register_boxes() -> None:
    """Lets Numba convert arguments; it has one function for all floats, which stays for the others."""
    import numba.core.boxing  # noqa: F401  # registers it

    boxers, unboxers = pythonapi._boxers.functions, pythonapi._unboxers.functions  # noqa: SLF001  # nothing else replaces one
    box, unbox = boxers[types.Float], unboxers[types.Float]

    def boxed(kind: types.Type, value: Any, c: Any) -> Any:
        if kind != types.float16:
            return box(kind, value, c)
        return box(types.float32, FLOAT16.widen(c.builder, value), c)

    def unboxed(kind: types.Type, value: Any, c: Any) -> Any:
        if kind != types.float16:
            return unbox(kind, value, c)
        native = unbox(types.float64, value, c)
        return pythonapi.NativeValue(FLOAT16.narrow(c.builder, native.value), is_error=native.is_error)

    boxers[types.Float], unboxers[types.Float] = boxed, unboxed


def _add_casts(code: Registry) -> None:
    def to_number(context: Any, builder: Any, _kind: Any, wanted: types.Type, value: Any) -> Any:
        return context.cast(builder, FLOAT16.widen(builder, value), types.float32, wanted)

    def from_float(_context: Any, builder: Any, _kind: Any, _wanted: types.Type, value: Any) -> Any:
        return FLOAT16.narrow(builder, value)

    def from_integer(context: Any, builder: Any, kind: types.Type, _wanted: types.Type, value: Any) -> Any:
        # Integers that float32 rounds are above 2**24, and infinite in float16.
        return FLOAT16.round(builder, context.cast(builder, value, kind, types.float32))

    def from_literal(context: Any, builder: Any, kind: Any, wanted: types.Type, _value: Any) -> Any:
        return constant(context, builder, wanted, kind.literal_value)

    def constant(_context: Any, _builder: Any, _kind: Any, value: Any) -> Any:
        with np.errstate(over="ignore"):
            return ir.Constant(_HALF, float(np.float16(value)))

    code.lower_cast(types.float16, types.Float)(to_number)
    code.lower_cast(types.float16, types.Integer)(to_number)
    code.lower_cast(types.Float, types.float16)(from_float)
    code.lower_cast(types.Integer, types.float16)(from_integer)
    code.lower_cast(types.IntegerLiteral, types.float16)(from_literal)
    code.lower_constant(types.float16)(constant)
