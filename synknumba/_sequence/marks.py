"""What the body of a sequence writes about its numbers: `static` and `carry`."""

from typing import Any, final

from synknumba import _tracing as tracing
from synknumba._errors import ArgumentError, shortened
from synknumba._types import class_text, known_options


@final
class Static:
    """A value that is part of a sequence. Created by `static`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        """Shows the value."""
        return f"synk.static({self.value!r})"


@shortened
def static(value: Any) -> Any:
    """Marks a number as part of a sequence: its body can compute with it, and another value makes
    another sequence.

    Args:
        value: a number, for an argument of a function decorated with `sequence`.

    Returns:
        The argument to pass.

    Raises:
        ArgumentError: the value cannot be a part of a sequence, as an array.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function
        ... def add(v, by):
        ...     v += by
        >>> @synk.sequence
        ... def add_all(v, count):
        ...     for i in range(count):  # Python's loop, when the sequence is recorded
        ...         add(v, i)
        >>> with synk.fork(2, device="cpu"):
        ...     v = synk.variable(0)
        ...     add_all(v, synk.static(4), times=10)
        ...     v.get_value()
        array(60)
    """
    try:
        hash(value)
    except TypeError:
        raise ArgumentError(
            "synk.static takes a number, or a tuple of numbers, that the body can compute with; "
            f"got {class_text(value)}. Pass an array as it is"
        ) from None
    return Static(value)


@known_options
def carry(number: Any, value: Any) -> None:
    """Gives a number that was passed to a sequence another value from the next iteration on.

    Calls after it in the same iteration still get the old value. The next call of the sequence
    begins with its own argument, as does an inner sequence each time that it is called.

    Args:
        number: a parameter of the body for which the call passes an int or a float.
        value: a number, or a formula of numbers and 0-d results of kernels; float64 for a float, an
            int for an int.

    Raises:
        ArgumentError: this is no body of a sequence; `number` was not passed to it as a number, or
            is carried already; or the value is of another kind.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function
        ... def note(v, step, n):
        ...     v[step] = n
        >>> @synk.sequence
        ... def fibonacci(v, a, b):
        ...     note(v, synk.STEP, a)
        ...     synk.carry(a, b)
        ...     synk.carry(b, a + b)
        >>> with synk.fork(2, device="cpu"):
        ...     v = synk.variable(np.zeros(8, int))
        ...     fibonacci(v, 0, 1, times=8)
        ...     v.get_value()
        array([ 0,  1,  1,  2,  3,  5,  8, 13])
    """
    recorder = tracing.current
    if recorder is None or not recorder.is_here:
        raise ArgumentError(
            "synk.carry gives a number of a sequence its next value, and there is none here; use "
            "it inside a function decorated with @synk.sequence"
        )
    recorder.carry(number, value)
