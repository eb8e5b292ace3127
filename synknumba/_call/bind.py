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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias, final

import numpy as np

from synknumba._call.arguments import IndexRange, PerRankValues, array_hint
from synknumba._call.call import Arguments
from synknumba._call.kinds import Kind, kind_of
from synknumba._call.options import CallOptions, FunctionOptions
from synknumba._call.variable_rows import fill_in, own_by_rank, shapes_by_rank
from synknumba._call.written_arguments import check_aliases, check_contents, check_target
from synknumba._errors import ArgumentError, DataError
from synknumba._host.data import Data
from synknumba._host.file_data import FileData, over_file, refuse_truncated
from synknumba._host.foreign import adopted
from synknumba._host.signals import is_of_handler
from synknumba._host.stored import StoredData
from synknumba._ops.rows import Partition
from synknumba._ops.tree import LEAF, Structure, flatten, paths
from synknumba._ops.variable_layout import VECTOR
from synknumba._progress import refusal
from synknumba._tracing import Number
from synknumba._types import (
    Args,
    Array,
    Kwargs,
    Op,
    RankConstant,
    Shape,
    class_text,
    count_text,
    shown,
    times_refusal,
    unknown_keyword,
)
from synknumba._variables.state import VariableState
from synknumba._variables.variable import Branch, Variable, state_of
from synknumba._wire import function_pickling as pickling
from synknumba._wire.program import (
    Broadcast,
    Constant,
    Dynamic,
    Filled,
    Held,
    HeldRows,
    HostArray,
    IndexSpan,
    Param,
    PerRank,
    Sharded,
    Tree,
    Update,
    may_write,
)
from synknumba._world.engine import Engine

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


@final
class Binder:
    """Binds the arguments of one function, whose `parameters` come with their defaults.

    Attributes:
        name: name of the function, for messages.
        options: those of the decorator.
        passed: names of the parameters that callers pass.
        fixed: `Data` and variables that the decorator has bound; part of the key of every call.
        updated: ids of the variables that calls assign.
        staging: copies of NumPy arrays, by the argument, or leaf of one, that is copied.
        files: last arrays in files, by the argument: ranks keep the mappings of files that are
            opened anew.
    """

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, Any],
        options: FunctionOptions,
        reserved: Collection[str] = RESERVED,
    ) -> None:
        self.name = name
        self.options = options
        self._reserved = reserved  # options of calls
        self._defaults = dict(parameters)
        self._outputs = tuple(options.outputs)
        # not passed by callers, but allocated for the call
        self._allocated = {*self._outputs, *options.updates}
        self.passed = [
            name for name in parameters if name not in {*self._allocated, *options.givens}
        ]
        self.updated: set[int] = set()
        self.fixed: list[Data | VariableState] = []
        for value in options.givens.values():
            for leaf in flatten(value)[0]:
                if isinstance(leaf, Data):
                    self.fixed.append(leaf)
                elif isinstance(leaf, Variable):
                    self.fixed.append(state_of(leaf))
        for variable, _ in options.updates.values():
            self.updated.add(id(variable))
            self.fixed.append(variable)
        self.staging: dict[str, Data] = {}
        self.files: dict[str, FileData] = {}

    def match(self, args: Args, kwargs: Kwargs) -> dict[str, Any]:
        """Returns argument values by name, in the order of the signature; each parameter that
        callers pass has one.
        """
        if len(args) > len(self.passed):
            raise ArgumentError(self._too_many(len(args)))
        values = dict(zip(self.passed, args, strict=False))
        for name, value in kwargs.items():
            self._check_keyword(name, values)
            values[name] = value
        missing = [
            name for name in self.passed if values.get(name, self._defaults[name]) is _MISSING
        ]
        if missing:
            what = "argument" if len(missing) == 1 else "arguments"
            raise ArgumentError(f"{self.name} is missing the {what} {', '.join(missing)}")
        values.update(self.options.givens)
        return {
            name: values.get(name, default)
            for name, default in self._defaults.items()
            if name not in self._allocated
        }

    def _too_many(self, count: int) -> str:
        """Returns the message for so many arguments by position."""
        expected = f"{count_text(len(self.passed), 'argument')} ({', '.join(self.passed)})"
        message = f"{self.name} takes {expected}, got {count}"
        allocated = [
            f"{option} ({', '.join(names)})"
            for option, names in (("outputs", self._outputs), ("updates", self.options.updates))
            if names
        ]
        if allocated:
            message += f"; {' and '.join(allocated)} are allocated for the call and not passed"
        return message

    def _check_keyword(self, name: str, values: Mapping[str, Any]) -> None:
        if name in self._outputs:
            message = (
                f"{name} is an output of {self.name}: it is allocated for the call "
                f"and returned. Leave it out."
            )
        elif name in self.options.updates:
            message = (
                f"{name} of {self.name} is bound by updates=: it is allocated "
                f"for the call. Leave it out."
            )
        elif name in self.options.givens:
            message = f"{name} of {self.name} is bound by givens=; leave it out"
        elif name in values:
            message = f"{self.name} got the argument {name} twice"
        elif name in self._defaults:
            return
        elif name == "progress":
            message = refusal(self.name)
        elif name == "times":
            message = times_refusal(self.name)
        else:
            message = unknown_keyword(self.name, name, self.passed, self._reserved)
        raise ArgumentError(message)

    def bind(
        self,
        args: Args,
        kwargs: Kwargs,
        options: CallOptions,
        partition: Partition,
        world: Engine | None,
    ) -> Arguments:
        """Binds a call's arguments; copies NumPy arrays into shared memory, and places new
        variables. Without a world, nothing is copied or placed.
        """
        values = self.match(args, kwargs)
        binding = _Binding(self, options, partition, world, _shared_arrays(values.values()))
        arguments = binding.arguments
        for name, value in values.items():
            binding.add(name, value)
        for name, (variable, op) in self.options.updates.items():
            arguments.parameters[name] = binding.update(name, variable, op)
        if binding.filled:
            fill_in(self.name, arguments, partition, binding.filled)
        if self.options.inout:
            check_contents(self.name, arguments, self.options.inout)
            if world is not None:
                check_aliases(arguments, self.options.inout)
        return arguments


