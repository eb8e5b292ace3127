"""Pictures of commands, as `synknumba bench --plot FILE` draws them by matplotlib."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from synknumba._commands.bench_results import Report, described, scaling
from synknumba._commands.terminal import CommandError, write


def check_plot(path: str) -> None:
    """Raises CommandError without matplotlib, or for a file that it cannot write; called before
    the measurements.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise CommandError(
            "--plot needs matplotlib, which is not installed: pip install matplotlib"
        )
    from matplotlib.figure import Figure

    ending, known = (
        Path(path).suffix.lower().removeprefix("."),
        Figure().canvas.get_supported_filetypes(),
    )
    if ending not in known:
        raise CommandError(
            f"cannot draw {path}: its ending must be one of {', '.join(sorted(known))}"
        )


def draw_plot(command: str, path: str, draw: Callable[[], Any]) -> None:
    """Writes what a function of `synk.plot` draws into a file, which `check_plot` has seen, and
    says that it was written.

    Args:
        command: name of the command.
        path: the file.
        draw: returns the axes.
    """
    import matplotlib as mpl

    mpl.use("agg")  # no display is needed
    axes = draw()
    write(path, lambda: axes.figure.savefig(path))
    sys.stderr.write(f"synknumba {command}: wrote {path}\n")


def plot(report: Report, path: str) -> None:
    """Draws the scaling curve, all_reduce by size, and bandwidths, with the spread of the
    rounds, into a file.
    """
    from matplotlib.figure import Figure  # without pyplot: no display is needed

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    curve, reduced, moved = figure.subplots(1, 3)
    _draw_scaling(curve, report)
    _draw_reduced(reduced, report)
    _draw_moved(moved, report)
    figure.suptitle(next(described(report)), fontsize=9)
    write(path, lambda: figure.savefig(path))


def _draw_scaling(axes: Any, report: Report) -> None:
    found = scaling(report)
    first = found[0].ranks * found[0].median
    ranks = [one.ranks for one in found]
    speedups = [first / one.median for one in found]
    errors = [
        [first / one.median - first / one.high for one in found],
        [first / one.low - first / one.median for one in found],
    ]
    axes.plot(ranks, ranks, color="0.7", linestyle="--", label="ideal")
    axes.errorbar(ranks, speedups, errors, marker="o", capsize=3, label="measured")
    axes.set(xlabel="ranks", ylabel="speedup", title="an integral", xticks=ranks)
    axes.set_ylim(bottom=0)
    axes.legend()


def _draw_reduced(axes: Any, report: Report) -> None:
    found = sorted(
        (one for one in report.results if one.name == "all_reduce"), key=lambda one: one.size
    )
    if not found:  # of one rank
        axes.set_visible(False)
        return
    times = [one.median for one in found]
    errors = [[one.median - one.low for one in found], [one.high - one.median for one in found]]
    axes.errorbar([one.size for one in found], times, errors, marker="o", capsize=3)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="bytes",
        ylabel="µs",
        title=f"all_reduce, {found[0].ranks} ranks",
    )


def _draw_moved(axes: Any, report: Report) -> None:
    found = [one for one in report.results if one.unit == "GB/s"][::-1]
    errors = [[one.median - one.low for one in found], [one.high - one.median for one in found]]
    axes.barh(
        [one.name.replace("_", " ") for one in found],
        [one.median for one in found],
        xerr=errors,
        capsize=3,
    )
    axes.set(xlabel="GB/s", title="bandwidth")
