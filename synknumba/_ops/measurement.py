"""`Measurement`: a value computed from means of rows, with its standard error.

    Measurement and any      +, −, *, / of the values            errors propagated to first order
    powers, |a|, NumPy's exp, log, sqrt, sin, … of the value     likewise

Errors of the same rows are not independent, so an operation on two operands that share an identity of
rows is refused; so is a / (a + b), where `+` might be meant as that of the means.

`Quantity` has what a `Measurement` has in common with an `Estimate` of the rows (`estimate.py`).
Comparisons are left out: whether two means "are equal" or one is greater is a statistical test, at
a level that only the user can choose; `==` compares identities of objects.
"""  # noqa: E501

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from operator import is_, is_not, neg, pos
from typing import TYPE_CHECKING, Any, NoReturn, Self, final

import numpy as np

from synknumba import _html
from synknumba._errors import ArgumentError, MemberError, ReductionError
from synknumba._ops import notation
from synknumba._ops.derivatives import DERIVATIVES
from synknumba._types import Array, class_text

# NumPy's arrays and scalars on the left call these ufuncs in place of Python's operators.
_OPERATORS: dict[np.ufunc, str] = {
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.true_divide: "truediv",
    np.power: "pow",
}
_DIRECT: dict[np.ufunc, Callable[..., Any]] = {
    np.negative: neg,
    np.positive: pos,
    np.equal: is_,
    np.not_equal: is_not,
}


class Quantity(ABC):
    """A mean with its standard error: powers, and NumPy's functions of it, to first order."""

    __slots__ = ()

    @abstractmethod
    def _measured(self) -> "Measurement":
        """Returns mean and standard error."""

    @abstractmethod
    def _function_of_means(self, function: str, operands: tuple[Any, ...]) -> str:
        """Returns the expression that propagates errors through a NumPy function of
        `operands`, which include this one.
        """

    if not TYPE_CHECKING:  # type checkers know what it has

        def __getattr__(self, name: str) -> NoReturn:
            """Names the numbers that it has, as others call them std or value."""
            if name.startswith("_"):  # which copy, pickle and NumPy look for
                raise AttributeError(name)
            raise MemberError(
                f"{class_text(self)} has no {name!r}: mean is its value, and stderr the standard "
                "error of that; an Estimate also has variance and count, of its rows"
            )

    def _refuse_order(self, _operand: object) -> NoReturn:
        raise ArgumentError(
            f"{class_text(self)} has no order, as it has a mean and a standard error: write "
            "e.stderr < 1e-3 to ask for an error, as until=synk.tolerance(absolute=1e-3) does, or "
            "e.mean < 1e-3"
        )

    __lt__ = __le__ = __gt__ = __ge__ = _refuse_order

    def _repr_html_(self) -> str | None:
        """Shows means and errors in a notebook."""
        return _html.of_quantity(self)

    def __float__(self) -> float:
        """Returns a single value."""
        mean = self._measured().mean
        if np.ndim(mean):
            raise ArgumentError(
                f"float() takes an estimate of one value, got {len(mean)} values; use its mean"
            )
        return float(mean)

    def __str__(self) -> str:
        """Concise notation: 0.19877(12) for 0.19877 ± 0.00012; several values in brackets."""
        measured = self._measured()
        return notation.text(measured.mean, measured.stderr)

    def __format__(self, spec: str) -> str:
        """Applies a format of floats (".3f", "10.2e") to mean and standard error; any other, as
        ">20", to the text.
        """
        measured = self._measured()
        return notation.formatted(measured.mean, measured.stderr, spec)

    def __pos__(self) -> Self:
        return self

    @abstractmethod
    def __neg__(self) -> Self: ...

    def __rsub__(self, operand: Any) -> Any:
        return -self + operand

    @abstractmethod
    def __add__(self, operand: Any) -> Any: ...

    def __abs__(self) -> "Measurement":
        return _through(np.absolute, self._measured())

    def __pow__(self, operand: Any) -> "Measurement":
        """Raises the mean to a power: `a**2` is the square of the mean, not the mean of squares."""
        return _combined(self._measured(), operand, _power)

    def __rpow__(self, operand: Any) -> "Measurement":
        return _combined(self._measured(), operand, lambda a, s, b, t: _power(b, t, a, s))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Propagates errors through NumPy's functions of one number, and leaves operations of
        arrays to this object.
        """
        is_plain = method == "__call__" and not options
        if is_plain:
            result = self._applied(ufunc, inputs)
            if result is not NotImplemented:
                return result
        first = next(operand for operand in inputs if isinstance(operand, Quantity))
        if method != "__call__":  # as np.sum(a) ends in np.add.reduce
            raise ArgumentError(_no_array(f"np.{ufunc.__name__}.{method}", first))
        second = ""
        if len(inputs) > 1:
            second = ", x"
        way_out = f"pass its mean, as in np.{ufunc.__name__}(a.mean{second})"
        if is_plain and any(signature[-1] not in "?O" for signature in ufunc.types):
            line = first._function_of_means(f"np.{ufunc.__name__}", inputs)  # noqa: SLF001  # same class
            way_out = f"write {line}, which propagates the error to first order, or {way_out}"
        raise ArgumentError(f"np.{ufunc.__name__} takes no {type(first).__name__}: {way_out}")

    def _applied(self, ufunc: np.ufunc, inputs: tuple[Any, ...]) -> Any:
        """Returns a NumPy function of operands, of which one is this; NotImplemented if it is none
        that propagates errors.
        """
        if ufunc in DERIVATIVES:
            return _through(ufunc, self._measured())
        if ufunc in _DIRECT:
            return _DIRECT[ufunc](*inputs)
        if ufunc not in _OPERATORS:
            return NotImplemented
        left, right = inputs
        name = _OPERATORS[ufunc]  # by name, since `left * right` would come here again
        if isinstance(left, Quantity):
            return getattr(left, f"__{name}__")(right)
        return getattr(right, f"__r{name}__")(left)

    def __array_function__(self, function: Callable[..., Any], *_: Any) -> Any:
        """Refuses NumPy's functions of arrays, some of which call methods that estimates lack."""
        raise ArgumentError(_no_array(f"np.{function.__name__}", self))


