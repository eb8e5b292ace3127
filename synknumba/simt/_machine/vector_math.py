"""Vectorised exp, sin, pow and other math functions in kernels, from a vector math library.

LLVM vectorises a loop that calls such a function only if it knows a vector version of it. This
module adds that information to each call in a kernel's code, as the attribute defined by the vector
function ABI:

    %y = call double @llvm.exp.f64(double %x)
    "vector-function-abi-variant"="_ZGV_LLVM_N8v_llvm.exp.f64(_ZGVeN8v_exp)"

The first library found is used:

    SVML      Intel's, from the wheel intel-cmplr-lib-rt (`pip install 'synknumba[svml]'`); the `_ha` variants are accurate to
              about 1 ulp (0.5 to 1.2 measured)
    libmvec   part of glibc, hence on every common Linux; accurate to 4 ulp (0.8 to 3.9 measured)

For comparison: scalar functions are accurate to 1 ulp, CUDA's to 1 or 2 ulp in double and up to 4
in single precision (CUDA C++ Programming Guide, "Mathematical Functions"). The remainder of a loop,
which does not fill a vector, calls the scalar functions, so the last digits of an element's result
may depend on its position.

Numba's own SVML support needs an LLVM built for it, which PyPI's llvmlite is not, and it affects
every function that the process compiles; this module affects kernels only.
"""  # noqa: E501

import ctypes
import os
import platform
import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from llvmlite import binding as llvm
from numba.core.registry import cpu_target

# Environment variable: "svml" or "libmvec" selects that library only, "0" or "off" disables vector
# math.
SWITCH = "SYNKNUMBA_VECTOR_MATH"

# The wheel that contains SVML, outside the loader's search path.
SVML_WHEEL = "intel-cmplr-lib-rt"
_SVML_NEEDS = ("libintlc.so.5",)

# Unary and binary functions. glibc has the first line since 2.22, the others since 2.35.
_ONE: tuple[str, ...] = ("exp", "log", "sin", "cos")
_ONE += (
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cbrt",
    "cosh",
    "erf",
    "erfc",
    "exp10",
    "exp2",
    "expm1",
)
_ONE += ("log10", "log1p", "log2", "sinh", "tan", "tanh")
_TWO = ("pow", "atan2", "hypot")

# Letter of the instruction set in the x86-64 vector ABI, required feature, doubles per register.
_INSTRUCTION_SETS = (("b", "", 2), ("c", "+avx", 4), ("d", "+avx2", 4), ("e", "+avx512f", 8))

# Earlier versions print pointers with another syntax.
_OLDEST_LLVM = 16

_CALL = re.compile(r"call [^@\"]*?\b(?:double|float) @([\w.]+)\(")
_METADATA = re.compile(r"(, ![^\"]*)?$")
_USED = "@llvm.compiler.used"


@dataclass(frozen=True, slots=True)
class VectorFunction:
    """A vector version of a scalar function, for one vector length."""

    name: str
    scalar_type: str
    lanes: int
    arity: int

    def mapping(self, scalar: str) -> str:
        """Returns the attribute entry that maps the scalar function to this one."""
        return f"_ZGV_LLVM_N{self.lanes}{'v' * self.arity}_{scalar}({self.name})"

    def declaration(self) -> str:
        """Returns the declaration in LLVM assembly."""
        vector = f"<{self.lanes} x {self.scalar_type}>"
        return (
            f"declare {vector} @{self.name}({', '.join([vector] * self.arity)}) "
            f"memory(none) nounwind willreturn"
        )


def vector_library() -> str | None:
    """Loads the vector math library for kernels and returns its name, "svml" or "libmvec"; None
    if there is none.
    """
    wanted = os.environ.get(SWITCH, "").lower()
    if (
        wanted in {"0", "off"}
        or platform.machine() != "x86_64"
        or llvm.llvm_version_info[0] < _OLDEST_LLVM
    ):
        return None
    return next(
        (name for name in ("svml", "libmvec") if wanted in {"", name} and _load(name)), None
    )


