"""`synknumba doctor`: each check on a machine that the test invents, and all of them on this
one.
"""

import json
import os
import platform
import re
import resource
import shutil
import time
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

import synknumba
from synknumba._cli import main
from synknumba._commands import cuda_packages, doctor, gpu_checks, machine_checks, proof
from synknumba._commands.findings import Finding, ok, run_checks
from synknumba._device import LIBRARIES, DeviceReport, GpuLibraries
from synknumba._errors import WorldError
from synknumba._host import segment
from synknumba._host.memory import Available
from tests.environment import ROOT

CHECKS = dict(machine_checks.CHECKS)
GPU_CHECKS = dict(gpu_checks.CHECKS)
Disk = namedtuple("Disk", "total used free")
WHOLE = GpuLibraries("13.1", "2.28.9", dict.fromkeys(LIBRARIES, "13.1.0"), None)


def found(name, *, checks=CHECKS):
    """What a check tells, by level; a text and its remedy are one text."""
    told = {}
    for one in checks[name]():
        assert bool(one.remedy) or one.level in {"ok", "skipped"}
        told[one.level] = f"{one.text} => {one.remedy}"
    return told


@pytest.fixture
def system(tmp_path, monkeypatch):
    """An empty /sys."""
    monkeypatch.setattr(machine_checks, "SYS", tmp_path / "sys")

    def write(name, text):
        path = tmp_path / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return write


