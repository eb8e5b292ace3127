"""Types that generated kernels are compiled for, worked out in the coordinator before anything is
sent.

    arguments → types of what the function gets → Numba's type inference, without compilation → type
    of what it returns

`Signatures` chooses those of a vectorized function; `check_types` checks those of an expectation.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numba import typeof
from numba.core import sigutils, types
from numba.core.errors import NumbaError
from numba.np.numpy_support import as_dtype

from synknumba import simt
from synknumba._call.arguments import IndexRange, PerRankValues
from synknumba._call.distribute import InnerFunction
from synknumba._errors import ArgumentError, KernelError, SynkError
from synknumba._host.foreign import has_array
from synknumba._rowwise.arguments import (
    Description,
    as_array,
    branch_error,
    dtype_error,
    ndim_of,
    numba_type,
    refuse_span,
)
from synknumba._rowwise.derivative import check_differentiable
from synknumba._rowwise.generate import (
    ARRAYS_OF_ROWS,
    Kind,
    define_kernel,
    kernel_name,
    kernel_text,
)
from synknumba._types import RankConstant
from synknumba._variables.variable import Branch, Variable, state_of
from synknumba.simt.internals import cause, explain, text_of

# The dtype kinds that a Python number casts to: its own and those above, whatever the width, as in
# NEP 50.
_WEAK_KINDS: dict[type, str] = {bool: "biufc", int: "iufc", float: "fc", complex: "c"}


# Numba's message for the name of a function that it cannot call.
_PLAIN_FUNCTION = re.compile(
    r"Untyped global name '(\w+)':\s*Cannot determine Numba type of <class 'function'>"
)


def cast_name(kind: Any) -> str:
    """The name of a type in a generated kernel."""
    return f"synk_{kind}"


def infer_result(inner: InnerFunction, kinds: Sequence[Any]) -> Any:
    """Numba's type of what the function returns for arguments of these types, without compiling it.

    Raises:
        NumbaError, KernelError, NotImplementedError: Numba cannot compile it for them.
        ArgumentError: it calls a plain Python function.
    """
    name = kernel_name("type_of", inner.py_func.__name__)
    parameters = [f"synk_{position}" for position in range(len(kinds))]
    text = kernel_text(name, parameters, [f"synk_value = synk_function({', '.join(parameters)})"])
    probe = simt.jit(define_kernel(text, name, "types", inner.snapshot, {}), cache=False)
    try:
        return probe.type_of("synk_value", *kinds)
    except (SynkError, NotImplementedError):
        raise
    except Exception as error:  # of Numba's functions for types, which may raise anything
        plain = _PLAIN_FUNCTION.search(text_of(error))
        short = explain(error, inner.py_func)
        if short is not None and plain is None:
            raise short from None
        if short is not None:
            raise ArgumentError(str(short)) from None
        if plain is None and isinstance(error, NumbaError):
            raise
        if plain is None:
            raise KernelError(
                f"{inner.name} cannot be compiled: {type(error).__name__}: {text_of(error)}; check "
                f"the functions that it calls"
            ) from cause(error)
        code = inner.py_func.__code__
        raise ArgumentError(
            f"{plain[1]}, called in {inner.name} ({code.co_filename}:{code.co_firstlineno}) or in "
            "a function that it calls, is a plain Python function; decorate it with @numba.njit or "
            "@cuda.jit(device=True)"
        ) from cause(error)


# ---- vectorized functions


@final
@dataclass(frozen=True, slots=True)
class Loop:
    """Numba's types that a function is compiled for: of its arguments, and of its result."""

    args: tuple[Any, ...]
    result: Any


