"""`simt.check`: detects races, out-of-bounds accesses and divergence, as compute-sanitizer does, without a GPU."""

import functools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, final

import numpy as np

from synknumba._errors import Finding, RaceError, UninitializedError
from synknumba.simt._debugger.arrays import Array, TrackedMemory, Watch
from synknumba.simt._debugger.findings import access, described, outside_finding
from synknumba.simt._debugger.launch import PythonKernel
from synknumba.simt._debugger.run import DebugLaunch
from synknumba.simt._debugger.shadow import Cell, Past, Shadow, present
from synknumba.simt._debugger.warp import WARP_SIZE

# Later findings are mostly consequences of earlier ones.
MOST_FINDINGS: Final = 20

_UNWRITTEN: Final = "write to every element before any thread reads it, with a barrier between; new memory is not initialised"


@final
class _CheckWatch(Watch):
    """Collects findings and raises them when the launch ends."""

    def __init__(self, launch: DebugLaunch, *, races: bool, uninitialized: bool, early_returns: bool) -> None:
        super().__init__(launch)
        self._races, self._uninitialized, self._early_returns = races, uninitialized, early_returns
        self._shadow = Shadow(blocks_order_themselves=launch.program.fences)
        self._cells: dict[int, Cell] = {}
        self._found: dict[Any, Finding] = {}

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(self._found.values())

    def finish(self) -> None:
        if self._found:
            raise self.findings[0].error(self.launch.program.name, self.findings)

    def ended_early(self, finding: Finding) -> None:
        if self._early_returns:
            self._add(finding)

    def fault(self, finding: Finding) -> bool:
        if self.launch.program.may_spin:  # other threads may wait for this one
            raise self.fail(finding) from None
        self._add(finding, finding.summary.partition(":")[0])
        return True

    def outside(self, array: Array, index: Any, what: str) -> None:
        self._add(outside_finding(self.launch.current, array, index, what))

    def _add(self, finding: Finding, kind: str = "") -> None:
        """Adds a finding, or increments the count of an earlier one of this kind on the same lines and array."""
        lines = sorted((access.what, access.filename, access.line) for access in finding.accesses)
        key = (finding.error, kind, finding.array, *lines)
        if key in self._found:
            self._found[key] = replace(self._found[key], times=self._found[key].times + 1)
        elif len(self._found) < MOST_FINDINGS:
            self._found[key] = finding

    # ---- accesses

    def access(self, what: str, array: Array, index: Any, value: Any = None) -> None:
        memory = array.memory
        if memory.space == "constant":
            return
        addresses = _addresses(array, index)
        if memory.space != "global":
            if what != "write" and self._uninitialized:
                self._must_be_written(memory, addresses)
            if what != "read":  # per byte: memory may be read as another type, as is common for dynamic shared memory
                for address in addresses:
                    memory.written.update(range(address, address + memory.leaf_size))
        if what == "atomic":
            self.launch.current.atomics += 1
        if memory.space != "local" and self._races:
            cells = self._cells if memory.space == "global" else memory.owner.cells
            report, same = functools.partial(self._race, memory), functools.partial(_holds, array, index, value)
            self._shadow.access(cells, addresses, present(self.launch, what), report, same)

    def _must_be_written(self, memory: TrackedMemory, addresses: Iterable[int]) -> None:
        for address in addresses:
            if address not in memory.written:
                now, index = present(self.launch, "read"), memory.index_of(address)
                summary = f"index {list(index)} of {described(memory)} is read before anything is written to it"
                place = access("read", now.thread, now.code, now.line)
                self._add(Finding(UninitializedError, summary, (place,), _UNWRITTEN, memory.name, index))

    def _race(self, memory: TrackedMemory, address: int, before: Past, now: Past) -> None:
        index = memory.index_of(address)
        summary = f"race at index {list(index)} of {described(memory)}: these two accesses are not synchronised"
        places = tuple(access(past.what, past.thread, past.code, past.line) for past in (before, now))
        self._add(Finding(RaceError, summary, places, _advice(before, now), memory.name, index))


def _advice(before: Past, now: Past) -> str:
    first, second = before.thread, now.thread
    if first.block is not second.block:
        return "blocks run in any order: use cuda.atomic, a grid barrier, or a second launch"
    if before.line == now.line and before.what == now.what == "write":
        return "two threads write different values: give each its own element, or use cuda.atomic"
    warp = " (or cuda.syncwarp(), within a warp)" if first.number // WARP_SIZE == second.number // WARP_SIZE else ""
    return f"put cuda.syncthreads() between the two{warp}, where all threads of the block reach it"


