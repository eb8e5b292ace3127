"""Plans: a call worked out once in the coordinator, then executed repeatedly.

    arguments ──Call──> rows, values ──key──> Plan (made once, numbered) ──execute──> result
                                                  │
                                                  └─ Program, sent to the ranks once

A plan is found by the key of the call: kinds, dtypes, shapes and segments of arguments, slices and
subset. Executing it writes the values that change (scalars, bounds of the batch) to shared memory,
rings the ranks, and combines their results. A submitted call does this in two steps, `launch` and
`finish`, between which the script goes on.
"""

import math
import struct
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, final

import numpy as np

from synknumba._call.call import Call
from synknumba._call.collect import (
    Collector,
    Combining,
    Count,
    Selection,
    make_collector,
    make_locator,
    row_weights,
    total_rows,
)
from synknumba._call.distribute import result_class
from synknumba._call.outputs import Built
from synknumba._call.shared_updates import SharedUpdates
from synknumba._device import fold_kernel
from synknumba._errors import ReductionError
from synknumba._host.copying import private_copy
from synknumba._host.lent_results import ResultLeases
from synknumba._host.segment import Segment
from synknumba._ops import reduction
from synknumba._ops.tree import (
    LEAF,
    NONE,
    Structure,
    count_leaves,
    flatten,
    result_text,
    spread,
    unflatten,
    unmatched,
)
from synknumba._types import Array, Cache, CallValues, Op, UserOp
from synknumba._wire.messages import Returned
from synknumba._wire.program import Combination, Combined, HostArray, Program, Result, next_number
from synknumba._wire.results import RankReturn, ResultReader
from synknumba._world.call_in_flight import Flight
from synknumba._world.engine import Engine
from synknumba._world.failure import CallInfo
from synknumba._world.news import RankNews

WEIGHTS_KEPT = 1  # of a plan, for the last number of rows
COMBINERS_KEPT = 1024  # of a function, one for each set of shapes that ranks return


class Plan(ABC):
    """A program on the ranks, and its execution.

    It is made for a call, once the ranks have the program, and keeps none of that call's memory
    alive.

    Attributes:
        lenders: memory of the results that may be returned without a copy.
        updates: variables that the coordinator assigns after the call, which has shards; None if
            there are none.
        weights: returns the `row_weights` of a call's number of rows. It does not refer to the
            plan, whose memory is freed with its last reference.
    """

    lenders: Sequence[ResultLeases] = ()
    updates: SharedUpdates | None = None
    _selection: Selection | None = None  # of the rows in which results are found

    def __init__(self, world: Engine, program: Program, info: CallInfo, call: Call) -> None:
        self.world = world
        self.program = program
        self.info = info
        # of the call that it is made for
        self._segment_references = tuple(map(weakref.ref, call.segments))
        storages = [variable.storage() for variable in call.variables.values()]
        self._storage_references = list(map(weakref.ref, storages))
        self._number = program.number
        weights = partial(row_weights, partition=program.shard_partition)
        self.weights = lru_cache(WEIGHTS_KEPT)(weights)
        self._pack: Callable[..., None] | None = None
        if program.values:
            self._pack = struct.Struct("<" + program.values).pack_into
        self._memory = world.ranks.values.data
        self._tally = world.tally
        self._bytes = call.sizes(), call.run_partition.parts
        self._scattered = call.count, self._scattered_by(call.count)

    def _scattered_by(self, count: Count) -> int:
        """Returns the bytes that a call with this number of rows sends to the ranks."""
        (per_row, per_rank), ranks = self._bytes
        return per_row * (total_rows(count) or 0) + per_rank * ranks

    def execute(self, values: CallValues, count: Count) -> Any:
        """Executes one call, of `count` rows; called between the world's `begin` and `end`.

        `values` are in the order of the program's `values` format, without the segment ids of
        results at its end.
        """
        self._send(values, count)
        self.world.run(self._number, self.info, self.learn)
        if self.updates is None:
            return self.collect(count)
        return self.finish(count)

    def launch(self, values: CallValues, count: Count, flight: Flight) -> None:
        """Starts one call as `execute` does, without waiting for its end; `finish` follows when
        the round has ended.
        """
        self._send(values, count)
        self.world.launch(flight, self._number)

    def finish(self, count: Count) -> Any:
        """Collects the result of a call, and assigns the variables that it updates."""
        result = self.collect(count)
        if self.updates is not None:
            self.updates.assign(self.world)
        return result

    def _send(self, values: CallValues, count: Count) -> None:
        """Writes what changes from call to call to shared memory."""
        selection = self._selection
        if selection is not None:
            selection.values = values[selection.first :]
        if self.lenders:
            values = (*values, *[lender.choose() for lender in self.lenders])
        if self._pack is not None:
            self._pack(self._memory, 0, *values)
        tally = self._tally
        tally.calls += 1  # counts failed calls, too
        if count != self._scattered[0]:
            self._scattered = count, self._scattered_by(count)
        tally.scattered_bytes += self._scattered[1]

    @property
    def update_bytes(self) -> int:
        """Bytes of shared memory held for the updates."""
        if self.updates is None:
            return 0
        return self.updates.nbytes

    @property
    def stale(self) -> bool:
        """Whether memory that the plan refers to is gone, so that no call will use it again."""
        for reference in self._segment_references:
            segment = reference()
            if segment is None or segment.closed:
                return True
        return any(storage() is None for storage in self._storage_references)

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of shared memory held for the results."""

    def trim(self) -> None:
        """Frees shared memory that the plan does not need."""

    def learn(self, news: Sequence[RankNews]) -> None:
        """Processes news from the ranks."""

    @abstractmethod
    def collect(self, count: Count) -> Any:
        """Combines the ranks' results."""

    def forget(self) -> None:
        """Makes the ranks drop the program."""
        self.world.forget("program", self._number)


