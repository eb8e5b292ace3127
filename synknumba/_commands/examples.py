"""`synknumba examples`: copies the examples out of the installed package."""

import argparse
import shlex
import shutil
from pathlib import Path

from synknumba import _examples
from synknumba._commands.terminal import SUCCESS, CommandError, Subparsers, add_command, write

SOURCE = Path(next(iter(_examples.__path__)))

DESCRIPTION = """\
Copies the examples into a new folder, with the programs and tests of `synknumba new`
in its folder `new`. Nothing is overwritten."""


def add(commands: Subparsers) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "examples",
        _run,
        "copy the examples into a new folder",
        DESCRIPTION,
        ("examples", "examples ~/synknumba-examples"),
    )
    parser.add_argument(
        "folder", nargs="?", default="examples", help="folder to make; default: examples"
    )


def _run(args: argparse.Namespace) -> int:
    folder = Path(args.folder)
    if folder.exists():
        raise CommandError(f"{folder} exists, and is not changed; name a new folder")
    copied: list[str] = []

    def copy(source: str, target: str) -> None:
        shutil.copyfile(source, target)
        copied.append(target)

    ignored = shutil.ignore_patterns("__pycache__")
    write(
        args.folder,
        lambda: shutil.copytree(SOURCE, folder, ignore=ignored, copy_function=copy),
    )
    for name in sorted(copied):
        print(name)
    print(f"\nnext: python {shlex.quote(str(folder / 'energy.py'))}")
    return SUCCESS
