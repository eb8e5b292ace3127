"""`synknumba run`: a script on one machine, or on all machines of a job."""

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

from synknumba._commands.terminal import CommandError, Subparsers, add_command, positive
from synknumba._machines import launch

DESCRIPTION = """\
Runs a script. Under mpiexec or srun, with one process a machine, `synk.fork()` gives it
the GPUs or cores of all machines of the job; alone, those of this machine."""


def add(commands: Subparsers) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "run",
        _run,
        "run a script, under mpiexec or srun on all machines of the job",
        DESCRIPTION,
        ("run script.py --its-option 3", "run --ranks-per-node 2 -m package.module"),
    )
    parser.epilog = (
        f"{parser.epilog}\n  mpiexec -n 4 synknumba run script.py\n  srun -N 4 "
        f"--ntasks-per-node=1 synknumba run script.py"
    )
    parser.add_argument(
        "--ranks-per-node",
        type=positive,
        metavar="K",
        help="ranks on each machine; default: one for each device",
    )
    parser.add_argument("-c", action=_Code, nargs="?", help=argparse.SUPPRESS)
    add_script(parser)


class _Code(argparse.Action):
    """Refuses `-c`, which `python` has."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        parser.error(
            "-c is for python alone: write the code to a file, as ranks need its "
            "source, and name the file"
        )


def add_script(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of a command that runs a script: its path, or with -m its module, and
    its arguments.
    """
    parser.add_argument(
        "-m", action="store_true", dest="is_module", help="take SCRIPT as the name of a module"
    )
    parser.add_argument(
        "script", metavar="SCRIPT", help="a Python file, or a folder or zip file with __main__.py"
    )
    rest = parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="of the script"
    )
    rest.required = False  # argparse before Python 3.12 asks for it where SCRIPT is missing


def script_file(args: argparse.Namespace) -> Path | None:
    """Returns the file of a script, None for a module; CommandError if it is not there."""
    if args.is_module:
        problem = launch.problem_of_module(args.script)
        if problem:
            raise CommandError(problem)
        return None
    path = Path(args.script)
    if path.is_dir():
        path /= "__main__.py"
    try:
        path.open("rb").close()
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    return path


def _run(args: argparse.Namespace) -> int:
    code = launch.run(args.script, args.arguments, args.ranks_per_node, is_module=args.is_module)
    # numba.cuda's error for a driver or a GPU that is not there
    ended_by = type(getattr(sys, "last_value", None)).__name__
    if ended_by == "CudaSupportError" and not os.environ.get("SYNKNUMBA_SIMT"):
        sys.stderr.write(
            "synknumba run: numba.cuda finds no GPU here; with SYNKNUMBA_SIMT=1 in the environment "
            "the kernels run on a core, and `synknumba check` looks for errors in them. Without "
            "it, cuda.jit with a signature asks for a GPU at once: leave the signature out\n"
        )
    return code
