"""Runs the examples at small sizes and writes their pages for the gallery: what each is about, its
picture, output and source.

    python -m docs._site.gallery [NAME ...]

An example that fails is an error. What an example printed and drew is kept in `build/gallery`, and
is used until its source, its arguments, the package or a library changes; those that are named are
run in any case.
"""

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from docs._site import tiles

ROOT = Path(__file__).resolve().parents[2]
GALLERY = ROOT / "docs" / "gallery"
EXAMPLES = ROOT / "examples"
PICTURES = ROOT / "docs" / "pictures"
KEPT = ROOT / "build" / "gallery"
STYLE = Path(__file__).with_name("matplotlibrc")
RANKS = 2
LIMIT = 300  # seconds for an example
LIBRARIES = ("numba", "numpy", "matplotlib")  # what outputs depend on beside the package


class Example(NamedTuple):
    """What the gallery says of an example.

    Attributes:
        title: of its card and page.
        arguments: those of a run of seconds on two cores.
        crop: the square of its picture that the card shows: left, top and side, in widths of the
            picture.
    """

    title: str
    arguments: str = ""
    crop: tuple[float, float, float] = (0, 0, 0)


SECTIONS = {
    "Differential equations and linear algebra": {
        "lattice_boltzmann": Example(
            "Flow around a sphere", "--size 40 --steps 2400", (0.27, 0.0, 0.3333)
        ),
        "wave": Example("Waves on a membrane", "--cells 64", (0.06, 0.0345, 0.225)),
        "heat": Example("Heat in a plate", "--cells 96 --steps 1200", (0.07, 0.069, 0.3015)),
        "jacobi": Example("Laplace's equation by Jacobi's method", "--cells 100", (0, 0, 1)),
        "conjugate_gradients": Example(
            "Poisson's equation by conjugate gradients", "--cells 400", (0, 0, 1)
        ),
        "newton_krylov": Example(
            "Bratu's equation by Newton's iterations", "--cells 400", (0, 0, 1)
        ),
        "stokes": Example("A ball that rises in a viscous fluid", "--cells 40", (0, 0, 1)),
        "runge_kutta": Example("Fisher's equation by adaptive steps", "", (0.125, 0, 0.75)),
    },
    "Monte Carlo": {
        "ising_divided": Example(
            "A large Ising lattice, divided",
            "--side 32 --warm-up 200 --measurements 400 --temperatures 1.8 2.2 2.4 3",
            (0.7222, 0.0225, 0.2535),
        ),
        "ising": Example(
            "Many Ising lattices",
            "--side 32 --lattices 16 --warm-up 200 --measurements 40",
            (0.2, 0.038, 0.534),
        ),
        "helium": Example(
            "The helium atom",
            "--samples 20000 --iterations 40 --final 200000",
            (0.111, 0.038, 0.425),
        ),
        "option_pricing": Example(
            "The price of an option", "--paths 300000", (0.131, 0.038, 0.427)
        ),
        "greeks": Example("The Greeks of options", "--paths 1000000"),
        "replica_exchange": Example(
            "Replica exchange", "--levels 6 --ladders 64 --steps 1000", (0.0775, 0.0265, 0.3015)
        ),
    },
    "Training": {
        "lca": Example(
            "Sparse coding of images",
            "--batch 7 --features 72 --files 40 --periods 6",
            (0.0475, 0.091, 0.124),
        ),
        "digits": Example("Handwritten digits", "--epochs 5 --accuracy 0.88", (0.612, 0.036, 0.36)),
        "softmax_regression": Example(
            "Softmax regression", "--decay 0.1 --steps 80", (0.0055, 0.034, 0.1625)
        ),
        "resnet": Example("A ResNet with torch", "--depth 14 --size 32 --batch 4 --steps 3"),
    },
    "First steps": {
        "energy": Example("An expectation value", "--rows 2000000 --repeats 3"),
        "pi": Example("π from random points", "--points 10000000"),
        "histogram": Example("A histogram", "--rows 1000000", (0.111, 0.038, 0.535)),
        "saxpy": Example("Elementwise a·x + y", "--rows 1000000"),
        "intro": Example("A function on all ranks", "--rows 100 101"),
        "variables": Example("Variables and collectives"),
    },
    "Synkhronos's demos": {
        "reductions": Example("Reductions", "--rows 1001"),
        "data": Example("Data in shared memory"),
        "shared_variables": Example("Shared variables", "--rows 101"),
        "batches": Example("Batches of the data", "--rows 1001"),
        "local_batches": Example("Batches of each rank's own rows", "--rows 101"),
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
        "MATPLOTLIBRC": str(STYLE),
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


@cache
def package() -> bytes:
    """Returns a digest of the package's sources, the libraries' versions and the style."""
    digest = hashlib.sha256(" ".join(map(version, LIBRARIES)).encode() + sys.version.encode())
    digest.update(STYLE.read_bytes())
    for folder in ("synknumba", "kernels"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.digest()


def output_of(name: str, arguments: list[str]) -> str:
    """Returns what an example prints, with its picture in the folder of the gallery: as kept, or
    by a run.
    """
    picture, kept = GALLERY / f"{name}.png", KEPT / f"{name}.json"
    source = source_of(name).read_bytes()
    key = hashlib.sha256(package() + source + " ".join(arguments).encode()).hexdigest()
    record = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    if record.get("key") != key:
        began = time.perf_counter()
        record = {"key": key, "printed": run(name, arguments)}
        print(f"{name}.py: {time.perf_counter() - began:.1f} s", flush=True)
        KEPT.mkdir(parents=True, exist_ok=True)
        if picture.exists():
            shutil.copy(picture, KEPT)
        kept.write_text(json.dumps(record), encoding="utf-8")
    elif (KEPT / picture.name).exists() and not picture.exists():
        shutil.copy(KEPT / picture.name, picture)
    return str(record["printed"])


def page_of(name: str, title: str, arguments: str) -> str:
    """Returns the page of an example."""
    file = source_of(name)
    source = file.read_text(encoding="utf-8")
    about, text = docstring_of(source)
    shown = f"{arguments} --device cpu --ranks {RANKS}".split()
    if name == "resnet":
        shown = shown[:-2]
    path = file.relative_to(ROOT)
    parts = [f"# {title}", f"{_as_markdown(about)}: `{path}`.", text]
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
        printed = output_of(name, shown)
        parts += [
            f"## Output\n\n```console\n$ python {path} {' '.join(shown)}\n{printed.rstrip()}\n```"
        ]
    first = ast.parse(source).body[0].end_lineno + 2  # after the docstring, which is above
    parts += [
        f"## Source\n\n```{{literalinclude}} ../../{path}\n:language: python\n:lines: {first}-\n```"
    ]
    return "\n\n".join(parts) + "\n"


def card_picture(name: str, example: Example) -> str:
    """Returns the file that the card of an example shows, from the folder of the gallery: one of
    the pages' pictures, which may move; a part of the picture that it draws; or a tile.
    """
    if (PICTURES / f"{name}.webp").exists():
        return f"../pictures/{name}.webp"
    if (GALLERY / f"{name}.png").exists():
        tiles.crop(GALLERY / f"{name}.png", example.crop, GALLERY / f"{name}-card.png")
        return f"{name}-card.png"
    write(GALLERY / f"{name}-card.svg", tiles.TILES[name]().svg())
    return f"{name}-card.svg"


def index() -> str:
    """Returns the page that shows all examples."""
    parts = [
        "# Gallery",
        "Every example checks its own results, against a closed form, a published number or its "
        "serial twin in NumPy, and runs on GPUs and cores alike. The outputs and pictures are "
        "those of small sizes on two cores, made with this site.",
    ]
    for section, part in SECTIONS.items():
        cards = []
        for name, example in part.items():
            about, _ = docstring_of(source_of(name).read_text(encoding="utf-8"))
            options = f":link: {name}\n:link-type: doc\n:class-card: example"
            picture = f":img-top: {card_picture(name, example)}\n:img-alt: {example.title}"
            cards.append(
                f"::::{{grid-item-card}} {example.title}\n{options}\n{picture}\n\n"
                f"{_as_markdown(about)}\n::::"
            )
        grid = "\n".join([":::::{grid} 2 2 3 4", ":gutter: 3", "", *cards, ":::::"])
        pages = "\n".join(["```{toctree}", ":hidden:", "", *part, "```"])
        parts += [f"## {section}", grid, pages]
    return "\n\n".join(parts) + "\n"


def write(file: Path, text: str) -> None:
    """Writes a file if it changes, so that Sphinx reads only what has changed."""
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")


def main() -> None:
    """Writes the pages of all examples, and the index."""
    GALLERY.mkdir(exist_ok=True)
    named = {name for part in SECTIONS.values() for name in part}
    if differing := named.symmetric_difference(examples()):
        raise SystemExit(f"examples and docs/_site/gallery.py differ: {sorted(differing)}")
    for name in sys.argv[1:]:
        (KEPT / f"{name}.json").unlink(missing_ok=True)
    for part in SECTIONS.values():
        for name, example in part.items():
            write(GALLERY / f"{name}.md", page_of(name, example.title, example.arguments))
    write(GALLERY / "index.md", index())


if __name__ == "__main__":
    main()
