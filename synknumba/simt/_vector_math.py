"""Calls of exp, sin, pow and the like on many elements at once, by a vector math library.

LLVM turns a loop with such a call into vector code only if it knows a vector version of the function. It is told here, on each
call in the code of a kernel, by the attribute that the vector function ABI defines for that:

    %y = call double @llvm.exp.f64(double %x) "vector-function-abi-variant"="_ZGV_LLVM_N8v_llvm.exp.f64(_ZGVeN8v_exp)"

The library is libmvec, a part of glibc and so of every common Linux. Numba's own way, SVML, needs an LLVM built for it, which
the llvmlite of PyPI is not; and it changes every function that the process compiles, while this changes kernels alone.

The vector versions are right to 4 units in the last place (glibc's promise; 0.8 to 3.9 were seen), where the plain ones are right
to 1 and CUDA's own to 1 or 2 in double and up to 4 in single precision (CUDA C++ Programming Guide, "Mathematical Functions").
The last elements of a loop, which do not fill a vector, go through the plain functions: the last digits of the result for one
element may depend on where it lies.
"""

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from llvmlite import binding as llvm
from numba.core.registry import cpu_target

# Set to "0" or "off" to compile without.
SWITCH = "SYNKNUMBA_VECTOR_MATH"

LIBRARY = "libmvec.so.1"

# Functions of one argument and of two. glibc has the first line since 2.22, the others since 2.35.
_ONE: tuple[str, ...] = ("exp", "log", "sin", "cos")
_ONE += ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "cosh", "erf", "erfc", "exp10", "exp2", "expm1")
_ONE += ("log10", "log1p", "log2", "sinh", "tan", "tanh")
_TWO = ("pow", "atan2", "hypot")

# The letter of an instruction set in the vector ABI of x86-64, the feature it needs, and doubles in its register.
_INSTRUCTION_SETS = (("b", "", 2), ("c", "+avx", 4), ("d", "+avx2", 4), ("e", "+avx512f", 8))

# Pointers in LLVM's text were written in another way before.
_OLDEST_LLVM = 16

_CALL = re.compile(r"call [^@\"]*?\b(?:double|float) @([\w.]+)\(")
_METADATA = re.compile(r"(, ![^\"]*)?$")
_USED = "@llvm.compiler.used"


@dataclass(frozen=True, slots=True)
class VectorFunction:
    """The vector version of a scalar function, for one number of elements."""

    name: str
    scalar_type: str
    lanes: int
    arity: int

    def mapping(self, scalar: str) -> str:
        """What the attribute says of it."""
        return f"_ZGV_LLVM_N{self.lanes}{'v' * self.arity}_{scalar}({self.name})"

    def declaration(self) -> str:
        """Its declaration in LLVM's language."""
        vector = f"<{self.lanes} x {self.scalar_type}>"
        return f"declare {vector} @{self.name}({', '.join([vector] * self.arity)}) memory(none) nounwind willreturn"


def vector_library() -> str | None:
    """The vector math library that kernels are compiled for, loaded; None if there is none, or it is switched off."""
    if os.environ.get(SWITCH, "").lower() in {"0", "off"}:
        return None
    return LIBRARY if _load() else None


@cache
def _load() -> bool:
    if platform.machine() != "x86_64" or llvm.llvm_version_info[0] < _OLDEST_LLVM:
        return False
    try:
        llvm.load_library_permanently(LIBRARY)
    except RuntimeError:  # another C library than glibc
        return False
    return True


def describe() -> tuple[str, ...]:
    """The library and the instruction sets it is used with: compiled code depends on it."""
    library = vector_library()
    if library is None:
        return ()
    return library, os.confstr("CS_GNU_LIBC_VERSION") or "", "".join(letter for letter, _ in _instruction_sets(_features()))


def with_vector_math(module: llvm.ModuleRef) -> llvm.ModuleRef:
    """The module with its calls of mathematical functions marked; the same module if there are none."""
    if vector_library() is None:
        return module
    known = _vector_functions(_features())
    if known.keys().isdisjoint(function.name for function in module.functions):
        return module
    text = str(module)
    if _USED in text:
        return module
    marked = llvm.parse_assembly(mark_calls(text, known))
    marked.name = module.name
    return marked


def mark_calls(text: str, known: dict[str, tuple[VectorFunction, ...]]) -> str:
    """A module's text with the attribute on each call of a known function, and the vector functions declared."""
    lines: list[str] = []
    declared: dict[str, VectorFunction] = {}
    for line in text.splitlines():
        call = _CALL.search(line)
        if call is None or call[1] not in known:
            lines.append(line)
            continue
        variants = known[call[1]]
        declared |= {variant.name: variant for variant in variants}
        attribute = ",".join(variant.mapping(call[1]) for variant in variants)
        lines.append(_METADATA.sub(rf' "vector-function-abi-variant"="{attribute}"\1', line, count=1))
    if not declared:
        return text
    lines += [variant.declaration() for variant in declared.values()]
    # Or LLVM would drop the declarations before it makes vectors.
    names = ", ".join(f"ptr @{name}" for name in declared)
    lines.append(f'{_USED} = appending global [{len(declared)} x ptr] [{names}], section "llvm.metadata"')
    return "\n".join(lines) + "\n"


def _features() -> str:
    """The processor's features that Numba compiles for."""
    return cpu_target.target_context.codegen().magic_tuple()[2]  # type: ignore[no-any-return]


def _instruction_sets(features: str) -> Iterator[tuple[str, int]]:
    """Letters and doubles in a register, of those the processor has; one for each size of register."""
    given = features.split(",")
    found = {doubles: letter for letter, feature, doubles in _INSTRUCTION_SETS if not feature or feature in given}
    for doubles, letter in found.items():
        yield letter, doubles


@cache
def _vector_functions(features: str) -> dict[str, tuple[VectorFunction, ...]]:
    """The vector versions by the name of the scalar function in LLVM's code."""
    known: dict[str, tuple[VectorFunction, ...]] = {}
    for names, arity in ((_ONE, 1), (_TWO, 2)):
        for name in names:
            for scalar_type, suffix, bits, per_double in (("double", "", 64, 1), ("float", "f", 32, 2)):
                variants = tuple(
                    VectorFunction(f"_ZGV{letter}N{lanes}{'v' * arity}_{name}{suffix}", scalar_type, lanes, arity)
                    for letter, lanes in ((letter, doubles * per_double) for letter, doubles in _instruction_sets(features))
                )
                present = tuple(variant for variant in variants if llvm.address_of_symbol(variant.name))
                if present:
                    known[f"{name}{suffix}"] = known[f"llvm.{name}.f{bits}"] = present
    return known
