"""`synk.trace`: records what the script, the ranks and their devices do, and writes it to a file.

SYNKNUMBA_TRACE=run.json does so for a whole script. Of each kind of event the last ones are kept.
"""

import atexit
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from synknumba._errors import ArgumentError, SynkError, WorldError
from synknumba._timeline.summary import Summary, summarise
from synknumba._timeline.tracks import Record, tracks, write
from synknumba._types import known_options
from synknumba._world.engine import Engine, open_world, when_started
from synknumba._world.events import Events

VARIABLE = "SYNKNUMBA_TRACE"
_OWNER = "SYNKNUMBA_TRACE_OWNER"  # process that writes the file of this name; its children write others


@final
class Trace:
    """The trace of a part of the script: a context manager, made by `synk.trace`.

    Attributes:
        path: file that is written at the end; None if there is none.
    """

    def __init__(self, path: Path | None, records: int) -> None:
        self.path = path
        self._records = records
        self._worlds: list[Events] = []
        self._began = 0
        self._found: list[Record] | None = None
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        """Begins the trace, of the open world and of all that are started meanwhile."""
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Ends the trace, and writes the file."""
        self.stop()

    def start(self, starting: Engine | None = None) -> None:
        """Begins the trace, of a world that is being started or else of the open one.

        Raises:
            WorldError: there is another one, or this one is over.
        """
        if _active:
            raise WorldError("a trace is being made; end it before another begins, as by leaving its with block")
        if self._began:
            raise WorldError("this trace is over; make another by synk.trace()")
        self._began = time.monotonic_ns()
        _active.append(self)
        when_started(self._trace_started)
        try:
            world = open_world()
            if starting is not None:
                self._trace_started(starting)
            elif world is not None and not world.is_inherited:
                world.start_trace(self._records, self._worlds.append)
        except BaseException:
            self._leave()
            raise

    def stop(self) -> None:
        """Ends the trace, and writes the file; idempotent."""
        if self._found is not None or os.getpid() != self._pid:
            return
        self._leave()
        try:
            world = open_world()
            if world is not None:
                world.end_trace()
        finally:
            self._found = tracks(self._worlds, self._began)
            if self.path is not None:
                write(self.path, self._found, self._told())

    def summary(self) -> Summary:
        """Returns where the time went; after the end of the trace.

        Raises:
            WorldError: the trace is not over.
        """
        return summarise(self.records())

    def records(self) -> list[Record]:
        """Returns the events, as in the file; after the end of the trace. Raises `WorldError` before."""
        if self._found is None:
            raise WorldError("the trace is not over; ask after its with block")
        return self._found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file; its name ends in .json, or in .json.gz to pack it."""
        write(_checked(path), self.records(), self._told())

    def _told(self) -> dict[str, Any]:
        lost = sum(one.lost for events in self._worlds for one in events.ranks.values())
        reasons = [events.reason for events in self._worlds if events.reason is not None]
        return {"made by": "synknumba", "lost": lost, "ended": reasons}

    def _trace_started(self, world: Engine) -> None:
        if os.getpid() == self._pid:
            world.trace_held(self._records, self._worlds.append)

    def _leave(self) -> None:
        if self in _active:
            _active.remove(self)
            when_started(_of_variable)


_active: list[Trace] = []  # at most one


@known_options
def trace(path: str | os.PathLike[str] | None = None, *, records: int = 100_000) -> Trace:
    """Records what the script, the ranks and their devices do, in a `with` block.

    The file can be opened by Perfetto's viewer, and by Chrome's at chrome://tracing. It has a track for the script's calls
    (preparing, waiting, combining) and messages, and for each rank its rounds, what was done in them, and the work on its GPU's
    stream. `python -m synknumba trace --summary run.json` prints where the time went. Of a world whose ranks were killed, only
    the script's tracks are there.

    Args:
        path: file to write at the end, "run.json" or "run.json.gz"; None for none.
        records: rounds that are kept, the last ones, and for each as many as eight steps.

    Returns:
        A context manager with `summary()`, `records()` and `save(path)`, after the block.

    Raises:
        ArgumentError: the folder of `path` does not exist, or `records` is no positive int.
        WorldError: another trace is being made.

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
    if isinstance(records, bool) or not isinstance(records, int) or records < 1:
        raise ArgumentError(f"records must be a positive int, got {records!r}")
    return Trace(None if path is None else _checked(path), records)


def _checked(path: str | os.PathLike[str]) -> Path:
    found = Path(path).absolute()
    if not found.name.endswith((".json", ".json.gz")):
        raise ArgumentError(f"a trace needs a name that ends in .json or .json.gz, got {os.fspath(path)!r}")
    if not found.parent.is_dir():
        raise ArgumentError(f"the folder of the trace {os.fspath(path)!r} does not exist")
    return found


def _of_variable(world: Engine) -> None:
    """Begins the trace of the whole script, if SYNKNUMBA_TRACE asks for one."""
    path = os.environ.get(VARIABLE)
    when_started(None)
    if not path:
        return
    if os.environ.setdefault(_OWNER, str(os.getpid())) != str(os.getpid()):
        name, dot, end = path.partition(".json")
        path = f"{name}.{os.getpid()}{dot}{end}"
    made = trace(path)
    atexit.register(_stop, made)
    made.start(world)


def _stop(made: Trace) -> None:
    with suppress(SynkError):
        made.stop()


when_started(_of_variable)
