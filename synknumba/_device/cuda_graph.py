"""Steps recorded as a CUDA graph: one launch in place of one for every copy and kernel.

    steps ──capture──> graph ──instantiate──> executable ──launch──> wait for the mailbox, or for the stream

Small results are written to page-locked memory by one kernel, since a copy takes the copy engine 7 µs; the host spins on the
mailbox. The smallest results are written to the mailbox itself, others to their targets. After that, when the host no longer
waits, private outputs are filled for the next run.

Scalars of a kernel are parameters of its node. Changed scalars are written into the node, which takes 1 µs, where a launch by
Numba takes 12 to 46. The node's parameter of a scalar is found by capturing a launch with another value and comparing, so it
does not matter how a compiler lays out its kernels' parameters. If a parameter is not found, the steps are run one by one.
"""

import ctypes
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, final

import numpy as np
from cupy.cuda import runtime

from synknumba._device.base import Replay, Step
from synknumba._device.cuda_code import MAILED_WORDS, Copy, Mailbox, mail, publish
from synknumba._device.cuda_steps import CopyOut, CudaLaunch, Fill, OnStream, StoreToHost, all_on_stream, make_launch
from synknumba._errors import DeviceError
from synknumba._wire import doorbell
from synknumba._wire.relaunch import Relaunch, Scalar, Scalars

MOST_STEPS = 5000  # beyond, launches are a small part of the time
PUBLISHED_BYTES = 64 << 10  # copied by one block; larger results go through the copy engine

_NOT_READY = 600  # cudaErrorNotReady: work is pending, without an error
_RELAXED = 2  # cudaStreamCaptureModeRelaxed: work on other streams does not affect the capture

# Format characters of the struct module, by kind of dtype.
_LETTERS = {"b": "?", "i": "qihbQIHBdf", "u": "QIHBqihbdf", "f": "dfe", "c": "df"}
_REAL, _IMAGINARY = attrgetter("real"), attrgetter("imag")


class _NodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "smem")),
        ("params", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
    )


@cache
def _driver() -> ctypes.CDLL:
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuGraphExecKernelNodeSetParams_v2.argtypes = [ctypes.c_void_p] * 3
    return driver


class _UnknownError(Exception):
    """A node of a graph cannot be read or changed."""


@cache
def launcher() -> int:
    """Returns the address of cuGraphLaunch, a C function of an executable and a stream that returns 0 or an error."""
    return ctypes.cast(_driver().cuGraphLaunch, ctypes.c_void_p).value or 0


@cache
def rewriter() -> int:
    """Returns the address of cuGraphExecKernelNodeSetParams, of an executable, a node and its parameters."""
    return ctypes.cast(_driver().cuGraphExecKernelNodeSetParams_v2, ctypes.c_void_p).value or 0


def _ask(function: str, *args: Any) -> None:
    try:
        code = getattr(_driver(), function)(*args)
    except AttributeError as error:  # an older driver
        raise _UnknownError(function) from error
    if code != 0:
        raise _UnknownError(function, code)


def record(steps: Sequence[Step], stream: Any, box: Mailbox) -> Replay | None:
    """Records steps that were run before; None if they do more than put work on this stream and on streams that join it."""
    if not steps or len(steps) > MOST_STEPS or not all_on_stream(steps):
        return None
    try:
        return _record(steps, stream, box)
    except Exception:  # noqa: BLE001  # of CUDA, CuPy, the compiler, NCCL: a step cannot be recorded, or memory is short
        return None


def _record(steps: Sequence[Step], stream: Any, box: Mailbox) -> Replay:
    prints = any(step.kernel is not None and step.kernel.prints() for step in steps if isinstance(step, CudaLaunch))
    rest, copies = (list(steps), None) if prints else _split(steps)
    fills: list[Step] = []
    targets: list[int] = []
    if copies is not None:
        fills = [step for step in rest if _is_private(step)]  # no earlier step uses their arrays
        end, targets = _tell(copies, box, stream)
        rest = [*(step for step in rest if not _is_private(step)), end, *fills]
    graph, nodes = _capture(rest, stream)
    try:
        executable = runtime.graphInstantiate(graph)
    except BaseException:
        runtime.graphDestroy(graph)
        raise
    relaunch = Relaunch(launcher(), executable, stream.ptr, box.address, targets) if targets else None
    replay = _GraphReplay(graph, executable, stream, relaunch, [*rest, *steps], nodes)
    try:
        for fill in fills:
            fill()
    except BaseException:
        replay.close()
        raise
    return replay


def _split(steps: Sequence[Step]) -> tuple[list[Step], list[Copy] | None]:
    """Splits off the copies of small results at the end of the steps; None if anything else is written to the host."""
    head, copies = list(steps), []
    while head and isinstance(last := head[-1], CopyOut):
        copies.append(Copy(*last.args[:3]))
        head.pop()
    if any(isinstance(step, StoreToHost) for step in head) or sum(copy.nbytes for copy in copies) > PUBLISHED_BYTES:
        return list(steps), None
    return head, copies[::-1]


