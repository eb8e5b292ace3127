"""In sandboxes: system calls that a seccomp filter refuses, and no /proc. The package does
without, or names what it needs.
"""

import fcntl
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from tests.environment import environment
from tests.faults import seccomp
from tests.faults.scripts import HEADER
from tests.quick import whole

filters = pytest.mark.skipif(seccomp.missing() is not None, reason=str(seccomp.missing()))

WORKS = """
    os.environ.pop("SYNKNUMBA_SEGMENTS", None)
    with synk.fork(2, device="cpu") as world:
        rows = synk.data(ROWS)
        assert total(rows) == total(ROWS) == ROWS.sum()
        weights = synk.variable(np.ones(3))
        synk.all_reduce(weights, "sum")
        assert (weights.get_value() == 2.0).all()
        world.dump()
    say("right")
"""
REFUSED = [("F_SETOWN",), ("memfd_create",), ("prlimit64",), ("prctl",), ("sched_getaffinity",)]
REFUSED.append(("F_SETOWN", "memfd_create", "prlimit64", "sched_getaffinity", "prctl"))


def refusing(*calls, text):
    """A script that works under a filter from its first line on; prctl is needed to install the
    filter, and refused last.
    """
    return f"from tests.faults.seccomp import refuse\nrefuse(*{calls!r})\n{textwrap.dedent(text)}"


@filters
@pytest.mark.parametrize("calls", [*whole(*REFUSED[:-1]), REFUSED[-1]], ids="-".join)
def test_a_world_does_without_what_a_sandbox_refuses(start, calls):
    script = start(refusing(*calls, text=WORKS))
    script.expect("right")
    script.finish()
    assert "waits for a call" in script.errors
    assert "lifeline" not in script.errors


@filters
def test_ranks_end_with_a_script_that_is_killed_where_no_signal_can_be_set_on_a_pipe(start):
    text = """
        @synk.function(outputs="sum")
        def sleeping(x):
            say("working", os.getpid())
            time.sleep(1000)
            return x.sum()

        with synk.fork(2, device="cpu"):
            sleeping(ROWS)
    """
    script = start(refusing("F_SETOWN", "prctl", text=text))
    for _ in range(2):
        script.expect(r"working \d+")
    script.kill(signal.SIGKILL)
    script.process.wait()
    script.check_nothing_left()


@filters
def test_more_ranks_than_are_always_started_where_limits_are_not_told(start):
    text = """
        from synknumba._world.limits import check_room
        check_room(65)
        say("room")
    """
    start(refusing("prlimit64", text=text)).expect("room")


@filters
@pytest.mark.parametrize("call", ["memfd_create", "fallocate"])
def test_shared_memory_refused_where_there_is_no_other(start, call):
    text = """
        os.environ["SYNKNUMBA_SEGMENTS"] = "memfd"
        try:
            synk.data(ROWS)
        except synk.SharedMemoryError as error:
            say(error)
    """
    script = start(refusing(call, text=text))
    script.expect(
        rf".*the system refuses (posix_)?{call}: \[Errno 1\] Operation not "
        rf"permitted\. Let the sandbox.*"
    )


@filters
def test_a_call_that_a_rank_cannot_do_without_is_named(start):
    text = """
        try:
            synk.fork(2, device="cpu")
        except synk.WorldError as error:
            say(error)
    """
    script = start(refusing("setpgid", text=text))
    script.expect(
        r"rank 0 could not start, since os\.setpgid\(0, 0\) failed: PermissionError: \[Errno 1\] "
        r"Operation not permitted\. "
        r"A sandbox refuses this system call: allow it in its profile.*"
    )
    script.finish()


@filters
@pytest.mark.parametrize(
    ("call", "needed"),
    [
        ("pipe2", r"os\.pipe\(\) \(pipe2\)"),
        ("socketpair", r"socket\.socketpair\(\) and sendmsg"),
        ("sendmsg", r"socket\.socketpair\(\) and sendmsg"),
        ("poll", r"select\.poll\(\)"),
        ("waitid", r"os\.waitid\(\)"),
    ],
)
def test_a_call_that_the_script_cannot_do_without_is_named(start, call, needed):
    text = """
        for _ in range(2):
            try:
                synk.fork(2, device="cpu")
            except synk.WorldError as error:
                say(error)
    """
    script = start(refusing(call, text=text))
    for _ in range(2):
        script.expect(
            rf"fork\(\) needs {needed}, which failed: PermissionError: \[Errno 1\] "
            rf"Operation not permitted\. "
            r"A sandbox refuses this system call: allow it in its profile.*"
        )
    script.finish()
    script.check_nothing_left()


@filters
def test_a_refused_fork_is_no_lack_of_memory(start):
    text = """
        from tests.faults.seccomp import refuse
        refuse("clone")
        try:
            synk.fork(2, device="cpu")
        except synk.WorldError as error:
            say(error)
    """
    script = start(text)
    script.expect(
        r"os\.fork\(\) failed: PermissionError: \[Errno 1\] Operation not "
        r"permitted\. A sandbox refuses .*"
    )
    script.finish()


def in_a_namespace(*command):
    """Runs a command where /proc is an empty folder."""
    hidden = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    return subprocess.run(
        [*hidden, *command],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_world_where_proc_is_not_mounted(tmp_path):
    try:
        problem = in_a_namespace("true").stderr
    except FileNotFoundError as error:
        problem = str(error)
    if problem:
        pytest.skip(f"no mount namespace of its own here: {problem.strip()}")
    script = tmp_path / "script.py"
    killed = """
    with synk.fork(2, device="cpu", timeout=5) as world:
        pids = world.pids
        os.kill(pids[1], signal.SIGKILL)
        try:
            total(ROWS)
        except synk.RankDied as error:
            say(error.rank, "killed")
    """
    check = (
        "assert not os.path.exists('/proc/self')\nfrom synknumba._world.limits import "
        "check_room\ncheck_room(65)\n"
    )
    script.write_text(HEADER + check + textwrap.dedent(WORKS) + textwrap.dedent(killed))
    done = in_a_namespace(sys.executable, "-W", "error", str(script))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["right", "1 killed"]
    assert "waits for a call" in done.stderr


def test_descriptors_are_found_without_proc(monkeypatch):
    from synknumba._host import inherited

    known = {int(name) for name in os.listdir("/proc/self/fd")}

    def no_proc(path):
        raise FileNotFoundError(path)

    # past the first block of descriptors that poll(2) is asked about
    high = fcntl.fcntl(1, fcntl.F_DUPFD, 300)
    try:
        monkeypatch.setattr(os, "listdir", no_proc)
        found = set(inherited._open_descriptors())
    finally:
        monkeypatch.undo()
        os.close(high)
    assert {high} <= found
    assert found - {high} == {fd for fd in known if fd in found}
    assert len(known - found) <= 1  # the descriptor of the listing itself
