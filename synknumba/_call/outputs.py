"""Allocation of a kernel's outputs for one plan: dtypes, shapes, and the location of each rank's
part.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from synknumba._call.arguments import IndexRange, Output
from synknumba._call.call import Call
from synknumba._call.collect import is_worthwhile
from synknumba._device import fold_kernel
from synknumba._errors import ArgumentError, BatchError, ReductionError
from synknumba._host import lent_results
from synknumba._host.data import Data
from synknumba._host.segment import Segment
from synknumba._ops import reduction
from synknumba._types import Shape, UserOp, class_text
from synknumba._variables.state import VariableState
from synknumba._variables.variable import Variable, state_of
from synknumba._wire.control import RESULT_BYTES, align
from synknumba._wire.program import HeldRows, HostArray, Result, Sharded

SMALL_RESULT_BYTES = 16 * 1024  # a larger output gets a segment of its own


def _way_to_rows(call: Call) -> str:
    """Returns what to write where an output needs rows and the call has none."""
    for name, variable in call.variables.items():
        if variable.sharded:
            return (
                f"name {name} in rows=, for its rows on each rank, or gather a "
                f"function of it, as def frame({name}, own): return "
                f"{name}[own.start:own.stop] by frame({name}, synk.OWN)"
            )
    return "use None"


def _place_small(built: "Built", nbytes: int) -> int | None:
    """Returns where a result lies among the ranks' small results; None if it is none of them."""
    start = align(built.used)
    if nbytes > SMALL_RESULT_BYTES or start + nbytes > RESULT_BYTES:
        return None
    built.used = start + nbytes
    return start


def _output_name(item: str | int, names: Sequence[str]) -> str | None:
    """Returns the name of an output that is given by name or position; None if there is none."""
    if item in names:
        return str(item)
    try:
        return names[operator.index(item)]  # type: ignore[arg-type]  # a name has no index
    except (TypeError, IndexError):
        return None


@dataclass(slots=True)
class Built:
    """The outputs of one plan, and the segments that contain them."""

    results: dict[str, Result] = field(default_factory=dict)
    segments: dict[str, Segment] = field(default_factory=dict)
    used: int = 0  # bytes of small results, on each rank
    lends: bool = True  # whether a single rank's large results may be returned without a copy
    lent: int = 0  # number of results that may be returned without a copy
    combined: set[str] = field(default_factory=set)  # names of the results that the ranks combine


