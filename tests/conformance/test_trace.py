"""Traces of worlds: what was recorded is what was done, in order, and no time is counted
twice.
"""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from synknumba._device.base import Device, read_rows
from synknumba._timeline.summary import FunctionTimes, StepTimes, Summary
from synknumba._timeline.tracks import read
from tests.conformance.conftest import spans_machines
from tests.environment import environment
from tests.quick import whole


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def energy(x, beta, total):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        cuda.atomic.add(total, 0, math.exp(-beta * x[i]))


@synk.function(outputs="sum")
def rows(x):
    if x.ndim == 1:  # so that it takes Python in each call: its text does not show that it need not
        return x.sum()
    return None


@synk.function
def nap(seconds, rank):
    time.sleep(seconds * rank)


@synk.function
def raises(x):
    raise ValueError("no")


@synk.sequence
def loop(x, v):
    found = energy(x, 0.1 * synk.STEP)
    synk.all_reduce(v, "sum")
    return found


def spans(made, kind, name=None):
    """The spans of a kind, by time."""
    found = [
        one
        for one in made.records()
        if one["ph"] == "X" and one["cat"] == kind and name in {None, one["name"]}
    ]
    return sorted(found, key=lambda one: one["ts"])


def end(one):
    return one["ts"] + one["dur"]


def test_calls_and_rounds(world):
    x = synk.data(np.random.default_rng(0).random(1001))
    energy(x, 0.5)
    before = time.perf_counter()
    with synk.trace() as made:
        found = [energy(x, 0.1 * k) for k in range(30)]
    took = time.perf_counter() - before
    assert np.allclose(found, [np.exp(-0.1 * k * x.data).sum() for k in range(30)])

    calls, waits = spans(made, "call"), spans(made, "wait")
    assert [one["name"] for one in waits] == ["energy"] * 30
    assert len(calls) == 30
    assert len({one["args"]["round"] for one in waits}) == 30
    for call, wait in zip(calls, waits, strict=True):
        assert call["ts"] <= wait["ts"]
        assert end(wait) <= end(call) + 0.01
    assert all(end(one) <= after["ts"] + 0.01 for one, after in itertools.pairwise(calls))
    assert sum(one["dur"] for one in calls) <= took * 1e6
    assert {one["args"]["bytes"] for one in calls} == {x.nbytes}

    rounds = spans(made, "round", "energy")
    assert len(rounds) == 30 * world.world_size
    by_number = {one["args"]["round"]: one for one in waits}
    for one in rounds:  # each within the script's wait for it, which may end late
        wait = by_number[one["args"]["round"]]
        assert wait["ts"] - 0.01 <= one["ts"] <= end(one) <= end(wait) + 1.0
    names = [one["args"]["name"] for one in made.records() if one["name"] == "process_name"]
    assert names == ["script", *(f"rank {rank}" for rank in range(world.world_size))]

    (told,) = made.summary().functions
    assert (told.name, told.rounds, told.nbytes) == ("energy", 30, 30 * x.nbytes)
    assert sorted(told.ranks) == sorted(names[1:])
    assert max(told.ranks.values()) <= told.waited
    assert "energy" in str(made.summary())


def test_compilation_is_no_part_of_what_it_takes_to_bind_or_to_read_bytes(world):
    @synk.parallel(
        outputs={"total": synk.output("sum", shape=(), dtype="float64")}, grid=1, block=1
    )
    def cubes(x, total):
        for i in range(x.shape[0]):
            total[0] += x[i] ** 3

    with synk.trace() as made:
        for _ in range(3):
            cubes(np.ones(1000))
    told = next(one for one in made.summary().functions if one.name == "cubes")
    steps = {one.name: one for one in made.summary().steps if not one.on_device}
    assert steps["compile"].count == world.world_size
    assert told.compiling.keys() == told.ranks.keys()
    assert all(0 < told.compiling[rank] < told.ranks[rank] for rank in told.ranks)
    assert told.rate > told.nbytes / max(told.ranks.values())
    whole = sum(one["dur"] for one in spans(made, "step", "bind")) / 1e6
    assert steps["bind"].seconds == pytest.approx(whole - steps["compile"].seconds, rel=1e-6)


