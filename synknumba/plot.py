"""Pictures of what programs measure, by matplotlib: one call each, which returns the axes.

    times = {ranks: [timed(ranks) for _ in range(5)] for ranks in (1, 2, 4)}
    synk.plot.scaling(times)                   # time and efficiency against the number of ranks
    synk.plot.rows(f.plan(x))                  # how many rows each rank gets
    synk.plot.timeline(trace)                  # what the script and the ranks did, and when
    synk.plot.convergence(estimates)           # means and their error bars against the number of rows

With `ax=` they draw into the script's own axes, in its style. Otherwise they make a figure with a
transparent background and grey text, which light and dark pages show alike (a dark JupyterLab puts
a white background behind it). Series differ in their markers, not in colour alone. Save a picture
with `axes.figure.savefig(...)`.

Needs matplotlib, which is imported at the first call: pip install 'synknumba[plot]'.
"""  # noqa: E501

import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from synknumba._call.report import PlanReport
from synknumba._errors import ArgumentError, shortened
from synknumba._ops.estimate import Estimate
from synknumba._ops.measurement import Measurement
from synknumba._sequence.report import SequenceReport
from synknumba._timeline.trace import Trace
from synknumba._timeline.tracks import SCRIPT, Record, read
from synknumba._types import Array, known_options

Axes: TypeAlias = Any  # matplotlib's, which is not imported here
Pair: TypeAlias = Any  # two of these, in an array or a tuple

# of text and lines: a contrast of 4.5 on white as on black, the least that WCAG 2.2 allows for text
INK = "#767676"
# Those of M. Okabe and K. Ito, "Color Universal Design" (2008), that have a contrast of 3 on white
# and on black.
COLORS = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
MARKERS = "o", "s", "^", "D"
# kinds of spans, and where in a line
_DRAWN = {
    "wait": -0.35,
    "bind": -0.35,
    "combine": -0.35,
    "round": -0.35,
    "device": 0.05,
}
MOST_TICKS = 8  # numbers of ranks at an axis; of more, the powers of two
MOST_TEXTS = 32  # ranks with a text at their bars; the texts of more would overlap
MOST_SLICES = 64  # of a rank, whose boundaries are drawn; more would fill its bar


@known_options
def scaling(
    times: Mapping[int, float | Sequence[float]],
    *,
    weak: bool = False,
    label: str | None = None,
    ax: Pair = None,
) -> Pair:
    """Draws time, and parallel efficiency, against the number of ranks.

    Points are medians, and error bars reach from the lower to the upper quartile of repeated times.
    The efficiency of W ranks is w t_w / (W t), with the median t_w of the least number of ranks w;
    for weak scaling, t_w / t. Dashed lines are perfect scaling.

    Args:
        times: {number of ranks: seconds}, or lists of the seconds of each repetition.
        weak: whether the work grows with the number of ranks, instead of being the same for all.
        label: name of the series in the legend, for several in the same axes; in $ it is a formula,
            as in matplotlib.
        ax: two axes, for time and efficiency, as `plt.subplots(1, 2)[1]` has them; one may be None,
            to leave it out. Default: those of a new figure.

    Returns:
        The two axes.

    Raises:
        ArgumentError: there are no times, one is not positive and finite, or a number of ranks is
            not a positive integer.
        ModuleNotFoundError: matplotlib is not installed.

    Example:
        >>> import synknumba as synk
        >>> time, efficiency = synk.plot.scaling({1: [4.1, 4.0, 4.2], 2: [2.1, 2.0, 2.0]})  # doctest: +SKIP
        >>> efficiency.figure.savefig("scaling.png")  # doctest: +SKIP
    """  # noqa: E501
    series = _times(times)
    time, efficiency = axes = _pair(ax, "scaling", 1, 2)
    ranks = np.array(list(series))
    base = float(np.median(series[ranks[0]]))
    speedups = np.ones(len(ranks)) if weak else ranks / ranks[0]  # perfect ones
    if time is not None:
        _draw_limit(time, ranks, base / speedups, "perfect scaling")
        _draw_spread(time, ranks, list(series.values()), label)
        _use_seconds(time, linear=weak)
        time.set_ylabel("time")
    if efficiency is not None:
        shares = [
            base / (speedup * rank_count)
            for speedup, rank_count in zip(speedups, series.values(), strict=True)
        ]
        _draw_limit(efficiency, ranks, np.ones(len(ranks)), "perfect scaling")
        _draw_spread(efficiency, ranks, shares, label)
        _start_at_zero(efficiency)
        efficiency.set_ylabel("efficiency")
    for panel in _those(axes):
        _mark_ranks(panel)
        panel.set_xlabel("ranks")
        _add_legend(panel)
    return axes


