"""A model of a GPU as the CUDA runtime shows it: streams, events, graphs, page-locked memory. Host
memory plays device memory.

    put ──> queue of a stream ──any queue whose head need not wait──> run
        └─> node of a graph, while the stream is captured ──any order that its edges allow──> run

Nothing runs when it is put on a stream: what is to run next is drawn, among all that the order
within streams and the events allow. So whatever is right only by luck goes wrong for some seed.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

SUCCESS, INVALID_VALUE, NOT_READY, ILLEGAL_ADDRESS, ALREADY_LOCKED, NOT_LOCKED = (
    0,
    1,
    600,
    700,
    712,
    713,
)
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_UNJOINED, CAPTURE_ISOLATION, MISALIGNED = (
    900,
    901,
    904,
    905,
    716,
)
PAGE = 4096


class CUDARuntimeError(RuntimeError):
    """Named and raised as CuPy does."""

    def __init__(self, status: int) -> None:
        super().__init__(f"error {status}")
        self.status = status


class FaultError(Exception):
    """Raised by work: the context is lost, and everybody who asks later is told so."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass(eq=False)
class Event:
    """Where it was recorded last."""

    recorded: int = 0
    done: int = 0
    captured: "tuple[Graph, frozenset[Node]] | None" = None


@dataclass(frozen=True)
class Wait:
    event: Event
    number: int


@dataclass(eq=False)
class Node:
    handle: int
    work: Callable[[], object]
    before: frozenset["Node"]


@dataclass(eq=False)
class Graph:
    origin: int
    nodes: list[Node] = field(default_factory=list)
    invalid: bool = False


