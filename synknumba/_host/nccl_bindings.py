"""NCCL's functions by one of two packages: nccl4py, NVIDIA's own, where it is installed and works,
else CuPy.

Both pass their arguments to the same libnccl.so.2, so ranks of a world may differ in them. They are
imported when they are asked for; `candidates` looks at their metadata only.

    communicator.allReduce(source, target, count, dtype, op, stream)             cupy.cuda.nccl
    nccl.all_reduce(source, target, count, dtype, op, communicator, stream)      nccl.bindings.nccl
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from synknumba._host.gpu_packages import install_nccl, version_of

SWITCH: Final = "SYNKNUMBA_NCCL"  # environment variable: the one package to use

# Versions whose low-level bindings are known. nccl4py promises nothing of these: 0.5 has taken an
# argument from comm_init_rank.
KNOWN: Final = ("0.5", "0.6")

# ncclDataType_t and ncclRedOp_t of nccl.h, which are the same in all of NCCL 2.
DTYPES: Final = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
}
OPS: Final = {"sum": 0, "prod": 1, "max": 2, "min": 3}

Name: TypeAlias = Literal["nccl4py", "cupy"]
Function: TypeAlias = Literal[
    "all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter", "send", "recv"
]

# others are alike
_CUPY: Final = {
    "all_gather": "allGather",
    "all_reduce": "allReduce",
    "reduce_scatter": "reduceScatter",
}


class NcclError(RuntimeError):
    """A function of NCCL has failed."""


@dataclass(frozen=True, slots=True)
class NcclBindings:
    """What is called of NCCL.

    Attributes:
        name: of the package.
        version: of NCCL, as it counts: 22809 for 2.28.9.
        make_unique_id: returns the 128 bytes that the ranks of a communicator share.
        connect: returns a communicator of the current device, given (world size, the id, rank);
            waits for all ranks.
        bind: returns a call without arguments, given (communicator, function, stream, arguments of
            the function before these).
        group_start: begins a group of calls, which NCCL holds back until it ends.
        group_end: ends it.
        error: what calls and groups raise; see `as_nccl_error`.
    """

    name: Name
    version: int
    make_unique_id: Callable[[], bytes]
    connect: Callable[[int, bytes, int], Any]
    bind: Callable[..., Callable[[], object]]
    group_start: Callable[[], object]
    group_end: Callable[[], object]
    error: type[Exception]


class Found(NamedTuple):
    """The bindings to use, if there are any."""

    bindings: NcclBindings | None
    # in one line: why there are none, or why they are not nccl4py's though that is installed
    problem: str | None


def as_nccl_error(error: Exception) -> NcclError:
    """Returns the error to raise for one of a package, with NCCL's own text: packages put a name
    of the code before it.
    """
    text = str(error).partition(": ")[2] or str(error)
    return NcclError(f"{text}; NCCL's error {getattr(error, 'status', 'is unknown')}")


def candidates() -> tuple[list[Name], str | None]:
    """Returns the packages to try, the best first, and why nccl4py is not among them though it
    is installed or asked for.
    """
    choice, version = os.environ.get(SWITCH, ""), version_of("nccl4py")
    names: list[Name]
    match choice:
        case "":
            names = ["cupy"] if version is None else ["nccl4py", "cupy"]
        case "nccl4py" | "cupy":
            names = [choice]
        case _:
            return [], f'{SWITCH} must be "nccl4py" or "cupy", got {choice!r}'
    if "nccl4py" not in names:
        return names, None
    problem = "is not installed"
    if version is not None:
        if ".".join(version.split(".")[:2]) in KNOWN:
            return names, None
        problem = f"{version} is not one of those that are known ({', '.join(KNOWN)})"
    names.remove("nccl4py")
    return names, f"nccl4py {problem}; pip install 'synknumba[nccl4py]'"


@cache
def find() -> Found:
    """Finds the bindings, and loads NCCL."""
    names, problem = candidates()
    for name in names:
        bindings = _nccl4py() if name == "nccl4py" else _cupy()
        if isinstance(bindings, NcclBindings):
            return Found(bindings, problem)
        problem = bindings if problem is None else f"{problem}; {bindings}"
    return Found(None, problem)


def _cupy() -> NcclBindings | str:
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        return f"CuPy has no NCCL ({error}); {install_nccl()}"
    if not nccl.available:
        return f"CuPy finds no library libnccl.so.2; {install_nccl()}"

    def bind(
        communicator: Any, function: Function, stream: int, *args: int
    ) -> Callable[[], object]:
        return partial(getattr(communicator, _CUPY.get(function, function)), *args, stream)

    return NcclBindings(
        name="cupy",
        version=nccl.get_version(),
        make_unique_id=_translated(nccl.get_unique_id, nccl.NcclError),
        connect=_translated(nccl.NcclCommunicator, nccl.NcclError),
        bind=bind,
        group_start=nccl.groupStart,
        group_end=nccl.groupEnd,
        error=nccl.NcclError,
    )


def _nccl4py() -> NcclBindings | str:
    try:
        from nccl.bindings import nccl

        version = nccl.get_version()
    except Exception as error:  # noqa: BLE001  # of the import, of cuda-pathfinder that finds no library, of an old NCCL
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return f"nccl4py does not work ({lines[0]})"

    def connect(world_size: int, unique_id: bytes, rank: int) -> Any:
        return nccl.comm_init_rank(world_size, nccl.UniqueId.from_buffer(unique_id), rank)

    def bind(
        communicator: Any, function: Function, stream: int, *args: int
    ) -> Callable[[], object]:
        return partial(getattr(nccl, function), *args, communicator, stream)

    return NcclBindings(
        name="nccl4py",
        version=version,
        make_unique_id=_translated(lambda: bytes(nccl.get_unique_id()), nccl.NCCLError),
        connect=_translated(connect, nccl.NCCLError),
        bind=bind,
        group_start=nccl.group_start,
        group_end=nccl.group_end,
        error=nccl.NCCLError,
    )


def _translated(function: Callable[..., Any], error: type[Exception]) -> Callable[..., Any]:
    """Makes a function raise `NcclError` in place of a package's error."""

    def translated(*args: Any) -> Any:
        try:
            return function(*args)
        except error as failed:
            raise as_nccl_error(failed) from failed

    return translated
