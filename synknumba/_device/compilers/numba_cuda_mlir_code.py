"""Code of operations that numba-cuda-mlir 0.6 has none for, or wrong code; registered in this
process by `complete`.

    threadfence…         no code, reported as a bug of the compiler; kernels of expectations need it
    a != b of floats     false where one is NaN
    a < b, …             of an integer and a float: an unsigned integer is taken for a signed one
    max, min             the same for all unsigned integers
    atomic.max, …        the same; values are widened without their sign, and negative indices are not from the end
    a ** b               computed in the width of `a`, though the result is an integer of 64 bits
    -a, ~a               of unsigned integers: widened with a sign, or before they are inverted
    x[i], range(i)       unsigned integers below 64 bits are taken for signed ones
    float16              sums, products and quotients are float32, and rounded where they are stored
    shfl_…sync           float64 comes as float32, and 64-bit integers without their upper half

Signatures are more specific than the package's own, so that they are found before these. Another
version may have other private
parts: it does not import then, rather than compute otherwise.
"""  # noqa: E501

import functools
import operator
from collections.abc import Callable
from typing import Any

from numba_cuda_mlir import cuda, types
from numba_cuda_mlir._mlir.dialects import arith, llvm, nvvm
from numba_cuda_mlir._mlir.extras import types as mlir
from numba_cuda_mlir.extending import (
    lower_builtin,
    lowering_registry,
    refresh_registries,
    typing_registry,
)
from numba_cuda_mlir.lowering import numpy
from numba_cuda_mlir.lowering.builtins import lower_range
from numba_cuda_mlir.lowering.cuda import (
    constant,
    cuda_atomic_cas_cg,
    cuda_atomic_cg,
    cuda_generic_atomic_cg,
    int_of,
    registry,
)
from numba_cuda_mlir.lowering.math import _convert_operand, _load_and_convert_operand, ipowi, pow_cg
from numba_cuda_mlir.lowering_utilities import RangeObject, memref_to_llvm_ptr
from numba_cuda_mlir.numba_cuda.fp16 import typing_registry as half_registry

# Pairs of an integer and a float.
_MIXED = (types.Float, types.Integer), (types.Integer, types.Float)

# The operations on float16 whose result is float16.
_OF_HALVES = {
    *(operator.add, operator.sub, operator.mul, operator.truediv),
    *(operator.iadd, operator.isub, operator.imul, operator.itruediv),
}

# Updates of elements, of unsigned integers in the second, that are not what the package emits for
# its own operation.
_OF_ANY = {cuda.atomic.exch: llvm.AtomicBinOp.xchg}
_OF_UNSIGNED = {
    cuda.atomic.max: llvm.AtomicBinOp.umax,
    cuda.atomic.min: llvm.AtomicBinOp.umin,
    cuda.atomic.nanmax: llvm.AtomicBinOp.umax,
    cuda.atomic.nanmin: llvm.AtomicBinOp.umin,
}
_OTHERS = tuple(
    getattr(cuda.atomic, name) for name in ("add", "sub", "and_", "or_", "xor", "inc", "dec")
)

# Names, kinds, and the last lane of a warp, which bounds all but `up`.
_SHUFFLES = (
    ("shfl_sync", "idx", 31),
    ("shfl_up_sync", "up", 0),
    ("shfl_down_sync", "down", 31),
    ("shfl_xor_sync", "bfly", 31),
)


@functools.cache
def complete() -> None:
    """Registers the code, once in a process."""
    _register_fences()
    _register_comparisons()
    _register_arithmetic()
    _register_indices()
    _register_halves()
    _register_atomics()
    _register_shuffles()


def _register_fences() -> None:
    registered = {member for _, member, _ in (*registry.functions, *lowering_registry.functions)}
    for name, scope in (
        ("threadfence_block", "CTA"),
        ("threadfence", "GPU"),
        ("threadfence_system", "SYS"),
    ):
        if getattr(cuda, name) not in registered:
            lower_builtin(getattr(cuda, name))(functools.partial(_fence, nvvm.MemScopeKind[scope]))


def _register_comparisons() -> None:
    for name in ("eq", "lt", "le", "gt", "ge"):
        emit = functools.partial(
            _compare, getattr(operator, name), arith.CmpFPredicate[f"O{name.upper()}"]
        )
        for kinds in _MIXED:
            lower_builtin(getattr(operator, name), *kinds)(emit)
    emit = functools.partial(_compare, operator.ne, arith.CmpFPredicate.UNE)
    for kinds in (*_MIXED, (types.Float, types.Float)):
        lower_builtin(operator.ne, *kinds)(emit)


