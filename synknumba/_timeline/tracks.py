"""Events of one or several worlds as tracks of spans, in the format of Chrome's trace viewer, which Perfetto reads too.

    script   calls │ bind, wait, combine │ messages
    rank r   rounds │ what was done in them
             device: the same on the device's stream

Format: "Trace Event Format", complete events ("X"), times in microseconds.
"""

import gzip
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from synknumba._errors import ArgumentError
from synknumba._wire.control import MESSAGE
from synknumba._wire.doorbell import RECORD_WORDS
from synknumba._wire.messages import Traced
from synknumba._world.events import Events

Record = dict[str, Any]
"""One event of the format."""

CALLS, MESSAGES = range(2)  # threads of the script's process
ROUNDS, DEVICE = range(2)  # threads of a rank's process
SCRIPT = "script"


def tracks(worlds: list[Events], began: int) -> list[Record]:
    """Returns the events of worlds, with times since `began`, by `time.monotonic_ns`."""
    found: list[Record] = list(_named(os.getpid(), SCRIPT, {CALLS: "calls", MESSAGES: "messages"}, 0))
    for events in worlds:
        found += _of_script(events, began)
        for rank, traced in sorted(events.ranks.items()):
            # Ranks of another machine have another clock: both are compared with the time of day.
            late = traced.clock - events.clock if traced.host != _host() else 0
            found += _of_rank(rank, traced, events, began - late)
    return found


def _host() -> str:
    return os.uname().nodename


def _named(pid: int, name: str, threads: dict[int, str], index: int) -> Iterator[Record]:
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": index}}
    for tid, told in threads.items():
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": told}}


def _span(pid: int, tid: int, kind: str, name: str, began: int, ended: int, told: Mapping[str, Any]) -> Record:
    made: Record = {"ph": "X", "pid": pid, "tid": tid, "cat": kind, "name": name, "ts": began / 1000}
    made["dur"] = max(ended - began, 0) / 1000
    if known := {key: value for key, value in told.items() if value is not None}:
        made["args"] = known
    return made


def _of_script(events: Events, began: int) -> Iterator[Record]:
    pid, rounds = os.getpid(), events.rounds()
    for sequence, number, ring, arrived in rounds.tolist():
        info = events.names[number]
        told = {"round": sequence, "call": str(info)}
        yield _span(pid, CALLS, "wait", info.function, ring - began, arrived - began, told)
    before = events.scattered
    for first, last, scattered in events.calls:
        low, high = np.searchsorted(rounds[:, 2], (first, last))
        sent, before = scattered - before, scattered
        if low == high:
            continue
        *_, number, ring, _ = rounds[low].tolist()
        arrived = int(rounds[high - 1, 3])
        told = {"rounds": int(high - low), "bytes": sent or None}
        yield _span(pid, CALLS, "call", events.names[number].function, first - began, last - began, told)
        yield _span(pid, CALLS, "bind", "bind", first - began, ring - began, {})
        if arrived <= last:  # else it is in flight
            yield _span(pid, CALLS, "combine", "combine", arrived - began, last - began, {})
    for message in events.messages:
        what, told = f"{message.name} to all ranks", {"bytes": message.nbytes}
        yield _span(pid, MESSAGES, "message", what, message.began - began, message.ended - began, told)


def _of_rank(rank: int, traced: Traced, events: Events, began: int) -> Iterator[Record]:
    name = f"rank {rank}" if traced.host == _host() else f"rank {rank} on {traced.host}"
    pid = traced.pid if traced.host == _host() else traced.pid + (rank << 32)  # other machines have the same numbers
    on_device = any(span.on_device for span in traced.spans)
    yield from _named(pid, name, {ROUNDS: "rounds"} | ({DEVICE: "stream of the GPU"} if on_device else {}), rank + 1)
    records = np.frombuffer(traced.rounds, np.int64).reshape(-1, RECORD_WORDS)
    for sequence, number, seen, answered in records.tolist():
        if not seen:  # the round in which the trace began
            continue
        kind = "obey" if number == MESSAGE else "round"
        info = events.names.get(number)
        what = "message" if number == MESSAGE else "a round" if info is None else info.function
        yield _span(pid, ROUNDS, kind, what, seen - began, answered - began, {"round": sequence})
    for span in traced.spans:
        kind, tid = ("device", DEVICE) if span.on_device else ("step", ROUNDS)
        told = {"bytes": span.nbytes or None, "step": None if span.step < 0 else span.step}
        yield _span(pid, tid, kind, span.name, span.began - began, span.ended - began, told)


def write(path: Path, records: list[Record], told: dict[str, Any]) -> None:
    """Writes a file; packed by gzip if its name ends in .gz."""
    text = json.dumps({"traceEvents": records, "displayTimeUnit": "ns", "otherData": told}, separators=(",", ":"))
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), 6))
    else:
        path.write_text(text)


def read(path: Path) -> list[Record]:
    """Reads a file.

    Raises:
        ArgumentError: it is no trace.
    """
    try:
        content = path.read_bytes()
        found = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
        records = found["traceEvents"]
        assert all(isinstance(one, dict) and "ph" in one for one in records)
    except OSError as error:
        raise ArgumentError(f"the trace cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError, AssertionError, EOFError) as error:
        raise ArgumentError(f"{path} is no trace: it needs a JSON object with traceEvents, as synk.trace writes") from error
    return list(records)
