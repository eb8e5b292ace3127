"""Routine for sequences: repeats calls and collectives on a rank, without the coordinator.

    values ──> for each iteration: for each part: wait for other ranks → formulas → run its routine → show the count

The parts' own routines run them; their values come from templates in which formulas are filled in. If a part fails, the rank
sets a word of the board on which the others leave their waits, and the world remains usable.
"""

import operator
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, TypeAlias, final

import numpy as np

from synknumba._device import fold_kernel
from synknumba._ops import reduction
from synknumba._rank.routine import Place, Repeated, Routine
from synknumba._types import Array, UserOp
from synknumba._wire import board, sequence
from synknumba._wire.messages import News, Returned, ReturnedInSequence
from synknumba._wire.sequence import HEAD, Formula, Loop, Part, SequenceProgram, Shared, Wait

NAP_SECONDS = 2e-4  # between two rounds of spins, in a wait for a rank that works for long

OPERATORS: Mapping[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "neg": operator.neg,
    "abs": operator.abs,
}

_Action: TypeAlias = Callable[[], None]


class GivenUp(Exception):  # noqa: N818  # nothing is wrong on this rank
    """Raised in a wait when another rank has failed, which reports it."""


@final
class _Numbers:
    """What formulas refer to."""

    def __init__(self, slots: int) -> None:
        self.steps: list[int] = [0]
        self.scalars: tuple[Any, ...] = ()
        self.results: list[Any] = [0] * slots

    def evaluate(self, formula: Formula) -> Any:
        """Returns the value of a formula."""
        kind, *operands = formula
        match kind:
            case "value":
                return operands[0]
            case "step":
                return self.steps[operands[0]]
            case "scalar":
                return self.scalars[operands[0]]
            case "result":
                return self.results[operands[0]]
        return OPERATORS[kind](*map(self.evaluate, operands))


