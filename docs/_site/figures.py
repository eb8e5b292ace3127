"""The measured figures of the pages, from `benchmarks/results`.

    python -m docs._site.figures

writes them anew, with the table of results in `docs/performance.md`; `make figures` draws the
picture, too. A figure is a number with its source behind it, in a comment that no reader sees:

    8.7 µs<!-- h200x2-call_overhead synknumba "kernel, sum" 2 -->

A source is a file, and words that choose exactly one of its results: values of the result, as they
are or as FIELD=VALUE, or parts of values where no result has such a value. Its figure is the
result's median, or what `.FIELD` names. `* 1e7` and `/ 3` compute with it, and so do other sources,
without a file if it is the same, and without words if the result is. The unit is that of the
number, or the next one in its cell or sentence, or the last before it; `in s` names it where the
page has none.
"""

import json
import math
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._common import load_of, void

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PERFORMANCE = ROOT / "docs" / "performance.md"

# What a unit measures, and its size.
UNITS = {
    "ns": ("time", 1e-9),
    "µs": ("time", 1e-6),
    "ms": ("time", 1e-3),
    "s": ("time", 1.0),
    "GB/s": ("bytes a second", 1e9),
    "TB/s": ("bytes a second", 1e12),
    "": ("number", 1.0),
    "%": ("number", 0.01),
    "million": ("number", 1e6),
    "billion": ("number", 1e9),
}
# Units of what results have, where it is not µs: of a field, or of all times of a benchmark.
FIELDS = {
    **dict.fromkeys(("gb_per_s", "bus_gb_per_s"), "GB/s"),
    **dict.fromkeys(("first_launch", "cached_launch", "njit_first_call"), "s"),
    "ns": "ns",
    **dict.fromkeys(("ratio", "scaling", "of_copy", "share", "efficiency", "simulator_factor"), ""),
    **dict.fromkeys(("error", "stderr", "gain", "slope"), ""),
    **dict.fromkeys(("each", "samples", "rows", "size", "mib", "pairs_per_s", "rate"), ""),
}
BENCHMARKS = {"ports": "ms", "weights": "ms"} | dict.fromkeys(
    ("startup", "first_launches", "check", "respawn"), "s"
)

# The code that a benchmark measures: a result is older than the code if one of these has changed.
_CALL = ("_call", "_wire", "_world", "_rank")
PATHS = {
    "call_overhead": (*_CALL, "_device"),
    "call_profile": (*_CALL, "_device"),
    "check": ("simt",),
    "collectives": ("_variables", "_comm", "_wire", "_rank"),
    "convergence": ("_rowwise", "random.py", "_sobol.py"),
    "expcos": ("simt",),
    "expectation": ("_rowwise", "_ops", *_CALL, "_device"),
    "first_launches": ("simt",),
    "generators": ("random.py", "simt"),
    "gpu_sequences": ("_sequence", "_wire", "_rank", "_device", "_comm"),
    "headline": ("_sequence", "_wire", "_rank", "_device", "_comm", "kernels", "random.py"),
    "kernels": ("kernels", "simt"),
    "machines": ("_machines", *_CALL, "_comm"),
    "many_ranks": (*_CALL, "_rowwise", "_ops", "_comm", "_world", "simt"),
    "minibatch": ("_host", *_CALL, "_device"),
    "montecarlo": ("_rowwise", "random.py", "_ops", "_device", "simt"),
    "nbody": ("kernels", "_device", "simt"),
    "ports": (*_CALL, "_device"),
    "respawn": ("_world", "_rank", "_variables"),
    "scaling": ("_machines",),
    "scatter": ("_host", *_CALL, "_device"),
    "sequences": ("_sequence", "_wire", "_rank", "_comm", "simt"),
    "shards": ("_ops", *_CALL, "simt"),
    "simt": ("simt",),
    "startup": ("_world", "_rank", "_device"),
    "stream": ("_host", *_CALL, "_device"),
    "training": ("_learning", "optim.py", "_sequence", "_rank", "_device", "_comm"),
    "vectorize": ("_rowwise", *_CALL, "_device", "simt"),
    "weights": ("_ops", *_CALL),
}