def test_steps_parts_and_imbalance(world):
    x, v = synk.data(np.arange(1000.0)), synk.variable(np.ones(3))
    loop(x, v, times=2)
    nap(0.0, synk.RANK)
    with synk.trace() as made:
        for _ in range(3):
            rows(x, batch=np.arange(0, 1000, 7))
        loop(x, v, times=20)
        nap(0.02, synk.RANK)
    steps = {one["name"] for one in spans(made, "step")}
    assert {"gather rows", "function"} <= steps
    parts = [
        one
        for one in spans(made, "step")
        if "step" in one.get("args", {}) and one["name"].startswith("energy")
    ]
    if "20 iterations" in steps:  # recorded together, on a GPU
        assert len(spans(made, "device", "20 iterations")) == world.world_size
    elif spans_machines():  # each of its calls is a round
        assert not parts
    else:
        assert sorted({one["args"]["step"] for one in parts}) == [*range(20)]
        assert len(parts) == 20 * world.world_size
    (told,) = (one for one in made.summary().functions if one.name == "nap")
    last = world.world_size - 1
    assert told.ranks[f"rank {last}"] >= 0.02 * last
    if last:
        assert 1.3 < told.imbalance < 2.1  # 2, but for what ranks take to begin


def test_a_submitted_call_an_error_and_a_ring_that_is_full(world):
    x = synk.data(np.ones(100))
    rows(x)
    with synk.trace(records=10) as made:
        future = rows.submit(x)
        time.sleep(0.01)
        assert future.result() == 100
        with pytest.raises(synk.RankError):
            raises(x)
        for _ in range(50):
            rows(x)
    assert len(spans(made, "wait")) == 10
    assert len(spans(made, "round")) == 10 * world.world_size
    assert rows(x) == 100
    with synk.trace() as again:
        rows(x)
    assert len(spans(again, "wait")) == 1


def test_a_later_trace_has_its_own_time_and_not_that_of_collecting_it(world):
    x = np.ones(10)
    with synk.trace():
        rows(x)
    time.sleep(0.3)
    before = time.perf_counter()
    with synk.trace() as made:
        rows(x)
    took = time.perf_counter() - before
    assert made.summary().seconds < took
    assert all(one["ts"] >= 0 for one in made.records() if one["ph"] == "X")
    assert not spans(made, "message", "trace to all ranks")


@pytest.mark.parametrize("messages", [False, True], ids=["rounds alone", "messages between them"])
def test_of_rounds_that_are_too_many_all_tracks_have_the_same(world, messages):
    x = synk.data(np.ones(100))
    rows(x)
    with synk.trace(records=10) as made:
        for k in range(45):
            rows(x)
            if messages:
                # on GPUs and other machines a round of its own besides
                synk.variable(np.zeros(k + 1))
    told = made.summary()
    mine = next(one for one in told.functions if one.name == "rows")
    every = 90 if messages and (world.device == "cuda" or spans_machines()) else 45
    assert sum(one.rounds for one in told.functions) + told.lost_rounds == every
    assert mine.rounds == 10 or messages
    assert mine.nbytes == mine.rounds * x.nbytes
    numbers = [one["args"]["round"] for one in spans(made, "wait")]
    for pid in {one["pid"] for one in spans(made, "round")}:
        assert [
            one["args"]["round"] for one in spans(made, "round") if one["pid"] == pid
        ] == numbers
    assert [one.count for one in told.steps if one.name == "function" and not one.on_device] == [
        mine.rounds * world.world_size
    ]
    (lost,) = spans(made, "lost")
    assert all(
        one["ts"] >= end(lost) - 0.01
        for kind in ("call", "wait", "bind", "message", "round")
        for one in spans(made, kind)
    )
    kept = [one for one in made.records() if one["ph"] == "X" and one is not lost]
    assert told.seconds == pytest.approx((max(map(end, kept)) - end(lost)) / 1e6, rel=1e-6)
    assert f"without {told.lost_rounds:,} rounds before" in str(told)


def test_traces_inside_each_other(world):
    x = np.ones(10)
    with synk.trace() as outer:
        rows(x)
        with synk.trace() as inner:
            rows(x)
            rows(x)
        rows(x)
    assert [len(spans(one, "wait")) for one in (outer, inner)] == [4, 2]
    assert len(spans(outer, "round", "rows")) == 4 * world.world_size
    assert outer.summary().ranks == inner.summary().ranks


def test_worlds_that_begin_and_end_meanwhile():
    with synk.trace() as made:
        for ranks in (1, 2):
            with synk.fork(ranks, device="cpu"):
                rows(np.ones(10))
    assert [one["name"] for one in spans(made, "wait")] == ["rows"] * 2
    assert len(spans(made, "round", "rows")) == 3
    assert made.summary().ranks == ("rank 0", "rank 0", "rank 1")


def test_bytes_of_files_and_small_rates():
    assert Device.told(None, partial(read_rows, object(), np.ones(4), slice(0, 4))) == (
        "read rows",
        32,
    )
    slow = Summary(
        1.0,
        (FunctionTimes("f", 1, 1.0, {"rank 0": 1.0}, 800),),
        (StepTimes("s", 1, 1.0, 800, on_device=False),),
    )
    assert [line.split("800  ")[1].strip() for line in str(slow).splitlines() if "800" in line] == [
        "< 0.01",
        "< 0.01",
    ]


