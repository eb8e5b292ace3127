"""`simt.check`: detects races, out-of-bounds accesses and divergence, as compute-sanitizer does,
without a GPU.

launch ── in Python ──> ended within half a second: the findings
             └── longer ──> compiled (or loaded) ── arrays as they were ──> in compiled code, forward
                                               └── arrays as they were ──> again with the threads in reverse order
"""  # noqa: E501

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np
from numba import typeof
from numba.core import types
from numba.core.errors import NumbaError

from synknumba._errors import KernelError
from synknumba.simt._checker.compiled import CompiledLaunch, is_ready, program_of, unavailable
from synknumba.simt._checker.instrument import NotInstrumentedError
from synknumba.simt._checker.watch import Checks, CheckWatch
from synknumba.simt._explain.numba_says import innermost
from synknumba.simt._python.arrays import FURTHER_STAND_INS, STAND_IN, StandIn, Watch, record_memory
from synknumba.simt._python.cuda import Dim3
from synknumba.simt._python.launch import PythonKernel
from synknumba.simt._python.program import DebugProgram
from synknumba.simt._python.run import DebugLaunch, Launch


class _ChangeOver(BaseException):
    """Ends a launch in Python that is to be made again in compiled code.

    Attributes:
        watch: that of the launch, for warnings of values, which compiled code does not see.
    """

    def __init__(self, watch: CheckWatch) -> None:
        super().__init__(watch)
        self.watch = watch


def _is_debugged() -> bool:
    """Returns whether a debugger looks at the lines that run, which would see nothing of
    compiled code.
    """
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    return sys.gettrace() is not None or (
        monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None
    )


class _TakeoverPolicy:
    """Decides while a launch runs in Python whether compiled code takes over.

    Args:
        compile_it: compiles the kernel; returns whether that was possible.
        is_ready: returns whether it is compiled already.
        operations: number of operations in the kernel's source, by which compiling takes longer.
    """

    def __init__(
        self, compile_it: Callable[[], bool], is_ready: Callable[[], bool], operations: int
    ) -> None:
        self._compile, self._is_ready = compile_it, is_ready
        self._factor = max(1.0, operations / SHORT_KERNEL)
        self._began, self._accesses = time.perf_counter(), 0
        self._has_looked, self._is_settled = False, _is_debugged()

    def access(self, launch: Launch) -> None:
        """Counts an access; raises _ChangeOver if compiled code shall run the launch."""
        self._accesses += 1
        if self._accesses % 64 or self._is_settled:
            return
        seconds = time.perf_counter() - self._began
        if not self._has_looked and seconds > LOOK_SECONDS:
            self._has_looked = True
            if self._is_ready():
                self._change(launch)
        seconds /= self._factor
        if seconds > PYTHON_SECONDS or seconds * _blocks_in_all(launch) > WORTH_SECONDS:
            self._change(launch)

    def _change(self, launch: Launch) -> None:
        self._is_settled = True
        if self._compile():
            raise _ChangeOver(cast(CheckWatch, launch.watch))


# Accesses of a further launch, beyond four times those of the first.
FURTHER_ACCESSES: Final = 1_000_000
# Operations of a kernel that is compiled in half a second; each further one takes 5 ms.
SHORT_KERNEL: Final = 100
# Python runs a launch of a short kernel for this long, and then at most as long again until
# compiled code is ready.
PYTHON_SECONDS: Final = 0.5
# Compiled code takes over earlier if the launch would take longer than this, by the blocks that
# have run.
WORTH_SECONDS: Final = 1.0
# Code that was compiled before takes over after this.
LOOK_SECONDS: Final = 0.02


def _blocks_in_all(launch: Launch) -> float:
    """Returns the number of blocks of a launch divided by that of the blocks that have run, the
    present one by half.
    """
    grid, (x, y, z) = launch.grid, launch.current.block_index
    return grid.x * grid.y * grid.z / (x + grid.x * (y + grid.y * z) + 0.5)