_NUMBER = r"(?<![\w.,^])\d[\d,]*(?:\.\d+)?"
_UNIT = r"(?:ns|µs|ms|s|GB/s|TB/s|million|billion)\b|%"
FIGURE = re.compile(
    rf"(?P<number>{_NUMBER})(?: ?(?P<unit>{_UNIT}))?"
    rf"<!-- (?P<source>[^<>]+?)(?: in (?P<named>{_UNIT}))? -->"
)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_NAMED_UNIT = re.compile(rf"[\d)*] ?({_UNIT})")
_END = re.compile(r"\n\n|\n?\||[.:]\s")  # of a paragraph, cell or sentence
COMPARISON = re.compile(r"\|[^|]*\|[^|]*<!--[^|]*\|[^|]*\|")  # a row with figures of our own
COMPARED_PAGES = ("performance", "comparison")
TABLE = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- /results -->)", re.DOTALL)
HEAD = (
    "| results | machine | date | commit | load of a core | changed since, of what it measures |",
    "|---|---|---|---|---|---|",
)


class FigureError(ValueError):
    """A source that names no figure, or a figure that is not that of its source."""


class Compared(NamedTuple):
    """A figure of a peer: where it is, whether it is bold, whether it is ahead of ours."""

    match: re.Match[str]
    is_bold: bool
    is_ahead: bool


class Figure(NamedTuple):
    """What a source has: a value, in units of `unit`, and the files that it is from."""

    value: float
    unit: str
    files: tuple[str, ...]


@cache
def report_of(file: str) -> dict[str, Any]:
    """Returns what a file of results has."""
    path = RESULTS / f"{file}.json"
    if not path.exists():
        raise FigureError(f"required a file of {RESULTS.relative_to(ROOT)}, got {file}")
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        reason = void(report["machine"])
    except (ValueError, TypeError, KeyError) as error:  # no JSON, or another file's
        raise FigureError(
            f"required a report of a benchmark in {path.name}, got {error!r}"
        ) from error
    if missing := {"results", "benchmark", "date", "versions"}.difference(report):
        raise FigureError(f"required {', '.join(sorted(missing))} in {path.name}, got none")
    if reason:
        raise FigureError(f"required a file of a quiet machine, got {file}: {reason}")
    return report


def figure_of(source: str) -> Figure:
    """Returns the figure of a source."""
    value, unit, files = 1.0, "", []
    result: dict[str, Any] = {}
    for operator, term in _terms(source):
        number = _as_number(term[0]) if len(term) == 1 else None
        if number is None:
            field = next((word[1:] for word in term if word.startswith(".")), "")
            words = [word for word in term if not word.startswith(".")]
            if not files or (words and (RESULTS / f"{words[0]}.json").exists()):
                files.append(words.pop(0))
            if words:
                result = _result(files[-1], words)
            number, own_unit = _value(files[-1], result, field)
            unit = "" if unit and own_unit else unit or own_unit
        value = value * number if operator == "*" else value / number
    return Figure(value, unit, tuple(files))


def _terms(source: str) -> list[tuple[str, list[str]]]:
    terms: list[tuple[str, list[str]]] = [("*", [])]
    for word in _words(source):
        if word in ("*", "/"):
            terms.append((word, []))
        else:
            terms[-1][1].append(word)
    if not all(words for _, words in terms):
        raise FigureError(f"required a source, got {source!r}")
    return terms


def _words(source: str) -> list[str]:
    try:
        return shlex.split(source)
    except ValueError as error:
        raise FigureError(f"required words, quoted or not, got {source}: {error}") from error


def _result(file: str, words: Sequence[str]) -> dict[str, Any]:
    """Returns the one result of a file that has all words."""
    results = report_of(file)["results"]
    for word in words:
        results = _having(results, word)
    if len(results) != 1:
        shown = "".join(f"\n    {_described(result)}" for result in results[:4])
        raise FigureError(
            f"required one result of {file} that has {' '.join(words)}, got {len(results)}{shown}"
        )
    return results[0]


