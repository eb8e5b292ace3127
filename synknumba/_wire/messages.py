"""Messages on the socket: commands from the coordinator, and news from the ranks. Repeated calls need neither."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from synknumba._ops.variable_layout import StorageLayout
from synknumba._types import Shape, Transport
from synknumba._wire.program import Collective, Combination, FunctionSpec, HostArray, Program, Transfer

# ---- commands ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attach:
    """Map these segments; one descriptor per entry is attached. A segment already mapped has grown."""

    segments: tuple[tuple[int, int], ...]  # (id, bytes)


@dataclass(frozen=True, slots=True)
class Install:
    """Store this function and this program. Either may be None."""

    function: FunctionSpec | None
    program: Program | Combination | Collective | Transfer | None


@dataclass(frozen=True, slots=True)
class Hold:
    """Allocate the memory of a variable.

    Attributes:
        number: number of the memory.
        layout: layout of its arrays.
        hosts: each rank's memory as an array of bytes, if it lies in a segment; empty if the ranks allocate it.
        carry: number of earlier memory, from which arrays of the same shape are copied on each rank; −1 for none.
    """

    number: int
    layout: StorageLayout
    hosts: tuple[HostArray, ...] = ()
    carry: int = -1


@dataclass(frozen=True, slots=True)
class Invite:
    """Check whether a transport can be set up; rank 0 creates its unique id. The answer is an `Invitation`."""

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
class Stop:
    """Stop the rank."""


Command: TypeAlias = Attach | Install | Hold | Invite | Join | Drop | Measure | Stop


# ---- answers of a rank --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failed:
    """A Python exception on a rank.

    Attributes:
        type_name: qualified name of its class.
        message: its text.
        traceback: its formatted traceback, starting in the user's code.
        cause: the pickled exception; None if it cannot be pickled.
        lost: whether the rank's device is unusable, as after a fault of a kernel on a GPU.
    """

    type_name: str
    message: str
    traceback: str
    cause: bytes | None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Returned:
    """Structure, dtypes and shapes of a Python function's result, sent when they are new.

    Attributes:
        spec: number that denotes them from now on, in the first word of the rank's results.
        structure: structure of the result's tree.
        leaves: (dtype, shape) of each leaf.
        nbytes: bytes of the packed leaves.
        segment: (id, bytes) of a segment that the rank has created because the control block is too small; its descriptor is
            attached.
    """

    spec: int
    structure: Any
    leaves: tuple[tuple[Any, Shape], ...]
    nbytes: int
    segment: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Invitation:
    """Unique id of the GPU transport (from rank 0), or the reason why it is unavailable."""

    unique_id: bytes
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Memory use of a rank's device, in bytes; None if the device is the host.

    Attributes:
        held: bytes allocated by this rank.
        free: free bytes of the device.
    """

    held: int | None
    free: int | None


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning issued on a rank.

    Attributes:
        text: its message.
        name: name of its class.
        builtin: name of the built-in class that its class derives from.
        category: the pickled class; empty if it cannot be pickled.
        filename: file in which it was issued.
        line: line at which it was issued.
    """

    text: str
    name: str
    builtin: str
    category: bytes
    filename: str
    line: int


News: TypeAlias = Failed | Returned | Invitation | Measured


@dataclass(frozen=True, slots=True)
class Answer:
    """Message of a rank, sent once after its start, and at the end of a round that has news or warnings.

    Attributes:
        rank: sender.
        news: outcome of the round, if there is anything to report.
        warned: warnings issued during the round.
    """

    rank: int
    news: News | None
    warned: tuple[Warned, ...] = ()