def _addresses(array: Array, index: Any) -> list[int]:
    """Returns the addresses of the selected elements; for records, the addresses of their fields."""
    if array.dtype.names is None:
        if type(index) is int and array.ndim == 1:
            return _inside(array, [array.address + (index % array.shape[0]) * array.strides[0]])
        if isinstance(index, tuple) and len(index) == array.ndim and all(isinstance(part, (int, np.integer)) for part in index):
            address = array.address
            for place, size, step in zip(index, array.shape, array.strides, strict=True):
                address += int(place) % size * step
            return _inside(array, [address])
    whole = index if isinstance(index, tuple) else (index,)
    view: Any = np.ndarray.__getitem__(array, whole if any(item is Ellipsis for item in whole) else (*whole, ...))
    offsets = np.zeros(1, np.int64)
    for size, step in zip(view.shape, view.strides, strict=True):
        offsets = (offsets[:, None] + np.arange(size) * step).ravel()
    leaves = np.array(_leaves(view.dtype), np.int64)
    return _inside(array, (view.address + (offsets[:, None] + leaves)).ravel().tolist())


def _inside(array: Array, addresses: list[int]) -> list[int]:
    """Returns the addresses; none if the array is a temporary of an array expression, which no other thread sees."""
    memory = array.memory
    return addresses if addresses and memory.low <= addresses[0] < memory.high else []


@functools.cache
def _leaves(dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Returns the byte offsets of the numbers in an element."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return tuple(k * base.itemsize + leaf for k in range(int(np.prod(shape))) for leaf in _leaves(base))
    if dtype.fields is None:
        return (0,)
    return tuple(offset + leaf for kind, offset, *_ in dtype.fields.values() for leaf in _leaves(kind))


def _holds(array: Array, index: Any, value: Any) -> bool:
    """Returns whether the elements already equal the value; NaN equals NaN."""
    old = np.asarray(np.ndarray.__getitem__(array, index))
    new = np.asarray(value).astype(array.dtype)
    if array.dtype.kind in "fc":
        return bool(np.all((old == new) | ((old != old) & (new != new))))  # noqa: PLR0124  # matches NaN
    return bool(np.all(old == new))


def check(kernel: Any, *, races: bool = True, uninitialized: bool = True, early_returns: bool = True) -> PythonKernel:
    """Returns a version of a kernel that runs in pure Python with error checking, like NVIDIA's compute-sanitizer on a GPU.

    `simt.check(kernel)[grid, block, stream, smem](*args)` has the kernel's effect on the arrays, and raises at the end if it
    has detected errors. The exception lists up to 20 findings, each with array, index, lines and threads; its class is that of
    the first finding. Detected are:

    - Out-of-bounds indices. The launch continues: such a read returns 0, and such a write is skipped.
    - Barriers that only some threads of a block reach, or where threads wait at different barriers; warp operations that a
      lane named in the mask does not reach.
    - Races on shared and global memory: two threads access an element, at least one writes, and no barrier orders them. Atomic
      operations do not race with each other, but they do with plain reads and writes. Writes of equal values do not race.
      Threads of different blocks race unless a grid barrier lies between; this is not checked if the kernel calls
      `threadfence`.
    - Reads of shared and local array elements before any write to them.
    - Exceptions of Python in a thread, such as the UnboundLocalError of a variable that was not assigned. The other threads
      continue.

    The check covers one execution, with these arguments and this order of threads. Speed is 100,000 to 200,000 element accesses
    per second, and memory about 500 bytes per accessed element: launch few threads.

    Args:
        kernel: a plain function, one decorated by `cuda.jit` or `synknumba.parallel`, or a `simt` kernel.
        races: whether to detect races.
        uninitialized: whether to detect reads of uninitialised elements.
        early_returns: whether to report threads that return before a barrier that others of their block reach. CUDA's
            programming guide requires all threads to reach a barrier; GPUs since Volta (2017) do not wait for threads that
            have returned.

    Raises:
        KernelCheckError: at launch: the findings. By the first of them it is a `BoundsError`, `DivergenceError`, `RaceError` or
            `UninitializedError`, or this class itself for an exception of Python's in a thread.
        KernelError: at launch: the kernel uses an unsupported feature.
        Exception: at launch: what `raise` and `assert` in the kernel raise; notes give line, thread and earlier findings.
    """
    make_watch = functools.partial(_CheckWatch, races=races, uninitialized=uninitialized, early_returns=early_returns)
    return PythonKernel(kernel, "check", make_watch)
