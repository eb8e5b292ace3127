"""What goes wrong on GPUs: faults of kernels, want of memory, ranks that die or stop inside a
collective of NCCL's.

A fault of a kernel leaves its context of no use, so the world ends; everything else leaves it
usable. NCCL is never waited for.
"""

import re

import pytest

from tests.faults.scripts import KILLER, await_work

one_gpu = pytest.mark.gpu
two_gpus = [pytest.mark.gpu, pytest.mark.multi_gpu]

AGAIN = """
assert world.closed
assert np.array_equal(numbers, ROWS)
with synk.fork(devices=DEVICES):
    assert total(numbers) == ROWS.sum()
    assert burn(ROWS[: len(DEVICES)], 1) == len(DEVICES) * (1103515245 + 12345)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    say("no child")
"""

WILD = """
@synk.parallel(inout=("y",))
def wild(y, on, rank, far):
    i = cuda.grid(1)
    if rank == on and i < y.shape[0]:
        y[i + far] = 1.0
"""

# Numba tells of a `raise` in a kernel only where it is compiled with debug; the message is then its
# own.
ASSERTING = """
@synk.parallel(outputs={"found": synk.output("sum", shape=())})
@cuda.jit(debug=True, opt=False)
def asserting(x, on, rank, found):
    i = cuda.grid(1)
    if rank == on and i < x.shape[0]:
        raise ValueError("in a kernel")
"""


@pytest.fixture
def finish(record_property):
    """Waits until the script has called `fork()` again and ended, and notes the
    error for docs/evidence/reliability.md.
    """

    def wait(script, fault, error, seconds):
        script.expect("no child")
        script.finish()
        record_property(
            "fault",
            {
                "fault": fault,
                "error": error,
                "seconds": None if seconds is None else float(seconds),
            },
        )

    return wait


@pytest.mark.parametrize(
    "devices",
    [
        pytest.param([0], marks=one_gpu),
        pytest.param([0, 0], marks=one_gpu),
        pytest.param([0, 1], marks=two_gpus),
    ],
    ids=["cuda1", "cuda2on1", "cuda2"],
)
def test_illegal_address(start, finish, devices):
    """On a GPU that ranks share, the context of another rank is another one, but the world ends
    all the same.
    """
    last = len(devices) - 1
    script = start(
        f"DEVICES = {devices}\n"
        + WILD
        + f"""
numbers = synk.data(ROWS)
y = synk.data(np.zeros(1001))
world = synk.fork(devices=DEVICES)
wild(y, -1, synk.RANK, 0)
total(numbers)
began = time.monotonic()
try:
    wild(y, {last}, synk.RANK, 10**12)
except synk.RankDied as error:
    say("died", time.monotonic() - began, str(error).replace("\\n", " "))
"""
        + AGAIN
    )
    told = script.expect(r"died (\S+) (.*)")
    assert float(told[1]) < 2.0
    assert f"rank {last}" in told[2]
    assert "wild(" in told[2]
    finish(
        script, f"a kernel writes to an illegal address, devices={devices}", "`RankDied`", told[1]
    )


@pytest.mark.gpu
@pytest.mark.multi_gpu
@pytest.mark.parametrize("times", [1, 1000])
def test_illegal_address_before_a_collective(start, finish, times):
    """The other GPUs wait in the collective of a sequence, for ever: the world ends, and the
    error names the first cause.
    """
    script = start(
        "DEVICES = [0, 1]\n"
        + WILD
        + f"""
@synk.sequence
def loop(y, v, far):
    wild(y, 1, synk.RANK, far)
    synk.all_reduce(v, "sum")

numbers = synk.data(ROWS)
y, v = synk.data(np.zeros(1001)), synk.variable(np.ones(1 << 20))
world = synk.fork(devices=DEVICES)
total(numbers)
for _ in range(3):
    loop(y, v, 0, times={times})
began = time.monotonic()
try:
    loop(y, v, 10**12, times={times})
except synk.RankDied as error:
    say("died", time.monotonic() - began, str(error).replace("\\n", " "))
"""
        + AGAIN
    )
    told = script.expect(r"died (\S+) (.*)")
    assert float(told[1]) < 2.0
    assert "the GPU of rank 1 failed" in told[2]
    finish(
        script,
        f"a kernel writes to an illegal address before an all_reduce in a sequence, times={times}",
        "`RankDied`",
        told[1],
    )


@one_gpu
def test_exception_in_a_kernel(start, finish):
    """Told as what it is where Numba tells it; where its `raise` traps, the context is lost and
    the world ends.
    """
    script = start(
        "DEVICES = [0]\n"
        + ASSERTING
        + """
numbers = synk.data(ROWS)
world = synk.fork(devices=DEVICES)
total(numbers)
try:
    asserting(numbers, 0, synk.RANK)
    say("nothing was told")
except synk.RankError as error:
    say("told", error.failures[0].type_name, error.failures[0].message)
    assert total(numbers) == ROWS.sum()
    world.close()
except synk.RankDied as error:
    say("told", str(error).replace("\\n", " "))
"""
        + AGAIN
    )
    told = script.expect(r"told (\w+) (.*)")
    error = "`RankError`; the world stays open" if told[1] == "ValueError" else "`RankDied`"
    finish(script, "a kernel raises an exception, debug=True", error, None)


