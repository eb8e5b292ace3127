"""Profiles of ranks, as `fork(profile=True)` writes them: one table, and calls within calls for a flame graph."""

import io
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
_MOST_SWEEPS = 1000  # over the calls, to find what belongs to the script: some more than stacks are deep
_LIBRARIES = re.compile(
    r"^<(frozen |string>|__array_function__)"
    r"|/lib/python3\.\d+t?/(?!site-packages/|dist-packages/)"
    r"|/(site|dist)-packages/(numpy|numba|numba_cuda|llvmlite|cloudpickle|cupy|cupyx|cuda|nvidia|mpi4py|pyarrow|h5py|zarr)/"
)


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


class _Times(NamedTuple):
    """What a function took on one rank, as far as functions of the script have called it; times in seconds."""

    calls: float
    own: float
    total: float


class Profiles:
    """The profiles of ranks.

    Args:
        files: one for each rank.

    Raises:
        ArgumentError: there is none, one is named twice, or a file is no profile.
    """

    def __init__(self, files: Sequence[str | os.PathLike[str]]) -> None:
        if not files:
            raise ArgumentError("there are no profiles; fork(profile=True) writes synknumba-rank0.prof and so on")
        self.files = tuple(map(Path, files))
        for place, path in enumerate(self.files):
            if path.resolve() in {other.resolve() for other in self.files[:place]}:
                raise ArgumentError(f"{path} is named twice, and would be counted twice; name the profile of each rank once")
        self._each = [_read(path) for path in self.files]
        self._of_script = [_of_script(stats) for stats in self._each]
        self._all: _Stats = pstats.Stats(*map(str, self.files)).stats  # type: ignore[attr-defined]  # which is not in its stub

    @property
    def functions(self) -> list[FunctionProfile]:
        """What each function took that a function of the script has called, or that one itself; the longest first."""
        found: dict[Place, list[_Times]] = {}
        for rank, times in enumerate(self._of_script):
            for place, one in times.items():
                found.setdefault(place, [_Times(0.0, 0.0, 0.0)] * len(self._each))[rank] = one
        made = [
            FunctionProfile(name_of(place), round(sum(one.calls for one in each)), own, sum(one.total for one in each))
            for place, each in found.items()
            for own in [np.array([one.own for one in each])]
        ]
        return sorted((one for one in made if one.calls), key=lambda one: (-one.own.sum(), one.name))

    @property
    def between(self) -> float:
        """Seconds of all ranks outside functions of the script: waits for calls, compiling, and synknumba's own code."""
        whole = sum(own for _, _, own, _, _ in self._all.values())
        return max(whole - sum(one.own for times in self._of_script for one in times.values()), 0.0)

    def frames(self) -> list[Frame]:
        """Returns the bars of a flame graph: functions of the script that ranks have called, and what these have called.

        A profile has the time of each function by its caller, not by the whole stack: of a function with several callers each
        gets the part of its callees that it has of its time. Times of recursive calls include those of the calls in them, so
        callees are scaled down to the time of their caller.
        """
        callees: dict[Place, list[tuple[Place, float]]] = {}
        first: dict[Place, float] = {}
        for place, (_, _, _, total, callers) in self._all.items():
            for caller, (_, _, _, seconds) in callers.items():
                if _begins(caller, place):
                    first[place] = first.get(place, 0.0) + seconds
                elif not _is_ours(caller):
                    callees.setdefault(caller, []).append((place, seconds))
            if not callers and not _is_ours(place) and not _is_library(place):
                first[place] = first.get(place, 0.0) + total
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
            if seconds <= least or len(below) == _DEEPEST:
                continue
            yield Frame(len(below), start, seconds, place)
            total = self._all[place][3]
            part = min(1.0, seconds / total) if total else 0.0
            called = {callee: taken * part for callee, taken in callees.get(place, ()) if callee not in (*below, place)}
            if (whole := sum(called.values())) > seconds:
                called = {callee: taken * seconds / whole for callee, taken in called.items()}
            yield from self._stacked(called, callees, start, least, (*below, place))
            start += seconds


