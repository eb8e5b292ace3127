"""What a rank has of the script that it was forked from, and what comes back from it:
descriptors, output, warnings, chance.
"""

import builtins
import contextlib
import errno
import glob
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import synknumba as synk
from synknumba._host import inherited, this_process
from tests.faults.scripts import await_scribes, lives, poll
from tests.quick import whole

ROWS = np.arange(100.0)


@synk.function(outputs="sum")
def total(x):
    return x.sum()


@synk.function(outputs=None)
def ask(question):
    names = {
        "glob": glob,
        "np": np,
        "os": os,
        "random": random,
        "subprocess": subprocess,
        "sys": sys,
    }
    return np.frombuffer(eval(question, names).encode().ljust(4096), np.uint8)


def answers(question):
    """What an expression gives on each rank, as text."""
    return [bytes(one).decode().strip() for one in ask(question)]


# ---- threads -------------------------------------------------------------------------------------


def test_threads_are_named_once(monkeypatch):
    monkeypatch.setattr(inherited, "_told", set())
    done = threading.Event()
    loaders = [threading.Thread(target=done.wait, name=name) for name in ("loader", "writer")]
    for thread in loaders:
        thread.start()
    try:
        with pytest.warns(
            RuntimeWarning, match=r"2 other threads run: 'loader', 'writer'.*Call fork\(\) before"
        ) as caught:
            synk.fork(1, device="cpu").close()
        assert [Path(one.filename).name for one in caught] == ["test_hygiene.py"]
        synk.fork(1, device="cpu").close()  # warnings are errors here
    finally:
        done.set()
        for thread in loaders:
            thread.join()


def test_a_library_whose_threads_are_lost_is_named_once(monkeypatch):
    """The thread has the name that polars gives to its own."""
    monkeypatch.setattr(inherited, "_told", {"threads"})
    named, done = threading.Event(), threading.Event()

    def work():
        this_process.set_name(b"polars-0")
        named.set()
        done.wait()

    thread = threading.Thread(target=work)
    thread.start()
    named.wait()
    try:
        with pytest.warns(
            RuntimeWarning,
            match=r"after polars has started its threads.*move the line with fork\(\)",
        ):
            synk.fork(1, device="cpu").close()
        synk.fork(1, device="cpu").close()  # warnings are errors here
    finally:
        done.set()
        thread.join()


def test_what_is_raised_in_a_child_stays_there(capfd):
    def child():
        raise MemoryError("none left")

    parent = os.getpid()
    pid = inherited.fork(child)
    if os.getpid() != parent:
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert (
        capfd.readouterr().err == "synknumba: a process could not start: MemoryError: none left\n"
    )


def test_no_word_of_threads_where_there_are_none_but_the_main_one(monkeypatch):
    monkeypatch.setattr(inherited, "_told", set())
    problems = []

    def work():
        try:
            with synk.fork(1, device="cpu"):
                assert total(ROWS) == ROWS.sum()
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not problems
    assert not inherited._told


# ---- resource trackers ---------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["closed", "a timeout", *whole("killed")])
def test_names_that_functions_make_are_removed_after_the_rank(start, end):
    """By multiprocessing's resource tracker, which lives a moment longer than the rank, and not
    for ever.
    """
    script = start(f"""
        from multiprocessing import resource_tracker
        from multiprocessing.shared_memory import SharedMemory

        @synk.function(outputs=None)
        def work(x):
            memory = SharedMemory(create=True, size=10)
            tracker = resource_tracker._resource_tracker
            say("made", memory.name, tracker._pid)
            sys.modules["kept"] = memory
            while {end!r} == "a timeout":
                time.sleep(0.01)

        resource_tracker.ensure_running()  # of the script
        world = synk.fork(1, device="cpu", timeout=3)
        try:
            work(ROWS)
        except synk.CallTimeout:
            pass
        if {end!r} == "killed":
            say("ready")
            hear()
        world.close()
        say("closed")
        hear()
    """)
    name, tracker = script.expect(r"made (\S+) (\d+)").groups()
    assert lives(int(tracker))
    if end == "killed":
        script.expect("ready")
        script.kill(signal.SIGKILL)
    else:
        script.expect("closed")
    poll(lambda: not os.path.exists(f"/dev/shm/{name}"), "the name is removed")
    poll(lambda: not lives(int(tracker)), "the tracker ends")
    if end != "killed":
        script.tell("end")
    script.finish(-signal.SIGKILL if end == "killed" else 0)
    assert "leaked" not in script.errors


