"""Arguments whose rows a call writes (`inout=`): arrays that can be written, each passed once."""

from collections.abc import Collection

import numpy as np

from synknumba._call.call import Arguments, named_leaves
from synknumba._errors import ArgumentError
from synknumba._host.data import Data
from synknumba._ops.tree import flatten, paths
from synknumba._types import Array
from synknumba._wire.program import Broadcast, Held, HeldRows, Sharded, leaves_of

_WRITABLE = (Sharded, Held, HeldRows)  # what a function may write in place


def check_contents(function: str, arguments: Arguments, inout: Collection[str]) -> None:
    """Raises `ArgumentError` if an argument is to be written back and contains no array that
    can be; None is allowed.
    """
    for name in inout:
        value, leaves = arguments.passed.get(name), list(leaves_of(arguments.parameters[name]))
        if value is None or not leaves or any(isinstance(leaf, _WRITABLE) for leaf in leaves):
            continue
        problem = f"of type {type(value).__name__}, without any"
        if isinstance(value, np.ndarray | Data) and np.ndim(value) == 0:
            problem = "0-d, and ranks get it as a number"
        raise ArgumentError(
            f"{name} of {function} is in inout=, so its rows are written back, but it is "
            f"{problem}; pass an array with rows, or Data"
        )


def check_target(arguments: Arguments, path: str, array: Array) -> None:
    """Raises `ArgumentError` if rows cannot be written back to a NumPy array, or overlap those of
    another.
    """
    if not array.flags.writeable:
        raise ArgumentError(
            f"{path} is in inout=, so its rows are written back, but the array passed is "
            f"read-only; pass a writable one"
        )
    for earlier, target, _ in arguments.write_back:
        if share_memory(array, target):
            raise ArgumentError(
                f"{_both(path, earlier)} in inout=, and their arrays overlap: one would "
                f"overwrite the other. Pass a copy."
            )


def check_aliases(arguments: Arguments, inout: Collection[str]) -> None:
    """Raises `ArgumentError` if the rows of an argument are written, and another has them."""
    owners: dict[int, str] = {}
    writers: dict[int, str] = {}
    for name, param in arguments.parameters.items():
        for path, leaf in named_leaves(name, param):
            match leaf:
                case Sharded(place, writable=True):
                    _refuse_same(path, owners.get(place.segment), written=path)
                    writers[place.segment] = path
                case Sharded(place) | Broadcast(place):
                    writer = writers.get(place.segment)
                    _refuse_same(path, writer, written=writer)
                case _:
                    continue
            owners[place.segment] = path
    for target, array, _ in arguments.write_back:
        for name in inout & arguments.passed.keys():
            for path, data in _data_in(name, arguments.passed[name]):
                if share_memory(array, data.data):
                    raise ArgumentError(
                        f"{_both(target, path)} in inout=, and {target} is an array "
                        f"over the memory of the Data passed as {path}: one would "
                        "overwrite the other. Pass a copy."
                    )


def _refuse_same(path: str, earlier: str | None, *, written: str | None) -> None:
    if earlier is not None:
        raise ArgumentError(
            f"{path} and {earlier} are the same Data, and {written} is "
            "in inout=; ranks would read rows that others write. Pass a copy."
        )


def _data_in(name: str, value: object) -> list[tuple[str, Data]]:
    leaves, structure = flatten(value)
    return [
        (f"{name}{path}", leaf)
        for path, leaf in zip(paths(structure), leaves, strict=True)
        if isinstance(leaf, Data)
    ]


def _both(path: str, second: str) -> str:
    if path == second:
        return f"{path} is"
    return f"{path} and {second} are both"


def share_memory(a: Array, b: Array) -> bool:
    """Returns whether two arrays overlap, or may do so."""
    try:
        return bool(np.shares_memory(a, b, max_work=10_000))  # type: ignore[arg-type]  # any int is accepted
    except np.exceptions.TooHardError:  # deciding whether two strided views overlap can take long
        return True
