"""Variables as arguments of a call: each rank's own arrays, rows of them, or accumulators that they are assigned from."""

import itertools
from collections.abc import Collection, Mapping
from typing import final

from synknumba._call.bound_arguments import Bound
from synknumba._errors import ArgumentError
from synknumba._ops import rows as rows_module
from synknumba._types import Op, Shape
from synknumba._variables.variable import Variable
from synknumba._wire.program import FunctionStyle, Held, HeldRows, Param, Tree, Update


@final
class VariableBinder:
    """Binds the variables of one function's calls."""

    def __init__(
        self,
        name: str,
        style: FunctionStyle,
        *,
        inout: Collection[str],
        givens: Collection[str],
        sliceable: Collection[str],
        updates: Mapping[str, tuple[Variable, Op]],
    ) -> None:
        self._name = name
        self._style = style
        self._inout = frozenset(inout)
        self._givens = frozenset(givens)
        self._sliceable = frozenset(sliceable)
        self._updated = {id(variable) for variable, _ in updates.values()}

    def param(self, bound: Bound, name: str, path: str, variable: Variable) -> Param:
        """Each rank's own arrays.

        Args:
            bound: the call so far.
            name: the parameter.
            path: the same, or the leaf of a nested one, as it is named in messages.
            variable: the argument.
        """
        if variable.is_tree and self._style == "kernel":
            message = f"{path} of {self._name} is a tree of arrays, and a kernel takes arrays; make a variable of each"
            raise ArgumentError(message)
        read_only = id(variable) in self._updated
        if read_only and name not in self._givens:
            message = (
                f"{path} of {self._name} is {variable.label}, which the call also assigns (updates=); bind it with givens= to "
                f"read its old value"
            )
            raise ArgumentError(message)
        self._claim(bound, path, variable)
        sliceable = name in self._sliceable
        self._check_whole(bound, path, variable)
        number = self._place(bound, variable)
        if sliceable:
            self._count_rows(bound, path, variable)
        params = [
            HeldRows(number, leaf, name in self._inout) if sliceable else Held(number, leaf, read_only)
            for leaf in variable.leaves()
        ]
        if not (read_only or (sliceable and name not in self._inout)):
            bound.changed.append(variable)
        return Tree(variable.structure(), tuple(params)) if variable.is_tree else params[0]

    def update(self, bound: Bound, name: str, variable: Variable, op: Op) -> Param:
        """An accumulator with the shape of a variable."""
        if variable.is_tree and self._style == "kernel":
            message = (
                f"updates[{name!r}] of {self._name} is a tree of arrays, and a kernel takes arrays; make a variable of each"
            )
            raise ArgumentError(message)
        if not any(variable is one for one in bound.variables.values()):
            self._claim(bound, name, variable)
        self._check_whole(bound, name, variable)
        number = self._place(bound, variable)
        bound.changed.append(variable)
        shapes = _shapes_by_rank(bound, variable)
        params = [Update(number, leaf, op, variable.dtypes()[leaf], shapes[leaf]) for leaf in variable.leaves()]
        return Tree(variable.structure(), tuple(params)) if variable.is_tree else params[0]

    def _check_whole(self, bound: Bound, path: str, variable: Variable) -> None:
        """Refuses to run on the root alone with rows that are not there."""
        if bound.solo and variable.sharded:
            message = (
                f"{path} of {self._name} is {variable.label}, of which each rank has its own rows; as_serial needs "
                f"all on the root"
            )
            raise ArgumentError(message)

    def _claim(self, bound: Bound, path: str, variable: Variable) -> None:
        for other, claimed in bound.variables.items():
            if claimed is variable:
                message = f"{path} and {other} of {self._name} are the same variable, {variable.label}; pass it once"
                raise ArgumentError(message)
        bound.variables[path] = variable

    @staticmethod
    def _place(bound: Bound, variable: Variable) -> int:
        if bound.world is None:
            bound.key.append(id(variable))
            return -1
        number = variable.place(bound.world).number
        bound.key.append(variable._layout)  # noqa: SLF001  # as that of Data
        return number

    def _count_rows(self, bound: Bound, path: str, variable: Variable) -> None:
        for leaf, by_rank in enumerate(_shapes_by_rank(bound, variable)):
            if not by_rank[0]:
                message = f"{path} of {self._name} is in sliceable=, but {variable.label} is 0-d and has no rows"
                raise ArgumentError(message)
            bound.own_lengths[path if not variable.is_tree else f"{path}, array {leaf}"] = tuple(shape[0] for shape in by_rank)


def _shapes_by_rank(bound: Bound, variable: Variable) -> list[tuple[Shape, ...]]:
    """The shapes of each array on the ranks of the call; where it is only worked out, for as many ranks as it is for."""
    size = bound.world_size
    placed = variable._layout[1] >= 0  # noqa: SLF001  # as that of Data
    if placed and len(variable.shapes()[0]) == size:
        return variable.shapes()
    if not variable.sharded:
        return [(shape,) * size for shape in variable.root_shapes()]
    out = []
    for shapes in variable.shapes():  # as if all its rows were scattered over so many
        edges = rows_module.bounds(sum(shape[0] for shape in shapes), size)
        out.append(tuple((stop - start, *shapes[0][1:]) for start, stop in itertools.pairwise(edges)))
    return out
