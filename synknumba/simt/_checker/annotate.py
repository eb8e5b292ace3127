"""Findings at the lines of the source that they are about: as text for a terminal, as HTML for a
page or a notebook.
"""

import ast
import html
import linecache
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, cast, final

from synknumba._errors import Access, ArgumentError, Finding, KernelCheckError, KernelCheckWarning

# Lines before and after those with a finding; of a function that is not much longer, all.
AROUND: Final = 3
WHOLE_FUNCTION: Final = 40

_FAINT, _BOLD = "2", "1"  # SGR parameters
# Amber of warnings, red of errors; in a terminal as SGR parameters.
_CODES: Final = {True: "33;1", False: "31;1"}
_COLOURS: Final = {True: "rgba(230,160,0,.20)", False: "rgba(220,50,50,.20)"}


@dataclass(frozen=True, slots=True)
class _Note:
    """What a finding says at one line. Only the last place of a finding tells the whole of it."""

    number: int
    finding: Finding
    access: Access
    is_last: bool

    def lines(self) -> Iterator[str]:
        """Yields the note, line by line."""
        finding, access = self.finding, self.access
        who = f"threadIdx={access.thread} blockIdx={access.block}"
        if not self.is_last:
            last = finding.accesses[-1]
            where = ""
            if last.line and last != access:
                where = f", against line {last.line}"
            yield f"[{self.number}] {access.what} by {who}{where}"
            return
        kind, times = finding.error.__name__, ""
        if finding.is_warning:
            kind = "warning"
        if finding.times > 1:
            times = f" ({finding.times} times)"
        yield f"[{self.number}] {kind}: {finding.summary}{times}"
        yield f"    {access.what} by {who}"
        for place in finding.accesses:
            if not place.line:
                yield f"    {place.what}: threadIdx={place.thread} blockIdx={place.block}"
        yield f"    {finding.advice}"


@dataclass(frozen=True, slots=True)
class _Function:
    """A function with findings: the lines to show, and the notes below them."""

    name: str
    filename: str
    lines: tuple[int, ...]
    notes: dict[int, list[_Note]]

    def rows(self) -> Iterator[tuple[int, str, list[_Note]]]:
        """Yields the number, source and notes of each line; 0 and "…" where lines are left out."""
        before = sys.maxsize
        for line in self.lines:
            if line > before + 1:
                yield 0, "…", []
            before = line
            source = linecache.getline(self.filename, line).rstrip()
            yield line, source, self.notes.get(line, [])


@final
class AnnotatedSource:
    """The functions of a kernel with the findings of a check at their lines; the result of
    `annotate`.

    `str()` gives it as text, and notebooks show it as HTML.
    """

    def __init__(self, findings: Iterable[Finding]) -> None:
        self._findings = tuple(findings)
        self._functions = list(_functions(self._findings))

    def __str__(self) -> str:
        """Returns the text without colours."""
        return self.text()

    def __repr__(self) -> str:
        """Returns the number of findings and the functions."""
        names = ", ".join(function.name for function in self._functions)
        return f"<{len(self._findings)} findings in {names}>"

    def text(self, *, colour: bool = False) -> str:
        """Returns the source with the findings below their lines, as text.

        Args:
            colour: whether to mark lines and findings by the colours of a terminal.
        """
        return "\n\n".join(
            "\n".join(_text_of(function, colour=colour)) for function in self._functions
        )

    def html(self) -> str:
        """Returns the source with the findings as a fragment of HTML, without scripts and style
        sheets.
        """
        return f'<div style="font-family:monospace">{"".join(map(_html_of, self._functions))}</div>'

    def page(self) -> str:
        """Returns a page of HTML with the source and the findings."""
        title = f"{len(self._findings)} findings of simt.check"
        head = (
            f'<meta charset="utf-8"><meta name="color-scheme" content="light '
            f'dark"><title>{title}</title>'
        )
        return (
            f"<!DOCTYPE html>\n<html "
            f'lang="en"><head>{head}</head><body>{self.html()}</body></html>\n'
        )

    _repr_html_ = html


def annotate(found: KernelCheckError | KernelCheckWarning | Iterable[Finding]) -> AnnotatedSource:
    """Returns the source of a kernel with the findings of `check` or `debug` at its lines.

        try:
            simt.check(kernel)[grid, block](*args)
        except simt.KernelCheckError as error:
            print(simt.annotate(error))

    Args:
        found: the error, the warning, or findings of several.

    Raises:
        ArgumentError: it is none of these, such as a kernel.
    """
    if isinstance(found, (KernelCheckError, KernelCheckWarning)):
        return AnnotatedSource(found.findings)
    if isinstance(found, Iterable):
        findings = tuple(found)
        if all(isinstance(finding, Finding) for finding in findings):
            return AnnotatedSource(findings)
    raise ArgumentError(
        "simt.annotate takes the KernelCheckError that simt.check(kernel)[grid, block](...) "
        "raises, its KernelCheckWarning or an iterable of findings such as error.findings; got "
        f"{found!r}"
    )


