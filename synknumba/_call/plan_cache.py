"""Plan cache of a function, with a fast path for calls that pass only `Data`, variables, scalars
and rank constants.
"""

import weakref
from functools import partial
from typing import Any, TypeAlias, final

from synknumba._call.bind import Binder
from synknumba._call.call import Call
from synknumba._call.collect import Count
from synknumba._call.kinds import repeated_key
from synknumba._call.plan import Plan
from synknumba._errors import DataError
from synknumba._host.data import Data
from synknumba._host.file_data import FileData
from synknumba._host.log import log
from synknumba._host.stored import StoredData
from synknumba._types import Cache, RankConstant
from synknumba._variables.state import VariableState
from synknumba._variables.variable import Variable

# of results in shared memory, per function, so that a loop over ever new lengths does not fill
# /dev/shm
BYTES_KEPT = 256 << 20
PLANS_KEPT = 128  # per function: enough for the different shapes of an epoch


KnownCall: TypeAlias = tuple[Plan, Count, "tuple[weakref.ref[VariableState], ...]"]
"""An entry of the fast path: plan and number of rows of a call, and the variables that ranks may
write to.
"""


@final
class KeptPlans:
    """The plans of one function in one world.

    A plan is found by the key of its call. A call with nothing but `Data`, variables, numbers and
    rank constants, all by position, is found by their layouts and types, and the constants, alone.
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
        self, args: tuple[Any, ...], shards: int | None
    ) -> tuple[KnownCall | None, tuple[Any, ...]]:
        """Returns the entry of the fast path for these arguments, or None, and the scalars among
        them.
        """
        key: list[Any] = [shards]
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
        return self._known.get(tuple(key)), tuple(values)

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

    def remember(self, args: tuple[Any, ...], call: Call, plan: Plan) -> None:
        """Adds a call to the fast path, if its arguments allow it."""
        key = repeated_key(args)
        if key is None or len(args) != len(self._binder.passed):
            return
        fixed = self._binder.fixed
        # Numbers and NumPy arrays bound by givens= exclude the fast path: they are not in `args`,
        # but are packed, or copied to shared memory, at each call.
        scalars = tuple(arg for arg in args if type(arg) in (float, int))
        in_segments = [
            value
            for value in (*args, *fixed)
            if isinstance(value, Data) and not isinstance(value, StoredData)
        ]
        is_copied = len(call.segments) > len(in_segments)
        if scalars == call.values and not is_copied:
            layouts = [value._layout for value in fixed]  # noqa: SLF001  # as above
            changed = tuple(map(weakref.ref, call.arguments.changed))
            self._known[call.options.shards, *layouts, *key] = plan, call.count, changed


def _forget(calls: dict[tuple[Any, ...], KnownCall], plan: Plan) -> None:
    """Drops a plan on the ranks, and its entries of the fast path."""
    for key, (same, _, _) in list(calls.items()):
        if same is plan:
            del calls[key]
    plan.forget()
