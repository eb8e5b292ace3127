"""`simt.check`: detects races, out-of-bounds accesses and divergence, as compute-sanitizer does, without a GPU."""

import functools
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast, final

import numpy as np
from numba import typeof
from numba.core import types
from numba.core.errors import NumbaError

from synknumba._errors import (
    Access,
    Finding,
    KernelCheckError,
    KernelCheckWarning,
    KernelError,
    RaceError,
    UninitializedError,
)
from synknumba.simt._debugger.arrays import Array, TrackedMemory, Watch, record_memory
from synknumba.simt._debugger.compiled import CompiledLaunch, is_ready, program_of, unavailable
from synknumba.simt._debugger.cuda import Dim3
from synknumba.simt._debugger.findings import access, described, fault_advice, outside_finding, user_frame
from synknumba.simt._debugger.instrument import NotInstrumentedError
from synknumba.simt._debugger.launch import PythonKernel
from synknumba.simt._debugger.program import DebugProgram
from synknumba.simt._debugger.run import DebugLaunch, Launch
from synknumba.simt._debugger.shadow import Cell, Past, Shadow, present
from synknumba.simt._debugger.warp import WARP_SIZE

# Later findings are mostly consequences of earlier ones.
MOST_FINDINGS: Final = 20

_UNWRITTEN: Final = "write to every element before any thread reads it, with a barrier between; new memory is not initialised"


@final
class _CheckWatch(Watch):
    """Collects findings and raises them when the launch ends."""

    def __init__(
        self,
        launch: Launch,
        *,
        races: bool,
        uninitialized: bool,
        early_returns: bool,
        patience: "_Patience | None" = None,
        stand_in: int = 0,
    ) -> None:
        super().__init__(launch)
        self._patience, self._stand_in = patience, stand_in
        self._unassigned: set[Any] = set()  # keys of findings
        self._races, self._uninitialized, self._early_returns = races, uninitialized, early_returns
        self._shadow = Shadow(blocks_order_themselves=launch.program.fences)
        self._cells: dict[int, Cell] = {}
        self._found: dict[Any, Finding] = {}

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(self._found.values())

    def finish(self) -> None:
        name = self.launch.program.name
        errors = tuple(finding for finding in self.findings if not finding.is_warning)
        warned = tuple(finding for finding in self.findings if finding.is_warning)
        if errors:
            raise errors[0].error(name, errors + warned)
        if warned:
            warnings.warn(KernelCheckWarning(name, warned), stacklevel=3)

    def ended_early(self, finding: Finding) -> None:
        if self._early_returns:
            self.add(finding)

    def fault(self, finding: Finding) -> bool:
        if self.launch.program.may_spin:  # other threads may wait for this one
            raise self.fail(finding) from None
        self.add(finding, finding.summary.partition(":")[0])
        return True

    def outside(self, array: Array, index: Any, what: str) -> None:
        self.add(outside_finding(self.launch.current, array, index, what))

    def add(self, finding: Finding, kind: str = "") -> None:
        """Adds a finding, or adds to the count of an earlier one of this kind on the same lines and array."""
        lines = sorted((access.what, access.filename, access.line) for access in finding.accesses)
        key = (finding.error, kind, finding.array, *lines)
        if key in self._found:
            self._found[key] = replace(self._found[key], times=self._found[key].times + finding.times)
        elif len(self._found) < MOST_FINDINGS:
            self._found[key] = finding
            self._unassigned |= {key} if kind == "unassigned" else set()

    # ---- variables that are read unassigned

    def unassigned(self, name: str) -> int:
        thread, frame = self.launch.current, user_frame()
        self.add(self.unassigned_finding(name, access("read", thread, frame.f_code, frame.f_lineno)), "unassigned")
        return self._stand_in

    @staticmethod
    def unassigned_finding(name: str, place: Access) -> Finding:
        """Returns the finding for a read of a variable that the thread has not assigned."""
        summary = f"UnboundLocalError: the variable {name} is read, and this thread has not assigned it"
        return Finding(KernelCheckError, summary, (place,), fault_advice("UnboundLocalError"))

    @property
    def has_unassigned(self) -> bool:
        """Whether a variable was read unassigned."""
        return bool(self._unassigned)

    def has_same_errors(self, other: "_CheckWatch") -> bool:
        """Returns whether the findings are of the same kinds, but for variables that were read unassigned."""
        return self._found.keys() - self._unassigned == other._found.keys() - other._unassigned

    def warn_of_unassigned(self) -> None:
        """Makes the findings of variables that were read unassigned warnings."""
        for key in self._unassigned:
            self._found[key] = replace(self._found[key], is_warning=True)

    def join(self, other: "_CheckWatch") -> None:
        """Adds the findings of another launch that are not among these."""
        for key, finding in other._found.items():
            if key not in self._found and len(self._found) < MOST_FINDINGS:
                self._found[key] = finding

    # ---- accesses

    def access(self, what: str, array: Array, index: Any, value: Any = None) -> None:
        memory = array.memory
        if self._patience is not None:
            self._patience.access(self.launch)
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
                now = present(self.launch, "read")
                self.add(self.unwritten_finding(memory, memory.index_of(address), _access_of(now)))

    def _race(self, memory: TrackedMemory, address: int, before: Past, now: Past) -> None:
        places = (_access_of(before), _access_of(now))
        self.add(self.race_finding(memory, memory.index_of(address), places, (before, now)))

    # ---- findings

    @staticmethod
    def unwritten_finding(memory: TrackedMemory, index: tuple[int, ...], place: Access) -> Finding:
        """Returns the finding for an element that is read before anything is written to it."""
        summary = f"index {list(index)} of {described(memory)} is read before anything is written to it"
        return Finding(UninitializedError, summary, (place,), _UNWRITTEN, memory.name, index)

    @staticmethod
    def race_finding(memory: TrackedMemory, index: tuple[int, ...], places: tuple[Access, Access], sides: Any) -> Finding:
        """Returns the finding for two accesses that race; `sides` have the attributes `thread`, `line` and `what`."""
        summary = f"race at index {list(index)} of {described(memory)}: these two accesses are not synchronised"
        return Finding(RaceError, summary, places, _advice(*sides), memory.name, index)


