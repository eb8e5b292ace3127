"""`synk.trace`: records what the script, the ranks and their devices do, and writes it to a file.

SYNKNUMBA_TRACE=run.json does so for a whole script. Of each kind of event the last ones are kept.
"""

import atexit
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, final

from synknumba._errors import ArgumentError, SynkError, WorldError
from synknumba._host.casting import as_index
from synknumba._timeline.summary import Summary, summarise
from synknumba._timeline.tracks import MAKER, Record, tracks, write
from synknumba._types import known_options
from synknumba._world.engine import Engine
from synknumba._world.events import Events
from synknumba._world.open_world import open_world, when_started

MOST_RECORDS = 10_000_000  # for which a rank reserves 2.4 GiB
VARIABLE = "SYNKNUMBA_TRACE"
# process that writes the file of this name; its children write others
_OWNER = "SYNKNUMBA_TRACE_OWNER"


@final
class Trace:
    """The trace of a part of the script: a context manager, made by `synk.trace`.

    Attributes:
        path: file that is written at the end; None if there is none.

    Example:
        >>> import synknumba as synk
        >>> @synk.function
        ... def nothing():
        ...     pass
        >>> trace = synk.trace()
        >>> with synk.fork(2, device="cpu"), trace:
        ...     nothing()
        >>> trace.summary().functions[0].name
        'nothing'
    """

    def __init__(self, path: Path | None, records: int) -> None:
        self.path = path
        self._records = records
        self._worlds: list[Events] = []
        self._began = 0
        self._kept: list[Record] | None = None  # once it is over
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        """Begins the trace, of the open world and of all that are started meanwhile."""
        self.start()
        return self

    def __repr__(self) -> str:
        if not self._began:
            return "<Trace, not begun>"
        if self._kept is None:
            return "<Trace, under way>"
        summary = self.summary()
        rounds = sum(times.rounds for times in summary.functions)
        text = f"Trace of {summary.seconds:.6g} s, {rounds:,} rounds"
        if self.path is not None:
            text += f", in {self.path}"
        return f"<{text}>"

    def _repr_html_(self) -> str | None:
        """Shows the summary in a notebook; nothing but its text while the trace is not over."""
        return None if self._kept is None else self.summary()._repr_html_()

    def __exit__(self, *_: object) -> None:
        """Ends the trace, and writes the file."""
        self.stop()

    def start(self, starting: Engine | None = None) -> None:
        """Begins the trace, of a world that is being started or else of the open one.

        Raises:
            WorldError: this trace is over.
        """
        if self._began:
            raise WorldError("this trace is over; make another by synk.trace()")
        self._began = time.monotonic_ns()
        _pause()
        _active.append(self)
        when_started(_go_on)
        try:
            _go_on(starting or open_world())
        except BaseException:
            self._leave()
            raise

    def stop(self) -> None:
        """Ends the trace, and writes the file; idempotent."""
        if self._kept is not None or os.getpid() != self._pid:
            return
        try:
            _pause()
        finally:
            self._leave()
            self._kept = tracks(self._worlds, self._began)
            _go_on(open_world())  # with those around this one
            if self.path is not None:
                write(self.path, self._kept, self._metadata())

    def summary(self) -> Summary:
        """Returns where the time went; after the end of the trace.

        Raises:
            WorldError: the trace is not over, or has not begun.
        """
        return summarise(self.records())

    def records(self) -> list[Record]:
        """Returns the events, as in the file; after the end of the trace. Raises `WorldError`
        before.
        """
        if not self._began:
            raise WorldError(
                "the trace has not begun; make calls in its block, with synk.trace() as made: ..."
            )
        if self._kept is None:
            raise WorldError("the trace is not over; ask after its with block")
        return self._kept

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file; its name ends in .json, or in .json.gz to pack it."""
        write(_checked(path), self.records(), self._metadata())

    def _metadata(self) -> dict[str, Any]:
        lost = 0
        for record in self.records():
            if record.get("cat") == "lost":
                lost += record["args"]["rounds"] + record["args"]["steps"]
        reasons = [events.reason for events in self._worlds if events.reason is not None]
        return {"made by": MAKER, "lost": lost, "ended": reasons}

    def _leave(self) -> None:
        if self in _active:
            _active.remove(self)
            when_started(_go_on if _active else _of_variable)


_active: list[Trace] = []  # each inside the one before


def _pause() -> None:
    """Collects what has been recorded so far."""
    world = open_world()
    if world is not None:
        world.end_trace()


def _go_on(world: Engine | None) -> None:
    """Records what a world does from now on, for all traces that are being made."""
    mine = [trace for trace in _active if trace._pid == os.getpid()]  # noqa: SLF001
    if not mine or world is None or world.is_inherited:
        return
    records, keep = max(trace._records for trace in mine), [trace._worlds.append for trace in mine]  # noqa: SLF001

    def collect(events: Events) -> None:
        for keep_events in keep:
            keep_events(events)

    world.trace(records, collect)


@known_options
def trace(path: str | os.PathLike[str] | None = None, *, records: int = 100_000) -> Trace:
    """Records what the script, the ranks and their devices do, in a `with` block.

    The file can be opened by Perfetto's viewer, and by Chrome's at chrome://tracing. It has a track
    for the script's calls (preparing, waiting, combining) and messages, and for each rank its
    rounds, what was done in them, and the work on its GPU's stream.
    `python -m synknumba trace --summary run.json` prints where the time went. Of a world whose
    ranks were killed, only the script's tracks are there. Traces may be made inside each other.

    Args:
        path: file to write at the end, "run.json" or "run.json.gz"; None for none.
        records: rounds that are kept, the last ones, and for each as many as eight steps; at most
            10,000,000.

    Returns:
        A context manager with `summary()`, `records()` and `save(path)`, after the block.

    Raises:
        ArgumentError: `path` cannot be written, or does not end in .json or .json.gz; `records` is
            no int from 1 to 10⁷.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function(outputs="sum")
        ... def total(x):
        ...     return x.sum()
        >>> with synk.fork(2, device="cpu"), synk.trace() as made:
        ...     found = [total(np.ones(10)) for _ in range(5)]
        >>> made.summary().functions[0].rounds
        5
    """
    number = as_index(records)
    if not 1 <= number <= MOST_RECORDS:
        raise ArgumentError(f"records must be an int from 1 to {MOST_RECORDS:,}, got {records!r}")
    if path is None:
        return Trace(None, number)
    return Trace(_checked(path), number)


def _checked(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(
            f"a trace needs the name of a file, as in synk.trace('run.json'), got {path!r}"
        )
    if "\0" in os.fsdecode(path):
        raise ArgumentError(
            f"a trace needs the name of a file, which has no null character, got {path!r}"
        )
    file = Path(os.fsdecode(path)).absolute()
    if not file.name.endswith((".json", ".json.gz")):
        raise ArgumentError(
            f"a trace needs a name that ends in .json or .json.gz, got {os.fspath(path)!r}"
        )
    if not file.parent.is_dir():
        raise ArgumentError(f"the folder of the trace {os.fspath(path)!r} does not exist")
    if file.is_dir():
        raise ArgumentError(
            f"the trace {os.fspath(path)!r} is a folder; name a file, as in "
            f"{os.fspath(path)}/run.json"
        )
    written = file if file.exists() else file.parent
    if not os.access(written, os.W_OK):
        raise ArgumentError(
            f"the trace {os.fspath(path)!r} cannot be written: permission "
            f"denied; name a file elsewhere"
        )
    return file


def _of_variable(world: Engine) -> None:
    """Begins the trace of the whole script, if SYNKNUMBA_TRACE asks for one."""
    path = os.environ.get(VARIABLE)
    if not path:
        when_started(None)
        return
    if os.environ.setdefault(_OWNER, str(os.getpid())) != str(os.getpid()):
        path = _numbered(path)
    try:
        whole_script = trace(path)
    except ArgumentError as error:
        raise ArgumentError(f"{VARIABLE}={path}: {error}; or unset {VARIABLE}") from error
    when_started(None)
    atexit.register(_stop, whole_script)
    whole_script.start(world)


def _numbered(path: str) -> str:
    """Returns a name with the number of this process."""
    name, dot, end = path.rpartition(".json")
    return f"{name}.{os.getpid()}{dot}{end}"


def _stop(whole_script: Trace) -> None:
    try:
        path = whole_script.path
        if path is not None and path.exists() and path.stat().st_mtime >= _since():
            # another process that was started with this one has written it
            whole_script.path = Path(_numbered(str(path)))
        with suppress(SynkError):
            whole_script.stop()
    except OSError as error:  # at exit it would be shown as a fault of this package
        sys.stderr.write(f"synknumba: the trace was not written: {error}\n")


def _since() -> float:
    """Returns when the first process with this SYNKNUMBA_TRACE was started, of this one and
    those above: time of the day.
    """
    setting, ticks = f"{VARIABLE}={os.environ.get(VARIABLE)}".encode(), os.sysconf("SC_CLK_TCK")
    boot, started, pid = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME), 0, os.getpid()
    with suppress(OSError):  # a process of another user's
        while True:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
            fields = stat.rpartition(")")[2].split()
            # proc(5): ppid and starttime, the fourth and the 22nd
            pid, started = int(fields[1]), int(fields[19])
            if setting not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                break
    return boot + started / ticks


when_started(_of_variable)
