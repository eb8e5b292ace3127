"""Tables of sequences: the parts as rows that compiled code runs, without Python
(`_wire/sequence_interpreter.py`).

    part ──> its routine's steps ──native()──> launches, copies ─┐
         ──> its formulas ──> operations on cells, and stores ───┼──> rows
         ──> its wait, its count ────────────────────────────────┘
    anything else ──> a row at which compiled code returns, and Python does the step, the formula or the part

A table refers to memory by address, so it is made anew after memory has moved.
"""  # noqa: E501

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, final

import numpy as np
from numba import types

from synknumba._device import Device, Step
from synknumba._formulas import Formula
from synknumba._rank import spans
from synknumba._rank.collective_routine import StagedRoutine, Steps
from synknumba._rank.kernel_routine import KernelRoutine
from synknumba._rank.routine import Place, Repeated
from synknumba._rank.sequence_numbers import Numbers
from synknumba._rank.sequence_rows import FormulaRows, PythonOnlyError
from synknumba._types import Array
from synknumba._wire import sequence
from synknumba._wire import sequence_interpreter as table
from synknumba._wire.native import (
    RESULT,
    Native,
    NativeCall,
    NativeCopy,
    NativeStep,
    address_of,
    copy_of,
    raise_error,
    rows_of,
)
from synknumba._wire.program import Dynamic
from synknumba._wire.relaunch import Relaunch
from synknumba._wire.sequence import CARRIED, Loop, Part, SequenceProgram, Shared

NAP_SECONDS = 2e-4  # between two rounds of spins, in a wait for a rank that works for long

Action: TypeAlias = Callable[[], None]
# a step, and what compiled code does in its place
_Ways: TypeAlias = tuple[Step, Sequence[NativeStep] | None]

_COMBINATIONS = {  # (op, dtype): operation, type of the parts
    ("sum", "d"): (table.ADD, table.DOUBLE),
    ("prod", "d"): (table.MUL, table.DOUBLE),
    ("sum", "f"): (table.ADD, table.SINGLE),
    ("prod", "f"): (table.MUL, table.SINGLE),
    ("sum", "l"): (table.INT_ADD, table.INT),
    ("prod", "l"): (table.INT_MUL, table.INT),
    ("min", "l"): (table.INT_MIN, table.INT),
    ("max", "l"): (table.INT_MAX, table.INT),
}
_SEQUENTIAL = 8  # NumPy sums fewer numbers than this in order, as rows do


class PeerFailed(Exception):  # noqa: N818  # nothing is wrong on this rank
    """Raised in a wait when another rank has failed, which reports it."""


def _ways(step: Step) -> _Ways:
    return step, step.native() if isinstance(step, Native) else None


def runs_tables(device: Device) -> bool:
    """Returns whether compiled code can run a device's steps: they are calls of compiled
    functions, done when they return.
    """
    traits = device.traits
    return traits.shares_memory and traits.compiled_by_simt and not traits.queues_work


