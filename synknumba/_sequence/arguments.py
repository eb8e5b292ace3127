"""The arguments of a call of a sequence: bound, and sorted by what they are to the ranks.

    arguments ──bind──> leaves of the tree ──classify──> Arguments: a key, numbers, copies of arrays

Numbers are sent with each call, so that another number is no other sequence. Arrays of NumPy are
copied to shared memory, in which an array of the same layout finds its place again.
"""

import itertools
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from inspect import Signature
from typing import Any, TypeAlias, final

import numpy as np

from synknumba._call.written_arguments import share_memory
from synknumba._errors import ArgumentError
from synknumba._host.data import Data, segment_of
from synknumba._host.file_data import over_file
from synknumba._host.foreign import adopted, is_foreign
from synknumba._ops.tree import Structure, flatten, paths
from synknumba._progress import refusal
from synknumba._sequence.marks import Static
from synknumba._sequence.outer_values import OuterValues
from synknumba._sequence.schedule import OPTIONS
from synknumba._sequence.symbolic_results import number_dtype
from synknumba._tracing import STEP, Number
from synknumba._types import Args, Array, Kwargs, unknown_keyword
from synknumba._variables.variable import Variable, layout_of
from synknumba._world.read_values import is_plain, key_of

_NUMBERS = int | float | np.integer | np.floating
Copied: TypeAlias = tuple[str, Array, Data]
"""An array for messages, and the copy in shared memory that calls take."""


@final
class Arguments:
    """The arguments of one call of a sequence.

    Attributes:
        structure: of the leaves.
        key: equal for calls that the same recording of the body serves.
        scalars: the numbers, which are sent with each call.
        letters: their kinds, as `struct` has them.
        leaves: what the body gets.
        write_back: NumPy arrays, with the copies that calls take.
        data: the `Data` among them, by name.
        objects: those that are part of the sequence, with what the body reads of them.
    """

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self.key: list[Any] = [structure]
        self.scalars: list[Any] = []
        self.letters = ""
        self.leaves: list[Any] = []
        self.write_back: list[Copied] = []
        self.data: list[tuple[str, Data]] = []
        self.objects: list[Any] = []

    def add(self, key: Any, leaf: Any) -> None:
        """Adds an argument, with its part of the key."""
        self.key.append(key)
        self.leaves.append(leaf)


@final
class ArgumentBinder:
    """Binds and sorts the arguments of one sequence.

    Args:
        name: the sequence's.
        signature: that of its body.
    """

    def __init__(self, name: str, signature: Signature) -> None:
        self.name = name
        self.signature = signature
        self.passed = tuple(signature.parameters)
        self._staging: dict[int, Data] = {}  # copies of arrays, by the place of the argument

    def bind(self, args: Args, kwargs: Kwargs) -> tuple[list[Any], Structure]:
        for name in kwargs:
            if name not in self.signature.parameters:
                if name == "progress":
                    raise ArgumentError(refusal(self.name))
                raise ArgumentError(
                    unknown_keyword(self.name, name, self.signature.parameters, OPTIONS)
                )
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            message = f"{self.name}{self.signature}: {error}"
            extra = args[len(self.passed) :]
            if extra and isinstance(extra[0], int):
                message += f"; the number of iterations is times={extra[0]}"
            raise ArgumentError(message) from None
        bound.apply_defaults()
        return flatten(dict(bound.arguments))

    def classify(self, args: Args, kwargs: Kwargs, outer: OuterValues) -> Arguments:
        """Returns the arguments of a call: numbers become scalars, and arrays are copied to
        shared memory.
        """
        leaves, structure = self.bind(args, kwargs)
        arguments = Arguments(structure)
        for place, (leaf, path) in enumerate(zip(leaves, paths(structure), strict=True)):
            name = f"{argument_name(path)} of {self.name}"
            if is_foreign(leaf):
                leaf = adopted(leaf, name)  # noqa: PLW2901
            match leaf:
                case Variable() | Data():
                    arguments.add(layout_of(leaf), leaf)
                    if isinstance(leaf, Data):
                        arguments.data.append((name, leaf))
                case np.ndarray() if leaf.ndim:
                    self._stage(arguments, place, name, leaf)
                case Static():
                    arguments.add(("static", type(leaf.value), leaf.value), leaf.value)
                case _ if is_number(leaf):
                    self._number(arguments, name, leaf)
                case _ if is_plain(leaf):
                    arguments.add(key_of(leaf), leaf)
                case _:
                    arguments.add(type(leaf), leaf)
                    arguments.objects.append(leaf)
        if arguments.objects:
            arguments.key.append(outer.of(arguments.objects).version)
        return arguments

    def _number(self, arguments: Arguments, name: str, value: Any) -> None:
        number, dtype = plain_number(value)
        is_int = isinstance(number, int)
        if is_int and not -(2**63) <= number < 2**63:
            raise ArgumentError(
                f"{self.name}: {number} does not fit in 64 bits; pass a float, or an array"
            )
        letter = "q" if is_int else "d"
        formula = "scalar", len(arguments.scalars)
        arguments.add((letter, dtype), Number(formula, name, is_int=is_int, dtype=dtype))
        arguments.scalars.append(number)
        arguments.letters += letter

    def _stage(self, arguments: Arguments, place: int, name: str, array: Array) -> None:
        mapped = over_file(array, name)
        if mapped is not None:
            arguments.add(layout_of(mapped), mapped)
            return
        staged = self._staging.get(place)
        kind = array.ndim, array.dtype.newbyteorder("=")
        if staged is not None and (staged.ndim, staged.dtype) == kind:
            staged.set_value(array)
        else:
            staged = self._staging[place] = Data(array)
        arguments.add(layout_of(staged), staged)
        arguments.write_back.append((name, array, staged))


def is_number(value: Any) -> bool:
    """Whether a value is a plain number for a sequence, also as an array of one."""
    if isinstance(value, bool | np.longdouble):
        return False
    if isinstance(value, np.ndarray):
        return not value.ndim
    return isinstance(value, _NUMBERS)


def plain_number(value: Any) -> tuple[Any, str | None]:
    """Returns a number as one of Python, and the dtype that calls get it with, as `number_dtype`
    names it.
    """
    if isinstance(value, np.generic | np.ndarray):
        return value.item(), number_dtype(value.dtype)
    return value, None


def refuse_shared(
    written: AbstractSet[int], arrays: Sequence[Copied], all_arrays: Sequence[Copied]
) -> None:
    """Refuses NumPy arrays over the same memory as other arrays of the sequence, if one is in a
    written segment.

    Each has a copy, and what calls write to one would not be seen in the other.
    """
    for (name, array, copy), (second, memory, data) in itertools.product(arrays, all_arrays):
        segments = segment_of(copy).id, segment_of(data).id
        is_written = copy is not data and not written.isdisjoint(segments)
        if is_written and share_memory(array, memory):
            raise ArgumentError(
                f"{name} and {second} are arrays over the same memory, and calls write to one "
                "of them, which the other would not show. Pass a copy."
            )


def inner_argument(leaf: Any) -> Any:
    """Returns what the body of an inner sequence gets for an argument."""
    if isinstance(leaf, Static):
        return leaf.value
    if leaf is STEP:
        return Number(leaf.formula, leaf.label, is_int=leaf.is_int)
    return leaf


def argument_name(path: str) -> str:
    """Returns the path of an argument, with the parameter's name plain.

    >>> argument_name("['x'][0]")
    'x[0]'
    """
    name, _, rest = path[2:].partition("']")
    return name + rest
