"""The command line: arguments, exit statuses, and what is outside: Ctrl-C, locales, no home, no
terminal.
"""

import importlib
import io
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from synknumba import _cli
from synknumba._cli import main, make_parser
from synknumba._commands import cache, terminal
from synknumba._errors import DeviceError
from synknumba.simt.internals import KernelStore
from tests.environment import ROOT

COMMANDS = ("doctor", "new", "examples", "bench", "check", "cache", "run", "trace")
KEY = "0123456789abcdef" * 4  # as a digest
PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("\n## ")[0]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache with one kernel, and a file of the user's beside it."""
    path = tmp_path / "cache"
    monkeypatch.setenv("SYNKNUMBA_CACHE_DIR", str(path))
    assert KernelStore(path).write(KEY, bytes(1000))
    (path / "notes.txt").write_text("mine")
    return path


def test_the_console_script_is_the_module():
    name = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["synknumba"]
    module, _, function = name.partition(":")
    assert getattr(importlib.import_module(module), function) is main


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_that_parse(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    told = capsys.readouterr().out
    assert end.value.code == 0
    examples = [
        line.split("synknumba ", 1)[1]
        for line in told.split("examples:")[1].splitlines()
        if "  synknumba" in line
    ]
    assert examples
    for line in examples:
        words = line.split(" > ")[0].split(" | ")[0].split()
        assert words[0] == command
        make_parser().parse_args(words)


def test_every_command_is_on_the_page(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    assert tuple(_cli._COMMANDS) == COMMANDS
    for command in COMMANDS:
        assert re.search(rf"^ +{command}\b", told, re.MULTILINE)
        assert f"| [`{command}`](#{command}) | " in TABLE
        assert f"## `{command}`" in PAGE
    assert TABLE.count("\n| [`") == len(COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["inof"], "there is no command 'inof'; did you mean info? commands: doctor, new"),
        (["frobnicate"], "there is no command 'frobnicate'; commands: doctor, new"),
        (
            [__file__],
            f"to run a script, write python -m synknumba run {__file__}; commands: doctor",
        ),
        (["cache"], "required: action"),
        (["cache", "wipe"], "invalid choice: 'wipe'"),
        (["bench", "--ranks", "0"], "--ranks: must be at least 1, got 0"),
        (["doctor", "--ranks", "two"], "--ranks: must be a whole number of at least 1, got 'two'"),
        (["bench", "--compare", "one.json"], "expected 2 arguments"),
    ],
)
def test_wrong_arguments(arguments, said, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_the_program_is_named_as_it_was_started(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/synknumba"])
    assert make_parser().prog == "synknumba"
    monkeypatch.setattr(sys, "argv", ["/lib/synknumba/__main__.py"])
    assert make_parser().prog == "python -m synknumba"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "\nsynknumba cache: interrupted\n"),
        (terminal.CommandError("no such thing"), 2, "synknumba cache: no such thing\n"),
        (DeviceError("no GPU"), 2, "synknumba cache: no GPU\n"),
    ],
)
def test_what_ends_a_command(error, code, said, monkeypatch, capsys):
    def fail(_):
        raise error

    monkeypatch.setattr(cache, "_run", fail)
    assert main(["cache", "info"]) == code
    assert capsys.readouterr().err == said


def test_what_follows_a_script_in_a_locale_without_the_characters(monkeypatch):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    terminal.print_after_script("1.5 – 2 µs → ü")
    assert raw.getvalue() == b"1.5 - 2 us -> ?\n"
    with pytest.raises(UnicodeEncodeError):
        print("µ")  # of the script
    stream.detach()


def test_what_follows_a_script_that_cannot_be_written(monkeypatch):
    with open("/dev/full", "wb", 0) as raw:
        monkeypatch.setattr(
            sys, "stdout", io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
        )
        with pytest.raises(
            terminal.CommandError, match="cannot write the output: No space left on device"
        ):
            terminal.print_after_script("x")
        sys.stdout.detach()
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(terminal.CommandError, match="standard output is closed"):
        terminal.print_after_script("x")


@pytest.mark.parametrize("arguments", [["cache", "info"], ["doctor", "--no-world"]], ids=" ".join)
@pytest.mark.parametrize("unbuffered", [False, True])
def test_output_that_cannot_be_written(arguments, unbuffered, monkeypatch, capsys):
    with open("/dev/full", "wb", 0 if unbuffered else -1) as raw:
        full = io.TextIOWrapper(raw, encoding="utf-8", write_through=unbuffered)
        monkeypatch.setattr(sys, "stdout", full)
        assert main(arguments) == 2
        full.close()
    said = capsys.readouterr().err
    assert said == f"synknumba {arguments[0]}: cannot write the output: No space left on device\n"


