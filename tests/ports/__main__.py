"""Installs programs with Numba CUDA kernels from PyPI, and runs their own tests for GPUs on cores:
`make test-ports`.

    python -m tests.ports --env DIR [--write] [stumpy ...]

`--env` is a virtual environment, made where there is none (some 700 MB). Nothing of the programs is
copied or changed: tests come from the installed package, or from its source distribution where the
package has none. The exit status is 1 if a test fails that `THEIRS` does not explain. `--write`
puts the numbers on the page docs/simt-ci.md.
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "simt-ci.md"
OURS = ("numba==0.68.1", "numpy==2.4.6", "pytest", "posix_ipc", "cloudpickle")


@dataclass(frozen=True)
class Port:
    """A program.

    Attributes:
        release: name and version on PyPI.
        tests: paths of the tests below the source distribution, or `package:path` below the
            installed package.
        select: pytest's expression for the tests of kernels.
        needs: further packages that the tests import.
    """

    release: str
    tests: tuple[str, ...]
    select: str = ""
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.release.partition("==")[0]


PORTS = (
    Port("stumpy==1.14.1", ("tests/test_gpu*.py",)),
    # Each of these three simulates 10^10 steps, which is minutes on a GPU.
    Port(
        "disimpy==0.3.0",
        ("disimpy:tests",),
        "not (cylinder_diffusion or sphere_diffusion or mesh_diffusion)",
        ("matplotlib",),
    ),
    Port("xarray-spatial==0.5.3", ("xrspatial:tests",), "gpu or cupy", ("dask", "pandas")),
    Port(
        "fbpic==0.27.1",
        (
            "tests/test_cpu_gpu_deposition.py",
            "tests/test_external_fields.py",
            "tests/test_ionization.py",
            "tests/test_compton.py",
            "tests/test_spin_planewave.py",
        ),
        "",
        ("openpmd-viewer", "pyfftw"),
    ),
)

# Tests that fail on a GPU, too, with the versions of `OURS`: by program, a part of the name, the
# reason.
THEIRS = (
    (
        "xarray-spatial",
        "test_curvature.py::test_numpy_equals_dask_cupy_random_data",
        "`float()` of an array of one element, which NumPy 2.4 and so CuPy refuse",
    ),
)


def prepare(env: Path, ports: tuple[Port, ...]) -> Path:
    """Returns the Python of the environment, which has what the programs need."""
    python = env / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", env], check=True)
    (
        env / "pytest.ini"
        # programs that have no settings of pytest must not find those of a checkout around them
    ).touch()
    needed = [
        *OURS,
        *(port.release for port in ports),
        *(name for port in ports for name in port.needs),
    ]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *needed], check=True)
    return python


def source_of(port: Port, python: Path, env: Path) -> Path:
    """Returns the folder of the source distribution."""
    folder = env / "sources"
    name = port.release.replace("==", "-")
    if not (folder / name).is_dir():
        command = [
            python,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            ":all:",
            "-d",
            folder,
            port.release,
        ]
        subprocess.run(command, check=True)
        with tarfile.open(folder / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return folder / name


def paths_of(port: Port, python: Path, env: Path) -> tuple[Path, list[str]]:
    """Returns the folder in which to run, and the tests."""
    package, _, below = port.tests[0].partition(":")
    if below:
        code = (
            "import importlib.util as u; "
            f"print(u.find_spec({package!r}).submodule_search_locations[0])"
        )
        told = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
        folder = env / "runs" / port.name
        folder.mkdir(parents=True, exist_ok=True)
        return folder, [str(Path(told.stdout.strip(), below))]
    folder = source_of(port, python, env)
    return folder, [
        str(path.relative_to(folder))
        for pattern in port.tests
        for path in sorted(folder.glob(pattern))
    ]


def run(port: Port, python: Path, env: Path) -> tuple[dict[str, int], list[str], float]:
    """Runs the tests; returns how many passed, failed and were skipped, the names of those that
    failed, and the seconds.
    """
    folder, tests = paths_of(port, python, env)
    report = env / "runs" / f"{port.name}.xml"
    report.parent.mkdir(exist_ok=True)
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "ports")))
    plugins = ["-p", "synknumba.simt.pytest", "-p", "tests.ports.plugin", "-p", "no:cacheprovider"]
    options = [
        "-q",
        "-W",
        "ignore",
        f"--junitxml={report}",
        *(["-k", port.select] if port.select else []),
    ]
    began = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": path, "SYNKNUMBA_CACHE_DIR": str(env / "cache")}
    subprocess.run(
        [python, "-m", "pytest", *plugins, *options, *tests],
        cwd=folder,
        env=environment,
        check=False,
    )
    seconds = time.perf_counter() - began
    cases = ElementTree.parse(report).getroot().iter("testcase")
    counts, failed = {"passed": 0, "failed": 0, "skipped": 0}, []
    for case in cases:
        kinds = {child.tag for child in case}
        kind = (
            "failed"
            if kinds & {"failure", "error"}
            else "skipped"
            if "skipped" in kinds
            else "passed"
        )
        counts[kind] += 1
        if kind == "failed":
            failed.append(f"{case.get('classname').rpartition('.')[2]}.py::{case.get('name')}")
    return counts, failed, seconds


def reason_of(port: Port, test: str) -> str | None:
    return next(
        (reason for name, part, reason in THEIRS if name == port.name and part in test), None
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    told = parser.parse_args()
    ports = tuple(port for port in PORTS if not told.names or port.name in told.names)
    env = told.env.resolve()
    python = prepare(env, ports)
    lines, unexplained = (
        ["| program | passed | failed | skipped | s |", "|---|---|---|---|---|"],
        [],
    )
    for port in ports:
        counts, failed, seconds = run(port, python, env)
        lines.append(
            f"| {port.release.replace('==', ' ')} | {' | '.join(map(str, counts.values()))} | "
            f"{seconds:.0f} |"
        )
        unexplained += [f"{port.name}: {test}" for test in failed if reason_of(port, test) is None]
        unexplained += [f"{port.name}: no test passed"] if not counts["passed"] else []
    table = "\n".join(lines)
    print(table, *unexplained, sep="\n")
    if told.write:
        text = re.sub(
            r"(?<=<!-- ports -->\n).*?(?=\n<!-- /ports -->)",
            lambda _: table,
            PAGE.read_text(),
            flags=re.DOTALL,
        )
        PAGE.write_text(text)
    return bool(unexplained)


if __name__ == "__main__":
    sys.exit(main())
