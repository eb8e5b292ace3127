"""Pictures: the data in the axes, against NumPy's quartiles and closed forms; labels, styles and
refusals.
"""

import json
import math
import sys
from itertools import pairwise

import numpy as np
import pytest

import synknumba as synk
from synknumba import plot

mpl = pytest.importorskip(
    "matplotlib", reason="matplotlib is not installed; it is in the extra dev"
)
mpl.use("agg")
from matplotlib import colors  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.backends.backend_agg import RendererAgg  # noqa: E402

TIMES = {4: [1.1, 1.5, 1.2], 1: [4.0, 4.4, 4.1], 2: [2.2, 2.1, 2.0]}


@pytest.fixture(autouse=True)
def _no_figures_stay():
    yield
    plt.close("all")


def points(axes, number=-1):
    """Positions of the points of a series."""
    return axes.containers[number].lines[0].get_xydata().T


def bars(axes, number=-1):
    """Lower and upper ends of the error bars of a series."""
    (segments,) = axes.containers[number].lines[2]
    return np.array([segment[:, 1] for segment in segments.get_segments()]).T


def limits(axes):
    """The dashed lines, by their names."""
    return {
        line.get_label(): line.get_xydata().T for line in axes.lines if line.get_linestyle() == "--"
    }


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def tick_labels(axis):
    axis.get_figure().canvas.draw()
    low, high = sorted(axis.get_view_interval())
    return [
        tick.label1.get_text() for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high
    ]


# ---- scaling


def test_scaling():
    time, efficiency = synk.plot.scaling(TIMES)
    quartiles = np.array([np.percentile(TIMES[ranks], [25, 50, 75]) for ranks in (1, 2, 4)])
    np.testing.assert_allclose(points(time), [[1, 2, 4], quartiles[:, 1]])
    np.testing.assert_allclose(bars(time), quartiles[:, [0, 2]].T)
    np.testing.assert_allclose(
        limits(time)["perfect scaling"], [[1, 2, 4], [4.1, 4.1 / 2, 4.1 / 4]]
    )

    shares = [
        np.percentile(4.1 / (ranks * np.array(TIMES[ranks])), [25, 50, 75]) for ranks in (1, 2, 4)
    ]
    np.testing.assert_allclose(points(efficiency), [[1, 2, 4], [1, 4.1 / 4.2, 4.1 / 4.8]])
    np.testing.assert_allclose(bars(efficiency), np.array(shares)[:, [0, 2]].T)
    np.testing.assert_allclose(limits(efficiency)["perfect scaling"], [[1, 2, 4], [1, 1, 1]])
    assert efficiency.get_ylim()[0] == 0
    assert efficiency.get_ylim()[1] > 1

    for axes, what in ((time, "time"), (efficiency, "efficiency")):
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("ranks", what)
        assert tick_labels(axes.xaxis) == ["1", "2", "4"]
        assert legend(axes) == ["perfect scaling", "median and quartiles"]
    assert tick_labels(time.yaxis) == ["1 s", "2 s"]
    time, _ = synk.plot.scaling({1: 0.012, 2: 0.007})
    assert tick_labels(time.yaxis) == ["6 ms", "8 ms", "10 ms"]


def test_weak_scaling():
    time, efficiency = synk.plot.scaling({2: 1.0, 4: 1.25, 8: 2.0}, weak=True)
    np.testing.assert_allclose(points(efficiency), [[2, 4, 8], [1, 0.8, 0.5]])
    np.testing.assert_allclose(limits(time)["perfect scaling"][1], 1.0)
    assert time.get_ylim()[0] == 0
    assert tick_labels(time.yaxis)[:2] == ["0 s", "250 ms"]
    assert legend(time) == ["perfect scaling", "measured"]  # no quartiles of one time


def test_scaling_from_several_ranks_on():
    _, efficiency = synk.plot.scaling({2: 1.0, 8: 0.5})
    np.testing.assert_allclose(points(efficiency), [[2, 8], [1, 0.5]])


