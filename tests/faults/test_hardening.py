"""Scripts that are not as tidy as one would like: classes of their own, signals ignored,
threads, no place to cache.
"""

import os
import pstats
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.environment import PACKAGE, environment
from tests.faults.scripts import HEADER, PATIENCE
from tests.quick import whole

CLASSES = """
from collections import namedtuple
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

class Mode(Enum):
    A = 1
    B = 2

class Level(IntEnum):
    LOW = 1
    HIGH = 2

class Pair(NamedTuple):
    first: object
    second: object

Point = namedtuple("Point", "x y")

@dataclass
class Settings:
    factor: float

class OwnError(Exception):
    def __init__(self, text, code=0):
        super().__init__(text, code)
        self.code = code
"""

# Memory of segments that the script and its ranks hold, each counted once, however it is held.
HELD = """
def held(pids):
    found = {}
    for pid in ("self", *pids):
        for line in open(f"/proc/{pid}/maps"):
            if "/synk-" in line:
                span, _, _, _, inode = line.split()[:5]
                start, stop = (int(end, 16) for end in span.split("-"))
                found[inode] = max(found.get(inode, 0), stop - start)
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                if "/synk-" in os.readlink(f"/proc/{pid}/fd/{fd}"):
                    status = os.stat(f"/proc/{pid}/fd/{fd}")
                    found[str(status.st_ino)] = max(found.get(str(status.st_ino), 0), status.st_size)
            except FileNotFoundError:
                pass  # the one that listdir had open
    return sum(found.values())

def counts(pids):
    told = []
    for pid in pids:
        with open(f"/proc/{pid}/maps") as maps:
            told.append((len(os.listdir(f"/proc/{pid}/fd")), sum("/synk-" in line for line in maps)))
    return told
"""  # noqa: E501


# ---- classes of the script -----------------------------------------------------------------------


@pytest.mark.parametrize("place", ["before", "after"])
def test_classes_of_the_script_are_themselves_on_the_ranks(start, place):
    before, after = (CLASSES, "") if place == "before" else ("", CLASSES)
    script = start(
        before
        + "\nworld = synk.fork(2, device='cpu')\ntotal(ROWS)\n"
        + after
        + """
@synk.function(outputs=None)
def look(mode, level, pair, points, settings):
    return [
        mode == Mode.A and mode is Mode.A and isinstance(mode, Mode) and mode != Mode.B,
        level is Level.HIGH and isinstance(level, Level),
        isinstance(pair, Pair) and pair.first == 1,
        [isinstance(point, Point) for point in points["list"]],
        isinstance(settings, Settings) and settings == Settings(2.5),
    ]

@synk.function(outputs="sum")
def by_mode(x, mode):
    return x.sum() if mode is Mode.A else -x.sum()

for _ in range(2):
    told = look(Mode.A, Level.HIGH, Pair(1, 2.0), {"list": [Point(1, 2), Point(ROWS, 3)]}, Settings(2.5))
    assert told == [[True] * 2, [True] * 2, [True] * 2, [[True] * 2] * 2, [True] * 2], told
    assert by_mode(ROWS, Mode.A) == ROWS.sum()
    assert by_mode(ROWS, Mode.B) == -ROWS.sum()
    assert by_mode.as_serial(ROWS, Mode.A) == ROWS.sum()
world.close()
with synk.fork(2, device="cpu"):
    assert by_mode(ROWS, Mode.A) == ROWS.sum()
"""  # noqa: E501
    )
    script.finish()


