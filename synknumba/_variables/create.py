"""Creation of variables: `variable` and `vector`."""

from typing import Any, final

import numpy as np
from numpy.typing import DTypeLike

from synknumba import _tracing as tracing
from synknumba._errors import ArgumentError, DataError
from synknumba._host.casting import accept, fill
from synknumba._ops.tree import flatten as take_apart
from synknumba._ops.tree import is_nested
from synknumba._types import Array, class_text, known_options
from synknumba._variables.collective_call import collective_call
from synknumba._variables.state import VariableState, label_of_name, refuse_on_rank
from synknumba._variables.variable import Variable, plain_value, state_of
from synknumba._world.open_world import open_world


@known_options
def variable(value: Any, name: str | None = None, *, dtype: DTypeLike | None = None) -> Variable:
    """Creates a variable: an array, or a tree of arrays, that stays on the ranks between calls.

    Every rank starts with a replica of the value. If no world is open, the variable is placed on
    the ranks at its first use.

    Args:
        value: array, `Data`, number or nested list of numbers, of any fixed-size dtype and any
            number of dimensions, including 0; or a nested dict, list or tuple of these, which makes
            one variable with several arrays. A variable stands for its value, as `get_value()`
            returns it.
        name: name in messages.
        dtype: dtype of all arrays; default: that of each value. Casts must be safe.

    Returns:
        The `Variable`.

    Raises:
        DataError: there is no array, its dtype cannot be stored on the ranks, or the value does not
            cast safely to `dtype`.
        ArgumentError: `name` is not a string.
        WorldError: this process is a rank.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> with synk.fork(2, device="cpu"):
        ...     w = synk.variable(np.ones(3), name="w")
        ...     w
        <Variable 'w' float64 (3,), on 2 cpu ranks, replicas equal>
    """
    tracing.refuse("synk.variable()")
    return _place_now(_make(value, name, dtype, flat=False))


@known_options
def vector(tree: Any, name: str | None = None, *, dtype: DTypeLike | None = None) -> Variable:
    """Creates a variable whose arrays are stored as one contiguous vector, so that a collective
    transfers all of them at once.

    Functions receive the same tree of arrays as for any other variable.

    Args:
        tree: nested dict, list or tuple of arrays of one dtype. A variable stands for its value, as
            `get_value()` returns it.
        name: name in messages.
        dtype: dtype of all arrays; default: their own.

    Returns:
        The `Variable`.

    Raises:
        DataError: the arrays have different dtypes; otherwise as for `variable`.
        ArgumentError, WorldError: as for `variable`.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> with synk.fork(2, device="cpu"):
        ...     gradients = synk.vector({"w": np.ones(2), "b": 1.0})
        ...     synk.all_reduce(gradients, "sum").get_value()
        {'w': array([2., 2.]), 'b': array(2.)}
    """
    tracing.refuse("synk.vector()")
    flattened = _make(tree, name, dtype, flat=True)
    dtypes = state_of(flattened).dtypes()
    kinds = sorted(set(map(str, dtypes)))
    if len(kinds) > 1:
        advice = "convert them, or pass dtype="
        if all(dtype.kind in "biufc" for dtype in dtypes):
            advice += f'"{np.result_type(*dtypes)}"'
        raise DataError(f"vector needs arrays of one dtype, got {', '.join(kinds)}; {advice}")
    return _place_now(flattened)


def _make(value: Any, name: str | None, dtype: DTypeLike | None, *, flat: bool) -> Variable:
    leaves, structure = take_apart(_told_apart(value))
    refuse_on_rank("variables are created")
    if name is not None and not isinstance(name, str):
        raise ArgumentError(
            f"a variable's name must be a string, got {name!r}; pass a dtype as dtype=…"
        )
    label = label_of_name(name)
    if not leaves:
        raise DataError(f"{label} has no arrays; pass at least one")
    return Variable(
        VariableState([_owned(leaf, dtype, label) for leaf in leaves], structure, name, flat=flat)
    )


def _place_now(created: Variable) -> Variable:
    """Places a new variable on the ranks if a world is open, and returns it."""
    if open_world() is not None:
        with collective_call([state_of(created)]):
            return created
    return created


def _owned(value: Any, dtype: DTypeLike | None, label: str) -> Array:
    """Returns a copy of an initial value, in native byte order."""
    plain = value.value if isinstance(value, _Numbers) else plain_value(value)
    try:
        if dtype is None:
            dtype = np.asarray(plain).dtype
        requested = np.dtype(dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{label}: {class_text(plain)} cannot be read as an array: {error}"
        ) from error
    if requested.subdtype is not None:
        raise DataError(
            f"{label}: dtype {requested} is a subarray dtype; pass the dtype of "
            f"its items, {requested.base}"
        )
    if requested.hasobject or requested.itemsize == 0:
        raise DataError(
            f"{label}: dtype {requested} cannot be stored on the ranks; pass one of "
            f"fixed size, such as float64"
        )
    native = requested.newbyteorder("=")
    source = accept(plain, native, None, label, force_cast=None)
    copied: Array = np.empty(source.shape, native)
    fill(copied, source)
    return copied


@final
class _Numbers:
    """Marks a nested list of numbers, which becomes one array; lists of arrays are trees."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _told_apart(value: Any) -> Any:
    """Returns an initial value with lists of numbers marked, and variables as their values."""
    if isinstance(value, Variable):
        return value.get_value()
    if not is_nested(value):
        return value
    if isinstance(value, dict):
        return {key: _told_apart(child) for key, child in value.items()}
    if value and _is_numbers(value):
        return _Numbers(value)
    children = list(map(_told_apart, value))
    if isinstance(value, list):
        return children
    if hasattr(value, "_fields"):
        return type(value)(*children)
    return tuple(children)


def _is_numbers(value: Any) -> bool:
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return all(map(_is_numbers, value))
    return isinstance(value, bool | int | float | complex | np.generic)
