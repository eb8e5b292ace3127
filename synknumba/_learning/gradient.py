"""The gradient of a training step: its inputs, by position or name, and its call.

gradient(*batch, *params)                 a function: returns loss and slopes of a rank's rows
gradient(*batch, *params, loss, *slopes)  a kernel: adds to them
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from keyword import iskeyword
from typing import Any, cast, final

import numpy as np

from synknumba import simt
from synknumba._api import function, parallel
from synknumba._call.arguments import IndexRange
from synknumba._call.distribute import Distributed
from synknumba._call.function import Function
from synknumba._device.compilers import KERNEL_DECORATORS
from synknumba._errors import (
    ArgumentError,
    BatchError,
)
from synknumba._learning.gradient_check import Inputs, check_gradient, may_be_row_numbers
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
from synknumba._ops.launch import LaunchConfig
from synknumba._ops.rows import Partition, Range, select
from synknumba._ops.tree import count_leaves, paths, unflatten
from synknumba._ops.tree import flatten as take_apart
from synknumba._rowwise.generate import define
from synknumba._source.access import element_uses, is_first_element
from synknumba._types import Array, Block, Grid, Span, shown
from synknumba._variables.collectives import get_lengths
from synknumba._variables.variable import Variable, state_of, vector_of
from synknumba._world.open_world import current_world


@final
class Gradient:
    """The gradient that a script gives, and the names of its inputs."""

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
            raise ArgumentError(
                "make_train_function takes the gradient undecorated: it decorates it itself"
            )
        self.is_kernel = type(gradient).__name__ in KERNEL_DECORATORS
        if not callable(gradient) and not self.is_kernel:
            raise ArgumentError(
                f"make_train_function needs a gradient, a function or a kernel; got {gradient!r}"
            )
        if not self.is_kernel and (block is not None or grid is not None):
            raise ArgumentError(
                "block= and grid= are those of a kernel, and the gradient is a "
                "function; decorate it by cuda.jit"
            )
        self._function = gradient
        plain = getattr(gradient, "py_func", gradient)
        name = getattr(plain, "__name__", "gradient")
        self.name = name if name.isidentifier() else "gradient"
        structure = state_of(params).structure()
        self._spreads = structure[0] in {"list", "tuple"}  # over several arguments
        self._leaves = count_leaves(structure)
        after = (
            2 * self._leaves + 1 if self.is_kernel else len(structure[1]) if self._spreads else 1
        )
        self.inputs = (
            inputs
            if inputs is not None
            else _inputs(plain, self.name, after, is_kernel=self.is_kernel)
        )
        _check_names(self.inputs)
        count = len(structure[-1]) if self._spreads else 1
        kind = {"leaf": "an array", "named": "a named tuple"}.get(structure[0], f"a {structure[0]}")
        self._told_params = (
            f"{kind} of {count}, each an argument"
            if self._spreads
            else f"{kind}, which is one argument"
        )
        self._after = _names(plain)[len(self.inputs) :]
        if self.is_kernel:
            self._check_order(plain)
        for what, option_names in (("broadcast", broadcast), ("sliceable", sliceable)):
            for name_in_option in option_names:
                if name_in_option not in self.inputs:
                    raise ArgumentError(
                        f"{what}= names {name_in_option!r}, but the inputs of {self.name} are "
                        f"{', '.join(self.inputs)}"
                    )
        self._broadcast, self._sliceable = broadcast, sliceable
        self._block, self._grid = block, grid
        self.divided = [
            index
            for index, name_of_input in enumerate(self.inputs)
            if name_of_input not in broadcast
        ]
        if not self.divided:
            raise ArgumentError(
                f"all inputs of {self.name} are in broadcast=, so that it has no rows to divide"
            )
        divided = [self.inputs[index] for index in self.divided]
        if weights is not None and (not isinstance(weights, str) or weights not in divided):
            raise ArgumentError(
                f"weights= takes the name of an input of {self.name} that is divided, "
                f"{' or '.join(divided)}; got {weights!r}"
            )
        self._weights = None if weights is None else self.inputs.index(weights)

    def _check_order(self, kernel: Callable[..., Any]) -> None:
        """Raises `ArgumentError` for a kernel whose source shows that its parameters stand in
        another order.

        A store to the parameters, which must stay equal on ranks, or to another element of the loss
        than its only one, would be made silently.
        """
        after = [*inspect.signature(kernel).parameters][len(self.inputs) :]
        if len(after) != 2 * self._leaves + 1:
            raise ArgumentError(
                f"{self.name} has {', '.join(after) or 'no parameters'} behind its inputs, but "
                f"needs {self._leaves} for the model's parameters, the loss, and a slope for each "
                "of them: (*batch, *params, loss, *slopes)"
            )
        params, loss, slopes = after[: self._leaves], after[self._leaves], after[self._leaves + 1 :]
        meant = (
            None
            if "loss" in loss.lower()
            else next(
                (slot_name for slot_name in (*params, *slopes) if "loss" in slot_name.lower()), None
            )
        )
        order = (
            "A kernel has the parameters (*batch, *params, loss, *slopes), in this order, with a "
            f"slope for each of params: of {self.name} the batch is {', '.join(self.inputs)}, "
            f"params {', '.join(params)}, the loss {loss}, and slopes {', '.join(slopes)}"
        )
        if meant is not None:
            order += f"; write {meant} behind the parameters and before the slopes"
        for use in element_uses(kernel):
            name = use.name.id
            place = f"{self.name} ({kernel.__code__.co_filename}:{use.line})"
            if name in params and use.is_write:
                way_out = (
                    ""
                    if name == meant
                    else "; add to its slope, with which the optimiser makes the step"
                )
                raise ArgumentError(
                    f"{place} writes to {name}, a parameter of the model, which ranks with other "
                    f"rows would not do{way_out}. {order}"
                )
            if name == loss and not is_first_element(use, kernel):
                raise ArgumentError(
                    f"{place} {'writes to' if use.is_write else 'reads'} {use.element}, but {name} "
                    f"stands where the loss does, which has one element: {name}[0], or "
                    f"cuda.atomic.add({name}, 0, …). {order}"
                )

    def free(self, *names: str) -> list[str]:
        """Returns names of parameters that are not inputs."""
        return [f"{name}_of_training" if name in self.inputs else name for name in names]

    def named(self, batch: Sequence[Any], named: dict[str, Any]) -> list[Any]:
        """Returns the inputs of a call in order."""
        if len(batch) > len(self.inputs):
            raise ArgumentError(
                f"a step takes {', '.join(self.inputs)}, got {len(batch)} "
                f"arguments{self._told_roles()}"
            )
        arguments = dict(zip(self.inputs, batch, strict=False))
        for name, value in named.items():
            if name not in self.inputs:
                raise ArgumentError(
                    f"a step takes {', '.join(self.inputs)}, batch= and num_slices=; got {name}="
                )
            if name in arguments:
                raise ArgumentError(f"a step got {name} twice")
            arguments[name] = value
        missing = [name for name in self.inputs if name not in arguments]
        if missing:
            raise ArgumentError(f"a step is missing {', '.join(missing)}{self._told_roles()}")
        ordered = [arguments[name] for name in self.inputs]
        self._check_rows(ordered)
        return ordered

    def _told_roles(self) -> str:
        """Returns, for errors, which parameters of the gradient are inputs, and what may be
        wrong if these are others.
        """
        if not self._after:
            return ""
        text = (
            f"; of {self.name}, {', '.join(self.inputs)} are inputs, and {', '.join(self._after)}"
        )
        if self.is_kernel:
            return f"{text} params, the loss, and slopes"
        text += f" for params, {self._told_params}"
        if any(
            word in name.lower()
            for name in (*self.inputs, *self._after)
            for word in ("loss", "slope")
        ):
            text += (
                ". If it is a kernel, which is given the loss and the slopes, "
                "decorate it by @cuda.jit"
            )
        return text

    def _check_rows(self, arguments: Sequence[Any]) -> None:
        """Raises `BatchError` for inputs without rows, whose mean is NaN, and `ArgumentError` if
        the first is no array.
        """
        name, (first, *_) = (
            self.inputs[self.divided[0]],
            take_apart(arguments[self.divided[0]])[0] or [None],
        )
        rows = first.size or sum(_lengths(first)) if isinstance(first, Variable) else _length(first)
        if rows is None:
            raise ArgumentError(
                f"{name} is the first input of {self.name} that is divided, and must be an array, "
                f"whose rows are counted; got {shown(first)}. Write np.asarray(…) of a list of "
                "numbers; put numbers behind it, or name them in broadcast="
            )
        if not rows:
            raise BatchError(f"a step of {self.name} needs rows, and {name} has none")
        self._check_lists(arguments)
        if self._weights is not None:
            self._check_weights(arguments[self._weights], first)

    def _check_weights(self, weights: Any, first: Any) -> None:
        """Raises `ArgumentError` unless weights are those of the rows of the first input."""
        name = self.inputs[cast("int", self._weights)]
        if not isinstance(weights, Variable) and not getattr(weights, "ndim", 0):
            raise ArgumentError(
                f"{name}, the weights of {self.name}, must be an array, got {shown(weights)}"
            )
        if isinstance(weights, Variable) != isinstance(first, Variable):
            kinds = (
                ("a variable", "an array")
                if isinstance(weights, Variable)
                else ("an array", "a variable")
            )
            raise ArgumentError(
                f"{name}, the weights of {self.name}, is {kinds[0]}, and "
                f"{self.inputs[self.divided[0]]} {kinds[1]}, whose rows may be others; leave out "
                "weights=, and return the sum of the weights: return loss, slopes, count"
            )

    def _check_lists(self, arguments: Sequence[Any]) -> None:
        """Raises `ArgumentError` for lists of numbers as long as the rows beside them, which
        every rank would get whole.
        """
        lists = [
            (self.inputs[index], items)
            for index in self.divided
            for items in _lists(arguments[index])
        ]
        if not lists:
            return
        leaves = [leaf for index in self.divided for leaf in take_apart(arguments[index])[0]]
        lengths = {_rows_beside(leaf) for leaf in leaves}
        if isinstance(arguments[self.divided[0]], range):
            lengths.add(len(arguments[self.divided[0]]))
        for name, items in lists:
            if len(items) in lengths:
                instead = f"np.asarray({name})"
                if isinstance(items, range):
                    instead = (
                        f"synk.arange({len(items)})"
                        if items == range(len(items))
                        else f"np.arange{str(items)[5:]}"
                    )
                raise ArgumentError(
                    f"{name} is a {type(items).__name__} as long as the rows, {len(items)}, which "
                    f"every rank would get whole; pass "
                    f'{instead} to have its rows divided, or name it in broadcast=("{name}",)'
                )

    def rows_to_select(self, arguments: Sequence[Any], option: str) -> int:
        """Returns the number of rows among which `batch=` or `order=` selects; raises
        `BatchError` where it cannot.
        """
        for index in self.divided:
            value = arguments[index]
            if isinstance(value, IndexRange):
                raise BatchError(
                    f"{option}= selects rows by number, but {self.inputs[index]} is an index "
                    f"range; pass the numbers as an array, such as np.arange({len(value)})"
                )
        leaves = [
            (self.inputs[index], leaf)
            for index in self.divided
            for leaf in take_apart(arguments[index])[0]
        ]
        of_batch = (
            pair
            for pair in leaves
            if not isinstance(pair[1], Variable) and not getattr(pair[1], "minibatch", False)
        )
        selected, array = next(
            (pair for pair in of_batch if _length(pair[1]) is not None), ("", None)
        )
        if array is None:
            names = [self.inputs[index] for index in self.divided]
            owners = (
                f"{', '.join(names)} are variables"
                if len(names) > 1
                else f"{names[0]} is a variable"
            )
            raise BatchError(
                f"{option}= selects rows of arrays, but {owners}, whose rows are on the ranks. "
                f"Pass an array of their numbers there: def {self.name}(rows, "
                f"{', '.join(self.inputs)}, …), which takes {names[0]}[rows]"
            )
        scattered = [
            name
            for name, leaf in leaves
            if isinstance(leaf, Variable) and state_of(leaf).sharded and name not in self._sliceable
        ]
        if scattered and (scattered[0] == leaves[0][0] or not may_be_row_numbers(array)):
            first = scattered[0]
            raise BatchError(
                f"{option}= selects rows of arrays, as {selected}, but {first} is a scattered "
                "variable, whose rows are on the ranks, so that its rows would not be those of "
                f"{selected}. Pass an array as {first}, too, such as synk.gather({first}), or "
                "scatter both, and pass an array of row numbers before them: def "
                f"{self.name}(rows, {first}, …), which takes {first}[rows]"
            )
        return len(array)

    def check(self, arguments: Sequence[Any], rows: Any, params: Any) -> None:
        """Tries the gradient out with rows of the inputs, None for the first; see
        `TrainFunction.check`.
        """
        selected = None if rows is None else select(rows, self.rows_to_select(arguments, "batch"))
        numbers = (
            selected.indices()
            if isinstance(selected, Range)
            else None
            if selected is None
            else selected.indices
        )
        divided = [self.inputs[index] for index in self.divided]
        named = dict(zip(self.inputs, arguments, strict=True))
        span = Span if self.is_kernel else range
        inputs = Inputs(named, divided, self._sliceable, numbers, span, current_world().world_size)
        if not inputs.count:
            raise ArgumentError(
                f"step.check compares {self.name} of some rows with that of their "
                f"halves, and needs two rows"
            )
        leaves, structure = take_apart(params)
        run: list[Any] = [simt.check]  # once; without its shadow memory it is faster

        def evaluate(positions: Array, leaves: Sequence[Array]) -> tuple[Array, list[Array]]:
            batch, copies = inputs.rows(positions), [leaf.copy() for leaf in leaves]
            if not self.is_kernel:
                value = unflatten(structure, copies)
                returned = self._function(*batch, *(value if self._spreads else (value,)))
                count = None if self._weights is None else sum_of_weights(batch[self._weights])
                targets = [*leaves, np.zeros(()), np.zeros(())]
                *slopes, loss, count = map(
                    np.asarray, checked(returned, structure, targets, len(positions), count)
                )
                return loss, [*slopes, count]
            shapes = {
                name: array.shape
                for name, array in zip(self.inputs, batch, strict=True)
                if isinstance(array, np.ndarray)
            }
            source = next((name for name in divided if name in shapes), None)
            grid, block = LaunchConfig(self._block, self._grid).resolve(
                len(positions), shapes, source
            )
            sums = [
                np.zeros(leaf.shape or (1,), leaf.dtype)
                for leaf in (np.zeros((), leaves[0].dtype), *leaves)
            ]
            how = run.pop() if run else simt.debug
            how(self._function)[grid, block](
                *batch, *(array.reshape(array.shape or (1,)) for array in copies), *sums
            )
            slopes = [
                total.reshape(like.shape) for total, like in zip(sums[1:], leaves, strict=True)
            ]
            return sums[0].reshape(()), [*slopes, np.zeros(())]

        names = [f"params{path}" for path in paths(structure)]
        check_gradient(
            evaluate, inputs.count, [np.asarray(leaf) for leaf in leaves], names, self.name
        )

    def leaves_out_ranks(
        self, arguments: Sequence[Any], selected: int | None, partition: Partition
    ) -> bool:
        """Returns whether a rank may have no rows, on which a function is not called.

        Args:
            arguments: inputs.
            selected: number of rows that are selected; None for all.
            partition: of rows into ranks.
        """
        for index in self.divided:
            for leaf in take_apart(arguments[index])[0]:
                if isinstance(leaf, Variable):
                    if self.inputs[index] in self._sliceable and 0 in _lengths(leaf):
                        return True
                    continue
                rows = _length(leaf)
                if rows is not None and 0 in partition.counts(
                    rows if selected is None else selected
                ):
                    return True
        return False

    def step(self, *, record: bool, clears: bool, num_slices: int) -> Callable[..., None]:
        """Returns what a step does until the sums of a rank's rows are there: a function of
        batch, params, sums and rows.
        """
        if self.is_kernel:
            return self._by_kernel(record=record, num_slices=num_slices)
        return self._by_function(record=record, clears=clears, num_slices=num_slices)

    def _by_function(self, *, record: bool, clears: bool, num_slices: int) -> Callable[..., None]:
        names, (params, sums) = ", ".join(self.inputs), self.free("params", "sums")
        how = f"{self.divided[0]}, {self._weights}, {self._spreads}, {num_slices > 1}"
        text = (
            f"def {self.name}({names}, {params}, {sums}):\n    synk_add(synk_gradient, "
            f"({names},), {params}, {sums}, {how})\n"
        )
        scope = {"__name__": __name__, "synk_add": add_sums, "synk_gradient": self._function}
        defined = define(text, self.name, self.name, scope)
        call = function(
            defined,
            broadcast=self._broadcast,
            sliceable=self._sliceable,
            record=record,
            name=self.name,
        )

        def step(batch: tuple[Any, ...], params: Any, sums: Any, rows: Any) -> None:
            if clears:
                clear()(vector_of(sums))
            call(*batch, params, sums, **_options(rows, num_slices))

        return step

    def _by_kernel(self, *, record: bool, num_slices: int) -> Callable[..., None]:
        kernel: Any = parallel(
            self._function,
            broadcast=self._broadcast,
            sliceable=self._sliceable,
            name=self.name,
            block=self._block,
            grid=self._grid,
        )
        first = self.divided[0] if self._weights is None else self._weights
        is_sliceable = self.inputs[first] in self._sliceable
        count = count_sliceable if is_sliceable else count_rows
        if self._weights is not None:
            names = ("x",) if is_sliceable else ()
            count = function(
                add_weights, sliceable=names, record=record, name=f"weights of {self.name}"
            )

        def step(batch: tuple[Any, ...], params: Any, sums: Any, rows: Any) -> None:
            options = _options(rows, num_slices)
            clear()(vector_of(sums))
            kernel(*batch, *_leaves(params), sums["loss"], *_leaves(sums["gradient"]), **options)
            counts = count_indices if isinstance(batch[first], IndexRange) else count
            counts(batch[first], sums["count"], **options)

        return step


def _length(value: Any) -> int | None:
    """Returns the number of rows of an array; None for what has none."""
    try:
        return len(value)
    except TypeError:
        return None


def _lists(value: Any) -> Iterator[Sequence[Any]]:
    """Yields the ranges in an input, and its lists and tuples of several items without an array
    among them.
    """
    if isinstance(value, range):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _lists(item)
    elif isinstance(value, list | tuple):
        leaves = take_apart(value)[0]
        if len(value) > 1 and not any(
            isinstance(leaf, Variable | range) or getattr(leaf, "ndim", 0) for leaf in leaves
        ):
            yield value
        else:
            for item in value:
                yield from _lists(item)


def _rows_beside(leaf: Any) -> int | None:
    """Returns the number of rows of an array, of an index range, or of a scattered variable;
    None of anything else.
    """
    if isinstance(leaf, Variable):
        state = state_of(leaf)
        return sum(_lengths(leaf)) if state.sharded and not state.is_tree else None
    return _length(leaf) if isinstance(leaf, IndexRange) or getattr(leaf, "ndim", False) else None


def _lengths(variable: Variable) -> list[int]:
    """Returns the number of rows of each rank, and of each array if they are several."""
    return take_apart(get_lengths(variable))[0]


def _options(rows: Any, num_slices: int) -> dict[str, Any]:
    options: dict[str, Any] = {} if rows is None else {"batch": rows}
    return options if num_slices == 1 else {**options, "num_slices": num_slices}


def _names(gradient: Any) -> list[str]:
    """Returns the names of a gradient's parameters that the step passes; none if they cannot be
    read.
    """
    try:
        parameters = inspect.signature(gradient).parameters.values()
    except (TypeError, ValueError):
        return []
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind in plain and parameter.default is inspect.Parameter.empty
    ]


def _inputs(gradient: Any, name: str, after: int, *, is_kernel: bool) -> tuple[str, ...]:
    try:
        parameters = list(inspect.signature(gradient).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    # As in `gradient(x, y, *params)`:
    if len(parameters) > 1 and parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL:
        parameters, after = parameters[:-1], 0
    # settings of the gradient's own
    while parameters and parameters[-1].default is not inspect.Parameter.empty:
        parameters = parameters[:-1]
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or any(parameter.kind not in plain for parameter in parameters):
        raise ArgumentError(
            f"the parameters of {name} cannot be read by name; name its "
            f'inputs, as in inputs=("x", "y")'
        )
    names = tuple(parameter.name for parameter in parameters)
    if len(names) <= after and is_kernel:
        raise ArgumentError(
            f"{name} takes {', '.join(names)}, of which the last {after} "
            "would be the model's parameters, the loss, and a slope for each of the parameters, so "
            "that none is left for the batch; a kernel has the parameters (*batch, *params, loss, "
            "*slopes)"
        )
    if len(names) <= after:
        raise ArgumentError(
            f"{name} takes {', '.join(names)}, of which the last {after} "
            "are for the model's parameters, so that none is left for the batch; write it as "
            "gradient(x, y, *params)"
        )
    return names[: len(names) - after]


def _check_names(inputs: tuple[str, ...]) -> None:
    """Raises `ArgumentError` for inputs that cannot be the parameters of a function."""
    for name in inputs:
        is_name = isinstance(name, str) and name.isidentifier() and not iskeyword(name)
        if not is_name or name.startswith("synk_"):
            raise ArgumentError(
                f"inputs need names of parameters, which do not begin with synk_; got {name!r}"
            )
    twice = [name for name in inputs if inputs.count(name) > 1]
    if twice:
        raise ArgumentError(f"inputs name {twice[0]!r} twice")


def _leaves(branch: Any) -> list[Any]:
    """Returns the arrays of a variable, or of a part of it, as arguments."""
    structure = state_of(branch).structure() if isinstance(branch, Variable) else branch.structure
    if structure == ("leaf",):
        return [branch]
    match structure:
        case ("dict", keys, *_):
            pass
        case _:
            keys = range(len(structure[-1]))
    return [leaf for key in keys for leaf in _leaves(branch[key])]
