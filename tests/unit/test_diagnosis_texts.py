"""The texts of diagnosis, from what the system and faulthandler say; no processes."""

import fcntl
import os
import pickle
import signal
import time

import pytest

from synknumba._errors import CallTimeout, RankDied
from synknumba._host import stacks as stacks_module
from synknumba._wire.statistics import Memory, Phases, Statistics, own_memory
from synknumba._world.failure import CallInfo, Death, how_it_ended, rank_died, whereabouts
from synknumba._world.output_process import KEPT_BYTES, LONGEST_LINE, Carried

LOOP = f'  File "{stacks_module._PACKAGE}_rank/loop.py", line'
ROUTINE = f'  File "{stacks_module._PACKAGE}_rank/function_routine.py", line 90 in run'
EXECUTED = [ROUTINE, f"{LOOP} 9 in _execute", f"{LOOP} 9 in run"]
FORK = '  File "script.py", line 3 in <module>'


@pytest.mark.parametrize(
    "number", [int(one) for one in signal.Signals if one not in (signal.SIGRTMIN, signal.SIGRTMAX)]
)
def test_every_signal_has_a_name_and_a_meaning(number):
    told = how_it_ended(-number)
    assert told.startswith(f"was killed by {signal.Signals(number).name} (")
    assert "None" not in told


def test_other_ends():
    assert how_it_ended(-40) == "was killed by signal 40 (a real-time signal)"
    assert how_it_ended(7).startswith("exited with code 7 (")
    assert "exit status unknown" in how_it_ended(None)


@pytest.mark.parametrize(
    ("frames", "told"),
    [
        (
            ['  File "u.py", line 5 in f', *EXECUTED, f"{LOOP} 8 in _live", FORK],
            ['  File "u.py", line 5 in f'],
        ),
        ([*EXECUTED, FORK], [ROUTINE]),
        (
            ['  File "/numpy/core.py", line 5 in f', *EXECUTED, FORK],
            ['  File "/numpy/core.py", line 5 in f'],
        ),
        ([f"{LOOP} 9 in _await_command", f"{LOOP} 9 in run", FORK], ["  waits for a call"]),
        (
            [
                '  File "semaphore.py", line 1 in wait',
                f"{LOOP} 9 in _await_command",
                f"{LOOP} 9 in _arrive",
                f"{LOOP} 9 in run",
            ],
            ["  waits for a call"],
        ),
        (
            [f"{LOOP} 9 in _arrive", f"{LOOP} 9 in run", FORK],
            ["  waits for a call, or repeats the last one in compiled code"],
        ),
        (['  File "u.py", line 5 in f', FORK], ['  File "u.py", line 5 in f', FORK]),
        (["  <no Python frame>"], ["  <no Python frame>"]),
        ([], ["  waits for a call"]),
    ],
)
def test_a_stack_is_cut_to_what_the_rank_does(frames, told):
    text = "\n".join(
        [
            "Fatal Python error: Aborted",
            "",
            "Current thread 0x1 (most recent call first):",
            *frames,
            "",
        ]
    )
    assert (
        stacks_module.shorten(text + "\nExtension modules: numpy, more (total: 2)\n").splitlines()
        == told
    )


def test_several_threads_keep_their_headings():
    text = (
        f'Thread 0x2 (most recent call first):\n  File "t.py", line 1 in work\n\n'
        f'Current thread 0x1 (most recent call first):\n  File "u.py", line '
        f"5 in f\n{LOOP} 9 in run\n"
    )
    assert stacks_module.shorten(text).splitlines() == [
        "Thread 0x2 (most recent call first):",
        '  File "t.py", line 1 in work',
        "Current thread 0x1 (most recent call first):",
        '  File "u.py", line 5 in f',
    ]
    assert stacks_module.shorten("") == ""


def test_ranks_at_the_same_place_are_told_together():
    assert whereabouts({2: "  b", 0: "  a", 1: "  b"}, {}) == (
        "--- rank 0, innermost frame first ---\n  a\n--- rank 1, 2, innermost frame first ---\n  b"
    )


def test_an_error_has_the_last_lines_only_and_pickles():
    stderr = "\n".join(map(str, range(100))) + "\n"
    error = rank_died("it ended", Death(3, 77, -9), CallInfo("f", ("x: int",)), "  frame", stderr)
    assert error.stderr.splitlines() == [str(k) for k in range(70, 100)]
    assert str(error).endswith("\n98\n99")
    again = pickle.loads(pickle.dumps(error))
    assert (again.rank, again.pid, again.exitcode, again.function, again.arguments) == (
        3,
        77,
        -9,
        "f",
        ("x: int",),
    )
    assert str(again) == str(error)
    assert pickle.loads(pickle.dumps(CallTimeout("late", stacks={1: "  a"}))).stacks == {1: "  a"}
    assert RankDied("plain").rank is None


