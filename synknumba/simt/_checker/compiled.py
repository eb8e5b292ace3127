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
import mmap
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from types import FunctionType, SimpleNamespace
from typing import Any, Final, cast

import numpy as np
from numba import typeof
from numba.core import types

from synknumba._errors import Access, BoundsError, Finding, KernelCheckError, KernelError
from synknumba._types import WeakTable
from synknumba.simt._checker import accesses, layout, runtime
from synknumba.simt._checker.instrument import (
    KINDS,
    Lowered,
    Memory,
    NotInstrumentedError,
    Site,
    Sites,
)
from synknumba.simt._checker.watch import Checks, CheckWatch
from synknumba.simt._emit.device_functions import with_devices
from synknumba.simt._emit.generated import define_function
from synknumba.simt._emit.options import Options
from synknumba.simt._library.runtime import HELPERS
from synknumba.simt._library.words import LINEAR, STATE, WARP_SIZE
from synknumba.simt._lower.lowering import DeviceFunctions, translate_names
from synknumba.simt._lower.thread_code import ThreadCode
from synknumba.simt._machine import codegen
from synknumba.simt._machine.cache import KernelCache
from synknumba.simt._maths.bfloat16 import as_dtype
from synknumba.simt._python.arrays import (
    STAND_IN,
    StandIn,
    TrackedMemory,
    Watch,
    overlapping,
    record_memory,
)
from synknumba.simt._python.cuda import Dim3
from synknumba.simt._python.findings import BOUNDS_ADVICE, described, fault_advice, shown_index
from synknumba.simt._python.program import DebugProgram
from synknumba.simt._python.run import Block, Launch, Thread
from synknumba.simt._python.warp import WAITING, Request
from synknumba.simt._source.syntax import load, one_or_tuple, place, statements

# Bytes of a thread's stack. Local arrays are elsewhere, and pages that are not used take no memory.
STACK: Final = 256 << 10
# Bytes of `ucontext_t`: 968 on x86-64 and 4560 on AArch64, in glibc.
CONTEXT: Final = 5120
# Accesses between two looks at Python's signals: a tenth of a second.
BUDGET: Final = 4_000_000
# Threads that exist at the same time, of a grid with a barrier.
MOST_THREADS: Final = 8192
# Bytes of the buffer for elements before an assignment to a part of an array.
_KEPT: Final = 1 << 20
_MAP_NORESERVE: Final = 0x4000  # Linux; `mmap` has the name from Python 3.13 on
_PAGE: Final = 4096


@cache
def unavailable() -> str | None:
    """Returns why checks cannot be compiled on this machine; None if they can."""
    library = ctypes.CDLL(None)
    if platform.machine() not in {"x86_64", "aarch64"} or not all(
        hasattr(library, name) for name in ("makecontext", "swapcontext")
    ):
        return "the C library has no makecontext()"
    return None


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
        namespace |= {"_k_check_shared": accesses.shared_array, "_k_check_run": accesses.run}
        before: list[ast.stmt] = []
        for number, (name, array) in enumerate(self.code.shared_arrays.items()):
            dims = one_or_tuple([ast.Constant(dim) for dim in array.shape], ast.Load())
            made = ast.Call(load("_k_check_shared"), [ast.Constant(number), dims, array.dtype], [])
            before.append(place(ast.Assign([ast.Name(name, ast.Store())], made), source.tree))
        params = [*STATE, LINEAR, *self.params]
        thread = define_function(
            source.tree.name, params, before + self.code.body, namespace, source
        )
        namespace["_k_check_thread"] = codegen.make_device(self.options.njit(thread))
        given = "".join(f"{name}, " for name in self.params)
        body = statements(f"return _k_check_run(_k_check_thread, ({given}))", source.tree)
        launch = define_function(f"check_{source.tree.name}", self.params, body, namespace, source)
        return codegen.compile_launch(codegen.Launch(self.options.njit(launch), ""), kinds, key)


OPTIONS: Final = Options(checked=True)
_programs: WeakTable[FunctionType, CheckedProgram] = WeakTable()


def program_of(function: FunctionType) -> CheckedProgram:
    """Returns an instrumented kernel, which is instrumented anew if a value that it reads may
    have changed.
    """
    digest, kept = KernelCache(function, OPTIONS, enabled=True).digest(), _programs.get(function)
    if kept is None or digest is None or kept.digest != digest:
        kept = _programs[function] = CheckedProgram(function, digest)
    return kept