@known_options
def rows(plan: PlanReport, *, ax: Axes = None) -> Axes:
    """Draws how many rows each rank gets in a planned call: a bar for each rank, with its slices,
    and their mean.

    The text at a bar has the number of rows, and their first and last position among the rows of
    the call.

    Args:
        plan: returned by `f.plan(...)`, of a call with rows: of arrays, or of variables in
            `sliceable=`.
        ax: axes to draw into. Default: those of a new figure.

    Returns:
        The axes.

    Raises:
        ArgumentError: this is not the plan of a call, or the call has no rows.
        ModuleNotFoundError: matplotlib is not installed.
    """
    if isinstance(plan, SequenceReport):
        raise ArgumentError(
            f"rows takes the plan of one call, got that of the sequence {plan.sequence}; pass the "
            "plan of one of its parts, as in synk.plot.rows(report.parts[0].plan)"
        )
    if not isinstance(plan, PlanReport):
        raise ArgumentError(
            f"rows takes the PlanReport that f.plan(...) returns, got {_told(plan)}"
        )
    slices = [[stop - start for start, stop in rank.slices] for rank in plan.ranks]
    spans = [f"  ({start:,} … {stop - 1:,})" for start, stop in (rank.rows for rank in plan.ranks)]
    counts = list(map(sum, slices))
    if not any(counts):
        raise ArgumentError(
            f"rows needs a call that has rows, and no argument of {plan.function} has any to divide"
        )
    axes = (
        _figure("rows", 1, 1, (6.4, min(1.4 + 0.32 * len(counts), 8)))
        if ax is None
        else _checked(ax, "rows")
    )
    axes.barh(range(len(counts)), counts, height=0.7, color=COLORS[0])
    for rank, sizes in enumerate(slices):
        ends = np.cumsum(sizes[:-1] if len(sizes) <= MOST_SLICES else [])
        axes.vlines(ends, rank - 0.35, rank + 0.35, colors="white", linewidth=1.2)
    mean, ink = float(np.mean(counts)), _ink(axes)
    axes.axvline(mean, color=ink, linestyle="--", linewidth=1)
    above = {
        "xycoords": ("data", "axes fraction"),
        "textcoords": "offset points",
        "ha": "center",
        "va": "bottom",
    }
    axes.annotate(f"mean {mean:,.6g}", (mean, 1), (0, 3), color=ink, **above)
    if len(counts) <= MOST_TEXTS:
        for rank, (count, span) in enumerate(zip(counts, spans, strict=True)):
            # outside of the axes, for which the layout makes room
            text = f"{count:,}{span if count else ''}"
            axes.annotate(
                text, (count, rank), (5, 0), textcoords="offset points", va="center", color=ink
            )
    axes.set_xlim(0, 1.02 * max(counts))
    axes.set_ylim(len(counts) - 0.5, -0.5)
    for axis, name in ((axes.xaxis, "rows"), (axes.yaxis, "rank")):
        axis.set_major_locator(
            _matplotlib("rows").ticker.MaxNLocator(5 if axis is axes.xaxis else 16, integer=True)
        )
        axis.set_label_text(name)
    axes.xaxis.set_major_formatter(_matplotlib("rows").ticker.StrMethodFormatter("{x:,.0f}"))
    return axes


