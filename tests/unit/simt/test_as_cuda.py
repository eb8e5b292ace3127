"""Programs written for `numba.cuda`, on a machine without a GPU: `simt.as_cuda`, the plugin of
pytest, SYNKNUMBA_SIMT.
"""

import asyncio
import ctypes
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numba
import numpy as np
import pytest
from numba import cuda
from numba.core.errors import TypingError
from numba.cuda.random import (
    create_xoroshiro128p_states,
    init_xoroshiro128p_states_cpu,
    xoroshiro128p_dtype,
    xoroshiro128p_uniform_float32,
)

import synknumba as synk
from synknumba import ArgumentError, DeviceError, KernelError, LaunchError, simt
from synknumba.simt._standins import replace
from synknumba.simt._standins.replace import of_environment

ROOT = Path(__file__).resolve().parents[3]


@cuda.jit  # the real one: no GPU is asked for until the launch
def increment(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += 1


@cuda.jit
def misspelt(x):
    x[0] = undefined  # noqa: F821


@cuda.jit
def absent(x):
    x[0] = x.colour


@cuda.jit
def reversed_without_a_barrier(x):
    t = cuda.shared.array(64, np.float64)
    i = cuda.threadIdx.x
    t[i] = x[i]
    x[i] = t[63 - i]


@cuda.jit
def draw(states, out):
    i = cuda.grid(1)
    out[i] = xoroshiro128p_uniform_float32(states, i)


@pytest.fixture
def as_cuda():
    with simt.as_cuda():
        yield


@pytest.mark.usefixtures("as_cuda")
class TestDeviceArrays:
    def test_a_copy_is_needed_in_both_directions(self):
        x = np.zeros(100)
        d = cuda.to_device(x)
        increment[1, 128](d)
        assert not x.any()
        assert d.copy_to_host().tolist() == [1.0] * 100
        x[:] = 7
        assert d.copy_to_host(np.empty(100))[0] == 1
        d.copy_to_device(x)
        increment.forall(100)(d)
        assert d[99] == 8

    def test_host_arrays_are_copied_back_by_the_launch(self):
        x = np.zeros(100)
        increment[1, 128](x)
        assert x.tolist() == [1.0] * 100

    def test_new_memory_holds_no_zeros(self):
        for made in (
            cuda.device_array((3, 2)),
            cuda.device_array_like(np.zeros(4, np.float32)),
            cuda.pinned_array(5),
        ):
            assert np.isnan(made.copy_to_host() if hasattr(made, "copy_to_host") else made).all()
        assert (cuda.device_array(3, np.int32).copy_to_host() == -1).all()

    def test_they_are_no_numpy_arrays(self):
        d = cuda.to_device(np.arange(4.0))
        assert not isinstance(d, np.ndarray)
        assert cuda.is_cuda_array(d)
        with pytest.raises(TypeError):
            d + 1
        with pytest.raises(AttributeError):
            d.sum()
        with pytest.raises(TypeError, match="integers and slices"):
            d[[0, 1]]

    @pytest.mark.parametrize("order", ["C", "F"])
    def test_layout(self, order):
        x = np.array(np.arange(12).reshape(3, 4), order=order)
        d = cuda.to_device(x)
        assert (d.shape, d.strides, d.dtype, d.size, d.ndim, d.nbytes) == (
            x.shape,
            x.strides,
            x.dtype,
            12,
            2,
            96,
        )
        assert d.is_f_contiguous() == (order == "F")
        host = d.copy_to_host()
        assert host.strides == x.strides
        host[:] = -1
        np.testing.assert_array_equal(d.copy_to_host(), x)
        assert cuda.device_array_like(d).strides == x.strides

    def test_views(self):
        x = np.arange(12.0)
        d = cuda.to_device(x).reshape(3, 4)
        np.testing.assert_array_equal(d[1].copy_to_host(), x[4:8])
        np.testing.assert_array_equal(d.T.copy_to_host(), x.reshape(3, 4).T)
        assert [part.size for part in d.ravel().split(5)] == [5, 5, 2]
        d[2] = np.zeros(4)
        d[0, :2] = 9
        increment[1, 32](d[1])
        assert d.copy_to_host().tolist() == [[9, 9, 2, 3], [5, 6, 7, 8], [0, 0, 0, 0]]
        with pytest.raises(NotImplementedError, match="reshape would require copy"):
            d[:, 1:3].reshape(6)

    @pytest.mark.parametrize(
        ("given", "error", "text"),
        [
            (np.zeros(4, np.float32), TypeError, "incompatible dtype: float64 vs. float32"),
            (np.zeros(5), ValueError, "incompatible shape"),
            (np.zeros(8)[::2], ValueError, "incompatible strides"),
        ],
    )
    def test_what_cannot_be_copied(self, given, error, text):
        with pytest.raises(error, match=text):
            cuda.to_device(np.zeros(4)).copy_to_host(given)

    def test_a_transfer_is_one_region_of_memory(self):
        with pytest.raises(ValueError, match="non-contiguous"):
            cuda.to_device(np.zeros((4, 4))[:, ::2])

    @pytest.mark.parametrize("shape", [0, (0, 3), (3, 0), (2, 0, 3)])
    def test_empty_arrays(self, shape):
        x = np.zeros(shape)
        for given in (x, np.asfortranarray(x), x[::2], x.T):
            d = cuda.to_device(given)
            increment.forall(d.size)(d.reshape(-1))
            d.copy_to_device(given)
            assert (
                d.copy_to_host().shape == d.copy_to_host(np.empty_like(given)).shape == given.shape
            )
            assert cuda.device_array_like(d).nbytes == d.alloc_size == 0

    @pytest.mark.parametrize("dtype", [object, [("a", "f8"), ("b", object)], "T"])
    def test_python_objects_are_refused(self, dtype):
        makers = (cuda.device_array, cuda.mapped_array, cuda.managed_array, cuda.pinned_array)
        for make in (*makers, lambda shape, dtype: cuda.to_device(np.empty(shape, dtype))):
            with pytest.raises(ArgumentError, match="no Python objects"):
                make(1, np.dtype(dtype))
        d = cuda.to_device(np.zeros(1))
        for copy in (d.copy_to_host, d.copy_to_device):
            with pytest.raises(TypeError, match="incompatible dtype"):
                copy(np.empty(1, dtype))

    def test_a_negative_size(self):
        for make in (cuda.device_array, cuda.pinned_array, cuda.mapped_array):
            for shape in (-1, (2, -3), (-2, -2)):
                with pytest.raises(ValueError, match="negative dimensions"):
                    make(shape)

    def test_memory_that_both_see(self):
        for made in (cuda.mapped_array(4), cuda.managed_array(4)):
            made[:] = 1
            increment[1, 32](made)
            assert made.tolist() == [2.0] * 4
        x = np.zeros(4)
        with cuda.mapped(x) as d, cuda.pinned(x):
            increment[1, 32](d)
        assert x.tolist() == [1.0] * 4

    def test_arrays_in_a_tuple(self):
        @cuda.jit
        def swap(pair):
            i = cuda.grid(1)
            pair[0][i], pair[1][i] = pair[1][i], pair[0][i]

        pair = cuda.to_device(np.zeros(4)), cuda.to_device(np.ones(4))
        swap[1, 4](pair)
        assert [part.copy_to_host().sum() for part in pair] == [4, 0]

    def test_objects_that_pass_on_the_interface_of_an_array(self):
        class Image:
            def __init__(self, pixels):
                self.pixels = pixels

            @property
            def __cuda_array_interface__(self):
                return self.pixels.__cuda_array_interface__

        image = Image(cuda.to_device(np.zeros(4)))
        increment[1, 32](image)
        cuda.as_cuda_array(image)[0] = 7
        assert image.pixels.copy_to_host().tolist() == [7, 1, 1, 1]
        with pytest.raises(DeviceError, match=r"shape \(4,\) .* is not of cuda\.to_device"):
            cuda.from_cuda_array_interface(dict(image.__cuda_array_interface__))

    def test_what_device_arrays_do_not_have(self):
        d = cuda.to_device(np.zeros(4))
        with pytest.raises(TypeError, match=r"not an ndarray; .* copy_to_host\(\)\[\.\.\.\]"):
            d[np.array([0, 1])]
        with pytest.raises(
            AttributeError, match=r"no attribute 'sum'; compute in a kernel, or on the host"
        ):
            d.sum()
        with pytest.raises(AttributeError, match=r"no attribute 'colour'$"):
            d.colour  # noqa: B018

    def test_records_and_transfers_of_an_argument(self):
        x = np.zeros(3, [("a", "f4"), ("b", "i8")])
        assert cuda.to_device(x).copy_to_host().dtype == x.dtype
        y = np.zeros(4)
        increment[1, 32](cuda.In(y))
        assert not y.any()
        increment[1, 32](cuda.InOut(y))
        assert y.all()


@pytest.mark.usefixtures("as_cuda")
class TestDevice:
    def test_what_a_program_asks_before_it_starts(self):
        assert cuda.is_available()
        assert len(cuda.gpus) == len(cuda.list_devices()) == 1
        assert cuda.select_device(0) is cuda.get_current_device()
        assert cuda.get_current_device().MAX_THREADS_PER_BLOCK == 1024
        assert cuda.current_context().get_memory_info().free > 0
        with cuda.gpus[0], cuda.defer_cleanup():
            cuda.synchronize()
        with pytest.raises(DeviceError, match="no device 1"):
            cuda.select_device(1)
        device, context = cuda.get_current_device(), cuda.current_context()
        assert device.CLOCK_RATE > 0
        assert (device.TOTAL_CONSTANT_MEMORY, device.COMPUTE_CAPABILITY_MAJOR) == (
            65536,
            device.compute_capability[0],
        )
        assert context.get_active_blocks_per_multiprocessor(None, 256, 0) == 8
        assert context.get_active_blocks_per_multiprocessor(None, 32, 100 << 10) == 2
        assert context.get_max_potential_block_size(None, 0, 0, 0) == (2, 1024)
        assert cuda.runtime.get_version() >= (12, 0)
        for owner, name in ((device, "MAX_TEXTURE_1D_WIDTH"), (context, "memalloc")):
            assert not hasattr(owner, name)
            with pytest.raises(DeviceError, match=f"has no {name}"):
                getattr(owner, name)

    def test_several_devices(self):
        d = cuda.to_device(np.zeros(4))
        # of blocks that overlap the largest number
        with (
            simt.as_cuda(devices=3),
            simt.as_cuda(devices=2),
        ):
            assert [gpu.id for gpu in cuda.gpus] == [0, 1, 2]
            assert len({gpu.uuid for gpu in cuda.list_devices()}) == 3
            assert cuda.get_current_device().id == 0
            with cuda.gpus[1]:
                increment[1, 32](d)
                with cuda.gpus[2]:
                    assert cuda.gpus.current.id == cuda.current_context().device.id == 2
                assert cuda.get_current_device() is cuda.gpus[1]
                context = cuda.current_context()
                assert context.can_access_peer(0)
                context.enable_peer_access(cuda.gpus[0].get_primary_context())
            assert cuda.get_current_device().id == 0
            assert cuda.select_device(1) is cuda.gpus[1] is cuda.get_current_device()
            with ThreadPoolExecutor(1) as thread:
                assert thread.submit(lambda: cuda.get_current_device().id).result() == 0
                assert thread.submit(lambda: cuda.select_device(2).id).result() == 2
            assert cuda.current_context().device.id == 1
            cuda.close()
            assert cuda.get_current_device().id == 0
            with pytest.raises(DeviceError, match="no device 3: .* devices 0 to 2; simt.as_cuda"):
                cuda.select_device(3)
        assert d.copy_to_host().all()
        with (
            pytest.raises(ArgumentError, match="devices=1 or more, .* got 0"),
            simt.as_cuda(devices=0),
        ):
            pass

    def test_a_missing_device_names_the_setting(self):
        with simt.as_cuda(), pytest.raises(IndexError, match=r"no device 7: .*as_cuda\(devices="):
            _ = cuda.gpus[7]

    def test_memory(self):
        d = cuda.to_device(np.arange(4.0))
        assert ctypes.cast(d.device_ctypes_pointer, ctypes.POINTER(ctypes.c_double))[3] == 3
        assert d.gpu_data.device_pointer_value == d.__cuda_array_interface__["data"][0]
        assert d.gpu_data.size == 32
        d.gpu_data.memset(0, 16)
        assert d.copy_to_host().tolist() == [0, 0, 2, 3]
        assert cuda.to_device(np.zeros(0)).device_ctypes_pointer.value is None
        mapped = cuda.mapped_array(4)
        assert mapped.device_ctypes_pointer.value == mapped.ctypes.data

    def test_a_stream_is_awaited(self):
        async def program(stream):
            increment[1, 32, stream](cuda.to_device(np.zeros(4)))
            return await stream.async_done()

        stream = cuda.stream()
        assert asyncio.run(program(stream)) is stream

    def test_members_of_kernels(self):
        kernel = cuda.jit("void(float64[:])")(reversed_without_a_barrier.py_func)
        (kinds,) = kernel.signatures
        assert (
            kernel.get_max_threads_per_block()
            == kernel.overloads[kinds].max_threads_per_block
            == 1024
        )
        assert (
            kernel.get_shared_mem_per_block()
            == kernel.get_shared_mem_per_block(numba.void(*kinds))
            == 512
        )
        refused = (
            "get_regs_per_thread",
            "get_const_mem_size",
            "get_local_mem_per_thread",
            "ptx",
            "inspect_asm",
            "inspect_llvm",
        )
        for name in (*refused, "inspect_sass"):
            assert not hasattr(kernel, name)
            with pytest.raises(DeviceError, match=f"{name} .*run this on a GPU"):
                getattr(kernel, name)
        with pytest.raises(DeviceError, match="regs_per_thread"):
            _ = kernel.overloads[kinds].regs_per_thread

    def test_streams_and_events(self):
        called = []
        stream, start, end = cuda.stream(), cuda.event(), cuda.event(timing=True)
        start.record(stream)
        with pytest.raises(DeviceError, match="an event that is not recorded"):
            cuda.event_elapsed_time(start, end)
        with stream.auto_synchronize():
            d = cuda.to_device(np.zeros(8), stream=stream)
            increment[1, 32, stream](d)
        stream.add_callback(lambda *args: called.append(args[2]), "done")
        end.record(stream)
        end.synchronize()
        assert cuda.event_elapsed_time(start, end) > 0
        assert called == ["done"]

    @pytest.mark.whole
    def test_reduce(self):
        total = cuda.reduce(lambda a, b: a + b)
        x = np.arange(1000)
        assert total(x) == x.sum()
        assert total(cuda.to_device(x), init=5) == x.sum() + 5

    def test_random_numbers(self):
        states, drawn = create_xoroshiro128p_states(32, seed=3), cuda.device_array(32, np.float32)
        expected = np.empty(32, xoroshiro128p_dtype)
        init_xoroshiro128p_states_cpu(expected, 3, 0)
        np.testing.assert_array_equal(states.copy_to_host(), expected)
        draw[1, 32](states, drawn)
        assert len(set(drawn.copy_to_host())) > 30

    @pytest.mark.parametrize("name", ["compile_ptx", "declare_device", "open_ipc_array"])
    def test_what_needs_a_gpu_is_refused_by_name(self, name):
        with pytest.raises(DeviceError, match=rf"cuda\.{name} .*run this on a GPU"):
            getattr(cuda, name)(None)

    def test_modules_of_the_package_declare_device_functions(self):
        """As numba-cuda's `cuda.fp16` and `cuda.bf16` do when they are imported."""
        text = (
            "from numba.cuda import declare_device\nmade = "
            "declare_device('of_a_library', 'int32(int32)')"
        )
        module = {"__name__": "numba.cuda._internal.of_a_library"}
        exec(text, module)
        assert module["made"].name == "of_a_library"
        with pytest.raises(DeviceError, match="declare_device"):
            exec(text, {"__name__": "program"})

    def test_ufuncs_and_reductions(self):
        @numba.vectorize(["float64(float64, float64)"], target="cuda")
        def add(x, y):
            return x + y

        @numba.guvectorize(["void(float64[:], float64[:])"], "(n)->()", target="cuda")
        def total(x, out):
            out[0] = 0.0
            for i in range(x.shape[0]):
                out[0] += x[i]

        @cuda.reduce
        def largest(x, y):
            return max(x, y)

        x = np.arange(12.0).reshape(3, 4)
        there = cuda.to_device(x)
        np.testing.assert_array_equal(add(x, 1.0), x + 1)
        np.testing.assert_array_equal(add(there, there).copy_to_host(), 2 * x)
        out = cuda.device_array_like(there)
        assert add(there, there, out=out) is out
        np.testing.assert_array_equal(out.copy_to_host(), 2 * x)
        np.testing.assert_array_equal(total(x), x.sum(1))
        assert largest(cuda.to_device(x.ravel())) == 11.0
        assert add.reduce(cuda.to_device(x.ravel())) == 66.0
        assert numba.vectorize(["float64(float64)"])(lambda x: 2 * x)(3.0) == 6

    def test_linked_code_is_refused(self):
        with pytest.raises(KernelError, match="links CUDA C or PTX"):
            cuda.jit("void(float32[:])", link=["a.cu"])


def test_signatures_compile_without_a_driver():
    with simt.as_cuda():

        @cuda.jit("void(float64[:], float64)")
        def fill(x, value):
            x[cuda.grid(1)] = value

    x = np.zeros(32)
    fill[1, 32](x, 3)  # also outside
    assert (x == 3).all()


def test_everything_is_put_back():
    before = {name: value for name, value in vars(cuda).items() if not name.startswith("__")}
    launch = type(increment).__getitem__
    with simt.as_cuda():
        assert cuda.jit is not before["jit"]
    assert {name: value for name, value in vars(cuda).items() if name in before} == before
    assert type(increment).__getitem__ is launch


class TestBlocks:
    """Blocks that overlap without nesting, in threads."""

    def test_the_last_one_puts_the_module_back(self):
        real = cuda.jit
        first, second, more = simt.as_cuda(), simt.as_cuda(check=True), simt.as_cuda()
        first.__enter__()
        in_thread(second.__enter__)
        first.__exit__(None, None, None)
        assert cuda.jit is not real
        cuda.to_device(np.zeros(1))
        in_thread(more.__enter__)
        # its block has failed
        in_thread(lambda: second.__exit__(ZeroDivisionError, ZeroDivisionError(), None))
        assert cuda.jit is not real
        in_thread(lambda: more.__exit__(None, None, None))
        assert cuda.jit is real
        assert type(increment).__getitem__.__module__.startswith("numba.cuda")

    def test_launches_are_checked_while_a_block_asks_for_it(self):
        with simt.as_cuda():
            kernel = cuda.jit(reversed_without_a_barrier.py_func)
            checking = simt.as_cuda(check=True)
            in_thread(checking.__enter__)
            for one in (kernel, reversed_without_a_barrier, kernel.specialize(np.zeros(64))):
                with simt.as_cuda(check=False), pytest.raises(simt.KernelCheckError):
                    one[1, 64](np.arange(64.0))
            in_thread(lambda: checking.__exit__(None, None, None))
            kernel[1, 64](np.arange(64.0))

    def test_two_that_begin_at_once(self, monkeypatch):
        """One of them replaces the members while the other waits: otherwise the second would put
        back stand-ins.
        """
        real, modules, meeting, inside = (
            cuda.jit,
            replace._modules,
            threading.Barrier(2),
            threading.Barrier(2),
        )

        def slow():
            with suppress(threading.BrokenBarrierError):
                meeting.wait(0.2)
            return modules()

        def enter_and_leave():
            with suppress(ZeroDivisionError), simt.as_cuda():
                inside.wait(30)
                assert cuda.jit is not real
                _ = 1 / 0

        monkeypatch.setattr(replace, "_modules", slow)
        other = threading.Thread(target=enter_and_leave)
        other.start()
        enter_and_leave()
        other.join()
        assert cuda.jit is real

    def test_a_world_of_gpus_has_cores(self):
        with simt.as_cuda(), synk.fork(2, device="cuda" if cuda.is_available() else "cpu") as world:
            assert world.device == "cpu"

    def test_the_setting_is_a_flag(self):
        with pytest.raises(ArgumentError, match="check=True"), simt.as_cuda("check"):
            pass


def in_thread(function):
    """Calls a function in another thread, and raises what it raises."""
    raised = []

    def call():
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


@pytest.mark.parametrize("check", [False, True])
class TestLaunches:
    def test_signatures_are_those_launched(self, check):
        with simt.as_cuda(check=check):
            kernel = cuda.jit(increment.py_func)
            assert kernel.signatures == []
            for dtype in (np.float64, np.float32, np.float64):
                kernel[1, 4](cuda.to_device(np.zeros(4, dtype)))
            kernel.forall(4)(np.zeros(4, np.int32))
            assert kernel.signatures == [
                (numba.types.Array(kind, 1, "C"),)
                for kind in (numba.float64, numba.float32, numba.int32)
            ]
            assert len(kernel.overloads) == 3

    def test_arguments_by_name(self, check):
        with simt.as_cuda(check=check):
            for launch in (increment[1, 32], increment.forall(32)):
                with pytest.raises(
                    ArgumentError, match=r"^increment is a kernel, .*by position.*got x=:"
                ):
                    launch(x=np.zeros(4))

    @pytest.mark.parametrize(
        ("config", "said"),
        [
            ((1, 32, "a"), "a stream.*got 'a'"),
            ((1, 32, 1.5), "a stream"),
            ((1, 32, np.zeros(3)), "a stream"),
            ((1, 32, 0, 1.5), "dynamic shared memory must be"),
            ((1, 32, 0, 10**6), "1000000 bytes of dynamic shared memory are more than a block"),
            ((2**31, 32), r"at most \(2147483647, 65535, 65535\) blocks"),
            (((1, 65536), 32), "blocks"),
            (((1, 1, 65536), 32), "blocks"),
        ],
    )
    def test_configurations(self, check, config, said):
        with simt.as_cuda(check=check), pytest.raises(LaunchError, match=said):
            increment[config](np.zeros(4))

    def test_for_all(self, check):
        with simt.as_cuda(check=check):
            for given, said in (
                ((-1,), "negative"),
                ((4, 2048), "at most 1024"),
                ((4, 32, "a"), "a stream"),
            ):
                with pytest.raises(LaunchError, match=said):
                    increment.forall(*given)
            increment.forall(0)(np.zeros(0))


def test_checked_launches():
    x = np.arange(64.0)
    with simt.as_cuda(check=True):
        with pytest.raises(simt.KernelCheckError, match="race"):
            reversed_without_a_barrier[1, 64](x)
        with pytest.raises(simt.KernelCheckError, match="race"):
            reversed_without_a_barrier.forall(64, 64)(cuda.to_device(x))
        d = cuda.to_device(np.zeros(4))
        cuda.jit(increment.py_func)[1, 32](d)
        assert d.copy_to_host().all()
        for kernel in (misspelt, absent):
            with pytest.raises(TypingError):
                kernel[1, 1](d)


def test_the_simulator_is_refused(monkeypatch):
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    with pytest.raises(DeviceError, match="NUMBA_ENABLE_CUDASIM"), simt.as_cuda():
        pass


def test_an_unknown_value_of_the_variable(monkeypatch):
    monkeypatch.setenv("SYNKNUMBA_SIMT", "yes please")
    with pytest.raises(ArgumentError, match="SYNKNUMBA_SIMT must be 1, check or 0"):
        of_environment()


PROGRAM = """
    import numpy as np
    from numba import cuda

    @cuda.jit("void(float64[:])")
    def kernel(x):
        x[0] = cuda.threadIdx.x

    def test_it():
        d = cuda.to_device(np.zeros(1))
        kernel[1, 2](d)
        assert d.copy_to_host()[0] == 1
"""


def run(tmp_path, *command, conftest="", **variables):
    (tmp_path / "test_program.py").write_text("\n".join(line[4:] for line in PROGRAM.splitlines()))
    (tmp_path / "conftest.py").write_text(
        conftest or "from numba import cuda\n\nassert cuda.is_available()\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_plugin(tmp_path):
    ran = run(tmp_path, "-m", "pytest", "-p", "synknumba.simt.pytest", "--simt-check")
    assert "simt: CUDA kernels run on CPU cores, checked" in ran.stdout
    assert "race at index [0]" in ran.stdout
    assert "1 failed" in ran.stdout


@pytest.mark.whole
def test_plugin_named_by_a_conftest(tmp_path):
    ran = run(tmp_path, "-m", "pytest", conftest='pytest_plugins = ["synknumba.simt.pytest"]\n')
    assert "simt: CUDA kernels run on CPU cores" in ran.stdout
    assert "1 passed" in ran.stdout


@pytest.mark.parametrize(
    ("value", "said"), [("1", ""), pytest.param("check", "race at", marks=pytest.mark.whole)]
)
def test_variable(tmp_path, value, said):
    code = "import synknumba, test_program\ntest_program.test_it()"
    ran = run(tmp_path, "-c", code, SYNKNUMBA_SIMT=value)
    assert said in ran.stderr if said else ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "broken", ["__init__.py", pytest.param("cuda.py", marks=pytest.mark.whole)]
)
def test_a_package_that_cannot_be_imported(tmp_path, broken):
    package = tmp_path / "numba_cuda_mlir"
    package.mkdir()
    for name in ("__init__.py", "cuda.py"):
        (package / name).write_text("raise ImportError('libnvvm.so')" if name == broken else "")
    code = "import synknumba, test_program\ntest_program.test_it()"
    ran = run(tmp_path, "-c", code, SYNKNUMBA_SIMT="1")
    assert ran.returncode == 0, ran.stderr
