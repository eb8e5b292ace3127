"""In which of two ways a segment is made, how much memory is left for it, and calls over both
ways.
"""

import mmap
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement

import synknumba as synk
from synknumba._errors import SharedMemoryError
from synknumba._host import memory, segment
from synknumba._host.segment import SWITCH, Segment
from tests.environment import ROOT, environment, run_program
from tests.unit.segment_calls import add_one, check, kind, total

PAGE, MIB = mmap.PAGESIZE, 1 << 20
UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]
MOUNT = 'mount -t tmpfs -o size={} tmpfs /dev/shm && exec "$@"'

needs_posix_ipc = pytest.mark.skipif(segment.posix_ipc is None, reason="posix_ipc is not installed")


@pytest.fixture(autouse=True)
def _not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)


@pytest.fixture
def small_shm(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets how many bytes a /dev/shm has free, of 64 MiB or more."""
    real, status = os.statvfs, SimpleNamespace(f_frsize=PAGE)
    monkeypatch.setattr(os, "statvfs", lambda path: status if path == "/dev/shm" else real(path))
    on_memfd = segment._free_bytes

    def free_bytes(fd: int) -> int | None:
        return (
            on_memfd(fd)
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:")
            else status.f_bavail * PAGE
        )

    monkeypatch.setattr(segment, "_free_bytes", free_bytes)

    def leave(nbytes: int, of: int = 64 * MIB) -> None:
        status.f_bavail, status.f_blocks = nbytes // PAGE, of // PAGE

    leave(64 * MIB)
    return leave


# ---- the choice ----------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["posix", "memfd"])
def test_the_way_that_is_asked_for_is_taken(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    if asked == "posix" and segment.posix_ipc is None:
        pytest.skip("posix_ipc is not installed")
    monkeypatch.setenv(SWITCH, asked)
    assert kind(Segment(1)) == asked


def test_a_way_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "sysv")
    with pytest.raises(
        SharedMemoryError,
        match='SYNKNUMBA_SEGMENTS must be "posix" or "memfd", or not be set; got \'sysv\'',
    ):
        Segment(1)


@needs_posix_ipc
def test_a_large_dev_shm_is_used_up_to_a_gibibyte(small_shm: Callable[..., None]) -> None:
    small_shm(10 << 30, of=64 << 30)
    assert segment._opener(9 << 30) is segment._open_posix
    assert segment._opener((9 << 30) + 1) is segment._open_memfd


@needs_posix_ipc
def test_half_of_a_small_dev_shm_stays_free(small_shm: Callable[..., None]) -> None:
    assert kind(Segment(32 * MIB)) == "posix"
    assert kind(Segment(32 * MIB + 1)) == "memfd"
    small_shm(32 * MIB)
    assert kind(Segment(1)) == "memfd"


def test_more_than_dev_shm_has_is_there(small_shm: Callable[..., None]) -> None:
    small_shm(0)
    d = synk.data(np.arange(1000.0))
    assert kind(d._segment) == "memfd"
    np.testing.assert_array_equal(d, np.arange(1000.0))


@pytest.mark.parametrize("problem", ["missing", "read-only"])
def test_without_a_dev_shm(monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
    if problem == "missing":
        monkeypatch.setattr(segment, "_SHM", "/dev/there-is-none")
    else:
        monkeypatch.setattr(os, "access", lambda *_: False)
    assert kind(Segment(1)) == "memfd"


def test_without_posix_ipc(tmp_path: Path) -> None:
    """As on Python 3.14: the import fails in a process of its own, and the ranks that it forks."""
    program = f"""
import sys
sys.modules["posix_ipc"] = None
import synknumba as synk
from tests.unit.segment_calls import check
from synknumba._host import segment
assert segment.posix_ipc is None
assert set(check(2)) == {{"memfd"}}
import os
os.environ["{SWITCH}"] = "posix"
try:
    synk.data([1.0])
except synk.SharedMemoryError as error:
    print(error)
"""
    done = run_program(program, tmp_path / "script.py")
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.startswith(f"{SWITCH}=posix needs posix_ipc, which cannot be imported (")


def run_in_small_shm(size: str, text: str, script: Path) -> None:
    command = [*UNSHARE, "sh", "-c", MOUNT.format(size), "sh"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a small /dev/shm of their own")
    script.write_text(text)
    command += [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@needs_posix_ipc
@pytest.mark.whole
def test_in_a_small_dev_shm(tmp_path: Path) -> None:
    """Large segments are in memory files, and nothing is refused."""
    text = """
import numpy as np
import synknumba as synk
from tests.unit.segment_calls import check, kind
small = synk.data(np.ones(10))
assert kind(small._segment) == "posix"
assert set(check(2)) == {"memfd"}
"""
    run_in_small_shm("1m", text, tmp_path / "script.py")


@needs_posix_ipc
@pytest.mark.whole
def test_results_of_ranks_that_outgrow_dev_shm(tmp_path: Path) -> None:
    """One of an earlier shape is read where the rank goes on writing it."""
    text = """
import os
import numpy as np
import synknumba as synk
from tests.unit.segment_calls import numbered

def kinds():
    folders = [f"/proc/{pid}/fd" for pid in world.pids]
    links = [os.readlink(f"{folder}/{fd}") for folder in folders for fd in os.listdir(folder)]
    found = [link.partition("/synk-")[0] for link in links if "/synk-" in link]
    return found.count("/dev/shm"), found.count("/memfd:")

x, seen = np.zeros(2), []
with synk.fork(2, device="cpu") as world:
    for n in (100, 15_000, 600_000, 10_000, 15_000, 12_000, 700_000, 12_000):
        x += 1
        found = numbered(x, n)
        np.testing.assert_array_equal(found, np.tile(np.arange(n) + x[0], 2))
        seen.append(kinds())
    (begun, none), (more, still_none), (_, some) = seen[:3]
    assert begun < more and none == still_none == 0 < some, seen
    assert world.statistics().plans == 1
"""
    run_in_small_shm("4m", text, tmp_path / "script.py")


@pytest.mark.parametrize(
    ("python", "needed"), [("3.11", True), ("3.13", True), ("3.14", False), ("3.15", False)]
)
def test_posix_ipc_is_required_where_it_has_wheels(python: str, needed: bool) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (requirement,) = [
        one for one in map(Requirement, project["dependencies"]) if one.name == "posix_ipc"
    ]
    assert requirement.marker is not None
    assert requirement.marker.evaluate({"python_version": python}) is needed


# ---- growth beyond /dev/shm ----------------------------------------------------------------------


@needs_posix_ipc
def test_a_segment_that_outgrows_dev_shm_moves(small_shm: Callable[..., None]) -> None:
    one = Segment(PAGE)
    views = [one.array("u4", (PAGE // 4,))]
    one.grow(2 * PAGE)
    views.append(one.array("u4", (PAGE // 2,)))
    views[1][:] = np.arange(PAGE // 2)
    before = one.id, one.fd
    small_shm(PAGE)
    assert kind(one) == "posix"
    one.grow(10 * PAGE)
    assert kind(one) == "memfd"
    assert (one.id, one.fd) == before
    assert (one.size, one.generation) == (10 * PAGE, 2)
    assert not os.get_inheritable(one.fd)
    assert os.fstat(one.fd).st_blocks * 512 == one.size
    new = one.array("u4", (10 * PAGE // 4,))
    np.testing.assert_array_equal(new[: PAGE // 2], np.arange(PAGE // 2))
    assert not new[PAGE // 2 :].any()
    # they are of the same memory, also those from before
    for value, view in enumerate(views, start=7):
        view[5] = value
        assert [other[5] for other in (*views, new)] == [value] * 3
        assert one.overlaps(view)
    one.grow(20 * PAGE)  # and goes on growing
    assert one.array("u4", (20 * PAGE // 4,))[5] == 8
    descriptor = one.fd
    one.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert views[0][5] == 8


@needs_posix_ipc
def test_a_move_concerns_no_segment_of_another_process(small_shm: Callable[..., None]) -> None:
    """Ids are of the process that made them: a rank's segment may have the same."""
    one, other = Segment(PAGE), Segment(PAGE)
    attached = Segment.attach(one.id, os.dup(other.fd), PAGE)
    view = attached.array("u1", (PAGE,))
    view[:] = 5
    small_shm(0)
    one.grow(3 * PAGE)
    one.array("u1", (3 * PAGE,))[:] = 6
    np.testing.assert_array_equal(view, 5)
    np.testing.assert_array_equal(other.array("u1", (PAGE,)), 5)


@needs_posix_ipc
def test_a_segment_that_may_not_move_stays_as_it_is(small_shm: Callable[..., None]) -> None:
    one = Segment(PAGE)
    small_shm(PAGE)
    with pytest.raises(SharedMemoryError, match=f"/dev/shm has {PAGE:,} bytes free"):
        one.grow(3 * PAGE, may_move=False)
    assert (one.size, one.generation, kind(one)) == (PAGE, 0, "posix")
    one.grow(2 * PAGE, may_move=False)
    assert kind(one) == "posix"


@needs_posix_ipc
@pytest.mark.parametrize("failing", ["fallocate", "mmap", "memfd"])
def test_a_move_that_fails_leaves_the_segment_as_it_was(
    small_shm: Callable[..., None], monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    one = Segment(PAGE)
    view = one.array("u1", (PAGE,))
    view[:] = 3
    small_shm(0)
    files = len(os.listdir("/proc/self/fd"))
    errors: list[type[BaseException]] = [KeyboardInterrupt, OSError]
    for error in errors:

        def fails(*_args: object, error: type[BaseException] = error, **_kwargs: object) -> None:
            raise error(12, "no memory") if error is OSError else error

        with monkeypatch.context() as patch:
            match failing:
                case "fallocate":
                    patch.setattr(os, "posix_fallocate", fails)
                case "mmap":
                    patch.setattr(segment.mmap, "mmap", fails)
                case _:
                    patch.setattr(os, "memfd_create", fails)
            with pytest.raises(SharedMemoryError if error is OSError else error):
                one.grow(5 * PAGE)
        assert len(os.listdir("/proc/self/fd")) == files
        assert (one.size, one.generation, kind(one)) == (PAGE, 0, "posix")
        view[0] = 4
        assert one.array("u1", (PAGE,))[0] == 4


@needs_posix_ipc
def test_data_that_outgrows_dev_shm(small_shm: Callable[..., None], no_world: None) -> None:
    rows = np.arange(1001.0)
    d = synk.data(rows)
    with synk.fork(2, device="cpu"):
        assert total(d) == rows.sum()
        small_shm(0)
        d.set_length(30_000)
        assert kind(d._segment) == "memfd"
        assert total(d) == rows.sum()
        add_one(d)
        np.testing.assert_array_equal(d, np.concatenate([rows, np.zeros(30_000 - 1001)]) + 1)


# ---- how much memory is left ---------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the files that tell of memory: /proc/meminfo, /proc/self/cgroup, and those of
    groups.
    """
    monkeypatch.setattr(memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "cgroup")

    def make(
        groups: str = "",
        files: dict[str, Any] | None = None,
        *,
        available: int = 10**6,
        swap: int = 0,
    ) -> None:
        texts = {
            "proc/meminfo": (
                f"MemTotal: 99999999 kB\nMemAvailable: {available} kB\nSwapFree: "
                f"{swap} kB\nHugePages_Total: 0\n"
            ),
            "proc/self/cgroup": groups,
            **{f"cgroup/{name}": f"{text}\n" for name, text in (files or {}).items()},
        }
        for name, text in texts.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    return make


def v2(path: str, limit: object, used: int, **stat: int) -> dict[str, object]:
    told = "\n".join(f"{name} {value}" for name, value in stat.items())
    return {
        f"{path}/memory.max": limit,
        f"{path}/memory.current": used,
        f"{path}/memory.stat": told,
    }


def v1(path: str, limit: object, used: int, **stat: int) -> dict[str, object]:
    told = "\n".join(f"{name} {value}" for name, value in stat.items())
    names = ("limit_in_bytes", "usage_in_bytes", "stat")
    return {
        f"memory{path}/memory.{name}": text
        for name, text in zip(names, (limit, used, told), strict=True)
    }


UNLIMITED = 9223372036854771712
MACHINES: dict[str, tuple[str, dict[str, Any], int]] = {
    "no groups": ("", {}, 1_024_000_000),
    "version 2, a container's own root": ("0::/\n", v2(".", 5000, 3000), 2000),
    "version 2, inner and outer": (
        "0::/a/b\n",
        {**v2("a/b", "max", 10), **v2("a", 900, 300), **v2(".", 5000, 0)},
        600,
    ),
    "version 2, files count as free": (
        "0::/a\n",
        v2("a", 900, 800, anon=1, active_file=50, inactive_file=30, shmem=9),
        180,
    ),
    "version 2, over its limit": ("0::/a\n", v2("a", 900, 1000), 0),
    "version 2, without limit": ("0::/a\n", v2("a", "max", 1000), 1_024_000_000),
    "version 1": (
        "5:cpu,cpuacct:/x\n4:memory:/a\n",
        {**v1("/a", 900, 300), **v1("", UNLIMITED, 500)},
        600,
    ),
    "version 1, files count as free": (
        "4:memory:/a\n",
        v1("/a", 900, 800, active_file=1, total_active_file=50, total_inactive_file=30),
        180,
    ),
    "version 1, group above not seen": ("4:memory:/docker/1f2e\n", v1("", 900, 300), 600),
    "both versions": (
        "4:memory:/a\n0::/b\n",
        {**v1("/a", 900, 300), **v2("unified/b", 800, 300)},
        500,
    ),
    "outside of what is seen": ("0::/../../x\n", v2(".", 5000, 3000), 2000),
}


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_left(machine: Callable[..., None], name: str) -> None:
    groups, files, expected = MACHINES[name]
    machine(groups, files)
    assert memory.available().nbytes == expected


def test_what_the_machine_has_left_limits_memory_files_alone(
    machine: Callable[..., None], maker: str
) -> None:
    """It is a low estimate, and /dev/shm has a size of its own."""
    machine(available=10 * 1024)
    if maker == "posix":
        assert Segment(11 * MIB).size == 11 * MIB
    else:
        with pytest.raises(
            SharedMemoryError,
            match="the machine has 10,485,760 bytes left.*run where more memory is free",
        ):
            Segment(11 * MIB)


def test_swap_counts_for_the_machine(machine: Callable[..., None]) -> None:
    machine(available=100, swap=50)
    assert memory.available() == (150 * 1024, "the machine", "run where more memory is free")


def test_where_nothing_is_told_there_is_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_PROC", tmp_path)
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    assert memory.available().nbytes >= 1 << 60


def test_this_machine_has_some() -> None:
    available = int(Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()[0])
    assert 0 < memory.available().nbytes <= 1.5 * 1024 * (available + 10**6)


def test_more_than_a_container_may_have_is_refused(
    machine: Callable[..., None], maker: str
) -> None:
    """The kernel would kill the container's processes: it reserves first, and counts later."""
    machine("0::/\n", v2(".", 100 * MIB, 40 * MIB))
    Segment(59 * MIB).close()
    with pytest.raises(SharedMemoryError, match=r"docker run --memory") as caught:
        Segment(61 * MIB)
    assert memory.available(machine=False).nbytes == 60 * MIB
    assert str(caught.value) == (
        "63,963,136 bytes of shared memory were requested, but the memory limit of this container "
        "(control group) has 62,914,560 bytes left. Free Data that is no longer needed "
        "(free_memory()), or raise it, as by docker run --memory=<bytes>."
    )
    one = Segment(PAGE)
    with pytest.raises(SharedMemoryError, match=r"docker run --memory"):
        one.grow(61 * MIB)
    assert (one.size, one.generation) == (PAGE, 0)


def test_optional_memory_leaves_half_of_what_is_there(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("0::/\n", v2(".", 100 * MIB, 0))
    monkeypatch.setenv(SWITCH, "memfd")
    assert segment.has_room(50 * MIB)
    assert not segment.has_room(51 * MIB)
    monkeypatch.setattr(segment, "_fits_shm", lambda *_, **__: False)
    monkeypatch.delenv(SWITCH)
    assert segment.has_room(50 * MIB)
    assert not segment.has_room(51 * MIB)


@needs_posix_ipc
def test_optional_memory_leaves_half_of_dev_shm(
    small_shm: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert segment.has_room(48 * MIB)  # elsewhere
    monkeypatch.setenv(SWITCH, "posix")
    assert segment.has_room(32 * MIB)
    assert not segment.has_room(48 * MIB)


# ---- what doctor tells --------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["", "posix", "memfd", "sysv", "no posix_ipc"])
def test_doctor_tells_where_segments_come_from(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if asked == "no posix_ipc":
        monkeypatch.setattr(segment, "posix_ipc", None)
        monkeypatch.setattr(segment, "_missing", "No module named 'posix_ipc'", raising=False)
    elif segment.posix_ipc is None:
        pytest.skip("posix_ipc is not installed")
    elif asked:
        monkeypatch.setenv(SWITCH, asked)
    starts, ends = {
        "": (
            "POSIX shared memory; where /dev/shm is too small, memory files (memfd), ",
            "GiB available",
        ),
        "posix": ("POSIX shared memory in /dev/shm", "by SYNKNUMBA_SEGMENTS=posix"),
        "memfd": ("memory files (memfd), ", "by SYNKNUMBA_SEGMENTS=memfd"),
        "sysv": ("none: ", "or not be set; got 'sysv'."),
        "no posix_ipc": (
            "memory files (memfd), ",
            "posix_ipc cannot be imported (No module named 'posix_ipc')",
        ),
    }[asked]
    assert segment.describe().startswith(starts)
    assert segment.describe().endswith(ends)


# ---- calls ---------------------------------------------------------------------------------------


def test_calls(maker: str, no_world: None) -> None:
    assert set(check(2)) == {maker}
