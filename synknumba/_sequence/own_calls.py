"""Calls that a sequence makes by itself."""

from functools import cache
from typing import Any

from synknumba._call.arguments import output
from synknumba._call.function import Function
from synknumba._call.options import FunctionOptions
from synknumba._ops.launch import LaunchConfig
from synknumba._ops.tree import flatten


@cache
def exchange() -> Function[..., Any]:
    """Returns the function that exchanges what two variables hold."""
    return Function(_exchange, FunctionOptions("function", has_ops=False), "exchange of contents")


def _exchange(first: Any, second: Any) -> None:
    for u, v in zip(flatten(first)[0], flatten(second)[0], strict=True):
        before = u.copy()
        u[...] = v
        v[...] = before


@cache
def number_call(dtype: str) -> Function[..., Any]:
    """Returns the kernel whose result is a number, which all ranks have, for the script."""
    outputs = {"number": output("max", shape=(), dtype=dtype)}
    options = FunctionOptions("kernel", outputs=outputs, launch=LaunchConfig(1, 1, 0))
    return Function(_store, options, "number of the ranks")


def _store(value: Any, number: Any) -> None:
    number[0] = value
