"""Keeps a rank off the cores that serve the interrupts of GPUs.

Each of NCCL's kernels ends with an interrupt, which takes its core 28 µs; work that does without
NCCL has none. A rank that waits on that core takes 42 µs for a broadcast of 1 KiB over two H200, on
any other core 14, and the others wait for it. The driver has a core for each GPU, so that of 32
cores and two ranks one world in eight was hit (docs/design/2026-11-26-interrupts.md).
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

# interrupts since the machine's start; the driver has several a GPU, of which one comes with its
# work
_FEW: Final = 1000
_STAY: Final = 0.75  # of the cores, at least


def leave_interrupted_cores(proc: Path = Path("/proc")) -> None:
    """Keeps the calling thread, and those that it starts later, off the cores that serve GPUs,
    unless too few would be left.

    Does nothing where the system does not tell them, or refuses.

    Args:
        proc: the file system of processes.
    """
    with suppress(OSError, ValueError):
        allowed = os.sched_getaffinity(0)
        cores = allowed.difference(interrupted_cores(proc))
        if _STAY * len(allowed) <= len(cores) < len(allowed):
            os.sched_setaffinity(0, cores)


def interrupted_cores(proc: Path) -> set[int]:
    """Returns the cores that serve NVIDIA's interrupts.

    Raises:
        OSError: the system does not tell.
        ValueError: it tells in another form.
    """
    counts = dict(_interrupts((proc / "interrupts").read_text()))
    most = max(counts.values(), default=0)
    busy = [number for number, count in counts.items() if count > max(_FEW, most // 100)]
    cores: set[int] = set()
    for number in busy:
        cores.update(_cores((proc / "irq" / number / "effective_affinity_list").read_text()))
    return cores


def _interrupts(text: str) -> Iterator[tuple[str, int]]:
    """Yields the number of each of NVIDIA's interrupts, and how many there were on all cores."""
    header, *lines = text.splitlines()
    cores = len(header.split())
    for line in lines:
        number, *words = line.split()
        if words and words[-1].startswith("nvidia"):
            yield number.rstrip(":"), sum(map(int, words[:cores]))


def _cores(text: str) -> Iterator[int]:
    """Yields the cores of a list such as 0-3,8."""
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