@known_options
def timeline(trace: Trace | str | os.PathLike[str] | list[Record], *, ax: Axes = None) -> Axes:
    """Draws the rounds of a trace over time: a line for the script and each rank, in one colour for
    each function.

    The script's line has its waits for rounds, and in grey what it does before and after them.
    Below a rank's rounds is the work on its GPU's stream.

    Args:
        trace: made by `synk.trace`, after its block; or its `records()`, or the file that it has
            written.
        ax: axes to draw into. Default: those of a new figure.

    Returns:
        The axes.

    Raises:
        ArgumentError: the trace has no rounds, or the file is none.
        WorldError: the trace is not over.
        ModuleNotFoundError: matplotlib is not installed.

    Example:
        >>> import synknumba as synk
        >>> synk.plot.timeline("run.json").figure.savefig("run.svg")  # doctest: +SKIP
    """
    if not isinstance(trace, Trace | str | os.PathLike | list):
        raise ArgumentError(
            f"timeline draws what synk.trace has made, or the name of its file, got {_told(trace)}"
        )
    records = (
        trace.records()
        if isinstance(trace, Trace)
        else trace
        if isinstance(trace, list)
        else read(Path(trace))
    )
    names = {
        record["pid"]: record["args"]["name"]
        for record in records
        if record["ph"] == "M" and record["name"] == "process_name"
    }
    spans = [record for record in records if record["ph"] == "X" and record["cat"] in _DRAWN]
    functions = sorted({span["name"] for span in spans if span["cat"] == "wait"})
    if not functions:
        raise ArgumentError("the trace has no rounds to draw; make calls in its with block")
    lines = {
        pid: place
        for place, pid in enumerate(
            sorted(names, key=lambda pid: (names[pid] != SCRIPT, names[pid]))
        )
    }
    colors = {name: COLORS[place % len(COLORS)] for place, name in enumerate(functions)}
    first, last = min(span["ts"] for span in spans), max(span["ts"] + span["dur"] for span in spans)
    unit, factor = next(
        (name, size)
        for name, size in (("s", 1e6), ("ms", 1e3), ("µs", 1.0))
        if last - first > size or size == 1.0
    )
    axes = (
        _figure("timeline", 1, 1, (9.0, 1.0 + 0.45 * len(lines)))
        if ax is None
        else _checked(ax, "timeline")
    )
    bars: dict[tuple[int, str, str], list[tuple[float, float]]] = {}
    for span in spans:
        # thinner, it would not show
        place = (
            (span["ts"] - first) / factor,
            max(span["dur"], (last - first) / 5000) / factor,
        )
        bars.setdefault((span["pid"], span["cat"], span["name"]), []).append(place)
    for (pid, kind, name), places in bars.items():
        low, height = lines[pid] + _DRAWN[kind], 0.3 if kind == "device" else 0.7
        axes.broken_barh(places, (low, height), facecolors=colors.get(name, INK))
    axes.set_yticks(list(lines.values()), [_plain(names[pid]) for pid in lines])
    axes.invert_yaxis()
    axes.set_xlabel(f"time ({unit})")
    for name, color in colors.items():
        axes.broken_barh([], (0, 0), facecolors=color, label=_plain(name))
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1, 1),
        frameon=False,
        labelcolor=INK if ax is None else None,
    )
    return axes


