"""Routine for kernels: buffers, launches, and outputs combined over slices.

    loads → fill outputs with the identity → launch → stores → fold into the rank's part           once per slice

`KernelRoutine` keeps the steps of each selection of rows. A subclass of `OutputSteps` for each kind
of output creates the steps around the launches.
"""  # noqa: E501

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast, final

import numpy as np

from synknumba._device import DeviceKernel, LineRows, SliceSteps, Step
from synknumba._host.lent_results import MOST_PLACES
from synknumba._ops import reduction
from synknumba._ops.launch import Extent, LaunchConfig
from synknumba._rank import spans
from synknumba._rank.replay import Repetition
from synknumba._rank.routine import Moves, OutputSteps, Place, Routine, SliceRows, scalar_value
from synknumba._rank.update_routine import variable_updates
from synknumba._types import Array, Cache, Shape
from synknumba._wire.program import ARRAYS, Dynamic, Program, Result
from synknumba._wire.relaunch import Again, Scalar, ScalarPacking

BINDINGS_KEPT = (
    512  # row selections whose steps are kept; enough for an epoch of minibatches in most scripts
)


@dataclass(slots=True)
class Binding:
    """The steps for one selection of rows."""

    scalars: bytes  # those that the launches' arguments contain now; empty if unknown
    launches: list[list[Any]]  # arguments of each launch, updated in place
    run: Repetition
    in_line: Sequence[LineRows] = ()  # if the rows are those of a line that may change
    line: int | None = None  # whose rows they are, if that is known


def _close(known: set[Repetition], binding: Binding) -> None:
    """Frees the recordings of a binding, whose run compiled code repeats no more."""
    binding.run.close()
    known.discard(binding.run)