# ---- kernels -------------------------------------------------------------------------------------


@final
class KernelPlan(Plan):
    """Plan for a kernel, the location of whose outputs is known beforehand."""

    def __init__(
        self,
        world: Engine,
        program: Program,
        info: CallInfo,
        call: Call,
        returned: Sequence[str],
        built: Built,
        name: str,
        merge: Callable[[Array], Any] | None,
    ) -> None:
        super().__init__(world, program, info, call)
        self._merge = merge
        results, segments = built.results, built.segments
        self._lenders: dict[str, ResultLeases] = {}
        self._segments: dict[str, Segment] = {}
        for key, result in results.items():  # in the order of their values
            if result.lent is not None:
                self._lenders[key] = self._lender(result, segments[key])
            elif key in segments:
                self._segments[key] = segments[key]
        self.lenders = tuple(self._lenders.values())
        self._combining: Combining | None = None
        if built.combined:
            self._combining = self._combine([results[key] for key in sorted(built.combined)])
        self._lent_mean = any(results[key].op == "mean" for key in self._lenders)
        self._selection = selection = Selection(program, self._segment_references)
        self.returned = {key: results[key] for key in returned}
        self._collectors = [self._collector(result, selection) for result in self.returned.values()]
        self._alone: Collector | None = None
        self._finish: Callable[..., Any] | None = None
        if len(returned) == 1:
            (self._alone,) = self._collectors
        elif returned:
            self._finish = result_class(name, tuple(returned))

    @property
    def nbytes(self) -> int:
        lent = sum(lender.nbytes for lender in self._lenders.values())
        fixed = sum(segment.size for segment in self._segments.values())
        return lent + fixed + self.update_bytes

    def trim(self) -> None:
        for lender in self._lenders.values():
            lender.trim()

    def forget(self) -> None:
        super().forget()
        if self._combining is not None:
            self._combining.forget()

    def select(self, values: CallValues) -> None:
        """Notes the rows that a call of a sequence selects, for results that are row numbers."""
        assert self._selection is not None  # made with the plan
        self._selection.values = values[self._selection.first :]

    def collect(self, count: Count) -> Any:
        if self._lenders:  # results that are returned without a copy have yet to be completed
            if self._lent_mean:
                reduction.check_weights(self.weights(count))
            if self._combining is not None:
                self._combining.run(lambda: self.weights(count))
        if self._alone is not None:
            return self._alone(count)
        if self._finish is None:
            return None
        return self._finish(*(collector(count) for collector in self._collectors))

    def _collector(self, result: Result, selection: Selection) -> Collector:
        assert result.parts is not None  # only wanted outputs are collected
        if result.name in self._lenders:
            lender, shape = self._lenders[result.name], result.shape
            if result.op == "gather":
                return lambda count: lender.result((total_rows(count) or 0, *shape))
            return lambda _: lender.result(shape)
        parts = self.parts_of(result)
        if result.op == "gather":
            # without the plan, which would keep the memory
            return lambda count: private_copy(parts[: total_rows(count)])
        parts = parts[: self.program.shard_partition.parts]
        if result.rows is not None:
            place = result.rows
            rows = self._segments[result.name].array(place.dtype, place.shape, place.offset)
            return make_locator(result.op, parts, rows[: len(parts)], selection)
        merge = self._merge
        if merge is not None:
            return lambda _: merge(parts)
        return make_collector(result.op, parts, self.weights)

    def parts_of(self, result: Result) -> Array:
        """Returns the ranks' parts of a result: shape (W, …); small ones are in the control
        block.
        """
        assert result.parts is not None  # as above
        if not result.is_small:
            return self._segments[result.name].array(result.parts.dtype, result.parts.shape)
        return result.parts.in_lines(self.world.ranks.results)

    def _lender(self, result: Result, place: Segment) -> ResultLeases:
        assert result.parts is not None
        world, info = self.world, self.info
        return ResultLeases(
            place, result.parts.dtype, lambda segment: world.attach([segment], info)
        )

    def _combine(self, results: Sequence[Result]) -> Combining:
        """Prepares the combination of some results by the ranks, in memory of its own."""
        outputs, transport, stays = [], None, results[0].stays  # the same for all results
        for result in results:
            assert result.parts is not None  # only wanted outputs are combined
            dtype, count = np.dtype(result.parts.dtype), math.prod(result.shape)
            place = Segment(count * dtype.itemsize)
            self.world.attach([place], self.info)
            self._lenders[result.name] = self._lender(result, place)
            parts = None
            if not stays:
                parts = replace(result.parts, segment=self._segments[result.name].id)
            outputs.append(Combined(result.name, result.op, dtype, count, parts))
        weighted = any(output.op == "mean" for output in outputs)
        if stays:
            transport = self.world.life.transport
        combination = Combination(next_number(), self._number, tuple(outputs), weighted, transport)
        return Combining(self.world, combination, self.info, self._lenders)


