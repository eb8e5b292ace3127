"""Optimisers as pure functions: `init` makes a state, `update` turns a gradient into a step of the
parameters.

    gradient ──rule──rule──rule──> step        each with its own arrays of state, and the numbers of this step
        numbers: learning rate, corrections; functions of how many steps were made

A rule works on one element, with operators and the functions below alone. NumPy and CuPy apply the
same rule to whole arrays, and the ranks to a vector of all parameters, in one kernel
(`updater.py`).
"""  # noqa: E501

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import numpy as np

from synknumba._errors import ArgumentError, DataError
from synknumba._host.casting import as_index
from synknumba._host.data import Data
from synknumba._ops.tree import Structure, describe, flatten, parts_like, paths, unflatten
from synknumba._types import Shape
from synknumba._variables.variable import Variable

Numbers = Callable[[float], tuple[float, ...]]
"""The numbers of a rule at the step after so many steps."""


@final
@dataclass(frozen=True, slots=True)
class Slot:
    """Arrays of state, like the parameters.

    Attributes:
        name: name in the state.
        init: their first value: a number, "params", or a function of the tree of parameters.
        is_constant: whether rules only read them, and return no new value.
    """

    name: str
    init: Any = 0.0
    is_constant: bool = False


@final
@dataclass(frozen=True, slots=True)
class Transform:
    """One part of an optimiser.

    Attributes:
        rule: (step, parameter, *slots, *numbers) → step, or (step, *slots) if it has any that
            change.
        numbers: see `Numbers`.
        slots: state of the rule.
        needs_norm: whether the Euclidean norm of the step, over all parameters, is the last of the
            numbers.
        goes_up: whether its step is the gradient, more or less, without a learning rate: added to
            parameters, it goes uphill.
    """

    rule: Callable[..., Any]
    numbers: Numbers
    slots: tuple[Slot, ...] = ()
    needs_norm: bool = False
    goes_up: bool = False

    @property
    def changing(self) -> list[Slot]:
        """Slots that get a new value at each step."""
        return [slot for slot in self.slots if not slot.is_constant]


class State(NamedTuple):
    """The state of an optimiser.

    Attributes:
        steps: steps made.
        parts: of each transform, its arrays by name.
        waiting: gradients since the last step, with `accumulate`.
        gathered: their mean; None without `accumulate`.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> state = synk.optim.momentum(0.1).init(np.zeros(2))
        >>> state.steps, state.parts[0]
        (0, {'velocity': array([0., 0.])})
    """

    steps: int
    parts: tuple[dict[str, Any], ...]
    waiting: int = 0
    gathered: Any = None


