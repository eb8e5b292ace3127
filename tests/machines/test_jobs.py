"""Scripts on several machines: what they can do, and what happens when something dies."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests.environment import environment
from tests.faults.test_stopping import ENDLESS
from tests.machines.jobs import HEADER, Job, start
from tests.quick import whole

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(
    "shape", [(2, 1), *whole((2, 2), (3, 1))], ids=lambda shape: f"{shape[0]}x{shape[1]}"
)
def test_a_script(shape, tmp_path):
    """Its ranks, what they know of the script, and worlds after each other, also of fewer ranks
    than machines.
    """
    machines, ranks = shape
    job = start(
        machines,
        ranks,
        """
        os.environ["SYNK_TEST_VALUE"] = "7"
        os.environ.pop("SYNK_TEST_GONE", None)
        os.chdir("/")

        @synk.function(outputs="min")
        def knows(x):
            here = os.getcwd() == "/" and os.environ.get("SYNK_TEST_VALUE") == "7"
            return int(here and "SYNK_TEST_GONE" not in os.environ)

        @synk.function
        def add_rank(w, n, rank):
            w += rank
            n += rank

        @synk.function
        def spread(u, rank):
            u[:] = (np.arange(len(u)) % (rank + 2)).astype(u.dtype)

        @synk.sequence
        def summed_in_a_sequence(w):
            synk.all_reduce(w, "sum")

        if __name__ == "__main__":
            with synk.fork(device="cpu") as world:
                say("ranks", world.world_size)
                assert total(ROWS) == ROWS.sum()
                frozen = synk.data(ROWS)
                frozen.freeze()
                for rows, once in ((ROWS, 0), (frozen, 1)):
                    plan = total.plan(rows)
                    here = [len(ROWS) * machine.ranks[0] // world.world_size for machine in plan.machines] + [len(ROWS)]
                    sent = [8 * (stop - start) for start, stop in zip(here, here[1:])]
                    assert [machine.sent_bytes for machine in plan.machines] == sent, plan
                    assert [machine.frozen_bytes for machine in plan.machines] == [once * nbytes for nbytes in sent]
                    first, after = plan.machines[-1].ranks
                    whose = f"rank {first}:" if after == first + 1 else f"ranks {first} to {after - 1}:"
                    assert f"machine {len(plan.machines)} ({os.uname().nodename}), {whose} is sent" in str(plan), plan
                    before = world.statistics().network_bytes
                    chosen = np.arange(0, 1000, 10)
                    for _ in range(3):  # of frozen rows only those that are not there
                        assert total(rows, batch=chosen) == chosen.sum()
                    elsewhere = 100 - 100 * plan.machines[0].ranks[0] // world.world_size
                    assert world.statistics().network_bytes - before == 8 * elsewhere * (3 + (1 if once else 3))
                    before = world.statistics().network_bytes
                    for _ in range(3):
                        total(rows)
                    assert world.statistics().network_bytes - before == (1 if once else 3) * sum(sent)
                from synknumba._world import machines
                kept = []
                for _ in range(6):
                    v = synk.variable(np.ones(20_000))
                    synk.all_reduce(v, "sum")
                    del v
                    total(rows)
                    kept.append(len(machines.current[0]._programs))
                assert kept[-1] == kept[1], kept
            child = os.fork()
            if child == 0:  # a world of its own, on this machine
                with synk.fork(1, device="cpu") as world:
                    os._exit(0 if total(ROWS) == ROWS.sum() else 1)
            assert os.waitpid(child, 0)[1] == 0
            for size in (1, world.world_size + 1, 2):
                with synk.fork(size, device="cpu") as world:
                    assert world.world_size == size
                    assert knows(ROWS) == 1
                    assert total(ROWS) == ROWS.sum()
                    assert total(ROWS, batch=[5, 3, 1000]) == 1008.0
                    v = synk.variable(np.arange(3.0))
                    synk.all_reduce(v, "sum")
                    assert v.get_value().tolist() == [0.0, 1.0 * size, 2.0 * size]
                    # Of arrays that the machines combine: numbers whose sums are exact.
                    large = np.arange(60_000) % 7
                    w, n = synk.variable(large.astype("f4")), synk.variable(large)
                    add_rank(w, n, synk.RANK)
                    synk.all_reduce(w, "mean")
                    synk.all_reduce(n, "prod")
                    ranks = np.arange(size)[:, None]
                    np.testing.assert_array_equal(n.get_value(), (large + ranks).prod(0))
                    np.testing.assert_allclose(w.get_value(), (large + ranks).mean(0), rtol=1e-6)
                    for dtype, count in (("f8", 1_000_003), ("i2", 70_001), ("?", 65_537)):  # several messages for each machine
                        u = synk.variable(np.zeros(count, dtype))
                        spread(u, synk.RANK)
                        synk.all_reduce(u, "max")
                        np.testing.assert_array_equal(u.get_value(), (np.arange(count) % (ranks + 2)).astype(dtype).max(0))
                    before = w.get_value()
                    summed_in_a_sequence(w, times=2)
                    np.testing.assert_allclose(w.get_value(), before * size**2, rtol=1e-6)
                    assert all((synk.get_value(rank, w) == w.get_value()).all() for rank in range(size))
            from synknumba._variables import gpu_collective_plans
            gpu_collective_plans._are_mirrored = lambda pairs: False  # by way of a staging segment, as on GPUs
            with synk.fork(device="cpu") as world:
                w = synk.variable(large.astype("f4"))
                add_rank(w, synk.variable(large), synk.RANK)
                synk.all_reduce(w, "sum")
                wanted = (large + np.arange(world.world_size)[:, None]).sum(0)
                np.testing.assert_array_equal(w.get_value(), wanted)
                summed_in_a_sequence(w, times=2)
                np.testing.assert_array_equal(w.get_value(), wanted * world.world_size**2)
                assert all((synk.get_value(rank, w) == w.get_value()).all() for rank in range(world.world_size))
            say("done")
        """,  # noqa: E501
        tmp_path,
        SYNK_TEST_GONE="1",
    )
    assert job.finish() == [f"ranks {machines * ranks}", "done"]
    job.check_nothing_left()


def test_errors_and_deaths(tmp_path):
    """An exception of ranks leaves the world usable; the death of one ends it, with the
    machine's name, and `fork()` works.
    """
    job = start(
        2,
        2,
        """
        @synk.function(outputs=None)
        def fail(x, rank):
            raise ValueError(f"on {rank}")

        def here():
            return total(ROWS) == ROWS.sum()

        x = synk.data(ROWS)
        for victim in (1, 3):
            with synk.fork(device="cpu") as world:
                assert total(x) == ROWS.sum()
                try:
                    fail(x, synk.RANK)
                except synk.RankError as error:
                    assert [one.rank for one in error.failures] == [0, 1, 2, 3], error
                    assert error.failures[3].message == "on 3"
                    host = os.uname().nodename
                    assert error.__notes__ == [f"machine 0 ({host}): rank 0, 1; machine 1 ({host}): rank 2, 3"]
                assert total(x) == ROWS.sum()
                began = time.monotonic()
                try:
                    strike(x, synk.RANK, victim, 0)
                except synk.RankDied as error:
                    assert error.rank == victim and error.exitcode == -9, error
                    assert " on " + os.uname().nodename in str(error), error
                    assert time.monotonic() - began < 10.0
                    say("died", victim)
                assert (x.data == ROWS).all()
        """,  # noqa: E501
        tmp_path,
    )
    assert job.finish() == ["died 1", "died 3"]
    job.check_nothing_left()


@pytest.mark.whole
def test_a_rank_that_is_killed_between_calls(tmp_path):
    job = start(
        2,
        1,
        """
        @synk.function(outputs="max")
        def pid(x, rank):
            return os.getpid() if rank == 1 else 0

        with synk.fork(device="cpu") as world:
            os.kill(int(pid(ROWS, synk.RANK)), signal.SIGKILL)
            try:
                total(ROWS)
            except synk.RankDied as error:
                say("died", error.rank)
        with synk.fork(device="cpu", timeout=1.0) as world:
            @synk.function(outputs=None)
            def slow(x, rank):
                time.sleep(60.0 * rank)

            try:
                slow(ROWS, synk.RANK)
            except synk.CallTimeout as error:
                assert "in slow" in error.stacks[1], error.stacks
                say("timeout")
        assert synk.fork(2, device="cpu").world_size == 2
        assert total(ROWS) == ROWS.sum()
        """,
        tmp_path,
    )
    assert job.finish() == ["died 1", "timeout"]
    job.check_nothing_left()


@pytest.mark.whole
@pytest.mark.parametrize("victim", ["script", "relay", "agent"])
def test_processes_that_are_killed(victim, tmp_path):
    """MPI cannot go on without one of its processes, so the launcher ends the job; nothing is
    left of it.
    """
    job = start(
        2,
        1,
        """
        @synk.function(outputs="max")
        def parent(x, rank):
            return os.getppid() if rank == 1 else 0

        with synk.fork(device="cpu") as world:
            agent = int(parent(ROWS, synk.RANK))
            say("pids", os.getpid(), agent)
            try:
                while True:
                    total(ROWS)
            except synk.WorldError as error:
                say(error)
                raise
        """,
        tmp_path,
    )
    _, script, agent = job.expect("pids").split()
    pids = {"script": int(script), "agent": int(agent), "relay": relay_of(int(script))}
    os.kill(pids[victim], signal.SIGKILL)
    told = "\n".join(job.finish(code=None))
    if victim == "relay":
        assert f"the relay of machine 0 (pid {pids['relay']} on " in told
        assert "start the job again." in told
    job.check_nothing_left()


def relay_of(pid: int) -> int:
    """The relay is the child of that name."""
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        for child in children.read().split():
            with open(f"/proc/{child}/comm") as name:
                if name.read().strip() == "synk-relay":
                    return int(child)
    raise AssertionError("no relay")


def test_ctrl_c(tmp_path):
    job = start(
        2,
        1,
        """
        with synk.fork(device="cpu") as world:
            say("ready")
            try:
                while True:
                    total(ROWS)
            except KeyboardInterrupt:
                say("interrupted")
                raise
        """,
        tmp_path,
    )
    job.expect("ready")
    os.kill(job.process.pid, signal.SIGINT)  # as a terminal does, to mpiexec
    job.finish(code=None)
    job.check_nothing_left()


@pytest.mark.whole
def test_the_exit_code_is_that_of_the_script(tmp_path):
    job = start(2, 1, "synk.fork(device='cpu'); sys.exit(7)", tmp_path)
    assert job.finish(code=7) == []
    job.check_nothing_left()


@pytest.mark.whole
def test_a_machine_that_falls_silent(tmp_path):
    """Its relay is stopped while ranks work: the call ends with an error that names the machine."""
    job = start(
        2,
        1,
        """
        @synk.function(outputs="max")
        def parent(x, rank):
            return os.getppid() if rank == 1 else 0

        @synk.function(outputs=None)
        def slow(x):
            time.sleep(120.0)

        x = synk.data(ROWS)
        with synk.fork(device="cpu") as world:
            say("agent", int(parent(x, synk.RANK)))
            began = time.monotonic()
            try:
                slow(x)
            except synk.RankDied as error:
                assert "has not been heard of for 5 s" in str(error), error
                assert "machine 1 (" in str(error), error
                assert (x.data == ROWS).all()
                say("lost", time.monotonic() - began < 30.0)
        os._exit(3)  # MPI is of no use any more
        """,
        tmp_path,
    )
    agent = int(job.expect("agent").split()[1])
    os.kill(relay_of(agent), signal.SIGSTOP)
    assert job.expect("lost") == "lost True"
    job.finish(code=None)
    job.check_nothing_left()


@pytest.mark.parametrize("machines", [2, *whole(3, 4)])
def test_small_calls_over_and_over(machines, tmp_path):
    """Repeated calls that move no rows, of one and of two programs, with ranks that work long or
    fail, and other rounds.
    """
    job = start(
        machines,
        1,
        """
        from numba import cuda

        @synk.parallel(outputs={"sums": synk.output("sum", shape=(2,), dtype="float64")})
        @cuda.jit
        def weigh(x, factor, slow, turns, sums):
            i = cuda.grid(1)
            if i < x.shape[0]:
                state = 1.0
                if x[i] == slow:
                    for _ in range(turns):
                        state = 1.0 + 0.5 * state
                cuda.atomic.add(sums, 0, factor * x[i])
                cuda.atomic.add(sums, 1, min(state, 1.0))

        @synk.parallel(grid=1, block=1)
        @cuda.jit
        def nothing(number):
            pass

        @synk.function(outputs=None, broadcast=("who",))
        def fail(x, rank, who):
            if rank == who:
                raise ValueError("no")

        x = synk.data(np.arange(8.0))
        x.freeze()
        with synk.fork(device="cpu", timeout=30.0) as world:
            def check(factor, slow=0, turns=0):
                np.testing.assert_array_equal(weigh(x, factor, slow, turns), [28.0 * factor, 8.0])

            for number in range(300):
                check(float(number))
            for number in range(300):
                check(float(number))
                nothing(number)
            for slow in (0, 7):  # on the first machine, and on the last
                for turns in (10**5, 0, 10**8, 0, 0):  # shorter and longer than compiled waits
                    check(2.0, slow, turns)
            for pause in (0.0, 0.01, 0.06, 0.3):
                time.sleep(pause)
                check(3.0)
            for number in range(40):
                check(float(number))
                fail(x, synk.RANK, -1)
                if number % 10 == 9:
                    try:
                        fail(x, synk.RANK, world.world_size - 1)
                    except synk.RankError as error:
                        assert [one.rank for one in error.failures] == [world.world_size - 1]
                    else:
                        say("it has not failed")
                y = synk.data(np.full(8, 2.0))  # a segment, and so a command, between
                assert total(y) == 16.0
        with synk.fork(device="cpu"):
            for number in range(300):
                check(float(number))
        say("done")
        """,
        tmp_path,
    )
    assert job.finish() == ["done"]
    job.check_nothing_left()


def test_results_of_many_sizes_and_failures_beside_them(tmp_path):
    """Large results that grow and shrink; a rank that fails while others return something large,
    or write rows.
    """
    job = start(
        3,
        1,
        """
        @synk.function(outputs="gather")
        def scaled(x, factor):
            return factor * x

        @synk.function(outputs=None, inout=("x",))
        def add_or_fail(x, rank, who):
            x += 1.0
            if rank == who:
                raise ValueError("no")

        @synk.function(outputs=(None, "sum"))
        def many(x, rank, who):
            if rank == who:
                raise ValueError("no")
            return np.full(20_000, float(rank)), 1

        x = synk.data(np.arange(90_000.0))
        with synk.fork(device="cpu", timeout=30.0) as world:
            for rows, factor in ((30_000, 2.0), (90_000, 3.0), (30_000, 4.0), (60_000, 5.0), (30_000, 6.0)):
                np.testing.assert_array_equal(scaled(x, factor, batch=rows), factor * np.arange(rows))
            y = synk.data(np.zeros(9_000))
            for who in (2, 1, 0, 5):
                before = y.data.copy()
                try:
                    add_or_fail(y, synk.RANK, who)
                except synk.RankError as error:
                    assert [one.rank for one in error.failures] == [who]
                else:
                    np.testing.assert_array_equal(y.data, before + 1.0)
                try:
                    found, count = many(y, synk.RANK, who)
                except synk.RankError as error:
                    assert [one.rank for one in error.failures] == [who]
                else:
                    assert [one[0] for one in found] == [0.0, 1.0, 2.0]
                assert total(ROWS) == ROWS.sum()
            future = many.submit(y, synk.RANK, 7)
            time.sleep(0.5)
            world.dump(open(os.devnull, "w"))
            assert [one[-1] for one in future.result()[0]] == [0.0, 1.0, 2.0]
        say("done")
        """,  # noqa: E501
        tmp_path,
    )
    assert job.finish() == ["done"]
    job.check_nothing_left()


@pytest.mark.whole
def test_what_ranks_elsewhere_have_of_the_script(tmp_path):
    """As those of its own machine: state that the script has set, functions with caches, and an
    MPI of their own.
    """
    job = start(
        2,
        1,
        """
        import decimal, functools, random, warnings

        np.random.seed(1)
        random.seed(2)
        np.seterr(divide="raise")
        decimal.getcontext().prec = 50
        warnings.simplefilter("error", UserWarning)
        os.umask(0o027)
        sys.argv.append("one more")
        MEANT = sys.argv, decimal.getcontext().prec, sys.getrecursionlimit(), sys.modules["__main__"].__file__

        @functools.lru_cache
        def fib(n):
            return n if n < 2 else fib(n - 1) + fib(n - 2)

        @synk.function(outputs=None)
        def state(x):
            umask = os.umask(0o027)
            main = sys.modules["__main__"].__file__
            order = [*{"mass", "charge", "spin", "energy", "angle"}]
            told = sys.argv, decimal.getcontext().prec, sys.getrecursionlimit(), main
            return repr((told == MEANT, umask, order, fib(20)))

        @synk.function(outputs="gather")
        def draws(x):
            return np.random.rand(len(x)) + random.random()

        @synk.function(outputs="gather")
        def inverse(x):
            return 1 / x

        @synk.function
        def careful(x):
            if x[0] > 1:
                import warnings
                warnings.warn("careful")

        @synk.function(outputs=None)
        def size_of_mpi(x):
            from mpi4py import MPI
            return MPI.COMM_WORLD.size

        with synk.fork(device="cpu"):
            expected = repr((True, 0o027, [*{"mass", "charge", "spin", "energy", "angle"}], 6765))
            assert state(np.ones(2)) == [expected] * 2, (state(np.ones(2)), expected)
            say(*draws(np.ones(4)))
            failing = {"FloatingPointError": (inverse, [1.0, 1, 1, 0]), "UserWarning": (careful, [0.0, 1, 2, 3])}
            for name, (function, x) in failing.items():
                try:
                    function(np.array(x))
                except synk.RankError as error:
                    assert name in str(error), error
                else:
                    raise AssertionError(name)
            assert size_of_mpi(np.ones(2)) == [1, 1]
            from mpi4py import MPI
            say("size", MPI.COMM_WORLD.size)
        """,  # noqa: E501
        tmp_path,
    )
    found = job.finish()
    alone = """
        import random
        np.random.seed(1)
        random.seed(2)

        @synk.function(outputs="gather")
        def draws(x):
            return np.random.rand(len(x)) + random.random()

        with synk.fork(2, device="cpu"):
            say(*draws(np.ones(4)))
    """
    script = tmp_path / "alone.py"
    script.write_text(HEADER + textwrap.dedent(alone))
    told = subprocess.run(
        [sys.executable, script],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert found == [told.stdout.strip(), "size 1"]
    job.check_nothing_left()


@pytest.mark.whole
def test_ctrl_c_while_messages_are_on_their_way(tmp_path):
    """What has begun of a message is completed by the next one, in either direction; answers
    that are not awaited are dropped.
    """
    job = start(
        2,
        1,
        """
        import contextlib
        from synknumba._machines import link as module
        from synknumba._world import machines

        held, link, armed = module.held_signals, machines.current[0]._relay.link, []

        @contextlib.contextmanager
        def interrupting():  # in the middle of a message, where held signals are let through
            with held():
                yield
            came = -1 if link._coming is None else link._coming[1]
            now = {"sent": link._sending._is_owned(), "unsent": bool(link._unsent), "coming": came >= 0, "came": came > 1e6}
            if armed and now[armed[0]]:
                armed.clear()
                raise KeyboardInterrupt

        module.held_signals = interrupting
        large = np.ones(1_000_000)

        @synk.function(outputs="sum")
        def with_large(x):
            return x.sum() + large[0]

        @synk.function(outputs=None)
        def fail(x, rank):
            if rank == 1:
                raise ValueError("x" * 10_000_000)

        def interrupted(what, where, do):
            armed[:] = [where]
            try:
                do()
            except KeyboardInterrupt:
                armed.clear()
                say(what)

        def fork():
            return synk.fork(device="cpu", timeout=30.0)

        def check():
            with fork():
                assert total(ROWS) == ROWS.sum()

        interrupted("start", "sent", fork)
        check()
        for what, where, call in (
            ("order", "unsent", lambda world: with_large(ROWS)),
            ("news", "came", lambda world: fail(ROWS, synk.RANK)),
            ("question", "sent", lambda world: world.dump(open(os.devnull, "w"))),
            ("answer", "coming", lambda world: world.dump(open(os.devnull, "w"))),
        ):
            with fork() as world:
                interrupted(what, where, lambda: call(world))
                if not world.closed:
                    assert total(ROWS) == ROWS.sum()
            check()
        say("done")
        """,  # noqa: E501
        tmp_path,
    )
    assert job.finish() == ["start", "order", "news", "question", "answer", "done"]
    job.check_nothing_left()


@pytest.mark.whole
@pytest.mark.parametrize("when", ["order", *whole("close")])
def test_a_machine_that_is_lost_between_calls(when, tmp_path):
    """The next order is longer than what MPI sends without the receiver; and a world closes that
    such a machine is part of.
    """
    job = start(
        2,
        1,
        """
        large = np.ones(1_000_000)

        @synk.function(outputs="max")
        def parent(x, rank):
            return os.getppid() if rank == 1 else 0

        @synk.function(outputs="sum")
        def with_large(x):
            return x.sum() + large[0]

        world = synk.fork(device="cpu")
        say("agent", int(parent(ROWS, synk.RANK)))
        while not os.path.exists(os.path.join(os.path.dirname(__file__), "stopped")):
            time.sleep(0.01)
        try:
            with_large(ROWS) if WHEN == "order" else world.close()
        except synk.RankDied as error:
            assert "machine 1 (" in str(error), error
            assert "has not been heard of for 5 s" in str(error), error
        say("over", world.closed)
        os._exit(3)
        """.replace("WHEN", repr(when)),
        tmp_path,
    )
    agent = int(job.expect("agent").split()[1])
    os.kill(relay_of(agent), signal.SIGSTOP)
    (tmp_path / "stopped").touch()
    assert job.expect("over") == "over True"
    job.finish(code=None)
    job.check_nothing_left()


@pytest.mark.whole
def test_a_death_beside_large_results(tmp_path):
    """The results of other ranks of the machine come to nothing."""
    job = start(
        2,
        2,
        """
        @synk.function(outputs=None)
        def large(x, rank):
            if rank == 2:
                time.sleep(0.3)
                os.kill(os.getpid(), signal.SIGKILL)
            return np.full(20_000, float(rank))

        with synk.fork(device="cpu"):
            try:
                large(ROWS, synk.RANK)
            except synk.RankDied as error:
                say("died", error.rank)
        """,
        tmp_path,
    )
    assert job.finish() == ["died 2"]
    job.check_nothing_left()


@pytest.mark.whole
def test_processes_without_a_descriptor(tmp_path):
    """The call says what to do, and the job goes on."""
    job = start(
        2,
        1,
        """
        import resource

        def relay_of(pid):
            for child in open(f"/proc/{pid}/task/{pid}/children").read().split():
                if open(f"/proc/{child}/comm").read().strip() == "synk-relay":
                    return int(child)

        @synk.function(outputs="max")
        def parent(x, rank):
            return os.getppid() if rank == 1 else 0

        @synk.function(outputs=None)
        def large(x):
            return np.full(20_000, 1.0)

        def limited(pid, call):
            there = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
            full = next(fd for fd in range(1000) if fd not in there)
            old = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (full, old[1]))
            try:
                call()
            except (synk.RankDied, synk.SharedMemoryError) as error:
                assert "has no file descriptor left. Every Data" in str(error), error
                assert "free some, or raise the limit" in str(error), error
                say(str(error).split(" (")[0], type(error).__name__)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, old)

        fork = lambda: synk.fork(device="cpu", timeout=30.0)
        relay = relay_of(os.getpid())
        limited(relay, fork)
        with fork():
            agent = int(parent(ROWS, synk.RANK))
        for pid in (relay, agent, relay_of(agent)):
            for call in (total, large):
                with fork():
                    x, y = synk.data(ROWS), synk.data(np.arange(5.0))
                    assert total(x) == ROWS.sum()
                    limited(pid, lambda: call(x if call is large else y))
        with fork():
            assert total(ROWS) == ROWS.sum()
        say("done")
        """,
        tmp_path,
    )
    where = ("the relay of machine 0", "the agent of machine 1", "the relay of machine 1")
    died = [f"{one} RankDied" for one in where for _ in range(2)]
    assert job.finish() == ["the relay of machine 0 SharedMemoryError", *died, "done"]
    job.check_nothing_left()


@pytest.mark.whole
def test_a_script_with_unusual_surroundings(tmp_path):
    """A removed working directory, classes of its own in `sys.path` and `sys.argv`, and
    `synknumba run` as a subprocess.
    """
    inner = tmp_path / "inner.py"
    inner.write_text(
        "import numpy as np, synknumba as synk\n"
        "f = synk.function(lambda x: x.sum(), outputs='sum')\n"
        "with synk.fork(2, device='cpu') as world:\n"
        "    print(world.world_size, f(np.arange(5.0)))\n"
    )
    job = start(
        2,
        1,
        """
        import subprocess, tempfile

        class Text(str):
            pass

        class Other:
            pass

        told = subprocess.run(
            [sys.executable, "-W", "error", "-m", "synknumba", "run", sys.argv[0].replace("script.py", "inner.py")],
            capture_output=True, text=True, timeout=60,
        )
        assert told.returncode == 0, told.stderr
        say(told.stdout.strip())

        sys.path += [Text("/text"), Other(), b"/bytes"]
        sys.argv.append(Text("argument"))
        folder = tempfile.mkdtemp()
        os.chdir(folder)
        os.rmdir(folder)

        @synk.function(outputs=None)
        def found(x):
            return repr((os.getcwd(), "/text" in sys.path, sys.argv[-1]))

        with synk.fork(device="cpu", timeout=30.0):
            say(*found(ROWS))
        """,  # noqa: E501
        tmp_path,
        SLURM_STEP_NUM_TASKS="2",
        SLURM_PROCID="0",
    )
    assert job.finish() == ["2 10.0", "('/', True, 'argument') ('/', True, 'argument')"]
    job.check_nothing_left()


@pytest.mark.whole
def test_a_job_that_is_suspended_in_a_call(tmp_path):
    """No machine has been silent meanwhile, though the first machine goes on a little earlier than
    the other.
    """
    job = start(
        2,
        1,
        """
        @synk.function(outputs="sum", broadcast=("seconds",))
        def slow(x, seconds):
            time.sleep(seconds)
            return x.sum()

        with synk.fork(device="cpu"):
            total(ROWS)
            say("script", os.getpid())
            say("sum", slow(ROWS, 8.0) == ROWS.sum())
        """,
        tmp_path,
    )
    first = relay_of(int(job.expect("script").split()[1]))
    time.sleep(0.3)
    processes = [int(pid) for pid in job.ours()]
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(6.0)
    os.kill(first, signal.SIGCONT)
    time.sleep(0.5)
    for pid in processes:
        os.kill(pid, signal.SIGCONT)
    assert job.finish()[-1] == "sum True"
    job.check_nothing_left()


@pytest.mark.parametrize("when", ["before", *whole("after")])
def test_a_job_that_is_warned_saves(when, tmp_path):
    """What a scheduler sends to all processes is left to the script, whose handlers run; relays,
    agents and ranks go on.
    """
    job = start(
        2,
        1,
        f"""
        came = []

        def set_handlers():
            for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
                signal.signal(number, lambda number, _: came.append(number))

        if {when!r} == "before":
            set_handlers()
        with synk.fork(device="cpu") as world:
            if {when!r} == "after":
                set_handlers()
            assert total(ROWS) == ROWS.sum()
            say("ready")
            while len({{*came}}) < 4:
                assert total(ROWS) == ROWS.sum()
            say("saved", total(ROWS))
        """,
        tmp_path,
    )
    job.expect("ready")
    processes = job.ours()
    assert len(processes) > 5  # the script, an agent, two relays, two ranks, output processes
    for sig in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        for pid in processes:
            os.kill(int(pid), sig)
    assert job.finish() == ["ready", "saved 500500.0"]
    job.check_nothing_left()


def test_a_job_that_ends_by_sigterm(tmp_path):
    """Without a handler: by the script's signal, and nothing is left."""
    job = start(
        2,
        1,
        """
        with synk.fork(device="cpu"):
            say("ready")
            while True:
                total(ROWS)
        """,
        tmp_path,
    )
    job.expect("ready")
    for pid in job.ours():
        os.kill(int(pid), signal.SIGTERM)
    job.finish(code=None)
    assert "signal 15" in job.told or "Terminated" in job.told, job.told
    job.check_nothing_left()