@final
class KernelRoutine(Routine):
    """A Numba CUDA kernel, launched once per slice; its results are output parameters."""

    def __init__(
        self, program: Program, place: Place, kernel: DeviceKernel, launch: LaunchConfig
    ) -> None:
        super().__init__(program, place)
        self.written: set[int] = set()
        self._kernel = kernel
        self._launch = launch
        self._now: Binding | None = None
        self._known: set[Repetition] = set()  # runs that compiled code may repeat
        # whether the first of the values that select rows is no part of a binding
        self._follows = program.line_offset is not None
        self._has_loaded = False  # whether this run has loaded frozen rows
        limit = BINDINGS_KEPT * (MOST_PLACES if program.lent else 1)
        self._bindings: Cache[tuple[Any, ...], Binding] = Cache(limit, partial(_close, self._known))
        self._dynamic = {
            position: param
            for position, (_, param) in enumerate(program.parameters)
            if isinstance(param, Dynamic)
        }
        first = {position: param.index for position, param in self._dynamic.items()}
        self._packing = ScalarPacking(program.values, self._scalar_bytes, first)

    def bind(self, values: tuple[Any, ...], scalars: bytes) -> None:
        rows = values[self._row_values :]
        binding = self._bindings.get(rows[self._follows :])
        if binding is None:
            replaced = self.workspace.replaced
            binding = self._make_binding(values, scalars, in_line=self._follows)
            self._follows &= bool(binding.in_line)
            # the other bindings refer to the replaced memory
            if self.workspace.replaced != replaced:
                self._let_go()
            self._bindings[rows[self._follows :]] = binding
            self.written.update(rows[len(rows) - self.program.lent :])
        elif binding.scalars != scalars:
            binding.scalars = b""  # unknown until the change below is complete
            for args in binding.launches:
                for position, param in self._dynamic.items():
                    args[position] = scalar_value(param, values)
            binding.run.renew(scalars)
            binding.scalars = scalars
        if self._follows and binding.line != rows[0]:
            binding.run.forget()
            binding.line = None  # unknown until the change below is complete
            for line in binding.in_line:
                line.gather.take(rows[0])
            binding.run.renew(scalars)
            binding.line = rows[0]
        self._now = binding

    @property
    def launches(self) -> int:
        """Number of launches of a run."""
        return 0 if self._now is None else len(self._now.launches)

    def steps(self, packed: bytes) -> list[Step]:
        """Binds packed values; returns the steps of a run, for whoever runs them one by one.

        The caller keeps them only as long as no buffers are forgotten and no other values are
        bound.
        """
        self.bind_packed(packed)
        assert self._now is not None  # bound
        return self._now.run.steps

    def apart(self, packed: bytes) -> Binding:
        """Returns steps for packed values, with arguments of their own, which no other call
        changes.
        """
        replaced = self.workspace.replaced
        values, in_line = self._unpack(packed), self.program.line_offset is not None
        binding = self._make_binding(
            values, packed[: self._scalar_bytes], in_line=in_line, apart=True
        )
        if self.workspace.replaced != replaced:  # as in `bind`
            self._let_go()
            self._packed = None
        return binding

    @property
    def dynamic(self) -> Mapping[int, Dynamic]:
        """The scalars of a call, by position among the launches' arguments."""
        return self._dynamic

    def dynamic_at(self, offset: int) -> Iterator[tuple[int, Dynamic]]:
        """Yields positions and parameters of the scalar at an offset among the packed values."""
        for position, param in self._dynamic.items():
            if struct.calcsize("<" + self.program.values[: param.index]) == offset:
                yield position, param

    def places_of(self, offset: int, among: Sequence[Scalar]) -> list[Scalar]:
        """Returns the places that have the scalar at an offset among the packed values, if
        compiled code can write it there.
        """
        positions = {
            position
            for position, param in self.dynamic_at(offset)
            if not param.is_complex
            and (
                param.dtype is None or np.dtype(param.dtype).name in {"int64", "float64", "float32"}
            )
        }
        return [place for place in among if place.position in positions]

    def change_scalars(self, launches: Sequence[list[Any]], packed: bytes) -> None:
        """Replaces the scalars among the arguments of launches by those of packed values."""
        values = self._unpack(packed)
        for args in launches:
            for position, param in self._dynamic.items():
                args[position] = scalar_value(param, values)

    def run(self) -> None:
        assert self._now is not None  # bound by `__call__`
        self._has_loaded = False
        self._now.run()

    @property
    def again(self) -> Again | None:
        now = self._now
        # After a run that loads frozen rows, the next one probably loads others, as in an epoch of
        # minibatches. If it does not, it becomes known then.
        if now is None or not now.run.is_recorded or self._packed is None or self._has_loaded:
            return None
        self._known.add(now.run)
        values, changed = self.place.control.values, partial(self._scalars_changed, now)
        return now.run.again(self.program.number, values, self._packed, changed)

    def _scalars_changed(self, binding: Binding) -> None:
        """Marks the scalars of a binding as unknown, after compiled code has rewritten them."""
        binding.scalars = b""
        self._packed = None

    def contents_change(self) -> None:
        self._has_loaded = True
        for run in self._known:
            run.forget()
        self._known.clear()

    def forget_buffers(self) -> None:
        super().forget_buffers()
        self._let_go()

    def _let_go(self) -> None:
        self._bindings.drop_all()
        self._now = None
        self.written.clear()

    def _make_binding(
        self, values: tuple[Any, ...], scalars: bytes, *, in_line: bool, apart: bool = False
    ) -> Binding:
        """Returns steps for these values; if `apart`, without the gathers of rows of a line."""
        slices = self.slices(values, in_line=in_line)
        results = [
            (name, self._placed(param, values))
            for name, param in self.program.parameters
            if isinstance(param, Result)
        ]
        outputs: dict[object, OutputSteps] = {
            name: self._output(name, param, slices) for name, param in results
        }
        outputs |= variable_updates(self, slices, lift=True)
        parts: list[SliceSteps] = []
        launches, checks, gathers = [], [], []
        shows = self._shows(slices) if self.program.shows_slices else []
        for number, rows in enumerate(slices):
            moves = Moves(number, self.workspace.turns, outputs)
            arguments = [
                self.argument(name, param, rows, values, moves)
                for name, param in self.program.parameters
            ]
            moves.after += [step for output in outputs.values() for step in output.fold(rows)]
            moves.after += shows[number : number + 1]
            gathers += [] if moves.has_fixed_line else moves.in_line
            moves.loads += [] if apart else [line.gather.step for line in moves.in_line]
            extent = self._extent(rows, arguments)
            if self._launch.launches_nothing(extent):
                parts.append(moves.around())
            else:
                launches.append([self._kernel.convert(argument) for argument in arguments])
                parts.append(moves.around(self._bind_launch(extent, launches[-1])))
            checks += moves.checks
        before = [step for output in outputs.values() for step in output.before()]
        after = [step for output in outputs.values() for step in output.after()]
        steps = [*before, *self.workspace.in_order(parts), *after]
        return Binding(
            scalars, launches, Repetition(self.place.device, steps, checks, self._packing), gathers
        )

    def _shows(self, slices: Sequence[object]) -> list[Step]:
        """Returns steps that show how many slices are done, one for each slice, as copies that a
        device can record.
        """
        device, line = self.place.device, self.place.line
        counter = self.place.control.slices[line : line + 1]
        done = np.array(self.done_after(slices), np.int64)
        numbers = self.workspace.scratch(("progress", len(done)), done.dtype, done.shape)
        device.upload(numbers, done)()
        device.synchronize()  # it reads memory of the host
        return [
            device.download(counter, numbers[number : number + 1]) for number in range(len(done))
        ]

    def _extent(self, rows: SliceRows | None, arguments: Sequence[Any]) -> Extent:
        """Returns what a launch with these arguments works on."""
        pairs = zip(self.program.parameters, arguments, strict=True)
        shapes = {
            name: argument.shape for (name, param), argument in pairs if isinstance(param, ARRAYS)
        }
        return Extent.of(None if rows is None else rows.count, shapes, self.program.sized_by)

    def _bind_launch(self, extent: Extent, arguments: list[Any]) -> Step:
        grid, block = self._launch.resolve(*extent)
        bind = partial(
            self._kernel.bind, grid, block, self._launch.smem_bytes, arguments, tuple(self._dynamic)
        )
        if spans.active is None:
            return bind()
        return cast("Step", spans.active.run_one(bind, spans.COMPILE))

    def _placed(self, result: Result, values: tuple[Any, ...]) -> Result:
        """Returns the result with its segment in this call, if it is lent."""
        if result.lent is None or result.parts is None:
            return result
        return replace(
            result, parts=replace(result.parts, segment=values[result.lent - self.program.lent])
        )

    def _output(self, name: str, param: Result, slices: Sequence[SliceRows | None]) -> OutputSteps:
        shards = self.program.own_shards(self.place.rank)
        if param.op in reduction.LOCATING:
            return Locator(self, name, param, shards)
        if self.program.shards is None or param.parts is None or param.op == "gather":
            return Accumulator(self, name, param, slices)
        return ShardAccumulator(self, name, param, slices, shards)

    def total(self, name: str, dtype: Any, shape: Shape) -> Any:
        """Returns the array of an output that stays on the device, combined over slices; always
        the same memory.
        """
        return self.workspace.scratch((name, "total"), dtype, shape)

    def held(self, number: int, leaf: int) -> Any:
        """Returns the rank's array of a variable; a 0-d array with shape (1,), which a kernel
        can index.
        """
        array = super().held(number, leaf)
        return array if array.shape else array.reshape(1)


