"""Arithmetic with Numba's type promotion, for kernels that run in Python.

Python and NumPy promote differently from Numba: `uint8 + uint8` wraps around in NumPy and is a
uint64 in a kernel, `float32 * 2.0` stays float32 in NumPy and is a float64 in a kernel, and Python
integers never wrap around. Every operator in user code is therefore routed through `binary` or
`unary`, which look up operand and result types in Numba's typing context.
"""

import ctypes
import ctypes.util
import functools
import math
import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numba.core import types
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from numba.np.numpy_support import from_dtype

from synknumba.simt._maths import bfloat16, float16
from synknumba.simt._maths.bfloat16 import as_dtype
from synknumba.simt._maths.math import round_decimal

Operation = Callable[..., Any]

_PLAIN: Final = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}
_DIVISIONS: Final = frozenset({operator.floordiv, operator.mod})
_PYTHON_EXACT: Final = _DIVISIONS | {
    operator.add,
    operator.sub,
    operator.mul,
    operator.and_,
    operator.or_,
    operator.xor,
}
_INT64_MIN: Final = -(1 << 63)
_INT64_END: Final = 1 << 63
_ALL_BITS: Final = (1 << 64) - 1


def scalar_type(value: object) -> type[np.generic] | None:
    """Returns the NumPy scalar type that a number has in a kernel; None for anything else."""
    kind = type(value)
    if kind is int and value >= _INT64_END:  # type: ignore[operator]
        return np.uint64
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(value, int):  # a member of an IntEnum
        return np.int64
    if isinstance(value, np.generic) and (value.dtype.kind in "biufc" or bfloat16.is_scalar(value)):
        return kind  # type: ignore[return-value]
    return None


@functools.cache
def _result_type(operation: Operation, *operands: type[np.generic]) -> type[np.generic] | None:
    """Returns the result type, to which Numba also converts the operands; None if Numba does not
    define the operation.
    """
    context = cpu_target.typing_context
    context.refresh()
    if np.float16 in operands:
        float16.register_types()
    if any(bfloat16.is_named(kind.__name__) for kind in operands):
        as_dtype(bfloat16.kind())
    try:
        function = context.resolve_value_type(operation)
        signature = context.resolve_function_type(
            function, tuple(from_dtype(np.dtype(kind)) for kind in operands), {}
        )
    except NumbaError:
        return None
    if signature is None or not isinstance(signature.return_type, (types.Number, types.Boolean)):
        return None
    return as_dtype(signature.return_type).type  # type: ignore[no-any-return]


def convert(value: Any, kind: type[np.generic]) -> Any:
    """Returns a number as a NumPy scalar of type `kind`; integers wrap around, as in C."""
    if type(value) is kind:
        return value
    if bfloat16.is_named(kind.__name__):
        return bfloat16.rounded(value, kind)
    if issubclass(kind, np.floating) and not isinstance(value, (complex, np.complexfloating)):
        return kind(value)
    if isinstance(value, int) and not isinstance(value, bool):
        bits = np.uint64(int(value) & _ALL_BITS)
        if value >= _INT64_END:
            return bits.astype(kind)
        value = bits.astype(np.int64)
    elif not isinstance(value, np.generic):
        value = np.asarray(value)[()]
    return value.astype(kind)


def binary(operation: Operation, left: Any, right: Any) -> Any:
    """Returns `left <operation> right`, computed in Numba's types.

    Raises:
        ZeroDivisionError: integer division by zero, whose result on a GPU is undefined.
    """
    if type(left) is int and type(right) is int and operation in _PYTHON_EXACT:
        result = operation(left, right)
        if _INT64_MIN <= result < _INT64_END:
            return result
        return convert(result, np.int64)
    kinds = scalar_type(left), scalar_type(right)
    if None in kinds:
        return operation(left, right)
    kind = _result_type(operation, *kinds)  # type: ignore[arg-type]
    if kind is None:
        return operation(left, right)
    left, right = convert(left, kind), convert(right, kind)
    if operation in _DIVISIONS and right == 0 and issubclass(kind, np.integer):
        raise ZeroDivisionError("integer division or modulo by zero")
    if operation is operator.pow and right < 0 and issubclass(kind, np.integer):
        return _inverse(left, right)
    return operation(left, right)


def _inverse(base: Any, exponent: Any) -> Any:
    """Returns an integer to a negative power, as Numba's machine code: 0 for most, and the least
    integer for 0.
    """
    kind = type(base)
    if base == 0:
        return kind(np.iinfo(kind).min)
    if abs(int(base)) != 1:
        return kind(0)
    if exponent % 2:
        return base
    return base * base


def unary(operation: Operation, value: Any) -> Any:
    """Returns `<operation> value`, computed in Numba's types."""
    if type(value) is int or type(value) is float:
        return operation(value)
    kind = scalar_type(value)
    if kind is None:
        return operation(value)
    result = _result_type(operation, kind)  # type: ignore[arg-type]
    if result is None:
        return operation(value)
    if kind is np.bool_ and result is not np.bool_:
        value = np.int8(value)
    return convert(operation(value), result)  # Numba also applies the operation before widening


def update_element(array: Any, index: Any, operation: Operation, value: Any) -> None:
    """Executes `array[index] <operation>= value`."""
    array[index] = binary(operation, array[index], value)


def update_attribute(record: Any, name: str, operation: Operation, value: Any) -> None:
    """Executes `record.name <operation>= value`."""
    setattr(record, name, binary(operation, getattr(record, name), value))


# ---- Python built-ins and functions of `math`


