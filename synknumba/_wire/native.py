"""Calls of compiled functions by address, with arguments in words: what compiled code can do in
place of a step.

A function compiled by Numba takes the addresses of its result and of its error, and then its
arguments, an array as several numbers. They are all kept in one array of words of 8 bytes:

    result | error | argument | argument | …

A thunk, a C function of two addresses, loads the words and calls the function. It depends on the
machine types of the words alone, so few are needed, and a scalar of a launch is changed by a store.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, TypeAlias, final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.callconv import excinfo_ptr_t
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from synknumba._types import Array
from synknumba._wire.compiled import compiled
from synknumba._wire.doorbell import ANY_RESULT

RESULT, ERROR, FIRST = range(3)  # words of a call: result, address of its error, first argument

_I64, _I32 = ir.IntType(64), ir.IntType(32)


@final
@dataclass(frozen=True, slots=True)
class NativeCopy:
    """A copy of contiguous memory.

    Attributes:
        target, source: addresses.
        nbytes: number of bytes.
        owner: objects that own the memory.
    """

    target: int
    source: int
    nbytes: int
    owner: object


@final
class NativeCall:
    """A call of a function compiled by Numba.

    Args:
        address: of the function.
        kinds: Numba types of its arguments.
        args: the arguments.
        owner: object that owns the function's code.
        changing: indices of arguments that may be replaced by numbers of the same type, by their
            positions for the caller.

    Attributes:
        words: the words of the call.

    Raises:
        TypeError: an argument has no form in words.
    """

    def __init__(
        self,
        address: int,
        kinds: Sequence[types.Type],
        args: Sequence[Any],
        owner: object,
        changing: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.address = address
        self.changing = changing
        self._kinds = tuple(kinds)
        parts = [words_of(kind, arg) for kind, arg in zip(kinds, args, strict=True)]
        machine = _machine_types(self._kinds)
        if sum(map(len, parts)) != len(machine):
            raise TypeError(kinds)
        counts = [len(part) for part in parts]
        self._begins = [FIRST + sum(counts[:index]) for index in range(len(counts))]
        self.words: Array = np.frombuffer(
            bytearray(8 * FIRST) + b"".join(map(b"".join, parts)), np.int64
        )
        library, self.thunk = _thunk(machine)
        self._kept = (library, owner, tuple(args))

    def place(self, position: int) -> tuple[Array, types.Type]:
        """Returns the word of a replaceable argument, as 8 bytes, and the argument's type."""
        index = self.changing[position]
        begin = self._begins[index]
        return self.words[begin : begin + 1].view(np.uint8), self._kinds[index]

    def store(self, position: int, value: Any) -> None:
        """Replaces an argument that may be replaced."""
        index = self.changing[position]
        parts = b"".join(words_of(self._kinds[index], value))
        self.words.view(np.uint8)[8 * self._begins[index] :][: len(parts)] = np.frombuffer(
            parts, np.uint8
        )


NativeStep: TypeAlias = NativeCopy | NativeCall


class Native(ABC):
    """A step that compiled code may be able to run."""

    @abstractmethod
    def native(self) -> Sequence[NativeStep] | None:
        """Returns what compiled code does in place of the step; None if only Python can run it."""


def rows_of(steps: Sequence[NativeStep], result: int = ANY_RESULT) -> Array:
    """Returns the words of steps for `doorbell.run_rows`; `result` is that of the last step with
    which they are done.
    """
    rows = []
    for step in steps:
        if isinstance(step, NativeCopy):
            rows.append([0, step.target, step.source, step.nbytes])
        else:
            rows.append([step.thunk, step.address, step.words.ctypes.data, ANY_RESULT])
    if rows and isinstance(steps[-1], NativeCall):
        rows[-1][3] = result
    return np.array([len(rows), *(word for row in rows for word in row)], np.int64)


def copy_of(target: Array, source: Array) -> NativeCopy:
    """Returns the copy of an array to another of the same size; both are contiguous."""
    return NativeCopy(target.ctypes.data, source.ctypes.data, target.nbytes, (target, source))


