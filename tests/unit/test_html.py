"""What notebooks show of worlds, arrays, estimates and reports; to show them asks no rank, and
waits for none.
"""

import os
import re
import threading
from contextlib import contextmanager
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest

import synknumba as synk
from synknumba import _html
from synknumba._variables.variable import state_of

EMPTY = {"br", "hr", "img", "input"}


class Shown(HTMLParser):
    """The tables, the text and the bars of HTML, which must be well formed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.names, self.tables, self.bars, self.told = (
            [],
            set(),
            set(),
            [],
            [],
            [],
        )
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert tag not in EMPTY
        self.open.append(tag)
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self.tables[-1][-1].append("")
        self.bars += [
            float(one) for one in re.findall(r"^width:([\d.]+)%", dict(attrs).get("style", ""))
        ]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.told.append(data)
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data

    @property
    def facts(self):
        return dict(self.tables[0])


def shown(one):
    text = one._repr_html_()
    assert text is not None
    found = Shown(text)
    assert found.tags <= {"div", "table", "tr", "td", "th", "pre"}
    assert found.names <= {"style"}
    return found


@contextmanager
def no_rounds(world):
    """Checks that the ranks are asked nothing."""
    before = world._engine.ranks.sequence
    yield
    assert world._engine.ranks.sequence == before


def test_a_world():
    with synk.fork(3, device="cpu") as world:
        synk.function(lambda x: None)(np.ones(3))
        found = shown(world)
        assert found.told[0] == "World of 3 ranks"
        assert found.facts["state"] == "open"
        assert found.facts["calls"] == "1"
        assert found.tables[1] == [
            ["rank", "process"],
            *([str(rank), str(pid)] for rank, pid in enumerate(world.pids)),
        ]
    assert shown(world).facts["state"] == "closed"
    assert len(shown(world).tables) == 1


def test_a_world_after_a_death_and_in_a_child():
    with synk.fork(1, device="cpu") as world:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            text = world._repr_html_()
            os.write(writer, (text or "nothing").encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert (
            Shown(os.read(reader, 10_000).decode())
            .facts["state"]
            .startswith("closed: it belongs to the process")
        )
        os.close(reader)
        os.close(writer)
        with pytest.raises(synk.RankDied):
            synk.function(lambda: os._exit(3))()
        assert "rank 0" in shown(world).facts["state"]


def test_data():
    x = np.random.default_rng(0).normal(size=(1000, 30)).astype("f4")
    found = shown(synk.data(x, name="x", oversize=1.5))
    assert found.told[0] == "Data 'x'"
    assert found.facts | {"values": ""} == {
        "shape": "(1000, 30)", "dtype": "float32", "bytes": "117.2 KiB", "more": ("room for 45,000 "
                                                                                 "items"), "values": ""  # noqa: E501
    }  # fmt: skip
    numbers = re.findall(r"-?\d+\.\d+", found.facts["values"])
    edge = [0, 1, 2, -3, -2, -1]
    np.testing.assert_allclose(np.array(numbers, float), x[np.ix_(edge, edge)].ravel(), rtol=1e-6)


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (
            synk.data(np.arange(5), minibatch=True),
            {"values": "[0, 1, 2, 3, 4]", "more": "minibatch"},
        ),
        (synk.data(3.0), {"values": "3."}),
        (
            synk.data(np.arange(48).reshape(2, 3, 4, 2)),
            {"values of [0, 0, :, :]": "[[0, 1],\n [2, 3],\n [4, 5],\n [6, 7]]"},
        ),
        (synk.data(["<b>", "&"], dtype="U3"), {"values": "['<b>', '&']"}),
        (synk.data(np.zeros(2, [("a", "f4"), ("b", "i1")])), {"values": "[(0., 0), (0., 0)]"}),
        (synk.data(ndim=2, dtype="f4"), {"shape": "(0, 0)"}),
    ],
)
def test_values_of_data(data, values):
    assert values.items() <= shown(data).facts.items()


def test_data_that_is_frozen_and_freed():
    data = synk.data(np.arange(5.0))
    data.freeze()
    assert shown(data).facts["more"] == "frozen"
    data.thaw()
    data.free_memory()
    assert shown(data).facts["shape"] == "(0,)"


def test_of_a_large_array_a_few_values():
    text = synk.data(dtype="f8", shape=(3, 50, 20_000))._repr_html_()
    assert len(text) < 5000
    text = synk.data(["x" * 50_000] * 100)._repr_html_()
    assert len(text) < 20_000


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "a'\"&", "\ud800", "x" * 10_000])
def test_names_are_escaped(name):
    for one in (synk.data([1.0], name=name), synk.variable(1.0, name=name)):
        text = one._repr_html_()
        assert len(text.encode()) < 5000
        assert "<img" not in text
        assert Shown(text).told[0].startswith(type(one).__name__)


@synk.function
def add(w):
    w += 1


def test_variables():
    w = synk.variable(np.arange(6.0).reshape(2, 3), name="w")
    assert shown(w).facts["values"] == "[[0., 1., 2.],\n [3., 4., 5.]]"
    with synk.fork(3, device="cpu"):
        add(w)
        found = shown(w)
        assert found.facts["where"] == "on 3 cpu ranks, replicas may differ"
        assert found.facts["values on rank 0"] == "[[1., 2., 3.],\n [4., 5., 6.]]"
        u = synk.scatter(synk.variable(np.arange(10.0)), halo=1)
        assert shown(u).tables[1] == [
            ["rank", "own rows", "", "shape"], ["0", "3", "", "(4,)"],
            ["1", "3", "", "(5,)"], ["2", "4", "", "(5,)"]
        ]  # fmt: skip
        assert shown(u).bars == [75, 75, 100]
    assert shown(w).facts["where"] == "of a world that is closed"
    assert shown(w).facts["values on rank 0"] == "[[1., 2., 3.],\n [4., 5., 6.]]"


def test_a_tree():
    found = shown(synk.variable({"w": [np.zeros((4, 2)), np.zeros(2, "f4")], "b": None}))
    assert found.tables[1] == [
        ["array", "shape", "dtype", "bytes", ""],
        ["['w'][0]", "(4, 2)", "float64", "64 bytes", ""],
        ["['w'][1]", "(2,)", "float32", "8 bytes", ""],
    ]
    assert found.bars == [100, 12.5]
    assert (
        shown(synk.vector({"a": np.zeros(2), "b": np.zeros(3)})).facts["arrays"] == "2, one vector"
    )


def test_values_are_not_fetched(monkeypatch):
    """Of a variable on GPUs the coordinator has shapes only."""
    w = synk.variable(np.arange(3.0))
    with synk.fork(2, device="cpu") as world:
        synk.function(lambda w: None)(w)
        with no_rounds(world), monkeypatch.context() as patch:
            patch.setattr(state_of(w).storage(), "segment", None)  # as there
            assert shown(w).facts.keys() == {"shape", "dtype", "bytes", "where"}


def test_lost_values_are_not_shown():
    w = synk.variable(np.arange(3.0))
    with synk.fork(1, device="cpu"):
        with pytest.raises(synk.RankDied):
            synk.function(lambda w: os._exit(3))(w)
        assert "values on rank 0" not in shown(w).facts


@pytest.mark.parametrize("how", ["submitted", "in a thread"])
def test_nothing_waits_for_ranks_at_work(how, tmp_path):
    begun, go_on = tmp_path / "begun", tmp_path / "go on"

    @synk.function(outputs="sum")
    def slow(x, begun, go_on):
        import time

        begun.touch()
        while not go_on.exists():
            time.sleep(0.001)
        return x.sum()

    with synk.fork(1, device="cpu", timeout=60) as world:
        x, w = synk.data(np.arange(4.0)), synk.variable(np.ones(2), name="w")
        synk.function(lambda w: None)(w)
        plan = slow.plan(x, begun, go_on)
        results = []
        if how == "submitted":
            future = slow.submit(x, begun, go_on)
            thread = threading.Thread(target=lambda: results.append(future.result()), daemon=True)
        else:
            thread = threading.Thread(
                target=lambda: results.append(slow(x, begun, go_on)), daemon=True
            )
            thread.start()
        # the latter while compiled code waits
        while not begun.exists() or shown(world).facts["state"] == "open":
            pass
        with no_rounds(world):
            states = [shown(one).facts for one in (world, x, w, plan, world.statistics())]
        assert not go_on.exists()
        assert (
            states[0]["state"]
            == "open, at work: slow(x: float64 (4,), begun: PosixPath, go_on: PosixPath)"
        )
        assert "values on rank 0" not in states[2]
        go_on.touch()
        if how == "submitted":
            thread.start()
        thread.join()
        assert results == [6.0]


def test_estimates():
    values = np.random.default_rng(0).normal(size=(100, 2))
    found = shown(synk.Estimate.from_values(values))
    assert found.told[0] == "Estimate of 2 values"
    assert found.facts == {"rows": "100"}
    assert found.tables[1][0] == ["value", "mean", "standard error", "relative", "variance"]
    mean, error = values.mean(0), values.std(0, ddof=1) / 10
    expected = np.array([[0, 1], mean, error, abs(error / mean), values.var(0, ddof=1)]).T
    np.testing.assert_allclose(np.array(found.tables[1][1:], float), expected, rtol=0.05)

    weighted = shown(synk.Estimate.from_values([1.0, 2.0, 4.0], weights=[1, 2, 1]))
    assert weighted.told[0] == "Estimate 2.25(68)"
    assert weighted.facts == {"rows": "3", "effective rows": "2.7"}
    ratio = shown(
        synk.Estimate.from_values([9.0, 10.0, 11.0]) / synk.Estimate.from_values([4.9, 5.1])
    )
    assert ratio.told[0] == "Measurement 2.00(12)"
    assert ratio.tables[0][1] == ["2", "0.122", "0.061"]
    assert shown(synk.Estimate.from_values([0.0])).tables[1][1] == ["0", "nan", "–", "nan"]


@synk.function(outputs="sum", name="<total>")
def total(x, y):
    return x.sum() + y.sum()


def test_plans():
    n, ranks = 1001, 3
    with synk.fork(ranks, device="cpu"):
        found = shown(total.plan(np.zeros(n), np.zeros(n, "i1"), num_slices=2))
    assert found.told[0] == "plan of <total>"
    assert found.facts == {
        "arguments": "x: float64 (1001,), y: int8 (1001,)",
        "rows": "1,001",
        "result": "sum",
    }
    edges = [rank * n // ranks for rank in range(ranks + 1)]
    assert found.tables[1][1:] == [
        [str(rank), f"{start}..{stop}", str(stop - start), "", "2", f"{9 * (stop - start):,} bytes"]
        for rank, (start, stop) in enumerate(pairwise(edges))
    ]
    assert found.bars == [round(333 / 334 * 100, 1), 100, 100]


def test_a_plan_for_many_ranks():
    with synk.fork(1, device="cpu"):
        plan = total.plan(np.zeros(50), np.zeros(50))
    (one,) = plan.ranks
    many = synk.PlanReport(plan.function, plan.arguments, 50, 1, (one,) * 50, plan.outputs)
    table = shown(many).tables[1]
    assert len(table) == 2 + _html.MOST_ROWS
    assert table[1 + _html.MOST_ROWS // 2][0] == "… 30 more"


def test_a_plan_of_variables():
    w = synk.variable(np.ones((5, 2)))
    use = synk.parallel(lambda w: None, grid=2)
    with synk.fork(2, device="cpu"):
        table = shown(use.plan(w)).tables[1]
    assert table[0] == ["rank", "arrays of variables", "reads", "launches"]
    assert table[1] == ["0", "w (5, 2)", "0 bytes", "grid 2 of blocks 256"]


def test_a_plan_of_a_sequence():
    u = synk.variable(np.zeros((30, 4)), name="u")
    count = synk.function(lambda u: u.sum(), outputs="sum", name="count")

    @synk.sequence
    def inner(u):
        synk.exchange(u)

    @synk.sequence
    def steps(u):
        inner(u, times=3)
        return count(u)

    with synk.fork(2, device="cpu"):
        synk.scatter(u, halo=1)
        found = shown(steps.plan(u, times=10))
    assert found.told[0] == "plan of steps"
    assert found.facts["times"] == "10 iterations in 1 round"
    calls = [row[1].strip() for row in found.tables[1][1:]]
    assert [call.partition("(")[0] for call in calls] == ["inner, 3 times", "exchange", "count"]
    assert found.tables[1][2][5] == f"{2 * 4 * 8} bytes"


def test_statistics():
    with synk.fork(2, device="cpu") as world:
        total(np.ones(4), np.ones(4))
        told = world.statistics()
    found = shown(told)
    assert found.facts["calls"] == f"1 in {told.rounds} rounds, by {told.plans} plans"
    names = [row[0] for row in found.tables[1][1:]]
    assert names == ["starting", "preparing", "working", "in the script"]
    assert sum(found.bars[:4]) == pytest.approx(100, abs=0.3)
    assert float(found.tables[1][1][1]) == pytest.approx(told.seconds.starting, abs=1e-3)
    assert [row[0] for row in found.tables[2]] == ["rank", "0", "1"]
    # of a closed world there is no memory of ranks
    assert len(shown(world.statistics()).tables) == 2


@synk.function(outputs="sum")
def plus_one(x):
    return (x + 1).sum()


def test_traces():
    made = synk.trace()
    assert repr(made) == "<Trace, not begun>"
    assert made._repr_html_() is None
    with synk.fork(2, device="cpu"), made:
        assert repr(made) == "<Trace, under way>"
        for _ in range(3):
            plus_one(np.ones(4))
    assert re.fullmatch(r"<Trace of [\d.e-]+ s, 3 rounds>", repr(made))
    found = shown(made)
    assert found.facts == {"ranks": "2"}
    assert [line[0] for line in found.tables[1][1:]] == [
        name for name, _ in made.summary().of_script()
    ]
    assert found.tables[2][1][:2] == ["plus_one", "3"]
    assert found.bars == pytest.approx(
        [100 * one / made.summary().seconds for _, one in made.summary().of_script()], abs=0.06
    )
    assert shown(made.summary()).tables == found.tables


def test_what_cannot_be_shown_is_left_to_the_text(monkeypatch):
    data = synk.data([1.0])
    monkeypatch.setattr(_html, "_card", lambda *_: 1 / 0)
    assert data._repr_html_() is None


def test_in_ipython():
    formatters = pytest.importorskip(
        "IPython.core.formatters", reason="IPython is not installed; ipykernel brings it"
    )
    data = synk.data([1.0], name="x")
    bundle, _ = formatters.DisplayFormatter().format(data)
    assert bundle == {"text/plain": repr(data), "text/html": data._repr_html_()}