# ---- descriptors ---------------------------------------------------------------------------------


def test_conversations_are_not_inherited_but_files_are(tmp_path):
    log = tmp_path / "log"
    with socket.create_server(("127.0.0.1", 0)) as server, log.open("w") as file:
        reader, writer = os.pipe()
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        address = server.getsockname()
        with synk.fork(2, device="cpu"):
            kinds = answers(
                f"repr([os.readlink(f'/proc/self/fd/{{fd}}') for fd in "
                f"{[server.fileno(), reader, writer]}])"
            )
            assert kinds == [repr([os.devnull] * 3)] * 2
            links = answers(
                "' '.join(os.readlink(path) for path in glob.glob('/proc/self/fd/*') "
                "if os.path.islink(path))"
            )
            for one in links:
                assert one.count("socket:") == 1, "the one to the script"
                assert one.count("pipe:") <= 3, "the lifeline, stderr and perhaps stdout"
                assert str(log) in one
            child.stdin.close()
            assert child.wait(10) == 0, (
                "a rank that had the other end of its input would keep it waiting"
            )
            child.stdout.close()
            os.close(writer)
            assert os.read(reader, 1) == b"", "nobody else can write there"
            os.close(reader)
            server.close()
            with socket.socket() as anew:
                anew.bind(address)  # a rank that had it would keep the port
            ask(f"repr(os.write({file.fileno()}, b'line\\n'))")
            assert answers("repr(sys.stdin.read())") == ["''"] * 2
    assert log.read_text() == "line\n" * 2


def test_ranks_have_no_descriptors_of_each_other():
    with synk.fork(3, device="cpu") as world:
        assert total(ROWS) == ROWS.sum()
        for rank, pid in enumerate(world.pids):
            links = _links(pid)
            assert [link for link in links if link.startswith("/memfd:synk")] == [
                f"/memfd:synk-stacks-{rank} (deleted)"
            ]
            assert sum(link.startswith("socket:") for link in links) == 1, "the one to the script"
            assert sum(link.startswith("pipe:") for link in links) <= 3, (
                "the lifeline, stderr and perhaps stdout"
            )
        (scribe,) = await_scribes(os.getpid())
        # it drops them while the ranks start, which do not wait for it
        deadline = time.monotonic() + 20
        while left := _memory_files(scribe):
            assert time.monotonic() < deadline, left
            time.sleep(0.01)


def _links(pid):
    """What the descriptors of a process are, but for those that it closes meanwhile."""
    found = []
    for path in glob.glob(f"/proc/{pid}/fd/*"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(path))
    return found


def _memory_files(pid):
    return [link for link in _links(pid) if link.startswith("/memfd:")]


def test_descriptors_of_other_ranks_are_replaced_without_a_look():
    """Looks would make the start of W ranks take time in W * W."""
    reader, writer = os.pipe()
    null = os.stat(os.devnull)
    looked = []
    try:
        inherited.replace([reader, writer])
        inherited.replace_descriptors(lambda fd, _: looked.append(fd), [reader, writer])
        assert [os.fstat(fd).st_rdev for fd in (reader, writer)] == [null.st_rdev] * 2
        assert {0, 1, 2} <= set(looked)
        assert not {reader, writer} & set(looked)
    finally:
        os.close(reader)
        os.close(writer)


