"""Compiles a launch function to machine code with Numba, with three extensions for kernels.

- Unique symbols. A kernel loaded from the cache shares the process with others of the same name,
  and LLVM resolves two functions of one name to the first.
- Vector math. Calls such as `exp` in loops may become calls of a vector library (see
  `_machine.vector_math`).
- Interleaving. Loops that draw random numbers process several vectors side by side.

Interleaving hides the latency of Philox: its ten rounds form a dependency chain, so a core mostly
waits for multiplications, and the next vector's rounds are too many instructions ahead for
out-of-order execution to reach. LLVM does not interleave long loops, as it assumes that the core
looks far enough ahead. Metadata on the branch that ends a loop (`llvm.loop.interleave.count`) makes
it emit the instructions of several vectors side by side. Nanoseconds per sample with 1, 2 and 4
vectors on a core of an AMD EPYC 9004: π by an expectation 2.2, 1.9 and 1.7, an option's price 6.1,
5.4 and 4.7; with 256-bit registers 4.5, 3.4 and 3.5, and 11.1, 8.8 and 7.0.

Kernels without random numbers are left to LLVM. The metadata has no effect on loops that cannot be
vectorised or reordered.
"""

import re
from dataclasses import dataclass
from typing import Any, final

from llvmlite import binding as llvm
from numba.core import config, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompileResult
from numba.core.environment import lookup_environment

from synknumba.simt._machine.vector_math import with_vector_math
from synknumba.simt._numba.calls import with_few_checks
from synknumba.simt._numba.passes import with_fewer_passes

# The multipliers 0xD2511F53 and 0xCD9E8D57 identify Philox. LLVM may express one as the other plus
# a difference.
_PHILOX = ("3528531795", "3449720151")
_SOBOL = ("1025551850",)  # 0x3D20ADEA of the scramble
_LABEL = re.compile(r'([\w.$-]+|"[^"]+"):')
_TARGET = re.compile(r'label %([\w.$-]+|"[^"]+")')
_METADATA = re.compile(r"^!(\d+) = ", re.MULTILINE)


def jit_problem() -> str | None:
    """Returns why Numba compiles nothing, if the script has switched it off."""
    if not config.DISABLE_JIT:
        return None
    return (
        "NUMBA_DISABLE_JIT is set, with which Numba compiles nothing; unset it (simt.debug runs "
        "kernels in Python without it)"
    )


def with_interleaving(module: llvm.ModuleRef, features: str) -> llvm.ModuleRef:
    """Returns the module, not yet optimised, with interleaving metadata on its loops if it draws
    random numbers.

    `features` are those of the processor in LLVM's notation, separated by commas.
    """
    text = str(module)
    if not any(multiplier in text for multiplier in _PHILOX + _SOBOL):
        return module
    # AVX-512 has 32 vector registers; with 16, more than two vectors' state would spill heavily.
    noted = llvm.parse_assembly(note_loops(text, 4 if "+avx512f" in features.split(",") else 2))
    noted.name = module.name
    return noted


def note_loops(text: str, vectors: int) -> str:
    """Returns a module's text with interleaving metadata on each backward branch that has no
    loop metadata.
    """
    number = 1 + max(map(int, _METADATA.findall(text)), default=-1)
    hint = f"!{number}"
    notes = [f'{hint} = !{{!"llvm.loop.interleave.count", i32 {vectors}}}']
    lines: list[str] = []
    above: set[str] = set()  # labels seen so far in the current function
    for line in text.splitlines():
        label = _LABEL.match(line)
        if line.startswith("define "):
            above.clear()
        elif label is not None:
            above.add(label[1])
        elif (
            line.startswith("  br ")
            and "!llvm.loop" not in line
            and not above.isdisjoint(_TARGET.findall(line))
        ):
            number += 1
            notes.append(f"!{number} = distinct !{{!{number}, {hint}}}")
            line += f", !llvm.loop !{number}"  # noqa: PLW2901
        lines.append(line)
    return "\n".join([*lines, *notes]) + "\n"


# Numba's prefix for calls resolved at run time, such as recursive ones.
_UNRESOLVED = ".numba.unresolved$"

# Numba's prefix for the variable that holds the address of a function's environment, its Python
# objects.
_ENVIRONMENT = "_ZN08NumbaEnv"


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch function that is not compiled yet.

    Attributes:
        dispatcher: Numba's dispatcher.
        text: its source, with the body in place of the call.
        body: the dispatcher of the body, which several launch functions share; None if the launch
            function holds it.
        any_block_size: whether the code serves all blocks that have many threads, or few, as the
            one that it is made for.
    """

    dispatcher: Any
    text: str
    body: Any = None
    any_block_size: bool = False


@dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled launch function.

    Attributes:
        entry: takes the sizes of grid and block, the bytes of dynamic shared memory, then the
            kernel's arguments.
        text: its Python source.
        result: Numba's result.
        any_block_size: as of the launch function.
        environments: the environments whose names no other kernel's functions have.
    """

    entry: Any
    text: str
    result: CompileResult
    any_block_size: bool = False
    environments: tuple[Any, ...] = ()


