"""The transport contract: the collectives, one by one.

A collective works on arrays of which every rank holds one. A communicator is one rank's end of a
transport. It makes a step (a callable without arguments) once, and all ranks run their steps at
every call.

    collective       what rank r holds afterwards
    broadcast        the root's array
    all_gather       the arrays of ranks 0, 1, …, W−1, concatenated
    reduce           on the root: op over the arrays of all ranks; on the others its old target
    all_reduce       op over the arrays of all ranks
    reduce_scatter   its part of op over the arrays of all ranks
    exchange         its old target, with elements that `Exchange.copies` lists from the arrays of all ranks, or
                     with their sums

    op               value
    sum, prod        a₀ + a₁ + … and a₀ · a₁ · …, in the arrays' dtype, so integers wrap
    min, max         like `numpy.minimum` and `numpy.maximum`: a NaN in any array gives NaN
    avg              the sum, divided by W in the arrays' dtype

Every rank calls, with the same op, root, dtypes and counts, and runs its steps in the same order;
`Communicator` says who waits for whom. Lengths may differ between ranks in all_gather and
reduce_scatter: every rank has all counts when it makes the step, so none are exchanged, and nothing
is padded or truncated. A step may have several exchanges; a transport sends their arrays together.

The caller checks that the op is defined for the dtype and that shapes fit. Communicators are final,
override abstract methods only, and do not repeat the contract's documentation.
"""  # noqa: E501

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, TypeAlias, TypeVar

from synknumba._host import this_process
from synknumba._ops.halo import Copy
from synknumba._types import CollectiveKind, CollectiveOp

Step: TypeAlias = Callable[[], object]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One array of a collective: each rank's source and target.

    All arrays are one-dimensional, C-contiguous and of one numeric or bool dtype; records are sent
    as bytes.

    In place: a rank's target may be the memory of its own source; of an exchange, no element is
    then both read and written. In all_gather the source may instead be this rank's part of the
    target, and in reduce_scatter the target this rank's part of the source. Otherwise sources and
    targets do not overlap.
    """

    dtype: Any
    # by rank; None where this process cannot reach the memory, such as that of another GPU
    sources: tuple[Any, ...]
    targets: tuple[Any, ...]  # by rank; None as for sources
    source_counts: tuple[int, ...]  # elements that each rank sends
    target_counts: tuple[int, ...]  # elements that each rank receives
    # what an exchange copies, in elements; empty for other collectives
    copies: tuple[Copy, ...] = ()


class Communicator(ABC):
    """One rank's end of a transport.

    All ranks must run the steps of one collective, in the same order: a rank that leaves one out
    may block the others. The collectives say who waits for whom, which differs by transport:

    - on a stream, the work waits, not the step: it starts after earlier work on the rank's stream,
      which may write the source, and later work on the stream finds the target complete;
    - otherwise steps do not wait for each other: the caller has a barrier before them, when all
      sources are complete, and one after them, when all targets are.
    """

    # whether steps only put work on the stream, so that they can be recorded
    on_stream: bool = False

    @abstractmethod
    def broadcast(self, exchanges: Sequence[Exchange], root: int) -> Step:
        """Copies the root's source to every rank's target.

        Called by all ranks; each waits for the root, which may wait for them. All targets have the
        length of the root's source; sources of other ranks are not read. In place if the root's
        target is its source.
        """

    @abstractmethod
    def all_gather(self, exchanges: Sequence[Exchange]) -> Step:
        """Copies the sources of all ranks, in rank order, to every rank's target.

        Called by all ranks; each waits for all others. Source lengths may differ; a target is as
        long as all sources together. In place if a rank's source is its own part of its target.
        """

    @abstractmethod
    def reduce(self, exchanges: Sequence[Exchange], op: CollectiveOp, root: int) -> Step:
        """Combines the sources of all ranks into the root's target.

        Called by all ranks; the root waits for all others, which may wait too. All sources and the
        root's target have one length; targets of other ranks are not written. In place if the
        root's target is its source.
        """

    @abstractmethod
    def all_reduce(self, exchanges: Sequence[Exchange], op: CollectiveOp) -> Step:
        """Combines the sources of all ranks into every rank's target.

        Called by all ranks; each waits for all others. All arrays have one length. In place if a
        rank's target is its source.
        """

    @abstractmethod
    def reduce_scatter(self, exchanges: Sequence[Exchange], op: CollectiveOp) -> Step:
        """Combines all ranks' sources, and writes each rank's part of the result to its target.

        Called by all ranks; each waits for all others. All sources have one length, the sum of the
        targets' lengths, which may differ. The part of rank r follows those of ranks 0 … r−1. In
        place if a rank's target is its own part of its source.
        """

    @abstractmethod
    def exchange(self, exchanges: Sequence[Exchange], op: Literal["sum"] | None = None) -> Step:
        """Copies ranges of elements from sources to targets, as `Exchange.copies` lists them; with
        "sum", adds them to the targets, in the order of the copies.

        Called by all ranks with the same copies; each waits for those from which it gets elements,
        and may wait for those that get elements from it. No element is both read and written, and
        without an op none is written twice. A copy may stay on one rank.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees this rank's end; idempotent. Not collective: it waits for no other rank."""


def make_step(
    communicator: Communicator,
    kind: CollectiveKind,
    op: CollectiveOp | None,
    root: int,
    exchanges: Sequence[Exchange],
) -> Step:
    """Returns the step of a collective given by name; `op` is None, or `root` ignored, where the
    collective has none.
    """
    rest = {
        "broadcast": (root,),
        "reduce": (op, root),
        "all_reduce": (op,),
        "reduce_scatter": (op,),
        "exchange": (op,),
    }
    step: Step = getattr(communicator, kind)(exchanges, *rest.get(kind, ()))
    return step


def combining(op: CollectiveOp) -> CollectiveOp:
    """Returns the op that combines elements: an average is their sum, which is divided later."""
    return "sum" if op == "avg" else op


def consecutive(counts: Iterable[int]) -> list[tuple[int, int]]:
    """Returns where each rank's elements begin and end in the concatenation of all.

    >>> consecutive([3, 0, 2])
    [(0, 3), (3, 3), (3, 5)]
    """
    return [*pairwise(accumulate(counts, initial=0))]


def on_rank(rank: int, value: T, world_size: int) -> tuple[T | None, ...]:
    """Returns a tuple by rank with one rank's value, and None for the others.

    >>> on_rank(1, "a", 3)
    (None, 'a', None)
    """
    return (None,) * rank + (value,) + (None,) * (world_size - 1 - rank)


def stay_on_this_machine() -> None:
    """Restricts NCCL's set-up, when it listens on a port, to the loopback interface, unless the
    user has chosen one.

    Not where ranks are on several machines: NCCL then chooses an interface, or the user does.
    """
    if not this_process.spans_machines():
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
