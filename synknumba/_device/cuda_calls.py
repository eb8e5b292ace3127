"""Python functions recorded as CUDA graphs: what a call puts on the stream is repeated without
Python.

    1st call of a kind   the function runs as it is ──> its arrays are put back ──> it runs again, captured ──> the graph runs
                         ──> the same numbers? ──no──> error
    later calls          the graph runs; the results lie where they lay
    in sequences         it runs once more, captured with what the other calls do

Kinds differ by the arguments' memory, shapes and dtypes, and by numbers. Where most come once only,
as with a number that changes in each call, calls of new ones run as they are. Temporary arrays come
from a pool of the recordings' own, so that no other array gets their memory while the graph refers
to it.

The comparison finds what a graph cannot repeat: random numbers, counters, anything that Python
computes anew at each call. Copies from and to the host are refused for themselves: a graph would
read the same address of the host again, whatever lies there by then.
"""  # noqa: E501

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import cupy
import numpy as np
from cupy.cuda import runtime

from synknumba._device.base import RecordedCall, Recorder, Step
from synknumba._device.cuda_graph import GraphRecording
from synknumba._device.cuda_nodes import capture, host_work
from synknumba._device.cuda_steps import OnStream
from synknumba._device.cuda_torch import FunctionScope, TorchPool
from synknumba._errors import RecordError
from synknumba._ops.tree import flatten, unflatten
from synknumba._types import Cache, class_text

MOST_KINDS = 16  # recordings of one function that are kept
MOST_UNUSED = MOST_KINDS // 2  # of these, before calls of new kinds run as they are
# Of the largest number of an array. Sums by atomic operations differ by rounding from run to run;
# random numbers by far more.
_TOLERANCE = {
    "float16": 1e-2,
    "float32": 1e-4,
    "float64": 1e-8,
    "complex64": 1e-4,
    "complex128": 1e-8,
}

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep

Call = Callable[[], Any]


@final
class RecordedFunction(Recorder):
    """The recordings of one function on one rank.

    Args:
        name: of the function, for messages.
        stream: CuPy's, which is the current one while the function runs.
        scope: makes it torch's as well.
    """

    def __init__(self, name: str, stream: Any, scope: FunctionScope) -> None:
        self._name, self._stream, self._scope = name, stream, scope
        self._pool = _Pools()
        self._kinds: Cache[Any, _GraphCall] = Cache(MOST_KINDS, _GraphCall.close)

    def recorded(self, call: Call, arguments: Any, written: Sequence[Any]) -> RecordedCall:
        kind = tuple(_kind(self._name, leaf) for leaf in flatten(arguments)[0])
        graph_call = self._kinds.use(kind)
        if graph_call is None:
            unused = sum(not kept.is_used for kept in self._kinds.values())
            graph_call = _GraphCall(
                self._name, call, written, self._stream, self._scope, self._pool
            )
            if unused > MOST_UNUSED:
                graph_call.records = False
            else:
                self._kinds[kind] = graph_call
        return graph_call

    def close(self) -> None:
        self._kinds.drop_all()
        self._pool.close()


@final
class _Pools:
    """Memory of the arrays that are made while a function is recorded."""

    def __init__(self) -> None:
        self._of_cupy = cupy.cuda.MemoryPool()
        self._of_torch = TorchPool()

    @contextmanager
    def used(self) -> Iterator[None]:
        with cupy.cuda.using_allocator(self._of_cupy.malloc), self._of_torch.used():
            yield

    def close(self) -> None:
        self._of_cupy.free_all_blocks()
        self._of_torch.close()


def _kind(name: str, leaf: Any) -> Any:
    """Returns what a recording depends on in an argument."""
    if isinstance(leaf, cupy.ndarray):
        return leaf.data.ptr, leaf.shape, leaf.strides, leaf.dtype.str
    if leaf is None or isinstance(
        leaf, bool | int | float | complex | str | range | np.generic | tuple
    ):
        return type(leaf), repr(leaf)  # −0.0 is not 0.0, and NaN is NaN
    raise RecordError(
        f"{name} has record=True, which takes arrays, numbers, texts and trees of them; got a "
        f"{type(leaf).__name__}. Leave record= out, or pass what the function needs of it."
    )


