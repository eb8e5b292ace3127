"""Kernels for GPUs are compiled once: for all ranks, for every fork, and for every process that
comes later.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parent.parent.parent
RANKS = 4

# A world after another, each of four ranks on one GPU. The ranks are forks of this process, so they
# log what they compile.
SCRIPT = """
import sys
import numpy as np
from numba import cuda, float64
from numba.cuda import dispatcher
import synknumba as synk

log, scale, worlds = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
compile_kernel = dispatcher._Kernel.__init__


def logged(self, function, *args, **options):
    with open(log, "a") as file:
        file.write(function.__name__ + "\\n")
    compile_kernel(self, function, *args, **options)


dispatcher._Kernel.__init__ = logged
TABLE = np.array([1.0, 10.0])


@cuda.jit(device=True)
def scaled(x):
    return x * scale


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")}, block=32, smem_bytes=32 * 8)
@cuda.jit
def weighted(x, total):
    products = cuda.shared.array(0, float64)
    table = cuda.const.array_like(TABLE)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    products[t] = 0.0
    if i < x.shape[0]:
        products[t] = scaled(x[i]) * table[int(x[i]) % 2]
    cuda.syncthreads()
    if t == 0:
        part = 0.0
        for k in range(32):
            part += products[k]
        cuda.atomic.add(total, 0, part)


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit(debug=True, opt=False)
def refusing(x, total):
    i = cuda.grid(1)
    if i < x.shape[0] and x[i] == 3:
        raise ValueError("no threes")


for _ in range(worlds):
    with synk.fork(devices=[0] * 4):
        for _ in range(3):  # the first launch, and replayed ones
            print(float(weighted(np.arange(1000.0))))
        if scale == 0:
            try:
                refusing(np.arange(8.0))
            except synk.SynkError as error:
                print("no threes" in str(error), "tid=[0, 0, 1] ctaid=[0, 0, 0]" in str(error))
"""  # noqa: E501


def expected(scale: float) -> float:
    x = np.arange(1000)
    return float((scale * x * np.array([1.0, 10.0])[x % 2]).sum())


class Runs:
    """Runs the script in processes of their own, with one cache for all."""

    def __init__(self, folder: Path) -> None:
        self._script, self._log = folder / "script.py", folder / "log"
        self.cache = folder / "cache"
        self._script.write_text(SCRIPT)
        self._log.touch()

    def run(self, scale: float, *, worlds: int = 1, **variables: str) -> list[str]:
        """What was compiled anew, all ranks together."""
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {
            **os.environ,
            "SYNKNUMBA_CACHE_DIR": str(self.cache),
            "PYTHONPATH": paths,
            **variables,
        }
        before = len(self.compiled())
        command = [sys.executable, str(self._script), str(self._log), str(scale), str(worlds)]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=110, check=False
        )
        assert done.returncode == 0, done.stderr
        self.printed = done.stdout.splitlines()
        assert [float(line) for line in self.printed if line[0].isdigit()] == [
            expected(scale)
        ] * 3 * worlds
        return self.compiled()[before:]

    def compiled(self) -> list[str]:
        return self._log.read_text().splitlines()

    def kernels(self) -> list[Path]:
        return [
            path
            for path in self.cache.glob("*")
            if path.is_file() and not path.name.startswith(".")
        ]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_once_for_all_ranks_all_forks_and_all_processes(runs: Runs) -> None:
    assert runs.run(2, worlds=2) == ["weighted"]
    assert len(runs.kernels()) == 1
    assert runs.run(2) == []


def test_another_value_of_a_global_makes_another_kernel(runs: Runs) -> None:
    assert runs.run(2) == ["weighted"]
    assert runs.run(3) == ["weighted"]
    assert runs.run(2) == []
    assert len(runs.kernels()) == 2


def test_a_damaged_file_is_replaced(runs: Runs) -> None:
    runs.run(2)
    (path,) = runs.kernels()
    path.write_bytes(path.read_bytes()[:-100])
    assert runs.run(2) == ["weighted"]
    assert runs.run(2) == []


def test_switched_off_every_rank_compiles(runs: Runs) -> None:
    assert runs.run(2, SYNKNUMBA_CACHE="0") == ["weighted"] * RANKS
    assert runs.kernels() == []


def test_a_debugged_kernel_that_was_kept_raises_what_the_compiled_one_does(runs: Runs) -> None:
    for compiled in (["weighted", "refusing"], []):
        assert runs.run(0) == compiled
        assert runs.printed[-1] == "True True"