def is_ready(function: FunctionType, kinds: tuple[types.Type, ...]) -> bool:
    """Returns whether a kernel is compiled for arguments of these types, in this process or on
    disk.
    """
    cache, kept = KernelCache(function, OPTIONS, enabled=True), _programs.get(function)
    if (
        kept is not None
        and kinds in kept.entries
        and kept.digest is not None
        and kept.digest == cache.digest()
    ):
        return True
    return cache.has(kinds)


class _Thread(Thread):
    """A coroutine of compiled code: a copy of what the runtime knows of it."""

    __slots__ = ("_site", "_where", "words")

    def __init__(self, block: "_Block", number: int, words: np.ndarray[Any, Any]) -> None:
        super().__init__(block, number, None)  # type: ignore[arg-type]
        self.words = words
        self._site = block.native.site(int(words[layout.SITE]))
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
        return self._site_access("waits")

    def _site_access(self, what: str) -> Access:
        site = self._site
        return Access(
            what, (*self.index,), (*self.block_index,), site.function, site.filename, site.line
        )

    def store(self) -> None:
        """Gives the runtime what Python has decided."""
        words = self.words
        words[layout.STATUS] = (
            layout.FAILED if self.failed else layout.ENDED if self.ended else layout.WAITING
        )
        if self.ended or self.request is not None:
            return
        words[layout.STATUS] = layout.READY
        words[layout.STAMP] = (
            int(words[layout.STAMP]) & ~(0xFFFF << 16) | min(self.clock, 0xFFFF) << 16
        )
        words[layout.SEEN : layout.SEEN + WARP_SIZE] = self.seen
        if self.answer is not None:
            answers = self.answer if isinstance(self.answer, tuple) else (self.answer,)
            words[layout.ANSWERS : layout.ANSWERS + len(answers)] = [
                _bits(answer) for answer in answers
            ]


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
            args.append(_number(next(operands), accesses.OPERAND_TYPES[int(words[layout.TYPE])]))
        else:
            args.append(next(operands))
    return Request(kind, tuple(args))


def _number(bits: int, kind: types.Type) -> Any:
    dtype = as_dtype(kind)
    return np.array([bits], np.int64).view(np.uint8)[: dtype.itemsize].view(dtype)[0]


def _bits(value: Any) -> int:
    """Returns the bits of a number, as an int64."""
    if isinstance(value, np.floating):
        return int(
            value.view(
                np.int64 if value.itemsize == 8 else np.int32 if value.itemsize == 4 else np.int16
            )
        )
    return int(value) if int(value) < 1 << 63 else int(value) - (1 << 64)