def test_scaling_of_one_number_of_ranks():
    time, efficiency = synk.plot.scaling({3: 0.2})
    np.testing.assert_allclose(points(time), [[3], [0.2]])
    assert tick_labels(efficiency.xaxis) == ["3"]


def test_ticks_of_many_numbers_of_ranks():
    time, _ = synk.plot.scaling({ranks: 1e-5 / ranks for ranks in range(3, 40)})
    assert tick_labels(time.xaxis) == ["4", "8", "16", "32"]
    assert tick_labels(time.yaxis) == ["500 ns", "1 µs", "2 µs"]


def test_several_series():
    axes = synk.plot.scaling({1: 1.0, 2: 0.6}, label="π")
    assert synk.plot.scaling({1: 2.0, 2: 1.1, 3: 0.9}, label="option", ax=axes) is axes
    for one in axes:
        assert legend(one) == ["perfect scaling", "π", "option"]
        first, second = (container.lines[0] for container in one.containers)
        assert first.get_marker() != second.get_marker()
        assert first.get_color() != second.get_color()
        assert tick_labels(one.xaxis) == ["1", "2", "3"]
    assert axes[0].get_ylim()[1] > 2.0


def test_one_picture_of_a_pair():
    _, ax = plt.subplots()
    assert synk.plot.scaling(TIMES, ax=(None, ax)) == (None, ax)
    assert ax.get_ylabel() == "efficiency"
    assert len(plt.get_fignums()) == 1


@pytest.mark.parametrize(
    ("times", "error"),
    [
        ({}, "needs times of at least one number of ranks, got an empty dict"),
        ([1.0, 0.5], r"dict of seconds by number of ranks, as in .* got \[1.0, 0.5\]"),
        ({1: []}, r"times of 1 ranks must be positive numbers .* got \[\]"),
        ({1: [1.0, 0.0]}, "must be positive numbers of seconds"),
        ({1: math.nan}, "must be positive numbers of seconds"),
        ({1: "fast"}, "the times of 1 ranks must be numbers, got 'fast'"),
        ({1: [[1.0]]}, r"a list of numbers, got shape \(1, 1\)"),
        ({0: 1.0}, "positive integers, got 0"),
        ({1.5: 1.0}, "positive integers, got 1.5"),
        ({True: 1.0}, "positive integers, got True"),
    ],
)
def test_times_that_are_refused(times, error):
    with pytest.raises(synk.ArgumentError, match=error):
        synk.plot.scaling(times)
    assert not plt.get_fignums()


@pytest.mark.parametrize("ax", ["single", (None, None), (1, 2), [None], "ab"])
def test_axes_that_are_refused(ax):
    if ax == "single":
        _, ax = plt.subplots()
    with pytest.raises(synk.ArgumentError, match="plt.subplots"):
        synk.plot.scaling(TIMES, ax=ax)


# ---- rows


@synk.function(outputs="sum")
def total(x):
    return x.sum()


def lengths(axes):
    return [patch.get_width() for patch in axes.patches]


def texts(axes):
    axes.figure.canvas.draw()
    return [text.get_text() for text in axes.texts]


