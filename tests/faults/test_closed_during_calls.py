"""The world is closed while a call is under way, by another thread or a signal handler: the call
ends, and says so.
"""

import threading

import pytest

import synknumba as synk
from tests.quick import whole

CLOSERS = {
    "a thread": "threading.Timer(0.5, world.close).start()",
    "a handler": (
        "signal.signal(signal.SIGALRM, lambda *_: synk.close()); "
        "signal.setitimer(signal.ITIMER_REAL, 0.5)"
    ),
}


@pytest.mark.parametrize("timeout", [None, *whole(60.0)])
@pytest.mark.parametrize("who", CLOSERS)
def test_the_call_ends(start, who, timeout):
    script = start(f"""
        import threading

        @synk.function(outputs="sum")
        def slow(x):
            time.sleep(100)

        world = synk.fork(2, device="cpu", timeout={timeout})
        total(ROWS)
        {CLOSERS[who]}
        try:
            slow(ROWS)
        except synk.WorldError as error:
            say(type(error).__name__, error)
        assert world.closed
        with synk.fork(2, device="cpu"):
            assert total(ROWS) == ROWS.sum()
        say("right again")
    """)
    script.expect("WorldError the world was closed during slow.* fork.*")
    script.expect("right again")
    script.finish()


@pytest.mark.whole
@pytest.mark.parametrize("event", ["POLLOUT", *whole("POLLIN")])
@pytest.mark.parametrize("who", ["a thread", *whole("a handler")])
def test_the_call_is_about_to_send_or_to_receive(start, who, event):
    """Its sockets are closed under its hands."""
    script = start(f"""
        import select, threading
        from synknumba._wire import channel

        @synk.function(outputs=None)
        def shape(x):
            return x[:1]

        real = channel.wait

        def wait(sock, event, watch):
            if event == select.{event} and os.getpid() == world_pid and not world.closed:
                if {who!r} == "a thread":
                    closer = threading.Thread(target=synk.close)
                    closer.start()
                    closer.join()
                else:
                    signal.raise_signal(signal.SIGUSR1)
            real(sock, event, watch)

        world_pid = os.getpid()
        signal.signal(signal.SIGUSR1, lambda *_: synk.close())
        world = synk.fork(2, device="cpu")
        channel.wait = wait
        try:
            shape(ROWS)
        except synk.WorldError as error:
            say(type(error).__name__, error)
        assert world.closed
        channel.wait = real
        check_world()
        say("right again")
    """)
    script.expect("WorldError the world was closed during .* fork.*")
    script.expect("right again")
    script.finish()


def test_a_script_that_dies_of_sigpipe_is_told_of_a_dead_rank(start):
    """Signal 13 is the default of a Unix program; here Data goes to a rank that is not there."""
    script = start("""
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        world = synk.fork(2, device="cpu")
        total(ROWS)
        os.kill(world.pids[1], signal.SIGKILL)
        time.sleep(0.2)
        try:
            total(synk.data(np.arange(20.0)))
        except synk.RankDied as error:
            say("died", error)
    """)
    script.expect("died rank 1 .*SIGKILL.*")
    script.finish()


def test_two_threads_end_a_world_once(monkeypatch):
    """The second waits for the first, and finds nothing left to let go of."""
    world = synk.fork(2, device="cpu")
    engine, killing, waited, closed = world._engine, threading.Event(), threading.Event(), []
    processes = engine.life.processes
    kill, close = processes.kill, processes.close

    def slow_kill():
        killing.set()
        waited.wait(10)
        kill()

    monkeypatch.setattr(processes, "kill", slow_kill)
    monkeypatch.setattr(processes, "close", lambda: closed.append(threading.get_ident()) or close())
    threads = [threading.Thread(target=engine.ranks.kill) for _ in range(2)]
    threads[0].start()
    assert killing.wait(10)
    threads[1].start()
    threads[1].join(0.1)
    assert threads[1].is_alive()
    waited.set()
    for thread in threads:
        thread.join(10)
    assert closed == [threads[0].ident]
    assert world.closed
