"""`synknumba bench`: its arithmetic against numbers worked out by hand, its files, and a run of
all measurements.
"""

import json
from dataclasses import asdict

import pytest

from synknumba._cli import main
from synknumba._commands import bench_measure, bench_results
from synknumba._commands.bench_results import Report, Result, ratio, scaling, sized, spread, verdict
from synknumba._commands.terminal import CommandError

MACHINE = {"cpu": "a processor", "usable_cores": 4, "gpus": [], "load": 0.0}


def result(median, low=None, high=None, *, name="call", ranks=2, size=0, unit="us"):
    return Result(name, ranks, size, unit, median, low or median, high or median, 10)


def report(*results, device="cpu", **machine):
    return Report(
        "2026-01-01T00:00:00+00:00", MACHINE | machine, {"python": "3.11.7"}, device, results
    )


def test_rounds():
    """Medians 2, 1, 3 s of rounds: the median of those, the least and the greatest; for
    bandwidths of 4 GB, in GB/s.
    """
    rounds = [[2.0, 2.0, 9.0], [1.0, 0.5, 1.5], [3.0]]
    timed = bench_measure.Measurement("call", 2, 0, print).result(rounds)
    assert (timed.median, timed.low, timed.high, timed.calls, timed.unit) == (
        2e6,
        1e6,
        3e6,
        7,
        "us",
    )
    moved = bench_measure.Measurement("kernel_rows", 2, 0, print, moved=4 * 10**9).result(rounds)
    assert (moved.median, moved.high, moved.unit) == (2.0, 4.0, "GB/s")
    assert moved.low == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    ("one", "other", "times", "said"),
    [
        (result(10, 9, 11), result(5, 4, 6), 2.0, "faster"),
        (result(5, 4, 6), result(10, 9, 11), 0.5, "slower"),
        (result(10, 9, 11), result(11, 10.5, 12), 10 / 11, ""),
        (result(10, unit="GB/s"), result(30, unit="GB/s"), 3.0, "faster"),
        (result(10, 8, 30, unit="GB/s"), result(30, unit="GB/s"), 3.0, ""),
    ],
)
def test_what_differs(one, other, times, said):
    assert ratio(one, other) == pytest.approx(times)
    assert verdict(one, other) == said


@pytest.mark.parametrize(
    ("one", "size", "median", "rounds"),
    [
        (result(5.3, 5.25, 5.31), "", "5.3 µs", "5.25 – 5.31 µs"),
        (
            result(1500, 900, 2e6, name="all_reduce", size=1 << 20),
            "1 MiB",
            "1.5 ms",
            "900 µs – 2 s",
        ),
        (result(2.5, name="kernel_sum", size=2000), "2,000 rows", "2.5 µs", "2.5 – 2.5 µs"),
        (
            result(12.34, unit="GB/s", name="kernel_rows", size=3 << 29),
            "1.5 GiB",
            "12.3 GB/s",
            "12.3 – 12.3 GB/s",
        ),
        (result(1.0, name="all_reduce", size=100), "100 B", "1 µs", "1 – 1 µs"),
    ],
)
def test_how_it_is_printed(one, size, median, rounds):
    assert (sized(one), one.shown(one.median), spread(one)) == (size, median, rounds)