@known_options
def convergence(
    estimates: Any,
    errors: Any = None,
    *,
    counts: Any = None,
    exact: float | None = None,
    label: str | None = None,
    ax: Pair = None,
) -> Pair:
    """Draws estimates of one number against their numbers of rows n: means with error bars, and
    standard errors.

    The dashed line at the errors is s/√n, through the estimate of most rows; errors of independent
    rows fall along it. Error bars of errors are the `stderr_error` of estimates.

    Args:
        estimates: `Estimate`s or `Measurement`s of one value each; or means, shape (m,), with
            `errors` and `counts`.
        errors: standard errors of means that are numbers, shape (m,).
        counts: numbers of rows, shape (m,). Default: those of the estimates.
        exact: the value that they should come to.
        label: name of the series in the legend, for several in the same axes; in $ it is a formula,
            as in matplotlib.
        ax: two axes, for means and errors, as `plt.subplots(2, 1)[1]` has them; one may be None, to
            leave it out. Default: those of a new figure.

    Returns:
        The two axes.

    Raises:
        ArgumentError: there are no estimates, they have several values, arrays differ in shape, or
            no error is positive.
        ModuleNotFoundError: matplotlib is not installed.

    Example:
        >>> import synknumba as synk
        >>> estimates = [synk.Estimate.from_values(range(n)) for n in (10, 100, 1000)]
        >>> means, errors = synk.plot.convergence(estimates)  # doctest: +SKIP
    """
    series = _series(estimates, errors, counts)
    means, below = axes = _pair(ax, "convergence", 2, 1)
    if means is not None:
        if exact is not None:
            value = _numbers("convergence: exact", exact)
            if value.size != 1:
                raise ArgumentError(f"convergence: exact must be one number, got {_told(exact)}")
            _draw_limit(means, series.counts[[0, -1]], np.repeat(value, 2), "exact")
        _draw_points(
            means, series.counts, series.means, series.errors, label or "mean ± standard error"
        )
        means.set_ylabel("mean")
    if below is not None:
        last = np.flatnonzero(series.errors > 0)[-1]
        spread = series.errors[last] * series.counts[last] ** 0.5
        _draw_limit(below, series.counts, spread / np.sqrt(series.counts), "∝ 1/√n")
        _draw_points(below, series.counts, series.errors, series.doubts, label or "standard error")
        below.set_yscale("log")
        below.set_ylabel("standard error")
    for panel in _those(axes):
        panel.set_xscale("log")
        _add_legend(panel)
    _those(axes)[-1].set_xlabel("rows n")
    return axes


# ---- what is drawn


class _Series(NamedTuple):
    """Estimates of one number, by increasing number of rows; float64, shape (m,).

    Attributes:
        counts: numbers of rows.
        means: estimates.
        errors: their standard errors.
        doubts: standard deviations of these; None if they are not known.
    """

    counts: Array
    means: Array
    errors: Array
    doubts: Array | None


@shortened
def _times(times: Any) -> dict[int, Array]:
    """Returns the seconds of each repetition, by increasing number of ranks."""
    if not isinstance(times, Mapping):
        raise ArgumentError(
            f"scaling takes a dict of seconds by number of ranks, as in {{1: [4.1, 4.0], 2: [2.1, "
            f"2.0]}}; got {_told(times)}"
        )
    if not times:
        raise ArgumentError(
            "scaling needs times of at least one number of ranks, got an empty dict"
        )
    arrays = {}
    for ranks, seconds in times.items():
        if not hasattr(ranks, "__index__") or isinstance(ranks, bool) or ranks < 1:
            raise ArgumentError(
                f"scaling: numbers of ranks must be positive integers, got {ranks!r}"
            )
        array = _numbers(f"scaling: the times of {ranks} ranks", seconds)
        if not array.size or not ((array > 0) & np.isfinite(array)).all():
            raise ArgumentError(
                f"scaling: times of {ranks} ranks must be positive numbers of seconds, one or a "
                f"list of repetitions; got {_told(seconds)}"
            )
        arrays[operator.index(ranks)] = array
    return dict(sorted(arrays.items()))


