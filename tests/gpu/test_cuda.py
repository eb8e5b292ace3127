"""What is true of GPUs alone; everything else is in tests/conformance."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba._device import cuda_is_initialised
from tests.conformance.kernels import add_up

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parent.parent.parent


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def overwrite(x, total):
    """Writes to a local name of its input, which on a GPU is a copy of the rows."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        rows = x[i:]
        rows[0] = -1.0
        cuda.atomic.add(total, 0, rows[0])


@synk.function(outputs=None)
def where(x):
    """The kind of array a function gets, and the GPU it is on."""
    import cupy

    return type(x).__module__.split(".")[0], cupy.cuda.runtime.getDevice()


@synk.function(outputs="sum")
def square_sum(x):
    assert type(x).__module__.startswith("cupy")
    rows = x[:]
    total = (rows * rows).sum()
    rows *= 0.0  # its own copy of the rows
    return total


@pytest.fixture(scope="module")
def _world():
    with synk.fork(devices=[0, 0, 0]) as world:
        yield world


@pytest.fixture
def world(_world):
    return _world


def run_script(text):
    script = textwrap.dedent(text)
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_the_coordinator_has_no_context_after_fork_and_calls(world):
    x = synk.data(np.ones(1000))
    assert add_up(x) == 1000
    assert square_sum(np.full(10, 2.0)) == 40
    assert not cuda_is_initialised()


def test_counting_gpus_makes_no_context():
    done = run_script("""
        import synknumba as synk
        from synknumba._device import cuda_is_initialised, probe
        assert probe().count > 0
        assert not cuda_is_initialised()
        with synk.fork():
            pass
        assert not cuda_is_initialised()
    """)
    assert done.returncode == 0, done.stderr


def test_cuda_initialised_before_fork():
    done = run_script("""
        import numpy as np
        from numba import cuda
        import synknumba as synk

        held = cuda.to_device(np.ones(3))
        try:
            synk.fork()
        except synk.DeviceError as error:
            assert "CUDA has been initialised" in str(error), error
            assert "after fork()" in str(error), error
        else:
            raise SystemExit("no error")
        with synk.fork(2, device="cpu"):
            total = synk.function(outputs="sum")(lambda x: x.sum())
            assert total(np.arange(5.0)) == 10
        assert held.copy_to_host().sum() == 3
    """)
    assert done.returncode == 0, done.stderr


def test_the_default_is_a_rank_per_gpu():
    done = run_script("""
        import synknumba as synk
        from synknumba._device import probe
        with synk.fork() as world:
            assert world.device == "cuda"
            assert world.world_size == probe().count
            assert world.devices == tuple(range(world.world_size))
    """)
    assert done.returncode == 0, done.stderr


def test_several_ranks_share_a_gpu(world):
    assert world.world_size == 3
    assert world.devices == (0, 0, 0)
    kinds, devices = (list(one) for one in where(np.ones(9)))
    assert kinds == ["cupy"] * 3
    assert devices == [0] * 3
    for n in (1, 2, 3, 4, 1001):
        assert add_up(np.ones(n)) == n


def test_writes_to_undeclared_inputs_do_not_reach_the_host(world):
    x = synk.data(np.arange(30.0))
    assert overwrite(x) == -30
    assert_array_equal(x.data, np.arange(30.0))
    assert add_up(x) == 435  # and the next call loads the rows anew
    assert square_sum(x) == (np.arange(30.0) ** 2).sum()
    assert_array_equal(x.data, np.arange(30.0))


def test_data_that_grow_are_locked_anew(world):
    x = synk.data(np.ones(10))
    for n in (10, 100_000, 10, 3_000_000):
        x.set_value(np.ones(n))
        assert add_up(x) == n


def test_device_memory_goes_with_the_data(world):
    @synk.function(outputs=None)
    def used(flag):
        import cupy

        return cupy.get_default_memory_pool().used_bytes()

    before = used(0)
    for n in range(2_000_000, 2_000_020):
        x = synk.data(np.ones(n))
        assert add_up(x) == n
        del x
    for now, then in zip(used(1), before, strict=True):
        assert now - then < 10_000_000  # one call's rows, not twenty


