"""A trace as a picture: a line for the script and each rank, a bar for each round, in one colour for each function."""

from collections.abc import Sequence
from typing import Any

from synknumba._errors import ArgumentError
from synknumba._timeline.tracks import SCRIPT, Record

COLOURS = 10  # of Matplotlib's cycle
INSTALL = "pictures need Matplotlib; install it, as by pip install 'synknumba[plot]'"
_LINES = {"wait": 0.0, "bind": 0.0, "combine": 0.0, "round": 0.0, "device": 0.4}  # kinds that are drawn, and how far below


def draw(records: Sequence[Record], ax: Any = None) -> Any:
    """Draws the rounds of a trace over time; returns the axes.

    Args:
        records: of a trace.
        ax: Matplotlib's axes; None for new ones.

    Raises:
        ArgumentError: there are no rounds.
        ModuleNotFoundError: Matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot as plt  # only where a picture is drawn
        from matplotlib.patches import Patch
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(INSTALL) from error
    names = {one["pid"]: one["args"]["name"] for one in records if one["ph"] == "M" and one["name"] == "process_name"}
    spans = [one for one in records if one["ph"] == "X" and one["cat"] in _LINES]
    if not any(one["cat"] == "wait" for one in spans):
        raise ArgumentError("the trace has no rounds to draw; make calls in its with block")
    lines = {pid: place for place, pid in enumerate(sorted(names, key=lambda pid: (names[pid] != SCRIPT, names[pid])))}
    found = sorted({one["name"] for one in spans if one["cat"] == "wait"})
    colours = {name: f"C{place % COLOURS}" for place, name in enumerate(found)}
    first = min(one["ts"] for one in spans)
    last = max(one["ts"] + one["dur"] for one in spans)
    unit, factor = ("s", 1e6) if last - first > 1e6 else ("ms", 1e3) if last - first > 1e3 else ("µs", 1.0)
    if ax is None:
        _, ax = plt.subplots(figsize=(10, 1.2 + 0.5 * len(lines)), layout="constrained")
    bars: dict[tuple[int, str, str], list[tuple[float, float]]] = {}
    for one in spans:
        where = (one["ts"] - first) / factor, max(one["dur"], (last - first) / 5000) / factor
        bars.setdefault((one["pid"], one["cat"], one["name"]), []).append(where)
    for (pid, kind, name), places in bars.items():
        low, height = lines[pid] - 0.35 + _LINES[kind], 0.35 if kind == "device" else 0.7
        ax.broken_barh(places, (low, height), facecolors=colours.get(name, "0.6"), label=name if pid in names else None)
    ax.set_yticks(list(lines.values()), [names[pid] for pid in lines])
    ax.invert_yaxis()
    ax.set_xlabel(f"time ({unit})")
    handles = [Patch(color=colours[name], label=name) for name in found]
    handles += [Patch(color="0.6", label="the script's own")] if any(one["cat"] in {"bind", "combine"} for one in spans) else []
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return ax
