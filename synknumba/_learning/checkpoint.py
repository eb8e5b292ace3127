"""Checkpoints: trees of variables, arrays and values in a file, and back.

    save    tree ──variables as wholes──> arrays and a text ──safetensors──> a new file, which replaces the old one at once
    load    file ──checked against like=, all at once──> variables and Data of like=, in place; other values are returned

The format is in `checkpoint_format.py`, and how a file is replaced in `replaced_file.py`.
"""  # noqa: E501

import errno
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from synknumba import _tracing as tracing
from synknumba._errors import ArgumentError, DataError, PartitionError, VariableLost, WorldError
from synknumba._host import this_process
from synknumba._host.data import Data
from synknumba._learning.checkpoint_format import (
    METADATA_KEY,
    Encoded,
    Stored,
    as_tensor,
    child_name,
    decode,
    encode,
    from_tensor,
    is_plain,
    item_names,
    unsupported,
)
from synknumba._learning.replaced_file import check_writable, replacing
from synknumba._ops.tree import flatten, is_nested, unflatten
from synknumba._types import Array, Shape, class_text, known_options, shown
from synknumba._variables.restore import restore
from synknumba._variables.state import VariableState
from synknumba._variables.variable import Variable, state_of

# That safetensors reads: names and shapes of the arrays, and the text.
_MOST_HEADER_BYTES = 100_000_000
# At most, of an array in the header besides its name, with as many axes as are usual.
_ENTRY_BYTES = 200
_LONGEST_TEXT = 60  # characters of a value in a message
_TREES = {"save": "tree", "load": "like=tree"}


@known_options
def save(path: "str | os.PathLike[str]", tree: Any) -> None:
    """Saves a tree of variables, arrays and values in a file, which is replaced at once.

    A replica is stored once, and a divided variable as the whole, without halos, so that the file
    does not depend on the number of ranks. Works without an open world, too. The file is a
    safetensors file, with one tensor for each array, under its path in the tree: "params.w.0" for
    `tree["params"]["w"][0]`. A process that is killed while it saves leaves the old file.

    Args:
        path: path of the file. If there is one, its permissions are kept, and a symbolic link stays
            one.
        tree: nested dict, list, tuple or named tuple of variables (also trees), `Data`, NumPy
            arrays and scalars, numbers, strings, bools and None. Arrays are of bools, integers,
            float16 to float64, and complex numbers of these.

    Raises:
        ArgumentError: the tree has something else in it, or `path` is not a path.
        DataError: an array has another dtype, or the tree has too many values that are not in
            arrays.
        PartitionError: the replicas of a variable differ between the ranks.
        VariableLost: the values of a variable ended with the ranks of their world.
        WorldError: this process is a rank.
        OSError: the file cannot be written; the old one is there as before.
        ModuleNotFoundError: the package safetensors is not installed.

    Example:
        >>> import os, tempfile
        >>> import numpy as np
        >>> import synknumba as synk
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = os.path.join(folder.name, "model.safetensors")
        >>> w = synk.variable(np.arange(3.0), name="w")
        >>> synk.save(path, {"w": w, "step": 7})
        >>> w.set_value(np.zeros(3))
        >>> synk.load(path, like={"w": w, "step": 0})["step"], w.get_value()
        (7, array([0., 1., 2.]))
        >>> synk.load(path)
        {'w': array([0., 1., 2.]), 'step': 7}
        >>> folder.cleanup()
    """
    _refuse("save")
    package = _safetensors("save")
    file_path = _path_of(path, "save")
    try:
        encoded = encode(_with_parts(tree), (Part, Data))
    except RecursionError:
        raise ArgumentError("save: the tree is nested too deeply, or contains itself") from None
    _check_header(encoded)
    check_writable(file_path)  # before anything is fetched
    arrays = {name: as_tensor(array) for name, array in _fetched(encoded.arrays)}
    with replacing(file_path) as new:
        _write(package, new, arrays, encoded.text)


