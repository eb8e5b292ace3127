"""Events of one or several worlds as tracks of spans, in the format of Chrome's trace viewer, which
Perfetto reads too.

    script   calls │ bind, wait, combine │ messages
    rank r   rounds │ what was done in them
             device: the same on the device's stream

Of a world with more rounds than are kept, all tracks begin with the same call, after a span of the
kind "lost".

Format: "Trace Event Format", complete events ("X"), times in microseconds.
"""

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from synknumba._errors import ArgumentError
from synknumba._types import Array
from synknumba._wire.control import MESSAGE
from synknumba._wire.doorbell import RECORD_WORDS
from synknumba._wire.messages import Traced
from synknumba._world.events import Events

Record = dict[str, Any]
"""One event of the format."""

CALLS, MESSAGES = range(2)  # threads of the script's process
ROUNDS, DEVICE = range(2)  # threads of a rank's process
SCRIPT = "script"
MAKER = "synknumba"  # in a file
# bytes of a packed trace that are read, of some 5 million events: gzip packs up to 1,000 into one
LARGEST = 1 << 30


def tracks(worlds: list[Events], began: int) -> list[Record]:
    """Returns the events of worlds, with times since `began`, by `time.monotonic_ns`."""
    records: list[Record] = list(
        _named(os.getpid(), SCRIPT, {CALLS: "calls", MESSAGES: "messages"}, 0)
    )
    for events in worlds:
        part = _kept(events)
        records += _of_script(events, began, part)
        for rank, traced in sorted(events.ranks.items()):
            late = 0
            if not _is_here(traced):  # another clock: both are compared with the time of day
                late = traced.clock - events.clock
            records += _of_rank(rank, traced, events, began - late, part.since - late)
    return records


def _is_here(traced: Traced) -> bool:
    """Returns whether a rank is on this machine."""
    return traced.host == os.uname().nodename


def _named(pid: int, name: str, threads: dict[int, str], index: int) -> Iterator[Record]:
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": index}}
    for tid, thread_name in threads.items():
        named = {"name": "thread_name", "args": {"name": thread_name}}
        yield {"ph": "M", "pid": pid, "tid": tid, **named}


def _span(
    pid: int,
    origin: int,
    tid: int,
    kind: str,
    name: str,
    began: int,
    ended: int,
    **args: Any,
) -> Record:
    record: Record = {"ph": "X", "pid": pid, "tid": tid, "cat": kind, "name": name}
    record |= {"ts": (began - origin) / 1000, "dur": max(ended - began, 0) / 1000}
    if details := {key: value for key, value in args.items() if value is not None}:
        record["args"] = details
    return record


class _Kept(NamedTuple):
    """What is told of a world: all that began since the first call of which everything was kept.

    Attributes:
        rounds: of the script: int64, shape (n, 4).
        since: begin of that call; 0 if none are lost.
        lost: number of rounds before it.
    """

    rounds: Array
    since: int
    lost: int


def _kept(events: Events) -> _Kept:
    rounds, lost = events.rounds()
    # The oldest rounds of ranks are older than the script's, unless messages have taken their
    # place. Ranks of other machines may number them otherwise.
    oldest = 0
    for traced in events.ranks.values():
        records = _rounds_of(traced)
        if _is_here(traced) and len(records):
            oldest = max(oldest, int(records[0, 0]))
    first = max(int(lost > 0), int(np.searchsorted(rounds[:, 0], oldest)))
    after = events.gone
    if first:
        after = max(after, int(rounds[first - 1, 2]))
    if not after:
        return _Kept(rounds, 0, 0)
    since = next((began for began, *_ in events.calls if began > after), after + 1)
    recent = rounds[rounds[:, 2] >= since]
    return _Kept(recent, since, lost + len(rounds) - len(recent))


def _rounds_of(traced: Traced) -> Array:
    return np.frombuffer(traced.rounds, np.int64).reshape(-1, RECORD_WORDS)


