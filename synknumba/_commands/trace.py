"""`synknumba trace`: a script whose calls, ranks and GPUs are recorded; and what was recorded, in a table or a picture."""

import argparse
import sys
from pathlib import Path

from synknumba import plot
from synknumba._commands.run import add_script
from synknumba._commands.terminal import CommandError, Subparsers, add_command, completed, positive
from synknumba._machines import launch
from synknumba._timeline.summary import summarise
from synknumba._timeline.trace import trace
from synknumba._timeline.tracks import Record, read

DESCRIPTION = """\
Runs a script, and records what it, its ranks and their GPUs do, and when, in a file for
Perfetto's or Chrome's trace viewer. Of a file that was recorded before, --summary prints
where the time went, by function and rank, and --plot draws the rounds over time. Both
can be given with a script, too."""
ENDINGS = (".json", ".json.gz")  # of files that were recorded


def add(commands: Subparsers) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "trace",
        _run,
        "run a script and record where its time goes, or tell it of a record",
        DESCRIPTION,
        (
            "trace script.py --its-option 3",
            "trace --summary run.json",
            "trace --plot run.svg run.json",
            "trace -o run.json.gz script.py",
        ),
    )
    completed(
        parser.add_argument("-o", "--output", metavar="FILE", default="trace.json", help="file to write (default: trace.json)")
    )
    parser.add_argument("--summary", action="store_true", help="print where the time went")
    completed(parser.add_argument("--plot", metavar="FILE", help="draw the rounds over time, as .png, .svg or .pdf"))
    parser.add_argument(
        "--records", type=positive, default=100_000, metavar="N", help="rounds that are kept (default: 100,000)"
    )
    add_script(parser)


def _run(told: argparse.Namespace) -> int:
    if told.script.endswith(ENDINGS) and not told.is_module:
        if not told.summary and told.plot is None:
            raise CommandError(f"{told.script} is a record; say --summary or --plot FILE")
        _tell(read(Path(told.script)), told)
        return 0
    made = trace(told.output, records=told.records)
    made.start()
    try:
        code = launch.run(told.script, told.arguments, None, is_module=told.is_module)
    finally:
        made.stop()
    sys.stderr.write(f"synknumba trace: wrote {told.output}\n")
    _tell(made.records(), told)
    return code


def _tell(records: list[Record], told: argparse.Namespace) -> None:
    if told.summary:
        sys.stdout.write(f"{summarise(records)}\n")
    if told.plot is not None:
        try:
            import matplotlib as mpl

            mpl.use("agg")
            axes = plot.timeline(records)
        except ModuleNotFoundError as error:
            raise CommandError(f"{error}") from error
        axes.figure.savefig(told.plot)
