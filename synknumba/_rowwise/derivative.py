"""The function of an expectation's derivative: value and tangents of a row, and the score.

    derivative   ∂f/∂p + f ∂ln q/∂p                  for each value of f
    gradient     f, then that for each parameter     for each value of f

The second term only with `score=`, the density q that rows have: P. Glasserman, *Monte Carlo Methods
in Financial Engineering* (2004), sections 7.2 and 7.3.
"""  # noqa: E501

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

from numba.core import types

from synknumba._call.bind import signature_names
from synknumba._errors import ArgumentError
from synknumba._rowwise.generate import DIVIDED, Kind
from synknumba._rowwise.tangent import (
    Active,
    Callees,
    Value,
    Writer,
    item_of,
    plain_function,
    sorted_directions,
    with_tangents,
)


def differentiated(
    what: str,
    function: Any,
    size: int | None,
    names: Sequence[str],
    score: Any,
    *,
    with_values: bool,
) -> FunctionType:
    """Returns the function of the derivatives of another one.

    Args:
        what: what is made, for messages.
        function: a function of a row.
        size: length of the tuple that it returns, None for a number.
        names: parameters to differentiate by.
        score: the log density of the rows, or None.
        with_values: whether the values come first.

    Raises:
        SynkError: something has no derivative, or `score` takes other parameters.
    """
    callees: Callees = {}
    reached: set[int] = set()
    comma = "" if size is None else ","  # a tuple of one value, too

    def result(writer: Writer, value: Value) -> str:
        items = [value]
        if size is not None:
            items = [item_of(value, position) for position in range(size)]
        texts = [item.text for item in items if with_values]
        for k, name in enumerate(names):
            for item in items:
                slope = writer.tangent(item, k)
                if name in scored:
                    slope += f" + {item.text} * {writer.prefix}score{k}"
                texts.append(slope)
        reached.update(value.tangents)
        return ", ".join(texts) + comma

    active = {name: frozenset({k}) for k, name in enumerate(names)}
    writer = Writer(function, active, what, callees, result)
    for k, name in enumerate(names):
        writer.line(f"{writer.tangent_of(name, k)} = synk_number({name}, 1.0)")
    scored: Active = {}
    if score is not None:
        taken = signature_names(plain_function(score), "the log density", ())
        scored = {name: active[name] for name in taken if name in active}
        _check_score(what, function, taken, scored)
        density = with_tangents(score, scored, what, callees)
        _write_score(writer, density, taken, scored)
    derivative = writer.function()
    for k, name in enumerate(names):
        if k not in reached and name not in scored:
            raise ArgumentError(
                f"{what} would be 0 for every row: what {function.__name__} returns depends on "
                f"{name} by comparisons only, or not at all; where it jumps, pass score=, the log "
                f"density of the rows as a function of {name}"
            )
    return derivative


def _check_score(what: str, function: Any, taken: Collection[str], scored: Active) -> None:
    parameters = signature_names(function, "the function", ())
    if not scored or not parameters.keys() >= {*taken}:
        raise ArgumentError(
            f"score= of {what} takes {', '.join(taken)}; it must be a function of parameters of "
            f"the expectation, by their names ({', '.join(parameters)}), those to differentiate "
            "by among them"
        )


def _write_score(writer: Writer, density: Any, taken: Iterable[str], scored: Active) -> None:
    score = f"{writer.prefix}score"
    writer.outside[f"{score}_of"] = density
    results = [score, *(f"{score}{k}" for k in sorted_directions(scored))]
    passed = [writer.tangent_of(name, k) for name in scored for k in scored[name]]
    writer.line(f"{', '.join(results)} = {score}_of({', '.join([*passed, *taken])})")


def check_differentiable(
    function: str, by: Sequence[str], parameters: Mapping[str, Kind], kinds: Mapping[str, Any]
) -> None:
    """Raises `ArgumentError` unless the arguments of these parameters are floats."""
    for name in by:
        kind = kinds[name]
        if parameters[name] in DIVIDED:
            problem = "has rows; differentiate by a parameter that is one number"
        elif isinstance(kind, types.Integer | types.Boolean):
            problem = f"is an integer; pass a float, as in {name}=2.0"
        elif parameters[name] != "whole" and (kind is None or isinstance(kind, types.Float)):
            continue
        else:
            problem = "is an array; make the number a parameter of its own"
        raise ArgumentError(f"{function}: {name} {problem}")
