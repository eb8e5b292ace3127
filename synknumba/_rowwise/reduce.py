"""Reduction of rows by a function of two numbers.

rows → rank, slice, chunk → a row for each chunk, in order → the same kernel, in the coordinator →
one row
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn, final

import numpy as np
from numba.np.numpy_support import as_dtype

from synknumba import simt
from synknumba._call.arguments import IndexRange, Output
from synknumba._call.function import Function
from synknumba._call.options import FunctionOptions
from synknumba._errors import ArgumentError, DataError, ReductionError, shortened
from synknumba._ops.launch import LaunchConfig, RowGrid
from synknumba._progress import Progress
from synknumba._rowwise.arguments import Description, describe, quick_key
from synknumba._rowwise.base import RowFunction
from synknumba._rowwise.generate import THREADS, define_kernel, kernel_name
from synknumba._rowwise.map_kernels import (
    MAX_TILE,
    OWN_NAMES,
    TILE_BYTES,
    ReductionRecipe,
    element_launch,
    reduction_source,
)  # fmt: skip
from synknumba._rowwise.types import Signatures, cast_name, parse
from synknumba._types import Array, DeviceKind, RankConstant, Shape, as_flag, class_text
from synknumba._variables.variable import Variable
from synknumba._world.open_world import current_world

# Most chunks of rows that a rank makes of a slice. A core reduces one after the other. On a GPU a
# chunk has a block where rows are numbers, and one thread for each element of a row otherwise; the
# limit is on these threads. For rows that are numbers, 264 blocks are 2 on each of an H200's 132
# multiprocessors: they read as fast as more, and fewer results are sooner combined.
_CHUNKS: Mapping[DeviceKind, int] = {"cpu": 1, "cuda": 1 << 16}
_BLOCKS = 264


@final
@dataclass(frozen=True, slots=True)
class _Reduction:
    """A reduction of rows of one type and shape."""

    function: Function[..., Any]  # runs the kernel on the ranks
    fold: Any  # the kernel for their results, with its grid, compiled for the coordinator's core
    dtype: "np.dtype[Any]"  # of the computation
    row: Shape
    seen: Shape  # shape of a row as the kernels see it

    def folded(self, lines: Array) -> Array:
        """Reduces the ranks' rows in the coordinator."""
        partials = np.empty((1, 1, *self.seen), self.dtype)
        # as inputs are on the ranks, so that the kernel compiled there is found in the cache
        lines.flags.writeable = False
        self.fold(partials, np.empty((1, 1), np.uint8), 0, lines)
        reduced: Array = partials[0, 0].reshape(self.row)
        return reduced


