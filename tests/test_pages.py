"""Every block of Python in the README and in the pages can be pasted alone into a file, and
runs.
"""

import ast
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.environment import ROOT

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
]
NOT_RUN = (
    "_k_tx",  # what the compiler writes
    "init_process_group",  # a program of torch's, for a launcher and GPUs
)
FAILING = {
    "RankDied": "ctypes.CDLL(None).free",
    "CallTimeout": "wait_for_file",
    "BoundsError": "simt.debug(shift)",
}
IMPORTED_BY = {"fastapi": "httpx2"}  # by its client for tests


def blocks():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            if not any(mark in found[1] for mark in NOT_RUN):
                marks = [pytest.mark.mpi] if "mpi4py" in found[1] else []
                yield pytest.param(
                    found[1],
                    id=f"{page.stem}:{text[: found.start()].count(chr(10)) + 2}",
                    marks=marks,
                )


BLOCKS = list(blocks())
# Pages whose programs tests/test_site.py runs, to compare what they print.
OWN_OUTPUT = {"tutorial", *(page.stem for page in (ROOT / "docs" / "howto").glob("*.md"))}
TO_RUN = [block for block in BLOCKS if block.id.partition(":")[0] not in {"errors", *OWN_OUTPUT}]


def missing_packages(block):
    """The packages that a program of another library imports, and that are not installed."""
    imports = [
        node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in imports if isinstance(node, ast.ImportFrom)}
    packages = {name.partition(".")[0] for name in names}
    packages |= {package for name, package in IMPORTED_BY.items() if name in packages}
    return sorted(package for package in packages if find_spec(package) is None)


def test_blocks_were_found():
    assert len(BLOCKS) > 12


def test_every_name_is_defined(tmp_path):
    """In one run of ruff, which takes longer to start than to check them all."""
    files = [tmp_path / f"{block.id.replace(':', '_line_')}.py" for block in BLOCKS]
    for file, block in zip(files, BLOCKS, strict=True):
        file.write_text(block.values[0], encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--quiet",
        "--select",
        "F821",
        *map(str, files),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len({*files}) == len(BLOCKS)


@pytest.mark.whole
@pytest.mark.parametrize("block", TO_RUN)
def test_block_runs(block, tmp_path, run_program):
    if missing := missing_packages(block):
        pytest.skip(f"needs {', '.join(missing)}")
    done = run_program(block.replace("10_000_000", "100_000"), tmp_path / "block.py")
    expected = next((error for error, mark in FAILING.items() if mark in block), None)
    assert (done.returncode != 0) == (expected is not None), done.stdout + done.stderr
    assert expected is None or expected in done.stderr
