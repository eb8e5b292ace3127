"""Calls mixed at random with faults, checked against NumPy; memory and descriptors must stay flat.

    python -m tests.faults.soak --calls 1000000 --seed 1 [--device cuda] [--json FILE]

A line says how far it is, and what is held. It ends with an error at the first wrong result, and
where more is held at the end than after the first tenth, everything let go of both times.
"""

import argparse
import gc
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import synknumba as synk
from benchmarks import _common
from synknumba._host.deaths import settle
from synknumba._types import DeviceKind
from tests.faults.scripts import names_in_shm
from tests.faults.soak_model import COMMON, RARE, Model

RARELY = 400  # steps between two that end a world, about
MEMORY_SLACK = 48 << 20  # caches of Python, NumPy and Numba, and fragments


@dataclass(frozen=True, slots=True)
class Flat:
    """What was held by the script, everything let go of: after the first tenth of the calls, and at
    the end.

    Attributes:
        calls: that were made.
        seed: of their order.
        seconds: that they took.
        worlds: that were forked for them.
        first, last: bytes resident and not shared, mappings of segments, descriptors, children,
            names in `/dev/shm`, bytes there; and free on the first GPU, as a new world sees it.
        devices: bytes that ranks held on their GPUs, at each line that was printed.
    """

    calls: int
    seed: int
    seconds: float
    worlds: int
    first: dict[str, int]
    last: dict[str, int]
    devices: list[tuple[int | None, ...]]


def let_go(device: DeviceKind) -> dict[str, int]:
    """What this process holds when it has no world, and what its GPU has free then."""
    found = held()
    if device == "cuda":
        with synk.fork(1, device=device) as world:
            found["device free"] = int(world.statistics().memory.devices_free[0] or 0)
    return found


def held() -> dict[str, int]:
    """What this process holds, after what has died is released as the next call would."""
    gc.collect()
    settle()
    with open("/proc/self/statm") as file:
        resident, shared = (
            int(word) * os.sysconf("SC_PAGESIZE") for word in file.read().split()[1:3]
        )
    with open("/proc/self/maps") as file:
        mapped = sum("/synk-" in line for line in file)
    status = os.statvfs("/dev/shm")
    return {
        "resident": resident - shared,
        "segments": mapped,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
        "names": len(names_in_shm()),
        "shm": (status.f_blocks - status.f_bfree) * status.f_frsize,
    }


def interrupted(model: Model, step: str, rng: random.Random) -> None:
    """A step that an alarm breaks off somewhere; the script then starts over with what it has."""
    try:
        # on a busy machine it may be over at once
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 5e-3))
        getattr(model, step)(rng.randrange)
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    model.arrays.clear()  # a call that writes rows may be half done
    model.results.clear()
    model.fork(1 + rng.randrange(3))


def soak(calls: int, seed: int, every: float, device: DeviceKind = "cpu") -> Flat:
    """Raises AssertionError at what is wrong."""
    rng = random.Random(seed)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    steps, weights = list(COMMON), list(COMMON.values())
    done, worlds, first, began, told = 0, 0, None, time.monotonic(), 0.0
    model, devices = Model(device), []
    # what functions keep for NumPy arrays they are called with is there from the start
    for step in (
        *COMMON,
        *RARE,
    ) * 5:
        getattr(model, step)(rng.randrange)
    while done + model.calls < calls:
        if rng.randrange(RARELY):
            getattr(model, rng.choices(steps, weights)[0])(rng.randrange)
        elif rng.randrange(3):
            getattr(model, rng.choices(list(RARE), RARE.values())[0])(rng.randrange)
        else:
            interrupted(model, rng.choices(steps, weights)[0], rng)
        if time.monotonic() > told + every:
            told = time.monotonic()
            devices.append(
                model.world.statistics().memory.devices if model.world is not None else ()
            )
            print(
                f"{done + model.calls:>9} calls, {told - began:6.0f} s, "
                f"{held()}, on GPUs {devices[-1]}",
                flush=True,
            )
        if first is None and done + model.calls > calls / 10:
            done, worlds = done + model.calls, worlds + model.worlds
            model.close()
            first = let_go(device)
            model = Model(device)
    done, worlds = done + model.calls, worlds + model.worlds
    model.close()
    last = let_go(device)
    seconds = time.monotonic() - began
    print(
        f"{done} calls, {worlds} worlds, seed {seed}, {seconds:.0f} s\nat first "
        f"{first}\nat last  {last}",
        flush=True,
    )
    assert first is not None
    for what in ("segments", "descriptors", "children"):
        assert last[what] <= first[what], (what, first, last)
    assert last["resident"] <= first["resident"] + MEMORY_SLACK, (first, last)
    assert last.get("device free", 0) >= first.get("device free", 0) - MEMORY_SLACK, (first, last)
    return Flat(done, seed, seconds, worlds, first, last, devices)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two lines")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write what was held there, with the machine and the versions",
    )
    options = parser.parse_args()
    seen = soak(options.calls, options.seed, options.every, options.device)
    _common.save(options.json, "soak", [seen], {})
    synk.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
