"""CUDA graphs: steps are captured as nodes, and the scalars of a kernel's node are found and
rewritten.

Scalars of a kernel are parameters of its node. Changed scalars are written into the node, which
takes 1 µs, where a launch by Numba takes 12 to 46. The node's parameter of a scalar is found by
capturing a launch with another value and comparing, so it does not matter how a compiler lays out
its kernels' parameters. A launch of the graph that is queued already keeps its scalars.
"""

import ctypes
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np
from cupy.cuda import runtime

from synknumba._device.base import Step
from synknumba._device.cuda_steps import CudaLaunch, make_launch
from synknumba._wire.relaunch import Scalar

_RELAXED = 2  # cudaStreamCaptureModeRelaxed: work on other streams does not affect the capture

# Format characters of the struct module, by kind of dtype.
_LETTERS = {"b": "?", "i": "qihbQIHBdf", "u": "QIHBqihbdf", "f": "dfe", "c": "df"}
_REAL, _IMAGINARY = attrgetter("real"), attrgetter("imag")


class _NodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        *(
            (name, ctypes.c_uint)
            for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "smem")
        ),
        ("params", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
    )


def _copy_end(name: str) -> Iterator[tuple[str, Any]]:
    """Yields the fields of the source or the target of a copy."""
    yield from ((f"{name}_{axis}", ctypes.c_size_t) for axis in ("x", "y", "z", "lod"))
    yield f"{name}_type", ctypes.c_uint
    yield f"{name}_host", ctypes.c_void_p
    yield name, ctypes.c_uint64
    yield from ((f"{name}_{part}", ctypes.c_void_p) for part in ("array", "reserved"))
    yield from ((f"{name}_{part}", ctypes.c_size_t) for part in ("pitch", "height"))


class _CopyParams(ctypes.Structure):
    """CUDA_MEMCPY3D of cuda.h."""

    _fields_ = (
        *_copy_end("source"),
        *_copy_end("target"),
        *((name, ctypes.c_size_t) for name in ("width", "height", "depth")),
    )


_COPY_NODE, _HOST_NODE = 1, 3  # CUgraphNodeType
_HOST, _UNIFIED = 1, 4  # CUmemorytype
_MEMORY_TYPE = 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE


@cache
def _driver() -> ctypes.CDLL:
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuGraphExecKernelNodeSetParams_v2.argtypes = [ctypes.c_void_p] * 3
    return driver


class UnknownNodeError(Exception):
    """A node of a graph cannot be read or changed."""


@cache
def launcher() -> int:
    """Returns the address of cuGraphLaunch, a C function of an executable and a stream that
    returns 0 or an error.
    """
    return ctypes.cast(_driver().cuGraphLaunch, ctypes.c_void_p).value or 0


@cache
def rewriter() -> int:
    """Returns the address of cuGraphExecKernelNodeSetParams, of an executable, a node and its
    parameters.
    """
    return ctypes.cast(_driver().cuGraphExecKernelNodeSetParams_v2, ctypes.c_void_p).value or 0


