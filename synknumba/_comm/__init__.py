"""Transports of collectives, by name. Drivers, and the GPU libraries they need, are imported on
first use.

rank 0       DRIVERS[name].problem() ──> make_unique_id() ──┐
every rank   DRIVERS[name].problem() ───────────────────────┴──> open(rank, world_size, unique_id, stream) ──> Communicator

Called by ranks, by `_variables` (what a transport can do) and by `_world`, which sets transports
up; imports `_wire`, `_host` and `_ops`. Read `base.py` first, the contract; then `host.py`.
"""  # noqa: E501

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import DTypeLike

from synknumba._comm.base import Communicator as Communicator
from synknumba._comm.base import Exchange as Exchange
from synknumba._comm.base import make_step as make_step
from synknumba._comm.base import on_rank as on_rank
from synknumba._host.gpu_packages import install_nccl
from synknumba._types import CollectiveOp, Transport


def host_communicator(part: int, parts: int) -> Communicator:
    """Returns a communicator of the host transport, for memory that every participant has
    mapped; (0, 1) works alone.
    """
    from synknumba._comm.host import HostCommunicator  # on first use: it loads compiled functions

    return HostCommunicator(part, parts)


def prepare(op: CollectiveOp | None, dtype: DTypeLike) -> None:
    """Compiles the functions of the host transport for an op and a dtype, so that ranks load them
    from Numba's cache.

    This takes a third of a second for each op and dtype, and some milliseconds once they are in the
    cache. The op is None for collectives that only move elements.
    """
    from synknumba._comm import host  # on first use: it loads compiled functions

    host.prepare(op, dtype)


def _nccl() -> Any:
    from synknumba._comm import nccl  # drivers are imported on first use

    return nccl


def _nccl_problem() -> str | None:
    with warnings.catch_warnings():
        # CuPy's, on each rank; the coordinator gives one warning with the problem that is returned
        # here.
        warnings.filterwarnings("ignore", r"\s*nccl library could not be loaded")
        try:
            return _nccl().available()
        except ImportError as error:
            return f"CuPy has no NCCL ({error}); {install_nccl()}"


@dataclass(frozen=True, slots=True)
class TransportDriver:
    """Functions that open a transport on a rank.

    Attributes:
        open: opens a rank's end, given (rank, world size, unique id, the device's stream). May wait
            for other ranks.
        in_shared_memory: whether collectives work on memory that all ranks have mapped; each rank
            then opens its end by itself. Otherwise they work on private memory of the ranks, and
            opening is collective.
        problem: returns in one line why the transport cannot be used on this rank; None if it can.
        make_unique_id: creates the id of a new communicator. One rank calls it; all ranks pass the
            result to `open`.
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
        open=lambda rank, world_size, *rest: _nccl().NcclCommunicator(world_size, rank, *rest),
        in_shared_memory=False,
        problem=_nccl_problem,
        make_unique_id=lambda: _nccl().make_unique_id(),
    ),
}