def test_files_of_the_working_directory_hide_no_package(tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
    assert cuda_packages.numba_cuda() == "imports"


def test_all_checks_on_this_machine(capsys):
    """The world of 2 ranks runs; nothing fails to be checked."""
    assert main(["doctor", "--device", "cpu", "--ranks", "2", "--json"]) in {0, 1}
    told = json.loads(capsys.readouterr().out)
    findings = [Finding(**one) for one in told["findings"]]
    assert told["schema"] == doctor.SCHEMA
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    section = page.partition("## `doctor`")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == told.keys()
    assert told["versions"]["Python"] == platform.python_version()
    assert told["versions"]["numpy"] == np.__version__
    assert f"numpy {np.__version__}" in findings[0].text
    assert {one.check for one in findings} >= {
        "versions",
        "python",
        "shared memory",
        "cores",
        "cache",
        "driver",
        "NCCL",
        "peer access",
    }
    assert not [one for one in findings if "could not be checked" in one.text]
    (world,) = [one for one in findings if one.check == "world"]
    assert world.level == "ok"
    assert world.text.startswith(
        "2 cpu ranks: a kernel on each of them, its sum, and an all_reduce over host are right"
    )
    levels = {one.level for one in findings}
    assert told["status"] == (
        "problem" if "problem" in levels else "warning" if "warning" in levels else "ok"
    )


@pytest.mark.parametrize(
    ("levels", "status", "code"),
    [
        (("ok", "skipped"), "ok", 0),
        (("ok", "warning"), "warning", 0),
        (("problem", "ok"), "problem", 1),
    ],
)
def test_status(levels, status, code, monkeypatch, capsys):
    made = [Finding("a check", level, "a text", "a way out") for level in levels]
    monkeypatch.setattr(doctor, "findings", lambda **_: iter(made))
    assert main(["doctor", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["status"] == status
    assert main(["doctor"]) == code
    told = capsys.readouterr().out
    assert told.count("→ a way out") == len(made)
    assert f"{levels.count('problem') or 'no'} problem" in told
    *_, last = told.splitlines()
    assert last == f"next: {doctor.FIX if code else doctor.START}"
    assert main(["info"]) == code
    assert capsys.readouterr().out == told


def test_a_check_that_fails_hides_no_other():
    def fails():
        yield ok("one", "before")
        raise OSError("refused")

    told = list(run_checks([("one", fails), ("two", lambda: [ok("after")])]))
    assert [(one.check, one.level) for one in told] == [
        ("one", "ok"),
        ("one", "skipped"),
        ("two", "ok"),
    ]
    assert told[1].text == "could not be checked: OSError: refused"


def test_variables_are_those_that_the_package_reads():
    sources = [
        path
        for path in Path(synknumba.__file__).parent.rglob("*.py")
        if path.parent.name != "_commands"
    ]
    assert len(sources) > 100
    read = {
        name
        for path in sources
        for name in re.findall(r"\bSYNKNUMBA_[A-Z_]*[A-Z]", path.read_text())
    }
    assert read == machine_checks.VARIABLES


def test_a_misspelt_variable(monkeypatch):
    monkeypatch.setenv("SYNKNUMBA_CAHCE", "0")
    assert "SYNKNUMBA_CAHCE is set, which synknumba does not know" in found("variables")["warning"]


def test_no_compiler(monkeypatch):
    monkeypatch.setattr(machine_checks, "jit_problem", lambda: "NUMBA_DISABLE_JIT is set")
    assert "NUMBA_DISABLE_JIT is set" in found("python")["problem"]


def test_a_sandbox(monkeypatch):
    def refuse():
        raise WorldError("fork() needs os.pipe()")

    monkeypatch.setattr(machine_checks, "check_system_calls", refuse)
    assert "fork() needs os.pipe()" in found("system calls")["problem"]


@pytest.mark.parametrize("kind", ["posix", "memfd"])
def test_a_small_shared_memory(kind, monkeypatch):
    if kind == "posix" and segment.posix_ipc is None:
        pytest.skip("posix_ipc is not installed")
    monkeypatch.setenv("SYNKNUMBA_SEGMENTS", kind)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(64 << 20, 0, 64 << 20))
    told = found("shared memory")
    if kind == "posix":
        assert (
            "0.06 GiB free of 0.06 GiB, and SYNKNUMBA_SEGMENTS=posix allows nothing else"
            in told["warning"]
        )
    else:
        assert told["ok"].startswith("memory files (memfd), ")
        assert told["ok"].endswith("/dev/shm has 0.06 GiB free of 0.06 GiB => ")


def test_shared_memory_that_cannot_be_had(monkeypatch):
    monkeypatch.setenv("SYNKNUMBA_SEGMENTS", "floppy")
    assert "got 'floppy'" in found("shared memory")["problem"]


def test_little_memory(monkeypatch):
    left = Available(100 << 20, "the memory limit of this container (control group)", "raise it")
    monkeypatch.setattr(machine_checks.memory, "available", lambda: left)
    assert found("memory") == {
        "warning": (
            "the memory limit of this container (control group) has 100.0 MiB left => raise it"
        )
    }


def test_locked_memory(system, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 << 20, 8 << 20))
    assert found("locked memory")["ok"].startswith("8.0 MiB (`ulimit -l`); only InfiniBand")
    system("class/infiniband/mlx5_0", "")
    assert "there is an InfiniBand adapter" in found("locked memory")["warning"]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert found("locked memory")["ok"].startswith("unlimited")


def test_few_open_files(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 512))
    assert "at most 512 (`ulimit -Hn`)" in found("open files")["warning"]


def test_a_launcher_that_binds_to_one_core(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 32)
    monkeypatch.setattr(machine_checks, "allowed_cores", lambda: 1)
    monkeypatch.setattr(machine_checks, "usable_cores", lambda: 1)
    monkeypatch.setattr(machine_checks, "launched", lambda: (4, "PMI_SIZE"))
    told = found("cores")["warning"]
    assert (
        "1 usable of 32: the affinity of this process started by a launcher (PMI_SIZE=4) allows 1"
        in told
    )
    assert "-bind-to none" in told


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("cpu.max", "150000 100000", 1.5),
        ("cpu.max", "200000 100000", None),
        ("cpu.max", "max 100000", None),
    ],
)
def test_quota(file, text, told, system, monkeypatch):
    monkeypatch.setattr(machine_checks, "allowed_cores", lambda: 8)
    system(f"fs/cgroup/{file}", text)
    assert machine_checks._fraction_of_quota() == told


