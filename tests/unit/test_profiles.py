"""The profiles of ranks in one table, in a flame graph, and on the command line; against what `pstats` says of them."""

import cProfile
import itertools
import marshal
import os
import pstats
import re
import time

import matplotlib as mpl
import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from synknumba import ArgumentError
from synknumba._cli import main
from synknumba._timeline.profiles import Profiles

mpl.use("agg")


def ordered(x, times):
    total = 0.0
    for _ in range(times):
        total += float(np.sort(x)[0])
    return total


def halved(x, times):
    return ordered(x, times) / 2.0


@synk.function(outputs="sum", broadcast=("times",))
def work(x, rank, times):
    return ordered(x, times * (1 + 3 * int(rank))) + halved(x, times)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Profiles of two ranks, of which the second has more to do."""
    folder = tmp_path_factory.mktemp("profiles")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with synk.fork(2, device="cpu", profile=True):
            x = synk.data(np.random.default_rng(0).random(40_000))
            for _ in range(3):
                work(x, synk.RANK, 5)
    return [str(folder / f"synknumba-rank{rank}.prof") for rank in (0, 1)]


def test_the_table_is_that_of_pstats(files):
    found = {re.split(r" \(", one.name)[0]: one for one in Profiles(files).functions}
    stats = pstats.Stats(*files).stats
    for name in ("work", "ordered", "halved"):
        (place,) = [place for place in stats if place[2] == name]
        assert found[name].calls == stats[place][1]
        assert found[name].own.sum() == pytest.approx(stats[place][2])
        assert found[name].total == pytest.approx(stats[place][3])
    assert found["numpy.ndarray.sort"].calls == 3 * (10 + 25)
    own = [stats[place][2] for stats in (pstats.Stats(one).stats for one in files) for place in stats if "'sort'" in place[2]]
    assert found["numpy.ndarray.sort"].imbalance == pytest.approx(max(own) / np.mean(own))
    assert not any(name.startswith(("_await_command", "run_rank")) for name in found)
    assert Profiles(files[:1]).functions[0].own.shape == (1,)


def test_bars_lie_above_their_callers(files):
    profiles = Profiles(files)
    frames = profiles.frames()
    below = {}
    for one in frames:
        below[one.depth] = one
        if one.depth:
            caller = below[one.depth - 1]
            assert caller.start <= one.start + 1e-12
            assert one.start + one.seconds <= caller.start + caller.seconds * (1.0 + 1e-9)
    names = [(one.depth, one.place[2]) for one in frames]
    assert names[0] == (0, "work")
    assert {(1, "ordered"), (1, "halved"), (2, "ordered")} <= {*names}
    (above,) = [one for one in frames if (one.depth, one.place[2]) == (2, "ordered")]
    (beside,) = [one for one in frames if (one.depth, one.place[2]) == (1, "ordered")]
    stats = pstats.Stats(*files).stats
    (place,) = [place for place in stats if place[2] == "ordered"]
    assert above.seconds + beside.seconds == pytest.approx(stats[place][3])


def test_the_picture(files):
    axes = synk.plot.flame(files)
    assert {"work", "ordered", "halved"} <= {one.get_text() for one in axes.texts}
    assert axes.get_xlabel() == "time of 2 ranks (s)"
    own = mpl.figure.Figure().subplots()
    assert synk.plot.flame(files[:1], ax=own) is own


def test_recursion_ends(tmp_path):
    def down(n):
        return sum(range(1000)) if n == 0 else down(n - 1)

    def start():
        return down(200)

    profile = cProfile.Profile()
    profile.runcall(start)
    profile.dump_stats(tmp_path / "a.prof")
    assert [one.place[2] for one in Profiles([tmp_path / "a.prof"]).frames()].count("down") == 1


def even(x, n):
    return x.sum() if n == 0 else odd(x, n - 1)


def odd(x, n):
    np.sort(x)
    return x.sum() if n == 0 else even(x, n - 1)


def both(x):
    return even(x, 9) + odd(x, 4) + ordered(x, 3) + halved(x, 3)


def test_bars_of_mutual_recursion_do_not_overlap(tmp_path):
    profile = cProfile.Profile()
    profile.runcall(both, np.random.default_rng(0).random(40_000))
    profile.dump_stats(tmp_path / "a.prof")
    profiles = Profiles([tmp_path / "a.prof"])
    rows = {}
    for one in profiles.frames():
        rows.setdefault(one.depth, []).append(one)
    assert {"even", "odd"} <= {one.place[2] for one in rows[1]}
    for depth, row in rows.items():
        row.sort(key=lambda one: one.start)
        assert all(one.start + one.seconds <= after.start + 1e-9 for one, after in itertools.pairwise(row))
        for one in row if depth else ():
            below = max((other for other in rows[depth - 1] if other.start <= one.start + 1e-12), key=lambda other: other.start)
            assert one.start + one.seconds <= below.start + below.seconds + 1e-9


@synk.parallel(outputs={"found": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def summed(x, found):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        cuda.atomic.add(found, 0, x[i])


@synk.function
def first_is_late(rank):
    if rank == 0:
        time.sleep(0.2)


def test_waits_and_compiling_are_no_functions_of_the_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with synk.fork(2, device="cpu", profile=True):
        summed(np.ones(10))
        first_is_late(synk.RANK)
    found = Profiles(["synknumba-rank0.prof", "synknumba-rank1.prof"])
    assert {re.split(r" \(", one.name)[0] for one in found.functions} == {"first_is_late", "time.sleep"}
    (slept,) = (one for one in found.functions if one.name == "time.sleep")
    assert slept.calls == 1
    assert slept.imbalance == pytest.approx(2.0)
    assert {one.place[2] for one in found.frames() if one.depth == 0} == {"first_is_late"}
    each = [pstats.Stats(str(path)).total_tt for path in found.files]
    assert found.between == pytest.approx(sum(each) - sum(one.own.sum() for one in found.functions))


def test_profiles_of_a_larger_world_before_are_removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("synknumba-rank1.prof", "synknumba-rank12.prof", "synknumba-rankx.prof", "rank1.prof"):
        (tmp_path / name).write_text("of a world before")
    with pytest.warns(RuntimeWarning, match="removed synknumba-rank1.prof, synknumba-rank12.prof, of a larger world before"):
        synk.fork(1, device="cpu", profile=True).close()
    assert {one.name for one in tmp_path.iterdir()} == {"synknumba-rank0.prof", "synknumba-rankx.prof", "rank1.prof"}
    monkeypatch.setattr(os, "access", lambda *_: False)  # a superuser may write everywhere
    with pytest.raises(ArgumentError, match=f"profile=True writes files into {tmp_path}, where this process may not; change"):
        synk.fork(1, device="cpu", profile=True)


def test_the_command(files, tmp_path, capsys):
    target = tmp_path / "flame.svg"
    assert main(["profile", "--rows", "2", "--plot", str(target), *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["function", "calls", "own", "time", "busiest", "rank", "imbalance", "with", "callees"]
    assert lines[1].startswith("numpy.ndarray.sort")
    assert len(lines) == 4
    assert lines[-1].startswith("synknumba, and waits for calls")
    assert target.read_text(encoding="utf-8").startswith("<?xml")


def test_bad_files(files, tmp_path, capsys):
    text = tmp_path / "notes.prof"
    text.write_text("not a profile")
    with pytest.raises(ArgumentError, match=r"notes.prof is no profile; fork\(profile=True\) writes"):
        Profiles([text])
    with pytest.raises(ArgumentError, match="cannot read .*gone.prof: No such file"):
        Profiles([tmp_path / "gone.prof"])
    with pytest.raises(ArgumentError, match="flame takes a list of profiles, .*glob.glob.'synknumba-rank.*, got 'a.prof'"):
        synk.plot.flame("a.prof")
    with pytest.raises(ArgumentError, match="rank0.prof is named twice, and would be counted twice"):
        Profiles([files[0], os.path.relpath(files[0])])
    with pytest.raises(ArgumentError, match="there are no profiles"):
        synk.plot.flame([])
    many = b"{(" + (2**31 - 1).to_bytes(4, "little")  # 16 GiB, if it were believed
    for content in (
        many,
        b"not a profile",
        marshal.dumps({"a": 1}),
        marshal.dumps({("x.py", 1, "f"): 2}),
        marshal.dumps([1]),
        b"",
    ):
        text.write_bytes(content)
        capsys.readouterr()
        assert main(["profile", str(text)]) == 2
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == (
            "",
            f"synknumba profile: {text} is no profile; fork(profile=True) writes synknumba-rank0.prof and so on\n",
        )
    assert main(["profile", "--plot", str(tmp_path), files[0]]) == 2
    assert main(["profile", "--plot", str(tmp_path / "x.xyz"), files[0]]) == 2
    assert "its ending must be one of" in capsys.readouterr().err
