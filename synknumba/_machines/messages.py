"""Messages between the coordinator, the relays and the agents, over sockets; between relays they
travel inside MPI messages.
"""

from dataclasses import dataclass, field
from typing import Any, Self

from synknumba._host.segment import Segment
from synknumba._machines.routes import Route
from synknumba._machines.state import ScriptState
from synknumba._types import CompilerName, DeviceKind
from synknumba._wire.control import ControlBlock, Patience
from synknumba._wire.messages import Parcel, Warned
from synknumba._world.machines import Lost


@dataclass(frozen=True, slots=True)
class Ready:
    """A relay's first message: the job, or why it cannot be served."""

    index: int  # of the machine
    hosts: tuple[str, ...]  # name of each machine
    problem: str = ""
    vendor: str = ""  # of MPI


@dataclass(frozen=True, slots=True)
class SharedBlock:
    """A control block, whose descriptor comes with the message."""

    segment: int  # id
    nbytes: int
    patience: Patience  # of the processes that use it

    @classmethod
    def of(cls, control: ControlBlock) -> Self:
        """Describes a block to another process."""
        return cls(control.segment.id, control.segment.size, control.patience)

    def map(self, descriptor: int) -> Segment:
        """Maps its memory."""
        return Segment.attach(self.segment, descriptor, self.nbytes)


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """What ranks of other machines need to know of the script's process and of the world."""

    firsts: tuple[int, ...]  # first rank of each machine, and the world size
    device: DeviceKind
    devices: tuple[int, ...]  # GPU index of each rank; empty on the CPU
    compiler: CompilerName | None
    profile: bool
    prefix_output: bool
    directory: str
    path: tuple[str, ...]
    # variables that the script has changed; None for one that it has removed
    environment: dict[str, str | None]
    state: ScriptState
    block: SharedBlock  # of the coordinator's machine

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.firsts[-1]


@dataclass(frozen=True, slots=True)
class Forward:
    """A command for the ranks of other machines, pickled, and what relays must know of it."""

    payload: bytes
    route: Route | None = None
    attached: tuple[tuple[int, int], ...] = ()  # segments: (id, bytes), one descriptor for each
    dropped_segments: tuple[int, ...] = ()
    dropped_programs: tuple[int, ...] = ()
    is_stop: bool = False
    sequence: int = 0  # to an agent: number of the round


@dataclass(frozen=True, slots=True)
class Ask:
    """A question outside rounds: "where" the ranks are, or "devices" of each machine."""

    what: str
    serial: int = 0  # of the coordinator's questions, to tell their answers apart


@dataclass(frozen=True, slots=True)
class End:
    """End the ranks of the world, at once."""


@dataclass(frozen=True, slots=True)
class Quit:
    """The script has ended; or, from a relay, so have the ranks of all machines."""


@dataclass(frozen=True, slots=True)
class Finish:
    """To an agent: complete the round that its relay has rung."""

    sequence: int
    code: int  # of the compiled wait


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a round, or of a start, on one or several machines.

    Attributes:
        news: of the ranks, with the rank.
        warned: warnings of the ranks.
        lost: what has ended the world; None if nothing has.
        block: the control block that an agent has made; else None.
        refused: why the ranks could not be started; None if they have, or in rounds.
    """

    news: tuple[tuple[int, Parcel], ...] = ()
    warned: tuple[Warned, ...] = ()
    lost: Lost | None = None
    block: SharedBlock | None = None
    refused: BaseException | None = None

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to report."""
        return not (self.news or self.warned) and self.lost is None and self.refused is None

    @property
    def failed(self) -> set[int]:
        """Ranks that have failed."""
        return {rank for rank, parcel in self.news if parcel.failed}

    @property
    def has_losses(self) -> bool:
        """Whether a machine, a rank or the device of a rank is lost."""
        return self.lost is not None or any(parcel.lost for _, parcel in self.news)

    def with_report(self, report: "Report") -> "Report":
        """Returns this report with that of another machine."""
        return Report(
            self.news + report.news,
            self.warned + report.warned,
            self.lost or report.lost,
            refused=self.refused or report.refused,
        )


QUIET = Report()


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of machines to an `Ask`, by machine."""

    of: dict[int, Any] = field(default_factory=dict)
    serial: int = 0  # of the question
