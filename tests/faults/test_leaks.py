"""What a running script must not keep: descriptors, mappings, children, memory of data that was
dropped, processor time.
"""

import time

import pytest

from tests.faults.scripts import cpu_ticks, poll
from tests.quick import whole

pytestmark = pytest.mark.usefixtures("maker")

# Segments that a process maps. They show as deleted, since they have no name.
SEGMENTS = """
def segments(pid="self"):
    with open(f"/proc/{pid}/maps") as maps:
        return sum("/synk-" in line for line in maps)

def descriptors():
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            pass  # the one that listdir had open
    return found
"""


@pytest.mark.whole
def test_fork_and_close_again_and_again(start):
    script = start(
        SEGMENTS
        + """
numbers = synk.data(ROWS)

@synk.function(outputs="gather")
def double(x):
    return 2 * x

def cycle(with_kernel):
    with synk.fork(2, device="cpu"):
        assert total(numbers) == ROWS.sum()
        assert np.array_equal(double(numbers), 2 * ROWS)
        if with_kernel:  # which takes most of the time, since every world compiles it
            assert burn(ROWS[:2], 1) > 0

for k in range(3):
    cycle(True)
before = descriptors(), segments()
for k in range(20):
    cycle(k % 5 == 0)
after = descriptors(), segments()
assert before == after, (before, after)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    say("no child")
"""
    )
    script.expect("no child")
    script.finish()


def test_failed_worlds_leak_nothing(start):
    script = start(
        SEGMENTS
        + """
numbers = synk.data(ROWS)

def cycle():
    world = synk.fork(2, device="cpu")
    total(numbers)
    os.kill(world.pids[0], signal.SIGKILL)
    try:
        total(numbers)
    except synk.RankDied:
        pass

for _ in range(3):
    cycle()
before = descriptors(), segments()
for _ in range(10):
    cycle()
after = descriptors(), segments()
assert before == after, (before, after)
"""
    )
    script.finish()


def test_nothing_is_named_while_a_world_is_open(start):
    script = start("""
        def names():
            return [name for name in os.listdir("/dev/shm") if name.startswith("synk-")]

        with synk.fork(2, device="cpu"):
            numbers = synk.data(ROWS)
            total(numbers)
            deadline = time.monotonic() + 5.0
            while names() and time.monotonic() < deadline:  # another process's may have one for microseconds
                pass
            assert not names()
    """)  # noqa: E501
    script.finish()


DROPS = {
    "argument of a kernel": "burn(big, 1)",
    "argument of a function": "total(big)",
    "argument with a batch": "total(big, batch=slice(10, 20)); burn(big, 1, batch=[1, 2, 3])",
    "broadcast": "scale(ROWS, big)",
    "written": "negate(big)",
    "in slices": "burn(big, 1, num_slices=3)",
}


FURTHER = ("argument of a kernel", "broadcast", "in slices")


@pytest.mark.parametrize("use", [*whole(*FURTHER), *(use for use in DROPS if use not in FURTHER)])
def test_dropped_data_frees_its_memory_everywhere(start, use):
    """A megabyte-sized mapping is looked for in the ranks and in the script by its size."""
    script = start(
        f"""
SIZE = 3 * 2**20 + 8192

def maps(pid):
    with open(f"/proc/{{pid}}/maps") as lines:
        ranges = [line.split()[0].split("-") for line in lines if "synk-" in line]
        return sum(int(stop, 16) - int(start, 16) == SIZE for start, stop in ranges)

@synk.function(outputs="sum", broadcast=("w",))
def scale(x, w):
    return x.sum() * w.sum()

@synk.parallel(inout=("y",))
def negate(y):
    i = cuda.grid(1)
    if i < y.shape[0]:
        y[i] = -y[i]

with synk.fork(2, device="cpu") as world:
    total(ROWS)
    big = synk.data(np.ones(SIZE // 8))
    {DROPS[use]}
    everybody = (os.getpid(), *world.pids)
    say("mapped", *(maps(pid) for pid in everybody))
    del big
    total(ROWS)  # a call frees what finalizers have noted
    say("left", *(maps(pid) for pid in everybody))
    assert total(ROWS) == ROWS.sum()
"""
    )
    script.expect("mapped 1 1 1")
    script.expect("left .*")
    assert script.printed[-1] == "left 0 0 0"
    script.finish()


