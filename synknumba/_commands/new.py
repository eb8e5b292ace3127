"""`synknumba new`: writes a program to start from, and its test, into the current directory."""

import argparse
import os
import shutil
from functools import partial

from synknumba._commands.examples import SOURCE
from synknumba._commands.terminal import SUCCESS, CommandError, Subparsers, add_command, write

PROGRAMS = ("ising", "expectation", "pde", "training")

DESCRIPTION = """\
Writes a short program to start from, and a test of it, into the current directory:

  ising        the energy of many Ising lattices: a kernel, and arrays that it changes
  expectation  an integral with its error bar, from a function of one sample
  pde          the heat equation: rows divided over the ranks, and a loop that they repeat
  training     least squares in minibatches: a gradient and an optimiser

Files that exist are not overwritten."""


def add(commands: Subparsers) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "new",
        _run,
        "write a program to start from, and its test",
        DESCRIPTION,
        tuple(f"new {program}" for program in PROGRAMS),
    )
    parser.add_argument("program", choices=PROGRAMS)


def _run(args: argparse.Namespace) -> int:
    program, test = f"{args.program}.py", f"test_{args.program}.py"
    for name in (program, test):
        if os.path.lexists(name):
            raise CommandError(
                f"{name} exists; nothing was written. Move it, or go to another directory"
            )
    for name in (program, test):
        write(name, partial(shutil.copyfile, SOURCE / "new" / name, name))
    print(f"wrote {program} and {test}")
    print(f"next: python {program}, then pip install pytest, and python -m pytest {test}")
    return SUCCESS
