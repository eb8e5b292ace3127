"""The gradient of a training step: what ranks call for it, and its check in the script."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from synknumba import simt
from synknumba._api import function, parallel
from synknumba._call.arguments import IndexRange
from synknumba._call.distribute import Distributed
from synknumba._call.function import Function
from synknumba._device.compilers import KERNEL_DECORATORS
from synknumba._errors import ArgumentError
from synknumba._learning.gradient_check import SampledRows, check_gradient
from synknumba._learning.gradient_sums import (
    add_sums,
    add_weights,
    checked,
    clear,
    count_indices,
    count_rows,
    count_sliceable,
    sum_of_weights,
)
from synknumba._learning.roles import read_roles
from synknumba._learning.step_inputs import StepInputs
from synknumba._ops.launch import LaunchConfig
from synknumba._ops.tree import LEAF, Structure, paths, unflatten
from synknumba._ops.tree import flatten as take_apart
from synknumba._rowwise.generate import define
from synknumba._types import Array, Block, Grid, class_text
from synknumba._variables.variable import Variable, state_of, vector_of
from synknumba._world.open_world import current_world


def check_is_function(gradient: object) -> None:
    """Raises `ArgumentError` for what is neither a function nor a kernel."""
    if not callable(gradient) and type(gradient).__name__ not in KERNEL_DECORATORS:
        raise ArgumentError(
            f"train.step needs a gradient, a function or a kernel, before the parameters; got "
            f"{class_text(gradient)}"
        )


@final
class Gradient:
    """The gradient that a script gives: a function or a kernel.

    Attributes:
        roles: of its parameters.
    """

    def __init__(
        self,
        gradient: Any,
        params: Variable,
        inputs: tuple[str, ...] | None,
        broadcast: tuple[str, ...],
        sliceable: tuple[str, ...],
        weights: str | None,
        block: Block | None,
        grid: Grid,
    ) -> None:
        if isinstance(gradient, Function | Distributed):
            raise ArgumentError("train.step takes the gradient undecorated: it decorates it itself")
        is_kernel = type(gradient).__name__ in KERNEL_DECORATORS
        if not is_kernel and (block is not None or grid is not None):
            raise ArgumentError(
                "block= and grid= are those of a kernel, and the gradient is a "
                "function; decorate it by cuda.jit"
            )
        self._function = gradient
        self._block, self._grid = block, grid
        self.roles = read_roles(
            getattr(gradient, "py_func", gradient),
            state_of(params).structure(),
            inputs,
            is_kernel=is_kernel,
            broadcast=broadcast,
            sliceable=sliceable,
            weights=weights,
        )

    @property
    def name(self) -> str:
        """Name for messages and timelines."""
        return self.roles.name

    # ---- check

    def check(self, inputs: StepInputs, rows: Any, params: Any) -> None:
        """Tries the gradient out with rows of the inputs, None for the first; see
        `TrainFunction.check`.
        """
        numbers = None
        if rows is not None:
            numbers = inputs.selected(rows)
        sample = SampledRows(inputs, numbers, current_world().world_size)
        if not sample.count:
            raise ArgumentError(
                f"step.check compares {self.name} of some rows with that of their "
                f"halves, and needs two rows"
            )
        leaves, structure = take_apart(params)
        # The check of races is made once; without its shadow memory a kernel is faster.
        runners = itertools.chain([simt.check], itertools.repeat(simt.debug))

        def evaluate(positions: Array, leaves: Sequence[Array]) -> list[Array]:
            batch = sample.rows(positions)
            if self.roles.is_kernel:
                return self._run_kernel(next(runners), batch, len(positions), leaves)
            return self._call_function(batch, len(positions), leaves, structure)

        names = [f"params{path}" for path in paths(structure)]
        arrays = [np.asarray(leaf) for leaf in leaves]
        check_gradient(evaluate, sample.count, arrays, names, self.name)

    def _call_function(
        self, batch: list[Any], rows: int, leaves: Sequence[Array], structure: Structure
    ) -> list[Array]:
        """Returns what the function does, as arrays: the loss, slopes and the count."""
        params, count = unflatten(structure, [leaf.copy() for leaf in leaves]), None
        if not self.roles.params.spreads:
            params = (params,)
        returned = self._function(*batch, *params)
        if self.roles.weights is not None:
            count = sum_of_weights(batch[self.roles.counted])
        targets = [*leaves, np.zeros(()), np.zeros(())]
        values = checked(returned, structure, targets, rows, count)
        *slopes, loss, count = map(np.asarray, values)
        return [loss, *slopes, count]

    def _run_kernel(
        self, runner: Callable[..., Any], batch: list[Any], rows: int, leaves: Sequence[Array]
    ) -> list[Array]:
        """Runs the kernel in a simulator; returns the loss, slopes and a count of 0."""
        shapes = {}
        for name, array in zip(self.roles.inputs, batch, strict=True):
            if isinstance(array, np.ndarray):
                shapes[name] = array.shape
        source = next((name for name in self.roles.divided if name in shapes), None)
        grid, block = LaunchConfig(self._block, self._grid).resolve(rows, shapes, source)
        params = [leaf.reshape(leaf.shape or (1,)).copy() for leaf in leaves]
        loss, slopes = np.zeros(1, params[0].dtype), [np.zeros_like(param) for param in params]
        runner(self._function)[grid, block](*batch, *params, loss, *slopes)
        shaped = [slope.reshape(leaf.shape) for slope, leaf in zip(slopes, leaves, strict=True)]
        return [loss.reshape(()), *shaped, np.zeros(())]

    # ---- on the ranks

    def step(self, *, record: bool, clears: bool, num_slices: int) -> Callable[..., None]:
        """Returns what a step does until the sums of a rank's rows are there: a function of
        batch, params, sums and rows.
        """
        if self.roles.is_kernel:
            return self._by_kernel(record=record, num_slices=num_slices)
        return self._by_function(record=record, clears=clears, num_slices=num_slices)

    def _by_function(self, *, record: bool, clears: bool, num_slices: int) -> Callable[..., None]:
        roles = self.roles
        names, (params, sums) = ", ".join(roles.inputs), roles.free("params", "sums")
        first, weights = roles.inputs.index(roles.divided[0]), None
        if roles.weights is not None:
            weights = roles.counted
        how = f"{first}, {weights}, {roles.params.spreads}, {num_slices > 1}"
        text = (
            f"def {self.name}({names}, {params}, {sums}):\n    synk_add(synk_gradient, "
            f"({names},), {params}, {sums}, {how})\n"
        )
        scope = {"__name__": __name__, "synk_add": add_sums, "synk_gradient": self._function}
        call = function(
            define(text, self.name, self.name, scope),
            broadcast=roles.broadcast,
            rows=roles.sliceable,
            record=record,
            name=self.name,
        )

        def step(batch: tuple[Any, ...], params: Any, sums: Any, rows: Any) -> None:
            if clears:
                clear()(vector_of(sums))
            call(*batch, params, sums, **_options(rows, num_slices))

        return step

    def _by_kernel(self, *, record: bool, num_slices: int) -> Callable[..., None]:
        roles, counted = self.roles, self.roles.counted
        kernel: Any = parallel(
            self._function,
            broadcast=roles.broadcast,
            rows=roles.sliceable,
            name=self.name,
            block=self._block,
            grid=self._grid,
        )
        count, sliceable = count_rows, frozenset[str]()
        if roles.inputs[counted] in roles.sliceable:
            count, sliceable = count_sliceable, frozenset({"x"})
        if roles.weights is not None:
            count = function(
                add_weights, rows=sliceable, record=record, name=f"weights of {self.name}"
            )

        def step(batch: tuple[Any, ...], params: Any, sums: Any, rows: Any) -> None:
            options = _options(rows, num_slices)
            clear()(vector_of(sums))
            kernel(*batch, *_leaves(params), sums["loss"], *_leaves(sums["gradient"]), **options)
            counts = count_indices if isinstance(batch[counted], IndexRange) else count
            counts(batch[counted], sums["count"], **options)

        return step


def _options(rows: Any, num_slices: int) -> dict[str, Any]:
    """Returns the options of a call for the rows of a step; None for all rows."""
    options: dict[str, Any] = {}
    if rows is not None:
        options["batch"] = rows
    if num_slices > 1:
        options["num_slices"] = num_slices
    return options


def _leaves(branch: Any) -> list[Any]:
    """Returns the arrays of a variable, or of a part of it, as arguments."""
    structure = state_of(branch).structure() if isinstance(branch, Variable) else branch.structure
    if structure == LEAF:
        return [branch]
    keys = structure[1] if structure[0] == "dict" else range(len(structure[-1]))
    return [leaf for key in keys for leaf in _leaves(branch[key])]
