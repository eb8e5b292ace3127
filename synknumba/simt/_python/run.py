"""Scheduler that runs the threads of a grid in Python, one after another.

Each CUDA thread is a generator made from the user's code. At a barrier or warp operation it yields
a `Request`, and it is sent the answer once all participating threads have made the same request.

    block:   thread 0 ──► waits │ thread 1 ──► waits │ … │ thread n ──► waits   all threads in order
             ├─ warp operation: requested by all lanes named in its mask        ──► each lane resumes with its answer
             ├─ block barrier:  requested by all threads that have not ended    ──► the block resumes
             ├─ grid barrier:   requested by all threads of all blocks          ──► all blocks resume
             └─ otherwise:      deadlock                                        ──► DivergenceError

Blocks run one after another; only a grid barrier keeps several of them active at once.
"""  # noqa: E501

import math
from collections.abc import Callable, Generator, Iterable, Iterator
from types import CodeType, FrameType
from typing import Any, Final, cast

import numpy as np

from synknumba._errors import Access, DivergenceError, Finding, KernelCheckError
from synknumba.simt._library.words import WARP_SIZE
from synknumba.simt._python.arrays import Array, Watch, allocate, carve, wrap
from synknumba.simt._python.cuda import Cuda, Dim3
from synknumba.simt._python.findings import access, fault_finding, is_fault, of_the_user, user_line
from synknumba.simt._python.program import DebugProgram
from synknumba.simt._python.source import MARK
from synknumba.simt._python.warp import (
    ACTIVE_MASK,
    FULL_MASK,
    GRID_SYNC,
    OF_BLOCKS,
    Request,
    absent_sources,
    block_answer,
    warp_answers,
)

ThreadCode = Generator[Request, Any, None]


class Thread:
    """One CUDA thread.

    Attributes:
        index: `threadIdx`.
        number: linear index in the block, x fastest.
        lane: index in the warp.
        ended: whether the thread has returned or raised an exception.
        failed: whether it has raised one.
        request: the pending request; None if the thread has ended or is runnable.
        answer: the value to resume with.
        clock: 1 + the number of `syncwarp`s passed.
        seen: vector clock: for each lane of the warp, the clock up to which its accesses happen
            before this thread's next one.
        fences: number of `threadfence` calls.
        atomics: number of atomic operations.
    """

    __slots__ = (
        "answer", "atomics", "block", "clock", "code", "ended", "failed", "fences", "index",
        "lane", "number", "request",
        "seen",
    )  # fmt: skip

    def __init__(self, block: "Block", number: int, code: ThreadCode) -> None:
        self.index = block.launch.block.at(number)
        self.block, self.number, self.lane, self.code = block, number, number % WARP_SIZE, code
        self.request: Request | None = None
        self.answer: Any = None
        self.ended = self.failed = False
        self.clock, self.fences, self.atomics = 1, 0, 0
        self.seen: list[int] = [0] * WARP_SIZE

    @property
    def block_index(self) -> Dim3:
        """`blockIdx`."""
        return self.block.index

    def place(self) -> tuple[tuple[CodeType, int], ...]:
        """Returns where the thread waits: (code, instruction offset) for each frame, kernel
        first.
        """
        return tuple((frame.f_code, frame.f_lasti) for frame in self._frames())

    def waiting(self) -> Access:
        """Returns an `Access` that gives where the thread waits, or that it has ended."""
        frames = [frame for frame in self._frames() if MARK in frame.f_globals]
        if self.ended or not frames:
            return Access("ended", (*self.index,), (*self.block_index,), "", "", 0)
        return access("waits", self, frames[-1].f_code, frames[-1].f_lineno)

    def _frames(self) -> Iterator[FrameType]:
        code: Any = self.code
        while code is not None and code.gi_frame is not None:
            yield code.gi_frame
            code = code.gi_yieldfrom