@final
class Accumulator(OutputSteps):
    """An output whose slices are combined into the rank's part, or gathered.

    With one slice, the kernel writes the rank's part directly if the dtypes agree. Otherwise each
    slice writes to scratch memory that starts at the op's identity, and is then folded into the
    part. If an output with the op None is not filled, slices write different elements, all directly
    to the part.
    """

    def __init__(
        self, routine: KernelRoutine, name: str, param: Result, slices: Sequence[SliceRows | None]
    ) -> None:
        self._routine = routine
        self._device = routine.place.device
        self._name = name
        self._param = param
        self._slices = slices
        self._rows = sum(rows.count for rows in slices if rows is not None)
        self._part = self._find_part()
        final_dtype = reduction.result_dtype(param.op, np.dtype(param.dtype))
        self._direct = len(slices) == 1 and final_dtype == np.dtype(param.dtype)
        self._shared = param.op is None and not param.filled
        self._total: Any = None
        self._stores: list[Step] = []  # copies of the total to the host
        if param.stays and not self._direct:
            self._total = routine.total(name, final_dtype, param.shape)
        elif self._part is not None and param.op != "gather" and not self._direct:
            slot = None if param.is_small else (name, "total")
            buffer = routine.workspace.output(slot, self._part)
            self._total = buffer.array
            self._stores = (
                [] if buffer.store is None else [self._device.download(self._part, buffer.array)]
            )
        self._scratch: Any = None

    def _find_part(self) -> Array | None:
        """Returns the host array of this rank's part, or for "gather" of the rows of all ranks;
        None if there is none.
        """
        param, place = self._param, self._routine.place
        if param.parts is None or param.stays:
            return None
        if param.is_small:
            memory = place.control.results[place.rank, param.parts.offset :]
            nbytes = (
                int(np.prod(param.shape, dtype=np.int64)) * np.dtype(param.parts.dtype).itemsize
            )
            return memory[:nbytes].view(param.parts.dtype).reshape(param.shape or (1,))
        host = place.host(param.parts)
        if param.op == "gather":
            return host
        return host[place.rank, ...].reshape(param.shape or (1,))  # a view, also of a number

    def before(self) -> list[Step]:
        if self._total is None or self._shared:
            return []
        op, total = self._param.op, self._total
        identity = reduction.identity("sum" if op == "mean" else op, total.dtype)
        return [self._device.fill(total, identity, private=self._param.is_small)]

    def array(self, rows: SliceRows | None, moves: Moves) -> Any:
        op, workspace = self._param.op, self._routine.workspace
        dtype = np.dtype(self._param.dtype)
        shape, slot, target = self._param.shape or (1,), (self._name, moves.turn), None
        if op == "gather":
            assert rows is not None  # the coordinator refuses "gather" without rows
            shape = (rows.count, *self._param.shape)
            target = None if self._part is None else self._part[rows.start : rows.stop]
        elif self._direct:
            target = self._part
        if self._shared and self._total is not None:
            array = self._total
        elif self._direct and self._param.stays:
            array = self._routine.total(self._name, dtype, shape)
        elif target is None:
            array = self._scratch = workspace.scratch(slot, dtype, shape)
        else:
            buffer = workspace.output(None if self._param.is_small else slot, target)
            array = buffer.array
            moves.stores += [] if buffer.store is None else [buffer.store]
        private = target is not None and self._param.is_small
        if self._param.filled:
            moves.before.append(
                self._device.fill(array, reduction.identity(op, dtype), private=private)
            )
        return array

    def fold(self, rows: SliceRows | None) -> list[Step]:
        if self._total is None or self._shared:
            return []
        return [
            self._device.accumulate(
                self._param.op, self._total, self._scratch, 1 if rows is None else rows.count
            )
        ]

    def after(self) -> list[Step]:
        if self._total is None:
            return []
        divides = self._param.op == "mean" and self._slices
        steps = [self._device.divide(self._total, self._rows or 1)] if divides else []
        return steps + self._stores


