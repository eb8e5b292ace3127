"""Parameters that a function is meant to write in place, and assigns to instead: `new = x.sum(0)`,
nothing written.

An assignment to the bare name binds it to another array; the array that was passed keeps its
values. So do `:=`, the targets of `for` and `with`, and those in a tuple. A function's source shows
some of these mistakes with certainty, and they are refused when it is decorated. Three cases are
certain:

- A statement of the function's outermost level rebinds the parameter, and up to there the array is
  only read.
- The array is only read wherever its name occurs, and the name is rebound somewhere.
- Names are exchanged, as in `u, v = v, u`, and not used afterwards.

A variable that `givens=` binds, or that a call passes, may be written or not, so a local of its
name is right if it is read: `w = w - w.mean()`. An assignment is refused if nothing reads its
value, as in `w = w - g` at the end: it was meant for the variable. For variables that a call passes
this is found when the call is planned.

Everything else is allowed: `y[:] = 2 * x; y = y.ravel()`, `y = y.reshape(-1); y += 1`, `y += 1`,
`fill(y); y = None`. What may give the array another name, or pass it on, counts as a write.
"""

import ast
from collections.abc import Callable, Collection, Mapping
from typing import Any

from synknumba._call.options import FunctionOptions
from synknumba._errors import ArgumentError
from synknumba._ops.tree import flatten
from synknumba._source.kernel_facts import Binding
from synknumba._source.lost_assignments import find_assignments
from synknumba._variables.state import VariableState
from synknumba._variables.variable import Variable, state_of

MAX_SHOWN = 60  # characters of a value that an error repeats
_TOO_LONG = "..."  # stands for a longer value, and for one that no expression has


def check_rebinding(name: str, function: Callable[..., Any], options: FunctionOptions) -> None:
    """Raises `ArgumentError` if a function certainly rebinds a parameter that it is to write,
    and does not write to it.
    """
    _check_written(name, function, options)
    _check_variables(name, function, options, options.givens, "which givens= names")


def check_passed(
    name: str, function: Callable[..., Any], options: FunctionOptions, values: Mapping[str, Any]
) -> None:
    """Raises `ArgumentError` if a function rebinds a parameter to which a call passes a variable,
    and nothing reads it then.

    `values` are the arguments of the call, by parameter.
    """
    passed = dict(values)
    for parameter in options.givens:
        passed.pop(parameter, None)
    _check_variables(name, function, options, passed, "to which the call passes a variable")


def _check_written(name: str, function: Callable[..., Any], options: FunctionOptions) -> None:
    is_kernel = options.style == "kernel"
    roles = dict.fromkeys(options.outputs, "outputs")
    roles |= dict.fromkeys(options.updates, "updates") | dict.fromkeys(options.inout, "inout")
    # Other parameters may be trees, of which `y + [a]` contains the arrays themselves.
    arrays: Collection[str] = roles
    if not is_kernel:
        updates = options.updates.items()
        arrays = {parameter for parameter, (variable, _) in updates if not variable.is_tree}
    assignments = find_assignments(function, roles, arrays)
    if assignments is None:
        return
    for parameter, role in roles.items():
        binding = assignments.lost(parameter)
        if binding is not None:
            advice = _advice(
                parameter, binding, role, is_kernel=is_kernel, is_array=parameter in arrays
            )
            raise ArgumentError(
                f"{name} ({_place(function, binding)}) assigns to {parameter}, which {role}= "
                f"names: this rebinds the name, and writes nothing to the array. {advice}"
            )


def _check_variables(
    name: str,
    function: Callable[..., Any],
    options: FunctionOptions,
    values: Mapping[str, Any],
    how: str,
) -> None:
    """Raises `ArgumentError` for an assignment to a parameter with a variable, or a tree of them,
    that nothing reads.

    `values` are the values of parameters; `how` tells how they get them.
    """
    variables, arrays = dict[str, VariableState](), set[str]()
    for parameter, value in values.items():
        state = _variable_in(value)
        if state is not None:
            variables[parameter] = state
            if isinstance(value, Variable) and not state.is_tree:
                arrays.add(parameter)
    assignments = find_assignments(function, variables, arrays)
    if assignments is None:
        return
    is_kernel = options.style == "kernel"
    for parameter, variable in variables.items():
        binding = assignments.unread(parameter)
        if binding is None:
            continue
        is_array = parameter in arrays
        advice = _advice(parameter, binding, "givens", is_kernel=is_kernel, is_array=is_array)
        if is_array and not variable.root_shapes()[0]:
            advice = advice.replace(f"{parameter}[:]", f"{parameter}[...]")
            advice = advice.replace(f"{parameter}[i]", f"{parameter}[()]")
        if any(updated is variable for updated, _ in options.updates.values()):
            advice = "Accumulate into the parameter that updates= names"
        raise ArgumentError(
            f"{name} ({_place(function, binding)}) assigns to {parameter}, {how}, and never reads "
            f"it again: this rebinds the name, and {variable.label} keeps its values. {advice}"
        )


def _variable_in(value: Any) -> VariableState | None:
    """Returns the state of a value that is a variable, or of the first in a nested one; None if
    there is none.
    """
    for leaf in flatten(value)[0]:
        if isinstance(leaf, Variable):
            return state_of(leaf)
    return None


def _place(function: Callable[..., Any], binding: Binding) -> str:
    return f"{function.__code__.co_filename}:{binding.node.lineno}"


def _advice(parameter: str, binding: Binding, role: str, *, is_kernel: bool, is_array: bool) -> str:
    names = ", ".join(name.id for name in binding.names)
    if binding.exchanges:
        advice = f"Pass {names} in the other order at the next call"
        if len(binding.names) == 2:
            advice += f", or exchange variables by synk.swap({names})"
        return advice
    match binding.node:
        case ast.For():
            value, prefix = None, "Give the variable of the loop another name. "
        case ast.With():
            value, prefix = None, "Give the variable of the with statement another name. "
        case _:
            value, prefix = binding.value, ""
    return prefix + _write(parameter, value, role, is_kernel=is_kernel, is_array=is_array)


def _write(
    parameter: str, value: ast.expr | None, role: str, *, is_kernel: bool, is_array: bool
) -> str:
    """Returns how to write a value to the array of a parameter."""
    text = _value_text(value)
    if is_kernel:
        advice = f"Write to its elements: {parameter}[i] = {text}"
        if role not in {"inout", "givens"}:
            advice += f", or cuda.atomic.add({parameter}, i, {text})"
        return advice
    if role in {"updates", "givens"} and not is_array:
        return f"Write to its arrays in place, as in {parameter}[key] += ..."
    assigned = f"{parameter}[:] = {text}"
    match value:
        case _ if text == _TOO_LONG:
            pass
        case ast.BinOp(left=ast.Name(id=left), op=op, right=right) if left == parameter:
            in_place = ast.unparse(ast.AugAssign(ast.Name(parameter, ast.Store()), op, right))
            return f"Write {in_place}, or {assigned}"
    if role == "updates":
        return f"Write {parameter} += {text}, or {assigned}"
    return f"Write {assigned}"


def _value_text(value: ast.expr | None) -> str:
    if value is None:
        return _TOO_LONG
    text = ast.unparse(value)
    return _TOO_LONG if len(text) > MAX_SHOWN else text