class Block:
    """An active block: its threads by linear index, and its `epoch`, the number of barriers that
    it has passed.
    """

    launch: "Launch"

    def __init__(self, launch: "DebugLaunch", index: Dim3) -> None:
        self.launch, self.index, self.epoch = launch, index, 0
        numbers = range(math.prod(launch.block))
        self.threads = [Thread(self, number, launch.entry(*launch.args)) for number in numbers]
        self.warps = warps_of(self.threads)
        self.shared: dict[str, Array] = {}
        self.dynamic: np.ndarray[Any, Any] | None = None
        # State of the watch for this block's shared memory: its shadow by the address of an array,
        # and written addresses.
        self.cells: dict[int, Any] = {}
        self.written: set[int] = set()
        self.ready = self.threads

    def advance(self) -> bool:
        """Runs all threads until all have ended (returns True) or wait at a grid barrier
        (False).
        """
        while True:
            for thread in self.ready:
                self.launch.resume(thread)
            outcome = self.settle()
            if outcome is not None:
                return outcome

    def settle(self) -> bool | None:
        """Decides which threads are `ready` to be resumed, after all have stopped.

        Returns:
            True if all have ended, False if all others wait at a grid barrier, None if some are
            ready.
        """
        self.ready = [thread for warp in self.warps for thread in _released(warp, self.launch)]
        living = self.living()
        if not living:
            self.launch.failed_blocks += any(thread.failed for thread in self.threads)
            return True
        if self.ready:
            self.ready.sort(key=lambda thread: thread.number)
            return None
        if all(thread.request.kind == GRID_SYNC for thread in living):  # type: ignore[union-attr]
            return False
        self._barrier(living)
        if self.ready:
            return None
        return self.settle()

    def living(self) -> list[Thread]:
        """Returns the threads that have not ended."""
        return [thread for thread in self.threads if not thread.ended]

    def _barrier(self, living: list[Thread]) -> None:
        first, requests = living[0], [cast(Request, thread.request) for thread in living]
        meeting, place = requests[0].meeting, first.place()
        for thread, request in zip(living, requests, strict=True):
            if (request.meeting, thread.place()) != (meeting, place):
                self.launch.diverged(first, thread)
                end(living)
                return
        returned = self.returned_thread()
        if returned is not None:
            self.launch.threads_missing(first, returned)
        self.pass_barrier(living, block_answer(requests[0].kind, requests))

    def returned_thread(self) -> Thread | None:
        """Returns the first thread that has ended without an exception, if any."""
        return next((thread for thread in self.threads if thread.ended and not thread.failed), None)

    def pass_barrier(self, living: Iterable[Thread], answer: Any = None) -> None:
        """Releases the threads from a barrier, each with this answer."""
        self.epoch += 1
        self.ready = [_answered(thread, answer) for thread in living]


def warps_of(threads: list[Thread]) -> list[list[Thread]]:
    """Returns the threads of a block by warps."""
    return [threads[first : first + WARP_SIZE] for first in range(0, len(threads), WARP_SIZE)]


def end(threads: Iterable[Thread]) -> None:
    """Ends threads that cannot continue."""
    for thread in threads:
        thread.ended, thread.failed, thread.request = True, True, None


def _answered(thread: Thread, answer: Any) -> Thread:
    thread.request, thread.answer = None, answer
    return thread


def _released(warp: list[Thread], launch: "Launch") -> list[Thread]:
    """Releases the threads of a warp whose operation is complete, and returns them with their
    answers set.
    """
    waiting: dict[tuple[str, int], list[Thread]] = {}
    for thread in warp:
        request = thread.request
        if request is not None and request.kind not in OF_BLOCKS:
            waiting.setdefault(request.meeting, []).append(thread)
    released: list[Thread] = []
    for (kind, mask), group in waiting.items():
        released += _complete(warp, kind, mask, group, launch)
    if released:
        return released
    # Lanes that wait at the same `activemask` are assumed to be converged.
    together: dict[Any, list[Thread]] = {}
    for thread in waiting.get((ACTIVE_MASK, FULL_MASK), []):
        together.setdefault(thread.place(), []).append(thread)
    for group in together.values():
        active = np.uint32(sum(1 << thread.lane for thread in group))
        released += [_answered(thread, active) for thread in group]
    return released