def describe() -> tuple[str, ...]:
    """Returns library, version and instruction sets, on which compiled code depends; empty
    without a library.
    """
    library = vector_library()
    if library is None:
        return ()
    return library, _load(library), "".join(letter for letter, _ in _instruction_sets(_features()))


@cache
def _load(library: str) -> str:
    """Loads a library's symbols into LLVM. Returns the library version; "" if it is not
    available.
    """
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
    except (OSError, RuntimeError):  # not glibc, or a damaged file
        return ""
    return f"libsvml.so {status.st_size} {status.st_mtime_ns}"


def _svml_folder() -> Path | None:
    """Returns the folder of libsvml.so, from the wheel's records or `sys.prefix`/lib, which
    conda uses; None if absent.
    """
    paths = [path for path in sys.path if isinstance(path, str)]  # imports ignore the others
    folders: list[Path] = []
    for wheel in metadata.distributions(name=SVML_WHEEL, path=paths):
        folders += [
            Path(str(file.locate())).resolve().parent
            for file in wheel.files or ()
            if file.name == "libsvml.so"
        ]
    folders.append(Path(sys.prefix) / "lib")
    return next((folder for folder in folders if (folder / "libsvml.so").exists()), None)


def with_vector_math(module: llvm.ModuleRef) -> llvm.ModuleRef:
    """Returns the module with vector variants on its math calls; the same module if there is
    nothing to mark.
    """
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


def mark_calls(text: str, vectorised: dict[str, tuple[VectorFunction, ...]]) -> str:
    """Returns a module's text with the attribute on each call of a known function, and the
    vector functions declared.
    """
    lines: list[str] = []
    declared: dict[str, VectorFunction] = {}
    for line in text.splitlines():
        call = _CALL.search(line)
        if call is not None and call[1] in vectorised:
            declared |= {variant.name: variant for variant in vectorised[call[1]]}
            attribute = ",".join(variant.mapping(call[1]) for variant in vectorised[call[1]])
            line = _METADATA.sub(rf' "vector-function-abi-variant"="{attribute}"\1', line, count=1)  # noqa: PLW2901
        lines.append(line)
    if not declared:
        return text
    lines += [variant.declaration() for variant in declared.values()]
    # Keeps LLVM from dropping the declarations before it vectorises.
    names = ", ".join(f"ptr @{name}" for name in declared)
    lines.append(
        f'{_USED} = appending global [{len(declared)} x ptr] [{names}], section "llvm.metadata"'
    )
    return "\n".join(lines) + "\n"


def _features() -> str:
    """Returns the processor features that Numba compiles for."""
    return cpu_target.target_context.codegen().magic_tuple()[2]  # type: ignore[no-any-return]


def _instruction_sets(features: str) -> list[tuple[str, int]]:
    """Returns letter and doubles per register of the best supported instruction set for each
    register size.
    """
    given = features.split(",")
    found = {
        doubles: letter
        for letter, feature, doubles in _INSTRUCTION_SETS
        if not feature or feature in given
    }
    return [(letter, doubles) for doubles, letter in found.items()]


@cache
def _vector_functions(library: str, features: str) -> dict[str, tuple[VectorFunction, ...]]:
    """Returns the available vector versions, keyed by the scalar function's name in LLVM code."""
    known: dict[str, tuple[VectorFunction, ...]] = {}
    for name in (*_ONE, *_TWO):
        arity = 2 if name in _TWO else 1
        for scalar_type, suffix, bits, per_double in (("double", "", 64, 1), ("float", "f", 32, 2)):
            variants: list[VectorFunction] = []
            for letter, doubles in _instruction_sets(features):
                lanes = doubles * per_double
                libmvec, svml = (
                    f"_ZGV{letter}N{lanes}{'v' * arity}_{name}{suffix}",
                    f"__svml_{name}{suffix}{lanes}_ha",
                )
                variants.append(
                    VectorFunction(
                        svml if library == "svml" else libmvec, scalar_type, lanes, arity
                    )
                )
            present = tuple(variant for variant in variants if llvm.address_of_symbol(variant.name))
            if present:
                known[f"{name}{suffix}"] = known[f"llvm.{name}.f{bits}"] = present
    return known
