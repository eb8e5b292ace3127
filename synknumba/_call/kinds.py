"""What an argument of a call is: its kind, its key in the fast paths, and its text in reports.

kind_of(value)       decides which parameter the ranks get (`bind.py`)
repeated_key(args)   stands for the arguments of a call that is looked up, not bound (`plan_cache.py`)
describe(value)      dtype and shape of an array, the value of a number
"""  # noqa: E501

from collections.abc import Callable
from enum import Enum
from typing import Any, Literal, TypeAlias

import numpy as np

from synknumba._call.arguments import IndexRange, PerRankValues
from synknumba._host.data import Data
from synknumba._host.file_data import FileData
from synknumba._host.foreign import has_array, is_foreign
from synknumba._host.stored import StoredData
from synknumba._ops.tree import is_nested
from synknumba._tracing import Number
from synknumba._types import Args, RankConstant, Shape
from synknumba._variables.state import VariableState
from synknumba._variables.variable import Branch, Variable, layout_of, state_of

ShapeOf: TypeAlias = Callable[[VariableState, int], Shape]
"""Returns the shape of an array of a variable, given its index."""

TEXT_LENGTH = 40  # of a value in a report; of longer ones, the type is shown


# What an argument, or a leaf of a nested one, is. A branch is a part of a variable that is a tree;
# an array is NumPy's, a foreign one another library's; a stand-in is a number of a sequence, known
# when it runs; what is filled in differs between ranks.
Kind: TypeAlias = Literal[
    "variable",
    "branch",
    "data",
    "array",
    "foreign",
    "number",
    "stand-in",
    "filled",
    "tree",
    "constant",
]

_BY_CLASS: dict[type, Kind] = {
    Data: "data",
    np.ndarray: "array",
    Variable: "variable",
    float: "number",
    int: "number",
    bool: "number",
    RankConstant: "filled",
    str: "constant",
    type(None): "constant",
}

_BY_BASE: tuple[tuple[Any, Kind], ...] = (
    (Variable, "variable"),
    (Branch, "branch"),
    (Data, "data"),
    (Enum, "constant"),  # before numbers, which it may be
    (bool | int | float | complex | np.generic, "number"),
    (Number, "stand-in"),
    (np.ndarray, "array"),
    (IndexRange | PerRankValues, "filled"),
)


def kind_of(value: Any) -> Kind:
    """Returns what an argument is."""
    kind = _BY_CLASS.get(type(value))
    if kind is not None:
        return kind
    for base, kind in _BY_BASE:
        if isinstance(value, base):
            return kind
    if is_nested(value):
        return "tree"
    if has_array(value) or is_foreign(value):
        return "foreign"
    return "constant"


# ---- keys of the fast paths


def repeated_key(args: Args) -> tuple[Any, ...] | None:
    """Returns what stands for arguments in the key of a fast path; None if one is of a kind that
    it does not take.

    The fast paths, of functions and of sequences, look at arguments inline, in the same way.
    """
    key: list[Any] = []
    for arg in args:
        kind = type(arg)
        if kind is Variable:
            key.append(layout_of(arg))
        elif kind in (Data, FileData, StoredData):
            key.append(arg._layout)  # noqa: SLF001  # as the fast paths do
        elif kind is float or (kind is int and -(2**63) <= arg < 2**63):
            key.append(kind)
        elif kind is RankConstant:
            key.append(arg)
        else:
            return None
    return tuple(key)


# ---- texts


def type_told(value: Any) -> str:
    """Describes the type of an argument; of a number of a sequence, that of what ranks get."""
    if isinstance(value, Number):
        if value.dtype is not None:
            return value.dtype
        return "int" if value.is_int else "float"
    return type(value).__name__


def describe(value: Any, shape_of: ShapeOf = VariableState.root_shape) -> str:
    """Describes an argument briefly: dtype and shape of an array, the value of a number.

    `shape_of` is by default the shape on the root.
    """
    match value:
        case FileData() | StoredData():
            return f"{value.dtype} {value.shape} in {value.path}"
        case np.memmap():
            return f"{value.dtype} {value.shape} in a file"
        case Data() | np.ndarray():
            return f"{value.dtype} {value.shape}"
        case Variable():  # its repr shows what changes from call to call
            state = state_of(value)
            return _describe_variable(state, range(1), state.is_tree, shape_of)
        case Branch(variable=state, leaves=leaves):
            return _describe_variable(state, leaves, len(leaves) > 1, shape_of)
    text = repr(value)
    if len(text) > TEXT_LENGTH:
        return type(value).__name__
    return text


def _describe_variable(
    variable: VariableState, leaves: range, is_tree: bool, shape_of: ShapeOf
) -> str:
    if is_tree:
        return "variable, a tree"
    first = leaves.start
    return f"variable {variable.dtypes()[first]} {shape_of(variable, first)}"
