"""A call under the checker: each rank's rows in turn, in the script's process, by `simt.check`.

The arrays are copies that end where a rank's rows end, so an index that would reach the next rank's
rows on cores, and other memory on a GPU, is out of bounds.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from synknumba import simt
from synknumba._call.arguments import Output
from synknumba._call.call import Call
from synknumba._call.launches import kernel_shape
from synknumba._call.outputs import OutputBuilder
from synknumba._call.work_out import WorkedCall
from synknumba._errors import Finding, KernelCheckError, KernelCheckWarning
from synknumba._ops import reduction
from synknumba._ops.launch import ELEMENTS, Dim3, Extent, LaunchConfig
from synknumba._ops.rows import Range, Rows
from synknumba._ops.variable_layout import VECTOR
from synknumba._source.grid_limits import Limits
from synknumba._types import Array, Op, RankConstant, Shape, Span, count_text
from synknumba._variables.state import VariableState
from synknumba._wire import program


def check_call(worked: WorkedCall) -> None:
    """Runs the launches of a kernel's call under `simt.check`; raises all findings, with the ranks
    that have them.
    """
    planner, call, source = worked.planner, worked.call, worked.source
    name, launch, outputs = planner.name, planner.options.launch, planner.options.outputs
    assert launch is not None  # it is a kernel
    signatures = planner.options.compile_options.get("signatures")
    compiled = simt.jit(signatures)(planner.function)
    kernel, parts = simt.check(compiled), list(_parts(call))
    by_rank: list[tuple[int, Finding]] = []
    if call.count is not None and len(parts) > 1 and compiled.synchronises_grid:
        by_rank += ((rank, _GRID_OF_A_RANK) for rank, _, _ in parts)
    for rank, low, high in parts:
        count = high - low
        values = {
            key: _argument(key, param, call, rank, low, high)
            for key, param in call.parameters.items()
        }
        extent = Extent.of(None if call.count is None else count, _shapes(values), source)
        if launch.launches_nothing(extent):
            continue
        for key, output in outputs.items():
            values[key] = _output(planner.builder, key, output, call, count)
        grid, block = launch.resolve(*extent)
        shapes = _shapes(values)
        left_out = _left_out(planner.text.limits, launch, call, shapes, (grid, block))
        by_rank += ((rank, finding) for finding in left_out)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", KernelCheckWarning)
                arguments = [values[key] for key in planner.parameters]
                kernel[grid, block, 0, launch.smem_bytes](*arguments)
        except (KernelCheckError, KernelCheckWarning) as error:
            for finding in error.findings:
                by_rank.append((rank, _advised(finding, call, outputs, shapes)))
        except Exception as error:
            error.add_note(f"on rank {rank} of {name}.check(...)")
            raise
    if by_rank:
        findings = tuple(sorted(_merged(by_rank), key=lambda finding: finding.is_warning))
        if findings[0].is_warning:
            warnings.warn(KernelCheckWarning(name, findings), stacklevel=3)
        else:
            raise findings[0].error(name, findings)


def _shapes(values: Mapping[str, Any]) -> dict[str, Shape]:
    return {name: value.shape for name, value in values.items() if isinstance(value, np.ndarray)}


# A kernel whose ranks are independent, as solvers of one system each, is right.
_GRID_OF_A_RANK = Finding(
    KernelCheckError,
    "the barrier of the grid waits for the threads of one rank, and the rows are divided among "
    "several ranks: a total that the kernel reads after it is that of the rank's rows",
    (),
    "to use the total of all rows, return it as an output with the op sum, and "
    "pass it to a second kernel",
    is_warning=True,
)


def _left_out(
    limits: Limits,
    launch: LaunchConfig,
    call: Call,
    shapes: Mapping[str, Shape],
    sizes: tuple[Dim3, Dim3],
) -> Iterator[Finding]:
    """Yields the lengths that positions are compared with, where a launch by rows or elements has
    fewer threads.

    Other launches are as the script wants them; a rank may need a part only of what every rank gets
    whole.
    """
    if launch.grid not in {None, ELEMENTS}:
        return
    for limit in limits.lengths:
        array, axis = limit.parameter, limit.length or 0
        shape, threads = shapes.get(array, ()), sizes[0][limit.axis] * sizes[1][limit.axis]
        is_whole = isinstance(call.parameters.get(array), program.Broadcast)
        if len(shape) > axis and shape[axis] > threads and not is_whole:
            yield Finding(
                KernelCheckError,
                f"a position along {'xyz'[limit.axis]} is compared with {array}.shape[{axis}], "
                f"which is {shape[axis]}, but the launch has {count_text(threads, 'thread')} "
                "there, and the other elements are left out",
                (),
                'pass grid="elements" for a thread per element, with the last axis along x (j, i = '
                "cuda.grid(2) for u[i, j]); or grid= as a function of shapes; or loop with a "
                "stride of cuda.gridsize",
                array,
                is_warning=True,
            )


def _advised(
    finding: Finding, call: Call, outputs: Mapping[str, Output], shapes: Mapping[str, Shape]
) -> Finding:
    """Returns a finding, with advice if its index is a row that another rank has."""
    name, index = finding.array, finding.index
    shape, total = shapes.get(name, ()), _divided_rows(name, call, outputs)
    if len(index) != len(shape) or not index or not shape[0] <= index[0] < total:
        return finding
    advice = f"{name} has the rank's rows, from 0: guard by {name}.shape[0] or synk.ROWS"
    match call.parameters.get(name):
        case program.Sharded(writable=False):
            advice += (
                f'; for other ranks\' rows pass broadcast=("{name}",), '
                "or for neighbours a variable with halo="
            )
        case program.Held() | program.HeldRows():
            advice += "; for neighbours synk.scatter the variable with halo="
    return replace(finding, advice=advice)


def _divided_rows(name: str, call: Call, outputs: Mapping[str, Output]) -> int:
    """Returns the number of rows of an argument or output on all ranks; 0 if none are divided."""
    total = call.total or 0
    match call.parameters.get(name):
        case program.Held(leaf=leaf) | program.HeldRows(leaf=leaf):
            state = call.variables[name]
            if not state.sharded or leaf == VECTOR:
                return 0
            return sum(shape[0] for shape in state.shapes()[leaf])
        case program.Sharded():
            return total
    output = outputs.get(name)
    if output is None or output.op not in reduction.BY_ROWS:
        return 0
    return total


def _parts(call: Call) -> Iterator[tuple[int, int, int]]:
    """Yields each rank that runs, and the start and stop of its rows among those of the call."""
    count = call.count
    if count is None:
        for rank in range(call.partition.parts):
            yield rank, 0, 0
        return
    if isinstance(count, tuple):  # rows of variables
        edges = tuple(accumulate(count, initial=0))
    else:
        edges = call.partition.edges(count)
    for rank, (low, high) in enumerate(pairwise(edges)):
        if high > low:
            yield rank, low, high


def _argument(name: str, param: program.Param, call: Call, rank: int, low: int, high: int) -> Any:
    """Returns what the kernel gets for one parameter on one rank."""
    value = call.arguments.passed.get(name)
    match param:
        case program.Sharded(by_position=by_position):
            rows = call.rows.sharded
            assert rows is not None  # it has rows
            if by_position:
                return _rows(np.asarray(value), Range(low, 1, high - low))
            return _rows(np.asarray(value), rows.between(low, high))
        case program.Broadcast():
            return np.array(value)
        case program.Dynamic():
            if hasattr(value, "__array__"):
                return np.asarray(value)[()]
            return value
        case program.IndexSpan(first):
            start = first + _start(call, low)
            return Span(start, start + high - low)
        case program.Filled(constant):
            numbers = {
                RankConstant.RANK: rank,
                RankConstant.WORLD_SIZE: call.partition.parts,
                RankConstant.ROWS: high - low,
                RankConstant.SLICE: 0,
            }
            return numbers.get(constant, _start(call, low))
        case program.PerRank(values):
            return values[rank]
        case program.Held(leaf=leaf):
            return _of_variable(call.variables[name], leaf, rank)
        case program.HeldRows(leaf=leaf):
            array = call.variables[name].fetch([rank])[0][leaf]
            selected = call.rows.local
            if selected is None:
                return array
            return _rows(array, selected.rows[rank])
        case program.Update(op=op, dtype=dtype, shapes=shapes):
            return _filled(op, shapes[rank], dtype)
        case program.Constant(value):
            return value
    raise AssertionError(param)  # trees are for functions, results are made here


def _start(call: Call, low: int) -> int:
    """Returns the index in the whole of a rank's first row."""
    rows = call.rows.sharded
    if isinstance(rows, Range):
        return rows.between(low, low).start
    return low


