"""Where the time of a trace went: by function and rank."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from synknumba import _html
from synknumba._rank.spans import COMPILE, RECORD
from synknumba._timeline.tracks import SCRIPT, Record
from synknumba._types import aligned

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
        return max(times) / (sum(times) / len(times)) if times and sum(times) else float("nan")

    @property
    def rate(self) -> float:
        """Bytes a second, by the time of the busiest rank without compilation; NaN if none are
        known.
        """
        times = (seconds - self.compiling.get(rank, 0.0) for rank, seconds in self.ranks.items())
        most = max(times, default=0.0)
        return self.nbytes / most if most and self.nbytes else float("nan")

    def cells(self) -> tuple[str, ...]:
        """The row of a table, below `_FUNCTIONS`."""
        return (
            self.name,
            f"{self.rounds:,}",
            in_words(self.waited),
            in_words(self.waited / self.rounds),
            in_words(max(self.ranks.values())) if self.ranks else "",
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
        rate = self.nbytes / self.seconds if self.nbytes and self.seconds else float("nan")
        return (
            f"{self.name} (GPU)" if self.on_device else self.name,
            f"{self.count:,}",
            in_words(self.seconds),
            in_words(self.seconds / self.count),
            _count(self.nbytes),
            _rate(rate),
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
    names = {record["pid"]: record["args"]["name"] for record in records if _is_name(record)}
    spans = [record for record in records if record["ph"] == "X"]
    kinds: dict[str, list[Record]] = defaultdict(list)
    for span in spans:
        kinds[span["cat"]].append(span)
    waited: dict[str, list[Record]] = defaultdict(list)
    for span in kinds["wait"]:
        waited[span["name"]].append(span)
    called = _by_name(kinds["call"])
    worked: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for span in kinds["round"]:
        worked[span["name"]][names[span["pid"]]] += span["dur"] / 1e6
    compiling = _compiling(kinds["step"], kinds["round"], names)
    functions = [
        FunctionTimes(
            name,
            len(mine),
            _total(mine),
            dict(worked[name]),
            sum(map(_bytes, called[name])),
            compiling[name],
        )
        for name, mine in waited.items()
    ]
    first = min((span["ts"] for span in spans), default=0.0)
    last = max((span["ts"] + span["dur"] for span in spans), default=0.0)
    seconds = (last - first) / 1e6
    compiled = _total([step for step in kinds["step"] if step["name"] == COMPILE])
    steps = [
        StepTimes(
            name,
            len(mine),
            _total(mine) - compiled * ((kind, name) == ("step", "bind")),
            sum(_bytes(span) for span in mine),
            kind == "device",
        )
        for kind in ("step", "device")
        for name, mine in _by_name(kinds[kind]).items()
    ]
    messages = _total(kinds["message"])
    return Summary(
        max(seconds - _total(kinds["lost"]), 0.0),
        functions=tuple(sorted(functions, key=lambda times: -times.waited)),
        steps=tuple(sorted(steps, key=lambda times: -times.seconds)),
        binding=max(_total(kinds["bind"]) - messages, 0.0),  # messages are sent meanwhile
        combining=_total(kinds["combine"]),
        messages=messages,
        lost_rounds=sum(record["args"]["rounds"] for record in kinds["lost"]),
        lost_steps=sum(record["args"]["steps"] for record in kinds["lost"]),
        ranks=tuple(sorted((name for name in names.values() if name != SCRIPT), key=_rank)),
    )


def _compiling(
    steps: Sequence[Record], rounds: Sequence[Record], names: dict[int, str]
) -> dict[str, dict[str, float]]:
    """Returns the time of each rank in compilation, by the function in whose round it was."""
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    by_rank: dict[int, list[Record]] = defaultdict(list)
    for record in sorted(rounds, key=lambda record: record["ts"]):
        by_rank[record["pid"]].append(record)
    for step in steps:
        mine = by_rank[step["pid"]]
        at = bisect_right(mine, step["ts"], key=lambda record: record["ts"]) - 1
        if step["name"] in {COMPILE, RECORD} and at >= 0:
            seconds[mine[at]["name"]][names[step["pid"]]] += step["dur"] / 1e6
    return seconds


def _rank(name: str) -> int:
    return int(name.split()[1])


def _is_name(record: Record) -> bool:
    return bool(record["ph"] == "M" and record["name"] == "process_name")


def _by_name(spans: Sequence[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for span in spans:
        groups[span["name"]].append(span)
    return groups


def _total(spans: Sequence[Record]) -> float:
    return float(np.sum([span["dur"] for span in spans])) / 1e6


def _bytes(record: Record) -> int:
    return int(record.get("args", {}).get("bytes", 0))


def in_words(value: float) -> str:
    """Returns a time with its unit."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= 100 * unit:
            return f"{value / unit:.0f} {name}"
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value * 1e9:.0f} ns" if value else "0"


def _percent(part: float, total: float) -> str:
    return f"{100 * part / total:.1f} %" if total else ""


def _count(value: int) -> str:
    return f"{value:,}" if value else ""


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.3g}"


def _rate(value: float) -> str:
    """Returns bytes a second in GB/s."""
    return "< 0.01" if value < 1e7 else _number(value / 1e9)
