"""`synknumba check`: what it finds in a script, and that the script runs as usual."""

import re
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from synknumba._call.compared_ranks import Summary
from synknumba._cli import main
from synknumba._commands import compare_ranks
from synknumba._sequence import checked_script
from tests.environment import environment

SCRIPT = """
import sys
import numpy as np
from numba import cuda
import synknumba as synk
from synknumba import simt

@synk.parallel(inout=("y",))
@cuda.jit
def shifted(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = x[i + FAULT]

@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")}, block=4)
@cuda.jit
def weighted(x, factor, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, factor * x[i])

@synk.parallel
@cuda.jit
def forward(u, n, k):
    i = cuda.grid(1)
    if i + n < u.shape[0]:
        u[i + n + FAULT] = k

@synk.parallel
@cuda.jit
def scaled(u, w, rate):
    i = cuda.grid(1)
    if i < u.shape[0]:
        u[i] = rate * w[i + FAULT]

@synk.sequence
def loop(tree, flat, n):
    forward(tree["b"], 2 * n, synk.STEP + 1)
    scaled(flat, tree["a"], 0.5)

@simt.jit
def alone(x):
    i = cuda.grid(1)
    x[i + FAULT] = i

@synk.vectorize
def doubled(x):
    return 2 * x

FAULT = int(sys.argv[1])
x, y = np.arange(10.0), np.zeros(10)
with synk.fork() as world:
    print(world.device, world.world_size)
    for _ in range(3):
        shifted(x, y)
    print(weighted(x, 2.0), weighted.submit(x, factor=1.0).result(), weighted.as_serial(x, 3.0))
    print(doubled(x).sum())
    tree = synk.variable({"a": np.ones(6), "b": np.zeros(8)})
    flat = synk.variable(np.zeros(6))
    loop(tree, flat, 2, times=3)
    print(synk.get_value(0, tree)["b"].tolist() if not FAULT else "")
    z = np.zeros(4 + FAULT)
    alone[1, 4](z[:4])
    print(z.tolist())
sys.exit(7)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def run(*arguments):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=100, check=False
    )


def check(*arguments):
    return run("-m", "synknumba", "check", "--ranks", 2, *arguments)


def test_a_script_without_errors(script):
    """Its output and its exit status are those without the checker."""
    done = check(script, 0)
    lines = done.stdout.splitlines()
    assert done.returncode == 7
    assert lines[:3] == ["cpu 2", "90.0 45.0 135.0", "90.0"]
    assert lines[3] == str([0.0] * 4 + [3.0] * 4)
    assert lines[4] == "[0.0, 1.0, 2.0, 3.0]"
    assert "Error" not in done.stderr
    assert "synknumba check: 9 calls of 5 kernels checked: nothing found\n" in done.stderr
    assert re.search(
        r"\d\.\d s, of which \d\.\d s checking: \d+\.\d times as long as without", done.stderr
    )


def test_each_error_is_found_once(script):
    done = check("--calls", 2, script, 1)
    assert done.returncode == 1
    found = re.findall(
        r"^synknumba check: (\w+) in (\w+), called at .*script\.py:(\d+)\n  (.*)$",
        done.stderr,
        re.MULTILINE,
    )
    lines = SCRIPT.splitlines()

    def line(text):
        return str(next(number for number, one in enumerate(lines, 1) if text in one))

    told = {(kind, name, place): summary for kind, name, place, summary in found}
    assert {*told} == {
        ("BoundsError", "shifted", line("        shifted(x, y)")),
        ("BoundsError", "forward", line('    forward(tree["b"]')),
        ("BoundsError", "scaled", line("    scaled(flat")),
        ("BoundsError", "alone", line("    alone[1, 4]")),
    }
    assert len(found) == 4
    assert told["BoundsError", "shifted", line("        shifted(x, y)")].startswith(
        "on rank 0, 1: index [5] is outside of the array x"
    )
    assert (
        "index [8] is outside of the array u (shape (8,)"
        in told["BoundsError", "forward", line('    forward(tree["b"]')]
    )
    for text in (
        "y[i] = x[i + FAULT]",
        "u[i + n + FAULT] = k",
        "u[i] = rate * w[i + FAULT]",
        "x[i + FAULT] = i",
    ):
        assert re.search(rf"script\.py:{line(text)}\)\n +{re.escape(text)}\n", done.stderr)
    assert "synknumba check: 1 call of shifted not checked: after the first 2\n" in done.stderr
    assert "synknumba check: 4 findings, " in done.stderr


def test_checks_that_take_long_in_all_say_so(monkeypatch):
    """Once, while one is under way: in the third call, by a clock at which each call takes four
    seconds.
    """
    told, now, told_of_third = [], [0.0], threading.Event()

    class Timer(threading.Timer):  # that of a clock
        def __init__(self, interval, function, arguments):
            super().__init__(0 if interval < 4 else 3600, function, arguments)

    def slow(*arguments):
        told.append(arguments)
        told_of_third.set()

    def check():
        now[0] += 4.0
        if now[0] == 12.0:
            assert told_of_third.wait(5)

    monkeypatch.setattr(checked_script, "threading", SimpleNamespace(Timer=Timer))
    monkeypatch.setattr(checked_script, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    checks = checked_script.Checks(lambda *_: None, slow)
    for _ in range(5):
        checks._check("energy", "script.py:3", check)
    assert told == [("energy", "script.py:3", 2)]
    assert (checks.seconds, checks.calls["energy"]) == (20.0, 5)


REST = """
import numpy as np
from numba import cuda
import synknumba as synk

