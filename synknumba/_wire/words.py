"""Words of 8 bytes as compiled code reads and writes them, and what else it takes from the machine and the C library.

What is made of these is compiled in `_spin`, which has to change with this file.
"""

import platform
import time
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I64, _I32 = ir.IntType(64), ir.IntType(32)
_CLOCK_MONOTONIC_COARSE = 6  # time.h


def _pointer(builder: Any, base: Any, word: Any) -> Any:
    """The address of an int64 word of the control block."""
    address = builder.add(base, builder.shl(word, ir.Constant(_I64, 3)))
    return builder.inttoptr(address, _I64.as_pointer())


def _loading(order: str) -> Any:
    """The type and the code of an atomic load."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0], args[1]), order, 8)

    return types.int64(types.int64, types.int64), codegen


def _storing(order: str) -> Any:
    """Those of an atomic store."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _pointer(builder, args[0], args[1]), order, 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


def _updating(operation: str) -> Any:
    """Those of a load and a store in one step, sequentially consistent."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw(operation, _pointer(builder, args[0], args[1]), args[2], "seq_cst")

    return types.int64(types.int64, types.int64, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def load_acquire(typingctx: Any, base: Any, word: Any) -> Any:
    """Reads a word; what its writer stored before it is visible afterwards."""
    return _loading("acquire")


@intrinsic  # type: ignore[untyped-decorator]
def load_ordered(typingctx: Any, base: Any, word: Any) -> Any:
    """Reads a word, sequentially consistent."""
    return _loading("seq_cst")


@intrinsic  # type: ignore[untyped-decorator]
def store_ordered(typingctx: Any, base: Any, word: Any, value: Any) -> Any:
    """Writes a word, sequentially consistent."""
    return _storing("seq_cst")


@intrinsic  # type: ignore[untyped-decorator]
def store_release(typingctx: Any, base: Any, word: Any, value: Any) -> Any:
    """Writes a word that is read behind another one, which its writer stores later, or by nobody else."""
    return _storing("release")


@intrinsic  # type: ignore[untyped-decorator]
def exchange(typingctx: Any, base: Any, word: Any, value: Any) -> Any:
    """Writes a word and returns what it held, in one step."""
    return _updating("xchg")


@intrinsic  # type: ignore[untyped-decorator]
def fetch_add(typingctx: Any, base: Any, word: Any, value: Any) -> Any:
    """Adds to a word and returns what it held, in one step."""
    return _updating("add")


def _calling(arguments: int) -> Any:
    """The type and the code of a call of a C function at an address with so many pointers; it returns an int."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        declared = ir.FunctionType(_I32, [_I64] * arguments)
        code = builder.call(builder.inttoptr(args[0], declared.as_pointer()), args[1:])
        return builder.sext(code, _I64)

    return types.int64(*[types.int64] * (1 + arguments)), codegen


@intrinsic  # type: ignore[untyped-decorator]
def call_with_two(typingctx: Any, function: Any, first: Any, second: Any) -> Any:
    """Calls a C function."""
    return _calling(2)


@intrinsic  # type: ignore[untyped-decorator]
def call_with_three(typingctx: Any, function: Any, first: Any, second: Any, third: Any) -> Any:
    """Calls a C function."""
    return _calling(3)


@intrinsic  # type: ignore[untyped-decorator]
def store_half(typingctx: Any, address: Any, value: Any) -> Any:
    """Writes the lower 4 bytes of a word."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _I32.as_pointer())
        builder.store_atomic(builder.trunc(args[1], _I32), pointer, "monotonic", 4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def as_single(typingctx: Any, word: Any) -> Any:
    """The bits of a float64 as those of the nearest float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        single = builder.fptrunc(builder.bitcast(args[0], ir.DoubleType()), ir.FloatType())
        return builder.zext(builder.bitcast(single, _I32), _I64)

    return types.int64(types.int64), codegen


clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))
MONOTONIC = int(time.CLOCK_MONOTONIC)

memcmp = types.ExternalFunction("memcmp", types.int32(types.int64, types.int64, types.int64))
memcpy = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))

sched_yield = types.ExternalFunction("sched_yield", types.int32())


@intrinsic  # type: ignore[untyped-decorator]
def pause(typingctx: Any) -> Any:
    """Tells the core that it spins, where there is an instruction for it; some 20 to 50 ns, and no system call."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        match platform.machine():
            case "x86_64":
                builder.call(
                    builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), ir.FunctionType(ir.VoidType(), [])), []
                )
            case "aarch64":
                barrier = ir.FunctionType(ir.VoidType(), [ir.IntType(32)])  # isb: a yield does next to nothing there
                builder.call(builder.module.declare_intrinsic("llvm.aarch64.isb", (), barrier), [ir.IntType(32)(15)])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic  # type: ignore[untyped-decorator]
def clock(typingctx: Any) -> Any:
    """Milliseconds, from a clock that is read in some 5 ns without a system call and ticks every 1 to 10 ms."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        timespec = ir.ArrayType(_I64, 2)  # seconds, nanoseconds
        memory = cgutils.alloca_once(builder, timespec)
        declared = ir.FunctionType(ir.IntType(32), [ir.IntType(32), timespec.as_pointer()])
        function = cgutils.get_or_insert_function(builder.module, declared, "clock_gettime")
        builder.call(function, [ir.IntType(32)(_CLOCK_MONOTONIC_COARSE), memory])
        seconds, nanoseconds = (builder.extract_value(builder.load(memory), i) for i in range(2))
        return builder.add(builder.mul(seconds, _I64(1000)), builder.sdiv(nanoseconds, _I64(1_000_000)))

    return types.int64(), codegen