def test_rows():
    with synk.fork(3, device="cpu"):
        axes = synk.plot.rows(total.plan(np.zeros(1001), num_slices=2))
    edges = [rank * 1001 // 3 for rank in range(4)]
    assert lengths(axes) == [stop - start for start, stop in pairwise(edges)]
    assert texts(axes) == [
        "mean 333.667",
        "333  (0 … 332)",
        "334  (333 … 666)",
        "334  (667 … 1,000)",
    ]
    # the first slices' ends
    assert [segments.get_segments()[0][0, 0] for segments in axes.collections] == [
        166,
        167,
        167,
    ]
    assert axes.lines[0].get_xdata()[0] == pytest.approx(1001 / 3)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("rows", "rank")
    assert tick_labels(axes.yaxis) == ["0", "1", "2"]
    assert axes.yaxis_inverted()


def test_a_rank_without_rows():
    _, ax = plt.subplots()
    with synk.fork(3, device="cpu"):
        assert synk.plot.rows(total.plan(np.zeros(2)), ax=ax) is ax
    assert lengths(ax) == [0, 1, 1]
    assert texts(ax)[1] == "0"


def test_rows_of_variables():
    pick = synk.function(lambda v: v, outputs="gather", rows=("v",))
    with synk.fork(2, device="cpu"):
        v = synk.scatter(synk.variable(np.arange(5.0)))
        axes = synk.plot.rows(pick.plan(v))
    assert lengths(axes) == [2, 3]
    assert texts(axes) == ["mean 2.5", "2  (0 … 1)", "3  (2 … 4)"]


def test_rows_of_many_ranks_and_slices():
    with synk.fork(1, device="cpu"):
        plan = total.plan(np.zeros(1000), num_slices=100)
    many = synk.PlanReport(plan.function, plan.arguments, 1000, 100, plan.ranks * 100, plan.outputs)
    axes = synk.plot.rows(many)
    assert lengths(axes) == [1000] * 100
    assert texts(axes) == ["mean 1,000"]
    assert not any(one.get_segments() for one in axes.collections)


def test_plans_that_are_refused():
    w = synk.variable(np.ones(3))

    @synk.sequence
    def steps(w):
        return total(w)

    with synk.fork(1, device="cpu"):
        for plan, error in (
            (total.plan(w), "no argument of total has any"),
            (steps.plan(w), "that of the sequence steps; pass the plan of one of its parts"),
            (total, "takes the PlanReport that"),
        ):
            with pytest.raises(synk.ArgumentError, match=error):
                synk.plot.rows(plan)
        with pytest.raises(synk.ArgumentError, match="must be axes of matplotlib"):
            synk.plot.rows(total.plan(np.ones(3)), ax=3)
    assert not plt.get_fignums()


# ---- convergence

COUNTS = [100, 1000, 10]
VALUES = np.random.default_rng(0).normal(size=1000)


def test_convergence_of_estimates():
    means, errors = synk.plot.convergence(
        [synk.Estimate.from_values(VALUES[:n]) for n in COUNTS], exact=0.0
    )
    ns = np.sort(COUNTS)
    mean = np.array([VALUES[:n].mean() for n in ns])
    error = np.array([VALUES[:n].std(ddof=1) for n in ns]) / np.sqrt(ns)
    np.testing.assert_allclose(points(means), [ns, mean])
    np.testing.assert_allclose(bars(means), [mean - error, mean + error])
    np.testing.assert_allclose(limits(means)["exact"], [[10, 1000], [0, 0]])
    np.testing.assert_allclose(points(errors), [ns, error])
    doubt = error / np.sqrt(2 * (ns - 1))
    np.testing.assert_allclose(bars(errors), [error - doubt, error + doubt])
    np.testing.assert_allclose(limits(errors)["∝ 1/√n"], [ns, error[-1] * np.sqrt(1000 / ns)])
    assert (means.get_ylabel(), errors.get_ylabel(), errors.get_xlabel()) == (
        "mean",
        "standard error",
        "rows n",
    )
    assert legend(means) == ["exact", "mean ± standard error"]
    assert legend(errors) == ["∝ 1/√n", "standard error"]
    assert (errors.get_xscale(), errors.get_yscale()) == ("log", "log")
    assert tick_labels(errors.xaxis) == [
        "$\\mathdefault{10^{1}}$",
        "$\\mathdefault{10^{2}}$",
        "$\\mathdefault{10^{3}}$",
    ]


def test_convergence_of_arrays_and_measurements():
    means, errors = synk.plot.convergence(
        np.array([1.1, 1.0]), [0.1, 0.03], counts=[10, 100], label="a"
    )
    np.testing.assert_allclose(points(errors), [[10, 100], [0.1, 0.03]])
    assert not errors.containers[-1].has_yerr
    ratios = [
        synk.Estimate.from_values([9.0, 11.0]) / synk.Estimate.from_values([4.9, 5.1])
        for _ in range(2)
    ]
    synk.plot.convergence(ratios, counts=[2, 20], label="b", ax=(means, errors))
    np.testing.assert_allclose(points(means), [[2, 20], [2, 2]])
    assert legend(errors) == ["∝ 1/√n", "a", "b"]
    means.figure.canvas.draw()


def test_an_estimate_of_one_row_has_no_error():
    means, errors = synk.plot.convergence(
        [synk.Estimate.from_values(VALUES[:n]) for n in (1, 4)], ax=plt.subplots(2)[1]
    )
    np.testing.assert_array_equal(points(errors)[0], [1, 4])
    assert np.isnan(points(errors)[1][0])
    means.figure.canvas.draw()


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (([],), {}, r"at least one of each; got estimates \(0,\)"),
        (
            (synk.Estimate.from_values([1.0, 2.0]),),
            {},
            "takes a list of estimates, of ever more rows, got one",
        ),
        (([1.0, 2.0],), {}, "one of the list is 1.0"),
        ((3,), {}, "one of the list is 3"),
        (([synk.Estimate.from_values([[1.0, 2.0]] * 3)],), {}, r"this has 2; pass one of them"),
        (([1.0], [0.1]), {}, "needs counts="),
        (
            ([1.0], [0.1, 0.2]),
            {"counts": [1, 2]},
            r"estimates \(1,\), errors \(2,\), counts \(2,\)",
        ),
        (([1.0], [-0.1]), {"counts": [1]}, "none below 0 and some above"),
        (([1.0], [0.0]), {"counts": [1]}, "none below 0 and some above"),
        (([1.0], [0.1]), {"counts": [0]}, "at least 1, got"),
        ((["a"], [0.1]), {"counts": [1]}, "estimates must be numbers"),
        (([synk.Estimate.from_values([1.0])],), {}, "an estimate of one row has none"),
        (([2 / synk.Estimate.from_values([1.0, 2.0])],), {}, "a Measurement has no number of rows"),
        (([1.0], [0.1]), {"count": [1]}, "has no option count=.*Did you mean counts="),
    ],
)
def test_estimates_that_are_refused(arguments, options, error):
    with pytest.raises(synk.ArgumentError, match=error):
        synk.plot.convergence(*arguments, **options)
    assert not plt.get_fignums()


