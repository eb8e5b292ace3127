"""Results of `synknumba bench`: their file, their tables, and what differs between two files."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_type_hints

from synknumba._commands.terminal import CommandError, print_table, reason_of, write_json
from synknumba._types import count_text

Unit: TypeAlias = Literal["us", "GB/s"]

SCHEMA = 1  # of the JSON; raised when a key changes its meaning or goes
SCALING = "scaling"
_BENCHMARK = "synknumba bench"  # value of a key of the JSON, by which a file is known
# What the JSON has to have, with the types.
_REPORT = {"date": str, "versions": dict, "device": str}
_MACHINE = {"cpu": str, "usable_cores": int, "gpus": list, "load": float}
_JSON = {
    str: "a string",
    dict: "an object",
    list: "a list",
    int: "a whole number",
    float: "a number",
}


@dataclass(frozen=True, slots=True)
class Result:
    """What one measurement gave.

    Attributes:
        name: what was measured; see `TOLD`.
        ranks: number of ranks; 0 for work of the script alone.
        size: bytes moved, of an array that is reduced, or number of rows; 0 where there is no such
            size.
        unit: "us", microseconds of a call, or "GB/s".
        median: of the medians of the rounds.
        low: the least of these medians.
        high: the greatest.
        calls: number of calls that were timed, in all rounds.
    """

    name: str
    ranks: int
    size: int
    unit: Unit
    median: float
    low: float
    high: float
    calls: int

    @property
    def key(self) -> tuple[str, int, int]:
        """What it is a measurement of."""
        return self.name, self.ranks, self.size

    def shown(self, value: float) -> str:
        """Returns a value with its unit."""
        if self.unit == "GB/s":
            return f"{value:.3g} GB/s"
        for limit, unit in ((1e3, "µs"), (1e6, "ms")):
            if value < limit:
                return f"{1e3 * value / limit:.3g} {unit}"
        return f"{value / 1e6:.3g} s"

    @property
    def cells(self) -> tuple[str, str, str]:
        """What was measured, with how many ranks, of which size."""
        return TOLD.get(self.name, self.name), str(self.ranks or "-"), sized(self)


_RESULT: dict[str, type] = get_type_hints(Result) | {"unit": str}  # as for `_REPORT`


@dataclass(frozen=True, slots=True)
class Report:
    """All results of one run, and where they come from.

    Attributes:
        date: start of the run, ISO 8601.
        machine: processor, cores, GPUs and load.
        versions: of Python and of packages.
        device: of the ranks, "cpu" or "cuda".
        results: in the order in which they were measured.
    """

    date: str
    machine: dict[str, Any]
    versions: dict[str, str]
    device: str
    results: tuple[Result, ...]

    def save(self, path: str) -> None:
        """Writes the report as JSON."""
        write_json(path, self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Returns the report as objects of JSON."""
        return {"schema": SCHEMA, "benchmark": _BENCHMARK, **asdict(self)}

    @classmethod
    def load(cls, path: str) -> "Report":
        """Reads a report that `save` has written; CommandError if the file is none."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise CommandError(f"cannot read {path}: {reason_of(error)}") from error
        except ValueError as error:
            raise CommandError(
                f"{path} is not JSON ({error}); name a file that `synknumba "
                f"bench --json FILE` wrote"
            ) from error
        if not isinstance(content, dict) or content.get("benchmark") != _BENCHMARK:
            raise CommandError(
                f"{path} is no file of `{_BENCHMARK}`; `{_BENCHMARK} --json FILE` writes one"
            )
        try:
            if content["schema"] != SCHEMA:
                raise CommandError(
                    f"{path} was written by another synknumba (schema {content['schema']!r}, here "
                    f"{SCHEMA}); use that to compare"
                )
            results = tuple(Result(**_of_types(fields, _RESULT)) for fields in content["results"])
            _of_types(content["machine"], _MACHINE)  # which may have more
            machine = content["machine"]
            return cls(**_of_types(content, _REPORT), machine=machine, results=results)
        except (KeyError, TypeError, ValueError) as error:
            raise CommandError(
                f"{path} has no results of `synknumba bench` ({type(error).__name__}: {error}); "
                "name a file that `synknumba bench --json FILE` wrote"
            ) from error


def _of_types(fields: dict[str, Any], types: Mapping[str, type]) -> dict[str, Any]:
    """Returns the values of these keys; KeyError, TypeError or ValueError if one lacks or is not
    what it is to be.
    """
    for name, expected in types.items():
        value = fields[name]
        if (type(value), expected) not in {(expected, expected), (int, float)}:
            raise TypeError(f"{name} must be {_JSON[expected]}, got {value!r}")
        match name:
            case "median" | "low" | "high":
                if not 0 < value < math.inf:
                    raise ValueError(f"{name} must be positive, got {value!r}")
            case "gpus":
                if not all(isinstance(item, str) for item in value):
                    raise TypeError(f"gpus must be a list of strings, got {value!r}")
            case "unit":
                if value not in get_args(Unit):
                    raise ValueError(f"unit must be {' or '.join(get_args(Unit))}, got {value!r}")
    return {name: fields[name] for name in types}


TOLD = {
    "call": "an empty call",
    "kernel_sum": "a kernel and the sum of its results",
    "kernel_rows": "a kernel that reads and writes rows",
    "function_copy": "an array function that copies them",
    "numpy_copy": "NumPy's copy, in the script",
    "rows_copied": "rows of a NumPy array, to shared memory",
    "rows_sent": "rows of a Data, to GPUs",
    "all_reduce": "all_reduce of float32",
    SCALING: "∫ 4/(1+x²) dx, the same on any number of ranks",
}
"""What is printed for the name of a measurement."""


def show(report: Report) -> None:
    """Prints a report as tables."""
    for line in described(report):
        print(line)
    print()
    rows = [
        (*result.cells, result.shown(result.median), spread(result))
        for result in sorted(report.results, key=_place)
        if result.name != SCALING
    ]
    print_table(("what", "ranks", "size", "median", "of rounds"), rows)
    curve = scaling(report)
    if curve:
        print()
        head = (TOLD[SCALING], "time", "of rounds", "speedup", "efficiency")
        print_table(head, [_on_curve(result, curve[0]) for result in curve])


def _on_curve(result: Result, first: Result) -> tuple[str, ...]:
    """Returns the cells of a result on the scaling curve that begins with `first`."""
    speedup = first.median / result.median
    return (
        count_text(result.ranks, "rank"),
        result.shown(result.median),
        spread(result),
        f"{speedup:.2f}",
        f"{speedup * first.ranks / result.ranks:.0%}",
    )


def _place(result: Result) -> tuple[int, int, int]:
    """Returns where a result is in a table: by what was measured, size and ranks."""
    size = result.size if result.name == "all_reduce" else 0
    return [*TOLD, result.name].index(result.name), size, result.ranks


def scaling(report: Report) -> list[Result]:
    """Returns the results of the scaling curve, by number of ranks."""
    curve = [result for result in report.results if result.name == SCALING]
    return sorted(curve, key=lambda result: result.ranks)


def described(report: Report) -> Iterator[str]:
    """Yields lines on the machine and the versions."""
    machine = report.machine
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    yield (
        f"{machine['cpu']}, {machine['usable_cores']} usable cores, {gpus}; load "
        f"{machine['load']:.1f} before"
    )
    yield ", ".join(f"{name} {version}" for name, version in report.versions.items())


def sized(result: Result) -> str:
    """Returns the size of a measurement as text."""
    if not result.size:
        return ""
    if result.name in {"kernel_sum", SCALING}:
        return f"{result.size:,} rows"
    for unit, nbytes in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if result.size >= nbytes:
            return f"{result.size / nbytes:.4g} {unit}"
    return f"{result.size} B"


def spread(result: Result) -> str:
    """Returns the least and the greatest median of a round."""
    low, high = result.shown(result.low), result.shown(result.high)
    return f"{low.removesuffix(' ' + high.split()[1])} – {high}"


def compare(names: Sequence[str]) -> None:
    """Prints how many times as fast the second of two files is, and what differs by more than
    the spread of both.
    """
    first, second = (Report.load(name) for name in names)
    for letter, name, report in zip("AB", names, (first, second), strict=True):
        print(f"{letter}: {name}, {report.date}, {report.device}; {next(described(report))}")
    if first.machine["cpu"] != second.machine["cpu"] or first.device != second.device:
        print("A and B are of different machines or devices")
    print()
    rest = {result.key: result for result in second.results}
    rows: list[tuple[str, ...]] = []
    for result in sorted(first.results, key=_place):
        median = result.shown(result.median)
        counterpart = rest.pop(result.key, None)
        if counterpart is None:
            rows.append((*result.cells, median, "", "", "only in A"))
            continue
        medians = (median, counterpart.shown(counterpart.median))
        speed = f"{ratio(result, counterpart):.2f}"
        rows.append((*result.cells, *medians, speed, verdict(result, counterpart)))
    rows += [
        (*result.cells, "", result.shown(result.median), "", "only in B")
        for result in rest.values()
    ]
    print_table(("what", "ranks", "size", "A", "B", "speed of B / A", ""), rows)
    print("\n'faster' and 'slower': the rounds of A and B do not overlap")


def ratio(first: Result, second: Result) -> float:
    """Returns how many times as fast `second` is."""
    return first.median / second.median if first.unit == "us" else second.median / first.median


def verdict(first: Result, second: Result) -> str:
    """Returns "faster" or "slower" if the rounds of both do not overlap, else ""."""
    if first.low <= second.high and second.low <= first.high:
        return ""
    return "faster" if ratio(first, second) > 1 else "slower"