def _access_of(past: Past) -> Access:
    return access(past.what, past.thread, past.code, past.line)


def _advice(before: Any, now: Any) -> str:
    first, second = before.thread, now.thread
    if first.block != second.block:
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


class _ChangeOver(BaseException):
    """Ends a launch in Python that is to be made again in compiled code."""


class _Patience:
    """Decides while a launch runs in Python whether compiled code takes over.

    Args:
        compile_it: compiles the kernel; returns whether that was possible.
        is_ready: returns whether it is compiled already.
    """

    def __init__(self, compile_it: Callable[[], bool], is_ready: Callable[[], bool]) -> None:
        self._compile, self._is_ready = compile_it, is_ready
        self._began, self._accesses = time.perf_counter(), 0
        self._has_looked = self._is_settled = False

    def access(self, launch: Launch) -> None:
        """Counts an access; raises _ChangeOver if compiled code shall run the launch."""
        self._accesses += 1
        if self._accesses % 64 or self._is_settled:
            return
        seconds = time.perf_counter() - self._began
        if not self._has_looked and seconds > LOOK_SECONDS:
            self._has_looked = True
            if self._is_ready():
                self._change()
        if seconds > PYTHON_SECONDS or seconds * _blocks_in_all(launch) > WORTH_SECONDS:
            self._change()

    def _change(self) -> None:
        self._is_settled = True
        if self._compile():
            raise _ChangeOver


# Values of a variable that is read unassigned: those of a launch, and of another one that shows whether they matter.
STAND_INS: Final = (0, 101)
# Accesses of a further launch, beyond four times those of the first.
FURTHER_ACCESSES: Final = 1_000_000
# Python runs a launch for this long, and then at most as long again until compiled code, which takes 0.3 s or more, is ready.
PYTHON_SECONDS: Final = 0.5
# Compiled code takes over earlier if the launch would take longer than this, by the blocks that have run.
WORTH_SECONDS: Final = 1.0
# Code that was compiled before takes over after this.
LOOK_SECONDS: Final = 0.02


def _blocks_in_all(launch: Launch) -> float:
    """Returns the number of blocks of a launch divided by that of the blocks that have run, the present one by half."""
    grid, (x, y, z) = launch.grid, launch.current.block_index
    return grid.x * grid.y * grid.z / (x + grid.x * (y + grid.y * z) + 0.5)


class CheckedKernel(PythonKernel):
    """A kernel under the checker; the result of `check`."""

    def __init__(self, kernel: Any, options: dict[str, bool], compiled: bool | None) -> None:
        super().__init__(kernel, "check", functools.partial(_CheckWatch, **options))
        self.options, self._compiled = options, compiled

    @property
    def compiled(self) -> bool | None:
        """Whether launches run in compiled code, as for `check`."""
        return self._compiled

    stand_ins = True

    def _run(self, program: DebugProgram, grid: Dim3, block: Dim3, smem: int, args: tuple[Any, ...]) -> Watch:
        launch = _Launch(self, program, grid, block, smem, args)
        if self._compiled is False or (self._compiled is None and (unavailable() or not launch.is_plain)):
            return launch.in_python()
        if self._compiled is None:
            try:
                return launch.in_python(_Patience(launch.can_be_compiled, launch.is_ready))
            except _ChangeOver:
                launch.before.restore()
        return launch.compiled()


