"""Runs the examples at small sizes and writes their pages for the gallery: what each is about, its
picture, output and source.

    python docs/_site/gallery.py [NAME ...]

An example that fails is an error. One whose page is newer than its source and this file is not run
again.
"""

import ast
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GALLERY = ROOT / "docs" / "gallery"
EXAMPLES = ROOT / "examples"
RANKS = 2
LIMIT = 300  # seconds for an example

# The arguments of each example, for seconds on two cores; the sections in which the gallery shows
# them.
SECTIONS = {
    "First steps": {
        "energy": "--rows 2000000 --repeats 3",
        "intro": "--rows 100 101",
        "pi": "--points 10000000",
        "saxpy": "--rows 1000000",
        "variables": "",
        "histogram": "--rows 1000000",
    },
    "Monte Carlo": {
        "option_pricing": "--paths 300000",
        "ising": "--side 32 --lattices 16 --warm-up 200 --measurements 40",
        "ising_divided": "--side 32 --warm-up 200 --measurements 400 --temperatures 1.8 2.2 2.4 3",
        "helium": "--samples 20000 --iterations 40 --final 200000",
        "replica_exchange": "--levels 6 --ladders 64 --steps 1000",
    },
    "Differential equations and linear algebra": {
        "heat": "--cells 96 --steps 1200",
        "wave": "--cells 64",
        "conjugate_gradients": "--cells 64",
    },
    "Training": {
        "digits": "--epochs 5 --accuracy 0.88",
        "softmax_regression": "--decay 0.1 --steps 80",
        "lca": "--batch 7 --features 72 --files 40 --periods 6",
        "resnet": "--depth 14 --size 32 --batch 4 --steps 3",
    },
    "Synkhronos's demos": {
        "reductions": "--rows 1001",
        "data": "",
        "shared_variables": "--rows 101",
        "batches": "--rows 1001",
        "local_batches": "--rows 101",
    },
}
NEEDS = {"resnet": "torch"}  # packages that the extra for the documentation does not have


def source_of(name: str) -> Path:
    """Returns the file of an example."""
    file = EXAMPLES / f"{name}.py"
    return file if file.exists() else EXAMPLES / "synkhronos" / f"{name}.py"


def examples() -> list[str]:
    """Returns the names of all examples; the programs of `synknumba new` are none."""
    files = [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("synkhronos/*.py")]
    return sorted(path.stem for path in files)


def docstring_of(source: str) -> tuple[str, str]:
    """Returns the first line of a module's docstring, without its stop, and the rest as
    Markdown.
    """
    text = ast.get_docstring(ast.parse(source)) or ""
    title, _, rest = text.partition("\n\n")
    blocks = []
    for block in re.split(r"\n\s*\n", rest):
        indented = all(line.startswith("    ") for line in block.splitlines())
        blocks.append(
            f"```text\n{re.sub('^    ', '', block, flags=re.MULTILINE)}\n```"
            if indented
            else _as_markdown(block)
        )
    return " ".join(title.split()).removesuffix("."), "\n\n".join(blocks)


def _as_markdown(text: str) -> str:
    """Escapes what Markdown would read as markup, outside backticks."""
    parts = re.split(r"(`[^`]+`)", text)
    parts[::2] = [re.sub(r"([\\*_<\[\]|$])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def run(name: str, arguments: list[str]) -> str:
    """Runs an example in the folder of the gallery and returns what it prints."""
    command = [sys.executable, str(source_of(name)), *arguments]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        cwd=GALLERY,
    )
    if done.returncode != 0:
        raise SystemExit(f"{name} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def page_of(name: str, arguments: str) -> str:
    """Returns the page of an example, which it runs."""
    file = source_of(name)
    source = file.read_text(encoding="utf-8")
    title, text = docstring_of(source)
    shown = f"{arguments} --device cpu --ranks {RANKS}".split()
    if name == "resnet":
        shown = shown[:-2]
    path = file.relative_to(ROOT)
    parts = [f"# {file.name}", f"{_as_markdown(title)}.", text]
    if find_spec(NEEDS.get(name, "sys")) is None:
        parts += [
            (
                f"## Output\n\nNot run for this page, as it needs {NEEDS[name]}, which "
                f"`make docs` does not install."
            )
        ]
    else:
        if '"--picture"' in source:
            shown += ["--picture", f"{name}.png"]
            parts.insert(2, f"![The picture that {file.name} draws]({name}.png)")
        printed = run(name, shown)
        parts += [
            f"## Output\n\n```console\n$ python {path} {' '.join(shown)}\n{printed.rstrip()}\n```"
        ]
    first = ast.parse(source).body[0].end_lineno + 2  # after the docstring, which is above
    parts += [
        f"## Source\n\n```{{literalinclude}} ../../{path}\n:language: python\n:lines: {first}-\n```"
    ]
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """Returns the page that shows all examples."""
    parts = [
        "# Gallery",
        "Every example checks its own results, against a closed form, a published number or its "
        "serial twin in NumPy, and runs on GPUs and cores alike. The outputs and pictures are "
        "those of small sizes on two cores, made with this site.",
    ]
    for section, names in SECTIONS.items():
        cards = []
        for name in names:
            title, _ = docstring_of(source_of(name).read_text(encoding="utf-8"))
            picture = f":img-top: {name}.png\n" if (GALLERY / f"{name}.png").exists() else ""
            options = f":link: {name}\n:link-type: doc\n:class-card: example\n{picture}"
            cards.append(
                f"::::{{grid-item-card}} {name}.py\n{options}\n{_as_markdown(title)}\n::::"
            )
        grid = "\n".join([":::::{grid} 1 2 2 3", ":gutter: 3", "", *cards, ":::::"])
        pages = "\n".join(
            ["```{toctree}", ":hidden:", "", *(f"{name}.py <{name}>" for name in names), "```"]
        )
        parts += [f"## {section}", grid, pages]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Writes the pages of the examples that are named, or of those that have changed, and the
    index.
    """
    asked = sys.argv[1:]
    GALLERY.mkdir(exist_ok=True)
    named = {name for names in SECTIONS.values() for name in names}
    if differing := named.symmetric_difference(examples()):
        raise SystemExit(f"examples and docs/_site/gallery.py differ: {sorted(differing)}")
    for names in SECTIONS.values():
        for name, arguments in names.items():
            page = GALLERY / f"{name}.md"
            newest = max(source_of(name).stat().st_mtime, Path(__file__).stat().st_mtime)
            if name in asked or (
                not asked and not (page.exists() and page.stat().st_mtime > newest)
            ):
                began = time.perf_counter()
                page.write_text(page_of(name, arguments), encoding="utf-8")
                print(f"{name}.py: {time.perf_counter() - began:.1f} s", flush=True)
    (GALLERY / "index.md").write_text(index(), encoding="utf-8")


if __name__ == "__main__":
    main()
