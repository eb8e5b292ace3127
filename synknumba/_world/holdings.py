"""What the ranks of one life of a world have of the script, and what they may free.

A rank maps a segment when a call first uses it, and again after it has grown. Functions are sent
with their first call. A rank frees objects on request, at the end of a call or between calls. The
commands are sent by the thread that holds the world.

`%autoreload` in IPython changes functions in place: it assigns `__code__`, of methods too. Ranks
keep what they have: functions of modules since the fork, functions of the script since they were
sent. So the code is noted at the fork and when a function is first used, and compared before calls
(`RankCode`). Functions of the standard library and of installed packages are not looked at.
"""

import collections
import linecache
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Literal, NoReturn, TypeAlias, final, get_args

from synknumba._errors import WorldError
from synknumba._host.segment import Segment
from synknumba._source.reached import functions_in, imported_modules, reached
from synknumba._wire import channel
from synknumba._wire.messages import Attach, Drop
from synknumba._world.read_values import RankValues

Kind: TypeAlias = Literal["segment", "program", "function", "variable"]
"""Kinds of objects that a rank can free; a "variable" is the memory of one."""


# functions, with the code that the ranks have of them
Uses = tuple[tuple[FunctionType, CodeType], ...]


@final
class RankCode:
    """The code of the script's functions that the ranks of one world have."""

    def __init__(self) -> None:
        """Notes the code of all functions in modules of the script, right before the fork."""
        self._known: dict[FunctionType, CodeType] = {}
        for name, module in imported_modules():
            for value in list(vars(module).values()):
                if getattr(value, "__module__", None) == name:
                    self._note(value, 2)

    def _note(self, value: object, depth: int) -> None:
        if isinstance(value, FunctionType):
            self._known[value] = value.__code__
        elif depth:  # a class, and a method in it
            for part in functions_in(value):
                self._note(part, depth - 1)

    def uses(self, roots: Iterable[object], name: str) -> Uses:
        """Returns the functions that these objects reach; raises `WorldError` if the ranks have
        other code of one.
        """
        uses = tuple(
            (function, self._known.setdefault(function, function.__code__))
            for function in reached(roots)
        )
        for function, code in uses:
            if function.__code__ is not code:
                refuse(function, name)
        return uses


def refuse(function: FunctionType, name: str) -> NoReturn:
    """Raises the error for a function that was changed in place."""
    code = function.__code__
    used = "" if function.__name__ == name else f", which {name} uses,"
    raise WorldError(
        f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno}){used} was changed in "
        "place, as %autoreload does, and the ranks have the code from before. Call close() and "
        "fork() again: the new ranks have the new code, and Data and variables keep their contents."
    )


@final
class Holdings:
    """Tracks what the ranks have, and queues the objects that they may free.

    Attributes:
        code: code of the script's functions.
        values: values that these functions read.
        shipped: ids of the functions that were sent.
        proven: ids of those that have run to their end; others are sent again after a failure.
        texts: `linecache` entries: texts of files, of which some are not on disk, or not as they
            were.
        unwanted: objects to free with the next `Drop`; looked at at the end of each call.
    """

    __slots__ = ("_mapped", "code", "proven", "shipped", "texts", "unwanted", "values")

    def __init__(self) -> None:
        self.code = RankCode()
        self.values = RankValues()
        self.shipped: set[int] = set()
        self.proven: set[int] = set()
        self.texts = dict(linecache.cache)
        self.unwanted: collections.deque[tuple[Kind, int]] = collections.deque()
        self._mapped: dict[int, int] = {}  # segment id: generation that the ranks have mapped

    def missing(self, segments: Sequence[Segment]) -> Iterator[tuple[Attach, list[int]]]:
        """Yields commands, with descriptors, that map those of the segments that are new to the
        ranks or have grown.

        A command counts as sent when the next one is requested.
        """
        needed = [
            segment for segment in segments if self._mapped.get(segment.id) != segment.generation
        ]
        for start in range(0, len(needed), channel.MAX_DESCRIPTORS):
            batch = needed[start : start + channel.MAX_DESCRIPTORS]
            maps = Attach(tuple((segment.id, segment.size) for segment in batch))
            yield maps, [segment.fd for segment in batch]
            self._mapped.update((segment.id, segment.generation) for segment in batch)

    def forget(self, kind: Kind, number: int) -> None:
        """Queues an object to be freed, unless the ranks do not have it. Takes no lock."""
        if kind != "segment" or self._mapped.pop(number, None) is not None:
            self.unwanted.append((kind, number))

    def drop(self) -> Drop:
        """Returns the command that frees all queued objects, and empties the queue."""
        numbers: dict[Kind, list[int]] = {kind: [] for kind in get_args(Kind)}  # as in `Drop`
        while self.unwanted:
            kind, number = self.unwanted.popleft()
            numbers[kind].append(number)
        return Drop(*map(tuple, numbers.values()))