@final
@dataclass(frozen=True)  # with slots, assigning to what is no field fails in dataclasses' own code
class Optimizer:
    """A pair of pure functions, `init` and `update`. Made by the functions of `synknumba.optim`.

    Attributes:
        transforms: its parts, in the order in which the gradient passes through them.
        every: number of gradients for one step.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> optimizer = synk.optim.sgd(0.5)
        >>> w = np.array([2.0, 4.0])
        >>> state = optimizer.init(w)
        >>> step, state = optimizer.update(2 * w, state, w)  # the gradient of w · w
        >>> step
        array([-2., -4.])
    """

    transforms: tuple[Transform, ...]
    every: int = 1

    def init(self, params: Any) -> State:
        """Returns the state before the first step.

        Args:
            params: NumPy or CuPy array, or a nested dict, list or tuple of arrays.

        Raises:
            ArgumentError: `params` are a `Data` or a variable: see `updater`.
        """
        leaves, structure = _parameters(params)
        parts: list[dict[str, Any]] = []
        for transform in self.transforms:
            parts.append({})
            for slot in transform.slots:
                parts[-1][slot.name] = unflatten(structure, _first(slot, params, leaves))
        gathered = None
        if self.every > 1:
            gathered = unflatten(structure, _zeros(leaves))
        return State(0, tuple(parts), 0, gathered)

    def update(self, gradient: Any, state: State, params: Any) -> tuple[Any, State]:
        """Returns the step, to be added to the parameters, and the new state.

        Args:
            gradient: of the loss, with the structure, shapes and dtypes of the parameters.
            state: from `init`, or from the last `update`.
            params: the parameters.

        Raises:
            DataError: the gradient has another structure or shape than the parameters.
        """
        leaves, structure = _parameters(params)
        steps = _gradient(gradient, leaves, structure)
        if not self._fits(state, [*map(np.shape, leaves)], structure):
            raise DataError(
                f"the state is not one that init of {self!r} has made for such parameters"
            )
        if self.every == 1:
            steps, parts = self._passed(steps, state, leaves, structure)
            return unflatten(structure, steps), State(state.steps + 1, parts)
        weight = 1.0 / (state.waiting + 1)
        means = flatten(state.gathered)[0]
        gathered = [mean + (step - mean) * weight for mean, step in zip(means, steps, strict=True)]
        zeros = unflatten(structure, _zeros(leaves))
        if state.waiting + 1 < self.every:
            waiting = state.waiting + 1
            return zeros, state._replace(waiting=waiting, gathered=unflatten(structure, gathered))
        steps, parts = self._passed(gathered, state, leaves, structure)
        return unflatten(structure, steps), State(state.steps + 1, parts, 0, zeros)

    def _fits(self, state: State, shapes: list[Shape], structure: Structure) -> bool:
        """Returns whether a state is of this optimiser, and of parameters with these shapes."""
        parts, trees = getattr(state, "parts", ()), []
        if len(parts) != len(self.transforms):
            return False
        for transform, part in zip(self.transforms, parts, strict=True):
            if {*part} != {slot.name for slot in transform.slots}:
                return False
            trees += part.values()
        if (self.every > 1) != (state.gathered is not None):
            return False
        if self.every > 1:
            trees.append(state.gathered)
        for tree in trees:
            arrays = parts_like(structure, tree)
            if arrays is None or [*map(np.shape, arrays)] != shapes:
                return False
        return True

    @property
    def keeps_average(self) -> bool:
        """Whether a part is a moving average of the parameters."""
        return any(slot.name == "average" for part in self.transforms for slot in part.slots)

    def _passed(
        self, steps: list[Any], state: State, params: list[Any], structure: Structure
    ) -> tuple[list[Any], tuple[dict[str, Any], ...]]:
        parts = []
        for transform, part in zip(self.transforms, state.parts, strict=True):
            # NumPy's float64 would make float32 so
            numbers = tuple(map(float, transform.numbers(float(state.steps))))
            if transform.needs_norm:
                numbers = (*numbers, global_norm(steps))
            slots = [flatten(part[slot.name])[0] for slot in transform.slots]
            new_steps = []
            new_slots: list[list[Any]] = [[] for _ in transform.changing]
            for step, *values in zip(steps, params, *slots, strict=True):
                new_step, changed = _applied(transform, step, *values, numbers=numbers)
                new_steps.append(new_step)
                for arrays, array in zip(new_slots, changed, strict=True):
                    arrays.append(array)
            new_part = {**part}
            for slot, arrays in zip(transform.changing, new_slots, strict=True):
                new_part[slot.name] = unflatten(structure, arrays)
            steps = new_steps
            parts.append(new_part)
        return steps, tuple(parts)

    def __repr__(self) -> str:
        """Shows the parts by name."""
        text = ", ".join(transform.rule.__name__ for transform in self.transforms)
        if self.every > 1:
            text += f", a step every {self.every} gradients"
        return f"<Optimizer {text}>"


def _applied(
    transform: Transform, step: Any, *values: Any, numbers: Sequence[float]
) -> tuple[Any, tuple[Any, ...]]:
    """Returns the new step and slots of one array."""
    result = transform.rule(step, *values, *numbers)
    if not transform.changing:
        return result, ()
    step, slots = result[0], result[1:]
    if any(step is slot for slot in slots):
        step = step.copy()  # the caller may change it in place
    return step, slots