# ---- lines of output -----------------------------------------------------------------------------


def carried(pieces, *, prefix):
    reader, writer = os.pipe()
    one = Carried(4, writer, os.open(os.devnull, os.O_RDONLY), prefix=prefix)
    for piece in pieces:
        one.keep(piece)
        one.pass_on()
    one.pass_on(all_of_it=True)
    os.close(writer)
    one.close()
    with open(reader, "rb") as pipe:
        return pipe.read()


@pytest.mark.parametrize(
    "pieces", [[b"one\ntwo\nrest"], [b"o", b"ne\ntw", b"o\n", b"rest"], [b"one\n", b"two\nrest"]]
)
def test_lines_get_the_prefix_however_they_come(pieces):
    assert carried(pieces, prefix=True) == b"[rank 4] one\n[rank 4] two\n[rank 4] rest\n"
    assert carried(pieces, prefix=False) == b"one\ntwo\nrest"


def test_a_line_without_an_end_is_passed_on_in_time(tmp_path):
    with (tmp_path / "out").open("wb") as out:
        one = Carried(0, out.fileno(), os.open(os.devnull, os.O_RDONLY), prefix=True)
        for _ in range(2 * LONGEST_LINE // 1024 + 1):  # a progress bar
            one.keep(b"\r" + b"#" * 1023)
            one.pass_on()
        assert one.waiting == b"\r" + b"#" * 1023
        one.close()
    parts = (tmp_path / "out").read_bytes().splitlines(keepends=False)
    assert (tmp_path / "out").read_bytes().count(b"[rank 0] \r") == 2
    # each \r ends one here
    assert sum(map(len, parts)) == 2 * (LONGEST_LINE + len(b"[rank 0] ")) - 2 * LONGEST_LINE // 1024


def test_the_end_of_long_output_is_kept_and_a_closed_stream_loses_nothing_else():
    closed = os.open(os.devnull, os.O_RDONLY)  # writing there is refused
    one = Carried(0, closed, os.open(os.devnull, os.O_RDONLY), prefix=False)
    said = b"".join(b"%d\n" % k for k in range(5000))
    for start in range(0, len(said), 1000):
        one.keep(said[start : start + 1000])
        one.pass_on()
    assert one.last == said[-KEPT_BYTES:]
    assert one.dropped == len(said)
    assert one.waiting == b""
    one.close()
    os.close(closed)


def test_what_a_killed_process_had_read_and_not_written_is_counted():
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    one = Carried(0, writer, os.open(os.devnull, os.O_RDONLY), prefix=True)
    text = b"".join(b"line %d\n" % k for k in range(1000)) + b"unfinished"
    marked = b"".join(b"[rank 0] line %d\n" % k for k in range(1000))
    pid = os.fork()
    if not pid:
        one.keep(text)
        one.pass_on()
        os._exit(0)
    got = b""
    while len(got) < 4096:  # it has written some of it, and waits to write more
        got += os.read(reader, 50)
    time.sleep(0.1)  # to the end of the write that has room now
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        got += pipe.read()
    assert marked.startswith(got)
    assert one.last == text[-KEPT_BYTES:]
    one.lose()
    assert (one.held, one.dropped) == (0, len(marked) - len(got) + len(b"unfinished"))
    one.close()


# ---- statistics ----------------------------------------------------------------------------------


def test_statistics_read_as_a_table():
    memory = Memory(3 << 20, (5 << 10, None), (1 << 30, 12), (2 << 30, 0))
    told = str(Statistics(1234, 5678, 9, 10 << 30, Phases(0.1, 0.2, 0.3, 1.0), memory)).splitlines()
    assert told == [
        "1,234 calls in 5,678 rounds, by 9 plans",
        "10.0 GiB scattered",
        "1.000 s open: 0.100 s starting, 0.200 s preparing, 0.300 s working",
        "3.0 MiB of shared memory; each rank's own: 5.0 KiB, ?",
        "on GPUs: 1.0 GiB (2.0 GiB free), 12 bytes (0 bytes free)",
    ]


def test_memory_of_processes():
    mine, nobody = own_memory([os.getpid(), 2**22 + 1])
    assert mine > 1 << 20
    assert nobody is None