@known_options
def load(path: "str | os.PathLike[str]", *, like: Any = None) -> Any:
    """Reads a file that `save` has written.

    With `like`, structure, shapes and dtypes are compared first. If anything differs, one
    error lists all differences, and nothing has changed. Then the values are put into the
    variables and `Data` of `like`: those of a replica on every rank, the rows of a divided variable
    on the ranks that there are now, with the halos that it has. The old values may be lost, as they
    are after a rank's death. Without an open world, variables start with the values in the next
    one.

    Args:
        path: path of the file.
        like: tree of variables, `Data`, arrays and values, in the structure of the saved tree, in
            which lists and tuples are alike. Any number, string, bool or None stands for any other.

    Returns:
        The saved tree, with NumPy arrays in place of variables and `Data`. With `like`, a tree like
        it: with its variables and `Data`, and with the arrays and other values of the file; the
        arrays in `like` have not changed.

    Raises:
        DataError: the file is damaged, or was not written by `save`, or differs from `like`;
            nothing has changed.
        ArgumentError: `like` has something in it that a checkpoint does not hold, or `path` is not
            a path.
        PartitionError: a rank would have fewer rows than a variable's halo; nothing has changed.
        FileNotFoundError, OSError: there is no such file, or it cannot be read.
        ModuleNotFoundError: the package safetensors is not installed.
        WorldError, SharedMemoryError, RankError, RankDied, CallTimeout: as for `scatter`.

    Example:
        >>> import os, tempfile
        >>> import numpy as np
        >>> import synknumba as synk
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = os.path.join(folder.name, "model.safetensors")
        >>> synk.save(path, {"x": np.arange(3), "step": 7})
        >>> synk.load(path)
        {'x': array([0, 1, 2]), 'step': 7}
        >>> x = synk.data(np.zeros(3, int))
        >>> tree = synk.load(path, like={"x": x, "step": 0})
        >>> tree["x"] is x, x[2]
        (True, np.int64(2))
        >>> folder.cleanup()
    """
    _refuse("load")
    package = _safetensors("load")
    file_path = _path_of(path, "load")
    with _opened(package, file_path) as file:
        tree = _tree_of(file, file_path)
        if like is None:
            return _filled(tree, file)
        match = _Match()
        result = match.merge(like, tree, "")
        values = match.read(file)
        if match.problems:
            differences = "\n  ".join(["", *match.problems])
            raise DataError(
                f"load: {file_path} does not fit like=, so nothing has changed:{differences}"
            )
        result = _filled(result, file)
    match.store(values)
    return result


def _refuse(what: str) -> None:
    """Raises where nothing is saved or loaded: in the body of a sequence, and on ranks."""
    tracing.refuse(f"synk.{what}()")
    rank = this_process.current_rank()
    if rank is not None:
        raise WorldError(
            f"this is rank {rank}, but synk.{what}() is for the script: return from "
            f"the function what it needs"
        )


def _safetensors(what: str) -> Any:
    """Returns the package safetensors."""
    try:
        import safetensors.numpy
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"synk.{what}() needs the package safetensors ({error}): pip install safetensors",
            name=error.name,
        ) from error
    return safetensors


def _path_of(path: Any, what: str) -> str:
    """Returns a path as a string."""
    file_path = path
    if isinstance(path, os.PathLike):
        file_path = os.fspath(path)
    if isinstance(file_path, str) and "\0" not in file_path:
        return file_path
    raise ArgumentError(
        f"{what}: path must be a str or an os.PathLike of one, got {_shortened(path)}; "
        f"write synk.{what}(path, {_TREES[what]})"
    )


# ---- what is saved


@final
@dataclass(frozen=True, slots=True)
class Part:
    """One of the arrays of a variable, as a whole."""

    variable: VariableState
    leaf: int

    @property
    def dtype(self) -> "np.dtype[Any]":
        """Dtype."""
        return self.variable.dtypes()[self.leaf]

    @property
    def shape(self) -> Shape | None:
        """Shape of the replica, or of the rows of all ranks; None if each rank has an array of
        its own.
        """
        return self.variable.whole_shapes()[self.leaf]


def _parts(variable: Variable) -> Any:
    """Returns the tree of a variable's arrays."""
    state = state_of(variable)
    return unflatten(state.structure(), [Part(state, leaf) for leaf in state.leaves()])


def _with_parts(tree: Any) -> Any:
    """Returns a tree with the arrays of variables in place of these."""
    leaves, structure = flatten(tree)
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, Variable):
            leaves[position] = _parts(leaf)
    return unflatten(structure, leaves)


