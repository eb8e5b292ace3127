"""What a check of `synknumba doctor` has found."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["ok", "warning", "problem", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check.

    Attributes:
        check: name of the check, which stays.
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


def ok(check: str, text: str, remedy: str = "") -> Finding:
    """Returns a finding of something that is as it should be."""
    return Finding(check, "ok", text, remedy)


def warning(check: str, text: str, remedy: str) -> Finding:
    """Returns a finding of something that works less well than it could."""
    return Finding(check, "warning", text, remedy)


def problem(check: str, text: str, remedy: str) -> Finding:
    """Returns a finding of something that does not work."""
    return Finding(check, "problem", text, remedy)


def skipped(check: str, text: str) -> Finding:
    """Returns a finding that says why something was not checked."""
    return Finding(check, "skipped", text)


def run_checks(checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    """Yields what each check finds; a check that fails itself, as in a sandbox that refuses it,
    is a finding too.
    """
    for name, check in checks:
        try:
            yield from check()
        except Exception as error:  # noqa: BLE001  # one check that fails must not hide what the others find
            yield skipped(name, f"could not be checked: {type(error).__name__}: {error}")
