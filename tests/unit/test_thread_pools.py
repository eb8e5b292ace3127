"""Thread pools of numerical libraries have a rank's share of the cores."""

import os
import sys

import numpy as np  # loads OpenBLAS
import pytest

import synknumba as synk
from synknumba._host import thread_pools

threadpoolctl = pytest.importorskip("threadpoolctl")


def threads():
    return sorted({one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"})


@synk.function(outputs=None)
def threads_of_a_rank(x):
    return f"{threads()} {os.environ['OPENBLAS_NUM_THREADS']}"


@pytest.mark.parametrize("found_by", ["threadpoolctl", "its path"])
def test_ranks_compute_with_one_thread_each(found_by, monkeypatch):
    if found_by == "its path":
        monkeypatch.setattr("synknumba._world.processes.find_pools", find_without_the_package)
    with threadpoolctl.threadpool_limits(2), synk.fork(os.cpu_count() or 1, device="cpu") as world:
        assert threads() == [2]
        assert threads_of_a_rank(np.ones(64)) == ["[1] 1"] * world.world_size


@pytest.mark.parametrize("found_by", ["threadpoolctl", "its path"])
def test_fewer_threads_of_the_script_stay(found_by, monkeypatch):
    if found_by == "its path":
        monkeypatch.setattr("synknumba._world.processes.find_pools", find_without_the_package)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    with threadpoolctl.threadpool_limits(1), synk.fork(1, device="cpu"):
        assert threads_of_a_rank(np.ones(64)) == ["[1] 1"]


def find_without_the_package():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "threadpoolctl", None)
        FIND()


FIND = thread_pools.find_pools
