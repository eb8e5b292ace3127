"""The device contract, between the executor, which knows programs, and a driver, which knows memory
and launches.

A rank has one device. The executor requests buffers and prepares steps (callables without
arguments) once, and runs the steps at every call. A driver

- *must* provide an array that it can launch with for every kernel argument, and copy results to
  host memory in `store`;
- *should* have no `load` where the kernel can work on the host rows directly;
- *may* make steps that are `Native` (`_wire/native.py`), which compiled code then runs in
  sequences, if its device shares
  memory, is compiled by `simt`, and does not queue work;
- *may* keep the storage of a slot between calls and between slices: buffers of one slot are never
  in use at the same time.

Drivers are final, override abstract methods only, and do not repeat the contract's documentation.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np

from synknumba._device.argmin_kernel import THREADS as LOCATING_THREADS
from synknumba._device.argmin_kernel import locating_kernels, search_grid
from synknumba._device.fold_kernel import THREADS, blocks_for, fold_kernel
from synknumba._errors import ReductionError
from synknumba._host.segment import Segment
from synknumba._host.stored import Reader
from synknumba._ops.rows import InLine, Range, Rows, Selection, line_number
from synknumba._types import Array, DeviceKind, Op, Shape, UserOp, WeakTable
from synknumba._wire.relaunch import Scalars

Step: TypeAlias = Callable[[], object]
# names of functions that steps call
_TOLD = {
    "call_slice": "function",
    "read_rows": "read rows",
    "copyto": "copy",
}
Three: TypeAlias = tuple[int, int, int]


class StrandedError(Exception):
    """Work on a device waits for a rank that has failed, and would do so for ever."""


def unmasked(value: Any) -> Array:
    """Returns a function's result as a NumPy array; refuses items whose mask would be lost."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ReductionError(
            f"a function returned a masked array of shape {value.shape}, but results have no mask; "
            "return value.filled(…), or the values and the mask as two arrays"
        )
    return np.asarray(value)


@dataclass(frozen=True, slots=True)
class DeviceTraits:
    """What a kind of device is like, for whoever must not import its driver.

    Where a device `shares_memory`, its arrays are in memory of the host, so that kernels work on
    rows, variables and results in segments directly, and the coordinator reaches all of them.
    Otherwise each rank's are its own.
    """

    shares_memory: bool
    # whether steps return before their work is done, so that `synchronize` must come before results
    # are read
    queues_work: bool
    # whether kernels are compiled by `synknumba.simt`, which can refuse one before it is sent
    compiled_by_simt: bool
    has_long_double: bool  # in kernels, and complex numbers of it


TRAITS: Mapping[DeviceKind, DeviceTraits] = {
    "cpu": DeviceTraits(
        shares_memory=True, queues_work=False, compiled_by_simt=True, has_long_double=True
    ),
    "cuda": DeviceTraits(
        shares_memory=False, queues_work=True, compiled_by_simt=False, has_long_double=False
    ),
}


@dataclass(frozen=True, slots=True)
class Buffer:
    """A kernel argument, and the steps that copy it from and to the host; None where there is
    nothing to copy.
    """

    array: Any  # on the device; on the CPU it may be the host rows themselves
    load: Step | None = None
    store: Step | None = None


@dataclass(frozen=True, slots=True)
class Gather:
    """A step that gathers the rows of a line, whose number is among its arguments, as a kernel's
    scalars are.
    """

    step: Step
    arguments: list[Any]
    position: int  # of the number of the line
    lines: int  # that there are

    def take(self, line: int) -> None:
        """Changes the number of the line."""
        self.arguments[self.position] = np.int64(line_number(line, self.lines))


@dataclass(frozen=True, slots=True)
class LineRows:
    """A kernel argument with the rows of a line, and the gather that brings them.

    `ahead` returns a gather into memory of its own, beside other work (`Device.beside`), and a step
    that takes the rows from there into the array; None if the device gathers nothing ahead.
    """

    array: Any
    gather: Gather
    ahead: Callable[[], tuple[Gather, Step]] | None = None