def _ask(function: str, *args: Any) -> None:
    try:
        code = getattr(_driver(), function)(*args)
    except AttributeError as error:  # an older driver
        raise UnknownNodeError(function) from error
    if code != 0:
        raise UnknownNodeError(function, code)


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph of steps.

    Attributes:
        graph: handle of the graph.
        steps: the steps, in the order in which they were taken.
        nodes: of launches with scalars that change, by the step's position; without those whose
            node the driver does not tell.
    """

    graph: int
    steps: Sequence[Step]
    nodes: Mapping[int, int]


def capture(steps: Iterable[Step], stream: Any) -> Captured:
    """Captures a graph of steps, each with the arguments that it has when it is taken."""
    taken: list[Step] = []
    nodes: dict[int, int] = {}
    runtime.streamBeginCapture(stream.ptr, _RELAXED)
    try:
        for step in steps:
            step()
            if isinstance(step, CudaLaunch) and step.changing:
                with suppress(UnknownNodeError):
                    nodes[len(taken)] = _last_node(step.stream or stream)
            taken.append(step)
    except BaseException:
        with suppress(runtime.CUDARuntimeError):
            graph = runtime.streamEndCapture(stream.ptr)
            if graph:
                runtime.graphDestroy(graph)
        raise
    return Captured(runtime.streamEndCapture(stream.ptr), taken, nodes)


def host_work(graph: int) -> str | None:
    """Returns what a graph does with memory of the host, or on the host, in words; None if
    nothing.
    """
    count = ctypes.c_size_t()
    _ask("cuGraphGetNodes", ctypes.c_void_p(graph), None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    if nodes:
        _ask("cuGraphGetNodes", ctypes.c_void_p(graph), nodes, ctypes.byref(count))
    for node in nodes:
        kind = ctypes.c_int()
        _ask("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        if kind.value == _HOST_NODE:
            return "calls a function of the host"
        if kind.value == _COPY_NODE:
            copy = _CopyParams()
            _ask("cuGraphMemcpyNodeGetParams", ctypes.c_void_p(node), ctypes.byref(copy))
            if _is_of_host(copy.source_type, copy.source_host, copy.source):
                return "copies memory of the host to the GPU"
            if _is_of_host(copy.target_type, copy.target_host, copy.target):
                return "copies memory of the GPU to the host"
    return None


def _is_of_host(kind: int, host: int | None, address: int | None) -> bool:
    if kind != _UNIFIED:
        return kind == _HOST
    memory_type = ctypes.c_uint()
    code = _driver().cuPointerGetAttribute(
        ctypes.byref(memory_type), _MEMORY_TYPE, ctypes.c_uint64(address or host or 0)
    )
    return code != 0 or memory_type.value == _HOST


def free_graph(graph: int, executable: int, stream: Any) -> None:
    """Frees a graph and its executable, after launches on the stream have ended; a kernel may
    have destroyed the context.
    """
    with suppress(runtime.CUDARuntimeError):
        stream.synchronize()
        runtime.graphExecDestroy(executable)
        runtime.graphDestroy(graph)


def _last_node(stream: Any) -> int:
    """Returns the node captured last on a stream."""
    status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    nodes, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_size_t()
    outputs = (ctypes.byref(output) for output in (status, number, graph, nodes, count))
    _ask("cuStreamGetCaptureInfo_v2", ctypes.c_void_p(stream.ptr), *outputs)
    if count.value != 1:
        raise UnknownNodeError("node")
    return nodes[0] or 0


@dataclass(frozen=True, slots=True)
class ScalarPlace:
    """The place of a scalar among a kernel's parameters."""

    position: int  # among the arguments
    # For the number, or its real and its imaginary part: index among the parameters, offset in
    # bytes, format character, getter.
    parts: tuple[tuple[int, int, str, Callable[[Any], Any]], ...]


def find_scalars(launch: CudaLaunch, stream: Any) -> list[ScalarPlace]:
    """Finds the places of changing scalars by launches that are captured and not run."""
    kernel, usual = _captured_params(launch.arguments, launch, stream)
    places = []
    for position in launch.changing:
        value = launch.arguments[position]
        substitute = _other(value)
        arguments = [*launch.arguments[:position], substitute, *launch.arguments[position + 1 :]]
        another, changed = _captured_params(arguments, launch, stream)
        if another != kernel:  # a kernel in whose code the number is
            raise UnknownNodeError("kernel", position)
        changed_params = [
            i
            for i, (before, after) in enumerate(zip(usual, changed, strict=True))
            if before != after
        ]
        kind = np.asarray(value).dtype.kind
        getters = (_REAL, _IMAGINARY) if kind == "c" else (_REAL,)
        cuts = [(i, slice(None)) for i in changed_params]
        if len(changed_params) == 1 and kind == "c":  # both parts in one parameter
            half = len(usual[changed_params[0]]) // 2
            cuts = [(changed_params[0], slice(half)), (changed_params[0], slice(half, None))]
        if len(cuts) != len(getters):
            raise UnknownNodeError("scalar", position)
        parts = []
        for (i, cut), get in zip(cuts, getters, strict=True):
            samples = ((get(value), usual[i][cut]), (get(substitute), changed[i][cut]))
            letter = next(
                (
                    candidate
                    for candidate in _LETTERS.get(kind, "")
                    if all(_fits(candidate, *pair) for pair in samples)
                ),
                None,
            )
            if letter is None:
                raise UnknownNodeError("scalar", position)
            parts.append((i, cut.start or 0, letter, get))
        places.append(ScalarPlace(position, tuple(parts)))
    return places