def _register_arithmetic() -> None:
    for function in (max, min):
        emit = functools.partial(_extreme, function.__name__)
        for kinds in (*_MIXED, (types.Integer, types.Integer)):
            lower_builtin(function, *kinds)(emit)
    lower_builtin(operator.neg, types.Integer)(functools.partial(_change, arith.subi, 0))
    lower_builtin(operator.invert, types.Integer)(functools.partial(_change, arith.xori, -1))
    for power in (operator.pow, operator.ipow, pow):
        lower_builtin(power, types.Integer, types.Integer)(_power)


def _register_indices() -> None:
    for length in (1, 2, 3):
        lower_builtin(range, *[types.Integer] * length)(_range)
    numpy._normalize_negative_index = _position  # noqa: SLF001


def _register_halves() -> None:
    """Installs the types of operations on float16, which the package has written, but asks after
    those of float32.
    """
    for function, registration in half_registry.globals:
        if function in _OF_HALVES:
            for template in registration.templates:
                template.metadata = {"target": "cuda"}  # is asked first
            typing_registry.register_global(function, registration)
    refresh_registries(target=False, include_uninitialized_cuda=False)


def _register_atomics() -> None:
    for index in (types.Integer, types.UniTuple, types.Tuple):
        for number in (types.Integer, types.Float):
            for member in (*_OF_ANY, *_OF_UNSIGNED, *_OTHERS):
                lower_builtin(member, types.Array, index, number)(
                    functools.partial(_update, member)
                )
            for old in (types.Integer, types.Float):
                lower_builtin(cuda.atomic.cas, types.Array, index, old, number)(_swap)


def _register_shuffles() -> None:
    for name, kind, clamp in _SHUFFLES:
        emit = functools.partial(_shuffle, nvvm.ShflKind[kind], clamp)
        for number in (types.float64, types.int64, types.uint64):
            lower_builtin(getattr(cuda, name), types.Integer, number, types.Integer)(emit)


def _converted(builder: Any, arg: Any, kind: Any) -> Any:
    """Returns the value of an argument in another type, as Numba converts it."""
    return _load_and_convert_operand(builder, arg, kind, builder.get_mlir_type(kind))


def _fence(scope: Any, builder: Any, target: Any, *_: Any) -> None:
    nvvm.memory_barrier(scope)
    builder.store_var(target, None)


def _compare(
    operation: Callable[..., Any], predicate: Any, builder: Any, target: Any, args: Any, *_: Any
) -> None:
    """Compares numbers in the floating-point type that Numba finds for them."""
    kinds = tuple(builder.get_numba_type(arg.name) for arg in args)
    kind = builder.context.typing_context.resolve_function_type(operation, kinds, {}).args[0]
    builder.store_var(
        target, arith.cmpf(predicate, *(_converted(builder, arg, kind) for arg in args))
    )


def _extreme(name: str, builder: Any, target: Any, args: Any, *_: Any) -> None:
    kind = builder.get_numba_type(target.name)
    ending = ("si" if kind.signed else "ui") if isinstance(kind, types.Integer) else "numf"
    operation = getattr(arith, f"{name}{ending}")
    builder.store_var(target, operation(*(_converted(builder, arg, kind) for arg in args)))


def _change(operation: Any, number: int, builder: Any, target: Any, args: Any, *_: Any) -> None:
    """Computes `operation(number, value)` in the type of the value, as Numba does, and widens
    the result.
    """
    source, kind = builder.get_numba_type(args[0].name), builder.get_numba_type(target.name)
    value = builder.load_var(args[0])
    result = operation(constant(number, value.type), value)
    builder.store_var(target, _convert_operand(result, source, kind, builder.get_mlir_type(kind)))


def _power(builder: Any, target: Any, args: Any, named: Any) -> None:
    kind = builder.get_numba_type(target.name)
    if isinstance(kind, types.Integer):
        builder.store_var(target, ipowi(*(_converted(builder, arg, kind) for arg in args)))
    else:
        pow_cg(builder, target, args, named)