class _Block(Block):
    """A block whose threads are coroutines: the current one of the launch, or one of a grid with
    a barrier.
    """

    def __init__(self, launch: "CompiledLaunch", number: int, words: np.ndarray[Any, Any]) -> None:
        self.native, self.number, self._words = launch, number, words
        self.launch, self.index, self.epoch = launch, launch.block_index(number), 0
        self.threads, self.ready = [], []

    def look(self) -> None:
        """Reads the threads' states."""
        self.threads = [_Thread(self, number, words) for number, words in enumerate(self._words)]
        self.warps = [
            self.threads[first : first + WARP_SIZE]
            for first in range(0, len(self.threads), WARP_SIZE)
        ]

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
        most: accesses after which the launch is given up; None for no limit.

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
        most: int | None = None,
    ) -> None:
        super().__init__(program, grid, block, smem, make_watch)
        self._checked, self._args = checked, args
        self._entry = checked.entry(tuple(typeof(arg) for arg in args))
        self._count, self._blocks = math.prod(block), math.prod(grid)
        self._together = checked.lowered.grid
        self._resident = self._blocks if self._together else 1
        if self._together and self._resident * self._count > MOST_THREADS:
            raise KernelError(
                f"{program.name}: a grid barrier of more than {MOST_THREADS} threads cannot be "
                f"checked in compiled code"
            )
        self._drained = self.accesses = 0
        self._most = most
        self._keys: list[tuple[int, Any, int]] = []
        self._owned: list[Any] = []
        self._state = np.zeros(layout.STATE_WORDS, np.int64)
        self._stand_in = stand_in
        self._make_memory()
        state = self._state
        state[layout.REVERSE], state[layout.RACES], state[layout.UNINITIALIZED] = (
            reverse,
            checks.races,
            checks.uninitialized,
        )
        state[layout.ORDERED_BLOCKS], state[layout.COUNT], state[layout.SPINS] = (
            program.fences,
            self._count,
            program.may_spin,
        )
        state[layout.SIZES : layout.SIZES + 6] = (*block, *grid)
        state[layout.STAND_IN : layout.BYTE + 1] = (
            stand_in.value,
            stand_in.float_byte,
            stand_in.byte,
        )
        state[layout.NEXT], state[layout.BLOCK_END] = -1, self._blocks

    watch: CheckWatch

    def site(self, number: int) -> Site:
        """Returns a place in the user's source."""
        return self._checked.sites.all[number]

    def block_index(self, number: int) -> Dim3:
        """Returns `blockIdx` of a linear index."""
        sizes = self.grid
        return Dim3(number % sizes.x, number // sizes.x % sizes.y, number // (sizes.x * sizes.y))

    # ---- memory

    def _zeros(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Returns bytes that take no memory until they are used."""
        made = _mapped(nbytes)
        self._owned.append(made)
        return made

    def _words(self, *shape: int) -> np.ndarray[Any, Any]:
        made = np.zeros(shape, np.int64)
        self._owned.append(made)
        return made

    def _make_memory(self) -> None:
        state, threads = self._state, self._resident * self._count
        self._threads = self._words(threads, layout.THREAD_WORDS)
        lowered = self._checked.lowered
        stacks, contexts = self._zeros(threads * STACK), self._zeros((threads + 1) * CONTEXT)
        local, written = (
            self._zeros(threads * lowered.local_bytes),
            self._zeros(threads * lowered.local_bytes),
        )
        _guard(stacks, threads)
        numbers = np.arange(threads)
        inside = numbers % self._count
        table = self._threads
        table[:, layout.STACK] = stacks.ctypes.data + numbers * STACK
        table[:, layout.CONTEXT] = contexts.ctypes.data + (numbers + 1) * CONTEXT
        table[:, layout.INDEX] = inside % self.block.x
        table[:, layout.INDEX + 1] = inside // self.block.x % self.block.y
        table[:, layout.INDEX + 2] = inside // (self.block.x * self.block.y)
        table[:, layout.LOCALS] = local.ctypes.data + numbers * lowered.local_bytes
        table[:, layout.LOCALS_WRITTEN] = written.ctypes.data + numbers * lowered.local_bytes
        state[layout.THREADS], state[layout.SCHEDULER] = table.ctypes.data, contexts.ctypes.data
        state[layout.STACK_BYTES] = STACK
        state[layout.SCRATCH], state[layout.KEPT], state[layout.KEPT_BYTES] = (
            self._zeros(layout.SCRATCH_BYTES).ctypes.data,
            self._zeros(_KEPT).ctypes.data,
            _KEPT,
        )
        state[layout.HINTS] = self._words(len(self._checked.sites.all)).ctypes.data
        self._found = self._words(layout.MOST_FOUND + 1, layout.FOUND_WORDS)
        state[layout.FOUND] = self._found.ctypes.data
        self._make_regions(local, written)

    def _make_regions(
        self, local: np.ndarray[Any, Any], local_written: np.ndarray[Any, Any]
    ) -> None:
        state = self._state
        self._memories = list(_memories(self._checked.params, self._args, self.watch))
        regions = [
            (low, high, shift, layout.GLOBAL_SPACE, 0)
            for low, high, shift in _spans(self._memories)
        ]
        read_only = [_is_read_only(group) for group in overlapping(self._memories)]
        shared, shift = self._make_shared()
        shared_written = self._zeros(max(1, shared.size))
        if shared.size:
            low = shared.ctypes.data
            regions.append(
                (low, low + shared.size, shift, layout.SHARED_SPACE, shared_written.ctypes.data)
            )
        if local.size and self._checked.lowered.local_bytes:
            low = local.ctypes.data
            regions.append(
                (low, low + local.size, 0, layout.LOCAL_SPACE, local_written.ctypes.data)
            )
            self._locals = low
        state[layout.SHARED], state[layout.SHARED_WRITTEN] = (
            shared.ctypes.data,
            shared_written.ctypes.data,
        )
        self._shared_memory = shared.ctypes.data, shared_written.ctypes.data
        self._regions, self._cells = (
            self._words(max(1, len(regions)), layout.REGION_WORDS),
            list[np.ndarray[Any, Any]](),
        )
        self._regions[: len(read_only), layout.READ_ONLY] = read_only
        for row, (low, high, shift, space, written) in zip(self._regions, regions, strict=False):
            cells = _cells(low, high if space != layout.LOCAL_SPACE else low, shift)
            self._cells.append(cells)
            row[: layout.WRITTEN + 1] = low, high, cells.ctypes.data, shift, space, written
        state[layout.REGIONS], state[layout.REGION_COUNT] = self._regions.ctypes.data, len(regions)

    def _divide_cells(self) -> None:
        """Divides the cells of regions with an access to a part of one, each into copies."""
        for number, row in enumerate(self._regions):
            if not row[layout.FINER]:
                continue
            shift = _log2(int(row[layout.FINER]))
            parts, old = 1 << (int(row[layout.SHIFT]) - shift), self._cells[number]
            new = self._cells[number] = _cells(int(row[layout.LOW]), int(row[layout.HIGH]), shift)
            if row[layout.USED]:
                used = np.flatnonzero(old.any(axis=1))
                for part in range(parts):
                    new[used * parts + part] = old[used]
            row[layout.CELLS], row[layout.SHIFT], row[layout.FINER] = new.ctypes.data, shift, 0

    def _make_shared(self) -> tuple[np.ndarray[Any, Any], int]:
        """Returns the shared memory of all resident blocks, and log2 of the bytes of a cell."""
        arrays, offsets, offset, sizes = self._checked.code.shared_arrays, list[int](), 0, [8]
        self._shared: list[tuple[Memory, np.dtype[Any], int]] = []
        for name, array in arrays.items():
            dtype = self._dtype(self._checked.code, array.dtype)
            shown = self._checked.sites.names.get(
                (self._checked.code.source.filename, cast(ast.Call, array.at).lineno), name
            )
            memory = Memory(shown, array.shape, array.dtype, self._checked.code)
            sizes += [*_steps(dtype)]
            offsets.append(-1 if array.is_dynamic else offset)
            self._shared.append((memory, dtype, offset))
            offset += (
                0 if array.is_dynamic else -(-math.prod(array.shape) * dtype.itemsize // 64) * 64
            )
        offsets = [offset if one < 0 else one for one in offsets]
        self._shared = [
            (one, dtype, place)
            for (one, dtype, _), place in zip(self._shared, offsets, strict=True)
        ]
        nbytes = -(-(offset + self.smem) // 64) * 64
        fill = np.full(max(1, nbytes), self._stand_in.byte, np.uint8)
        for memory, dtype, start in self._shared:
            fill[start : start + math.prod(memory.shape) * dtype.itemsize] = self._stand_in.fill_of(
                dtype
            )
        self._owned.append(fill)
        state = self._state
        table = self._words(max(1, len(offsets)))
        table[: len(offsets)] = offsets
        state[layout.SHARED_OFFSETS], state[layout.SHARED_FILL] = (
            table.ctypes.data,
            fill.ctypes.data,
        )
        state[layout.SHARED_BYTES], state[layout.DYNAMIC_BYTES] = nbytes, self.smem
        self._shared_bytes = nbytes
        return self._zeros(self._resident * nbytes)[: self._resident * nbytes], _log2(
            math.gcd(*sizes)
        )

    def _dtype(self, code: ThreadCode, node: ast.expr) -> np.dtype[Any]:
        """Returns the dtype of a shared or local array, an expression of the generated code."""
        known = dict(zip(self._checked.params, self._args, strict=True))
        try:
            value = eval(ast.unparse(node), {**code.namespace, **known})  # noqa: S307  # a name, or `x.dtype`
        except Exception as error:
            raise NotInstrumentedError(
                f"a shared array of the dtype {ast.unparse(node)}"
            ) from error
        return as_dtype(value) if isinstance(value, types.Type) else np.dtype(value)

    # ---- running

    def run(self) -> None:
        """Runs all threads of the grid."""
        if self._together:
            self.run_blocks(
                [_Block(self, number, self._threads_of(number)) for number in range(self._blocks)]
            )
            return
        while self.enter() != layout.DONE:
            block = _Block(self, int(self._state[layout.BLOCK]), self._threads)
            block.look()
            block.settle()
            block.store()

    def _threads_of(self, number: int) -> np.ndarray[Any, Any]:
        return self._threads[number * self._count : (number + 1) * self._count]

    def select(self, block: _Block) -> None:
        """Makes a block of a grid with a barrier the current one."""
        state, number = self._state, block.number
        shared, written = self._shared_memory
        state[layout.THREADS] = self._threads_of(number).ctypes.data
        state[layout.SHARED], state[layout.SHARED_WRITTEN] = (
            shared + number * self._shared_bytes,
            written + number * self._shared_bytes,
        )
        state[layout.BLOCK], state[layout.BLOCK_END] = number, number + 1
        state[layout.NEXT] = 0 if block.threads else -1
        state[layout.EPOCH] = self.epoch << 54 | block.epoch << 32

    def leave(self, block: _Block) -> None:
        """Keeps what the runtime has counted of a block that will be selected again."""
        block.epoch = int(self._state[layout.EPOCH]) >> 32 & 0x3FFFFF

    def passed(self, block: _Block) -> None:
        """Tells the runtime that a block has passed a barrier with an answer, or the first of
        other threads.
        """
        if not self._together:
            self._state[layout.EPOCH] += 1 << 32

    def enter(self) -> int:
        """Runs threads until Python has something to decide; returns why."""
        state, words = self._state, runtime.installed()
        while True:
            budget = BUDGET if self._most is None else min(BUDGET, self._most - self.accesses)
            if budget <= 0:
                return layout.DONE
            state[layout.BUDGET] = budget
            words[:] = state
            try:
                why = self._entry(*self._args)
            except BaseException as error:
                state[:] = words
                self._drain()
                self._explain(error)
                raise
            state[:] = words
            self.accesses += budget - int(state[layout.BUDGET])
            self._drain()
            if why != layout.HAS_PAUSED:
                return why
            self._divide_cells()

    def _explain(self, error: BaseException) -> None:
        """Adds notes to an exception that the kernel has raised: line and thread, and the findings
        before it.
        """
        number = (int(self._state[layout.CURRENT]) - self._threads.ctypes.data) // (
            8 * layout.THREAD_WORDS
        )
        words = self._threads[number]
        site, (thread, block) = (
            self.site(int(words[layout.SITE])),
            self._who(int(words[layout.KEY])),
        )
        place = f"{self.program.name} ({site.filename}:{site.line})"
        error.add_note(f"in {place}, threadIdx={tuple(thread)} blockIdx={tuple(block)}")
        if self.watch.findings:
            error.add_note("\n".join(["earlier findings:", *map(str, self.watch.findings)]))

    # ---- findings

    def _who(self, key: int) -> tuple[Dim3, Dim3]:
        """Returns `threadIdx` and `blockIdx` of an access."""
        number, sizes = key >> 16 & 1023, self.block
        index = Dim3(number % sizes.x, number // sizes.x % sizes.y, number // (sizes.x * sizes.y))
        return index, self.block_index((key >> 26) - 1)

    def _access(self, what: str, key: int) -> Access:
        (thread, block), site = self._who(key), self.site(key & 0xFFFF)
        return Access(what, (*thread,), (*block,), site.function, site.filename, site.line)

    def _drain(self) -> None:
        """Hands the findings of compiled code to the watch."""
        count = int(self._found[0, 0])
        for entry in self._found[1 + self._drained : 1 + count]:
            finding, kind = self._finding(entry)
            self._keys.append((len(self._keys) + 1, (finding, kind), 1))
            if finding.error is KernelCheckError and kind != "unassigned":
                self.watch.fault(finding)  # which raises where other threads may wait for this one
            else:
                self.watch.add(finding, kind)
        self._drained = count
        for position, (number, (finding, kind), known) in enumerate(self._keys):
            times = int(self._found[number, layout.FOUND_TIMES])
            if times > known:
                self.watch.add(replace(finding, times=times - known), kind)
                self._keys[position] = number, (finding, kind), times

    def _finding(self, entry: np.ndarray[Any, Any]) -> tuple[Finding, str]:
        """Returns the finding of an entry of the table, and the kind that tells it from others
        on the same lines.
        """
        kinds, before, now, where = (
            int(entry[word])
            for word in (layout.FOUND_KINDS, layout.FOUND_BEFORE, layout.FOUND_NOW, layout.FOUND_AT)
        )
        kind, what = kinds >> 8, _WHAT[kinds & 15]
        place = self._access(what, now)
        match kind:
            case layout.FAULT:
                text = layout.FAULTS[kinds >> 4 & 15]
                name = text.partition(":")[0]
                return Finding(KernelCheckError, text, (place,), fault_advice(name)), name
            case layout.UNSET:
                return self.watch.unassigned_finding(
                    self.site(now & 0xFFFF).array, place
                ), "unassigned"
            case layout.ABSENT:
                return self.watch.absent_finding(
                    (now >> 16 & 1023) % WARP_SIZE, where, place
                ), "absent"
            case layout.OUTSIDE:
                return self._outside(entry[layout.FOUND_DETAIL :], place, now), ""
        memory, address = self._memory_at(where, now)
        index = memory.index_of(address)
        if kind == layout.UNWRITTEN:
            return self.watch.unwritten_finding(memory, index, place), "unwritten"
        first = self._access(_WHAT[kinds >> 4 & 15], before)
        sides = [
            SimpleNamespace(
                thread=SimpleNamespace(block=key >> 26, number=key >> 16 & 1023),
                line=access.line,
                what=access.what,
            )
            for key, access in ((before, first), (now, place))
        ]
        return self.watch.race_finding(memory, index, (first, place), sides), ""

    def _outside(self, detail: np.ndarray[Any, Any], place: Access, now: int) -> Finding:
        data, packed = int(detail[0]), int(detail[1])
        axes, mask = packed & 255, packed >> 8
        given = detail[2 : 2 + axes].tolist()
        shape = tuple(detail[2 + layout.MOST_AXES : 2 + layout.MOST_AXES + axes].tolist())
        parts = tuple(given[axis] if mask >> axis & 1 else slice(None) for axis in range(axes))
        while parts and isinstance(parts[-1], slice):
            parts = parts[:-1]
        memory, _ = self._memory_at(data, now, shape)
        part_of = "" if shape == memory.array.shape else f"a part of shape {shape} of "
        summary = f"index {shown_index(parts)} is outside of {part_of}{described(memory)}"
        numbers = tuple(part for part in parts if not isinstance(part, slice))
        return Finding(BoundsError, summary, (place,), BOUNDS_ADVICE, memory.name, numbers)

    def _memory_at(
        self, address: int, key: int, shape: tuple[int, ...] | None = None
    ) -> tuple[TrackedMemory, int]:
        """Returns the array at an address, and the address in it; of several, the one that the
        site names.
        """
        site = self.site(key & 0xFFFF)
        if site.constant is not None:
            return TrackedMemory(site.array, "constant", site.constant, self.watch), address
        word = site.array.partition("[")[0].partition(".")[0]
        shared = self._shared_memory[0]
        if self._shared_bytes and shared <= address <= shared + self._resident * self._shared_bytes:
            return self._shared_at(shared, address, word)
        locals_at, nbytes = getattr(self, "_locals", 0), self._checked.lowered.local_bytes
        if nbytes and locals_at <= address < locals_at + self._resident * self._count * nbytes:
            return self._local_at(locals_at + (address - locals_at) % nbytes)
        found = [
            one
            for one in self._memories
            if one.low <= address < one.high or (one.low == address and shape is not None)
        ]
        if not found:
            unknown = np.zeros(shape or (1,), np.uint8)
            return TrackedMemory(word, "global", unknown, self.watch), unknown.ctypes.data
        return next(
            (one for one in found if one.name.partition(".")[0].partition("[")[0] == word), found[0]
        ), address

    def _shared_at(self, low: int, address: int, word: str) -> tuple[TrackedMemory, int]:
        place = (address - low) % self._shared_bytes
        found = []
        for memory, dtype, offset in self._shared:
            shape = (self.smem // dtype.itemsize,) if memory.shape == (0,) else memory.shape
            if offset <= place < offset + math.prod(shape) * dtype.itemsize or offset == place:
                found.append((memory.name, shape, dtype, offset))
        name, shape, dtype, offset = next((one for one in found if one[0] == word), found[0])
        return self._tracked(name, "shared", shape, dtype, low + offset), low + place

    def _local_at(self, address: int) -> tuple[TrackedMemory, int]:
        low = self._locals
        memory = [one for one in self._checked.lowered.local_arrays if low + one.offset <= address][
            -1
        ]
        try:
            dtype = self._dtype(memory.code, memory.dtype)
        except NotInstrumentedError:
            dtype = np.dtype(np.uint8)
        return self._tracked(
            memory.name, "local", memory.shape, dtype, low + memory.offset
        ), address

    def _tracked(
        self, name: str, space: str, shape: Any, dtype: np.dtype[Any], address: int
    ) -> TrackedMemory:
        owner = SimpleNamespace(written=set(), cells={})
        interface = {"data": (address, False), "shape": shape, "typestr": "|u1", "version": 3}
        interface["shape"] = (math.prod(shape) * dtype.itemsize,)
        array = (
            np.asarray(SimpleNamespace(__array_interface__=interface)).view(dtype).reshape(shape)
        )
        return TrackedMemory(name, space, array, self.watch, owner)


_WHAT: Final = ("read", "write", "write", "atomic", "raises")


def _mapped(nbytes: int) -> np.ndarray[Any, Any]:
    """Returns zeros that take no memory until they are used."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return np.frombuffer(mmap.mmap(-1, max(nbytes, _PAGE), flags=flags), np.uint8)


def _cells(low: int, high: int, shift: int) -> np.ndarray[Any, Any]:
    """Returns the cells of a region."""
    count = ((high - low) >> shift) + 1
    return (
        _mapped(8 * layout.CELL_WORDS * count)[: 8 * layout.CELL_WORDS * count]
        .view(np.int64)
        .reshape(count, layout.CELL_WORDS)
    )


def _guard(stacks: np.ndarray[Any, Any], count: int) -> None:
    """Makes the lowest page of each stack inaccessible, so that a stack overflow ends the
    process at once.
    """
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for number in range(count):
        protect(stacks.ctypes.data + number * STACK, _PAGE, 0)


def _memories(
    names: Sequence[str], args: Sequence[Any], watch: Watch, prefix: str = ""
) -> Iterator[TrackedMemory]:
    """Yields the arrays and records among the arguments, also in tuples, under their names."""
    for name, arg in zip(names, args, strict=True):
        if isinstance(arg, np.ndarray):
            yield TrackedMemory(f"{prefix}{name}", "global", arg, watch)
        elif isinstance(arg, np.void):
            yield TrackedMemory(f"{prefix}{name}", "global", record_memory(arg), watch)
        elif isinstance(arg, tuple):
            fields = getattr(arg, "_fields", None)
            keys = (
                [f".{key}" for key in fields] if fields else [f"[{key}]" for key in range(len(arg))]
            )
            yield from _memories([f"{name}{key}" for key in keys], arg, watch, prefix)


def _steps(dtype: np.dtype[Any]) -> Iterator[int]:
    """Yields the distances that separate the numbers in elements of a dtype."""
    yield dtype.itemsize
    if dtype.subdtype is not None:
        yield from _steps(dtype.subdtype[0])
    for kind, offset, *_ in (dtype.fields or {}).values():
        if offset:
            yield offset
        yield from _steps(kind)


def _log2(number: int) -> int:
    """Returns the exponent of the largest power of two that divides a number."""
    return (number & -number).bit_length() - 1


def _is_read_only(memories: Sequence[TrackedMemory]) -> bool:
    """Returns whether arrays that overlap are read-only.

    Raises:
        KernelError: only some are, and one of these has records, whose types do not tell it.
    """
    writeable = {one.array.flags.writeable for one in memories}
    if len(writeable) > 1 and any(
        one.array.dtype.names and not one.array.flags.writeable for one in memories
    ):
        names = ", ".join(one.name for one in memories)
        raise KernelError(
            f"read-only records that overlap writeable arrays ({names}) cannot be "
            f"checked in compiled code"
        )
    return writeable == {False}


def _spans(memories: Sequence[TrackedMemory]) -> Iterator[tuple[int, int, int]]:
    """Yields the stretches of memory of arrays, and log2 of a size of cells that tells the
    numbers in them apart.
    """
    for group in overlapping(memories):
        low, steps = group[0].low, list[int]()
        for one in group:
            steps += [
                *_steps(one.array.dtype),
                *one.array.strides,
                one.array.__array_interface__["data"][0] - low,
            ]
        yield low, max(one.high for one in group), _log2(math.gcd(*steps))
