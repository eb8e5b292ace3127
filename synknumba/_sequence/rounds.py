"""Sequences where ranks cannot wait for each other in a loop, as on several machines: each part is
a round of its own.

values of the round ──> for each iteration: for each part: formulas → a round, or work of the coordinator → results
"""  # noqa: E501

import struct
from collections.abc import Sequence
from functools import partial
from typing import final

import numpy as np

from synknumba._rank.loop import describe_failure
from synknumba._rank.sequence_numbers import Numbers
from synknumba._types import Array
from synknumba._wire.messages import Returned, ReturnedInSequence
from synknumba._wire.sequence import (
    AT,
    ENDED,
    HEAD,
    ITERATION,
    Ending,
    Loop,
    Part,
    SequenceProgram,
    Shared,
    place_of,
    turns_of,
)
from synknumba._world.engine import Engine
from synknumba._world.failure import CallInfo, rank_error
from synknumba._world.news import RankNews
from synknumba._world.rounds import Learn


@final
class RoundLoop:
    """Runs the parts of a sequence from the coordinator.

    Args:
        world: the world.
        program: the sequence, whose parts' programs the ranks have, or the coordinator
            (`Engine.own_programs`).
        positions: where each rank is in the sequence, as its board shows, shape (W, LINE).
        info: description of the call for messages.
        learn: receives what Python functions return that is new.
    """

    def __init__(
        self,
        world: Engine,
        program: SequenceProgram,
        positions: Array,
        info: CallInfo,
        learn: Learn,
    ) -> None:
        self._world, self._program, self._info, self._learn = world, program, info, learn
        self._numbers = Numbers(program)
        self._positions = positions
        self._head = struct.Struct("<" + HEAD)
        self._times = 1
        self._running: Part | None = None

    def run(self, history: Array | None) -> None:
        """Runs the round whose values are in the control block.

        Args:
            history: memory of the kept results: uint8, shape (entries, W, bytes); None if none are
                kept.
        """
        values, numbers = self._world.ranks.values, self._numbers
        first, count, self._times, period, _ = self._head.unpack(values[: self._head.size].data)
        scalars = values[self._head.size :][: numbers.scalars.nbytes].view(np.int64)
        numbers.take_scalars(scalars, first)
        try:
            self._repeat(first, count, period, history)
        except Exception as error:
            program, steps = self._program, numbers.steps.tolist()
            error.add_note(place_of(program, self._times, self._running, program.parts, steps))
            if not isinstance(error, OverflowError | ValueError):
                raise
            failed = describe_failure(error)  # of a formula, which each rank would have computed
            raise rank_error(
                self._info, [(rank, failed) for rank in range(self._world.world_size)]
            ) from error

    def _repeat(self, first: int, count: int, period: int, history: Array | None) -> None:
        program, numbers = self._program, self._numbers
        turns = program.turns(program.parts)
        for iteration in range(first, first + count):
            numbers.steps[0] = iteration
            turn = iteration % len(turns)
            self._positions[:, ITERATION] = iteration
            for index, part in enumerate(turns[turn], program.starts[turn]):
                self._positions[:, AT] = index
                self._do(part)
            self._running = None
            is_due = bool(period) and not (iteration - first + 1) % period
            is_over = is_due and program.ends and self._is_over(program.ends[turn])
            numbers.move(program.carried[turn])
            if is_due and history is not None:
                history[(iteration - first) // period] = self._world.ranks.results[
                    :, : program.entry_bytes
                ]
            if is_over:
                self._positions[:, AT] = ENDED
                return

    def _is_over(self, ending: Ending) -> bool:
        """Returns whether the condition of the loop holds."""
        for shared in ending.shares:
            self._combine(shared)
        return bool(self._numbers.evaluate(ending.formula))

    def _do(self, part: Part | Loop) -> None:
        if isinstance(part, Loop):
            self._loop(part)
            return
        if part.puts is not None:  # its ranks' numbers are among the results
            return
        if part.combines is not None:
            self._combine(part.combines)
            return
        self._running = part
        work = self._world.life.own_programs.get(part.number)
        if work is not None:
            work()
            return
        values = bytearray(part.values)
        self._numbers.fill(values, part.name, part.formulas)
        self._world.ranks.values[: len(values)] = np.frombuffer(values, np.uint8)
        self._world.run(part.number, self._info, partial(self._pass_on, part.number))

    def _loop(self, loop: Loop) -> None:
        """Runs an inner sequence."""
        numbers, turns = self._numbers, turns_of(loop.parts, loop.starts)
        numbers.move(loop.begins)
        for step in range(numbers.count(loop)):
            turn = step % len(turns)
            numbers.steps[loop.depth] = step
            for part in turns[turn]:
                self._do(part)
            is_over = loop.ends and numbers.evaluate(loop.ends[turn])
            numbers.move(loop.carried[turn])
            if is_over:
                break

    def _pass_on(self, number: int, news: Sequence[RankNews]) -> None:
        labelled: list[RankNews] = []
        for rank, item, descriptors in news:
            assert isinstance(item, Returned)  # the world has raised failures already
            labelled.append((rank, ReturnedInSequence(((number, item),)), descriptors))
        self._learn(labelled)

    def _combine(self, shared: Shared) -> None:
        nbytes = np.dtype(shared.dtype).itemsize
        lines = self._world.ranks.results[:, shared.offset : shared.offset + nbytes]
        parts = np.ascontiguousarray(lines).view(shared.dtype)[:, 0]
        self._numbers.combine(shared, parts)
