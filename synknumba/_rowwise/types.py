"""The types that a vectorized function is compiled for: a signature's, or the arguments' and what follows from them.

Whether a function of one row gets arguments that it can have, and returns real numbers: told before ranks are asked.

arguments ── types of what the function gets ──> Numba's inference, nothing compiled ──> type of what it returns
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from synknumba import simt
from synknumba._call.arguments import IndexRange, PerRankValues
from synknumba._call.serialize import InnerFunction
from synknumba._device import TRAITS
from synknumba._errors import ArgumentError, KernelError
from synknumba._host.data import Data
from synknumba._rowwise.arguments import Given
from synknumba._rowwise.generate import define_kernel, kernel_name
from synknumba._rowwise.map_kernels import probe_source
from synknumba._rowwise.moment_kernels import ARRAYS_OF_ROWS, Kind
from synknumba._types import DeviceKind, RankConstant
from synknumba._variables.variable import Variable

# Which dtype kinds take a Python number: its kind and those above, whatever the width, as in NEP 50.
_WEAK_KINDS: dict[type, str] = {bool: "biufc", int: "iufc", float: "fc", complex: "c"}


@final
@dataclass(frozen=True, slots=True)
class Loop:
    """The types that a function is compiled for, Numba's.

    Attributes:
        args: of its arguments.
        result: of its result.
    """

    args: tuple[Any, ...]
    result: Any

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The result's, as NumPy's."""
        return dtype_of(self.result)

    def scope(self) -> dict[str, Any]:
        """The types by the names that they have in a kernel."""
        return {cast_name(kind): kind for kind in (*self.args, self.result)}


def cast_name(kind: Any) -> str:
    """What a type is called in a kernel."""
    return f"synk_{kind}"


def dtype_of(kind: Any) -> "np.dtype[Any]":
    """Numba's type as NumPy's."""
    from numba.np.numpy_support import as_dtype  # not when synknumba is imported

    return as_dtype(kind)  # type: ignore[no-any-return]


@final
class Signatures:
    """All that one function may be compiled for.

    Args:
        inner: the user's function.
        signatures: of (argument types, result type); a result of None is to be found out. Without any, the function is
            compiled for whatever it is called with.
    """

    def __init__(self, inner: InnerFunction, signatures: Sequence[tuple[tuple[Any, ...], Any]]) -> None:
        self._name = inner.name
        self._inner = inner
        self._signatures = tuple(signatures)
        self._results: dict[tuple[Any, ...], Any] = {}

    def choose(self, given: Sequence[Given]) -> Loop:
        """The first signature that all arguments cast to safely, as NumPy chooses; without signatures the arguments' types.

        Raises:
            ArgumentError: there is none, or Numba cannot compile the function for these types.
        """
        if not self._signatures:
            return self._with_result(tuple(one.element for one in given), None)
        return self._first(given, self._signatures)

    def choose_repeated(self, given: Given, dtype: Any) -> Any:
        """The type T with f(T, T) → T for rows of the given type.

        Args:
            given: the rows.
            dtype: T, as the user asked for; None to find it.
        """
        if dtype is not None:
            kind = _asked(dtype)
        elif self._signatures:
            alike = [one for one in self._signatures if len({*one[0]}) == 1 and one[1] in {None, one[0][0]}]
            kind = self._first([given, given], alike).args[0]
        else:
            kind = self._with_result((given.element, given.element), None).result
        loop = self.choose([Given("scalar", kind)] * 2)
        if loop.result != kind or {*loop.args} != {kind}:
            raise ArgumentError(
                f"{self._name} makes a {loop.result} of two {kind}, so it cannot go on with its result; give dtype=, or a "
                "signature of the form T(T, T)"
            )
        return kind

    def _first(self, given: Sequence[Given], signatures: Sequence[tuple[tuple[Any, ...], Any]]) -> Loop:
        for args, result in signatures:
            if all(_fits(one, kind) for one, kind in zip(given, args, strict=True)):
                return self._with_result(args, result)
        told = ", ".join(str(one.element) for one in given)
        known = "; ".join(f"({', '.join(map(str, args))})" for args, _ in self._signatures)
        raise ArgumentError(f"{self._name} has no signature that ({told}) casts to safely; it has {known}")

    def _with_result(self, args: tuple[Any, ...], result: Any) -> Loop:
        if result is None:
            result = self._results.get(args)
            if result is None:
                result = self._results[args] = _infer(self._inner, args)
        return Loop(args, result)


