"""`simt.check` in compiled code: translation of an instrumented kernel, and its launch.

    source ── instrument ──> lowering ── Lowered ──> code of one thread ── Numba ──> machine code, kept on disk
                                                                                       │
    blocks ──> `advance` (compiled): threads as coroutines, accesses into the shadow ──┘
                  │ warp operations, divergence, grid barriers, exceptions
                  └──> `Block.settle` (Python), as for threads that are generators

A finding of compiled code is the same `Finding` as one of Python's: array, index, lines, threads,
advice.
"""  # noqa: E501

import ast
import ctypes
import math
import platform
import sys
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any, Final, cast

import numpy as np
from numba import typeof
from numba.core import types

from synknumba._errors import Access, KernelError
from synknumba._types import WeakTable
from synknumba.simt._checker import layout, runtime, thread_operations
from synknumba.simt._checker.compiled_findings import CompiledFindings, access_at
from synknumba.simt._checker.instrument import KINDS, Lowered, Sites
from synknumba.simt._checker.launch_memory import LaunchMemory
from synknumba.simt._checker.watch import Checks, CheckWatch
from synknumba.simt._emit.device_functions import with_devices
from synknumba.simt._emit.generated import define_function
from synknumba.simt._emit.options import Options
from synknumba.simt._library.runtime import HELPERS
from synknumba.simt._library.words import LINEAR, STATE, WARP_SIZE
from synknumba.simt._lower.lowering import DeviceFunctions, translate_names
from synknumba.simt._machine import codegen
from synknumba.simt._machine.cache import KernelCache
from synknumba.simt._maths.bfloat16 import as_dtype
from synknumba.simt._python.arrays import (
    STAND_IN,
    StandIn,
)
from synknumba.simt._python.cuda import Dim3
from synknumba.simt._python.program import DebugProgram
from synknumba.simt._python.run import Block, Launch, Thread, warps_of
from synknumba.simt._python.warp import WAITING, Request
from synknumba.simt._source.syntax import load, one_or_tuple, place, statements

# Accesses between two looks at Python's signals: a tenth of a second.
BUDGET: Final = 4_000_000
# Threads that exist at the same time, of a grid with a barrier.
MOST_THREADS: Final = 8192


@cache
def unavailable() -> str | None:
    """Returns why checks cannot be compiled on this machine; None if they can."""
    library = ctypes.CDLL(None)
    has_contexts = hasattr(library, "makecontext") and hasattr(library, "swapcontext")
    if has_contexts and platform.machine() in {"x86_64", "aarch64"}:
        return None
    return "the C library has no makecontext()"


class CheckedProgram:
    """An instrumented kernel.

    Raises:
        KernelError: the compiler refuses the kernel.
        NotInstrumentedError: compiled code cannot see all its accesses.
    """

    def __init__(self, function: FunctionType, digest: str | None = None) -> None:
        self.function, self.digest = function, digest
        self.options = OPTIONS
        self.sites = Sites()
        self.code = translate_names(function, DeviceFunctions(self.sites.instrument))
        self.lowered = Lowered(self.code, self.sites)
        self.entries: dict[tuple[types.Type, ...], Callable[..., int]] = {}
        self._cache = KernelCache(function, self.options, enabled=True)

    @property
    def params(self) -> tuple[str, ...]:
        """Names of the kernel's parameters."""
        return self.code.source.params

    def entry(self, kinds: tuple[types.Type, ...]) -> Callable[..., int]:
        """Returns the function that runs threads until Python is needed, for arguments of these
        types; compiles or loads it.
        """
        runtime.installed()
        if kinds not in self.entries:
            self.entries[kinds] = self._cache.get(kinds, lambda key: self._build(kinds, key)).entry
        return self.entries[kinds]

    def _build(self, kinds: tuple[types.Type, ...], key: str) -> codegen.Compiled:
        source = self.code.source
        self._cache.translating()
        namespace = {**with_devices(self.code, self.options), **HELPERS}
        namespace |= {
            "_k_check_shared": thread_operations.shared_array,
            "_k_check_run": thread_operations.run,
        }
        before: list[ast.stmt] = []
        for number, (name, array) in enumerate(self.code.shared_arrays.items()):
            dims = one_or_tuple([ast.Constant(dim) for dim in array.shape], ast.Load())
            call = ast.Call(load("_k_check_shared"), [ast.Constant(number), dims, array.dtype], [])
            before.append(place(ast.Assign([ast.Name(name, ast.Store())], call), source.tree))
        params = [*STATE, LINEAR, *self.params]
        thread = define_function(
            source.tree.name, params, before + self.code.body, namespace, source
        )
        namespace["_k_check_thread"] = codegen.make_device(self.options.njit(thread))
        arguments = "".join(f"{name}, " for name in self.params)
        body = statements(f"return _k_check_run(_k_check_thread, ({arguments}))", source.tree)
        launch = define_function(f"check_{source.tree.name}", self.params, body, namespace, source)
        return codegen.compile_launch(codegen.Launch(self.options.njit(launch), ""), kinds, key)


