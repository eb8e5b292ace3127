"""Roles of a gradient's parameters, read once when a training step is made.

gradient(*inputs, *params)                 a function: returns loss and slopes of a rank's rows
gradient(*inputs, *params, loss, *slopes)  a kernel: adds to them

Parameters with defaults behind these, of functions and of kernels, are settings of the script: a
step does not pass them.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any, final

from synknumba._errors import ArgumentError
from synknumba._ops.tree import Structure, count_leaves
from synknumba._source.access import element_uses, is_first_element

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_KERNEL_ORDER = "a kernel has the parameters (*batch, *params, loss, *slopes)"
_STRUCTURES = {"leaf": "an array", "named": "a named tuple"}


@final
@dataclass(frozen=True, slots=True)
class ParamsRole:
    """How a gradient gets the parameters of the model.

    Attributes:
        arguments: number of arguments of a function.
        spreads: whether the items of a list are arguments; if not, the tree is one.
        leaves: number of arrays, each an argument of a kernel.
        text: for errors.
    """

    arguments: int
    spreads: bool
    leaves: int
    text: str


@final
@dataclass(frozen=True, slots=True)
class Roles:
    """Names of a gradient's parameters by role.

    Attributes:
        name: of the gradient.
        inputs: the batch of a step, in order.
        behind: other parameters that the step passes, as far as the signature shows them.
        params: how the parameters of the model are passed.
        divided: inputs of which each rank gets its rows.
        broadcast: inputs that every rank gets whole.
        sliceable: inputs that are variables of rows.
        weights: input by whose sum a step divides; None to divide by the number of rows.
    """

    name: str
    is_kernel: bool
    inputs: tuple[str, ...]
    behind: tuple[str, ...]
    params: ParamsRole
    divided: tuple[str, ...]
    broadcast: tuple[str, ...]
    sliceable: tuple[str, ...]
    weights: str | None

    @property
    def counted(self) -> int:
        """Position of the input whose rows, or weights, are the count."""
        return self.inputs.index(self.weights or self.divided[0])

    def free(self, *names: str) -> list[str]:
        """Returns names of parameters that are not inputs."""
        return [f"{name}_of_training" if name in self.inputs else name for name in names]

    def explained(self) -> str:
        """Returns, for errors, which parameters are inputs, and what may be wrong if these are
        others.
        """
        if not self.behind:
            return ""
        text = f"; of {self.name}, {', '.join(self.inputs)} are inputs, and "
        text += ", ".join(self.behind)
        if self.is_kernel:
            return f"{text} params, the loss, and slopes"
        text += f" for params, {self.params.text}"
        names = " ".join((*self.inputs, *self.behind)).lower()
        if "loss" in names or "slope" in names:
            text += (
                ". If it is a kernel, which is given the loss and the slopes, "
                "decorate it by @cuda.jit"
            )
        return text


def read_roles(
    gradient: Callable[..., Any],
    structure: Structure,
    inputs: tuple[str, ...] | None,
    *,
    is_kernel: bool,
    broadcast: tuple[str, ...],
    sliceable: tuple[str, ...],
    weights: str | None,
) -> Roles:
    """Returns the roles of a gradient's parameters; raises `ArgumentError` if they do not fit.

    Args:
        gradient: a function, or that of a kernel.
        structure: of the parameters of the model.
        inputs: names of its inputs; None to read them from the signature.
        is_kernel: whether it is a kernel.
        broadcast: names of inputs that every rank gets whole.
        sliceable: names of inputs that are variables of rows.
        weights: name of the input with weights of rows.
    """
    name = getattr(gradient, "__name__", "gradient")
    if not name.isidentifier():  # a lambda
        name = "gradient"
    params = _params_role(structure)
    if inputs is None:
        inputs = _read_inputs(gradient, name, params, is_kernel=is_kernel)
    _check_names(inputs)
    behind = _passed(_parameters(gradient))[len(inputs) :]
    if is_kernel:
        _check_order(gradient, name, inputs, behind, params.leaves)
    for option, names in (("broadcast", broadcast), ("rows", sliceable)):
        for name_in_option in names:
            if name_in_option not in inputs:
                raise ArgumentError(
                    f"{option}= names {name_in_option!r}, but the inputs of {name} are "
                    f"{', '.join(inputs)}"
                )
    divided = tuple(input_name for input_name in inputs if input_name not in broadcast)
    if not divided:
        raise ArgumentError(
            f"all inputs of {name} are in broadcast=, so that it has no rows to divide"
        )
    if weights is not None and (not isinstance(weights, str) or weights not in divided):
        raise ArgumentError(
            f"weights= takes the name of an input of {name} that is divided, "
            f"{' or '.join(divided)}; got {weights!r}"
        )
    return Roles(name, is_kernel, inputs, behind, params, divided, broadcast, sliceable, weights)


def _params_role(structure: Structure) -> ParamsRole:
    kind, leaves = structure[0], count_leaves(structure)
    text = _STRUCTURES.get(kind, f"a {kind}")
    if kind not in {"list", "tuple"}:
        return ParamsRole(1, False, leaves, f"{text}, which is one argument")
    count = len(structure[1])
    return ParamsRole(count, True, leaves, f"{text} of {count}, each an argument")


def _parameters(gradient: Callable[..., Any]) -> list[inspect.Parameter]:
    """Returns a gradient's parameters; none if they cannot be read."""
    try:
        return list(inspect.signature(gradient).parameters.values())
    except (TypeError, ValueError):
        return []


