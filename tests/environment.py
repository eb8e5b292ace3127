"""Where this checkout is, the environment in which a process finds it, and a program run in
that.
"""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The package that is imported: the wheel's in tests/installed_wheel.py.
PACKAGE = Path(find_spec("synknumba").origin).parent
STORE = os.environ.get("SYNKNUMBA_CACHE_DIR", "")  # of kernels, for this run of the tests


def environment(**more: str) -> dict[str, str]:
    """The environment of this process, in which another one imports the package and the tests of
    this checkout.
    """
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        **more,
    }


def run_program(text: str, script: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program from a file, since a kernel needs its source, with warnings as errors."""
    script.write_text(text, encoding="utf-8")
    command = [sys.executable, "-W", "error", str(script)]
    return subprocess.run(
        command,
        env=environment(),
        cwd=script.parent,  # where it may save files
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def share_own_functions(store: str | Path) -> None:
    """Puts the package's own functions, which take seconds to compile, into a new store of
    kernels, if they are compiled.
    """
    if (compiled := Path(STORE, "package")).is_dir():
        shutil.copytree(
            compiled,
            Path(store, "package"),
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns(".*"),
        )
