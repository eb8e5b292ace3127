"""Adds the built site to a folder of all versions, between which its pages let readers choose.

    python -m docs._site.versions build/docs SITE

Copies the pages to `SITE/VERSION`, and writes `SITE/versions.js`, which each page loads and which
fills the choice, and `SITE/index.html`, which leads to the newest version. Publish SITE as it is.
"""

import json
import shutil
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

from synknumba import __version__

# The page of the same name in another version; its first page where there is none to ask.
SCRIPT = """
const versions = VERSIONS;
const root = new URL(".", document.currentScript.src).href;
document.addEventListener("DOMContentLoaded", () => {
    const choice = document.querySelector("#versions");
    const [here, ...page] = location.href.slice(root.length).split("/");
    for (const version of versions)
        choice.add(new Option(version, version, false, version === here));
    choice.parentElement.hidden = false;
    choice.addEventListener("change", async () => {
        const first = root + choice.value + "/";
        const same = first + page.join("/");
        const found = await fetch(same, {method: "HEAD"}).then(answer => answer.ok, () => false);
        location.href = found ? same : first + "index.html";
    });
});
"""
START = '<!doctype html><meta http-equiv="refresh" content="0; url={}/index.html">\n'


def versions(site: Path) -> list[str]:
    """Returns the versions of a folder, the newest first."""
    found = []
    for page in site.glob("*/index.html"):
        try:
            found.append(Version(page.parent.name))
        except InvalidVersion:
            continue  # another folder
    return [str(version) for version in sorted(found, reverse=True)]


def add(built: Path, site: Path, version: str) -> None:
    """Puts pages into the folder of a version, in the place of older ones."""
    shutil.rmtree(site / version, ignore_errors=True)
    shutil.copytree(built, site / version, ignore=shutil.ignore_patterns(".doctrees"))
    newest, *_ = names = versions(site)
    script = SCRIPT.replace("VERSIONS", json.dumps(names))
    (site / "versions.js").write_text(script, encoding="utf-8")
    (site / "index.html").write_text(START.format(newest), encoding="utf-8")


if __name__ == "__main__":
    add(Path(sys.argv[1]), Path(sys.argv[2]), __version__)