# ---- Python functions ----------------------------------------------------------------------------


@final
class FunctionPlan(Plan):
    """Plan for a Python function, whose results come with their structure, dtypes and shapes."""

    def __init__(
        self, world: Engine, program: Program, info: CallInfo, call: Call, *, has_ops: bool
    ) -> None:
        super().__init__(world, program, info, call)
        self.has_ops = has_ops
        self._part = "rank" if program.shards is None else "shard"
        first, nbytes = program.returns.small or (0, world.ranks.results.shape[1])
        self._results = world.ranks.results
        room = self._results[:, first : first + nbytes]
        self._readers = [ResultReader(memory) for memory in room]
        self._numbers = room[:, :8].view(np.int64)[:, 0]
        self._combiners: Cache[tuple[int, ...], Collector] = Cache(COMBINERS_KEPT)

    @property
    def nbytes(self) -> int:
        return sum(reader.nbytes for reader in self._readers) + self.update_bytes

    @property
    def are_small(self) -> bool:
        """Whether there were results, all among the ranks' small ones."""
        known = [reader.are_small for reader in self._readers if reader.are_small is not None]
        return any(known) and all(known)

    def learn(self, news: Sequence[RankNews]) -> None:
        for rank, item, descriptors in news:
            assert isinstance(item, Returned)  # the world has raised failures already
            self._readers[rank].learn(item, descriptors)

    def collect(self, count: Count) -> Any:
        numbers = tuple(self._numbers.tolist())
        combiner = self._combiners.get(numbers)
        if combiner is None:
            combiner = self._combiners[numbers] = self._make_combiner(numbers, count)
        return combiner(count)

    def collect_kept(self, memory: Array, count: Count) -> tuple[list[Any], Structure] | None:
        """Returns what `collect` would return for each of several results that ranks have kept,
        as arrays with these as their first axis, and the structure; None if they have to be
        collected one by one.

        Args:
            memory: the ranks' small results: uint8, shape (entries, W, bytes).
            count: of rows.
        """
        assert self.program.returns.small is not None  # the calls of a sequence have it
        first, _ = self.program.returns.small
        numbers = memory[:, :, first : first + 8].view(np.int64)[:, :, 0]
        are_alike = numbers.all() and (numbers == numbers[0]).all()
        are_few = memory.shape[1] < reduction.SEQUENTIAL_SUM
        if not (are_alike and are_few) or self.program.shards is not None:
            return None
        ran = range(memory.shape[1])
        returns = [self._readers[rank].read(number) for rank, number in enumerate(numbers[0])]
        structure = self._common_structure(ran, returns)
        columns: list[Any] = []
        for index, op in enumerate(self._leaf_ops(structure)):
            place = self._place([part.leaves[index] for part in returns])
            if place is None or not (op == "mean" or op in reduction.UFUNCS):
                return None
            reduction.check_dtype(op, place.dtype, self.info.function)
            parts = place.in_lines(memory).swapaxes(0, 1)
            columns.append(self._combination(op, place.dtype, ran)(parts, count))
        return (columns, structure) if columns else None

    def _make_combiner(self, numbers: tuple[int, ...], count: Count) -> Collector:
        ran = [rank for rank, number in enumerate(numbers) if number]
        if not ran:
            return self._combiner_without_rows()
        returns = [self._readers[rank].read(numbers[rank]) for rank in ran]
        if self.program.shards is not None:
            # The shards that have rows are as many as there are rows, or all, so the same numbers
            # always mean the same shards.
            ran = np.flatnonzero(self.weights(count)).tolist()
            returns = [shard for rank_return in returns for shard in rank_return.apart()]
        structure = self._common_structure(ran, returns)
        collectors: list[Collector] = []
        for index, op in enumerate(self._leaf_ops(structure)):
            leaves = [part.leaves[index] for part in returns]
            collectors.append(self._leaf_collector(op, leaves, ran, structure))
        if structure == LEAF:
            return collectors[0]
        finish = partial(unflatten, structure)
        return lambda count: finish([collector(count) for collector in collectors])

    def _combiner_without_rows(self) -> Collector:
        ops = self.program.returns.ops
        if not self.has_ops:
            return lambda _: None
        if not flatten(ops)[0]:  # None throughout
            return lambda _: self._all_none(ops)
        raise ReductionError(
            f"{self.info} got no rows, so the function was not called and has no "
            f"results. Pass at least one row."
        )

    def _all_none(self, ops: Any) -> Any:
        """Returns a list of None for each op of a tree: the results of a call without rows."""
        if isinstance(ops, dict):
            return {key: self._all_none(child) for key, child in ops.items()}
        if isinstance(ops, tuple):
            return tuple(self._all_none(child) for child in ops)
        return [None] * self.program.shard_partition.parts

    def _common_structure(self, ran: Sequence[int], returns: Sequence[RankReturn]) -> Structure:
        first = returns[0].structure
        for rank, part in zip(ran, returns, strict=True):
            if part.structure != first:
                raise ReductionError(
                    f"{self.info} returned {result_text(first)} on {self._part} {ran[0]} but "
                    f"{result_text(part.structure)} on {self._part} {rank}; results must have the "
                    f"same structure on every {self._part} to be combined"
                )
        return first

    def _leaf_ops(self, structure: Structure) -> list[Op]:
        if not self.has_ops:
            if structure == NONE:
                return []
            raise ReductionError(
                f"{self.info} returned {result_text(structure)}, but outputs= does not say "
                f"how to combine the ranks' "
                'results. Pass one op for all, as in outputs="sum", or a tree '
                "of ops of that structure; "
                "None returns a list of all ranks' results."
            )
        declared = self.program.returns.ops
        if structure == NONE and flatten(declared)[0]:
            raise ReductionError(f"{self.info} returned None; add `return`, or leave outputs= out")
        ops = spread(declared, structure)
        if ops is None:
            extra, missing = unmatched(declared, structure)
            reasons = [f"no op for {path}" for path in extra]
            reasons += (f"nothing returned for {path}" for path in missing)
            if not reasons:
                fitting = unflatten(structure, ["sum"] * count_leaves(structure))
                reasons = [f"write outputs={fitting!r}, with an op for each"]
            raise ReductionError(
                f"{self.info} returned {result_text(structure)}, and outputs={declared!r} "
                f"does not fit that structure: {', '.join(reasons)}"
            )
        return ops

    def _leaf_collector(
        self, op: Op, leaves: Sequence[Array], ran: Sequence[int], structure: Structure
    ) -> Collector:
        if op is None:
            readers = [_nothing] * self.program.shard_partition.parts
            for part, leaf in zip(ran, leaves, strict=True):
                readers[part] = _reader(leaf)
            return lambda _: [read() for read in readers]
        if op == "gather":
            return self._gatherer(leaves, structure)
        shapes = {leaf.shape for leaf in leaves}
        if len(shapes) > 1:
            listed = ", ".join(
                f"{leaf.shape} on {self._part} {rank}"
                for rank, leaf in zip(ran, leaves, strict=True)
            )
            raise ReductionError(
                f'{self.info}: results of different shapes cannot be combined with "{op}": '
                f'{listed}. Use "gather", or None for a list.'
            )
        dtype = np.result_type(*leaves)  # dtypes may differ between ranks
        reduction.check_dtype(op, dtype, self.info.function)
        if len(leaves) == 1 and op != "mean":
            if isinstance(op, UserOp):
                fold_kernel.compile_for(op, dtype, f"outputs of {self.info.function}")
            return _converted(leaves[0], reduction.summed_dtype(op, dtype))
        together, combination = self._strided(leaves), self._combination(op, dtype, ran)
        return lambda count: combination(together(), count)

    def _combination(self, op: Op, dtype: Any, ran: Sequence[int]) -> Callable[[Array, Count], Any]:
        """Returns what combines the parts of some ranks, along the first axis."""
        if op == "mean":
            ranks = list(ran)
            return lambda parts, count: reduction.combine("mean", parts, self.weights(count)[ranks])
        if isinstance(op, UserOp):
            fold_kernel.compile_for(op, dtype, f"outputs of {self.info.function}")
            summed = reduction.summed_dtype(op, dtype)
            return lambda parts, _: fold_kernel.fold(op, parts.astype(summed, copy=False))
        assert isinstance(op, str)  # the others keep parts apart
        reduce, summed = reduction.UFUNCS[op].reduce, reduction.summed_dtype(op, dtype)
        return lambda parts, _: reduce(parts, 0, summed)

    def _strided(self, leaves: Sequence[Array]) -> Callable[[], Array]:
        """Returns a function that returns the leaves as one array.

        It is a view if the leaves are at the same offset in each rank's results, else a new stack.
        Shards are always stacked: the strides then do not depend on the number of ranks, as the
        bits of a sum may depend on strides.
        """
        if self.program.shards is not None:
            return lambda: np.stack(leaves)
        place = self._place(leaves)
        if place is None:
            return lambda: np.stack(leaves)
        first, offset = divmod(place.offset, self._results.strides[0])
        place = replace(place, offset=offset)
        view = place.in_lines(self._results[first : first + len(leaves)])
        return lambda: view

    def _place(self, leaves: Sequence[Array]) -> HostArray | None:
        """Returns where the results have the first of the leaves, if the others are alike, and as
        far apart as the ranks' results; else None.
        """
        results, first = self._results, leaves[0]
        start = offset = first.ctypes.data - results.ctypes.data
        for leaf in leaves:
            if leaf.ctypes.data - results.ctypes.data != offset:
                return None
            if leaf.dtype != first.dtype or leaf.shape != first.shape:
                return None
            if not 0 <= offset < results.nbytes:
                return None
            offset += results.strides[0]
        return HostArray(-1, first.dtype, first.shape, start)

    def _gatherer(self, leaves: Sequence[Array], structure: Structure) -> Collector:
        if leaves[0].ndim == 0:
            returned, way_out = "a number, which has", "use None for a list of all ranks' values"
            if structure != LEAF:
                kind = structure[0]
                if kind not in {"dict", "list"}:
                    kind = "tuple"
                returned = f"a {kind}, in which each value is a result of its own, and a number has"
                way_out = f"return np.array([...]) for an array of numbers, or {way_out}"
            raise ReductionError(f'{self.info} returned {returned} no rows to "gather"; {way_out}')
        shapes = [leaf.shape for leaf in leaves]
        if any(shape[1:] != shapes[0][1:] for shape in shapes):
            raise ReductionError(
                f"{self.info}: gathered results must agree in all axes but the first, got {shapes}"
            )
        return lambda _: np.concatenate(leaves, axis=0)


def _converted(leaf: Array, dtype: "np.dtype[Any]") -> Collector:
    """Returns a collector of the only rank's result, as a copy; of a 0-d one as a number."""
    if leaf.dtype != dtype:
        return lambda _: leaf.astype(dtype)[()]
    if leaf.ndim:
        return lambda _: leaf.copy()
    return lambda _: leaf[()]


def _reader(leaf: Array) -> Callable[[], Any]:
    """Returns a function that returns a copy of an array; of a 0-d one its number."""
    if leaf.ndim:
        return leaf.copy
    return partial(leaf.__getitem__, ())


def _nothing() -> Any:
    """Returns None, the result of a rank that did not run."""