def _passed(parameters: list[inspect.Parameter]) -> tuple[str, ...]:
    """Returns names of the parameters that the step passes; others are settings of the script."""
    return tuple(
        parameter.name
        for parameter in parameters
        if parameter.kind in _POSITIONAL and parameter.default is inspect.Parameter.empty
    )


def _read_inputs(
    gradient: Callable[..., Any], name: str, params: ParamsRole, *, is_kernel: bool
) -> tuple[str, ...]:
    """Returns the names of a gradient's inputs: of its parameters those before the model's."""
    parameters, after = _parameters(gradient), params.arguments
    if is_kernel:
        after = 2 * params.leaves + 1
    # As in `gradient(x, y, *params)`:
    if len(parameters) > 1 and parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL:
        del parameters[-1]
        after = 0
    while parameters and parameters[-1].default is not inspect.Parameter.empty:
        del parameters[-1]  # a setting
    names = _passed(parameters)
    if not names or len(names) < len(parameters):
        raise ArgumentError(
            f"the parameters of {name} cannot be read by name; name its "
            f'inputs, as in inputs=("x", "y")'
        )
    if len(names) > after:
        return names[: len(names) - after]
    last = f"{name} takes {', '.join(names)}, of which the last {after}"
    if is_kernel:
        raise ArgumentError(
            f"{last} would be the model's parameters, the loss, and a slope for each of the "
            f"parameters, so that none is left for the batch; {_KERNEL_ORDER}"
        )
    raise ArgumentError(
        f"{last} are for the model's parameters, so that none is left for the batch; write it as "
        "gradient(x, y, *params)"
    )


def _check_names(inputs: tuple[str, ...]) -> None:
    """Raises `ArgumentError` for inputs that cannot be the parameters of a function."""
    for name in inputs:
        is_name = isinstance(name, str) and name.isidentifier() and not iskeyword(name)
        if not is_name or name.startswith("synk_"):
            raise ArgumentError(
                f"inputs need names of parameters, which do not begin with synk_; got {name!r}"
            )
        if inputs.count(name) > 1:
            raise ArgumentError(f"inputs name {name!r} twice")


def _check_order(
    kernel: Callable[..., Any],
    name: str,
    inputs: tuple[str, ...],
    behind: tuple[str, ...],
    leaves: int,
) -> None:
    """Raises `ArgumentError` for a kernel whose source shows that its parameters stand in another
    order.

    A store to the parameters, which must stay equal on ranks, or to another element of the loss
    than its only one, would be made silently.
    """
    if len(behind) != 2 * leaves + 1:
        raise ArgumentError(
            f"{name} has {', '.join(behind) or 'no parameters'} behind its inputs, but "
            f"needs {leaves} for the model's parameters, the loss, and a slope for each "
            "of them: (*batch, *params, loss, *slopes)"
        )
    params, loss, slopes = behind[:leaves], behind[leaves], behind[leaves + 1 :]
    order = (
        f"{_KERNEL_ORDER.capitalize()}, in this order, with a "
        f"slope for each of params: of {name} the batch is {', '.join(inputs)}, "
        f"params {', '.join(params)}, the loss {loss}, and slopes {', '.join(slopes)}"
    )
    losses_by_name = [param for param in behind if "loss" in param.lower()]
    meant = None
    if losses_by_name and loss not in losses_by_name:
        meant = losses_by_name[0]
        order += f"; write {meant} behind the parameters and before the slopes"
    for use in element_uses(kernel):
        param = use.name.id
        place = f"{name} ({kernel.__code__.co_filename}:{use.line})"
        if param in params and use.is_write:
            way_out = "; add to its slope, with which the optimiser makes the step"
            if param == meant:
                way_out = ""
            raise ArgumentError(
                f"{place} writes to {param}, a parameter of the model, which ranks with other "
                f"rows would not do{way_out}. {order}"
            )
        if param == loss and not is_first_element(use, kernel):
            verb = "writes to" if use.is_write else "reads"
            raise ArgumentError(
                f"{place} {verb} {use.element}, but {param} "
                f"stands where the loss does, which has one element: {param}[0], or "
                f"cuda.atomic.add({param}, 0, …). {order}"
            )