def test_a_socket_beyond_a_lowered_limit_of_open_files_is_closed(start):
    script = start("""
        import resource, socket

        @synk.function(outputs=None)
        def is_open(x):
            try:
                os.fstat(300)
            except OSError:
                return False
            return True

        one, other = socket.socketpair()
        os.dup2(one.fileno(), 300)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        with synk.fork(2, device="cpu"):
            assert is_open(ROWS) == [False, False]
        os.fstat(300)
    """)
    script.finish()


MANY = """
    import resource
    weights = synk.variable(np.ones(3))
    for again in range(2):
        began = time.monotonic()
        world = synk.fork(64, device="cpu")
        say("started", f"{time.monotonic() - began:.2f}")
        for _ in range(5):
            assert total(ROWS) == ROWS.sum()
        weights.set_value(np.ones(3))
        synk.all_reduce(weights, "sum")
        assert (weights.get_value() == 64.0).all()
        if not again:
            os.kill(world.pids[40], signal.SIGKILL)
            try:
                total(ROWS)
            except synk.RankDied as error:
                say("died", error.rank)
        world.close()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    say("used", sum(one.ru_utime + one.ru_stime for one in used))
"""


@pytest.mark.whole
def test_sixty_four_ranks(start):
    script = start(MANY)
    script.expect(r"started .*", 60.0)
    script.expect("died 40")
    script.expect(r"started .*", 60.0)
    seconds = float(script.expect(r"used (.*)")[1])
    assert seconds < 16.0, (
        "seconds of all processes; about 5 of two cores, for an import and two worlds"
    )
    script.finish()


def test_no_more_processes(monkeypatch):
    """What the system refuses is said in words, and nothing is left of the ranks that there were
    already.
    """
    real_fork, made = os.fork, []

    def fork():
        if len(made) == 2:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        pid = real_fork()
        made.append(pid)
        return pid

    synk.fork(3, device="cpu").close()  # opens what stays open
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "fork", fork)
    with pytest.raises(
        BlockingIOError, match=r"temporarily unavailable: rank 2 of 3 .*ulimit -u.*fewer ranks"
    ):
        synk.fork(3, device="cpu")
    monkeypatch.undo()
    assert len(os.listdir("/proc/self/fd")) == before
    for pid in made:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with synk.fork(3, device="cpu"):
        assert total(ROWS) == ROWS.sum()


# ---- output --------------------------------------------------------------------------------------

PRINTS = """
    import ctypes

    @synk.function()
    def speak(rank, how):
        libc = ctypes.CDLL(None)
        if how == "print":
            print("printed by", rank)
            print("unfinished", rank, end="")
            sys.stderr.write(f"error of {rank}\\n")
        elif how == "C":
            libc.printf(b"said in C by %d\\n", rank)
        elif how == "dies" and rank == 1:
            print("last line of", rank)
            libc.printf(b"last in C of %d\\n", rank)
            os.kill(os.getpid(), signal.SIGKILL)

    print("before")  # into a pipe, so it stays in the buffer
    ctypes.CDLL(None).printf(b"before in C\\n")
    world = synk.fork(2, device="cpu", prefix_output=PREFIX)
    speak(synk.RANK, "C")
    try:
        speak(synk.RANK, "dies")
    except synk.RankDied:
        pass
    with synk.fork(2, device="cpu", prefix_output=PREFIX):
        speak(synk.RANK, "print")
"""