@shortened
def _series(estimates: Any, errors: Any, counts: Any) -> _Series:
    """Returns estimates as arrays, by increasing number of rows."""
    doubts = None
    if isinstance(estimates, Estimate | Measurement):
        raise ArgumentError(
            "convergence takes a list of estimates, of ever more rows, got one; as "
            "in [a, a + b, a + b + c]"
        )
    if errors is None:
        items = list(estimates) if isinstance(estimates, Iterable) else [estimates]
        for item in items:
            if not isinstance(item, Estimate | Measurement):
                raise ArgumentError(
                    "convergence takes a list of estimates, or means with errors= and counts=; "
                    f"without errors=, one of the list is {_told(item)}"
                )
            if np.ndim(item.mean):
                raise ArgumentError(
                    f"convergence draws one value of an estimate, and this has {len(item.mean)}; "
                    "pass one of them, as in convergence([e.mean[0] for e in es], [e.stderr[0] for "
                    "e in es], counts=[e.count for e in es])"
                )
        if counts is None:
            missing = next((item for item in items if not isinstance(item, Estimate)), None)
            if missing is not None:
                raise ArgumentError(
                    f"a Measurement has no number of rows, as {missing}; "
                    f"pass those of all in counts="
                )
            counts = [item.count for item in items]
        means, errors = [item.mean for item in items], [item.stderr for item in items]
        doubts = np.array(
            [item.stderr_error if isinstance(item, Estimate) else np.nan for item in items]
        )
    elif counts is None:
        raise ArgumentError(
            "convergence of means and errors needs counts=, the number of rows of each"
        )
    else:
        means = estimates
    series = {"estimates": means, "errors": errors, "counts": counts}
    arrays = {name: _numbers(f"convergence: {name}", values) for name, values in series.items()}
    if len({array.shape for array in arrays.values()}) > 1 or not arrays["counts"].size:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ArgumentError(
            f"convergence needs as many means, errors and numbers of rows, at least "
            f"one of each; got {shapes}"
        )
    if not (arrays["counts"] >= 1).all():
        raise ArgumentError(
            f"convergence: counts must be numbers of rows, at least 1, got {_told(counts)}"
        )
    if (arrays["errors"] < 0).any() or not (arrays["errors"] > 0).any():
        raise ArgumentError(
            "convergence: errors must be standard errors, none below 0 and some above, got "
            f"{_told(errors)}; an estimate of one row has none"
        )
    order = np.argsort(arrays["counts"], kind="stable")
    n, mean, stderr = (arrays[name][order] for name in ("counts", "estimates", "errors"))
    return _Series(n, mean, stderr, None if doubts is None else doubts[order])


def _numbers(what: str, value: Any) -> Array:
    """Returns numbers as float64, shape (m,)."""
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(f"{what} must be numbers, got {_told(value)}") from None
    if array.ndim > 1:
        raise ArgumentError(
            f"{what} must be a number or a list of numbers, got shape {array.shape}"
        )
    return array.reshape(-1)


def _told(value: Any) -> str:
    """Returns a value for a message, cut to a line."""
    text = repr(value)
    return text if len(text) <= 100 else f"{type(value).__name__} {text[:80]}…"


# ---- how it is drawn


def _matplotlib(what: str) -> Any:
    """Returns matplotlib, with its parts that are used here."""
    try:
        import matplotlib as mpl
        import matplotlib.pyplot
        import matplotlib.ticker
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"synk.plot.{what}() needs matplotlib ({error}): pip install 'synknumba[plot]', "
            f"or pip install matplotlib",
            name=error.name,
        ) from error
    return mpl


def _figure(what: str, down: int, across: int, inches: tuple[float, float]) -> Any:
    """Returns the axes of a new figure: one, or an array of several."""
    plt = _matplotlib(what).pyplot
    # No rc_context: it would take back that a notebook's backend, loaded by the first figure, has
    # switched on its display.
    _, axes = plt.subplots(
        down, across, sharex=down > 1, figsize=inches, layout="constrained", facecolor="none"
    )
    for panel in np.ravel(axes):
        panel.set_facecolor("none")
        panel.spines[:].set_color(INK)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(which="both", color=INK, labelcolor=INK)
        for axis in (panel.xaxis, panel.yaxis):
            axis.label.set_color(INK)
            axis.get_offset_text().set_color(INK)
    return axes


