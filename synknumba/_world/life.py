"""The lives of a world: what is made with its ranks, and ends with them.

    Setup ──> Life ── start ──> the ranks work ── a failure, or close() ── free
                └──────────────── Engine.start_again: another Life ◄────────┘

A world has one life, or several with `fork(respawn=True)`. What ranks have, and how they are
reached, is of a life; what scripts see of a world is the `Engine`'s (`engine.py`), which begins and
ends lives while it holds the world. `Engine` sets `closed` and `at_end` under a lock, under which
other threads read the control block.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final

from synknumba._device import usable_cores
from synknumba._host import segment as segment_module
from synknumba._types import CompilerName, DeviceKind, Transport, WeakTable
from synknumba._wire.control import CROWDED, ROOMY, ControlBlock
from synknumba._wire.statistics import Memory, Tally
from synknumba._world import machines as machines_module
from synknumba._world.call_in_flight import Flights
from synknumba._world.holdings import Holdings
from synknumba._world.machines import OtherMachines
from synknumba._world.processes import Processes
from synknumba._world.rounds import Rounds
from synknumba._world.watchdog import Ended, Watchdog

if TYPE_CHECKING:
    from synknumba._world.engine import Engine


class Resident(Protocol):
    """What lives on the ranks and outlives them: a variable."""

    def take_snapshot(self, world: "Engine") -> Any:
        """Returns copies of the values on the ranks."""

    def keep_snapshot(self, values: Any) -> None:
        """Sets the values to go back to if a rank dies."""

    def keep_at_close(self, world: "Engine") -> None:
        """Fetches the values before the ranks end."""


class Visitor(Protocol):
    """What has something on the ranks that ends with them: a function or a sequence."""

    def _leave(self) -> None:
        """Drops it here."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What `fork()` has decided of a world's ranks.

    Attributes:
        world_size: number of ranks.
        device: kind of device, "cuda" or "cpu".
        devices: GPU index of each rank; empty on the CPU.
        firsts: first rank of each machine, and the number of ranks; empty for one machine.
        transport: transport of collectives with which a life begins.
        transport_is_free: whether it may change, since "auto" was requested.
        compiler: compiler for GPUs; None for the default.
        profile: whether ranks write profiles.
        prefix_output: whether to put the rank's number before each line that a rank prints.
        arguments: text of the arguments of `fork()`.
    """

    world_size: int
    device: DeviceKind
    devices: tuple[int, ...] = ()
    firsts: tuple[int, ...] = ()
    transport: Transport = "host"
    transport_is_free: bool = True
    compiler: CompilerName | None = None
    profile: bool = False
    prefix_output: bool = False
    arguments: str = ""

    @property
    def edges(self) -> tuple[int, ...]:
        """First rank of each machine, and the number of ranks."""
        return self.firsts or (0, self.world_size)


class Counts(NamedTuple):
    """What cannot be read after the end of a life."""

    worked: int
    memory: Memory
    network: int


@final
@dataclass(slots=True)
class Ending:
    """Why and how a life ends.

    Attributes:
        reason: why the ranks ended; None before the end, or if the script closed the world.
        is_requested: whether the script is ending them.
        requested: by what, and where in the script.
        not_kept: why values of variables could not be fetched from them; None if all could.
        counts: counts at the end; None before.
    """

    reason: str | None = None
    is_requested: bool = False
    requested: str = ""
    not_kept: str | None = None
    counts: Counts | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the ranks ended by a failure, and not in a close that could not fetch values."""
        return self.reason is not None and self.not_kept is None


