"""Binding of a call's arguments: each is checked, and becomes a parameter for the ranks.

    array, `Data`                        Sharded, Broadcast
    number                               Dynamic: sent with each call
    `arange`, RANK, …, `per_rank`        IndexSpan, Filled, PerRank
    variable                             Held, HeldRows, Update: each rank's own arrays, rows of them, accumulators
    dict, list, tuple (functions only)   Tree of these
    anything else                        Constant: part of the plan

All errors in arguments are found here, in the coordinator, before anything is sent.
"""

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Any, final

import cloudpickle
import numpy as np

from synknumba._call.arguments import IndexRange, PerRankValues
from synknumba._call.bound_arguments import Bound, leaves_of
from synknumba._call.options import FunctionOptions
from synknumba._errors import ArgumentError, DataError
from synknumba._host.data import Data
from synknumba._ops.rows import Partition
from synknumba._ops.tree import flatten, is_nested
from synknumba._types import Array, Op, RankConstant, Shape
from synknumba._variables.variable import Variable
from synknumba._wire.program import (
    Broadcast,
    Constant,
    Dynamic,
    Filled,
    FunctionStyle,
    Held,
    HeldRows,
    HostArray,
    IndexSpan,
    Param,
    PerRank,
    Sharded,
    Tree,
    Update,
)
from synknumba._world.world import World


@final
class VariableBinder:
    """Binds the variables in the calls of one function."""

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
        """Returns the parameter for a variable: each rank's own arrays, or rows of them if it is sliceable.

        Args:
            bound: the call so far, which is updated.
            name: name of the parameter.
            path: the same, or the leaf of a nested one, for messages.
            variable: the argument.
        """
        if variable.is_tree and self._style == "kernel":
            raise ArgumentError(
                f"{path} of {self._name} is a tree, but a kernel takes single arrays; make one variable per array"
            )
        read_only = id(variable) in self._updated
        if read_only and name not in self._givens:
            raise ArgumentError(
                f"{path} of {self._name} is {variable.label}, which the call also assigns (updates=); bind it with givens= to "
                f"read its old value"
            )
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
        """Returns the parameter for an accumulator, which has the shape of a variable."""
        if variable.is_tree and self._style == "kernel":
            raise ArgumentError(
                f"updates[{name!r}] of {self._name} is a tree, but a kernel takes single arrays; make one variable per array"
            )
        if not any(variable is one for one in bound.variables.values()):
            self._claim(bound, name, variable)
        self._check_whole(bound, name, variable)
        number = self._place(bound, variable)
        bound.changed.append(variable)
        shapes = _shapes_by_rank(bound, variable)
        params = [Update(number, leaf, op, variable.dtypes()[leaf], shapes[leaf]) for leaf in variable.leaves()]
        return Tree(variable.structure(), tuple(params)) if variable.is_tree else params[0]

    def _check_whole(self, bound: Bound, path: str, variable: Variable) -> None:
        """Raises `ArgumentError` for a sharded variable in a call on the root alone, which lacks the other ranks' rows."""
        if bound.solo and variable.sharded:
            raise ArgumentError(
                f"{path} of {self._name} is {variable.label}, whose rows are divided over the ranks; as_serial "
                "needs all rows on the root"
            )

    def _claim(self, bound: Bound, path: str, variable: Variable) -> None:
        for other, claimed in bound.variables.items():
            if claimed is variable:
                raise ArgumentError(f"{path} and {other} of {self._name} are the same variable, {variable.label}; pass it once")
        bound.variables[path] = variable

    @staticmethod
    def _place(bound: Bound, variable: Variable) -> int:
        if bound.world is None:
            bound.key.append(id(variable))
            return -1
        number = variable.place(bound.world).number
        bound.key.append(variable._layout)  # noqa: SLF001  # as for Data
        return number

    def _count_rows(self, bound: Bound, path: str, variable: Variable) -> None:
        for leaf, by_rank in enumerate(_shapes_by_rank(bound, variable)):
            if not by_rank[0]:
                raise ArgumentError(f"{path} of {self._name} is in sliceable=, but {variable.label} is 0-d and has no rows")
            bound.own_lengths[path if not variable.is_tree else f"{path}, array {leaf}"] = tuple(shape[0] for shape in by_rank)


