"""`synknumba profile`: what functions took on all ranks, of the profiles that `fork(profile=True)` has written."""

import argparse

from synknumba import plot
from synknumba._commands.bench_plot import check_plot, draw_plot
from synknumba._commands.terminal import (
    Subparsers,
    add_command,
    check_writable,
    completed,
    positive,
    print_table,
)
from synknumba._timeline.profiles import Profiles
from synknumba._timeline.summary import in_words

DESCRIPTION = """\
Puts the profiles of ranks together, which fork(profile=True) writes when its world ends:
prints a table of the functions in which the ranks spent most time, and draws a flame
graph. What is not called by functions of the script, mostly waits and compiling, is one line."""


def add(commands: Subparsers) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "profile",
        _run,
        "put the profiles of ranks together, in a table or a flame graph",
        DESCRIPTION,
        ("profile synknumba-rank0.prof synknumba-rank1.prof", "profile --plot flame.svg synknumba-rank0.prof"),
    )
    completed(parser.add_argument("files", nargs="+", metavar="FILE", help="profiles, one for each rank"))
    parser.add_argument("--rows", type=positive, default=20, metavar="N", help="functions that are printed (default: 20)")
    completed(parser.add_argument("--plot", metavar="FILE", help="draw a flame graph, as .png, .svg or .pdf"))


def _run(told: argparse.Namespace) -> int:
    if told.plot is not None:
        check_plot(told.plot)
        check_writable(told.plot)
    profiles = Profiles(told.files)
    rows = [
        (
            one.name,
            f"{one.calls:,}",
            in_words(one.own.sum()),
            in_words(one.own.max()),
            f"{one.imbalance:.2f}",
            in_words(one.total),
        )
        for one in profiles.functions[: told.rows]
    ]
    rows.append(("synknumba, and waits for calls", "", in_words(profiles.between), "", "", ""))
    print_table(("function", "calls", "own time", "busiest rank", "imbalance", "with callees"), rows)
    if told.plot is not None:
        draw_plot("profile", told.plot, lambda: plot.flame(told.files))
    return 0
