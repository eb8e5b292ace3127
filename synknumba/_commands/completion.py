"""`synknumba completion`: what lets a shell complete command lines."""

import argparse

from synknumba._commands.terminal import SUCCESS, CommandError, Subparsers, add_command

SHELLS = ("bash", "zsh", "tcsh")  # shtab's

DESCRIPTION = """\
Prints a script that lets a shell complete commands, options and files. It needs shtab:
pip install 'synknumba[completion]'. The script itself needs nothing, and starts no Python."""


def add(commands: Subparsers) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "completion",
        _run,
        "print what lets a shell complete command lines",
        DESCRIPTION,
        (
            "completion bash > ~/.local/share/bash-completion/completions/synknumba",
            'completion zsh > "${fpath[1]}/_synknumba"',
        ),
    )
    parser.add_argument("shell", choices=SHELLS)


def _run(told: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        raise CommandError("needs shtab, which is not installed: pip install 'synknumba[completion]'") from None
    print(shtab.complete(told.make_parser("synknumba"), told.shell))
    return SUCCESS
