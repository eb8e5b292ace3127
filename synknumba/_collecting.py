"""How the coordinator puts together what ranks have left in memory: a function of a call's row count, made once for a plan."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from synknumba import _folding, _reduction
from synknumba._control import RESULT_BYTES, ControlBlock
from synknumba._copying import private_copy
from synknumba._partition import part
from synknumba._program import Result
from synknumba._types import Array, Op, UserOp

SEQUENTIAL_SUM = 8  # NumPy adds fewer numbers than this in order; its call for two of them takes 1 µs, Python's loop 0.2

Count: TypeAlias = int | tuple[int, ...] | None
"""Rows of a call: in all, or by rank where they are the ranks' own; None where it is not about rows."""


def total_rows(count: Count) -> int | None:
    """Rows in all."""
    return sum(count) if isinstance(count, tuple) else count


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many rows a call is about, and how many each participant gets: a rank, or a shard where their number is fixed."""

    count: Count
    participants: int

    def weights(self) -> Array:
        """Rows of each participant; 1 each where the call is not about rows."""
        if self.count is None:
            return np.ones(self.participants, np.int64)
        if isinstance(self.count, tuple):
            return np.array(self.count, np.int64)
        parts = (part(self.count, self.participants, rank) for rank in range(self.participants))
        return np.array([stop - start for start, stop in parts], np.int64)


Collector: TypeAlias = Callable[[Count], Any]
"""Combines what there is now; of the rows of the call."""


def control_parts(control: ControlBlock, result: Result) -> Array:
    """The parts of a small result, seen as one array over the ranks' results in the control block."""
    assert result.parts is not None  # noqa: S101
    dtype = np.dtype(result.parts.dtype)
    inner = np.ndarray(result.shape, dtype).strides
    return np.ndarray(
        (control.world_size, *result.shape),
        dtype,
        control.memory.data,
        control.layout.results + result.parts.offset,
        (RESULT_BYTES, *inner),
    )


def make_collector(op: Op, parts: Array, rows: Callable[[Count], RowCount]) -> Collector:
    """A function of the row count that combines the parts as they are then. It returns memory of its own."""
    if op is None:
        return lambda _: [private_copy(value) if isinstance(value, np.ndarray) else value for value in parts]
    if op == "mean":
        return lambda count: _reduction.combine("mean", parts, rows(count).weights())
    if len(parts) == 1:
        return (lambda _: parts[0]) if parts.ndim == 1 else (lambda _: private_copy(parts[0]))
    if isinstance(op, UserOp):
        fold = _folding.folding(op, parts)
        return lambda _: fold()
    if op == "sum" and parts.ndim == 1 and parts.dtype == np.float64 and len(parts) < SEQUENTIAL_SUM:
        return lambda _: np.float64(_add(parts.tolist()))
    reduce = partial(_reduction.UFUNCS[op].reduce, parts, 0, parts.dtype)
    return lambda _: reduce()


def _add(values: list[float]) -> float:
    """One after the other, as NumPy adds so few; the built-in `sum` compensates from Python 3.12 on."""
    total = values[0]
    for value in values[1:]:
        total += value
    return total