def test_dropped_data_of_a_loop(start):
    """Arrays passed as they are, of ever new sizes: the ranks do not pile them up."""
    script = start(
        SEGMENTS
        + """
with synk.fork(2, device="cpu") as world:
    for k in range(300):
        x = synk.data(np.ones(1000 + 600 * k))
        assert total(x) == len(x)
        if k == 150:
            before = segments(world.pids[0]), segments()
    assert segments(world.pids[0]) <= before[0] + 2, (before, segments(world.pids[0]))
    assert segments() <= before[1] + 2, (before, segments())
"""
    )
    script.finish()


def test_grown_data_frees_its_old_mapping(start):
    script = start(
        SEGMENTS
        + """
with synk.fork(2, device="cpu") as world:
    x = synk.data(np.ones(1000))
    total(x), burn(x, 1)
    before = segments(world.pids[0]), segments()
    for k in range(1, 20):
        x.set_value(np.ones(1000 * 2**(k // 2)))
        assert total(x) == len(x)
        burn(x, 1)
    assert segments(world.pids[0]) <= before[0] + 1, (before, segments(world.pids[0]))
    assert segments() <= before[1] + 1, (before, segments())
"""
    )
    script.finish()


COPY = """
@synk.parallel(outputs={"rows": synk.output("gather", shape=(), dtype="float64")})
def copy(x, rows):
    i = cuda.grid(1)
    if i < x.shape[0]:
        rows[i] = x[i]
"""


def test_dropped_results_free_their_memory(start):
    """Those of two calls are in shared memory, which the plan and the results hold."""
    script = start(
        SEGMENTS
        + COPY
        + """
def everybody():
    total(ROWS)  # ranks have let go of what they were told to
    return segments(), segments(world.pids[0]), descriptors()

x = synk.data(np.arange(100_000.0))
with synk.fork(2, device="cpu") as world:
    total(x)
    before = everybody()
    kept = [copy(x) for _ in range(5)]
    mapped = everybody()
    assert [one - other for one, other in zip(mapped[:2], before[:2])] == [3, 3], (before, mapped)
    del copy  # and its plans
    assert segments() - before[0] == 2, "the two that are lent"
    views = [one[1:] for one in kept]
    del kept
    for view in views:
        assert np.array_equal(view, x[1:])
    assert segments() - before[0] == 2
    del views, view
    after = everybody()
    assert [one - other for one, other in zip(after[:2], before[:2])] == [0, 0], (before, after)
    assert len(after[2]) == len(before[2])
"""
    )
    script.finish()


def test_results_of_a_forking_script_free_their_memory(start):
    script = start(
        SEGMENTS
        + COPY
        + """
x = synk.data(np.arange(100_000.0))
with synk.fork(2, device="cpu") as world:
    y = [copy(x) for _ in range(2)]
    for k in range(20):
        y = [copy(x), copy(x)]
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal(y[0], x) else 1)
        assert os.waitpid(child, 0)[1] == 0
        if k == 2:
            before = segments(), segments(world.pids[0]), len(descriptors())
    after = segments(), segments(world.pids[0]), len(descriptors())
    assert before == after, (before, after)
"""
    )
    script.finish()


def test_idle_world_uses_no_processor_time(start):
    script = start("""
        with synk.fork(2, device="cpu") as world:
            for _ in range(1000):
                total(ROWS)
            burn(ROWS, 1)
            say("ranks", *world.pids)
            hear()
    """)
    processes = [script.pid, *script.ranks()]

    def used() -> int:
        return sum(cpu_ticks(pid) for pid in processes)

    began = time.monotonic()
    before = used()
    poll(lambda: time.monotonic() > began + 1.0, "a second has passed", 5.0)
    assert used() - before <= 3, "ticks of 10 ms, within the first second after the last call"
    before = used()
    poll(lambda: time.monotonic() > began + 3.0, "two more seconds have passed", 5.0)
    assert used() - before <= 1, "ticks of 10 ms, in two seconds of idling"
    script.tell("end")
    script.finish()
