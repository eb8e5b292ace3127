"""Lowering of a sequence: its parts become rows that compiled code runs
(`_wire/sequence_interpreter.py`, run by `sequence_program.py`).

    its order: waits, counts, loops, shared results   ──────────────────> rows, on every device
    part ──> its routine's steps ──native()──> launches, copies ────────> rows, where compiled code runs a device's steps
         ──> its formulas ──> operations on cells, and stores ──────────> rows, there
    parts between which the host has nothing to do, on other devices ──> a row at which they are launched together
    anything else ──> a row at which compiled code returns, and Python does the step, the formula or the part

Rows refer to memory by address, so a sequence is lowered anew after memory has moved.
"""  # noqa: E501

import itertools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias, final

import numpy as np

from synknumba._device import Device, Recording, Step
from synknumba._formulas import Formula
from synknumba._rank import spans
from synknumba._rank.collective_routine import StagedRoutine, Steps
from synknumba._rank.fused_parts import FusedParts, PartFusion, wait_of
from synknumba._rank.kernel_routine import KernelRoutine
from synknumba._rank.routine import Routine
from synknumba._rank.sequence_context import SequenceContext
from synknumba._rank.sequence_rows import FormulaRows, PythonOnlyError
from synknumba._types import Array
from synknumba._wire import sequence
from synknumba._wire import sequence_interpreter as table
from synknumba._wire.messages import Returned
from synknumba._wire.native import Native, NativeCall, NativeCopy, NativeStep
from synknumba._wire.program import Dynamic
from synknumba._wire.sequence import (
    CARRIED,
    INNER_TIMES,
    JUDGED,
    Ending,
    Loop,
    Moves,
    Part,
    Parts,
    Shared,
    turns_of,
)

Action: TypeAlias = Callable[[], object]
# a step, and what compiled code does in its place
_Ways: TypeAlias = tuple[Step, Sequence[NativeStep] | None]
_Group: TypeAlias = tuple[Parts, FusedParts | None]

_COMBINATIONS = {  # of parts, by op
    "sum": table.SUM,
    "prod": table.PROD,
    "min": table.LEAST,
    "max": table.GREATEST,
}
_KINDS = {"d": table.DOUBLE, "f": table.SINGLE, "l": table.INT}  # of combined parts, by dtype
_LETTERS = {"int64": "q", "float64": "d", "float32": "f"}  # of arguments that rows can store


def _ways(step: Step) -> _Ways:
    return step, step.native() if isinstance(step, Native) else None


def runs_natively(device: Device) -> bool:
    """Returns whether compiled code can run a device's steps: they are calls of compiled
    functions, done when they return.
    """
    traits = device.traits
    return traits.shares_memory and traits.compiled_by_simt and not traits.queues_work


@final
@dataclass(frozen=True, slots=True)
class Lowered:
    """A sequence as rows.

    Attributes:
        rows: the rows, int64, shape (n, ROW_WORDS).
        state: words of the state, of which those are set that stay as they are.
        parts: the part of each row, for messages.
        python: what Python does at a row, and the row after that.
        begins: first rows of the iterations that differ.
        meeting: row at which all ranks meet, which no iteration comes to.
        calls: native calls, by the addresses of their words.
        owners: memory and code that rows refer to.
    """

    rows: Array
    state: Array
    parts: Sequence[Part | None]
    python: Mapping[int, tuple[Action, int]]
    begins: Sequence[int]
    meeting: int
    calls: Mapping[int, NativeCall]
    owners: Sequence[Any]

    @property
    def needs_python(self) -> bool:
        """Whether a row is always Python's."""
        return bool((self.rows[:, 0] == table.PYTHON).any())


