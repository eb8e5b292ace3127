"""Turns docstrings, which are plain text with names in backticks, into reStructuredText, before
napoleon reads them.

Characters that mean something in reStructuredText are escaped outside backticks, as in |m|, x_i or
a * b. Indented lines after an empty one are code or formulas.
"""

import inspect
import re
from typing import Any

SECTIONS = re.compile(r"(Args|Attributes|Examples?|Notes?|Raises|Returns|Yields|References):$")
SPANS = re.compile(r"(``.+?``|`[^`]+`)")
SPECIAL = re.compile(r"([\\*|])|(?<=\w)(_)(?!\w)")

_plain: dict[str, list[str]] = {}  # docstrings of properties without sections, by name


def escape(line: str) -> str:
    r"""Escapes what reStructuredText would read as markup, outside backticks.

    >>> print(escape("|m| of `a * b` and x_"))
    \|m\| of `a * b` and x\_
    """
    parts = SPANS.split(line)
    parts[::2] = [SPECIAL.sub(lambda found: "\\" + found[0], part) for part in parts[::2]]
    return "".join(parts)


def convert(lines: list[str]) -> list[str]:
    """Returns the lines as reStructuredText, with literal blocks for indented ones."""
    out: list[str] = []
    section, i = False, 0  # whether a Google section has begun, whose contents are indented
    while i < len(lines):
        line = lines[i]
        if SECTIONS.match(line):
            section = True
        elif line and not line[0].isspace():
            section = False
        begins = (
            bool(line.strip())
            and line[0].isspace()
            and i > 0
            and not lines[i - 1].strip()
            and not section
        )
        if begins:
            end = i
            while end < len(lines) and (not lines[end].strip() or lines[end][0].isspace()):
                end += 1
            out += ["::", "", *lines[i:end], ""]
            i = end
            continue
        out.append(line if line.lstrip().startswith(">>>") else escape(line))
        i += 1
    return out


def _process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = convert(lines)
    if what in {"property", "attribute", "data"} and not any(map(SECTIONS.match, lines)):
        _plain[name] = [*lines]


def _restore(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Undoes napoleon's reading of a property's docstring, which takes what stands before a
    colon for a type.
    """
    lines[:] = _plain.pop(name, lines)


def _signature(
    app: Any,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str | None,
    returns: str | None,
) -> tuple[str, str | None] | None:
    """Writes defaults that stand for "not given" as dots, and constants as their values; leaves out
    the signatures of classes, which functions make objects of.
    """
    if not signature:
        return None
    if what == "exception" or (what == "class" and not issubclass(obj, tuple)):
        return "", None
    names = getattr(inspect.unwrap(obj), "__globals__", {})

    def _value(default: re.Match[str]) -> str:
        value = names.get(default[1])
        return f"={value!r}" if isinstance(value, int | float | str | tuple) else "=..."

    return re.sub(r"=(_?[A-Z][A-Z_]+)\b", _value, signature), returns


def _skip(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leaves out the fields of named tuples, which the docstring of their class describes, and
    other inherited members.
    """
    return True if type(obj).__name__ == "_tuplegetter" else None


def setup(app: Any) -> dict[str, Any]:
    """Connects the conversion, before napoleon's."""
    app.connect("autodoc-process-docstring", _process, priority=100)
    app.connect("autodoc-process-docstring", _restore, priority=900)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True}
