"""An exception from outside at any moment of a call: Ctrl-C, an alarm. The world is usable
afterwards, or closed.
"""

import signal

import pytest

from tests.faults.scripts import await_work
from tests.quick import whole

CALLS = {"python": "forever(ROWS)", "kernel": "burn(ROWS, HOURS)"}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("where", ["script", "terminal"])
def test_interrupted_call(start, call, where):
    script = start(f"""
        numbers = synk.data(ROWS)
        world = synk.fork(2, device="cpu")
        burn(numbers, 1)
        say("ranks", *world.pids)
        try:
            {CALLS[call]}
        except KeyboardInterrupt:
            say("interrupted", world.closed)
        assert np.array_equal(numbers, ROWS)
        synk.close()
        check_world()
        with synk.fork(3, device="cpu"):
            assert total(numbers) == ROWS.sum()
    """)
    await_work(script.ranks()[0])
    if where == "script":
        script.kill(signal.SIGINT)
    else:
        script.press_ctrl_c()
    script.expect("interrupted (True|False)", 1.0)
    script.finish()


def test_interrupt_between_calls_leaves_the_world_usable(start):
    script = start("""
        with synk.fork(2, device="cpu") as world:
            total(ROWS)
            try:
                say("ranks", *world.pids)
                hear()
            except KeyboardInterrupt:
                say("interrupted")
            assert total(ROWS) == ROWS.sum()
            assert not world.closed
    """)
    script.ranks()
    script.press_ctrl_c()
    script.expect("interrupted")
    script.finish()


@pytest.mark.parametrize(
    "handler", ["handle", *whole("Handler().handle", "partial(handle)"), "Handler()"]
)
def test_a_handler_that_raises_while_an_argument_is_pickled(start, handler):
    """Its exception is the script's, and not taken for an object that cannot be pickled."""
    script = start(f"""
        import signal
        from functools import partial

        class Late(Exception):
            pass

        def handle(*_):
            raise Late("time is up")

        class Handler:
            def handle(self, *_):
                handle()

            __call__ = handle

        class Slow:
            def __reduce__(self):
                if alarmed:
                    signal.setitimer(signal.ITIMER_REAL, 0.01)
                    time.sleep(60)
                return (Slow, ())

        @synk.function(outputs="sum")
        def takes(x, what):
            return x.sum()

        alarmed = True
        signal.signal(signal.SIGALRM, {handler})
        with synk.fork(2, device="cpu") as world:
            try:
                takes(ROWS, Slow())
            except Late as error:
                assert str(error) == "time is up"
            else:
                raise AssertionError
            alarmed = False
            assert takes(ROWS, Slow()) == ROWS.sum()
    """)
    script.finish()


@pytest.mark.whole
def test_interrupts_at_random_moments(start):
    """Whatever a call was doing, a script that goes on gets right results, from the same world
    or from a new one.
    """
    script = start("""
        import random

        random.seed(1)
        numbers = synk.data(ROWS)
        interrupted = closed = 0
        world = synk.fork(2, device="cpu")
        deadline = time.monotonic() + 60
        while interrupted < 40 and time.monotonic() < deadline:
            # Again after half a second: Python drops what is raised in a weak reference's callback.
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 2e-2), 0.5)
            try:
                signal.signal(signal.SIGALRM, signal.default_int_handler)
                while True:
                    n = random.randint(1, 1001)
                    got = total(numbers, batch=n)
                    assert got == ROWS[:n].sum(), (n, got)
            except KeyboardInterrupt:
                interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            if world.closed:
                closed += 1
                world = synk.fork(2, device="cpu")
        say("interrupted", interrupted)
        synk.close()
    """)
    script.expect("interrupted 40")
    script.finish()


def test_alarm_whose_handler_raises(start):
    script = start("""
        class Alarm(Exception):
            pass

        def on_alarm(*_):
            raise Alarm

        signal.signal(signal.SIGALRM, on_alarm)

        @synk.function(outputs=None)
        def slow(x, seconds):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pass
            return seconds

        world = synk.fork(2, device="cpu")
        slow(ROWS, 0.0)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            slow(ROWS, 1e9)
        except Alarm:
            say("alarm")
        if world.closed:
            world = synk.fork(2, device="cpu")
        for k in range(20):  # ranks that are still in the old call must not answer a new one
            assert slow(ROWS, k / 1000) == [k / 1000] * 2
        say("right")
    """)
    script.expect("alarm", 5.0)
    script.expect("right")
    script.finish()


def test_alarm_whose_handler_returns_disturbs_nothing(start):
    script = start("""
        rung = 0

        def on_alarm(*_):
            global rung
            rung += 1

        signal.signal(signal.SIGALRM, on_alarm)
        with synk.fork(2, device="cpu"):
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            while rung < 200:
                assert total(ROWS) == ROWS.sum()
                burn(ROWS, 20_000)
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    """)
    script.finish()


