"""From a launch function to machine code, by Numba, with what a kernel needs besides.

- Its symbols are its own: a kernel that is loaded from the cache lies in one process with others of the same name, and LLVM
  would take the first of two functions with one name for both.
- Calls such as `exp` in its loops may become calls of a vector library (see `_vector_math`).
- Loops that draw random numbers work on several vectors in turns (see `_interleave`).
"""

from dataclasses import dataclass
from typing import Any, final

from llvmlite import binding as llvm
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompileResult

from synknumba.simt._machine.interleave import with_interleaving
from synknumba.simt._machine.vector_math import with_vector_math

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