def _fetched(arrays: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Yields the array for each name; each variable is fetched once."""
    wholes: dict[VariableState, list[Array]] = {}
    for name, array in arrays.items():
        match array:
            case Data():
                yield name, array.data
            case Part(variable=state, leaf=leaf):
                if state not in wholes:
                    try:
                        wholes[state] = state.whole_arrays()
                    except (PartitionError, VariableLost) as error:
                        raise type(error)(f"save: {name}: {error}") from None
                yield name, wholes[state][leaf]
            case _:
                yield name, np.asarray(array)


def _write(package: Any, path: str, arrays: Mapping[str, Array], text: str) -> None:
    """Writes a safetensors file."""
    try:
        package.numpy.save_file(arrays, path, {METADATA_KEY: text})
    except package.SafetensorError as error:
        number = re.search(r"(?:os error|code:) (\d+)", str(error))
        if number is None:
            raise OSError(f"the checkpoint cannot be written: {error}") from error
        raise OSError(int(number[1]), os.strerror(int(number[1])), path) from error


def _check_header(encoded: Encoded) -> None:
    """Raises `DataError` if a file would have more names and values than can be read."""
    nbytes = len(json.dumps(encoded.text))
    for name in encoded.arrays:
        nbytes += len(json.dumps(name)) + _ENTRY_BYTES
    if nbytes > _MOST_HEADER_BYTES:
        raise DataError(
            f"save: the tree has {len(encoded.arrays):,} arrays, and {len(encoded.text):,} bytes "
            "of keys and other values: more than the header of a safetensors file holds. Make "
            "arrays of long lists of numbers: np.array(…)"
        )


# ---- what is loaded


@contextmanager
def _opened(package: Any, path: str) -> Iterator[Any]:
    """Opens a safetensors file; what is yielded reads its header and tensors."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "Is a folder; give the path of a file in it", path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Is not a regular file", path)
    with open(path, "rb"):  # raises Python's error if it cannot be read
        pass
    try:
        file = package.safe_open(path, framework="np")
    except package.SafetensorError as error:
        raise DataError(
            f"load: {path} is not a checkpoint of synk.save, or is damaged: {error}"
        ) from None
    with file:
        yield file


def _tree_of(file: Any, path: str) -> Any:
    """Returns the tree of a file, with a `Stored` for each array."""
    text = (file.metadata() or {}).get(METADATA_KEY)
    if text is None:
        raise DataError(
            f"load: {path} is a safetensors file, but not of synk.save; read it with "
            f"safetensors.numpy.load_file(path)"
        )
    tensors = {}
    for name in file.keys():  # noqa: SIM118  # no dict
        tensor = file.get_slice(name)
        tensors[name] = tensor.get_dtype(), tensor.get_shape()
    try:
        return decode(text, tensors)
    except ValueError as error:
        raise DataError(f"load: {path} cannot be read: {error}") from None


def _read(file: Any, stored: Stored) -> Any:
    return from_tensor(file.get_tensor(stored.name), stored)


def _filled(tree: Any, file: Any) -> Any:
    """Returns a tree with arrays in place of each `Stored`."""
    leaves, structure = flatten(tree)
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, Stored):
            leaves[position] = _read(file, leaf)
    return unflatten(structure, leaves)