def test_functions_return_cupy_results_of_any_size(world):
    @synk.function(outputs=("gather", "sum", "mean"))
    def several(x):
        return x * 2, (x * x).sum(0), x.mean(0)

    for n in (3, 50_001, 1_000_003):
        x = np.random.default_rng(0).random(n)
        for num_slices in (1, 3):
            rows, squares, mean = several(x, num_slices=num_slices)
            assert_array_equal(rows, x * 2)
            assert_allclose(squares, (x * x).sum())
            assert_allclose(mean, x.mean())


def test_an_error_of_cuda_is_told(world):
    @synk.parallel(outputs={"total": synk.output("sum", shape=())}, smem_bytes=200_000)
    @cuda.jit
    def greedy(x, total):
        # 48,000 bytes, with those above more than any GPU has
        own = cuda.shared.array(6_000, np.float64)
        own[cuda.threadIdx.x] = 0.0
        if cuda.grid(1) == 0:
            total[0] = own[0]

    with pytest.raises(synk.RankError, match="greedy"):
        greedy(np.ones(3))
    assert add_up(np.ones(5)) == 5


def test_writes_to_frozen_inputs_do_not_stay(world):
    @cuda.jit(device=True)
    def store(x, i):
        x[i] = 0.0

    @synk.parallel(outputs={"total": synk.output("sum", shape=())})
    @cuda.jit
    def consume(x, total):
        i = cuda.grid(1)
        if i < x.shape[0]:
            cuda.atomic.add(total, 0, x[i])
            store(x, i)

    @synk.function(outputs="sum")
    def consume_rows(x):
        total = x.sum()
        x.fill(0)
        return total

    x = synk.data(np.ones(1000))
    x.freeze()
    for _ in range(5):
        assert consume(x) == 1000
        assert consume_rows(x) == 1000
        assert add_up(x) == 1000


def test_memory_that_cannot_be_locked():
    done = run_script("""
        import numpy as np
        from numba import cuda
        import synknumba as synk
        from synknumba._device import cuda_memory

        cuda_memory.LockedMemory._lock = lambda self, *where: False

        @synk.parallel(inout=("y",), outputs={"total": synk.output("sum", shape=()), "rows": synk.output("gather", like="x")})
        @cuda.jit
        def work(x, y, total, rows):
            i = cuda.grid(1)
            if i < x.shape[0]:
                rows[i] = 2 * x[i]
                y[i] += x[i]
                cuda.atomic.add(total, 0, x[i])

        with synk.fork(devices=[0, 0]):
            x, y = synk.data(np.arange(10_000.0)), synk.data(np.zeros(10_000))
            for batch in (slice(None), slice(None, None, 3), list(range(0, 9999, 7))):
                for num_slices in (1, 3):
                    for k in range(4):
                        y.data[:] = k
                        got = work(x, y, batch=batch, num_slices=num_slices)
                        expected = np.arange(10_000.0)[batch]
                        assert got.total == expected.sum()
                        assert np.array_equal(got.rows, 2 * expected)
                        assert np.array_equal(y.data[batch], k + expected)
    """)  # noqa: E501
    assert done.returncode == 0, done.stderr


def test_statistics_tell_the_memory_of_each_gpu(world):
    before = world.statistics().memory
    assert len(before.devices) == len(before.devices_free) == 3
    held = synk.variable(np.ones(1 << 22))
    add_up(synk.data(np.ones(10)))
    after = world.statistics().memory
    assert all(
        now >= then + (1 << 25) for now, then in zip(after.devices, before.devices, strict=True)
    ), "a replica on each"
    assert all(free > 0 for free in after.devices_free)
    assert "GPUs: " in str(world.statistics())
    assert np.array_equal(held.get_value(0)[:2], [1, 1])


def test_a_fault_ends_the_world_and_the_next_one_works():
    done = run_script("""
        import numpy as np
        from numba import cuda
        import synknumba as synk

        @synk.parallel(outputs={"total": synk.output("sum", shape=())})
        @cuda.jit
        def add_up(x, offset, total):
            i = cuda.grid(1)
            if i < x.shape[0]:
                cuda.atomic.add(total, 0, x[i + offset])

        x = synk.data(np.ones(1000))
        for calls_before in (0, 1, 4):  # run one by one, recorded, replayed
            with synk.fork(devices=[0, 0]) as world:
                for _ in range(calls_before):
                    assert add_up(x, 0) == 1000
                try:
                    add_up(x, 2**40)
                except synk.RankDied as error:
                    assert "illegal" in str(error).lower(), error
                    print(error)
                assert world.closed
        with synk.fork(devices=[0]):
            assert add_up(x, 0) == 1000
    """)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr == ""