def _unified(values: tuple[Any, ...], chosen: Any) -> Any:
    """Returns `chosen`, one of `values`, in the type to which Numba unifies them."""
    kinds = [scalar_type(value) for value in values]
    if None in kinds or len(set(kinds)) == 1:
        return chosen
    kind = cpu_target.typing_context.unify_types(*(from_dtype(np.dtype(kind)) for kind in kinds))
    return convert(chosen, as_dtype(kind).type)


def _extreme(choose: Callable[..., Any], *values: Any) -> Any:
    chosen = choose(*values)
    if len(values) == 1:
        return chosen
    return _unified(values, chosen)


def _float(value: Any = 0.0) -> Any:
    if isinstance(value, np.floating):
        return value
    return float(value)


def _number(value: Any) -> Any:
    """Returns a scalar of NumPy as a number of Python."""
    if isinstance(value, np.generic):
        return value.item()
    return value


def _round(value: Any, digits: Any = None) -> Any:
    if digits is None:
        return round(_number(value))
    kind: type[np.generic] = np.float64
    if isinstance(value, np.floating):
        kind = type(value)
    with np.errstate(all="ignore"):
        return kind(round_decimal(np.float64(value), int(digits)))


# Functions that return a float for CUDA, of -0.5 a negative zero, and an int in Python.
_TO_WHOLE: Final = frozenset({"ceil", "floor", "trunc"})
# NumPy's names of `math` functions that raise at a pole or on overflow, where CUDA returns inf or
# NaN.
_NUMPY_NAMES: Final = {
    "acos": "arccos",
    "asin": "arcsin",
    "acosh": "arccosh",
    "atanh": "arctanh",
    "pow": "power",
}


def _is_short(kind: type) -> bool:
    return kind in {np.float16, np.float32} or bfloat16.is_named(kind.__name__)


def math_function(name: str) -> Callable[..., Any]:
    """Returns a `math` function with CUDA's behaviour: float32 in, float32 out, and no argument
    raises.

    Of float16, some are float16 and the others float32.
    """
    exact: Callable[..., Any] = getattr(math, name)
    of_half: type[np.floating[Any]] = np.float32
    if name in float16.OF_MATH:
        of_half = np.float16
    numpy = getattr(np, _NUMPY_NAMES.get(name, name), None)

    @functools.wraps(exact)
    def function(*args: Any) -> Any:
        try:
            result = exact(*map(_number, args))
        except (ValueError, OverflowError):
            if numpy is not None:
                result = float(numpy(*map(float, args)))
            elif name == "gamma" and args[0] > 0:
                result = math.inf
            else:
                result = math.nan
        if name in _TO_WHOLE:
            result = math.copysign(result, args[0])
        if type(result) not in {float, int} or not args:
            return result
        kinds = set(map(type, args))
        if kinds == {np.float16}:
            return of_half(result)
        if type(result) is float and all(map(_is_short, kinds)):
            return np.float32(result)
        return result

    return function


# Replacements for functions that a kernel calls, keyed by the id of the original.
CALLS: Final[dict[int, Callable[..., Any]]] = {
    id(max): functools.partial(_extreme, max),
    id(min): functools.partial(_extreme, min),
    id(float): _float,
    id(pow): functools.partial(binary, operator.pow),
    id(round): _round,
    **{
        id(getattr(math, name)): math_function(name)
        for name in dir(math)
        if callable(getattr(math, name)) and name[0] != "_"
    },
}


# ---- functions of numba.cuda

_LIBM = ctypes.CDLL(ctypes.util.find_library("m"))
_FMA: Final = {np.float32: _LIBM.fmaf, np.float64: _LIBM.fma}
for _kind, _c in ((np.float32, ctypes.c_float), (np.float64, ctypes.c_double)):
    _FMA[_kind].argtypes, _FMA[_kind].restype = [_c] * 3, _c


def fma(a: Any, b: Any, c: Any) -> Any:
    """Returns `a * b + c`, rounded once."""
    kind: type[np.floating[Any]] = np.float64
    if {type(a), type(b), type(c)} == {np.float32}:
        kind = np.float32
    return kind(_FMA[kind](float(a), float(b), float(c)))


def cbrt(value: Any) -> Any:
    """Returns the cube root."""
    if type(value) is not np.float32:
        value = np.float64(value)
    return np.cbrt(value)


def _bits(value: Any) -> tuple[int, int]:
    """Returns an integer's bits as a non-negative number, and its width in bits."""
    width = 8 * np.dtype(scalar_type(value) or np.int64).itemsize
    return int(value) & ((1 << width) - 1), width


def popc(value: Any) -> int:
    """Returns the number of set bits."""
    return _bits(value)[0].bit_count()


def brev(value: Any) -> Any:
    """Reverses the bits: all 64 of a uint64, the low 32 of any other integer, as CUDA does for
    an int64.
    """
    if scalar_type(value) is np.uint64:
        return np.uint64(int(f"{int(value):064b}"[::-1], 2))
    return np.uint32(int(f"{int(value) & 0xFFFFFFFF:032b}"[::-1], 2))


def clz(value: Any) -> int:
    """Returns the number of leading zero bits."""
    bits, width = _bits(value)
    return width - bits.bit_length()


def ffs(value: Any) -> int:
    """Returns the position of the lowest set bit, counted from 1; 0 if there is none."""
    bits, _ = _bits(value)
    return (bits & -bits).bit_length()


def selp(condition: Any, a: Any, b: Any) -> Any:
    """Returns `a` if the condition holds, else `b`, in the type to which Numba unifies them."""
    return _unified((a, b), a if condition else b)
