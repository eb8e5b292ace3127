"""One case, in a process of its own: a world, a fault, which error the script gets, what is left,
and whether it goes on.

before = what is held
fork ── the call, known ── the fault ── the call again ──> error, seconds
what is held == before, Data as before, ranks gone
fork ── the same call, right ── close
"""

import atexit
import gc
import json
import os
import re
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np

import synknumba as synk
from synknumba._host.deaths import settle
from synknumba._world import open_world, rounds
from tests.faults.matrix import acts, meddling, shortages  # noqa: F401  # for what they add to ACTS
from tests.faults.matrix.acting import ACTS
from tests.faults.matrix.cases import COMPILED_PHASES, START_SECONDS, TIMEOUT, Case
from tests.faults.matrix.phases import (
    BOARD,
    LARGE,
    ROWS,
    STARTING,
    Calls,
    phase_of,
    strike,
    wrapped,
)
from tests.faults.matrix.table import Outcome
from tests.faults.matrix.troubles import TROUBLES
from tests.faults.scripts import lives, poll

# What is called to see whether all is well, where the call of a phase has no end, or ends the
# world.
HARMLESS = {"endless_kernel": "kernel", "close": "total", "drop": "total"}


def main(case: Case, report: int) -> NoReturn:
    """The life of the process."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        outcome = run_case(case)
    except SystemExit as leaving:  # as the interpreter does
        atexit._run_exitfuncs()
        os._exit(leaving.code)
    except BaseException:
        outcome = {"broken": traceback.format_exc()}
    os.write(report, json.dumps(outcome).encode())
    os._exit(0)


def check_alone(world_size: int, report: int) -> NoReturn:
    """What another script sees."""
    os.setsid()
    try:
        with synk.fork(world_size, device="cpu"):
            Calls(world_size).total()
        os.write(report, b"right")
    except BaseException as error:
        os.write(report, repr(error).encode())
    os._exit(0)


def run_case(case: Case) -> Outcome:
    """Carries a case out and says what was seen."""
    calls = Calls(case.world_size)
    before = _held()
    with wrapped(case):
        outcome = _trouble(case, calls) if case.fault.what in TROUBLES else _fault(case, calls)
    synk.close()
    calls.held.clear()
    calls.variable = None
    outcome["intact"] = np.array_equal(calls.numbers, ROWS) and np.array_equal(calls.large, LARGE)
    outcome["leaks"] = _leaks(before)
    with synk.fork(case.world_size, device="cpu"):
        _check(case, calls)
    calls.variable = None
    outcome["next"] = "right"
    outcome["leaks"] += _leaks(before)
    return outcome


def _check(case: Case, calls: Calls) -> None:
    """The call again, twice, and another; each is right or raises."""
    call = "total" if case.fault.what in TROUBLES else phase_of(case.fault).call
    for name in (HARMLESS.get(call, call), HARMLESS.get(call, call), "total"):
        getattr(calls, name)()


def _held() -> dict[str, Counter[str]]:
    """What this process holds that could pile up: descriptors by what they are, mappings of
    segments, children.
    """
    gc.collect()
    settle()  # what has died gives its memory back at the next call or segment
    descriptors: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that listdir had open
            descriptors[
                re.sub(r"[\d\[\]:#]+.*|-[0-9a-f]{24}", "", os.readlink(f"/proc/self/fd/{fd}"))
            ] += 1
    with open("/proc/self/maps") as maps:
        mappings = Counter("segments" for line in maps if "/synk-" in line)
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {"descriptors": descriptors, "mappings": mappings, "children": Counter(children)}


def _leaks(before: dict[str, Counter[str]]) -> list[str]:
    """What is held more than before, where no world is open."""
    now = _held()
    more = [f"{what} {now[what] - before[what]}" for what in before if now[what] != before[what]]
    return [", ".join(more)] if more else []


# ---- the fault -----------------------------------------------------------------------------------


def _fault(case: Case, calls: Calls) -> Outcome:
    if case.fault.phase in STARTING:
        patient, rounds.START_SECONDS = rounds.START_SECONDS, START_SECONDS
        BOARD.armed = 1
        outcome = _attempt(case, lambda: _start(case))
        rounds.START_SECONDS = patient
        world = open_world.open_world()
        return _look_after(case, calls, outcome, world.pids if world is not None else ())
    world = _start(case)
    phase = phase_of(case.fault)
    calls.total()
    if phase.known:
        getattr(calls, phase.call)()
    if case.fault.phase == "in a kernel":
        calls.kernel()  # so that it is compiled
    pids = world.pids
    outcome = _attempt(case, lambda: _make_call(case, calls, world))
    return _look_after(case, calls, outcome, pids)


def _start(case: Case) -> synk.World:
    if case.error != "CallTimeout":
        return synk.fork(case.world_size, device="cpu")
    world = synk.fork(case.world_size, device="cpu", timeout=TIMEOUT)
    _count_time_from_fault(case, open_world.open_world().ranks)
    return world


def _count_time_from_fault(case: Case, ranks: rounds.Rounds) -> None:
    """Lets the time limit begin once the fault has struck, and only ranks that will never answer
    are at work: a busy machine may need longer than that for whatever comes before.
    """
    counted, rounds.LOOK_SECONDS = rounds.LOOK_SECONDS, 0.0
    silent = set(case.fault.ranks)
    if case.fault.phase in COMPILED_PHASES:  # whose kernel has no end
        silent = set(range(case.world_size))

    def look() -> None:
        if BOARD.struck and silent.issuperset(ranks.at_work()):
            rounds.LOOK_SECONDS = counted

    ranks.look = look


def _make_call(case: Case, calls: Calls, world: synk.World) -> None:
    """What the fault is in the middle of; or comes before, where everybody is idle."""
    phase = phase_of(case.fault)
    if phase.call != "drop":
        BOARD.armed = 1
    if case.fault.phase == "idle":
        if case.fault.ranks:
            _strike_idle(case, world)
        else:
            strike("idle")
    if case.second is None or case.second.phase != "forking again":
        getattr(calls, phase.call)()
        return
    with suppress(synk.RankDied):
        getattr(calls, phase.call)()
    _start(case)


def _strike_idle(case: Case, world: synk.World) -> None:
    """To ranks that wait for a call."""
    pids = [world.pids[rank] for rank in case.fault.ranks]
    for pid in pids:
        os.kill(pid, getattr(signal, case.fault.what))
    for pid in pids:
        poll(lambda pid=pid: _state(pid) in "ZT", f"{pid} has ended or stopped")
    BOARD.strike()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _attempt(case: Case, call: Callable[[], object]) -> Outcome:
    """What a call comes to, and how long after the fault that is known."""
    error, message, told = "", "", 0.0
    try:
        try:
            call()
        finally:
            told = time.monotonic()
            if any(
                "twice" in fault.what for fault in (case.fault, case.second) if fault is not None
            ):
                time.sleep(0.02)  # the second interrupt is over before anything is looked at
    except SystemExit:
        raise
    except BaseException as raised:
        error = next(
            one.__name__ for one in type(raised).__mro__ if not one.__name__.startswith("_")
        )
        message = str(raised)
    struck = BOARD.struck
    told = told or time.monotonic()  # where a second interrupt came right there
    BOARD.armed = 0
    return {"error": error, "message": message, "seconds": told - struck, "struck": struck > 0}


def _look_after(case: Case, calls: Calls, outcome: Outcome, pids: tuple[int, ...]) -> Outcome:
    """What has become of the world. One that is as good as before is used."""
    world = open_world.open_world()
    outcome["open"] = world is not None
    if world is not None and case.stays_open:
        assert world.pids == pids, "ranks are others"
        _check(case, calls)
    synk.close()
    outcome["ranks left"] = [pid for pid in pids if lives(pid)]
    return outcome


def _trouble(case: Case, calls: Calls) -> Outcome:
    trouble = TROUBLES[case.fault.what]
    world = synk.fork(case.world_size, device="cpu")
    calls.total()
    world.timeout = trouble.timeout
    pids = world.pids
    BOARD.strike()
    outcome = _attempt(case, lambda: ACTS[case.fault.what](calls, case.fault.ranks))
    return _look_after(case, calls, outcome, pids)