@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def drawn(x, seed, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, synk.random.uniform(seed, i, 0))

@synk.parallel(inout=("x",))
@cuda.jit
def judged(x):
    i = cuda.grid(1)
    if i < x.shape[0]:
        assert x[i] < 100, "too large"

@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")}, broadcast=("x",), grid=1)
@cuda.jit
def whole(x, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        total[0] = x[i] - x[i] + 1

with synk.fork(2, device="cpu"):
    x = np.arange(1000.0)
    drawn(x, 3)
    drawn(x, 3, batch=[1, 2])
    try:
        judged(x)
    except synk.RankError:
        print("raised as usual")
    whole(np.ones(3))
    try:
        drawn(x)
    except synk.ArgumentError as error:
        print("refused as usual")
1 / 0
"""  # noqa: E501


@pytest.mark.whole
def test_rows_and_other_errors(tmp_path):
    """Random numbers are drawn; an assertion counts; calls without rows are whole; a script that
    fails shows its traceback.
    """
    script = tmp_path / "script.py"
    script.write_text(REST)
    done = check("--rows", 200, script)
    assert done.returncode == 1
    assert done.stdout == "raised as usual\nrefused as usual\n"
    assert "error of a thread in judged, called at " in done.stderr
    assert "AssertionError: too large" in done.stderr
    assert "threadIdx=(0, 0, 0)" in done.stderr
    assert done.stderr.count("synknumba check: error") == 1
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert "checked_script.py" not in done.stderr
    assert "_commands" not in done.stderr
    assert "1 call of drawn not checked: drawn is missing the argument seed" in done.stderr
    assert "4 calls of 3 kernels checked" in done.stderr


@pytest.mark.whole
@pytest.mark.parametrize(
    ("text", "code"),
    [("print('no kernel')", 0), ("raise SystemExit(3)", 3), ("raise KeyboardInterrupt", 130)],
)
def test_a_script_without_kernels(text, code, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(text)
    done = check(script)
    assert done.returncode == code
    assert "synknumba check: the script has called no kernel that is checked" in done.stderr


SLICE = """
import sys
import numpy as np
from numba import cuda
from synknumba import simt

@simt.jit
def fill(x):
    x[cuda.grid(1)] = 1

fill[1, int(sys.argv[1])](np.zeros(8)[:4])
"""


@pytest.mark.parametrize(
    ("threads", "to", "code"), [(4, "/dev/full", 0), (8, "/dev/full", 1), (4, "&-", 0)]
)
def test_the_status_is_right_where_standard_error_takes_nothing(threads, to, code, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SLICE)
    command = [sys.executable, "-m", "synknumba", "check", script, str(threads)]
    done = subprocess.run(
        ["sh", "-c", f'"$@" 2>{to}', "sh", *command], env=environment(), timeout=100, check=False
    )
    assert done.returncode == code


def test_a_script_that_is_not_there(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["check", str(tmp_path / "none.py")]) == 2
    assert capsys.readouterr().err.endswith("none.py: No such file or directory\n")
    assert main(["check", str(tmp_path)]) == 2  # a folder
    assert capsys.readouterr().err.endswith("__main__.py: No such file or directory\n")
    assert main(["check", "-m", "no_such_module"]) == 2
    assert capsys.readouterr().err == "synknumba check: there is no module no_such_module\n"


@pytest.mark.parametrize(("page", "words"), [(".", "a directory"), ("no/a.html", "no directory")])
def test_a_page_that_cannot_be_written(page, words, tmp_path, capsys):
    """It is refused before the script runs."""
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    assert main(["check", "--html", str(tmp_path / page), str(script)]) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert words in errors


@pytest.mark.parametrize(("code", "status"), [(0, 2), (1, 1)])
def test_a_script_without_calls_to_compare(code, status, capsys):
    assert compare_ranks._conclude([1, 2], [Summary()], code) == status
    told = capsys.readouterr().err
    assert told == "synknumba check: the script has made no call to compare\n"


@pytest.mark.whole
def test_a_folder(tmp_path):
    (tmp_path / "__main__.py").write_text("raise SystemExit(3)")
    done = check(tmp_path)
    assert done.returncode == 3
    assert "synknumba check: the script has called no kernel that is checked" in done.stderr


PLAIN = """
import numpy as np
from numba import cuda

@cuda.jit
def shifted(x, pair, stored):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += pair[0][i + 1]
        cuda.atomic.add(stored, 0, 1)

x, stored = np.zeros(4), np.zeros(1)
d = cuda.to_device(x)
pair = cuda.to_device(np.arange(4.0)), cuda.to_device(x)
for _ in range(2):
    shifted[1, 32, cuda.stream()](d, pair, cuda.InOut(stored))
print(d.copy_to_host()[:3].tolist(), stored.tolist())
"""


@pytest.mark.parametrize("value", ["check", pytest.param("", marks=pytest.mark.whole)])
def test_a_script_for_numba_cuda(value, tmp_path, monkeypatch):
    """It is checked whether or not the variable asks for that: in one report, on copies, and it
    goes on.
    """
    monkeypatch.setenv("SYNKNUMBA_SIMT", value)
    script, page = tmp_path / "script.py", tmp_path / "page.html"
    script.write_text(PLAIN)
    done = check("--html", page, script)
    assert done.returncode == 1
    assert done.stdout == "[2.0, 4.0, 6.0] [8.0]\n"
    assert (
        f"BoundsError in shifted, called at {script}:16\n  index [4] is "
        f"outside of the array pair[0]" in done.stderr
    )
    assert (
        "synknumba check: 1 finding, 2 times in all\nsynknumba check: 2 calls of 1 kernel checked\n"
        in done.stderr
    )
    assert "Traceback" not in done.stderr
    assert "<title>1 findings of simt.check" in page.read_text()


@pytest.mark.whole
def test_run_names_the_stand_ins_where_there_is_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("SYNKNUMBA_SIMT", "")
    script = tmp_path / "script.py"
    script.write_text(
        "from numba import cuda\nraise cuda.cudadrv.error.CudaSupportError('no driver')\n"
    )
    done = run("-m", "synknumba", "run", script)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "synknumba run: numba.cuda finds no GPU here; with SYNKNUMBA_SIMT=1"
    )
