"""What others on the machine could reach of a world: nothing has a name, nothing listens,
nothing may be written by others.
"""

import ast
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import synknumba as synk
from synknumba._comm import base
from synknumba._host import segment
from synknumba._wire.compiled import compiled
from synknumba.simt._machine.store import KernelStore
from tests.environment import share_own_functions
from tests.faults.scripts import MAKERS, names_in_shm, poll

ROWS = np.arange(100_000.0)
PACKAGE = Path(synk.__file__).parent

# Who may read pickles, and from where.
READERS = {
    "_wire/channel.py": "the private socketpair, and what came inside a message",
    "_wire/function_pickling.py": "functions, out of a message",
    "_host/stored.py": "a zarr array of the script's, out of a message",
    "_rank/loop.py": "what it has pickled itself, to see whether it can be",
    "_wire/messages.py": "news of ranks, out of a message",
    "_machines/machine_comm.py": "messages of the job's relays, by MPI",
    "_machines/link.py": "the socketpair of the job's relay",
    "_device/compilers/numba_cuda_cache.py": (
        "the cache of kernels, after the checks of simt/_machine/store.py"
    ),
    "_device/compilers/numba_cuda_mlir_cache.py": "the same",
    "simt/_machine/cache.py": "the same",
    "_wire/compiled.py": "the same",
    "_call/compared_ranks.py": (
        "records of the same command's runs, in a folder that only this user can open"
    ),
    "simt/_source/pickling.py": "a part of the pickle that is being read",
}


@synk.function(outputs="gather")
def double(x):
    return 2 * x


