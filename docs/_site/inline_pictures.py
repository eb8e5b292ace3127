"""Puts the drawings of `docs/pictures/` into the pages, rather than beside them, so that their
colours follow the page's.
"""

from pathlib import Path
from typing import Any

from docutils import nodes


def _inline(app: Any, doctree: nodes.document, docname: str) -> None:
    if app.builder.format != "html":
        return
    for image in list(doctree.findall(nodes.image)):
        file = Path(app.srcdir, image["uri"])
        if file.suffix == ".svg" and file.parent.name == "pictures":
            svg = file.read_text(encoding="utf-8").replace(
                'class="synk"', 'class="synk drawing" role="img"', 1
            )
            image.replace_self(nodes.raw("", svg, format="html"))


def setup(app: Any) -> dict[str, Any]:
    """Connects the replacement."""
    app.connect("doctree-resolved", _inline)
    return {"parallel_read_safe": True}
