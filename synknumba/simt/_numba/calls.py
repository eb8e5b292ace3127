"""Numba's target for kernels: no checks of calls of functions that never raise, and CUDA's shifts.

A function that Numba compiles returns a code, and its caller looks whether that tells of an
exception: 20 instructions of LLVM and four blocks, for each product of complex numbers too. LLVM
finds out that they are in vain when it inlines the function, at the end; until then each of its
passes takes them along. The code of a function compiled before tells at once: if it returns nothing
but 0, calls of it need no check.
"""

import re
from typing import Any, final

from llvmlite import ir
from numba.core import callconv, cgutils, types
from numba.core.compiler import Flags
from numba.core.cpu import CPUContext
from numba.core.targetconfig import ConfigStack

from synknumba._types import WeakTable
from synknumba.simt._maths.bits import SHIFTS

# Functions that never raise, by library and name.
_by_library: WeakTable[Any, dict[str, bool]] = WeakTable()
# In LLVM's text of a function: a return of anything but the constant 0.
_FAILURE = re.compile(r"^  ret (?!i32 0)", re.MULTILINE)
# Parts of Numba's operators. Those of other functions raise where a kernel divides by zero.
_internal: dict[Any, Any] = {}


def never_raises(library: Any, name: str) -> bool:
    """Returns whether the library has the function of this name, and it returns no code of an
    exception.
    """
    functions = _by_library.setdefault(library, {})
    if name not in functions:
        try:
            function = library._get_module_for_linking().get_function(name)  # noqa: SLF001  # what Numba links to
        except NameError:
            functions[name] = False
        else:
            functions[name] = not function.is_declaration and not _FAILURE.search(str(function))
    return functions[name]


@final
class _CallConvention(callconv.CPUCallConv):  # type: ignore[misc]
    """Numba's convention; one object serves one call."""

    _may_raise = True

    def call_function(self, builder: Any, callee: Any, *args: Any, **options: Any) -> Any:
        """Emits a call. Returns its status and result."""
        libraries = {*self.context.active_code_library._linking_libraries}  # noqa: SLF001  # the list has one for each call
        self._may_raise = True
        if isinstance(callee, ir.Function):  # not a recursive one, which is called by its address
            self._may_raise = not any(never_raises(library, callee.name) for library in libraries)
        return super().call_function(builder, callee, *args, **options)

    def _get_return_status(self, builder: Any, code: Any, excinfoptr: Any) -> Any:
        if self._may_raise:
            return super()._get_return_status(builder, code, excinfoptr)
        flags = [name for name in callconv.Status._fields if name.startswith("is_")]
        fields = dict.fromkeys(flags, cgutils.false_bit) | {"is_ok": cgutils.true_bit}
        return callconv.Status(**fields, code=code, excinfoptr=excinfoptr)

    def return_status_propagate(self, builder: Any, status: Any) -> None:
        """Returns from the function that is emitted with the code of a call, if the call has
        failed.
        """
        if status.is_error is cgutils.false_bit:
            builder.unreachable()
        else:
            super().return_status_propagate(builder, status)


@final
class _Context(CPUContext):  # type: ignore[misc]
    """Numba's target, with checks of calls where they are needed."""

    @property
    def call_conv(self) -> Any:
        """A calling convention, for one call."""
        return _CallConvention(self)

    def _compile_subroutine_no_cache(self, *args: Any, flags: Any = None, **options: Any) -> Any:
        """Compiles a part of an operator, such as the division of `x ** -1`, by the kernel's
        rule for divisions by zero.
        """
        if flags is None:
            flags = Flags()
            flags.nrt = ConfigStack().top().nrt
            flags.error_model = "numpy"
            if self.error_model.raise_on_fp_zero_division:
                flags.error_model = "python"
        return super()._compile_subroutine_no_cache(*args, flags=flags, **options)

    def get_function(self, fn: Any, sig: Any, **options: Any) -> Any:
        """Returns what emits a call, and links to the libraries of the function, which Numba
        does after the call.
        """
        is_shift = isinstance(fn, types.Function) and fn.typing_key in SHIFTS
        if is_shift and all(isinstance(kind, types.Integer) for kind in sig.args):
            shift = SHIFTS[fn.typing_key]
            return lambda builder, args, _loc=None: shift(self, builder, sig, args)
        emits = super().get_function(fn, sig, **options)
        self.add_linking_libs(getattr(emits, "libs", ()))
        return emits

    def get_ufunc_info(self, ufunc_key: Any) -> dict[str, Any]:
        """Returns the emitters of a NumPy function by its types, with CUDA's shifts."""
        emitters: dict[str, Any] = super().get_ufunc_info(ufunc_key)
        if ufunc_key in SHIFTS:
            return dict.fromkeys(emitters, SHIFTS[ufunc_key])
        return emitters


def with_few_checks(context: Any) -> Any:
    """Returns a copy of Numba's target that emits calls without checks where they are in vain."""
    copy = context.subtarget()
    copy.__class__ = _Context
    copy.cached_internal_func = _internal
    return copy