def _of_script(events: Events, began: int, part: _Kept) -> Iterator[Record]:
    span, rounds = partial(_span, os.getpid(), began), part.rounds
    steps = sum(traced.lost for traced in events.ranks.values())
    if part.lost or steps:
        name = f"{part.lost:,} rounds and {steps:,} steps were not kept"
        until = max(part.since, events.started)
        yield span(CALLS, "lost", name, events.started, until, rounds=part.lost, steps=steps)
    for sequence, number, ring, arrived in rounds.tolist():
        info = events.names[number]
        details = {"round": sequence, "call": str(info)}
        yield span(CALLS, "wait", info.function, ring, arrived, **details)
    for first, last, sent in events.calls:
        low, high = np.searchsorted(rounds[:, 2], (first, last))
        if low == high:
            continue
        *_, number, ring, _ = rounds[low].tolist()
        arrived = int(rounds[high - 1, 3])
        details = {"rounds": int(high - low), "bytes": sent or None}
        yield span(CALLS, "call", events.names[number].function, first, last, **details)
        yield span(CALLS, "bind", "bind", first, ring)
        if arrived <= last:  # else it is in flight
            yield span(CALLS, "combine", "combine", arrived, last)
    for message in events.messages:
        if message.began < part.since:
            continue
        what = f"{message.name} to all ranks"
        yield span(MESSAGES, "message", what, message.began, message.ended, bytes=message.nbytes)


def _of_rank(rank: int, traced: Traced, events: Events, began: int, since: int) -> Iterator[Record]:
    name, pid, threads = f"rank {rank}", traced.pid, {ROUNDS: "rounds"}
    if not _is_here(traced):
        name = f"{name} on {traced.host}"
        pid += rank << 32  # other machines have the same numbers
    span = partial(_span, pid, began)
    if any(step.on_device for step in traced.spans):
        threads[DEVICE] = "stream of the GPU"
    yield from _named(pid, name, threads, rank + 1)
    records = _rounds_of(traced)
    for sequence, number, received, answered in records[records[:, 2] >= since].tolist():
        kind, what = "round", "a round"
        if number == MESSAGE:
            kind, what = "obey", "message"
        elif number in events.names:
            what = events.names[number].function
        yield span(ROUNDS, kind, what, received, answered, round=sequence)
    for step in traced.spans:
        if step.began < since:
            continue
        kind, tid, details = "step", ROUNDS, {"bytes": step.nbytes or None}
        if step.on_device:
            kind, tid = "device", DEVICE
        if step.step >= 0:
            details["step"] = step.step
        yield span(tid, kind, step.name, step.began, step.ended, **details)


def write(path: Path, records: list[Record], metadata: dict[str, Any]) -> None:
    """Writes a file; packed by gzip if its name ends in .gz. Raises `OSError`, as of a full
    disk, and leaves no part of it.
    """
    text = json.dumps(
        {"traceEvents": records, "displayTimeUnit": "ns", "otherData": metadata},
        separators=(",", ":"),
    ).encode()
    if path.suffix == ".gz":
        text = gzip.compress(text, 6)
    file = path.open("wb", buffering=0)
    try:
        with file:
            rest = memoryview(text)
            while rest:
                rest = rest[file.write(rest) :]
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        why = (
            f"the trace could not be written: {error.strerror}; keep it by made.save(path) "
            f"elsewhere, of synk.trace() as made"
        )
        raise type(error)(error.errno, why, str(path)) from None


def _content(path: Path) -> bytes:
    """Returns the text of a file, unpacked."""
    with path.open("rb") as file:
        if file.read(2) != b"\x1f\x8b":
            return path.read_bytes()
    with gzip.open(path) as packed:
        text = packed.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise ValueError(f"more than {LARGEST:,} bytes")
    return text


def read(path: Path) -> list[Record]:
    """Reads a file.

    Raises:
        ArgumentError: it is no trace.
    """
    try:
        content = json.loads(_content(path))
        records, maker = content["traceEvents"], content.get("otherData", {}).get("made by")
        if not all(isinstance(record, dict) and "ph" in record for record in records):
            raise ValueError("an event is no object with ph")  # noqa: TRY301
    except OSError as error:
        raise ArgumentError(f"the trace cannot be read: {error}") from error
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        EOFError,
        RecursionError,
        zlib.error,
    ) as error:
        raise ArgumentError(
            f"{path} is no trace: it needs a JSON object with traceEvents, as synk.trace writes"
        ) from error
    if maker != MAKER:
        raise ArgumentError(
            f"{path} is the trace of another tool ({maker or 'it names none'}); synk.trace "
            f"writes those that are read"
        )
    return list(records)


def process_names(records: Iterable[Record]) -> dict[int, str]:
    """Returns the names of processes, by id."""
    names = {}
    for record in records:
        if record["ph"] == "M" and record["name"] == "process_name":
            names[record["pid"]] = record["args"]["name"]
    return names