@dataclass(slots=True)
class SliceSteps:
    """The steps of one slice, in three parts that a device may overlap with those of other
    slices.
    """

    loads: list[Step] = field(default_factory=list)  # copies to the device
    work: list[Step] = field(default_factory=list)  # launches, and copies on the device
    stores: list[Step] = field(default_factory=list)  # copies to the host


class Workspace(ABC):
    """The device memory of one program, by slot."""

    turns: int = 1  # buffers of each sliced argument; slice k uses buffer k % turns
    # how often a slot's memory was replaced by a larger one; arrays made before still hold the old
    # one
    replaced: int = 0

    def in_order(self, slices: Sequence[SliceSteps]) -> list[Step]:
        """Returns the steps of all slices in the order to run them; by default by slice."""
        steps: list[Step] = []
        for slice_steps in slices:
            steps += (*slice_steps.loads, *slice_steps.work, *slice_steps.stores)
        return steps

    @abstractmethod
    def rows(self, slot: object, host: Array, rows: Rows, *, writable: bool) -> Buffer:
        """Returns a buffer of rows of a host array, in order and C-contiguous.

        Args:
            slot: key of the storage; buffers of one slot share it.
            host: array in a segment; `rows` select along axis 0.
            rows: at least one row; a `Listed` selection is read again at each load.
            writable: whether the kernel may write; if so, `store` copies the rows back. If not, the
                array must refuse writes where it is the host's own memory.
        """

    @abstractmethod
    def held_rows(self, slot: object, array: Any, rows: Rows, *, writable: bool) -> Buffer:
        """Returns a buffer of rows of a device array, in order and C-contiguous; otherwise like
        `rows`.
        """

    def line_rows(self, slot: object, host: Array, rows: InLine) -> LineRows | None:
        """Returns a read-only buffer of the rows of a line; None if the line cannot be changed."""
        return None

    @abstractmethod
    def stored(self, slot: object, reader: Reader, dtype: Any, shape: Shape, rows: Rows) -> Buffer:
        """Returns a buffer of rows, at least one, of an array in a file, whose `load` reads them;
        read-only where it can be.

        `shape` is that of the buffer.
        """

    def expect(self, host: Array, rows: Selection) -> None:
        """Announces that `rows` will be requested, perhaps in parts; does nothing by default."""

    @abstractmethod
    def whole(self, slot: object, host: Array) -> Buffer:
        """Returns a buffer of a whole host array, read-only where it is the host's own memory."""

    @abstractmethod
    def output(self, slot: object, host: Array) -> Buffer:
        """Returns a buffer for a kernel to write, with the shape and dtype of `host`, the target of
        `store`.

        With slot None its memory is not shared, and lives as long as the array.
        """

    @abstractmethod
    def scratch(self, slot: object, dtype: Any, shape: Shape) -> Any:
        """Returns an uninitialised array that has no counterpart on the host."""

    @abstractmethod
    def storage(self, slot: object) -> object:
        """Returns the object that holds a slot's memory, by whose identity a replacement shows;
        None if there is none.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees the storage."""


def read_rows(reader: Reader, target: Array, rows: Rows) -> None:
    """Reads rows of an array in a file into host memory."""
    if isinstance(rows, Range) and rows.step > 0:
        reader.read(target, rows.selector)
    else:
        reader.read(target, rows.indices)


class DeviceKernel(ABC):
    """A kernel of a device, compiled for each new signature at `bind` or at the first launch."""

    @abstractmethod
    def bind(
        self, grid: Three, block: Three, smem_bytes: int, args: list[Any], changing: Sequence[int]
    ) -> Step:
        """Returns a step that launches the kernel; it need not wait for the launch to end.

        Args:
            grid: blocks along each axis.
            block: threads of a block along each axis.
            smem_bytes: dynamic shared memory of a block, in bytes.
            args: arguments from `convert`. The step reads the list each time it is run.
            changing: positions of scalars that may be replaced by others of the same types.
        """

    def convert(self, arg: Any) -> Any:
        """Returns an argument in the form that launches fastest; by default the argument itself."""
        return arg


