"""What pyproject.toml cannot say: the long description is README.md, whose links lead to files of
the repository, which an index does not have. They become absolute where pyproject.toml has the
repository's address, and their texts alone where it has none.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
# code, which stays, or a link or picture to a file
LINK = re.compile(
    r"^```.*?^```|`[^`]+`|<img src=[^>]*> ?|!?\[([^]]*)\]\((?!https?:)([^)]*)\)",
    re.MULTILINE | re.DOTALL,
)


def described(text: str, repository: str) -> str:
    """Returns a text whose links to files an index can show."""

    def replaced(match: re.Match[str]) -> str:
        if match[0].startswith("<img"):
            return ""
        if match[2] is None:
            return match[0]
        if match[0].startswith("!") or not repository:
            return match[1]
        return f"[{match[1]}]({repository}/blob/HEAD/{match[2]})"

    return LINK.sub(replaced, text)


urls = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"].get(
    "urls", {}
)
readme = (HERE / "README.md").read_text(encoding="utf-8")
setup(
    long_description=described(readme, urls.get("Repository", "").rstrip("/")),
    long_description_content_type="text/markdown",
)