def chain(*optimizers: Optimizer) -> Optimizer:
    """Joins optimisers: the step of each is the gradient of the next.

    Args:
        optimizers: such as `clip_by_global_norm(1.0)` and `adam(1e-3)`. One that has `accumulate`
            must be the only one.

    Raises:
        ArgumentError: there is none, or one is no optimiser.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> clipped = synk.optim.chain(synk.optim.clip_by_global_norm(1.0), synk.optim.sgd(0.5))
        >>> w = np.array([3.0, 4.0])
        >>> step, state = clipped.update(w, clipped.init(w), w)
        >>> step
        array([-0.3, -0.4])
    """
    if not optimizers:
        raise ArgumentError(
            "chain needs optimisers, as in chain(clip_by_global_norm(1.0), adam(1e-3)); got none"
        )
    if isinstance(optimizers[0], list | tuple):
        raise ArgumentError(
            "chain takes each optimiser as an argument of its own; write "
            "chain(*optimizers) of a list"
        )
    for optimizer in optimizers:
        check_optimizer("chain", optimizer)
        if optimizer.every > 1 and len(optimizers) > 1:
            raise ArgumentError(
                "chain got an optimiser that accumulates gradients; write "
                "accumulate(chain(…), steps=…)"
            )
        if optimizer.keeps_average and optimizer is not optimizers[-1]:
            raise ArgumentError(
                "chain got averaged(…) before another part, which changes the step; "
                "write averaged(chain(…))"
            )
    if len(optimizers) == 1:
        return optimizers[0]
    return Optimizer(tuple(part for optimizer in optimizers for part in optimizer.transforms))


def accumulate(optimizer: Optimizer, steps: int) -> Optimizer:
    """Makes one step of several gradients: of their mean, at the last of them; at the others the
    parameters stay.

    It is optax's `MultiSteps`.

    Args:
        optimizer: gets the mean.
        steps: number of gradients.

    Raises:
        ArgumentError: `steps` is not a positive int, or `optimizer` accumulates already.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> optimizer = synk.optim.accumulate(synk.optim.sgd(1.0), 2)
        >>> w, state = np.zeros(2), optimizer.init(np.zeros(2))
        >>> for gradient in (np.array([1.0, 2.0]), np.array([3.0, 4.0])):
        ...     step, state = optimizer.update(gradient, state, w)
        ...     w = synk.optim.apply_updates(w, step)
        ...     print(w)
        [0. 0.]
        [-2. -3.]
    """
    check_optimizer("accumulate", optimizer)
    every = as_index(steps)
    if every < 1:
        raise ArgumentError(f"accumulate needs steps as a positive int, got {steps!r}")
    if optimizer.every > 1:
        raise ArgumentError(
            "accumulate got an optimiser that accumulates already; multiply their steps"
        )
    return replace(optimizer, every=every)


def apply_updates(params: Any, step: Any) -> Any:
    """Returns the parameters with a step of `Optimizer.update` added.

    Args:
        params: array, number, or nested dict, list or tuple of these.
        step: the step, in the structure of `params`.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> synk.optim.apply_updates({"w": np.ones(2)}, {"w": np.array([0.5, -0.5])})
        {'w': array([1.5, 0.5])}
    """
    leaves, structure = _parameters(params)
    steps = _gradient(step, leaves, structure, "the step")
    return unflatten(structure, [leaf + more for leaf, more in zip(leaves, steps, strict=True)])


def global_norm(leaves: Any) -> Any:
    """Returns the Euclidean norm of all elements of a tree of arrays.

    Args:
        leaves: array, or nested dict, list or tuple of arrays.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> synk.optim.global_norm({"w": np.array([3.0, 0.0]), "b": np.array(4.0)})
        5.0
    """
    squares = 0.0
    for leaf in flatten(leaves)[0]:
        squares += float((leaf.astype(np.float64, copy=False) ** 2).sum())
    return math.sqrt(squares)