def _value(file: str, result: dict[str, Any], field: str) -> tuple[float, str]:
    """Returns a field of a result, and its unit; the median if none is named."""
    path = field.split(".") if field else ["timing" if "timing" in result else "median"]
    value: Any = result
    for name in path:
        if not isinstance(value, dict) or name not in value:
            raise FigureError(f"required a field of {_described(result)}, got .{'.'.join(path)}")
        value = value[name]
    if isinstance(value, dict):
        value = value["median"]
    if not isinstance(value, int | float):
        raise FigureError(f"required a number in .{'.'.join(path)} of {file}, got {value!r}")
    return float(value), FIELDS.get(path[0], BENCHMARKS.get(report_of(file)["benchmark"], "µs"))


def _having(results: Sequence[dict[str, Any]], word: str) -> list[dict[str, Any]]:
    name, equals, wanted = word.rpartition("=")
    if equals and any(name in result for result in results):
        return [result for result in results if _equal(result.get(name), wanted)]
    exact = [result for result in results if any(_equal(one, word) for one in result.values())]
    begun = re.compile(rf"(?<!\w){re.escape(word)}")  # numba, and not synknumba
    return exact or [
        result
        for result in results
        if any(isinstance(value, str) and begun.search(value) for value in result.values())
    ]


def _equal(value: object, word: str) -> bool:
    if isinstance(value, int):
        return _as_number(word) == value
    return value == word


def _as_number(word: str) -> float | None:
    base, power, exponent = word.partition("^")
    try:
        return float(base) ** int(exponent) if power else float(word)
    except ValueError:
        return None


def _described(result: dict[str, Any]) -> str:
    return " ".join(
        f"{name}={value!r}" for name, value in result.items() if isinstance(value, str | int)
    )


def written(value: float, like: str) -> str:
    """Returns a number with as many digits as another one, which stays as it is if it agrees.

    Zeros at the end of a whole number may be digits that were left out, where two others stay.

    >>> [written(value, "8.7") for value in (8.694, 9.96, 0.1234, 86.4, 1012.3)]
    ['8.7', '10.0', '0.12', '86', '1,012']
    >>> written(10526.1, "10,500"), written(12.9, "9"), written(0.1156, "0.116"), written(36, "40")
    ('10,500', '13', '0.116', '36')
    """
    plain = like.replace(",", "")
    decimals = len(plain.partition(".")[2])
    zeros = 0 if decimals else min(len(plain) - len(plain.rstrip("0")), max(0, len(plain) - 2))
    if any(round(value, decimals - left_out) == float(plain) for left_out in range(zeros + 1)):
        return like
    digits = len(plain.replace(".", "").lstrip("0"))
    return f"{value:,.{max(0, digits - 1 - math.floor(math.log10(value)))}f}"


