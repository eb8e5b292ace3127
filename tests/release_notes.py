"""Prints what the changelog says of the version, as notes of its release.

python tests/release_notes.py v0.1.0        fails if that is not the version's tag
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def version() -> str:
    """Returns the version, of the one place that has it, without importing the package."""
    text = (ROOT / "synknumba" / "__init__.py").read_text("utf-8")
    return re.search(r'^__version__ = "(.+?)"', text, re.MULTILINE)[1]


def notes(changelog: str, version: str) -> str:
    """Returns the section of a version.

    Raises:
        ValueError: the changelog has no section of this version with a date, or nothing in it.
    """
    heading = r"^## \[(.+?)\] - \d{4}-\d\d-\d\d\n"
    sections = re.split(heading, changelog, flags=re.MULTILINE)
    texts = dict(zip(sections[1::2], sections[2::2], strict=True))
    if not texts.get(version, "").strip():
        raise ValueError(
            f"CHANGELOG.md has no section [{version}] with a date, only {[*texts]}: "
            "name what is released"
        )
    return texts[version].strip()


def main() -> None:
    tag = sys.argv[1]
    if tag != f"v{version()}":
        raise SystemExit(f"the tag {tag} is not that of version {version()}")
    print(notes((ROOT / "CHANGELOG.md").read_text("utf-8"), version()))


if __name__ == "__main__":
    main()