# ---- styles


def luminance(color):
    """Relative luminance; WCAG 2.2."""
    parts = np.array(colors.to_rgb(color))
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ [
        0.2126,
        0.7152,
        0.0722,
    ]


def contrast(one, other):
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("page", ["white", "black"])
def test_colours_are_seen_on_light_and_dark_pages(page):
    assert contrast("white", "black") == pytest.approx(21)
    assert contrast(plot.INK, page) > 4.5
    assert min(contrast(color, page) for color in plot.COLORS) > 3
    assert len(set(plot.COLORS)) == len(set(plot.MARKERS))


def test_a_new_figure_has_no_background():
    axes, _ = synk.plot.scaling(TIMES)
    figure = axes.figure
    figure.canvas.draw()
    assert np.asarray(figure.canvas.buffer_rgba())[0, 0, 3] == 0
    told = [
        axes.xaxis.label,
        axes.yaxis.label,
        *axes.get_xticklabels(),
        *axes.get_yticklabels(),
        *axes.get_legend().get_texts(),
    ]
    assert len(told) > 5
    assert {colors.to_hex(text.get_color()) for text in told} == {plot.INK}


def test_axes_of_the_script_keep_their_style():
    with plt.rc_context({"axes.labelcolor": "#123456", "axes.facecolor": "#ffffee"}):
        _, ax = plt.subplots()
    synk.plot.convergence([1.0, 1.1], [0.1, 0.2], counts=[2, 1], exact=1.0, ax=(ax, None))
    assert colors.to_hex(ax.get_facecolor()) == "#ffffee"
    assert ax.lines[0].get_color() == "#123456"
    assert ax.get_xlabel() == "rows n"


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        ModuleNotFoundError,
        match=r"synk\.plot\.scaling\(\) needs matplotlib.*pip install 'synknumba\[plot\]'",
    ) as info:
        synk.plot.scaling(TIMES)
    assert info.value.name == "matplotlib"


