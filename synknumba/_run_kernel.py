"""How a rank runs a kernel: buffers, launches, and outputs that are put together over slices.

loads → fill outputs with the identity → launch → stores → fold into the rank's part           once a slice
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import numpy as np

from synknumba import _reduction
from synknumba._launch import LaunchConfig
from synknumba._program import Dynamic, Program, Result
from synknumba._routine import Moves, Place, Routine, SliceRows, scalar_value
from synknumba._run_update import Updates
from synknumba._types import Array
from synknumba.device import DeviceKernel, Step

BINDINGS_KEPT = 64  # selections of rows whose buffers are kept: an epoch of minibatches, for most


@dataclass(slots=True)
class Binding:
    """The steps for one selection of rows, and the arguments of their launches as they are for one set of scalars."""

    values: tuple[Any, ...]
    scalars: bytes
    steps: list[Step] = field(default_factory=list)
    launches: list[list[Any]] = field(default_factory=list)


@final
class KernelRoutine(Routine):
    """A Numba CUDA kernel: launched once a slice, results in output parameters."""

    def __init__(self, program: Program, place: Place, kernel: DeviceKernel, launch: LaunchConfig) -> None:
        super().__init__(program, place)
        self._kernel = kernel
        self._launch = launch
        self._steps: list[Step] = []
        self._kept: dict[tuple[Any, ...], Binding] = {}
        self._dynamic = [
            (position, param) for position, (_, param) in enumerate(program.parameters) if isinstance(param, Dynamic)
        ]

    def bind(self, values: tuple[Any, ...], scalars: bytes) -> None:
        rows = values[self._row_values :]
        binding = self._kept.get(rows)
        if binding is None:
            if len(self._kept) >= BINDINGS_KEPT:
                self._kept.clear()
            binding = self._kept[rows] = self._make_binding(values, scalars)
        elif binding.scalars != scalars:
            self._change_scalars(binding, values)
            binding.scalars = scalars
        self._steps = binding.steps

    def run(self) -> None:
        for step in self._steps:
            step()

    def forget_buffers(self) -> None:
        super().forget_buffers()
        self._kept.clear()
        self._steps = []

    def _change_scalars(self, binding: Binding, values: tuple[Any, ...]) -> None:
        for args in binding.launches:
            for position, param in self._dynamic:
                args[position] = scalar_value(param, values)
        binding.values = values

    def _make_binding(self, values: tuple[Any, ...], scalars: bytes) -> Binding:
        slices = self.slices(values)
        outputs = {
            name: Accumulator(self, name, param, slices) for name, param in self.program.parameters if isinstance(param, Result)
        }
        updates = Updates(self, slices, lift=True)
        binding = Binding(values, scalars)
        for output in outputs.values():
            binding.steps += output.before()
        binding.steps += updates.before()
        for rows in slices:
            self._add_slice(binding, rows, outputs, updates)
        for output in outputs.values():
            binding.steps += output.after()
        binding.steps += updates.after()
        if self.place.device.kind != "cpu":
            binding.steps.append(self.place.device.synchronize)
        return binding

    def _add_slice(
        self, binding: Binding, rows: SliceRows | None, outputs: "Mapping[str, Accumulator]", updates: Updates
    ) -> None:
        moves = Moves(updates)
        args = []
        for name, param in self.program.parameters:
            if name in outputs:
                arg = outputs[name].array(rows, moves)
            else:
                arg = self.argument(name, param, rows, binding.values, moves)
            args.append(self._kernel.convert(arg))
        binding.steps += moves.loads
        binding.steps.append(self._launch_step(args, rows))
        binding.launches.append(args)
        binding.steps += moves.stores
        for output in outputs.values():
            binding.steps += output.fold(rows)
        binding.steps += updates.fold()

    def held(self, number: int, leaf: int) -> Any:
        """Kernels see a 0-d array as one of shape (1,), which they can index."""
        array = super().held(number, leaf)
        return array if array.shape else array.reshape(1)

    def _launch_step(self, args: list[Any], rows: SliceRows | None) -> Step:
        """A step that launches with what is in the list when it runs."""
        grid, block = self._launch.resolve(None if rows is None else rows.count)
        launch = self._kernel.bind(grid, block, self._launch.smem_bytes, tuple(args))
        return (lambda: launch(*args)) if self._dynamic else partial(launch, *args)


class Accumulator:
    """One output of a kernel on one rank: its buffer for each slice, and how slices are put together.

    Where there is one slice the kernel writes into the rank's part directly. With several, each writes into scratch memory that
    starts at the op's identity, and is folded into the part on the host.
    """

    def __init__(self, routine: KernelRoutine, name: str, param: Result, slices: Sequence[SliceRows | None]) -> None:
        self._routine = routine
        self._device = routine.place.device
        self._name = name
        self._param = param
        self._slices = slices
        self._rows = sum(rows.count for rows in slices if rows is not None)
        self._part = self._find_part()
        final_dtype = _reduction.result_dtype(param.op, np.dtype(param.dtype))
        self._direct = len(slices) == 1 and final_dtype == np.dtype(param.dtype)
        self._scratch: Any = None

    def _find_part(self) -> Array | None:
        """This rank's part of the result, or for "gather" the rows of all ranks."""
        param, place = self._param, self._routine.place
        if param.parts is None:
            return None
        if param.in_control:
            memory = place.control.results[place.rank, param.parts.offset :]
            nbytes = int(np.prod(param.shape, dtype=np.int64)) * np.dtype(param.parts.dtype).itemsize
            return memory[:nbytes].view(param.parts.dtype).reshape(param.shape or (1,))
        host = place.host(param.parts)
        if param.op == "gather":
            return host
        return host[place.rank].reshape(param.shape or (1,))

    def before(self) -> list[Step]:
        """Steps before the first slice."""
        if self._part is None or self._param.op == "gather" or self._direct:
            return []
        op = self._param.op
        return [_fill(self._part, _reduction.identity("sum" if op == "mean" else op, self._part.dtype))]

    def array(self, rows: SliceRows | None, moves: Moves) -> Any:
        """What the kernel writes into for one slice."""
        op, workspace = self._param.op, self._routine.workspace
        dtype = np.dtype(self._param.dtype)
        if op == "gather":
            assert rows is not None  # noqa: S101  # the coordinator refuses to gather where there are no rows
            shape = (rows.count, *self._param.shape)
        else:
            shape = self._param.shape or (1,)
        target = None
        if op == "gather" and self._part is not None:
            assert rows is not None  # noqa: S101
            target = self._part[rows.start : rows.stop]
        elif self._direct:
            target = self._part
        if target is None:
            array = self._scratch = workspace.scratch(self._name, dtype, shape)
        else:
            buffer = workspace.output(self._name, target)
            array = buffer.array
            moves.add(None, buffer.store)
        moves.loads.append(self._device.fill(array, _reduction.identity(op, dtype)))
        return array

    def fold(self, rows: SliceRows | None) -> list[Step]:
        """Steps after a slice."""
        if self._part is None or self._param.op == "gather" or self._direct:
            return []
        op, part_, scratch, device = self._param.op, self._part, self._scratch, self._device
        weight = 1 if rows is None else rows.count
        return [lambda: _reduction.accumulate(op, part_, device.to_host(scratch), weight)]

    def after(self) -> list[Step]:
        """Steps after the last slice: a mean's weighted sum becomes the rank's mean."""
        if self._part is None or self._direct or self._param.op != "mean" or not self._slices:
            return []
        part_, weight = self._part, self._rows or 1
        return [lambda: np.divide(part_, weight, out=part_)]


def _fill(array: Array, value: Any) -> Step:
    return lambda: array.fill(value)