def _no_array(called: str, quantity: Quantity) -> str:
    return (
        f"{called} is for arrays, and this is one {type(quantity).__name__}, a mean with its "
        "standard error; write a.mean, a.stderr or a.variance for its numbers, a + b for the "
        "estimate of the rows of both, and 2 * a or np.exp(a) for functions of it"
    )


def _operator(
    combine: Callable[..., tuple[Any, Any]],
) -> Callable[["Measurement", Any], "Measurement"]:
    """Returns the method of an operator, from what `_combined` combines by."""
    return lambda measurement, operand: _combined(measurement, operand, combine)


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Measurement(Quantity):
    """A value with its standard error, computed from the means of estimates.

    Returned by `a - b`, `a * b`, `a / b` of estimates, and by `Estimate.propagate`. It has no
    `count`, and `+`, `-`, `*`, `/` all combine values, with numbers, measurements and estimates.
    Errors are propagated to first order for independent operands: JCGM 100:2008 (GUM), equation 10;
    so they are by `**`, `abs` and NumPy's functions of one number. If both operands contain the
    same rows, as in `a / (a - b)`, they are refused; `propagate` takes such functions. With several
    values, operations are elementwise.

    >>> from synknumba import Estimate
    >>> a, b = Estimate.from_values([9.0, 10.0, 11.0]), Estimate.from_values([4.9, 5.1])
    >>> print(a / b, 2 * (a - b), f"{a * b:.1f}")
    2.00(12) 10.0(1.2) 50.0 ± 3.1

    Attributes:
        mean: the value, a float or shape (k,).
        stderr: its standard error, a float or shape (k,).
        rows: identities of the rows that it was computed from.
    """

    mean: Any
    stderr: Any
    rows: frozenset[bytes] = frozenset()

    def __neg__(self) -> "Measurement":
        return Measurement(-self.mean, self.stderr, self.rows)

    __add__ = __radd__ = _operator(lambda a, s, b, t: (a + b, np.hypot(s, t)))
    __sub__ = _operator(lambda a, s, b, t: (a - b, np.hypot(s, t)))
    __mul__ = __rmul__ = _operator(lambda a, s, b, t: (a * b, np.hypot(b * s, a * t)))
    __truediv__ = _operator(lambda a, s, b, t: (a / b, np.hypot(s / b, a / b * (t / b))))
    __rtruediv__ = _operator(lambda a, s, b, t: (b / a, np.hypot(t / a, b / a * (s / a))))

    def _measured(self) -> "Measurement":
        return self

    def _function_of_means(self, function: str, operands: tuple[Any, ...]) -> str:
        arguments = named_operands(operands, self, "x / y", "z")
        return (
            f"one function of the means of estimates, as in a.propagate(lambda x, y: "
            f"{function}({arguments}), b)"
        )

    def __repr__(self) -> str:
        """Shows value and standard error at full precision."""
        return (
            f"Measurement(mean={np.asarray(self.mean).tolist()!r}, "
            f"stderr={np.asarray(self.stderr).tolist()!r})"
        )


