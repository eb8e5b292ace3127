"""The notebooks of the documentation run from top to bottom, and a second time in the same kernel,
as by "run all" again.

They are committed without outputs, which hold times, process ids and pictures and would differ at
every run.
"""

import os
import re
from importlib.util import find_spec

import pytest

from tests.environment import ROOT, environment

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed; nbclient brings it")
nbclient = pytest.importorskip(
    "nbclient", reason="nbclient is not installed; it is in the extra dev"
)
for needed in ("ipykernel", "matplotlib", "sklearn", "safetensors"):
    if find_spec(needed) is None:  # only the notebooks import it
        pytest.skip(f"{needed} is not installed; it is in the extra dev", allow_module_level=True)

BOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PICTURES = re.compile(r"synk\.plot\.|plt\.subplots")


def test_notebooks_were_found():
    assert {path.stem for path in BOOKS} >= {"tutorial", "monte-carlo", "digits"}


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_notebooks_are_clean(path):
    book = nbformat.read(path, 4)
    nbformat.validate(book)
    assert book.metadata.kernelspec.name == "python3"
    assert book.cells[0].source.startswith("# ")
    for cell in book.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)
        else:
            links = re.findall(r"\]\(([^)#]+)", cell.source)
            assert [
                link for link in links if "://" not in link and not (path.parent / link).exists()
            ] == []


@pytest.mark.whole
@pytest.mark.timeout(300)  # the kernels of each notebook are compiled for an empty store
@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_notebooks_run_again_and_again(path, tmp_path):
    book = nbformat.read(path, 4)
    client = nbclient.NotebookClient(
        book, timeout=60, resources={"metadata": {"path": str(tmp_path)}}
    )
    # Under pytest a kernel does not read its descriptors; see faults/test_notebooks.py.
    variables = {
        name: value for name, value in environment().items() if name != "PYTEST_CURRENT_TEST"
    }
    with client.setup_kernel(env=variables):
        for _ in range(2):
            for number, cell in enumerate(book.cells):
                client.execute_cell(cell, number)
                if cell.cell_type == "code":
                    kinds = {kind for output in cell.outputs for kind in output.get("data", {})}
                    assert ("image/png" in kinds) == bool(PICTURES.search(cell.source)), cell.source
                    assert not [
                        output for output in cell.outputs if output.get("name") == "stderr"
                    ], cell.outputs
                    assert "text/html" in kinds or cell.source.splitlines()[-1] not in {
                        "world",
                        "x",
                        "plan",
                        "estimate",
                    }
    assert not os.listdir(tmp_path)
