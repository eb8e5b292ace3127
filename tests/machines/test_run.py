"""`python -m synknumba run` on one machine: the script runs as with `python`."""

import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from synknumba._cli import main
from synknumba._machines import launch
from tests.environment import environment

ROOT = Path(__file__).parents[2]


def run(*arguments, folder, **variables):
    """Runs the command; returns its exit code, output and errors."""
    done = subprocess.run(
        [sys.executable, "-m", "synknumba", "run", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=folder,
        env={**environment(), "PYTHONPATH": str(ROOT), **variables},
    )
    return done.returncode, done.stdout, done.stderr


def test_as_python_runs_it(tmp_path):
    """Arguments, `__main__`, modules beside it, exit codes, and the number of ranks asked for."""
    (tmp_path / "beside.py").write_text("VALUE = 5\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, beside, numpy as np, synknumba as synk\n"
        "@synk.function(outputs='sum')\n"
        "def total(x):\n"
        "    return x.sum() + 0 * beside.VALUE\n"
        "if __name__ == '__main__':\n"
        "    with synk.fork(device='cpu') as world:\n"
        "        print(sys.argv[1:], __file__ == sys.argv[0], world.world_size, "
        "total(np.arange(5.0)))\n"
        "    sys.exit(int(sys.argv[1]))\n"
    )
    code, out, errors = run("--ranks-per-node", 2, script, 3, "--ranks-per-node", folder="/")
    assert (code, out, errors) == (3, "['3', '--ranks-per-node'] True 2 10.0\n", "")


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        pytest.param("raise SystemExit('a reason')", 1, "a reason\n", marks=pytest.mark.whole),
        pytest.param(
            "raise KeyboardInterrupt", 130, "KeyboardInterrupt\n", marks=pytest.mark.whole
        ),
        ("def f():\n    1 / 0\nf()", 1, "ZeroDivisionError: division by zero\n"),
        (
            "def f(:",
            1,
            'script.py", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n',
        ),
    ],
)
def test_ends(text, code, told, tmp_path):
    """A traceback begins with the script's own lines."""
    (tmp_path / "script.py").write_text(text)
    found, _, errors = run("script.py", folder=tmp_path)
    assert found == code
    assert errors.endswith(told)
    assert "launch.py" not in errors


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, (1, "")),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, (4, "PMI_SIZE")),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"},
            (2, "OMPI_COMM_WORLD_SIZE"),
        ),
        (
            {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "3", "SLURM_STEP_ID": "0"},
            (8, "SLURM_STEP_NUM_TASKS"),
        ),
        # in the batch script, or by ssh
        (
            {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"},
            (1, ""),
        ),
        ({"PMI_SIZE": "4"}, (1, "")),
        ({"PMI_RANK": "x", "PMI_SIZE": "4"}, (1, "")),
    ],
)
def test_launchers(variables, found, monkeypatch):
    for pair in launch.LAUNCHERS:
        for name in pair:
            monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launch.launched() == found


@pytest.mark.whole
def test_another_mpi_than_the_launchers(tmp_path):
    """Else each process would be a world of its own, without a word."""
    pytest.importorskip("mpi4py")
    (tmp_path / "script.py").write_text("print('ran')")
    code, out, errors = run(
        "script.py", folder=tmp_path, SLURM_STEP_NUM_TASKS="4", SLURM_PROCID="0"
    )
    assert (code, out) == (1, "")
    assert (
        "has started 4 processes (SLURM_STEP_NUM_TASKS=4), but MPI knows 1: srun has to start them"
        in errors
    )
    assert "which is MPICH, by `srun --mpi=pmi2`, or SLURM_MPI_TYPE" in errors
    code, out, errors = run("script.py", folder=tmp_path, PMI_SIZE="4", PMI_RANK="0")
    assert (code, out) == (1, "")
    assert "mpi4py uses another MPI than the launcher's, MPICH" in errors


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("", "synknumba run: mpi4py is missing: pip install 'synknumba[mpi]'\n"),
        pytest.param(
            "class rc: pass",
            "mpi4py finds no MPI (cannot load MPI library): `module load` the "
            "cluster's and set MPI4PY_MPIABI=",
            marks=pytest.mark.whole,
        ),
    ],
)
def test_no_mpi(module, told, tmp_path):
    """One line, and no traceback."""
    folder = tmp_path / "mpi4py"
    folder.mkdir()
    (folder / "__init__.py").write_text(module or "raise ModuleNotFoundError")
    (folder / "MPI.py").write_text("raise RuntimeError('cannot load MPI library\\nlibmpi.so: …')")
    (tmp_path / "script.py").write_text("print('ran')")
    variables = {
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_PROCID": "0",
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
    }
    code, out, errors = run("script.py", folder=tmp_path, **variables)
    assert (code, out) == (1, "")
    assert told in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.whole
