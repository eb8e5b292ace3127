"""Plan cache of a function, with a fast path for calls that pass only `Data`, variables, scalars
and rank constants.
"""

import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast, final

import numpy as np

from synknumba._call.bind import Binder
from synknumba._call.call import Call
from synknumba._call.collect import Count
from synknumba._call.kinds import repeated_key
from synknumba._call.plan import Plan
from synknumba._errors import DataError
from synknumba._host.data import Data
from synknumba._host.file_data import FileData
from synknumba._host.log import log
from synknumba._host.segment import Segment
from synknumba._host.stored import StoredData
from synknumba._ops.rows import Listed, select
from synknumba._types import Args, Array, Batch, Cache, RankConstant
from synknumba._variables.state import VariableState
from synknumba._variables.variable import Variable

# of results in shared memory, per function, so that a loop over ever new lengths does not fill
# /dev/shm
BYTES_KEPT = 256 << 20
PLANS_KEPT = 128  # per function: enough for the different shapes of an epoch


_NUMBERS = np.dtype(np.int64)  # of rows


@final
@dataclass(frozen=True, slots=True)
class RowNumbers:
    """Where the ranks read the row numbers of a call.

    Attributes:
        segment: memory of the numbers.
        generation: of this memory.
        shape: of the array of numbers.
        length: number of rows among which they select.
    """

    segment: Segment
    generation: int
    shape: tuple[int, ...]
    length: int

    def write(self, batch: Array) -> bool:
        """Checks and writes the row numbers of another call; False for those of another type or
        number, whose call has to be bound.
        """
        if batch.dtype.kind not in "iu" or batch.shape != self.shape:
            return False
        if self.segment.generation != self.generation:
            return False
        self.segment.array(_NUMBERS, self.shape)[:] = select(batch, self.length).indices
        return True


KnownCall: TypeAlias = tuple[
    Plan, Count, "tuple[weakref.ref[VariableState], ...]", RowNumbers | None
]
"""An entry of the fast path: plan and number of rows of a call, the variables that ranks may write
to, and the row numbers of a call with an array as `batch`.
"""


@final
class KeptPlans:
    """The plans of one function in one world.

    A plan is found by the key of its call. A call with nothing but `Data`, variables, numbers and
    rank constants, all by position, is found by their layouts and types, and the constants, alone;
    also with row numbers, as many as the last time.
    """

    def __init__(self, binder: Binder) -> None:
        self._binder = binder
        self._known: dict[tuple[Any, ...], KnownCall] = {}
        self._plans: Cache[Any, Plan] = Cache(PLANS_KEPT, partial(_forget, self._known))

    def get(self, key: Any) -> Plan | None:
        """Returns the plan of a call, which becomes the most recently used; None if there is
        none.
        """
        return self._plans.use(key)

    def clear(self) -> None:
        """Drops all plans, and the memory of their results."""
        self._plans.clear()
        self._known.clear()

    def forget_all(self) -> None:
        """Drops all plans, here and on the ranks."""
        self._plans.drop_all()

    def known(
        self, args: Args, shards: int | None, batch: Batch
    ) -> tuple[KnownCall | None, tuple[Any, ...]]:
        """Returns the entry of the fast path for these arguments, or None, and what is sent with
        the call. Writes the row numbers of a batch, which is None or an array.
        """
        key: list[Any] = [shards, batch is None]
        if self._binder.fixed:
            key += [value._layout for value in self._binder.fixed]  # noqa: SLF001  # as below
        values: list[Any] = []
        for arg in args:
            kind = arg.__class__
            if kind is Data:
                key.append(arg._layout)  # noqa: SLF001  # hot path: no call
            elif kind is Variable:
                key.append(arg._state._layout)  # noqa: SLF001  # as for Data
            elif kind is float:
                key.append(float)
                values.append(arg)
            elif kind is int and -(2**63) <= arg < 2**63:
                key.append(int)
                values.append(arg)
            elif kind is RankConstant:
                key.append(arg)
            elif kind is FileData or kind is StoredData:
                try:
                    key.append(arg._layout)  # noqa: SLF001  # as above
                except DataError:  # raised with the argument's name when it is bound
                    return None, ()
            else:
                return None, ()
        entry = self._known.get(tuple(key))
        if entry is not None and (numbers := entry[3]) is not None:
            if not numbers.write(cast("Array", batch)):
                return None, ()
            values.append(entry[1])
        return entry, tuple(values)

    def keep(self, key: Any, plan: Plan) -> None:
        """Adds a plan. Drops stale ones, and the least recently used if there are too many or
        they hold too much memory.
        """
        for old_key, old in list(self._plans.items()):
            if old.stale:
                self._plans.drop(old_key)
        if len(self._plans) == PLANS_KEPT:
            log.debug(
                "a plan is dropped, since the function has more than %d; calls of "
                "that form are planned anew",
                PLANS_KEPT,
            )
        self._plans[key] = plan
        if self._nbytes <= BYTES_KEPT:
            return
        for old in self._plans.values():
            old.trim()
        for oldest, old in list(self._plans.items()):
            if old is plan or not old.nbytes:
                continue
            nbytes = self._nbytes
            if nbytes <= BYTES_KEPT:
                return
            log.debug(
                "a plan is dropped, since the results of the function's plans hold %d bytes",
                nbytes,
            )
            self._plans.drop(oldest)

    @property
    def _nbytes(self) -> int:
        """Bytes of the results of all plans."""
        return sum(plan.nbytes for plan in self._plans.values())

    def remember(self, args: Args, call: Call, plan: Plan) -> None:
        """Adds a call to the fast path, if its arguments allow it."""
        key = repeated_key(args)
        if key is None or len(args) != len(self._binder.passed):
            return
        fixed = self._binder.fixed
        # Numbers and NumPy arrays bound by givens= exclude the fast path: they are not in `args`,
        # but are packed, or copied to shared memory, at each call.
        scalars = [arg for arg in args if type(arg) in (float, int)]
        in_segments = [
            value
            for value in (*args, *fixed)
            if isinstance(value, Data) and not isinstance(value, StoredData)
        ]
        arguments = call.arguments
        is_copied = len(arguments.segments) > len(in_segments)
        numbers = None
        if call.options.batch is not None:
            numbers = _numbers_of(call)
            if numbers is None:
                return
        if scalars == arguments.scalars.values and not is_copied:
            layouts = [value._layout for value in fixed]  # noqa: SLF001  # as above
            changed = tuple(map(weakref.ref, arguments.changed))
            options = call.options
            is_whole = options.batch is None
            self._known[options.shards, is_whole, *layouts, *key] = (
                plan,
                call.count,
                changed,
                numbers,
            )


def _numbers_of(call: Call) -> RowNumbers | None:
    """Returns where the row numbers of a call are; None if each call's have to be compared with
    each other, or with more than the number of rows.
    """
    rows, lengths = call.rows, call.arguments.lengths
    if not isinstance(rows.sharded, Listed) or rows.local is not None:
        return None
    if any(call.arguments.written()):
        return None
    (segment,) = rows.segments
    (length,) = set(lengths.divided.values())
    return RowNumbers(segment, segment.generation, rows.sharded.indices.shape, length)


def _forget(calls: dict[tuple[Any, ...], KnownCall], plan: Plan) -> None:
    """Drops a plan on the ranks, and its entries of the fast path."""
    for key, (same, *_) in list(calls.items()):
        if same is plan:
            del calls[key]
    plan.forget()