@pytest.mark.parametrize("name", ["a$b_$", "a$b", r"\$x$"])
def test_names_are_text(name, monkeypatch):
    """Not formulas, which are drawn in parts: the texts that are drawn are searched for the name
    as it is.
    """
    records = [{"ph": "M", "pid": 7, "name": "process_name", "args": {"name": f"rank {name}"}}]
    records += [{"ph": "X", "pid": 7, "tid": 0, "cat": "wait", "name": name, "ts": 0.0, "dur": 9.0}]

    pictures = {
        "timeline": (synk.plot.timeline(records), [name, f"rank {name}"]),
    }
    drawn = []
    draw_text = RendererAgg.draw_text

    def noted(renderer, gc, x, y, text, prop, angle, ismath=False, mtext=None):
        drawn.append((text, ismath))
        return draw_text(renderer, gc, x, y, text, prop, angle, ismath, mtext)

    monkeypatch.setattr(RendererAgg, "draw_text", noted)
    for picture, (axes, names) in pictures.items():
        drawn.clear()
        axes.figure.canvas.draw()
        assert {(one, False) for one in names} <= {*drawn}, picture


def test_timeline(tmp_path):
    names = [("M", 7, "script"), ("M", 8, "rank 0")]
    records = [
        {"ph": ph, "pid": pid, "name": "process_name", "args": {"name": name}}
        for ph, pid, name in names
    ]
    spans = [
        (7, "wait", "f", 0.0, 900.0),
        (7, "bind", "bind", 900.0, 50.0),
        (7, "wait", "g", 950.0, 550.0),
        (8, "round", "f", 10.0, 880.0),
    ]
    records += [
        {"ph": "X", "pid": p, "tid": 0, "cat": c, "name": n, "ts": t, "dur": d}
        for p, c, n, t, d in spans
    ]
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"traceEvents": records, "otherData": {"made by": "synknumba"}}))
    axes = synk.plot.timeline(path)
    assert [one.get_text() for one in axes.get_yticklabels()] == ["script", "rank 0"]
    assert axes.get_xlabel() == "time (ms)"
    assert legend(axes) == ["f", "g", "before and after rounds"]
    boxes = sorted(
        (box.x0, round(box.x1, 6))
        for one in axes.collections
        for box in (p.get_extents() for p in one.get_paths())
    )
    assert boxes == [(0.0, 0.9), (0.01, 0.89), (0.9, 0.95), (0.95, 1.5)]
    path.write_text(json.dumps({"traceEvents": records[:2], "otherData": {"made by": "synknumba"}}))
    with pytest.raises(synk.ArgumentError, match="no rounds to draw"):
        synk.plot.timeline(path)
    with pytest.raises(
        synk.ArgumentError, match=r"timeline draws what synk.trace has made, .*got 3"
    ):
        synk.plot.timeline(3)


def test_the_exact_value_is_a_number():
    with pytest.raises(synk.ArgumentError, match="convergence: exact must be numbers, got 'pi'"):
        synk.plot.convergence([1.0, 1.1], [0.1, 0.2], counts=[2, 1], exact="pi")
    with pytest.raises(
        synk.ArgumentError, match=r"convergence: exact must be one number, got \[1, 2\]"
    ):
        synk.plot.convergence([1.0, 1.1], [0.1, 0.2], counts=[2, 1], exact=[1, 2])