def _tell(copies: Sequence[Copy], box: Mailbox, stream: Any) -> tuple[OnStream, list[int]]:
    """Returns the step that sends results to the host, and the target address of each word of the mailbox."""
    words = sum(copy.nbytes for copy in copies) // 4
    if 0 < words <= MAILED_WORDS and not any((copy.target | copy.source | copy.nbytes) % 4 for copy in copies):
        places = [(copy, at) for copy in copies for at in range(0, copy.nbytes, 4)]
        return mail([copy.source + at for copy, at in places], box, stream), [copy.target + at for copy, at in places]
    return publish(copies, box, stream), [box.nowhere]


def _is_private(step: Step) -> bool:
    return isinstance(step, Fill) and step.private


def _capture(steps: Sequence[Step], stream: Any) -> tuple[int, dict[int, int]]:
    """Captures a graph of the steps. Returns it with the nodes of launches with scalars, by the step's position."""
    nodes: dict[int, int] = {}
    runtime.streamBeginCapture(stream.ptr, _RELAXED)
    try:
        for position, step in enumerate(steps):
            step()
            if isinstance(step, CudaLaunch) and step.changing:
                with suppress(_UnknownError):
                    nodes[position] = _last_node(stream)
    except BaseException:
        with suppress(runtime.CUDARuntimeError):
            graph = runtime.streamEndCapture(stream.ptr)
            if graph:
                runtime.graphDestroy(graph)
        raise
    return runtime.streamEndCapture(stream.ptr), nodes


def _last_node(stream: Any) -> int:
    """Returns the node captured last on a stream."""
    status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    nodes, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_size_t()
    told = (ctypes.byref(one) for one in (status, number, graph, nodes, count))
    _ask("cuStreamGetCaptureInfo_v2", ctypes.c_void_p(stream.ptr), *told)
    if count.value != 1:
        raise _UnknownError("node")
    return nodes[0] or 0


@final
class _GraphReplay(Replay):
    def __init__(
        self, graph: int, executable: int, stream: Any, relaunch: Relaunch | None, steps: Sequence[Step], nodes: dict[int, int]
    ) -> None:
        self._graph, self._executable = graph, executable
        self._stream, self._pointer = stream, stream.ptr
        self._relaunch = relaunch
        self.relaunch = 0 if relaunch is None else relaunch.address
        self._steps = steps  # keeps alive what the graph addresses; the recorded steps come first
        self._nodes = nodes
        self._changing = len({id(step) for step in steps if isinstance(step, CudaLaunch) and step.changing})
        self._kernels: list[_KernelNode] | None = None

    def __call__(self) -> None:
        if not self.relaunch or doorbell.launch(self.relaunch) != 0:
            runtime.graphLaunch(self._executable, self._pointer)  # raises the error of the first launch
        self.wait()

    def wait(self) -> None:
        if not self.relaunch:
            runtime.streamSynchronize(self._pointer)
            return
        while not doorbell.take(self.relaunch):
            if runtime.streamQuery(self._pointer) == _NOT_READY:
                continue
            runtime.streamSynchronize(self._pointer)  # raises an error, after which no mail arrives
            if not doorbell.take(self.relaunch):
                raise DeviceError("a recorded CUDA graph ended without results; please report this, with the kernel")

    def renew(self) -> bool:
        try:
            if self._kernels is None:
                self._kernels = self._find_kernels()
                places = [place for kernel in self._kernels for place in kernel.scalars]
                calls = [(self._executable, *kernel.node_and_params) for kernel in self._kernels]
                self.scalars = Scalars(places, rewriter(), calls)
            for kernel in self._kernels:
                kernel.renew(self._executable)
        except Exception:  # noqa: BLE001  # a scalar that does not fit, a driver that refuses: the steps are run one by one
            return False
        return True

    def _find_kernels(self) -> "list[_KernelNode]":
        launches = {i: step for i, step in enumerate(self._steps) if isinstance(step, CudaLaunch) and i in self._nodes}
        if len(launches) != self._changing:
            raise _UnknownError("nodes")
        places: list[_ScalarPlace] = []
        for step in launches.values():
            # All launches are of one kernel, so their parameters have one layout.
            places = places or _find_scalars(step, self._stream)
        return [_KernelNode(self._nodes[i], step.arguments, places) for i, step in launches.items()]

    def close(self) -> None:
        if self._executable:
            with suppress(runtime.CUDARuntimeError):
                self._stream.synchronize()
                runtime.graphExecDestroy(self._executable)
                runtime.graphDestroy(self._graph)
            self._executable = self.relaunch = 0
            self.scalars = None
            self._steps = ()


@dataclass(frozen=True, slots=True)
class _ScalarPlace:
    """The place of a scalar among a kernel's parameters."""

    position: int  # among the arguments
    # For the number, or its real and its imaginary part: index among the parameters, format character, getter.
    parts: tuple[tuple[int, str, Callable[[Any], Any]], ...]


