"""`Variable`: an array, or a tree of arrays, that stays on the ranks between calls, as scripts see
it.

`Variable` has users' names only. Everything else asks its `VariableState` (`state.py`), of which a
variable is a thin handle.
"""

import math
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np
from numpy.typing import DTypeLike

from synknumba import _html
from synknumba import _tracing as tracing
from synknumba._errors import ArgumentError, DataError, MemberError, named_by_base, shortened
from synknumba._host.casting import accept
from synknumba._host.data import Data
from synknumba._ops.tree import (
    LEAF,
    Structure,
    child,
    count_leaves,
    describe,
    parts_like,
    shape_text,
)
from synknumba._ops.variable_layout import VECTOR
from synknumba._types import ARITHMETIC, Array
from synknumba._variables.state import VariableState, refuse_on_rank
from synknumba._variables.values import Arrays


@final
class Variable:
    """An array, or a nested tree of arrays, on every rank. Created by `variable` and `vector`.

    Pass it to functions like any other argument: on each rank the function receives the rank's own
    array, and may write to it in place. A variable may be used by any number of functions, and in
    collectives, and in world after world.

    `shape`, `size` and `nbytes` are those on the root, rank 0; `get_shapes` and `get_lengths`
    return those on all ranks. Of a variable scattered with a halo, `shape`, `size`, `nbytes` and
    `get_shapes` count the rows of the halos; values and lengths are those of each rank's own rows.
    `np.asarray`, `bool`, `int` and `float` copy the root's array to the coordinator. If the
    variable is divided, so that each rank has rows of its own, or shapes differ between ranks, they
    and `len` raise `PartitionError`.

    A variable cannot be pickled. In a process forked from the coordinator, one on cores can be
    read, and one on GPUs cannot.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function
        ... def add(v, by):
        ...     v += by
        >>> v = synk.variable(np.zeros(3), name="v")
        >>> with synk.fork(2, device="cpu"):
        ...     add(v, synk.RANK)  # replicas differ from now on
        ...     synk.gather(v)
        array([[0., 0., 0.],
               [1., 1., 1.]])
    """

    __slots__ = ("__weakref__", "_state")

    def __init__(self, state: VariableState) -> None:
        self._state = state

    # ---- properties

    @property
    def name(self) -> str | None:
        """Name in messages; None or any string. Settable."""
        return self._state.name

    @name.setter
    def name(self, name: str | None) -> None:
        self._state.name = name

    @property
    def dtype(self) -> Any:
        """Dtype; for a tree, the tree of dtypes."""
        return self._state.as_tree(self._state.dtypes())

    @property
    def shape(self) -> Any:
        """Shape on the root; for a tree, the tree of shapes."""
        return self._state.as_tree(self._state.root_shapes())

    @property
    def ndim(self) -> Any:
        """Number of dimensions, which never changes; for a tree, the tree of these numbers."""
        return self._state.as_tree(list(map(len, self._state.root_shapes())))

    @property
    def size(self) -> int:
        """Number of elements on the root, in all arrays."""
        return sum(map(math.prod, self._state.root_shapes()))

    @property
    def nbytes(self) -> int:
        """Bytes of the elements on the root, in all arrays."""
        return self._state.nbytes

    @shortened
    def __len__(self) -> int:
        """Returns the number of rows of a replica; `PartitionError` if the variable is divided."""
        state = self._state
        shapes = state.root_shapes()
        if state.is_tree or not shapes[0]:
            kind = "a tree" if state.is_tree else "0-d"
            raise ArgumentError(f"{state.label} has no length: it is {kind}")
        state.check_whole(
            "length",
            "use synk.get_lengths(v), or len() of get_value(rank=…) or of synk.gather(v, nd_up=0)",
        )
        if state.halo is None:
            return shapes[0][0]
        return state.storage().layout.own_counts(0)[0]

    def __repr__(self) -> str:
        """Shows name, dtype, shape, location, and whether replicas may differ."""
        return repr(self._state)

    def _repr_html_(self) -> str | None:
        """Shows arrays, place and rows in a notebook; values only where no rank has to send
        them.
        """
        return _html.of_variable(self._state)

    # ---- values

    @shortened
    def get_value(self, rank: int | None = None) -> Any:
        """Returns a copy of one rank's array, without the rows of halos.

        Called in the coordinator, between calls. Without an open world, returns what the next world
        would start from.

        Args:
            rank: rank to read; None for the root, whose replica may differ from others if a
                function has written to them and no collective was called since.

        Returns:
            A NumPy array; for a tree, the tree of arrays.

        Raises:
            PartitionError: there is no such rank, or `rank` is None and the variable is divided:
                each rank has rows of its own, or shapes differ between ranks.
            VariableLost: the values ended with the ranks of their world.
            WorldError: this process is a rank.
        """
        return self._state.value(rank)

    @shortened
    def set_value(self, value: Any, rank: int | None = None) -> None:
        """Sets the arrays of all ranks, or of one rank, to a new value.

        Called in the coordinator, between calls. If one rank is set, the others keep their arrays,
        so replicas may differ afterwards. Before a world is open, `rank` must be None or 0, and the
        value becomes the initial value on all ranks. A variable whose values are lost has a value
        again.

        Args:
            value: array, `Data`, number or nested list; for a tree, a tree of these. The number of
                dimensions must be the variable's, and the dtype must cast safely to the variable's.
                The shape may differ, unless the variable is scattered with a halo: the value is
                then the rank's own rows, and halos stay as they are until `exchange`.
            rank: rank to write to; None for all.

        Raises:
            DataError: the value has another number of dimensions, or its dtype does not cast
                safely; nothing has changed.
            PartitionError: there is no such rank, or `rank` is None and the variable is divided, or
                a value for a variable with a halo has another shape than the rank's own rows;
                nothing has changed.
            VariableLost: one rank is set, and the values on the others are lost.
            WorldError: this process is a rank, or there is no world and `rank` is given.
        """
        refuse_on_rank("variables are set")
        self._state.set_value(accepted(self._state, value), rank)

    @shortened
    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Returns a copy of the root's array; raises `PartitionError` if the variable is
        divided.
        """
        _refuse_in_body(self._state.label)
        if copy is False:
            raise ValueError(
                f"{self._state.label} lives on the ranks; np.asarray of it is always a copy"
            )
        if self._state.is_tree:
            raise ArgumentError(
                f"{self._state.label} is a tree {describe(self._state.structure())}; use "
                "get_value()"
            )
        return np.asarray(self.get_value(), dtype=dtype)

    @shortened
    def __bool__(self) -> bool:
        return bool(np.asarray(self))

    @shortened
    def __int__(self) -> int:
        return int(np.asarray(self))

    @shortened
    def __float__(self) -> float:
        return float(np.asarray(self))

    if not TYPE_CHECKING:  # else a checker would accept every attribute

        def __getattr__(self, name: str) -> Any:
            """Raises for an attribute that it does not have; in the body of a sequence with the
            line.
            """
            if name != "_state":  # a variable that is not made yet
                tracing.refuse_member(self._state.label, name)
            return object.__getattribute__(self, name)  # raises the usual error

    def __reduce__(self) -> NoReturn:
        """Raises `DataError`: a copy in another process would not be the variable."""
        raise DataError(
            f"{self._state.label} cannot be pickled or deep-copied: it lives on the ranks. Pass it "
            "as an argument instead of capturing it in the function, or use get_value()"
        )


_REFUSED_METHODS = (
    *(f"__{side}{name}__" for name in ARITHMETIC for side in ("", "r")),
    *(f"__{name}__" for name in ("neg", "pos", "abs", "invert", "lt", "le", "gt", "ge", "getitem")),
)


def _refuse_in_body(label: str) -> None:
    """Raises `ArgumentError` in the body of a sequence, which has no values of variables."""
    if tracing.current is not None and tracing.current.is_here:
        raise ArgumentError(_of_a_body(label, tracing.current.name))


def _of_a_body(label: str, sequence: str) -> str:
    """Returns that the body of a sequence has no values of a variable, and the way out."""
    return (
        f"{tracing.where()}: {label} lives on the ranks, and the body of {sequence} cannot compute "
        "with it or index it; pass it to a kernel or function, which for a sum, mean or maximum "
        "has an output, whose result the body may return"
    )


@shortened
def _refuse_arithmetic(self: Variable, *_: object) -> NoReturn:
    _refuse_in_body(self._state.label)
    raise ArgumentError(
        f"{self._state.label} lives on the ranks, and the script cannot compute with it or index "
        "it; use get_value(), as in v.get_value() + 1 or v.get_value()[0], or pass it to a function"
    )


@shortened
def _refuse_assignment(self: Variable, *_: object) -> NoReturn:
    raise ArgumentError(
        f"{self._state.label} lives on the ranks, and the script cannot assign its elements; use "
        "set_value(), or pass it to a function"
    )


@named_by_base
class _NoBranchError(ArgumentError, IndexError):
    """Raised for a key that a tree does not have; ends an iteration over a list, too."""


@final
class Branch:
    """An array, or a subtree, of a variable that is a tree, as an argument of a call in a sequence:
    `params["w"]`.

    Attributes:
        variable: the variable's state.
        structure: of the subtree.
        leaves: indices of its arrays among those of the variable.
        label: name in messages.
    """

    def __init__(
        self, variable: VariableState, structure: Structure, leaves: range, label: str
    ) -> None:
        self.variable, self.structure, self.leaves, self.label = variable, structure, leaves, label

    def __getitem__(self, key: Any) -> "Branch":
        try:
            first, structure = child(self.structure, key)
        except (KeyError, IndexError, TypeError):
            raise _NoBranchError(
                f"{self.label} has no array or subtree {key!r}: it is {describe(self.structure)}"
            ) from None
        start = self.leaves.start + first
        return Branch(
            self.variable,
            structure,
            range(start, start + count_leaves(structure)),
            f"{self.label}[{key!r}]",
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name in {"get_value", "set_value"}:
            raise MemberError(
                f"{tracing.where()}: {self.label} is for calls, and has no {name}(); use that of "
                f"{self.variable.label}, before or after the call"
            )
        tracing.refuse_member(self.label, name)
        raise MemberError(
            f"{self.label} has no {name!r}: it is a part of a variable, for calls "
            f"in the body of a sequence"
        )

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        name = "the sequence" if tracing.current is None else tracing.current.name
        raise ArgumentError(_of_a_body(self.label, name))

    __len__ = __bool__ = __int__ = __float__ = __index__ = __contains__ = __array_ufunc__ = (
        __array_function__
    ) = _refuse

    @property
    def arrays(self) -> range:
        """Indices of the arrays whose memory it has: its leaves, or all of a vector."""
        return self.variable.leaves() if self.leaves.start == VECTOR else self.leaves

    def __repr__(self) -> str:
        """Shows its name."""
        return self.label


@shortened
def _branch(self: Variable, key: Any) -> Branch:
    """Returns a part of a tree, in the body of a sequence."""
    state = state_of(self)
    if not state.is_tree:
        _refuse_arithmetic(self)
    if tracing.current is None or not tracing.current.is_here:
        raise ArgumentError(
            f"{state.label} is a tree whose arrays live on the ranks, and only the body of a "
            f"sequence can index it, to pass one; use get_value(), as in v.get_value()[{key!r}], "
            "or pass the whole tree to a function"
        )
    return Branch(state, state.structure(), state.leaves(), state.label)[key]


for _name in _REFUSED_METHODS:
    setattr(Variable, _name, _refuse_arithmetic)
    if _name != "__getitem__":
        setattr(Branch, _name, Branch._refuse)  # noqa: SLF001  # of this module
setattr(Variable, "__getitem__", _branch)  # noqa: B010  # not for type checkers, as the others
for _name in ("__setitem__", "__delitem__"):
    setattr(Variable, _name, _refuse_assignment)


def vector_of(variable: Variable) -> Branch:
    """Returns all arrays of a flat variable as one vector, as an argument of a call."""
    state = state_of(variable)
    assert state.is_flat
    return Branch(state, LEAF, range(VECTOR, VECTOR + 1), f"the vector of {state.label}")


def state_of(variable: Variable) -> VariableState:
    """Returns the state of a variable, with which the package works."""
    return variable._state  # noqa: SLF001  # for the package


def layout_of(array: Data | Variable) -> tuple[Any, ...]:
    """Returns the key of a `Data` or a variable in plans."""
    if isinstance(array, Data):
        return array._layout  # noqa: SLF001  # as a key
    return array._state._layout  # noqa: SLF001  # as a key


def accepted(state: VariableState, value: Any) -> Arrays:
    """Returns the arrays of a new value; raises `DataError` if it does not fit. Changes nothing."""
    kinds = zip(state.dtypes(), map(len, state.root_shapes()), strict=True)
    if not state.is_tree:
        ((dtype, ndim),) = kinds
        return [accept(plain_value(value), dtype, ndim, state.label, force_cast=None)]
    leaves = parts_like(state.structure(), plain_value(value))
    if leaves is None:
        raise DataError(
            f"{state.label} is a tree {describe(state.structure())}, but the "
            f"value is {shape_text(value)}"
        )
    return [
        accept(plain_value(leaf), dtype, ndim, state.label_of(i), force_cast=None)
        for i, (leaf, (dtype, ndim)) in enumerate(zip(leaves, kinds, strict=True))
    ]


def plain_value(value: Any) -> Any:
    """Returns a value in a form that NumPy can read: the array of a `Data`, or the value of a
    variable that is not divided.
    """
    if isinstance(value, Data):
        return value.data
    if isinstance(value, Variable):
        return value.get_value()
    return value
