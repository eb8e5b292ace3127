"""Links that lead out of `docs/`, on pages that are read in the repository too, and names of
objects in docstrings.

On a page, a link to an example leads to its page in the gallery, one to the kernel library to its
reference, and one to a text at the top of the repository to its page here. Links to other files of
the repository, as tests, become names: the site has no address of the repository. Tables of
contents, which only the site shows, are in comments `<!-- of the site … -->`.
"""

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docs._site.public_names import public_names

if TYPE_CHECKING:
    from docutils import nodes  # the tests import this module without it

ROOT = Path(__file__).resolve().parents[2]
# A link, or inline code, in which nothing is one: as in `kernel[grid, block](x)`.
LINK = re.compile(
    r"(?P<ticks>(?<!`)`+(?!`))(?:(?!\n\s*\n).)+?(?<!`)(?P=ticks)(?!`)"
    r"|(?<!\!)\[(?P<text>(?:`[^`]+`|\[[^\]`]*\]|[^\]\[`])*)\]"
    r"\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)",
    re.DOTALL,
)
OF_THE_SITE = re.compile(r"^<!-- of the site\n(.*?)^-->$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^(```|~~~|:::).*?^\1[`~:]*$", re.MULTILINE | re.DOTALL)
PAGES = {
    "README.md": "docs/index.md",
    "CONTRIBUTING.md": "docs/development/contributing.md",
    "CHANGELOG.md": "docs/development/changelog.md",
    "SECURITY.md": "docs/development/reporting.md",
    "kernels": "docs/reference/kernels.md",
    "docs/design": "docs/design/index.md",
    "examples": "docs/gallery/index.md",
    "examples/synkhronos": "docs/gallery/index.md",
}
EXAMPLE = re.compile(r"examples/(?:synkhronos/)?(\w+)\.py")


def site_target(path: str) -> str | None:
    """Returns the page of the site, from the top of the repository, that has a file's contents;
    None if there is none.
    """
    path = path.rstrip("/")
    if path in PAGES:
        return PAGES[path]
    if found := EXAMPLE.fullmatch(path):
        return f"docs/gallery/{found[1]}.md"
    return path if path.startswith("docs/") and path.endswith(".md") else None


def rewrite(text: str, here: str, shown_at: str) -> str:
    """Returns the text of a page with its links as they are on the site.

    Args:
        text: Markdown.
        here: the file whose links these are, from the top of the repository.
        shown_at: the page that shows the text.
    """

    def _link(found: re.Match[str]) -> str:
        target, anchor = found["target"], found["anchor"] or ""
        if found["ticks"] or re.match(r"[a-z]+:", target):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        page = site_target(path)
        if page is None:
            return found["text"] if found["text"].startswith("`") else f"`{path}`"
        return f"[{found['text']}]({posixpath.relpath(page, posixpath.dirname(shown_at))}{anchor})"

    parts, at = [], 0
    for code in CODE.finditer(text):
        parts += [LINK.sub(_link, text[at : code.start()]), code[0]]
        at = code.end()
    return "".join([*parts, LINK.sub(_link, text[at:])])


def _read(app: Any, docname: str, source: list[str]) -> None:
    here = f"docs/{docname}.md"
    source[0] = rewrite(OF_THE_SITE.sub(r"\1", source[0]), here, here)


# MyST's `parent` has no folder
def _include(app: Any, path: Path, parent: str, source: list[str]) -> None:
    here = Path(app.srcdir, path).resolve().relative_to(ROOT).as_posix()
    if here.endswith(".md"):
        source[0] = rewrite(source[0], here, f"docs/{app.env.docname}.md")


def _private_names() -> dict[str, str]:
    """The public name of each public object, by the private name that annotations and base
    classes have.
    """
    found = {}
    for public, one in public_names().items():
        if hasattr(one, "__qualname__") and hasattr(one, "__module__"):
            found.setdefault(f"{one.__module__}.{one.__qualname__}", public)
    return found


def _resolve(app: Any, env: Any, node: Any, content: "nodes.Element") -> "nodes.Element | None":
    """Finds names as docstrings write them: `synk.fork()`, `fork()`, and private names of public
    classes.
    """
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].removesuffix("()")
    if target.startswith("synk."):
        target = "synknumba." + target.removeprefix("synk.")
    target = app.synknumba_names.get(target, target)
    if target == node["reftarget"]:
        return None
    domain = env.get_domain("py")
    return domain.resolve_xref(
        env, node["refdoc"], app.builder, node["reftype"], target, node, content
    )


def setup(app: Any) -> dict[str, Any]:
    """Connects both."""
    app.synknumba_names = _private_names()
    app.connect("source-read", _read)
    app.connect("include-read", _include)
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True}