def _other(value: Any) -> Any:
    """Returns another value of the same type, different in all parts."""
    if isinstance(value, bool | np.bool_):
        return type(value)(not value)
    is_complex = isinstance(value, complex | np.complexfloating)
    candidates = map(type(value), (1 + 2j, 3 + 4j, 5 + 6j) if is_complex else (1, 2))
    return next(
        candidate
        for candidate in candidates
        if candidate.real != value.real and (candidate.imag != value.imag or not is_complex)
    )


def _fits(letter: str, value: Any, parameter: bytes) -> bool:
    """Whether a format packs a value to these bytes."""
    try:
        return struct.pack("<" + letter, value) == parameter
    except (struct.error, TypeError):
        return False


def _captured_params(
    arguments: list[Any], launch: CudaLaunch, stream: Any
) -> tuple[int, list[bytes]]:
    """Returns the kernel that a launch with these arguments runs, and the bytes of each of its
    parameters.
    """
    step = make_launch(launch.args[0], arguments, (0,))
    captured = capture([step], launch.stream or stream)
    try:
        if not captured.nodes:
            raise UnknownNodeError("node")
        node_params, parameters = _read_node(captured.nodes[0])
        return node_params.func or node_params.kern or 0, [
            ctypes.string_at(address, nbytes) for address, nbytes in parameters
        ]
    finally:
        runtime.graphDestroy(captured.graph)


def _read_node(node: int) -> tuple[_NodeParams, list[tuple[int, int]]]:
    """Returns the parameters of a kernel node, and the address and size in bytes of each of the
    kernel's.
    """
    node_params = _NodeParams()
    _ask("cuGraphKernelNodeGetParams_v2", ctypes.c_void_p(node), ctypes.byref(node_params))
    if not node_params.params or node_params.extra:
        raise UnknownNodeError("parameters")
    function = ctypes.c_void_p(node_params.func)
    if not node_params.func:
        _ask("cuKernelGetFunction", ctypes.byref(function), ctypes.c_void_p(node_params.kern))
    parameters: list[tuple[int, int]] = []
    offset, nbytes = ctypes.c_size_t(), ctypes.c_size_t()
    ask = getattr(_driver(), "cuFuncGetParamInfo", None)
    if ask is None:
        raise UnknownNodeError("cuFuncGetParamInfo")
    while (
        ask(function, ctypes.c_size_t(len(parameters)), ctypes.byref(offset), ctypes.byref(nbytes))
        == 0
    ):
        parameters.append((node_params.params[len(parameters)] or 0, nbytes.value))
    return node_params, parameters


class KernelNode:
    """A launch in a graph, with a copy of its parameters that can be rewritten."""

    def __init__(self, node: int, places: Sequence[ScalarPlace]) -> None:
        self._params, parameters = _read_node(node)
        starts = np.cumsum([0] + [-(-nbytes // 16) * 16 for _, nbytes in parameters]).tolist()
        self._memory = ctypes.create_string_buffer(starts[-1])
        base = ctypes.addressof(self._memory)
        self._pointers = (ctypes.c_void_p * len(parameters))(
            *(base + start for start in starts[:-1])
        )
        for (address, nbytes), start in zip(parameters, starts[:-1], strict=True):
            ctypes.memmove(base + start, address, nbytes)
        self._params.params = ctypes.cast(self._pointers, ctypes.POINTER(ctypes.c_void_p))
        self.node_and_params = node, ctypes.addressof(self._params)
        self.scalars = [  # where they are written
            Scalar(place.position, number, letter, base + starts[i] + offset)
            for place in places
            for number, (i, offset, letter, _) in enumerate(place.parts)
        ]
        self._packs = [
            (place.position, struct.Struct("<" + letter).pack_into, starts[i] + offset, get)
            for place in places
            for i, offset, letter, get in place.parts
        ]
        self._set = _driver().cuGraphExecKernelNodeSetParams_v2

    def renew(self, executable: int, arguments: Sequence[Any]) -> None:
        """Writes the scalars among a launch's arguments into the graph."""
        for position, pack, start, get in self._packs:
            pack(self._memory, start, get(arguments[position]))
        code = self._set(executable, *self.node_and_params)
        if code != 0:
            raise UnknownNodeError("cuGraphExecKernelNodeSetParams", code)