@dataclass(frozen=True, slots=True)
class _Launch:
    """A checked launch: its kernel, sizes and arguments, and the arrays before it."""

    kernel: CheckedKernel
    program: DebugProgram
    grid: Dim3
    block: Dim3
    smem: int
    args: tuple[Any, ...]
    is_plain: bool = field(init=False)
    before: "Contents" = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_plain", _are_plain(self.args))
        is_kept = self.is_plain and (self.kernel.compiled is not False or self.program.may_be_unassigned)
        object.__setattr__(self, "before", Contents(self.args if is_kept else ()))

    @property
    def kinds(self) -> tuple[types.Type, ...]:
        """Numba's types of the arguments."""
        return tuple(map(typeof, self.args))

    def is_ready(self) -> bool:
        """Returns whether the kernel is compiled already."""
        return is_ready(self.kernel.py_func, self.kinds)

    def can_be_compiled(self) -> bool:
        """Compiles the kernel; returns whether that was possible."""
        try:
            program_of(self.kernel.py_func).entry(self.kinds)
        except Exception:  # noqa: BLE001  # Numba raises many types; the launch goes on in Python
            return False
        return True

    # ---- in Python

    def in_python(self, patience: _Patience | None = None) -> _CheckWatch:
        """Runs the launch in Python."""

        def run(stand_in: int) -> _CheckWatch:
            make_watch = functools.partial(_CheckWatch, **self.kernel.options, patience=patience, stand_in=stand_in)
            made = DebugLaunch(self.program, self.grid, self.block, self.smem, make_watch)
            made.run(self.args)
            return cast(_CheckWatch, made.watch)

        watch = run(STAND_INS[0])
        self._look_at_unassigned(watch, run)
        return watch

    def _look_at_unassigned(self, watch: _CheckWatch, run: Callable[[int], _CheckWatch]) -> None:
        """Runs the launch with another value of the variables that were read unassigned, to see whether it matters."""
        if not watch.has_unassigned or not self.is_plain:
            return
        after = Contents(self.args)
        self.before.restore()
        try:
            other = run(STAND_INS[1])
        except Exception:  # noqa: BLE001  # of the kernel, such as an assertion
            return
        else:
            if after.are_equal() and other.has_same_errors(watch):
                watch.warn_of_unassigned()
        finally:
            after.restore()

    # ---- in compiled code

    def compiled(self) -> _CheckWatch:
        """Runs the launch in compiled code, with the threads of a block in order and then in reverse order."""
        function = self.kernel.py_func
        try:
            checked = program_of(function)
            checked.entry(self.kinds)
        except (NotInstrumentedError, NumbaError) as error:
            name = f"{function.__qualname__} ({function.__code__.co_filename}:{function.__code__.co_firstlineno})"
            raise KernelError(f"{name} cannot be checked in compiled code: {error}; leave out compiled=True") from error

        limit: int | None = None

        def run(stand_in: int, *, reverse: bool = False) -> _CheckWatch:
            nonlocal limit
            options = {name: self.kernel.options[name] for name in ("races", "uninitialized")}
            make_watch = functools.partial(_CheckWatch, **self.kernel.options)
            sizes = self.grid, self.block, self.smem
            made = CompiledLaunch(
                self.program, checked, *sizes, make_watch, self.args,
                reverse=reverse, stand_in=stand_in, most=limit, **options,
            )
            made.run()
            if limit is None:  # with races or another value, loops of further launches may never end
                limit = FURTHER_ACCESSES + 4 * made.accesses
            return cast(_CheckWatch, made.watch)

        watch = run(STAND_INS[0])
        self._look_at_unassigned(watch, run)
        if not self.program.may_spin:  # threads that wait for those before them would never end
            after = Contents(self.args)
            self.before.restore()
            try:
                # What the kernel raises in this order only, as an assertion, is a consequence.
                with suppress(Exception):
                    watch.join(run(STAND_INS[0], reverse=True))
            finally:
                after.restore()
        return watch


class Contents:
    """The contents of the arrays and records among the arguments of a launch."""

    def __init__(self, args: tuple[Any, ...]) -> None:
        self._kept = [(array, array.copy()) for array in _arrays(args) if array.flags.writeable]

    def restore(self) -> None:
        """Sets the arrays to what they were."""
        for array, copy in self._kept:
            array[...] = copy

    def are_equal(self) -> bool:
        """Returns whether the arrays are the same, byte for byte."""
        return all(array.tobytes() == copy.tobytes() for array, copy in self._kept)


def _arrays(args: tuple[Any, ...]) -> Iterator[np.ndarray[Any, Any]]:
    for arg in args:
        if isinstance(arg, np.ndarray):
            yield arg
        elif isinstance(arg, np.void):
            yield record_memory(arg)
        elif isinstance(arg, tuple):
            yield from _arrays(arg)


def _are_plain(args: tuple[Any, ...]) -> bool:
    """Returns whether the arguments are NumPy's arrays, numbers, records, and tuples of them, of at most 1 GiB."""
    plain = all(type(arg) is np.ndarray or isinstance(arg, (bool, int, float, complex, np.generic, tuple)) for arg in args)
    return plain and sum(array.nbytes for array in _arrays(args)) <= MOST_BYTES


# Arrays are copied before a launch that may be made again.
MOST_BYTES: Final = 1 << 30


def check(
    kernel: Any,
    *,
    races: bool = True,
    uninitialized: bool = True,
    early_returns: bool = True,
    compiled: bool | None = None,
) -> PythonKernel:
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
    options = {"races": races, "uninitialized": uninitialized, "early_returns": early_returns}
    return CheckedKernel(kernel, options, compiled)
