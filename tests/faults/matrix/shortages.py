"""What a machine lacks: memory, descriptors, processes, room in `/dev/shm`."""

import os
import resource

import numpy as np

import synknumba as synk
from tests.faults.matrix.acting import act, here, mask
from tests.faults.matrix.phases import LARGE, total

MIB = 1 << 20


# ---- memory and descriptors ----------------------------------------------------------------------


@synk.function(outputs="sum")
def greedy(on, rank):
    if here(on, rank):
        limits = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + 64 * MIB, limits[1]))
        try:
            return np.ones(1 << 27).sum()
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
    return 1.0


@act("a rank has no memory")
def _(calls, ranks):
    greedy(mask(ranks), synk.RANK)


def _limited(what: int, value: int, hard: int | None = None) -> tuple[int, int]:
    limits = resource.getrlimit(what)
    resource.setrlimit(what, (value, limits[1] if hard is None else hard))
    return limits


@synk.function(outputs="gather")
def large_file_limit(x, on, rank):
    """A result that needs a segment of its own, where no file may be so large."""
    if here(on, rank):
        _limited(resource.RLIMIT_FSIZE, 4096)
    return np.ones(20_000)


@synk.function(outputs=None)
def lift_limits(x):
    for what in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
        resource.setrlimit(what, (resource.getrlimit(what)[1],) * 2)


@act("a rank may not make shared memory")
def _(calls, ranks):
    try:
        large_file_limit(calls.numbers, mask(ranks), synk.RANK)
    finally:
        lift_limits(calls.numbers)


@synk.function(outputs="gather")
def few_descriptors(x, on, rank):
    """A result that needs a segment of its own, where another file may be opened only after the
    limit is raised.
    """
    if here(on, rank):
        _limited(resource.RLIMIT_NOFILE, len(os.listdir("/proc/self/fd")) - 1)
    return np.ones(20_000)


@act("a rank has few descriptors")
def _(calls, ranks):
    assert few_descriptors(calls.numbers, mask(ranks), synk.RANK).sum() >= 20_000


@act("the script may not make shared memory")
def _(calls, ranks):
    limits = _limited(resource.RLIMIT_FSIZE, 4096)
    try:
        synk.data(LARGE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@act("the script may not enlarge shared memory")
def _(calls, ranks):
    limits = _limited(resource.RLIMIT_FSIZE, calls.large.nbytes)
    try:
        calls.large.set_length(10 * len(LARGE))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert np.array_equal(calls.large, LARGE)


@act("the script has no descriptors")
def _(calls, ranks):
    most = len(os.listdir("/proc/self/fd")) + 60
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        pass
    try:
        synk.data(LARGE)
    finally:
        for fd in taken:
            os.close(fd)


@act("the script has no address space")
def _(calls, ranks):
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    limits = _limited(resource.RLIMIT_AS, now + 16 * MIB)
    try:
        synk.data(shape=(1 << 24,), dtype="float64")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


# ---- a full /dev/shm, of a few MiB --------------------------------------------------------


def _filled(bytes_left: int) -> synk.Data:
    status = os.statvfs("/dev/shm")
    return synk.data(shape=(status.f_bavail * status.f_frsize - bytes_left,), dtype="u1")


@act("/dev/shm is full: data")
def _(calls, ranks):
    synk.data(shape=(64 * MIB,), dtype="u1")


@act("/dev/shm is full: growth")
def _(calls, ranks):
    try:
        calls.large.set_length(10_000_000)
    finally:
        assert np.array_equal(calls.large, LARGE)


@act("/dev/shm is full: an argument")
def _(calls, ranks):
    total(np.ones(8 * MIB))


@synk.function(outputs="gather")
def large_result(x):
    return np.ones(20_000)


@act("/dev/shm is full: a rank's result")
def _(calls, ranks):
    filling = _filled(64 * 1024)
    try:
        large_result(calls.numbers)
    finally:
        filling.free_memory()


@act("/dev/shm is full: a variable")
def _(calls, ranks):
    synk.all_reduce(synk.variable(np.ones(8 * MIB)), "sum")


@act("/dev/shm is full: a kernel's output")
def _(calls, ranks):
    filling = _filled(64 * 1024)
    try:
        calls.combination()
    finally:
        filling.free_memory()


@act("/dev/shm is full: another world")
def _(calls, ranks):
    synk.close()
    filling = _filled(8 * 1024)
    try:
        synk.fork(calls.world_size, device="cpu")
    finally:
        filling.free_memory()


@act("no process can be made")
def _(calls, ranks):
    synk.close()
    real_fork, left = os.fork, [calls.world_size - 1]

    def fork() -> int:
        if not left[0]:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        left[0] -= 1
        return real_fork()

    os.fork = fork
    try:
        synk.fork(calls.world_size, device="cpu")
    finally:
        os.fork = real_fork
