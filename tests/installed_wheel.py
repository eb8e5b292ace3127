"""Installs the wheel of a folder into a new environment, and runs there what a user runs first, and
the quick suite.

python tests/installed_wheel.py dist                          what `make dist` does after the build
python tests/installed_wheel.py dist tests/unit/test_data.py  with these tests in place of all

The checkout is on no path: programs, tests and documentation are those of the source distribution
beside the wheel, without the package.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

# These read or build the package's source, of which the wheel's is a copy
# (tests/test_distribution.py), or follow links of pages into it.
LEFT_OUT = (
    "--ignore=tests/test_architecture.py",
    "--ignore=tests/test_distribution.py",
    "--ignore=tests/test_release.py",
    "--deselect=tests/test_site.py::test_links_lead_somewhere",
)
# The source distribution's own package, and what would describe it as installed.
NOT_UNPACKED = ("synknumba", "synknumba.egg-info", "setup.cfg")


class NewEnvironment:
    """A virtual environment in a folder, and programs that run in it from there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bin = folder / "environment" / "bin"
        subprocess.run([sys.executable, "-m", "venv", self._bin.parent], check=True)

    def install(self, *requirements: str) -> None:
        self.run("python", "-m", "pip", "install", "--quiet", *requirements)

    def run(self, program: str, *arguments: str, folder: str = ".") -> None:
        print("$", program, *arguments, flush=True)
        subprocess.run([self._bin / program, *arguments], **self._where(folder), check=True)

    def output(self, program: str, *arguments: str) -> str:
        command = [self._bin / program, *arguments]
        return subprocess.run(
            command, **self._where("."), check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def _where(self, folder: str) -> dict[str, object]:
        own = {
            "PATH": os.pathsep.join([str(self._bin), os.environ["PATH"]]),
            "SYNKNUMBA_CACHE_DIR": str(self._folder / "cache"),
        }
        variables = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
        return {"cwd": self._folder / folder, "env": variables | own}


def unpack(sdist: Path, folder: Path) -> str:
    """Unpacks a source distribution without the package, and returns the folder's name in
    `folder`.
    """
    name = sdist.name.removesuffix(".tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    for part in NOT_UNPACKED:
        path = folder / name / part
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return name


def main_program(readme: str) -> tuple[str, str]:
    """Returns the README's first program with `print`, and what it says it prints."""
    for program in re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL):
        if printed := re.search(r"print\(.*# +(\S+)$", program, re.MULTILINE):
            return program, printed[1]
    raise ValueError("README.md has no program that says what it prints")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dist", type=Path, help="folder of one wheel and one source distribution")
    parser.add_argument("tests", nargs="*", default=["tests"], help="files or folders of tests")
    asked = parser.parse_args()
    (wheel,) = asked.dist.resolve().glob("*.whl")
    (sdist,) = asked.dist.resolve().glob("*.tar.gz")

    with tempfile.TemporaryDirectory(prefix="synknumba-wheel-") as temporary:
        folder = Path(temporary)
        environment = NewEnvironment(folder)
        environment.install(str(wheel))
        source = unpack(sdist, folder)

        version = environment.output("synknumba", "--version").split()[-1]
        assert wheel.name.startswith(f"synknumba-{version}-"), (wheel.name, version)
        where = environment.output("python", "-c", "import synknumba; print(synknumba.__file__)")
        assert Path(where).is_relative_to(folder / "environment"), where
        environment.run("synknumba", "doctor")
        program, printed = main_program((folder / source / "README.md").read_text("utf-8"))
        (folder / "main.py").write_text(program, "utf-8")
        output = environment.output("python", "-W", "error", "main.py")
        assert output.split() == [printed], (output, printed)
        print("README's main program:", output, flush=True)

        # As pages say it: pip takes the package that is installed, and adds the extra's packages.
        environment.install("synknumba[progress]")
        environment.run("python", "-c", "import tqdm")
        environment.install(f"{wheel}[dev]")
        options = ["-q", "--quick", "-n", "auto", "--maxprocesses=5"]
        environment.run("python", "-m", "pytest", *options, *LEFT_OUT, *asked.tests, folder=source)


if __name__ == "__main__":
    main()
