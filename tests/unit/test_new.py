"""`synknumba new` and `synknumba examples`: what they write, and that it runs. The oracles of the
programs are in their tests.
"""

import re
import subprocess
import sys

import pytest

from synknumba._cli import main
from synknumba._commands import doctor
from synknumba._commands.new import PROGRAMS
from tests.environment import ROOT, environment

EXAMPLES = ROOT / "examples"

# What each test must notice: a line of the program, and a wrong one in its place.
MISTAKES = {
    "ising": ("-2.0 * beta", "-1.9 * beta"),
    "expectation": ("y = synk.random.uniform(seed, i, 1)", "y = x"),
    "pde": ("2.0 * u[i]", "2.0001 * u[i]"),
    "training": ("error.sum(keepdims=True)", "error.mean(keepdims=True)"),
}


def python(folder, *arguments):
    """Runs Python in a folder; a warning is an error, as in any test."""
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current directory, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_programs_are_those_of_the_folder():
    files = {path.name for path in (EXAMPLES / "new").glob("*.py")}
    assert files == {name for one in PROGRAMS for name in (f"{one}.py", f"test_{one}.py")}
    assert MISTAKES.keys() == set(PROGRAMS)
    assert re.findall(r"ising|\w+(?=,|\))", doctor.START) == list(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_new_program_passes_its_test(program, here, capsys):
    assert main(["new", program]) == 0
    assert capsys.readouterr().out == (
        f"wrote {program}.py and test_{program}.py\n"
        f"next: python {program}.py, then pip install pytest, and "
        f"python -m pytest test_{program}.py\n"
    )
    done = python(here, "-m", "pytest", f"test_{program}.py")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.whole
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_new_program_runs_and_a_mistake_in_it_fails_its_test(program, here):
    assert main(["new", program]) == 0
    done = python(here, f"{program}.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout
    path, (right, wrong) = here / f"{program}.py", MISTAKES[program]
    assert path.read_text().count(right) == 1
    path.write_text(path.read_text().replace(right, wrong))
    done = python(here, "-m", "pytest", f"test_{program}.py")
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["pde.py", "test_pde.py"])
def test_new_overwrites_nothing(name, here, capsys):
    (here / name).write_text("mine")
    assert main(["new", "pde"]) == 2
    assert f"{name} exists; nothing was written" in capsys.readouterr().err
    assert [path.read_text() for path in here.iterdir()] == ["mine"]


def test_examples_are_copied(here, capsys):
    assert main(["examples"]) == 0
    sources = [*EXAMPLES.rglob("*.py"), EXAMPLES / "README.md"]
    names = {path.relative_to(EXAMPLES) for path in sources}
    assert len(names) > 20
    for name in names:
        assert (here / "examples" / name).read_bytes() == (EXAMPLES / name).read_bytes()
    printed = capsys.readouterr().out
    files = {path.relative_to(here) for path in here.rglob("*") if path.is_file()}
    assert len(files) == len(names)
    assert set(map(str, files)) <= set(printed.splitlines())
    assert printed.endswith("\nnext: python examples/energy.py\n")
    assert main(["examples"]) == 2
    assert "examples exists, and is not changed" in capsys.readouterr().err


def test_a_command_that_is_printed_can_be_pasted(here, capsys):
    assert main(["examples", "my examples"]) == 0
    assert capsys.readouterr().out.endswith("\nnext: python 'my examples/energy.py'\n")


def test_examples_where_nothing_can_be_written(capsys):
    assert main(["examples", "/proc/none"]) == 2
    assert "cannot write /proc/none: No such file" in capsys.readouterr().err