@final
class Signatures:
    """The types that one function may be compiled for.

    Args:
        inner: the user's function.
        signatures: (argument types, result type); a result type of None is inferred. Without
            signatures, the function is compiled for the types of the arguments.
    """

    def __init__(
        self, inner: InnerFunction, signatures: Sequence[tuple[tuple[Any, ...], Any]]
    ) -> None:
        self._name = inner.name
        self._inner = inner
        self._signatures = tuple(signatures)
        self._results: dict[tuple[Any, ...], Any] = {}
        inner.dependent.append(self._results)

    def choose(self, arguments: Sequence[Description]) -> Loop:
        """The first signature that all arguments cast to safely, as for NumPy's ufuncs; or the
        arguments' types.

        Raises:
            ArgumentError: no signature fits, or Numba cannot compile the function for these types.
        """
        if not self._signatures:
            return self._with_result(tuple(argument.element for argument in arguments), None)
        return self._first(arguments, self._signatures)

    def choose_repeated(self, argument: Description, dtype: Any) -> Any:
        """The type T with f(T, T) → T for rows of the given type: that of `dtype`, or inferred
        if it is None.
        """
        if dtype is not None:
            try:
                kind = numba_type(np.dtype(dtype))
            except TypeError:
                kind = None
            if kind is None:
                raise ArgumentError(f"dtype must be numeric, got {dtype!r}")
        elif self._signatures:
            alike = []
            for args, result in self._signatures:
                if len({*args}) == 1 and result in {None, args[0]}:
                    alike.append((args, result))
            kind = self._first([argument, argument], alike).args[0]
        else:
            kind = self._with_result((argument.element, argument.element), None).result
        loop = self.choose([Description("scalar", kind)] * 2)
        if loop.result != kind or {*loop.args} != {kind}:
            raise ArgumentError(
                f"{self._name} returns a {loop.result} for two {kind}, so its result cannot be "
                "reduced further; pass dtype= or a signature of the form T(T, T)"
            )
        return kind

    def _first(
        self, arguments: Sequence[Description], signatures: Sequence[tuple[tuple[Any, ...], Any]]
    ) -> Loop:
        for args, result in signatures:
            if all(map(_fits, arguments, args)):
                return self._with_result(args, result)
        got = _listed([argument.element for argument in arguments])
        texts = "; ".join(_listed(args) for args, _ in self._signatures)
        raise ArgumentError(
            f"{self._name} has no signature that {got} casts to safely; it has {texts}"
        )

    def _with_result(self, args: tuple[Any, ...], result: Any) -> Loop:
        if result is None:
            result = self._results.get(args)
        if result is None:
            result = self._results[args] = self._infer(args)
        return Loop(args, result)

    def _infer(self, args: tuple[Any, ...]) -> Any:
        call = f"{self._name}{_listed(args)}"
        try:
            result = infer_result(self._inner, args)
        except (NumbaError, KernelError) as error:
            raise ArgumentError(f"{call} cannot be compiled: {text_of(error)}") from cause(error)
        except NotImplementedError as error:  # types that Numba has no arithmetic for on cores
            raise ArgumentError(
                f"{call} cannot be compiled, as Numba has no {error} there; convert the "
                f"rows, for example to float32"
            ) from error
        if not isinstance(result, types.Number | types.Boolean):
            raise ArgumentError(
                f"{call} returns {result}; a vectorized function returns one number"
            )
        return result


def parse(name: str, signatures: Any, count: int) -> tuple[tuple[tuple[Any, ...], Any], ...]:
    """The signatures given to the decorator, one or a list, each in a form that Numba takes, as
    (argument types, result type).

    Raises:
        ArgumentError: one is not a signature of `count` numbers.
    """
    if _is_single(signatures):
        signatures = [signatures]
    parsed = []
    for signature in signatures:
        try:
            args, result = sigutils.normalize_signature(signature)
        except Exception as error:  # Numba evaluates the text, which may raise anything
            raise ArgumentError(
                f"signature {signature!r} of {name} is not one that Numba knows: {error}; write "
                f"it as 'float64(float64)'"
            ) from error
        kinds = [*args]
        if result is not None:
            kinds.append(result)
        if len(args) != count or not _are_all(kinds, types.Number | types.Boolean):
            raise ArgumentError(
                f"signature {signature!r} of {name} must be of {count} numbers and "
                f"have a number as its result"
            )
        parsed.append((tuple(args), result))
    return tuple(parsed)


def integer_limits(kind: Any) -> tuple[float, float]:
    """The least and the greatest Python integer that a type holds; ±∞ for types that are not
    integers.
    """
    dtype = as_dtype(kind)
    if dtype.kind not in "iu":
        return -math.inf, math.inf
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def out_of_range(function: str, name: str, value: int, least: float, most: float) -> ArgumentError:
    """The error for a Python integer that its type does not hold, which NumPy raises as well."""
    return ArgumentError(
        f"{name} of {function} is {value}, but its signature takes integers of {least} to {most} "
        "there; pass one in that range, or an array or NumPy scalar, whose type selects the "
        "signature"
    )


def _is_single(signatures: Any) -> bool:
    if isinstance(signatures, tuple):
        return _are_all(signatures, types.Type)
    return not isinstance(signatures, list)