def test_quota_of_a_part_of_a_core(system, monkeypatch):
    monkeypatch.setattr(machine_checks, "allowed_cores", lambda: 8)
    monkeypatch.setattr(machine_checks, "usable_cores", lambda: 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(machine_checks, "launched", lambda: (1, ""))
    system("fs/cgroup/cpu/cpu.cfs_quota_us", "150000")
    system("fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert (
        "allows 1.5 cores, and 2 ranks are stopped for a part of the time => fork(1)"
        in found("cores")["warning"]
    )


def test_a_busy_machine(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 1.0, 1.0))
    assert "the load is 1000.0" in found("load")["warning"]


def test_hyperthreads(system, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert "skipped" in found("hyperthreads")
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        system(f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings + "\n")
    assert found("hyperthreads")["ok"].startswith(
        "4 of 2 physical cores, and fork() starts a rank on each => fork(2)"
    )


def test_cache(tmp_path, monkeypatch):
    path = tmp_path / "cache"
    monkeypatch.setenv("SYNKNUMBA_CACHE_DIR", str(path))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(1 << 40, 0, 1 << 39))
    assert found("cache")["ok"].startswith(f"{path}: 0 kernels, 0.0 MiB; writable")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(1 << 40, 0, 1 << 20))
    assert "has 1.0 MiB left" in found("cache")["warning"]
    path.chmod(0o777)
    assert "has mode 777, and others could put code there" in found("cache")["warning"]
    monkeypatch.setenv("SYNKNUMBA_CACHE_DIR", "/proc/none")
    assert "/proc/none cannot be written to: No such file or directory" in found("cache")["warning"]
    monkeypatch.setenv("SYNKNUMBA_CACHE", "0")
    assert "off by SYNKNUMBA_CACHE" in found("cache")["warning"]


def test_no_vector_math(monkeypatch):
    monkeypatch.setattr(machine_checks, "describe", tuple)
    assert "pip install 'synknumba[svml]'" in found("vector math")["warning"]