def test_a_rank_that_dies():
    with synk.trace() as made:
        world = synk.fork(2, device="cpu")
        rows(np.ones(10))
        os.kill(world.pids[1], signal.SIGKILL)
        with pytest.raises(synk.RankDied):
            rows(np.ones(10))
    assert len(spans(made, "wait")) == 2
    assert not spans(made, "round")
    assert "rank 1" in made._metadata()["ended"][0]


@synk.function
def raises_late(x):
    time.sleep(0.1)
    raise ValueError("no")


@synk.function
def dies_late(x, rank):
    time.sleep(0.1)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60.0)


@pytest.mark.parametrize(
    ("fails", "error"),
    [(raises_late, synk.RankError), (dies_late, synk.RankDied)],
    ids=["error", "death"],
)
@pytest.mark.parametrize("submitted", [False, *whole(True)])
def test_calls_that_fail_are_told(fails, error, submitted):
    """With their time, which is not the script's own."""
    arguments = (np.ones(9),) if fails is raises_late else (np.ones(9), synk.RANK)
    call = (lambda: fails.submit(*arguments).result()) if submitted else (lambda: fails(*arguments))
    with synk.fork(2, device="cpu"), synk.trace() as made, pytest.raises(error):
        call()
    (wait,) = spans(made, "wait")
    assert wait["name"] == fails.__name__
    assert 0.1e6 <= wait["dur"] <= 5e6
    (told,) = made.summary().functions
    assert told.waited >= 0.1
    assert spans(made, "call")


@pytest.mark.whole  # four scripts
def test_processes_of_one_command_write_a_file_each(tmp_path):
    """Whoever has started them; the next command writes over the file of the name again."""
    script, path = tmp_path / "script.py", tmp_path / "run.json"
    script.write_text(
        "import numpy as np, synknumba as synk\n"
        "@synk.function(outputs='sum')\ndef total(x): return x.sum()\n"
        "with synk.fork(1, device='cpu'): total(np.ones(9))\n"
    )
    command = f"{sys.executable} {script}; {sys.executable} {script}"
    for files in (2, 3):
        subprocess.run(
            ["bash", "-c", command],
            env=environment(SYNKNUMBA_TRACE=str(path)),
            check=True,
            timeout=60,
        )
        found = sorted(tmp_path.glob("run*.json"))
        assert path in found
        assert len(found) == files
        assert all(json.loads(one.read_text())["traceEvents"] for one in found)


def test_what_is_refused(tmp_path):
    with pytest.raises(synk.ArgumentError, match="name that ends in .json"):
        synk.trace(tmp_path / "run.txt")
    with pytest.raises(synk.ArgumentError, match="does not exist"):
        synk.trace(tmp_path / "no" / "run.json")
    with pytest.raises(synk.ArgumentError, match="no null character"):
        synk.trace("a\0b.json")
    (tmp_path / "full.json").symlink_to("/dev/full")
    full = pytest.raises(
        OSError, match="could not be written: No space left on device; keep it by made.save"
    )
    with full, synk.trace(tmp_path / "full.json"):
        pass
    assert not (tmp_path / "full.json").is_symlink()
    with pytest.raises(synk.WorldError, match="has not begun; make calls in its block"):
        synk.trace().summary()
    for number in (0, True, 1.0, "9", 10**12):
        with pytest.raises(
            synk.ArgumentError,
            match=f"records must be an int from 1 to 10,000,000, got {number!r}$",
        ):
            synk.trace(records=number)
    assert synk.trace(records=np.int64(3))._records == 3
    with synk.trace() as made, pytest.raises(synk.WorldError, match="is not over"):
        made.summary()
    with pytest.raises(synk.WorldError, match="this trace is over"), made:
        pass
    assert made.summary().functions == ()
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(synk.ArgumentError, match="is no trace"):
        read(tmp_path / "x.json")


def test_a_whole_script(tmp_path):
    path = tmp_path / "run.json.gz"
    text = """
        import numpy as np
        import synknumba as synk

        @synk.function(outputs="sum")
        def total(x):
            return x.sum()

        with synk.fork(2, device="cpu"):
            for _ in range(5):
                total(np.ones(10))
        synk.fork(1, device="cpu")
        total(np.ones(10))
        """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    subprocess.run(
        [sys.executable, script],
        env=environment() | {"SYNKNUMBA_TRACE": str(path)},
        check=True,
        timeout=60,
    )
    records = read(path)
    assert json.dumps(records)
    assert sum(one["ph"] == "X" and one["cat"] == "wait" for one in records) == 6
