"""The command line: the parser of `synknumba` and `python -m synknumba`. The commands are in
`_commands`.

A command is added by a module in `_commands` and its name in `_COMMANDS`; if it runs a script, in
`_SCRIPTS` too.
"""

import argparse
import difflib
import io
import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from synknumba import __version__
from synknumba._commands import bench, cache, check, doctor, examples, new, run, trace
from synknumba._commands.terminal import (
    FAILED,
    INTERRUPTED,
    SUCCESS,
    CommandError,
    cannot_write_output,
    drop,
    show_what_can_be_shown,
    tell,
)
from synknumba._errors import SynkError
from synknumba._machines import launch

_COMMANDS = {
    "doctor": doctor,
    "new": new,
    "examples": examples,
    "bench": bench,
    "check": check,
    "cache": cache,
    "run": run,
    "trace": trace,
}
_NAMES = (*_COMMANDS, *doctor.ALIASES)
_SCRIPTS = {"check", "run", "trace"}  # what is printed there is the script's

EPILOG = """\
`synknumba COMMAND --help` has the arguments and examples of a command. Exit status: 0; 1 if
a problem or an error was found; 2 if the command could not do its work."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command, and returns the exit status; `argv` is without the program's name, None
    for the process's own.
    """
    if sys.stderr is None:  # as by `2>&-`
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # until the process ends
    argv = sys.argv[1:] if argv is None else list(argv)
    args = _parsed_elsewhere(argv) if launch.index() > 0 else _parsed(argv)
    try:
        if args.command in _SCRIPTS:
            return int(args.run(args))
        show_what_can_be_shown()
        status = int(args.run(args))
        sys.stdout.flush()
    except BrokenPipeError:  # as by `| head`
        drop(sys.stdout)
        return SUCCESS
    except OSError as error:
        if not _is_output_lost():
            raise
        drop(sys.stdout)
        tell(f"synknumba {args.command}: {cannot_write_output(error)}\n")
        return FAILED
    except (CommandError, SynkError) as error:
        tell(f"synknumba {args.command}: {error}\n")
        return FAILED
    except KeyboardInterrupt:
        tell(f"\nsynknumba {args.command}: interrupted\n")
        return INTERRUPTED
    return status


def _is_output_lost() -> bool:
    """Tells a failed write to standard output, which fails again, from other errors of the
    system.
    """
    try:
        # not a flush alone: with PYTHONUNBUFFERED nothing is kept that could be flushed
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _parsed(argv: list[str]) -> argparse.Namespace:
    parser = make_parser()
    if argv and not argv[0].startswith("-") and argv[0] not in _NAMES:
        hint = ""
        for name in difflib.get_close_matches(argv[0], _NAMES, 1):
            hint = f"did you mean {name}? "
        if Path(argv[0]).is_file():
            hint = f"to run a script, write python -m synknumba run {shlex.quote(argv[0])}; "
        parser.error(f"there is no command {argv[0]!r}; {hint}commands: {', '.join(_COMMANDS)}")
    return parser.parse_args(argv)


def _parsed_elsewhere(argv: list[str]) -> argparse.Namespace:
    """Parses arguments on a machine other than the first of a job, which tells what is wrong
    with them.
    """
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            return _parsed(argv)
    except SystemExit as end:
        if end.code:
            time.sleep(launch.TELL_SECONDS)
        raise


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands, which names the program as it was started."""
    program = "synknumba"
    if Path(sys.argv[0]).name != program:
        program = "python -m synknumba"
    parser = argparse.ArgumentParser(
        prog=program,
        description="Inspects, measures and checks synknumba's installation and scripts, and runs "
        "scripts on several machines.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"synknumba {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in _COMMANDS.values():
        module.add(commands)
    return parser