class PrivateLibrary(JITCodeLibrary):
    """Code library whose callees have names of their own.

    Numba numbers functions in each process, from 1, so a callee that another process has compiled
    and stored may have the name of another function here.
    """

    _final_module: llvm.ModuleRef

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if function.linkage is llvm.Linkage.linkonce_odr and not function.is_declaration:
                function.linkage = llvm.Linkage.internal  # a callee; no other module links to it
        super()._optimize_final_module()
        # LLVM's loader resolves internal functions by name too. Code loaded later would bind to
        # these instead of its own functions of that name, with a wrong signature: LLVM may have
        # removed arguments of internal functions.
        for function in self._final_module.functions:
            if function.linkage is llvm.Linkage.internal and not function.is_declaration:
                function.name = f"{self.name}.{function.name}"


@final
class KernelLibrary(PrivateLibrary):
    """Code library of a kernel: private symbols, vector math and interleaving."""

    def _optimize_final_module(self) -> None:
        features = self.codegen.magic_tuple()[2]
        self._final_module = with_interleaving(with_vector_math(self._final_module), features)
        super()._optimize_final_module()

    def _finalize_final_module(self) -> None:
        super()._finalize_final_module()
        for variable in self._final_module.global_variables:
            if (
                variable.name.startswith(_ENVIRONMENT)
                and (environment := lookup_environment(variable.name)) is not None
            ):
                self._codegen.set_env(variable.name, environment)

    def bound_to_process(self) -> str | None:
        """Returns the reason why the code is valid in this process only; None if it can be
        stored.
        """
        if self.has_dynamic_globals:
            return "it holds a pointer or a large array"
        if any(
            variable.name.startswith(_UNRESOLVED)
            for variable in self._final_module.global_variables
        ):
            return "it calls a function that is compiled with it, such as a recursive one"
        return None


class _WithoutEnvironments:
    """Numba's code generator for a library without machine code, in which no environment can be
    set.
    """

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        """Does nothing: the library of a kernel sets the environments of the functions that it
        has taken over.
        """


@final
class DeviceLibrary(JITCodeLibrary):
    """Code library of a device function: LLVM code alone, which kernels take over.

    Each function has been through LLVM's function passes, as kernels have: without them,
    `a * b + c` would be fused elsewhere.
    """

    @property
    def codegen(self) -> Any:
        """Numba's code generator."""
        return _WithoutEnvironments(self._codegen)

    def _optimize_final_module(self) -> None:
        """Leaves the optimisation of modules to kernels."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Returns 0, since nothing is loaded."""
        return 0


class PrivateCompiler(Compiler):
    """Numba's compiler, emitting into a `PrivateLibrary`."""

    library_class = PrivateLibrary

    def define_pipelines(self) -> Any:
        library = self.library_class(
            self.state.targetctx.codegen(), self.state.func_id.func_qualname
        )
        library.enable_object_caching()
        self.state.library = library
        return super().define_pipelines()


class _KernelCompiler(PrivateCompiler):
    """Numba's compiler, emitting into a `KernelLibrary`."""

    library_class = KernelLibrary

    def define_pipelines(self) -> Any:
        self.state.targetctx = with_few_checks(self.state.targetctx)
        return [with_fewer_passes(manager) for manager in super().define_pipelines()]


class _DeviceCompiler(Compiler):
    """Numba's compiler, emitting into a `DeviceLibrary`."""

    def define_pipelines(self) -> Any:
        self.state.library = DeviceLibrary(
            self.state.targetctx.codegen(), self.state.func_id.func_qualname
        )
        self.state.targetctx = with_few_checks(self.state.targetctx)
        return [with_fewer_passes(manager) for manager in super().define_pipelines()]


def make_device(dispatcher: Any) -> Any:
    """Returns the dispatcher of a device function, changed so that it compiles to LLVM code for
    kernels only.
    """
    dispatcher.targetoptions |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    dispatcher._compiler.pipeline_class = _DeviceCompiler  # noqa: SLF001
    return dispatcher


def compile_launch(launch: Launch, argtypes: tuple[types.Type, ...], key: str) -> Compiled:
    """Compiles a launch function; `key`, the kernel's in the cache or "", makes its symbols
    unique.
    """
    environments = []
    for dispatcher in filter(None, (launch.body, launch.dispatcher)):
        if dispatcher is launch.dispatcher:
            dispatcher.targetoptions["no_cfunc_wrapper"] = (
                True  # for calls through a C pointer, which do not occur
            )
            dispatcher._compiler.pipeline_class = _KernelCompiler  # noqa: SLF001
        if argtypes not in dispatcher.overloads:
            if key:
                function = dispatcher.py_func
                function.__qualname__ = f"{function.__qualname__}_{key[:16]}"
            dispatcher.compile(argtypes)
        environments.append(dispatcher.overloads[argtypes].environment)
    result = launch.dispatcher.overloads[argtypes]
    return Compiled(
        result.entry_point, launch.text, result, launch.any_block_size, tuple(environments)
    )
