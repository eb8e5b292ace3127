"""Thread pools of numerical libraries have a rank's share of the cores."""

import ctypes
import os
import shutil
import subprocess
import sys

import numpy as np  # loads OpenBLAS
import pytest

import synknumba as synk
from synknumba._host import thread_pools

threadpoolctl = pytest.importorskip("threadpoolctl")


@pytest.fixture(params=["threadpoolctl", "its path"])
def found_by(request, monkeypatch):
    """What finds the libraries."""
    if request.param == "its path":
        monkeypatch.setattr(thread_pools, "_find_pools", find_without_the_package)


def find_without_the_package():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "threadpoolctl", None)
        return FIND()


FIND = thread_pools._find_pools


def threads():
    return sorted(
        {one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"}
    )


@synk.function(outputs=None)
def threads_of_a_rank(x):
    return f"{threads()} {os.environ['OPENBLAS_NUM_THREADS']}"


@pytest.mark.usefixtures("found_by")
def test_ranks_compute_with_one_thread_each():
    with threadpoolctl.threadpool_limits(2), synk.fork(os.cpu_count() or 1, device="cpu") as world:
        assert threads() == [2]
        assert threads_of_a_rank(np.ones(64)) == ["[1] 1"] * world.world_size


@pytest.mark.usefixtures("found_by")
def test_fewer_threads_of_the_script_stay(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    with threadpoolctl.threadpool_limits(1), synk.fork(1, device="cpu"):
        assert threads_of_a_rank(np.ones(64)) == ["[1] 1"]


@synk.function(outputs=None)
def tasks_before_and_after_a_product(x):
    before = len(os.listdir("/proc/self/task"))
    a = np.ones((600, 600))
    assert (a @ a == 600).all()
    return f"{before} {len(os.listdir('/proc/self/task'))}"


def hides_its_numbers():
    """Whether NumPy's OpenBLAS exports its setter alone, as in the wheels of NumPy 2.5.5: its
    threads are then as many as the script's.
    """
    libraries = [
        ctypes.CDLL(pool["filepath"])
        for pool in threadpoolctl.threadpool_info()
        if pool["internal_api"] == "openblas"
    ]
    return not all(hasattr(library, "blas_num_threads") for library in libraries)


@pytest.mark.usefixtures("found_by")
@pytest.mark.parametrize("cores", [2, 4])
def test_openblas_starts_threads_only_to_compute_and_only_its_share(cores, monkeypatch):
    """Its setter starts a thread for each core, on every rank, and they spin for 0.1 s."""
    monkeypatch.setattr("synknumba._world.processes.usable_cores", lambda: cores)
    share = cores // 2
    started = 4 if share > 1 and hides_its_numbers() else share
    with threadpoolctl.threadpool_limits(4), synk.fork(2, device="cpu"):
        assert tasks_before_and_after_a_product(np.ones(2)) == [f"1 {started}"] * 2


def test_the_script_has_its_threads_after_a_fork_that_failed(monkeypatch):
    def refuse(processes, config):
        seen.append(threads())
        raise KeyboardInterrupt

    seen = []
    monkeypatch.setattr("synknumba._world.processes.Processes._fork_one", refuse)
    with threadpoolctl.threadpool_limits(2):
        with pytest.raises(KeyboardInterrupt):
            synk.fork(os.cpu_count() or 1, device="cpu")
        assert threads() == [2]
    assert seen == [[1]]


TEAM = """
int omp_get_num_threads(void);

int team(int size)
{
    int seen = 0;
    #pragma omp parallel num_threads(size)
    #pragma omp single
    seen = omp_get_num_threads();
    return seen;
}
"""


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    """Path of a library with a parallel loop of GNU OpenMP, as torch, scikit-learn and XGBoost
    have.
    """
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc, for GNU OpenMP")
    folder = tmp_path_factory.mktemp("openmp")
    (folder / "team.c").write_text(TEAM)
    subprocess.run(
        [compiler, "-fopenmp", "-shared", "-fPIC", "-o", folder / "team.so", folder / "team.c"],
        check=True,
    )
    return str(folder / "team.so")


@pytest.mark.usefixtures("found_by")
@pytest.mark.parametrize(("can_pause", "on_ranks"), [(True, 4), (False, 1)])
def test_openmp_that_has_worked_before_the_fork(can_pause, on_ranks, team, monkeypatch):
    """Its threads are not on the ranks, which would wait for them for ever."""
    if not can_pause:  # GCC 8 and older
        monkeypatch.setattr(thread_pools, "_has_paused", lambda library: False)

    @synk.function(outputs=None)
    def threads_of_a_loop(x):
        return ctypes.CDLL(team).team(4)

    assert ctypes.CDLL(team).team(4) == 4
    with synk.fork(2, device="cpu", timeout=20):
        assert threads_of_a_loop(np.ones(2)) == [on_ranks] * 2
        assert ctypes.CDLL(team).team(4) == 4