def _functions(findings: tuple[Finding, ...]) -> Iterator[_Function]:
    """Yields the functions with findings, in order of first occurrence."""
    notes: dict[tuple[str, str], dict[int, list[_Note]]] = {}
    for number, finding in enumerate(findings, 1):
        places = [access for access in finding.accesses if access.line]
        for access in places:
            of_function = notes.setdefault((access.filename, access.function), {})
            of_function.setdefault(access.line, []).append(
                _Note(number, finding, access, access is places[-1])
            )
    for (filename, name), at_lines in notes.items():
        yield _Function(name, filename, tuple(_shown(filename, name, sorted(at_lines))), at_lines)


def _shown(filename: str, name: str, marked: list[int]) -> list[int]:
    """Returns the numbers of the lines to show."""
    near = {line for mark in marked for line in range(mark - AROUND, mark + AROUND + 1)}
    function = _function_at(filename, name, marked[0])
    if function is None:
        lines = range(1, len(linecache.getlines(filename)) + 1)
        return sorted(near & {*lines} | {*marked})
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    lines = range(first, cast(int, function.end_lineno) + 1)
    if len(lines) <= WHOLE_FUNCTION:
        return [*lines]
    return sorted({*range(first, function.lineno + 1)} | near & {*lines})


def _function_at(filename: str, name: str, line: int) -> ast.FunctionDef | None:
    for node in ast.walk(_parsed(filename)):
        match node:
            case ast.FunctionDef(lineno=first, end_lineno=int(last)) if first <= line <= last:
                if node.name == name:
                    return node
    return None


def _parsed(filename: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:  # a file that was edited meanwhile, a notebook's cell with magics
        return ast.Module([], [])


def _coloured(text: str, code: str, *, colour: bool) -> str:
    if not colour:
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def _are_warnings(notes: list[_Note]) -> bool:
    return all(note.finding.is_warning for note in notes)


def _text_of(function: _Function, *, colour: bool) -> Iterator[str]:
    paint = partial(_coloured, colour=colour)
    yield paint(f"{function.name} ({function.filename})", _BOLD)
    width = len(str(max(function.lines, default=0)))
    for line, source, notes in function.rows():
        if not line:
            yield paint(f"  {'':>{width}} {source}", _FAINT)
            continue
        if not notes:
            yield f"  {paint(f'{line:>{width}} |', _FAINT)} {source}".rstrip()
            continue
        pointer = paint(">", _CODES[_are_warnings(notes)])
        yield f"{pointer} {paint(f'{line:>{width}} |', _FAINT)} {source}"
        bar = paint("|", _FAINT)
        indent = " " * (len(source) - len(source.lstrip()))
        for note in notes:
            code = _CODES[note.finding.is_warning]
            for text in note.lines():
                yield f"  {'':>{width}} {bar} {indent}{paint(text, code)}"


def _html_of(function: _Function) -> str:
    rows = []
    for line, source, notes in function.rows():
        style = ""
        if notes:
            style = f"background:{_COLOURS[_are_warnings(notes)]}"
        rows.append(_row(str(line or ""), html.escape(source) or " ", style))
        for note in notes:
            text = html.escape("\n".join(note.lines()))
            colour = _COLOURS[note.finding.is_warning].replace(".20", ".8")
            style = f"border-left:.3em solid {colour};padding-left:.6em"
            rows.append(_row("", f'<div style="{style};font-style:italic">{text}</div>', ""))
    head = f"<b>{html.escape(function.name)}</b> ({html.escape(function.filename)})"
    table = "border-collapse:collapse;border:none;white-space:pre-wrap;font-size:inherit"
    return f'<div style="padding:.6em 0">{head}<table style="{table}">{"".join(rows)}</table></div>'


def _row(number: str, text: str, style: str) -> str:
    cell = "padding:0 .8em 0 0;border:none;text-align:left;vertical-align:top"
    return (
        f'<tr style="background:none;{style}"><td '
        f'style="{cell};opacity:.6;text-align:right">{number}</td><td '
        f'style="{cell}">{text}</td></tr>'
    )
