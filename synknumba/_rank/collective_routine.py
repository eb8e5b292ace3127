"""Routines for collectives and transfers: arrays are looked up and steps created once, then run
at every call.
"""

from abc import abstractmethod
from typing import Any, final

import numpy as np

from synknumba._comm import Communicator, Exchange, host_communicator, make_step, on_rank
from synknumba._device import Step
from synknumba._rank.replay import Repetition
from synknumba._rank.routine import Place, Repeated
from synknumba._types import Array
from synknumba._wire.control import align
from synknumba._wire.program import Collective, End, Staged, Transfer
from synknumba._wire.relaunch import Again


class Steps(Repeated):
    """A routine without values: its steps are created at the first run, and again after memory
    has moved.
    """

    function = None

    def __init__(self, program: Collective | Transfer, place: Place) -> None:
        self.place = place
        self.segments = program.segments()
        self.variables = program.variables()
        self._program = program
        self._run: Repetition | None = None

    @abstractmethod
    def make(self) -> list[Step]:
        """Creates the steps, without the wait for their end."""

    def __call__(self) -> None:
        """Runs the steps, and waits for their end."""
        if self._run is None:
            self._run = Repetition(self.place.device, self.make())
        self._run()

    @property
    def again(self) -> Again | None:
        if self._run is None:
            return None
        return self._run.again(self._program.number, self.place.control.values, b"")

    def forget_buffers(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None


@final
class CollectiveRoutine(Steps):
    """A collective on one rank."""

    def __init__(self, program: Collective, place: Place, communicator: Communicator) -> None:
        super().__init__(program, place)
        self._communicator = communicator

    def make(self) -> list[Step]:
        program, exchanges = self._program, []
        assert isinstance(program, Collective)
        for dtype, source, target, copies in program.arrays:
            lines = self._lines(dtype, source), self._lines(dtype, target)
            exchanges.append(Exchange(dtype, *lines, source.counts, target.counts, copies))
        step = make_step(self._communicator, program.kind, program.op, program.root, exchanges)
        if self._communicator.on_stream:
            step = self.place.device.on_stream(step)
        return [step]

    def _lines(self, dtype: Any, end: End) -> tuple[Any, ...]:
        """Returns the 1-D arrays of all ranks; None in place of those that this rank cannot
        reach.
        """
        if end.hosts:
            return tuple(self.place.host(host) for host in end.hosts)
        array = self.place.holdings[end.variable].line(end.leaf)
        assert array.dtype == np.dtype(dtype)  # ensured by the coordinator
        return on_rank(self.place.rank, array, self.place.world_size)


@final
class StagedRoutine(Repeated):
    """One of the two steps of a small all_reduce, on one rank.

    Attributes:
        turn: number of calls so far, one int64: its lowest bit is the place on the stage.
    """

    function = None

    def __init__(self, program: Staged, place: Place) -> None:
        self.place = place
        self.segments = program.segments()
        self.variables = program.variables()
        self.turn: Array = np.zeros(1, np.int64)
        self._program = program
        self._steps: tuple[list[Step], list[Step]] | None = None

    def steps(self) -> tuple[list[Step], list[Step]]:
        """Returns the steps of even turns, and those of odd ones."""
        if self._steps is None:
            self._steps = self._of_turn(0), self._of_turn(1)
        return self._steps

    def _of_turn(self, turn: int) -> list[Step]:
        program, place, exchanges, copies, offset = self._program, self.place, [], [], 0
        stage = place.host(program.stage)[turn]
        for dtype, end in program.arrays:
            array = place.host(end.hosts[place.rank])
            places = tuple(line[offset : offset + array.nbytes].view(dtype) for line in stage)
            copies.append(place.device.copy(places[place.rank], array))
            exchanges.append(Exchange(dtype, places, (array,), end.counts, (len(array),)))
            offset += align(array.nbytes)
        if not program.combines:
            return copies
        return [make_step(host_communicator(0, 1), "all_reduce", program.op, 0, exchanges)]

    def __call__(self) -> None:
        """Runs the step."""
        for step in self.steps()[self.turn[0] % 2]:
            step()
        self.turn[0] += 1

    def forget_buffers(self) -> None:
        self._steps = None


@final
class TransferRoutine(Steps):
    """Copies between a variable and host memory, on one rank."""

    def make(self) -> list[Step]:
        device, rank, steps = self.place.device, self.place.rank, []
        assert isinstance(self._program, Transfer)
        for number, leaf, hosts, firsts in self._program.arrays:
            mine, holding = hosts[rank], self.place.holdings[number]
            if mine is None:
                continue
            array, host = holding.array(leaf), self.place.host(mine)
            if firsts:
                array = holding.rows(leaf, firsts[rank], mine.shape[0])
            if self._program.adds:
                received = device.view(device.memory(host.nbytes), 0, host.dtype, host.shape)
                steps.append(device.upload(received, host))
                steps.append(device.accumulate("sum", array, received))
            elif self._program.up:
                steps.append(device.upload(array, host))
            else:
                steps.append(device.download(host, array))
        return steps or [lambda: None]