def _find_scalars(launch: CudaLaunch, stream: Any) -> list[_ScalarPlace]:
    """Finds the places of changing scalars by launches that are captured and not run."""
    usual = _captured_params(launch.arguments, launch, stream)
    places = []
    for position in launch.changing:
        value = launch.arguments[position]
        other = _other(value)
        changed = _captured_params([*launch.arguments[:position], other, *launch.arguments[position + 1 :]], launch, stream)
        found = [i for i, (one, two) in enumerate(zip(usual, changed, strict=True)) if one != two]
        kind = np.asarray(value).dtype.kind
        getters = (_REAL, _IMAGINARY) if kind == "c" else (_REAL,)
        if len(found) != len(getters):
            raise _UnknownError("scalar", position)
        parts = []
        for i, get in zip(found, getters, strict=True):
            seen = ((get(value), usual[i]), (get(other), changed[i]))
            letter = next((one for one in _LETTERS.get(kind, "") if all(_fits(one, *pair) for pair in seen)), None)
            if letter is None:
                raise _UnknownError("scalar", position)
            parts.append((i, letter, get))
        places.append(_ScalarPlace(position, tuple(parts)))
    return places


def _other(value: Any) -> Any:
    """Returns another value of the same type, different in all parts."""
    if isinstance(value, bool | np.bool_):
        return type(value)(not value)
    is_complex = isinstance(value, complex | np.complexfloating)
    others = map(type(value), (1 + 2j, 3 + 4j, 5 + 6j) if is_complex else (1, 2))
    return next(one for one in others if one.real != value.real and (one.imag != value.imag or not is_complex))


def _fits(letter: str, value: Any, parameter: bytes) -> bool:
    """Whether a format packs a value to these bytes."""
    try:
        return struct.pack("<" + letter, value) == parameter
    except (struct.error, TypeError):
        return False


def _captured_params(arguments: list[Any], launch: CudaLaunch, stream: Any) -> list[bytes]:
    """Returns the bytes of each parameter of a launch with these arguments."""
    one = make_launch(launch.args[0], arguments, (0,))
    graph, nodes = _capture([one], stream)
    try:
        if not nodes:
            raise _UnknownError("node")
        return [ctypes.string_at(address, nbytes) for address, nbytes in _read_node(nodes[0])[1]]
    finally:
        runtime.graphDestroy(graph)


def _read_node(node: int) -> tuple[_NodeParams, list[tuple[int, int]]]:
    """Returns the parameters of a kernel node, and the address and size in bytes of each of the kernel's."""
    told = _NodeParams()
    _ask("cuGraphKernelNodeGetParams_v2", ctypes.c_void_p(node), ctypes.byref(told))
    if not told.params or told.extra:
        raise _UnknownError("parameters")
    function = ctypes.c_void_p(told.func)
    if not told.func:
        _ask("cuKernelGetFunction", ctypes.byref(function), ctypes.c_void_p(told.kern))
    parameters: list[tuple[int, int]] = []
    offset, nbytes = ctypes.c_size_t(), ctypes.c_size_t()
    ask = getattr(_driver(), "cuFuncGetParamInfo", None)
    if ask is None:
        raise _UnknownError("cuFuncGetParamInfo")
    while ask(function, ctypes.c_size_t(len(parameters)), ctypes.byref(offset), ctypes.byref(nbytes)) == 0:
        parameters.append((told.params[len(parameters)] or 0, nbytes.value))
    return told, parameters


class _KernelNode:
    """A launch in a graph, with a copy of its parameters that can be rewritten; `renew` reads its arguments again."""

    def __init__(self, node: int, arguments: list[Any], places: Sequence[_ScalarPlace]) -> None:
        self._arguments = arguments
        self._told, parameters = _read_node(node)
        starts = np.cumsum([0] + [-(-nbytes // 16) * 16 for _, nbytes in parameters]).tolist()
        self._memory = ctypes.create_string_buffer(starts[-1])
        base = ctypes.addressof(self._memory)
        self._pointers = (ctypes.c_void_p * len(parameters))(*(base + start for start in starts[:-1]))
        for (address, nbytes), start in zip(parameters, starts[:-1], strict=True):
            ctypes.memmove(base + start, address, nbytes)
        self._told.params = ctypes.cast(self._pointers, ctypes.POINTER(ctypes.c_void_p))
        self.node_and_params = node, ctypes.addressof(self._told)
        self.scalars = [  # where they are written
            Scalar(place.position, number, letter, base + starts[i])
            for place in places
            for number, (i, letter, _) in enumerate(place.parts)
        ]
        self._packs = [
            (place.position, struct.Struct("<" + letter).pack_into, starts[i], get)
            for place in places
            for i, letter, get in place.parts
        ]
        self._set = _driver().cuGraphExecKernelNodeSetParams_v2

    def renew(self, executable: int) -> None:
        """Writes the arguments' scalars into the graph."""
        for position, pack, start, get in self._packs:
            pack(self._memory, start, get(self._arguments[position]))
        code = self._set(executable, *self.node_and_params)
        if code != 0:
            raise _UnknownError("cuGraphExecKernelNodeSetParams", code)