class Recording(ABC):
    """Recorded steps, repeated by one launch.

    Launches are waited for, as those of a call are (`Device.record`), or queued one behind the
    other (`Device.record_queued`). Steps are addressed by their positions in the recording.

    Attributes:
        relaunch: address of the `_wire.relaunch.Relaunch` by which compiled code launches the
            steps; 0 if there is none.
    """

    relaunch: int = 0

    @abstractmethod
    def launch(self) -> None:
        """Launches the steps and waits for their end."""

    @abstractmethod
    def queue(self) -> None:
        """Queues a launch behind the one before."""

    @abstractmethod
    def wait(self) -> None:
        """Waits for the end of the last launch."""

    @abstractmethod
    def renew(self, first: int = 0, after: int | None = None) -> bool:
        """Gives steps the scalars that their argument lists have now, from the next launch on.

        Launches that are queued keep theirs. Returns False if that is not possible; the recording
        must not be launched then.
        """

    @abstractmethod
    def scalars(self, first: int = 0, after: int | None = None) -> Scalars | None:
        """Returns where steps have their scalars, for compiled code that renews them; None if
        compiled code cannot.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees the recording, after its launches have ended; idempotent."""


class ResultRing(ABC):
    """Results of iterations, which stay on the device until the host takes those of all."""

    @abstractmethod
    def step(self, copies: Sequence[Step]) -> Step:
        """Returns the step at the end of an iteration, which keeps what these copies to a line of
        host memory (`Device.only_copies_to`) would bring there.
        """

    @abstractmethod
    def begin(self, entries: int, period: int) -> None:
        """Has the step keep every `period`-th iteration from now on, `entries` in all."""

    @abstractmethod
    def take(self, lines: Array) -> None:
        """Copies what was kept to the host, uint8, shape (entries, bytes); bytes that no copy has
        named are of no use.
        """


class RecordedCall(ABC):
    """A call of a Python function that is recorded when it is first made."""

    @abstractmethod
    def __call__(self) -> Any:
        """Makes the call, and returns its result.

        Raises:
            RecordError: the function does what a recording cannot repeat.
        """

    @abstractmethod
    def step(self) -> tuple[Step, Any] | None:
        """Returns a step that repeats the call on the stream, and the arrays of its results; None
        before the first call.

        The arrays belong to the step. It can be recorded with other steps.
        """


class Recorder(ABC):
    """Records the calls of one Python function, which then run without Python."""

    @abstractmethod
    def recorded(
        self, call: Callable[[], Any], arguments: Any, written: Sequence[Any]
    ) -> RecordedCall:
        """Returns a call that is recorded when it is first made.

        Args:
            call: calls the function, with the device's scope as context.
            arguments: tree of its arguments.
            written: the arrays among them that it may write.

        Raises:
            RecordError: an argument is neither an array nor a number.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees the recordings."""