def call_of(dispatcher: Any, argument: int, owner: object) -> NativeCall:
    """Returns a call of a function of this package compiled for one int64."""
    result = dispatcher.overloads[types.int64,]
    return NativeCall(address_of(result), (types.int64,), (argument,), (dispatcher, owner))


def address_of(result: Any) -> int:
    """Returns the address of a function compiled by Numba, in Numba's calling convention."""
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_func_name))


def words_of(kind: types.Type, value: Any) -> list[bytes]:
    """Returns an argument as words of 8 bytes; raises `TypeError` if it has no form in words."""
    match kind:
        case types.Array():
            # Without an owner: the caller keeps the array.
            numbers = (
                0,
                0,
                value.size,
                value.itemsize,
                value.ctypes.data,
                *value.shape,
                *value.strides,
            )
            return [np.int64(number).tobytes() for number in numbers]
        case types.Boolean():
            return [np.int64(bool(value)).tobytes()]
        case types.Integer():
            return [(int(value) & ((1 << kind.bitwidth) - 1)).to_bytes(8, sys.byteorder)]
        case types.Float():
            # of a kernel that is declared for float32, which has infinity
            with np.errstate(all="ignore"):
                return [np.asarray(value).astype(kind.name).tobytes().ljust(8, b"\0")]
        case types.Complex():
            part = kind.underlying_float
            return words_of(part, value.real) + words_of(part, value.imag)
        case types.BaseTuple():
            return [
                word
                for item_kind, item in zip(kind.types, value, strict=True)
                for word in words_of(item_kind, item)
            ]
    raise TypeError(kind)


def _machine_types(kinds: tuple[types.Type, ...]) -> tuple[str, ...]:
    """Returns the machine types of a function's arguments; addresses are passed as integers are."""
    declared = cpu_target.target_context.call_conv.get_function_type(types.none, kinds)
    return tuple(map(_machine_type, declared.args[2:]))


def _machine_type(kind: Any) -> str:
    return "i64" if isinstance(kind, ir.PointerType) else str(kind)


@cache
@global_compiler_lock  # type: ignore[untyped-decorator]  # Numba has no types
def _thunk(machine: tuple[str, ...]) -> tuple[Any, int]:
    """Returns the thunk for words of these machine types, and its address.

    It is written in LLVM's language, which takes a tenth of the time of compiling a Python
    function.
    """
    name = f"synknumba_thunk_{'_'.join(machine)}"
    library = cpu_target.target_context.codegen().create_library(name)
    module = library.create_ir_module(name)
    kinds = [_MACHINE[machine_type] for machine_type in machine]
    function = ir.Function(module, ir.FunctionType(_I32, [_I64, _I64]), name)
    builder = ir.IRBuilder(function.append_basic_block())
    entry, words = function.args

    def at(index: int) -> Any:
        return builder.add(words, _I64(8 * index))

    loaded = [
        builder.load(builder.inttoptr(at(FIRST + i), kind.as_pointer()))
        for i, kind in enumerate(kinds)
    ]
    callee = builder.inttoptr(entry, ir.FunctionType(_I32, [_I64, _I64, *kinds]).as_pointer())
    builder.ret(builder.call(callee, [at(RESULT), at(ERROR), *loaded]))
    library.add_ir_module(module)
    library.finalize()
    return library, int(library.get_pointer_to_function(name))


_MACHINE = {
    str(kind): kind
    for kind in (ir.HalfType(), ir.FloatType(), ir.DoubleType(), *map(ir.IntType, (8, 16, 32, 64)))
}


@intrinsic  # type: ignore[untyped-decorator]
def _propagate(typingctx: Any, code: Any, error: Any) -> Any:
    """Returns from the calling function as if a call in it had returned this code and error."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> None:
        error = builder.inttoptr(args[1], excinfo_ptr_t)
        status = context.call_conv._get_return_status(builder, builder.trunc(args[0], _I32), error)  # noqa: SLF001
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)

    return types.void(types.int64, types.int64), codegen


@compiled("void(int64, int64)")
def raise_error(code: int, error: int) -> None:
    """Raises the exception of a call that returned `code` and put its error into its words."""
    _propagate(code, error)
