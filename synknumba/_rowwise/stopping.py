"""The rows that a call with `until=` takes, part by part: how many at a time, and from where.

    rows     0        min_rows      × 5/4      × 25/16   …    all, or max_rows
             ├───────────┼────────────┼───────────┼──
    until               asked       asked       asked

A quarter more at a time: at most a quarter of the rows are taken in vain, and 10^9 rows in 52
calls. The parts do not depend on the number of ranks.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, final

import numpy as np

from synknumba._call.arguments import IndexRange
from synknumba._errors import ArgumentError, DataError
from synknumba._host.data import Data

# fewer may agree by chance: ten rows of which a tenth differ are often alike, with an error bar of
# 0
MIN_ROWS = 10_000


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
        self._makers = {name: value for name, value in rows.items() if callable(value)}
        held = {name: value for name, value in rows.items() if name not in self._makers}
        if held and self._makers:
            raise ArgumentError(
                f"rows of {next(iter(self._makers))} of {function} are made by a function, but "
                f"{next(iter(held))} is an array; pass functions for both, or name the array in "
                "broadcast= if each row needs all of it"
            )
        self._held = {name: self._shared(name, value) for name, value in held.items()}

    def _shared(self, name: str, value: Any) -> Any:
        """Returns an array in shared memory, so that it is not copied there for each part."""
        if isinstance(value, Data | IndexRange):
            return value
        try:
            return Data(np.asarray(value), name=name)
        except DataError as error:
            raise DataError(f"{name} of {self._function}: {error}") from None

    def parts(self, min_rows: Any, max_rows: Any, block: int) -> Iterator[tuple[int, int]]:
        """Yields start and stop of each part, of whole blocks; one part if there are fewer rows
        than those of a block.
        """
        for option, value in (("min_rows", min_rows), ("max_rows", max_rows)):
            is_count = hasattr(value, "__index__") and not isinstance(value, bool) and value > 0
            if not is_count and not (value is None and option == "max_rows"):
                raise ArgumentError(
                    f"{option} of {self._function} must be a positive integer, got {value!r}"
                )
        if max_rows is None and self._makers:
            raise ArgumentError(
                f"{next(iter(self._makers))} of {self._function} is a function that makes rows, "
                "without end; pass max_rows=, the most rows to take"
            )
        lengths = [*map(len, self._held.values()), *([] if max_rows is None else [int(max_rows)])]
        most = min(lengths, default=0)  # the call raises where there are no rows
        end = most // block * block or most
        start, stop = 0, min(-(-int(min_rows) // block) * block, end)
        while True:
            yield start, stop
            if stop == end:
                return
            start, stop = stop, min(stop + -(-stop // 4 // block) * block, end)

    def take(
        self, values: Mapping[str, Any], start: int, stop: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the arguments of the call for one part, and the options that select its rows."""
        if not self._makers:
            return {**values, **self._held}, {"batch": slice(start, stop)} if stop else {}
        checkpoints = {}
        for name, make in self._makers.items():
            rows = make(stop - start)
            if isinstance(rows, list | tuple):
                raise ArgumentError(
                    f"{name} of {self._function} is a function that makes rows, and returned a "
                    f"{type(rows).__name__}; return an array, as in numpy.asarray(rows)"
                )
            if np.ndim(rows) == 0 or len(rows) != stop - start:
                shape = f"shape {np.shape(rows)}" if np.ndim(rows) else f"{type(rows).__name__}"
                raise ArgumentError(
                    f"{name} of {self._function} is a function that makes rows: it was asked for "
                    f"{stop - start}, and returned {shape}; return an array with so many rows "
                    "along axis 0"
                )
            checkpoints[name] = rows
        return {**values, **checkpoints}, {}

    def check_condition(self, until: Any) -> None:
        """Raises `ArgumentError` if `until` cannot be called with an estimate."""
        problem = "" if callable(until) else f"got {until!r}"
        if not problem:
            try:
                inspect.signature(until).bind(None)
            except TypeError as error:
                problem = (
                    f"got {getattr(until, '__name__', until)!r}, which cannot be called "
                    f"with one argument: {error}"
                )
            except ValueError:
                return  # written in C, without a signature
        if problem:
            raise ArgumentError(
                f"until of {self._function} takes a condition, a function of one argument, the "
                f"estimate so far, as in until=lambda e: e.stderr < 1e-3; {problem}"
            )

    def holds(self, answer: Any) -> bool:
        """Returns whether a condition holds, of which the function `until` gave the answer."""
        if np.ndim(answer) or not isinstance(answer, bool | np.bool_):
            hint = (
                "; with several values, ask for all of them, as in (e.stderr < 1e-3).all()"
                if np.ndim(answer)
                else ""
            )
            raise ArgumentError(
                f"until of {self._function} must return True or False, got {answer!r}{hint}"
            )
        return bool(answer)