@pytest.mark.parametrize("prefix", [False, True])
def test_what_ranks_print_is_neither_lost_nor_printed_twice(start, prefix):
    script = start(PRINTS.replace("PREFIX", str(prefix)))
    out, _ = script.process.stdout, script.process.wait(60)
    text = out.read().decode()
    script.finish()
    first, second = ("[rank 0] ", "[rank 1] ") if prefix else ("", "")
    for line in (
        "before",
        "before in C",
        f"{first}said in C by 0",
        f"{second}said in C by 1",
        f"{second}last line of 1",
        f"{second}last in C of 1",
        f"{first}printed by 0",
        f"{second}printed by 1",
    ):
        assert text.count(f"{line}\n") == 1 + (line == "before" and text.count("before\n") - 1), (
            line,
            text,
        )
    for rank, mark in enumerate((first, second)):
        assert text.count(f"{mark}unfinished {rank}") == 1, text
        assert script.errors.count(f"{mark}error of {rank}\n") == 1
    if prefix:
        assert all(line.startswith(("[rank ", "before")) for line in text.splitlines()), text


LINES = """
import ctypes, sys
import synknumba as synk

@synk.function()
def speak(rank):
    libc = ctypes.CDLL(None)
    for i in range(20):
        print("printed by", rank, i)
        libc.printf(b"said in C by %d, %d\\n", rank, i)
        sys.stderr.write(f"error of {rank}, {i}\\n")

if __name__ == "__main__":
    with synk.fork(2, device="cpu"):
        speak(synk.RANK)
"""


@pytest.mark.parametrize("flags", [[], *whole(["-u"])], ids=str)
def test_lines_are_written_whole(tmp_path, flags):
    script = tmp_path / "lines.py"
    script.write_text(LINES)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    # what is written at once is read at once
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        command = [sys.executable, *flags, str(script)]
        process = subprocess.Popen(command, stdout=its, stderr=its, env=environment)
        its.close()
        pieces = list(iter(lambda: ours.recv(1_000_000).decode(), ""))
        process.wait(60)
    texts = ("printed by {} {}\n", "said in C by {}, {}\n", "error of {}, {}\n")
    lines = [line for piece in pieces for line in piece.splitlines(keepends=True)]
    assert sorted(lines) == sorted(
        text.format(rank, i) for text in texts for rank in range(2) for i in range(20)
    )
    assert process.returncode == 0


# What a rank writes, each piece at once.
PIECES = {
    "in pieces": [b"par", b"ti", b"al\n"],
    "several lines at once": [b"one\ntwo\n\nthree\n"],
    "no end": [b"one\n", b"no end"],
    "a megabyte": [b"x" * 1_000_000 + b"\n"],
    "a megabyte in pieces": [*[b"x" * 1000] * 1000, b"\n"],
    "not UTF-8": [b"\xff\xfe\x00\xc3", b"\x28\n\xff\n"],
    "carriage returns": [b"10 %\r", b"20 %\r", b"done\n"],
}


@synk.function()
def write_pieces(stream, pieces, rank, dies):
    for piece in pieces:
        left = piece.replace(b"x", b"%d" % rank)
        while left:  # os.write may take a part only
            left = left[os.write(stream, left) :]
    if dies and rank == 1:
        os.write(stream, b"cut o")
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("stream", [1, 2])
@pytest.mark.parametrize("name", PIECES)
def test_lines_come_out_whole_and_marked_whatever_they_are(name, stream, capfdbinary):
    pieces = PIECES[name]
    with synk.fork(3, device="cpu", prefix_output=True):
        for _ in range(2):
            write_pieces(stream, pieces, synk.RANK, False)
    lines = capfdbinary.readouterr()[stream - 1].split(b"\n")
    assert lines.pop() == b"", "the last line has an end"
    for rank in range(3):
        mark = b"[rank %d] " % rank
        written = b"".join(pieces).replace(b"x", b"%d" % rank) * 2
        expected = written if written.endswith(b"\n") else written + b"\n"
        assert (
            b"".join(line[len(mark) :] + b"\n" for line in lines if line.startswith(mark))
            == expected
        )
    assert all(line.startswith((b"[rank 0] ", b"[rank 1] ", b"[rank 2] ")) for line in lines)


