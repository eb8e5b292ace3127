"""What a transport is: the contract of the collectives, one by one.

A collective is about arrays that every rank holds one of. A communicator is one rank's end of a transport; it is asked for a
step (a callable without arguments) once, and the step is run at every call, on all ranks at once.

    collective       what rank r holds afterwards
    broadcast        the root's array
    all_gather       the arrays of ranks 0, 1, …, W−1 one after the other
    reduce           on the root: op over the arrays of all ranks; on the others what it was
    all_reduce       op over the arrays of all ranks
    reduce_scatter   its part of op over the arrays of all ranks

    op               value
    sum, prod        a₀ + a₁ + … and a₀ · a₁ · …, in the arrays' dtype, so integers wrap
    min, max         as `numpy.minimum` and `numpy.maximum`: a NaN anywhere gives NaN
    avg              the sum, divided by W in the arrays' dtype

Lengths may differ between ranks wherever that has a meaning (all_gather, reduce_scatter): every rank knows all of them before
it starts, so nothing is exchanged, padded or cut. One step may be about several arrays; a transport sends them together.

Which dtypes an op is defined for, and whether shapes fit, is checked by the caller. Communicators are final, override the
abstract methods only, and document nothing that the contract says already.

Where NCCL may be reached while it sets itself up, the only moment at which it listens on a port.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from synknumba._types import CollectiveKind, CollectiveOp

Step: TypeAlias = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One array of a collective: what each rank gives, and where each rank gets it.

    All arrays are one-dimensional, C-contiguous and of one numeric or bool dtype; records travel as bytes. A target may be the
    very memory of the same rank's source (in place), or hold it where all_gather or reduce_scatter would put it. Otherwise
    sources and targets do not overlap.

    Attributes:
        dtype: of the elements.
        sources: by rank; None where this process cannot reach the memory, as of another GPU.
        targets: by rank, likewise.
        source_counts: elements that each rank gives.
        target_counts: elements that each rank gets.
    """

    dtype: Any
    sources: tuple[Any, ...]
    targets: tuple[Any, ...]
    source_counts: tuple[int, ...]
    target_counts: tuple[int, ...]


class Communicator(ABC):
    """One rank's end of a transport. The steps of all ranks must be run in the same order, and may wait for each other.

    A step need not wait for its own end where the device has a stream: what follows on the stream comes after it.

    Attributes:
        on_stream: whether steps do nothing but put work on the stream, so that they can be recorded.
    """

    on_stream: bool = False

    @abstractmethod
    def broadcast(self, exchanges: Sequence[Exchange], root: int) -> Step:
        """Gives every rank the root's array; all targets have its length."""

    @abstractmethod
    def all_gather(self, exchanges: Sequence[Exchange]) -> Step:
        """Gives every rank the arrays of all, in rank order; a target is as long as all sources together."""

    @abstractmethod
    def reduce(self, exchanges: Sequence[Exchange], op: CollectiveOp, root: int) -> Step:
        """Gives the root the arrays combined; all have one length. Targets of other ranks are not written."""

    @abstractmethod
    def all_reduce(self, exchanges: Sequence[Exchange], op: CollectiveOp) -> Step:
        """Gives every rank the arrays combined; all have one length."""

    @abstractmethod
    def reduce_scatter(self, exchanges: Sequence[Exchange], op: CollectiveOp) -> Step:
        """Gives rank r its part of the arrays combined: after the parts of ranks 0 … r−1, as long as its target."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of what the transport holds; idempotent, and waits for nobody."""


def make_step(
    communicator: Communicator, kind: CollectiveKind, op: CollectiveOp | None, root: int, exchanges: Sequence[Exchange]
) -> Step:
    """The step of a collective that is known by its name.

    Args:
        communicator: this rank's end of a transport.
        kind: which collective.
        op: of those that reduce.
        root: of those that have one.
        exchanges: the arrays.
    """
    if kind == "broadcast":
        return communicator.broadcast(exchanges, root)
    if kind == "all_gather":
        return communicator.all_gather(exchanges)
    assert op is not None  # the others reduce
    if kind == "reduce":
        return communicator.reduce(exchanges, op, root)
    if kind == "all_reduce":
        return communicator.all_reduce(exchanges, op)
    return communicator.reduce_scatter(exchanges, op)


def stay_on_this_machine() -> None:
    """Has NCCL use the loopback interface, which no other machine can reach; unless somebody asked for another."""
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
