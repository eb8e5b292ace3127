"""The script that is attacked: it makes calls, checks what they return, and writes what happens to
`log`.

Each case runs a copy of this file; beside it is `case.json` (`cases.Case`). The attacker reads the
log, and makes the file `struck` when the last fault has struck:

    began > phase > (told ERROR | wrong WHAT)* > recovering > (wrong WHAT | left WHAT)* > done, or
    leaving
"""

import ctypes
import faulthandler
import gc
import io
import json
import os
import random
import resource
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

import numpy as np
from numba import cuda

import synknumba as synk
from synknumba._host.deaths import settle
from tests.faults.soak_model import Model, Pick, weighted_sum

ROWS = np.arange(1001)
AFTERWARDS = 2  # steps after the last strike: what it has broken shows in the next ones
MOST_TOLD = 30  # errors; where something is short, each call may raise
# by functions, for NumPy arrays that they were called with
KEPT = {
    "descriptor": 10,
    "segment": 5,
    "child": 0,
}
WARM = 6  # rounds of calls, after which functions keep no more memory for rows and results
# Told with other threads, of which one may make the call that fails.
BUSY = (
    "another call is in progress",
    "a world is being started",
    "another thread has opened",
    "the world has ended",
)
PATIENCE = 20.0  # seconds for the attacker to strike, and for a child of the script to end
LIMITS = {
    "descriptors": resource.RLIMIT_NOFILE,
    "file size": resource.RLIMIT_FSIZE,
    "memory": resource.RLIMIT_AS,
}


# nothing that is compiled first, which takes long
ALWAYS = (
    "repeat_function",
    "call_for_several",
    "scatter",
)
STEPS = {  # of the model, in each phase that has some
    "calls": ("repeat_function", "call_function", "call_kernel", "call_with_numpy"),
    "results": ("call_for_several", "call_kernel"),
    "submit": ("call_in_flight",),
    "collective": ("collective", "change_variable"),
    "scatter": ("scatter",),
    "halo": ("halo",),
    "sequence": ("sequence",),
    "data": ("make_array", "change_array", "write_rows", "drop_array"),
}


@synk.function(outputs="sum")
def misbehave(x, rank, which, how):
    if rank == which:
        ON_RANKS[how]()
    return x.sum()


@synk.sequence
def misbehave_later(x, rank, which, how):
    return misbehave(x, rank, which, how)


def _kernel(k: int) -> None:
    """Makes a kernel that nobody has compiled, and calls it."""

    @synk.parallel(outputs={"found": synk.output("sum", shape=(), dtype="int64")})
    @cuda.jit
    def fresh(x, found):
        for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
            cuda.atomic.add(found, 0, k * x[i])

    assert fresh(ROWS) == k * ROWS.sum()


ON_RANKS: dict[str, Callable[[], object]] = {
    "ValueError": lambda: int("on purpose"),
    "exit": lambda: sys.exit(3),
    "os._exit": lambda: os._exit(3),
    "abort": lambda: ctypes.CDLL(None).abort(),
    "endless": lambda: any(iter(int, 1)),
}