HOARD = """
import builtins

@synk.function()
def hoard(x):
    import cupy

    free, _ = cupy.cuda.runtime.memGetInfo()
    builtins.kept = cupy.empty(free - (1 << 28), np.uint8)  # a quarter of a GiB is left

@synk.function()
def let_go(x):
    import cupy

    del builtins.kept
    cupy.get_default_memory_pool().free_all_blocks()

@synk.function(outputs="sum")
def allocate(x):
    import cupy

    return cupy.empty(100_000_000_000).sum()
"""
GREEDY = {
    "argument": ("total(large)", r"1,?073,?741,?824"),
    "variable": ("synk.variable(np.ones(1 << 27)).get_value(0)", r"1,?073,?741,?824"),
    "function": ("allocate(ROWS)", r"800,?000,?000,?000"),
}


@one_gpu
@pytest.mark.parametrize("how", GREEDY)
def test_out_of_device_memory(start, finish, how):
    """The error says how many bytes were asked for, and the world is usable."""
    call, asked = GREEDY[how]
    script = start(
        HOARD
        + f"""
DEVICES = [0]
numbers, large = synk.data(ROWS), synk.data(np.ones(1 << 27))
world = synk.fork(devices=DEVICES)
total(numbers)
hoard(numbers)
try:
    {call}
except (synk.RankError, MemoryError) as error:
    say("told", type(error).__name__, str(error).replace("\\n", " "))
assert not world.closed
assert total(numbers) == ROWS.sum()
let_go(numbers)
assert total(large) == 1 << 27
assert burn(ROWS[:1], 1) == 1103515245 + 12345
world.close()
"""
        + AGAIN
    )
    error, told = script.expect(r"told (\w+) (.*)").groups()
    assert re.search(asked, told), told
    assert "memory" in told.lower()
    assert re.search(r"The GPU has [\d,]+ of [\d,]+ bytes free", told), told
    finish(script, f"the GPU has no memory for: {how}", f"`{error}`; the world stays open", None)


NCCL = """
DEVICES = [0, 1]
numbers = synk.data(ROWS)
world = synk.fork(devices=DEVICES, transport="nccl"{timeout})
v = synk.variable(np.ones(50_000_000, np.float32))
synk.all_reduce(v, "max")
total(numbers)
"""


@pytest.mark.gpu
@pytest.mark.multi_gpu
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("call", ["all_reduce(v, 'max')", "broadcast(v)", "exchange(h)"])
def test_rank_killed_inside_a_collective(start, finish, call, rank):
    script = start(
        KILLER
        + NCCL.format(timeout="")
        + f"""
h = synk.scatter(synk.variable(np.ones((4, 20_000_000), np.float32)), halo=2)
synk.{call}
say("ranks", *world.pids)
killer = Killer(world.pids[{rank}])
try:
    while True:
        synk.{call}
except synk.RankDied as error:
    say("died", time.monotonic() - killer.at, error)
killer.join()
"""
        + AGAIN
    )
    await_work(script.ranks()[rank])
    script.tell("kill")
    told = script.expect(r"died (\S+) (.*)")
    assert float(told[1]) < 1.0
    assert f"rank {rank} " in told[2]
    assert "SIGKILL" in told[2]
    finish(script, f"SIGKILL of rank {rank} inside {call} by NCCL", "`RankDied`", told[1])


@pytest.mark.gpu
@pytest.mark.multi_gpu
@pytest.mark.parametrize("rank", [0, 1])
def test_rank_stopped_inside_a_collective(start, finish, rank):
    """The other rank waits for it inside a kernel of NCCL's, which nothing can interrupt."""
    script = start(
        NCCL.format(timeout=", timeout=3.0")
        + f"""
os.kill(world.pids[{rank}], signal.SIGSTOP)
began = time.monotonic()
try:
    synk.all_reduce(v, "max")
except synk.CallTimeout as error:
    say("timeout", time.monotonic() - began, error)
"""
        + AGAIN
    )
    told = script.expect(r"timeout (\S+) (.*)")
    assert 3.0 <= float(told[1]) < 5.0
    assert "all_reduce" in told[2]
    finish(
        script,
        f"SIGSTOP of rank {rank} inside all_reduce by NCCL, timeout=3",
        "`CallTimeout`",
        told[1],
    )


@pytest.mark.gpu
@pytest.mark.multi_gpu
def test_rank_dies_before_it_arrives_at_a_collective(start, finish):
    """The other one is in it already."""
    script = start(
        """
from synknumba._host import this_process
from synknumba._rank import collective_routine

run = collective_routine.Steps.__call__
left = [2]

def die_at_the_third(self):
    left[0] -= 1
    if left[0] < 0 and this_process.current_rank() == 1:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    run(self)

collective_routine.Steps.__call__ = die_at_the_third
"""
        + NCCL.format(timeout="")
        + """
try:
    for _ in range(5):
        synk.all_reduce(v, "max")
except synk.RankDied as error:
    say("died", error)
collective_routine.Steps.__call__ = run
"""
        + AGAIN
    )
    script.expect("died rank 1 .*SIGKILL.*")
    finish(script, "SIGKILL of a rank before it arrives at all_reduce by NCCL", "`RankDied`", None)