def corrected(text: str, match: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    """Returns the number that belongs in the place of a figure of a page, and its files."""
    figure = figure_of(match["source"])
    measured, size = UNITS[figure.unit]
    near = [match["named"]] if match["named"] else _units_near(text, match)
    near = [one for one in near if UNITS[one][0] == measured]
    if not near and measured != "number":
        raise FigureError(f"required a unit of {measured} beside {match['number']}, got none")
    scale = UNITS[near[0]][1] if near else 1.0
    return written(figure.value * size / scale, match["number"]), figure.files


def _units_near(text: str, match: re.Match[str]) -> list[str]:
    """Returns the units that a figure may have, the likeliest first: its own, those behind it in
    its cell or sentence, those before it.
    """
    if match["unit"]:
        return [match["unit"]]
    start = max(text.rfind(sign, 0, match.start()) for sign in ("\n\n", "\n|", "| "))
    before = _COMMENT.sub("", text[max(start, 0) : match.end()])
    behind = _COMMENT.sub("", text[match.end() :])
    end = _END.search(behind)
    behind = match["number"][-1] + behind[: end.start() if end else None]
    return [*_NAMED_UNIT.findall(behind), *reversed(_NAMED_UNIT.findall(before))]


def pages() -> Iterator[Path]:
    """Yields the pages that have figures."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").glob("*.md"))
    yield from sorted((ROOT / "docs" / "howto").glob("*.md"))


def checked(page: Path, text: str = "") -> tuple[str, list[str], set[str]]:
    """Returns the text of a page, or one to write there, with the figures of their sources, what
    was wrong in it, and the files that it is from.
    """
    text = text or page.read_text(encoding="utf-8")
    wrong: list[str] = []
    files: set[str] = set()

    def replaced(match: re.Match[str]) -> str:
        place = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
        try:
            number, sources = corrected(text, match)
        except FigureError as error:
            wrong.append(f"{place}: {error}")
            return match[0]
        files.update(sources)
        if number != match["number"]:
            wrong.append(f"{place}: required {number}, got {match['number']}: {match['source']}")
        return number + match[0][len(match["number"]) :]

    return FIGURE.sub(replaced, text), wrong, files


def compared(own: str, peers: str) -> Iterator[Compared]:
    """Yields the figures of a cell of peers, beside those in their places in our own cell."""
    ours = [figure_of(match["source"]) for match in FIGURE.finditer(own)]
    theirs = [(match, figure_of(match["source"])) for match in FIGURE.finditer(peers)]
    theirs = [(match, figure) for match, figure in theirs if figure.unit == ours[0].unit]
    if len(theirs) % len(ours):
        return
    for place, (match, figure) in enumerate(theirs):
        ours_here = ours[place % len(ours)]
        is_ahead = figure.value < ours_here.value
        if UNITS[figure.unit][0] != "time":
            is_ahead = figure.value > ours_here.value
        yield Compared(match, peers.count("**", 0, match.start()) % 2 == 1, is_ahead)


def emphasised(row: str) -> str:
    """Returns a row of a table, the cells of which are a task, our own figures and those of peers,
    with each peer bold that is ahead. Words in the bold are left to the page.
    """
    if not COMPARISON.fullmatch(row):
        return row
    _, _, own, peers, _ = row.split("|")
    result = peers
    for match, is_bold, is_ahead in reversed([*compared(own, peers)]):
        start, end = match.span()
        if is_ahead and not is_bold:
            result = f"{result[:start]}**{match[0]}**{result[end:]}"
        elif is_bold and not is_ahead and peers[start - 2 : start] == "**" == peers[end : end + 2]:
            result = f"{result[: start - 2]}{match[0]}{result[end + 2 :]}"
    return row[: -len(peers) - 1] + result + "|"


def rows_of(files: set[str]) -> list[str]:
    """Returns what the table of results says of files, without what changed since."""
    rows = []
    for file in sorted(files):
        report = report_of(file)
        machine = report["machine"]
        gpus = [gpu.partition(",")[0] for gpu in machine["gpus"]]
        hardware = f"{len(gpus)} × {gpus[0]}, " if gpus else ""
        hardware += f"{machine['usable_cores']} cores of {machine['cpu']}"
        rows.append(
            f"| {file} | {hardware} | {report['date'][:10]} | {report['versions']['commit'][:8]} "
            f"| {load_of(machine):.2f} |"
        )
    return rows


def changed_since(file: str) -> str:
    """Returns which paths of a file's benchmark have changed since its commit."""
    report = report_of(file)
    commit = report["versions"]["commit"]
    changed = []
    for path in PATHS[report["benchmark"]]:
        arguments = ["git", "-C", str(ROOT), "rev-list", "--count", f"{commit}..HEAD", "--"]
        done = subprocess.run(
            [*arguments, f"synknumba/{path}"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return "unknown: the history here does not have the commit"
        if done.stdout.strip() != "0":
            changed.append(f"`{path}`")
    return ", ".join(changed) or "nothing"


def main() -> None:
    """Writes the figures of all pages anew, and the table of results; nothing if a source has no
    figure.
    """
    from docs._site.speed import SOURCES  # it imports this module

    files = {file for source in SOURCES for file in figure_of(source).files}
    texts: dict[Path, str] = {}
    without: list[str] = []
    for page in pages():
        texts[page], _, used = checked(page)
        without += checked(page, texts[page])[1]
        files |= used
    if without:
        raise FigureError("\n".join(without))
    rows = [f"{row} {changed_since(row.split()[1])} |" for row in rows_of(files)]
    table = "\n".join((*HEAD, *rows, ""))
    texts[PERFORMANCE] = TABLE.sub(lambda _: table, texts[PERFORMANCE])
    for page, text in texts.items():
        lines = text.split("\n")
        if page.stem in COMPARED_PAGES:
            lines = [*map(emphasised, lines)]
        page.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