@pytest.mark.parametrize("place", [*whole("before"), "after"])
def test_results_of_classes_of_the_script(start, place):
    before, after = (CLASSES, "") if place == "before" else ("", CLASSES)
    script = start(
        before
        + "\nworld = synk.fork(2, device='cpu')\ntotal(ROWS)\n"
        + after
        + """
@synk.function(outputs="sum")
def sums(x):
    return Pair(x.sum(), {"point": Point((x * x).sum(), None)})

@synk.function(outputs=Pair("sum", "gather"))
def rows(x):
    return Pair(x.sum(), x)

for num_slices in (1, 3):
    got = sums(ROWS, num_slices=num_slices)
    assert type(got) is Pair and type(got.second["point"]) is Point, got
    assert got == Pair(ROWS.sum(), {"point": Point((ROWS * ROWS).sum(), None)}), got
    assert type(sums.as_serial(ROWS)) is Pair
    got = rows(ROWS, num_slices=num_slices)
    assert type(got) is Pair and got.first == ROWS.sum() and np.array_equal(got.second, ROWS)
    assert total(ROWS) == ROWS.sum()
"""
    )
    script.finish()


def test_results_whose_structure_does_not_pickle(start):
    script = start("""
        import threading
        from collections import namedtuple

        @synk.function(outputs="sum")
        def local(x):
            return namedtuple("Local", "a b")(x.sum(), 1.0)

        @synk.function(outputs=None)
        def odd(x):
            return {threading.Lock(): 1.0}

        with synk.fork(2, device="cpu") as world:
            for _ in range(2):
                try:
                    odd(ROWS)
                except synk.SynkError as error:
                    say("refused:", type(error).__name__)
                assert total(ROWS) == ROWS.sum()
                try:  # a class that each rank makes for itself: its own on every rank, or refused, and no more than that
                    assert tuple(local(ROWS)) == (ROWS.sum(), 2.0)
                except synk.SynkError as error:
                    say("local:", type(error).__name__)
                assert total(ROWS) == ROWS.sum()
            assert not world.closed
    """)  # noqa: E501
    script.expect("refused: .*")
    script.expect("refused: .*")
    script.finish()


@pytest.mark.parametrize("place", [*whole("before"), "after"])
def test_exceptions_of_the_script(start, place):
    before, after = (CLASSES, "") if place == "before" else ("", CLASSES)
    script = start(
        before
        + "\nworld = synk.fork(2, device='cpu')\ntotal(ROWS)\n"
        + after
        + """
class MuteError(OwnError):
    def __str__(self):
        raise ZeroDivisionError

@synk.function(outputs="sum")
def fails(x, mute):
    raise (MuteError if mute else OwnError)("told", 7)

for mute in (False, True, False):
    try:
        fails(ROWS, mute)
    except synk.RankError as error:
        cause = error.__cause__
        assert type(cause) is (MuteError if mute else OwnError), repr(type(cause))
        assert (cause.args, cause.code) == (("told", 7), 7)
        assert error.failures[1].type_name == type(cause).__name__
        say("told")
    assert total(ROWS) == ROWS.sum()
try:
    fails(ROWS, False)
except synk.RankError as error:
    try:
        raise error.__cause__
    except OwnError:
        say("caught")
"""
    )
    for _ in range(3):
        script.expect("told")
    script.expect("caught")
    script.finish()


# ---- signals and threads -------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", *whole("exit")])
def test_script_that_ignores_the_death_of_children(start, end):
    script = start(f"""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        for _ in range(3):
            world = synk.fork(2, device="cpu")
            assert total(ROWS) == ROWS.sum()
            assert burn(ROWS[:2], 1) > 0
            began = time.monotonic()
            world.close()
            assert world.closed
            assert time.monotonic() - began < 2.0
        world = synk.fork(2, device="cpu")
        assert total(ROWS) == ROWS.sum()
        if {end == "close"}:
            synk.close()
        say("done")
    """)
    script.expect("done")
    script.finish()
    assert script.errors == ""


def test_rank_that_dies_where_the_death_of_children_is_ignored(start):
    script = start("""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        world = synk.fork(2, device="cpu")
        total(ROWS)
        os.kill(world.pids[1], signal.SIGKILL)
        try:
            total(ROWS)
        except synk.RankDied as error:
            say("told:", error)
        assert world.closed
        check_world()
    """)
    script.expect("told: rank 1 .*")
    script.finish()
    assert script.errors == ""


