"""Ranks that record what they repeat, as on GPUs, so that compiled code serves it: without a GPU.

What is recorded is run by a function that compiled code calls, as it calls the driver's, and that
then writes to a mailbox. By and by it does so late, after the rank has gone back to Python.
"""

import ctypes
import os
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar
from unittest import mock

import numpy as np

import synknumba as synk
from synknumba._device import (
    Buffer,
    DeviceKernel,
    Gather,
    LineRows,
    RecordedCall,
    Recorder,
    Recording,
    ResultRing,
    Step,
    Workspace,
)
from synknumba._device.cpu import CpuWorkspace
from synknumba._ops.rows import InLine, Range, Rows
from synknumba._ops.tree import flatten, unflatten
from synknumba._rank import loop
from synknumba._wire import doorbell
from synknumba._wire.control import CROWDED, ROOMY
from synknumba._wire.relaunch import Relaunch, Scalar, Scalars
from synknumba._world import life
from synknumba._world.engine import Engine
from synknumba._world.world import world_of
from tests.conformance.private_memory import PrivateDevice, opened_by_ranks

GARBAGE = 0x5A
LATE_EVERY = 11
LATE_SECONDS = 0.05  # longer than compiled code waits


class CountedDoorbell:
    """The module `doorbell`, as ranks use it, and how many rounds it has served."""

    def __init__(self) -> None:
        self.served = self.under_way = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(doorbell, name)

    def serve(self, *args: int) -> int:
        number: int = doorbell.serve(*args)
        self.served += ctypes.c_int64.from_address(args[-1] + 8 * doorbell.SERVED).value
        self.under_way += number == doorbell.UNDER_WAY
        return number


class OwnWorkspace(CpuWorkspace):
    """Memory of a program's own, to which rows are copied. New memory is garbage, and so is what
    is replaced or given up.
    """

    def rows(self, slot: object, host: Any, rows: Rows, *, writable: bool) -> Buffer:
        where: Any = rows.selector
        array = self.scratch(slot, host.dtype, (rows.count, *host.shape[1:]))

        def load() -> None:
            array[...] = host[where]

        return Buffer(array, load, partial(host.__setitem__, where, array) if writable else None)

    def line_rows(self, slot: object, host: Any, rows: InLine) -> LineRows:
        array = self.scratch(slot, host.dtype, (rows.count, *host.shape[1:]))

        def gather(target: Any) -> Gather:
            def bind(args: list[Any]) -> Step:
                return lambda: np.copyto(
                    target, host[InLine(rows.table, args[0], rows.start, rows.count).listed.indices]
                )

            args: list[Any] = [np.int64(rows.line)]
            return Gather(Launch(bind, args, (0,)), args, 0, len(rows.table))

        def ahead() -> tuple[Gather, Step]:
            kept = self.scratch(None, array.dtype, array.shape)

            def take() -> None:
                array[...] = kept
                kept.fill(GARBAGE)  # taken once only

            return gather(kept), take

        return LineRows(array, gather(array), ahead)

    def held_rows(self, slot: object, array: Any, rows: Rows, *, writable: bool) -> Buffer:
        if isinstance(rows, Range) and rows.step == 1:
            return Buffer(array[rows.selector])
        return self.rows(slot, array, rows, writable=writable)

    def whole(self, slot: object, host: Any) -> Buffer:
        array = self.scratch(slot, host.dtype, host.shape)
        return Buffer(array, partial(np.copyto, array, host))

    def output(self, slot: object, host: Any) -> Buffer:
        array = self.scratch(slot, host.dtype, host.shape)
        return Buffer(array, None, partial(np.copyto, host, array))

    def scratch(self, slot: object, dtype: Any, shape: Any) -> Any:
        slot = object() if slot is None else slot  # not requested again
        before = self._storage.get(slot)
        array = super().scratch(slot, dtype, shape)
        if self._storage[slot] is not before:
            self._storage[slot].fill(GARBAGE)
            if before is not None:
                self.replaced += 1
                before.fill(GARBAGE)
        return array

    def close(self) -> None:
        for memory in self._storage.values():
            memory.fill(GARBAGE)
        super().close()


def fatal(function: Callable[..., int]) -> Callable[..., int]:
    """A function that C calls: what it raises would only be printed there, so the rank ends."""

    def guarded(*args: int) -> int:
        try:
            return function(*args)
        except BaseException:
            traceback.print_exc()
            os._exit(70)

    return guarded


LETTERS = {"float64": "d", "float32": "f", "bool": "?", "complex128": "dd", "complex64": "ff"} | {
    f"{sign}int{bits}": letter.upper() if sign else letter
    for sign in ("", "u")
    for bits, letter in ((8, "b"), (16, "h"), (32, "i"), (64, "q"))
}


class Launch:
    """A step that launches, and that a graph would have as a node.

    Args:
        bind: of the kernel.
        args: of the launch.
        changing: positions of scalars among them.
    """

    def __init__(
        self, bind: Callable[[list[Any]], Step], args: list[Any], changing: Sequence[int]
    ) -> None:
        self.bind, self.args, self.changing = bind, args, changing
        self._step = bind(args)

    def __call__(self) -> None:
        self._step()


