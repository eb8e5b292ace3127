"""Scripts that save and leave when a signal has come: `stop_on`, `stopping`, and the program of
docs/howto/time-limits.md.
"""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

import synknumba as synk
from tests.environment import ROOT, environment
from tests.test_pages import BLOCKS

PROGRAM = next(
    block.values[0]
    for block in BLOCKS
    if "training.safetensors" in block.values[0] and "stop_on" in block.values[0]
)
# Endless, until a signal comes; the loop says when it runs.
ENDLESS = PROGRAM.replace("epochs=5", "epochs=None").replace(
    "        step(x, y, batch=chosen)\n",
    "        step(x, y, batch=chosen)\n        step.steps == 20 and print('runs', flush=True)\n",
)


def test_the_program_was_changed():
    assert "epochs=None" in ENDLESS
    assert "'runs'" in ENDLESS


def test_a_job_on_one_machine(tmp_path):
    """A signal to its process group; started again, it goes on."""
    (tmp_path / "train.py").write_text(ENDLESS.replace("steps == 20", "steps % 20 == 0"))
    made = 0
    for sig in (signal.SIGUSR1, signal.SIGTERM):
        process = subprocess.Popen(
            [sys.executable, "-m", "synknumba", "run", "train.py"],
            cwd=tmp_path,
            env={**environment(), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "runs\n"
            for pid in children(process.pid):
                os.kill(pid, sig)
            os.killpg(process.pid, sig)
            lines = process.stdout.read().splitlines()
        assert process.returncode == 75
        steps = next(int(line.split()[1]) for line in lines if line.startswith("steps"))
        assert steps > made
        made = steps


def children(pid):
    """The processes that a process has started: ranks, which are in groups of their own, and the
    output process.
    """
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        found = [int(word) for word in file.read().split()]
    assert len(found) > 1
    return found


def run(text, *, status=0):
    """Runs a script; returns what it prints."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, signal, time\nimport numpy as np\nimport synknumba as synk\n"
            + textwrap.dedent(text),
        ],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == status, done.stderr
    return done.stdout.splitlines()


def test_the_flag_and_earlier_handlers():
    """Handlers of the script are called, also if stop_on is called twice; Python's own of SIGINT
    is not; others raise on.
    """
    assert run("""
        came = []
        signal.signal(signal.SIGUSR1, lambda *_: came.append("USR1"))
        synk.stop_on()
        synk.stop_on(signal.SIGUSR1, signal.SIGINT)
        batches = synk.batches(10, 2, seed=0)
        for number, rows in enumerate(batches):
            assert synk.stopping() is False
            if number == 2:
                break
        left = iter(batches)
        next(left)
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGINT)
        print(came, synk.stopping(), list(left), batches.state()["step"], list(batches))
    """) == ["['USR1'] True [] 1 []"]


def test_children_end_by_signals_as_ever():
    """Else `Pool.terminate()` would wait for ever."""
    assert run("""
        import multiprocessing
        synk.stop_on()
        os.kill(os.getpid(), signal.SIGTERM)
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        child.start()
        child.terminate()
        child.join()
        print(child.exitcode, synk.stopping())
    """) == ["-15 True"]


@pytest.mark.whole
def test_epochs_end_between_steps(tmp_path):
    """They make the same steps in parts as at once, and none after a signal; errors count steps
    of the whole epoch.
    """
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import os, signal
        import numpy as np
        import synknumba as synk

        def gradient(x, y, w):
            error = x @ w - y
            return (error**2).sum(), 2 * x.T @ error

        rows = np.random.default_rng(0).normal(size=(1000, 3))

        def trained(*, every=1, bad=None):
            target = rows @ [1.0, -2.0, 3.0]
            step = synk.train.step(gradient, np.zeros(3), synk.optim.adam(0.05))
            order = synk.batches(rows, 10, seed=0, drop_last=True).order(0)
            if bad is not None:
                target[order[bad, 0]] = np.nan
            try:
                losses = step.epoch(rows, target, order=order, every=every)
            except synk.NonFiniteError as error:
                return str(error), step.steps
            return losses.tolist(), step.params.get_value().tolist(), step.steps

        with synk.fork(2, device="cpu"):
            whole = [trained(), trained(every=7), trained(bad=41)]
            synk.stop_on()
            parts = [trained(), trained(every=7), trained(bad=41)]
            assert parts == whole, (parts, whole)
            assert len(whole[1][0]) == 14
            assert "step 42 of 100" in whole[2][0]
            step = synk.train.step(gradient, np.zeros(3), synk.optim.adam(0.05))
            order = synk.batches(rows, 10, seed=0).order(0)

            class Striking:  # a signal comes while the first part is made
                def __call__(self, first, total, every):
                    os.kill(os.getpid(), signal.SIGTERM)
                    return type(step)._end_of_part(step, first, total, every)

            object.__setattr__(step, "_end_of_part", Striking())
            losses = step.epoch(rows, rows @ [1.0, -2.0, 3.0], order=order, every=7)
            print(step.steps, losses.shape)
            print(step.steps, step.epoch(rows, rows[:, 0], order=order).shape)
        """)
    )
    done = subprocess.run(
        [sys.executable, script],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout.splitlines() == ["7 (1,)", "7 (0,)"], done.stderr


@pytest.mark.parametrize("bad", [signal.SIGKILL, signal.SIGSTOP, 0, 1000, "SIGTERM", None])
def test_what_is_no_signal(bad):
    with pytest.raises(
        synk.ArgumentError,
        match=r"stop_on: .* is no signal that can be handled; pass some such as signal\.SIGTERM",
    ):
        synk.stop_on(signal.SIGUSR2, bad)
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


def test_where_it_cannot_be_called():
    errors = []

    def call():
        try:
            synk.stop_on()
        except synk.WorldError as error:
            errors.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "main thread" in errors[0]

    @synk.function
    def on_rank():
        synk.stop_on()

    with (
        synk.fork(1, device="cpu"),
        pytest.raises(synk.WorldError, match="stop_on.. called on a rank"),
    ):
        on_rank()
    assert not synk.stopping()