def test_interrupt_during_fork(start):
    script = start("""
        from synknumba._rank import loop

        ready = loop.open_device

        def never_ready(device, index, compiler):
            say("ranks", os.getpid())
            while True:
                pass

        loop.open_device = never_ready
        try:
            synk.fork(2, device="cpu")
        except KeyboardInterrupt:
            say("interrupted")
        loop.open_device = ready
        check_world()
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            say("no child")
    """)
    await_work(script.ranks()[0])
    script.press_ctrl_c()
    script.expect("interrupted")
    script.expect("no child")
    script.finish()


@pytest.mark.parametrize("side", ["parent", "child"])
def test_interrupt_right_after_a_process_was_made(start, side):
    """Neither loses the script a rank that it knows nothing of, nor does the rank run on in the
    script's code.
    """
    script = start(f"""
        script = os.getpid()
        real_fork = os.fork

        def fork():
            pid = real_fork()
            if (pid == 0) == {side == "child"}:
                os.kill(os.getpid(), signal.SIGINT)
            return pid

        os.fork = fork
        try:
            world = synk.fork(2, device="cpu")
            assert total(ROWS) == ROWS.sum()
            world.close()
        except KeyboardInterrupt:
            say("interrupted in", "script" if os.getpid() == script else "rank")
        os.fork = real_fork
        check_world()
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            say("no child")
    """)
    script.expect("no child")
    script.finish()
    assert "interrupted in rank" not in script.printed


def test_interrupt_while_numba_compiles(start):
    """Numba's tables do not survive an exception in the middle of them: the interrupt waits for
    the end.
    """
    script = start("""
        from synknumba._comm import host

        combiner = host._combiner

        def interrupted(*args):
            os.kill(os.getpid(), signal.SIGINT)
            made = combiner(*args)
            say("compiled")
            return made

        with synk.fork(2, device="cpu") as world:
            large = synk.variable(np.ones(500_000))
            host._combiner = interrupted
            try:
                synk.all_reduce(large, "max")
            except KeyboardInterrupt:
                say("interrupted")
            host._combiner = combiner
            assert not world.closed
            assert synk.all_reduce(large, "sum").get_value(1)[0] == 2.0
    """)
    script.expect("compiled")
    script.expect("interrupted")
    script.finish()


# ---- a notebook ----------------------------------------------------------------------------------

# What a kernel does: each cell is compiled and run in one namespace, with threads beside; an
# interrupt is a SIGINT to it.
NOTEBOOK = """
import threading, warnings

warnings.filterwarnings("ignore", message="fork")  # which says that there are threads
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()  # as a kernel's heartbeat
space = {name: globals()[name] for name in ("synk", "np", "os", "say", "total", "forever", "ROWS", "cuda")}

def cell(text, number=[0]):
    number[0] += 1
    try:
        exec(compile(text, f"<cell {number[0]}>", "exec"), space)
    except BaseException as error:
        say("cell", number[0], type(error).__name__, str(error)[:60].replace(chr(10), " "))
    else:
        say("cell", number[0], "done")
"""  # noqa: E501


@pytest.mark.parametrize("call", ["forever(numbers)", "total(numbers)"])
def test_notebook_interrupted_and_run_again(start, call):
    """The cell that forks is run again after an interrupt, and again without one."""
    script = start(
        NOTEBOOK
        + f"""
FORKS = "synk.close(); world = synk.fork(2, device='cpu'); numbers = synk.data(ROWS)"
cell(FORKS)
cell("say('ranks', *world.pids); {call}")
for _ in range(2):
    cell(FORKS)
    cell("assert total(numbers) == ROWS.sum()")
cell("synk.fork(2, device='cpu')")
cell("assert total(numbers) == ROWS.sum()")
cell("synk.close()")
"""
    )
    script.expect("cell 1 done")
    ranks = script.ranks()
    if call.startswith("forever"):
        await_work(ranks[0])
        script.press_ctrl_c()
        script.expect("cell 2 KeyboardInterrupt.*")
    else:
        script.expect("cell 2 done")
    for number in (3, 4, 5, 6):
        script.expect(f"cell {number} done")
    script.expect("cell 7 WorldError fork.. called while .*")
    for number in (8, 9):
        script.expect(f"cell {number} done")
    script.finish()


def test_notebook_whose_kernel_is_restarted(start):
    """A restart is a SIGKILL to the kernel alone, or a SIGTERM; the next one finds nothing of
    the last.
    """
    script = start(
        NOTEBOOK
        + "cell(\"world = synk.fork(2, device='cpu'); say('ranks', *world.pids); forever(ROWS)\")"
    )
    await_work(script.ranks()[0])
    script.kill(signal.SIGKILL)
    script.finish(-signal.SIGKILL)
    start("check_world()").finish()