@final
class SequenceTable(FormulaRows):
    """The table of one sequence on one rank.

    Args:
        program: the sequence.
        place: state of the rank.
        numbers: its numbers.
        board: where ranks show their counts and put down results.
        turns: how often each shared result has been combined.
        routines: those of the parts' programs, by number.
        doing: returns what Python does for a part.
    """

    def __init__(
        self,
        program: SequenceProgram,
        place: Place,
        numbers: Numbers,
        board: Array,
        turns: Array,
        routines: Mapping[int, Repeated],
        doing: Callable[[Part], Action],
    ) -> None:
        super().__init__(numbers, program.scalars)
        self._program, self._place = program, place
        self._board, self._turns, self._routines, self._doing = board, turns, routines, doing
        self._parts: list[Part | None] = []  # of the rows
        # what Python does at a row, and the row after that
        self._python: dict[int, tuple[Action, int]] = {}
        self._begins: list[int] = []  # of the iterations that differ, the first rows
        self.running: Part | None = None  # for messages
        self._repeated: NativeCall | None = None  # of a run, by compiled code
        self._clock: Array = np.zeros(2, np.int64)  # buffer of notes

    def build(self) -> None:
        """Makes the rows; an exception is about the part `running`."""
        self._declare(self._program.parts)
        self._add_iterations()
        self._table = np.array(self._rows, np.int64)
        self._state = self._make_state()
        # faster to index than the arrays
        self._words, self._step = (
            self._state.data,
            self._numbers.steps.data,
        )
        self._addresses = self._table.ctypes.data, self._state.ctypes.data

    # ---- runs

    def run(self, first: int, count: int, period: int, history: Array | None) -> None:
        """Runs iterations; `history`, shape (entries, bytes), gets this rank's small results after
        each period.
        """
        if count:
            self._start(first, count, period, history)
            self._go_on(table.run(*self._addresses))

    def resume(self) -> None:
        """Goes on with a run that compiled code has begun, by `repetition`."""
        assert self._repeated is not None  # it has
        self._go_on(int(self._repeated.words[RESULT]))

    def repetition(
        self, first: int, count: int, state: Sequence[Array]
    ) -> tuple[Relaunch, list[int]] | None:
        """Returns the launch with which compiled code repeats the run of iterations; None if it
        takes Python.

        With it, the addresses of words that hold the number of the first iteration.

        Args:
            first: number of the first iteration.
            count: how many.
            state: further state, which has its values of the beginning again when a run begins.
        """
        if not count or any(row[0] == table.PYTHON for row in self._rows):
            return None
        position = self._board[sequence.position_word(self._place.world_size, self._place.rank) :][
            : sequence.LINE
        ]
        position.fill(0)
        self._start(first, count, 0, None)
        changing = [self._state, self._numbers.steps, position, *state]
        copies = [copy_of(array, array.copy()) for array in changing if array.nbytes]
        result = table.run.overloads[types.int64, types.int64]
        kinds = types.int64, types.int64
        self._repeated = NativeCall(
            address_of(result), kinds, self._addresses, (table.run, self._table, self._state)
        )
        rows = rows_of([*copies, self._repeated], table.FINISHED)
        steps, words = copies[1].source, copies[2].source
        return Relaunch.of_rows(rows, copies), [steps, words + 8 * sequence.ITERATION]

    def _start(self, first: int, count: int, period: int, history: Array | None) -> None:
        words = self._words
        position = self._position  # of zeros, as the script has cleared the board
        self._step[0] = position[sequence.ITERATION] = first
        turn = first % len(self._begins)
        position[sequence.AT] = self._program.starts[turn]
        words[table.AT] = self._begins[turn]
        words[table.DONE_PARTS] = words[table.ITERATION] = words[table.BEGAN] = 0
        words[table.TIMES], words[table.PERIOD] = count, 0 if history is None else period
        if history is not None:
            words[table.KEPT], words[table.KEPT_STRIDE] = history.ctypes.data, history.strides[0]

    def _go_on(self, code: int) -> None:
        """Does what compiled code leaves to Python, and lets it go on, until the run is
        finished.
        """
        while code != table.FINISHED:
            if code == table.TO_PYTHON:
                at = self._words[table.AT]
                self.running = self._parts[at]
                action, self._words[table.AT] = self._python[at]
                action()
            else:
                self._handle(code)
            code = table.run(*self._addresses)

    def _handle(self, code: int) -> None:
        at = self._words[table.AT]
        self.running = self._parts[at]
        if code == table.FAILED:
            call = next(
                native_call
                for native_call in self._kept
                if isinstance(native_call, NativeCall)
                and native_call.words.ctypes.data == self._rows[at][3]
            )
            raise_error(self._words[table.CODE], int(call.words[1]))
        if code == table.GIVEN_UP or self._abort[0]:
            raise PeerFailed
        if code == table.LATE:
            time.sleep(NAP_SECONDS)

    def _make_state(self) -> Array:
        program, place = self._program, self._place
        self._results = place.control.results[place.rank]
        at = sequence.position_word(place.world_size, place.rank)
        self._abort = self._board[sequence.abort_word(place.world_size) :].data
        position = self._board[at : at + sequence.LINE]
        self._position = position.data  # as above
        state = np.zeros(table.STATE_WORDS, np.int64)
        words = {
            table.STEP: self._numbers.steps.ctypes.data,
            table.ENTRY: self._results.ctypes.data,
            table.ENTRY_BYTES: program.entry_bytes,
            table.BOARD: self._board.ctypes.data,
            table.WORLD_SIZE: place.world_size,
            table.RANK: place.rank,
            table.PAUSES: place.control.patience.pauses,
            table.YIELDS: place.control.patience.rank,
            table.POSITION: position.ctypes.data,
        }
        for word, value in words.items():
            state[word] = value
        return state

    # ---- rows

    def _row(self, *words: int) -> None:
        super()._row(*words)
        self._parts.append(self.running)

    def _in_python(self, action: Action) -> None:
        self._python[len(self._rows)] = action, len(self._rows) + 1
        self._row(table.PYTHON)

    def _declare(self, parts: Sequence[Part | Loop]) -> None:
        """Finds the results that are kept in cells."""
        for part in parts:
            if isinstance(part, Loop):
                self._declare(part.parts)
            elif part.combines is not None:
                self._numbers.has_cell(part.combines.slot, part.combines.dtype)

    def _add_iterations(self) -> None:
        """Adds the parts of an iteration; of several where variables swap their memory."""
        parts, starts = self._program.parts, self._program.starts
        ends = (*starts[1:], len(parts))
        for start, end, carried in zip(starts, ends, self._program.carried, strict=True):
            self._begins.append(len(self._rows))
            self._add(parts[start:end], start)
            self._add_carried(carried)
            self._row(table.END, len(self._rows) + 1)
        self._rows[-1][1] = 0

    def _add_carried(self, carried: Sequence[tuple[int, Formula]]) -> None:
        """Adds rows that give scalars their values for the next iteration: all are computed
        before the first is replaced.
        """
        moves = [
            (index, self._next_value(self._program.scalars[index], formula))
            for index, formula in carried
        ]
        for index, address in moves:
            self._row(table.MOVE, self._numbers.scalars[index:].ctypes.data, address)

    def _next_value(self, letter: str, formula: Formula) -> int:
        """Adds rows that compute a number; returns the address of its value."""
        cell = np.zeros(1, np.int64)
        address = cell.ctypes.data

        def compute() -> None:
            cell[:] = np.frombuffer(self._numbers.packed(letter, formula, CARRIED), np.int64)

        store = self._store_float if letter == "d" else self._store_int
        self._store(
            formula, compute, lambda source, is_float: store(address, source, is_float=is_float)
        )
        self._kept.append(cell)
        return address

    def _add(
        self,
        parts: Sequence[Part | Loop],
        first: int = 0,
        word: int = sequence.AT,
        *,
        counts: bool = True,
    ) -> None:
        """Adds parts, whose indices begin at `first`; the word of the rank's position shows which
        one it runs.

        With `counts`, the rank counts those that it has finished.
        """
        for index, part in enumerate(parts, first):
            # in inner loops, 0 shows nothing
            following = index + 1 if word == sequence.AT else index + 2
            self.running = part if isinstance(part, Part) else None
            ring, note = (0, 0) if spans.active is None else spans.active.note_of(part.name)
            if part.wait is not None:
                self._add_note(ring, note + spans.BEGIN_WAIT)
                self._row(table.WAIT, part.wait.back, int(part.wait.nearby))
            self._add_note(ring, note + spans.BEGIN)
            if isinstance(part, Loop):
                self._add_loop(part)
            else:
                self._add_part(part)
            self._add_note(ring, note + spans.END)
            self._row(table.FINISH, int(part.shows), word, following, int(counts))
        self.running = None

    def _add_note(self, ring: int, number: int) -> None:
        """Adds a row that notes the time, if the rank is traced."""
        if ring:
            self._row(table.NOTE, ring, number, self._clock.ctypes.data)

    def _add_loop(self, loop: Loop) -> None:
        """Adds an inner sequence. Where ranks do not meet, its parts do not count."""
        step = self._numbers.steps[loop.depth :].ctypes.data
        word = sequence.inner_word(loop.depth)
        word = word if word < sequence.LINE else 0  # deeper loops are not shown
        times = np.zeros(1, np.int64)
        self._kept.append(times)

        def count() -> None:
            times[0] = self._numbers.count(loop.times)

        self._store(
            loop.times,
            count,
            lambda source, is_float: self._store_int(times.ctypes.data, source, is_float=is_float),
        )
        if loop.meets:
            self._row(table.MEET)
        enter = len(self._rows)
        self._row(table.ENTER, step, times.ctypes.data, 0, word)
        self._add(loop.parts, word=word, counts=loop.meets)
        self._row(table.AGAIN, step, times.ctypes.data, enter + 1, word)
        self._rows[enter][3] = len(self._rows)
        if loop.meets:
            self._row(table.MEET)

    def _add_part(self, part: Part) -> None:
        if part.puts is not None:
            self._add_put(part.puts)
        elif part.combines is not None:
            self._add_combination(part, part.combines)
        else:
            routine = self._routines[part.number]
            steps = None if isinstance(routine, StagedRoutine) else self._steps(part)
            if isinstance(routine, StagedRoutine):
                self._add_turns(routine)
            elif steps is None:
                self._in_python(self._doing(part))
            else:
                self._add_steps(steps)

    def _add_turns(self, routine: StagedRoutine) -> None:
        """Adds steps that differ from turn to turn."""
        self._kept.append(routine)
        even, odd = ([_ways(step) for step in steps] for steps in routine.steps())
        begin = len(self._rows)
        self._row(table.TURN, routine.turn.ctypes.data)
        self._add_steps(even)
        jump = len(self._rows)
        self._row(table.JUMP)
        self._rows[begin][2] = len(self._rows)
        self._add_steps(odd)
        self._rows[jump][1] = len(self._rows)

    def _add_steps(self, steps: Sequence[_Ways]) -> None:
        for step, native in steps:
            if native is None:
                self._in_python(step)  # type: ignore[arg-type]  # what it returns is of no use
            for native_step in native or ():
                self._add_native(native_step)

    def _add_native(self, step: NativeStep) -> None:
        self._kept.append(step)
        match step:
            case NativeCopy(target, source, nbytes):
                self._row(table.COPY, target, source, nbytes)
            case NativeCall():
                self._row(table.LAUNCH, step.thunk, step.address, step.words.ctypes.data)

    def _add_put(self, shared: Shared) -> None:
        mine = self._place.control.results[self._place.rank, shared.offset :]
        nbytes = np.dtype(shared.dtype).itemsize
        turn = self._turns[shared.slot :].ctypes.data
        self._row(
            table.PUT,
            self._stage(shared, 0, self._place.rank),
            mine.ctypes.data,
            nbytes,
            self._between(shared),
            turn,
        )

    def _add_combination(self, part: Part, shared: Shared) -> None:
        codes = (
            _COMBINATIONS.get((shared.op, np.dtype(shared.dtype).char))
            if isinstance(shared.op, str)
            else None
        )
        if (
            codes is None
            or self._place.world_size >= _SEQUENTIAL
            or not np.dtype(shared.dtype).isnative
        ):
            self._in_python(self._doing(part))
            return
        target, turn = (
            cells[shared.slot :].ctypes.data for cells in (self._numbers.results, self._turns)
        )
        self._row(
            table.COMBINE,
            target,
            self._stage(shared, 0, 0),
            *codes,
            self._between(shared),
            turn,
        )

    def _stage(self, shared: Shared, turn: int, rank: int) -> int:
        return int(self._board.ctypes.data) + 8 * sequence.stage_word(
            self._place.world_size, shared.slot, turn, rank
        )

    def _between(self, shared: Shared) -> int:
        return self._stage(shared, 1, 0) - self._stage(shared, 0, 0)

    # ---- calls

    def _steps(self, part: Part) -> list[_Ways] | None:
        """Returns the steps of a part, and what compiled code does for each; adds the rows of its
        formulas.

        None if Python does the part as a whole.
        """
        routine = self._routines[part.number]
        if isinstance(routine, Steps):
            return [_ways(step) for step in routine.make()]
        if not isinstance(routine, KernelRoutine):
            return None
        # other rows, or other memory, each time
        if any(offset >= routine.scalar_bytes for offset, _, _ in part.formulas):
            return None
        if any(param.is_complex for param in routine.dynamic.values()) and part.formulas:
            return None
        steps = [_ways(step) for step in routine.steps(part.values)]
        native_steps = [step for _, native in steps for step in native or ()]
        calls = [step for step in native_steps if isinstance(step, NativeCall) and step.changing]
        # Python launches, with arguments that it renews
        if part.formulas and len(calls) != routine.launches:
            return None
        for offset, letter, formula in part.formulas:
            for position, param in routine.dynamic_at(offset):
                for call in calls:
                    self._renew(call, position, param, letter, formula, part.name)
        return steps

    # ---- numbers

    def _renew(
        self,
        call: NativeCall,
        position: int,
        param: Dynamic,
        letter: str,
        formula: Formula,
        part: str,
    ) -> None:
        """Adds rows that store the value of a formula as an argument of a call."""
        word, kind = call.place(position)
        self._kept.append(call)

        def renew() -> None:
            (value,) = struct.unpack("<" + letter, self._numbers.packed(letter, formula, part))
            if param.dtype is not None:
                value = np.dtype(param.dtype).type(value)
            call.store(position, value)

        same = param.dtype is None or np.dtype(param.dtype).name == str(kind)
        address = word.ctypes.data

        def store(source: int, *, is_float: bool) -> None:
            if same and letter == "q" and kind == types.int64:
                self._store_int(address, source, is_float=is_float)
            elif same and letter == "d" and kind == types.float64:
                self._store_float(address, source, is_float=is_float)
            elif same and letter == "d" and kind == types.float32 and is_float:
                self._row(table.TO_SINGLE, address, source)
            else:
                raise PythonOnlyError

        self._store(formula, renew, lambda source, is_float: store(source, is_float=is_float))

    def _store(self, formula: Formula, action: Action, store: Callable[[int, bool], None]) -> None:
        """Adds rows that compute a formula and store its value; `action` does both in Python,
        where these rows cannot.
        """
        begin = len(self._rows)
        try:
            store(*self._number(formula))
        except PythonOnlyError:
            del self._rows[begin:], self._parts[begin:]
            self._in_python(action)
            return
        for at in range(begin, len(self._rows)):
            self._python[at] = action, len(self._rows)