OPTIONS: Final = Options(checked=True)
_programs: WeakTable[FunctionType, CheckedProgram] = WeakTable()


def program_of(function: FunctionType) -> CheckedProgram:
    """Returns an instrumented kernel, which is instrumented anew if a value that it reads may
    have changed.
    """
    digest, program = KernelCache(function, OPTIONS, enabled=True).digest(), _programs.get(function)
    if program is None or digest is None or program.digest != digest:
        program = _programs[function] = CheckedProgram(function, digest)
    return program


def is_ready(function: FunctionType, kinds: tuple[types.Type, ...]) -> bool:
    """Returns whether a kernel is compiled for arguments of these types, in this process or on
    disk.
    """
    cache, program = KernelCache(function, OPTIONS, enabled=True), _programs.get(function)
    if program is None or program.digest is None or kinds not in program.entries:
        return cache.has(kinds)
    return program.digest == cache.digest() or cache.has(kinds)


class _Thread(Thread):
    """A coroutine of compiled code: a copy of what the runtime knows of it."""

    __slots__ = ("_site", "_where", "words")

    def __init__(self, block: "_Block", number: int, words: np.ndarray[Any, Any]) -> None:
        super().__init__(block, number, None)  # type: ignore[arg-type]
        self.words = words
        self._site = block.native.sites.all[int(words[layout.SITE])]
        self._where = int(words[layout.PLACE])
        status = int(words[layout.STATUS])
        self.ended, self.failed = status in {layout.ENDED, layout.FAILED}, status == layout.FAILED
        self.clock = int(words[layout.STAMP]) >> 16 & 0xFFFF
        self.seen = words[layout.SEEN : layout.SEEN + WARP_SIZE].tolist()
        if not self.ended:
            self.request = _request(words)

    def place(self) -> Any:
        return self._where

    def waiting(self) -> Access:
        if self.ended:
            return Access("ended", (*self.index,), (*self.block_index,), "", "", 0)
        return access_at(self._site, "waits", self.index, self.block_index)

    def store(self) -> None:
        """Gives the runtime what Python has decided."""
        words = self.words
        if self.failed:
            words[layout.STATUS] = layout.FAILED
        elif self.ended:
            words[layout.STATUS] = layout.ENDED
        elif self.request is not None:
            words[layout.STATUS] = layout.WAITING
        else:
            self._store_answer(words)

    def _store_answer(self, words: np.ndarray[Any, Any]) -> None:
        words[layout.STATUS] = layout.READY
        rest = int(words[layout.STAMP]) & ~(0xFFFF << 16)
        words[layout.STAMP] = rest | min(self.clock, 0xFFFF) << 16
        words[layout.SEEN : layout.SEEN + WARP_SIZE] = self.seen
        if self.answer is not None:
            answers = self.answer
            if not isinstance(answers, tuple):
                answers = (answers,)
            words[layout.ANSWERS : layout.ANSWERS + len(answers)] = list(map(_bits, answers))