@final
class _GraphCall(RecordedCall):
    """One call of a function, as a graph once it has been made.

    Attributes:
        records: whether it is recorded; else the function runs at each call.
        is_used: whether the graph has replaced the function.
    """

    def __init__(
        self,
        name: str,
        call: Call,
        written: Sequence[Any],
        stream: Any,
        scope: FunctionScope,
        pool: _Pools,
    ) -> None:
        self._name, self._function, self._written = name, call, written
        self._stream, self._scope, self._pool = stream, scope, pool
        self._recording: GraphRecording | None = None
        self._result: Any = None
        self.records, self.is_used = True, False

    def __call__(self) -> Any:
        if not self.records:
            return self._call()
        if self._recording is None:
            return self._first()
        self.is_used = True
        self._recording.queue()
        return self._result

    def step(self) -> tuple[Step, Any] | None:
        leaves, structure = flatten(self._result)
        if self._recording is None or not all(isinstance(leaf, cupy.ndarray) for leaf in leaves):
            return None
        self.is_used = True
        with self._stream:
            outputs = [cupy.empty_like(leaf, order="C") for leaf in leaves]
        return OnStream(self._repeat, outputs), unflatten(structure, outputs)

    def _repeat(self, targets: Sequence[Any]) -> None:
        """Repeats the call, and copies its results, which may be views of arguments that others
        change before they are read.
        """
        with self._stream:
            if self._stream.is_capturing():  # a graph cannot be launched then
                with self._pool.used():
                    result = self._call()
            else:
                result = self()
            for target, leaf in zip(targets, flatten(result)[0], strict=True):
                target[...] = leaf

    def _first(self) -> Any:
        """Runs the function, and records it."""
        before = [array.copy() for array in self._written]
        result = self._call()
        if self._scope.share():
            # torch has worked on its default stream, and the recording must not
            runtime.deviceSynchronize()
        usual = _copied(result)
        after = [array.copy() for array in self._written]
        self._put_back(before)
        try:
            self._recording, self._result = self._record()
            self._recording.queue()
            self._compare(usual, after)
        except BaseException:
            self._put_back(after)
            self.close()
            raise
        return self._result

    def _call(self) -> Any:
        """Calls the function. Tensors that it returns become CuPy's arrays, of the same memory."""
        leaves, structure = flatten(self._function())
        return unflatten(structure, [_as_array(leaf) for leaf in leaves])

    def _put_back(self, contents: Sequence[Any]) -> None:
        for array, content in zip(self._written, contents, strict=True):
            array[...] = content

    def _record(self) -> tuple[GraphRecording, Any]:
        """Returns the recorded call, and the result that each launch of it fills."""
        result: Any = None

        def call() -> None:
            nonlocal result
            with self._pool.used():
                result = self._call()
            self._check_leaves(result)

        try:
            captured = capture([call], self._stream)
        except RecordError:
            raise
        except Exception as error:
            raise self._refusal(error) from error
        try:
            self._check_work(captured.graph)
        except BaseException:
            runtime.graphDestroy(captured.graph)
            raise
        return GraphRecording(captured, self._stream), result

    def _check_work(self, graph: int) -> None:
        what = host_work(graph)
        if what is not None:
            raise RecordError(
                f"{self._name} cannot be recorded: it {what} in each call. Make NumPy arrays CuPy "
                "arrays before, or pass them as arguments; return what the script is to have. Or "
                "leave record=True out."
            )

    def _check_leaves(self, result: Any) -> None:
        for leaf in flatten(result)[0]:
            if not (
                leaf is None
                or isinstance(leaf, cupy.ndarray | bool | int | float | complex | np.generic)
            ):
                raise RecordError(
                    f"{self._name} has record=True and returned "
                    f"{class_text(leaf)}; return "
                    f"arrays of the GPU, as x.sum()"
                )

    def _refusal(self, error: Exception) -> RecordError:
        lines = traceback.extract_tb(error.__traceback__)
        modules = [sys.modules[name] for name in ("cupy", "numpy", "torch") if name in sys.modules]
        packages = *(os.path.dirname(str(module.__file__)) + os.sep for module in modules), _PACKAGE
        script_lines = [
            line
            for line in lines
            if line.filename.endswith(".py") and not line.filename.startswith(packages)
        ]
        where = ""
        if script_lines:
            line = script_lines[-1]
            where = f"{os.path.basename(line.filename)}:{line.lineno}: {line.line}: "
        way_out = "Leave record=True out"
        if "cublas" in str(error).lower():
            way_out = "Use synk.matmul(a, b) in place of a @ b, or leave record=True out"
        elif "H2D" in str(error):
            way_out = (
                "Make NumPy arrays CuPy arrays before, or pass them as arguments; "
                "or leave record=True out"
            )
        elif "CUDA generator" in str(error):
            way_out = "Take random numbers from synk.random, or leave record=True out"
        elif isinstance(error, runtime.CUDARuntimeError) or "captur" in str(error):
            way_out = (
                "A recorded function must not look at numbers of the GPU, as in float(x), x.get(), "
                "print(x) and `if x:`, nor have shapes that depend on them, as in x[x > 0]. Leave "
                "record=True out if it must"
            )
        text = (str(error).strip().splitlines() or [""])[0].rstrip(".")
        return RecordError(
            f"{self._name} cannot be recorded: {where}{type(error).__name__}: {text}. {way_out}."
        )

    def _compare(self, usual: Any, after: Sequence[Any]) -> None:
        """Raises `RecordError` if the graph gives other numbers than the function."""
        leaves, structure = flatten(self._result)
        expected, expected_structure = flatten(usual)
        if structure == expected_structure and len(leaves) == len(expected):
            recorded, usual_values = [*leaves, *self._written], [*expected, *after]
            if all(map(_alike, recorded, usual_values)):
                return
        raise RecordError(
            f"{self._name} cannot be recorded: run again on the same arrays, it gave other "
            "numbers. A recorded function must depend on its arguments only: take random numbers "
            "from synk.random, and keep what changes from call to call in variables. Or leave "
            "record=True out."
        )

    def close(self) -> None:
        if self._recording is not None:
            self._recording.close()
            self._recording = None
        self._result = None


