"""`synknumba trace`: what is refused is refused before a script runs and before a former trace
is written over.
"""

import gzip
import json
import os
import sys

import matplotlib as mpl
import pytest

import synknumba as synk
from synknumba._cli import main
from synknumba._commands import trace
from synknumba._timeline import tracks
from synknumba._timeline.trace import _of_variable

mpl.use("agg")

MADE = {
    "otherData": {"made by": "synknumba"},
    "traceEvents": [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "script"}},
        {"ph": "X", "pid": 1, "tid": 0, "cat": "wait", "name": "f", "ts": 0.0, "dur": 900.0},
    ],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with a former trace and a script that tells of its run by a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    (tmp_path / "trace.json").write_text(json.dumps(MADE))
    (tmp_path / "script.py").write_text("open('ran', 'w').close()\n")
    (tmp_path / "broken.py").write_text("if\n")
    (tmp_path / "t.parquet").write_bytes(b"PAR1\0\0")
    (tmp_path / "foreign.json").write_text(
        '{"traceEvents": [{"ph": "X", "ts": 0, "dur": 1, "pid": 1, "tid": 1, "name": "f"}]}'
    )
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder.json").mkdir()
    return tmp_path


SPAN = MADE["traceEvents"][-1]
DAMAGED = {
    "nothing in it": {"ph": "X"},
    "no number": {**SPAN, "dur": "long"},
    "unknown process": {**SPAN, "cat": "round", "pid": 99},
    "no counts": {**SPAN, "cat": "lost", "args": []},
    "no name": {"ph": "M", "name": "process_name", "pid": 3, "args": {"name": 7}},
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_records_are_told(folder, capsys, damage):
    record = {**MADE, "traceEvents": [*MADE["traceEvents"], DAMAGED[damage]]}
    (folder / "damaged.json").write_text(json.dumps(record))
    assert main(["trace", "--summary", "damaged.json"]) == 2
    assert capsys.readouterr().err.startswith("synknumba trace: damaged.json is damaged (")


def test_packed_records_are_read_up_to_a_size(folder, capsys, monkeypatch):
    text = json.dumps(MADE).encode()
    (folder / "packed.json.gz").write_bytes(gzip.compress(text))
    (folder / "cut.json.gz").write_bytes(gzip.compress(text)[:40] + bytes(40))
    assert main(["trace", "--summary", "packed.json.gz"]) == 0
    monkeypatch.setattr(tracks, "LARGEST", len(text) - 1)
    for name in ("packed.json.gz", "cut.json.gz"):
        assert main(["trace", "--summary", name]) == 2
        assert f"{name} is no trace" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nofile.py"], "cannot read nofile.py: No such file"),
        (["empty"], "cannot read empty/__main__.py"),
        (["-m", "no_such_module.part"], "there is no module no_such_module.part"),
        (["--summary", "t.parquet"], "t.parquet is no Python script"),
        (["broken.py"], "broken.py is no Python script"),
        (["--plot", "x.xyz", "script.py"], "cannot draw x.xyz: its ending must be one of"),
        (["--plot", "x.xyz", "trace.json"], "cannot draw x.xyz: its ending must be one of"),
        (["--plot", "no/x.svg", "script.py"], "cannot write no/x.svg: there is no directory no"),
        (["-o", "folder.json", "script.py"], "'folder.json' is a folder"),
        (["-o", "run.txt", "script.py"], "a name that ends in .json"),
        (
            ["--summary", "trace.json", "b.json"],
            "takes one record at a time, got trace.json and b.json",
        ),
        (
            ["-o", "b.json", "--summary", "trace.json"],
            "-o names the file that is written of a script",
        ),
        (
            ["--summary", "foreign.json"],
            "foreign.json is the trace of another tool (it names none)",
        ),
        (["trace.json"], "is a record; say --summary or --plot FILE"),
    ],
)
def test_what_is_refused_before_the_script_runs(folder, capsys, arguments, words):
    assert main(["trace", *arguments]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("synknumba trace: ")
    assert words in told.err
    assert not told.out
    assert not (folder / "ran").exists()
    assert json.loads((folder / "trace.json").read_text()) == MADE


def test_what_is_written_is_told(folder, capsys, monkeypatch):
    monkeypatch.setenv("SYNKNUMBA_TRACE", "other.json")
    assert main(["trace", "-o", "run.json", "script.py"]) == 0
    told = capsys.readouterr().err
    assert "SYNKNUMBA_TRACE is not used, as the trace goes to run.json" in told
    assert "wrote run.json; open it in ui.perfetto.dev" in told
    assert (folder / "ran").exists()
    assert not (folder / "other.json").exists()
    assert main(["trace", "--plot", "t.svg", "trace.json"]) == 0
    assert "wrote t.svg" in capsys.readouterr().err
    assert (folder / "t.svg").exists()


def test_no_matplotlib(folder, monkeypatch, capsys):
    monkeypatch.setattr(trace.importlib.util, "find_spec", lambda _: None)
    assert main(["trace", "--plot", "a.png", "script.py"]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
    assert not (folder / "ran").exists()


def test_names_that_cannot_be_written(folder, monkeypatch):
    with pytest.raises(
        synk.ArgumentError,
        match=r"'folder.json' is a folder; name a file, as in folder.json/run.json",
    ):
        synk.trace("folder.json")
    with pytest.raises(
        synk.ArgumentError, match=r"the name of a file, as in synk.trace\('run.json'\), got 3"
    ):
        synk.trace(3)
    monkeypatch.setattr(os, "access", lambda *_: False)  # a superuser may write everywhere
    with pytest.raises(synk.ArgumentError, match="'run.json' cannot be written: permission denied"):
        synk.trace("run.json")


def test_a_bad_variable_is_named(folder, monkeypatch):
    monkeypatch.setenv("SYNKNUMBA_TRACE", "1")
    monkeypatch.setenv("SYNKNUMBA_TRACE_OWNER", str(os.getpid()))
    with pytest.raises(
        synk.ArgumentError,
        match=r"SYNKNUMBA_TRACE=1: a trace needs a name that ends .*, got '1'; or unset",
    ):
        _of_variable(None)  # as the first world is started