def _shapes_by_rank(bound: Bound, variable: Variable) -> list[tuple[Shape, ...]]:
    """Returns the shapes of each array by rank, for the number of ranks of the call, which may be planned for other worlds."""
    size = bound.partition.parts
    placed = variable._layout[1] >= 0  # noqa: SLF001  # as for Data
    if placed and len(variable.shapes()[0]) == size:
        return variable.shapes()
    if not variable.sharded:
        return [(shape,) * size for shape in variable.root_shapes()]
    out = []
    for shapes in variable.shapes():  # as if all rows were scattered over that many ranks
        counts = bound.partition.counts(sum(shape[0] for shape in shapes))
        out.append(tuple((count, *shapes[0][1:]) for count in counts))
    return out


RESERVED = ("batch", "local_batch", "num_slices", "output_subset", "shards")
_MISSING = inspect.Parameter.empty


def signature_names(function: Callable[..., Any], what: str) -> dict[str, Any]:
    """Returns the names and defaults of a function's parameters.

    Raises:
        ArgumentError: a parameter cannot be passed by name, or has the name of a call option.
    """
    names: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
            raise ArgumentError(
                f"{what} {function.__name__} has the parameter {parameter}; calls pass arguments by name, "
                "so use named parameters only"
            )
        if name in RESERVED:
            raise ArgumentError(
                f"{what} {function.__name__} has a parameter named {name!r}, which is an option of every call; rename it"
            )
        names[name] = parameter.default
    return names


