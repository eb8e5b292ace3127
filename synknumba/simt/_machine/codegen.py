"""From a launch function to machine code, by Numba, with what a kernel needs besides.

- Its symbols are its own: a kernel that is loaded from the cache lies in one process with others of the same name, and LLVM
  would take the first of two functions with one name for both.
- Calls such as `exp` in its loops may become calls of a vector library (see `_vector_math`).
- Loops that draw random numbers work on several vectors in turns (see `_interleave`).

Loops that draw random numbers work on several vectors in turns.

The ten rounds of Philox wait for each other: a processor that is about to multiply has little else to do, and the next vector's
rounds are too many instructions away for it to look ahead. LLVM leaves long loops as they are, for it expects the processor to
look ahead far enough. So it is told, by a note on the branch that ends a loop, to write the instructions of several vectors
side by side. Nanoseconds a sample with 1, 2 and 4 vectors, on a core of an AMD EPYC 9004: π by an expectation 2.2, 1.9 and 1.7,
an option's price 6.1, 5.4 and 4.7; with registers of 256 bits 4.5, 3.4 and 3.5, and 11.1, 8.8 and 7.0.

Other kernels are left to LLVM. Where a loop cannot be made of vectors, or may not be reordered, the note means nothing.
"""

import re
from dataclasses import dataclass
from typing import Any, final

from llvmlite import binding as llvm
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompileResult

from synknumba.simt._machine.vector_math import with_vector_math

# The multipliers 0xD2511F53 and 0xCD9E8D57, which nothing else has. LLVM may have written one as the other and a difference.
_PHILOX = ("3528531795", "3449720151")
_LABEL = re.compile(r'([\w.$-]+|"[^"]+"):')
_TARGET = re.compile(r'label %([\w.$-]+|"[^"]+")')
_METADATA = re.compile(r"^!(\d+) = ", re.MULTILINE)


def with_interleaving(module: llvm.ModuleRef, features: str) -> llvm.ModuleRef:
    """The module with notes on its loops if it draws random numbers; else the same module.

    Args:
        module: not optimized yet.
        features: of the processor, as LLVM names them.
    """
    text = str(module)
    if not any(multiplier in text for multiplier in _PHILOX):
        return module
    # With 16 registers of vectors, what more than two keep would not fit by far.
    noted = llvm.parse_assembly(note_loops(text, 4 if "+avx512f" in features.split(",") else 2))
    noted.name = module.name
    return noted


def note_loops(text: str, vectors: int) -> str:
    """A module's text with a note on each branch that goes back, unless it has one."""
    number = 1 + max(map(int, _METADATA.findall(text)), default=-1)
    hint = f"!{number}"
    notes = [f'{hint} = !{{!"llvm.loop.interleave.count", i32 {vectors}}}']
    lines: list[str] = []
    above: set[str] = set()  # labels of the function
    for line in text.splitlines():
        label = _LABEL.match(line)
        if line.startswith("define "):
            above.clear()
        elif label is not None:
            above.add(label[1])
        elif line.startswith("  br ") and "!llvm.loop" not in line and not above.isdisjoint(_TARGET.findall(line)):
            number += 1
            notes.append(f"!{number} = distinct !{{!{number}, {hint}}}")
            line += f", !llvm.loop !{number}"  # noqa: PLW2901
        lines.append(line)
    return "\n".join([*lines, *notes]) + "\n"


# How Numba marks a call that is resolved when the process runs, such as that of a recursive function.
_UNRESOLVED = ".numba.unresolved$"


@dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled launch function.

    Attributes:
        entry: to be called with the sizes of grid and block, then the kernel's arguments.
        text: its Python source.
        result: what Numba made.
    """

    entry: Any
    text: str
    result: CompileResult


@final
class KernelLibrary(JITCodeLibrary):
    """The machine code of a kernel."""

    _final_module: llvm.ModuleRef

    def _optimize_final_module(self) -> None:
        features = self.codegen.magic_tuple()[2]
        module = with_interleaving(with_vector_math(self._final_module), features)
        for function in module.functions:
            if function.linkage is llvm.Linkage.linkonce_odr and not function.is_declaration:
                function.linkage = llvm.Linkage.internal  # a function it calls; nothing else is linked with it
        self._final_module = module
        super()._optimize_final_module()
        # LLVM's loader knows internal functions by name as well. Code that is loaded later would take them for its own of that
        # name, and call them wrongly: what is internal may have lost arguments.
        for function in self._final_module.functions:
            if function.linkage is llvm.Linkage.internal and not function.is_declaration:
                function.name = f"{self.name}.{function.name}"

    def bound_to_process(self) -> str | None:
        """Why the code means something in this process only; None if it does not."""
        if self.has_dynamic_globals:
            return "it holds a pointer or a large array"
        if any(variable.name.startswith(_UNRESOLVED) for variable in self._final_module.global_variables):
            return "it calls a function that is compiled with it, such as a recursive one"
        return None


class _KernelCompiler(Compiler):
    """Numba's compiler, which puts the code into a library of ours."""

    def define_pipelines(self) -> Any:
        library = KernelLibrary(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        library.enable_object_caching()
        self.state.library = library
        return super().define_pipelines()


def compile_launch(dispatcher: Any, text: str, argtypes: tuple[types.Type, ...], key: str) -> Compiled:
    """Compiles a launch function.

    Args:
        dispatcher: what `njit` made of it.
        text: its source.
        argtypes: Numba's types of its arguments.
        key: the kernel's in the cache, which goes into its symbols; "" if it has none.
    """
    if key:
        function = dispatcher.py_func
        function.__qualname__ = f"{function.__qualname__}_{key[:16]}"
    dispatcher.targetoptions["no_cfunc_wrapper"] = True  # for calls by a C pointer, which nobody makes
    dispatcher._compiler.pipeline_class = _KernelCompiler  # noqa: SLF001
    dispatcher.compile(argtypes)
    result = dispatcher.overloads[argtypes]
    return Compiled(result.entry_point, text, result)