class Node:
    """A launch in a graph: its arguments are its own, and it gets others by memory that has
    scalars as a kernel does.
    """

    def __init__(self, launch: Launch) -> None:
        self.step = launch.bind(args := [*launch.args])
        self._args, self._usual = args, launch.args
        self._memory = np.zeros(2 * max(1, len(launch.changing)), np.int64)
        places = [
            (p, part, letter)
            for p in launch.changing
            for part, letter in enumerate(LETTERS[np.asarray(args[p]).dtype.name])
        ]
        address = self._memory.ctypes.data
        self.scalars = [Scalar(*place, address + 8 * k) for k, place in enumerate(places)]

    def write(self) -> None:
        """The launch's scalars into the memory, as Python does it."""
        for place in self.scalars:
            value = self._usual[place.position]
            parts = (value.real, value.imag) if np.iscomplexobj(value) else (value,)
            struct.pack_into(
                place.letter,
                self._memory,
                place.address - self._memory.ctypes.data,
                parts[place.part],
            )

    def read(self) -> None:
        """What is in the memory is what is launched with."""
        parts: dict[int, list[Any]] = {}
        for place in self.scalars:
            (part,) = struct.unpack_from(
                place.letter, self._memory, place.address - self._memory.ctypes.data
            )
            parts.setdefault(place.position, []).append(part)
        for position, found in parts.items():
            value = found[0] if len(found) == 1 else complex(*found)
            self._args[position] = type(self._args[position])(value)


class NodeKernel(DeviceKernel):
    """A kernel whose launches are nodes in what is recorded."""

    def __init__(self, kernel: DeviceKernel) -> None:
        self._kernel = kernel

    def bind(
        self, grid: Any, block: Any, smem_bytes: int, args: list[Any], changing: Sequence[int]
    ) -> Step:
        return Launch(
            lambda args: self._kernel.bind(grid, block, smem_bytes, args, changing), args, changing
        )

    def convert(self, arg: Any) -> Any:
        return self._kernel.convert(arg)


class Filling(partial[Any]):
    """A step that fills an array which only steps recorded with it write."""


class CalledRecording(Recording):
    """Steps that are run where a graph would be launched, or its launch queued.

    Attributes:
        fails_in: launches from now that one of them fails; 0 if none does.
        broken: whether one has failed, and not been told yet.
        refuses_in: of how many times from now that a node gets other scalars one fails, by whether
            launches are queued; 0 if none does.
        queued: how many recordings there have been whose launches are queued.
    """

    fails_in = 0
    broken = False
    refuses_in: ClassVar[dict[bool, int]] = {False: 0, True: 0}
    queued = 0

    def __init__(self, steps: Iterable[Step], *, is_queued: bool) -> None:
        self._is_queued = is_queued
        self._nodes: dict[int, Node] = {}
        self._steps = [*self._taken(steps)]
        self._set = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 3)(fatal(self._set_node))
        self._words = np.zeros(2, np.int64)  # the mailbox, and where its word belongs
        self._launches = 0
        if is_queued:
            type(self).queued += 1
            return
        box = self._words.ctypes.data
        self._function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_int64)(
            fatal(self._launch)
        )
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        assert address is not None
        self._kept = Relaunch(address, 11, 22, box, [box + 8])
        self.relaunch = self._kept.address

    def _taken(self, steps: Iterable[Step]) -> Iterator[Step]:
        for position, step in enumerate(steps):
            if isinstance(step, Launch):
                self._nodes[position] = Node(step)
                yield self._nodes[position].step
            else:
                yield step

    def _launch(self, executable: int, stream: int) -> int:
        assert (executable, stream) == (11, 22)
        assert self.relaunch, "it was closed"
        self._launches += 1
        kind = type(self)
        if kind.fails_in:
            kind.fails_in -= 1
            kind.broken = kind.fails_in == 0
            if kind.broken:
                return 1
        if self._launches % LATE_EVERY == 0:
            threading.Thread(target=fatal(self._run_late), daemon=True).start()
            return 0
        self._run()
        return 0

    def _run_late(self) -> None:
        time.sleep(LATE_SECONDS)
        self._run()

    def _run(self) -> None:
        self.queue()
        self._words[0] = 1 << 32

    def launch(self) -> None:
        if self.broken:
            type(self).broken = False
            raise RuntimeError("no launch")
        self.queue()

    def queue(self) -> None:
        for step in self._steps:
            step()

    def wait(self) -> None:
        while not doorbell.take(self.relaunch):
            pass

    def _set_node(self, executable: int, position: int, params: int) -> int:
        assert (executable, params) == (11, position + 1)
        refuses_in = type(self).refuses_in
        if refuses_in[self._is_queued]:
            refuses_in[self._is_queued] -= 1
            if not refuses_in[self._is_queued]:
                return 1
        self._nodes[position].read()
        return 0

    def _nodes_of(self, first: int, after: int | None) -> dict[int, Node]:
        end = len(self._steps) if after is None else after
        return {position: node for position, node in self._nodes.items() if first <= position < end}

    def renew(self, first: int = 0, after: int | None = None) -> bool:
        for position, node in self._nodes_of(first, after).items():
            node.write()
            if self._is_queued:
                if self._set_node(11, position, position + 1):
                    return False
            else:
                node.read()
        return True

    def scalars(self, first: int = 0, after: int | None = None) -> Scalars | None:
        nodes = self._nodes_of(first, after)
        address = ctypes.cast(self._set, ctypes.c_void_p).value or 0
        places = [place for node in nodes.values() for place in node.scalars]
        return Scalars(places, address, [(11, position, position + 1) for position in nodes])

    def close(self) -> None:
        self.relaunch = 0
        if self._is_queued:
            self._steps = []


