"""What Numba's error texts say. No other module reads them, so a change of Numba's words is mended
here.

Numba's text lists all candidates that it has tried, each with the error that the candidate raised.
"""

import os
import re
from collections.abc import Iterator
from typing import Final

_OBJECT: Final = r"<(?:function|intrinsic|class) '?(?P<name>[\w.<>]+?)'?(?: at 0x\w+)?>"

# Meaning -> pattern of the text.
_TEXTS: Final = {
    "no match for this target": (
        rf"cannot find any matches for function '{_OBJECT}' for the current target"
    ),
    "not lowered": rf"No definition for lowering (?:{_OBJECT}|(?P<attribute>[\w.]+))",
    "untyped global": r"Untyped global name '(\w+)'",
    "untyped value": r"Cannot (?:determine Numba type of|type \w+ element type) <class '",
    "plain function": (
        r"(?:Untyped global name '(?P<name>\w+)':\s*)?"
        r"Cannot determine Numba type of <class 'function'>"
    ),
    "no implementation": (
        r"^No implementation of function Function\(<(?:built-in function|function|ufunc) "
        r"'?(?:[\w.<>]+\.)?(\w+)"
    ),
    "signature": r"^\s*>>> \w+\((.*)\)\s*$",
    "undefined name": r"name '(\w+)' is not defined",
    "launch in a kernel": r"getitem\(type\((?:CPU|CUDA)Dispatcher\(<function (\w+) ",
    "no attribute": r"Unknown attribute '(\w+)' of type (.+)",
    "name": r"name '(\w+)'|attribute '(\w+)'|Variable '(\w+)'|[Uu]nify .* for '(\w+)",
    "indices": r"^cuda\.atomic\.\w+ needs (\d+) integer ind",
    "not a number": r"\b(cuda\.[\w.]+) needs a number, not (.*)$",  # of `check_number`
    "overload for GPUs": r"^\s*Overload in function '_cpu_overload\.",
}
_PATTERNS: Final = {meaning: re.compile(text, re.M) for meaning, text in _TEXTS.items()}

_PLACES: Final = re.compile(
    r'^File "(?P<file>[^"\n]+)", line (?P<line>\d+)|\bat (?P<path>\S[^\n]*?) \((?P<number>\d+)\)$',
    re.M,
)
_RAISED: Final = re.compile(
    r"Error: ((?:[^\n]+\n)+?)\s*raised from (\S+)"
)  # by an intrinsic, an overload
_LITERAL: Final = re.compile(r"Literal\[\w+\]\(([^()]*)\)")
_MANGLED: Final = re.compile(r"(\w)__(?:arg|t)\d*\b(?:\.\d+)?|'(\w+)\.\d+'")
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")  # for terminals, where colorama is installed


def text_of(error: BaseException) -> str:
    """Returns an error's text without colours."""
    return _COLOURS.sub("", str(error))


def says(text: str, meaning: str) -> re.Match[str] | None:
    """Returns the match of a meaning in an error's text; None if the text does not say it."""
    return _PATTERNS[meaning].search(text)


def places(text: str) -> Iterator[tuple[str, int]]:
    """Yields the places that a text names, innermost first: the file's name without folder, and the
    line.
    """
    for match in _PLACES.finditer(text):
        yield (
            os.path.basename(match["file"] or match["path"]),
            int(match["line"] or match["number"]),
        )


def raised(text: str) -> dict[str, str]:
    """Returns the messages that candidates raised, and the files that raised them."""
    messages = {}
    for match in _RAISED.finditer(text):
        lines = match[1].rpartition("Error: ")[2].splitlines()
        messages["\n    ".join(map(str.strip, lines))] = match[2]
    return messages


def innermost(error: Exception) -> str:
    """Returns the innermost error of typing with its line, if there is one; else the whole text."""
    text = text_of(error)
    specific = re.findall(r"NumbaTypeError: (.*)", text)
    if not specific:
        return text
    place = re.search(r"typing of call at (.*) \((\d+)\)", text)
    if place is None:
        return specific[-1]
    return f"{specific[-1]} ({place[1]}:{place[2]})"


def types_in(signature: str) -> list[str]:
    """Returns the types in a list of them, split at the commas outside brackets; those of literals
    as the literal.
    """
    parts, depth = [""], 0
    for letter in _LITERAL.sub(r"\1", signature):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def in_users_names(line: str) -> str:
    """Returns a line with the user's names of variables, and literals in place of their types."""
    plain = _LITERAL.sub(r"\1", line)
    return _MANGLED.sub(lambda match: match[1] or f"'{match[2]}'", plain).rstrip(":")
