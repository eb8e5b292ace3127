"""Machines with GPUs: agents of one host, which share out its GPUs, or have got one each of the
launcher.
"""

import pytest

from tests.machines.jobs import start
from tests.machines.test_conformance import run

pytestmark = [pytest.mark.mpi, pytest.mark.gpu, pytest.mark.multi_gpu, pytest.mark.whole]


def test_two_machines_with_a_gpu_each(tmp_path):
    """Different GPUs, rows there and back, sums of both by NCCL, and a failure of one."""
    job = start(
        2,
        1,
        """
        from numba import cuda

        @synk.function(outputs="gather")
        def bus(x):
            import cupy
            return np.array([cupy.cuda.Device().pci_bus_id])

        @synk.parallel(inout=("y",))
        @cuda.jit
        def scale(x, y, factor):
            i = cuda.grid(1)
            if i < x.size:
                y[i] = factor * x[i]

        @synk.function(outputs=None)
        def fail(x, rank):
            if rank == 1:
                raise ValueError("no")

        with synk.fork(device="cuda") as world:
            say("GPUs", len({*bus(ROWS).tolist()}))
            x, y = synk.data(np.arange(1_000_003.0)), synk.data(np.zeros(1_000_003))
            for factor in (2.0, 3.0):
                scale(x, y, factor)
                np.testing.assert_array_equal(y.data, factor * x.data)
            v = synk.variable(np.arange(5_000_000.0))
            synk.all_reduce(v, "sum")
            np.testing.assert_array_equal(v.get_value(), 2.0 * np.arange(5_000_000.0))
            for _ in range(2):
                try:
                    fail(x, synk.RANK)
                except synk.RankError as error:
                    assert [one.rank for one in error.failures] == [1]
            scale(x, y, 5.0)
            np.testing.assert_array_equal(y.data, 5.0 * x.data)
            say("transport", world.transport)
        """,
        tmp_path,
    )
    assert job.finish() == ["GPUs 2", "transport nccl"]
    job.check_nothing_left()


@pytest.mark.parametrize(
    "file", ["test_rows.py", "test_kernels.py", "test_sequences.py", "collectives", "variables"]
)
def test_conformance(file, tmp_path):
    assert run(2, 1, [file], tmp_path, "--quick", which="cuda2 and not host") > 5
