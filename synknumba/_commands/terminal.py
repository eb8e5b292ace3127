"""What commands have in common: arguments and their help, errors, tables, and colours where a
terminal shows them.
"""

import argparse
import codecs
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeAlias

from synknumba._types import aligned

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001  # the type has no public name

SUCCESS, FOUND, FAILED, INTERRUPTED = 0, 1, 2, 130  # exit statuses: see the package

# SGR parameters
_COLOURS = {
    "ok": "32",
    "warning": "33",
    "problem": "31;1",
    "skipped": "2",
    "bold": "1",
}
_PLAIN = str.maketrans({"µ": "u", "×": "x", "−": "-", "–": "-", "…": "...", "→": "->"})
_CLOSED = "cannot write the output: standard output is closed"
_HANDLER = "synknumba.plain"  # of characters that a locale cannot show


class CommandError(Exception):
    """A command cannot do its work; the text says why, and what to do instead."""


def add_command(
    commands: Subparsers,
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    description: str,
    examples: Sequence[str],
    aliases: Sequence[str] = (),
) -> argparse.ArgumentParser:
    """Adds a command, and returns its parser for further arguments.

    Args:
        commands: those of the program.
        name: of the command.
        run: called with the parsed arguments; returns the exit status.
        summary: one line for the list of commands.
        description: what the command does, as lines that are printed as they are.
        examples: of command lines, without the program's name.
        aliases: other names of the command.
    """
    lines = "\n".join(f"  synknumba {example}" for example in examples)
    parser = commands.add_parser(
        name,
        aliases=aliases,
        help=summary,
        description=description,
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # an option that is added later would make them ambiguous
    )
    parser.set_defaults(run=run)
    return parser


def positive(text: str) -> int:
    """Returns the number that an argument gives; refuses less than 1."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at least 1, got {text!r}"
        ) from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def show_what_can_be_shown() -> None:
    """Lets standard output replace characters that its encoding does not have, such as µ, instead
    of failing.

    CommandError if there is no standard output.
    """
    codecs.register_error(_HANDLER, _replace)
    if sys.stdout is None:  # as by `>&-`
        raise CommandError(_CLOSED)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_HANDLER)


def print_after_script(text: str) -> None:
    """Prints what a command tells after a script, to whose standard output it belongs, which stays
    as it is.

    Characters that its encoding does not have are replaced; CommandError if it cannot be written.
    """
    codecs.register_error(_HANDLER, _replace)
    stream = sys.stdout
    if stream is None:
        raise CommandError(_CLOSED)
    # a stream of the script's may have none
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(text.encode(encoding, _HANDLER).decode(encoding) + "\n")
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandError(cannot_write_output(error)) from error


def tell(text: str) -> None:
    """Writes to standard error; where that is closed or full, the exit status alone says what was
    found.
    """
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        with suppress(OSError):
            drop(sys.stderr)


def drop(stream: IO[str]) -> None:
    """Sends the rest of a stream nowhere, as Python flushes it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def cannot_write_output(error: OSError) -> str:
    """Says why standard output takes no more."""
    return f"cannot write the output: {reason_of(error)}"


def reason_of(error: OSError) -> Any:
    """Returns what the system says of an error, without its number."""
    return error.strerror or error


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return text.encode("ascii", "replace").decode(), error.end


def coloured(text: str, kind: str, stream: IO[str] | None = None) -> str:
    """Returns a text in a colour if the stream, by default standard output, is a terminal and
    NO_COLOR is not set.

    Args:
        text: any text.
        kind: "ok", "warning", "problem", "skipped" or "bold".
        stream: where the text is printed.
    """
    if not has_colours(stream or sys.stdout):
        return text
    return f"\033[{_COLOURS[kind]}m{text}\033[0m"


def has_colours(stream: IO[str]) -> bool:
    """Returns whether a stream shows colours: it is a terminal, and NO_COLOR is not set."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":  # no-color.org
        return False
    return stream.isatty()


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints rows of cells: the first column aligned left, the others right."""
    first, *lines = aligned([head, *rows])
    print(coloured(first, "bold"))
    for line in lines:
        print(line)


def print_json(value: Any) -> None:
    """Prints a value as JSON."""
    print(json.dumps(value, indent=2))


def write_json(path: str, value: Any) -> None:
    """Writes a value as JSON to a file; CommandError if that cannot be written."""
    write(path, lambda: Path(path).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8"))


def write(path: str, make: Callable[[], object]) -> None:
    """Calls what writes a file; CommandError if that cannot be written."""
    try:
        make()
    except OSError as error:
        raise CommandError(f"cannot write {path}: {reason_of(error)}") from error


def check_writable(path: str) -> None:
    """Raises CommandError if a file can certainly not be written; called before work whose
    result would be lost.
    """
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise CommandError(f"cannot write {path}: it is a directory; name a file")
    if not os.path.isdir(folder):
        raise CommandError(f"cannot write {path}: there is no directory {folder}")
    if os.path.exists(path):
        is_allowed = os.access(path, os.W_OK)
    else:
        is_allowed = os.access(folder, os.W_OK | os.X_OK)
    if not is_allowed:
        raise CommandError(
            f"cannot write {path}: permission denied; name a file in another directory"
        )


def gib(nbytes: float) -> str:
    """Returns a number of bytes as text in GiB."""
    return f"{nbytes / 2**30:.2f} GiB"


def mib(nbytes: float) -> str:
    """Returns a number of bytes as text in MiB."""
    return f"{nbytes / 2**20:.1f} MiB"
