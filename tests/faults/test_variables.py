"""Variables of real scripts: what is freed when they go, and ranks that die or do not answer
during a collective.
"""

import pytest

from tests.faults.scripts import KILLER, await_work
from tests.quick import whole

# An array whose segment, with a part of it for each of two ranks, has a size that nothing else has.
SIZED = """
SIZE = 3 * 2**20 + 8192

def maps(pid):
    with open(f"/proc/{pid}/maps") as lines:
        ranges = [line.split()[0].split("-") for line in lines if "synk-" in line]
        return sum(int(stop, 16) - int(start, 16) == 2 * SIZE for start, stop in ranges)

def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))

@synk.function()
def grow(w):
    w += 1

@synk.parallel(grid=4)
def negate(w):
    for i in range(cuda.grid(1), w.shape[0], cuda.gridsize(1)):
        w[i] = -w[i]
"""
USES = {
    "nothing": "pass",
    "collectives": "synk.all_reduce(big, 'max'); synk.reduce(big, 'max'); "
    "synk.broadcast(big, root=1); "
    "synk.all_reduce(big, 'max')",
    "reduce to an array": (
        "synk.reduce(big, 'max', in_place=False); synk.reduce(big, 'max', in_place=False)"
    ),
    "in a list": "synk.all_reduce([big, small], 'max')",
    "into another": "synk.all_gather(big, dest=small); synk.reduce_scatter(big, 'max', dest=small)",
    "of values": (
        "synk.broadcast(big, np.zeros(SIZE // 8)); synk.set_value(1, big, np.ones(SIZE // 8))"
    ),
    "other shapes": "synk.scatter(big); synk.all_gather(big)",
    "halos": (
        "synk.scatter(big, halo=9); synk.exchange(big); synk.exchange([big]); "
        "synk.exchange(big, add=True); synk.scatter(big); synk.all_to_all(big); "
        "synk.broadcast(big, np.zeros(SIZE // 8))"
    ),
    "single ranks": "synk.get_value(1, big), synk.gather(big), big.get_value()",
    "argument of a function": "grow(big); total(big)",
    "argument of a kernel": "negate(big)",
}


FURTHER = (
    "other shapes",
    "argument of a kernel",
    "reduce to an array",
    "in a list",
    "of values",
    "single ranks",
    "argument of a function",
)


