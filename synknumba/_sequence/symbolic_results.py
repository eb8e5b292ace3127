"""Symbolic results: what stands for the results of calls while the body of a sequence is recorded.

The body can return them, and pass the fit ones to later calls: the ranks then combine them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from synknumba._call.call import Call
from synknumba._call.plan import Plan
from synknumba._formulas import Formula
from synknumba._ops import reduction
from synknumba._tracing import Number, UnknownArray
from synknumba._wire.program import Result
from synknumba._wire.sequence import Key

if TYPE_CHECKING:
    from synknumba._sequence.recorder import Recorder


@final
class SymbolicResult(UnknownArray):
    """Stands for a result of a call.

    Attributes:
        label: name in messages.
        result: the result of a kernel, as the ranks know it; None for a Python function's.
        number: of the call's program; in a dry run, of its report.
        index: position among the results of the call; None for the only one.
        count: number of rows of the call.
        has_shards: whether the call has shards.
        home: the parts of the body that makes the call.
    """

    def __init__(
        self,
        home: Sequence[Any],
        call: Call,
        plan: Plan | None,
        number: int,
        label: str,
        result: Result | None = None,
        index: int | None = None,
    ) -> None:
        self.home, self._plan, self.number, self.label = home, plan, number, label
        self.result, self.index = result, index
        self.count, self.has_shards = call.count, call.options.shards is not None

    @property
    def position(self) -> int:
        """Position among the results of the call, 0 for the only one."""
        return self.index or 0

    @property
    def key(self) -> Key:
        """The ranks' parts of it, for accesses."""
        return "result", self.number, self.position

    @property
    def plan(self) -> Plan:
        """Plan of the call."""
        assert self._plan is not None  # this is no dry run
        return self._plan

    def weights(self) -> tuple[int, ...]:
        """Returns the number of rows on each rank, for a mean."""
        if self._plan is None:
            return ()
        return tuple(self._plan.weights(self.count).tolist())

    def _why(self, operation: str) -> str:
        problem = unfit(self.result, has_shards=False)
        if problem is None:
            return super()._why(operation)
        why = (
            "its calls run later, on the ranks. Return it and look at it after the call, or pass "
            "until="
        )
        if operation in {"bool", "print"}:  # of no number for a later call
            return why
        return f"{why}. Later calls cannot take it: {problem}"


@final
class ScalarResult(Number):
    """Stands for a 0-d result of a kernel, which may be an argument of later calls: the ranks then
    combine it.

    Attributes:
        handle: the result for the script.
    """

    __slots__ = ("_recorder", "handle")

    def __init__(self, recorder: "Recorder", handle: SymbolicResult) -> None:
        assert handle.result is not None  # it is a kernel's
        dtype = combined_dtype(handle.result)
        super().__init__((), handle.label, is_int=dtype.kind in "iub", dtype=number_dtype(dtype))
        self._recorder, self.handle = recorder, handle

    @property
    def formula(self) -> Formula:
        return ("result", self._recorder.share(self.handle))


def handle_of(leaf: Any) -> Any:
    """Returns the symbolic result in place of its number; anything else as it is."""
    return leaf.handle if isinstance(leaf, ScalarResult) else leaf


def may_be_number(result: Result) -> bool:
    """Returns whether ranks can combine a result to a number."""
    is_number = result.shape == () and np.dtype(result.dtype).kind in "iuf"
    return is_number and result.is_small and result.op not in {None, *reduction.BY_ROWS}


def number_dtype(dtype: "np.dtype[Any]") -> str | None:
    """Returns the name of a dtype for a `Number`: None for int64 and float64, which are as
    Python's numbers.
    """
    return None if dtype in (np.int64, np.float64) else dtype.name


def combined_dtype(result: Result) -> "np.dtype[Any]":
    assert result.parts is not None  # it is a result that the caller gets
    dtype = np.dtype(result.parts.dtype)
    if not isinstance(result.op, str):
        return dtype
    return reduction.combine(result.op, np.ones(1, dtype), np.ones(1, np.int64)).dtype


def unfit(result: Result | None, *, has_shards: bool) -> str | None:
    """Returns why a result cannot be an array argument of a later call, and what to write
    instead; None if it can.
    """
    if result is None:
        return (
            "its shape is known only after the call. Let the function write to "
            "a variable, and pass that"
        )
    if result.op is None:
        return (
            "it is a list of the ranks' values. Write to a variable, which keeps each rank's "
            "own, or combine them by an op"
        )
    if result.op in reduction.LOCATING:
        return f"{result.op} finds values and rows, which the script puts together. Return it"
    if result.op == "gather":
        return (
            "it has the rows of all ranks. Write them to a scattered variable, as in rows= "
            "and inout=, and pass that"
        )
    if result.shape == ():
        return (
            f"it is one {np.dtype(result.dtype)}. Return it and look at it after the call, or "
            f"declare it an int or a float"
        )
    if has_shards:
        return "with shards=, the script combines it. Leave shards= out"
    if result.stays:
        return (
            "it is so large that the GPUs combine it. Write to a variable, and "
            "combine it with all_reduce"
        )
    return None