_VariableArray: TypeAlias = tuple[int, int]  # an array of a variable: id of the state, and leaf


def _shared_arrays(values: Iterable[Any]) -> set[_VariableArray]:
    """Returns the arrays of variables that several arguments are."""
    passed, twice = set[_VariableArray](), set[_VariableArray]()
    for value in values:
        leaves = [value]
        if isinstance(value, list | tuple | dict):
            leaves, _ = flatten(value)
        for leaf in leaves:
            arrays = _arrays_in(leaf)
            twice |= arrays & passed
            passed |= arrays
    return twice


def _arrays_in(leaf: Any) -> set[_VariableArray]:
    match leaf:
        case Variable():
            variable = state_of(leaf)
            return {(id(variable), index) for index in variable.leaves()}
        case Branch(variable=variable, arrays=arrays):
            return {(id(variable), index) for index in arrays}
    return set()


_Memory: TypeAlias = int  # number of a variable's memory; its id in a call that is only planned


@final
class _Binding:
    """The arguments of one call, while they are bound.

    In all methods, `name` is the parameter, and `path` the same, or the leaf of a nested argument.

    Attributes:
        arguments: what is bound so far.
        filled: constants among the arguments and their leaves.
    """

    def __init__(
        self,
        binder: Binder,
        options: CallOptions,
        partition: Partition,
        world: Engine | None,
        shared: set[_VariableArray],
    ) -> None:
        self._binder = binder
        self._options = binder.options
        self._call_options = options
        self._partition = partition
        self._world = world
        self._shared = shared  # as `_shared_arrays`
        self.arguments = Arguments()
        self.filled: set[RankConstant] = set()

    def _label(self, path: str) -> str:
        return f"{path} of {self._binder.name}"

    def _refused(self, path: str, problem: str) -> ArgumentError:
        return ArgumentError(f"{path} of {self._binder.name} {problem}")

    def add(self, name: str, value: Any) -> None:
        """Binds an argument."""
        kind = kind_of(value)
        if kind == "foreign":
            value = adopted(value, self._label(name))
            kind = kind_of(value)
        self.arguments.passed[name] = value
        self.arguments.parameters[name] = self._param(name, name, value, kind)

    def _param(self, name: str, path: str, value: Any, kind: Kind) -> Param:
        if kind == "tree" and self._options.style == "kernel":
            kind = "constant"
        if name in self._options.sliceable and kind not in _SLICEABLE:
            raise self._refused(
                path,
                f"is in rows=, which takes variables; got {class_text(value)}",
            )
        return _METHODS[kind](self, name, path, value)

    def _tree(self, name: str, path: str, tree: Any) -> Param:
        leaves, structure = flatten(tree)
        self.arguments.key.append(structure)
        params = []
        for step, leaf in zip(paths(structure), leaves, strict=True):
            params.append(self._param(name, path + step, leaf, kind_of(leaf)))
        return Tree(structure, tuple(params))

    # ---- variables

    def _variable(self, name: str, path: str, value: Variable) -> Param:
        """Returns the parameter for a variable: each rank's own arrays, or rows of them if it is
        sliceable.
        """
        variable, options = state_of(value), self._options
        if variable.is_tree and options.style == "kernel":
            raise self._refused(
                path, "is a tree, but a kernel takes single arrays; make one variable per array"
            )
        is_updated = id(variable) in self._binder.updated
        if is_updated and name not in options.givens:
            raise self._refused(
                path,
                f"is {variable.label}, which the call also assigns (updates=); bind it with "
                "givens= to read its old value",
            )
        self._claim(name, path, variable, variable.leaves())
        memory = self._hold(path, variable)
        leaves = variable.leaves()
        if name in options.sliceable:
            self._measure(path, variable)
            writable = name in options.inout
            rows = [HeldRows(memory, leaf, writable) for leaf in leaves]
            return self._held(variable, variable.structure(), rows)
        self.arguments.intact[path] = variable
        held = [
            Held(memory, leaf, is_updated or self._is_shared(variable, leaf)) for leaf in leaves
        ]
        return self._held(variable, variable.structure(), held)

    def _held(
        self, variable: VariableState, structure: Structure, params: Sequence[Param]
    ) -> Param:
        if any(map(may_write, params)):
            self.arguments.changed.append(variable)
        if structure == LEAF:
            return params[0]
        return Tree(structure, tuple(params))

    def _is_shared(self, variable: VariableState, leaf: int) -> bool:
        return (id(variable), leaf) in self._shared

    def _measure(self, path: str, variable: VariableState) -> None:
        """Notes the numbers of rows of a sliceable variable."""
        steps = paths(variable.structure())
        for leaf, by_rank in enumerate(shapes_by_rank(variable, self._partition)):
            if not by_rank[0]:
                raise self._refused(
                    path,
                    f"is in rows=, but {variable.label_of(leaf)} is 0-d and has no rows",
                )
            spans = own_by_rank(variable, by_rank)
            lengths = tuple(span.stop - span.start for span in spans)
            self.arguments.lengths.sliceable[path + steps[leaf]] = lengths

    def update(self, name: str, variable: VariableState, op: Op) -> Param:
        """Returns the parameter for an accumulator, which has the shape of a variable."""
        arguments, function = self.arguments, self._binder.name
        if variable.is_tree and self._options.style == "kernel":
            raise ArgumentError(
                f"updates[{name!r}] of {function} is a tree, but a kernel takes single arrays; "
                f"make one variable per array"
            )
        if variable not in arguments.variables.values():
            arguments.variables[name] = variable
        if self._call_options.shards is not None and variable.sharded:
            raise ArgumentError(
                f"{function} got shards=…, so that updates[{name!r}] gets the same value on "
                f"every rank, but the rows of {variable.label} are divided over the ranks; leave "
                "shards out, or update a replica"
            )
        memory = self._hold(name, variable, assigned=True)
        arguments.intact[name] = variable
        shapes, dtypes = shapes_by_rank(variable, self._partition), variable.dtypes()
        params = [
            Update(memory, leaf, op, dtypes[leaf], shapes[leaf]) for leaf in variable.leaves()
        ]
        return self._held(variable, variable.structure(), params)

    def _branch(self, name: str, path: str, branch: Branch) -> Param:
        variable, arrays = branch.variable, branch.arrays
        role = ""
        if id(variable) in self._binder.updated:
            role = "a part of a variable that updates= names"
        if name in self._options.sliceable:
            role = "in rows="
        if role:
            raise self._refused(path, f"is {branch.label}, and {role}; make one variable per array")
        if branch.structure != LEAF and self._options.style == "kernel":
            raise self._refused(
                path, f"is {branch.label}, a tree, but a kernel takes single arrays"
            )
        self._claim(name, path, variable, arrays)
        self.arguments.branches[path] = arrays
        memory = self._hold(path, variable)
        self.arguments.key.append((branch.structure, branch.leaves.start))
        if branch.leaves.start == VECTOR:  # whose rows are elements of several arrays
            read_only = any(self._is_shared(variable, leaf) for leaf in arrays)
            held = [Held(memory, VECTOR, read_only, len(arrays))]
        else:
            if branch.leaves:
                self.arguments.intact[path] = variable
            held = [Held(memory, leaf, self._is_shared(variable, leaf)) for leaf in arrays]
        return self._held(variable, branch.structure, held)

    def _claim(self, name: str, path: str, variable: VariableState, arrays: range) -> None:
        """Notes a variable of a call; raises `ArgumentError` for one whose rows are written, and
        that is passed twice.
        """
        alias = self.arguments.alias(variable, arrays)
        if alias is not None and (written := self._written_rows(name, alias)):
            label = "" if variable.name is None else f" {variable.name!r}"
            raise ArgumentError(
                f"{path} and {alias} of {self._binder.name} are the same variable{label}, "
                f"and the rows of {written}, which is in inout=, are written; pass a copy of "
                "it as another variable"
            )
        self.arguments.variables[path] = variable

    def _written_rows(self, name: str, alias: str) -> str | None:
        """Returns which of a parameter and another, or leaf of one, has rows that are written."""
        written = self._options.sliceable & self._options.inout
        if name in written:
            return name
        for parameter in written:
            if alias == parameter or alias.startswith(f"{parameter}["):
                return parameter
        return None

    def _hold(self, path: str, variable: VariableState, *, assigned: bool = False) -> _Memory:
        """Makes a variable part of the call's key, and places it."""
        if self._call_options.solo and variable.sharded:  # the root lacks the other ranks' rows
            raise self._refused(
                path,
                f"is {variable.label}, whose rows are divided over the ranks; as_serial needs all "
                "rows on the root",
            )
        if self._world is None:
            self.arguments.key.append(id(variable))
            return id(variable)
        place = variable.place_to_assign if assigned else variable.place
        storage = place(self._world)
        self.arguments.key.append(variable._layout)  # noqa: SLF001  # as for Data
        return storage.number

    # ---- arrays

    def _foreign(self, name: str, path: str, value: Any) -> Param:
        array = adopted(value, self._label(path))
        return self._param(name, path, array, kind_of(array))

    def _numpy(self, name: str, path: str, array: Array) -> Param:
        if array.ndim == 0 and array.dtype.kind in _LETTERS:
            if np.ma.is_masked(array):
                raise DataError(
                    f"{self._label(path)} is masked, and ranks have no masks; pass a number, or "
                    f"{path}.filled(…) of an array"
                )
            return self._number(name, path, array[()])
        is_written = name in self._options.inout
        if is_written:
            check_target(self.arguments, path, array)
            refuse_truncated(array, self._label(path))
        else:
            mapped = over_file(array, self._label(path))
            if mapped is not None:
                self._binder.files[path] = mapped
                return self._data(name, path, mapped)
            self._binder.files.pop(path, None)
        if self._world is None:
            planned = HostArray(-1, array.dtype, self._shape(name, array))
            return self._place(name, path, planned, by_position=False)
        staged = self._staged(path, array)
        if is_written:
            self.arguments.write_back.append((path, array, staged))
        return self._data(name, path, staged)

    def _staged(self, path: str, array: Array) -> Data:
        """Returns a NumPy array as `Data`, which is kept for the argument and refilled at each
        call.
        """
        staging = self._binder.staging
        staged = staging.get(path)
        try:
            if staged is not None and _fits(staged, array):
                staged.set_value(array)
            else:
                staged = staging[path] = Data(array)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        return staged

    def _data(self, name: str, path: str, data: Data) -> Param:
        segment = data._segment  # noqa: SLF001  # shared with this module
        if name in self._options.inout:
            self._check_writable(path, data)
        try:
            self.arguments.key.append(data._layout)  # noqa: SLF001
        except DataError as error:  # of a file
            raise DataError(f"{self._label(path)}: {error}") from None
        source = None
        if isinstance(data, StoredData):
            source = data.source  # as `_layout` found it
        else:
            self.arguments.segments.append(segment)
        array = HostArray(
            segment.id,
            data.dtype,
            self._shape(name, data),
            data._offset,  # noqa: SLF001
            data._version,  # noqa: SLF001
            source,
        )
        return self._place(name, path, array, by_position=data.minibatch)

    def _check_writable(self, path: str, data: Data) -> None:
        problem = ""
        if isinstance(data, FileData | StoredData):
            problem = (
                f"over the file {data.path}, which ranks only read; pass a copy, as "
                "np.array(...) of it"
            )
        elif data.frozen:
            problem = "frozen; call thaw() first"
        if problem:
            raise self._refused(path, f"is in inout=, so its rows are written, but it is {problem}")

    def _shape(self, name: str, array: Array | Data) -> Shape:
        """Returns the shape that the function sees."""
        if name not in self._options.flat:
            return array.shape
        axis = 0 if name in self._options.broadcast else 1
        return (*array.shape[:axis], math.prod(array.shape[axis:]))

    def _place(self, name: str, path: str, array: HostArray, *, by_position: bool) -> Param:
        """Returns the parameter for an array, sharded or broadcast."""
        if name in self._options.broadcast or not array.shape:
            return Broadcast(array)
        lengths, length = self.arguments.lengths, array.shape[0]
        writable = name in self._options.inout
        if path != name and length == 0 and not writable:
            lengths.empty[path] = 0
            return Broadcast(array)
        if by_position:
            lengths.minibatches[path] = length
        else:
            lengths.sharded[path] = length
        return Sharded(array, by_position, writable)

    # ---- numbers and constants

    def _number(self, name: str, path: str, value: Any) -> Param:
        dtype, kind = None, ""
        if isinstance(value, np.generic):
            dtype, kind = value.dtype.name, value.dtype.kind
            if kind not in _LETTERS or isinstance(value, np.longdouble | np.clongdouble):
                return self._constant(name, path, value)
            value = value.item()
        else:
            kind = _kind_of_number(value)
        letter = _LETTERS[kind]
        key, scalars = self.arguments.key, self.arguments.scalars
        if kind == "c":
            key.append((kind, dtype))
            first = scalars.add(value.real, letter, None)
            scalars.add(value.imag, letter, None)
            return Dynamic(first.index, dtype, is_complex=True)
        if kind == "i" and not -(2**63) <= value < 2**63:
            if not 0 <= value < 2**64:
                raise ArgumentError(
                    f"{path}={shown(value)} does not fit in 64 bits; pass a float, or an array"
                )
            letter = "Q"
            if self._options.style == "kernel":  # a function gets an int of Python's
                dtype = "uint64"
        key.append((letter, dtype))
        return scalars.add(value, letter, dtype)

    def _stand_in(self, _name: str, _path: str, number: Number) -> Param:
        self.arguments.key.append("number")
        return self.arguments.scalars.add(number, number.letter, number.dtype)

    def _filled(
        self, name: str, path: str, value: IndexRange | RankConstant | PerRankValues
    ) -> Param:
        """Returns the parameter for a value that each rank fills in."""
        arguments = self.arguments
        if isinstance(value, PerRankValues):
            arguments.key.append(_exact(value.values))
            return PerRank(value.values)
        arguments.key.append(value)
        if isinstance(value, IndexRange):
            arguments.lengths.sharded[path] = value.length
            arguments.lengths.contiguous.append(name)
            return IndexSpan()
        if value is RankConstant.OFFSET:
            arguments.lengths.contiguous.append(name)
        self.filled.add(value)
        return Filled(value)

    def _constant(self, _name: str, path: str, value: Any) -> Param:
        """Returns the parameter for a value that is part of the plan.

        Its key is its pickle, since the value may be mutable, and 1 == 1.0 == True.
        """
        # arrays to a script, whole and copied here
        if isinstance(value, memoryview | bytearray | buffers.array):
            raise self._refused(
                path,
                f"is {class_text(value)}, whose rows are not divided; {array_hint(value)}",
            )
        style = self._options.style
        if style == "kernel" and not isinstance(value, tuple | Enum | np.generic | None):
            raise self._refused(
                path,
                f"is {class_text(value)}, which cannot be passed to a {style}; {array_hint(value)}",
            )
        try:
            key = value
            if value is not None and type(value) is not str:
                key = _exact(value)
            self.arguments.key.append(key)
        # what a class of the script raises in its __reduce__
        except (Exception, SystemExit) as error:
            if is_of_handler(error):
                raise
            raise self._refused(
                path,
                f"is {class_text(value)}, which cannot be sent to the ranks "
                f"({error}); pass "
                "an array, Data, a number, or a picklable object",
            ) from error
        if self._world is not None:
            self._world.holdings.code.uses([value], self._label(path))
        return Constant(value)