class Reducible(RowFunction):
    """A function of numbers, which also reduces rows if it takes two."""

    def __init__(
        self,
        function: Callable[..., Any],
        options: FunctionOptions,
        signatures: Any,
        name: str | None,
    ) -> None:
        super().__init__(function, options, name, OWN_NAMES)
        parsed: tuple[tuple[tuple[Any, ...], Any], ...] = ()
        if signatures:
            parsed = parse(self.name, signatures, len(self._parameters))
        self._signatures = Signatures(self._inner, parsed)

    @shortened
    def reduce(
        self,
        array: Any,
        axis: int = 0,
        dtype: Any = None,
        *,
        initial: Any = None,
        keepdims: bool = False,
        batch: Any = None,
        local_batch: Any = None,
        num_slices: int = 1,
        shards: int | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """Reduces rows to one: f(… f(f(row 0, row 1), row 2) …, last row), element by element.

        Rows are combined in order, but in groups, so the function must be associative. It need not
        be commutative.

        Args:
            array: the rows: `Data`, an array, a variable, or `arange(n)`.
            axis: 0, the axis that is divided over the ranks.
            dtype: of the computation and of the result; default: that of f(x, x).
            initial: a number to start from; default: the first row.
            keepdims: whether the result keeps the axis of rows, with length 1.
            batch: as for a call.
            local_batch: as for a call.
            num_slices: as for a call.
            shards: as for a call: the same bits for every number of ranks.
            progress: as for a call.

        Returns:
            An array of one row's shape; a NumPy scalar where rows are numbers.

        Raises:
            SynkError: as for a `Function`.
            ArgumentError: the function does not take two numbers, or does not return the type that
                it takes.
            ReductionError: there are no rows and no `initial`.
        """
        self._check_reducible(axis)
        keepdims = as_flag(keepdims, f"keepdims of {self.name}.reduce")
        slices = 1  # the call raises for what is wrong with num_slices
        if hasattr(num_slices, "__index__"):
            slices = max(1, int(num_slices))
        reduction = self._reduction(self._device(current_world()), array, dtype, slices)
        first = None
        if initial is not None:
            first = self._initial(initial, reduction)
        elif isinstance(array, IndexRange) and not array.length:
            raise self._no_rows()
        parts, there = reduction.function(
            array,
            batch=batch,
            local_batch=local_batch,
            num_slices=num_slices,
            shards=shards,
            progress=progress,
        )
        lines = np.concatenate(parts)[np.concatenate(there).view(np.bool_)]
        if first is not None:
            lines = np.concatenate([first, lines])
        if len(lines) == 0:
            raise self._no_rows()
        reduced = reduction.folded(lines)
        return reduced[np.newaxis] if keepdims else reduced[()]

    @shortened
    def accumulate(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raises ReductionError: ranks cannot accumulate independently."""
        raise ReductionError(
            f"{self.name}.accumulate is not implemented: each row of its result needs all rows "
            "before it, so the ranks could not work in parallel. Use reduce for the last row, or "
            "NumPy's accumulate in the script"
        )

    def _check_reducible(self, axis: Any) -> None:
        if len(self._parameters) != 2 or self._options.givens:
            raise ArgumentError(
                f"{self.name}.reduce needs a function of two numbers, none of them in givens=; it "
                f"has ({', '.join(self._parameters)})"
            )
        if isinstance(axis, bool) or axis != 0:
            raise ArgumentError(
                f"{self.name}.reduce works along axis 0, the rows, only; got axis={axis!r}"
            )

    def _reduction(self, device: DeviceKind, array: Any, dtype: Any, slices: int) -> _Reduction:
        """The reduction for such rows."""
        known_key = None
        if dtype is None and (key := quick_key(array)) is not None:
            known_key = "reduce", device, slices, key
            reduction = self._known.get(known_key)
            if reduction is not None:
                return reduction  # type: ignore[no-any-return]
        parameter = next(iter(self._parameters))
        description = describe(self.name, parameter, array, broadcast=(), sliceable=(parameter,))
        if description.kind not in {"rows", "indices"}:
            raise ArgumentError(
                f"{self.name}.reduce reduces rows, which {class_text(array)} "
                "does not have "
                f"here; pass Data or an array"
            )
        kind = self._signatures.choose_repeated(description, dtype)
        kernel_key = device, description, kind, slices, isinstance(array, Variable)
        reduction = self._kernel(kernel_key, self._make_reduction)
        if known_key is not None:
            self._known[known_key] = reduction
        return reduction  # type: ignore[no-any-return]

    def _initial(self, initial: Any, reduction: _Reduction) -> Array:
        """The row to start from, shape (1, …)."""
        dtype, row = reduction.dtype, reduction.row
        if not np.can_cast(np.min_scalar_type(initial), dtype, "same_kind"):
            raise ArgumentError(
                f"initial={initial!r} of {self.name}.reduce does not cast to {dtype}, "
                f"the dtype of the reduction"
            )
        try:
            return np.broadcast_to(np.asarray(initial, dtype), (1, *row)).reshape(
                1, *reduction.seen
            )
        except (ValueError, OverflowError) as error:
            raise DataError(
                f"initial of {self.name}.reduce must be a number that {dtype} holds, or a "
                f"row of shape {row}: {error}"
            ) from error

    def _no_rows(self) -> ReductionError:
        return ReductionError(f"{self.name}.reduce got no rows; pass at least one, or initial=")

    def _make_reduction(
        self,
        device: DeviceKind,
        description: Description,
        kind: Any,
        slices: int,
        of_variable: bool,
    ) -> _Reduction:
        dtype, row = as_dtype(kind), description.shape
        parameter = next(iter(self._parameters))
        tile = min(MAX_TILE, TILE_BYTES // dtype.itemsize)
        flat, sliceable = frozenset({parameter}), frozenset[str]()
        if of_variable or len(row) < 2:
            flat = frozenset()
        if of_variable:
            sliceable = frozenset({parameter})
        if flat:
            row = (math.prod(row),)
        chunks = min(_CHUNKS[device], _BLOCKS)
        if row:
            chunks = max(1, _CHUNKS[device] // max(1, math.prod(row)))
        options = replace(
            self._options,
            outputs={
                "synk_partials": Output(None, (slices, chunks, *row), dtype, filled=False),
                "synk_there": Output(None, (slices, chunks), np.dtype(np.uint8)),
            },
            broadcast=frozenset(),
            givens={"synk_slice": RankConstant.SLICE},
            sliceable=sliceable,
            launch=_launch(row, chunks, tile),
            flat=flat,
            unfit=(
                f"{self.name}.reduce cannot be called in a sequence, since the script combines "
                "what the ranks have; call a kernel with an output whose op is the plain function, "
                "as in synk.output(function, identity=0, shape=())"
            ),
        )

        def kernel(inner: Any, *, is_indices: bool, is_divided: bool) -> Callable[..., Any]:
            name, cast = kernel_name("reduction_by", self.py_func.__name__), cast_name(kind)
            recipe = ReductionRecipe(name, parameter, is_indices, len(row), cast, is_divided, tile)
            return define_kernel(reduction_source(recipe), name, "vectorize", inner, {cast: kind})

        divided = kernel(
            self._inner.device_function,
            is_indices=description.kind == "indices",
            is_divided=chunks > 1,
        )
        function: Function[..., Any] = Function(
            divided, options, f"{self.name}.reduce", self._inner
        )
        fold = simt.jit(kernel(self._inner.snapshot, is_indices=False, is_divided=False))
        return _Reduction(
            function, fold[_launch(row, 1, tile).resolve(1)], dtype, description.shape, row
        )


def _launch(row: Shape, chunks: int, tile: int) -> LaunchConfig:
    """A thread for each chunk and element of a row; a block for each chunk where rows are
    numbers.
    """
    if not row:
        if chunks == 1:
            return LaunchConfig(1, 1)
        return LaunchConfig(THREADS, RowGrid(THREADS * tile, chunks))
    grid, (columns, rows, _) = element_launch(row).resolve(chunks)
    return LaunchConfig((columns, min(rows, chunks)), grid)