def test_files(tmp_path):
    made = report(result(1.5, 1, 2), result(3.0, unit="GB/s", name="kernel_rows", size=8))
    made.save(str(tmp_path / "a.json"))
    assert Report.load(str(tmp_path / "a.json")) == made


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        ("[]", "is no file of `synknumba bench`; `synknumba bench --json FILE` writes one"),
        ('{"schema": 1}', "is no file of `synknumba bench`"),
        ('{"benchmark": "synknumba bench", "schema": 1}', "has no results of `synknumba bench`"),
        (
            '{"benchmark": "synknumba bench", "schema": 99}',
            r"written by another synknumba \(schema 99, here 1\)",
        ),
    ],
)
def test_other_files(text, said, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(CommandError, match=said):
        Report.load(str(path))
    with pytest.raises(CommandError, match=r"cannot read .*none.json: No such file"):
        Report.load(str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("where", "key", "value", "said"),
    [
        *(("machine", key, None, f"KeyError: '{key}'") for key in MACHINE),
        (None, "machine", [1], "TypeError"),
        (None, "date", 1, "date must be a string, got 1"),
        ("machine", "usable_cores", "4", "usable_cores must be a whole number, got '4'"),
        ("machine", "load", "low", "load must be a number, got 'low'"),
        ("machine", "gpus", [1], r"gpus must be a list of strings, got \[1\]"),
        ("results", "median", "1.5", "median must be a number, got '1.5'"),
        ("results", "low", 0, "low must be positive, got 0"),
        ("results", "high", float("nan"), "high must be positive, got nan"),
        ("results", "unit", "s", "unit must be us or GB/s, got 's'"),
    ],
)
def test_edited_files(where, key, value, said, tmp_path):
    told = report(result(1.5, 1, 2)).as_json() | {"results": [asdict(result(1.5, 1, 2))]}
    place = told if where is None else told["results"][0] if where == "results" else told["machine"]
    place[key] = value
    if value is None:
        del place[key]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(told))
    with pytest.raises(CommandError, match=rf"has no results of `synknumba bench` \(.*{said}"):
        Report.load(str(path))


def test_compare(tmp_path, capsys):
    report(result(10.0, 9, 11), result(1.0, name="all_reduce", size=1024)).save(
        str(tmp_path / "a.json")
    )
    second = report(result(5.0, 4, 6), result(7.0, name="new thing"), cpu="another")
    second.save(str(tmp_path / "b.json"))
    assert main(["bench", "--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    told = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in told.splitlines()]
    assert "an empty call 2 10 µs 5 µs 2.00 faster" in lines
    assert "all_reduce of float32 2 1 KiB 1 µs only in A" in lines
    assert "new thing 2 7 µs only in B" in lines
    assert "A and B are of different machines or devices" in lines


def test_all_measurements(tmp_path, capsys, monkeypatch):
    """On 1 and 2 ranks, for a moment each."""
    small = bench_measure.Sizes(0.01, {"cpu": 80_000}, (1024,), {"cpu": 100_000})
    monkeypatch.setattr(bench_measure, "QUICK", small)
    file = tmp_path / "a.json"
    options = ["--quick", "--device", "cpu", "--ranks", "2", "--json", str(file)]
    assert main(["bench", *options]) == 0
    told = capsys.readouterr().out
    found = Report.load(str(file))
    assert json.loads(file.read_text())["schema"] == bench_results.SCHEMA
    at_all = {"kernel_rows", "function_copy", "rows_copied", "all_reduce"}
    both = {"call", "kernel_sum", bench_results.SCALING}
    assert {(one.name, one.ranks) for one in found.results} == (
        {(name, 2) for name in at_all | both} | {(name, 1) for name in both} | {("numpy_copy", 0)}
    )
    assert all(0 < one.low <= one.median <= one.high for one in found.results)
    assert all(
        one.calls >= bench_measure.ROUNDS * bench_measure.LEAST_CALLS for one in found.results
    )
    assert [one.ranks for one in scaling(found)] == [1, 2]
    assert "2 ranks" in told
    assert "a kernel that reads and writes rows" in told


@pytest.mark.whole
def test_one_rank_reduces_nothing(capsys):
    options = ["--quick", "--seconds", "0.1", "--device", "cpu", "--ranks", "1"]
    assert main(["bench", *options]) == 0
    assert "all_reduce" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seconds", "0"], "--seconds must be more than 0"),
        (["--json", "/proc/none/file"], "there is no directory /proc/none"),
        (
            ["--compare", "a.json", "b.json", "--ranks", "2"],
            "--compare reads two files and measures nothing; leave out",
        ),
    ],
)
def test_what_cannot_be_done_is_said_before(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(bench_measure, "measure", lambda *_: pytest.fail("it has measured"))
    assert main(["bench", *arguments]) == 2
    assert said in capsys.readouterr().err