def _as_array(leaf: Any) -> Any:
    if isinstance(leaf, cupy.ndarray) or not hasattr(leaf, "__cuda_array_interface__"):
        return leaf
    return cupy.asarray(leaf)


def _copied(result: Any) -> Any:
    """Returns a result whose arrays are copies: they may be views of arguments."""
    leaves, structure = flatten(result)
    return unflatten(
        structure, [leaf.copy() if isinstance(leaf, cupy.ndarray) else leaf for leaf in leaves]
    )


def _alike(value: Any, usual: Any) -> bool:
    if not (isinstance(value, cupy.ndarray) and isinstance(usual, cupy.ndarray)):
        return type(value) is type(usual) and repr(value) == repr(usual)
    if value.shape != usual.shape or value.dtype != usual.dtype:
        return False
    tolerance = _TOLERANCE.get(value.dtype.name)
    if tolerance is None or not value.size:
        return bool((value == usual).all())
    both = cupy.isfinite(value) & cupy.isfinite(usual)
    apart = cupy.where(both, cupy.abs(value - usual), 0).max()
    most = cupy.where(both, cupy.abs(usual), 0).max()
    special = both | (value == usual) | (cupy.isnan(value) & cupy.isnan(usual))
    return bool((apart <= tolerance * most) & special.all())
