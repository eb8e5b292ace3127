"""Reduction of rows by a function of two numbers.

rows → rank, slice, chunk → a row for each chunk, in order → the same kernel, in the coordinator → one row
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numba.np.numpy_support import as_dtype

from synknumba import simt
from synknumba._call.arguments import IndexRange, Output
from synknumba._call.function import Function
from synknumba._call.options import FunctionOptions
from synknumba._call.serialize import InnerFunction
from synknumba._errors import ArgumentError, DataError, ReductionError
from synknumba._ops.launch import LaunchConfig, RowGrid
from synknumba._rowwise.arguments import Given, describe, quick_key
from synknumba._rowwise.base import KernelCache
from synknumba._rowwise.generate import define_kernel, kernel_name
from synknumba._rowwise.map_kernels import MAX_TILE, THREADS, TILE_BYTES, ReductionRecipe, element_launch, reduction_source
from synknumba._rowwise.types import Signatures, cast_name
from synknumba._types import Array, DeviceKind, RankConstant, Shape
from synknumba._variables.variable import Variable
from synknumba._world.world import current_world

# Most chunks of rows that a rank makes of a slice. A core reduces one after the other. On a GPU a chunk has a block where rows
# are numbers, and one thread for each element of a row otherwise; the limit is on these threads. For rows that are numbers, 264
# blocks are 2 on each of an H200's 132 multiprocessors: they read as fast as more, and fewer results are sooner combined.
_CHUNKS: Mapping[DeviceKind, int] = {"cpu": 1, "cuda": 1 << 16}
_BLOCKS = 264


@final
@dataclass(frozen=True, slots=True)
class _Reduction:
    """A reduction of rows of one type and shape.

    Attributes:
        function: runs the kernel on the ranks.
        fold: the kernel for their results, with its grid, compiled for the coordinator's core.
        dtype: of the computation.
        row: shape of a row.
        seen: shape of a row as the kernels see it.
    """

    function: Function
    fold: Any
    dtype: "np.dtype[Any]"
    row: Shape
    seen: Shape


@final
class Reducer:
    """The reductions by one function.

    Args:
        inner: the user's function, of two numbers.
        signatures: the types that it may be compiled for.
        parameter: its first parameter, which names the rows.
    """

    def __init__(self, inner: InnerFunction, signatures: Signatures, parameter: str) -> None:
        self._name = inner.name
        self._inner = inner
        self._signatures = signatures
        self._parameter = parameter
        self._kernels: KernelCache[_Reduction] = KernelCache()
        self._known = self._kernels.known

    def reduce(self, array: Any, dtype: Any, initial: Any, options: Mapping[str, Any]) -> Array:
        """Reduces all rows to one.

        Args:
            array: has rows.
            dtype: of the computation; None to infer it.
            initial: what to start from; None for the first row.
            options: of the call.
        """
        slices = options["num_slices"]
        room = int(slices) if hasattr(slices, "__index__") else 1  # the call raises for what is wrong with it
        device = current_world().device
        key = None if dtype is not None else quick_key(array)
        seen = device, room, key
        reduction = None if key is None else self._known.get(seen)
        if reduction is None:
            reduction = self._prepared(device, array, dtype, room)
            if key is not None:
                self._kernels.note(seen, reduction)
        first = None if initial is None else self._initial(initial, reduction)
        if first is None and isinstance(array, IndexRange) and not array.length:
            raise self._no_rows()
        parts, there = reduction.function(array, **options)
        lines = np.concatenate(parts)[np.concatenate(there).view(np.bool_)]
        if first is not None:
            lines = np.concatenate([first, lines])
        if len(lines) == 0:
            raise self._no_rows()
        partials = np.empty((1, 1, *reduction.seen), reduction.dtype)
        lines.flags.writeable = False  # as inputs are on the ranks, so that the kernel compiled there is found in the cache
        reduction.fold(partials, np.empty((1, 1), np.uint8), 0, lines)
        return partials[0, 0].reshape(reduction.row)  # type: ignore[no-any-return]

    def _prepared(self, device: DeviceKind, array: Any, dtype: Any, slices: int) -> _Reduction:
        """The reduction for such rows."""
        given = describe(self._name, self._parameter, array, broadcast=(), sliceable=(self._parameter,))
        if given.kind not in {"rows", "indices"}:
            raise ArgumentError(
                f"{self._name}.reduce reduces rows, which a {type(array).__name__} does not have here; pass Data or an array"
            )
        kind = self._signatures.choose_repeated(given, dtype)
        return self._kernels.get((device, given, kind, slices, isinstance(array, Variable)), self._make)

    def _initial(self, initial: Any, reduction: _Reduction) -> Array:
        """The row to start from, shape (1, …)."""
        dtype, row = reduction.dtype, reduction.row
        if not np.can_cast(np.min_scalar_type(initial), dtype, "same_kind"):
            raise ArgumentError(
                f"initial={initial!r} of {self._name}.reduce does not cast to {dtype}, the dtype of the reduction"
            )
        try:
            return np.broadcast_to(np.asarray(initial, dtype), (1, *row)).reshape(1, *reduction.seen)
        except (ValueError, OverflowError) as error:
            raise DataError(
                f"initial of {self._name}.reduce must be a number that {dtype} holds, or a row of shape {row}: {error}"
            ) from error

    def _no_rows(self) -> ReductionError:
        return ReductionError(f"{self._name}.reduce got no rows; pass at least one, or initial=")

    def _make(self, device: DeviceKind, given: Given, kind: Any, slices: int, of_variable: bool) -> _Reduction:
        dtype, row = as_dtype(kind), given.shape
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
        kernel = self._kernel(kind, len(row), is_indices=given.kind == "indices", is_divided=chunks > 1)
        function = Function(kernel, options, f"{self._name}.reduce", self._inner)
        fold = simt.jit(self._kernel(kind, len(row), is_indices=False, is_divided=False))
        return _Reduction(function, fold[_launch(row, 1, tile).resolve(1)], dtype, given.shape, row)

    def _kernel(self, kind: Any, axes: int, *, is_indices: bool, is_divided: bool) -> Callable[..., Any]:
        name = kernel_name("reduction_by", self._inner.py_func.__name__)
        recipe = ReductionRecipe(name, self._parameter, is_indices, axes, cast_name(kind), is_divided, _tile(as_dtype(kind)))
        scope = {cast_name(kind): kind}
        return define_kernel(reduction_source(recipe), name, "vectorize", self._inner.device_function, scope)


def _tile(dtype: "np.dtype[Any]") -> int:
    """Rows that a thread of a GPU reduces at a time, where rows are numbers."""
    return min(MAX_TILE, TILE_BYTES // dtype.itemsize)


def _launch(row: Shape, chunks: int, tile: int) -> LaunchConfig:
    """A thread for each chunk and element of a row; a block for each chunk where rows are numbers."""
    if not row:
        return LaunchConfig(1, 1) if chunks == 1 else LaunchConfig(THREADS, RowGrid(THREADS * tile, chunks))
    grid, (columns, rows, _) = element_launch(row).resolve(chunks)
    return LaunchConfig((columns, min(rows, chunks)), grid)