def test_leftovers(tmp_path, monkeypatch):
    name = f"synk-{'0a' * 12}"
    monkeypatch.setattr(machine_checks, "SHM", tmp_path / "shm")
    monkeypatch.setattr(machine_checks, "PROC", tmp_path / "proc")
    assert found("leftovers") == {"ok": "none => "}
    for pid, parent, fds in (
        ("70", "1", []),
        ("71", "1", [name]),
        ("72", "71", []),
        ("73", "1", None),
    ):
        (tmp_path / "proc" / pid / "fd").mkdir(parents=True)
        text = (
            f"7f00-7f10 rw-s 00000000 00:01 5   /dev/shm/{name} (deleted)\n"
            if fds is not None
            else "7f00-7f10 r 0 0 /lib/c.so\n"
        )
        (tmp_path / "proc" / pid / "maps").write_text(text)
        (tmp_path / "proc" / pid / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1")
        for number, one in enumerate(fds or []):
            (tmp_path / "proc" / pid / "fd" / str(number)).symlink_to(f"/dev/shm/{one} (deleted)")
    # a rank that init has adopted; a script; its rank; another program
    assert machine_checks._holders() == (
        [70, 71, 72],
        [70],
    )
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm" / name).touch()
    told = [one.text for one in CHECKS["leftovers"]()]
    assert told[0].startswith("1 names of segments in ")
    assert told[1] == "processes that have lost their script hold shared memory: 70"


def test_launchers(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    assert "only scripts on several machines need one" in found("launcher")["skipped"]
    monkeypatch.setattr(
        shutil, "which", lambda name, path=None: f"/usr/bin/{name}" if name == "srun" else None
    )
    monkeypatch.setattr(machine_checks, "version_of", lambda _: None)
    assert found("launcher")["ok"].startswith("/usr/bin/srun; mpi4py is not installed => ")


def gpu(peers=(), mode=0, capability=(9, 0)):
    return {
        "name": "H100",
        "bytes": 80 << 30,
        "capability": list(capability),
        "mode": mode,
        "peers": list(peers),
    }


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """Sets what the driver and CuPy tell, and the device files."""
    monkeypatch.setattr(gpu_checks, "DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def invent(driver=13010, libraries=WHOLE, told=(), files=2, problem=None):
        for number in range(files):
            (tmp_path / f"nvidia{number}").touch()
        monkeypatch.setattr(gpu_checks, "_driver", lambda: driver)
        monkeypatch.setattr(gpu_checks, "_libraries", lambda: libraries)
        monkeypatch.setattr(gpu_checks, "visible_gpus", lambda: list(told))
        monkeypatch.setattr(gpu_checks, "probe", lambda thorough: DeviceReport(len(told), problem))
        monkeypatch.setattr(gpu_checks, "numba_cuda", lambda: "imports")

    return invent


def asked(name):
    return found(name, checks=GPU_CHECKS)


def test_a_machine_without_gpus(gpus):
    gpus(driver=None, libraries=None, files=0)
    for name in ("driver", "GPUs", "CuPy", "CUDA libraries", "NCCL", "peer access"):
        assert list(asked(name)) == ["skipped"]
    assert asked("visible GPUs") == {}


def test_two_gpus(gpus):
    gpus(told=[gpu([1]), gpu([0])])
    for name in ("driver", "visible GPUs", "GPUs", "CuPy", "CUDA libraries", "NCCL", "peer access"):
        assert list(asked(name)) == ["ok"]
    assert asked("GPUs")["ok"].startswith("2 (0: H100, 80 GiB, 1: H100, 80 GiB)")


def test_gpus_without_the_drivers_libraries(gpus):
    gpus(driver=None)
    assert "there are GPUs (nvidia0, nvidia1) but no libcuda.so.1" in asked("driver")["problem"]


def test_hidden_gpus(gpus, monkeypatch):
    gpus()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES='' hides all 2 GPUs" in asked("visible GPUs")["warning"]
    gpus(told=[gpu()])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,7")
    assert "lists 2, and 1 are found" in asked("visible GPUs")["warning"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert "1 of 2" in asked("visible GPUs")["ok"]


def test_an_old_driver(gpus):
    gpus(driver=12080, told=[gpu()])
    assert "is for CUDA 13.1, and the driver supports CUDA 12.8" in asked("CuPy")["problem"]


def test_cupy_is_missing(gpus):
    gpus(libraries=None, told=[gpu()], problem="GPUs need CuPy")
    assert asked("CuPy")["problem"].startswith(
        "not installed; GPUs need it => pip install 'synknumba[cuda13]'"
    )
    assert asked("GPUs")["problem"].startswith("GPUs need CuPy => for GPUs: pip install")


def test_gpus_that_cannot_be_used(gpus):
    gpus(told=[gpu(mode=2), gpu(capability=(7, 0))])
    told = [one.text for one in GPU_CHECKS["GPUs"]() if one.level == "problem"]
    assert told[0] == "GPU 0 is in the compute mode Prohibited"
    assert (
        told[1] == "GPU 1 (H100) has compute capability 7.0, for which this CUDA does not compile"
    )


def test_gpus_without_nccl_or_access(gpus):
    lacking = GpuLibraries("13.1", None, dict.fromkeys(LIBRARIES, "13.1.0"), None)
    gpus(libraries=lacking, told=[gpu([1]), gpu([0]), gpu([0, 1])])
    assert (
        "not found: collectives between GPUs go over the host, which is slower"
        in asked("NCCL")["warning"]
    )
    assert "(GPU 0 of 2, 1 of 2)" in asked("peer access")["warning"]


def test_who_calls_nccl(gpus):
    libraries = dict.fromkeys(LIBRARIES, "13.1.0")
    gpus(
        libraries=GpuLibraries("13.1", "2.32.3", libraries, None, "nccl4py"),
        told=[gpu([1]), gpu([0])],
    )
    assert asked("NCCL")["ok"].startswith("2.32.3, by nccl4py =>")
    gpus(
        libraries=GpuLibraries(
            "13.1", "2.32.3", libraries, None, "cupy", "nccl4py 0.4.1 is too old"
        )
    )
    assert asked("NCCL")["ok"].startswith("2.32.3, by cupy (nccl4py 0.4.1 is too old) =>")
    gpus(
        libraries=GpuLibraries("13.1", None, libraries, None, None, "no such package"),
        told=[gpu([1]), gpu([0])],
    )
    assert asked("NCCL")["warning"].startswith("not found (no such package): collectives")


def test_numba_cuda(gpus, monkeypatch):
    gpus(told=[gpu()])
    versions = {"numba-cuda": "0.30.4", "numpy": "2.5.2"}
    monkeypatch.setattr(gpu_checks, "version_of", versions.get)
    assert (
        "fails to compile with NumPy 2.5.2 => pip install 'numpy<2.5'"
        in asked("numba.cuda")["problem"]
    )
    versions["numpy"] = "2.4.6"
    assert asked("numba.cuda")["ok"].startswith("numba-cuda 0.30.4 imports")
    del versions["numba-cuda"]
    assert "numba-cuda is not installed" in asked("numba.cuda")["problem"]
    versions["numba-cuda-mlir"] = "0.6.0"
    assert asked("numba.cuda")["ok"].startswith(
        "Numba's own numba.cuda imports; numba-cuda-mlir 0.6.0 compiles for GPUs"
    )


def test_what_the_driver_program_prints(monkeypatch):
    """The process that asks the driver, with a stand-in for libcuda."""
    stand_in = """
import ctypes
class Driver:
    def cuInit(self, flags): return 0
    def cuDeviceGetCount(self, count): count._obj.value = 2
    def cuDeviceGetName(self, name, size, device): name.value = b"GPU %d" % device
    def cuDeviceTotalMem_v2(self, size, device): size._obj.value = 1 << 40
    def cuDeviceGetAttribute(self, found, number, device): found._obj.value = {20: 0, 75: 9, 76: device}[number]
    def cuDeviceCanAccessPeer(self, can, one, other):
        can._obj.value = one < other
        return 0
ctypes.CDLL = lambda name: Driver()
"""  # noqa: E501
    monkeypatch.setattr(gpu_checks, "_driver", lambda: 13000)
    monkeypatch.setattr(gpu_checks, "_PROGRAM", stand_in + gpu_checks._PROGRAM)
    told = gpu_checks.visible_gpus.__wrapped__()
    assert told == [
        {"name": "GPU 0", "bytes": 1 << 40, "capability": [9, 0], "mode": 0, "peers": [1]},
        {"name": "GPU 1", "bytes": 1 << 40, "capability": [9, 1], "mode": 0, "peers": []},
    ]
    monkeypatch.setattr(gpu_checks, "_PROGRAM", "import os; os.abort()")
    assert gpu_checks.visible_gpus.__wrapped__() == []


def test_a_world_that_cannot_start(monkeypatch):
    def fail(*_, **__):
        raise WorldError("no room")

    monkeypatch.setattr(synknumba, "fork", fail)
    (told,) = proof.prove(2, "cpu")
    assert (told.level, told.text) == ("problem", "WorldError: no room")


def test_a_world_that_does_not_start(monkeypatch):
    monkeypatch.setattr(synknumba, "fork", lambda *_, **__: time.sleep(60))
    monkeypatch.setattr(proof, "TIMEOUT", 0.1)
    (told,) = proof.prove(64, "cpu")
    assert told.level == "problem"
    assert told.text == "not done after 0.1 s, which were over during the start of the ranks"


@pytest.mark.parametrize(
    ("ranks", "level", "text"),
    [
        (None, "ok", "allow 2 ranks; there are 2 usable cores"),
        (1, "ok", "allow 1 rank; there are 2"),
        (64, "warning", "allow 64 ranks, but they share 2 usable cores"),
        (10**9, "problem", "more than this machine has room for"),
    ],
)
def test_room_for_ranks(ranks, level, text, monkeypatch):
    monkeypatch.setattr(machine_checks, "usable_cores", lambda: 2)
    findings = doctor.findings(world=False, ranks=ranks)
    told = next(finding for finding in findings if finding.check == "room for ranks")
    assert told.level == level
    assert text in told.text


def test_a_world_that_computes_wrong(monkeypatch):
    right = np.asarray
    monkeypatch.setattr(synknumba, "get_value", lambda rank, variable: right([3.0, 3.0]))
    (told,) = proof.prove(2, "cpu")
    assert told.level == "problem"
    assert told.text == "an all_reduce of ones over host has given [3.0, 3.0] on 2 ranks"
