"""The end of the stack, which recursive device functions ask for: beyond it, the operating system
would end the process.

    launch           begins: is its frame on the stack that is known? if not, `_find` notes the one of this thread
    device function  at each call, if it is recursive: is its frame below that end?

Launches hold the interpreter's lock, or are those of a rank's only thread, so that these words
serve all threads.
"""  # noqa: E501

import ctypes
from typing import Any, Final

from llvmlite import binding, ir

from synknumba.simt._library.typed import emitted

_END, _BEGIN, _FINDER = "synknumba_stack_end", "synknumba_stack_begin", "synknumba_stack_find"
_ATTRIBUTES: Final = 256  # bytes of a `pthread_attr_t`, of which systems use 36 to 64
_SPARE: Final = 256 << 10  # bytes at most for what a recursive function calls
_MOST: Final = 64 << 20  # bytes that recursion may take where the stack is larger

_libc = ctypes.CDLL(None)
_libc.pthread_self.restype = ctypes.c_void_p

# The addresses between which the stack may be used: stacks grow down, from the beginning to the
# end.
_end, _begin = ctypes.c_int64(0), ctypes.c_int64(0)


@ctypes.CFUNCTYPE(None)
def _find() -> None:
    """Finds the stack of the calling thread; without an end if the system does not tell."""
    attributes = ctypes.create_string_buffer(_ATTRIBUTES)
    low, size = ctypes.c_void_p(), ctypes.c_size_t()
    _end.value = _begin.value = 0
    if _libc.pthread_getattr_np(ctypes.c_void_p(_libc.pthread_self()), attributes) == 0:
        if (
            _libc.pthread_attr_getstack(attributes, ctypes.byref(low), ctypes.byref(size)) == 0
            and low.value
        ):
            _begin.value = low.value + size.value
            _end.value = max(low.value + min(size.value // 4, _SPARE), _begin.value - _MOST)
        _libc.pthread_attr_destroy(attributes)


# By name, so that code on disk finds them in the next process.
for _name, _address in (
    (_END, ctypes.addressof(_end)),
    (_BEGIN, ctypes.addressof(_begin)),
    (_FINDER, ctypes.cast(_find, ctypes.c_void_p).value),
):
    binding.add_symbol(_name, _address)


def _frame(builder: Any) -> Any:
    """Emits an address in the frame of the function that is being compiled, an int64."""
    with builder.goto_entry_block():
        return builder.ptrtoint(builder.alloca(ir.IntType(8)), ir.IntType(64))


def _word(builder: Any, name: str) -> Any:
    word = builder.module.globals.get(name)
    return word or ir.GlobalVariable(builder.module, ir.IntType(64), name)


@emitted("void()")
def stack_begins(builder: Any) -> None:
    """Finds the end of this thread's stack, unless it is known."""
    frame, module = _frame(builder), builder.module
    is_below = builder.icmp_signed("<", frame, builder.load(_word(builder, _BEGIN)))
    is_above = builder.icmp_signed(">", frame, builder.load(_word(builder, _END)))
    with builder.if_then(builder.not_(builder.and_(is_below, is_above)), likely=False):
        find = module.globals.get(_FINDER) or ir.Function(
            module, ir.FunctionType(ir.VoidType(), ()), _FINDER
        )
        builder.call(find, ())


@emitted("boolean()")
def stack_ends(builder: Any) -> Any:
    """Returns whether the calling function is beyond the end of the stack."""
    return builder.icmp_signed("<", _frame(builder), builder.load(_word(builder, _END)))
