"""Routine for kernels: buffers, launches, and outputs combined over slices.

    loads → fill outputs with the identity → launch → stores → fold into the rank's part           once per slice

`KernelRoutine` keeps the steps of each selection of rows. A subclass of `OutputSteps` for each kind
of output creates the steps around the launches.
"""  # noqa: E501

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast, final

import numpy as np

from synknumba._device import DeviceKernel, LineRows, SliceSteps, Step
from synknumba._host.lent_results import MOST_PLACES
from synknumba._ops.launch import Extent, LaunchConfig
from synknumba._rank import spans
from synknumba._rank.outputs import result_output, variable_updates
from synknumba._rank.replay import Repetition
from synknumba._rank.routine import Moves, Outputs, Place, Routine, SliceRows, scalar_value
from synknumba._types import Cache, CallValues
from synknumba._wire.program import ARRAYS, Dynamic, Program, Result
from synknumba._wire.relaunch import Again, Scalar, ScalarPacking

# row selections whose steps are kept; enough for an epoch of minibatches in most scripts
BINDINGS_KEPT = 512


@dataclass(slots=True)
class Binding:
    """The steps for one selection of rows."""

    scalars: bytes  # those that the launches' arguments contain now; empty if unknown
    launches: list[list[Any]]  # arguments of each launch, updated in place
    run: Repetition
    in_line: Sequence[LineRows] = ()  # if the rows are those of a line that may change
    line: int | None = None  # whose rows they are, if that is known


def _is_rewritable(param: Dynamic) -> bool:
    """Returns whether compiled code can write a scalar among the arguments of a launch."""
    if param.is_complex:
        return False
    return param.dtype is None or np.dtype(param.dtype).name in {"int64", "float64", "float32"}


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
        limit = BINDINGS_KEPT
        if program.lent:
            limit *= MOST_PLACES
        self._bindings: Cache[tuple[Any, ...], Binding] = Cache(limit, partial(_close, self._known))
        # the scalars of a call, by position among the launches' arguments
        self.dynamic = {
            position: param
            for position, (_, param) in enumerate(program.parameters)
            if isinstance(param, Dynamic)
        }
        first = {position: param.index for position, param in self.dynamic.items()}
        self._packing = ScalarPacking(program.values, self.scalar_bytes, first)

    def bind(self, values: CallValues, scalars: bytes) -> None:
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
                for position, param in self.dynamic.items():
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
            values, packed[: self.scalar_bytes], in_line=in_line, apart=True
        )
        if self.workspace.replaced != replaced:  # as in `bind`
            self._let_go()
            self._packed = None
        return binding

    def dynamic_at(self, offset: int) -> Iterator[tuple[int, Dynamic]]:
        """Yields positions and parameters of the scalar at an offset among the packed values."""
        for position, param in self.dynamic.items():
            if struct.calcsize("<" + self.program.values[: param.index]) == offset:
                yield position, param

    def places_of(self, offset: int, among: Sequence[Scalar]) -> list[Scalar]:
        """Returns the places that have the scalar at an offset among the packed values, if
        compiled code can write it there.
        """
        positions = {
            position for position, param in self.dynamic_at(offset) if _is_rewritable(param)
        }
        return [place for place in among if place.position in positions]

    def change_scalars(self, launches: Sequence[list[Any]], packed: bytes) -> None:
        """Replaces the scalars among the arguments of launches by those of packed values."""
        values = self._unpack(packed)
        for args in launches:
            for position, param in self.dynamic.items():
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
        self, values: CallValues, scalars: bytes, *, in_line: bool, apart: bool = False
    ) -> Binding:
        """Returns steps for these values; if `apart`, without the gathers of rows of a line."""
        slices = self.slices(values, in_line=in_line)
        by_slot = variable_updates(self, slices)
        for name, param in self.program.parameters:
            if isinstance(param, Result):
                by_slot[name] = result_output(self, self._placed(param, values), slices)
        outputs = Outputs(by_slot)
        parts: list[SliceSteps] = []
        launches, checks, gathers, shows = [], [], [], list[Step]()
        if self.program.shows_slices:
            shows = self._shows(slices)
        for number, rows in enumerate(slices):
            moves = Moves(number, self.workspace.turns, outputs)
            arguments = [
                self.argument(name, param, rows, values, moves)
                for name, param in self.program.parameters
            ]
            moves.after += [*outputs.fold(rows), *shows[number : number + 1]]
            if not moves.has_fixed_line:
                gathers += moves.in_line
            if not apart:
                moves.loads += [line.gather.step for line in moves.in_line]
            work: list[Step] = []
            extent = self._extent(rows, arguments)
            if not self._launch.launches_nothing(extent):
                launches.append([self._kernel.convert(argument) for argument in arguments])
                work.append(self._bind_launch(extent, launches[-1]))
            parts.append(moves.around(*work))
            checks += moves.checks
        steps = [*outputs.before, *self.workspace.in_order(parts), *outputs.after]
        run = Repetition(self.place.device, steps, checks, self._packing)
        return Binding(scalars, launches, run, gathers)

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
        return Extent.of(None if rows is None else rows.count, shapes, self.program.kernel.sized_by)

    def _bind_launch(self, extent: Extent, arguments: list[Any]) -> Step:
        grid, block = self._launch.resolve(*extent)
        bind = partial(
            self._kernel.bind, grid, block, self._launch.smem_bytes, arguments, tuple(self.dynamic)
        )
        return cast("Step", spans.run_one(bind, spans.COMPILE))

    def _placed(self, result: Result, values: CallValues) -> Result:
        """Returns the result with its segment in this call, if it is lent."""
        if result.lent is None or result.parts is None:
            return result
        return replace(
            result, parts=replace(result.parts, segment=values[result.lent - self.program.lent])
        )

    def held(self, number: int, leaf: int) -> Any:
        """Returns the rank's array of a variable; a 0-d array with shape (1,), which a kernel
        can index.
        """
        array = super().held(number, leaf)
        return array if array.shape else array.reshape(1)
