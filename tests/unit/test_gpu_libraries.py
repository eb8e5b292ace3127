"""Which of CUDA's libraries are found and what to install, and the warning of a world that falls
back to the host's transport.
"""

import subprocess
import sys
import warnings
from dataclasses import replace

import pytest

import synknumba as synk
from synknumba._comm import DRIVERS
from synknumba._commands import cuda_packages
from synknumba._commands.cuda_packages import to_install
from synknumba._device import LIBRARIES, GpuLibraries, find_libraries, gpu_libraries
from synknumba._errors import DeviceError
from synknumba._host import gpu_packages
from synknumba._world import transport_setup

ALL = dict.fromkeys(LIBRARIES, "13.1.0")


@pytest.fixture
def installed(monkeypatch):
    """Packages by name, of an environment that the tests invent."""
    packages = {}
    monkeypatch.setattr(gpu_packages, "version_of", packages.get)
    monkeypatch.setattr(cuda_packages, "version_of", packages.get)
    return packages


def test_versions_where_sys_path_has_more_than_paths(monkeypatch):
    monkeypatch.setattr("sys.path", [None, 1, b"/bytes", *sys.path])
    assert gpu_packages.version_of("pytest") == pytest.__version__
    assert gpu_packages.version_of("no-such-package") is None


def test_a_machine_without_gpus_needs_nothing(installed):
    assert cuda_packages.installed_libraries() is None
    assert to_install(None, None) is None


@pytest.mark.parametrize(("driver", "extra"), [(12080, "cuda12"), (13000, "cuda13")])
def test_a_driver_without_cupy(installed, driver, extra):
    assert to_install(driver, None) == f"for GPUs: pip install 'synknumba[{extra}]'"


def test_everything_installed(installed):
    installed["cupy-cuda13x"] = "14.0"
    assert to_install(13010, GpuLibraries("13.1", "2.28.9", ALL, None, "nccl4py")) is None


@pytest.mark.parametrize(
    ("cupy", "package"),
    [("cupy-cuda12x", "nvidia-nccl-cu12"), ("cupy-cuda13x", "nvidia-nccl-cu13")],
)
def test_nccl_is_missing(installed, cupy, package):
    installed[cupy] = "14.0"
    assert to_install(13010, GpuLibraries("12.9", None, ALL, None)) == f"pip install {package}"


def test_other_libraries_are_missing(installed):
    installed["cupy-cuda12x"] = "14.0"
    libraries = GpuLibraries("12.9", "2.28.9", {"nvrtc": "12.9.0"}, None)
    assert to_install(13010, libraries) == "pip install 'synknumba[cuda12]'"


def test_a_driver_that_is_too_old(installed):
    installed["cupy-cuda13x"] = "14.0"
    advice = to_install(12080, GpuLibraries("13.1", "2.28.9", ALL, None))
    assert advice.startswith("a driver of CUDA 13, or in a new environment")
    assert advice.endswith("of CUDA 12.8: pip install 'synknumba[cuda12]'")


def test_cupy_that_does_not_import(monkeypatch, installed):
    """A stand-in for CuPy in the process that looks for the libraries."""
    installed["cupy-cuda13x"] = "14.0"
    monkeypatch.setattr(
        gpu_libraries,
        "_PROGRAM",
        "import sys; sys.modules['cupy'] = None\n" + gpu_libraries._PROGRAM,
    )
    libraries = cuda_packages.installed_libraries()
    assert "cupy" in libraries.problem
    assert to_install(13000, libraries) == "pip install 'synknumba[cuda13]'"


def test_a_process_that_dies_is_told(monkeypatch):
    monkeypatch.setattr(gpu_libraries, "_PROGRAM", "import os; print('noise'); os.abort()")
    assert find_libraries().problem == "the process that imports CuPy ended without an answer"


STAND_IN = """
import sys, types
cupy, libraries = types.ModuleType("cupy"), types.ModuleType("cupy.cuda")
libraries.nccl = types.SimpleNamespace(**{{"get_version": lambda: 22809}} if {available} else {{}})
libraries.runtime = types.SimpleNamespace(runtimeGetVersion=lambda: 13010)
cuda = types.ModuleType("cuda")
def load(name):
    if name == "cufft":
        raise RuntimeError(name)
    return types.SimpleNamespace(abs_path=None)  # this process: it has no function of that name
cuda.pathfinder = types.SimpleNamespace(load_nvidia_dynamic_lib=load)
sys.modules.update({{"cupy": cupy, "cupy.cuda": libraries, "cuda": cuda}})
"""


@pytest.mark.parametrize("available", [True, False])
def test_what_the_process_finds(monkeypatch, available):
    monkeypatch.setattr(
        gpu_libraries, "_PROGRAM", STAND_IN.format(available=available) + gpu_libraries._PROGRAM
    )
    found = find_libraries()
    assert found.problem is None
    assert found.runtime == "13.1"
    assert found.nccl == ("2.28.9" if available else None)
    assert found.missing == (["cuFFT"] if available else ["NCCL", "cuFFT"])


def test_the_version_of_the_driver_loads_no_cuda():
    code = (
        "from synknumba._device import driver_version, cuda_is_initialised; driver_version(); "
        "print(cuda_is_initialised())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr


def fall_back(world, *, free):
    """Lets a world of cores believe that it would use NCCL, which its ranks, without CuPy,
    cannot.
    """
    engine = world._engine
    engine.life.transport = "nccl"
    engine.setup = replace(engine.setup, transport_is_free=free)
    engine.begin()
    try:
        transport_setup.join(engine)
        transport_setup.join(engine)  # by now it is the host's
    finally:
        engine.end()


def test_falling_back_to_the_host_is_one_warning():
    if DRIVERS["nccl"].problem() is None:
        pytest.skip("NCCL is installed here")
    with synk.fork(2, device="cpu") as world, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fall_back(world, free=True)
        assert world.transport == "host"
    (warning,) = caught
    assert warning.category is RuntimeWarning
    assert warning.filename == __file__
    assert str(warning.message).startswith(
        "collectives go over the host, which is slower: NCCL cannot be set up: "
    )
    assert "pip install nvidia-nccl-cu" in str(warning.message)


def test_nccl_that_was_asked_for_is_an_error():
    if DRIVERS["nccl"].problem() is None:
        pytest.skip("NCCL is installed here")
    with (
        synk.fork(2, device="cpu") as world,
        pytest.raises(DeviceError, match=r"(?s)cannot be set up.*pip install nvidia-nccl-cu"),
    ):
        fall_back(world, free=False)
