"""`synknumba trace`: a script whose calls, ranks and GPUs are recorded; and what was recorded,
in a table or a picture.
"""

import argparse
import importlib.util
import os
import shlex
import sys
import warnings
import zipfile
from pathlib import Path

from synknumba import plot
from synknumba._commands.run import add_script, script_file
from synknumba._commands.terminal import (
    CommandError,
    Subparsers,
    add_command,
    check_writable,
    positive,
    print_after_script,
    write,
)
from synknumba._machines import launch
from synknumba._timeline.summary import summarise
from synknumba._timeline.trace import VARIABLE, trace
from synknumba._timeline.tracks import Record, read

DESCRIPTION = """\
Runs a script, and records what it, its ranks and their GPUs do, and when, in a file for
Perfetto's or Chrome's trace viewer. Of a file that was recorded before, --summary prints
where the time went, by function and rank, and --plot draws the rounds over time. Both
can be given with a script, too."""
ENDINGS = (".json", ".json.gz")  # of files that were recorded
OUTPUT = "trace.json"


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
    parser.add_argument(
        "-o", "--output", metavar="FILE", help=f"file to write of a script (default: {OUTPUT})"
    )
    parser.add_argument("--summary", action="store_true", help="print where the time went")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the rounds over time, as .png, .svg or .pdf"
    )
    parser.add_argument(
        "--records",
        type=positive,
        default=100_000,
        metavar="N",
        help="rounds that are kept (default: 100,000)",
    )
    add_script(parser)


def _run(args: argparse.Namespace) -> int:
    if args.plot is not None:
        _check_plot(args.plot)
        check_writable(args.plot)
    if args.script.endswith(ENDINGS) and not args.is_module:
        _check_record(args)
        _tell(_read(args.script), args)
        return 0
    if launch.index() == 0:  # the first machine tells what is wrong
        _check_script(args)
    output = args.output or OUTPUT
    recording = trace(output, records=args.records)
    if os.environ.pop(VARIABLE, ""):
        sys.stderr.write(
            f"synknumba trace: {VARIABLE} is not used, as the trace goes to {output}; "
            f"name another file by -o\n"
        )
    recording.start()
    try:
        code = launch.run(args.script, args.arguments, None, is_module=args.is_module)
    finally:
        write(output, recording.stop)
    sys.stderr.write(
        f"synknumba trace: wrote {output}; open it in ui.perfetto.dev, or see "
        f"synknumba trace --summary {shlex.quote(output)}\n"
    )
    _tell(recording.records(), args)
    return code


def _check_record(args: argparse.Namespace) -> None:
    if not args.summary and args.plot is None:
        raise CommandError(f"{args.script} is a record; say --summary or --plot FILE")
    if args.arguments:
        raise CommandError(
            f"takes one record at a time, got {args.script} and "
            f"{' '.join(args.arguments)}; options go before it"
        )
    if args.output is not None:
        raise CommandError(
            f"-o names the file that is written of a script, and {args.script} "
            f"is a record; leave -o out"
        )


def _read(path: str) -> list[Record]:
    """Returns the records of a file that can be summarised and drawn."""
    records = read(Path(path))
    try:
        summarise(records)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        what = f"{type(error).__name__}: {error}"
        raise CommandError(
            f"{path} is damaged ({what}); record it again by synknumba trace"
        ) from error
    return records


def _check_script(args: argparse.Namespace) -> None:
    """Raises CommandError for what cannot be run, before a former trace is written over."""
    path = script_file(args)
    if path is None or zipfile.is_zipfile(path):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are told when it runs
            compile(path.read_bytes(), str(path), "exec")
    except (SyntaxError, ValueError) as error:
        raise CommandError(
            f"{path} is no Python script ({error}); a record has a name that "
            f"ends in .json or .json.gz"
        ) from error


def _tell(records: list[Record], args: argparse.Namespace) -> None:
    if args.summary:
        print_after_script(str(summarise(records)))
    if args.plot is not None:
        _draw(records, args.plot)


def _check_plot(path: str) -> None:
    """Raises CommandError without matplotlib, or for a file that it cannot write; called before
    the script runs.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise CommandError(
            "--plot needs matplotlib, which is not installed: pip install matplotlib"
        )
    from matplotlib.figure import Figure

    ending = Path(path).suffix.lower().removeprefix(".")
    endings = Figure().canvas.get_supported_filetypes()
    if ending not in endings:
        raise CommandError(
            f"cannot draw {path}: its ending must be one of {', '.join(sorted(endings))}"
        )


def _draw(records: list[Record], path: str) -> None:
    import matplotlib as mpl

    mpl.use("agg")  # no display is needed
    axes = plot.timeline(records)
    write(path, lambda: axes.figure.savefig(path))
    sys.stderr.write(f"synknumba trace: wrote {path}\n")