class CheckedKernel(PythonKernel):
    """A kernel under the checker; the result of `check`.

    Attributes:
        checks: what it looks for.
        compiled: whether launches run in compiled code, as for `check`.
    """

    def __init__(self, kernel: Any, checks: Checks, compiled: bool | None) -> None:
        super().__init__(kernel, "check", functools.partial(CheckWatch, checks=checks))
        self.checks, self.compiled = checks, compiled

    stand_ins = True

    def _run(
        self, program: DebugProgram, grid: Dim3, block: Dim3, smem: int, args: tuple[Any, ...]
    ) -> Watch:
        launch = _Launch(self, program, grid, block, smem, args)
        if self.compiled is True:
            return launch.compiled()
        if self.compiled is False or not launch.is_plain or unavailable():
            return launch.in_python()
        takeover = _TakeoverPolicy(launch.can_be_compiled, launch.is_ready, program.operations)
        try:
            return launch.in_python(takeover.access)
        except _ChangeOver as change:
            launch.before.restore()
            watch = launch.compiled()
            watch.join(change.watch, only_warnings=True)
            return watch


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
        may_run_again = self.kernel.compiled is not False or self.program.may_be_undefined
        copied: tuple[Any, ...] = ()
        if self.is_plain and may_run_again:
            copied = self.args
        object.__setattr__(self, "before", Contents(copied))

    @property
    def kinds(self) -> tuple[types.Type, ...]:
        """Numba's types of the arguments."""
        return tuple(map(typeof, self.args))

    def is_ready(self) -> bool:
        """Returns whether the kernel is compiled already."""
        return is_ready(self.kernel.py_func, self.kinds)

    def can_be_compiled(self) -> bool:
        """Compiles the kernel and reserves its memory once; returns whether that was possible."""
        try:
            program_of(self.kernel.py_func).entry(self.kinds)
            self._compiled_launch()
        except Exception:  # noqa: BLE001  # Numba raises many types; the launch goes on in Python
            return False
        return True

    # ---- in Python

    def in_python(self, progress: Callable[[Launch], None] | None = None) -> CheckWatch:
        """Runs the launch in Python."""

        def run(stand_in: StandIn) -> CheckWatch:
            make_watch = functools.partial(
                CheckWatch, checks=self.kernel.checks, progress=progress, stand_in=stand_in
            )
            launch = DebugLaunch(self.program, self.grid, self.block, self.smem, make_watch)
            launch.run(self.args)
            return cast(CheckWatch, launch.watch)

        watch = run(STAND_IN)
        self._look_at_undefined(watch, run)
        return watch

    def _look_at_undefined(self, watch: CheckWatch, run: Callable[[StandIn], CheckWatch]) -> None:
        """Runs the launch with other values in place of undefined ones, to see whether they
        matter.
        """
        if not watch.has_undefined or not self.is_plain:
            return
        after = Contents(self.args)
        try:
            for stand_in in FURTHER_STAND_INS:
                self.before.restore()
                if run(stand_in).errors != watch.errors or not after.are_equal():
                    return
            watch.excuse_undefined()
        except Exception:  # noqa: BLE001  # of the kernel, such as an assertion
            return
        finally:
            after.restore()

    # ---- in compiled code

    def compiled(self) -> CheckWatch:
        """Runs the launch in compiled code, with the threads of a block in order and then in
        reverse order.
        """
        function = self.kernel.py_func
        try:
            program_of(function).entry(self.kinds)
        except (NotInstrumentedError, NumbaError) as error:
            code = function.__code__
            where = f"{code.co_filename}:{code.co_firstlineno}"
            raise KernelError(
                f"{function.__qualname__} ({where}) cannot be checked in compiled code: "
                f"{innermost(error)}; leave out compiled=True"
            ) from error
        limit = sys.maxsize

        def run(stand_in: StandIn, *, reverse: bool = False) -> CheckWatch:
            nonlocal limit
            launch = self._compiled_launch(reverse=reverse, stand_in=stand_in, most=limit)
            launch.run()
            # with races or another value, loops of further launches may never end
            if limit == sys.maxsize:
                limit = FURTHER_ACCESSES + 4 * launch.accesses
            return launch.watch

        watch = run(STAND_IN)
        self._look_at_undefined(watch, run)
        if not self.program.may_spin:  # threads that wait for those before them would never end
            after = Contents(self.args)
            self.before.restore()
            try:
                # What the kernel raises in this order only, as an assertion, is a consequence.
                with suppress(Exception):
                    watch.join(run(STAND_IN, reverse=True))
            finally:
                after.restore()
        return watch

    def _compiled_launch(self, *, stand_in: StandIn = STAND_IN, **options: Any) -> CompiledLaunch:
        checks = self.kernel.checks
        make_watch = functools.partial(CheckWatch, checks=checks, stand_in=stand_in)
        checked, sizes = program_of(self.kernel.py_func), (self.grid, self.block, self.smem)
        return CompiledLaunch(
            self.program,
            checked,
            *sizes,
            make_watch,
            self.args,
            checks,
            stand_in=stand_in,
            **options,
        )


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
    """Returns whether the arguments are NumPy's arrays, numbers, records, and tuples of them, of
    at most 1 GiB.
    """
    plain = all(
        type(arg) is np.ndarray or isinstance(arg, (bool, int, float, complex, np.generic, tuple))
        for arg in args
    )
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
    """Returns a version of a kernel that runs with error checking, like NVIDIA's compute-sanitizer
    on a GPU.

    `simt.check(kernel)[grid, block, stream, smem](*args)` has the kernel's effect on the arrays,
    and raises at the end if it has detected errors. The exception lists up to 20 findings, each
    with array, index, lines and threads; its class is that of the first finding. `annotate` shows
    them at the lines of the source. Detected are:

    - Out-of-bounds indices. The launch continues: such a read returns 0, and such a write is
      skipped.
    - Barriers that only some threads of a block reach, or where threads wait at different barriers,
      which ends their block; warp operations that a lane named in the mask does not reach, unless
      it has ended.
    - Races on shared and global memory: two threads access an element, at least one writes, and no
      barrier orders them. Atomic operations do not race with each other, but they do with plain
      reads and writes. Writes of equal values do not race. Threads of different blocks race unless
      a grid barrier lies between; this is not checked if the kernel calls `threadfence`.
    - Reads of variables that the thread has not assigned. It goes on with 0. If other values leave
      the results and the other findings as they are, this is a warning, a `KernelCheckWarning` if
      there are no errors.
    - Floats with a fraction that are stored in arrays of ints, while it is in Python: a warning.
    - Reads of shared and local array elements before any write to them, if the value matters so.
    - Shuffles from lanes that do not take part, likewise. The lane goes on with its own value.
    - Exceptions of Python in a thread, such as the ValueError of `int(nan)`. The other threads
      continue.

    The check covers one execution, with these arguments. It begins in Python, with 100,000 to
    200,000 accesses to elements per second. What takes longer than half a second begins again in
    compiled code, a hundred times faster, with the arrays as they were; afterwards it runs there
    once more, with the threads of each block in reverse order, on arrays that are put back.
    What cannot be compiled goes on in Python. Compiled code is kept on disk as that of kernels is;
    memory is about 200 bytes per element.

    Args:
        kernel: a plain function, one decorated by `cuda.jit` or `synknumba.parallel`, or a `simt`
            kernel.
        races: whether to detect races.
        uninitialized: whether to detect reads of uninitialised elements.
        early_returns: whether to report threads that return before a barrier that others of their
            block reach. CUDA's programming guide requires all threads to reach a barrier; GPUs
            since Volta (2017) do not wait for threads that have returned.
        compiled: whether launches run in compiled code from the start, or never; by default they
            change over.

    Raises:
        KernelCheckError: at launch: the findings. By the first of them it is a `BoundsError`,
            `DivergenceError`, `RaceError` or `UninitializedError`, or this class itself for an
            exception of Python's in a thread.
        KernelError: at launch: the kernel uses an unsupported feature, or with `compiled=True`
            cannot be compiled.
        Exception: at launch: what `raise` and `assert` in the kernel raise; notes give line, thread
            and earlier findings.
    """
    return CheckedKernel(kernel, Checks(races, uninitialized, early_returns), compiled)
