"""The page on the architecture names what is there: each package once, files that exist, the
layers of the contract.
"""

import ast
import gc
import math
import re
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from tests import entered, quick

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "synknumba"
PAGES = ("docs/architecture.md", "CONTRIBUTING.md")
PAGE = (ROOT / "docs/architecture.md").read_text()


def test_each_package_is_named_once():
    named = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {
        "kernels",
        "_examples",
    }
    assert len(packages) > 10
    assert sorted(named) == sorted(packages)
    inside = {path.parent.name for path in PACKAGE.glob("simt/*/__init__.py")}
    assert inside <= set(re.findall(r"`(_\w+)`", PAGE))


def test_layers_are_those_of_the_contract():
    (layers,) = (
        contract["layers"]
        for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
            "importlinter"
        ]["contracts"]
        if contract["name"] == "layers"
    )
    there = [
        " | ".join(name for name in line.split(" | ") if not name.startswith("("))
        for line in layers
    ]
    assert "\n".join(line for line in there if line) in PAGE


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page):
    text = (ROOT / page).read_text()
    named = {name.strip("`") for name in re.findall(r"`[\w/]+\.py`|(?<=\()[\w/.]+\.py(?=\))", text)}
    assert len(named) > 10
    tests = {path.name for path in (ROOT / "tests").rglob("*.py")} | {
        path.name for path in PACKAGE.rglob("*.py")
    }
    places = (ROOT, PACKAGE, PACKAGE / "_device", PACKAGE / "_comm", ROOT / "benchmarks")
    named = {name for name in named if not re.search("NAME|FAMILY", name)}  # of files to be made
    assert [
        name
        for name in named
        if name not in tests and not any((place / name).exists() for place in places)
    ] == []


def test_names_that_are_said_exist():
    folders = ("synknumba", "kernels", "tests", "benchmarks")
    files = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if path != Path(__file__)
    ]
    known = set(
        re.findall(
            r"\w+",
            "\n".join(
                path.read_text() for path in [*files, ROOT / "pyproject.toml", ROOT / "Makefile"]
            ),
        )
    )
    said = {
        name.rpartition(".")[2]
        for page in PAGES
        for name in re.findall(r"`([A-Za-z_][\w.]+)`", (ROOT / page).read_text())
    }
    assert len(said) > 60
    assert {name for name in said if "NAME" not in name} <= known


def energy(x, beta, total):
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        acc += math.exp(-beta * x[i] * x[i])
    cuda.atomic.add(total, 0, acc)


def test_a_first_call_passes_few_files():
    """Of the package, in the coordinator, for a kernel that the store has: who follows a call
    opens as many.
    """
    files: list[str] = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(str(ROOT / "synknumba")):
            files.append(frame.f_code.co_filename)

    known, new = (
        synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})(energy)
        for _ in range(2)
    )
    x = np.arange(100.0)
    with synk.fork(1, device="cpu"):
        data = synk.data(x)
        gc.collect()  # what other tests left is dropped on the ranks by the first call
        known(data, 0.5)
        before = sys.getprofile()
        gc.disable()  # whose finalisers would be entered
        sys.setprofile(note)
        try:
            found = new(data, 0.5)
        finally:
            sys.setprofile(before)
            gc.enable()
    assert found == pytest.approx(np.exp(-0.5 * x * x).sum())
    assert 20 < len(set(files)) <= 36, sorted(set(files))
    assert sum(a != b for a, b in pairwise(files)) <= 400


def test_the_table_of_tests_names_what_exists():
    table = entered.README.read_text().partition(entered.START)[2]
    features = [feature for feature, _, _ in entered.FEATURES]
    assert re.findall(r"^\| ([^|]+) \| `", table, re.MULTILINE) == features
    for cell in re.findall(r"`([\w/.]+)`", table):
        assert (entered.PACKAGE / cell).exists() or (ROOT / "tests" / cell).exists(), cell
    for _, page, _ in entered.FEATURES:
        assert (ROOT / "docs" / page).exists()


def test_what_the_quick_suite_leaves_out_is_there():
    """A test that is renamed is in the quick suite again, and nobody would know."""
    for name in sorted(quick.LEFT_OUT):
        path, *_, function = name.split("::")
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), name


def test_each_package_says_where_to_begin():
    for init in PACKAGE.rglob("_*/__init__.py"):
        text = " ".join(ast.get_docstring(ast.parse(init.read_text())).split())
        assert re.search("[Ii]mports ", text), init
        assert re.search(r"Read (first: )?`\w+\.py`", text), init
