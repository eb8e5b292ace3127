"""Schedules: the learning rate as a function of the number of steps made.

A schedule is a plain function of one number that Numba can compile: ranks evaluate it. The number
is a float, so that powers are those of Python, and 1 / 2**(20 * count) does not wrap as an int of
64 bits would. Those here are optax's, with its names for what they do.
"""

import math
from collections.abc import Callable
from types import FunctionType

from synknumba._errors import ArgumentError
from synknumba._host.casting import as_index

Schedule = Callable[[float], float]


def constant(value: float) -> Schedule:
    """The same value at each step.

    Args:
        value: the value.

    Example:
        >>> import synknumba as synk
        >>> rate = synk.optim.constant(0.1)
        >>> rate(0), rate(1000)
        (0.1, 0.1)
    """
    value = _number("constant", "value", value)

    def constant_rate(count: float) -> float:
        return value

    return constant_rate


def linear(start: float, end: float, steps: int) -> Schedule:
    """From `start` to `end` in equal differences over `steps` steps, and `end` after them.

    Args:
        start: value at step 0.
        end: value at step `steps`, and after it.
        steps: number of steps from the one value to the other.

    Example:
        >>> import synknumba as synk
        >>> rate = synk.optim.linear(1.0, 0.0, 4)
        >>> [rate(count) for count in range(6)]
        [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    start, end = _number("linear", "start", start), _number("linear", "end", end)
    steps = _steps("linear", "steps", steps)

    def linear_rate(count: float) -> float:
        return start + (end - start) * (min(count, steps) / steps)

    return linear_rate


def exponential(start: float, factor: float, steps: int, *, staircase: bool = False) -> Schedule:
    """The exponential start · factor^(count / steps); with `staircase`, of the whole part of the
    quotient.

    Args:
        start: value at step 0.
        factor: positive factor by which the value changes in `steps` steps.
        steps: number of steps for each factor.
        staircase: whether the value changes at multiples of `steps` only.

    Example:
        >>> import synknumba as synk
        >>> rate = synk.optim.exponential(1.0, 0.5, 10)
        >>> rate(0), rate(10), rate(20)
        (1.0, 0.5, 0.25)
    """
    start, factor = _number("exponential", "start", start), _number("exponential", "factor", factor)
    steps = _steps("exponential", "steps", steps)
    if factor <= 0:
        raise ArgumentError(f"exponential needs a positive factor, got {factor!r}")

    def exponential_rate(count: float) -> float:
        return start * factor ** (count / steps)

    def staircase_rate(count: float) -> float:
        return start * factor ** (count // steps)

    return staircase_rate if staircase else exponential_rate


def cosine(start: float, steps: int, *, end: float = 0.0) -> Schedule:
    """From `start` to `end` along half a period of a cosine over `steps` steps, and `end` after
    them.

    Source: Loshchilov and Hutter, SGDR, arXiv:1608.03983, equation 5, without restarts.

    Args:
        start: value at step 0.
        steps: number of steps from the one value to the other.
        end: value at step `steps`, and after it.

    Example:
        >>> import synknumba as synk
        >>> rate = synk.optim.cosine(1.0, 4)
        >>> [round(rate(count), 3) for count in range(6)]
        [1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    """
    start, end = _number("cosine", "start", start), _number("cosine", "end", end)
    steps = _steps("cosine", "steps", steps)

    def cosine_rate(count: float) -> float:
        return end + (start - end) * (0.5 * (1.0 + math.cos(math.pi * (min(count, steps) / steps))))

    return cosine_rate


def warm_up(schedule: Schedule | float, steps: int, *, start: float = 0.0) -> Schedule:
    """From `start` to the first value of a schedule in equal differences over `steps` steps, and
    then the schedule.

    Args:
        schedule: a schedule, or a number, for the steps after the first ones.
        steps: number of the first steps.
        start: value at step 0.

    Example:
        >>> import synknumba as synk
        >>> rate = synk.optim.warm_up(synk.optim.cosine(1.0, 4), 2)
        >>> [round(rate(count), 3) for count in range(5)]
        [0.0, 0.5, 1.0, 0.854, 0.5]
    """
    after = schedule_of("warm_up", "schedule", schedule)
    start = _number("warm_up", "start", start)
    steps = _steps("warm_up", "steps", steps)

    def warm_up_rate(count: float) -> float:
        if count < steps:
            return start + (after(0) - start) * (count / steps)
        return after(count - steps)

    return warm_up_rate


def schedule_of(what: str, name: str, value: Schedule | float) -> Schedule:
    """Returns a number as a constant schedule, and a schedule as it is; raises `ArgumentError`
    for others.
    """
    if not callable(value):
        return constant(_number(what, name, value))
    if not isinstance(value, FunctionType):
        raise ArgumentError(
            f"{what} needs {name} as a number, or as a function by def or lambda, which Numba "
            f"compiles for the ranks; got {value!r}. Write lambda count: …, with the numbers that "
            "it needs around it"
        )
    try:
        first = value(0.0)
    except Exception as error:
        raise ArgumentError(
            f"{what} got as {name} a function that fails for step 0.0: {type(error).__name__}: "
            f"{error}. It gets the number of steps as a float; a table needs int(count), and its "
            "own check of the end"
        ) from error
    _number(what, f"{name}(0)", first)
    return value


def _number(what: str, name: str, value: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool | str) or not math.isfinite(number):
        raise ArgumentError(f"{what} needs {name} as a finite number, got {value!r}")
    return number


def _steps(what: str, name: str, value: int) -> int:
    steps = as_index(value)
    if steps < 1:
        raise ArgumentError(f"{what} needs {name} as a positive int, got {value!r}")
    return steps
