"""The script's memory that the calls of a sequence use: variables, and arrays from outside.

A recording fills both. Before each call, they tell whether all is as the ranks' programs expect;
after it, variables learn what the ranks have done.
"""

import sys
import weakref
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeAlias, final

import numpy as np

from synknumba import _tracing as tracing
from synknumba._errors import ArgumentError
from synknumba._host.data import Data, segment_of
from synknumba._host.file_data import FileData, over_file
from synknumba._host.foreign import adopted, is_foreign
from synknumba._sequence.outer_values import bytes_of
from synknumba._types import Array
from synknumba._variables.allocation import Allocation
from synknumba._variables.failed_writes import note_failure
from synknumba._variables.state import VariableState
from synknumba._world.engine import Engine

_Variable: TypeAlias = "weakref.ref[VariableState]"


@final
class UsedVariables:
    """The variables of a sequence: those that have memory on the ranks, and the changes that calls
    make.
    """

    def __init__(self) -> None:
        # with their layouts and their memory, by its number
        self.memory: dict[int, tuple[_Variable, Any, weakref.ref[Allocation]]] = {}
        # that ranks write, by id, with the last part's arguments of `VariableState.mark`
        self._changed: dict[int, tuple[_Variable, bool, bool | None]] = {}
        self._swaps: list[list[tuple[_Variable, _Variable]]] = [[]]  # of each turn
        # swaps so far, while the body runs; with the first one's memory before
        self._traded: list[tuple[VariableState, VariableState, Allocation]] = []

    # ---- while the body runs

    def hold(self, variable: VariableState, world: Engine) -> Allocation:
        """Gives a variable memory on the ranks, and notes both."""
        storage = variable.place(world)
        # As at first: swapped variables have other memory in later turns.
        held = weakref.ref(variable), variable._layout, weakref.ref(storage)  # noqa: SLF001  # as a key
        self.memory.setdefault(storage.number, held)
        return storage

    def note_change(
        self, variable: VariableState, *, differs: bool, sharded: bool | None = None
    ) -> None:
        self._changed[id(variable)] = weakref.ref(variable), differs, sharded

    def swap(self, first: VariableState, second: VariableState) -> None:
        self._swaps[-1].append((weakref.ref(first), weakref.ref(second)))
        # before it is traded, which Ctrl-C may prevent
        self._traded.append((first, second, first.storage()))
        first.trade(second)

    def begin_turn(self) -> None:
        self._swaps.append([])

    def undo_swaps(self) -> None:
        """Gives swapped variables the memory back that they had at first."""
        while self._traded:
            first, second, storage = self._traded[-1]
            if first.storage() is not storage:
                first.trade(second)
            self._traded.pop()

    # ---- calls

    @property
    def are_current(self) -> bool:
        """Whether all variables have the memory of the ranks' programs."""
        for reference, layout, _ in self.memory.values():
            variable = reference()
            if variable is None or variable._layout != layout:  # noqa: SLF001  # as a key
                return False
        return True

    @property
    def are_lost(self) -> bool:
        """Whether they will not be current again: a variable or its memory is gone. Swapped
        variables may have theirs again.
        """
        return any(
            variable() is None or memory() is None for variable, _, memory in self.memory.values()
        )

    def note_iterations(self, first: int, count: int) -> None:
        """Notes what a round of so many iterations has done to variables."""
        for reference, differs, sharded in self._changed.values():
            variable = reference()
            if variable is not None:
                variable.mark(differs=differs, sharded=sharded)
        turns = len(self._swaps)
        for iteration in range(first, first + count % turns):
            for pair in self._swaps[iteration % turns]:
                ours, theirs = pair[0](), pair[1]()
                if ours is not None and theirs is not None:
                    ours.trade(theirs)

    def note_failure(self, world: Engine, error: BaseException) -> None:
        """Notes the variables that have no values any more, as a round has failed."""
        note_failure(world, [variable() for variable, *_ in self._changed.values()], error)