def check_optimizer(what: str, optimizer: Any) -> None:
    """Raises `ArgumentError` for what is no optimiser."""
    if isinstance(optimizer, Optimizer):
        return
    hint = ""
    if callable(optimizer):
        hint = "; call it, as in adam(1e-3)"
    raise ArgumentError(
        f"{what} needs an optimiser of synk.optim, such as adam(1e-3); got {optimizer!r}{hint}"
    )


def check_descends(what: str, optimizer: Optimizer) -> None:
    """Raises `ArgumentError` for an optimiser of which no part takes a learning rate."""
    if all(part.goes_up for part in optimizer.transforms):
        raise ArgumentError(
            f"{what} got {optimizer!r}, of which no part takes a learning rate: it would add the "
            "gradient, and go uphill; write chain(…, sgd(0.1)) with it"
        )


def _parameters(params: Any) -> tuple[list[Any], Structure]:
    leaves, structure = flatten(params)
    arrays = []
    for path, leaf in zip(paths(structure), leaves, strict=True):
        if isinstance(leaf, Variable):
            raise ArgumentError(
                f"params{path} is a Variable: init and update are functions of arrays. For "
                "variables on the ranks use synk.train.step, or optimizer's "
                "synk.optim.updater(optimizer, params, gradient)"
            )
        if isinstance(leaf, Data):
            raise ArgumentError(
                f"params{path} is a Data: init and update return new arrays; pass its "
                f"array, {path or 'x'}.data"
            )
        array = _as_array(leaf)
        if array.dtype.kind != "f":
            raise DataError(
                f"params{path} has dtype {array.dtype}; optimisers take floats: "
                f"convert it, as by astype(float)"
            )
        arrays.append(array)
    return arrays, structure


def _as_array(leaf: Any) -> Any:
    """Returns an array, also of another library, or a number as an array."""
    return leaf if hasattr(leaf, "dtype") else np.asarray(leaf)


def _gradient(
    gradient: Any, params: Sequence[Any], structure: Structure, what: str = "the gradient"
) -> list[Any]:
    leaves = parts_like(structure, gradient)
    if leaves is None:
        raise DataError(
            f"{what} is {describe(flatten(gradient)[1])}, but the parameters "
            f"are {describe(structure)}"
        )
    arrays = []
    for path, leaf, param in zip(paths(structure), leaves, params, strict=True):
        array = _as_array(leaf)
        if np.shape(array) != np.shape(param):
            raise DataError(
                f"{what}{path} has shape {np.shape(array)}, but the parameter has {np.shape(param)}"
            )
        if array.dtype.kind not in "fiub":
            raise DataError(f"{what}{path} must be of real numbers, got {array.dtype}")
        # A gradient of float64 would make parameters of float32, and the state, so. The ranks
        # compute with the dtype of these, too.
        arrays.append(array.astype(param.dtype, copy=False))
    return arrays


def _first(slot: Slot, params: Any, leaves: Sequence[Any]) -> list[Any]:
    """Returns the first value of a slot for each parameter."""
    if slot.init == "params":
        return [leaf.copy() for leaf in leaves]
    if callable(slot.init):
        values = parts_like(flatten(params)[1], slot.init(params))
        assert values is not None  # by whoever wrote the slot
    else:
        values = [leaf.dtype.type(slot.init) for leaf in leaves]
    zeros = [leaf + leaf.dtype.type(0) for leaf in _zeros(leaves)]
    return [zero + value for zero, value in zip(zeros, values, strict=True)]


def _zeros(leaves: Sequence[Any]) -> list[Any]:
    """Returns zeros like arrays, or numbers like some; also of what is not finite yet, as
    `np.empty` before it is filled.
    """
    return [np.zeros_like(leaf)[()] for leaf in leaves]
