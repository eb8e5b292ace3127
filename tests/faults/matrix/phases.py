"""How a phase of a call is hit, and what is done there.

A phase of ours is hit by wrapping the function that it begins with, before the ranks are forked;
the wrapper does to its own process what is to be done. Compiled code cannot: a rank that goes into
it asks the server for a signal. So a fault strikes where the case says and nowhere else, in every
run.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda

import synknumba as synk
from synknumba._call.plan import FunctionPlan
from synknumba._host import this_process
from synknumba._rank import collective_routine, combination_routine, kernel_routine, result_writer
from synknumba._rank.loop import Rank
from synknumba._wire import channel
from synknumba._wire import doorbell as doorbell_module
from synknumba._wire.control import ControlBlock
from synknumba._world.engine import Engine
from synknumba._world.news import NewsReader
from synknumba._world.processes import Processes
from synknumba._world.rounds import Rounds
from tests.faults.matrix.board import Board
from tests.faults.matrix.cases import Case, Fault

ROWS = np.arange(1001.0)
LARGE = np.arange(20_000.0)  # a result of 160 kB, which needs shared memory of its own
HOURS = 10**15
COLUMNS = 150_000  # 1.2 MB of results a rank, which ranks combine
BOARD = Board()


# ---- what is called ------------------------------------------------------------------------------


def _total(x):
    strike("in a Python function")
    return x.sum()


total = synk.function(outputs="sum")(_total)


@synk.function(outputs="sum")
def slow_total(x):
    time.sleep(0.3)
    return x.sum()


@synk.function(outputs="gather")
def double(x):
    return 2 * x


@synk.parallel(outputs={"found": synk.output("sum", shape=(), dtype="int64")})
def burn(x, rounds, found):
    i = cuda.grid(1)
    if i < x.shape[0]:
        state = i + 1
        for _ in range(rounds):
            state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        cuda.atomic.add(found, 0, state)


@synk.parallel(outputs={"columns": synk.output("sum", shape=(COLUMNS,), dtype="float64")})
def spread(x, columns):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(columns, i, x[i])


class Calls:
    """The calls of one world, each right or an AssertionError."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.numbers = synk.data(ROWS)
        self.large = synk.data(LARGE)
        self.larger = synk.data(np.tile(LARGE, 3))
        self.held: list[synk.Data] = []
        self.variable: synk.Variable | None = None

    def total(self) -> None:
        assert total(self.numbers) == ROWS.sum()

    def slow(self) -> None:
        assert slow_total(self.numbers) == ROWS.sum()

    def double(self) -> None:
        assert np.array_equal(double(self.large), 2 * LARGE)

    def double_more(self) -> None:
        """A result larger than before, so that ranks tell of it anew."""
        assert np.array_equal(double(self.larger), np.tile(2 * LARGE, 3))

    def new_function(self) -> None:
        assert synk.function(outputs="sum")(_total)(self.numbers) == ROWS.sum()

    def new_data(self) -> None:
        other = synk.data(np.ones(70_000))
        assert total(other) == 70_000

    def drop(self) -> None:
        self.held.append(synk.data(ROWS + 1))
        assert total(self.held[0]) == (ROWS + 1).sum()
        self.held.clear()
        BOARD.armed = 1
        assert total(self.numbers) == ROWS.sum()  # frees what the finalizer has noted

    def kernel(self) -> None:
        one_each = self.numbers[: self.world_size]
        assert burn(one_each, 1) == self.world_size * (1103515245 + 12345)

    def endless_kernel(self) -> None:
        burn(self.numbers, HOURS)

    def collective(self) -> None:
        if self.variable is None:
            # too large for the coordinator to do it alone
            self.variable = synk.variable(np.full(200_000, 2.0))
        assert (synk.all_reduce(self.variable, "max").get_value(0) == 2.0).all()

    def combination(self) -> None:
        expected = np.zeros(COLUMNS)
        for shard in np.split(
            ROWS, [rank * len(ROWS) // self.world_size for rank in range(1, self.world_size)]
        ):
            expected[: len(shard)] += shard
        assert np.array_equal(spread(self.numbers), expected)

    def close(self) -> None:
        synk.close()


# ---- phases --------------------------------------------------------------------------------------

Wrap = Callable[[Callable[..., Any], str], Callable[..., Any]]


def _before(function: Callable[..., Any], phase: str) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        strike(phase)
        return function(*args, **kwargs)

    return wrapper


def _after(function: Callable[..., Any], phase: str) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        strike(phase)
        return result

    return wrapper


def _rung(_: Callable[..., Any], phase: str) -> Callable[..., Any]:
    """In place of a whole round: the doorbell alone, and then the fault, while ranks are at
    work.
    """

    def call(base: int, world_size: int, sequence: int, number: int, *spins: int) -> int:
        doorbell_module.ring(base, world_size, sequence, number)
        strike(phase)
        return -1  # what is left is done as if ranks slept

    return call


def _asks(function: Callable[..., Any], phase: str) -> Callable[..., Any]:
    """A rank that goes into compiled code."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        rank = this_process.current_rank()
        if BOARD.armed and rank is not None:
            BOARD.ask_for_signal(rank, os.getpid())
        return function(*args, **kwargs)

    return wrapper


@dataclass(frozen=True, slots=True)
class Phase:
    """When something happens.

    Attributes:
        owner: of the function that is wrapped; None where nothing need be.
        name: of that function.
        wrap: what is put in its place.
        call: what the script does then, of `Calls`.
        known: whether that was called before.
    """

    owner: Any = None
    name: str = ""
    wrap: Wrap = _before
    call: str = "total"
    known: bool = True


def _of_rank() -> Any:
    from synknumba._rank import loop

    return loop


PHASES: dict[str, Phase] = {
    # of ranks
    "opening its device": Phase(_of_rank(), "open_device"),
    "idle": Phase(),
    "reading a message": Phase(Rank, "_obey", call="new_function"),
    "mapping a segment": Phase(Rank, "_attach", call="new_data"),
    "taking in a program": Phase(Rank, "_install", call="new_function"),
    "in a Python function": Phase(),
    "in a kernel": Phase(
        kernel_routine.KernelRoutine, "run", _asks, call="endless_kernel", known=False
    ),
    "packing a result": Phase(result_writer.ResultWriter, "write", call="double"),
    "arriving": Phase(doorbell_module, "arrive"),
    "sending news": Phase(channel, "send", call="double_more", known=False),
    "before its part of a collective": Phase(
        collective_routine.Steps, "__call__", call="collective"
    ),
    "after its part of a collective": Phase(
        collective_routine.Steps, "__call__", _after, call="collective"
    ),
    "combining results": Phase(
        combination_routine.CombinationRoutine, "__call__", call="combination"
    ),
    "closing": Phase(Rank, "close", call="close", known=False),
    # of the coordinator
    "between two forks": Phase(Processes, "_fork_one", _after),
    "awaiting the ranks": Phase(Rounds, "await_ranks"),
    "before the doorbell": Phase(doorbell_module, "call"),
    "after the doorbell": Phase(doorbell_module, "call", _rung),
    "sending a message": Phase(channel, "send", call="new_function"),
    "waiting": Phase(ControlBlock, "sleep_coordinator", call="slow"),
    "reading news": Phase(NewsReader, "read", call="double_more", known=False),
    "putting results together": Phase(FunctionPlan, "collect"),
    "dropping data": Phase(Engine, "_drop_now", call="drop", known=False),
    "ending the ranks": Phase(Processes, "kill"),
    "forking again": Phase(_of_rank(), "open_device"),
}
# what "closing" is in the coordinator
CLOSING = Phase(Processes, "join", call="close", known=False)
STARTING = ("opening its device", "between two forks", "awaiting the ranks")


def phase_of(fault: Fault) -> Phase:
    return CLOSING if fault.phase == "closing" and not fault.ranks else PHASES[fault.phase]


@contextlib.contextmanager
def wrapped(case: Case) -> Iterator[None]:
    """Puts the wrappers of a case in place, for this process and those that it forks."""
    global _case, _struck
    _case, _struck = case, 0
    undo = []
    for fault in (case.fault, case.second):
        phase = phase_of(fault) if fault is not None and fault.phase else Phase()
        if fault is not None and phase.owner is not None:
            original = getattr(phase.owner, phase.name)
            setattr(phase.owner, phase.name, phase.wrap(original, fault.phase))
            undo.append((phase.owner, phase.name, original))
    try:
        yield
    finally:
        for owner, name, original in reversed(undo):
            setattr(owner, name, original)


# ---- what is done --------------------------------------------------------------------------------

_case: Case | None = None
_struck = 0  # how many of the case's faults this process has had


def strike(phase: str) -> None:
    """Does to this process what is due in this phase, if anything is; once."""
    global _struck
    number = BOARD.armed
    if _case is None or number <= _struck:
        return
    fault = _case.fault if number == 1 else _case.second
    rank = this_process.current_rank()
    coordinates = rank is None and (not fault.ranks or fault.what.endswith("to ranks"))
    if fault.phase != phase or not (coordinates or rank in fault.ranks):
        return
    _struck = number
    if _case.second is not None:
        BOARD.armed = 2
    BOARD.strike()
    ACTS[fault.what](fault)


def _signal(sig: signal.Signals) -> Callable[[Fault], None]:
    def act(_: Fault) -> None:
        if sig in {signal.SIGSEGV, signal.SIGABRT}:
            signal.signal(sig, signal.SIG_DFL)
        os.kill(os.getpid(), sig)

    return act


def _two_interrupts(seconds: float) -> Callable[[Fault], None]:
    """The second comes in the middle of what the first one sets off: the alarm's handler is that
    of SIGINT.
    """

    def act(_: Fault) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        os.kill(os.getpid(), signal.SIGINT)

    return act


def _interrupts_of_a_thread(_: Fault) -> None:
    """The kernel gives both to another thread, whatever this one has blocked."""

    def take_them() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        time.sleep(1e-4)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    thread = threading.Thread(target=take_them)
    thread.start()
    thread.join()


def _raise(error: type[BaseException]) -> Callable[[Fault], None]:
    def act(_: Fault) -> None:
        raise error("on purpose")

    return act


def _signal_to_ranks(fault: Fault) -> None:
    from synknumba._world.open_world import open_world

    world = open_world()
    for rank in fault.ranks:
        if world is not None and world.life.processes.pids[rank]:
            os.kill(world.life.processes.pids[rank], signal.SIGKILL)


ACTS: dict[str, Callable[[Fault], None]] = {
    **{
        sig.name: _signal(sig)
        for sig in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGSTOP)
    },
    "stopped for a while": _signal(signal.SIGSTOP),  # the server lets it go on
    "SIGINT": _signal(signal.SIGINT),
    "SIGINT twice in 0.1 ms": _two_interrupts(1e-4),
    "SIGINT twice in 2 ms": _two_interrupts(2e-3),
    "SIGINT twice in 0.1 ms, by another thread": _interrupts_of_a_thread,
    "os._exit(0)": lambda _: os._exit(0),
    "os._exit(3)": lambda _: os._exit(3),
    "sys.exit": lambda _: sys.exit(3),
    "ValueError": _raise(ValueError),
    "KeyboardInterrupt": _raise(KeyboardInterrupt),
    "SIGKILL to ranks": _signal_to_ranks,
}