class Binder:
    """Binds the arguments of one function.

    Args:
        name: name of the function.
        parameters: parameter names and their defaults.
        options: options of the decorator.

    Attributes:
        passed: names of the parameters that callers pass.
        fixed: `Data` and variables that the decorator has bound, and so take part in every call.
    """

    def __init__(self, name: str, parameters: Mapping[str, Any], options: FunctionOptions) -> None:
        self._name = name
        self._style = options.style
        self._defaults = dict(parameters)
        self._outputs = tuple(options.outputs if options.style == "kernel" else ())
        self._broadcast = options.broadcast
        self._inout = options.inout
        self._givens = dict(options.givens)
        self._sliceable = options.sliceable
        self._updates = dict(options.updates)
        self._flat = options.flat
        self._variables = VariableBinder(
            name,
            options.style,
            inout=options.inout,
            givens=options.givens,
            sliceable=options.sliceable,
            updates=options.updates,
        )
        self._made = {*self._outputs, *self._updates}  # allocated for the call, not passed
        self.passed = [p for p in parameters if p not in self._made and p not in self._givens]
        given = [leaf for value in self._givens.values() for leaf in flatten(value)[0]]
        # Part of the key of every call, though not passed.
        self.fixed: list[Data | Variable] = [one for one in given if isinstance(one, Data | Variable)]
        self.fixed += (variable for variable, _ in self._updates.values())
        self._staging: dict[object, Data] = {}

    def match(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns argument values by name, in the order of the signature.

        Raises:
            ArgumentError: an argument is missing, given twice, unknown, or not passed by callers.
        """
        if len(args) > len(self.passed):
            message = f"{self._name} takes {len(self.passed)} arguments ({', '.join(self.passed)}), got {len(args)}"
            made = [
                f"{what} ({', '.join(names)})"
                for what, names in (("outputs", self._outputs), ("updates", self._updates))
                if names
            ]
            if made:
                message += f"; {' and '.join(made)} are allocated for the call and not passed"
            raise ArgumentError(message)
        given = dict(zip(self.passed, args, strict=False))
        for name, value in kwargs.items():
            self._check_keyword(name, given)
            given[name] = value
        missing = [name for name in self.passed if name not in given and self._defaults[name] is _MISSING]
        if missing:
            raise ArgumentError(f"{self._name} is missing the argument{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
        given.update(self._givens)
        return {name: given.get(name, default) for name, default in self._defaults.items() if name not in self._made}

    def _check_keyword(self, name: str, given: Mapping[str, Any]) -> None:
        if name in self._outputs:
            message = f"{name} is an output of {self._name}: it is allocated for the call and returned. Leave it out."
        elif name in self._updates:
            message = f"{name} of {self._name} is bound by updates=: it is allocated for the call. Leave it out."
        elif name in self._givens:
            message = f"{name} of {self._name} is bound by givens=; leave it out"
        elif name not in self._defaults:
            message = f"{self._name} has no parameter {name!r}; it has {', '.join(self.passed) or 'none'}"
        elif name in given:
            message = f"{self._name} got the argument {name} twice"
        else:
            return
        raise ArgumentError(message)

    def bind(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], world: World | None, partition: Partition, *, solo: bool = False
    ) -> Bound:
        """Binds a call's arguments; copies NumPy arrays into shared memory, and places new variables.

        Args:
            args: positional arguments.
            kwargs: arguments by name.
            world: world of the call; None for a call that is only planned, so that nothing is copied or placed.
            partition: partition of rows into ranks.
            solo: whether only the root runs.
        """
        bound = Bound(partition, world=world, solo=solo)
        for name, value in self.match(args, kwargs).items():
            bound.whole[name] = value
            bound.parameters[name] = self._param(bound, name, name, value)
        for name, (variable, op) in self._updates.items():
            bound.parameters[name] = self._variables.update(bound, name, variable, op)
        self._check_aliases(bound)
        return bound

    def stage(self, slot: object, name: str, array: Array) -> Data:
        """Returns a NumPy array as `Data`, which is kept for the slot and refilled at each call."""
        staged = self._staging.get(slot)
        try:
            if staged is not None and staged.dtype == array.dtype.newbyteorder("=") and staged.ndim == array.ndim:
                staged.set_value(array)
            else:
                staged = self._staging[slot] = Data(array)
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
        return staged

    # ---- one parameter

    def _param(self, bound: Bound, name: str, slot: Any, value: Any) -> Param:
        """Returns the parameter for an argument, or for a leaf of a nested one."""
        if isinstance(value, Variable):
            return self._variables.param(bound, name, _path(name, slot), value)
        nested = is_nested(value) and self._style == "function"
        if name in self._sliceable and not nested:
            raise ArgumentError(f"{name} of {self._name} is in sliceable=, which takes variables; got a {type(value).__name__}")
        if isinstance(value, Data):
            return self._array(bound, name, slot, value)
        if isinstance(value, Enum) and not isinstance(value, RankConstant):
            return self._constant(bound, name, value)
        if isinstance(value, bool | int | float | complex | np.generic):
            return self._scalar(bound, name, value)
        if isinstance(value, np.ndarray):
            return self._numpy(bound, name, slot, value)
        if isinstance(value, IndexRange | RankConstant | PerRankValues):
            return self._filled(bound, name, _path(name, slot), value)
        if nested:
            leaves, structure = flatten(value)
            bound.key.append(structure)
            params = tuple(self._param(bound, name, (slot, i), leaf) for i, leaf in enumerate(leaves))
            return Tree(structure, params)
        if hasattr(value, "__array__") and not isinstance(value, tuple):
            return self._numpy(bound, name, slot, np.asarray(value))
        return self._constant(bound, name, value)

    # ---- arrays and numbers

    def _numpy(self, bound: Bound, name: str, slot: Any, array: Array) -> Param:
        if array.ndim == 0 and array.dtype.kind in "biufc":
            return self._scalar(bound, name, array[()])
        if name in self._inout:
            self._check_write_back(bound, name, array)
        if bound.dry:
            return self._place(bound, name, slot, HostArray(-1, array.dtype, self._shape(name, array)), by_position=False)
        staged = self.stage(slot, name, array)
        if name in self._inout:
            bound.write_back.append((name, array, staged))
        return self._array(bound, name, slot, staged)

    @staticmethod
    def _check_write_back(bound: Bound, name: str, array: Array) -> None:
        if not array.flags.writeable:
            raise ArgumentError(
                f"{name} is in inout=, so its rows are written back, but the array passed is read-only; pass a writable one"
            )
        for other, written, _ in bound.write_back:
            if _share_memory(array, written):
                raise ArgumentError(
                    f"{name} and {other} are both in inout=, and their arrays overlap: one would "
                    "overwrite the other. Pass a copy."
                )

    def _array(self, bound: Bound, name: str, slot: Any, data: Data) -> Param:
        segment = data._segment  # noqa: SLF001  # shared with this module
        bound.key.append(data._layout)  # noqa: SLF001
        bound.segments.append(segment)
        if data.frozen and name in self._inout:
            raise ArgumentError(
                f"{name} of {self._name} is in inout=, so its rows are written, but it is frozen; call thaw() first"
            )
        array = HostArray(segment.id, data.dtype, self._shape(name, data), version=data.version)
        return self._place(bound, name, slot, array, by_position=data.minibatch)

    def _shape(self, name: str, array: Array | Data) -> Shape:
        """Returns the shape that the function sees."""
        if name not in self._flat:
            return array.shape
        kept = 0 if name in self._broadcast else 1
        return (*array.shape[:kept], math.prod(array.shape[kept:]))

    def _place(self, bound: Bound, name: str, slot: Any, array: HostArray, *, by_position: bool) -> Param:
        """Returns the parameter for an array, sharded or broadcast."""
        if name in self._broadcast or not array.shape:
            return Broadcast(array)
        path, writable, length = _path(name, slot), name in self._inout, array.shape[0]
        if path != name and length == 0 and not writable:
            bound.empties[path] = 0
            return Broadcast(array)
        (bound.minibatches if by_position else bound.lengths)[path] = length
        return Sharded(array, by_position, writable)

    def _scalar(self, bound: Bound, name: str, value: Any) -> Param:
        """Returns the parameter for a number, which is sent with each call."""
        kind = np.asarray(value).dtype.kind if isinstance(value, np.generic) else _python_kind(value)
        if kind not in "biufc" or isinstance(value, np.longdouble | np.clongdouble):
            return self._constant(bound, name, value)
        dtype = value.dtype.name if isinstance(value, np.generic) else None
        if kind == "c":
            bound.key.append(("c", dtype))
            first = bound.add_value(value.real, "d", None)
            bound.add_value(value.imag, "d", None)
            return Dynamic(first.index, dtype, is_complex=True)
        fmt = {"b": "?", "i": "q", "u": "Q", "f": "d"}[kind]
        if kind == "i" and not -(2**63) <= value < 2**63:
            if not 0 <= value < 2**64:
                raise ArgumentError(f"{name}={value} does not fit in 64 bits; pass a float, or an array")
            fmt, dtype = "Q", "uint64"
        bound.key.append((fmt, dtype))
        return bound.add_value(value if dtype is None else value.item() if isinstance(value, np.generic) else value, fmt, dtype)

    def _filled(self, bound: Bound, name: str, path: str, value: Any) -> Param:
        """Returns the parameter for a value that each rank fills in."""
        if isinstance(value, PerRankValues):
            bound.key.append(_exact(value.values))
            bound.per_rank[path] = len(value.values)
            return PerRank(value.values)
        bound.key.append(value)
        if isinstance(value, IndexRange):
            bound.lengths[path] = value.length
            bound.contiguous.append(name)
            return IndexSpan()
        if value is RankConstant.OFFSET:
            bound.contiguous.append(name)
        return Filled(value)

    def _constant(self, bound: Bound, name: str, value: Any) -> Param:
        """Returns the parameter for a value that is part of the plan.

        Its key is its pickle, since the value may be mutable, and 1 == 1.0 == True.
        """
        if not (isinstance(value, tuple | Enum | np.generic) or value is None or self._style == "function"):
            hint = "pass np.asarray(...) of it" if isinstance(value, list) else "pass an array, Data, or a number"
            raise ArgumentError(
                f"{name} of {self._name} is a {type(value).__name__}, which cannot be passed to a {self._style}; {hint}"
            )
        try:
            bound.key.append(value if value is None or type(value) is str else _exact(value))
        except Exception as error:
            raise ArgumentError(
                f"{name} of {self._name} is a {type(value).__name__}, which cannot be sent to the ranks "
                f"({error}); pass an array, Data, "
                "a number, or a picklable object"
            ) from error
        return Constant(value)

    def _check_aliases(self, bound: Bound) -> None:
        """Raises `ArgumentError` if a `Data` whose rows are written is also read through another argument."""
        if not self._inout:
            return
        owners: dict[int, str] = {}
        written: dict[int, str] = {}
        for name, param in bound.parameters.items():
            for leaf in leaves_of(param):
                if not isinstance(leaf, Sharded | Broadcast) or bound.dry:
                    continue
                segment = leaf.array.segment
                writable = isinstance(leaf, Sharded) and leaf.writable
                other = owners.get(segment) if writable else written.get(segment)
                if other is not None:
                    raise ArgumentError(
                        f"{name} and {other} are the same Data, and {name if writable else other} is in inout=; "
                        f"ranks would read rows that "
                        "others write. Pass a copy."
                    )
                owners[segment] = name
                if writable:
                    written[segment] = name


def _share_memory(a: Array, b: Array) -> bool:
    try:
        return bool(np.shares_memory(a, b, max_work=10_000))  # type: ignore[arg-type]  # any int is accepted
    except np.exceptions.TooHardError:  # deciding whether two strided views overlap can take long
        return True


def _path(name: str, slot: Any) -> str:
    """Returns the name of a parameter, or of a leaf of a nested one, for messages."""
    return name if isinstance(slot, str) else f"{name}[{slot[1]}]"


def _exact(value: Any) -> tuple[str, bytes]:
    """Returns a key that is equal only for values that the ranks cannot distinguish."""
    return ("pickled", cloudpickle.dumps(value))


def _python_kind(value: Any) -> str:
    if isinstance(value, bool):
        return "b"
    if isinstance(value, int):
        return "i"
    return "f" if isinstance(value, float) else "c"