@pytest.mark.parametrize("stream", [1, 2])
def test_a_line_in_which_its_rank_dies_comes_out(stream, capfdbinary):
    world = synk.fork(2, device="cpu", prefix_output=True)
    with pytest.raises(synk.RankDied):
        write_pieces(stream, [b"whole\n"], synk.RANK, True)
    assert world.closed
    lines = capfdbinary.readouterr()[stream - 1].splitlines()
    assert sorted(lines) in (
        [b"[rank 0] whole", b"[rank 1] cut o", b"[rank 1] whole"],
        [b"[rank 1] cut o", b"[rank 1] whole"],  # rank 0 was ended before it came to it
    )


def test_a_line_of_megabytes_comes_out_in_parts_that_are_marked(capfdbinary):
    with synk.fork(2, device="cpu", prefix_output=True):
        write_pieces(1, [b"x" * 3_000_000, b"\n"], synk.RANK, False)
    lines = capfdbinary.readouterr().out.splitlines()
    for rank in range(2):
        parts = [
            line.removeprefix(b"[rank %d] " % rank)
            for line in lines
            if line.startswith(b"[rank %d] " % rank)
        ]
        assert len(parts) <= 4
        assert b"".join(parts) == b"%d" % rank * 3_000_000
    assert all(line.startswith(b"[rank ") for line in lines)


# ---- warnings ------------------------------------------------------------------------------------


class OwnWarning(UserWarning):
    pass


@synk.function(outputs="sum")
def warn(x, text, fails=False):
    warnings.warn(text, OwnWarning, stacklevel=1)
    if fails:
        raise ValueError(text)
    return x.sum()


def test_warnings_of_ranks_are_shown_once_by_the_script(capfd):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        with synk.fork(3, device="cpu"):
            for _ in range(3):
                assert warn(ROWS, "first") == ROWS.sum()
            assert warn(ROWS, "second") == ROWS.sum()
            with pytest.raises(synk.RankError):
                warn(ROWS, "third", True)
            assert total(ROWS) == ROWS.sum()
    assert [str(one.message) for one in caught] == ["first", "second", "third"]
    assert {one.category for one in caught} == {OwnWarning}
    assert {Path(one.filename).name for one in caught} == {"test_hygiene.py"}
    assert linecache_line(caught[0]) == "warnings.warn(text, OwnWarning, stacklevel=1)"
    assert capfd.readouterr().err == "", "ranks print nothing themselves"


def linecache_line(caught):
    return Path(caught.filename).read_text().splitlines()[caught.lineno - 1].strip()


def test_filters_of_the_script_are_those_of_the_ranks():
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        world = synk.fork(2, device="cpu")
    with world:
        # here warnings are errors: the filters of pytest
        with pytest.raises(OwnWarning, match="as an error"):
            warn(ROWS, "as an error")
        assert not world.closed
        assert total(ROWS) == ROWS.sum(), "the world is as it was"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert warn(ROWS, "not wanted") == ROWS.sum()
    with synk.fork(2, device="cpu"), pytest.raises(synk.RankError, match="OwnWarning: on the rank"):
        warn(ROWS, "on the rank")


