"""A broken CUDA installation is told in one clear line, and the CPU device works all the same."""

import os
import subprocess
import sys
import textwrap

import pytest

from synknumba._device import gpu_probe

SCRIPT = textwrap.dedent(
    """
    import sys

    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "numba.cuda":
                raise RuntimeError("DynamicLibNotFoundError: libcudart")

    if {broken}:
        sys.meta_path.insert(0, Broken())
    import numpy as np
    import synknumba as synk

    @synk.function(outputs="sum")
    def total(x):
        return x.sum()

    @synk.parallel(outputs={{"t": synk.output("sum", shape=())}}, grid=1, block=1)
    def kernel(x, t):
        for i in range(x.shape[0]):
            t[0] += x[i]

    with synk.fork(2, device={device!r}):
        print(total(np.arange(10.0)))
        try:
            print(kernel(np.arange(10.0)))
        except synk.DeviceError as error:
            print("DeviceError:", error)
    """
)


def run(folder, *, broken: bool, device: str = "cpu", **environment: str) -> list[str]:
    script = folder / "script.py"  # a kernel needs a source file
    script.write_text(SCRIPT.format(broken=broken, device=device))
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_functions_run_and_kernels_are_refused_in_one_line_where_numba_cuda_does_not_import(
    tmp_path,
):
    first, second, *rest = run(tmp_path, broken=True)
    assert first == "45.0"
    assert not rest
    assert second.startswith(
        "DeviceError: numba.cuda cannot be imported (RuntimeError: "
        "DynamicLibNotFoundError: libcudart)"
    )
    assert "pip install nvidia-cuda-runtime" in second


@pytest.mark.whole
def test_the_cpu_device_works_beside_numbas_simulator(tmp_path):
    assert run(tmp_path, broken=False, NUMBA_ENABLE_CUDASIM="1") == ["45.0", "45.0"]


class Driver:
    """libcuda as far as it is called."""

    def __init__(self, code: int, count: int = 0) -> None:
        self._code = code
        self._count = count

    def cuInit(self, flags):  # noqa: N802
        return self._code

    def cuDeviceGetCount(self, pointer):  # noqa: N802
        pointer._obj.value = self._count
        return 0

    def cuDeviceGet(self, pointer, index):  # noqa: N802
        pointer._obj.value = index
        return 0

    def cuDeviceGetUuid_v2(self, uuid, device):  # noqa: N802
        uuid[15] = 100 + device.value
        return 0


@pytest.mark.parametrize(
    ("driver", "count", "problem"),
    [
        (None, 0, None),
        (Driver(100), 0, None),
        (Driver(999), 0, "cuInit fails with error 999"),
        (Driver(0, 3), 3, None),
    ],
    ids=["no driver", "a driver without a GPU", "a driver that fails", "three GPUs"],
)
def test_what_the_driver_says(monkeypatch, driver, count, problem):
    monkeypatch.setattr(gpu_probe, "_driver", lambda: driver)
    monkeypatch.setattr(gpu_probe, "_missing_packages", lambda *, thorough: None)
    report = gpu_probe._count_gpus(thorough=False)
    assert report.count == count
    assert report.ids == tuple(f"{100 + index:032x}" for index in range(count))
    assert (report.problem is None) if problem is None else (problem in report.problem)


@pytest.mark.parametrize("variable", ["NUMBA_ENABLE_CUDASIM", "SYNKNUMBA_SIMT"])
def test_what_replaces_numba_cuda_is_named_where_there_are_gpus(monkeypatch, variable):
    monkeypatch.setattr(gpu_probe, "_driver", lambda: Driver(0, 2))
    monkeypatch.setenv(variable, "1")
    assert f"{variable} is set" in gpu_probe._count_gpus(thorough=False).problem


def test_missing_cupy_is_named(monkeypatch):
    monkeypatch.setattr(gpu_probe, "_driver", lambda: Driver(0, 2))
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
    monkeypatch.setattr(gpu_probe.importlib.util, "find_spec", lambda name: None)
    problem = gpu_probe._count_gpus(thorough=False).problem
    assert "CuPy" in problem
    assert "pip install" in problem
