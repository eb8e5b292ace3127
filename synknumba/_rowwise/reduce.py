"""The reduction of rows by a function of two numbers.

rows ── rank, slice, chunk ──> a row for each chunk, in order ── the same kernel, in the coordinator ──> one row
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from synknumba import simt
from synknumba._call.arguments import IndexRange, Output
from synknumba._call.function import Function
from synknumba._call.options import FunctionOptions
from synknumba._call.serialize import InnerFunction
from synknumba._errors import ArgumentError, DataError, ReductionError
from synknumba._ops.launch import LaunchConfig, RowGrid
from synknumba._rowwise.arguments import Given, describe, quick_key
from synknumba._rowwise.generate import define_kernel, kernel_name
from synknumba._rowwise.map_kernels import MOST_TILE, THREADS, TILE_BYTES, ReductionRecipe, element_launch, reduction_source
from synknumba._rowwise.types import Signatures, cast_name, dtype_of
from synknumba._types import Array, DeviceKind, RankConstant, Shape
from synknumba._variables.variable import Variable
from synknumba._world.world import current_world

_KEPT = 64  # kernels of one function: for types, and shapes of rows
_KNOWN = 512  # kinds of calls of one function: by types and rows, and by variables

# Chunks of rows that a rank makes of a slice, at most. A core does one after the other. A GPU has a chunk for each block where
# rows are numbers, and else so many threads. Of these blocks an H200 has 2 on each of its 132 multiprocessors: they read as
# fast as more, and the results of fewer are sooner put together.
_CHUNKS: Mapping[DeviceKind, int] = {"cpu": 1, "cuda": 1 << 16}
_BLOCKS = 264


@final
@dataclass(frozen=True, slots=True)
class _Reduction:
    """A reduction of rows of one type and shape.

    Attributes:
        function: on the ranks.
        fold: of their results, here; with its grid.
        kind: in which it is computed, Numba's.
        dtype: that.
        row: its shape as the kernels see it.
        told: the rows.
    """

    function: Function
    fold: Any
    kind: Any
    dtype: "np.dtype[Any]"
    row: Shape
    told: Given


@final
class Reducer:
    """The reductions of one function.

    Args:
        inner: the user's function, of two numbers.
        loops: the types that it is compiled for.
        parameter: its first, which the rows are passed as.
    """

    def __init__(self, inner: InnerFunction, loops: Signatures, parameter: str) -> None:
        self._name = inner.name
        self._inner = inner
        self._loops = loops
        self._parameter = parameter
        self._kept: dict[Any, _Reduction] = {}
        self._known: dict[Any, _Reduction] = {}  # by what is quick to tell of a call

    def reduce(self, array: Any, dtype: Any, initial: Any, options: Mapping[str, Any]) -> Array:
        """One row, of all the rows.

        Args:
            array: with rows.
            dtype: to compute in; None for what the function makes of the rows' own.
            initial: what to start from; None for the first row.
            options: of the call.
        """
        slices = options["num_slices"]
        room = int(slices) if hasattr(slices, "__index__") else 1  # what is wrong with it is told by the call
        device = current_world().device
        key = None if dtype is not None else quick_key(array)
        seen = device, room, key
        reduction = None if key is None else self._known.get(seen)
        if reduction is None:
            reduction = self._prepared(device, array, dtype, room)
            if key is not None:
                if len(self._known) >= _KNOWN:  # of variables that are no more, mostly
                    self._known.clear()
                self._known[seen] = reduction
        first = [] if initial is None else [self._initial(initial, reduction.told.shape, reduction.kind)]
        if not first and isinstance(array, IndexRange) and not array.length:
            raise self._no_rows()
        return self._run(reduction, array, first, options)

    def _run(self, reduction: _Reduction, array: Any, first: Sequence[Array], options: Mapping[str, Any]) -> Array:
        parts, there = reduction.function(array, **options)
        lines = np.concatenate(parts)[np.concatenate(there).view(np.bool_)]
        if first:
            lines = np.concatenate([*(line.reshape(1, *reduction.row) for line in first), lines])
        return self._folded(lines, reduction).reshape(reduction.told.shape)

    def _prepared(self, device: DeviceKind, array: Any, dtype: Any, slices: int) -> _Reduction:
        """The reduction for such rows."""
        told = describe(self._name, self._parameter, array, broadcast=(), sliceable=(self._parameter,))
        if told.kind not in {"rows", "indices"}:
            raise ArgumentError(
                f"{self._name}.reduce goes over rows, which a {type(array).__name__} does not have here; pass Data or an array"
            )
        kind = self._loops.choose_repeated(told, dtype)
        return self._reduction(device, told, kind, slices, of_variable=isinstance(array, Variable))

    def _initial(self, initial: Any, row: Shape, kind: Any) -> Array:
        dtype = dtype_of(kind)
        if not np.can_cast(np.min_scalar_type(initial), dtype, "same_kind"):
            raise ArgumentError(
                f"initial={initial!r} of {self._name}.reduce does not cast to {dtype}, which the rows are reduced in"
            )
        try:
            return np.broadcast_to(np.asarray(initial, dtype), (1, *row))
        except (ValueError, OverflowError) as error:
            raise DataError(
                f"initial of {self._name}.reduce must be a number that {dtype} holds, or a row of shape {row}: {error}"
            ) from error

    def _folded(self, lines: Array, reduction: _Reduction) -> Array:
        """The chunks' rows, in order, as one."""
        if len(lines) == 0:
            raise self._no_rows()
        partials = np.empty((1, 1, *reduction.row), reduction.dtype)
        lines.flags.writeable = False  # as inputs are on the ranks, so that what they have compiled is found
        reduction.fold(partials, np.empty((1, 1), np.uint8), 0, lines)
        return partials[0, 0]  # type: ignore[no-any-return]

    def _no_rows(self) -> ReductionError:
        return ReductionError(
            f"{self._name}.reduce got no rows, and there is no row to begin with; pass at least one, or initial="
        )

    def _reduction(self, device: DeviceKind, told: Given, kind: Any, slices: int, *, of_variable: bool) -> _Reduction:
        key = (device, told, kind, slices, of_variable)
        found = self._kept.get(key)
        if found is None:
            while len(self._kept) >= _KEPT:
                self._kept.pop(next(iter(self._kept)))
                self._known.clear()
            found = self._kept[key] = self._make(device, told, kind, slices, of_variable=of_variable)
        return found

    def _make(self, device: DeviceKind, told: Given, kind: Any, slices: int, *, of_variable: bool) -> _Reduction:
        dtype, row = dtype_of(kind), told.shape
        tile = _tile(dtype)
        is_flat = len(row) > 1 and not of_variable
        if is_flat:
            row = (math.prod(row),)
        chunks = max(1, min(_CHUNKS[device], _BLOCKS) if not row else _CHUNKS[device] // max(1, math.prod(row)))
        options = FunctionOptions(
            style="kernel",
            outputs={
                "synk_partials": Output(None, (max(1, slices), chunks, *row), dtype, filled=False),
                "synk_there": Output(None, (max(1, slices), chunks), np.dtype(np.uint8)),
            },
            ops=None,
            has_ops=True,
            broadcast=frozenset(),
            inout=frozenset(),
            givens={"synk_slice": RankConstant.SLICE},
            sliceable=frozenset({self._parameter}) if of_variable else frozenset(),
            updates={},
            launch=_launch(row, chunks, tile),
            compile_options={},
            flat=frozenset({self._parameter}) if is_flat else frozenset(),
        )
        kernel = self._kernel(kind, len(row), is_indices=told.kind == "indices", is_divided=chunks > 1)
        function = Function(kernel, options, f"{self._name}.reduce", self._inner)
        fold = simt.jit(self._kernel(kind, len(row), is_indices=False, is_divided=False))
        return _Reduction(function, fold[_launch(row, 1, tile).resolve(1)], kind, dtype, row, told)

    def _kernel(self, kind: Any, axes: int, *, is_indices: bool, is_divided: bool) -> Callable[..., Any]:
        name = kernel_name("reduction_by", self._inner.py_func.__name__)
        recipe = ReductionRecipe(name, self._parameter, is_indices, axes, cast_name(kind), is_divided, _tile(dtype_of(kind)))
        scope = {cast_name(kind): kind}
        return define_kernel(reduction_source(recipe), name, "vectorize", self._inner.device_function, scope)


def _tile(dtype: "np.dtype[Any]") -> int:
    """Rows that a thread of a GPU reduces at a time, where they are numbers."""
    return min(MOST_TILE, TILE_BYTES // dtype.itemsize)


def _launch(row: Shape, chunks: int, tile: int) -> LaunchConfig:
    """A thread for each chunk and element of a row; where rows are numbers, a block for each chunk."""
    if not row:
        return LaunchConfig(1, 1) if chunks == 1 else LaunchConfig(THREADS, RowGrid(THREADS * tile, chunks))
    grid, (columns, rows, _) = element_launch(row).resolve(chunks)
    return LaunchConfig((columns, min(rows, chunks)), grid)
