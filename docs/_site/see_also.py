"""Says below each public name which pages of the guide and which examples use it most."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from docs._site.public_names import public_names

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES, EXAMPLES = 2, 3  # that are named; more is a list that nobody reads
NO_GUIDE = {"index", "architecture", "performance", "comparison", "errors", "versions"}


def most(name: str, texts: dict[str, str], least: int) -> list[str]:
    """Returns the texts that name something `least` times or more, beginning with those that name
    it most.

    >>> most("synk.swap", {"a": "synk.swap", "b": "synk.swap(synk.swap)", "c": "synk.swapped"}, 1)
    ['b', 'a']
    """
    word = re.compile(rf"\b{re.escape(name)}\b")
    counts = {key: len(word.findall(text)) for key, text in texts.items()}
    users = [key for key, count in counts.items() if count >= least]
    return sorted(users, key=lambda key: -counts[key])


@cache
def uses() -> dict[str, list[str]]:
    """Returns the documents to see, by public name."""
    files = [*DOCS.glob("*.md"), *DOCS.glob("howto/*.md")]
    guide = {
        file.relative_to(DOCS).with_suffix("").as_posix(): file.read_text(encoding="utf-8")
        for file in sorted(files)
        if file.stem not in NO_GUIDE
    }
    examples = {
        f"gallery/{file.stem}": file.read_text(encoding="utf-8")
        for file in sorted((ROOT / "examples").glob("*.py"))
    }
    documents = {}
    for name, value in public_names().items():
        written = name.replace("synknumba", "synk", 1)
        documents[name] = most(written, guide, 2)[:PAGES] + most(written, examples, 1)[:EXAMPLES]
        if isinstance(value, type) and issubclass(value, Exception):
            documents[name] = ["errors"]
    return documents


def _append(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if documents := uses().get(name):
        links = ", ".join(f":doc:`/{document}`" for document in documents)
        lines += ["", f":See also: {links}", ""]


def setup(app: Any) -> dict[str, Any]:
    """Connects it, after napoleon."""
    app.connect("autodoc-process-docstring", _append, priority=1000)
    return {"parallel_read_safe": True}
