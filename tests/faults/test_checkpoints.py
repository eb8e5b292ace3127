"""Processes that are killed while they save: the file is always one of those saved, and training
goes on from it.
"""

import signal

import numpy as np
import pytest
from safetensors.numpy import load_file

import synknumba as synk
from tests.quick import whole

KILLS = """
import random
from pathlib import Path
from safetensors.numpy import load_file

def save_for_ever(path, first):
    for k in range(first, 1 << 60):
        synk.save(path, {"k": k, "arrays": [np.full(1_000_000, k), np.full((3, 1000), float(k))]})

def state(path):
    found = load_file(path)
    k = int(found["arrays.0"][-1])
    assert (found["arrays.0"] == k).all() and (found["arrays.1"] == k).all()
    return k

folder = Path(FOLDER)
path, rng, last, left = folder / "model", random.Random(7), -1, 0
synk.save(path, {"k": -1, "arrays": [np.full(10, -1), np.full(10, -1.0)]})
for kill in range(KILLS):
    pid = os.fork()
    if pid == 0:
        save_for_ever(path, last + 1)
    before = path.stat().st_mtime_ns
    while kill % 2 and path.stat().st_mtime_ns == before:  # every other one after it has saved once, at least
        time.sleep(0.001)
    for _ in range(rng.randrange(20)):  # a reader finds whole files, too
        assert state(path) >= last
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    last, before = state(path), last
    assert last >= before
    assert not kill % 2 or last > before
    assert synk.load(path)["k"] == last
    rest = {entry.name for entry in folder.iterdir()} - {"model"}
    assert all(name.startswith(".synk-save-") for name in rest), rest
    assert len(rest) <= 1  # what earlier ones have left, later ones have removed
    left += len(rest)
synk.save(path, 5)
assert synk.load(path) == 5
assert os.listdir(folder) == ["model"]
say("left by", left)
"""  # noqa: E501


@pytest.mark.parametrize("kills", [10, *whole(100)])
def test_killed_at_any_moment(start, tmp_path, kills):
    folder = tmp_path / "saves"
    folder.mkdir()
    script = start(KILLS.replace("FOLDER", repr(str(folder))).replace("KILLS", str(kills)))
    assert int(script.expect(r"left by (\d+)")[1]) > 0  # some were killed while they wrote
    script.finish()


TRAINING = """
@synk.function
def step(x, w, moment):
    moment *= 0.9
    moment += x.sum()
    w -= 0.01 * moment

path = PATH
w, moment = synk.variable(np.zeros(3)), synk.variable(np.ones(3))
batches = synk.batches(50, 8, seed=3, epochs=EPOCHS)
if os.path.exists(path):
    found = synk.load(path, like={"w": w, "moment": moment, "batches": batches.state()})
    batches = batches.start_at(found["batches"])
    say("goes on at", found["batches"]["step"])
x = synk.data(np.sin(np.arange(50.0)))
with synk.fork(1, device="cpu"):
    for rows in batches:
        step(x, w, moment, batch=rows)
        synk.save(path, {"w": w, "moment": moment, "batches": batches.state()})
        say("saved")
    say("end")
"""


def test_training_goes_on_after_kills(start, tmp_path):
    """With the rows and values that it has without them, as NumPy computes them."""
    path = tmp_path / "model"
    text = TRAINING.replace("PATH", repr(str(path)))
    for steps in (3, 9):
        script = start(text.replace("EPOCHS", "None"))
        for _ in range(steps):
            script.expect("saved")
        script.kill(signal.SIGKILL)
        script.finish(-signal.SIGKILL)
    steps = synk.load(path)["batches"]["step"]
    assert steps >= 12
    epochs = steps // 7 + 2
    script = start(text.replace("EPOCHS", str(epochs)))
    script.expect(f"goes on at {steps}")
    script.expect("end")
    script.finish()

    w, moment = np.zeros(3), np.ones(3)
    for rows in synk.batches(50, 8, seed=3, epochs=epochs):
        moment = 0.9 * moment + np.sin(rows.astype(float)).sum()
        w = w - 0.01 * moment
    found = load_file(path)
    np.testing.assert_allclose(found["moment"], moment, rtol=1e-12)
    np.testing.assert_allclose(found["w"], w, rtol=1e-12)