@pytest.fixture(scope="module", params=MAKERS)
def processes(request):
    """The processes of a world that has done something, with their descriptors' targets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(segment.SWITCH, request.param)
        yield from _processes()


def _processes():
    with synk.fork(2, device="cpu") as world:
        data = synk.data(ROWS)
        assert np.array_equal(double(data), 2 * ROWS)
        variable = synk.variable(ROWS)
        synk.all_reduce(variable, "sum")
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        assert {*map(str, world.pids)} < {*children}, "the ranks, and what carries their output"
        yield {int(pid): links(int(pid)) for pid in (os.getpid(), *children)}


def links(pid):
    found = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        if path.is_symlink():
            found[int(path.name)] = str(path.readlink())
    return found


def test_nothing_listens(processes):
    sockets = {
        pid: {link[8:-1] for link in held.values() if link.startswith("socket:[")}
        for pid, held in processes.items()
    }
    ours = set.union(*sockets.values())
    seen = 0
    for table in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6", "packet"):
        path = Path(f"/proc/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            inode = line.split()[8 if table == "packet" else 9]
            assert inode not in ours, f"{table}: {line}"
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[6] in ours:
            seen += 1
            accepts, name = int(fields[3], 16) & 0x10000, fields[7:]
            assert not accepts, "a socket that anybody may connect to"
            assert not name, "a socket that anybody may find"
    assert seen >= 2 * 2, "both ends of each rank's socketpair"


def test_the_search_for_listeners_finds_one():
    with socket.create_server(("127.0.0.1", 0)) as server:
        inode = os.fstat(server.fileno()).st_ino
        assert any(
            line.split()[9] == str(inode)
            for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        )


def test_memory_has_no_name_and_is_this_users_alone(processes):
    shared = 0
    for pid, held in processes.items():
        for fd, link in held.items():
            if "/synk-" in link or link.startswith("/memfd:synk-"):
                assert link.endswith(" (deleted)"), link
                path = Path(f"/proc/{pid}/fd/{fd}")
                status = path.stat()
                if str(path.readlink()) != link:
                    # the output process, which replaces what it inherits while the ranks start
                    continue
                shared += 1
                assert status.st_uid == os.geteuid()
                assert status.st_nlink == 0
                if "/synk-" in link:
                    assert stat.S_IMODE(status.st_mode) == 0o600
    assert shared >= 3
    # one that another process makes has for microseconds
    poll(lambda: not names_in_shm(), "no segment has a name")


@pytest.mark.skipif(segment.posix_ipc is None, reason="posix_ipc is not installed")
def test_a_segment_is_private_from_its_first_moment(monkeypatch):
    """Under the name that it has for some microseconds no other user may open it, whatever the
    script's umask.
    """
    seen = []
    unlink = segment.posix_ipc.unlink_shared_memory

    def look(name):
        seen.append(stat.S_IMODE(Path(f"/dev/shm{name}").stat().st_mode))
        unlink(name)

    monkeypatch.setenv(segment.SWITCH, "posix")
    monkeypatch.setattr(segment.posix_ipc, "unlink_shared_memory", look)
    before = os.umask(0)
    try:
        segment.Segment(100).close()
    finally:
        os.umask(before)
    assert seen == [0o600]


def test_no_file_is_written_for_all(processes, tmp_path):
    for pid, held in processes.items():
        for fd, link in held.items():
            path = Path(f"/proc/{pid}/fd/{fd}")
            if (
                link.startswith("/")
                and path.exists()
                and stat.S_ISREG(path.stat().st_mode)
                and pid != os.getpid()
            ):
                assert "synk" in link or not path.stat().st_mode & stat.S_IWOTH, link
    before = os.umask(0)
    try:
        store = KernelStore(tmp_path / "cache")
        with store.lock("00"):
            assert store.write("00", b"payload")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    files = list((tmp_path / "cache").iterdir())
    assert len(files) == 2
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    assert store.read("00") == b"payload"


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_cache_that_others_may_write_to_is_not_read(tmp_path, mode):
    store = KernelStore(tmp_path / "cache")
    assert store.write("00", b"payload")
    store.path.chmod(mode)
    assert store.read("00") is None
    assert not store.write("01", b"payload")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_cache_of_another_user_is_not_read(tmp_path):
    store = KernelStore(tmp_path / "cache")
    assert store.write("00", b"payload")
    os.chown(store.path, 65534, 65534)
    assert store.read("00") is None
    os.chown(store.path, 0, 0)
    os.chown(store.path / "00", 65534, 65534)
    assert store.read("00") is None


def test_pickles_are_read_where_it_is_known_who_wrote_them():
    found = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(
                    ast.Name("pickle" | "cloudpickle"), "load" | "loads" | "Unpickler"
                ):
                    found.setdefault(str(path.relative_to(PACKAGE)), []).append(node.lineno)
                case ast.ImportFrom("pickle" | "cloudpickle" | "marshal" | "shelve" | "dill"):
                    pytest.fail(f"{path}:{node.lineno} hides what it reads")
                case ast.keyword("allow_pickle"):
                    pytest.fail(f"{path}:{node.value.lineno} lets NumPy read pickles")
    assert found.keys() == READERS.keys()


# Prints the files that it opens below the folders that are given, and a collective's result.
IMPORTS = """
import os, sys
opened = set()
def note(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(tuple(sys.argv[1:])):
        opened.add(arguments[0])
sys.addaudithook(note)
import numpy as np
import synknumba as synk
with synk.fork(2, device="cpu"):
    print(synk.all_reduce(synk.variable(np.arange(3.0)), "sum").get_value(0).tolist())
print(*opened, sep="\\n")
"""  # noqa: E501


def imported(*folders, **variables):
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)} | variables
    command = [sys.executable, "-c", IMPORTS, *map(str, folders)]
    done = subprocess.run(
        command, check=False, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    result, *opened = done.stdout.splitlines()
    assert result == "[0.0, 2.0, 4.0]"
    return [path for path in opened if path]


@pytest.mark.whole
def test_an_import_reads_no_cache_of_numbas(tmp_path):
    """Numba unpickles what lies in its directory, whoever has written it."""
    for folder in (tmp_path, PACKAGE):
        for left in folder.rglob("*.nbi"):
            left.unlink()  # of an earlier release
    share_own_functions(tmp_path / "kernels")
    opened = imported(
        tmp_path,
        PACKAGE,
        NUMBA_CACHE_DIR=str(tmp_path),
        SYNKNUMBA_CACHE_DIR=str(tmp_path / "kernels"),
    )
    assert not [path for path in opened if path.endswith((".nbi", ".nbc"))]
    assert not [*tmp_path.rglob("*.nbi"), *PACKAGE.rglob("*.nbi")]
    assert len([path for path in opened if "/kernels/" in path]) > 10


def test_a_directory_that_cannot_be_looked_at_is_done_without(monkeypatch, tmp_path):
    # as of another user, also for root
    monkeypatch.setenv("SYNKNUMBA_CACHE_DIR", str(tmp_path / ("x" * 300)))

    @compiled("int64(int64)")
    def double(k):
        return 2 * k

    assert double(21) == 42


@pytest.mark.whole
def test_damaged_files_of_compiled_functions_are_replaced(tmp_path):
    folder = tmp_path / "kernels" / "package"
    imported(SYNKNUMBA_CACHE_DIR=str(folder.parent))
    whole = {
        path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")
    }
    damages = (
        lambda old: b"",
        lambda old: old[: len(old) // 2],
        lambda old: os.urandom(len(old)),
        lambda old: old[:-1] + b"x",
    )
    for number, (name, old) in enumerate(whole.items()):
        (folder / name).write_bytes(damages[number % len(damages)](old))
    imported(SYNKNUMBA_CACHE_DIR=str(folder.parent))
    store = KernelStore(folder)
    assert len(whole) > 10
    assert all(store.read(name) for name in whole)


def test_nccl_is_told_to_stay_on_this_machine(monkeypatch):
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    base.stay_on_this_machine()
    assert os.environ["NCCL_SOCKET_IFNAME"] == "lo"
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    base.stay_on_this_machine()
    assert os.environ["NCCL_SOCKET_IFNAME"] == "eth7", "who asks for another gets it"