def parse(name: str, signatures: Any, count: int) -> tuple[tuple[tuple[Any, ...], Any], ...]:
    """What the decorator was given as signatures: one or a list of what Numba takes.

    Args:
        name: of the function.
        signatures: as given.
        count: how many parameters the function has.

    Raises:
        ArgumentError: it is no signature, or not one of so many numbers.
    """
    from numba.core import sigutils, types

    parsed = []
    for one in signatures if isinstance(signatures, list | tuple) and not _is_types(signatures) else [signatures]:
        try:
            args, result = sigutils.normalize_signature(one)
        except Exception as error:  # Numba evaluates the text, so anything may come of it
            raise ArgumentError(
                f"signature {one!r} of {name} is not one that Numba knows: {error}; write it as 'float64(float64)'"
            ) from error
        kinds = (*args, *(() if result is None else (result,)))
        if len(args) != count or not all(isinstance(kind, types.Number | types.Boolean) for kind in kinds):
            raise ArgumentError(f"signature {one!r} of {name} must be of {count} numbers and have a number as its result")
        parsed.append((tuple(args), result))
    return tuple(parsed)


def _is_types(value: Any) -> bool:
    from numba.core import types

    return isinstance(value, tuple) and all(isinstance(one, types.Type) for one in value)


def _asked(dtype: Any) -> Any:
    from numba.core.errors import NumbaError
    from numba.np.numpy_support import from_dtype

    try:
        return from_dtype(np.dtype(dtype))
    except (TypeError, NumbaError, NotImplementedError) as error:
        raise ArgumentError(f"dtype must be of a number, got {dtype!r}") from error


def integer_limits(kind: Any) -> tuple[float, float]:
    """The least and the greatest Python integer that a type takes without wrapping around."""
    dtype = dtype_of(kind)
    if dtype.kind not in "iu":
        return -math.inf, math.inf
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def out_of_range(function: str, name: str, value: int, least: float, most: float) -> ArgumentError:
    """Of a Python integer that its type does not hold; NumPy refuses it as well."""
    return ArgumentError(
        f"{name} of {function} is {value}, but its signature takes integers of {least} to {most} there; pass one of these, or "
        "an array or NumPy scalar, whose own type chooses the signature"
    )


def _fits(one: Given, kind: Any) -> bool:
    wanted = dtype_of(kind)
    if one.python is None:
        return bool(np.can_cast(dtype_of(one.element), wanted, "safe"))
    return wanted.kind in _WEAK_KINDS[one.python]


def _infer(inner: InnerFunction, kinds: tuple[Any, ...]) -> Any:
    """The type that Numba finds for what the function returns.

    Raises:
        ArgumentError: Numba cannot compile it for numbers of these types, or it returns none.
    """
    from numba.core import types
    from numba.core.errors import NumbaError

    own = kernel_name("type_of", inner.py_func.__name__)
    text = probe_source(own, [f"synk_{position}" for position in range(len(kinds))])
    probe = simt.jit(define_kernel(text, own, "vectorize", inner.device_function, {}), cache=False)
    told = f"{inner.name}({', '.join(map(str, kinds))})"
    try:
        found = probe.type_of("synk_value", *kinds)
    except (NumbaError, KernelError) as error:
        raise ArgumentError(f"{told} cannot be compiled: {error}") from error
    except NotImplementedError as error:  # of types that Numba knows, but has no arithmetic for on cores, as float16
        raise ArgumentError(
            f"{told} cannot be compiled, as Numba has no {error} there; convert the rows, for example to float32"
        ) from error
    if not isinstance(found, types.Number | types.Boolean):
        raise ArgumentError(f"{told} returns {found}; a vectorized function returns one number")
    return found


def type_key(value: Any) -> Any:
    """What of an argument decides on its type, and on what of it the function gets."""
    if isinstance(value, Data | np.ndarray):
        return value.__class__, value.dtype, value.ndim
    if isinstance(value, Variable):
        return Variable, *value.dtypes(), *map(len, value.root_shapes())
    if isinstance(value, PerRankValues):
        return PerRankValues, *map(type, value.values)
    return type(value), getattr(value, "dtype", None), getattr(value, "ndim", None)