@pytest.mark.parametrize("use", [*whole(*FURTHER), *(use for use in USES if use not in FURTHER)])
def test_dropped_variables_free_their_memory_everywhere(start, use):
    script = start(
        SIZED
        + f"""
with synk.fork(2, device="cpu") as world:
    total(ROWS)
    small = synk.variable(np.ones(3))
    big = synk.variable(np.ones(SIZE // 8))
    {USES[use]}
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


@pytest.mark.whole
def test_variables_of_a_loop(start):
    """Of ever new sizes, in every collective: neither mappings nor descriptors nor programs pile
    up.
    """
    script = start(
        SIZED
        + """
def use(k):
    v = synk.variable(np.ones(1000 + 600 * k))
    w = synk.scatter(synk.vector([np.ones(3), np.ones(2)]), [np.arange(5.0), np.arange(4.0 + k)])
    synk.all_gather(v, dest=synk.variable(np.ones(1)))
    synk.all_reduce([v, u], "max")
    synk.reduce(u, "max", in_place=False)
    synk.all_gather(w)
    synk.exchange(synk.scatter(v, halo=2 + k % 3, periodic=True))
    synk.exchange(v, add=True)
    half = 500 + 300 * k
    synk.all_to_all(synk.scatter(v, np.ones(2 * half)), counts=[[half, 0], [k, half - k]])
    synk.all_gather(v)
    synk.broadcast(u, np.ones(1 + k % 7))
    return synk.reduce_scatter(v, "sum").get_value(0)[0]

def held(pid):
    with open(f"/proc/{pid}/maps") as lines:
        return sum("/synk-" in line for line in lines), descriptors(pid)

with synk.fork(2, device="cpu") as world:
    u = synk.variable(np.ones(3))
    everybody = (os.getpid(), *world.pids)
    for k in range(150):
        assert use(k) == 2
        if k == 50:
            before = [held(pid) for pid in everybody]
    assert [held(pid) for pid in everybody] == before, (before, [held(pid) for pid in everybody])
"""
    )
    script.finish()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "call",
    [
        "all_reduce(v, 'max')",
        *whole("broadcast(v)", "all_gather(v, dest=u)", "reduce(v, 'max')"),
        "exchange(h)",
        "exchange(h, add=True)",
        "all_to_all(d, w)",
        *whole("all_to_all(d, counts=c)"),
    ],
)
def test_rank_killed_during_a_large_collective(start, call, rank):
    script = start(
        KILLER
        + f"""
numbers = synk.data(ROWS)
world = synk.fork(2, device="cpu")
v = synk.variable(np.ones(2_000_000))
u = synk.variable(np.ones(1))
h = synk.scatter(synk.variable(np.ones((8, 200_000))), halo=4)
d, w = (synk.scatter(synk.variable(np.ones((8, 200_000)))) for _ in range(2))
c = synk.variable([2, 2])
total(numbers)
synk.{call}
say("ranks", *world.pids)
killer = Killer(world.pids[{rank}])
try:
    while True:
        synk.{call}
except synk.RankDied as error:  # also where it is seen between calls, when memory of a result is let go
    say("died", time.monotonic() - killer.at, error)
killer.join()
assert world.closed
assert np.array_equal(numbers, ROWS)
say("values", repr(v))
try:
    synk.all_reduce(v, "mean")
except synk.WorldError as error:
    say("closed:", error)
with synk.fork(2, device="cpu"):
    try:  # not lost if the death was seen between two calls, or the collective writes to another variable
        assert synk.all_reduce(v, "mean").get_value()[0] == v.get_value()[1] == 1
        say("kept")
    except synk.VariableLost as error:
        say("lost:", error)
    v.set_value(np.ones(3))
    assert synk.all_reduce(v, "sum").get_value()[0] == 2
    assert total(numbers) == ROWS.sum()
check_world()
"""  # noqa: E501
    )
    await_work(script.ranks()[rank])
    script.tell("kill")
    told = script.expect(r"died (\S+) (.*)")
    assert float(told[1]) < 1.0
    assert f"rank {rank} (pid " in told[2]
    assert "was killed by SIGKILL" in told[2]
    script.expect(r"values <Variable float64 \(2000000,\), of a world that is closed>")
    script.expect("closed: .*rank . .*fork.*")
    script.expect(
        rf"kept|lost: the values of the variable ended with the ranks \(rank "
        rf"{rank} .*set_value.*snapshot.*"
    )
    script.finish()


def test_collective_past_its_timeout(start):
    script = start("""
        world = synk.fork(2, device="cpu", timeout=1.5)
        v = synk.variable(np.ones(1_000_000), "w")
        synk.all_reduce(v, "sum")
        os.kill(world.pids[1], signal.SIGSTOP)
        began = time.monotonic()
        try:
            synk.all_reduce(v, "sum")
        except synk.CallTimeout as error:
            say("timeout", time.monotonic() - began, error)
        assert world.closed
        check_world()
    """)
    told = script.expect(r"timeout (\S+) (.*)")
    assert 1.5 <= float(told[1]) < 2.5
    assert told[2].startswith(
        "all_reduce(float64 (1000000,)) took longer than timeout=1.5 s; still working: rank 1."
    )
    script.finish()


def test_interrupted_collectives(start):
    """Ctrl-C at any moment: the world is closed, or works as if nothing had been; and nothing is
    left behind.
    """
    script = start(
        SIZED
        + """
import gc, itertools

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
rows = np.arange(70_000.0)

def collectives(v, u):
    for k in itertools.count():
        synk.all_reduce(v, "max")
        synk.all_gather(v, dest=u)
        synk.broadcast(u, np.ones(1 + k % 5))
        synk.reduce([u, v], "max", in_place=False)
        synk.gather(synk.scatter(synk.variable(rows[:9]), rows), nd_up=0)
        h = synk.exchange(synk.scatter(synk.variable(rows[:9]), rows, halo=k % 3 + 1))
        synk.exchange(h, add=True)
        synk.all_to_all(synk.scatter(synk.variable(rows[:9]), rows), dest=h)
        synk.set_value(1, v, rows)

def try_one(seconds):
    with synk.fork(2, device="cpu") as world:
        v, u = synk.variable(rows), synk.variable(np.ones(1))
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)  # again, where Python drops what is raised in a finalizer
            collectives(v, u)
        except KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        if world.closed:
            return "closed"
        assert np.array_equal(synk.all_reduce(v, "max").get_value(1), rows)
        assert np.array_equal(synk.gather(v), [rows, rows])
        assert np.array_equal(synk.all_gather(v, dest=u).get_value(1), np.concatenate([rows, rows]))
        assert synk.all_reduce(synk.broadcast(u, np.ones(2)), "sum").get_value(0)[1] == 2
        return "open"

def held():
    gc.collect()
    with open("/proc/self/maps") as lines:
        return sum("/synk-" in line for line in lines), descriptors("self")

try_one(0.01)
check_world()
before = held()
ends = [try_one(0.002 + 0.0007 * k) for k in range(25)]
say("ends", *sorted(set(ends)))
check_world()  # closes what a finalizer that was interrupted has left open
assert held() == before, (before, held())
"""  # noqa: E501
    )
    script.expect("ends (closed|open|closed open)")
    script.finish()
