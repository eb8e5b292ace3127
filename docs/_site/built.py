"""Reads the pages of the built site for what a build does not warn of.

    python -m docs._site.built build/docs

Prints each fault, and fails if there is one: markup that is left in the text of a page.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
NOT_TEXT = {"code", "pre", "script", "style"}  # backticks there are as they should be
MARKUP = re.compile(r"`|\]\(")


class Text(HTMLParser):
    """The text of a page outside code, line by line."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.lines: list[tuple[int, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Enters an element."""
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Leaves an element, and those in it that have no end."""
        while tag in self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        """Keeps text that is not code."""
        if NOT_TEXT.isdisjoint(self.open):
            line, _ = self.getpos()
            self.lines.append((line, data))


def leftovers(html: str) -> list[str]:
    r"""Returns the lines of a page's text in which markup is left.

    >>> leftovers("<p>a <code>`b`</code></p>\n<p>c `d`</p>")
    ['2: c `d`']
    """
    page = Text()
    page.feed(html)
    return [
        f"{line}: {' '.join(text.split())[:100]}"
        for line, text in page.lines
        if MARKUP.search(text)
    ]


def main() -> int:
    """Reads all pages of a folder."""
    pages = sorted(Path(sys.argv[1]).rglob("*.html"))
    faults = [
        f"{page}:{fault}" for page in pages for fault in leftovers(page.read_text(encoding="utf-8"))
    ]
    print(*faults, f"{len(pages)} pages, {len(faults)} faults", sep="\n")
    return int(not pages or bool(faults))


if __name__ == "__main__":
    sys.exit(main())