@pytest.mark.whole
def test_data_dropped_by_another_thread(start):
    script = start("""
        import queue, threading

        unwanted = queue.SimpleQueue()

        def drop():
            while unwanted.get() is not None:
                pass

        with synk.fork(2, device="cpu") as world:
            total(ROWS)
            thread = threading.Thread(target=drop)
            thread.start()
            for _ in range(40):
                many = [synk.data(np.ones(10)) for _ in range(20)]
                for x in many:
                    assert total(x) == 10
                del x
                while many:
                    unwanted.put(many.pop())
                    for _ in range(10):
                        assert total(ROWS) == ROWS.sum()
            unwanted.put(None)
            thread.join()
            assert total(ROWS) == ROWS.sum()
            assert not world.closed
    """)
    script.finish()


KEPT = """
import builtins, gc
import numpy as np
import synknumba as synk

@synk.function(outputs="sum")
def total(x):
    return x.sum()

with synk.fork(2, device="cpu") as world:
    total(np.ones(3))
builtins.kept = world._engine.life.processes
gc.freeze()
"""


def test_a_world_that_python_keeps_to_its_end(tmp_path):
    """After `gc.freeze` Python empties its modules before it lets go of what they hold."""
    script = tmp_path / "script.py"
    script.write_text(KEPT)
    for _ in range(2):  # the first may compile, and Numba then keeps modules in another order
        done = subprocess.run(
            [sys.executable, script], env=environment(), capture_output=True, text=True, check=True
        )
        assert done.stderr == ""


def test_data_collected_in_another_thread(start):
    """A garbage collection that happens to run there: its finalizers must neither fail nor
    disturb the calls.
    """
    script = start("""
        import gc, threading

        class Knot:
            pass

        done = threading.Event()

        def collect():
            while not done.is_set():
                gc.collect()
                time.sleep(0.0005)

        with synk.fork(2, device="cpu") as world:
            total(ROWS)
            gc.disable()
            gc.freeze()  # a collection looks at what is new only, and so is quick
            thread = threading.Thread(target=collect)
            thread.start()
            try:
                for _ in range(200):
                    knot = Knot()
                    knot.self, knot.data = knot, synk.data(np.ones(10))
                    assert total(knot.data) == 10
                    del knot
                    assert total(ROWS) == ROWS.sum()
            finally:
                done.set()
                thread.join()
            assert total(ROWS) == ROWS.sum()
    """)
    script.finish()
    assert script.errors == ""


# ---- memory --------------------------------------------------------------------------------------


def free_shm() -> int:
    status = os.statvfs("/dev/shm")
    return status.f_bavail * status.f_frsize


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["function", "kernel"])
def test_large_results_of_ever_new_lengths(start, kind):
    """Results are kept for the next call of their shape, but not more of them than fit a budget."""
    if free_shm() < 2 << 30:
        pytest.skip("needs 2 GiB in /dev/shm, to see that a part of them is used")
    script = start(
        HELD
        + f"""
@synk.function(outputs="gather")
def rows_of_function(x):
    return x + 1

@synk.parallel(outputs={{"out": synk.output("gather", like="x")}})
def rows_of_kernel(x, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i] = x[i] + 1

with synk.fork(2, device="cpu") as world:
    base = np.ones(5_000_000)
    rows_of_{kind}(base[:10])
    before, most = held(world.pids), 0
    for k in range(40):
        n = 4_000_000 + 25_000 * k
        got = rows_of_{kind}(base[:n])
        assert got.shape == (n,) and got[0] == got[-1] == 2.0
        most = max(most, held(world.pids) - before)
    assert most < 400 << 20, most
    assert total(ROWS) == ROWS.sum()
    again = rows_of_{kind}(base[:4_000_000])
    assert again.shape == (4_000_000,) and again.sum() == 8_000_000
"""
    )
    script.finish()


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["function", "kernel"])
def test_dropped_functions_leave_nothing_on_the_ranks(start, kind):
    script = start(
        HELD
        + f"""
import gc

numbers = synk.data(np.arange(200_000.0))

def make_function(k):
    @synk.function(outputs="gather")
    def shifted(x):
        return x + k

    return shifted

def make_kernel(k):
    @synk.parallel(outputs={{"out": synk.output("gather", like="x")}})
    def shifted(x, out):
        i = cuda.grid(1)
        if i < x.shape[0]:
            out[i] = x[i] + k

    return shifted

def use(k):
    shifted = make_{kind}(float(k))
    for _ in range(2):
        assert shifted(numbers)[-1] == 199_999.0 + k
        assert shifted(numbers, batch=slice(0, 100_000))[0] == k

def settle(k):
    use(k)
    gc.collect()
    total(ROWS)
    total(ROWS)
    return counts(world.pids), counts(["self"])[0][1], held(world.pids)

with synk.fork(2, device="cpu") as world:
    total(ROWS)
    first = settle(0)
    for k in range(1, 20):
        last = settle(k)
    assert first == last, (first, last)
"""
    )
    script.finish()