def test_output_that_is_closed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["cache", "info"]) == 2
    assert (
        capsys.readouterr().err
        == "synknumba cache: cannot write the output: standard output is closed\n"
    )


def test_other_errors_of_the_system_are_not_those_of_the_output(monkeypatch):
    def fail(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache, "_run", fail)
    with pytest.raises(PermissionError):
        main(["cache", "info"])


def test_a_locale_without_the_characters(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    terminal.show_what_can_be_shown()
    print("1.5 – 2 µs → ü")
    sys.stdout.flush()
    assert raw.getvalue() == b"1.5 - 2 us -> ?\n"


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("variables", "stream", "coloured"),
    [
        ({}, Screen(), True),
        ({"NO_COLOR": "1"}, Screen(), False),
        ({"TERM": "dumb"}, Screen(), False),
        ({}, io.StringIO(), False),
    ],
)
def test_colours_are_for_terminals(variables, stream, coloured, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ("\033[" in terminal.coloured("text", "ok", stream)) == coloured


def test_cache_info(folder, capsys):
    assert main(["cache", "info", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    size = (folder / KEY).stat().st_size
    assert told["path"] == str(folder)
    assert told["kernels"] == {"count": 1, "bytes": size}
    assert told["package"] == {"count": 0, "bytes": 0}
    assert main(["cache", "info"]) == 0
    assert str(folder) in capsys.readouterr().out


def test_cache_clear(folder, capsys):
    assert main(["cache", "clear", "--yes"]) == 0
    assert capsys.readouterr().out.startswith("1 kernels, 0.0 MiB, removed from ")
    assert not (folder / KEY).exists()
    assert (folder / "notes.txt").read_text() == "mine"
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out.endswith("has no kernels\n")


@pytest.mark.parametrize(
    ("answer", "code", "left"),
    [("y\n", 0, False), ("n\n", 2, True), ("\n", 2, True), ("", 2, True)],
)
def test_cache_clear_asks(answer, code, left, folder, monkeypatch, capsys):
    answers = Screen(answer)
    monkeypatch.setattr(sys, "stdin", answers)
    assert main(["cache", "clear"]) == code
    assert "Remove 1 kernels" in capsys.readouterr().out
    assert (folder / KEY).exists() == left


def test_cache_clear_without_a_terminal(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert main(["cache", "clear"]) == 2
    assert "pass --yes" in capsys.readouterr().err
    assert (folder / KEY).exists()


def test_cache_that_cannot_be_emptied(folder, monkeypatch, capsys):
    # as in a read-only directory
    monkeypatch.setattr(KernelStore, "prune", lambda store, most: None)
    assert main(["cache", "clear", "--yes"]) == 2
    assert "1 kernels could not be removed" in capsys.readouterr().err


@pytest.mark.parametrize("why", ["off", "no home"])
def test_without_a_cache(why, monkeypatch, capsys):
    def nobody():
        raise RuntimeError("Could not determine home directory.")

    for name in ("SYNKNUMBA_CACHE_DIR", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "SYNKNUMBA_CACHE"):
        monkeypatch.delenv(name, raising=False)
    if why == "off":
        monkeypatch.setenv("SYNKNUMBA_CACHE", "0")
    else:
        monkeypatch.setattr(Path, "home", nobody)
    assert main(["cache", "info"]) == 2
    assert (
        "SYNKNUMBA_CACHE turns it off" if why == "off" else "there is no home directory"
    ) in capsys.readouterr().err


def test_files_that_cannot_be_written(tmp_path):
    with pytest.raises(terminal.CommandError, match="there is no directory"):
        terminal.check_writable(str(tmp_path / "none" / "file.json"))
    with pytest.raises(terminal.CommandError, match="it is a directory"):
        terminal.check_writable(str(tmp_path))
    with pytest.raises(terminal.CommandError, match="cannot write /proc/none: No such file"):
        terminal.write_json("/proc/none", {})
    terminal.check_writable(str(tmp_path / "file.json"))


def test_a_home_directory_that_does_not_exist(monkeypatch, capsys):
    monkeypatch.setenv("HOME", "/proc/none")
    for name in ("SYNKNUMBA_CACHE_DIR", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert main(["cache", "info"]) == 0
    assert "/proc/none/.cache/synknumba, which does not exist yet" in capsys.readouterr().out


def test_stores_are_those_of_users_and_of_the_package(tmp_path):
    assert [store.path for store in cache.stores(tmp_path).values()] == [
        tmp_path,
        tmp_path / "package",
    ]