@final
class OuterArrays:
    """Arrays that calls of a body take and that are no arguments of the sequence, with their copies
    in shared memory; and arrays whose elements have decided what is recorded.

    Args:
        name: the sequence's.

    Attributes:
        copies: the arrays with their copies, by id.
        changing: those that the script can change.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.copies: dict[int, tuple[Array, Data]] = {}
        self.changing: list[tuple[Array, Data]] = []
        # other objects with arrays, by id, with these
        self._foreign: dict[int, tuple[Any, Array | Data]] = {}
        # arrays that were read, with what they held and the line that reads; by id
        self._reads: dict[int, tuple[Array | Data, bytes, str]] = {}

    # ---- while the body runs

    def shared(self, value: Any) -> Any:
        """Returns the copy of an array, made if need be; any other argument as it is."""
        if is_foreign(value):
            if id(value) not in self._foreign:
                array = adopted(value, f"an argument of a call of {self._name}")
                self._foreign[id(value)] = value, array
            value = self._foreign[id(value)][1]
        if not isinstance(value, np.ndarray):
            return value
        if not value.ndim:  # a call takes its number
            self.note_read(value)
            return value
        if id(value) not in self.copies:
            copy: Data | None = over_file(value, self._label)
            if copy is None:
                copy = Data(value)
            self.copies[id(value)] = value, copy
        return self.copies[id(value)][1]

    def note_read(self, data: Array | Data) -> None:
        if id(data) not in self._reads:
            self._reads[id(data)] = data, bytes_of(data), tracing.where()

    def check_reads(self, written: AbstractSet[int]) -> None:
        """Raises `ArgumentError` if the body has read an array that its calls write: it runs
        once, before they do.
        """
        for key, (array, _, line) in self._reads.items():
            if isinstance(array, Data):
                data = array
            elif key in self.copies:
                data = self.copies[key][1]
            else:
                continue
            if segment_of(data).id in written:
                raise ArgumentError(
                    f"{line}: {self._name} reads an array that its calls write, and "
                    "would get what it holds before the first of them: the body runs once, and its "
                    "calls run later, on the ranks. Read it in a kernel or a function, or after "
                    "the call"
                )

    def labelled(self) -> list[tuple[str, Array, Data]]:
        """Returns the arrays with their copies, named for messages."""
        return [(self._label, *pair) for pair in self.copies.values()]

    @property
    def _label(self) -> str:
        return f"an array that {self._name} has from outside"

    # ---- calls

    def find_changing(self) -> None:
        """Finds the arrays that the script can change: those that something else refers to."""
        self.changing = [pair for pair in self.copies.values() if _has_other_owner(pair)]

    @property
    def are_current(self) -> bool:
        """Whether copies can take the arrays as they are now, and those that were read hold the
        same.
        """
        for data, before, _ in self._reads.values():
            if bytes_of(data) != before:
                return False
        for array, copy in self.changing:
            if array.shape != copy.shape or array.dtype != copy.dtype:
                return False
            if isinstance(copy, FileData) and not copy.renew_version():
                return False
        return True

    def renew(self, written: frozenset[int]) -> list[tuple[Array, Data]]:
        """Copies the arrays for the next call; returns those that get what ranks write."""
        for array, copy in self.changing:
            if not isinstance(copy, FileData):
                copy.set_value(array)
        return [pair for pair in self.changing if segment_of(pair[1]).id in written]


def _references(pair: tuple[Array, Any]) -> int:
    array = pair[0]
    return sys.getrefcount(array)


_ONE_OWNER: Final = _references((np.zeros(1), None))


def _has_other_owner(pair: tuple[Array, Any]) -> bool:
    """Returns whether something else than a pair has its array, or an object of which that is a
    view.
    """
    array = pair[0]
    while sys.getrefcount(array) <= _ONE_OWNER:
        base = array.base
        if base is None:
            return False
        # memory of another object, of whose owners nothing is known
        if not isinstance(base, np.ndarray):
            return True
        array = base
        del base
    return True
