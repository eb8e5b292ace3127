"""Opens the pages of the built site in Chromium, at the widths of a phone, two laptops and a wide
screen.

    python -m docs._site.screens build/docs build/screens

Fails where a page scrolls sideways, where Python is cut off on a laptop or a wide screen, or where
a script of a page fails. Leaves screenshots of some pages, light and dark, in the second folder.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

SIZES = {"phone": (390, 844), "small": (1280, 800), "laptop": (1440, 900), "wide": (1920, 1080)}
SHOWN = ("index", "calls", "howto/index", "gallery/index", "gallery/wave", "reference/world")
LONGEST = 111  # columns that have room on a laptop
FAULTS = """(longest) => {
    const faults = [];
    const page = document.documentElement;
    if (page.scrollWidth > page.clientWidth) faults.push("scrolls sideways");
    const outside = element => element.getBoundingClientRect().right > page.clientWidth + 1;
    const scrolled = "pre, .table-wrapper, .sidebar-drawer, .toc-drawer";
    const wide = [...document.querySelectorAll("article *")].filter(
        element => !element.closest(scrolled) && element.checkVisibility() && outside(element));
    if (wide.length)
        faults.push(`wider than the window: ${wide[0].textContent.trim().slice(0, 40)}`);
    if (longest)
        for (const block of document.querySelectorAll(".highlight-python pre"))
            if (block.scrollWidth > block.clientWidth) {
                const lines = block.textContent.split("\\n").filter(line => line.length > longest);
                faults.push(`Python cut off: ${lines[0] ?? block.textContent.slice(0, 40)}`);
            }
    return faults;
}"""


def faults_of(tab: Any, address: str, longest: int) -> list[str]:
    """Opens a page, and returns what is wrong with it at the tab's width."""
    errors: list[str] = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(address, wait_until="domcontentloaded")
    return [*errors, *tab.evaluate(FAULTS, longest)]


def main() -> int:
    """Opens all pages at all sizes."""
    site, out = (Path(folder).resolve() for folder in sys.argv[1:3])
    pages = sorted(page for page in site.rglob("*.html") if "_static" not in page.parts)
    faults = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"),  # None: Playwright's own
            args=["--no-sandbox"],  # containers have no rights to make one
        )
        for name, (width, height) in SIZES.items():
            for scheme in ("light", "dark"):
                tab = browser.new_page(
                    viewport={"width": width, "height": height}, color_scheme=scheme
                )
                for page in pages if scheme == "light" else ():
                    found = faults_of(tab, page.as_uri(), LONGEST * (name != "phone"))
                    faults += [f"{page.relative_to(site)} at {width}: {fault}" for fault in found]
                for page in SHOWN:
                    tab.goto((site / f"{page}.html").as_uri())
                    picture = out / f"{page.replace('/', '-')}-{name}-{scheme}.png"
                    tab.screenshot(path=picture, animations="disabled")
                tab.close()
    print(*faults, f"{len(pages)} pages at {len(SIZES)} widths, {len(faults)} faults", sep="\n")
    return int(not pages or bool(faults))


if __name__ == "__main__":
    sys.exit(main())
