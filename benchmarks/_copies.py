"""What limits kernels that read and write much: how fast the ranks copy memory, all at once."""

import numpy as np
from _common import Timing, summarise

import synknumba as synk

COPY_BYTES = {"cuda": 2 << 30, "cpu": 64 << 20}  # many times the caches
COPIES = 30


@synk.function(outputs=None)
def time_copies(device, nbytes, copies):
    """Copies device memory to device memory; nanoseconds that each copy took, shape (copies,)."""
    import time

    import numpy as np

    if device == "cpu":
        source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
        times = []
        for _ in range(copies):
            start = time.perf_counter_ns()
            target[...] = source
            times.append(time.perf_counter_ns() - start)
        return np.array(times)

    from itertools import pairwise

    import cupy

    source, target = cupy.ones(nbytes, np.uint8), cupy.ones(nbytes, np.uint8)
    events = [cupy.cuda.Event() for _ in range(copies + 1)]
    target.data.copy_from_device_async(source.data, nbytes)
    for event in events[:-1]:
        event.record()
        target.data.copy_from_device_async(source.data, nbytes)
    events[-1].record()
    events[-1].synchronize()
    times = [cupy.cuda.get_elapsed_time(first, second) * 1e6 for first, second in pairwise(events)]
    del source, target
    cupy.get_default_memory_pool().free_all_blocks()
    return np.array(times)


def copies(device: str) -> tuple[Timing, float]:
    """Of one copy, and GB/s of each rank, read and written: the mean over ranks of the medians."""
    nbytes = COPY_BYTES[device]
    times = time_copies(device, nbytes, COPIES)
    bandwidth = float(np.mean([2 * nbytes / np.median(own) for own in times]))
    return summarise(np.concatenate(times)), bandwidth


def limit(nbytes: float, gb_per_s: float) -> Timing:
    """The time in which a rank reads and writes so many bytes at that speed."""
    return summarise([max(1, round(nbytes / gb_per_s))])  # of a clock's nanoseconds
