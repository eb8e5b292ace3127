"""What a check of `synknumba doctor` has found."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["ok", "warning", "problem", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check.

    Attributes:
        check: name of the check, which stays; set by `run_checks`.
        level: "ok"; "warning": it works, less well than it could; "problem": it does not work;
            "skipped": it was not checked.
        text: what was found.
        remedy: what to do; "" if nothing needs to be done.
    """

    check: str
    level: Level
    text: str
    remedy: str = ""


Check: TypeAlias = Callable[[], Iterable[Finding]]


def ok(text: str, remedy: str = "") -> Finding:
    """Returns a finding of something that is as it should be."""
    return Finding("", "ok", text, remedy)


def warning(text: str, remedy: str) -> Finding:
    """Returns a finding of something that works less well than it could."""
    return Finding("", "warning", text, remedy)


def problem(text: str, remedy: str) -> Finding:
    """Returns a finding of something that does not work."""
    return Finding("", "problem", text, remedy)


def skipped(text: str) -> Finding:
    """Returns a finding that says why something was not checked."""
    return Finding("", "skipped", text)


def run_checks(checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    """Yields what each check finds; a check that fails itself, as in a sandbox that refuses it,
    is a finding too.
    """
    for name, check in checks:
        try:
            for finding in check():
                yield replace(finding, check=name)
        except Exception as error:  # noqa: BLE001  # one check that fails must not hide what the others find
            text = f"could not be checked: {type(error).__name__}: {error}"
            yield replace(skipped(text), check=name)
