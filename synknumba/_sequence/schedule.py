"""How many rounds a call of a sequence makes, and why: by `times=`, `every=`, `until=`, and the
room for results.
"""

from dataclasses import dataclass
from typing import Any, Final, final

from synknumba._errors import ArgumentError
from synknumba._host.casting import as_index
from synknumba._wire.results import SPECS_KEPT

OPTIONS: Final = ("times", "every", "until", "progress")
NEVER: Final = 0  # period of results that are not kept
RANKS: Final = "the ranks"  # judge `until=`
SCRIPT: Final = "the script"
KEPT_BYTES: Final = 64 << 20  # of small results that one round keeps; of more, a round ends at each


@final
class _Once(int):
    """The number of iterations of a call without `times=`, distinct from `times=1`."""


ONCE: Final = _Once(1)


def checked_loop(name: str, times: Any, every: Any, until: Any) -> tuple[int, int | None]:
    if every is None and until is None and type(times) is int and 0 < times < 2**63:
        return times, None
    if times is ONCE:
        _check_times(name, every, until)
        return (1, None) if every is None else (1, 1)
    times = count_of(name, "times", times, 0)
    if every is not None:
        every = count_of(name, "every", every, 1)
        if 0 < times < every:
            raise ArgumentError(
                f"{name}: every={every} keeps nothing of times={times}; pass at most every={times}"
            )
    if until is not None and not callable(until):
        raise ArgumentError(
            f"{name}: until= takes a function of the results, as in until=lambda "
            f"r: r < 1e-6; got {until!r}"
        )
    return times, every


def _check_times(name: str, every: Any, until: Any) -> None:
    """Raises `ArgumentError` for options of several iterations in a call that is not told
    how many to make.
    """
    if until is not None:
        raise ArgumentError(
            f"{name}: until= needs times=, the largest number of iterations, and a call "
            f"without times= makes one; write {name}(..., times=10_000, until=...)"
        )
    if every is not None and count_of(name, "every", every, 1) > 1:
        raise ArgumentError(
            f"{name}: every= needs times=, the number of iterations, and a call without "
            f"times= makes one; write {name}(..., times=1_000, every={every!r})"
        )


def count_of(name: str, option: str, value: Any, least: int) -> int:
    number = as_index(value)
    if not least <= number < 2**63:
        limit = f"{least}"
        if number >= least:
            limit += ", and below 2**63"
        raise ArgumentError(f"{name}: {option} must be an int of at least {limit}, got {value!r}")
    return number


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rounds of a call of a sequence.

    Attributes:
        period: of kept results; NEVER if only those of the last iteration are returned.
        round_ends: when a round ends; "" if one round does all.
        is_stacked: whether kept results are returned stacked, and not the last ones alone.
        entries: how many kept iterations a round has, as far as is known.
    """

    period: int
    round_ends: str
    is_stacked: bool = True
    entries: int = 1

    def rounds(self, times: int) -> int:
        """Returns the number of rounds of so many iterations."""
        if not self.round_ends:
            return min(times, 1)
        return -(-times // (self.period * self.entries))


LAST_ONLY = Schedule(NEVER, "", is_stacked=False)


@final
@dataclass(frozen=True, slots=True)
class Round:
    """Iterations that ranks make without the script.

    Attributes:
        first: number of the first.
        count: how many; at most, where ranks judge `until=`.
        times: how many all rounds of the call have.
        period: of kept results, and of the condition that ranks judge; NEVER for none of both.
        keeps: whether ranks keep results.
    """

    first: int
    count: int
    times: int
    period: int = NEVER
    keeps: bool = False


def schedule(
    times: int, every: int | None, *, judge: str, large: str | None, nbytes: int
) -> Schedule:
    """Returns the rounds of a call.

    Args:
        times: number of iterations.
        every: period of kept results, if given.
        judge: RANKS or SCRIPT, who judges `until=`; "" if it is not given.
        large: name of a result that the ranks cannot keep, or of a Python function's, which has to
            be seen first; None if there is none.
        nbytes: bytes of the small results of an iteration, on all ranks.
    """
    if every is None and not judge:
        return LAST_ONLY
    if every is None:
        return Schedule(1, _for_until(1) if judge == SCRIPT else "", is_stacked=False)
    period, each = every, _each(every)
    if judge == SCRIPT or (judge and large is not None):
        return Schedule(period, _for_until(period))
    if judge:
        entries = max(SPECS_KEPT // period, 1)
        return Schedule(period, f"after {entries * period:,} iterations", entries=entries)
    if large is not None:
        return Schedule(
            period, f"{each}, as ranks keep results known to be small, and {large} is not"
        )
    total = times // period * nbytes
    if total > KEPT_BYTES:
        return Schedule(
            period,
            f"{each}, as kept results would take {total:,} bytes, and ranks keep {KEPT_BYTES:,}",
        )
    return Schedule(period, "")


def _for_until(period: int) -> str:
    return f"{_each(period)}, for until="


def _each(period: int) -> str:
    return "after each iteration" if period == 1 else f"after every {period:,} iterations"