# Bytes after the code of an object that marshal writes (Python/marshal.c); those of cProfile have no others.
_FIXED = {"0": 0, "N": 0, "T": 0, "F": 0, "{": 0, "i": 4, "g": 8, "r": 4}


def _check_counts(content: bytes) -> None:
    """Raises ValueError for a profile that declares more items than it has bytes: marshal allocates them first."""
    position = items = 0
    while position < len(content):
        code = chr(content[position] & 0x7F)  # the other bit says that it is referred to later
        position += 1
        if code in _FIXED:
            position += _FIXED[code]
            continue
        width = 1 if code in ")zZ" else 4
        count = int.from_bytes(content[position : position + width], "little")
        position += width
        if code in ")(":
            items += count
        elif code in "zZaAut":
            position += count
        elif code == "l":  # digits of 15 bits; its sign is that of the count
            position += 2 * min(count, (1 << 32) - count)
        else:
            raise ValueError(f"unknown code {code!r}")
    if max(position, items) > len(content):
        raise ValueError("more items than bytes")


def _read(path: Path) -> _Stats:
    try:
        _check_counts(path.read_bytes())
        # pstats prints an error, too.
        found: _Stats = pstats.Stats(str(path), stream=io.StringIO()).stats  # type: ignore[attr-defined]
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


def _of_script(stats: _Stats) -> dict[Place, _Times]:
    """Returns what functions took in calls by functions of the script, and those themselves.

    The part of a function that belongs to the script is the mean of its callers' parts, by the time of their calls: 1 for a
    call that begins a function of the script, and 0 for other calls by synknumba.
    """
    places = {place: number for number, place in enumerate(stats)}
    begun = np.zeros(len(places))  # time of calls that begin functions of the script
    whole = np.zeros(len(places))
    edges: list[tuple[int, int, float]] = []  # callee, caller and time of the calls
    for place, (_, _, _, _, callers) in stats.items():
        here = places[place]
        if not callers:
            begun[here] = whole[here] = 0.0 if _is_ours(place) or _is_library(place) else 1.0
        for caller, (calls, _, _, seconds) in callers.items():
            if caller == place:
                continue
            weight = seconds + 1e-9 * calls  # which may be too short for the clock
            whole[here] += weight
            if _begins(caller, place):
                begun[here] += weight
            elif not _is_ours(caller) and caller in places:
                edges.append((here, places[caller], weight))
    whole[whole == 0.0] = 1.0
    callee, caller_of = (np.array([edge[k] for edge in edges], np.intp) for k in (0, 1))
    weights = np.array([edge[2] for edge in edges])
    part = begun / whole
    for _ in range(_MOST_SWEEPS):
        before = part
        part = (begun + np.bincount(callee, weights * part[caller_of], len(part))) / whole
        if np.abs(part - before).max(initial=0.0) < 1e-12:
            break
    found = {}
    for place, (_, calls, own, total, callers) in stats.items():
        mine = float(part[places[place]])
        if mine <= 0.0:
            continue
        shares = [
            (1.0 if _begins(caller, place) else 0.0 if _is_ours(caller) else float(part[places[caller]]), one)
            for caller, one in callers.items()
            if caller in places
        ]
        found[place] = _Times(
            sum(share * one[0] for share, one in shares) if callers else calls,
            sum(share * one[2] for share, one in shares) if callers else own,
            total * mine,
        )
    return found


def _begins(caller: Place, place: Place) -> bool:
    """Whether a call is one of a function of the script, by synknumba."""
    return _is_ours(caller) and not _is_ours(place) and not _is_library(place)


def _is_library(place: Place) -> bool:
    """Whether synknumba calls a function for its own work: a built-in one, or of Python or a library on which it builds."""
    return _is_builtin(place) or _LIBRARIES.search(place[0].replace(os.sep, "/")) is not None


def _is_builtin(place: Place) -> bool:
    return place[0] == "~"


def _is_ours(place: Place) -> bool:
    return place[0].startswith(_PACKAGE)