def _rows(array: Array, rows: Rows) -> Array:
    """Returns a copy of some rows."""
    return np.array(array[rows.selector])


def _of_variable(variable: VariableState, leaf: int, rank: int) -> Array:
    """Returns a copy of a rank's array of a variable, with halos, or of all as one vector; of
    shape (1,) if it is 0-d.
    """
    arrays = variable.fetch([rank], own=False)[0]
    if leaf == VECTOR:
        return np.concatenate([array.ravel() for array in arrays])
    return np.atleast_1d(arrays[leaf])


def _output(builder: OutputBuilder, name: str, output: Output, call: Call, count: int) -> Array:
    """Returns the array of an output on one rank, set to the identity of its op."""
    dtype, shape = builder.resolve(name, output, call)
    if output.op in reduction.BY_ROWS:
        shape = (count, *shape)
    return _filled(output.op, shape, dtype)


def _filled(op: Op, shape: Shape, dtype: "np.dtype[Any]") -> Array:
    """Returns an array as a kernel gets it, with the identity of an op."""
    return np.full(kernel_shape(shape), reduction.identity(op, dtype), dtype)


def _merged(by_rank: list[tuple[int, Finding]]) -> Iterator[Finding]:
    """Yields findings with the ranks that have them; those of several ranks at the same lines
    and array are one.
    """
    kinds: dict[Any, list[tuple[int, Finding]]] = {}
    for rank, finding in by_rank:
        lines = tuple((access.what, access.filename, access.line) for access in finding.accesses)
        kinds.setdefault((finding.error, finding.array, lines), []).append((rank, finding))
    for same in kinds.values():
        ranks = ", ".join(dict.fromkeys(str(rank) for rank, _ in same))
        first = same[0][1]
        yield replace(
            first,
            summary=f"on rank {ranks}: {first.summary}",
            times=sum(finding.times for _, finding in same),
        )
