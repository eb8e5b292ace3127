"""Plan cache of a sequence, with a fast path for calls that pass only `Data`, variables and
numbers.
"""

from collections.abc import Iterable
from typing import Any, final

from synknumba._call.kinds import repeated_key
from synknumba._host.data import Data
from synknumba._host.file_data import FileData
from synknumba._host.stored import StoredData
from synknumba._sequence.plan import SequencePlan
from synknumba._types import Args
from synknumba._variables.variable import Variable

PLANS_KEPT = 16  # of one sequence
KNOWN_KEPT = 256  # kinds of calls of one sequence that the fast path finds


@final
class KeptSequencePlans:
    """The plans of one sequence in one world, by structure and kinds of arguments, and by the
    version of the values from outside.
    """

    def __init__(self) -> None:
        self._plans: dict[Any, SequencePlan] = {}
        self._known: dict[tuple[Any, ...], SequencePlan] = {}

    def known(self, version: int, args: Args) -> tuple[SequencePlan | None, list[Any]]:
        """Returns the plan of a call with nothing but `Data`, variables and numbers, if the fast
        path has it, and the numbers.
        """
        key: list[Any] = [version]
        scalars: list[Any] = []
        for arg in args:
            kind = arg.__class__
            if kind is Variable:
                key.append(arg._state._layout)  # noqa: SLF001  # hot path: no call
            elif kind is Data or kind is FileData or kind is StoredData:
                key.append(arg._layout)  # noqa: SLF001  # as for variables
            elif kind is float or (kind is int and -(2**63) <= arg < 2**63):
                key.append(kind)
                scalars.append(arg)
            else:
                return None, scalars
        return self._known.get(tuple(key)), scalars

    def remember(self, version: int, args: Args, plan: SequencePlan) -> None:
        """Adds a call to the fast path, if its arguments allow it."""
        key = repeated_key(args)
        if key is None:
            return
        if len(self._known) >= KNOWN_KEPT:
            self._known.clear()
        self._known[version, *key] = plan

    def get(self, key: Any) -> SequencePlan | None:
        """Returns the plan of a call; None if there is none, or it is not current any more."""
        plan = self._plans.get(key)
        if plan is None or plan.is_current:
            return plan
        self._plans.pop(key).forget()
        return None

    def forget_lost(self) -> None:
        """Drops the plans that will not be current again."""
        for key in [key for key, plan in self._plans.items() if plan.installed.variables.are_lost]:
            self._plans.pop(key).forget()

    def keep(self, key: Any, plan: SequencePlan) -> None:
        """Adds a plan; drops the least recently used ones if there are too many."""
        self._plans[key] = plan
        while len(self._plans) > PLANS_KEPT:
            older = (place for place in self._plans if place is not key)
            oldest = min(older, key=lambda place: self._plans[place].used)
            self._plans.pop(oldest).forget()

    def drop(self, plan: SequencePlan) -> None:
        """Drops one plan, if the world is still open on the ranks, too."""
        self._plans = {key: each for key, each in self._plans.items() if each is not plan}
        if not plan.world.closed:
            plan.forget()

    def clear(self) -> None:
        """Drops all plans, and the memory of their results."""
        self._plans.clear()
        self._known.clear()

    def values(self) -> Iterable[SequencePlan]:
        """Returns the plans."""
        return self._plans.values()
