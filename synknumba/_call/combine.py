"""Large results of reductions, in the coordinator: after the kernels, the ranks combine them, each a part of the elements.

                    cores                                       GPUs
    kernels         rank r writes parts[r] in a segment         rank r's result stays on its GPU
    (arrivals)
    combination     rank r combines its elements of             reduce_scatter by NCCL; rank r copies
                    parts[0], parts[1], …, in this order        its elements of the result
                                └──────────> a place, lent to the caller <──────────┘

They are two rounds, and not one: a rank whose kernel has failed says so in the first, and nobody waits for it in a collective.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, final

from synknumba._host.lease import Lender
from synknumba._types import Array
from synknumba._wire.messages import Install
from synknumba._wire.program import Combination
from synknumba._world.failure import CallInfo
from synknumba._world.transport import join
from synknumba._world.world import World

# On two cores the ranks' sum takes as long as the coordinator's up to 1 MiB, and a half of it at 64 MiB.
CORES_BYTES = 1 << 20
DEVICES_BYTES = 256 << 10


def is_worthwhile(world: World, nbytes: int) -> bool:
    """Whether the ranks should combine a result of so many bytes. The world is begun; the transport is made ready."""
    if world.world_size == 1:
        return False
    if world.device == "cpu":
        return nbytes >= CORES_BYTES
    if world.transport != "nccl" or nbytes < DEVICES_BYTES:
        return False
    join(world)
    return world.transport == "nccl"  # if it cannot be set up, it is "host" from now on


@final
class Combining:
    """The combination of one plan.

    Args:
        world: that the plan is of.
        told: what the ranks are told; they have the program that it is about.
        info: for messages.
        lenders: of the places, by the results' names.
    """

    def __init__(self, world: World, told: Combination, info: CallInfo, lenders: Mapping[str, Lender]) -> None:
        self._world = world
        self._told = told
        self._info = info
        self._lenders = [lenders[result.name] for result in told.results]
        fields = len(told.results) + (world.world_size if told.weighted else 0)
        self._pack = struct.Struct(f"<{fields}q").pack_into
        self._memory = world.control.values.data
        world.command(Install(None, told), info=info)

    def run(self, weights: Callable[[], Array]) -> None:
        """Has the ranks combine what they have; `weights` tells their rows, if there is a mean."""
        values: list[Any] = [lender.choose() for lender in self._lenders]
        if self._told.weighted:
            values += weights().tolist()
        self._pack(self._memory, 0, *values)
        self._world.run(self._told.number, self._info, _nothing_to_learn)

    def forget(self) -> None:
        """Has the ranks drop it."""
        self._world.forget("program", self._told.number)


def _nothing_to_learn(_: object) -> None:
    """Ranks that combine have no news."""
