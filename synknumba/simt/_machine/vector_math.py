"""Calls of exp, sin, pow and the like on many elements at once, by a vector math library.

LLVM turns a loop with such a call into vector code only if it knows a vector version of the function. It is told here, on each
call in the code of a kernel, by the attribute that the vector function ABI defines for that:

    %y = call double @llvm.exp.f64(double %x) "vector-function-abi-variant"="_ZGV_LLVM_N8v_llvm.exp.f64(_ZGVeN8v_exp)"

Two libraries are looked for, the first that is there is used:

    SVML      Intel's, from the wheel intel-cmplr-lib-rt (`pip install 'synknumba[svml]'`); its versions `_ha` are right to
              about 1 unit in the last place (0.5 to 1.2 seen)
    libmvec   a part of glibc, and so of every common Linux; right to 4 units (0.8 to 3.9 seen)

For comparison: the plain functions are right to 1 unit, CUDA's own to 1 or 2 in double and up to 4 in single precision (CUDA
C++ Programming Guide, "Mathematical Functions"). The last elements of a loop, which do not fill a vector, go through the plain
functions: the last digits of the result for one element may depend on where it lies.

Numba's own way with SVML needs an LLVM built for it, which the llvmlite of PyPI is not; and it changes every function that the
process compiles, while this changes kernels alone.
"""

import ctypes
import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from llvmlite import binding as llvm
from numba.core.registry import cpu_target

# Set to "svml" or "libmvec" to use no other, to "0" or "off" to compile without.
SWITCH = "SYNKNUMBA_VECTOR_MATH"

# The wheel that has SVML. It puts it where no loader looks.
SVML_WHEEL = "intel-cmplr-lib-rt"
_SVML_NEEDS = ("libintlc.so.5",)

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
    """The vector math library that kernels are compiled for, "svml" or "libmvec", loaded; None for none."""
    wanted = os.environ.get(SWITCH, "").lower()
    if wanted in {"0", "off"} or platform.machine() != "x86_64" or llvm.llvm_version_info[0] < _OLDEST_LLVM:
        return None
    return next((name for name in ("svml", "libmvec") if wanted in {"", name} and _load(name)), None)


def describe() -> tuple[str, ...]:
    """The library, its version and the instruction sets it is used with: compiled code depends on it."""
    library = vector_library()
    if library is None:
        return ()
    return library, _load(library), "".join(letter for letter, _ in _instruction_sets(_features()))


@cache
def _load(library: str) -> str:
    """Makes a library's functions known to LLVM. Returns its version; "" if it is not there."""
    try:
        if library == "libmvec":
            llvm.load_library_permanently("libmvec.so.1")
            return os.confstr("CS_GNU_LIBC_VERSION") or "glibc"
        folder = _svml_folder()
        if folder is None:
            return ""
        for needed in _SVML_NEEDS:
            ctypes.CDLL(str(folder / needed), mode=ctypes.RTLD_GLOBAL)
        llvm.load_library_permanently(str(folder / "libsvml.so"))
        status = (folder / "libsvml.so").stat()
    except (OSError, RuntimeError):  # another C library than glibc, or a file that is not what it should be
        return ""
    return f"libsvml.so {status.st_size} {status.st_mtime_ns}"


def _svml_folder() -> Path | None:
    """Where the wheel put the library: by the installer's records, or where wheels and conda put such files."""
    folders = [Path(sys.prefix) / "lib"]
    with suppress(metadata.PackageNotFoundError):
        files = metadata.files(SVML_WHEEL) or ()
        folders[:0] = [Path(str(file.locate())).resolve().parent for file in files if file.name == "libsvml.so"]
    return next((folder for folder in folders if (folder / "libsvml.so").exists()), None)


def with_vector_math(module: llvm.ModuleRef) -> llvm.ModuleRef:
    """The module with its calls of mathematical functions marked; the same module if there are none."""
    library = vector_library()
    if library is None:
        return module
    known = _vector_functions(library, _features())
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
def _vector_functions(library: str, features: str) -> dict[str, tuple[VectorFunction, ...]]:
    """The vector versions by the name of the scalar function in LLVM's code."""
    known: dict[str, tuple[VectorFunction, ...]] = {}
    for name in (*_ONE, *_TWO):
        arity = 2 if name in _TWO else 1
        for scalar_type, suffix, bits, per_double in (("double", "", 64, 1), ("float", "f", 32, 2)):
            variants: list[VectorFunction] = []
            for letter, doubles in _instruction_sets(features):
                lanes = doubles * per_double
                libmvec, svml = f"_ZGV{letter}N{lanes}{'v' * arity}_{name}{suffix}", f"__svml_{name}{suffix}{lanes}_ha"
                variants.append(VectorFunction(svml if library == "svml" else libmvec, scalar_type, lanes, arity))
            present = tuple(variant for variant in variants if llvm.address_of_symbol(variant.name))
            if present:
                known[f"{name}{suffix}"] = known[f"llvm.{name}.f{bits}"] = present
    return known