class Device(ABC):
    """One GPU, or one core, and its memory; made in a rank, after the fork."""

    kind: DeviceKind
    stream: Any = None  # of all steps; None if the device has no streams

    # Called with a segment's id before its memory is page-locked anew; recordings that use it are
    # then invalid.
    when_moved: Callable[[int], None] | None = None
    # Whether another rank has failed in this round, so that work which waits for it may never end.
    others_failed: Callable[[], bool] = staticmethod(lambda: False)

    @property
    def traits(self) -> DeviceTraits:
        """What devices of this kind are like."""
        return TRAITS[self.kind]

    @abstractmethod
    def workspace(self, *, sliced: bool = False) -> Workspace:
        """Returns the memory of one program; `sliced` if its slices may overlap."""

    def on_stream(self, step: Step) -> Step:
        """Marks a step of a communicator, which only puts work on the stream: it can be
        recorded, and meets other ranks.
        """
        return step

    def record(self, steps: Sequence[Step], *, alone: bool = True) -> Recording | None:
        """Records steps that were run before, without running them; None if that is impossible or
        of no use.

        `alone` if nothing but the recording runs them from now on, so that private arrays may be
        filled ahead.
        """
        return None

    def record_queued(self, steps: Iterable[Step]) -> Recording | None:
        """Records steps that were run before, for launches that are queued; None if impossible.

        `can_queue` holds for all of them. Each is recorded with the arguments that it has when it
        is taken.
        """
        return None

    def can_queue(self, steps: Sequence[Step]) -> bool:
        """Whether steps only put work on the device's stream, so that they need not wait for
        each other's end.
        """
        return False

    def only_copies_to(self, host: Array, step: Step) -> bool:
        """Whether a step only copies to this host memory, so that it can be left out where the
        copy is not read.
        """
        return False

    def result_ring(self, line: Array) -> ResultRing | None:
        """Returns what keeps copies to a line of host memory on the device; None if there is no
        such thing.
        """
        return None

    def marker(self) -> Callable[[], bool]:
        """Returns a function that tells whether the work now on the stream is done."""
        return lambda: True

    def beside(self) -> tuple[list[Step], list[Step]] | None:
        """Returns steps that begin and end work beside that of the stream, such as gathers
        ahead; None if there is none.
        """
        return None

    def told(self, step: Step) -> tuple[str, int]:
        """Returns what a step does, in a word or two, and how many bytes it moves, as far as
        that shows; for traces.
        """
        if isinstance(getattr(step, "__self__", None), Recording):
            return "recorded steps", 0
        if not isinstance(step, partial):
            return str(getattr(step, "__name__", type(step).__name__)).strip("_"), 0
        target = step.keywords.get(
            "out", next((arg for arg in step.args if hasattr(arg, "nbytes")), None)
        )
        name = str(getattr(step.func, "__name__", type(step.func).__name__)).strip("_")
        return _TOLD.get(name, name), int(getattr(target, "nbytes", 0))

    def timeline(self, step: Step | None = None) -> Any:
        """Returns what can be marked before and after a step to tell when its work is done, such as
        its stream.

        None if the host's clock tells, or the step does nothing that takes time there.
        """
        return None

    def mark(self, timeline: Any, mark: Any = None) -> Any:
        """Marks the place that a timeline has reached, with a mark that may be used anew;
        `since` tells when that was.
        """
        return None

    def since(self, first: Any, second: Any) -> int:
        """Returns the nanoseconds from one mark to another, both of which have been passed."""
        return 0

    def drop_mark(self, mark: Any) -> None:
        """Frees a mark."""

    def enter(self, name: str) -> None:
        """Has profilers of the device show what is done until `leave` under a name."""

    def leave(self) -> None:
        """Ends what `enter` has begun."""

    def recorder(self, name: str) -> "Recorder | None":
        """Returns what records the calls of a Python function; None if Python is not what its
        calls wait for.
        """
        return None

    @abstractmethod
    def kernel(self, function: Callable[..., Any], options: Mapping[str, Any]) -> DeviceKernel:
        """Returns the kernel of a plain Python function in Numba's CUDA dialect, with the
        options of `cuda.jit`.
        """

    @abstractmethod
    def fill(self, array: Any, value: Any, *, private: bool = False) -> Step:
        """Returns a step that sets every element of a device array to a NumPy scalar of its dtype.

        `private` if only steps that are recorded with this one write the array.
        """

    @abstractmethod
    def memory(self, nbytes: int) -> Any:
        """Allocates device memory, for `view`; freed with its last reference."""

    @abstractmethod
    def view(self, memory: Any, offset: int, dtype: Any, shape: Shape) -> Any:
        """Returns a writable array at `offset` bytes of `memory`."""

    def read_only(self, array: Any) -> Any:
        """Returns the array, read-only if the device has that; by default the array itself."""
        return array

    @abstractmethod
    def copy(self, target: Any, source: Any) -> Step:
        """Returns a step that copies a device array to another of the same shape and dtype; both
        C-contiguous.
        """

    @abstractmethod
    def upload(self, target: Any, host: Array) -> Step:
        """Returns a step that copies a host array to a device array, both C-contiguous."""

    @abstractmethod
    def download(self, host: Array, source: Any) -> Step:
        """Returns a step that copies a device array to a host array, both C-contiguous;
        `synchronize` waits for it.
        """

    @abstractmethod
    def accumulate(self, op: Op, target: Any, source: Any, weight: int = 1) -> Step:
        """Returns a step that accumulates a device array into another: target ← target op source.

        Like `_ops.reduction.accumulate`: None accumulates as "sum", and "mean" as target + weight ·
        source.
        """

    def fold(self, op: UserOp, target: Any, source: Any) -> Step:
        """Like `accumulate` with a user's op, by a kernel of the device."""
        kernel = self._folds.get(op)
        if kernel is None:
            kernel = self._folds[op] = self.kernel(fold_kernel(op), {})
        args = [kernel.convert(target.reshape(-1)), kernel.convert(source.reshape(1, -1))]
        return kernel.bind((blocks_for(target.size), 1, 1), (THREADS, 1, 1), 0, args, ())

    def locate(self, op: Op, values: Any, rows: Any, scores: Any, first: int) -> Sequence[Step]:
        """Returns steps that merge the best of some rows into the best so far, like
        `_ops.reduction.locate`.

        By default they launch two kernels of the device.

        Args:
            op: "argmin" or "argmax".
            values: best scores so far: device array, shape (m,).
            rows: their rows: device array, int64, shape (m,).
            scores: device array, shape (n, m), n ≥ 1.
            first: row number of scores[0].
        """
        dtype, (count, columns) = values.dtype, scores.shape
        if not columns:
            return []
        if (op, dtype) not in self._locating:
            search, settle = locating_kernels(str(op), dtype)
            self._locating[op, dtype] = [self.kernel(search, {}), self.kernel(settle, {})]
        search_kernel, settle_kernel = self._locating[op, dtype]
        grid, block = search_grid(count, columns), (LOCATING_THREADS, 1, 1)
        shape = grid[0], columns
        best_scores = self.view(self.memory(grid[0] * columns * dtype.itemsize), 0, dtype, shape)
        best_rows = self.view(self.memory(grid[0] * columns * 8), 0, np.dtype(np.int64), shape)
        searching = [*map(search_kernel.convert, (scores, first, best_scores, best_rows))]
        settling = [*map(settle_kernel.convert, (best_scores, best_rows, values, rows))]
        return [
            search_kernel.bind(grid, block, 0, searching, ()),
            settle_kernel.bind((1, *grid[1:]), block, 0, settling, ()),
        ]

    @cached_property
    def _locating(self) -> dict[tuple[Op, Any], list[DeviceKernel]]:
        return {}  # search and settle, by op and dtype

    @cached_property
    def _folds(self) -> "WeakTable[UserOp, DeviceKernel]":
        return WeakTable()

    @abstractmethod
    def divide(self, target: Any, divisor: int) -> Step:
        """Returns a step that divides an array of floating-point or complex numbers in place."""

    @abstractmethod
    def to_host(self, value: Any) -> Array:
        """Copies a result to a NumPy array, 0-d for a scalar; waits for it."""

    def leaf(self, value: Any) -> Any:
        """Returns a function's result as an array with dtype and shape, for `put`; by default
        like `to_host`.
        """
        return self.to_host(value)

    def put(self, host: Array, leaf: Any) -> None:
        """Copies a leaf to a host array; complete after `synchronize`."""
        host[...] = leaf

    @abstractmethod
    def scope(self) -> AbstractContextManager[object]:
        """Returns the context that Python functions run in, so that their work goes to the
        device's stream.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Waits for all steps so far.

        Raises:
            StrandedError: one of them waits for a rank that has failed. The device is of no use
                then.
        """

    def memory_use(self) -> tuple[int | None, int | None]:
        """Returns the device bytes that this rank has allocated and that are free; None where
        memory is the host's.
        """
        return None, None

    @abstractmethod
    def rate(self, seconds: float) -> float:
        """Returns how fast the device works while others do, too: units of copying and
        arithmetic per second, for so long.
        """

    def recover(self) -> bool:
        """Waits for pending work after an exception. Returns whether the device is still usable."""
        self.synchronize()
        return True

    def explain(self, error: BaseException) -> str:
        """Returns text to add to an exception's message; by default none."""
        return ""

    def attach(self, segment: Segment, *, whole: bool = False) -> None:
        """Called when a segment is mapped; a driver may page-lock it, at once if the `whole`
        will be used.
        """

    def detach(self, segment: Segment) -> None:
        """Called before a segment is unmapped; by default does nothing."""

    @abstractmethod
    def close(self) -> None:
        """Frees everything; idempotent."""