class RepeatedCall(RecordedCall):
    """A call of a function that is made again where a graph would be launched."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call, self._result = call, None
        self._is_made = False

    def __call__(self) -> Any:
        self._result, self._is_made = self._call(), True
        return self._result

    def step(self) -> tuple[Step, Any] | None:
        if not self._is_made:
            return None
        leaves, structure = flatten(self._result)
        own = [np.empty(np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves]
        return partial(self._repeat, own), unflatten(structure, own)

    def _repeat(self, targets: Sequence[Any]) -> None:
        for target, leaf in zip(targets, flatten(self._call())[0], strict=True):
            target[...] = leaf


class RepeatedCalls(Recorder):
    """Each kind of arguments has a call of its own, as long as its arrays are the same memory."""

    def __init__(self) -> None:
        self._made: dict[Any, RepeatedCall] = {}

    def recorded(
        self, call: Callable[[], Any], arguments: Any, written: Sequence[Any]
    ) -> RecordedCall:
        leaves = flatten(arguments)[0]
        kind = tuple(
            (one.ctypes.data, one.shape) if isinstance(one, np.ndarray) else repr(one)
            for one in leaves
        )
        return self._made.setdefault(kind, RepeatedCall(call))

    def close(self) -> None:
        self._made.clear()


class CopiedRing(ResultRing):
    """Runs the copies of an iteration, and copies the line to a list."""

    def __init__(self, line: Any) -> None:
        self._line = line
        self._kept: list[Any] = []
        self._left = self._period = 0

    def step(self, copies: Sequence[Step]) -> Step:
        return partial(self._keep, copies)

    def _keep(self, copies: Sequence[Step]) -> None:
        self._left -= 1
        if not self._left:
            for copy in copies:
                copy()
            self._kept.append(self._line.copy())
            self._left = self._period

    def begin(self, entries: int, period: int) -> None:
        self._kept.clear()
        self._left = self._period = period

    def take(self, lines: Any) -> None:
        lines[...] = self._kept


class ReplayedDevice(PrivateDevice):
    def workspace(self, *, sliced: bool = False) -> Workspace:
        return OwnWorkspace()

    def kernel(self, function: Callable[..., Any], options: Mapping[str, Any]) -> DeviceKernel:
        return NodeKernel(super().kernel(function, options))

    def recorder(self, name: str) -> Recorder:
        return RepeatedCalls()

    def fill(self, array: Any, value: Any, *, private: bool = False) -> Step:
        step = super().fill(array, value, private=private)
        return Filling(step) if private else step

    def record(self, steps: Sequence[Step], *, alone: bool = True) -> Recording | None:
        # ahead, at the end of each run
        fills = [step for step in steps if alone and isinstance(step, Filling)]
        for step in fills:
            step()
        rest = [step for step in steps if step not in fills]
        return CalledRecording([*rest, *fills], is_queued=False)

    def record_queued(self, steps: Iterable[Step]) -> Recording | None:
        return CalledRecording(steps, is_queued=True)

    def can_queue(self, steps: Sequence[Step]) -> bool:
        return True

    def result_ring(self, line: Any) -> ResultRing:
        return CopiedRing(line)

    def beside(self) -> tuple[list[Step], list[Step]]:
        return [], []

    def only_copies_to(self, host: Any, step: Any) -> bool:
        return (
            isinstance(step, partial)
            and step.func is np.copyto
            and np.may_share_memory(host, step.args[0])
        )


def fork_replayed(
    world_size: int, transport: Any = "host", timeout: float | None = None
) -> synk.World:
    """A world of such ranks, which stay awake from call to call also in the workers of
    pytest-xdist.
    """
    with (
        mock.patch.multiple(life, CROWDED=CROWDED, ROOMY=ROOMY),
        opened_by_ranks(world_size, ReplayedDevice, doorbell_module=CountedDoorbell()),
    ):
        devices = (0,) * world_size
        return world_of(
            Engine(
                life.Setup(
                    world_size=world_size, device="cuda", devices=devices, transport=transport
                ),
                timeout=timeout,
            )
        )


@synk.function(outputs=None)
def count_served() -> tuple[int, int]:
    """Of each rank, how many rounds compiled code has served, and how many it has begun, since
    it was asked last.
    """
    counted: Any = loop.doorbell_module
    told = counted.served, counted.under_way
    counted.served = counted.under_way = 0
    return told
