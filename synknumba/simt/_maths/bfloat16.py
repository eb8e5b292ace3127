"""bfloat16 on Numba's CPU target: numba-cuda's type, `cuda.bf16`, and arrays of ml_dtypes.

A bfloat16 is the upper half of a float32, held as an integer of 16 bits: any processor can convert
it. Numba itself has no such type; where numba-cuda is not installed, kernels cannot name it.
"""

import importlib
import sys
from contextlib import suppress
from functools import cache
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba.core import pythonapi, types
from numba.core.datamodel import default_manager, models
from numba.np import numpy_support

from synknumba._errors import KernelError
from synknumba.simt._library.typed import Code, Library
from synknumba.simt._maths.rounding import SINGLE, Format, to_single
from synknumba.simt._maths.small_float_types import Registries
from synknumba.simt._maths.small_floats import functions

NAME: Final = "bfloat16"  # of ml_dtypes' dtype, and part of the name of the type
_BITS: Final = ir.IntType(16)
_WORD: Final = ir.IntType(32)

# Names of numba-cuda's aliases, and CUDA's.
_ALIASES: Final = {
    "float32": "float", "float64": "double", "int8": "char", "uint8": "uchar", "int16": "short",
    "uint16": "ushort",
    "int32": "int", "uint32": "uint", "int64": "ll", "uint64": "ull",
}  # fmt: skip


def kind() -> types.Type | None:
    """Returns numba-cuda's type; None where `numba.cuda` is Numba's own, or is not imported, so
    that no value has the type.
    """
    module = sys.modules.get("numba.cuda.types.ext_types")
    return getattr(module, NAME, None)


def _widen(builder: Any, value: Any) -> Any:
    return builder.bitcast(builder.shl(builder.zext(value, _WORD), ir.Constant(_WORD, 16)), SINGLE)


def _round(builder: Any, value: Any) -> Any:
    """Emits the nearest bfloat16, ties to even: half of the last place that is kept, less one
    for an even number, is added.
    """
    word = builder.bitcast(value, _WORD)
    last = builder.and_(builder.lshr(word, ir.Constant(_WORD, 16)), ir.Constant(_WORD, 1))
    nearest = builder.add(word, builder.add(last, ir.Constant(_WORD, 0x7FFF)))
    quiet = builder.or_(word, ir.Constant(_WORD, 0x400000))  # a NaN stays one without its low bits
    rounded = builder.select(builder.fcmp_unordered("uno", value, value), quiet, nearest)
    return builder.trunc(builder.lshr(rounded, ir.Constant(_WORD, 16)), _BITS)


@cache
def _format() -> Format:
    return Format(
        kind(),
        _widen,
        lambda builder, value: _round(builder, to_single(builder, value)),
        from_bits=lambda _builder, bits: bits,
        bits=lambda _builder, value: value,
    )


def _table() -> dict[str, tuple[str, Code]]:
    """Returns the functions of `cuda.bf16`, under numba-cuda's names and CUDA's."""
    if kind() is None:
        return {}
    table = functions(_format(), NAME)
    for name, short in _ALIASES.items():
        for mode in ("", "_rn", "_rz", "_rd", "_ru"):
            for alias, original in (
                (f"{name}_to_{NAME}", f"{short}2{NAME}"),
                (f"{NAME}_to_{name}", f"{NAME}2{short}"),
            ):
                if original + mode in table:
                    table[alias + mode] = table[original + mode]
    for name in ("int16", "uint16"):
        table[f"{name}_as_{NAME}"] = table[f"{_ALIASES[name]}_as_{NAME}"]
        table[f"{NAME}_as_{name}"] = table[f"{NAME}_as_{_ALIASES[name]}"]
    return table


BF16: Final = Library("bf16", _table, kind)


class _Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, fe_type: types.Type) -> None:
        super().__init__(manager, fe_type, _BITS)


def is_named(text: str) -> bool:
    """Returns whether a type's name mentions bfloat16."""
    return NAME in text


def is_dtype(value: Any) -> bool:
    """Returns whether an array or number has ml_dtypes' dtype."""
    return str(getattr(value, "dtype", "")) == NAME


def represent() -> None:
    """Registers the representation of a bfloat16 with Numba: enough for compiled code from disk."""
    default_manager.register(type(kind()), _Model)


def adopt(dtype: Any) -> bool:
    """Registers the dtype of ml_dtypes with Numba; returns whether there is a type for it."""
    with suppress(Exception):  # of a broken CUDA installation, see `cuda_module`
        importlib.import_module("numba.cuda")
    bfloat16 = kind()
    if bfloat16 is None:
        return False
    numpy_support.FROM_DTYPE[np.dtype(dtype)] = bfloat16
    return True


def as_dtype(number: types.Type) -> "np.dtype[Any]":
    """Returns the dtype of a type of Numba, of bfloat16 that of ml_dtypes; raises KernelError
    where that is not installed.
    """
    if number != kind():
        return np.dtype(numpy_support.as_dtype(number))
    try:
        dtype = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError:
        raise KernelError(
            "bfloat16 runs in Python, as simt.debug and simt.check run kernels, where ml_dtypes is "
            "installed: pip install ml_dtypes, or compute in float32"
        ) from None
    adopt(dtype)
    prepare()
    return dtype


def is_scalar(value: Any) -> bool:
    """Returns whether this is a number of ml_dtypes for which kernels have a type."""
    return type(value).__name__ == NAME and isinstance(value, np.generic) and kind() is not None


def rounded(value: Any, scalar: Any) -> Any:
    """Returns a real number as one of ml_dtypes' class `scalar`, rounded once: first to float32,
    to odd, see `rounding`.
    """
    if isinstance(value, np.generic):
        value = value.item()  # Python compares its numbers exactly
    with np.errstate(over="ignore"):
        single = np.float32(value)
    if np.isfinite(single) and float(single) != value:
        if abs(float(single)) > abs(value):
            single = np.nextafter(single, np.float32(0))
        single = (single.view(np.uint32) | np.uint32(1)).view(np.float32)
    return scalar(single)


def prepare() -> None:
    """Adds bfloat16 to Numba's CPU target where there is such a type."""
    if kind() is not None:
        _register()


@cache
def _register() -> None:
    represent()

    def boxed(_kind: types.Type, value: Any, c: Any) -> Any:
        return c.pyapi.float_from_double(c.builder.fpext(_widen(c.builder, value), c.pyapi.double))

    def unboxed(_kind: types.Type, value: Any, c: Any) -> Any:
        number = c.pyapi.number_float(value)
        wide = c.pyapi.float_as_double(number)
        c.pyapi.decref(number)
        return pythonapi.NativeValue(
            _format().narrow(c.builder, wide), is_error=c.pyapi.c_api_error()
        )

    bfloat16 = type(kind())
    pythonapi.box(bfloat16)(boxed)
    pythonapi.unbox(bfloat16)(unboxed)
    registries = Registries(_format(), _constant)
    registries.install_types()
    registries.install_code()


def _constant(value: Any) -> Any:
    """Returns the constant nearest to a number, ties to even."""
    word = int(np.float32(value).view(np.uint32))
    if value != value:  # noqa: PLR0124
        return ir.Constant(_BITS, word >> 16 | 0x40)
    return ir.Constant(_BITS, (word + 0x7FFF + (word >> 16 & 1)) >> 16)
