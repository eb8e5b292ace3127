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

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from synknumba._call.report import PlanReport
from synknumba._errors import ArgumentError, shortened
from synknumba._host.casting import as_index
from synknumba._ops.measurement import Measurement
from synknumba._rowwise.estimate import Estimate
from synknumba._sequence.report import SequenceReport
from synknumba._timeline.trace import Trace
from synknumba._timeline.tracks import SCRIPT, Record, process_names, read
from synknumba._types import Array, known_options

__all__ = ["convergence", "rows", "scaling", "timeline"]

Axes: TypeAlias = Any  # matplotlib's, which is not imported here
Pair: TypeAlias = Any  # two of these, in an array or a tuple

# of text and lines: a contrast of 4.5 on white as on black, the least that WCAG 2.2 allows for text
INK = "#767676"
# Those of M. Okabe and K. Ito, "Color Universal Design" (2008), that have a contrast of 3 on white
# and on black.
COLORS = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
MARKERS = "o", "s", "^", "D"
# kinds of spans: where their bars begin in a line, and how high they are
_DRAWN = {
    **dict.fromkeys(("wait", "bind", "combine", "round"), (-0.35, 0.7)),
    "device": (0.05, 0.3),
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
    speedups = ranks / ranks[0]  # perfect ones
    if weak:
        speedups = np.ones(len(ranks))
    if time is not None:
        _draw_limit(time, ranks, base / speedups, "perfect scaling")
        _draw_spread(time, ranks, list(series.values()), label)
        _use_seconds(time, linear=weak)
        time.set_ylabel("time")
    if efficiency is not None:
        shares = [
            base / (speedups[place] * seconds) for place, seconds in enumerate(series.values())
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
            `rows=`.
        ax: axes to draw into. Default: those of a new figure.

    Returns:
        The axes.

    Raises:
        ArgumentError: this is not the plan of a call, or the call has no rows.
        ModuleNotFoundError: matplotlib is not installed.

    Example:
        >>> import synknumba as synk
        >>> def draw(f, x):
        ...     synk.plot.rows(f.plan(x)).figure.savefig("rows.png")
    """
    _check_plan(plan)
    slices = [np.diff(rank.slices, axis=-1).reshape(-1) for rank in plan.ranks]
    counts = [int(sizes.sum()) for sizes in slices]
    if not any(counts):
        raise ArgumentError(
            f"rows needs a call that has rows, and no argument of {plan.function} has any to divide"
        )
    axes = _single(ax, "rows", (6.4, min(1.4 + 0.32 * len(counts), 8)))
    axes.barh(range(len(counts)), counts, height=0.7, color=COLORS[0])
    for rank, sizes in enumerate(slices):
        if len(sizes) <= MOST_SLICES:
            ends = np.cumsum(sizes[:-1])
            axes.vlines(ends, rank - 0.35, rank + 0.35, colors="white", linewidth=1.2)
    _draw_mean(axes, float(np.mean(counts)))
    if len(counts) <= MOST_TEXTS:
        _label_bars(axes, counts, [rank.rows for rank in plan.ranks])
    axes.set_xlim(0, 1.02 * max(counts))
    axes.set_ylim(len(counts) - 0.5, -0.5)
    ticker = _matplotlib("rows").ticker
    for axis, name, most_ticks in ((axes.xaxis, "rows", 5), (axes.yaxis, "rank", 16)):
        axis.set_major_locator(ticker.MaxNLocator(most_ticks, integer=True))
        axis.set_label_text(name)
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
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
    records = _records(trace)
    names = process_names(records)
    spans = [record for record in records if record["ph"] == "X" and record["cat"] in _DRAWN]
    functions = sorted({span["name"] for span in spans if span["cat"] == "wait"})
    if not functions:
        raise ArgumentError("the trace has no rounds to draw; make calls in its with block")
    lines = sorted(names, key=lambda pid: (names[pid] != SCRIPT, names[pid]))
    colors = dict(zip(functions, itertools.cycle(COLORS), strict=False))
    axes = _single(ax, "timeline", (9.0, 1.0 + 0.45 * len(lines)))
    unit, bars = _bars(spans)
    for (pid, kind, name), places in bars.items():
        low, height = _DRAWN[kind]
        box = lines.index(pid) + low, height
        axes.broken_barh(places, box, facecolors=colors.get(name, INK))
    axes.set_yticks(range(len(lines)), [_plain(names[pid]) for pid in lines])
    axes.invert_yaxis()
    axes.set_xlabel(f"time ({unit})")
    if any(name not in colors for _, _, name in bars):
        colors["before and after rounds"] = INK
    for name, color in colors.items():
        axes.broken_barh([], (0, 0), facecolors=color, label=_plain(name))
    _add_legend(axes, loc="upper left", bbox_to_anchor=(1, 1))
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
                raise ArgumentError(f"convergence: exact must be one number, got {_shown(exact)}")
            _draw_limit(means, series.counts[[0, -1]], np.repeat(value, 2), "exact")
        name = label or "mean ± standard error"
        _draw_points(means, series.counts, series.means, series.errors, name)
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
def _check_plan(plan: Any) -> None:
    if isinstance(plan, SequenceReport):
        raise ArgumentError(
            f"rows takes the plan of one call, got that of the sequence {plan.sequence}; pass the "
            "plan of one of its parts, as in synk.plot.rows(report.parts[0].plan)"
        )
    if not isinstance(plan, PlanReport):
        raise ArgumentError(
            f"rows takes the PlanReport that f.plan(...) returns, got {_shown(plan)}"
        )


@shortened
def _records(trace: Any) -> list[Record]:
    """Returns the events of a trace, of a list of them, or of a file."""
    match trace:
        case Trace():
            return trace.records()
        case list():
            return trace
        case str() | os.PathLike():
            return read(Path(trace))
    raise ArgumentError(
        f"timeline draws what synk.trace has made, or the name of its file, got {_shown(trace)}"
    )


_Bars: TypeAlias = dict[tuple[int, str, str], list[tuple[float, float]]]


def _bars(spans: Sequence[Record]) -> tuple[str, _Bars]:
    """Returns a unit of time, and begins and lengths of bars in it, by process, kind and name."""
    begins = np.array([span["ts"] for span in spans])
    lengths = np.array([span["dur"] for span in spans])
    first, total = begins.min(), (begins + lengths).max() - begins.min()
    unit, factor = _time_unit(total)
    begins = (begins - first) / factor
    lengths = np.maximum(lengths, total / 5000) / factor  # shorter ones would not show
    bars: _Bars = {}
    for span, *place in zip(spans, begins.tolist(), lengths.tolist(), strict=True):
        bars.setdefault((span["pid"], span["cat"], span["name"]), []).append(tuple(place))
    return unit, bars


def _time_unit(total: float) -> tuple[str, float]:
    """Returns the unit for a time in µs, and its length in µs."""
    for unit, length in (("s", 1e6), ("ms", 1e3)):
        if total > length:
            return unit, length
    return "µs", 1.0


@shortened
def _times(times: Any) -> dict[int, Array]:
    """Returns the seconds of each repetition, by increasing number of ranks."""
    if not isinstance(times, Mapping):
        raise ArgumentError(
            f"scaling takes a dict of seconds by number of ranks, as in {{1: [4.1, 4.0], 2: [2.1, "
            f"2.0]}}; got {_shown(times)}"
        )
    if not times:
        raise ArgumentError(
            "scaling needs times of at least one number of ranks, got an empty dict"
        )
    arrays = {}
    for ranks, seconds in times.items():
        number = as_index(ranks)
        if number < 1:
            raise ArgumentError(
                f"scaling: numbers of ranks must be positive integers, got {ranks!r}"
            )
        array = _numbers(f"scaling: the times of {ranks} ranks", seconds)
        if not array.size or not ((array > 0) & np.isfinite(array)).all():
            raise ArgumentError(
                f"scaling: times of {ranks} ranks must be positive numbers of seconds, one or a "
                f"list of repetitions; got {_shown(seconds)}"
            )
        arrays[number] = array
    return dict(sorted(arrays.items()))


def _of_estimates(estimates: Any, counts: Any) -> tuple[Any, Any, Any, Array]:
    """Returns means, errors, numbers of rows, and the errors' own errors, NaN where unknown."""
    items = [estimates]
    if isinstance(estimates, Iterable):
        items = list(estimates)
    for item in items:
        if not isinstance(item, Estimate | Measurement):
            raise ArgumentError(
                "convergence takes a list of estimates, or means with errors= and counts=; "
                f"without errors=, one of the list is {_shown(item)}"
            )
        if np.ndim(item.mean):
            raise ArgumentError(
                f"convergence draws one value of an estimate, and this has {len(item.mean)}; "
                "pass one of them, as in convergence([e.mean[0] for e in es], [e.stderr[0] for "
                "e in es], counts=[e.count for e in es])"
            )
        if counts is None and isinstance(item, Measurement):
            raise ArgumentError(
                f"a Measurement has no number of rows, as {item}; pass those of all in counts="
            )
    if counts is None:
        counts = [item.count for item in items]
    means, errors = [item.mean for item in items], [item.stderr for item in items]
    doubts = np.array([getattr(item, "stderr_error", np.nan) for item in items])
    return means, errors, counts, doubts


@shortened
def _series(estimates: Any, errors: Any, counts: Any) -> _Series:
    """Returns estimates as arrays, by increasing number of rows."""
    means, doubts = estimates, None
    if isinstance(estimates, Estimate | Measurement):
        raise ArgumentError(
            "convergence takes a list of estimates, of ever more rows, got one; as "
            "in [a, a + b, a + b + c]"
        )
    if errors is None:
        means, errors, counts, doubts = _of_estimates(estimates, counts)
    elif counts is None:
        raise ArgumentError(
            "convergence of means and errors needs counts=, the number of rows of each"
        )
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
            f"convergence: counts must be numbers of rows, at least 1, got {_shown(counts)}"
        )
    if (arrays["errors"] < 0).any() or not (arrays["errors"] > 0).any():
        raise ArgumentError(
            "convergence: errors must be standard errors, none below 0 and some above, got "
            f"{_shown(errors)}; an estimate of one row has none"
        )
    order = np.argsort(arrays["counts"], kind="stable")
    if doubts is not None:
        doubts = doubts[order]
    return _Series(
        arrays["counts"][order], arrays["estimates"][order], arrays["errors"][order], doubts
    )


def _numbers(what: str, value: Any) -> Array:
    """Returns numbers as float64, shape (m,)."""
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(f"{what} must be numbers, got {_shown(value)}") from None
    if array.ndim > 1:
        raise ArgumentError(
            f"{what} must be a number or a list of numbers, got shape {array.shape}"
        )
    return array.reshape(-1)


def _shown(value: Any) -> str:
    """Returns a value for a message, cut to a line."""
    text = repr(value)
    if len(text) > 100:
        text = f"{type(value).__name__} {text[:80]}…"
    return text


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


def _single(ax: Any, what: str, inches: tuple[float, float]) -> Any:
    """Returns the axes of the script, or those of a new figure."""
    if ax is None:
        return _figure(what, 1, 1, inches)
    return _checked(ax, what)


def _pair(ax: Any, what: str, down: int, across: int) -> Any:
    """Returns two axes of the script, of which one may be None, or those of a new figure."""
    if ax is None:
        inches = (7.6, 3.2) if across > 1 else (6.4, 4.8)
        return _figure(what, down, across, inches)
    _matplotlib(what)
    pair: list[Any] = []
    if isinstance(ax, Iterable):
        pair = list(ax)
    if len(pair) != 2 or not _those(pair):
        raise ArgumentError(
            f"{what} draws into two axes, got ax={_shown(ax)}; pass those of plt.subplots({down}, "
            f"{across})[1], or (None, ax) or (ax, None) for one of its pictures alone"
        )
    for panel in _those(pair):
        _checked(panel, what)
    return ax


def _checked(ax: Any, what: str) -> Any:
    if not hasattr(ax, "errorbar"):
        raise ArgumentError(
            f"{what}: ax must be axes of matplotlib, as plt.subplots()[1], got {_shown(ax)}"
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


def _draw_mean(axes: Any, mean: float) -> None:
    """Draws a dashed line at the mean of bars, with the number above the axes."""
    ink = _ink(axes)
    axes.axvline(mean, color=ink, linestyle="--", linewidth=1)
    above = {
        "xycoords": ("data", "axes fraction"),
        "textcoords": "offset points",
        "ha": "center",
        "va": "bottom",
    }
    axes.annotate(f"mean {mean:,.6g}", (mean, 1), (0, 3), color=ink, **above)


def _label_bars(axes: Any, counts: Sequence[int], spans: Sequence[tuple[int, int]]) -> None:
    """Writes number and positions of rows beside each bar: outside of the axes, for which the
    layout makes room.
    """
    beside = {"textcoords": "offset points", "va": "center", "color": _ink(axes)}
    for rank, (count, (start, stop)) in enumerate(zip(counts, spans, strict=True)):
        text = f"{count:,}"
        if count:
            text += f"  ({start:,} … {stop - 1:,})"
        axes.annotate(text, (count, rank), (5, 0), **beside)


def _draw_limit(axes: Any, x: Array, y: Array, name: str) -> None:
    """Draws a dashed line; only the first of a name is in the legend."""
    (line,) = axes.plot(x, y, color=_ink(axes), linestyle="--", linewidth=1, zorder=1)
    if name not in [before.get_label() for before in axes.lines]:
        line.set_label(name)


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
        digits = (1, 1.5, 2, 3, 4, 5, 6, 8) if is_short else (1, 2, 5)
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=digits))
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    axes.yaxis.set_major_formatter(ticker.EngFormatter("s"))


def _mark_ranks(axes: Any) -> None:
    """Makes the horizontal axis logarithmic, with labels at the numbers of ranks that are drawn."""
    ticker = _matplotlib("scaling").ticker
    drawn = [container.lines[0].get_xdata() for container in axes.containers]
    ticks = np.unique(np.concatenate(drawn)).astype(int)
    if len(ticks) > MOST_TICKS:
        powers = 1 << np.arange(int(ticks[-1]).bit_length())
        ticks = powers[powers >= ticks[0]]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks.tolist())
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:.0f}"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def _add_legend(axes: Any, **place: Any) -> None:
    axes.legend(frameon=False, labelcolor=_ink(axes), **place)