def test_the_program_of_time_limits(tmp_path):
    """It saves when a signal comes to all processes of the job, and its exit code asks for
    another run.
    """
    (tmp_path / "train.py").write_text(
        ENDLESS.replace('"training.safetensors"', f'"{tmp_path}/training.safetensors"')
    )
    job = Job(2, 1, [str(tmp_path / "train.py")], tmp_path)
    job.expect("runs")
    for pid in job.ours():
        os.kill(int(pid), signal.SIGUSR1)
    lines = job.finish(code=75)
    assert int(lines[1].removeprefix("steps ")) >= 20
    assert (tmp_path / "training.safetensors").exists()
    job.check_nothing_left()


def test_fewer_ranks_than_machines(tmp_path):
    """A machine without ranks takes part in every kind of call: it answers with no rows."""
    job = start(
        3,
        1,
        """
        from numba import cuda

        @synk.parallel(outputs={"found": synk.output("sum", shape=(), dtype="float64")})
        @cuda.jit
        def summed(x, factor, found):
            i = cuda.grid(1)
            if i < x.shape[0]:
                cuda.atomic.add(found, 0, factor * x[i])

        @synk.expectation
        def square(x):
            return x * x

        @synk.vectorize
        def doubled(x):
            return 2 * x

        @synk.function(outputs="gather")
        def rows_of(x):
            return x

        @synk.function
        def fill(u, rank):
            u += rank + 1.0

        @synk.sequence
        def steps(x, w):
            found = summed(x, 2.0)
            synk.all_reduce(w, "sum")
            return found

        large = np.arange(200_000.0)
        x = synk.data(ROWS)
        for size in (1, 2):
            with synk.fork(size, device="cpu") as world:
                assert world.world_size == size
                for _ in range(3):
                    assert total(x) == ROWS.sum()
                    assert summed(x, 2.0) == 2 * ROWS.sum()
                    assert summed(x, 3.0, batch=[5, 7]) == 36.0
                    assert np.isclose(square(x).mean, (ROWS**2).mean())
                    assert np.array_equal(doubled(x), 2 * ROWS)
                    assert np.array_equal(rows_of(x), ROWS)
                    assert np.array_equal(rows_of(large), large)
                w = synk.variable(np.ones(3))
                big = synk.variable(np.ones(20_000))
                fill(w, synk.RANK)
                synk.all_reduce(w, "sum")
                synk.all_reduce(big, "sum")
                assert np.array_equal(big.get_value(), np.full(20_000, float(size)))
                ranks = sum(range(2, 2 + size))
                assert np.array_equal(w.get_value(), np.full(3, float(ranks)))
                assert steps(x, w, times=3) == 2 * ROWS.sum()
                assert np.array_equal(w.get_value(), np.full(3, float(ranks * size**3)))
                divided = synk.scatter(synk.variable(ROWS))
                assert np.array_equal(synk.gather(divided, nd_up=0), ROWS)
        say("done")
        """,
        tmp_path,
    )
    assert job.finish() == ["done"]
    job.check_nothing_left()
