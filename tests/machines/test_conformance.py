"""The conformance suite over several machines, unedited: its rows of cores, with their ranks on
all machines of a job.
"""

import re

import pytest

from tests.machines.jobs import Job
from tests.machines.namespaces import Network

pytestmark = pytest.mark.mpi

# A file of tests/conformance, and those of its tests that the quick suite runs over two machines.
FEW, SOME = ("test_rows.py",), "cpu3 and (gathered_rows or op_none or minibatch)"
SECONDS = 900.0


def run(
    machines: int,
    ranks: int,
    files: list[str],
    folder,
    *options: str,
    which: str = "cpu3",
    network: Network | None = None,
    seconds: float = SECONDS,
) -> int:
    """Runs tests in a job; returns how many have passed."""
    paths = [f"tests/conformance/{name}" for name in files]
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", which, *options, *paths]
    job = Job(machines, ranks, arguments, folder, network)
    lines = job.finish(seconds=seconds)
    job.check_nothing_left()
    found = re.search(r"(\d+) passed", lines[-1] if lines else "")
    assert found is not None, job.told
    return int(found[1])


def test_some(tmp_path):
    assert run(2, 1, [*FEW], tmp_path, "--quick", which=SOME) > 10


@pytest.mark.slow  # a quarter of an hour each
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "shape", [(2, 1), (2, 2), (3, 1)], ids=lambda shape: f"{shape[0]}x{shape[1]}"
)
def test_all(shape, tmp_path):
    assert run(*shape, [""], tmp_path, "--quick", which="cpu2 or cpu3", seconds=3000.0) > 900
