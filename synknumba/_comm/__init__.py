"""The transports: what carries a collective. Drivers are imported when asked for, so that no GPU library is loaded before."""

from typing import Any

from numpy.typing import DTypeLike

from synknumba._comm.base import Communicator as Communicator
from synknumba._comm.base import Exchange as Exchange
from synknumba._comm.base import make_step as make_step
from synknumba._types import CollectiveOp


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


def nccl_problem() -> str | None:
    """Why NCCL cannot be used, in one line; None if it can. To be called in a rank."""
    try:
        from synknumba._comm.nccl import available  # drivers are imported when asked for
    except ImportError as error:
        return f"CuPy has no NCCL ({error})"
    return available()


def nccl_unique_id() -> bytes:
    """What the ranks of one communicator know each other by. To be called in one rank."""
    from synknumba._comm.nccl import make_unique_id

    return make_unique_id()


def nccl_communicator(world_size: int, rank: int, unique_id: bytes, stream: Any) -> Communicator:
    """The transport between GPUs; waits for the other ranks."""
    from synknumba._comm.nccl import NcclCommunicator

    return NcclCommunicator(world_size, rank, unique_id, stream)
