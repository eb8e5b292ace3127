"""Contents of a call as arrays, read and set: arguments, variables, and what the call returns."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, Final, TypeAlias

import numpy as np

from synknumba._call.arguments import PerRankValues
from synknumba._errors import SynkError
from synknumba._host.data import Data
from synknumba._ops.tree import is_nested
from synknumba._source.reached import reads_of
from synknumba._types import Args, Array, Kwargs, RankConstant
from synknumba._variables.state import VariableState
from synknumba._variables.variable import Variable, state_of
from synknumba._world.world import rank, world_size
from synknumba.simt.internals import names_in

BY_RANK: Final = RankConstant.RANK  # stands for all that has a value for each rank
RESULT = "the result"  # label of what a call returns
_LABELS = dict.fromkeys(("vars", "self"), "the variable")  # of parameters of collectives
_NUMBERS = "biufcmMV"  # kinds of dtypes that are compared by elements


@dataclass(frozen=True, slots=True)
class Content:
    """What an argument, a result or a variable has.

    Attributes:
        value: an array, BY_RANK, or of anything else a text.
        is_result: whether the call returns it.
        is_replica: whether it is a variable that all ranks have equal.
        assign: sets the elements to those of an array; None if that is not possible.
    """

    value: Any
    is_result: bool = False
    is_replica: bool = False
    assign: Callable[[Array], None] | None = None

    def set_to(self, array: Array) -> bool:
        """Returns whether the elements could be set to those of an array."""
        if self.assign is None:
            return False
        try:
            self.assign(array)
        except (SynkError, ValueError):  # read-only
            return False
        return True


Contents: TypeAlias = dict[str, Content]


def inputs(function: Any, args: Args, kwargs: Kwargs) -> Iterator[tuple[str, Any]]:
    """Yields what a call reads, by label: leaves of its arguments, and states of variables.

    The latter are those among the arguments, and those that the function uses beside them.
    """
    names = [*_parameters(function), *(f"argument {index + 1}" for index in range(len(args)))]
    for name, value in (*zip(names, args, strict=False), *kwargs.items()):
        yield from leaves(name, value)
    if _asks_for_rank(getattr(function, "py_func", None)):
        yield "synk.rank()", BY_RANK
    yield from _own_variables(function)


def leaves(label: str, value: Any, ranks: int | None = None) -> Iterator[tuple[str, Any]]:
    """Yields the leaves of a tree, by label; BY_RANK for a list with a value for each of several
    ranks.
    """
    if isinstance(value, list) and len(value) == ranks:
        yield label, BY_RANK
    elif is_nested(value):
        for path, child in _children(value):
            yield from leaves(label + path, child, ranks)
    elif isinstance(value, Variable):
        yield label, state_of(value)
    elif hasattr(value, "stderr") and hasattr(value, "mean"):
        # An estimate. A variance is a difference of sums, so its error is at the scale of the mean.
        mean, stderr = np.asarray(value.mean), np.asarray(value.stderr)
        yield f"{label}.mean", mean
        yield f"{label}.mean ± stderr", np.stack([mean - stderr, mean + stderr])
    else:
        yield label, value


def contents(values: Iterable[tuple[str, Any]]) -> Contents:
    """Returns the content of each value; a variable that occurs twice has one."""
    read: Contents = {}
    states = set()
    for label, value in values:
        if not isinstance(value, VariableState):
            read[label] = _content(label, value)
        elif value not in states:
            states.add(value)
            read.update(_of_variable(label, value))
    return read


def _children(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yields the children of an inner node, by path."""
    if isinstance(tree, dict):
        for key, child in tree.items():
            yield f"[{key!r}]", child
    elif hasattr(tree, "_fields"):
        for name, child in zip(tree._fields, tree, strict=True):
            yield f".{name}", child
    else:
        for index, child in enumerate(tree):
            yield f"[{index}]", child


def _content(label: str, value: Any) -> Content:
    """Returns the content of anything but a variable."""
    is_result = label.startswith(RESULT)
    if isinstance(value, PerRankValues) or value is BY_RANK or value is RankConstant.WORLD_SIZE:
        return Content(BY_RANK, is_result)
    if isinstance(value, Data):
        value = np.asarray(value.data)
    try:
        array = np.asarray(value)
    except Exception:  # noqa: BLE001  # of other libraries
        array = np.empty(0, object)
    if array.dtype.kind in _NUMBERS and not array.dtype.hasobject:
        assign = partial(array.__setitem__, ...) if array is value else None
        return Content(array, is_result, assign=assign)
    text = repr(value)
    if " at 0x" in text:
        text = type(value).__name__
    return Content(text, is_result)


def _of_variable(label: str, state: VariableState) -> Contents:
    """Returns a content for each array of a variable."""
    try:
        wholes = state.whole_arrays()
    except SynkError:
        return {label: Content(BY_RANK)}
    steps = state.leaf_paths() if state.is_tree else [""]
    arrays: Contents = {}
    for leaf, (step, array) in enumerate(zip(steps, wholes, strict=True)):
        assign = partial(_set_leaf, state, leaf)
        arrays[label + step] = Content(array, is_replica=not state.sharded, assign=assign)
    return arrays


def _set_leaf(state: VariableState, leaf: int, values: Array) -> None:
    """Sets an array of a variable: a replica on all ranks, or each rank's own rows."""
    if not state.sharded:
        wholes = state.whole_arrays()
        wholes[leaf] = np.array(values)
        state.set_value(wholes, None)
        return
    start = 0
    for index in range(len(state.shapes()[leaf])):
        (arrays,) = state.fetch([index])
        stop = start + len(arrays[leaf])
        arrays[leaf] = np.array(values[start:stop])
        state.set_value(arrays, index)
        start = stop


def _parameters(function: Any) -> list[str]:
    """Returns the names of the parameters that a call passes by position, where they are known."""
    binder = getattr(function, "_binder", None)
    if binder is not None:
        return list(binder.passed)
    if not isinstance(function, FunctionType):
        return []
    return [_LABELS.get(name, name) for name in inspect.signature(function).parameters]


def _asks_for_rank(plain: Any) -> bool:
    """Returns whether the source of a function names `synk.rank` or `synk.world_size`."""
    if not isinstance(plain, FunctionType):
        return False
    for read in reads_of(plain):
        if read.value is rank or read.value is world_size:
            return True
        if isinstance(read.value, ModuleType) and getattr(read.value, "rank", None) is rank:
            return not {"rank", "world_size"}.isdisjoint(names_in(plain.__code__))
    return False


def _own_variables(function: Any) -> Iterator[tuple[str, VariableState]]:
    """Yields variables that a function has beside its arguments.

    These are in updates=, in givens=, among globals and closure values, and those of training.
    """
    plain, values = getattr(function, "py_func", None), list[tuple[str, Any]]()
    if isinstance(plain, FunctionType):
        values += ((read.name, read.value) for read in reads_of(plain))
    options = getattr(function, "_options", None)
    if options is not None:
        values += options.givens.items()
        for name, (state, _) in options.updates.items():
            yield name, state
    values.append(("params", getattr(function, "params", None)))
    for name, value in values:
        if isinstance(value, Variable):
            yield name, state_of(value)
