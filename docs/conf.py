"""Configuration of the documentation site. `make docs` builds it."""

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from synknumba import __version__  # noqa: E402  # after the path

project = "synknumba"
smartquotes_action = "D"  # dashes; quotes are code in docstrings
author = "The synknumba developers"
copyright = author  # noqa: A001  # Sphinx's name
release = version = __version__
# The repository's address is that of pyproject.toml; without one, pages have no link to it.
metadata = tomllib.loads(HERE.with_name("pyproject.toml").read_text(encoding="utf-8"))["project"]
repository = metadata.get("urls", {}).get("Repository")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "docs._site.docstrings",
    "docs._site.links",
    "docs._site.see_also",
    "docs._site.inline_pictures",
]
exclude_patterns = ["_site", "_static", "_templates"]
templates_path = ["_templates"]
nitpicky = True
# Names in single backticks are links where they are public names, and code elsewhere: no error if
# there is none.
default_role = "py:obj"
nitpick_ignore_regex = [("py:obj", r"(?s).*"), ("py:class", r"(?s).*"), ("py:data", r"(?s).*")]

myst_enable_extensions = ["colon_fence", "attrs_inline", "attrs_block"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
highlight_language = "text"  # blocks that name no language
suppress_warnings = ["myst.header"]  # the README's pages begin where they like

autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {
    "members": True,
    "inherited-members": "tuple,Exception,BaseException",
    "special-members": "__call__, __getitem__",
}
autodoc_preserve_defaults = True
autosummary_generate = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = f"synknumba {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_logo = html_favicon = "pictures/logo.svg"
html_theme_options = {"navigation_with_keys": True}
if repository:
    html_theme_options |= {
        "source_repository": repository,
        "source_branch": "main",
        "source_directory": "docs/",
        "footer_icons": [
            {"name": "Repository", "url": repository, "html": "Repository", "class": ""}
        ],
    }
pygments_style = "friendly"
pygments_dark_style = "github-dark"
