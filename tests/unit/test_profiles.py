"""The profiles of ranks in one table, in a flame graph, and on the command line; against what `pstats` says of them."""

import cProfile
import pstats
import re

import matplotlib as mpl
import numpy as np
import pytest

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
    assert found["numpy.ndarray.sort"].imbalance > 1.2  # 10 : 25 would be 1.43
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
    with pytest.raises(ArgumentError, match="flame takes a list of profiles, one for each rank, got 'a.prof'"):
        synk.plot.flame("a.prof")
    with pytest.raises(ArgumentError, match="there are no profiles"):
        synk.plot.flame([])
    assert main(["profile", str(text)]) == 2
    assert "synknumba profile: " in capsys.readouterr().err
    assert main(["profile", "--plot", str(tmp_path), files[0]]) == 2