def check_types(
    inner: InnerFunction,
    parameters: Mapping[str, Kind],
    values: Mapping[str, Any],
    *,
    size: int | None,
    weight: str | None,
    device: DeviceKind,
) -> None:
    """Refuses arguments that no kernel can have, and functions that do not return what they must.

    What Numba finds wrong inside the function is left to the ranks, which tell it with its place in the source.

    Args:
        inner: the function.
        parameters: what of each argument it gets.
        values: the arguments.
        size: of the tuple that it returns; None for a number.
        weight: the parameter that is the row's weight, if one is.
        device: that computes.

    Raises:
        ArgumentError: with the names that the user gave.
    """
    found = {name: _type_of(inner.name, name, value, parameters[name], device) for name, value in values.items()}
    if weight and not _is_real(found[weight]):
        raise ArgumentError(
            f"weights={weight!r} of {inner.name} must be an array with a real number for each row, got {found[weight]}"
        )
    if any(kind is None for kind in found.values()):
        return
    kind = _returned(inner, tuple(found.values()))
    if kind is not None and not _fits_size(kind, size):
        wanted = "a real number" if size is None else f"a tuple of {size} real numbers"
        told = ", ".join(f"{name}: {kind}" for name, kind in found.items())
        raise ArgumentError(
            f"{inner.name}({told}) returns {kind}; an expectation needs {wanted} for each row. {_way_out(kind)}"
        )


def _type_of(function: str, name: str, value: Any, told: Kind, device: DeviceKind) -> Any:
    """What the function gets, as Numba's type; None where only the ranks can tell."""
    from numba import typeof  # not when synknumba is imported
    from numba.core import types
    from numba.core.errors import NumbaError

    if isinstance(value, Variable):
        if value.is_tree:
            return None
        dtype, ndim = value.dtype, len(next(iter(value.root_shapes())))
    elif isinstance(value, IndexRange | RankConstant):
        return types.int64
    elif hasattr(value, "__array__"):
        array = value if isinstance(value, Data | np.ndarray) else np.asarray(value)
        dtype, ndim = array.dtype, array.ndim
    elif isinstance(value, list | set):
        return None  # refused by the call; Numba warns of them
    else:
        try:
            return typeof(value.values[0] if isinstance(value, PerRankValues) else value)
        except (ValueError, IndexError, NotImplementedError, NumbaError):
            return None
    element = _element(function, name, dtype, device)
    axes = ndim - 1 if told in ARRAYS_OF_ROWS else ndim
    return types.Array(element, axes, "C") if axes > 0 else element


def _element(function: str, name: str, dtype: "np.dtype[Any]", device: DeviceKind) -> Any:
    from numba.core.errors import NumbaError
    from numba.np.numpy_support import from_dtype

    try:
        kind = None if dtype.hasobject else from_dtype(dtype.newbyteorder("="))
    except (NumbaError, NotImplementedError):
        kind = None
    if kind is None:
        raise ArgumentError(
            f"{name} of {function} has dtype {dtype}, which Numba does not compute with; convert it to one of numbers"
        )
    if dtype == np.float16 and not TRAITS[device].has_float16:
        raise ArgumentError(
            f"{name} of {function} has dtype float16, which cores do not compute with; convert it, for example to float32"
        )
    return kind


def _returned(inner: InnerFunction, kinds: tuple[Any, ...]) -> Any:
    """The type of what the function returns; None if Numba does not find it."""
    from numba.core import types
    from numba.core.errors import NumbaError

    name = kernel_name("type_of", inner.py_func.__name__)
    text = probe_source(name, [f"synk_{position}" for position in range(len(kinds))])
    probe = simt.jit(define_kernel(text, name, "expectation", inner.device_function, {}), cache=False)
    try:
        found = probe.type_of("synk_value", *kinds)
    except (NumbaError, KernelError, NotImplementedError):
        return None
    return None if found is types.unknown else found


def _fits_size(kind: Any, size: int | None) -> bool:
    from numba.core import types

    if size is None:
        return _is_real(kind)
    return isinstance(kind, types.BaseTuple) and len(kind) == size and all(_is_real(one) for one in kind)


def _is_real(kind: Any) -> bool:
    from numba.core import types

    return isinstance(kind, types.Integer | types.Float | types.Boolean)


def _way_out(kind: Any) -> str:
    from numba.core import types

    if isinstance(kind, types.Optional):
        return "On some path it returns None, or nothing; return numbers on every path"
    parts = [*kind] if isinstance(kind, types.BaseTuple) else [kind]
    if any(isinstance(one, types.Complex) for one in parts):
        return "Return the real and the imaginary part as two values"
    if any(isinstance(one, types.Array) for one in parts):
        return (
            "Of rows with more dimensions the function gets an array; return its elements as a tuple, or a number made of them"
        )
    if isinstance(kind, types.BaseTuple) and all(_is_real(one) for one in parts):
        return "Give size=: the length of the tuple, or 0 for a number"
    return "Return numbers"
