"""How a rank carries out collectives and transfers: its arrays found once, steps made once, run at every call."""

from abc import abstractmethod
from typing import Any, final

import numpy as np

from synknumba._comm import Communicator, Exchange, make_step
from synknumba._device import Step
from synknumba._rank.replay import Repetition
from synknumba._rank.routine import Place, Repeated
from synknumba._wire.program import Collective, End, Transfer
from synknumba._wire.relaunch import Again


class Steps(Repeated):
    """What ranks repeat without values: steps that are made at the first run, and anew when memory was mapped anew."""

    function = None

    def __init__(self, told: Collective | Transfer, place: Place) -> None:
        self.place = place
        self.segments = told.segments()
        self.variables = told.variables()
        self._number = told.number
        self._run: Repetition | None = None

    @abstractmethod
    def make(self) -> list[Step]:
        """The steps, without the wait at their end."""

    def __call__(self) -> None:
        """One run."""
        if self._run is None:
            self._run = Repetition(self.place.device, self.make())
        self._run()

    @property
    def again(self) -> Again | None:
        return None if self._run is None else self._run.again(self._number, self.place.control.values, b"")

    def forget_buffers(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None


@final
class CollectiveRoutine(Steps):
    """A collective on one rank."""

    def __init__(self, told: Collective, place: Place, communicator: Communicator) -> None:
        super().__init__(told, place)
        self._told = told
        self._communicator = communicator

    def make(self) -> list[Step]:
        told = self._told
        exchanges = [self._exchange(*array) for array in told.arrays]
        step = make_step(self._communicator, told.kind, told.op, told.root, exchanges)
        return [self.place.device.on_stream(step) if self._communicator.on_stream else step]

    def _exchange(self, dtype: Any, source: End, target: End) -> Exchange:
        return Exchange(dtype, self._lines(dtype, source), self._lines(dtype, target), source.counts, target.counts)

    def _lines(self, dtype: Any, end: End) -> tuple[Any, ...]:
        """The arrays of all ranks where this one can reach them, else its own alone."""
        if end.hosts:
            return tuple(self.place.host(host) for host in end.hosts)
        own = self.place.holdings[end.variable].line(end.leaf)
        assert own.dtype == np.dtype(dtype)  # the coordinator sees to it
        return tuple(own if rank == self.place.rank else None for rank in range(self.place.world_size))


@final
class TransferRoutine(Steps):
    """Copies between a variable and the host, on one rank."""

    def __init__(self, told: Transfer, place: Place) -> None:
        super().__init__(told, place)
        self._told = told

    def make(self) -> list[Step]:
        device, steps = self.place.device, []
        for number, leaf, hosts in self._told.arrays:
            mine = hosts[self.place.rank]
            if mine is None:
                continue
            array = self.place.holdings[number].array(leaf)
            host = self.place.host(mine)
            steps.append(device.upload(array, host) if self._told.up else device.download(host, array))
        return steps or [_nothing]


def _nothing() -> None:
    """What a rank does that has no part in a transfer."""