@final
class Life:
    """The time from the start of a world's ranks to their end.

    Attributes:
        control: control block.
        processes: processes of the ranks on this machine.
        ranks: rounds of the ranks.
        flights: the call in flight.
        holdings: what the ranks have, and may free.
        residents: variables on the ranks.
        visitors: functions and sequences to leave at the end.
        subscriptions: to the release and the making of segments.
        own_programs: what the coordinator does itself, by number, since ranks of other machines do
            not reach the memory.
        transport: transport of collectives. "nccl" changes to "host" at the first collective if
            NCCL cannot be set up and the user chose "auto".
        joined: whether the transport is set up, if it needs that.
        transfers: the world's `VariableTransfers`; None before the first. Set by `_variables`.
        closed: whether the ranks have ended, or belong to another process.
        ending: why and how they end.
        keeps_snapshots: whether a snapshot of their world was taken, now or before it started
            again.
    """

    __slots__ = (  # so that a misspelt attribute is refused
        "closed",
        "control",
        "ending",
        "flights",
        "holdings",
        "joined",
        "keeps_snapshots",
        "own_programs",
        "processes",
        "ranks",
        "residents",
        "subscriptions",
        "transfers",
        "transport",
        "visitors",
    )

    def __init__(
        self,
        setup: Setup,
        machines: OtherMachines | None,
        tally: Tally,
        timeout: float,
        ended: Ended,
        *,
        keeps_snapshots: bool,
    ) -> None:
        self.keeps_snapshots = keeps_snapshots
        self.closed = False
        self.ending = Ending()
        self.transport = setup.transport
        self.joined = False
        self.transfers: Any = None
        self.residents: WeakTable[Resident, None] = WeakTable()
        self.visitors: WeakTable[Visitor, None] = WeakTable()
        self.subscriptions = contextlib.ExitStack()
        self.own_programs: dict[int, Callable[[], object]] = {}
        self.holdings = Holdings()
        segment_module.sweep_names()
        segment_module.close_orphans()
        self.control = _control_block(setup, machines)
        host = "" if machines is None else machines.hosts[0]
        self.processes = Processes(prefix_output=setup.prefix_output, host=host)
        watchdog = Watchdog(self.processes, ended, machines)
        self.ranks = Rounds(self.control, self.processes, tally, watchdog, timeout, machines)
        self.flights = Flights(self.ranks)

    def start(self, setup: Setup, machines: OtherMachines | None) -> None:
        """Starts the ranks, and waits until each has opened its device."""
        if machines is not None:
            machines.start(
                self.control,
                setup.edges,
                setup.device,
                setup.devices,
                compiler=setup.compiler,
                profile=setup.profile,
                prefix_output=setup.prefix_output,
            )
        here = setup.edges[1]
        self.processes.start(
            self.control,
            here,
            setup.device,
            setup.devices[:here],
            compiler=setup.compiler,
            profile=setup.profile,
        )
        self.ranks.await_ranks(setup.device)
        self.ranks.news.show_warnings()

    def count(
        self,
        ranks: tuple[int | None, ...] = (),
        held: tuple[int | None, ...] = (),
        free: tuple[int | None, ...] = (),
    ) -> Counts:
        """Returns the counts, while the control block is there; memory of ranks and devices as
        given.
        """
        memory = Memory(segment_module.total_bytes(), ranks, held, free)
        return Counts(self.control.worked, memory, self.control.moved_bytes)

    def free(self) -> None:
        """Frees the coordinator's resources for the ranks, after the ranks have ended."""
        self.subscriptions.close()
        for visitor in self.visitors:
            self.visitors.pop(visitor)
            visitor._leave()  # noqa: SLF001  # of its protocol
        self.transfers = None
        self.processes.close()
        self.control.close()
        self.holdings.unwanted.clear()


def _control_block(setup: Setup, machines: OtherMachines | None) -> ControlBlock:
    """Returns a control block with a line for each rank of this machine, and one for the others'
    if there are any.
    """
    here = setup.edges[1]
    lines, busy, cores = here, here + 1, usable_cores()
    if machines is not None:
        lines, busy = here + 1, here + 2
        cores = machines_module.cores_each(machines.hosts, machines.hosts[0])
    patience = CROWDED if busy > cores else ROOMY
    return ControlBlock(setup.world_size, patience, lines=lines)
