"""Where the time of a trace went: by function and rank."""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeAlias, final

import numpy as np

from synknumba import _html
from synknumba._rank.spans import COMPILE, RECORD
from synknumba._timeline.tracks import SCRIPT, Record, process_names
from synknumba._types import aligned

Kinds: TypeAlias = defaultdict[str, list[Record]]  # spans by kind
_TS = itemgetter("ts")  # begin of a span

# heads of tables
_FUNCTIONS = (
    "function",
    "rounds",
    "waited",
    "a round",
    "busiest rank",
    "imbalance",
    "bytes",
    "GB/s",
)
_STEPS = ("in rounds, all ranks", "times", "in all", "each", "bytes", "GB/s")


@dataclass(frozen=True, slots=True)
class FunctionTimes:
    """What one function, sequence or collective has taken. Times are in seconds.

    Attributes:
        name: of the function.
        rounds: how many there were.
        waited: time of the script in rounds of it.
        ranks: time that each rank worked on it, by rank.
        nbytes: bytes passed to the ranks.
        compiling: time of each rank in compiling and recording kernels, by rank, which `ranks`
            includes.
    """

    name: str
    rounds: int
    waited: float
    ranks: dict[str, float]
    nbytes: int
    compiling: dict[str, float] = field(default_factory=dict)

    @property
    def imbalance(self) -> float:
        """Time of the busiest rank, divided by the mean of all; NaN without ranks."""
        times = [*self.ranks.values()]
        return _ratio(self.busiest, sum(times) / max(len(times), 1))

    @property
    def busiest(self) -> float:
        """Time of the busiest rank; NaN without ranks."""
        return max(self.ranks.values(), default=math.nan)

    @property
    def rate(self) -> float:
        """Bytes a second, by the time of the busiest rank without compilation; NaN if none are
        known.
        """
        times = (seconds - self.compiling.get(rank, 0.0) for rank, seconds in self.ranks.items())
        return _ratio(self.nbytes, max(times, default=0.0))

    def cells(self) -> tuple[str, ...]:
        """The row of a table, below `_FUNCTIONS`."""
        return (
            self.name,
            f"{self.rounds:,}",
            in_words(self.waited),
            in_words(self.waited / self.rounds),
            in_words(self.busiest),
            _number(self.imbalance),
            _count(self.nbytes),
            _rate(self.rate),
        )


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What ranks have done in rounds: how often on all ranks, and how long in all, in seconds."""

    name: str
    count: int
    seconds: float
    nbytes: int
    on_device: bool

    def cells(self) -> tuple[str, ...]:
        """The row of a table, below `_STEPS`."""
        name = self.name
        if self.on_device:
            name += " (GPU)"
        return (
            name,
            f"{self.count:,}",
            in_words(self.seconds),
            in_words(self.seconds / self.count),
            _count(self.nbytes),
            _rate(_ratio(self.nbytes, self.seconds)),
        )


@final
@dataclass(frozen=True, slots=True)
class Summary:
    """Where the time of a trace went. Times are in seconds.

    Attributes:
        seconds: from the first event to the last, of those that were kept.
        functions: those that took longest first.
        steps: what ranks have done in rounds, likewise.
        binding, combining, messages: time of the script in preparing rounds, after them, and in
            messages to the ranks.
        ranks: their names.
        lost_rounds, lost_steps: how many there were before these, and were not kept.
    """

    seconds: float
    functions: tuple[FunctionTimes, ...]
    steps: tuple[StepTimes, ...] = ()
    binding: float = 0.0
    combining: float = 0.0
    messages: float = 0.0
    ranks: tuple[str, ...] = ()
    lost_rounds: int = 0
    lost_steps: int = 0

    def __str__(self) -> str:
        """Formats the summary as tables."""
        lines = [f"{self.seconds:.6g} s in all, {len(self.ranks)} ranks"]
        for count, what in (
            (self.lost_rounds, "rounds before"),
            (self.lost_steps, "steps of ranks"),
        ):
            if count:
                lines.append(
                    f"  without {count:,} {what}, which were not kept; records= keeps more"
                )
        for name, seconds in self.of_script():
            lines.append(f"  {name:<24}{in_words(seconds):>12}{_percent(seconds, self.seconds):>8}")
        for head, times in ((_FUNCTIONS, self.functions), (_STEPS, self.steps)):
            if times:
                lines += ["", *aligned([head, *(row.cells() for row in times)])]
        return "\n".join(lines)

    def _repr_html_(self) -> str | None:
        """Shows the summary in a notebook, with bars for the times."""
        return _html.of_trace(self)

    def of_script(self) -> Sequence[tuple[str, float]]:
        """Returns what the script did, and for how long."""
        waited = sum(times.waited for times in self.functions)
        rest = max(self.seconds - waited - self.binding - self.combining - self.messages, 0.0)
        return (
            ("waiting for the ranks", waited),
            ("preparing calls", self.binding),
            ("after rounds", self.combining),
            ("messages to the ranks", self.messages),
            ("the script's own", rest),
        )


def summarise(records: Sequence[Record]) -> Summary:
    """Returns where the time of a trace went."""
    names = process_names(records)
    spans: list[Record] = []
    kinds: Kinds = defaultdict(list)
    lost_rounds = lost_steps = 0
    for record in records:
        if record["ph"] == "X":
            spans.append(record)
            kinds[record["cat"]].append(record)
    for span in kinds["lost"]:
        lost_rounds += span["args"]["rounds"]
        lost_steps += span["args"]["steps"]
    seconds = (max(map(_end, spans), default=0.0) - min(map(_TS, spans), default=0.0)) / 1e6
    messages = _total(kinds["message"])
    ranks = [name for name in names.values() if name != SCRIPT]
    return Summary(
        max(seconds - _total(kinds["lost"]), 0.0),
        functions=tuple(sorted(_functions(kinds, names), key=lambda times: -times.waited)),
        steps=tuple(sorted(_steps(kinds), key=lambda times: -times.seconds)),
        binding=max(_total(kinds["bind"]) - messages, 0.0),  # messages are sent meanwhile
        combining=_total(kinds["combine"]),
        messages=messages,
        lost_rounds=lost_rounds,
        lost_steps=lost_steps,
        ranks=tuple(sorted(ranks, key=_rank)),
    )


def _functions(kinds: Kinds, names: dict[int, str]) -> Iterator[FunctionTimes]:
    called = _by_name(kinds["call"])
    worked: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for span in kinds["round"]:
        worked[span["name"]][names[span["pid"]]] += span["dur"] / 1e6
    compiling = _compiling(kinds["step"], kinds["round"], names)
    for name, waits in _by_name(kinds["wait"]).items():
        nbytes = sum(map(_bytes, called[name]))
        ranks = dict(worked[name])
        yield FunctionTimes(name, len(waits), _total(waits), ranks, nbytes, compiling[name])


def _steps(kinds: Kinds) -> Iterator[StepTimes]:
    steps = _by_name(kinds["step"])
    compiled = _total(steps.get(COMPILE, ()))
    for on_device, groups in ((False, steps), (True, _by_name(kinds["device"]))):
        for name, spans in groups.items():
            seconds = _total(spans)
            if name == "bind" and not on_device:  # in which kernels are compiled
                seconds -= compiled
            yield StepTimes(name, len(spans), seconds, sum(map(_bytes, spans)), on_device)


def _compiling(
    steps: Sequence[Record], rounds: Sequence[Record], names: dict[int, str]
) -> dict[str, dict[str, float]]:
    """Returns the time of each rank in compilation, by the function in whose round it was."""
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    by_rank: dict[int, list[Record]] = defaultdict(list)
    for record in sorted(rounds, key=_TS):
        by_rank[record["pid"]].append(record)
    for step in steps:
        mine = by_rank[step["pid"]]
        at = bisect_right(mine, step["ts"], key=_TS) - 1
        if step["name"] in {COMPILE, RECORD} and at >= 0:
            seconds[mine[at]["name"]][names[step["pid"]]] += step["dur"] / 1e6
    return seconds


def _rank(name: str) -> int:
    return int(name.split()[1])


def _end(span: Record) -> float:
    return float(span["ts"] + span["dur"])


def _by_name(spans: Sequence[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for span in spans:
        groups[span["name"]].append(span)
    return groups


def _total(spans: Sequence[Record]) -> float:
    return float(np.sum([*map(itemgetter("dur"), spans)])) / 1e6


def _bytes(record: Record) -> int:
    return int(record.get("args", {}).get("bytes", 0))


def in_words(value: float) -> str:
    """Returns a time with its unit; "" for NaN."""
    if math.isnan(value):
        return ""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= 100 * unit:
            return f"{value / unit:.0f} {name}"
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value * 1e9:.0f} ns" if value else "0"


def _ratio(part: float, whole: float) -> float:
    """Returns NaN if one of them is 0 or NaN."""
    return part / whole if part and whole else math.nan


def _percent(part: float, total: float) -> str:
    return f"{100 * part / total:.1f} %" if total else ""


def _count(value: int) -> str:
    return f"{value:,}" if value else ""


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3g}"


def _rate(value: float) -> str:
    """Returns bytes a second in GB/s."""
    return "< 0.01" if value < 1e7 else _number(value / 1e9)