@final
class Lowering(FormulaRows):
    """Lowers the parts of a sequence.

    Args:
        context: what the parts refer to.
        fusion: finds parts that are launched together; None if compiled code runs steps.
        recordings: of `stride` iterations, by the turns of the last ones; launched before parts.
        stride: number of iterations for which the rows of one are run.
    """

    def __init__(
        self,
        context: SequenceContext,
        fusion: PartFusion | None,
        recordings: Mapping[int, Recording] = MappingProxyType({}),
        stride: int = 1,
    ) -> None:
        super().__init__(context.numbers)
        self._context, self._fusion, self._is_native = context, fusion, fusion is None
        self._parts: list[Part | None] = []
        self._recordings, self._stride = recordings, stride
        self._python: dict[int, tuple[Action, int]] = {}
        self._state: Array = np.zeros(table.STATE_WORDS, np.int64)
        self._clock: Array = np.zeros(2, np.int64)  # buffer of notes

    def lower(self, parts: Parts) -> Lowered:
        """Returns the rows of parts; an exception is about the part in progress."""
        self._declare(parts)
        self._fill_state()
        begins = self._add_iterations(parts)
        meeting = len(self._rows)
        self._row(table.FINISH, 0, 0, 0, 1)  # else a judgement may have shown the count already
        self._row(table.MEET)
        self._row(table.END, 0)
        self._kept.append(self._clock)
        calls = {
            owner.words.ctypes.data: owner for owner in self._kept if isinstance(owner, NativeCall)
        }
        return Lowered(
            np.array(self._rows, np.int64),
            self._state,
            self._parts,
            self._python,
            begins,
            meeting,
            calls,
            self._kept,
        )

    def _fill_state(self) -> None:
        program, place, board = self._context.program, self._context.place, self._context.board
        words = {
            table.STEP: self._numbers.steps.ctypes.data,
            table.ENTRY: place.control.results[place.rank].ctypes.data,
            table.ENTRY_BYTES: program.entry_bytes,
            table.BOARD: board.address,
            table.WORLD_SIZE: place.world_size,
            table.RANK: place.rank,
            table.PAUSES: place.control.patience.pauses,
            table.YIELDS: place.control.patience.rank,
            table.STRIDE: self._stride,
            table.TIMES: 1,  # 0 once the condition has ended the loop
            table.POSITION: board.address
            + 8 * sequence.position_word(place.world_size, place.rank),
        }
        for word, value in words.items():
            self._state[word] = value

    def _row(self, *words: int) -> None:
        super()._row(*words)
        self._parts.append(self._context.progress.part)

    def _in_python(self, action: Action) -> None:
        self._python[len(self._rows)] = action, len(self._rows) + 1
        self._row(table.PYTHON)

    # ---- order

    def _declare(self, parts: Parts) -> None:
        """Finds the results that are kept in cells."""
        for part in parts:
            if isinstance(part, Loop):
                self._declare(part.parts)
            elif part.combines is not None:
                self._numbers.keep(part.combines)
        for shared in itertools.chain(*(ending.shares for ending in self._context.program.ends)):
            self._numbers.keep(shared)

    def _add_iterations(self, parts: Parts) -> list[int]:
        """Adds the parts of an iteration; of several where variables swap their memory. Returns
        their first rows.
        """
        program, begins = self._context.program, []
        endings = program.ends or [None] * len(program.starts)
        turns = zip(program.turns(parts), program.starts, program.carried, endings, strict=True)
        for number, (turn, start, carried, ending) in enumerate(turns):
            begins.append(len(self._rows))
            if number in self._recordings:
                self._add_recording(self._recordings[number])
            self._add(turn, start)
            cell = 0 if ending is None else self._add_ending(ending)
            self._add_moves(carried)
            self._row(table.END, len(self._rows) + 1, cell)
            if self._stride % len(program.starts) == 0:  # the next is of the same turn
                self._rows[-1][1] = begins[-1]
        if self._stride % len(program.starts):
            self._rows[-1][1] = 0
        return begins

    def _add_recording(self, recording: Recording) -> None:
        """Adds rows that launch a recording and wait for it."""
        behind = len(self._rows) + 2
        for code, action in (table.RELAUNCH, recording.launch), (table.TAKE, recording.wait):
            self._python[len(self._rows)] = action, behind
            self._row(code, recording.relaunch)

    def _add_ending(self, ending: Ending) -> int:
        """Adds rows that judge whether the loop ends, once in a period; returns the address of the
        verdict.

        Ranks that share a result for it count as if that were a part.
        """
        due = len(self._rows)
        self._row(table.DUE)
        for shared in ending.shares:
            self._add_put(shared)
        if ending.shares:
            self._row(table.FINISH, 0, 0, 0, 1)
            self._row(table.MEET)
        for shared in ending.shares:
            self._add_combination(shared)
        verdict = self._value("q", ending.formula, JUDGED)
        self._rows[due][1] = len(self._rows)
        return int(verdict.ctypes.data)

    def _add_moves(self, moves: Moves) -> None:
        """Adds rows that give numbers other values: all are computed before the first is
        replaced.
        """
        rows = list[tuple[int, int]]()
        for target, formula in moves:
            cells, index, letter = self._numbers.place(*target)
            value = self._value(letter, formula, CARRIED)
            rows.append((cells[index:].ctypes.data, value.ctypes.data))
        for row in rows:
            self._row(table.MOVE, *row)

    def _value(self, letter: str, formula: Formula, name: str) -> Array:
        """Adds rows that compute a number; returns the 8 bytes that get its value."""
        cell = np.zeros(8, np.uint8)
        self._store_packed(letter, formula, cell, name)
        return cell

    def _add(self, parts: Parts, first: int = 0, depth: int = 0, *, counts: bool = True) -> None:
        """Adds the parts of a loop, whose indices begin at `first`; a word of the rank's position
        shows which one it runs.

        With `counts`, the rank counts those that it has finished.
        """
        # in inner loops, 0 shows nothing
        word, following = (_inner_word(depth), first + 1) if depth else (sequence.AT, first)
        progress = self._context.progress
        for group, fused in self._groups(parts, depth):
            last, following = group[-1], following + len(group)
            progress.part = last if isinstance(last, Part) and fused is None else None
            ring, note = 0, 0
            if spans.active is not None and self._is_native:
                ring, note = spans.active.notes.of(last.name)
            wait = last.wait if fused is None else wait_of(group)
            if wait is not None:
                self._add_note(ring, note + spans.BEGIN_WAIT)
                self._row(table.WAIT, wait.back, int(wait.nearby))
            self._add_note(ring, note + spans.BEGIN)
            if fused is not None:
                self._add_group(group, fused, depth)
            elif isinstance(last, Loop):
                self._add_loop(last)
            else:
                self._add_part(last)
            self._add_note(ring, note + spans.END)
            finished = len(group) if counts else 0
            self._row(table.FINISH, int(last.shows), word, following, finished)
        progress.part = None

    def _groups(self, parts: Parts, depth: int) -> Iterator[_Group]:
        """Yields the parts of a loop in order: several that are launched together, or one."""
        if self._fusion is not None:
            yield from self._fusion.groups(parts, depth)
            return
        for part in parts:
            yield (part,), None

    def _add_group(self, group: Parts, fused: FusedParts, depth: int) -> None:
        """Adds parts that are launched together, and waited for."""
        steps, names = self._numbers.steps.data, ", ".join(part.name for part in group)
        self._in_python(_traced(lambda: fused.run(steps[depth], 1), names, steps, depth))

    def _add_note(self, ring: int, number: int) -> None:
        """Adds a row that notes the time, if the rank is traced."""
        if ring:
            self._row(table.NOTE, ring, number, self._clock.ctypes.data)

    def _add_loop(self, loop: Loop) -> None:
        """Adds an inner sequence. Where ranks do not meet, its parts do not count."""
        fused = None
        if self._fusion is not None and not (loop.ends or any(loop.carried)):
            fused = self._fusion.whole(turns_of(loop.parts, loop.starts), loop.depth)
        if loop.meets:
            self._row(table.MEET)
        self._add_moves(loop.begins)
        if fused is None:
            self._add_iterations_of(loop)
        else:
            self._in_python(partial(self._run_loop, loop, fused))
        if loop.meets:
            self._row(table.MEET)

    def _run_loop(self, loop: Loop, fused: FusedParts) -> None:
        """Runs all iterations of an inner sequence on the device."""
        times = self._numbers.count(loop)
        if times > 0:
            fused.run(0, times)
            if loop.meets:
                self._state[table.DONE_PARTS] += times * len(loop.parts) // len(loop.starts)

    def _add_iterations_of(self, loop: Loop) -> None:
        step, word = self._numbers.steps[loop.depth :].ctypes.data, _inner_word(loop.depth)
        times = np.zeros(8, np.uint8)
        self._store_packed("q", loop.times, times, INNER_TIMES)
        enter = len(self._rows)
        self._python[enter] = partial(self._numbers.count, loop), 0  # raises an error
        self._row(table.ENTER, step, times.ctypes.data, 0, word, int(loop.returns))
        turns, exits = turns_of(loop.parts, loop.starts), list[int]()
        for number, turn in enumerate(turns):
            self._add(turn, loop.starts[number], loop.depth, counts=loop.meets)
            verdict, begin, shown = 0, enter + 1, 1
            if loop.ends:
                verdict = self._value("q", loop.ends[number], JUDGED).ctypes.data
            self._add_moves(loop.carried[number])
            if number + 1 < len(turns):
                begin, shown = len(self._rows) + 2, loop.starts[number + 1] + 1
            self._row(table.AGAIN, step, times.ctypes.data, begin, word, verdict, shown)
            exits.append(len(self._rows))
            self._row(table.JUMP)
        for row in exits:
            self._rows[row][1] = len(self._rows)
        self._rows[enter][3] = len(self._rows)

    # ---- parts

    def _add_part(self, part: Part) -> None:
        if part.puts is not None:
            self._add_put(part.puts)
            return
        if part.combines is not None:
            self._add_combination(part.combines)
            return
        routine = self._context.routines[part.number]
        if not self._is_native:
            steps, call = self._numbers.steps.data, self._add_call(part)
            self._in_python(_traced(call, part.name, steps, 0))
        elif isinstance(routine, StagedRoutine):
            self._add_turns(routine)
        else:
            native_steps = self._steps(part)
            if native_steps is None:
                self._in_python(self._add_call(part))
            else:
                self._add_steps(native_steps)

    def _add_call(self, part: Part) -> Action:
        """Adds rows that compute the numbers of a part; returns what Python does for it then."""
        routine, news = self._context.routines[part.number], self._context.news
        if not isinstance(routine, Routine):
            return routine  # type: ignore[return-value]  # collectives and transfers have no news
        values = np.frombuffer(bytearray(part.values), np.uint8)
        for offset, letter, formula in part.formulas:
            self._store_packed(letter, formula, values[offset : offset + 8], part.name)
        memory = values.data

        def call() -> None:
            returned = routine.call(memory.tobytes())
            if isinstance(returned, Returned):
                news.add(part.number, routine, returned)

        return call

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
        place, turns = self._context.place, self._context.turns
        mine = place.control.results[place.rank, shared.offset :]
        self._row(
            table.PUT,
            self._stage(shared, 0, place.rank),
            mine.ctypes.data,
            np.dtype(shared.dtype).itemsize,
            self._between(shared),
            turns[shared.slot :].ctypes.data,
        )

    def _add_combination(self, shared: Shared) -> None:
        dtype = np.dtype(shared.dtype)
        operation, kind = _COMBINATIONS.get(str(shared.op)), _KINDS.get(dtype.char)
        are_few = self._context.place.world_size <= table.MAX_PARTS
        if operation is None or kind is None or not (are_few and dtype.isnative):
            self._in_python(partial(self._combine, shared))
            return
        self._row(
            table.COMBINE,
            self._numbers.results[shared.slot :].ctypes.data,
            self._stage(shared, 0, 0),
            operation,
            kind,
            self._between(shared),
            self._context.turns[shared.slot :].ctypes.data,
        )

    def _combine(self, shared: Shared) -> None:
        board, turns = self._context.board, self._context.turns
        turn, ranks = turns[shared.slot] % 2, range(self._context.place.world_size)
        parts = np.array([board.stage(shared, turn, rank)[0] for rank in ranks])
        turns[shared.slot] += 1
        self._numbers.combine(shared, parts)

    def _stage(self, shared: Shared, turn: int, rank: int) -> int:
        return int(self._context.board.stage(shared, turn, rank).ctypes.data)

    def _between(self, shared: Shared) -> int:
        return self._stage(shared, 1, 0) - self._stage(shared, 0, 0)

    # ---- calls

    def _steps(self, part: Part) -> list[_Ways] | None:
        """Returns the steps of a part, and what compiled code does for each; adds the rows of its
        formulas.

        None if Python does the part as a whole.
        """
        routine = self._context.routines[part.number]
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

        place = _LETTERS.get(str(kind), "")
        if param.dtype is not None and np.dtype(param.dtype).name != str(kind):
            place = ""  # Python converts it
        store = partial(self._store_number, (letter, place), word.ctypes.data)
        self._store(formula, renew, store)

    def _store_packed(self, letter: str, formula: Formula, target: Array, name: str) -> None:
        """Adds rows that store a number, packed by a `struct` letter, in the 8 bytes of `target`;
        `name` is that of the part that it is for.
        """
        self._kept.append(target)

        def compute() -> None:
            packed = self._numbers.packed(letter, formula, name)
            target[:] = np.frombuffer(packed, np.uint8)

        store = partial(self._store_number, (letter, letter), target.ctypes.data)
        self._store(formula, compute, store)

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


def _inner_word(depth: int) -> int:
    """Returns the word of the rank's position that shows the part of an inner loop; 0 if none."""
    word = sequence.inner_word(depth)
    return word if word < sequence.LINE else 0  # deeper loops are not shown


def _traced(action: Action, name: str, steps: memoryview, depth: int) -> Action:
    """Returns an action that is noted if the rank is traced, with the iteration of a loop."""
    recorder = spans.active  # a sequence is lowered anew when a trace begins or ends
    if recorder is None:
        return action

    def traced() -> None:
        recorder.run_one(action, name, at=steps[depth])

    return traced