def named_operands(operands: tuple[Any, ...], quantity: Quantity, name: str, rest: str) -> str:
    """Returns the operands as text: `name` for the quantity, and `rest` for all others."""
    names = [rest] * len(operands)
    for position, operand in enumerate(operands):
        if operand is quantity:
            names[position] = name
    return ", ".join(names)


def _combined(
    measurement: Measurement, operand: Any, combine: Callable[..., tuple[Any, Any]]
) -> Measurement:
    """Returns combine(mean, stderr, other mean, other stderr), for independent errors."""
    if isinstance(operand, Quantity):
        operand = operand._measured()  # noqa: SLF001  # same module
    else:
        array = real_array(operand)
        if array is None:
            return NotImplemented
        operand = Measurement(array, np.zeros(array.shape))
    if measurement.rows & operand.rows:
        raise shared_rows()
    left, right = np.shape(measurement.mean), np.shape(operand.mean)
    if len(right) > 1 or (left and right and left != right):
        raise ReductionError(
            f"operands must be single values or have one shape (k,), got {left} and {right}"
        )
    # division by a mean of 0 and overflow give infinity or NaN, as in arrays
    with np.errstate(all="ignore"):
        numbers = (measurement.mean, measurement.stderr, operand.mean, operand.stderr)
        value, error = combine(*map(np.asarray, numbers))
    return Measurement(as_value(value), as_value(error), measurement.rows | operand.rows)


def _through(function: np.ufunc, measurement: Measurement) -> Measurement:
    """Returns a function of a value, elementwise, with its error to first order."""
    with np.errstate(all="ignore"):
        mean, stderr = np.asarray(measurement.mean), np.asarray(measurement.stderr)
        value, error = np.asarray(function(mean)), _part(DERIVATIVES[function](mean), stderr)
    return Measurement(as_value(value), as_value(error), measurement.rows)


def as_value(array: Array) -> Any:
    """Returns an array, or the float that it holds if it has no axes."""
    if array.ndim:
        return array
    return float(array)


def _power(a: Array, s: Array, b: Array, t: Array) -> tuple[Array, Array]:
    """Returns aᵇ and its error, of a ± s and b ± t."""
    value = a**b
    return value, np.hypot(
        _part(np.where(b == 0, 0.0, b * a ** (b - 1)), s), _part(np.log(a) * value, t)
    )


def _part(slope: Array, stderr: Array) -> Array:
    """Returns the error that an operand with this error brings; 0 if it has none, also where
    there is no slope.
    """
    return np.where(stderr == 0, 0.0, np.absolute(slope) * stderr)


def shared_rows() -> ReductionError:
    """Returns the error for operands that have rows in common."""
    return ReductionError(
        "errors are propagated for independent rows, but the same rows occur in more than one "
        "operand; write one function of the means, as in a.propagate(lambda x, y: x / (x + y), b)"
    )


def real_array(value: Any) -> Array | None:
    """Returns a real number or an array of real numbers as float64; None for other types."""
    if isinstance(value, np.ndarray | np.generic):
        is_real = value.dtype.kind in "biuf"
    else:
        is_real = isinstance(value, Real)
    if not is_real:
        return None
    return np.asarray(value, np.float64)


def real_number(value: Any) -> float:
    """Returns the one real number that a function of means must return."""
    array = real_array(value)
    if array is None or array.size != 1:
        raise ReductionError(
            f"the function that propagate gets must return one real number, got {value!r}"
        )
    return float(array.reshape(-1)[0])
