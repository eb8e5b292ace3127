"""What the coordinator and the ranks say to each other beside repeated calls: commands and news, on the socket."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from synknumba._ops.variable_layout import StorageLayout
from synknumba._types import Shape, Transport
from synknumba._wire.program import Collective, Combination, FunctionSpec, HostArray, Program, Transfer

# ---- commands ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attach:
    """Map these segments; as many descriptors follow as there are entries. An id that is known already has grown."""

    segments: tuple[tuple[int, int], ...]  # (id, bytes)


@dataclass(frozen=True, slots=True)
class Install:
    """Keep this function and this program. Either may be None."""

    function: FunctionSpec | None
    program: Program | Combination | Collective | Transfer | None


@dataclass(frozen=True, slots=True)
class Hold:
    """Make memory for a variable.

    Attributes:
        number: of the memory.
        layout: of its arrays.
        hosts: where each rank's memory is, as bytes, if it lies in a segment; empty if the ranks allocate it.
        carry: the number of memory whose arrays are copied over where they have the same shape on a rank; −1 for none.
    """

    number: int
    layout: StorageLayout
    hosts: tuple[HostArray, ...] = ()
    carry: int = -1


@dataclass(frozen=True, slots=True)
class Invite:
    """Say whether a transport can be set up; rank 0 makes an id for it. The answer is an `Invitation`."""

    transport: Transport


@dataclass(frozen=True, slots=True)
class Join:
    """Set up a transport with this id, together with all ranks."""

    transport: Transport
    unique_id: bytes


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget segments, programs, functions and the memory of variables."""

    segments: tuple[int, ...] = ()
    programs: tuple[int, ...] = ()
    functions: tuple[int, ...] = ()
    variables: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Measure:
    """Say what the device holds. The answer is a `Measured`."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End."""


Command: TypeAlias = Attach | Install | Hold | Invite | Join | Drop | Measure | Stop


# ---- what a rank says back -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failed:
    """A Python exception; `cause` is the pickled exception where it could be pickled.

    `lost` says that the rank's device is of no use any more, as after a kernel's fault on a GPU.
    """

    type_name: str
    message: str
    traceback: str
    cause: bytes | None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Returned:
    """The shape of what a Python function returned, when it is new.

    Attributes:
        spec: the number that stands for it from now on, in the first word of the rank's results.
        structure: of the tree.
        leaves: (dtype, shape) of each leaf.
        nbytes: that the leaves take, packed.
        segment: (id, bytes) of a segment that the rank made for them where the control block is too small; its descriptor
            follows.
    """

    spec: int
    structure: Any
    leaves: tuple[tuple[Any, Shape], ...]
    nbytes: int
    segment: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Invitation:
    """The id with which the ranks can join, or why there is none."""

    unique_id: bytes
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What a rank's device holds, in bytes; None where the device is the host.

    Attributes:
        held: taken by this rank.
        free: of the device.
    """

    held: int | None
    free: int | None


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning.

    Attributes:
        text: of it.
        name: of its class.
        builtin: the name of the built-in class that this derives from.
        category: the pickled class; empty where it does not pickle.
        filename: where it was given.
        line: likewise.
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
    """What a rank sends at the end of a round, if it has anything to say, and once when it has started.

    Attributes:
        rank: that says it.
        news: of what it was asked to do.
        warned: what was warned of meanwhile.
    """

    rank: int
    news: News | None
    warned: tuple[Warned, ...] = ()