class Machine:
    """The device, and what its runtime knows.

    Args:
        seed: of what runs when.
    """

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.status = SUCCESS
        self.queues: dict[int, list[Any]] = {}
        # by stream: its graph, and what it comes behind
        self.captures: dict[int, tuple[Graph, frozenset[Node]]] = {}
        self.events: dict[int, Event] = {}
        self.graphs: dict[int, Graph] = {}
        self.executables: dict[int, list[Node]] = {}
        self.locked: dict[int, int] = {}  # bytes, by address
        self.pinned: dict[int, Any] = {}  # the same, of memory that was made page-locked
        self.may_lock = True
        self._handles = count(1000)

    # ---- running

    def check(self) -> None:
        if self.status:
            raise CUDARuntimeError(self.status)

    def put(self, stream: int, work: Callable[[], object]) -> None:
        """Puts work on a stream, or into the graph that is made of it."""
        self.check()
        if stream in self.captures:
            graph, behind = self.captures[stream]
            node = Node(next(self._handles), work, behind)
            graph.nodes.append(node)
            self.captures[stream] = graph, frozenset([node])
            return
        self.queues.setdefault(stream, []).append(work)
        for _ in range(self.random.choice((0, 0, 1, 4))):
            self.run_one()

    def run_one(self) -> bool:
        """Runs the head of one queue; whether there was one that need not wait."""
        ready = [queue for queue in self.queues.values() if queue and not _waits(queue[0])]
        if not ready:
            return False
        work = self.random.choice(ready).pop(0)
        if not isinstance(work, Wait):
            self._run(work)
        return True

    def _run(self, work: Callable[[], object]) -> None:
        if not self.status:
            try:
                work()
            except FaultError as fault:
                self.status = fault.status

    def synchronize(self, stream: int) -> None:
        """Until a stream is empty; others get on, or not."""
        if stream in self.captures:
            self.captures[stream][0].invalid = True
            raise CUDARuntimeError(CAPTURE_UNSUPPORTED)
        while self.queues.get(stream):
            assert self.run_one(), "streams wait for each other"
        self.check()

    def synchronize_all(self) -> None:
        for stream in list(self.queues):
            self.synchronize(stream)
        self.check()

    def query(self, stream: int) -> int:
        """How a stream was found; while that is asked, work goes on."""
        was_empty = not self.queues.get(stream)
        self.run_one()
        return self.status or (SUCCESS if was_empty else NOT_READY)

    # ---- events

    def record_event(self, handle: int, stream: int) -> None:
        event = self.events.setdefault(handle, Event())
        if stream in self.captures:
            event.captured = self.captures[stream]
            return
        event.captured = None
        event.recorded += 1
        number = event.recorded

        def reached() -> None:
            event.done = number

        self.put(stream, reached)

    def wait_event(self, stream: int, handle: int) -> None:
        self.check()
        event = self.events.setdefault(handle, Event())
        mine = self.captures.get(stream)
        if event.captured is not None:
            graph, behind = event.captured
            assert graph in [one for one, _ in self.captures.values()], (
                "an event of a graph that is finished"
            )
            self.captures[stream] = graph, behind | (mine[1] if mine else frozenset())
        elif mine is not None:
            mine[0].invalid = True
            raise CUDARuntimeError(CAPTURE_ISOLATION)
        elif event.recorded:
            self.queues.setdefault(stream, []).append(Wait(event, event.recorded))

    # ---- graphs

    def begin_capture(self, stream: int) -> None:
        self.check()
        assert stream not in self.captures, "captured already"
        self.captures[stream] = Graph(stream), frozenset()

    def end_capture(self, stream: int) -> int:
        graph, behind = self.captures[stream]
        assert graph.origin == stream
        tails = [
            tail for other, (of, tail) in self.captures.items() if of is graph and other != stream
        ]
        self.captures = {other: one for other, one in self.captures.items() if one[0] is not graph}
        if graph.invalid:
            raise CUDARuntimeError(CAPTURE_INVALIDATED)
        if not frozenset().union(*tails) <= _all_before(behind):
            raise CUDARuntimeError(CAPTURE_UNJOINED)
        handle = next(self._handles)
        self.graphs[handle] = graph
        return handle

    def instantiate(self, graph: int) -> int:
        handle = next(self._handles)
        self.executables[handle] = list(self.graphs[graph].nodes)
        return handle

    def launch(self, executable: int, stream: int) -> None:
        self.put(stream, lambda: self._run_graph(list(self.executables[executable])))

    def destroy_graph(self, graph: int) -> None:
        del self.graphs[graph]

    def destroy_executable(self, executable: int) -> None:
        self.check()
        del self.executables[executable]

    def _run_graph(self, nodes: list[Node]) -> None:
        left = set(nodes)
        while left:
            ready = [node for node in nodes if node in left and not node.before & left]
            node = self.random.choice(ready)
            left.discard(node)
            self._run(node.work)

    # ---- page-locked memory

    def lock(self, address: int, nbytes: int) -> None:
        self.check()
        if not self.may_lock or nbytes <= 0:
            raise CUDARuntimeError(INVALID_VALUE)
        low, high = address // PAGE, -(-(address + nbytes) // PAGE)
        if any(
            start // PAGE < high and low < -(-(start + size) // PAGE)
            for start, size in self.locked.items()
        ):
            raise CUDARuntimeError(ALREADY_LOCKED)
        self.locked[address] = nbytes

    def unlock(self, address: int) -> None:
        self.check()
        if self.locked.pop(address, None) is None:
            raise CUDARuntimeError(NOT_LOCKED)

    def is_locked(self, address: int, nbytes: int) -> bool:
        """Whether the device can reach the host's memory there; a copy must not be partly in
        what is locked.
        """
        ranges = [
            *self.locked.items(),
            *((start, len(memory)) for start, memory in self.pinned.items()),
        ]
        touched = [
            (start, size)
            for start, size in ranges
            if start < address + nbytes and address < start + size
        ]
        if not touched:
            return False
        if not any(
            start <= address and address + nbytes <= start + size for start, size in touched
        ):
            raise CUDARuntimeError(INVALID_VALUE)
        return True


def _waits(work: Any) -> bool:
    return isinstance(work, Wait) and work.event.done < work.number


def _all_before(nodes: frozenset[Node]) -> set[Node]:
    seen: set[Node] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            left.extend(node.before)
    return seen