class Victim:
    """One run."""

    def __init__(self, folder: Path) -> None:
        self.case = json.loads((folder / "case.json").read_text())
        self.folder, self.struck = folder, str(folder / "struck")
        self._log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._old_limits = {what: resource.getrlimit(LIMITS[what]) for what in self.case["limits"]}
        faulthandler.register(signal.SIGUSR2, (folder / "stacks").open("w"), all_threads=True)
        self.errors = 0
        self.pick = random.Random(self.case["which"]).randrange
        self.ranks = self.case["world_size"]
        self.stop, self.over = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []
        self.to_drop: list[synk.Data] = []  # by another thread
        self.model = Model(self.case["device"], 0)
        self.rows = synk.data(ROWS)

    def say(self, *words: object) -> None:
        os.write(self._log, (" ".join(map(str, words)).replace("\n", " | ") + "\n").encode())

    def tell(self, error: BaseException) -> None:
        self.errors += 1
        if isinstance(error, AssertionError):
            self.say("wrong:", traceback.extract_tb(error.__traceback__)[-1].line, *error.args)
        else:
            self.say(
                "told", ",".join(kind.__name__ for kind in type(error).__mro__), str(error)[:2000]
            )
        with suppress(OSError), open(self.folder / "tracebacks", "a", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)

    def forget(self) -> None:
        """Drops what a call that has failed may have written."""
        self.model.arrays.clear()
        self.model.variables.clear()

    # ---- surroundings

    def settle(self) -> None:
        """Makes the surroundings of the case."""
        around, cache = self.case["surroundings"], self.folder / "cache"
        os.umask(around.get("umask", 0o022))
        if around.get("TMPDIR"):
            os.environb[b"TMPDIR"] = around["TMPDIR"].encode()
        if around.get("cache"):  # else it is that of the attacker
            os.environ["SYNKNUMBA_CACHE_DIR"] = (
                "/proc/nowhere" if around["cache"] == "nowhere" else str(cache)
            )
            os.environ["SYNKNUMBA_CACHE"] = "0" if around["cache"] == "off" else "1"
        if around.get("maker"):
            os.environ["SYNKNUMBA_SEGMENTS"] = around["maker"]
        if self.case["in_thread"] or self.case["companions"]:
            warnings.filterwarnings("ignore", message=".*thread")  # fork() warns of them
        for fd in around.get("closed", ()):
            os.close(fd)

    def tighten(self) -> None:
        """Sets the limits of the case."""
        # OpenBLAS, which Numba's compiler loads, asks for memory for ever without any
        if "memory" in self.case["limits"]:
            import_module("scipy.linalg")
        used = {"descriptors": max(_descriptors()) + 1, "file size": 0, "memory": _address_space()}
        for what, more in self.case["limits"].items():
            resource.setrlimit(LIMITS[what], (used[what] + more,) * 2)

    def loosen(self) -> bool:
        """Takes the limits back; False if this user may not."""
        try:
            for what, old in self._old_limits.items():
                resource.setrlimit(LIMITS[what], old)
        except (OSError, ValueError):
            return False
        return True

    # ---- phases: what it does again and again until the fault has struck

    def open(self) -> None:
        """Forks a world, unless one is open."""
        if self.model.world is None or self.model.world.closed:
            synk.close()
            self.model.variables.clear()
            kind = {
                "device": self.case["device"],
                "timeout": self.case["timeout"],
                "respawn": self.case["respawn"],
            }
            gpus = {"devices": [0] * self.ranks}  # as on a machine with one
            self.model.world = synk.fork(
                **kind, **(gpus if kind["device"] == "cuda" else {"world_size": self.ranks})
            )

    def step(self) -> None:
        phase = self.case["phase"]
        for name in STEPS.get(phase, ()):
            getattr(self.model, name)(self.pick)
        if phase not in STEPS:
            getattr(self, phase)()
        self.model.check_results()
        self.to_drop = [*self.to_drop[-8:], synk.data(ROWS)]

    def fork(self) -> None:
        self.close()
        self.model.repeat_function(self.pick)

    def close(self) -> None:
        synk.close()
        self.open()

    def compile(self) -> None:
        _kernel(self.pick(1 << 30))

    def idle(self) -> None:
        time.sleep(0.005)

    # ---- threads of the script, beside the calls

    @contextmanager
    def company(self) -> Iterator[None]:
        for name in self.case["companions"]:
            what = getattr(self, name.replace(" ", "_"))
            self.threads.append(threading.Thread(target=self.repeat, args=(what,), daemon=True))
            self.threads[-1].start()
        try:
            yield
        finally:
            self.stop.set()

    def repeat(self, what: Callable[[], None]) -> None:
        while not self.stop.is_set() and self.errors < MOST_TOLD:
            try:
                what()
            except Exception as error:
                if type(error) is not synk.WorldError:  # else the world is busy, or closed for now
                    self.tell(error)
            time.sleep(0.001)

    def makes_calls(self) -> None:
        assert weighted_sum(self.rows, 3) == 3 * ROWS.sum()

    def makes_data(self) -> None:
        value = np.arange(1000 + id(object()) % 7)
        assert np.array_equal(synk.data(value), value)

    def drops_data(self) -> None:
        with suppress(IndexError):
            self.to_drop.pop(0)

    def collects(self) -> None:
        cycle: list[object] = [synk.data(ROWS)]
        cycle.append(cycle)
        del cycle
        gc.collect()

    def looks(self) -> None:
        if (world := self.model.world) is not None:
            world.statistics()
            world.dump(io.StringIO())

    def forks(self) -> None:
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
        ended = os.waitpid(child, os.WUNTRACED)[1]
        while os.WIFSTOPPED(ended):  # taken for a rank
            os.kill(child, signal.SIGCONT)
            ended = os.waitpid(child, os.WUNTRACED)[1]
        status = os.waitstatus_to_exitcode(ended)
        # it may be taken for a rank
        struck = self.case["harms"] or self.case["act"].startswith("signal")
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
                    self.step()
                except (KeyboardInterrupt, Exception) as error:
                    self.forget()
                    if not any(word in str(error) for word in BUSY):
                        self.tell(error)

    def strike(self) -> None:
        """The faults that the script itself causes, once."""
        act, *words = self.case["act"].split()
        if os.path.exists(self.struck) or act not in {"on", "close"}:
            return
        Path(self.struck).touch()
        if act == "on":
            arguments = self.rows, synk.RANK, self.case["which"] % self.ranks, words[1]
            ways = {
                "sequence": misbehave_later,
                "submit": lambda *given: misbehave.submit(*given).result(),
            }
            ways.get(self.case["phase"], misbehave)(*arguments)
            return
        ours = [fd for fd in _descriptors() if fd > self._log]
        with suppress(OSError):
            os.close(ours[self.case["which"] % len(ours)])

    def recover(self) -> None:
        """Everything works, and nothing is left."""
        self.say("recovering")
        self.check()
        if self.loosen():
            self.model.world = None
            synk.close()
            self.case["timeout"] = None
            self.cycle(self.pick)
        synk.close()
        self.check()

    def check(self) -> None:
        """What is not on ranks is as it was, whatever has become of the world."""
        self.model.check_data()
        assert np.array_equal(self.rows, ROWS)

    def cycle(self, *picks: Pick) -> None:
        """A world, with calls of the phase's kind and some others."""
        self.open()
        for pick in picks:
            for name in (*ALWAYS, *STEPS.get(self.case["phase"], ())):
                getattr(self.model, name)(pick)
        synk.close()

    def let_go(self) -> None:
        """Drops everything."""
        self.stop.set()
        self.model.world = None
        # others could not start for lack of memory
        for thread in (one for one in self.threads if one.ident is not None):
            thread.join(PATIENCE)
            if thread.is_alive():
                self.say("wrong: a thread does not end")
        self.threads.clear()
        self.to_drop.clear()
        self.model.close()
        gc.collect()

    def held(self) -> dict[str, list[str]]:
        """What the process has; not its standard streams: in place of closed ones `fork()` opens
        /dev/null.
        """
        gc.collect()
        settle()  # what has died gives its memory back at the next call or segment
        paths = []
        for fd in (fd for fd in _descriptors() if fd > 2):
            with suppress(OSError):
                paths.append(f"{fd}: {os.readlink(f'/proc/self/fd/{fd}')}")
        with open("/proc/self/maps") as maps:
            segments = [line.split(maxsplit=5)[-1].strip() for line in maps if "/synk-" in line]
        children = [
            child
            for path in Path("/proc/self/task").glob("*/children")
            for child in path.read_text().split()
        ]
        return {"descriptor": paths, "segment": segments, "child": children}

    def run(self) -> None:
        self.settle()
        if not self.case["cold"]:
            # everything that a step picks from, once
            self.cycle(*(lambda n, at=at: at % n for at in range(WARM)))
            self.let_go()
            self.stop.clear()
        before = self.held()
        spare = os.open(os.devnull, os.O_RDONLY)  # to look at what is held, where the limit stays
        self.say("began")
        self.tighten()
        if self.case["phase"] == "exit":
            self.uninterrupted(self.prepare_exit)
            self.say("leaving")
            return
        self.uninterrupted(self.in_a_thread if self.case["in_thread"] else self.attacked)
        for what in (self.let_go, self.recover, self.let_go):
            self.uninterrupted(what)
        if not self.case["harms"]:  # else what it holds is not known
            os.close(spare)
            for what, now in self.held().items():
                if len(now) > len(before[what]) + self.case["cold"] * KEPT[what]:
                    self.say("left", what, sorted(set(now) - set(before[what])) or now)
        self.say("done")

    def in_a_thread(self) -> None:
        if not self.threads:

            def call() -> None:
                try:
                    self.attacked()
                finally:
                    self.over.set()

            thread = threading.Thread(target=call)
            thread.start()
            self.threads.append(thread)
        self.over.wait()  # an interrupted `join` takes a thread for ended on Python 3.11

    def prepare_exit(self) -> None:
        self.open()
        with self.company():
            self.idle()
            self.say("phase")
        self.let_go()
        self.open()
        self.model.repeat_function(self.pick)

    def uninterrupted(self, what: Callable[[], object]) -> None:
        """Calls it again after an interrupt: a second Ctrl-C may come while the first is dealt
        with.
        """
        over = False
        while not over:
            with suppress(KeyboardInterrupt):
                try:
                    what()
                    over = True
                except (KeyboardInterrupt, Exception) as error:
                    self.tell(error)
                    over = isinstance(error, Exception)
                    if what != self.in_a_thread:  # else the thread goes on
                        self.forget()


def _descriptors() -> list[int]:
    return sorted(map(int, os.listdir("/proc/self/fd")))


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    # what a shell starts in the background ignores it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    Victim(Path(sys.argv[0]).resolve().parent).run()