def test_nodes_without_srun(tmp_path):
    (tmp_path / "script.py").write_text("print('ran')")
    code, out, errors = run("script.py", folder=tmp_path, SLURM_JOB_NUM_NODES="4")
    assert (code, out) == (0, "ran\n")
    assert (
        "this job has 4 nodes, and the script runs on one of them: start it by "
        "`srun --ntasks-per-node=1" in errors
    )
    for variables in (
        {"SLURM_JOB_NUM_NODES": "1"},
        {"SLURM_JOB_NUM_NODES": "4", "SLURM_STEP_NUM_NODES": "1"},
    ):
        assert run("script.py", folder=tmp_path, **variables)[2] == ""


@pytest.mark.whole
def test_what_cannot_run(tmp_path):
    (tmp_path / "script.py").write_text("print('ran')")
    code, out, errors = run("script.py", folder=tmp_path, TORCHELASTIC_RUN_ID="x")
    assert code != 0
    assert out == ""
    assert "use mpiexec or srun" in errors
    (tmp_path / "moved.py").write_text("import os; os.chdir('/'); print(__file__)")
    assert run("moved.py", folder=tmp_path)[1] == f"{tmp_path}/moved.py\n"
    code, _, errors = run("none.py", folder=tmp_path)
    assert code == 2
    assert "none.py" in errors
    code, _, errors = run(".", folder=tmp_path)
    assert code == 2
    assert "cannot read __main__.py" in errors
    for name in ("none", "none.part"):
        problem = f"synknumba run: there is no module {name}\n"
        assert run("-m", name, folder=tmp_path) == (2, "", problem)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--ranks-per-node", "0", "script.py"], "must be at least 1, got 0"),
        (["--ranks-per-node", "x", "script.py"], "must be a whole number of at least 1, got 'x'"),
        ([], "the following arguments are required: SCRIPT\n"),
        (["-c", "print(1)"], "write the code to a file"),
        (["--ranks", "1", "script.py"], "unrecognized arguments: --ranks"),
    ],
)
def test_usage(arguments, told, capsys):
    with pytest.raises(SystemExit) as end:
        main(["run", *arguments])
    assert end.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.whole
def test_a_folder(tmp_path):
    """With a `__main__.py`, as `python` runs it."""
    (tmp_path / "beside.py").write_text("VALUE = 5\n")
    (tmp_path / "__main__.py").write_text(
        "import sys, beside\nprint(sys.argv, beside.VALUE, sys.path[0], __file__)\n"
    )
    code, out, errors = run(tmp_path, 3, folder="/")
    assert (code, errors) == (0, "")
    assert out == f"{[str(tmp_path), '3']} 5 {tmp_path} {tmp_path / '__main__.py'}\n"


@pytest.mark.whole
def test_a_zip_file(tmp_path):
    """As those of zipapp: with modules beside it, and kernels whose source is in it."""
    app = tmp_path / "app.pyz"
    main = """
import sys, beside, numpy as np, synknumba as synk
from numba import cuda

@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def doubled(x, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, 2 * x[i])

with synk.fork(2, device="cpu"):
    print(sys.argv, beside.VALUE, sys.path[0], __file__, doubled(np.arange(5.0)))
1 / 0
"""
    app.write_bytes(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(app, "a") as made:
        made.writestr("beside.py", "VALUE = 5\n")
        made.writestr("__main__.py", main)
    code, out, errors = run(app, 3, folder="/")
    assert out == f"{[str(app), '3']} 5 {app} {app / '__main__.py'} 20.0\n"
    assert code == 1
    assert f'File "{app}/__main__.py", line 14, in <module>\n' in errors
    with zipfile.ZipFile(app, "w") as made:
        made.writestr("beside.py", "VALUE = 5\n")
    assert run(app, folder="/") == (2, "", f"synknumba run: there is no __main__.py in {app}\n")


def test_usage_on_another_machine(monkeypatch, capsys):
    """The first one tells of it, before its launcher ends all."""
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "1")
    with pytest.raises(SystemExit) as end:
        main(["run"])
    assert end.value.code == 2
    assert slept == [launch.TELL_SECONDS]
    assert capsys.readouterr() == ("", "")
