"""The figures of the pages are those of the results that they name: `make figures` writes them."""

import json
import re

import pytest

from benchmarks import _common
from docs._site import figures, speed
from docs._site.speed import SOURCES
from tests.environment import PACKAGE, ROOT

PAGES = [*figures.pages()]
# How often and how long something is done: settings, which are not measured.
SETTINGS = {
    "architecture": "50 ms",
    "calls-reference": "5 ms",
    "diagnosis": "50 ms",
    "progress": "50 ms",
}
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
# A number with a unit of what is measured, or a list of numbers that ends in one.
TIMED = re.compile(r"(?<![\w^])\d[\d,.]*(?:(?:, | and | to |; )[\d,.]+)* ?(?:ns|µs|ms|GB/s|TB/s)\b")
LOOSE = re.compile(r"(?<![\w^.,×·⁰-⁹-])\d[\d,.]*(?![\w^×·⁰-⁹-])")


def unsourced(text):
    """Numbers with a unit that have no source, and the lines of the page where they stand."""
    text = CODE.sub(lambda match: "\n" * match[0].count("\n"), text)
    text = figures.FIGURE.sub("", text)
    return [(text.count("\n", 0, match.start()) + 1, match[0]) for match in TIMED.finditer(text)]


def quoted_beside(text):
    """Numbers without a source in the cells of tables that have figures."""
    cells = [cell for line in text.splitlines() if line.startswith("|") for cell in line.split("|")]
    return [
        (cell, number)
        for cell in cells
        if figures.FIGURE.search(cell)
        for number in LOOSE.findall(figures.FIGURE.sub("", CODE.sub("", cell)))
    ]


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A page of its own, with results of its own; returns what is wrong in a text."""
    results = tmp_path / "results"
    results.mkdir()
    monkeypatch.setattr(figures, "RESULTS", results)
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    figures.report_of.cache_clear()
    rows = [
        {"library": "ours", "what": "sum", "ranks": 1, "timing": {"median": 8.158, "minimum": 7.0}},
        {"library": "ours", "what": "sum", "ranks": 2, "timing": {"median": 1694.0}},
        {"library": "theirs", "what": "sum, twice", "ranks": 2, "timing": {"median": 22.07}},
        {"library": "theirs", "what": "rate", "ranks": 2, "gb_per_s": 4311.0, "n": 2**30},
    ]
    for file, load in (("quiet", 2.9), ("busy", 3.1)):
        machine = {"load_before": 0.5, "load_average": load, "usable_cores": 2, "gpus": []}
        report = {
            "benchmark": "call_overhead",
            "date": "2026-11-29",
            "versions": {"commit": ""},
            "machine": machine,
            "results": rows,
        }
        (results / f"{file}.json").write_text(json.dumps(report))

    def check(text):
        file = tmp_path / "page.md"
        file.write_text(f"first\n{text}\n", encoding="utf-8")
        corrected, wrong, _ = figures.checked(file)
        return corrected.splitlines()[1], wrong

    yield check
    figures.report_of.cache_clear()


@pytest.mark.parametrize(
    "text",
    [
        "8.2<!-- quiet ours sum 1 --> µs",
        "8.2 µs<!-- quiet ours ranks=1 -->",
        "8.2<!-- quiet ours 1 -->, 1,694<!-- quiet ours 2 --> and 22<!-- quiet theirs twice --> µs",
        "7<!-- quiet ours 1 .timing.minimum --> µs",
        "1.7 ms<!-- quiet ours 2 -->",
        "0.0017<!-- quiet ours 2 in s -->",
        "| 1.69<!-- quiet ours 2 --> ms (theirs 0.022<!-- quiet theirs twice -->) |",
        "| theirs 22<!-- quiet theirs twice -->; ours 1,700<!-- quiet ours 2 --> µs |",
        "208<!-- quiet ours 2 / ours 1 --> times",
        "0.85<!-- quiet ours 2 * 1e3 / 2e6 --> µs",
        "4.31<!-- quiet rate .gb_per_s n=2^30 --> TB/s",
    ],
)
def test_a_figure_of_its_source(page, text):
    assert page(text) == (text, [])


@pytest.mark.parametrize(
    ("text", "corrected", "said"),
    [
        (
            "8.3<!-- quiet ours 1 --> µs",
            "8.2<!-- quiet ours 1 --> µs",
            "page.md:2: required 8.2, got 8.3: quiet ours 1",
        ),
        ("8.2 ms<!-- quiet ours 2 -->", "1.7 ms<!-- quiet ours 2 -->", "required 1.7, got 8.2"),
        ("22<!-- quiet heirs --> µs", None, "that has heirs, got 0"),
        (
            "8.2<!-- quiet ours 3 --> µs",
            None,
            "required one result of quiet that has ours 3, got 0",
        ),
        (
            "8.2<!-- quiet ours --> µs",
            None,
            "that has ours, got 2\n    library='ours' what='sum' ranks=1",
        ),
        ("8.2<!-- gone ours 1 --> µs", None, "page.md:2: required a file of results, got gone"),
        (
            "8.2<!-- busy ours 1 --> µs",
            None,
            "got busy: a load of 1.55 a core, where 1.5 is the limit",
        ),
        ("8.2<!-- quiet ours 1 -->", None, "required a unit of time beside 8.2, got none"),
        ("8.2<!-- quiet ours 1 .p99 --> µs", None, "got .p99"),
        ('8.2<!-- quiet "ours 1 --> µs', None, 'required words, quoted or not, got quiet "ours 1'),
    ],
)
def test_another_figure_than_that_of_its_source(page, text, corrected, said):
    now, (wrong,) = page(text)
    assert now == (corrected or text)
    assert said in wrong


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"machine": 1}'])
def test_a_spoiled_file_is_named_and_no_page_is_written(page, tmp_path, monkeypatch, content):
    (tmp_path / "results" / "quiet.json").write_text(content)
    file = tmp_path / "performance.md"
    text = "8<!-- quiet ours 1 --> µs\n<!-- results -->\na row\n<!-- /results -->\n"
    file.write_text(text, encoding="utf-8")
    monkeypatch.setattr(figures, "pages", lambda: [file])
    monkeypatch.setattr(figures, "PERFORMANCE", file)
    monkeypatch.setattr(speed, "SOURCES", ())
    with pytest.raises(
        figures.FigureError, match=r"performance.md:1: required .* quiet\.json, got"
    ):
        figures.main()
    assert file.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "text", ["9.6 µs", "8, 9 and 10 µs", "9<!-- f x --> and 10 µs", "a, 1,000 ms"]
)
def test_a_time_without_a_source_is_seen(text):
    assert unsourced(text)


def test_a_number_beside_figures_is_seen():
    assert quoted_beside("| a 10⁷ | 9<!-- f x --> µs (theirs: 12) |") == [
        (" 9<!-- f x --> µs (theirs: 12) ", "12")
    ]


def test_figures_are_those_of_the_results():
    counts = {page.name: len(figures.FIGURE.findall(page.read_text("utf-8"))) for page in PAGES}
    assert counts["performance.md"] > 100
    assert counts["comparison.md"] > 40
    wrong = [line for page in PAGES for line in figures.checked(page)[1]]
    assert not wrong, "\n".join([*wrong, "`make figures` writes them"])


def test_times_have_sources():
    texts = {page.stem: page.read_text(encoding="utf-8") for page in PAGES}
    times = {(page, number) for page, text in texts.items() for _, number in unsourced(text)}
    assert times == set(SETTINGS.items())
    assert [beside for text in texts.values() for beside in quoted_beside(text)] == []


def test_peers_that_are_ahead_are_bold():
    rows = [
        line.split("|")
        for page in figures.COMPARED_PAGES
        for line in (ROOT / "docs" / f"{page}.md").read_text("utf-8").splitlines()
        if figures.COMPARISON.fullmatch(line)
    ]
    peers = [peer for row in rows for peer in figures.compared(row[2], row[3])]
    assert len(peers) > 100
    assert sum(peer.is_ahead for peer in peers) > 20
    wrong = [peer.match["source"] for peer in peers if peer.is_bold != peer.is_ahead]
    assert not wrong, "\n".join([*wrong, "`make figures` writes those without words in the bold"])


@pytest.mark.usefixtures("page")
@pytest.mark.parametrize(
    ("peers", "emphasised"),
    [
        ("a 22<!-- quiet theirs twice --> µs", "a 22<!-- quiet theirs twice --> µs"),
        ("a **22 µs<!-- quiet theirs twice -->**", "a 22 µs<!-- quiet theirs twice -->"),
        ("7<!-- quiet ours 1 .timing.minimum -->", "**7<!-- quiet ours 1 .timing.minimum -->**"),
        ("", ""),
    ],
)
def test_peers_are_made_bold_where_they_are_ahead(peers, emphasised):
    row = "| a task | 8.2<!-- quiet ours 1 --> µs | {} |"
    assert figures.emphasised(row.format(peers)) == row.format(emphasised)
    assert figures.emphasised("| a task | no figure | no figure |").endswith("| no figure |")


def test_the_table_of_results_is_that_of_the_files():
    files = {file for source in SOURCES for file in figures.figure_of(source).files}
    files |= {file for page in PAGES for file in figures.checked(page)[2]}
    (table,) = figures.TABLE.findall(figures.PERFORMANCE.read_text(encoding="utf-8"))
    head, rows = table.splitlines()[:2], table.splitlines()[2:]
    assert tuple(head) == figures.HEAD
    assert [row.rpartition("|")[0].rpartition("|")[0] + "|" for row in rows] == figures.rows_of(
        files
    )


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the history")
def test_what_has_changed_since_a_result(monkeypatch):
    def since(commit):
        report = {"benchmark": "check", "versions": {"commit": commit}}
        monkeypatch.setattr(figures, "report_of", lambda _: report)
        return figures.changed_since("file")

    assert since("HEAD") == "nothing"
    assert since("0" * 40) == "unknown: the history here does not have the commit"


def test_every_benchmark_says_what_it_measures():
    benchmarks = {path.stem for path in figures.RESULTS.parent.glob("[!_]*.py")}
    assert benchmarks
    assert set(figures.PATHS) == benchmarks
    paths = {PACKAGE / path for paths in figures.PATHS.values() for path in paths}
    assert [path for path in paths if not path.exists()] == []


def test_a_run_on_a_busy_machine_is_void(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(_common, "LOAD_BEFORE", 1e3)
    file = tmp_path / "results.json"
    _common.save(file, "call_overhead", [], {})
    report = json.loads(file.read_text())
    assert report["machine"]["load_before"] == 1e3
    assert "is the limit" in report["void"]
    assert "void" in capsys.readouterr().err
