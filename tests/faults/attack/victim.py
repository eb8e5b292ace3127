"""The script that is attacked: it makes calls, compares what they return with NumPy, and writes what happens to `log`.

Each case runs a copy of this file; beside it is `case.json` (`cases.Case`). The attacker reads the log, and makes the file
`struck` when the last fault has struck:

    began > phase > (told ERROR | wrong WHAT)* > recovering > (wrong WHAT | left WHAT)* > done, or leaving
"""

import ctypes
import faulthandler
import gc
import io
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda

import synknumba as synk

ROWS = np.arange(1001.0)
AFTERWARDS = 2  # steps after the last strike: what it has broken shows in the next ones
MOST_TOLD = 30  # errors; where something is short, each call may raise
KEPT = {"descriptor": 2, "segment": 1, "child": 0}  # by functions, for NumPy arrays and results of their calls
PATIENCE = 20.0  # seconds for the attacker to strike, and for a child of the script to end


@synk.function(outputs="sum")
def total(x, k):
    return (k * x).sum()


@synk.function(outputs="gather")
def double(x):
    return 2 * x


@synk.parallel(outputs={"found": synk.output("sum", shape=(), dtype="float64"), "rows": synk.output("gather", like="x")})
@cuda.jit
def kernel(x, k, found, rows):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        rows[i] = k * x[i]
        cuda.atomic.add(found, 0, x[i])


def new_kernel(k: float) -> Callable[..., Any]:
    """A kernel that nobody has compiled."""

    @synk.parallel(outputs={"found": synk.output("sum", shape=(), dtype="float64")})
    @cuda.jit
    def fresh(x, found):
        for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
            cuda.atomic.add(found, 0, k * x[i])

    return fresh


@synk.function(outputs="sum")
def misbehave(x, rank, which, how):
    if rank == which:
        ON_RANKS[how]()
    return x.sum()


def _endless() -> None:
    while True:
        pass


def _raise() -> None:
    raise ValueError("on purpose")


ON_RANKS: dict[str, Callable[[], None]] = {
    "ValueError": _raise,
    "exit": lambda: sys.exit(3),
    "os._exit": lambda: os._exit(3),
    "abort": lambda: ctypes.CDLL(None).abort(),
    "endless": _endless,
}