def _range(builder: Any, target: Any, args: Any, named: Any) -> None:
    if all(builder.get_numba_type(arg.name).signed for arg in args):
        lower_range(builder, target, args, named)
        return
    first, *rest = (_converted(builder, arg, types.int64) for arg in args)
    bounds = [first, *rest] if rest else [constant(0, mlir.i64()), first]
    builder.store_var(
        target, RangeObject(builder, *bounds, *[constant(1, mlir.i64())] * (3 - len(bounds)))
    )


_from_end = numpy._normalize_negative_index  # noqa: SLF001  # what every access to an element calls


def _position(array: Any, index: Any, axis: int, kind: Any = None) -> Any:
    """Returns the index of an element; those of unsigned types are widened by zeros first."""
    if isinstance(kind, types.Integer) and not kind.signed:
        index = int_of(index, mlir.i64())
    return _from_end(array, index, axis, kind)


def _place(builder: Any, array: Any, index: Any) -> tuple[Any, list[Any], Any]:
    """Returns what an atomic operation needs of its array: memory, indices, and Numba's type of
    the elements.
    """
    memory, places, kinds = (
        builder.load_var(array),
        builder.load_var(index),
        builder.get_numba_type(index.name),
    )
    if isinstance(kinds, types.Integer):
        kinds, places = (kinds,), (places,)
    indices = [
        _position(memory, place, axis, kind)
        for axis, (place, kind) in enumerate(zip(places, kinds, strict=True))
    ]
    return memory, indices, builder.get_numba_type(array.name).dtype


def _update(member: Any, builder: Any, target: Any, args: Any, *_: Any) -> None:
    """Updates an element by a number that is converted to its type first."""
    array, index, number = args
    memory, indices, kind = _place(builder, array, index)
    value = _converted(builder, number, kind)
    operation = _OF_ANY.get(member)
    if isinstance(kind, types.Integer) and not kind.signed:
        operation = _OF_UNSIGNED.get(member, operation)
    if member in _COUNTS:
        cuda_generic_atomic_cg(builder, target, memory, indices, value, _COUNTS[member])
    elif operation is None:
        cuda_atomic_cg(member, builder, target, memory, indices, value)
    else:
        address = memref_to_llvm_ptr(memory, indices, value.type)
        builder.store_var(
            target, llvm.atomicrmw(operation, address, value, llvm.AtomicOrdering.monotonic)
        )


def _increase(element: Any, bound: Any) -> Any:
    """Returns `0 if element >= bound else element + 1`."""
    is_over = arith.cmpi(arith.CmpIPredicate.uge, element, bound)
    return arith.select(
        is_over, constant(0, element.type), arith.addi(element, constant(1, element.type))
    )


def _decrease(element: Any, bound: Any) -> Any:
    """Returns `bound if element == 0 or element > bound else element - 1`; with 0 - 1 as the
    largest number, one comparison.
    """
    less = arith.subi(element, constant(1, element.type))
    return arith.select(arith.cmpi(arith.CmpIPredicate.uge, less, bound), bound, less)


_COUNTS = {cuda.atomic.inc: _increase, cuda.atomic.dec: _decrease}


def _swap(builder: Any, target: Any, args: Any, *_: Any) -> None:
    """Compares and swaps, with numbers that are converted to the type of the element first."""
    array, index, *numbers = args
    memory, indices, kind = _place(builder, array, index)
    cuda_atomic_cas_cg(
        builder, target, memory, indices, *(_converted(builder, number, kind) for number in numbers)
    )


def _shuffle(kind: Any, clamp: int, builder: Any, target: Any, args: Any, *_: Any) -> None:
    """Passes the two halves of a number of 64 bits."""
    mask, value, lane = map(builder.load_var, args)
    mask, lane = int_of(mask, mlir.i32()), int_of(lane, mlir.i32())
    is_integer = value.type == mlir.i64()
    bits = value if is_integer else arith.bitcast(mlir.i64(), value)
    shift, limit = constant(32, mlir.i64()), constant(clamp, mlir.i32())
    low, high = (
        arith.extui(
            mlir.i64(), nvvm.shfl_sync(mask, arith.trunci(mlir.i32(), half), lane, limit, kind)
        )
        for half in (bits, arith.shrui(bits, shift))
    )
    combined = arith.ori(low, arith.shli(high, shift))
    builder.store_var(target, combined if is_integer else arith.bitcast(value.type, combined))