@final
class ShardAccumulator(OutputSteps):
    """An output whose shards are kept apart: line s of an array is shard s of this rank.

    All lines start at the op's identity, which remains for a shard without rows. If a shard is one
    slice, the kernel writes its line directly; several slices are folded into it.
    """

    def __init__(
        self,
        routine: KernelRoutine,
        name: str,
        param: Result,
        slices: Sequence[SliceRows | None],
        shards: tuple[int, int],
    ) -> None:
        assert param.parts is not None  # only requested outputs are kept apart
        self._routine = routine
        self._device = routine.place.device
        self._name = name
        self._param = param
        self._rows = [0] * (shards[1] - shards[0])
        for rows in slices:
            assert rows is not None  # the coordinator refuses shards without rows
            self._rows[rows.shard] += rows.count
        self._host = routine.place.host(param.parts)[slice(*shards)].reshape(
            shards[1] - shards[0], *(param.shape or (1,))
        )
        one_slice = routine.program.num_slices == 1 and np.dtype(param.parts.dtype) == np.dtype(
            param.dtype
        )
        self._direct = one_slice or (param.op is None and not param.filled)
        buffer = routine.workspace.output((name, "shards"), self._host)
        self._lines = buffer.array
        self._on_host = buffer.store is None
        self._scratch: Any = None

    def before(self) -> list[Step]:
        op = "sum" if self._param.op == "mean" else self._param.op
        return (
            [self._device.fill(self._lines, reduction.identity(op, self._lines.dtype))]
            if len(self._host)
            else []
        )

    def array(self, rows: SliceRows | None, moves: Moves) -> Any:
        assert rows is not None  # as above
        if self._direct:
            return self._lines[rows.shard]
        dtype, shape = np.dtype(self._param.dtype), self._param.shape or (1,)
        self._scratch = self._routine.workspace.scratch((self._name, moves.turn), dtype, shape)
        moves.before.append(
            self._device.fill(self._scratch, reduction.identity(self._param.op, dtype))
        )
        return self._scratch

    def fold(self, rows: SliceRows | None) -> list[Step]:
        assert rows is not None  # as above
        if self._direct:
            return []
        return [
            self._device.accumulate(
                self._param.op, self._lines[rows.shard], self._scratch, rows.count
            )
        ]

    def after(self) -> list[Step]:
        steps: list[Step] = []
        if self._param.op == "mean" and not self._direct:
            steps = [
                self._device.divide(self._lines[s], rows)
                for s, rows in enumerate(self._rows)
                if rows
            ]
        if len(self._host) and not self._on_host:
            steps.append(self._device.download(self._host, self._lines))
        return steps