@final
class SequenceRoutine(Repeated):
    """One sequence on one rank.

    Args:
        program: the sequence.
        place: state of the rank.
        routines: those of the parts' programs, by number; changes as programs are installed and dropped.
    """

    function = None

    def __init__(self, program: SequenceProgram, place: Place, routines: Mapping[int, Repeated]) -> None:
        self.program = program
        self.place = place
        self.segments = program.segments()
        self.variables = program.variables()
        self._routines = routines
        self._layout = struct.Struct("<" + HEAD + program.scalars)
        self._numbers = _Numbers(program.slots)
        self._actions: list[_Action] | None = None  # of the parts of an iteration
        self._count = 0  # parts finished in this call
        self._news: list[tuple[int, Returned]] = []
        self._descriptors: list[int] = []
        self.running: Part | None = None  # for messages

    def forget_buffers(self) -> None:
        self._actions = None

    def __call__(self) -> News | None:
        """Runs the iterations of one round."""
        if self._actions is None:
            self._board = self.place.host(self.program.board)
            self._address = self._board.ctypes.data
            self._line = self._board[sequence.LINE * self.place.rank :][: sequence.LINE]
            self._actions = [self._action(part) for part in self.program.parts]
        first, count, period, segment, *scalars = self._layout.unpack(bytes(self.place.control.values[: self._layout.size]))
        self._numbers.scalars = tuple(scalars)
        self._count = 0
        self._news, self._descriptors = [], []
        kept = self._kept(segment, count // period) if period else None
        ends = (*self.program.starts[1:], len(self._actions))
        turns = [self._actions[start:end] for start, end in zip(self.program.starts, ends, strict=True)]
        try:
            for iteration in range(count):
                self._line[sequence.ITERATION] = self._numbers.steps[0] = first + iteration
                for action in turns[(first + iteration) % len(turns)]:
                    action()
                if kept is not None and (iteration + 1) % period == 0:
                    kept[iteration // period] = self.place.control.results[self.place.rank, : self.program.entry_bytes]
        except GivenUp:
            pass
        except BaseException as error:  # noqa: BLE001  # raised again
            self._fail(error, first + count)
        return ReturnedInSequence(tuple(self._news)) if self._news else None

    def descriptors(self, news: News) -> list[int]:
        return self._descriptors

    def _kept(self, segment: int, entries: int) -> Array:
        """Returns the memory for this rank's kept results, one line for each entry."""
        shape = entries, self.place.world_size, self.program.entry_bytes
        memory: Array = self.place.segments[segment].array(np.uint8, shape)
        return memory[:, self.place.rank]

    def _fail(self, error: BaseException, end: int) -> NoReturn:
        """Lets the other ranks go, and raises the error with the place where it happened."""
        self._board[sequence.abort_word(self.place.world_size)] = 1
        part = self.running
        where = "" if part is None else f", call {part.call}: {part.name}"
        error.add_note(f"in iteration {self._numbers.steps[0]} of {end} of {self.program.name}{where}")
        raise error

    # ---- parts

    def _action(self, part: Part | Loop) -> _Action:
        """Returns a callable that runs one part."""
        if isinstance(part, Loop):
            return partial(self._loop, part, [self._action(one) for one in part.parts])
        do = self._doing(part)

        def action() -> None:
            self.running = part
            if part.wait is not None:
                self._await(part.wait)
            do()
            self._count += 1
            if part.shows:
                board.show_count(self._address, self.place.rank, self._count)

        return action

    def _loop(self, loop: Loop, actions: Sequence[_Action]) -> None:
        """Runs an inner sequence, with all ranks at the same place before and after."""
        steps = self._numbers.steps
        times = int(self._numbers.evaluate(loop.times))
        self._meet()
        steps.append(0)
        try:
            for iteration in range(times):
                steps[-1] = iteration
                for action in actions:
                    action()
        finally:
            steps.pop()
        self._meet()
        self._count += 1

    def _meet(self) -> None:
        """Waits until all ranks are here."""
        board.show_count(self._address, self.place.rank, self._count)
        self._until(self._count, nearby=False)

    def _await(self, wait: Wait) -> None:
        level = self._count - wait.back + 1
        if level > 0:
            self._until(level, nearby=wait.nearby)

    def _until(self, level: int, *, nearby: bool) -> None:
        place, patience = self.place, self.place.control.patience
        while True:
            code = board.await_counts(
                self._address, place.world_size, place.rank, level, nearby, patience.pauses, patience.rank
            )
            if code == board.REACHED:
                return
            if code == board.GIVEN_UP:
                raise GivenUp
            time.sleep(NAP_SECONDS)

    def _doing(self, part: Part) -> _Action:
        if part.puts is not None:
            return partial(self._put, part.puts, [0])
        if part.combines is not None:
            return partial(self._combine, part.combines, [0])
        routine = self._routines[part.number]
        if not isinstance(routine, Routine):
            return routine  # type: ignore[return-value]  # collectives and transfers have no news
        values = bytearray(part.values)
        fills = [(struct.Struct("<" + letter).pack_into, offset, formula) for offset, letter, formula in part.formulas]

        def call() -> None:
            for pack, offset, formula in fills:
                pack(values, offset, self._numbers.evaluate(formula))
            news = routine.call(bytes(values))
            if isinstance(news, Returned):
                self._news.append((part.number, news))
                self._descriptors += routine.descriptors(news)

        return call

    # ---- numbers that ranks share

    def _stage(self, shared: Shared, turn: int, rank: int) -> Array:
        at = sequence.stage_word(self.place.world_size, shared.slot, turn, rank)
        memory: Array = self._board[at : at + sequence.LINE].view(shared.dtype)
        return memory[:1]

    def _put(self, shared: Shared, turns: list[int]) -> None:
        nbytes, rank = np.dtype(shared.dtype).itemsize, self.place.rank
        mine = self.place.control.results[rank, shared.offset : shared.offset + nbytes].view(shared.dtype)
        self._stage(shared, turns[0] % 2, rank)[:] = mine
        turns[0] += 1

    def _combine(self, shared: Shared, turns: list[int]) -> None:
        parts = np.array([self._stage(shared, turns[0] % 2, rank)[0] for rank in range(self.place.world_size)])
        turns[0] += 1
        if isinstance(shared.op, UserOp):
            found = fold_kernel.fold(shared.op, parts)
        else:
            found = reduction.combine(shared.op, parts, np.array(shared.weights, np.int64))
        self._numbers.results[shared.slot] = found.item()
