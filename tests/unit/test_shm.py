"""One segment: nameless, private, reserved, kept by its views, gone with its last reference."""

import errno
import fcntl
import gc
import mmap
import os
import resource
import socket
import stat
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from synknumba._errors import SharedMemoryError
from synknumba._host import segment as segment_module
from synknumba._host.deaths import settle
from synknumba._host.segment import Segment, on_release, release_inherited

PAGE = mmap.PAGESIZE
BIG = 256 << 20
TOO_MUCH = 1 << 50

pytestmark = pytest.mark.usefixtures("maker")


def descriptors() -> set[str]:
    return {name for name in os.listdir("/proc/self/fd") if "/synk-" in _target(name)}


def _target(name: str, pid: int | str = "self") -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{name}")
    except FileNotFoundError:  # the listing's own descriptor
        return ""


def inode_of(segment: Segment) -> int:
    return os.fstat(segment.fd).st_ino


def holders(inodes: Collection[int], pids: Iterable[int | str] = ("self",)) -> list[str]:
    """What keeps the memory of shared inodes: descriptors and mappings of processes.

    The bytes that are free tell less, since others take and leave shared memory meanwhile.
    """
    holding = []
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                status = link.stat()
            except FileNotFoundError:  # the listing's own descriptor
                continue
            if status.st_ino in inodes and "/synk-" in _target(link.name, pid):
                holding.append(f"descriptor {link}")
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        ours = [line for line in lines if "/synk-" in line]
        holding += [f"mapping: {line}" for line in ours if int(line.split()[4]) in inodes]
    return holding


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@contextmanager
def forked(check: Callable[[socket.socket], bool]) -> Iterator[socket.socket]:
    """Runs `check` in a forked child, with a socket to talk to it; it must return True."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            ours.close()
            status = 0 if check(theirs) else 1
        finally:
            os._exit(status)
    theirs.close()
    with ours:
        yield ours
    assert os.waitpid(pid, 0)[1] == 0


def names() -> list[str]:
    """What is left in /dev/shm; other processes of this machine may have a name there for some
    microseconds.
    """
    found = {name for name in os.listdir("/dev/shm") if name.startswith("synk-")}
    if found:
        time.sleep(0.05)
        found &= set(os.listdir("/dev/shm"))
    return sorted(found)


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    settle()
    before = descriptors()
    yield
    settle()
    if not descriptors() <= before:
        gc.collect()  # slow, and cycles are rare
        settle()
    assert descriptors() <= before
    assert names() == []


def test_segment_is_nameless_private_and_close_on_exec() -> None:
    segment = Segment(100)
    assert names() == []
    status = os.fstat(segment.fd)
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_nlink == 0
    assert fcntl.fcntl(segment.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


@pytest.mark.parametrize(("nbytes", "pages"), [(0, 1), (1, 1), (PAGE, 1), (PAGE + 1, 2)])
def test_size_is_reserved_in_pages(nbytes: int, pages: int) -> None:
    segment = Segment(nbytes)
    assert segment.size == pages * PAGE
    assert os.fstat(segment.fd).st_blocks * 512 == segment.size  # reserved, not sparse


def test_reservation_in_steps_covers_everything() -> None:
    segment = Segment(2 * segment_module._RESERVE_STEP + 5)
    assert os.fstat(segment.fd).st_blocks * 512 == segment.size


@pytest.mark.parametrize("start", [0, BIG // 8])
def test_memory_is_mapped_and_cleared_beforehand(start: int) -> None:
    """A page fault costs 0.3 to 2 µs, so that a first copy into memory without pages runs at 1
    GB/s.
    """
    segment = Segment(start)
    made = faults()
    segment.grow(start + BIG // 4)
    view = segment.array("u1", (BIG // 4,), start)
    assert not view[::PAGE].any()
    # Linux maps pages that are cleared by the dozen, others one by one
    assert faults() - made < BIG // 4 // PAGE // 2
    made = faults()
    view[:] = 1
    assert faults() - made < 100


def test_ids_are_never_reused() -> None:
    ids = [Segment(1).id for _ in range(5)]
    assert ids == sorted(set(ids))


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("f8", (3, 4)),
        ("i1", ()),
        ("f4", (0, 3)),
        ([("a", "i4"), ("b", "f8", (2,))], (5,)),
        ("c16", (0,)),
    ],
)
def test_array_is_a_writable_view_of_zeros(dtype: object, shape: tuple[int, ...]) -> None:
    segment = Segment(1000)
    view = segment.array(dtype, shape)
    assert view.shape == shape
    assert view.flags.writeable
    assert view.flags.c_contiguous
    np.testing.assert_array_equal(view, np.zeros(shape, dtype))


def test_array_starts_at_an_offset() -> None:
    segment = Segment(100)
    segment.array("i4", (4,))[:] = [1, 2, 3, 4]
    np.testing.assert_array_equal(segment.array("i4", (2,), offset=8), [3, 4])
    assert segment.array("i4", (0,), offset=segment.size).size == 0


@pytest.mark.parametrize(
    ("shape", "offset"), [((PAGE + 1,), 0), ((1,), PAGE), ((1,), -1), ((-1,), 0)]
)
def test_array_outside_is_refused(shape: tuple[int, ...], offset: int) -> None:
    with pytest.raises(SharedMemoryError, match="does not hold an array"):
        Segment(PAGE).array("u1", shape, offset)


def test_grow_keeps_contents_and_old_views() -> None:
    segment = Segment(PAGE)
    old = segment.array("u4", (PAGE // 4,))
    old[:] = np.arange(PAGE // 4)
    segment.grow(3 * PAGE + 1)
    assert (segment.size, segment.generation) == (4 * PAGE, 1)
    new = segment.array("u4", (PAGE,))
    np.testing.assert_array_equal(new[: PAGE // 4], np.arange(PAGE // 4))
    np.testing.assert_array_equal(new[PAGE // 4 :], 0)
    new[0] = 77
    assert old[0] == 77
    old[1] = 78
    assert new[1] == 78
    assert os.fstat(segment.fd).st_blocks * 512 == segment.size


def test_grow_to_what_fits_does_nothing() -> None:
    segment = Segment(PAGE)
    segment.grow(PAGE)
    segment.grow(10)
    assert (segment.size, segment.generation) == (PAGE, 0)


def test_old_mapping_goes_with_its_views() -> None:
    segment = Segment(PAGE)
    mapping = segment._mapping
    assert mapping is not None
    gone = weakref.ref(mapping)
    view = segment.array("u1", (1,))
    segment.grow(2 * PAGE)
    del mapping
    assert gone() is not None
    del view
    assert gone() is None


def test_overlaps_sees_mappings_from_before_it_grew() -> None:
    segment, other = Segment(PAGE), Segment(PAGE)
    old = segment.array("u1", (10,))
    segment.grow(2 * PAGE)
    assert segment.overlaps(old[3:])
    assert segment.overlaps(segment.array("u1", (10,)))
    assert not segment.overlaps(other.array("u1", (10,)))
    assert not segment.overlaps(np.zeros(3))


def test_close_is_idempotent_and_views_outlive_it() -> None:
    segment = Segment(8)
    view = segment.array("f8", (1,))
    segment.close()
    segment.close()
    assert segment.closed
    assert segment.fd == -1
    view[0] = 3.0
    assert view[0] == 3.0
    with pytest.raises(SharedMemoryError, match="no memory"):
        segment.array("f8", (1,))
    with pytest.raises(SharedMemoryError, match="cannot grow"):
        segment.grow(PAGE * 2)


def test_repr_shows_the_state() -> None:
    segment = Segment(8)
    assert repr(segment) == f"<Segment id={segment.id} size={PAGE} open>"
    segment.close()
    assert repr(segment) == f"<Segment id={segment.id} size={PAGE} closed>"


def test_memory_goes_with_the_last_reference() -> None:
    segment = Segment(BIG)
    inodes = [inode_of(segment)]
    view = segment.array("u1", (BIG,))
    descriptor = f"descriptor /proc/self/fd/{segment.fd}"
    assert descriptor in holders(inodes)
    del segment
    settle()
    held = holders(inodes)  # by the view
    assert held
    assert descriptor not in held
    del view
    assert holders(inodes) == []


def test_memory_is_given_back_before_the_next_segment_takes_some() -> None:
    inodes: list[int] = []
    for _ in range(3):
        segment = Segment(BIG)
        assert holders(inodes) == []
        inodes = [inode_of(segment)]
        del segment


def test_listeners_are_told_once_by_close_or_by_the_last_reference() -> None:
    told: list[int] = []
    unsubscribe = on_release(told.append)
    first, second = Segment(1), Segment(1)
    ids = [first.id, second.id]
    first.close()
    first.close()
    del first
    assert told == ids[:1]
    del second
    assert told == ids[:1]  # no Python code runs when an object dies
    settle()
    assert told == ids
    unsubscribe()
    unsubscribe()
    Segment(1).close()
    assert told == ids


def test_listeners_are_not_told_of_attached_segments() -> None:
    told: list[int] = []
    unsubscribe = on_release(told.append)
    segment = Segment(1)
    attached = Segment.attach(segment.id, os.dup(segment.fd), segment.size)
    attached.close()
    assert told == []
    unsubscribe()


def test_a_forked_child_is_silent() -> None:
    told: list[int] = []
    unsubscribe = on_release(told.append)
    box = [Segment(1)]

    def check(_: socket.socket) -> bool:
        box.clear()
        settle()
        return told == []

    with forked(check):
        pass
    box.clear()
    settle()
    assert len(told) == 1
    unsubscribe()


def test_attach_shares_memory_and_closes_the_descriptor() -> None:
    segment = Segment(PAGE)
    fd = os.dup(segment.fd)
    attached = Segment.attach(segment.id, fd, segment.size)
    assert (attached.id, attached.size, attached.fd) == (segment.id, segment.size, -1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    attached.array("i4", (1,))[0] = 5
    assert segment.array("i4", (1,))[0] == 5
    with pytest.raises(SharedMemoryError, match="another process created it"):
        attached.grow(2 * PAGE)


def test_attach_that_fails_closes_the_descriptor() -> None:
    segment = Segment(PAGE)
    fd = os.dup(segment.fd)
    with pytest.raises(SharedMemoryError, match="cannot allocate"):
        Segment.attach(segment.id, fd, 10 * PAGE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_attach_in_another_process_and_again_after_growth() -> None:
    segment = Segment(PAGE)

    def check(theirs: socket.socket) -> bool:
        release_inherited()
        for generation in range(2):
            header, fds, _, _ = socket.recv_fds(theirs, 8, 1)
            attached = Segment.attach(1, fds[0], int.from_bytes(header, "little"))
            attached.array("u1", (attached.size,))[-1] = 10 + generation
            theirs.send(b"x")
        return True

    with forked(check) as ours:
        for pages in (1, 2):
            segment.grow(pages * PAGE)
            socket.send_fds(ours, [segment.size.to_bytes(8, "little")], [segment.fd])
            assert ours.recv(1) == b"x"
    view = segment.array("u1", (2 * PAGE,))
    assert (view[PAGE - 1], view[-1]) == (10, 11)


def test_release_inherited_frees_the_memory_for_the_parent() -> None:
    kept = Segment(PAGE)
    kept.array("u1", (1,))[0] = 9
    dropped = [Segment(BIG), Segment(BIG)]
    inodes = [inode_of(segment) for segment in dropped]
    views = [dropped[0].array("u1", (BIG,))]
    dropped[0].grow(BIG + 1)  # the view's mapping is not the segment's any more

    def check(theirs: socket.socket) -> bool:
        release_inherited(keep=[kept])
        theirs.send(b"x")
        theirs.recv(1)
        closed = [segment.closed for segment in (*dropped, kept)]
        return (
            closed == [True, True, False]
            and kept.array("u1", (1,))[0] == 9
            and views[0].size == BIG
        )

    with forked(check) as ours:
        ours.recv(1)
        dropped.clear()
        views.clear()
        settle()
        assert holders(inodes, ("self", *children())) == []
        ours.send(b"x")


LACKS = {
    "posix": (r"/dev/shm has [\d,]+ bytes free.*remount,size=.*--shm-size=", "enlarge /dev/shm"),
    "memfd": (
        r"(the machine|the memory limit .*) has [\d,]+ bytes left.*free_memory\(\)",
        "out of memory",
    ),
}


def test_a_lack_of_memory_is_an_error_that_teaches(maker: str) -> None:
    with pytest.raises(SharedMemoryError, match=LACKS[maker][0]) as caught:
        Segment(TOO_MUCH)
    assert f"{TOO_MUCH:,} bytes" in str(caught.value)
    assert isinstance(caught.value, MemoryError)


def test_a_growth_that_fails_leaves_the_segment_as_it_was(maker: str) -> None:
    segment = Segment(PAGE)
    view = segment.array("u1", (PAGE,))
    view[:] = 3
    with pytest.raises(SharedMemoryError, match=LACKS[maker][0]):
        segment.grow(TOO_MUCH)
    _assert_untouched(segment)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOMEM])
def test_space_that_runs_out_halfway_is_given_back(
    monkeypatch: pytest.MonkeyPatch, maker: str, code: int
) -> None:
    segment = Segment(PAGE)
    segment.array("u1", (PAGE,))[:] = 3
    reserve, calls = os.posix_fallocate, iter(range(10))

    def runs_out(fd: int, offset: int, length: int) -> None:
        if next(calls) % 2:
            raise OSError(code, os.strerror(code))
        reserve(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", runs_out)
    with pytest.raises(SharedMemoryError, match=LACKS[maker][1]):
        segment.grow(3 * segment_module._RESERVE_STEP)
    _assert_untouched(segment)
    with pytest.raises(SharedMemoryError, match=LACKS[maker][1]):
        Segment(3 * segment_module._RESERVE_STEP)


@pytest.mark.parametrize("failing", ["posix_fallocate", "mmap"])
def test_an_interrupted_growth_leaves_the_segment_as_it_was(
    monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    segment = Segment(PAGE)
    segment.array("u1", (PAGE,))[:] = 3

    def interrupted(*_args: object, **_kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        os if failing == "posix_fallocate" else segment_module.mmap, failing, interrupted
    )
    with pytest.raises(KeyboardInterrupt):
        segment.grow(2 * PAGE)
    with pytest.raises(KeyboardInterrupt):
        Segment(PAGE)
    monkeypatch.undo()
    _assert_untouched(segment)


def _assert_untouched(segment: Segment) -> None:
    assert (segment.size, segment.generation) == (PAGE, 0)
    assert os.fstat(segment.fd).st_size == PAGE
    assert os.fstat(segment.fd).st_blocks * 512 == PAGE
    np.testing.assert_array_equal(segment.array("u1", (PAGE,)), 3)


# none for the segment; none for the duplicate that mmap keeps before Python 3.13
@pytest.mark.parametrize("spare", [0, 1])
def test_no_descriptor_left_is_an_error_that_teaches(spare: int) -> None:
    def check(_: socket.socket) -> bool:
        gc.disable()  # what earlier tests have left may hold descriptors, and would free one here
        last = take_descriptors()
        resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1 + spare, last + 1 + spare))
        try:
            Segment(1)
        except SharedMemoryError as error:
            leaked = spare == 1 and os.dup(0) != last + 1
            return "ulimit -Hn" in str(error) and not leaked
        return spare == 1 and sys.version_info >= (3, 13)

    with forked(check):
        pass


@pytest.mark.parametrize("spare", [0, 1])
def test_a_low_soft_limit_of_descriptors_is_raised(spare: int) -> None:
    def check(_: socket.socket) -> bool:
        last = take_descriptors()
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1 + spare, hard))
        many = [Segment(1) for _ in range(100)]
        many[0].grow(3 * PAGE)
        return resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)

    with forked(check):
        pass


def take_descriptors() -> int:
    """Opens files until there are no gaps; the number of the last."""
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    while (last := os.dup(0)) < highest:
        pass
    return last


def test_core_files_do_not_hold_segments() -> None:
    made = Segment(1 << 20)
    made.grow(2 << 20)
    start = made.array(np.uint8, (1,)).ctypes.data
    lines = Path("/proc/self/smaps").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"{start:x}-"))
    flags = next(line for line in lines[at:] if line.startswith("VmFlags:")).split()
    assert "dd" in flags  # do not dump
    made.close()


def test_populate_takes_the_memory_of_a_mirror_and_no_more():
    fd = os.memfd_create("mirror")
    os.ftruncate(fd, 8 * PAGE)
    mirror = Segment.attach(1, os.dup(fd), 8 * PAGE)
    mirror.populate(2 * PAGE, 3 * PAGE - 100)
    taken = os.fstat(fd).st_blocks * 512
    os.close(fd)
    assert taken in {3 * PAGE, 0}  # none before Linux 5.14
    assert not mirror.array(np.uint8, (8 * PAGE,)).any()
    mirror.close()


def test_populate_tells_of_a_lack_of_memory():
    fd = os.memfd_create("mirror")
    os.ftruncate(fd, 4 * PAGE)
    mirror = Segment.attach(1, os.dup(fd), 4 * PAGE)
    os.ftruncate(fd, 2 * PAGE)  # the other pages cannot be had
    os.close(fd)
    with pytest.raises(SharedMemoryError, match="were requested, but the machine is out of memory"):
        mirror.populate(0, 4 * PAGE)
    mirror.close()


def test_only_names_left_by_dead_processes_are_removed(monkeypatch, tmp_path) -> None:
    """A user's own files and named shared memory may begin alike."""
    child = subprocess.Popen(["true"])
    child.wait()
    monkeypatch.setattr(segment_module, "_SHM", str(tmp_path))
    kept = [
        "synk-results.npy",  # a user's
        f"synk-{child.pid:08x}{'5a' * 9}",
        f"synk-{os.getpid():08x}{'5a' * 8}",  # of a process that runs
    ]
    left, recent, filled = (f"synk-{child.pid:08x}{digits * 8}" for digits in ("0a", "0b", "0c"))
    for name in (*kept, left, filled, recent):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, None if name == recent else (0, 0))
    (tmp_path / filled).write_bytes(b"a segment has its name while it is empty")
    os.utime(tmp_path / filled, (0, 0))
    segment_module.sweep_names()
    assert {path.name for path in tmp_path.iterdir()} == {*kept, recent, filled}


def test_names_begin_with_their_process() -> None:
    assert segment_module._new_name().startswith(f"/synk-{os.getpid():08x}")