@final
class Locator(OutputSteps):
    """An output with op "argmin" or "argmax": line s of two arrays, values and rows, is the best of
    shard s of this rank.

    The kernel writes one or more values for each row of a slice; the best so far is kept from slice
    to slice.
    """

    def __init__(
        self, routine: KernelRoutine, name: str, param: Result, shards: tuple[int, int]
    ) -> None:
        self._routine = routine
        self._device = routine.place.device
        self._name = name
        self._param = param
        self._scores: Any = None
        self._hosts: list[Array] = []
        if param.parts is None or param.rows is None:  # the caller did not request it
            return
        shape = shards[1] - shards[0], int(np.prod(param.shape, dtype=np.int64))
        self._hosts = [
            routine.place.host(array)[slice(*shards)].reshape(shape)
            for array in (param.parts, param.rows)
        ]
        # differ from the slots of the scores: (name, turn)
        slots = (
            (name, "values"),
            (name, "rows"),
        )
        buffers = [
            routine.workspace.output(slot, host)
            for slot, host in zip(slots, self._hosts, strict=True)
        ]
        self._best = [buffer.array for buffer in buffers]
        self._on_host = all(buffer.store is None for buffer in buffers)

    def before(self) -> list[Step]:
        if not self._hosts or not self._hosts[0].size:
            return []
        values, rows = self._best
        return [
            self._device.fill(values, reduction.identity(self._param.op, values.dtype)),
            self._device.fill(rows, np.int64(-1)),
        ]

    def array(self, rows: SliceRows | None, moves: Moves) -> Any:
        assert rows is not None  # the coordinator refuses "argmin" and "argmax" without rows
        dtype, shape = np.dtype(self._param.dtype), (rows.count, *self._param.shape)
        self._scores = self._routine.workspace.scratch((self._name, moves.turn), dtype, shape)
        moves.before.append(
            self._device.fill(self._scores, reduction.identity(self._param.op, dtype))
        )
        return self._scores

    def fold(self, rows: SliceRows | None) -> list[Step]:
        if not self._hosts or rows is None or not self._hosts[0].size:
            return []
        values, best_rows = self._best
        scores = self._scores.reshape(rows.count, values.shape[1])
        return list(
            self._device.locate(
                self._param.op, values[rows.shard], best_rows[rows.shard], scores, rows.start
            )
        )

    def after(self) -> list[Step]:
        if not self._hosts or not self._hosts[0].size or self._on_host:
            return []
        return [
            self._device.download(host, best)
            for host, best in zip(self._hosts, self._best, strict=True)
        ]