def _listed(kinds: Iterable[Any]) -> str:
    return f"({', '.join(map(str, kinds))})"


def _are_all(values: Iterable[Any], kind: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


def _fits(argument: Description, kind: Any) -> bool:
    if argument.python is None:
        return bool(np.can_cast(as_dtype(argument.element), as_dtype(kind), "safe"))
    return as_dtype(kind).kind in _WEAK_KINDS[argument.python]


# ---- expectations


def check_types(
    inner: InnerFunction,
    parameters: Mapping[str, Kind],
    values: Mapping[str, Any],
    *,
    size: int | None,
    weight: str | None,
    by: Sequence[str] = (),
) -> None:
    """Checks the types of an expectation's arguments, and of what its function returns for them.

    Errors that Numba finds inside the function are left to the ranks, which report them with their
    place in the source. `size` and `weight` are those of the kernel's `Recipe`; `by` are the
    parameters of a derivative.

    Raises:
        ArgumentError: no kernel can take an argument, or the function does not return `size` real
            numbers.
    """
    kinds = {}
    for name, value in values.items():
        kinds[name] = _type_of(inner.name, name, value, parameters[name])
    check_differentiable(inner.name, by, parameters, kinds)
    if weight and not _is_real(kinds[weight]):
        raise ArgumentError(
            f"weights={weight!r} of {inner.name} must be an array with a real number for each "
            f"row, got {kinds[weight]}"
        )
    if None in kinds.values():
        return
    try:
        kind = infer_result(inner, [*kinds.values()])
    except (NumbaError, KernelError, NotImplementedError):
        return
    if kind is not types.unknown and not _fits_size(kind, size):
        required = "a real number"
        if size is not None:
            required = f"a tuple of {size} real numbers"
        got = ", ".join(f"{name}: {kind}" for name, kind in kinds.items())
        raise ArgumentError(
            f"{inner.name}({got}) returns {kind}; an expectation needs {required} for "
            f"each row. {_way_out(kind)}"
        )


def _type_of(function: str, name: str, value: Any, parameter: Kind) -> Any:
    """Numba's type of what the function gets; None where it is known on the ranks only."""
    if isinstance(value, Variable):
        axes = ndim_of(value)
        if axes is None:
            return None
        return _type_of_array(function, name, parameter, state_of(value).dtypes()[0], axes)
    if isinstance(value, Branch):
        raise branch_error(function, name, value)
    if isinstance(value, IndexRange | RankConstant):
        refuse_span(function, name, value)
        return types.int64
    if has_array(value):
        array = as_array(function, name, value)
        return _type_of_array(function, name, parameter, array.dtype, array.ndim)
    if isinstance(value, list | set):
        return None  # the call raises for them; `typeof` warns
    try:
        if isinstance(value, PerRankValues):
            value = value.values[0]
        return typeof(value)
    except (ValueError, IndexError, NotImplementedError, NumbaError):
        return None


def _type_of_array(
    function: str, name: str, parameter: Kind, dtype: "np.dtype[Any]", axes: int
) -> Any:
    element = None
    if not dtype.hasobject:
        element = numba_type(dtype)
    if element is None:
        raise dtype_error(function, name, dtype)
    if parameter in ARRAYS_OF_ROWS:
        axes -= 1
    if axes <= 0:
        return element
    return types.Array(element, axes, "C")


def _fits_size(kind: Any, size: int | None) -> bool:
    if size is None:
        return _is_real(kind)
    if not isinstance(kind, types.BaseTuple) or len(kind) != size:
        return False
    return all(map(_is_real, kind))


def _is_real(kind: Any) -> bool:
    return isinstance(kind, types.Integer | types.Float | types.Boolean)


def _way_out(kind: Any) -> str:
    if isinstance(kind, types.Optional):
        return "On some path it returns None; return numbers on every path"
    if isinstance(kind, types.List | types.ListType | types.Set):
        return "Return a tuple instead, as in return a, b"
    parts = [kind]
    if isinstance(kind, types.BaseTuple):
        parts = [*kind]
    if any(isinstance(part, types.Complex) for part in parts):
        return "Return the real and the imaginary part as two values"
    if any(isinstance(part, types.Array) for part in parts):
        return (
            "For rows with more dimensions, the function gets an array; return its "
            "elements as a tuple, or a number"
        )
    if isinstance(kind, types.BaseTuple) and all(map(_is_real, parts)):
        return "Pass size=: the length of the tuple, or 0 for a number"
    return "Return numbers"
