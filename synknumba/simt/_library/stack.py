"""The end of the stack, which recursive device functions ask for: beyond it, the operating system would end the process.

    launch           begins: end = its frame − SPACE
    device function  at each call, if it is recursive: is its frame below that end?

Launches hold the interpreter's lock, or are those of a rank's only thread, so that one word serves all threads.
"""

import ctypes
import resource
from typing import Any, Final

from llvmlite import binding, ir
from numba.core import types
from numba.extending import intrinsic

_SYMBOL: Final = "synknumba_stack_end"
_USUAL: Final = 8 << 20  # bytes of a stack on Linux; with "unlimited", threads have less: 2 MiB
_MOST: Final = 64 << 20  # bytes that recursion may take where the limit is higher

_end = ctypes.c_int64(0)
binding.add_symbol(_SYMBOL, ctypes.addressof(_end))  # by name, so that code on disk finds it in the next process


def space() -> int:
    """Returns the bytes that recursion in a launch may take: three quarters of the stack, as the launch's callers need some."""
    limit = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return min(_USUAL // 4 if limit == resource.RLIM_INFINITY else limit, _MOST) // 4 * 3


def _frame(builder: Any) -> Any:
    """Emits an address in the frame of the function that is being compiled, an int64."""
    with builder.goto_entry_block():
        return builder.ptrtoint(builder.alloca(ir.IntType(8)), ir.IntType(64))


def _word(builder: Any) -> Any:
    known = builder.module.globals.get(_SYMBOL)
    return known or ir.GlobalVariable(builder.module, ir.IntType(64), _SYMBOL)


@intrinsic  # type: ignore[untyped-decorator]
def stack_begins(_context: Any, nbytes: types.Type) -> Any:
    """Notes that recursive functions may take this many bytes of the stack from here on."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        builder.store(builder.sub(_frame(builder), args[0]), _word(builder))
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def stack_ends(_context: Any) -> Any:
    """Returns whether the calling function is beyond the end of the stack."""

    def codegen(_context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        return builder.icmp_signed("<", _frame(builder), builder.load(_word(builder)))

    return types.boolean(), codegen