class Victim:
    """One run."""

    def __init__(self, folder: Path) -> None:
        self.case = json.loads((folder / "case.json").read_text())
        self.folder, self.struck = folder, str(folder / "struck")
        self._log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._old_limits = {what: resource.getrlimit(what) for what in LIMITS.values()}
        faulthandler.register(signal.SIGUSR2, (folder / "stacks").open("w"), all_threads=True)
        self.errors = 0
        self.rng = np.random.default_rng(self.case["which"])
        self.stop = threading.Event()
        self.threads: list[threading.Thread] = []
        self.to_drop: list[synk.Data] = []
        self.world: synk.World | None = None
        self.rows = synk.data(ROWS)
        self.kept: list[tuple[np.ndarray, np.ndarray]] = []

    def say(self, *words: object) -> None:
        os.write(self._log, (" ".join(map(str, words)).replace("\n", " | ") + "\n").encode())

    def right(self, got: object, expected: object, what: str) -> None:
        if not np.array_equal(np.asarray(got), np.asarray(expected)):
            self.say("wrong", what, got, "instead of", expected)

    def tell(self, error: BaseException) -> None:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        self.errors += 1
        self.say("told", ",".join(kinds), str(error)[:2000])
        with suppress(OSError), open(self.folder / "tracebacks", "a") as file:
            traceback.print_exception(error, file=file)

    # ---- surroundings

    def settle(self) -> None:
        """Makes the surroundings of the case."""
        around, cache = self.case["surroundings"], self.folder / "cache"
        os.umask(around.get("umask", 0o022))
        if around.get("TMPDIR"):
            os.environb[b"TMPDIR"] = around["TMPDIR"].encode()
        if around.get("cache"):  # else it is that of the attacker
            os.environ["SYNKNUMBA_CACHE_DIR"] = "/proc/nowhere" if around["cache"] == "nowhere" else str(cache)
        if around.get("cache") == "off":
            os.environ["SYNKNUMBA_CACHE"] = "0"
        if around.get("maker"):
            os.environ["SYNKNUMBA_SEGMENTS"] = around["maker"]
        if self.case["in_thread"] or self.case["companions"]:
            warnings.filterwarnings("ignore", message=".*thread")  # fork() warns of them
        for fd in around.get("closed", ()):
            os.close(fd)

    def tighten(self) -> None:
        """Sets the limits of the case."""
        for what, more in self.case["limits"].items():
            used = {"descriptors": _most_descriptor, "file size": lambda: 0, "memory": _address_space}[what]()
            resource.setrlimit(LIMITS[what], (used + more, used + more))

    def loosen(self) -> bool:
        """Takes the limits back; False if this user may not."""
        try:
            for what in self.case["limits"]:
                resource.setrlimit(LIMITS[what], self._old_limits[LIMITS[what]])
        except (OSError, ValueError):
            return False
        return True

    # ---- phases

    def open(self) -> None:
        """Forks a world, unless one is open."""
        if self.world is None or self.world.closed:
            synk.close()
            case = self.case
            ranks: dict[str, Any] = {"world_size": case["world_size"]}
            if case["device"] == "cuda":  # all on the first GPU, as on a machine with one
                ranks = {"devices": [0] * case["world_size"]}
            self.world = synk.fork(**ranks, device=case["device"], timeout=case["timeout"], respawn=case["respawn"])

    def fork(self) -> None:
        self.close()
        self.right(total(self.rows, 1), ROWS.sum(), "first call of a world")

    def close(self) -> None:
        synk.close()
        self.open()

    def compile(self) -> None:
        k = float(self.rng.integers(1 << 30))
        self.right(new_kernel(k)(self.rows), k * ROWS.sum(), "call of a new kernel")

    def calls(self) -> None:
        for k in range(6):
            self.right(total(self.rows, k), k * ROWS.sum(), "call of a function")
            self.right(kernel(self.rows, k).found, ROWS.sum(), "call of a kernel")

    def results(self) -> None:
        for length in (5, 100_000):
            value = np.arange(float(length))
            self.right(got := double(value), 2 * value, "large result")
            self.kept.append((got, 2 * value))
        self.right(kernel(self.rows, 3).rows, 3 * ROWS, "rows of a kernel")
        for got, value in self.kept:
            self.right(got, value, "kept result")
        del self.kept[:-4]

    def collective(self) -> None:
        value = np.arange(float(self.rng.integers(1, 5000)))
        variable = synk.variable(value)
        synk.all_reduce(variable, "sum")
        ranks = self.case["world_size"]
        self.right(variable.get_value(int(self.rng.integers(ranks))), ranks * value, "all_reduce")
        synk.broadcast(variable, root=ranks - 1)
        synk.reduce(variable, "max")
        self.right(variable.get_value(0), ranks * value, "reduce")

    def scatter(self) -> None:
        value = np.arange(float(self.rng.integers(1, 100_000)))
        variable = synk.variable(value[:1])
        synk.scatter(variable, value)
        self.right(synk.gather(variable, nd_up=0), value, "gather")

    def data(self) -> None:
        for length in (1, 1000, 200_000):
            value = np.arange(float(length)) + self.rng.integers(100)
            data = synk.data(value)
            self.right(total(data, 2), 2 * value.sum(), "call with new data")
            data.set_value(value[: length // 2 + 1] - 1)
            self.right(data, value[: length // 2 + 1] - 1, "changed data")
            self.to_drop.append(data)
        self.to_drop.append(synk.data(ROWS))
        del self.to_drop[:-8]

    def idle(self) -> None:
        time.sleep(0.005)

    def exit(self) -> None:
        raise AssertionError("it is no step")

    # ---- threads of the script, beside the calls

    @contextmanager
    def company(self) -> Iterator[None]:
        names = {"calls": self.one_call, "makes data": self.make, "drops data": self.drop, "collects": self.collect}
        names |= {"forks": self.fork_child, "looks": self.look}
        for name in self.case["companions"]:
            self.threads.append(threading.Thread(target=self.repeat, args=(names[name],), daemon=True))
            self.threads[-1].start()
        try:
            yield
        finally:
            self.stop.set()

    def repeat(self, what: Callable[[], None]) -> None:
        while not self.stop.is_set() and self.errors < MOST_TOLD:
            try:
                what()
            except synk.WorldError as error:
                if type(error) is not synk.WorldError:  # else the world is busy, or closed for now
                    self.tell(error)
            except Exception as error:
                self.tell(error)
            time.sleep(0.001)

    def one_call(self) -> None:
        self.right(total(self.rows, 3), 3 * ROWS.sum(), "call by another thread")

    def make(self) -> None:
        value = np.arange(float(1000 + id(object()) % 7))
        self.right(synk.data(value), value, "data of another thread")

    def drop(self) -> None:
        with suppress(IndexError):
            self.to_drop.pop(0)

    def collect(self) -> None:
        cycle: list[object] = [synk.data(ROWS)]
        cycle.append(cycle)
        del cycle
        gc.collect()

    def look(self) -> None:
        if (world := self.world) is not None:
            world.statistics()
            world.dump(io.StringIO())

    def fork_child(self) -> None:
        """A process of the user's own, which has the data, no world, and ends soon."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            signal.alarm(int(PATIENCE))
            synk.close()
            same = np.array_equal(self.rows, ROWS)
            del self.rows
            os._exit(0 if same else 9)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        struck = self.case["harms"] or self.case["act"].startswith("signal")  # it may be taken for a rank
        if status and not (status < 0 and struck):
            self.say("wrong status of a child:", status)

    # ---- the course of events

    def attacked(self) -> None:
        """Steps of the phase until the last strike, and some more."""
        with suppress(Exception):  # it is told below, where it comes again
            if self.case["phase"] not in {"fork", "close"}:
                self.open()
        with self.company():
            self.say("phase")
            left, end = AFTERWARDS, time.monotonic() + PATIENCE
            while left and self.errors < MOST_TOLD and time.monotonic() < end:
                left -= os.path.exists(self.struck)
                try:
                    self.open()
                    self.strike()
                    getattr(self, self.case["phase"])()
                except (KeyboardInterrupt, Exception) as error:
                    if "another call is in progress" not in str(error):
                        self.tell(error)

    def strike(self) -> None:
        """The faults that the script itself causes, once."""
        act = self.case["act"]
        if os.path.exists(self.struck) or act.partition(" ")[0] not in {"on", "close"}:
            return
        Path(self.struck).touch()
        if act.startswith("on rank"):
            misbehave(self.rows, synk.RANK, self.case["which"] % self.case["world_size"], act.split()[2])
            return
        ours = [fd for fd in _descriptors() if fd > self._log]
        with suppress(OSError):
            os.close(ours[self.case["which"] % len(ours)])

    def recover(self) -> None:
        """Everything works, and nothing is left."""
        self.say("recovering")
        self.right(self.rows, ROWS, "contents of data")
        for got, value in self.kept:
            self.right(got, value, "kept result at the end")
        if self.loosen():
            self.world = None
            synk.close()
            self.case["timeout"] = None
            self.cycle()
        synk.close()
        self.right(self.rows, ROWS, "contents of data at the end")

    def cycle(self) -> None:
        """A world, and calls of each kind."""
        self.open()
        for step in (self.calls, self.results, self.collective, self.scatter):
            step()
        synk.close()

    def let_go(self) -> None:
        """Drops everything."""
        self.stop.set()
        self.world = None
        for thread in self.threads:
            thread.join(PATIENCE)
            if thread.is_alive():
                self.say("wrong: a thread does not end")
        self.threads.clear()
        self.to_drop.clear()
        self.kept.clear()
        gc.collect()

    def held(self) -> dict[str, list[str]]:
        """What the process has."""
        gc.collect()
        with open("/proc/self/maps") as maps:
            segments = [line.split(maxsplit=5)[-1].strip() for line in maps if "/synk-" in line]
        children = [child for path in Path("/proc/self/task").glob("*/children") for child in path.read_text().split()]
        return {"descriptor": _paths(), "segment": segments, "child": children}

    def run(self) -> None:
        self.settle()
        if not self.case["cold"]:
            self.cycle()
            self.let_go()
            self.stop.clear()
        before = self.held()
        self.say("began")
        self.tighten()
        if self.case["phase"] == "exit":
            uninterrupted(self, self.prepare_exit)
            self.say("leaving")
            return
        if self.case["in_thread"]:
            over = threading.Event()  # an interrupted `join` takes a thread for ended on Python 3.11

            def call() -> None:
                try:
                    self.attacked()
                finally:
                    over.set()

            threading.Thread(target=call).start()
            uninterrupted(self, over.wait)
        else:
            uninterrupted(self, self.attacked)
        for what in (self.let_go, self.recover, self.let_go):
            uninterrupted(self, what)
        if not self.case["harms"]:  # else what it holds is not known
            for what, now in self.held().items():
                if len(now) > len(before[what]) + self.case["cold"] * KEPT[what]:
                    self.say("left", what, sorted(set(now) - set(before[what])) or now)
        self.say("done")

    def prepare_exit(self) -> None:
        self.open()
        with self.company():
            self.idle()
            self.say("phase")
        self.let_go()
        self.open()
        self.calls()


def uninterrupted(victim: Victim, what: Callable[[], object]) -> None:
    """Calls it again after an interrupt: a second Ctrl-C may come while the first is dealt with."""
    over = False
    while not over:
        with suppress(KeyboardInterrupt):
            over = _is_over(victim, what)


def _is_over(victim: Victim, what: Callable[[], object]) -> bool:
    try:
        what()
    except KeyboardInterrupt as error:
        victim.tell(error)
        return False
    except Exception as error:
        victim.tell(error)
    return True


LIMITS = {"descriptors": resource.RLIMIT_NOFILE, "file size": resource.RLIMIT_FSIZE, "memory": resource.RLIMIT_AS}


def _descriptors() -> list[int]:
    return sorted(map(int, os.listdir("/proc/self/fd")))


def _paths() -> list[str]:
    """Descriptors with what they are of; not the standard ones: in place of closed ones `fork()` opens /dev/null."""
    found = []
    for fd in (fd for fd in _descriptors() if fd > 2):
        with suppress(OSError):
            found.append(f"{fd}: {os.readlink(f'/proc/self/fd/{fd}')}")
    return found


def _most_descriptor() -> int:
    return max(_descriptors()) + 1


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
    Victim(Path(sys.argv[0]).resolve().parent).run()