@final
class _Match:
    """The comparison of a tree `like` with that of a file.

    Attributes:
        problems: what differs, a line each.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        # by identity, and array of the variable
        self._targets: dict[tuple[int, int], tuple[Part | Data, Stored]] = {}
        # arrays for a target that is twice in `like`
        self._again: list[tuple[Stored, Stored, str]] = []

    def merge(self, like: Any, content: Any, name: str) -> Any:
        """Compares two trees; returns one like `like`, with what the file has for arrays and
        values.
        """
        match like:
            case Variable():
                self.merge(_parts(like), content, name)
                return like
            case Part() | Data():
                self._note_target(like, content, name)
                return like
            case np.ndarray():
                self._note_difference(like, content, name)
                return content
            case dict() if is_nested(like):
                return self._merge_dict(like, content, name)
            case list() | tuple():
                return self._merge_list(like, content, name)
        if not (is_plain(like) or isinstance(like, np.generic)):
            raise unsupported(like, name)
        if not (is_plain(content) or (isinstance(content, Stored) and content.is_scalar)):
            self._note(like, content, name)
        return content

    def _merge_dict(self, like: Mapping[Any, Any], content: Any, name: str) -> Any:
        if not isinstance(content, dict):
            return self._note(like, content, name)
        for key, value in like.items():
            if key not in content:
                problem = f"the file has nothing, like= has {_text_of(value)}"
                self.problems.append(f"{child_name(name, key)}: {problem}")
        for key, value in content.items():
            if key not in like:
                problem = f"the file has {_text_of(value)}, like= has nothing"
                self.problems.append(f"{child_name(name, key)}: {problem}")
        merged = {}
        for key, value in like.items():
            if key in content:
                merged[key] = self.merge(value, content[key], child_name(name, key))
        return merged

    def _merge_list(self, like: Sequence[Any], content: Any, name: str) -> Any:
        fields = getattr(like, "_fields", None)
        if (
            not isinstance(content, list | tuple)
            or len(like) != len(content)
            or fields != getattr(content, "_fields", None)
        ):
            return self._note(like, content, name)
        children = [*map(self.merge, like, content, item_names(name, like))]
        if fields is not None:
            return type(like)(*children)
        return children if isinstance(like, list) else tuple(children)

    def _note_target(self, target: Part | Data, content: Any, name: str) -> None:
        if isinstance(target, Data):
            try:
                target._check_thawed()  # noqa: SLF001  # refuses files too, as set_value does
            except DataError as error:
                self.problems.append(f"{name}: in like=, {error}")
        if not self._note_difference(target, content, name):
            key = id(target), 0
            if isinstance(target, Part):
                key = id(target.variable), target.leaf
            _, first = self._targets.setdefault(key, (target, content))
            if first is not content:
                self._again.append((first, content, name))

    def _note_difference(self, like: Any, content: Any, name: str) -> bool:
        """Notes if an array differs; returns whether it does."""
        kind = like.dtype.newbyteorder("="), like.shape
        is_array = isinstance(content, Stored) and not content.is_scalar
        if is_array and (content.dtype, content.shape) == kind:
            return False
        self._note(like, content, name)
        return True

    def _note(self, like: Any, content: Any, name: str) -> None:
        self.problems.append(
            f"{name or 'the tree'}: the file has {_text_of(content)}, like= has {_text_of(like)}"
        )

    def read(self, file: Any) -> dict[tuple[int, int], Array]:
        """Returns the arrays of variables and `Data`, if nothing differs; notes those for which the
        file has two values.
        """
        if self.problems:
            return {}
        for first, again, name in self._again:
            if _read(file, first).tobytes() != _read(file, again).tobytes():
                self.problems.append(
                    f"{name}: like= has the same variable or Data as at {first.name}, "
                    f"and the file other values"
                )
        return {key: _read(file, stored) for key, (_, stored) in self._targets.items()}

    def store(self, values: Mapping[tuple[int, int], Array]) -> None:
        """Puts the values into variables and `Data`."""
        wholes: dict[VariableState, dict[int, Array]] = {}
        for key, (target, _) in self._targets.items():
            if isinstance(target, Part):
                wholes.setdefault(target.variable, {})[target.leaf] = values[key]
        arrays = [[whole[leaf] for leaf in sorted(whole)] for whole in wholes.values()]
        restore([*wholes], arrays)
        for key, (target, _) in self._targets.items():
            if isinstance(target, Data):
                target.set_value(values[key])


def _text_of(value: Any) -> str:
    """Returns what a value of a tree is, for messages."""
    match value:
        case Variable():
            return _text_of(_parts(value))
        case Part(shape=None):
            return (
                f"{value.variable.label_of(value.leaf)}, of which each rank has an array of its own"
            )
        case Stored(is_scalar=True):
            return f"a {value.dtype} number"
        case Part() | Data() | np.ndarray() | Stored():
            return f"{value.dtype} {value.shape}"
        case np.generic():
            return f"a {value.dtype} number"
        case dict() if is_nested(value):
            return f"a dict of {len(value)}"
        case list() | tuple():
            if hasattr(value, "_fields"):
                return f"a named tuple ({', '.join(value._fields)})"
            return f"a {'list' if isinstance(value, list) else 'tuple'} of {len(value)}"
        case _:
            return _shortened(value)


def _shortened(value: object) -> str:
    """Returns the repr of a value, or its type if that is long."""
    text = shown(value)
    return text if len(text) <= _LONGEST_TEXT else class_text(value)
