"""Binding of a call's arguments: each is checked, and becomes a parameter for the ranks.

    array, `Data`                        Sharded, Broadcast; of an array in a mapped file, ranks map the file
    number                               Dynamic: sent with each call
    `arange`, RANK, …, `per_rank`        IndexSpan, Filled, PerRank
    variable                             Held, HeldRows, Update: each rank's own arrays, rows of them, accumulators
    dict, list, tuple (functions only)   Tree of these
    anything else                        Constant: part of the plan

All errors in arguments are found here, in the coordinator, before anything is sent.
"""  # noqa: E501

import array as buffers
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import Any

import numpy as np

from synknumba._call.arguments import IndexRange, PerRankValues, array_hint
from synknumba._call.call import Call, leaves_of
from synknumba._call.options import FunctionOptions
from synknumba._call.variable_rows import fill_in, own_by_rank, shapes_by_rank
from synknumba._errors import ArgumentError, DataError
from synknumba._host.data import Data
from synknumba._host.file_data import FileData, over_file, refuse_truncated
from synknumba._host.foreign import OWN, adopted, is_foreign
from synknumba._host.signals import is_of_handler
from synknumba._host.stored import StoredData
from synknumba._ops.tree import LEAF, flatten, is_nested, paths
from synknumba._ops.variable_layout import VECTOR
from synknumba._progress import refusal
from synknumba._tracing import Number
from synknumba._types import Array, Op, RankConstant, Shape, shown, unknown_keyword
from synknumba._variables.state import VariableState
from synknumba._variables.variable import Branch, Variable, state_of
from synknumba._wire import function_pickling as pickling
from synknumba._wire import program

RESERVED = ("batch", "local_batch", "num_slices", "output_subset", "progress", "shards")
_MISSING = inspect.Parameter.empty


def signature_names(
    function: Callable[..., Any], what: str, reserved: Collection[str] = RESERVED
) -> dict[str, Any]:
    """Returns the names and defaults of a function's parameters; refuses names that calls cannot
    pass.
    """
    names: dict[str, Any] = {}
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # no function, or one in C without a signature
        raise ArgumentError(
            f"{what} must be a Python function with named parameters, got {function!r}; wrap "
            f"it, as in `lambda x: ...`"
        ) from None
    for name, parameter in parameters.items():
        if parameter.kind in {
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
            parameter.POSITIONAL_ONLY,
        }:
            raise ArgumentError(
                f"{what} {function.__name__} has the parameter {parameter}; calls pass arguments "
                "by name, so use named parameters only"
            )
        if name in reserved:
            raise ArgumentError(
                f"{what} {function.__name__} has a parameter named {name!r}, which is an option "
                f"of every call; rename it"
            )
        names[name] = parameter.default
    return names


