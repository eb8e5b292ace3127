"""The rows that a call with `until=` takes, part by part: how many at a time, from where, and
until which error.

    rows     0        min_rows      × 5/4      × 25/16   …    all, or max_rows
             ├───────────┼────────────┼───────────┼──
    until               asked       asked       asked

A quarter more at a time: at most a quarter of the rows are taken in vain, and 10^9 rows in 52
calls. The parts do not depend on the number of ranks.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from numbers import Real
from typing import Any, final

import numpy as np

from synknumba._call.arguments import IndexRange
from synknumba._errors import ArgumentError, DataError
from synknumba._host.casting import as_index
from synknumba._host.data import Data
from synknumba._ops.measurement import Measurement
from synknumba._rowwise.estimate import Estimate
from synknumba._types import known_options, shown

# fewer may agree by chance: ten rows of which a tenth differ are often alike, with an error bar of
# 0
MIN_ROWS = 10_000

# effective rows whose error bar is certain to 7 % if they are normally distributed
_FEWEST = 100


@known_options
def tolerance(
    *, relative: float | None = None, absolute: float | None = None
) -> Callable[[Estimate | Measurement], bool]:
    """Returns a condition for `until=`: the standard error is small enough.

    It holds if stderr < max(relative · |mean|, absolute), for each value. Fewer than 100 rows, or
    blocks, or with weights an `effective_size` below 100, never satisfy it, as their error bar is
    uncertain. A mean that is NaN or infinite satisfies it, since more rows change nothing.

    Args:
        relative: largest error as a part of the mean. If the mean is 0, all rows are taken, unless
            there is an absolute one, too.
        absolute: largest error in units of the mean.

    Returns:
        A function of an `Estimate` or a `Measurement`, so that it serves for functions of means as
        well: `until=lambda e: enough(e.control(1.0))`.

    Raises:
        ArgumentError: neither is passed, or one is not a positive, finite number.

    Example:
        >>> import synknumba as synk
        >>> @synk.expectation
        ... def pi(i, seed):
        ...     x, y = synk.random.uniform2(seed, i, 0)
        ...     return 4.0 if x * x + y * y < 1.0 else 0.0
        >>> with synk.fork(2, device="cpu"):
        ...     estimate = pi(synk.arange(10**9), 7, until=synk.tolerance(relative=1e-3))
        ...     print(estimate, estimate.count)
        3.1461(31) 284243
    """
    largest_part = _positive("relative", relative)
    largest = _positive("absolute", absolute)
    if not largest_part and not largest:
        raise ArgumentError(
            "tolerance takes relative= or absolute=, or both, as in synk.tolerance(relative=1e-3)"
        )

    def is_met(estimate: Estimate | Measurement) -> bool:
        if isinstance(estimate, Estimate) and not estimate.effective_size >= _FEWEST:
            return False
        limit = np.maximum(largest_part * np.abs(estimate.mean), largest)
        return bool(np.all((estimate.stderr < limit) | ~np.isfinite(estimate.mean)))

    return is_met


def _positive(name: str, value: Any) -> float:
    """Returns a positive number; 0 for None."""
    if value is None:
        return 0.0
    is_number = isinstance(value, Real | Decimal) and not isinstance(value, bool)
    if not is_number or not 0 < float(value) < math.inf:
        raise ArgumentError(
            f"{name} of tolerance must be a positive, finite number, got {shown(value)}"
        )
    return float(value)


@final
class RowSource:
    """The arguments of one call that have rows: arrays, of which parts are taken, or functions that
    make the next rows.

    Args:
        function: name of the expectation, for messages.
        rows: the arguments, by name.

    Raises:
        ArgumentError: some arguments are arrays and others functions.
        DataError: an array cannot be in shared memory.
    """

    def __init__(self, function: str, rows: Mapping[str, Any]) -> None:
        self._function = function
        self._makers: dict[str, Any] = {}
        self._held: dict[str, Any] = {}
        for name, value in rows.items():
            if callable(value):
                self._makers[name] = value
            else:
                self._held[name] = value
        if self._held and self._makers:
            raise ArgumentError(
                f"rows of {next(iter(self._makers))} of {function} are made by a function, but "
                f"{next(iter(self._held))} is an array; pass functions for both, or name the array "
                "in broadcast= if each row needs all of it"
            )
        for name, value in self._held.items():
            self._held[name] = self._shared(name, value)

    def _shared(self, name: str, value: Any) -> Any:
        """Returns an array in shared memory, so that it is not copied there for each part."""
        if isinstance(value, Data | IndexRange):
            return value
        try:
            return Data(np.asarray(value), name=name)
        except DataError as error:
            raise DataError(f"{name} of {self._function}: {error}") from None

    def ends(self, min_rows: Any, max_rows: Any, block: int) -> list[int]:
        """Returns where each part ends, of whole blocks; one part if there are fewer rows than
        those of a block.
        """
        lengths = [*map(len, self._held.values())]
        first = self._count("min_rows", min_rows)
        if max_rows is not None:
            lengths.append(self._count("max_rows", max_rows))
        elif self._makers:
            raise ArgumentError(
                f"{next(iter(self._makers))} of {self._function} is a function that makes rows, "
                "without end; pass max_rows=, the most rows to take"
            )
        most = min(lengths, default=0)  # the call raises where there are no rows
        end = most // block * block or most
        ends = [min(-(-first // block) * block, end)]
        while ends[-1] < end:
            last = ends[-1]
            ends.append(min(last + -(-last // 4 // block) * block, end))
        return ends

    def _count(self, option: str, value: Any) -> int:
        count = as_index(value)
        if count < 1:
            raise ArgumentError(
                f"{option} of {self._function} must be a positive integer, got {value!r}"
            )
        return count

    def take(
        self, values: Mapping[str, Any], start: int, stop: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the arguments of the call for one part, and the options that select its rows."""
        if not self._makers:
            selection = {}
            if stop:
                selection["batch"] = slice(start, stop)
            return {**values, **self._held}, selection
        passed = {**values}
        for name, make in self._makers.items():
            rows = make(stop - start)
            if isinstance(rows, list | tuple):
                raise ArgumentError(
                    f"{name} of {self._function} is a function that makes rows, and returned a "
                    f"{type(rows).__name__}; return an array, as in numpy.asarray(rows)"
                )
            shape = np.shape(rows)
            if shape[:1] != (stop - start,):
                text = type(rows).__name__
                if shape:
                    text = f"shape {shape}"
                raise ArgumentError(
                    f"{name} of {self._function} is a function that makes rows: it was asked for "
                    f"{stop - start}, and returned {text}; return an array with so many rows "
                    "along axis 0"
                )
            passed[name] = rows
        return passed, {}

    def check_condition(self, until: Any) -> None:
        """Raises `ArgumentError` if `until` cannot be called with an estimate."""
        required = (
            f"until of {self._function} takes a condition, a function of one argument, the "
            "estimate so far, as synk.tolerance(absolute=1e-3) or lambda e: e.stderr < 1e-3; got"
        )
        if not callable(until):
            raise ArgumentError(f"{required} {until!r}")
        try:
            inspect.signature(until).bind(None)
        except TypeError as error:
            raise ArgumentError(
                f"{required} {getattr(until, '__name__', until)!r}, which cannot be called "
                f"with one argument: {error}"
            ) from None
        except ValueError:  # written in C, without a signature
            return

    def holds(self, answer: Any) -> bool:
        """Returns whether a condition holds, of which the function `until` gave the answer."""
        if isinstance(answer, bool | np.bool_):
            return bool(answer)
        hint = ""
        if isinstance(answer, np.ndarray):
            hint = "; with several values, ask for all of them, as in (e.stderr < 1e-3).all()"
        raise ArgumentError(
            f"until of {self._function} must return True or False, as e.stderr < 1e-3 does, got "
            f"{answer!r}{hint}"
        )
