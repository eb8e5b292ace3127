"""Source distributions and wheels hold the whole package, with the kernel library, by each way
to a wheel.
"""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests import lowest
from tests.environment import ROOT, environment

pytest.importorskip(
    "setuptools", minversion="77", reason="setuptools 77 is not installed; it is in the extra dev"
)

LOCAL = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
BUILD = (
    "import sys; from setuptools import build_meta; print(getattr(build_meta, "
    "sys.argv[1])(sys.argv[2]))"
)


def build(what, tree, folder):
    """Builds a "sdist" or "wheel" of a source tree as pip does, without the network."""
    command = [sys.executable, "-c", BUILD, f"build_{what}", str(folder)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / done.stdout.split()[-1]


def modules(folder, name):
    return {f"{name}/{path.relative_to(folder).as_posix()}" for path in Path(folder).rglob("*.py")}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """A source distribution of a copy of this checkout, and the wheels made of the copy and of
    the source distribution.
    """
    folder = tmp_path_factory.mktemp("with ü and spaces")
    tree = shutil.copytree(ROOT, folder / "tree", ignore=LOCAL)
    sdist = build("sdist", tree, folder)
    with tarfile.open(sdist) as archive:
        archive.extractall(
            folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
        )
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    wheels = {}
    for name, source in {"checkout": tree, "sdist": unpacked}.items():
        (folder / name).mkdir()
        wheels[name] = build("wheel", source, folder / name)
    return unpacked, wheels


@pytest.mark.parametrize("source", ["checkout", "sdist"])
def test_wheels_hold_every_module(distributions, source):
    _, wheels = distributions
    with zipfile.ZipFile(wheels[source]) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    kernels = modules(ROOT / "kernels", "synknumba/kernels")
    assert len(kernels) > 5
    examples = modules(ROOT / "examples", "synknumba/_examples")
    assert "synknumba/_examples/new/test_ising.py" in examples
    assert "synknumba/_examples/synkhronos/data.py" in examples
    package = modules(ROOT / "synknumba", "synknumba") - {"synknumba/_examples/__init__.py"}
    others = {"synknumba/py.typed", "synknumba/_examples/README.md"}
    others |= {f"synknumba/sobol_directions.{ending}" for ending in ("npz", "txt")}
    assert held == package | kernels | examples | others


def test_links_of_the_description_lead_somewhere(distributions):
    """An index shows README.md without the files beside it."""
    _, wheels = distributions
    with zipfile.ZipFile(wheels["sdist"]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        text = wheel.read(name).decode()
    assert "\nDescription-Content-Type: text/markdown" in text
    assert "with synk.fork():" in text
    assert re.search(r"\]\((?!https?:)|<img", text) is None


def test_a_wheel_writes_programs_to_start_from(distributions, tmp_path):
    _, wheels = distributions
    with zipfile.ZipFile(wheels["sdist"]) as wheel:
        wheel.extractall(tmp_path / "installed")
    command = [sys.executable, "-m", "synknumba", "new", "pde"]
    env = environment(PYTHONPATH=str(tmp_path / "installed"))
    subprocess.run(command, cwd=tmp_path, env=env, check=True)
    for name in ("pde.py", "test_pde.py"):
        assert (tmp_path / name).read_text() == (ROOT / "examples/new" / name).read_text()


def test_source_distributions_hold_what_tests_need(distributions):
    unpacked, _ = distributions
    for name in (
        "Makefile",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "synknumba/kernels/__init__.py",
        "kernels/reduce.py",
    ):
        assert (unpacked / name).is_file()
    for folder in ("tests", "examples", "docs", "benchmarks"):
        assert modules(unpacked / folder, "") == modules(ROOT / folder, "")
    assert (unpacked / "tests/unit/simt/libdevice_h100.npz").is_file()


def test_every_dependency_has_a_lowest_version():
    pinned = dict(one.split("==") for one in lowest.constraints(["dev"]))
    assert {
        "numba",
        "numpy",
        "posix_ipc",
        "cloudpickle",
        "pytest",
        "scipy",
        "hypothesis",
    } <= pinned.keys()
    assert lowest.lowest("numba>=0.62,<2; python_version > '3'") == "numba==0.62"
    assert lowest.lowest("ruff==0.17.*") is None
    with pytest.raises(ValueError, match="'matplotlib' in pyproject.toml has no lower bound"):
        lowest.lowest("matplotlib")