def _complete(
    warp: list[Thread], kind: str, mask: int, group: list[Thread], launch: "Launch"
) -> list[Thread]:
    """Releases the threads of a group with the same request if all lanes in the mask are there."""
    members = []
    for thread in group:
        if mask >> thread.lane & 1:
            members.append(thread)
        else:
            launch.not_in_mask(thread, mask)
            end([thread])
    lanes = [thread for thread in warp if mask >> thread.lane & 1 and not thread.ended]
    if kind == ACTIVE_MASK or not members or len(members) < len(lanes):
        return []
    args = {thread.lane: cast(Request, thread.request).args for thread in members}
    answers = warp_answers(kind, args)
    for lane, source in absent_sources(kind, args).items():
        answers[lane] = launch.watch.undefined(warp[lane], source, answers[lane])
    if kind == "syncwarp":
        _join(members)
    return [_answered(thread, answers[thread.lane]) for thread in members]


def _join(group: list[Thread]) -> None:
    """Merges the vector clocks of a `syncwarp`: accesses before it happen before all accesses
    after it, in every lane.
    """
    seen = [max(clocks) for clocks in zip(*(thread.seen for thread in group), strict=True)]
    for thread in group:
        seen[thread.lane] = max(seen[thread.lane], thread.clock)
    for thread in group:
        thread.seen, thread.clock = list(seen), thread.clock + 1


class Launch:
    """One launch of a kernel, whose threads are generators or coroutines in compiled code.

    Attributes:
        current: the running thread.
        epoch: number of grid barriers passed.
        failed_blocks: number of blocks that have ended, and in which a thread could not continue.
    """

    def __init__(
        self,
        program: DebugProgram,
        grid: Dim3,
        block: Dim3,
        smem: int,
        make_watch: Callable[["Launch"], Watch],
    ) -> None:
        self.program, self.grid, self.block, self.smem = program, grid, block, smem
        self.epoch = self.failed_blocks = 0
        self.current: Thread = None  # type: ignore[assignment]  # until the first thread starts
        self.watch = make_watch(self)

    def resume(self, thread: Thread) -> None:
        """Runs a thread until it waits or ends."""
        raise NotImplementedError

    def run_blocks(self, blocks: Iterable[Block]) -> None:
        """Runs blocks one after another, and those that wait at a grid barrier together."""
        waiting = [block for block in blocks if not block.advance()]
        while waiting and self._grid_barrier(waiting):
            waiting = [block for block in waiting if not block.advance()]

    def _grid_barrier(self, waiting: list[Block]) -> bool:
        """Releases blocks from a grid barrier; returns whether they continue."""
        first = waiting[0].living()[0]
        if len(waiting) + self.failed_blocks < math.prod(self.grid):
            self.diverged(first, None)
            return False
        returned = next(filter(None, map(Block.returned_thread, waiting)), None)
        if returned is not None:
            self.threads_missing(first, returned)
        self.epoch += 1
        for block in waiting:
            block.pass_barrier(block.living())
        return True

    def explain(self, error: BaseException, where: str, thread: Iterable[int], block: Any) -> None:
        """Adds notes to an exception that the kernel has raised: line and thread, and the findings
        before it.
        """
        place = f"{self.program.name} ({where})"
        error.add_note(f"in {place}, threadIdx={tuple(thread)} blockIdx={tuple(block)}")
        if self.watch.findings:
            error.add_note("\n".join(["earlier findings:", *map(str, self.watch.findings)]))

    # ---- divergence

    def diverged(self, first: Thread, second: Thread | None) -> None:
        """Reports a deadlock between two threads; with `second` None, between a thread and ended
        blocks.
        """
        reason, accesses = "other blocks ended without reaching it", [first.waiting()]
        if second is not None:
            reason = "others that must reach it wait elsewhere"
            accesses.append(second.waiting())
        call, advice = _call_of(first), _MEET
        if call.startswith("syncthreads"):
            advice += _PARTS
        summary = f"threads wait at cuda.{call}, but {reason}"
        self._report(Finding(DivergenceError, summary, tuple(accesses), advice))

    def not_in_mask(self, thread: Thread, mask: int) -> None:
        """Reports a warp operation whose mask lacks the calling lane."""
        summary = (
            f"the mask {mask:#010x} of a warp operation does not include lane "
            f"{thread.lane}, which calls it"
        )
        advice = "set the bit of every lane that calls it"
        self._report(Finding(DivergenceError, summary, (thread.waiting(),), advice))

    def _report(self, finding: Finding) -> None:
        """Reports that threads cannot continue; raises unless others do."""
        if not self.watch.fault(finding):
            raise self.watch.fail(finding)

    def threads_missing(self, waiting: Thread, returned: Thread) -> None:
        """Reports threads that ended before a barrier that others of their block wait at."""
        summary = (
            f"threads ended before a cuda.{_call_of(waiting)} at which others of their block wait"
        )
        advice = (
            "CUDA requires all threads to reach it: put the work under an `if` "
            "instead of returning early"
        )
        self.watch.ended_early(
            Finding(DivergenceError, summary, (waiting.waiting(), returned.waiting()), advice)
        )