def _pair(ax: Any, what: str, down: int, across: int) -> Any:
    """Returns two axes of the script, of which one may be None, or those of a new figure."""
    if ax is None:
        return _figure(what, down, across, (7.6, 3.2) if across > 1 else (6.4, 4.8))
    _matplotlib(what)
    pair = list(ax) if isinstance(ax, Iterable) else []
    if len(pair) != 2 or not _those(pair):
        raise ArgumentError(
            f"{what} draws into two axes, got ax={_told(ax)}; pass those of plt.subplots({down}, "
            f"{across})[1], or (None, ax) or (ax, None) for one of its pictures alone"
        )
    for panel in _those(pair):
        _checked(panel, what)
    return ax


def _checked(ax: Any, what: str) -> Any:
    if not hasattr(ax, "errorbar"):
        raise ArgumentError(
            f"{what}: ax must be axes of matplotlib, as plt.subplots()[1], got {_told(ax)}"
        )
    return ax


def _those(axes: Any) -> list[Any]:
    """Returns the axes that are not None."""
    return [panel for panel in axes if panel is not None]


def _ink(axes: Any) -> Any:
    """Returns the colour of the text of axes."""
    return axes.xaxis.label.get_color()


def _plain(text: str) -> str:
    """Returns a text as matplotlib shows it unchanged, which reads what is between two $ as a
    formula.
    """
    return text.replace("$", r"\$")


def _draw_limit(axes: Any, x: Array, y: Array, name: str) -> None:
    """Draws a dashed line; only the first of a name is in the legend."""
    is_new = name not in [line.get_label() for line in axes.lines]
    axes.plot(
        x,
        y,
        color=_ink(axes),
        linestyle="--",
        linewidth=1,
        label=name if is_new else None,
        zorder=1,
    )


def _draw_points(
    axes: Any, x: Array, y: Array, errors: Array | None, name: str | None, line: str = "none"
) -> None:
    """Draws points with error bars, in the next marker and colour of the axes."""
    number = len(axes.containers)
    axes.errorbar(
        x,
        y,
        errors,
        label=name,
        color=COLORS[number % len(COLORS)],
        marker=MARKERS[number % len(MARKERS)],
        markersize=5,
        linestyle=line,
        linewidth=1.2,
        capsize=3,
        zorder=2,
    )


def _draw_spread(axes: Any, x: Array, values: Sequence[Array], name: str | None) -> None:
    """Draws medians, with error bars from the lower to the upper quartile if there are repeated
    values.
    """
    low, middle, high = np.array([np.percentile(sample, [25, 50, 75]) for sample in values]).T
    if max(map(len, values)) > 1:
        _draw_points(
            axes,
            x,
            middle,
            np.array([middle - low, high - middle]),
            name or "median and quartiles",
            "-",
        )
    else:
        _draw_points(axes, x, middle, None, name or "measured", "-")


def _start_at_zero(axes: Any) -> None:
    """Lets the vertical axis begin at 0, with room above the largest value that is drawn."""
    axes.set_ylim(0, 1.08 * axes.dataLim.y1)


def _use_seconds(axes: Any, *, linear: bool) -> None:
    """Labels the vertical axis in s, ms or µs: from 0, or on a logarithmic axis."""
    ticker = _matplotlib("scaling").ticker
    if linear:
        _start_at_zero(axes)
    else:
        axes.set_yscale("log")
        is_short = axes.dataLim.y1 < 4 * axes.dataLim.minposy
        axes.yaxis.set_major_locator(
            ticker.LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 6, 8) if is_short else (1, 2, 5))
        )
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    axes.yaxis.set_major_formatter(ticker.EngFormatter("s"))


def _mark_ranks(axes: Any) -> None:
    """Makes the horizontal axis logarithmic, with labels at the numbers of ranks that are drawn."""
    ticker = _matplotlib("scaling").ticker
    there = sorted(
        {int(x) for container in axes.containers for x in container.lines[0].get_xdata()}
    )
    powers = [1 << k for k in range(there[-1].bit_length()) if 1 << k >= there[0]]
    axes.set_xscale("log", base=2)
    axes.set_xticks(there if len(there) <= MOST_TICKS else powers)
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:.0f}"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def _add_legend(axes: Any) -> None:
    axes.legend(frameon=False, labelcolor=_ink(axes))
