"""Streams, events, contexts and devices of a machine whose kernels run on one core: whatever is
asked for has happened.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, SupportsIndex, final, overload

from synknumba._errors import DeviceError, DeviceMemberError
from synknumba._types import MAX_GRID, MAX_SMEM_BYTES
from synknumba.simt._library.words import MAX_BLOCK, WARP_SIZE

# Reported to programs, which choose code and sizes by it: the newest that numba-cuda's tests ask
# for.
COMPUTE_CAPABILITY = (9, 0)
RUNTIME_VERSION = (12, 9)
MAX_BLOCKS = 32  # of a multiprocessor of that compute capability


@final
class Stream:
    """A stream, which is empty whenever it is looked at, because a launch returns when the
    kernel has run.
    """

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

    def async_done(self) -> Any:
        """Returns an awaitable of the stream, which is done."""
        import asyncio  # takes 50 ms

        future = asyncio.get_running_loop().create_future()
        future.set_result(self)
        return future

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
        self.time: float | None = None

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
    """Returns the milliseconds between two events; DeviceError unless both are recorded."""
    if evtstart.time is None or evtend.time is None:
        raise DeviceError(
            "cuda.event_elapsed_time of an event that is not recorded, which a GPU's driver "
            "refuses; call its record() before"
        )
    return (evtend.time - evtstart.time) * 1e3


class MemoryInfo(NamedTuple):
    """Memory of the machine, in bytes."""

    free: int
    total: int


@final
class Device:
    """The device that programs see: a core, with the limits that simt has in common with GPUs.

    Attributes without a counterpart on a core, by which programs choose sizes or print what they
    run on, are those of an H100, as far as its compute capability tells them (CUDA C++ Programming
    Guide, technical specifications); there are no textures.
    """

    name = b"simt: one CPU core"
    compute_capability = COMPUTE_CAPABILITY
    MAX_THREADS_PER_BLOCK = MAX_BLOCK
    MAX_BLOCK_DIM_X, MAX_BLOCK_DIM_Y, MAX_BLOCK_DIM_Z = 1024, 1024, 64
    MAX_GRID_DIM_X, MAX_GRID_DIM_Y, MAX_GRID_DIM_Z = MAX_GRID
    MAX_SHARED_MEMORY_PER_BLOCK = 48 * 1024
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = MAX_SMEM_BYTES
    MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 228 * 1024
    MAX_REGISTERS_PER_BLOCK = MAX_REGISTERS_PER_MULTIPROCESSOR = 65536
    MAX_THREADS_PER_MULTI_PROCESSOR = 2048
    MAX_PITCH = 2**31 - 1
    MULTIPROCESSOR_COUNT = 1
    TOTAL_CONSTANT_MEMORY = 64 * 1024
    L2_CACHE_SIZE = 50 * 2**20
    GLOBAL_MEMORY_BUS_WIDTH = 5120  # bits
    CLOCK_RATE, MEMORY_CLOCK_RATE = 1_980_000, 2_619_000  # kHz
    SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO = 2
    WARP_SIZE = WARP_SIZE
    COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = COMPUTE_CAPABILITY
    COMPUTE_MODE = 0
    PCI_DOMAIN_ID = PCI_DEVICE_ID = 0
    # What a core can do.
    CAN_MAP_HOST_MEMORY = CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = UNIFIED_ADDRESSING = (
        MANAGED_MEMORY
    ) = 1
    PAGEABLE_MEMORY_ACCESS = CONCURRENT_MANAGED_ACCESS = HOST_NATIVE_ATOMIC_SUPPORTED = (
        INTEGRATED
    ) = 1
    GLOBAL_L1_CACHE_SUPPORTED = LOCAL_L1_CACHE_SUPPORTED = COMPUTE_PREEMPTION_SUPPORTED = (
        COOPERATIVE_LAUNCH
    ) = 1
    # What it cannot: a launch returns when the kernel has run.
    ASYNC_ENGINE_COUNT = GPU_OVERLAP = CONCURRENT_KERNELS = STREAM_PRIORITIES_SUPPORTED = (
        COOPERATIVE_MULTI_DEVICE_LAUNCH
    ) = 0
    ECC_ENABLED = KERNEL_EXEC_TIMEOUT = TCC_DRIVER = IS_MULTI_GPU_BOARD = (
        MULTI_GPU_BOARD_GROUP_ID
    ) = 0
    supports_float16 = supports_bfloat16 = True

    def __init__(self, number: int) -> None:
        self.id = self.PCI_BUS_ID = number
        self.uuid = f"GPU-00000000-0000-0000-0000-{number:012}"
        self._context = Context(self)

    @property
    def _device(self) -> "Device":  # of the elements of `cuda.gpus`, which programs reach through
        return self

    def __enter__(self) -> "Device":
        _thread.entered.append(self)
        return self

    def __exit__(self, *_error: object) -> None:
        del _thread.entered[-1:]  # none after cuda.close()

    def __getattr__(self, name: str) -> Any:
        raise DeviceMemberError(f"the stand-in for a GPU has no {name}: kernels run on a CPU core")

    def get_device_identity(self) -> dict[str, int]:
        """Returns where a GPU would be plugged in."""
        return {"pci_domain_id": 0, "pci_bus_id": self.id, "pci_device_id": 0}

    def get_primary_context(self) -> "Context":
        """Returns the context."""
        return self._context

    def reset(self) -> None:
        """Does nothing."""


@final
class Context:
    """The context of a device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.deallocations: list[Any] = []  # memory to be freed later; some programs clear it

    def synchronize(self) -> None:
        """Does nothing."""

    def reset(self) -> None:
        """Does nothing."""

    def can_access_peer(self, peer_device: Any) -> bool:
        """Returns whether the memory of another device can be read, as all lies in the host's."""
        del peer_device
        return True

    def enable_peer_access(self, peer_context: Any, flags: int = 0) -> None:
        """Does nothing."""

    def get_memory_info(self) -> MemoryInfo:
        """Returns the free and all memory of the machine, in bytes."""
        page = os.sysconf("SC_PAGE_SIZE")
        return MemoryInfo(os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page)

    def get_active_blocks_per_multiprocessor(
        self, func: Any, blocksize: int, memsize: int, flags: Any = None
    ) -> int:
        """Returns how many blocks of this size a multiprocessor would hold, by its threads and
        their shared memory.
        """
        del func, flags
        by_memory = self.device.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR // max(1, memsize)
        return min(MAX_BLOCKS, self.device.MAX_THREADS_PER_MULTI_PROCESSOR // blocksize, by_memory)

    def get_max_potential_block_size(
        self, func: Any, b2d_func: Any, memsize: int, blocksizelimit: int, flags: Any = None
    ) -> tuple[int, int]:
        """Returns the numbers of blocks and of their threads that would fill the device."""
        size = min(blocksizelimit or MAX_BLOCK, MAX_BLOCK)
        if callable(b2d_func):
            memsize = b2d_func(size)
        return self.get_active_blocks_per_multiprocessor(func, size, memsize, flags), size

    def __getattr__(self, name: str) -> Any:
        raise DeviceMemberError(
            f"the stand-in for the context of a GPU has no {name}: kernels run on a CPU core"
        )

    @contextlib.contextmanager
    def defer_cleanup(self) -> Iterator[None]:
        """A context in which a GPU's memory would be kept."""
        yield


class DeviceList(list[Device]):
    """The list of devices."""

    @overload
    def __getitem__(self, number: SupportsIndex, /) -> Device: ...
    @overload
    def __getitem__(self, numbers: slice, /) -> list[Device]: ...
    def __getitem__(self, number: Any, /) -> Any:
        """Returns a device; the error for a missing one is the list's, and names the setting."""
        try:
            return super().__getitem__(number)
        except IndexError:
            raise IndexError(_missing(number)) from None

    @property
    def lst(self) -> list[Device]:
        """The list itself."""
        return list(self)

    @property
    def current(self) -> Device:
        """The calling thread's device."""
        return current_device()


class _Thread(threading.local):
    """The devices whose contexts a thread has entered; the last one is current."""

    def __init__(self) -> None:
        self.entered: list[Device] = []


_thread = _Thread()


@final
class Runtime:
    """CUDA's runtime, for programs that ask for its version."""

    def get_version(self) -> tuple[int, int]:
        """Returns the version, a major and a minor number."""
        return RUNTIME_VERSION

    def is_supported_version(self) -> bool:
        """Returns whether it is one that numba-cuda supports, which it is."""
        return True

    @property
    def supported_versions(self) -> tuple[tuple[int, int], ...]:
        """The version."""
        return (RUNTIME_VERSION,)


RUNTIME = Runtime()
GPUS = DeviceList([Device(0)])


def set_count(count: int) -> None:
    """Sets the number of devices; those that stay are the same objects."""
    GPUS[count:] = [Device(number) for number in range(len(GPUS), count)]


def current_device() -> Device:
    """Returns the calling thread's device: the last one entered or selected, at first device 0."""
    if _thread.entered:
        return _thread.entered[-1]
    return GPUS[0]


def select_device(device_id: int) -> Device:
    """Makes a device the thread's current one, and returns it; raises DeviceError if there is
    none of this number.
    """
    if not 0 <= device_id < len(GPUS):
        raise DeviceError(_missing(device_id))
    _thread.entered[-1:] = [GPUS[device_id]]
    return GPUS[device_id]


def close() -> None:
    """Makes device 0 the thread's current one."""
    _thread.entered.clear()


def current_context(devnum: int | None = None) -> Context:
    """Returns the context of the device, which becomes the thread's current one; without a
    number that of the current one.
    """
    if devnum is not None:
        select_device(devnum)
    return current_device().get_primary_context()


def detect() -> bool:
    """Prints what programs see, and returns whether they can run kernels, which they can."""
    lines = [f"id {device.id}    {device.name!r}    [SUPPORTED]\n" for device in GPUS]
    sys.stdout.write(f"Found {len(lines)} CUDA devices\n{''.join(lines)}")
    return True


def _missing(number: Any) -> str:
    names = "device 0"
    if len(GPUS) > 1:
        names = f"devices 0 to {len(GPUS) - 1}"
    way = "simt.as_cuda(devices=...) stands in for several"
    return f"there is no device {number}: kernels run on a CPU core, {names}; {way}"


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    """A context in which nothing is different."""
    yield