_METHODS: Mapping[Kind, Callable[[_Binding, str, str, Any], Param]] = {
    "variable": _Binding._variable,  # noqa: SLF001  # of this module, as below
    "branch": _Binding._branch,  # noqa: SLF001
    "data": _Binding._data,  # noqa: SLF001
    "array": _Binding._numpy,  # noqa: SLF001
    "foreign": _Binding._foreign,  # noqa: SLF001
    "number": _Binding._number,  # noqa: SLF001
    "stand-in": _Binding._stand_in,  # noqa: SLF001
    "filled": _Binding._filled,  # noqa: SLF001
    "tree": _Binding._tree,  # noqa: SLF001
    "constant": _Binding._constant,  # noqa: SLF001
}
_SLICEABLE = ("variable", "branch", "tree")  # with variables, or refused with reasons
# `struct` letters of the kinds of NumPy's dtypes; a complex number is sent as two
_LETTERS = {"b": "?", "i": "q", "u": "Q", "f": "d", "c": "d"}
_NUMBERS = ((bool, "b"), (int, "i"), (float, "f"), (complex, "c"))


def _kind_of_number(value: Any) -> str:
    """Returns the kind of NumPy's dtypes that a number of Python's belongs to."""
    for base, kind in _NUMBERS:
        if isinstance(value, base):
            return kind
    raise AssertionError(value)  # `kind_of` takes these for numbers only


def _fits(staged: Data, array: Array) -> bool:
    """Returns whether an array can be written to the copy of an earlier one; `Data` refuses
    objects.
    """
    if array.dtype.hasobject or staged.ndim != array.ndim:
        return False
    return staged.dtype == array.dtype.newbyteorder("=")


def _exact(value: Any) -> tuple[str, bytes]:
    """Returns a key that is equal only for values that the ranks cannot distinguish."""
    return ("pickled", pickling.dump(value))