def _request(words: np.ndarray[Any, Any]) -> Request:
    """Returns the request of a thread that waits."""
    kind = KINDS[int(words[layout.KIND])]
    if kind == "syncwarp":
        return Request(kind, (int(words[layout.MASK]),))
    names = WAITING.get(kind, ())
    operands = iter(words[layout.OPERANDS : layout.OPERANDS + 2].tolist())
    args = []
    for name in names:
        if name == "mask":
            args.append(int(words[layout.MASK]))
        elif name in {"value", "predicate"}:
            operand_type = thread_operations.OPERAND_TYPES[int(words[layout.TYPE])]
            args.append(_number(next(operands), operand_type))
        else:
            args.append(next(operands))
    return Request(kind, tuple(args))


def _number(bits: int, kind: types.Type) -> Any:
    dtype = as_dtype(kind)
    return np.array([bits], np.int64).view(np.uint8)[: dtype.itemsize].view(dtype)[0]


def _bits(value: Any) -> int:
    """Returns the bits of a number, as an int64."""
    if isinstance(value, np.floating):
        return int(value.view(f"i{value.itemsize}"))
    number = int(value)
    if number >= 1 << 63:
        number -= 1 << 64
    return number


class _Block(Block):
    """A block whose threads are coroutines: the current one of the launch, or one of a grid with
    a barrier.
    """

    def __init__(self, launch: "CompiledLaunch", number: int, words: np.ndarray[Any, Any]) -> None:
        self.native, self.number, self._words = launch, number, words
        self.launch, self.index, self.epoch = launch, launch.grid.at(number), 0
        self.threads, self.ready = [], []

    def look(self) -> None:
        """Reads the threads' states."""
        self.threads = [_Thread(self, number, words) for number, words in enumerate(self._words)]
        self.warps = warps_of(self.threads)

    def store(self) -> None:
        """Gives the runtime what Python has decided."""
        for thread in self.threads:
            cast(_Thread, thread).store()

    def pass_barrier(self, living: Any, answer: Any = None) -> None:
        super().pass_barrier(living, answer)
        self.native.passed(self)

    def advance(self) -> bool:
        """Runs the block until all threads have ended or wait at a grid barrier."""
        self.native.select(self)
        self.store()
        while self.native.enter() != layout.DONE:
            self.look()
            outcome = self.settle()
            self.store()
            if outcome is not None:
                self.native.leave(self)
                return outcome
        self.look()
        self.launch.failed_blocks += any(thread.failed for thread in self.threads)
        return True


