"""Streams, events, contexts and the device of a machine whose kernels run on one core: whatever is asked for has happened."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, final

from synknumba._errors import DeviceError
from synknumba.simt._emit.storage import MAX_BLOCK

# Of the device that programs are told, for their choices of code and sizes: the newest that numba-cuda's tests ask for.
COMPUTE_CAPABILITY = (9, 0)


@final
class Stream:
    """A stream, which is empty whenever it is looked at, because a launch returns when the kernel has run."""

    handle = 0
    external = False

    def __int__(self) -> int:
        return 0

    def synchronize(self) -> None:
        """Does nothing."""

    def wait_event(self, event: "Event") -> None:
        """Does nothing."""

    def query(self) -> bool:
        """Returns whether all work is done, which it is."""
        return True

    def add_callback(self, callback: Callable[[Any, int, Any], None], arg: Any = None) -> None:
        """Calls the function."""
        callback(self, 0, arg)

    @contextlib.contextmanager
    def auto_synchronize(self) -> Iterator["Stream"]:
        """A context at whose end all work is done."""
        yield self


@final
class Event:
    """A point in time."""

    def __init__(self, timing: bool = True) -> None:
        self.timing = timing
        self.time = 0.0

    def record(self, stream: Any = 0) -> None:
        """Notes the time."""
        del stream
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        """Does nothing."""

    def wait(self, stream: Any = 0) -> None:
        """Does nothing."""

    def query(self) -> bool:
        """Returns whether the work before it is done, which it is."""
        return True

    def elapsed_time(self, evtend: "Event") -> float:
        """Returns the milliseconds from this event to another one."""
        return event_elapsed_time(self, evtend)


def event_elapsed_time(evtstart: Event, evtend: Event) -> float:
    """Returns the milliseconds between two events."""
    return (evtend.time - evtstart.time) * 1e3


class MemoryInfo(NamedTuple):
    """Memory of the machine, in bytes."""

    free: int
    total: int


@final
class Device:
    """The device that programs see: a core, with the limits that simt has in common with GPUs."""

    id = 0
    name = b"simt: one CPU core"
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    compute_capability = COMPUTE_CAPABILITY
    MAX_THREADS_PER_BLOCK = MAX_BLOCK
    MAX_BLOCK_DIM_X, MAX_BLOCK_DIM_Y, MAX_BLOCK_DIM_Z = 1024, 1024, 64
    MAX_GRID_DIM_X, MAX_GRID_DIM_Y, MAX_GRID_DIM_Z = 2**31 - 1, 65535, 65535
    MAX_SHARED_MEMORY_PER_BLOCK = 48 * 1024
    MULTIPROCESSOR_COUNT = 1
    WARP_SIZE = 32
    supports_float16 = supports_bfloat16 = True

    @property
    def _device(self) -> "Device":  # of the elements of `cuda.gpus`, which programs reach through
        return self

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the stand-in for a GPU has no {name}: kernels run on a CPU core")

    def get_primary_context(self) -> "Context":
        """Returns the context."""
        return CONTEXT

    def reset(self) -> None:
        """Does nothing."""


@final
class Context:
    """A context, of which there is one."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.deallocations: list[Any] = []  # memory to be freed later; some programs clear it

    def synchronize(self) -> None:
        """Does nothing."""

    def reset(self) -> None:
        """Does nothing."""

    def get_memory_info(self) -> MemoryInfo:
        """Returns the free and all memory of the machine, in bytes."""
        page = os.sysconf("SC_PAGE_SIZE")
        return MemoryInfo(os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page)

    @contextlib.contextmanager
    def defer_cleanup(self) -> Iterator[None]:
        """A context in which a GPU's memory would be kept."""
        yield


class Devices(list[Device]):
    """The list of devices, with one in it."""

    @property
    def lst(self) -> list[Device]:
        """The list itself."""
        return list(self)

    @property
    def current(self) -> Device:
        """The device."""
        return self[0]


DEVICE = Device()
CONTEXT = Context(DEVICE)
GPUS = Devices([DEVICE])


def select_device(device_id: int) -> Device:
    """Returns the device; raises DeviceError for a number other than 0."""
    if device_id != 0:
        raise DeviceError(f"there is no device {device_id}: kernels run on a CPU core, device 0")
    return DEVICE


def current_context(devnum: int | None = None) -> Context:
    """Returns the context."""
    return select_device(devnum or 0).get_primary_context()


def detect() -> bool:
    """Prints what programs see, and returns whether they can run kernels, which they can."""
    sys.stdout.write("Found 1 CUDA devices\nid 0    b'simt: one CPU core'    [SUPPORTED]\n")
    return True


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    """A context in which nothing is different."""
    yield