# ---- places to write -----------------------------------------------------------------------------


# Runs a script as one who may not write where the permissions say so: root may, by a capability
# (CAP_DAC_OVERRIDE), which is taken from it (PR_CAPBSET_DROP).
POWERLESS = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 1); os.execv(sys.executable, "
    "[sys.executable, *sys.argv[1:]])"
)


@pytest.fixture
def read_only_copy(tmp_path: Path) -> Iterator[Path]:
    """A folder with a copy of the package that may not be written to."""
    folder = tmp_path / "read_only"
    shutil.copytree(PACKAGE, folder / "synknumba", ignore=shutil.ignore_patterns("__pycache__"))
    places = [folder, *folder.rglob("*")]
    for path in places:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield folder
    for path in places:
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.whole
def test_nowhere_to_cache(read_only_copy, tmp_path):
    """As in many containers: Numba may write neither beside the package nor into a home
    directory.
    """
    path = tmp_path / "script.py"
    path.write_text(
        HEADER
        + """
assert synk.__file__.startswith(sys.argv[1]), synk.__file__
assert not os.access(sys.argv[1], os.W_OK)
with synk.fork(2, device="cpu"):
    assert total(ROWS) == ROWS.sum()
    assert burn(ROWS[:2], 1) > 0
    say("right", total(ROWS))
"""
    )
    places = {"NUMBA_CACHE_DIR", "XDG_CACHE_HOME"}
    ended = subprocess.run(
        [sys.executable, "-c", POWERLESS, "-W", "error", str(path), str(read_only_copy)],
        env={
            **{name: value for name, value in os.environ.items() if name not in places},
            "HOME": str(read_only_copy / "home"),
            "PYTHONPATH": str(read_only_copy),
        },
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert ended.stdout.split() == ["right", "500500.0"]
    assert not list(read_only_copy.rglob("__pycache__"))


def test_profile_of_each_rank(start, tmp_path):
    folder = tmp_path / "profiles"
    folder.mkdir()
    script = start(f"""
        os.chdir({str(folder)!r})

        @synk.function(outputs="sum")
        def remarkable(x):
            return x.sum()

        with synk.fork(3, device="cpu", profile=True):
            for _ in range(5):
                assert remarkable(ROWS) == ROWS.sum()
    """)
    script.finish()
    assert sorted(path.name for path in folder.iterdir()) == [
        f"synknumba-rank{r}.prof" for r in range(3)
    ]
    for path in folder.iterdir():
        calls = {
            name: figures[0] for (_, _, name), figures in pstats.Stats(str(path)).stats.items()
        }
        assert calls["remarkable"] == 5


def test_a_low_soft_limit_of_open_files_is_raised(start):
    script = start("""
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 12, 20_000))
        with synk.fork(12, device="cpu"):
            assert total(ROWS) == ROWS.sum()
    """)
    script.finish()
