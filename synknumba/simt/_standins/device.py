"""Streams, events, contexts and the device of a machine whose kernels run on one core: whatever is asked for has happened."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, final

from synknumba._errors import DeviceError, DeviceMemberError
from synknumba._types import MAX_GRID
from synknumba.simt._emit.storage import MAX_BLOCK

# Of the device that programs are told, for their choices of code and sizes: the newest that numba-cuda's tests ask for.
COMPUTE_CAPABILITY = (9, 0)
RUNTIME_VERSION = (12, 9)
MAX_BLOCKS = 32  # of a multiprocessor of that compute capability


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
    """The device that programs see: a core, with the limits that simt has in common with GPUs.

    Attributes without a counterpart on a core, by which programs choose sizes or print what they run on, are those of an H100,
    as far as its compute capability tells them (CUDA C++ Programming Guide, technical specifications); there are no textures.
    """

    id = 0
    name = b"simt: one CPU core"
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    compute_capability = COMPUTE_CAPABILITY
    MAX_THREADS_PER_BLOCK = MAX_BLOCK
    MAX_BLOCK_DIM_X, MAX_BLOCK_DIM_Y, MAX_BLOCK_DIM_Z = 1024, 1024, 64
    MAX_GRID_DIM_X, MAX_GRID_DIM_Y, MAX_GRID_DIM_Z = MAX_GRID
    MAX_SHARED_MEMORY_PER_BLOCK = 48 * 1024
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 227 * 1024
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
    WARP_SIZE = 32
    COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = COMPUTE_CAPABILITY
    COMPUTE_MODE = 0
    PCI_DOMAIN_ID = PCI_BUS_ID = PCI_DEVICE_ID = 0
    # What a core can do.
    CAN_MAP_HOST_MEMORY = CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = UNIFIED_ADDRESSING = MANAGED_MEMORY = 1
    PAGEABLE_MEMORY_ACCESS = CONCURRENT_MANAGED_ACCESS = HOST_NATIVE_ATOMIC_SUPPORTED = INTEGRATED = 1
    GLOBAL_L1_CACHE_SUPPORTED = LOCAL_L1_CACHE_SUPPORTED = COMPUTE_PREEMPTION_SUPPORTED = COOPERATIVE_LAUNCH = 1
    # What it cannot: a launch returns when the kernel has run.
    ASYNC_ENGINE_COUNT = GPU_OVERLAP = CONCURRENT_KERNELS = STREAM_PRIORITIES_SUPPORTED = COOPERATIVE_MULTI_DEVICE_LAUNCH = 0
    ECC_ENABLED = KERNEL_EXEC_TIMEOUT = TCC_DRIVER = IS_MULTI_GPU_BOARD = MULTI_GPU_BOARD_GROUP_ID = 0
    supports_float16 = supports_bfloat16 = True

    @property
    def _device(self) -> "Device":  # of the elements of `cuda.gpus`, which programs reach through
        return self

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise DeviceMemberError(f"the stand-in for a GPU has no {name}: kernels run on a CPU core")

    def get_device_identity(self) -> dict[str, int]:
        """Returns where a GPU would be plugged in."""
        return {"pci_domain_id": 0, "pci_bus_id": 0, "pci_device_id": 0}

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

    def get_active_blocks_per_multiprocessor(self, func: Any, blocksize: int, memsize: int, flags: Any = None) -> int:
        """Returns how many blocks of this size a multiprocessor would hold, by its threads and their shared memory."""
        del func, flags
        by_memory = self.device.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR // max(1, memsize)
        return min(MAX_BLOCKS, self.device.MAX_THREADS_PER_MULTI_PROCESSOR // blocksize, by_memory)

    def get_max_potential_block_size(
        self, func: Any, b2d_func: Any, memsize: int, blocksizelimit: int, flags: Any = None
    ) -> tuple[int, int]:
        """Returns the numbers of blocks and of their threads that would fill the device."""
        size = min(blocksizelimit or MAX_BLOCK, MAX_BLOCK)
        memory = b2d_func(size) if callable(b2d_func) else memsize
        return self.get_active_blocks_per_multiprocessor(func, size, memory, flags), size

    def __getattr__(self, name: str) -> Any:
        raise DeviceMemberError(f"the stand-in for the context of a GPU has no {name}: kernels run on a CPU core")

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


@final
class Runtime:
    """CUDA's runtime, as the programs are told that ask for its version."""

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


DEVICE = Device()
RUNTIME = Runtime()
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