def test_every_kind_of_warning_comes_home():
    @synk.function()
    def warn_of(name):
        warnings.warn(f"of {name}", getattr(builtins, name), stacklevel=1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with synk.fork(2, device="cpu"):
            for name in ("DeprecationWarning", "RuntimeWarning", "ResourceWarning"):
                warn_of(name)
                warn_of(name)
    told = [(str(one.message), one.category.__name__) for one in caught]
    assert told == [
        (f"of {name}", name)
        for name in ("DeprecationWarning", "RuntimeWarning", "ResourceWarning")
        for _ in range(2)
    ]


def test_warning_of_a_class_that_the_script_does_not_know():
    @synk.function()
    def warn_strangely():
        import sys as modules
        import types

        module = types.ModuleType("only_on_ranks")
        module.OddWarning = type("OddWarning", (FutureWarning,), {"__module__": "only_on_ranks"})
        modules.modules["only_on_ranks"] = module
        warnings.warn("strange", module.OddWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with synk.fork(1, device="cpu"), pytest.warns(FutureWarning, match="OddWarning: strange"):
            warn_strangely()


def test_the_same_warning_in_two_files_is_shown_twice_and_deprecations_of_the_script_as_python_does(
    start, tmp_path
):
    """The filters are Python's own, of which one shows deprecations in __main__ alone."""
    (tmp_path / "other_file.py").write_text(
        "import warnings\n\n\ndef tell(kind):\n    warnings.warn('same', kind, stacklevel=1)\n"
    )
    script = start(f"""
        import warnings

        warnings.resetwarnings()
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")
        sys.path.insert(0, {str(tmp_path)!r})
        import other_file

        @synk.function()
        def both(x):
            other_file.tell(RuntimeWarning)
            other_file.tell(DeprecationWarning)
            warnings.warn("same", RuntimeWarning, stacklevel=1)
            warnings.warn("mine", DeprecationWarning, stacklevel=1)

        shown = []
        warnings.showwarning = lambda message, category, *rest: shown.append((str(message), category.__name__))
        with synk.fork(2, device="cpu"):
            both(ROWS)
            both(ROWS)
        say(*sorted(shown))
    """)  # noqa: E501
    script.expect(
        r"\('mine', 'DeprecationWarning'\) \('same', 'RuntimeWarning'\) "
        r"\('same', 'RuntimeWarning'\)$"
    )
    script.finish()


# ---- chance --------------------------------------------------------------------------------------


def draws():
    return answers("repr((random.random(), float(np.random.random())))")


def test_random_states_differ_between_ranks_and_follow_from_the_script():
    told = []
    for _ in range(2):
        random.seed(5)
        np.random.seed(6)  # noqa: NPY002  # the global generator is what it is about
        with synk.fork(3, device="cpu"):
            told.append(draws())
    assert told[0] == told[1]
    assert len({part for one in told[0] for part in eval(one)}) == 6
    random.seed(7)
    with synk.fork(3, device="cpu"):
        other = draws()
    assert not {eval(one)[0] for one in other} & {eval(one)[0] for one in told[0]}


def test_hashes_are_those_of_the_script():
    with synk.fork(2, device="cpu"):
        assert answers("repr(hash('a text'))") == [repr(hash("a text"))] * 2


# ---- the process that carries output -------------------------------------------------------------


def test_a_process_that_a_rank_leaves_behind_holds_nothing_up():
    with synk.fork(1, device="cpu") as world:
        pid = int(answers("repr(subprocess.Popen(['sleep', '100']).pid)")[0])
    assert world.closed
    os.kill(pid, signal.SIGKILL)


def test_stderr_that_nobody_reads_holds_nothing_up(start):
    script = start("""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, b"x" * 4096)
        except BlockingIOError:
            os.set_blocking(writer, True)
        os.dup2(writer, 2)

        @synk.function()
        def complain():
            os.write(2, b"nobody hears this\\n")

        world = synk.fork(2, device="cpu")
        complain()
        began = time.monotonic()
        world.close()
        say("closed", time.monotonic() - began)
        check_world()
    """)
    assert float(script.expect(r"closed (\S+)")[1]) < 3
    script.finish()


def test_a_working_directory_that_was_deleted(start):
    """Numba formats paths relative to it while it compiles."""
    start("""
        import tempfile

        os.environ["SYNKNUMBA_CACHE"] = "0"
        gone = tempfile.mkdtemp()
        os.chdir(gone)
        os.rmdir(gone)

        @synk.parallel(inout=("x",))
        @cuda.jit
        def increase(x):
            i = cuda.grid(1)
            if i < x.shape[0]:
                x[i] += 1

        with synk.fork(2, device="cpu"):
            x = np.zeros(4)
            increase(x)
            assert (x == 1).all()
    """).finish()
