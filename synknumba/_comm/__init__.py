"""The transports by name: what carries a collective. Drivers are imported when asked for, and with them the GPU libraries.

rank 0       DRIVERS[name].problem() ──> make_unique_id() ──┐
every rank   DRIVERS[name].problem() ───────────────────────┴──> open(rank, world_size, unique_id, stream) ──> Communicator
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import DTypeLike

from synknumba._comm.base import Communicator as Communicator
from synknumba._comm.base import Exchange as Exchange
from synknumba._comm.base import make_step as make_step
from synknumba._types import CollectiveOp, Transport


def host_communicator(part: int, parts: int) -> Communicator:
    """The host transport, for memory that every participant has mapped.

    Args:
        part: which participant this is: a rank, or the coordinator alone as 0 of 1.
        parts: how many there are.
    """
    from synknumba._comm.host import HostCommunicator  # compiled functions, when asked for

    return HostCommunicator(part, parts)


def prepare(op: CollectiveOp | None, dtype: DTypeLike) -> None:
    """Compiles what the host transport needs for an op on a dtype, so that the ranks find it in Numba's cache.

    It takes a third of a second for each op and dtype, and some milliseconds once it is in the cache.

    Args:
        op: None for the collectives that only move elements.
        dtype: of the arrays.
    """
    from synknumba._comm.host import prepare as prepare_host  # compiled functions, when asked for

    prepare_host(op, dtype)


def _nccl_problem() -> str | None:
    try:
        from synknumba._comm.nccl import available  # drivers are imported when asked for
    except ImportError as error:
        return f"CuPy has no NCCL ({error})"
    return available()


def _nccl_unique_id() -> bytes:
    from synknumba._comm.nccl import make_unique_id

    return make_unique_id()


def _nccl_communicator(rank: int, world_size: int, unique_id: bytes, stream: Any) -> Communicator:
    from synknumba._comm.nccl import NcclCommunicator

    return NcclCommunicator(world_size, rank, unique_id, stream)


@dataclass(frozen=True, slots=True)
class TransportDriver:
    """How ranks open a transport.

    Attributes:
        open: opens a rank's end, given the rank, the world size, the unique id and the device's stream; may wait for other
            ranks.
        in_shared_memory: whether collectives are about memory that all ranks have mapped, so that each rank opens its end by
            itself. Otherwise they are about memory of the ranks' own, and all ranks open their ends together.
        problem: says in one line why the transport cannot be used on this rank; None if it can.
        make_unique_id: makes the id that one rank sends to all for the ends of one communicator.
    """

    open: Callable[[int, int, bytes, Any], Communicator]
    in_shared_memory: bool
    problem: Callable[[], str | None]
    make_unique_id: Callable[[], bytes]


DRIVERS: Mapping[Transport, TransportDriver] = {
    "host": TransportDriver(
        open=lambda rank, world_size, *_: host_communicator(rank, world_size),
        in_shared_memory=True,
        problem=lambda: None,
        make_unique_id=bytes,
    ),
    "nccl": TransportDriver(
        open=_nccl_communicator, in_shared_memory=False, problem=_nccl_problem, make_unique_id=_nccl_unique_id
    ),
}