class OutputBuilder:
    """Allocates the outputs of one kernel."""

    def __init__(self, name: str, outputs: Mapping[str, Output]) -> None:
        self._name = name
        self._outputs = outputs
        self._gathers = any(output.op == "gather" for output in outputs.values())
        # of arguments
        self.rules = {
            name: output.shape for name, output in outputs.items() if callable(output.shape)
        }

    def shapes(self, call: Call) -> tuple[Shape, ...]:
        """Returns the shapes that are functions of the arguments.

        Such a function may use the arguments' values, so a plan is valid for these shapes only.
        """
        return tuple(self._shape_by(name, rule, call) for name, rule in self.rules.items())

    def capacity(self, call: Call) -> int:
        """Returns the number of rows to allocate for gathered outputs; 0 if there are none.

        Unless the number of rows is part of the plan, it is rounded up to a power of two, so that
        batches of similar size share a plan.
        """
        count = call.total
        if not self._gathers or not count:
            return 0
        if call.rows.is_exact:
            return count
        return 1 << (count - 1).bit_length()

    def returned(self, subset: Sequence[str | int] | None) -> list[str]:
        """Returns the names of the outputs to return, in order; raises `ReductionError` if one
        is unknown or named twice.
        """
        names = [name for name, output in self._outputs.items() if not output.scratch]
        if subset is None:
            return names
        selected: list[str] = []
        for item in subset:
            name = _output_name(item, names)
            if name is None:
                raise ReductionError(
                    f"output_subset names {item!r}, which is not an output of {self._name}; it has "
                    f"{', '.join(names) or 'none'}"
                )
            if name in selected:
                raise ReductionError(f"output_subset names {name!r} twice")
            selected.append(name)
        return selected

    def check_count(self, count: int | None, returned: Sequence[str]) -> None:
        """Raises `ReductionError` if an output is a mean or an extremum of rows, and there are
        no rows.
        """
        if count != 0:
            return
        for name in returned:
            op = self._outputs[name].op
            if op == "mean" or op in reduction.LOCATING:
                raise ReductionError(
                    f'{name} of {self._name} is a "{op}" of no rows; pass at least one row'
                )

    def check_rows(self, call: Call) -> None:
        """Raises `BatchError` if an output locates a row, and rows have no index in the whole
        data.
        """
        rows = call.rows
        if rows.sharded is not None or rows.local is None or rows.local.whole:
            return
        for name, output in self._outputs.items():
            if output.op in reduction.LOCATING:
                raise BatchError(
                    f"{name} of {self._name} has op {output.op!r}, which returns a global row "
                    'index, but rows of a local_batch have none; use "gather"'
                )

    def build(self, built: Built, call: Call, returned: Sequence[str]) -> None:
        """Builds all outputs, and places those in `returned`; without a world, only small ones have
        memory.
        """
        for name, output in self._outputs.items():
            dtype, shape = self.resolve(name, output, call)
            result = Result(name, output.op, dtype, shape, None, filled=output.filled)
            if isinstance(output.op, UserOp):
                fold_kernel.check_identity(output.op, dtype, f"{name} of {self._name}")
            if name in returned:
                result = self._place(built, result, call)
            built.results[name] = result

    def _place(self, built: Built, result: Result, call: Call) -> Result:
        world, shards = call.world, call.options.shards
        dtype = reduction.result_dtype(result.op, np.dtype(result.dtype))
        nbytes = math.prod(result.shape) * dtype.itemsize
        if result.op not in reduction.BY_ROWS and shards is None:
            start = _place_small(built, nbytes)
            if start is not None:
                parts = HostArray(-1, dtype, result.shape, start)
                return replace(result, parts=parts, is_small=True)
        if world is None:
            return replace(result, parts=HostArray(-1, dtype, result.shape))
        if result.op == "gather":
            shape = (self.capacity(call), *result.shape)
            return self._in_segment(built, result, dtype, shape, lend=True)
        if result.op in reduction.LOCATING:
            return self._place_located(built, result, shards or world.world_size)
        if shards is not None:
            return self._in_segment(built, result, dtype, (shards, *result.shape), lend=False)
        shape = (world.world_size, *result.shape)
        if isinstance(result.op, str) and not call.options.solo and is_worthwhile(world, nbytes):
            built.combined.add(result.name)
            if not world.traits.shares_memory:
                return replace(result, parts=HostArray(-1, dtype, shape), stays=True)
        lend = result.op is not None and world.world_size == 1 and built.lends
        return self._in_segment(built, result, dtype, shape, lend=lend)

    @staticmethod
    def _place_located(built: Built, result: Result, participants: int) -> Result:
        """Allocates memory for the best values of all ranks or shards, followed by the indices
        of their rows.
        """
        shape = (participants, *result.shape)
        dtype, count = np.dtype(result.dtype), math.prod(shape)
        start = align(count * dtype.itemsize)
        segment = built.segments[result.name] = Segment(start + 8 * count)
        rows = HostArray(segment.id, np.dtype(np.int64), shape, start)
        return replace(result, parts=HostArray(segment.id, dtype, shape), rows=rows)

    @staticmethod
    def _in_segment(
        built: Built, result: Result, dtype: "np.dtype[Any]", shape: Shape, *, lend: bool
    ) -> Result:
        """Allocates a segment for a result; with `lend`, one that may itself be returned to the
        caller.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        segment = built.segments[result.name] = Segment(nbytes)
        if not lend or nbytes < lent_results.LENT_BYTES:
            return replace(result, parts=HostArray(segment.id, dtype, shape))
        built.lent += 1
        return replace(result, parts=HostArray(-1, dtype, shape), lent=built.lent - 1)

    def resolve(self, name: str, output: Output, call: Call) -> tuple["np.dtype[Any]", Shape]:
        """Returns dtype and shape on one rank; for ops by rows, the shape of one row."""
        dtype, shape = self._like(name, output, call)
        if output.dtype is not None:
            dtype = np.dtype(output.dtype)
        dtype = dtype.newbyteorder("=")  # native, like `Data`, whatever that of the argument
        reduction.check_dtype(output.op, dtype, name)
        if output.op in reduction.BY_ROWS and call.total is None:
            raise ReductionError(
                f"{name} of {self._name} has op {output.op!r}, which works on rows, but no "
                f"argument is sharded; {_way_to_rows(call)}"
            )
        if callable(output.shape):
            shape = self._shape_by(name, output.shape, call)
        elif output.shape is not None:
            shape = reduction.checked_shape(name, output.shape)
        return dtype, shape

    def _like(self, name: str, output: Output, call: Call) -> "tuple[np.dtype[Any], Shape]":
        """Returns dtype and shape of the argument that an output is like; a number by default."""
        if output.like is None:
            return np.dtype(np.float64), ()
        value = call.arguments.passed.get(output.like)
        if isinstance(value, Variable) and not state_of(value).is_tree:
            return self._like_variable(name, output, call, state_of(value))
        if not isinstance(value, Data | np.ndarray):
            raise ArgumentError(self._unlike(name, output, value))
        sharded = isinstance(call.parameters.get(output.like), Sharded)
        if sharded and output.op in reduction.BY_ROWS:
            return value.dtype, value.shape[1:]
        if sharded and output.shape is None:
            raise ReductionError(
                f"{name} of {self._name} is like={output.like!r}, which is sharded, so its shape "
                f"differs between ranks and cannot be combined with {output.op!r}; give shape=…, "
                'or use "gather"'
            )
        return value.dtype, value.shape

    def _unlike(self, name: str, output: Output, value: Any) -> str:
        """Returns why an output cannot be like an argument that is no array, and what to declare
        instead.
        """
        kind, dtype = f"{class_text(value)}, not an array argument", "float64"
        match value:
            case IndexRange():
                kind, dtype = "synknumba.arange: indices, not an array argument", "int64"
            case bool():
                dtype = "bool"
            case int():
                dtype = "int64"
        if output.dtype is not None:
            dtype = np.dtype(output.dtype).name
        shape = ""
        if output.shape is None:
            shape = "shape=(), "
        return (
            f"{name} of {self._name} is like={output.like!r}, which is {kind}; write "
            f'{shape}dtype="{dtype}" in place of like='
        )

    def _like_variable(
        self, name: str, output: Output, call: Call, value: VariableState
    ) -> "tuple[np.dtype[Any], Shape]":
        is_sliceable = isinstance(call.parameters.get(str(output.like)), HeldRows)
        shape = value.root_shapes()[0]
        if output.op in reduction.BY_ROWS and is_sliceable:
            return value.dtypes()[0], shape[1:]
        differs = is_sliceable
        if not is_sliceable and call.world is not None:
            differs = not value.storage().layout.leaves[0].uniform
        if output.shape is None and differs:
            raise ReductionError(
                f"{name} of {self._name} is like={output.like!r}, whose shape differs between "
                f'ranks, so it cannot be combined with {output.op!r}; give shape=…, or use "gather"'
            )
        return value.dtypes()[0], shape

    def _shape_by(self, name: str, rule: Callable[..., Any], call: Call) -> Shape:
        """Returns the shape that a function of the arguments gives."""
        try:
            shape = rule(call.arguments.passed)
        except Exception as error:  # the function is the user's
            raise ReductionError(
                f"the shape of {name} of {self._name} is a function, which raised "
                f"{type(error).__name__}: {error}; it gets a dict with "
                f"{', '.join(call.arguments.passed)}"
            ) from error
        return reduction.checked_shape(name, shape)