class CompiledLaunch(Launch):
    """A launch of a kernel in compiled code.

    Args:
        program: the kernel as it runs in Python, of which only facts are used.
        checked: the instrumented kernel.
        grid: number of blocks along each axis.
        block: number of threads per block along each axis.
        smem: bytes of dynamic shared memory.
        make_watch: makes the watch, which collects the findings.
        args: the kernel's arguments.
        checks: what to look for.
        reverse: whether the threads of a block run from the last to the first.
        stand_in: what it has in the place of undefined values.
        most: accesses after which the launch is given up.

    Attributes:
        accesses: number of accesses so far.
    """

    def __init__(
        self,
        program: DebugProgram,
        checked: CheckedProgram,
        grid: Dim3,
        block: Dim3,
        smem: int,
        make_watch: Callable[[Launch], CheckWatch],
        args: tuple[Any, ...],
        checks: Checks,
        *,
        reverse: bool = False,
        stand_in: StandIn = STAND_IN,
        most: int = sys.maxsize,
    ) -> None:
        super().__init__(program, grid, block, smem, make_watch)
        self._checked, self._args = checked, args
        self._entry = checked.entry(tuple(typeof(arg) for arg in args))
        self._count, self._blocks = math.prod(block), math.prod(grid)
        resident = 1
        if checked.lowered.grid:
            resident = self._blocks
        if resident * self._count > MOST_THREADS:
            raise KernelError(
                f"{program.name}: a grid barrier of more than {MOST_THREADS} threads cannot be "
                f"checked in compiled code"
            )
        self.accesses, self._most = 0, most
        state = self._state = np.zeros(layout.STATE_WORDS, np.int64)
        named = dict(zip(checked.params, args, strict=True))
        self._memory = LaunchMemory(checked.lowered, named, self, resident, stand_in, state)
        self._findings = CompiledFindings(self, checked.sites, self._memory)
        state[layout.REVERSE] = reverse
        state[layout.RACES], state[layout.UNINITIALIZED] = checks.races, checks.uninitialized
        state[layout.ORDERED_BLOCKS], state[layout.SPINS] = program.fences, program.may_spin
        state[layout.COUNT] = self._count
        state[layout.SIZES : layout.SIZES + 6] = (*block, *grid)
        stand_ins = stand_in.value, stand_in.float_byte, stand_in.byte
        state[layout.STAND_IN : layout.BYTE + 1] = stand_ins
        state[layout.NEXT], state[layout.BLOCK_END] = -1, self._blocks

    watch: CheckWatch

    @property
    def sites(self) -> Sites:
        """Places in the user's source."""
        return self._checked.sites

    # ---- running

    def run(self) -> None:
        """Runs all threads of the grid."""
        if self._checked.lowered.grid:
            words = [self._memory.threads_of(block, self._count) for block in range(self._blocks)]
            self.run_blocks([_Block(self, number, part) for number, part in enumerate(words)])
            return
        while self.enter() != layout.DONE:
            block = _Block(self, int(self._state[layout.BLOCK]), self._memory.threads)
            block.look()
            block.settle()
            block.store()

    def select(self, block: _Block) -> None:
        """Makes a block of a grid with a barrier the current one."""
        state, number = self._state, block.number
        self._memory.select(state, number, self._count)
        state[layout.BLOCK], state[layout.BLOCK_END] = number, number + 1
        state[layout.NEXT] = -1
        if block.threads:
            state[layout.NEXT] = 0
        state[layout.EPOCH] = self.epoch << 54 | block.epoch << 32

    def leave(self, block: _Block) -> None:
        """Keeps what the runtime has counted of a block that will be selected again."""
        block.epoch = int(self._state[layout.EPOCH]) >> 32 & 0x3FFFFF

    def passed(self, block: _Block) -> None:
        """Tells the runtime that a block has passed a barrier with an answer, or the first of
        other threads.
        """
        if not self._checked.lowered.grid:
            self._state[layout.EPOCH] += 1 << 32

    def enter(self) -> int:
        """Runs threads until Python has something to decide; returns why."""
        state, words = self._state, runtime.installed()
        while True:
            budget = min(BUDGET, self._most - self.accesses)
            if budget <= 0:
                return layout.DONE
            state[layout.BUDGET] = budget
            words[:] = state
            try:
                why = self._entry(*self._args)
            except BaseException as error:
                state[:] = words
                self._findings.drain()
                self._explain(error)
                raise
            state[:] = words
            self.accesses += budget - int(state[layout.BUDGET])
            self._findings.drain()
            if why != layout.HAS_PAUSED:
                return why
            self._memory.regions.divide_cells()

    def _explain(self, error: BaseException) -> None:
        number = (int(self._state[layout.CURRENT]) - self._memory.threads.ctypes.data) // (
            8 * layout.THREAD_WORDS
        )
        words = self._memory.threads[number]
        place = self._findings.access("raises", int(words[layout.KEY] | words[layout.SITE]))
        self.explain(error, f"{place.filename}:{place.line}", place.thread, place.block)
