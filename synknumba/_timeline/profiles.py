"""Profiles of ranks, as `fork(profile=True)` writes them: one table, and calls within calls for a flame graph."""

import os
import pstats
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from synknumba._errors import ArgumentError
from synknumba._types import Array

Place: TypeAlias = tuple[str, int, str]  # file, line and name of a function, as cProfile has it
_Callers: TypeAlias = dict[Place, tuple[int, int, float, float]]  # calls, all calls, own seconds, seconds with callees
_Stats: TypeAlias = dict[Place, tuple[int, int, float, float, _Callers]]

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_LEAST = 0.002  # part of the whole from which on a bar of a flame graph can be seen
_DEEPEST = 60


@dataclass(frozen=True, slots=True)
class FunctionProfile:
    """What one function took on all ranks.

    Attributes:
        name: name, with the file and line.
        calls: number of calls on all ranks.
        own: seconds on each rank without those of the functions that it has called; shape (ranks,).
        total: seconds on all ranks with those.
    """

    name: str
    calls: int
    own: Array
    total: float

    @property
    def imbalance(self) -> float:
        """Own seconds of the busiest rank, divided by the mean of all ranks; 1 is perfect."""
        return float(self.own.max() / self.own.mean()) if self.own.any() else float("nan")


class Frame(NamedTuple):
    """A bar of a flame graph: a function, called by that of the bar below."""

    depth: int
    start: float  # seconds, of all ranks
    seconds: float
    place: Place


class Profiles:
    """The profiles of ranks.

    Args:
        files: one for each rank.

    Raises:
        ArgumentError: there is none, or a file is no profile.
    """

    def __init__(self, files: Sequence[str | os.PathLike[str]]) -> None:
        if not files:
            raise ArgumentError("there are no profiles; fork(profile=True) writes synknumba-rank0.prof and so on")
        self.files = tuple(map(Path, files))
        self._each = [_read(path) for path in self.files]
        self._all: _Stats = pstats.Stats(*map(str, self.files)).stats  # type: ignore[attr-defined]  # which is not in its stub

    @property
    def functions(self) -> list[FunctionProfile]:
        """What each function outside synknumba took, the longest first."""
        found = []
        for place, (_, calls, _, total, _) in self._all.items():
            if not _is_ours(place):
                own = np.array([stats[place][2] if place in stats else 0.0 for stats in self._each])
                found.append(FunctionProfile(name_of(place), calls, own, total))
        return sorted(found, key=lambda one: (-one.own.sum(), one.name))

    @property
    def between(self) -> float:
        """Seconds of all ranks in synknumba's own code, most of them in waits for the next call."""
        return sum(own for place, (_, _, own, _, _) in self._all.items() if _is_ours(place))

    def frames(self) -> list[Frame]:
        """Returns the bars of a flame graph: functions that synknumba has called on ranks, and what these have called.

        A profile has the time of each function by its caller, not by the whole stack: of a function with several callers each
        gets the part of its callees that it has of its time.
        """
        callees: dict[Place, list[tuple[Place, float]]] = {}
        first: dict[Place, float] = {}
        for place, (_, _, _, total, callers) in self._all.items():
            for caller, (_, _, _, seconds) in callers.items():
                if _is_ours(caller) and not _is_ours(place):
                    first[place] = first.get(place, 0.0) + seconds
                elif not _is_ours(caller):
                    callees.setdefault(caller, []).append((place, seconds))
            if not callers and not _is_ours(place):
                first[place] = first.get(place, 0.0) + total
        first = {place: seconds for place, seconds in first.items() if not _is_builtin(place)}
        least = _LEAST * sum(first.values())
        return list(self._stacked(first, callees, 0.0, least, ()))

    def _stacked(
        self,
        seconds_of: Mapping[Place, float],
        callees: Mapping[Place, list[tuple[Place, float]]],
        start: float,
        least: float,
        below: tuple[Place, ...],
    ) -> Iterator[Frame]:
        for place, seconds in sorted(seconds_of.items(), key=lambda one: -one[1]):
            if seconds <= least or place in below or len(below) == _DEEPEST:
                continue
            yield Frame(len(below), start, seconds, place)
            total = self._all[place][3]
            part = min(1.0, seconds / total) if total else 0.0
            called = {callee: taken * part for callee, taken in callees.get(place, ())}
            yield from self._stacked(called, callees, start, least, (*below, place))
            start += seconds


def _read(path: Path) -> _Stats:
    try:
        found: _Stats = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]
    except OSError as error:
        raise ArgumentError(f"cannot read {path}: {error.strerror}") from error
    except (TypeError, ValueError, EOFError, AttributeError, KeyError) as error:
        raise ArgumentError(f"{path} is no profile; fork(profile=True) writes synknumba-rank0.prof and so on") from error
    return found


def name_of(place: Place) -> str:
    """Returns the name of a function for people, with its file and line.

    >>> name_of(("/home/me/model.py", 12, "energy")), name_of(("~", 0, "<method 'sort' of 'numpy.ndarray' objects>"))
    ('energy (model.py:12)', 'numpy.ndarray.sort')
    """
    file, line, name = place
    if _is_builtin(place):
        found = re.fullmatch(r"<(?:built-in method |method )?'?(.*?)'?(?: of '(.*)' objects)?>", name)
        return name if found is None else f"{found[2]}.{found[1]}" if found[2] else found[1]
    return f"{name} ({os.path.basename(file)}:{line})"


def _is_builtin(place: Place) -> bool:
    return place[0] == "~"


def _is_ours(place: Place) -> bool:
    return place[0].startswith(_PACKAGE)