class DebugLaunch(Launch):
    """A launch whose threads are generators.

    Attributes:
        entry: makes the generator of a new thread, not started, from `args`.
    """

    entry: Callable[..., Any]
    args: tuple[Any, ...]

    def run(self, args: tuple[Any, ...]) -> None:
        """Runs all threads of the grid."""
        self.entry = self.program.link(
            Cuda(self), lambda name, value: wrap(value, name, "constant", self.watch)
        )
        names = self.program.params
        self.args = tuple(
            wrap(arg, name, "global", self.watch) for name, arg in zip(names, args, strict=True)
        )
        if self.program.takes_rest:
            self.args = (*self.args[:-1], *self.args[-1])
        with np.errstate(all="ignore"):  # a GPU does not report overflows either
            numbers = range(math.prod(self.grid))
            self.run_blocks(Block(self, self.grid.at(number)) for number in numbers)

    def resume(self, thread: Thread) -> None:
        """Runs a thread until it waits or ends."""
        self.current = thread
        answer, thread.answer = thread.answer, None
        try:
            thread.request = thread.code.send(answer)
        except StopIteration:
            thread.ended, thread.request = True, None
        except KernelCheckError as error:
            raise error.with_traceback(of_the_user(error.__traceback__)) from None
        except BaseException as error:  # noqa: BLE001  # re-raised
            if is_fault(error) and self.watch.fault(fault_finding(thread, error)):
                end([thread])
                return
            line = user_line(error.__traceback__)
            self.explain(error, line, thread.index, thread.block_index)
            raise error.with_traceback(of_the_user(error.__traceback__))  # noqa: B904

    def shared_array(self, name: str, key: str, shape: Any, dtype: np.dtype[Any]) -> Array:
        """Returns the current block's array for one `cuda.shared.array` call in the source."""
        block = self.current.block
        if shape in {0, (0,)}:
            if block.dynamic is None:
                block.dynamic = np.asarray(
                    allocate("dynamic", "shared", self.smem, np.dtype(np.uint8), self.watch, block)
                )
            return carve(block.dynamic, name, dtype, self.watch, block)
        # each specialisation of a device function has its own array
        place = f"{key} {shape} {dtype}"
        if place not in block.shared:
            block.shared[place] = allocate(name, "shared", shape, dtype, self.watch, block)
        return block.shared[place]


_MEET: Final = (
    "a barrier must be reached by all threads, the same one at the same time: move "
    "it out of the `if` or loop"
)
_PARTS: Final = (
    "; threads of one warp can meet at cuda.syncwarp(mask), and parts of a block "
    "can be blocks of their own"
)


def _call_of(thread: Thread) -> str:
    """Returns the call that a thread waits in, as text."""
    return cast(Request, thread.request).kind.removesuffix("()") + "()"
