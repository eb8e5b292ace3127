"""float16 on Numba's CPU target, which by itself only knows the type's name: LLVM's `half`.

`FLOAT16.narrow` rounds; modes of rounding are in `rounding.py`, arithmetic is in `small_floats.py`.
`register` adds it to the process's CPU target, so `njit` functions get it too; it is called when a
kernel first needs it.
"""

import math
import platform
import re
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba.core import pythonapi, types
from numba.core.datamodel import default_manager, models
from numba.core.registry import cpu_target

from synknumba.simt._library.typed import Code, Library
from synknumba.simt._maths.rounding import SINGLE, Format, to_single
from synknumba.simt._maths.small_float_types import Registries, rounded, same
from synknumba.simt._maths.small_floats import ABSOLUTE, MATH, functions

_NAMED: Final = re.compile(r"\bfloat16\b")
_HALF: Final = ir.HalfType()

FLOAT16: Final = Format(
    types.float16,
    widen=lambda builder, value: builder.fpext(value, SINGLE),
    narrow=lambda builder, value: builder.fptrunc(to_single(builder, value), _HALF),
    from_bits=lambda builder, bits: builder.bitcast(bits, _HALF),
    bits=lambda builder, value: builder.bitcast(value, ir.IntType(16)),
)


@cache
def problem() -> str | None:
    """Returns why this processor cannot run kernels with float16; None if it can.

    Without instructions for it LLVM calls conversion functions of the compiler's runtime library;
    in a process that lacks them they are null pointers.
    """
    machine = platform.machine()
    if machine in {"aarch64", "arm64"}:  # ARMv8.0 converts between float16 and both other floats
        return None
    if machine not in {"x86_64", "AMD64"}:
        return f"untested on {machine}"
    features: str = cpu_target.target_context.codegen().magic_tuple()[2]
    if "+f16c" not in features.split(","):
        return "the processor has no F16C instructions"
    return None


def is_named(text: str) -> bool:
    """Returns whether a type's name, or an error of Numba, mentions float16."""
    return _NAMED.search(text) is not None


# Functions of `math` whose result is a float16, as in numba.cuda; others convert to float32, as
# there.
OF_MATH: Final = frozenset(
    {"fabs", *(name for name in MATH if name != "tanh" and hasattr(math, name))}
)


class _HalfModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: types.Type) -> None:
        super().__init__(manager, kind, _HALF)


@cache
def represent() -> None:
    """Gives Numba the representation of a float16, once: enough for compiled code that is
    loaded.
    """
    model_of_float = default_manager._handlers[types.Float]  # noqa: SLF001  # there is no public way to read it

    def model(manager: Any, kind: types.Type) -> Any:
        if kind == types.float16:
            return _HalfModel(manager, kind)
        return model_of_float(manager, kind)

    default_manager.register(types.Float, model)


def is_represented() -> bool:
    """Returns whether a kernel of this process has float16; what is compiled from then on needs
    `register`.
    """
    return represent.cache_info().currsize > 0


def prepare() -> None:
    """Adds to Numba's CPU target what this processor allows: without conversions, the types of
    operations alone.
    """
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
    _register_casts_for_gpus()
    _registries().install_code()


@cache
def register_types() -> None:
    """Registers the types of operations, once: all that kernels in Python need."""
    _registries().install_types()


def types_are_registered() -> bool:
    """Returns whether `register_types` has been called."""
    return register_types.cache_info().currsize > 0


@cache
def _registries() -> Registries:
    registries = Registries(FLOAT16, lambda value: ir.Constant(_HALF, rounded(value, np.float16)))
    for function, code in {float: same, abs: ABSOLUTE, math.fabs: ABSOLUTE}.items():
        registries.add_unary(function, code)
    # kernels have functions of their own for these three
    for name in OF_MATH & MATH.keys() - {"ceil", "floor", "trunc"}:
        registries.add_unary(getattr(math, name), MATH[name])
    return registries


def _register_casts_for_gpus() -> None:
    """Imports numba.cuda's conversions, which are for all targets, before ours are registered: the
    last ones count.
    """
    with suppress(Exception):  # where numba.cuda is missing or broken, nothing registers them
        import_module("numba.cuda.cudaimpl")


def _register_boxes() -> None:
    """Registers conversions of arguments: Numba has one function for all floats, which stays for
    those of other widths.
    """
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
        return pythonapi.NativeValue(
            FLOAT16.narrow(c.builder, native.value), is_error=native.is_error
        )

    boxers[types.Float], unboxers[types.Float] = boxed, unboxed


def _fp16() -> dict[str, tuple[str, Code]]:
    table = functions(FLOAT16, "half")
    return table | {f"__{name}": entry for name, entry in table.items()}


# `cuda.fp16`: arithmetic, comparisons, mathematical functions and conversions. The names are those
# of Numba (`hadd`), and those that numba-cuda adds, which are CUDA's (`__hadd_sat`,
# `__float2half_rz`).
FP16: Final = Library("fp16", _fp16)