class Binder:
    """Binds the arguments of one function, whose `parameters` come with their defaults."""

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, Any],
        options: FunctionOptions,
        reserved: Collection[str] = RESERVED,
    ) -> None:
        self._name = name
        self._reserved = reserved  # options of calls
        self._options = options
        self._defaults = dict(parameters)
        self._outputs = tuple(options.outputs if options.style == "kernel" else ())
        self._updated = {id(variable) for variable, _ in options.updates.values()}
        self._made = {*self._outputs, *options.updates}  # allocated for the call, not passed
        # by callers
        self.passed = [p for p in parameters if p not in self._made and p not in options.givens]
        given = [leaf for value in options.givens.values() for leaf in flatten(value)[0]]
        # `Data` and variables that the decorator has bound are part of the key of every call.
        self.fixed: list[Data | VariableState] = [
            one if isinstance(one, Data) else state_of(one)
            for one in given
            if isinstance(one, Data | Variable)
        ]
        self.fixed += (variable for variable, _ in options.updates.values())
        self._staging: dict[object, Data] = {}
        # last ones, so that the ranks keep the mappings of files that are opened anew
        self._files: dict[object, FileData] = {}

    def match(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns argument values by name, in the order of the signature; each parameter that
        callers pass has one.
        """
        if len(args) > len(self.passed):
            plural = "s" * (len(self.passed) != 1)
            message = (
                f"{self._name} takes {len(self.passed)} argument{plural} "
                f"({', '.join(self.passed)}), got {len(args)}"
            )
            kinds = ("outputs", self._outputs), ("updates", self._options.updates)
            made = [f"{what} ({', '.join(names)})" for what, names in kinds if names]
            if made:
                message += f"; {' and '.join(made)} are allocated for the call and not passed"
            raise ArgumentError(message)
        given = dict(zip(self.passed, args, strict=False))
        for name, value in kwargs.items():
            self._check_keyword(name, given)
            given[name] = value
        missing = [
            name for name in self.passed if name not in given and self._defaults[name] is _MISSING
        ]
        if missing:
            raise ArgumentError(
                f"{self._name} is missing the argument{'s' if len(missing) > 1 else ''} "
                f"{', '.join(missing)}"
            )
        given.update(self._options.givens)
        return {
            name: given.get(name, default)
            for name, default in self._defaults.items()
            if name not in self._made
        }

    def _check_keyword(self, name: str, given: Mapping[str, Any]) -> None:
        if name in self._outputs:
            message = (
                f"{name} is an output of {self._name}: it is allocated for the call "
                f"and returned. Leave it out."
            )
        elif name in self._options.updates:
            message = (
                f"{name} of {self._name} is bound by updates=: it is allocated "
                f"for the call. Leave it out."
            )
        elif name in self._options.givens:
            message = f"{name} of {self._name} is bound by givens=; leave it out"
        elif name not in self._defaults:
            message = unknown_keyword(self._name, name, self.passed, self._reserved)
            if name == "progress":
                message = refusal(self._name)
        elif name in given:
            message = f"{self._name} got the argument {name} twice"
        else:
            return
        raise ArgumentError(message)

    def bind(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """Binds a call's arguments; copies NumPy arrays into shared memory, and places new
        variables. Returns the call.
        """
        given = self.match(args, kwargs)
        call.shared = _passed_twice(given.values(), may_nest=self._options.style == "function")
        for name, value in given.items():
            is_other = not isinstance(value, OWN) and is_foreign(value)
            array = adopted(value, f"{name} of {self._name}") if is_other else value
            call.whole[name] = array
            call.parameters[name] = self._param(call, name, name, array)
        for name, (variable, op) in self._options.updates.items():
            call.parameters[name] = self._update(call, name, variable, op)
        if call.filled:
            fill_in(self._name, call)
        self._check_written(call)
        self._check_aliases(call)
        return call

    def _staged(self, slot: object, name: str, array: Array) -> Data:
        """Returns a NumPy array as `Data`, which is kept for the slot and refilled at each call."""
        staged = self._staging.get(slot)
        try:
            # objects are refused below
            fits = staged is not None and staged.ndim == array.ndim and not array.dtype.hasobject
            if staged is not None and fits and staged.dtype == array.dtype.newbyteorder("="):
                staged.set_value(array)
            else:
                staged = self._staging[slot] = Data(array)
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
        return staged

    # ---- one parameter

    def _param(self, call: Call, name: str, slot: Any, value: Any) -> program.Param:
        """Returns the parameter for an argument, or for a leaf of a nested one."""
        path = _path(name, slot)
        if isinstance(value, Variable):
            return self._variable(call, name, path, state_of(value))
        if isinstance(value, Branch):
            return self._branch(call, name, path, value)
        nested = self._options.style == "function" and is_nested(value)
        if name in self._options.sliceable and not nested:
            raise ArgumentError(
                f"{path} of {self._name} is in sliceable=, which takes variables; got "
                f"a {type(value).__name__}"
            )
        if isinstance(value, Data):
            return self._array(call, name, slot, value)
        # before numbers, which it may be
        if isinstance(value, Enum) and not isinstance(value, RankConstant):
            return self._constant(call, path, value)
        if isinstance(value, bool | int | float | complex | np.generic):
            return self._scalar(call, path, value)
        if isinstance(value, Number):
            call.key.append("number")
            return call.add_value(value, value.letter, value.dtype)
        if isinstance(value, np.ndarray):
            return self._numpy(call, name, slot, value)
        if isinstance(value, IndexRange | RankConstant | PerRankValues):
            return self._filled(call, name, path, value)
        if nested:
            leaves, structure = flatten(value)
            call.key.append(structure)
            params = tuple(
                self._param(call, name, (slot, one), leaf)
                for one, leaf in zip(paths(structure), leaves, strict=True)
            )
            return program.Tree(structure, params)
        if (hasattr(value, "__array__") or is_foreign(value)) and not isinstance(value, tuple):
            array = adopted(value, f"{path} of {self._name}")
            return (
                self._array(call, name, slot, array)
                if isinstance(array, Data)
                else self._numpy(call, name, slot, array)
            )
        return self._constant(call, path, value)

    # ---- variables

    def _variable(self, call: Call, name: str, path: str, variable: VariableState) -> program.Param:
        """Returns the parameter for a variable: each rank's own arrays, or rows of them if it is
        sliceable.
        """
        if variable.is_tree and self._options.style == "kernel":
            raise ArgumentError(
                f"{path} of {self._name} is a tree, but a kernel takes single arrays; "
                f"make one variable per array"
            )
        read_only = id(variable) in self._updated
        if read_only and name not in self._options.givens:
            raise ArgumentError(
                f"{path} of {self._name} is {variable.label}, which the call also assigns "
                "(updates=); bind it with givens= to read its old value"
            )
        sliceable, writable = name in self._options.sliceable, name in self._options.inout
        self._claim(call, name, path, variable)
        number = self._hold(call, path, variable)
        for leaf, by_rank in enumerate(shapes_by_rank(call, variable) if sliceable else ()):
            if not by_rank[0]:
                raise ArgumentError(
                    f"{path} of {self._name} is in sliceable=, but "
                    f"{variable.label_of(leaf)} is 0-d and has no rows"
                )
            owned = own_by_rank(variable, by_rank)
            key = f"{path}{paths(variable.structure())[leaf]}"
            call.own_lengths[key] = tuple(own.stop - own.start for own in owned)
        if not sliceable:
            call.intact[path] = variable
        params: list[program.Param]
        if sliceable:
            params = [program.HeldRows(number, leaf, writable) for leaf in variable.leaves()]
        else:
            shared = {leaf for one, leaf in call.shared if one == id(variable)}
            params = [
                program.Held(number, leaf, read_only or leaf in shared)
                for leaf in variable.leaves()
            ]
        if (
            writable
            if sliceable
            else any(isinstance(one, program.Held) and not one.read_only for one in params)
        ):
            call.changed.append(variable)
        return program.Tree(variable.structure(), tuple(params)) if variable.is_tree else params[0]

    def _update(self, call: Call, name: str, variable: VariableState, op: Op) -> program.Param:
        """Returns the parameter for an accumulator, which has the shape of a variable."""
        if variable.is_tree and self._options.style == "kernel":
            raise ArgumentError(
                f"updates[{name!r}] of {self._name} is a tree, but a kernel takes single arrays; "
                f"make one variable per array"
            )
        if not any(variable is one for one in call.variables.values()):
            call.variables[name] = variable
        if call.options.shards is not None and variable.sharded:
            raise ArgumentError(
                f"{self._name} got shards=…, so that updates[{name!r}] gets the same value on "
                f"every rank, but the rows of {variable.label} are divided over the ranks; leave "
                "shards out, or update a replica"
            )
        number = self._hold(call, name, variable, assigned=True)
        call.changed.append(variable)
        call.intact[name] = variable
        shapes = shapes_by_rank(call, variable)
        params = [
            program.Update(number, leaf, op, variable.dtypes()[leaf], shapes[leaf])
            for leaf in variable.leaves()
        ]
        return program.Tree(variable.structure(), tuple(params)) if variable.is_tree else params[0]

    def _branch(self, call: Call, name: str, path: str, branch: Branch) -> program.Param:
        """Returns the parameter for a part of a variable that is a tree."""
        variable = branch.variable
        if name in self._options.sliceable or id(variable) in self._updated:
            what = (
                "in sliceable="
                if name in self._options.sliceable
                else "a part of a variable that updates= names"
            )
            raise ArgumentError(
                f"{path} of {self._name} is {branch.label}, and {what}; make one variable per array"
            )
        if branch.structure != LEAF and self._options.style == "kernel":
            raise ArgumentError(
                f"{path} of {self._name} is {branch.label}, a tree, but a "
                f"kernel takes single arrays"
            )
        self._claim(call, name, path, variable, branch.arrays)
        call.branches[path] = branch.arrays
        # of a vector, rows are elements of several arrays
        if branch.leaves and branch.leaves.start != VECTOR:
            call.intact[path] = variable
        number = self._hold(call, path, variable)
        call.key.append((branch.structure, branch.leaves.start))
        shared = {leaf for one, leaf in call.shared if one == id(variable)}
        params: tuple[program.Held, ...]
        if branch.leaves.start == VECTOR:
            params = (
                program.Held(
                    number, VECTOR, not shared.isdisjoint(branch.arrays), len(branch.arrays)
                ),
            )
        else:
            params = tuple(program.Held(number, leaf, leaf in shared) for leaf in branch.leaves)
        if not all(one.read_only for one in params):
            call.changed.append(variable)
        return params[0] if branch.structure == LEAF else program.Tree(branch.structure, params)

    def _claim(
        self, call: Call, name: str, path: str, variable: VariableState, leaves: range | None = None
    ) -> None:
        """Notes a variable of a call; raises `ArgumentError` for one whose rows are written, and
        that is passed twice.
        """
        other = same_variable(call, variable, leaves)
        if other is not None:
            rows = self._options.sliceable & self._options.inout
            written = (
                name
                if name in rows
                else next(
                    (one for one in rows if other == one or other.startswith(f"{one}[")), None
                )
            )
            if written is not None:
                raise ArgumentError(
                    f"{path} and {other} of {self._name} are the same variable{_named(variable)}, "
                    f"and the rows of {written}, which is in inout=, are written; pass a copy of "
                    "it as another variable"
                )
        call.variables[path] = variable

    def _hold(
        self, call: Call, path: str, variable: VariableState, *, assigned: bool = False
    ) -> int:
        """Makes a variable part of the call's key, places it, and returns the number of its
        memory; its id if only planned.
        """
        if call.options.solo and variable.sharded:  # the root lacks the other ranks' rows
            raise ArgumentError(
                f"{path} of {self._name} is {variable.label}, whose rows are divided over the "
                "ranks; as_serial needs all rows on the root"
            )
        if call.world is None:
            call.key.append(id(variable))
            return id(variable)
        number = (
            variable.place_to_assign(call.world) if assigned else variable.place(call.world)
        ).number
        call.key.append(variable._layout)  # noqa: SLF001  # as for Data
        return number

    # ---- arrays and numbers

    def _numpy(self, call: Call, name: str, slot: Any, array: Array) -> program.Param:
        path = _path(name, slot)
        if array.ndim == 0 and array.dtype.kind in "biufc":
            if np.ma.is_masked(array):
                raise DataError(
                    f"{path} of {self._name} is masked, and ranks have no masks; pass a number, or "
                    f"{path}.filled(…) of an array"
                )
            return self._scalar(call, path, array[()])
        if name in self._options.inout:
            self._check_write_back(call, path, array)
            refuse_truncated(array, f"{path} of {self._name}")
        elif (mapped := self._in_file(slot, path, array)) is not None:
            return self._array(call, name, slot, mapped)
        if call.world is None:
            host = program.HostArray(-1, array.dtype, self._shape(name, array))
            return self._place(call, name, slot, host, by_position=False)
        staged = self._staged(slot, path, array)
        if name in self._options.inout:
            call.write_back.append((path, array, staged))
        return self._array(call, name, slot, staged)

    def _in_file(self, slot: object, name: str, array: Array) -> FileData | None:
        """Returns an array in a file that is mapped for reading only as `Data` over the file;
        None for other arrays.
        """
        found = over_file(array, f"{name} of {self._name}")
        if found is None:
            self._files.pop(slot, None)
        else:
            self._files[slot] = found
        return found

    @staticmethod
    def _check_write_back(call: Call, name: str, array: Array) -> None:
        if not array.flags.writeable:
            raise ArgumentError(
                f"{name} is in inout=, so its rows are written back, but the array passed is "
                f"read-only; pass a writable one"
            )
        for other, written, _ in call.write_back:
            if share_memory(array, written):
                raise ArgumentError(
                    f"{_both(name, other)} in inout=, and their arrays overlap: one would "
                    f"overwrite the other. Pass a copy."
                )

    def _array(self, call: Call, name: str, slot: Any, data: Data) -> program.Param:
        segment = data._segment  # noqa: SLF001  # shared with this module
        if not isinstance(data, StoredData):
            call.segments.append(segment)
        if segment.is_file:
            call.files.add(segment.id)
        if isinstance(data, FileData | StoredData) and name in self._options.inout:
            raise ArgumentError(
                f"{_path(name, slot)} of {self._name} is in inout=, so its rows are written, but "
                f"it is over the file {data.path}, which ranks only read; pass a copy, as "
                "np.array(...) of it"
            )
        try:
            call.key.append(data._layout)  # noqa: SLF001
        except DataError as error:  # of a file
            raise DataError(f"{_path(name, slot)} of {self._name}: {error}") from None
        if data.frozen and name in self._options.inout:
            raise ArgumentError(
                f"{_path(name, slot)} of {self._name} is in inout=, so its rows are written, but "
                "it is frozen; call thaw() first"
            )
        # as it is since `_layout` looked at the file
        source = data.source if isinstance(data, StoredData) else None
        array = program.HostArray(
            segment.id,
            data.dtype,
            self._shape(name, data),
            data._offset,  # noqa: SLF001
            data._version,  # noqa: SLF001
            source,
        )
        return self._place(call, name, slot, array, by_position=data.minibatch)

    def _shape(self, name: str, array: Array | Data) -> Shape:
        """Returns the shape that the function sees."""
        if name not in self._options.flat:
            return array.shape
        kept = 0 if name in self._options.broadcast else 1
        return (*array.shape[:kept], math.prod(array.shape[kept:]))

    def _place(
        self, call: Call, name: str, slot: Any, array: program.HostArray, *, by_position: bool
    ) -> program.Param:
        """Returns the parameter for an array, sharded or broadcast."""
        if name in self._options.broadcast or not array.shape:
            return program.Broadcast(array)
        path, writable, length = _path(name, slot), name in self._options.inout, array.shape[0]
        if path != name and length == 0 and not writable:
            call.empties[path] = 0
            return program.Broadcast(array)
        (call.minibatches if by_position else call.lengths)[path] = length
        return program.Sharded(array, by_position, writable)

    def _scalar(self, call: Call, name: str, value: Any) -> program.Param:
        """Returns the parameter for a number, which is sent with each call."""
        if isinstance(value, np.generic):
            kind = value.dtype.kind
        else:
            kind = (
                "b"
                if isinstance(value, bool)
                else "i"
                if isinstance(value, int)
                else "f"
                if isinstance(value, float)
                else "c"
            )
        if kind not in "biufc" or isinstance(value, np.longdouble | np.clongdouble):
            return self._constant(call, name, value)
        dtype = value.dtype.name if isinstance(value, np.generic) else None
        if kind == "c":
            call.key.append(("c", dtype))
            first = call.add_value(value.real, "d", None)
            call.add_value(value.imag, "d", None)
            return program.Dynamic(first.index, dtype, is_complex=True)
        fmt = {"b": "?", "i": "q", "u": "Q", "f": "d"}[kind]
        if kind == "i" and not -(2**63) <= value < 2**63:
            if not 0 <= value < 2**64:
                raise ArgumentError(
                    f"{name}={shown(value)} does not fit in 64 bits; pass a float, or an array"
                )
            # a function gets an int of Python's
            fmt, dtype = (
                "Q",
                None if self._options.style == "function" else "uint64",
            )
        call.key.append((fmt, dtype))
        return call.add_value(
            value if dtype is None else value.item() if isinstance(value, np.generic) else value,
            fmt,
            dtype,
        )

    def _filled(self, call: Call, name: str, path: str, value: Any) -> program.Param:
        """Returns the parameter for a value that each rank fills in."""
        if isinstance(value, PerRankValues):
            call.key.append(_exact(value.values))
            call.per_rank[path] = len(value.values)
            return program.PerRank(value.values)
        call.key.append(value)
        if isinstance(value, IndexRange):
            call.lengths[path] = value.length
            call.contiguous.append(name)
            return program.IndexSpan()
        if value is RankConstant.OFFSET:
            call.contiguous.append(name)
        call.filled.add(value)
        return program.Filled(value)

    def _constant(self, call: Call, name: str, value: Any) -> program.Param:
        """Returns the parameter for a value that is part of the plan.

        Its key is its pickle, since the value may be mutable, and 1 == 1.0 == True.
        """
        # arrays to a script, whole and copied here
        if isinstance(value, memoryview | bytearray | buffers.array):
            raise ArgumentError(
                f"{name} of {self._name} is a {type(value).__name__}, whose rows are not "
                f"divided; {array_hint(value)}"
            )
        if not (
            isinstance(value, tuple | Enum | np.generic)
            or value is None
            or self._options.style == "function"
        ):
            raise ArgumentError(
                f"{name} of {self._name} is a {type(value).__name__}, which cannot be passed to a "
                f"{self._options.style}; {array_hint(value)}"
            )
        try:
            call.key.append(value if value is None or type(value) is str else _exact(value))
        # what a class of the script raises in its __reduce__
        except (
            Exception,
            SystemExit,
        ) as error:
            if is_of_handler(error):
                raise
            raise ArgumentError(
                f"{name} of {self._name} is a {type(value).__name__}, which cannot be sent to the "
                f"ranks ({error}); pass an array, Data, a number, or a picklable object"
            ) from error
        if call.world is not None:
            call.world.holdings.code.uses([value], f"{name} of {self._name}")
        return program.Constant(value)

    def _check_written(self, call: Call) -> None:
        """Raises `ArgumentError` if an argument is to be written back and contains no array that
        can be; None is allowed.
        """
        for name in self._options.inout:
            value, leaves = call.whole.get(name), list(leaves_of(call.parameters[name]))
            if value is None or not leaves or any(isinstance(leaf, _WRITTEN) for leaf in leaves):
                continue
            what = (
                "0-d, and ranks get it as a number"
                if np.ndim(value) == 0 and isinstance(value, np.ndarray | Data)
                else ""
            )
            raise ArgumentError(
                f"{name} of {self._name} is in inout=, so its rows are written back, but it is "
                f"{what or f'of type {type(value).__name__}, without any'}; pass an "
                f"array with rows, or Data"
            )

    def _check_aliases(self, call: Call) -> None:
        """Raises `ArgumentError` if a `Data` whose rows are written is also read through another
        argument.
        """
        if not self._options.inout or call.world is None:
            return
        owners: dict[int, str] = {}
        written: dict[int, str] = {}
        leaves = [one for name, param in call.parameters.items() for one in _leaves(name, param)]
        named = [
            (name, leaf)
            for name, leaf in leaves
            if isinstance(leaf, program.Sharded | program.Broadcast)
        ]
        for name, leaf in named:
            segment, writable = (
                leaf.array.segment,
                isinstance(leaf, program.Sharded) and leaf.writable,
            )
            other = owners.get(segment) if writable else written.get(segment)
            if other is not None:
                raise ArgumentError(
                    f"{name} and {other} are the same Data, and {name if writable else other} is "
                    "in inout=; ranks would read rows that others write. Pass a copy."
                )
            owners[segment] = name
            if writable:
                written[segment] = name
        for name, array, _ in call.write_back:
            for other in self._options.inout & call.whole.keys():
                whole = call.whole[other]
                values, structure = flatten(whole) if is_nested(whole) else ([whole], LEAF)
                for path, value in zip(paths(structure), values, strict=True):
                    if isinstance(value, Data) and share_memory(array, value.data):
                        raise ArgumentError(
                            f"{_both(name, f'{other}{path}')} in inout=, and {name} is an array "
                            f"over the memory of the Data passed as {other}{path}: one would "
                            "overwrite the other. Pass a copy."
                        )


def same_variable(
    call: Call, variable: VariableState, leaves: range | None = None, besides: str = ""
) -> str | None:
    """Returns the path of another argument that is the same variable, or has an array of it;
    None if there is none.
    """
    mine = {*(variable.leaves() if leaves is None else leaves)}
    paths_of = (path for path, one in call.variables.items() if one is variable and path != besides)
    return next(
        (
            path
            for path in paths_of
            if not mine.isdisjoint(call.branches.get(path, variable.leaves()))
        ),
        None,
    )


def _passed_twice(values: Iterable[Any], *, may_nest: bool) -> frozenset[tuple[int, int]]:
    """Returns the arrays of variables, by id of the state and leaf, that several arguments are."""
    seen: set[tuple[int, int]] = set()
    twice: set[tuple[int, int]] = set()
    for value in values:
        for one in flatten(value)[0] if may_nest and is_nested(value) else (value,):
            if isinstance(one, Variable | Branch):
                variable = state_of(one) if isinstance(one, Variable) else one.variable
                arrays = {
                    (id(variable), leaf)
                    for leaf in (variable.leaves() if isinstance(one, Variable) else one.arrays)
                }
                twice |= arrays & seen
                seen |= arrays
    return frozenset(twice)


def _named(variable: VariableState) -> str:
    return "" if variable.name is None else f" {variable.name!r}"


_WRITTEN = (program.Sharded, program.Held, program.HeldRows)  # what a function may write in place


def _leaves(name: str, param: program.Param) -> list[tuple[str, program.Param]]:
    """Returns the leaves of a parameter, with their paths for messages."""
    if not isinstance(param, program.Tree):
        return [(name, param)]
    return [
        one
        for path, child in zip(paths(param.structure), param.leaves, strict=True)
        for one in _leaves(f"{name}{path}", child)
    ]


def _both(name: str, other: str) -> str:
    return f"{name} is" if name == other else f"{name} and {other} are both"


def share_memory(a: Array, b: Array) -> bool:
    """Returns whether two arrays overlap, or may do so."""
    try:
        return bool(np.shares_memory(a, b, max_work=10_000))  # type: ignore[arg-type]  # any int is accepted
    except np.exceptions.TooHardError:  # deciding whether two strided views overlap can take long
        return True


def _path(name: str, slot: Any) -> str:
    """Returns the name of a parameter, or of a leaf of a nested one, for messages."""
    return name if isinstance(slot, str) else f"{name}{slot[1]}"


def _exact(value: Any) -> tuple[str, bytes]:
    """Returns a key that is equal only for values that the ranks cannot distinguish."""
    return ("pickled", pickling.dump(value))
