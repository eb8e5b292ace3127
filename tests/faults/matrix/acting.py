"""By which functions the troubles happen.

Such a function is given the calls and the ranks that have the trouble; `on` is such a set as a
number that a function on a rank can look at.
"""

from collections.abc import Callable

from tests.faults.matrix.cases import RankSet
from tests.faults.matrix.phases import Calls
from tests.faults.matrix.troubles import TROUBLES

Act = Callable[[Calls, RankSet], object]

ACTS: dict[str, Act] = {}


def act(name: str) -> Callable[[Act], Act]:
    """Makes a function the one of a trouble."""
    assert name in TROUBLES, name
    assert name not in ACTS, name

    def add(function: Act) -> Act:
        ACTS[name] = function
        return function

    return add


def mask(ranks: RankSet) -> int:
    """Such a set as a number."""
    return sum(1 << rank for rank in ranks)


def here(on: int, rank: int) -> bool:
    """Whether this rank is one of those."""
    return bool(on >> rank & 1)
