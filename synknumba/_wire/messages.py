"""Messages on the socket: commands from the coordinator, and news from the ranks. Repeated calls
need neither.
"""

import pickle
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from synknumba._ops.variable_layout import StorageLayout
from synknumba._types import Shape, Transport
from synknumba._wire.channel import pack
from synknumba._wire.program import (
    Collective,
    Combination,
    FunctionSpec,
    HostArray,
    Joined,
    Program,
    Staged,
    Transfer,
)
from synknumba._wire.sequence import SequenceProgram

# ---- commands ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attach:
    """Map these segments, one descriptor each; a segment already mapped has grown."""

    segments: tuple[tuple[int, int], ...]  # (id, bytes)


AnyProgram: TypeAlias = (
    Program | Combination | Collective | Joined | Staged | Transfer | SequenceProgram
)


@dataclass(frozen=True, slots=True)
class Install:
    """Store this function and this program. Either may be None."""

    function: FunctionSpec | None
    program: AnyProgram | None


@dataclass(frozen=True, slots=True)
class Hold:
    """Allocate the memory of a variable."""

    number: int  # of the memory
    layout: StorageLayout
    # each rank's memory as bytes, if it lies in a segment; empty if the ranks allocate it
    hosts: tuple[HostArray, ...] = ()
    # number of earlier memory, from which arrays of the same shape are copied on each rank; −1 for
    # none
    carry: int = -1


@dataclass(frozen=True, slots=True)
class Invite:
    """Check whether a transport can be set up; rank 0 creates its unique id. The answer is an
    `Invitation`.
    """

    transport: Transport


@dataclass(frozen=True, slots=True)
class Join:
    """Set up a transport with this unique id; collective."""

    transport: Transport
    unique_id: bytes


@dataclass(frozen=True, slots=True)
class Drop:
    """Free segments, programs, functions and the memory of variables."""

    segments: tuple[int, ...] = ()
    programs: tuple[int, ...] = ()
    functions: tuple[int, ...] = ()
    variables: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Measure:
    """Report the memory use of the device. The answer is a `Measured`."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Measure how fast the rank works, for so many seconds. The answer is a `Rated`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Trace:
    """Record what the rank does, up to so many records of each kind; with 0, stop that. The
    answer to a stop is a `Traced`.
    """

    records: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the rank."""


Command: TypeAlias = Attach | Install | Hold | Invite | Join | Drop | Measure | Rate | Trace | Stop


# ---- answers of a rank ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failed:
    """A Python exception on a rank."""

    type_name: str  # qualified name of its class
    message: str
    traceback: str  # formatted, starting in the user's code
    cause: bytes | None  # the pickled exception; None if it cannot be pickled
    lost: bool = (
        False  # whether the rank's device is unusable, as after a fault of a kernel on a GPU
    )


@dataclass(frozen=True, slots=True)
class Returned:
    """Structure, dtypes and shapes of a Python function's result, sent when they are new.

    If the control block is too small, the rank has created a segment; its descriptor is attached.
    Where later results of a round would replace those in a segment, they come with the message.
    """

    spec: int  # number that denotes them from now on, in the first word of the rank's results
    structure: Any
    leaves: tuple[tuple[Any, Shape], ...]  # (dtype, shape)
    nbytes: int  # of the packed leaves
    segment: tuple[int, int] | None = None  # (id, bytes)
    packed: bytes | None = None  # the leaves, of this result alone


@dataclass(frozen=True, slots=True)
class ReturnedInSequence:
    """What Python functions of a sequence returned that is new, by program; the descriptors of
    segments follow each other.
    """

    returned: tuple[tuple[int, Returned], ...]


@dataclass(frozen=True, slots=True)
class Invitation:
    """Unique id of the GPU transport (from rank 0), or the reason why it is unavailable."""

    unique_id: bytes
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Rated:
    """How fast a rank works, in work per second, in the same units for a kind of device."""

    rate: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Memory use of a rank's device, in bytes; None if the device is the host."""

    held: int | None  # allocated by this rank
    free: int | None


@dataclass(frozen=True, slots=True)
class Span:
    """Something that a rank, or its device, has done. Times are in nanoseconds, by the rank's
    `time.monotonic_ns`.
    """

    name: str
    began: int
    ended: int
    nbytes: int = 0
    step: int = -1  # number of the iteration; −1 outside sequences
    on_device: bool = False


@dataclass(frozen=True, slots=True)
class Traced:
    """What a rank has recorded.

    Attributes:
        rounds: number, command, when it was seen and when it was answered: int64, shape (n, 4),
            packed.
        spans: what was done in them.
        lost: number of spans that did not fit.
        clock: `time.time_ns` less `time.monotonic_ns`, to compare machines.
        pid: of the rank's process.
        host: name of its machine.
    """

    rounds: bytes
    spans: tuple[Span, ...]
    lost: int
    clock: int
    pid: int
    host: str


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning issued on a rank."""

    text: str
    name: str  # of its class
    builtin: str  # name of the built-in class that its class derives from
    category: bytes  # the pickled class; empty if it cannot be pickled
    filename: str
    line: int


News: TypeAlias = Failed | Returned | ReturnedInSequence | Invitation | Measured | Rated | Traced


@dataclass(frozen=True, slots=True)
class Parcel:
    """News, pickled, as only the script knows the classes in it; with what others must know.

    Attributes:
        packed: the pickle.
        failed: whether it is `Failed`.
        spec, nbytes, segment: of a `Returned`; −1, 0 and None of others.
        lost: whether the rank's device is unusable.
    """

    packed: bytes
    failed: bool = False
    spec: int = -1
    nbytes: int = 0
    segment: tuple[int, int] | None = None
    lost: bool = False

    @classmethod
    def of(cls, news: News) -> Self:
        """Packs news; raises whatever a user's class raises when it is pickled."""
        packed = pack(news)
        if isinstance(news, Returned):
            return cls(packed, spec=news.spec, nbytes=news.nbytes, segment=news.segment)
        return cls(packed, isinstance(news, Failed), lost=isinstance(news, Failed) and news.lost)

    def open(self) -> News:
        """Unpacks the news; raises whatever a user's class raises when it is unpickled."""
        news: News = pickle.loads(self.packed)  # noqa: S301  # of a rank
        return news


@dataclass(frozen=True, slots=True)
class Answer:
    """Message of a rank: after its start, and after rounds with news or warnings."""

    rank: int  # sender
    news: Parcel | None  # outcome of the round, if there is anything to report
    warned: tuple[Warned, ...] = ()
